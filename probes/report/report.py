"""The page: the contents of its sections, put into the template with everything else that the page needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import polars as pl
from markupsafe import Markup

from mtl.probes.head_names import cell_names
from mtl.probes.report.answer import Answer
from mtl.probes.report.claims import ClaimingSetup, claims_of, notes_on_claims
from mtl.probes.report.curves import heads_kept_figure, learning_figure, pruning_figures
from mtl.probes.report.data import ReportData
from mtl.probes.report.head_data import heads_data
from mtl.probes.report.head_examples import head_examples
from mtl.probes.report.head_maps import claims_map, mask_maps, overlays
from mtl.probes.report.kept_heads import SHOWN, kept_heads
from mtl.probes.report.labels import label_rows, label_skills
from mtl.probes.report.overlaps import Compared, across, claim_counts, compare, masks_by_setup
from mtl.probes.report.page_part import PageData, PagePart, Shown, answers
from mtl.probes.report.scores import joint_costs, printed_scores, score_rows, score_table
from mtl.probes.report.sweep import sweep_section
from mtl.probes.report.templates import environment, text_of
from mtl.probes.report.training import told_columns, trained_in_words, undertrained, undertrained_in_words
from mtl.probes.report.worth import Worth, worth_section
from mtl.probes.sites import Site, shape_text, sites_of
from mtl.probes.statistics.head_values import PREDICTORS
from mtl.probes.statistics.skill import REGIME_NAMES, REGIMES, absent_labels
from mtl.probes.tables.examples_file import SENTENCES
from mtl.probes.tables.label_scores import FEWEST_ITEMS

BY_SETUP = "scores-by-setup"
"""The table of scores that papers print."""


@dataclass(frozen=True)
class Page:
    """The finished page, with its notes, tables and answers."""

    html: str
    notes: tuple[str, ...]
    make_tables: Callable[[], Mapping[str, pl.DataFrame]]
    answers: tuple[Answer, ...] = ()
    """The answers to the page's questions."""
    printed: Mapping[str, pl.DataFrame] = field(default_factory=dict)
    """What LaTeX gets instead of some tables: other units."""
    lines_of_parts: tuple[str, ...] = ()
    """Lines that pieces of evidence add to those that `mtl report` prints."""
    undertrained: str = ""
    """The setups and tasks whose scores on dev still rise, in words."""

    @cached_property
    def tables(self) -> Mapping[str, pl.DataFrame]:
        """What the page shows and what it was computed from, by file name; made on the first access."""
        return self.make_tables()

    def lines(self) -> list[str]:
        """The notes, the undertrained runs, the answers, and the lines of pieces of evidence."""
        told = [f"note: {note}" for note in self.notes]
        if self.undertrained:
            told.append(f"undertrained, scores on dev still rise: {self.undertrained}")
        return [*told, *(answer.line() for answer in self.answers), *self.lines_of_parts]

    def record(self) -> dict[str, Any]:
        """The answers with their estimates, for a JSON file."""
        return {"answers": [answer.record() for answer in self.answers]}


