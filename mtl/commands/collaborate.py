"""`mtl collaborate`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from mtl.commands.choices import Accelerator
from mtl.commands.measured_run import dev_examples
from mtl.commands.new_folder import check_new_folder
from mtl.commands.score_table import print_scores
from mtl.tasks.ranges import Seed, Some

if TYPE_CHECKING:
    from mtl.analysis.costs.sharing import Cost
    from mtl.heads.collaborative import SharedAttention
    from mtl.models.joint import JointModel
    from mtl.models.tapped import TappedModel
    from mtl.runs.folder.run import Run


def collaborate(
    model: str,
    *,
    dim: int,
    out: Path,
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

    from mtl.analysis.costs.energy import mixing
    from mtl.analysis.costs.sharing import check_lengths, sharing_costs
    from mtl.commands.progress import progress_of
    from mtl.errors import InputError
    from mtl.files import new_folder
    from mtl.heads.collaborative import check_components
    from mtl.heads.collaborative import collaborate as share_components
    from mtl.models.derived_run import write_collaborative_run, write_model
    from mtl.models.device import device_of, prepare
    from mtl.models.opened import open_target
    from mtl.probes.tables import table_files

    check_new_folder(out)
    encoder, joint, source = open_target(model, revision)
    if joint is None:
        encoder.to(device_of(accelerator))
    else:
        prepare(joint, accelerator)
    if encoder.translator is not None:
        raise InputError(
            f"{model} translates, and mtl collaborate is for encoders: train a model whose heads share "
            "components with seq2seq.components"
        )
    check_components(encoder.transformer, encoder.family, dim)
    read = [length for length in lengths if length <= encoder.tokenizer.max_length]
    check_lengths(encoder, read)
    console = Console(markup=False, emoji=False)
    before = copy.deepcopy(encoder)
    scores = {} if source is None or joint is None else {"dev, before": _scores(source, joint)}
    with progress_of("layers", len(encoder.tap.sites)) as advance:
        shared = share_components(
            encoder.transformer, dim, starts=starts, steps=steps, seed=seed,
            advance=lambda part: advance(len(part.sites)),
        )  # fmt: skip
    _show_layers(shared, f"{model} -> {out}", console)
    counts = [sum(parameter.numel() for parameter in part.parameters()) for part in (before, encoder)]
    console.print(f"encoder parameters {counts[0]:,} -> {counts[1]:,}", highlight=False)
    if read:
        _show_costs(sharing_costs(before, encoder, read, rounds, seed), before, console)
    vectors = mixing(encoder.transformer, str(out))

    def add(folder: Path) -> None:
        table_files.write(vectors, folder / "mixing.parquet", "parquet")

    if joint is None:
        with new_folder(out) as folder:
            encoder.save(folder)
            add(folder)
    elif source is None:
        write_model(joint, out, joint.origin, f"collaborative {dim}", add)
    else:
        scores["dev, after"] = _scores(source, joint)
        write_collaborative_run(source, out, joint, {"dev": scores["dev, after"]}, dim, add)
        print_scores(scores, f"{model} -> {out}", console)
    console.print(f"wrote {out}, with mixing.parquet", highlight=False, soft_wrap=True)


def _scores(source: Run, model: JointModel) -> dict[str, dict[str, float]]:
    """The dev scores of a run's model, under its own masks."""
    from mtl.models.evaluate import batches, evaluate

    corpus = dev_examples(source, model, tuple(model.tasks))
    return evaluate(model, batches(corpus, model))


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
    console.print(shown)
    console.print(
        "error: of the decomposed stack of the heads' W_Q W_K^T, as a share of its Frobenius norm; "
        "truncated: the same if each component belongs to one head; last 10 steps: their change of the error",
        highlight=False,
        soft_wrap=True,
    )


def _show_costs(costs: list[Cost], encoder: TappedModel, console: Console) -> None:
    from mtl.analysis.costs.timing import device_name

    shown = Table(
        title=f"the encoder per sentence of random subwords, before -> after ({device_name(encoder)})"
    )
    for column in ("positions", "in a batch", "million multiply-adds", "ms (median)", "time"):
        shown.add_column(column, justify="right")
    for cost in costs:
        (adds, fewer), (slow, fast) = cost.multiply_adds, cost.seconds
        shown.add_row(
            str(cost.length), str(cost.sentences), f"{adds / 1e6:,.1f} -> {fewer / 1e6:,.1f}",
            f"{slow * 1e3:.2f} -> {fast * 1e3:.2f}", f"{fast / slow:.1%}",
        )  # fmt: skip
    console.print(shown)
