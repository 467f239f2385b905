"""What a report is made from: a source of runs, and their folders read into tables.

Runs come from plain folders, or from what a feature made in its own. What cannot be used is left out and
noted.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from pkgutil import resolve_name
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

import polars as pl

from mtl.config.instances import architecture_in, kinds_in, named_scores, on_words, only_compared
from mtl.config.schema import ScoredSplit, TrainConfig, default_rates
from mtl.errors import InputError
from mtl.features import added
from mtl.probes.appearance import Appearance
from mtl.probes.report.data import HISTORY, SCORES, HeadsKept, ReportData, RunExamples
from mtl.probes.sites import KEYS, sites_of
from mtl.probes.statistics.head_values import head_values
from mtl.probes.tables import heads_table
from mtl.probes.tables.heads_table import runs_of
from mtl.probes.tables.table_files import by_catalogue
from mtl.runs.compare.comparable import (
    choices_of,
    comparable_probes,
    line,
    masks_of,
    note_averages,
    of_one_encoder,
    of_one_shape,
    runs_in,
)
from mtl.runs.compare.heads import WORTH, measured_otherwise, worth_rows
from mtl.runs.compare.run_set import RunSet
from mtl.runs.compare.scores import heads_kept_of, history_of, learned_nothing, scores_of
from mtl.runs.compare.settings import encoder_in
from mtl.runs.compare.setups import missing_seeds
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.figures.table import draw, evidence
from mtl.runs.folder.wandb_view import report_config

if TYPE_CHECKING:
    from mtl.probes.report.data import ClaimingSetup
    from mtl.probes.report.page_part import PagePart


Draw = Callable[[], FigureWithTables]


@dataclass(frozen=True)
class ReportSource:
    """What a report takes from where its runs come from; this class is that of plain runs.

    A feature returns one of its own for the folders that are its (`Feature.sources`).
    """

    folder: Path
    train: TrainConfig = field(default_factory=TrainConfig)
    """The configuration whose tasks and scores come first."""
    split: ScoredSplit = "test"
    """The split of the scores, unless another one is given."""
    appearance: Appearance = field(default_factory=Appearance)
    """Colours and order, unless others are given."""
    finished: bool = True
    """Whether any run is finished, so that a command which made the runs writes a report."""
    not_to_probe: Collection[Path] = ()
    """The folders of runs that are not to be probed."""
    asked: Mapping[Path, Collection[int]] = field(default_factory=dict)
    """By the folder of a run, the seeds that are wanted of such runs."""
    notes: Sequence[str] = ()
    """Notes to print before the report is made."""
    files: Sequence[str] = ()
    """Patterns for the names of files that only its reports have, as `tables/trials.*`."""

    def choose(self, runs: RunSet) -> RunSet:
        """The runs that the report shows; a note says what is left out."""
        return runs

    def claiming(self, data: ReportData) -> ClaimingSetup | None:
        """The setup whose masks are claims; `None`: the report's default."""
        return None

    def with_claims(self, data: ReportData, claiming: ClaimingSetup | None) -> ReportData:
        """The data, with only those masks of the claiming setup that are claims."""
        return data

    def parts(self, pieces: Sequence[PagePart]) -> Sequence[PagePart]:
        """What the page shows beside the core's parts, from that of all pieces of evidence."""
        return pieces

    def figures(
        self, data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None
    ) -> Mapping[str, Draw]:
        """The figures, by file name without suffix."""
        figures = of_evidence(data, split, claiming)
        if data.gates is not None:
            figures["heads-kept"] = self.heads_kept(data, split)
        return figures

    def heads_kept(self, data: ReportData, split: ScoredSplit) -> Draw:
        """The figure of scores against open heads, of all runs of the report."""
        return partial(draw, "heads-kept", [self.folder / run for run in data.runs["run"]], (), split)

    def keep(self, tables: Mapping[str, pl.DataFrame], page: Path) -> None:
        """What else the command that made the runs does with their report."""

    def wandb_config(self) -> TrainConfig:
        """The configuration with W&B's settings for the report; raises `InputError` if there is none."""
        return report_config(self.folder)


