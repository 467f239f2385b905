"""The report page, with its curves, labels and overlaps, and the section on what heads are worth to tasks."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import polars as pl
from markupsafe import Markup

from mtl.probes.figures.scores import heads_kept, learning_curves
from mtl.probes.measures.groups import BY_NAME, SKILLS
from mtl.probes.report.data import (
    SCORE_UNITS,
    ClaimingSetup,
    ReportData,
    claims_of,
    embedded,
    notes_on_claims,
)
from mtl.probes.report.head_maps import claims_map, head_map, heads_data, mask_maps, overlays
from mtl.probes.report.kept_heads import SHOWN, head_examples, kept_heads
from mtl.probes.report.page_part import (
    Answer,
    PageData,
    PagePart,
    ShownEvidence,
    answers,
    environment,
    joint_costs,
    notes_on_scores,
    package_text,
    printed_scores,
    same_answer_in_words,
    score_rows,
    score_table,
    told_columns,
    trained_in_words,
    undertrained,
    undertrained_in_words,
)
from mtl.probes.sites import Site, attention_order, cell_names, grid, shape_text, sites_of
from mtl.probes.statistics.head_values import (
    ABLATION,
    AGREEMENT_UNITS,
    OF_WORTH,
    PREDICTION_UNITS,
    PREDICTORS,
    REGIME_NAMES,
    REGIMES,
    SIGNIFICANT,
    absent_labels,
    agreement,
    head_means,
    label_values,
    prediction,
    skills,
)
from mtl.probes.statistics.masks import (
    CORRELATION_UNITS,
    OVERLAP_PAPER,
    OVERLAP_UNITS,
    Masks,
    claim_overlaps,
    correlation_table,
    final_masks,
    task_overlaps,
)
from mtl.probes.tables.heads_table import FEWEST_ITEMS, SENTENCES, best_of_labels
from mtl.probes.tables.table_files import OF_MEASURES, About, ColumnUnit
from mtl.tasks.in_words import counted

BY_SETUP = "scores-by-setup"
"""The table of scores that papers print."""
MOST_LINES, MOST_NOTES = 6, 3
"""The most lines that a terminal gets of a report, and the most notes among them."""


@dataclass(frozen=True)
class Page:
    """The finished page, with its notes, tables and answers."""

    html: str
    notes: tuple[str, ...]
    make_tables: Callable[[], Mapping[str, pl.DataFrame]]
    answers: tuple[Answer, ...] = ()
    """The answers to the page's questions."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What LaTeX gets instead of some tables: fewer or other columns."""
    about: Mapping[str, About] = field(default_factory=dict)
    """What the files of the tables say of their numbers."""
    split: str = ""
    """The split of the scores."""
    claims: str | None = None
    """The setup whose masks are the claims."""
    lines_of_parts: tuple[str, ...] = ()
    """Lines that pieces of evidence add to those that `mtl report` prints."""
    undertrained: str = ""
    """The setups and tasks whose scores on dev still rise, in words."""

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What the page shows and what it was computed from, by file name; made on the first access."""
        return self.make_tables()

    def lines(
        self, first: Sequence[str] = (), last: Sequence[str] = (), place: str = "on the page"
    ) -> list[str]:
        """What a terminal gets, in at most `MOST_LINES` lines: answers, what is open, faults, first notes.

        `first` are faults and `last` further notes. All answers and notes are in the `record`. `place` is
        where a reader finds the lines that are left out.
        """
        told = [answer.line() for answer in self.answers if answer.told]
        left = [answer.question for answer in self.answers if not answer.told]
        if left:
            told.append(f"These runs cannot tell: {' '.join(left)} The page says what would.")
        told += [f"note: {fault}" for fault in first]
        if self.undertrained:
            told.append(f"undertrained, scores on dev still rise: {self.undertrained}")
        told += self.lines_of_parts
        notes = [f"note: {note}" for note in (*self.notes, *last)]
        shown = [*told, *notes[:MOST_NOTES]][:MOST_LINES]
        if len(shown) < len(told) + len(notes):
            shown = shown[: MOST_LINES - 1]
            more = len(told) + len(notes) - len(shown)
            shown.append(f"{counted(more, 'more line')}: {place}")
        return shown

    def record(self, first: Sequence[str] = (), last: Sequence[str] = ()) -> dict[str, Any]:
        """The answers with their estimates, and all notes, for a JSON file."""
        return {
            "split": self.split,
            "claims": self.claims,
            "answers": [answer.record() for answer in self.answers],
            "notes": [*first, *self.notes, *last],
        }


def report_page(
    data: ReportData, claims: ClaimingSetup | None = None, parts: Sequence[PagePart] = ()
) -> Page:
    """One HTML page that loads nothing from elsewhere.

    Tasks claim heads by the masks of the setup `claims`, by default by those of the setup that
    `mtl.probes.report.data.DEFAULT` describes. `parts` add pieces of evidence
    (`mtl.runs.figures.table.page_parts`).
    """
    notes = list(data.notes)
    by_setup, left_out = masks_by_setup(data)
    notes += left_out
    sites, heads = _shape(data)
    page = PageData(data, by_setup, claims_of(data.setups, by_setup, claims))
    notes += notes_on_claims(page.claims, data.setups, by_setup)
    shown = [part.shown(page) for part in parts if part.shown is not None]
    notes += [note for piece in shown for note in piece.notes]
    claimed = None if page.claims.masks is None else page.claims.masks.of_real_labels()
    skill, labels = label_skills(data, notes)
    notes += absent_labels(labels) if labels is not None else ()
    all_overlaps, note = across(by_setup)
    notes += [note] if note else []
    tasks, rows = score_rows(data)
    joint_setup, costs = joint_costs(tasks, rows)
    rising = undertrained(data.history)
    rising_words = undertrained_in_words(rising)
    compared = compare_masks(by_setup)
    per_head = next((piece.head_skills for piece in shown if piece.head_skills is not None), None)
    per_site = heads_data(sites, heads, by_setup, claimed, skill, per_head, data.heads) if sites else None
    worth = worth_section(data, sites, heads) if sites else None
    kept = kept_heads(claimed, data.heads)
    all_answers = answers(page, parts)
    notes += [note for answer in all_answers for note in answer.notes]
    final = tuple(dict.fromkeys(notes))
    html = environment().get_template("report.html.j2").render(
        data=data,
        tasks=tasks,
        rows=rows,
        same_answer=same_answer_in_words(data.same_answer),
        notes=final,
        forced=any(masks.forced().any() for masks in by_setup.values()),
        claim_words="" if claimed is None else claimed.claims_in_words(),
        answers=all_answers,
        joint_setup=joint_setup,
        joint_baseline=next((one.baseline for one in data.setups if one.name == joint_setup), None),
        trained=trained_in_words(data.runs),
        rising=rising,
        run_columns=told_columns(data.runs),
        rising_words=rising_words,
        costs=costs,
        kept_heads=kept,
        examples=head_examples(kept, data.examples, sites, heads, SHOWN),
        most_kept=SHOWN,
        sentences_kept=SENTENCES,
        shown=shown,
        terms=_terms(shown),
        overlays=overlays(by_setup, claimed, page.claims.by),
        curves=learning_figure(data),
        kept=heads_kept_figure(data),
        mask_maps=mask_maps(data, sites, heads),
        claims=claims_map(claimed),
        claims_by=page.claims.by,
        compared=compared,
        across=all_overlaps,
        labels=label_rows(labels, skill, sites, heads),
        regimes=[name for name in REGIMES if labels is not None and name in labels.columns],
        regime_names=REGIME_NAMES,
        head_data=per_site,
        worth=worth,
        predictors=PREDICTORS,
        shape=shape_text(sites, heads) if sites else "",
        fewest=FEWEST_ITEMS,
        head_names=cell_names(sites, heads),
        seeds=sorted(set(data.runs["seed"].cast(pl.Int64))),
        corpora=sorted(set(data.runs["corpus"]) - {""}),
        style=Markup(package_text("report.css") + "".join(piece.style for piece in shown)),
        script=Markup(package_text("report.js")),
    )  # fmt: skip

    def tables() -> dict[str, pl.DataFrame]:
        scores = {BY_SETUP: score_table(tasks, rows)} if rows else {}
        others = {"claims": claim_counts(by_setup)} | _tables(data, compared, worth, all_answers, shown)
        return {name: table for name, table in (scores | others).items() if table.height}

    printed = {name: table for piece in shown for name, table in piece.printed.items()}
    printed |= {"scores": data.scores.drop("run")}
    printed |= {BY_SETUP: printed_scores(tasks, rows)} if rows else {}
    about = _about(data, tasks, compared, worth)
    for described in (*(answer.about for answer in all_answers), *(piece.about for piece in shown)):
        about |= described
    by = page.claims.by
    lines = tuple(line for piece in shown for line in piece.lines)
    return Page(
        html, final, tables, all_answers, lines_of_parts=lines, undertrained=rising_words, printed=printed,
        about=about, split=data.split, claims=None if by is None else by.setup,
    )  # fmt: skip


def _terms(shown: Sequence[ShownEvidence]) -> dict[str, list[tuple[str, Markup]]]:
    """All further words of the glossary, by the word that they follow."""
    terms: dict[str, list[tuple[str, Markup]]] = {}
    for piece in shown:
        for word, others in piece.terms.items():
            terms.setdefault(word, []).extend(others)
    return terms


def _shape(data: ReportData) -> tuple[tuple[Site, ...], int]:
    """The sites and the number of heads of each; none without masks, probes and worth."""
    for table in (data.gates, data.heads, data.worth):
        if table is not None:
            heads = table["head"].drop_nulls()
            return (sites_of(table), int(heads.to_numpy().max()) + 1) if len(heads) else ((), 0)
    return (), 0


def _about(
    data: ReportData, tasks: Sequence[str], compared: Sequence[Compared], worth: Worth | None
) -> dict[str, About]:
    """What the files of the core's tables say of their numbers."""
    on = f"score: on {data.split}"
    about = {
        BY_SETUP: About(
            ColumnUnit.PERCENT.of("mean") | ColumnUnit.NAMED.of(*tasks),
            notes_on_scores(data.split, data.same_answer),
        ),
        "scores": About(SCORE_UNITS, (on,)),
        "learning-curves": About(SCORE_UNITS, ("score: on dev",)),
        "runs": About(paper=("setup", "tasks", "seed", "sentences", "epochs", "finished", "seconds")),
        "probes": About(paper=("folder", "target", "corpus", "split", "sentences", "centroids", "precision")),
        "claims": About(
            notes=(
                "opened_by_force: claimed heads that at most half of the seeds keep open without force; "
                "closed_by_force: heads that a target closed in a mask, the most of all seeds",
            )
        ),
        "choices": About(
            paper=("setup", "seed", "mask", "open_at_choice", "forced_open", "forced_closed", "narrowly_kept")
        ),
        "heads-kept": About(ColumnUnit.PERCENT.of("score"), (on,)),
    }
    for setup in compared:
        name = _file_name(setup.name)
        about[f"correlation-{name}"] = About(CORRELATION_UNITS)
        about[f"overlap-{name}"] = About(OVERLAP_UNITS, paper=OVERLAP_PAPER)
    return about if worth is None else about | worth.about()


