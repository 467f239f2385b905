"""`mtl collaborate` and `mtl energy`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mtl.commands.common import (
    Accelerator,
    NewFolder,
    dev_examples,
    print_scores,
    print_table,
    refuse_unused,
)
from mtl.config.arguments import OutFile
from mtl.tasks.task import Seed, Some

if TYPE_CHECKING:
    import polars as pl

    from mtl.collaborative.energy import LengthCost
    from mtl.collaborative.sharing import SharedAttention
    from mtl.models.joint import JointModel
    from mtl.models.tapped import TappedModel
    from mtl.runs.folder.run import Run


def collaborate_command(
    model: str,
    *,
    dim: int,
    out: NewFolder,
    starts: int = 3,
    steps: int = 200,
    seed: Seed = 0,
    lengths: tuple[int, ...] = (16, 64, 256),
    rounds: Some = 5,
    accelerator: Accelerator = "auto",
    revision: str | None = None,
) -> None:
    """Let the heads of a model share query and key components, and print what that costs and saves.

    Args:
        model: The folder of a run or of a saved model, an encoder ('minilm' or a folder), or the name of a
            model or encoder on the hub.
        dim: Number of components that the heads of a layer share, at most heads x head size, where sharing is
            exact.
        out: Folder of the new run, model or encoder (for mtl train --encoder.name); mixing vectors are
            written beside it as mixing.parquet.
        starts: Number of random starts of the decomposition; the best one is used.
        steps: Number of steps from the best start.
        seed: Random seed for the decomposition and for the sentences that are timed.
        lengths: Lengths of the sentences that are timed, in positions; lengths above what the encoder can
            read are left out.
        rounds: Number of measurements of each time; the median is used.
        accelerator: Device; auto is a GPU if there is one.
        revision: A branch, tag or commit of a model or an encoder on the hub.
    """
    import copy

    from mtl.collaborative.energy import check_lengths, mixing, sharing_costs
    from mtl.collaborative.sharing import check_components
    from mtl.collaborative.sharing import collaborate as share_components
    from mtl.commands.common import progress_bar
    from mtl.errors import InputError
    from mtl.files import new_folder
    from mtl.models.derived import write_derived, write_derived_run
    from mtl.models.opened import device_of, open_target, prepare
    from mtl.probes.tables import table_files

    if not lengths:
        refuse_unused(
            collaborate_command, "has no effect without --lengths to time: leave it out", rounds=rounds
        )
    encoder, joint, source = open_target(model, revision)
    if joint is None:
        encoder.to(device_of(accelerator))
    else:
        prepare(joint, accelerator)
    if encoder.does:
        raise InputError(
            f"{model} {encoder.does}, and mtl collaborate is for encoders: train a model whose heads share "
            "components with seq2seq.components"
        )
    check_components(encoder.transformer, encoder.family, dim)
    read = [length for length in lengths if length <= encoder.tokenizer.max_length]
    check_lengths(encoder, read)
    console = Console(markup=False, emoji=False)
    before = copy.deepcopy(encoder)
    scores = {} if source is None or joint is None else {"dev, before": _scores(source, joint)}
    with progress_bar("layers", len(encoder.tap.sites)) as advance:
        shared = share_components(
            encoder.transformer, dim, starts=starts, steps=steps, seed=seed,
            advance=lambda part: advance(len(part.sites)),
        )  # fmt: skip
    _show_layers(shared, f"{model} -> {out}", console)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in (before, encoder)]
    console.print(f"encoder parameters {counts[0]:,} -> {counts[1]:,}", highlight=False)
    if read:
        _show_costs(sharing_costs(before, encoder, read, rounds, seed), before, console)
    vectors, step = mixing(encoder.transformer, str(out)), f"collaborative {dim}"

    def add(folder: Path) -> None:
        table_files.write_table_file(vectors, folder / "mixing.parquet", "parquet")

    if joint is None:
        with new_folder(out) as folder:
            encoder.save(folder)
            add(folder)
    elif source is None:
        write_derived(joint, out, joint.origin, step, add)
    else:
        scores["dev, after"] = _scores(source, joint)
        made = {"collaborated_from": str(source.folder), "components": dim, "derivation": step}
        write_derived_run(source, out, joint, {"dev": scores["dev, after"]}, made, add)
        print_scores(scores, f"{model} -> {out}", console)
    console.print(f"wrote {out}, with mixing.parquet", highlight=False, soft_wrap=True)


def _scores(source: Run, model: JointModel) -> dict[str, dict[str, float]]:
    """The dev scores of a run's model, under its own masks."""
    from mtl.models.evaluate import batches, evaluate_model, with_same_answers

    corpus = dev_examples(source, model, tuple(model.tasks))
    return with_same_answers(evaluate_model(model, batches(corpus, model)), model, corpus)


def _show_layers(shared: list[SharedAttention], title: str, console: Console) -> None:
    shown = Table(title=title)
    shown.add_column("layer")
    for column in ("dim", "truncated", "error", "last 10 steps", "start", "steps", "seconds"):
        shown.add_column(column, justify="right")
    for part in shared:
        result = part.decomposition
        history = result.history
        layers = ", ".join(str(site.layer) for site in part.sites)
        gained = history[max(len(history) - 11, 0)] - history[-1]
        shown.add_row(
            layers, str(result.factors.mixing.shape[1]), f"{result.truncated:.4f}", f"{result.error:.4f}",
            f"-{gained:.5f}", result.start, str(len(history) - 1), f"{part.seconds:.1f}",
        )  # fmt: skip
    print_table(shown, console)
    console.print(
        "error: of the decomposed stack of the heads' W_Q W_K^T, as a share of its Frobenius norm; "
        "truncated: the same if each component belongs to one head; last 10 steps: their change of the error",
        highlight=False,
        soft_wrap=True,
    )


