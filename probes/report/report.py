"""The page: what its sections show, put into the template with everything that it needs inside."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import numpy as np
import polars as pl
from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from probes.figures.heads_kept import heads_kept
from probes.figures.learning_curves import learning_curves
from probes.measures.table import SKILLS
from probes.report import number_format
from probes.report.claims import Contest, PrimarySetup, contest
from probes.report.data import ReportData
from probes.report.embedded import embedded
from probes.report.head_data import grid, heads_data
from probes.report.head_svg import head_map, rgb_key, rgb_map, strip
from probes.report.overlaps import Compared, across, compare, masks_by_setup
from probes.report.scores import score_rows
from probes.report.sweep import sweep_section
from probes.statistics.competition import PRIMARY, TOGETHER, Competition
from probes.statistics.masks import Masks
from probes.statistics.skill import REGIME_NAMES, REGIMES, label_values, skills

COMPARISON_NAMES = {
    "joint against stl": "MTL against STL",
    "joint against static": "MTL against before training",
    "pair against stl": "MTL-2 against STL",
}
CHANNELS = 3
"""Seeds in an RGB overlay."""


@dataclass(frozen=True)
class Page:
    """The finished page, its notes and its tables."""

    html: str
    notes: tuple[str, ...]
    verdict: str
    """Empty if competition cannot be told from these runs."""
    tables: Mapping[str, pl.DataFrame]
    """What the page shows, and what it was computed from, by file name."""

    def lines(self) -> list[str]:
        """The notes and the verdict as lines of text."""
        lines = [f"note: {note}" for note in self.notes]
        return lines + ([f"competition: {self.verdict}"] if self.verdict else [])


@dataclass(frozen=True)
class Picture:
    """A mask as it is shown."""

    seed: int
    opened: int
    count: int
    svg: Markup


def report(evidence: ReportData, claims: PrimarySetup | None = None) -> Page:
    """One HTML page that loads nothing from elsewhere; the word rests on `claims` (default: a rule)."""
    notes = list(evidence.notes)
    by_setup, said = masks_by_setup(evidence)
    notes += said
    shape = _shape(evidence)
    found = contest(evidence, by_setup, claims, notes)
    claimed, competition = found.masks, found.competition
    skill, labels = _skills(evidence, notes)
    notes += number_format.absent(labels) if labels is not None else ()
    everything, note = across(by_setup)
    notes += [note] if note else []
    tasks, rows = score_rows(evidence)
    compared = compare(by_setup)
    per_head = competition.heads if competition else None
    data = heads_data(shape, by_setup, claimed, skill, per_head) if shape else None
    final = tuple(dict.fromkeys(notes))
    html = _environment().get_template("report.html.j2").render(
        evidence=evidence,
        tasks=tasks,
        rows=rows,
        notes=final,
        overlays=_overlays(by_setup, claimed, found.deciding),
        key=rgb_key,
        curves=_curves(evidence),
        kept=_heads_kept(evidence),
        pictures=_pictures(evidence),
        claims=_claims_map(claimed),
        deciding=found.deciding,
        compared=compared,
        across=everything,
        competition=competition,
        by_claims=found.by_claims,
        why_not=found.why_not,
        losses=_losses(competition, claimed, shape),
        labels=_label_rows(labels, skill, shape),
        regimes=[name for name in REGIMES if labels is not None and name in labels.columns],
        data=data,
        seeds=sorted(set(evidence.runs["seed"].cast(pl.Int64))),
        corpora=sorted(set(evidence.runs["corpus"]) - {""}),
        sweep=None if evidence.sweep is None else sweep_section(evidence.sweep),
        style=Markup(_source("report.css")),
        script=Markup(_source("report.js")),
    )  # fmt: skip
    return Page(html, final, found.summary(), _tables(evidence, compared, found))


def _tables(evidence: ReportData, compared: Sequence[Compared], found: Contest) -> dict[str, pl.DataFrame]:
    """Every table of the page that a paper may want; those without rows are left out."""
    tables = {"runs": evidence.runs, "scores": evidence.scores, "probes": evidence.probes}
    tables["learning-curves"] = evidence.history
    if evidence.kept is not None:
        tables["heads-kept"] = evidence.kept.table
    if evidence.sweep is not None:
        tables["trials"] = evidence.sweep.table()
    for each in compared:
        name = re.sub(r"[^\w.+-]+", "-", each.name)
        tables |= {f"correlation-{name}": each.correlations, f"overlap-{name}": each.overlaps}
    if found.by_claims is not None:
        tables["competition-by-claims"] = found.by_claims
    if found.competition is not None:
        tables |= {
            "competition-heads": found.competition.heads,
            "competition-tests": found.competition.head_tests,
            "labels": found.competition.labels,
            "task-losses": found.competition.task_losses,
        }
    return {name: table for name, table in tables.items() if table.height}


def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("probes.report", "."),
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
        "primary": PRIMARY,
        "together": TOGETHER,
        "reading": number_format.reading,
        "head": number_format.head,
        "value_text": number_format.value_text,
    }
    return environment


def _source(name: str) -> str:
    return (files("probes.report") / name).read_text(encoding="utf-8")


def _shape(evidence: ReportData) -> tuple[int, int] | None:
    table = evidence.gates if evidence.gates is not None else evidence.heads
    if table is None:
        return None
    layers, heads = table.select(pl.col("layer").max() + 1, pl.col("head").max() + 1).row(0)
    return layers, heads


def _pictures(evidence: ReportData) -> list[tuple[str, dict[str, list[Picture]]]]:
    """Per setup and task the masks of all seeds."""
    found: list[tuple[str, dict[str, list[Picture]]]] = []
    if evidence.gates is None:
        return found
    size = _shape(evidence)
    assert size is not None
    for setup in evidence.setups:
        gates = evidence.gates.filter(pl.col("setup") == setup.name)
        order = list(gates["task"].unique(maintain_order=True))
        blocks = sorted(
            gates.group_by("task", "seed"), key=lambda item: (order.index(item[0][0]), item[0][1])
        )
        pictures: dict[str, list[Picture]] = {}
        for (task, seed), block in blocks:
            opened, count = int(block["open"].sum()), block.height
            title = f"mask of {task}, seed {seed}, {setup.name}: {opened} of {count} heads open"
            drawn = head_map(grid(block, "gate", size), title, axes=True)
            pictures.setdefault(task, []).append(Picture(seed, opened, count, drawn))
        if pictures:
            found.append((setup.name, pictures))
    return found


def _overlays(
    by_setup: Mapping[str, Masks], claimed: Masks | None, deciding: PrimarySetup | None
) -> dict[str, Any] | None:
    """Three seeds of each task in one picture: of the primary setup, else of the first that has three."""
    sets = [(deciding.setup, claimed)] if deciding is not None and claimed is not None else []
    for setup, masks in (*sets, *by_setup.items()):
        if len(masks.seeds) >= CHANNELS:
            seeds = masks.seeds[:CHANNELS]
            maps = {
                task: rgb_map(
                    masks.gate[place, :CHANNELS],
                    f"heads that {task} keeps with seeds {', '.join(map(str, seeds))}, {setup}",
                )
                for place, task in enumerate(masks.tasks)
            }
            return {"setup": setup, "names": [f"seed {seed}" for seed in seeds], "maps": maps}
    return None


def _curves(evidence: ReportData) -> Markup | None:
    """Learning curves, drawn; `None` without at least two evaluations of some run."""
    history = evidence.history
    if history.is_empty() or history.group_by("setup", "task", "seed").len()["len"].max() == 1:
        return None
    figure = learning_curves(history, evidence.metrics)
    return embedded(figure, "scores on dev while training, a panel for each task")


def _heads_kept(evidence: ReportData) -> Markup | None:
    if evidence.kept is None:
        return None
    kept = evidence.kept.table
    tasks, setups = list(evidence.metrics), [setup.name for setup in evidence.setups]
    # In the order of the table of scores; where penalties differ, the names of setups do not hold them here.
    place = {name: place for place, name in enumerate(dict.fromkeys([*setups, *kept["setup"]]))}
    kept = kept.sort(
        pl.col("task").replace_strict({task: number for number, task in enumerate(tasks)}),
        pl.col("setup").replace_strict(place),
        "kept",
        "run",
    )
    figure = heads_kept(kept, evidence.kept.heads, evidence.metrics)
    return embedded(figure, "score against open heads, a panel for each task")


def _claims_map(claimed: Masks | None) -> Markup | None:
    if claimed is None or len(claimed.tasks) < 2:
        return None
    share = claimed.claimed().mean(0)
    return head_map(share, f"how many of {len(claimed.tasks)} tasks claim each head", axes=True)


def _losses(
    competition: Competition | None, claimed: Masks | None, shape: tuple[int, int] | None
) -> dict[str, Markup] | None:
    if competition is None or claimed is None or shape is None:
        return None
    table = competition.heads
    losses = table["loss"].to_list()
    most = max(map(abs, losses)) or 1.0
    names = [str(count) for count in range(len(claimed.tasks) + 1)]
    return {
        "map": head_map(
            np.array(losses).reshape(shape) / most,
            "loss of every head from single to joint training",
            axes=True,
        ),
        "strip": strip(
            table["claims"].to_list(), losses, names, "tasks that claim the head", "skill lost, points"
        ),
        "most": Markup(f"{100 * most:.1f}"),
    }


def _skills(evidence: ReportData, notes: list[str]) -> tuple[pl.DataFrame | None, pl.DataFrame | None]:
    if evidence.heads is None:
        return None, None
    probes = evidence.heads.filter(pl.col("measure").is_in(list(SKILLS)))
    if probes.is_empty():
        notes.append("the tables of probes have no accuracies per label")
        return None, None
    try:
        return skills(evidence.heads), label_values(evidence.heads)
    except ValueError as error:
        notes.append(str(error))
        return None, None


def _label_rows(
    labels: pl.DataFrame | None, skill: pl.DataFrame | None, shape: tuple[int, int] | None
) -> list[dict[str, Any]]:
    """Per label the best heads' values in each regime, chance, and which head is best on average."""
    if labels is None or skill is None or shape is None:
        return []
    best = (
        skill.sort("value", "layer", "head", descending=[True, False, False])
        .group_by("regime", "task", "label", maintain_order=True)
        .first()
    )
    of = {(row["regime"], row["task"], row["label"]): row for row in best.iter_rows(named=True)}
    chance = {
        (task, label): value
        for task, label, value in skill.group_by("task", "label").agg(pl.col("chance").max()).iter_rows()
    }
    rows = []
    for place, row in enumerate(labels.iter_rows(named=True)):
        values = {name: row[name] for name in REGIMES if name in row}
        heads = {}
        for name in values:
            found = of.get((name, row["task"], row["label"]))
            if found is not None:
                heads[name] = found["layer"] * shape[1] + found["head"]
        joint, alone = values.get("joint"), values.get("stl")
        rows.append(
            {
                "place": place, "task": row["task"], "label": row["label"], "count": row["count"],
                "values": values, "heads": heads, "chance": chance[row["task"], row["label"]],
                "change": None if joint is None or alone is None else joint - alone,
            }
        )  # fmt: skip
    return rows