def of_evidence(data: ReportData, split: ScoredSplit, claiming: ClaimingSetup | None) -> dict[str, Draw]:
    """The figures of all pieces of evidence, by file name without suffix."""
    figures: dict[str, Draw] = {}
    for piece in evidence().values():
        drawn = {} if piece.of_report is None else resolve_name(piece.of_report)(data, claiming)
        figures |= {name: partial(draw, name, runs, split=split) for name, runs in drawn.items()}
    return figures


def source_of(folder: Path) -> ReportSource:
    """The source of the runs in a folder."""
    for file, made in added(lambda feature: feature.sources).items():
        if (folder / file).is_file():
            source: ReportSource = resolve_name(made)(folder)
            return source
    return ReportSource(folder)


def examples_of(heads: pl.DataFrame | None, notes: list[str]) -> tuple[RunExamples, ...]:
    """The examples of the first run with any, for each regime and task; damaged files are noted.

    `heads` has the columns regime, run, seed and task.
    """
    if heads is None:
        return ()
    of_tasks = runs_of(heads).filter(pl.col("task") != "")
    with_files = {run for run in of_tasks["run"].unique() if (Path(run) / heads_table.FILE).is_file()}
    known = of_tasks.filter(pl.col("run").is_in(sorted(with_files))).sort("seed", maintain_order=True)
    first = known.unique(["regime", "task"], keep="first", maintain_order=True)
    found = []
    for (regime, run), rows in first.group_by("regime", "run", maintain_order=True):
        try:
            read = heads_table.read_examples(Path(str(run)) / heads_table.FILE)
        except ValueError as error:
            notes.append(f"{error}: left out")
            continue
        found.append(RunExamples(str(regime), str(run), tuple(rows["task"]), read))
    return tuple(found)


COLUMNS = ("data", "sentences", "epochs", "batch", "rates")
"""The places of its corpora; the sentences of train, dev and test; the most passes over train; the sentences
of a batch; the learning rates of the encoder and the decoders. Empty if the run does not record it."""


def training_facts(config: Mapping[str, Any], status: Mapping[str, Any]) -> tuple[str, ...]:
    """The values of `COLUMNS`, from a run's config.yaml and status.json."""
    sizes = status.get("sentences")
    batch = config.get("batch", {}).get("sentences")
    return (
        ", ".join(dict.fromkeys(_places(config))),
        " + ".join(str(size) for size in sizes.values()) if isinstance(sizes, Mapping) else "",
        str(config.get("max_epochs", "")),
        "" if batch is None else str(batch),
        _rates(config),
    )


def _places(config: Mapping[str, Any]) -> Iterator[str]:
    corpus = config.get("corpus", {})
    for task in config["tasks"]:
        own = corpus.get(task) or corpus.get("instances", {}).get(task) or corpus.get("files")
        place = own.get("train") if own else corpus.get("path")
        if place:
            yield str(place)


def _rates(config: Mapping[str, Any]) -> str:
    given = config.get("optimizer")
    if not given:
        return ""
    rates = default_rates(config["encoder"]["name"], architecture_in(config))
    known = [given[name] if given.get(name) is not None else rate for name, rate in rates.items()]
    by_task = [
        " ".join(f"{task} {each:.2g}" for task, each in rate.items())
        if isinstance(rate, Mapping)
        else f"{rate:.2g}"
        for rate in known
    ]
    return ", ".join(by_task)


FACTS = (
    "run", "setup", "tasks", "seed", "encoder", *COLUMNS, "state", "finished", "seconds", "device", "code",
    "corpus", "versions",
)  # fmt: skip
"""Columns of the table of runs."""
RUNS_AT_ONCE = 32
"""Runs whose values are computed together: as fast as all at once, but in less memory."""