def _show_costs(costs: list[LengthCost], encoder: TappedModel, console: Console) -> None:
    from mtl.models.opened import device_name

    device = device_name(next(encoder.parameters()).device)
    shown = Table(title=f"the encoder per sentence of random subwords, before -> after ({device})")
    for column in ("positions", "in a batch", "million multiply-adds", "ms (median)", "time"):
        shown.add_column(column, justify="right")
    for cost in costs:
        (adds, fewer), (slow, fast) = cost.multiply_adds, cost.seconds
        shown.add_row(
            str(cost.length), str(cost.sentences), f"{adds / 1e6:,.1f} -> {fewer / 1e6:,.1f}",
            f"{slow * 1e3:.2f} -> {fast * 1e3:.2f}", f"{fast / slow:.1%}",
        )  # fmt: skip
    print_table(shown, console)


def energy(
    models: list[str],
    out: OutFile | None = None,
    figure: OutFile | None = None,
    mixing: OutFile | None = None,
) -> None:
    """Measure how many components the query and key matrices of heads need, apart and together.

    Args:
        models: Folders of runs, models or encoders, names of these on the hub, or 'minilm'.
        out: File for the table of captured variance: .parquet or .csv.
        figure: File for a figure of it: .pdf, .png or .svg.
        mixing: Table of the mixing vectors of models whose heads share components: .parquet or .csv.
    """
    import polars as pl

    from mtl.collaborative.energy import energy_rows
    from mtl.collaborative.energy import mixing as mixing_of
    from mtl.collaborative.energy_table import components_needed, energy_curves
    from mtl.commands.common import check_table, write_table
    from mtl.errors import InputError
    from mtl.models.opened import open_target
    from mtl.probes.figures.style import FORMATS

    for path in (out, mixing):
        check_table(path)
    if out is not None and out == mixing:
        raise InputError(f"--out and --mixing name the same file, {out}: give each its own")
    if figure is not None and figure.suffix.lower().removeprefix(".") not in FORMATS:
        raise InputError(f"{figure}: use a file that ends in .{', .'.join(FORMATS)}")
    if len(set(models)) < len(models):
        raise InputError("a model is given twice: name each once")
    parts, mixed = [], []
    for name in models:
        transformer = open_target(name).encoder.transformer
        parts.append(energy_rows(transformer, name))
        if mixing is not None:
            mixed.append(mixing_of(transformer, name))
    table = pl.concat(parts)
    console = Console(markup=False, emoji=False)
    needed = components_needed(table)
    for name in models:
        _show(name, needed.filter(model=name), console)
    if len(models) > 1:
        _compare(needed, console)
    if figure is not None:
        from mtl.runs.figures.drawn import FigureWithTables, save

        save(FigureWithTables(energy_curves(table)), figure, tables=False)
        console.print(f"wrote {figure}", highlight=False, soft_wrap=True)
    if out is not None:
        write_table(table, out, console)
    if mixing is not None:
        write_table(pl.concat(mixed), mixing, console)


def _show(name: str, needed: pl.DataFrame, console: Console) -> None:
    """Print, per layer, the components for 50, 90 and 95 % of the variance; of single heads, their mean."""
    import polars as pl

    from mtl.collaborative.energy_table import MATRICES
    from mtl.probes.sites import Site, layer_name, sites_of

    sites = sites_of(needed)
    for where, alone in {"all heads of a layer": False, "a head (mean)": True}.items():
        rows = needed.filter(pl.col("head").is_not_null() == alone)
        shown = Table(title=f"{name}, {where}: components for 50 / 90 / 95 % of the variance")
        shown.add_column("layer")
        for title in MATRICES.values():
            shown.add_column(title, justify="right", no_wrap=True)
        for attention, layer in rows.select("attention", "layer").unique(maintain_order=True).iter_rows():
            of_layer = rows.filter(attention=attention, layer=layer)
            cells = [_counts(of_layer.filter(matrix=matrix)) for matrix in MATRICES]
            shown.add_row(layer_name(Site(attention, layer), sites), *cells)
        shown.add_section()
        shown.add_row("mean", *(_counts(rows.filter(matrix=matrix)) for matrix in MATRICES))
        print_table(shown, console)


def _compare(needed: pl.DataFrame, console: Console) -> None:
    """Print, per model, the components for 90 % of the variance, as means over layers."""
    import polars as pl

    from mtl.collaborative.energy_table import MATRICES

    shown = Table(title="components for 90 % of the variance, means over layers")
    shown.add_column("model", overflow="fold")
    for where in ("all heads", "a head"):
        for title in MATRICES.values():
            shown.add_column(f"{where}\n{title}", justify="right", no_wrap=True)
    for (name,), rows in needed.group_by("model", maintain_order=True):
        cells = []
        for alone in (False, True):
            chosen = rows.filter(pl.col("head").is_not_null() == alone)
            for matrix in MATRICES:
                [mean] = chosen.filter(matrix=matrix).select("needs_90").mean().row(0)
                cells.append(f"{mean:.1f}")
        shown.add_row(str(name), *cells)
    print_table(shown, console)


def _counts(rows: pl.DataFrame) -> str:
    means = rows.select("needs_50", "needs_90", "needs_95").mean().row(0)
    return " / ".join(f"{mean:.0f}" if rows.height == 1 else f"{mean:.1f}" for mean in means)
