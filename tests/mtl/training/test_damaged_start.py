"""A run to start from whose files are damaged: one line with the file or the run, whatever is wrong."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from mtl.errors import InputError
from mtl.training.assembly import _settings_of

GOOD = {
    "model/model.json": b'{"tasks": {"pos": {}}}',
    "model/encoder.json": b'{"pooling": "first", "mix": null, "word_dropout": 0.0}',
    "config.yaml": b"encoder:\n  name: tiny\n",
}
DAMAGED = (b"", b"\xff\x00PAR1", b'[1, "a", null]', b"null", b'{"tas', b"{}", b'{"tasks"\x00: 1}')


def written(folder: Path, files: dict[str, bytes]) -> Path:
    (folder / "model").mkdir(parents=True)
    for name, content in files.items():
        (folder / name).write_bytes(content)
    return folder


def test_undamaged_files_are_read(tmp_path: Path) -> None:
    run = written(tmp_path / "run", GOOD)
    sections = _settings_of(run, ("pos", "ner"))
    assert sections.keys() == {"encoder", "pos"}
    assert sections["encoder"]["name"] == "tiny"
    assert sections["pos"] == {"inventory": "tags", "dropout": 0.33}
    assert _settings_of(run, ("ner",)).keys() == {"encoder"}


def test_a_saved_model_has_its_own_settings_and_no_file_above_its_folder_counts(tmp_path: Path) -> None:
    """As `save_pretrained` wrote it, into any folder, beside a `config.yaml` of whatever program."""
    (tmp_path / "config.yaml").write_text("encoder: {name: another}\n")
    saved = tmp_path / "parser"
    saved.mkdir()
    (saved / "encoder.json").write_bytes(GOOD["model/encoder.json"])
    for origin, name in (({"encoder": "tiny"}, {"name": "tiny"}), ({}, {})):
        (saved / "model.json").write_text(json.dumps({"tasks": {"pos": {}}, "origin": origin}))
        assert _settings_of(saved, ())["encoder"] == {
            "pooling": "first",
            "layers": "last",
            "word_dropout": 0.0,
            "weights": "pretrained",
            **name,
        }


@pytest.mark.parametrize("name", GOOD)
def test_damaged_files_are_one_line(name: str, tmp_path: Path) -> None:
    for number, content in enumerate(DAMAGED):
        run = written(tmp_path / str(number), {**GOOD, name: content})
        with pytest.raises(InputError, match=re.escape(str(run))) as caught:
            _settings_of(run, ("pos",))
        assert "\n" not in str(caught.value)
