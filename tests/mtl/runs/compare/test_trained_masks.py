"""The note on heads that a target opened or closed by force."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.files import write_json
from mtl.runs.compare.comparable import _forced
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
