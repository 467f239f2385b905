"""The page: what its sections show, put into the template with everything that it needs inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from importlib.resources import files

import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from mtl.probes.head_names import cell_names
from mtl.probes.label_scores import FEWEST_ITEMS
from mtl.probes.report import number_format
from mtl.probes.report.answer import Answer
from mtl.probes.report.claims import ClaimsAndLosses, PrimarySetup, claims_and_losses
from mtl.probes.report.curves import heads_kept_figure, learning_figure, pruning_figures
from mtl.probes.report.data import ReportData
from mtl.probes.report.head_data import heads_data
from mtl.probes.report.head_maps import claims_map, loss_maps, mask_maps, overlays
from mtl.probes.report.labels import label_rows, label_skills
from mtl.probes.report.overlaps import Compared, across, claim_counts, compare, masks_by_setup
from mtl.probes.report.scores import score_rows, score_table
from mtl.probes.report.sweep import sweep_section
from mtl.probes.report.worth import Worth, worth_section
from mtl.probes.sites import Site, shape_text, sites_of
from mtl.probes.statistics.head_values import PREDICTORS
from mtl.probes.statistics.skill import REGIME_NAMES, REGIMES, absent_labels
from mtl.probes.stem_cell.report.answers import answers
from mtl.probes.stem_cell.statistics.competition import PRIMARY, TOGETHER
from mtl.probes.stem_cell.statistics.contest_cells import CONTROL

COMPARISON_NAMES = {
    "joint against stl": "MTL against STL",
    "joint against static": "MTL against before training",
    "pair against stl": "MTL-2 against STL",
}


@dataclass(frozen=True)
class Page:
    """The finished page, its notes and its tables."""

    html: str
    notes: tuple[str, ...]
    verdict: str
    """The word on claims and losses with its reason and whose claims it rests on; empty without one."""
    tables: Mapping[str, pl.DataFrame]
    """What the page shows, and what it was computed from, by file name."""
    answers: tuple[str, ...] = ()
    """Those of the first screen, each as a line."""

    def lines(self) -> list[str]:
        """The notes, the answers and the word on claims and losses as lines of text."""
        lines = [*(f"note: {note}" for note in self.notes), *self.answers]
        return lines + ([f"competition: {self.verdict}"] if self.verdict else [])


def report(evidence: ReportData, claims: PrimarySetup | None = None) -> Page:
    """One HTML page that loads nothing from elsewhere.

    The verdict on claims and losses rests on the setup `claims`, by default on that of `claims.DEFAULT`.
    """
    notes = list(evidence.notes)
    by_setup, left_out = masks_by_setup(evidence)
    notes += left_out
    sites, heads = _shape(evidence)
    claim_tests = claims_and_losses(evidence, by_setup, claims, notes)
    claimed = None if claim_tests.masks is None else claim_tests.masks.without(CONTROL)
    competition = claim_tests.competition
    skill, labels = label_skills(evidence, notes)
    notes += absent_labels(labels) if labels is not None else ()
    all_overlaps, note = across(by_setup)
    notes += [note] if note else []
    tasks, rows = score_rows(evidence)
    compared = compare(by_setup)
    per_head = competition.heads if competition else None
    data = heads_data(sites, heads, by_setup, claimed, skill, per_head, evidence.heads) if sites else None
    worth = worth_section(evidence, sites, heads) if sites else None
    screen = answers(evidence, by_setup, claim_tests)
    notes += [note for answer in screen for note in answer.notes]
    final = tuple(dict.fromkeys(notes))
    html = _environment().get_template("report.html.j2").render(
        evidence=evidence,
        tasks=tasks,
        rows=rows,
        notes=final,
        forced=any(masks.forced().any() for masks in by_setup.values()),
        claim_words="" if claimed is None else claimed.claims_in_words(),
        answers=screen,
        overlays=overlays(by_setup, claimed, claim_tests.primary),
        curves=learning_figure(evidence),
        kept=heads_kept_figure(evidence),
        pruned=pruning_figures(evidence),
        mask_maps=mask_maps(evidence, sites, heads),
        claims=claims_map(claimed),
        primary=claim_tests.primary,
        compared=compared,
        across=all_overlaps,
        competition=competition,
        by_claims=claim_tests.by_claims,
        why_not=claim_tests.why_not,
        losses=loss_maps(competition, claimed, sites, heads),
        labels=label_rows(labels, skill, sites, heads),
        regimes=[name for name in REGIMES if labels is not None and name in labels.columns],
        data=data,
        worth=worth,
        predictors=PREDICTORS,
        shape=shape_text(sites, heads) if sites else "",
        fewest=FEWEST_ITEMS,
        head_names=cell_names(sites, heads),
        seeds=sorted(set(evidence.runs["seed"].cast(pl.Int64))),
        corpora=sorted(set(evidence.runs["corpus"]) - {""}),
        sweep=None if evidence.sweep is None else sweep_section(evidence.sweep),
        style=Markup(_source("report.css")),
        script=Markup(_source("report.js")),
    )  # fmt: skip
    tables = {"scores-by-setup": score_table(tasks, rows)} if rows else {}
    tables |= {"claims": claim_counts(by_setup)} | _tables(evidence, compared, claim_tests, worth, screen)
    tables = {name: table for name, table in tables.items() if table.height}
    return Page(html, final, claim_tests.summary(), tables, tuple(answer.line() for answer in screen))


def _shape(evidence: ReportData) -> tuple[tuple[Site, ...], int]:
    """The sites and the heads of each; none without masks and probes."""
    tables = (evidence.gates, evidence.heads, evidence.worth)
    table = next((table for table in tables if table is not None), None)
    heads = None if table is None else table["head"].drop_nulls()
    if table is None or heads is None or heads.is_empty():
        return (), 0
    return sites_of(table), int(heads.to_numpy().max()) + 1


def _tables(
    evidence: ReportData,
    compared: Sequence[Compared],
    claim_tests: ClaimsAndLosses,
    worth: Worth | None,
    screen: Sequence[Answer],
) -> dict[str, pl.DataFrame]:
    """Every table of the page that a paper may want."""
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
        tables |= worth.tables
    for answer in screen:
        tables |= answer.tables
    for setup in compared:
        name = re.sub(r"[^\w.+-]+", "-", setup.name)
        tables |= {f"correlation-{name}": setup.correlations, f"overlap-{name}": setup.overlaps}
    if claim_tests.by_claims is not None:
        tables["competition-by-claims"] = claim_tests.by_claims
    if claim_tests.competition is not None:
        tables |= {
            "competition-heads": claim_tests.competition.heads,
            "competition-tests": claim_tests.competition.head_tests,
            "labels": claim_tests.competition.labels,
            "task-losses": claim_tests.competition.task_losses,
        }
    return tables


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mtl.probes.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "sort_keys": False}
    environment.filters |= {
        "number": number_format.number,
        "signed": number_format.signed,
        "chance": number_format.chance,
    }
    environment.globals |= {
        "regime_names": REGIME_NAMES,
        "comparison_names": COMPARISON_NAMES,
        "primary_test": PRIMARY,
        "together": TOGETHER,
        "value_text": number_format.value_text,
    }
    return environment


def _source(name: str) -> str:
    return (files("mtl.probes.report") / name).read_text(encoding="utf-8")
