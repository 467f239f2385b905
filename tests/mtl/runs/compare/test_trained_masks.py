"""The note on heads that a target opened or closed by force."""

from __future__ import annotations

from pathlib import Path

import pytest

from mtl.files import write_json
from mtl.runs.compare.trained_masks import _all_forced, _forced
from mtl.runs.folder.run import Run


@pytest.mark.parametrize(
    ("opened", "shares"),
    [((4, 4), "25 %"), ((4, 12), "25 to 75 %"), ((0, 4), "25 %"), ((0, 1), None)],
    ids=["equal", "range", "one", "under a tenth"],
)
def test_the_note_gives_the_range_of_what_was_forced(
    tmp_path: Path, opened: tuple[int, int], shares: str | None
):
    choices = []
    for number, forced in enumerate(opened):
        choice = {"open_at_choice": 16 - forced, "forced_open": forced, "forced_closed": 0}
        write_json(tmp_path / f"run{number}" / "status.json", {"choices": {"pos": choice}})
        choices += _forced(Run(tmp_path / f"run{number}"))
    notes = _all_forced(choices)
    assert (shares is None) == (notes == [])
    for note in notes:
        assert f"gates.target_open opened or closed {shares} of the heads wanted by force" in note