def _file_name(setup: str) -> str:
    return re.sub(r"[^\w.+-]+", "-", setup)


def _tables(
    data: ReportData,
    compared: Sequence[Compared],
    worth: Worth | None,
    all_answers: Sequence[Answer],
    shown: Sequence[ShownEvidence],
) -> dict[str, pl.DataFrame]:
    """Every table of the page that a paper may need."""
    tables = {"runs": data.runs, "scores": data.scores, "probes": data.probes}
    tables["learning-curves"] = data.history
    if data.kept is not None:
        tables["heads-kept"] = data.kept.table
    if data.choices is not None:
        tables["choices"] = data.choices
    if worth is not None:
        tables |= worth.tables()
    for answer in all_answers:
        tables |= answer.tables
    for setup in compared:
        name = _file_name(setup.name)
        tables |= {f"correlation-{name}": setup.correlations, f"overlap-{name}": setup.overlaps}
    for piece in shown:
        tables |= piece.tables
    return tables


def learning_figure(data: ReportData) -> Markup | None:
    """Learning curves; `None` if no run has two evaluations."""
    history = data.history
    if history.is_empty() or history.group_by("setup", "task", "run").len()["len"].max() == 1:
        return None
    figure = learning_curves(history, data.metrics, data.names())
    return embedded(figure, "scores on dev while training, a panel for each task")


