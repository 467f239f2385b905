"""`mtl curve`."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from rich.console import Console

from mtl.commands.common import Accelerator, refuse_unused
from mtl.config.schema import Split
from mtl.errors import InputError
from mtl.tasks.task import CountOrNone, Range, Seed, Some

if TYPE_CHECKING:
    from mtl.analysis.trained import TrainedRun
    from mtl.curves.curve import CurvePoint


def curve(
    run: Path,
    by: tuple[str, ...] = ("importance", "recomputed", "random"),
    task: tuple[str, ...] = (),
    steps: Some | None = None,
    keep: tuple[Annotated[float, Range(0, inf)], ...] = (),
    at_least: CountOrNone = 0,
    draws: Some = 5,
    seed: Seed = 0,
    split: Split = "test",
    rank_split: Split = "dev",
    corpus: Path | None = None,
    sentences: Some | None = None,
    rank_sentences: Some | None = None,
    normalise: bool = False,
    masks: bool = True,
    gates: tuple[Path, ...] = (),
    targets: tuple[Annotated[float, Range(0, inf, open_low=True)], ...] = (),
    gates_epochs: Some | None = None,
    cut: bool = False,
    batches: tuple[int, ...] = (1, 4, 16, 64),
    rounds: int = 5,
    epochs: Some | None = None,
    train: tuple[Literal["queries", "keys", "values", "output", "decoder"], ...] = (),
    epoch: Some | None = None,
    accelerator: Accelerator = "auto",
    log: bool = False,
) -> None:
    """Close more and more heads of a trained model, and score it after each step.

    Writes curve.parquet (scores) and curve_heads.parquet (the order in which heads go) into the run's folder.
    Orders that are measured again are replaced; others stay. Run the command again to resume it.

    Args:
        run: The run's folder.
        by: Orders: importance (ranked once), recomputed (ranked again after each step), random, greedy (the
            head that costs least goes first), or a measure in the run's heads.parquet, such as fisher. A
            minus before a name turns the order round, as a check of it: -importance closes the most important
            heads first.
        task: Only these tasks; default: all of the model that have gold annotations.
        steps: Number of equal steps in which all heads are closed; default: 10.
        keep: Shares or numbers of heads to keep, instead of equal steps: [0.9,0.5,12].
        at_least: Number of heads that stay open in every layer, also with targets.
        draws: Number of random orders.
        seed: Random seed for the random orders, which also depend on the run's own seed.
        split: The split to score.
        rank_split: The split used to rank heads.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for a task of two files; default: the run's own.
        sentences: The number of sentences of each split, spread evenly over it; default: all.
        rank_sentences: The number of sentences used to rank heads; default: that of sentences.
        normalise: Divide a layer's importances by their Euclidean norm before ranking.
        masks: Whether a run's own head masks are applied; curves then start from the heads left open.
        gates: Runs that learned gates for the same tasks, as further points.
        targets: Learn gates on the frozen model with these numbers or shares of open heads, as further
            points.
        gates_epochs: Epochs of each such training; default: the run's own.
        cut: Also cut the heads out of copies of the model, and score and time these (curve_time.parquet); for
            one task only.
        batches: Batch sizes used to measure time.
        rounds: Number of measurements of each time; the median is used.
        epochs: Number of further epochs for each cut model, which is then scored again; for one task only.
        train: What these further epochs train: parts of the attention, and the decoder; default: everything.
        epoch: Measure the model after this epoch, of those that the run keeps (snapshots), instead of the
            run's; it becomes a run in the folder curve/epoch-N of the run, which the files are written into.
        accelerator: Device; auto is a GPU if there is one.
        log: Also log the curves, as a table and a figure, to the run's W&B run.
    """
    from mtl.commands.common import log_to_wandb, open_measured, progress_bar, runs_to_log
    from mtl.curves.curve import CurveStart, check_points, measure_curve, methods_of, ranking_of
    from mtl.curves.orders import check_orders, needs_ranking
    from mtl.curves.show import show_kinds, show_roles, show_scores, show_times
    from mtl.curves.training import (
        GATES,
        check_gate_points,
        check_timing,
        measure_cut,
        measure_gates,
        run_after,
        train_gates,
        train_on,
    )
    from mtl.runs.folder.run import Run

    check_orders(by)
    if not (by or gates or targets):
        raise InputError("--by=[] names no order: use one, or --gates or --targets")
    if keep and steps is not None:
        raise InputError("--steps and --keep both say where to score: use one of them")
    without, leave = "has no effect without", "use both, or leave it out"
    if not by:
        ordered = {"keep": keep, "steps": steps, "cut": cut, "epochs": epochs}
        ordered |= {} if targets else {"at_least": at_least}
        refuse_unused(curve, f"{without} an order: use --by, or leave it out", **ordered)
    if "random" not in by:
        refuse_unused(curve, f"{without} random orders (--by=random): {leave}", draws=draws)
    if not needs_ranking(by):
        refuse_unused(
            curve, f"{without} an order that is ranked, such as --by=importance: {leave}",
            rank_split=rank_split, rank_sentences=rank_sentences, normalise=normalise,
        )  # fmt: skip
    if cut:
        check_timing(batches, rounds)
    else:
        refuse_unused(curve, f"{without} --cut: {leave}", batches=batches, rounds=rounds)
    if not targets:
        refuse_unused(curve, f"{without} --targets: {leave}", gates_epochs=gates_epochs)
    if epochs is None:
        refuse_unused(curve, f"{without} --epochs: {leave}", train=train)
    for folder in gates:
        Run.open(folder)
    if epoch is not None and log:
        raise InputError("--log is for curves of the run's own model: use it without --epoch")
    logged = runs_to_log([run], log)
    if epoch is not None:
        run = run_after(run, epoch, accelerator)
    scoring = open_measured(run, task, corpus, split, sentences, accelerator)
    start = CurveStart.of(scoring, masks, at_least)
    points_at = keep or steps or 10
    check_points(start, points_at)
    if cut or epochs is not None:
        _require_cutting(scoring)
    check_gate_points(start, targets, gates)
    ranked = sentences if rank_sentences is None else rank_sentences
    ranking = ranking_of(start, rank_split, ranked, accelerator) if needs_ranking(by) else None
    methods = methods_of(start, by, ranking, normalise=normalise, draws=draws, seed=seed)
    console = Console(markup=False, emoji=False)
    points = measure_curve(start, methods, steps=points_at, progress=partial(progress_bar, "heads"))
    chosen = [point for point in points if point.draw == 0]
    if targets:
        trained_gates = train_gates(start, targets, gates_epochs, accelerator=accelerator, console=console)
        gates = (*gates, *trained_gates)
    if gates:
        points += measure_gates(start, gates, accelerator=accelerator)
    trained: list[CurvePoint] = []
    if epochs is not None:
        trained = train_on(start, chosen, epochs, train, accelerator=accelerator, console=console)
    show_scores(start, points, trained, epochs, console)
    show_roles(start, by, console)
    show_kinds(start, (*by, *((GATES,) if gates else ())), console)
    if cut:
        with progress_bar("cut models", len(chosen)) as advance:
            times = measure_cut(start, chosen, batches=batches, rounds=rounds, advance=advance)
        show_times(times, points, console)
    console.print(f"wrote {run / 'curve.parquet'}", highlight=False, soft_wrap=True)
    if logged:
        from mtl.runs.figures.table import draw

        drawn = draw("curve", [run], task, split)
        log_to_wandb(logged, {"curve": drawn.tables[""], "figures/curve": drawn.figure}, console)


def _require_cutting(scoring: TrainedRun) -> None:
    """Raise `InputError` if the model cannot be cut for the tasks that are measured."""
    from mtl.heads.prune import require_prunable

    encoder = scoring.model.encoder
    require_prunable(encoder.transformer, encoder.family)
    if len(scoring.tasks) > 1:
        raise InputError(
            "a model is cut for one task, since each has an order of its own: choose with --task "
            f"({', '.join(scoring.tasks)})"
        )
