"""The same encoder wherever it is, and another one under the same name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.runs.compare.settings import check_encoders, encoder_of
from mtl.runs.figures.table import draw
from mtl.runs.folder.run import Run, files_of_encoder
from mtl.runs.report.gather import gather
from tests.mtl.studies import Study


@pytest.fixture
def encoders(tmp_path) -> dict[str, Path]:
    folders = {"here": "1", "moved": "1", "other": "2"}
    for name, content in folders.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(content)
        (tmp_path / name / "README.md").write_text(name)
    return {name: tmp_path / name for name in folders}


def run(study: Study, task: str, encoder: Path, recorded: bool) -> Path:
    folder = study.run([task], 1, encoder=str(encoder), probe=False)
    if recorded:
        status = json.loads((folder / "status.json").read_text())
        status["encoder_fingerprint"] = fingerprint(files_of_encoder(encoder))
        (folder / "status.json").write_text(json.dumps(status))
    return folder


@pytest.mark.parametrize("recorded", [(True, True), (True, False), (False, False)])
def test_equal_files_at_two_places_are_one_encoder(tmp_path, encoders, recorded):
    study = Study(tmp_path / "study")
    runs = [
        run(study, task, encoders[place], known)
        for task, place, known in zip(("pos", "dep"), ("here", "moved"), recorded, strict=True)
    ]
    check_encoders({str(folder): encoder_of(Run.open(folder)) for folder in runs})
    if all(recorded):  # else settings are compared by path, which a note says
        assert draw("grey", runs).tables[""]["masks"].unique().to_list() == [2]
    data = gather(study.root, "test", TrainConfig().main_scores())
    assert data.gates is not None
    assert set(data.gates["task"]) == {"pos", "dep"}
    # The probes of the encoder before training, at the other place.
    study.static(target=str(encoders["moved"]))
    study.probe(runs[0], ["pos"], target=str(encoders["here"]))
    notes = gather(study.root, "test", TrainConfig().main_scores()).notes
    assert not [note for note in notes if "has probes of" in note]


@pytest.mark.parametrize("recorded", [True, False])
def test_other_files_are_another_encoder(tmp_path, encoders, recorded):
    study = Study(tmp_path / "study")
    runs = [run(study, "pos", encoders["here"], recorded), run(study, "dep", encoders["other"], recorded)]
    with pytest.raises(
        InputError, match=f"of {encoders['here']}, .* of {encoders['other']}; choose runs of one encoder"
    ):
        draw("grey", runs)


def test_other_files_at_one_place_are_another_encoder(tmp_path, encoders):
    study = Study(tmp_path / "study")
    runs = [run(study, "pos", encoders["here"], True)]
    (encoders["here"] / "config.json").write_text("2")
    runs.append(run(study, "dep", encoders["here"], True))
    with pytest.raises(InputError, match="whose files differ"):
        draw("grey", runs)