@dataclass(frozen=True)
class RunsRead:
    """What a piece of evidence is read from: comparable runs of one encoder."""

    runs: RunSet
    split: ScoredSplit
    """The split of the scores."""
    score: Mapping[str, str]
    """The name of each task's main score."""
    gates: pl.DataFrame | None
    """The masks of the runs (`ReportData.gates`)."""
    tables: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """The tables of earlier pieces of evidence in the registry."""


def gather(
    folder: Path,
    split: ScoredSplit,
    score: Mapping[str, str],
    not_to_probe: Collection[Path] = (),
    asked: Mapping[Path, Collection[int]] = MappingProxyType({}),
    choose: Callable[[RunSet], RunSet] | None = None,
) -> ReportData:
    """All finished runs and probes in `folder` or up to two folders below.

    `score` names each task's main score. `not_to_probe` are the folders of runs that were not to be probed,
    and `asked` has, by the folder of a run, the seeds that are wanted of such runs: others are not missing.
    Scores are taken of all runs that `choose` returns, masks and probes only of those with the most frequent
    encoder and shape. Raises `InputError` if there are no runs and no probes.
    """
    if not folder.is_dir():
        raise InputError(f"{folder} is not a folder: use one that holds runs, such as runs")
    runs = runs_in(folder, list(score), choose)
    notes = runs.notes
    score = {**named_scores(run.config for run in runs), **score}
    if not runs and not runs.bare:
        reason = f" ({notes[0]})" if notes else ""
        raise InputError(
            f"{folder} holds no runs{reason}: give a folder of runs that 'mtl train' made, or of probes"
        )
    encoder, same = of_one_encoder(runs)
    unlabelled = {run.folder for run in same if not on_words(kinds_in(run.config).values())}
    gates = masks_of(same)
    heads, probes = comparable_probes(same, encoder, unlabelled.union(not_to_probe))
    gates, heads = of_one_shape(gates, heads, notes)
    gates = _learned(gates, same, score)
    note_averages(runs, heads)
    scores = _scores(runs, split, score)
    notes += _missing(runs, scores, asked)
    # Only at the beginning of a path, so that `s/runs/a` becomes `runs/a`, and not `runa`.
    of_folder = re.compile(rf"(?<![\w./-]){re.escape(str(folder))}/")
    return ReportData(
        name=folder.resolve().name,
        encoder=encoder.place,
        setups=tuple(dict.fromkeys(run.setup for run in runs)),
        scores=scores,
        metrics={task: name for task, name in score.items() if task in set(scores["task"])},
        same_answer=_same_answer(runs, split),
        split=split,
        gates=gates,
        heads=heads,
        history=_history(runs, score),
        kept=_kept(same, gates, set(scores["run"]), split, score),
        runs=_provenance(folder, runs),
        probes=probes,
        worth=_worth(same),
        resampled=_resampled(same),
        evidence=_evidence(RunsRead(same, split, score, gates), notes),
        examples=examples_of(heads, notes),
        choices=choices_of(same),
        notes=tuple(dict.fromkeys(of_folder.sub("", note) for note in notes)),
        only_compared=frozenset(
            name for run in runs for name, kind in kinds_in(run.config).items() if only_compared([kind])
        ),
        on_words=not runs or any(on_words(kinds_in(run.config).values()) for run in runs),
    )


def _learned(gates: pl.DataFrame | None, runs: RunSet, score: Mapping[str, str]) -> pl.DataFrame | None:
    """The masks without those of tasks that a run has learned nothing of: such masks claim no head.

    They are noted. A mask that several tasks share is left out if none of them was learned.
    """
    if gates is None:
        return None
    nothing: dict[tuple[str, str], list[int]] = {}
    left_out = pl.lit(False)
    for run in runs:
        unlearned = set(learned_nothing(run.metrics, score))
        masks = gates.filter(pl.col("run") == run.name)["task"].unique(maintain_order=True).to_list()
        for mask in masks:
            if set(mask.split("+")) <= unlearned:
                nothing.setdefault((mask, run.setup.name), []).append(run.settings.seed)
                left_out |= (pl.col("run") == run.name) & (pl.col("task") == mask)
    runs.notes[:0] = [
        f"{mask} in {setup}: nothing was learned with seed {', '.join(map(str, sorted(seeds)))}: such masks "
        "claim no head and are left out"
        for (mask, setup), seeds in nothing.items()
    ]
    kept = gates.filter(~left_out)
    return None if kept.is_empty() else kept


