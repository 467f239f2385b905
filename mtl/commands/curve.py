"""`mtl curve`."""

from __future__ import annotations

from functools import partial
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from rich.console import Console

from mtl.commands.choices import Accelerator, Split
from mtl.errors import InputError
from mtl.tasks.ranges import Range, Seed, Some

if TYPE_CHECKING:
    from mtl.analysis.curves.curve import CurvePoint
    from mtl.analysis.trained import TrainedRun


def curve(
    run: Path,
    by: tuple[str, ...] = ("importance", "recomputed", "random"),
    task: tuple[str, ...] = (),
    steps: Some = 10,
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
    accelerator: Accelerator = "auto",
) -> None:
    """Close more and more heads of a trained model, and score it after each step.

    Writes curve.parquet (scores) and curve_heads.parquet (the order in which heads go) into the run's folder.
    Orders that are measured again are replaced; others stay. Run the command again to resume it.

    Args:
        run: The run's folder.
        by: Orders: importance (ranked once), recomputed (ranked again after each step), random, greedy (the
            head that costs least goes first), or a measure in the run's heads.parquet, such as fisher.
        task: Only these tasks; default: all of the model that have gold annotations.
        steps: Number of equal steps in which all heads are closed.
        draws: Number of random orders.
        seed: Random seed for the random orders, which also depend on the run's own seed.
        split: The split to score.
        rank_split: The split used to rank heads.
        corpus: Folder with .jsonl files, or SOURCE:TARGET for translations; default: the run's own.
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
        accelerator: Device; auto is a GPU if there is one.
    """
    from mtl.analysis.curves.curve import measure_curve
    from mtl.analysis.curves.cut import check_timing, measure_cut
    from mtl.analysis.curves.methods import RANKED, check_orders, methods_of, ranking_of
    from mtl.analysis.curves.start import Start
    from mtl.analysis.curves.training import (
        GATES,
        check_gate_points,
        measure_gates,
        train_gates,
        train_on,
    )
    from mtl.commands.measured_run import open_measured
    from mtl.commands.progress import progress_of
    from mtl.commands.show_curve import show_kinds, show_roles, show_scores, show_times
    from mtl.runs.folder.run import Run

    check_orders(by)
    if not (by or gates or targets):
        raise InputError("--by=[] names no order: use one, or --gates or --targets")
    if cut:
        check_timing(batches, rounds)
    if gates_epochs is not None and not targets:
        raise InputError("--gates_epochs has no effect without --targets: use both, or leave it out")
    for folder in gates:
        Run.open(folder)
    scoring = open_measured(run, task, corpus, split, sentences, accelerator)
    start = Start.of(scoring, masks)
    if cut or epochs is not None:
        _require_cutting(scoring)
    check_gate_points(start, targets, gates)
    ranked = sentences if rank_sentences is None else rank_sentences
    ranking = ranking_of(start, rank_split, ranked, accelerator) if {*by} & {*RANKED} else None
    methods = methods_of(start, by, ranking, normalise=normalise, draws=draws, seed=seed)
    console = Console(markup=False, emoji=False)
    points = measure_curve(start, methods, steps=steps, progress=partial(progress_of, "heads"))
    chosen = [point for point in points if point.draw == 0]
    if targets:
        trained_gates = train_gates(start, targets, gates_epochs, accelerator=accelerator, console=console)
        gates = (*gates, *trained_gates)
    if gates:
        points += measure_gates(start, gates, accelerator=accelerator)
    trained: list[CurvePoint] = []
    if epochs is not None:
        trained = train_on(start, chosen, epochs, accelerator=accelerator, console=console)
    show_scores(start, points, trained, epochs, console)
    show_roles(start, by, console)
    show_kinds(start, (*by, *((GATES,) if gates else ())), console)
    if cut:
        with progress_of("cut models", len(chosen)) as advance:
            times = measure_cut(start, chosen, batches=batches, rounds=rounds, advance=advance)
        show_times(times, points, console)
    console.print(f"wrote {run / 'curve.parquet'}", highlight=False, soft_wrap=True)


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