def report(evidence: ReportData, claims: ClaimingSetup | None = None, parts: Sequence[PagePart] = ()) -> Page:
    """One HTML page that loads nothing from elsewhere.

    Tasks claim heads by the masks of the setup `claims`, by default by those of the setup that
    `mtl.probes.report.claims.DEFAULT` describes. `parts` add pieces of evidence
    (`mtl.runs.evidence.page_parts`).
    """
    notes = list(evidence.notes)
    by_setup, left_out = masks_by_setup(evidence)
    notes += left_out
    sites, heads = _shape(evidence)
    page = PageData(evidence, by_setup, claims_of(evidence.setups, by_setup, claims))
    notes += notes_on_claims(page.claims, evidence.setups, by_setup)
    shown = [part.shown(page) for part in parts if part.shown is not None]
    notes += [note for piece in shown for note in piece.notes]
    claimed = None if page.claims.masks is None else page.claims.masks.of_real_labels()
    skill, labels = label_skills(evidence, notes)
    notes += absent_labels(labels) if labels is not None else ()
    all_overlaps, note = across(by_setup)
    notes += [note] if note else []
    tasks, rows = score_rows(evidence)
    joint_setup, costs = joint_costs(tasks, rows)
    rising = undertrained(evidence.history)
    rising_words = undertrained_in_words(rising)
    compared = compare(by_setup)
    per_head = next((piece.head_skills for piece in shown if piece.head_skills is not None), None)
    data = heads_data(sites, heads, by_setup, claimed, skill, per_head, evidence.heads) if sites else None
    worth = worth_section(evidence, sites, heads) if sites else None
    kept = kept_heads(claimed, evidence.heads)
    screen = answers(page, parts)
    notes += [note for answer in screen for note in answer.notes]
    final = tuple(dict.fromkeys(notes))
    html = environment().get_template("report.html.j2").render(
        evidence=evidence,
        tasks=tasks,
        rows=rows,
        notes=final,
        forced=any(masks.forced().any() for masks in by_setup.values()),
        claim_words="" if claimed is None else claimed.claims_in_words(),
        answers=screen,
        joint_setup=joint_setup,
        trained=trained_in_words(evidence.runs),
        rising=rising,
        run_columns=told_columns(evidence.runs),
        rising_words=rising_words,
        costs=costs,
        kept_heads=kept,
        examples=head_examples(kept, evidence.examples, sites, heads, SHOWN),
        most_kept=SHOWN,
        sentences_kept=SENTENCES,
        shown=shown,
        terms=_terms(shown),
        overlays=overlays(by_setup, claimed, page.claims.by),
        curves=learning_figure(evidence),
        kept=heads_kept_figure(evidence),
        pruned=pruning_figures(evidence),
        mask_maps=mask_maps(evidence, sites, heads),
        claims=claims_map(claimed),
        claims_by=page.claims.by,
        compared=compared,
        across=all_overlaps,
        labels=label_rows(labels, skill, sites, heads),
        regimes=[name for name in REGIMES if labels is not None and name in labels.columns],
        regime_names=REGIME_NAMES,
        data=data,
        worth=worth,
        predictors=PREDICTORS,
        shape=shape_text(sites, heads) if sites else "",
        fewest=FEWEST_ITEMS,
        head_names=cell_names(sites, heads),
        seeds=sorted(set(evidence.runs["seed"].cast(pl.Int64))),
        corpora=sorted(set(evidence.runs["corpus"]) - {""}),
        sweep=None if evidence.sweep is None else sweep_section(evidence.sweep),
        style=Markup(text_of("report.css") + "".join(piece.style for piece in shown)),
        script=Markup(text_of("report.js")),
    )  # fmt: skip

    def tables() -> dict[str, pl.DataFrame]:
        scores = {BY_SETUP: score_table(tasks, rows)} if rows else {}
        others = {"claims": claim_counts(by_setup)} | _tables(evidence, compared, worth, screen, shown)
        return {name: table for name, table in (scores | others).items() if table.height}

    printed = {name: table for piece in shown for name, table in piece.printed.items()}
    printed |= {"scores": evidence.scores.drop("run")}
    printed |= {BY_SETUP: printed_scores(tasks, rows)} if rows else {}
    lines = tuple(line for piece in shown for line in piece.lines)
    return Page(html, final, tables, screen, printed, lines, rising_words)


def _terms(shown: Sequence[Shown]) -> dict[str, list[tuple[str, Markup]]]:
    """All further words of the glossary, by the word that they follow."""
    terms: dict[str, list[tuple[str, Markup]]] = {}
    for piece in shown:
        for word, others in piece.terms.items():
            terms.setdefault(word, []).extend(others)
    return terms


def _shape(evidence: ReportData) -> tuple[tuple[Site, ...], int]:
    """The sites and the number of heads of each; none without masks, probes and worth."""
    for table in (evidence.gates, evidence.heads, evidence.worth):
        if table is not None:
            heads = table["head"].drop_nulls()
            return (sites_of(table), int(heads.to_numpy().max()) + 1) if len(heads) else ((), 0)
    return (), 0


def _tables(
    evidence: ReportData,
    compared: Sequence[Compared],
    worth: Worth | None,
    screen: Sequence[Answer],
    shown: Sequence[Shown],
) -> dict[str, pl.DataFrame]:
    """Every table of the page that a paper may need."""
    tables = {"runs": evidence.runs, "scores": evidence.scores, "probes": evidence.probes}
    tables["learning-curves"] = evidence.history
    if evidence.kept is not None:
        tables["heads-kept"] = evidence.kept.table
    if evidence.choices is not None:
        tables["choices"] = evidence.choices
    if evidence.pruning is not None:
        tables["pruning-curves"] = evidence.pruning.points
        if evidence.pruning.kinds is not None:
            tables["pruning-kinds"] = evidence.pruning.kinds
    if evidence.sweep is not None:
        tables["trials"] = evidence.sweep.table()
    if worth is not None:
        tables |= worth.tables()
    for answer in screen:
        tables |= answer.tables
    for setup in compared:
        name = re.sub(r"[^\w.+-]+", "-", setup.name)
        tables |= {f"correlation-{name}": setup.correlations, f"overlap-{name}": setup.overlaps}
    for piece in shown:
        tables |= piece.tables
    return tables