def heads_kept_figure(data: ReportData) -> Markup | None:
    """Scores against open heads; `None` without masks or scores."""
    if data.kept is None:
        return None
    kept = data.kept.table
    setups = [setup.name for setup in data.setups]
    # In the order of the table of scores; here, the names of setups do not contain penalties.
    place = {name: place for place, name in enumerate(dict.fromkeys([*setups, *kept["setup"]]))}
    kept = kept.sort(pl.col("setup").replace_strict(place), "kept", "run")
    figure = heads_kept(kept, data.kept.heads, data.metrics, data.names())
    return embedded(figure, "score against open heads, a panel for each task")


def label_skills(data: ReportData, notes: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    """The tables `skills` and `label_values`, or two `None`; a note says why, unless there are no probes."""
    if data.heads is None or not data.on_words:
        return None, None
    if not data.heads["measure"].is_in(list(SKILLS)).any():
        notes.append("the tables of probes have no accuracies per label")
        return None, None
    try:
        return skills(data.heads), label_values(data.heads)
    except ValueError as error:
        notes.append(str(error))
        return None, None


def label_rows(
    labels: pl.DataFrame | None, skill: pl.DataFrame | None, sites: Sequence[Site], heads: int
) -> list[dict[str, Any]]:
    """Per label the best heads' values in each regime, chance, and the head that is best on average."""
    if labels is None or skill is None:
        return []
    best = best_of_labels(skill, ("regime",))
    place = {site: number for number, site in enumerate(sites)}
    best_cell = {
        (row["regime"], row["task"], row["label"]): place[Site(row["attention"], row["layer"])] * heads
        + row["head"]
        for row in best.iter_rows(named=True)
    }
    rows = []
    for number, row in enumerate(labels.iter_rows(named=True)):
        values = {regime: row[regime] for regime in REGIMES if regime in row}
        keys = {regime: (regime, row["task"], row["label"]) for regime in values}
        joint, alone = values.get("joint"), values.get("stl")
        rows.append(
            {
                "place": number, "task": row["task"], "label": row["label"], "count": row["count"],
                "values": values, "chance": row["chance"], "counted": row["counted"],
                "heads": {regime: best_cell[key] for regime, key in keys.items() if key in best_cell},
                "change": None if joint is None or alone is None else joint - alone,
            }
        )  # fmt: skip
    return rows


MOST_MASKS = 40
"""The most masks that are all compared with each other, since the number of pairs grows with its square."""


@dataclass(frozen=True)
class Compared:
    """The comparisons between the masks of a setup."""

    name: str
    masks: Masks
    correlations: pl.DataFrame
    overlaps: pl.DataFrame


def masks_by_setup(data: ReportData) -> tuple[dict[str, Masks], tuple[str, ...]]:
    """The masks of every setup with the seeds that all of its tasks have, and notes."""
    by_setup: dict[str, Masks] = {}
    notes: list[str] = []
    if data.gates is None:
        return by_setup, ()
    # The kinds of attention are in the same order in all masks.
    all_gates = data.gates.sort(attention_order(sites_of(data.gates)), maintain_order=True)
    for setup in data.setups:
        gates = all_gates.filter(pl.col("setup") == setup.name)
        if gates.is_empty():
            continue
        try:
            by_setup[setup.name], left_out = final_masks(gates)
        except ValueError as error:
            notes.append(f"masks of {setup.name} are not compared: {error}")
            continue
        notes += [f"{setup.name}: {note.replace('left out', 'left out of comparisons')}" for note in left_out]
    return by_setup, tuple(notes)


def compare_masks(by_setup: dict[str, Masks]) -> tuple[Compared, ...]:
    """Correlations and overlaps within every setup that has masks of several tasks or of several seeds."""
    return tuple(
        Compared(name, masks, correlation_table(masks), task_overlaps(masks))
        for name, masks in by_setup.items()
        if len(masks.tasks) > 1 or len(masks.seeds) > 1
    )


def claim_counts(by_setup: dict[str, Masks]) -> pl.DataFrame:
    """setup, task, seeds, and numbers of heads: claimed, opened_by_force, closed_by_force (by its note)."""
    rows = [
        (setup, task, len(masks.seeds), int(claimed.sum()), int((claimed & ~learned).sum()), int(shut.max()))
        for setup, masks in by_setup.items()
        for task, claimed, learned, shut in zip(
            masks.tasks, masks.claimed(), masks.learned_claims(), masks.shut_by_force(), strict=True
        )
    ]
    columns = ("setup", "task", "seeds", "claimed", "opened_by_force", "closed_by_force")
    return pl.DataFrame(rows, columns, orient="row")


def across(by_setup: dict[str, Masks]) -> tuple[pl.DataFrame | None, str]:
    """Overlaps of the claimed heads of all masks of all setups, and a note if there are too many masks."""
    if len(by_setup) < 2:
        return None, ""
    names = [f"{setup}: {task}" for setup, masks in by_setup.items() for task in masks.tasks]
    if len(names) > MOST_MASKS:
        many = counted(len(names), "mask is", "masks are")
        return None, f"{many} too many to compare all with all: only within setups"
    claimed, learned = (
        np.concatenate([claims(masks) for masks in by_setup.values()])
        for claims in (Masks.claimed, Masks.learned_claims)
    )
    return claim_overlaps(names, claimed, learned), ""


SHOWN_MEASURES = tuple(dict.fromkeys([ABLATION, *(names[0] for names in OF_WORTH.values() if names)]))
"""The measures that maps may show; the first one that was measured is drawn."""


@dataclass(frozen=True)
class WorthMap:
    """A map of a task's heads in one setup."""

    setup: str
    svg: Markup
    runs: int
    significant: int | None
    """The number of heads that are significant in most runs; `None` if this was not tested."""


@dataclass(frozen=True)
class Worth:
    """The contents of the section."""

    measure: str
    title: str
    level: str
    """The false discovery rate at which heads are marked."""
    maps: list[tuple[str, str, list[WorthMap]]]
    """For each task its name, the value of full colour, and its maps."""
    prediction: pl.DataFrame
    means: pl.DataFrame
    """The means of the measure per head (`head_means`)."""
    resampled: str
    """What the tests resample, in words; empty without tests."""
    values: pl.DataFrame
    """The values that everything is computed from: `ReportData.worth`."""

    def about(self) -> dict[str, About]:
        """What their files say of their numbers."""
        of_measure = OF_MEASURES[BY_NAME[self.measure].unit].of("value")
        return {
            "head-worth": About(
                of_measure,
                (f"value: {self.title}, the mean over runs", *((self.resampled,) if self.resampled else ())),
            ),
            "prediction": About(
                PREDICTION_UNITS, paper=("task", "setup", "measure", "runs", "spearman", "low high")
            ),
            "agreement": About(
                AGREEMENT_UNITS, paper=("measure", "first", "second", "pairs", "spearman", "low high")
            ),
        }

    def tables(self) -> dict[str, pl.DataFrame]:
        """The tables for files, with the agreement of tables of heads, which the page does not show."""
        grouped = self.values.with_columns(group=pl.format("{}, {}", "task", "setup"))
        found = agreement(grouped, self.measure)
        return {"head-worth": self.means, "prediction": self.prediction, "agreement": found}


def worth_section(data: ReportData, sites: Sequence[Site], heads: int) -> Worth | None:
    """The section; `None` if no run has such measures."""
    values = data.worth
    measured = (
        () if values is None else [name for name in SHOWN_MEASURES if name in set(values["measure"].unique())]
    )
    if values is None or not measured:
        return None
    measure = measured[0]
    means = head_means(values, measure)
    order = [setup.name for setup in data.setups]
    maps = []
    for (task,), of_task in means.group_by("task", maintain_order=True):
        most = max(map(abs, of_task["value"].drop_nulls().to_list()), default=0.0) or 1.0
        drawn = []
        for setup in order:
            cells = of_task.filter(pl.col("setup") == setup)
            if cells.is_empty():
                continue
            tested = cells["significant"].is_not_null().any()
            marked = grid(cells, "significant", sites, heads) == 1
            title = f"{BY_NAME[measure].title}: {task}, {setup}"
            drawn.append(
                WorthMap(
                    setup,
                    head_map(grid(cells, "value", sites, heads) / most, sites, title, marked),
                    int(np.max(cells["runs"].to_numpy())),
                    int(marked.sum()) if tested else None,
                )
            )
        unit = {"points": " points", "nats": " nats"}.get(BY_NAME[measure].unit, "")
        maps.append((str(task), f"{most:.3g}{unit}", drawn))
    title, level = BY_NAME[measure].title, f"{SIGNIFICANT:g}"
    resampled = f"The tests resample {' and '.join(data.resampled)}" if data.resampled else ""
    if "sentences" in data.resampled:
        resampled += ", as if sentences were independent"
    if measure != ABLATION:
        resampled = ""
    return Worth(measure, title, level, maps, prediction(values), means, resampled, values)
