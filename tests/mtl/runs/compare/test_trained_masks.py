"""The heads that a target opened or closed by force: the note on them, and the table."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.files import write_json
from mtl.runs.compare.comparable import _forced, choices_of
from mtl.runs.compare.run_set import RunSet
from mtl.runs.folder.run import Run


@pytest.mark.parametrize(
    ("opened", "moved"),
    [((12, 12), "4"), ((12, 4), "4 to 12"), ((16, 12), "4"), ((16, 15), None),
     ((48, 64), "32 to 48")],
    ids=["equal", "range", "one", "under a tenth", "more than are wanted"],
)  # fmt: skip
def test_the_note_gives_the_range_of_what_was_forced(
    tmp_path: Path, opened: tuple[int, int], moved: str | None
):
    runs = []
    for number, before in enumerate(opened):
        choice = {
            "open_at_choice": before,
            "forced_open": max(16 - before, 0),
            "forced_closed": max(before - 16, 0),
        }
        write_json(tmp_path / f"run{number}" / "status.json", {"choices": {"pos": choice}})
        runs.append(Run(tmp_path / f"run{number}"))
    notes = _forced(runs)
    assert (moved is None) == (notes == [])
    for note in notes:
        assert f"which 16 heads to keep, so {moved} heads of each were set at its end" in note


def test_shared_masks_are_told_apart_by_their_tasks(tmp_path: Path):
    choice = {"open_at_choice": 9, "forced_open": 0, "forced_closed": 1, "narrowly_kept": 2}
    runs = []
    for number, (scope, tasks, masks) in enumerate(
        [
            ("shared", ["pos"], ["shared"]),
            ("shared", ["pos", "dep"], ["shared/encoder", "shared/cross"]),
            ("per_task", ["pos", "dep"], ["pos", "dep"]),
        ]
    ):
        run = Run(tmp_path / f"{number}")
        run.create({"tasks": tasks, "seed": 1, "gates": {"scope": scope}})
        write_json(run.folder / "status.json", {"choices": dict.fromkeys(masks, choice)})
        runs.append(run)
    table = choices_of(RunSet.of(runs))
    assert table is not None
    assert table["mask"].to_list() == ["pos", "pos+dep/encoder", "pos+dep/cross", "pos", "dep"]
    assert table["narrowly_kept"].to_list() == [2] * 5