def _same_answer(runs: RunSet, split: str) -> dict[str, dict[str, float]]:
    """By task, `majority` and `chance` of the first run that has them (`same_answer_scores`)."""
    found: dict[str, dict[str, float]] = {}
    for run in runs:
        for task, scores in run.metrics.get(split, {}).items():
            known = {key: value for key, value in scores.items() if key in ("majority", "chance")}
            if known:
                found.setdefault(task, known)
    return found


def _missing(runs: RunSet, scores: pl.DataFrame, asked: Mapping[Path, Collection[int]]) -> list[str]:
    """Notes on seeds that a setup lacks: one for all tasks that lack the same."""
    wanted: dict[str, set[int]] = {}
    for run in runs:
        if run.folder in asked:
            wanted.setdefault(run.setup.name, set()).update(asked[run.folder])
    lacking: dict[tuple[str, tuple[int, ...]], list[str]] = {}
    for (setup, task), seeds in missing_seeds(scores, "setup", "task"):
        left = tuple(seed for seed in seeds if seed in wanted.get(setup, seeds))
        if left:
            lacking.setdefault((setup, left), []).append(task)
    return [
        f"no scores of {', '.join(tasks)} in {setup} with seed {', '.join(map(str, seeds))}"
        for (setup, seeds), tasks in lacking.items()
    ]


def _evidence(read: RunsRead, notes: list[str]) -> dict[str, pl.DataFrame]:
    """The tables of all pieces of evidence that the runs have."""
    tables: dict[str, pl.DataFrame] = {}
    for name, piece in evidence().items():
        if piece.table is None:
            continue
        with _left_out(piece.title, notes):
            table, left_out = resolve_name(piece.table)(dataclasses.replace(read, tables=tables))
            notes += left_out
            if table is not None:
                tables[name] = table
    return tables


@contextmanager
def _left_out(what: str, notes: list[str]) -> Iterator[None]:
    """If the block raises an `InputError`, note that `what` is left out of the report."""
    try:
        yield
    except InputError as error:
        notes.append(f"{what} are left out: {error}")


def _history(runs: RunSet, score: Mapping[str, str]) -> pl.DataFrame:
    """The learning curves of all runs that were trained; derived runs have none."""
    parts = [pl.DataFrame(schema=HISTORY)]
    for run in runs:
        if run.settings.derivation:
            continue
        try:
            history = history_of(run.run, score)
        except InputError as error:
            runs.notes.append(str(error))
            continue
        seed = pl.lit(run.settings.seed).cast(pl.Int64)
        of_run = {"setup": pl.lit(run.setup.name), "run": pl.lit(run.name)}
        parts.append(by_catalogue(history.with_columns(seed=seed, **of_run).select(HISTORY.names())))
    return pl.concat(parts)


def _kept(
    runs: RunSet,
    gates: pl.DataFrame | None,
    scored: Collection[str],
    split: ScoredSplit,
    score: Mapping[str, str],
) -> HeadsKept | None:
    """Scores against open heads of the runs in `scored`; `None` if there are no masks or no scores.

    Included are runs whose masks are shown, runs without masks, and cut ones. What is missing is noted
    already, with the tables of scores and masks.
    """
    if gates is None:
        return None
    shown = set(gates["run"])
    chosen = RunSet(
        run
        for run in runs
        if run.name in scored
        if run.name in shown or run.settings.pruning == "none" or run.settings.heads_kept is not None
    )
    try:
        return heads_kept_of(chosen, split, score)
    except InputError:
        return None


