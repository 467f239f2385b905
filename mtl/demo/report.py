"""The demo's report: the archived study, and beside it the run that the demo made."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from markupsafe import Markup

from mtl.config.schema import TrainConfig
from mtl.demo.command import Demo
from mtl.probes.report.head_maps import head_map
from mtl.probes.report.page_part import (
    Answer,
    PageData,
    PagePart,
    ShownEvidence,
    environment,
    package_text,
)
from mtl.probes.statistics.masks import Masks
from mtl.runs.compare.run_set import RunSet, RunWithSetup
from mtl.runs.folder.run import Run
from mtl.runs.report.gather import ReportSource
from mtl.tasks.catalogue import catalogue_place


@dataclass(frozen=True)
class DemoSource(ReportSource):
    """The archived study; the demo's own run has a card on the first screen and enters no statistic."""

    def choose(self, runs: RunSet) -> RunSet:
        """The archived runs, with the setups that they have among themselves.

        The demo's own runs learn from other sentences, and beside them every name of a setup would say so.
        """
        archived = runs.where(lambda run: run.folder.parent == Demo(self.folder).archive)

        def order(run: RunWithSetup) -> tuple[object, ...]:
            tasks = run.config["tasks"]
            return len(tasks), run.config["pruning"] != "none", catalogue_place(tasks[0]), run.config["seed"]

        return RunSet.of((run.run for run in sorted(archived, key=order)), runs.notes)

    def parts(self, pieces: Sequence[PagePart]) -> Sequence[PagePart]:
        """The card, and the answers that the archived runs can give."""
        told = [PagePart(partial(_if_told, piece.answer)) for piece in pieces if piece.answer is not None]
        found = [part.answer for part in told if part.answer is not None]
        return [PagePart(shown=partial(_shown, self.folder, found)), *told]


def demo_source(folder: Path) -> DemoSource:
    """The demo in a folder."""
    archived = frozenset(Demo(folder).archive.iterdir())
    return DemoSource(folder, not_to_probe=archived)


def _if_told(make: Callable[[PageData], Answer | None], page: PageData) -> Answer | None:
    answer = make(page)
    return answer if answer is not None and answer.told else None


def _shown(
    folder: Path, answers: Sequence[Callable[[PageData], Answer | None]], page: PageData
) -> ShownEvidence:
    """What the page begins with, and the card of the demo's run if that is finished."""
    demo = Demo(folder)
    found = [answer for answer in (make(page) for make in answers) if answer is not None]
    texts: Any = (
        environment(__package__)
        .get_template("demo.html.j2")
        .make_module({"archived": page.data.runs.height, "demo": demo, "found": found, "run": _own_run(demo)})
    )
    style = package_text("demo.css", __package__)
    return ShownEvidence(opening=Markup(texts.opening()), card=Markup(texts.card()), style=style)


@dataclass(frozen=True)
class _OwnRun:
    """The demo's run, as the card shows it."""

    maps: Sequence[tuple[str, float, Markup]]
    """By task: its name, its test score in per cent, its mask."""
    sentences: int
    kept: int
    """The number of heads that each task keeps."""
    heads: int


def _own_run(demo: Demo) -> _OwnRun | None:
    run: Run = demo.run
    if run.status().get("state") != "finished":
        return None
    masks = demo.masks()
    test, scores = run.metrics()["test"], TrainConfig().main_scores()
    maps = [(task, test[task][scores[task]], _map(masks, task)) for task in run.config()["tasks"]]
    opened = masks.opened[:, 0]
    return _OwnRun(maps, run.status()["sentences"]["train"], int(opened[0].sum()), opened[0].size)


def _map(masks: Masks, task: str) -> Markup:
    place = masks.tasks.index(task)
    gate, opened, learned = (each[place, 0] for each in (masks.gate, masks.opened, masks.learned))
    forced = opened & ~learned, ~opened & learned
    return head_map(gate, masks.sites, f"heads that {task} keeps in the demo's run", forced=forced)