def _scores(runs: RunSet, split: ScoredSplit, score: Mapping[str, str]) -> pl.DataFrame:
    parts = []
    for run in runs:
        try:
            scores = scores_of(RunSet([run], runs.notes), split, score)
        except InputError as error:
            runs.notes.append(f"scores are left out: {error}")
            continue
        seed, setup = pl.lit(run.settings.seed), pl.lit(run.setup.name)
        scores = scores.with_columns(seed=seed.cast(pl.Int64), setup=setup)
        parts.append(by_catalogue(scores.select(SCORES.names())))
    return pl.concat([pl.DataFrame(schema=SCORES), *parts])


def _worth(runs: RunSet) -> pl.DataFrame | None:
    """What heads are worth, in runs of the most frequent shape that measured it alike."""
    known: dict[str, pl.DataFrame] = {}
    failed: list[str] = []
    for run in runs.where(lambda run: run.has("heads.parquet")):
        try:
            known[run.name] = worth_rows(run, run.config["tasks"])
        except InputError as error:
            failed.append(str(error))
    otherwise = measured_otherwise(runs.where(lambda run: run.name in known))
    runs.notes += failed
    parts: dict[str, pl.DataFrame] = {}
    for name, rows in known.items():
        rows = rows.filter(~pl.col("measure").is_in(list(otherwise.get(name, ()))))
        if not rows.filter(pl.col("measure").is_in(WORTH)).is_empty():
            parts[name] = rows
    if not parts:
        return None
    place = pl.col("run").replace_strict({run: number for number, run in enumerate(parts)})
    tables = list(parts.values())
    at_once = (
        pl.concat(tables[start : start + RUNS_AT_ONCE], rechunk=True)
        for start in range(0, len(tables), RUNS_AT_ONCE)
    )
    values = pl.concat(head_values(rows) for rows in at_once).sort(place, maintain_order=True)
    shapes = {
        str(run): (frozenset(sites_of(rows)), rows["head"].max())
        for (run,), rows in values.select("run", *KEYS).group_by("run", maintain_order=True)
    }
    usual = Counter(shapes.values()).most_common(1)[0][0]
    return values.filter(pl.col("run").is_in([run for run, shape in shapes.items() if shape == usual]))


def _resampled(runs: RunSet) -> tuple[str, ...]:
    """What the tests of ablation resample in these tables: documents, sentences, or both in different ones.

    Tables of earlier versions do not say it: they resample sentences.
    """
    found = set[str]()
    for provenance in (run.heads.provenance for run in runs):
        if "ablation.split" in provenance:
            units = json.loads(provenance.get("ablation.units", "{}"))
            found |= set(units.values()) or {"sentences"}
    return tuple(sorted(found))


def _provenance(folder: Path, runs: RunSet) -> pl.DataFrame:
    rows = []
    for run in runs:
        try:
            status = run.run.status()
        except (InputError, OSError) as error:
            status = {"state": f"status.json cannot be read ({line(error)})"}
        versions = status.get("versions")
        versions = versions if isinstance(versions, Mapping) else {}
        facts = (
            str(run.folder.relative_to(folder)),
            run.setup.name,
            " ".join(run.config["tasks"]),
            str(run.config["seed"]),
            encoder_in(run.config),
            *training_facts(run.config, status),
            str(status.get("state", "")),
            str(status.get("finished", "")),
            str(status.get("training_seconds", "")),
            str(status.get("device", "")),
            str(status.get("git") or ""),
            str(status.get("corpus_fingerprint") or ""),
            " ".join(f"{name} {version}" for name, version in versions.items()),
        )
        rows.append(dict(zip(FACTS, facts, strict=True)))
    return pl.DataFrame(rows, schema=dict.fromkeys(FACTS, pl.String))
