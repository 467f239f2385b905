"""One text has one annotation: by `annotate_text`, and line by line by `mtl predict`."""

from __future__ import annotations

import contextlib
import functools
import io
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings

from mtl.commands.main import main
from mtl.corpora.formats.dependencies import read_conllu
from mtl.corpora.formats.jsonl import from_json, read_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.models.joint import JointModel
from mtl.models.opened import annotator_at
from mtl.tasks.sentence import MadeUpId
from tests.kit.texts import TEXT
from tests.mtl.analysis import worth


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny run with random weights."""
    folder = tmp_path_factory.mktemp("run")
    write_toy(folder / "corpus", 20, 4, 4, seed=1)
    model = worth.joint_model(folder / "corpus", ("pos", "ner"), dtype=torch.float32)
    model.save(folder / "model")
    (folder / "config.yaml").write_text("tasks: [pos, ner]\n")
    (folder / "status.json").write_text('{"state": "finished"}')
    return folder


@pytest.fixture(scope="module")
def model(run: Path) -> JointModel:
    return JointModel.from_pretrained(run)


@pytest.fixture(scope="module", autouse=True)
def opened_once() -> Iterator[None]:
    """Commands share one model, which takes longer to open than to annotate a text."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("mtl.models.opened.annotator_at", functools.cache(annotator_at))
        yield


def of_predict(run: Path, text: str, output: str) -> str:
    with tempfile.TemporaryDirectory() as folder, contextlib.redirect_stdout(io.StringIO()) as printed:
        path = Path(folder) / "in.txt"
        path.write_bytes(text.encode())
        with contextlib.redirect_stderr(io.StringIO()):
            assert main(["predict", str(run), str(path), f"--output={output}", "--max_words=9999"]) in (0, 2)
    return printed.getvalue()


def without_id(record: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in record.items() if key != "id"}


@pytest.mark.slow
@given(text=TEXT)
@example(text="Annual report\n\nAnn ate in Paris.\n")
@example(text="Thanks!!\r\n\r\nGreat !!! See  you.\u2029Bye\u00a0now")
@example(text="\x00\x07We\x1f ate\u2028\u2028It rained")
@example(text="\ufeffHe left.\n\ufeff\n\ufeff\ufeffIt rained.")
@settings(deadline=None, max_examples=60)
def test_both_ways_give_one_result(run: Path, model: JointModel, text: str) -> None:
    answer = json.loads(json.dumps(model.annotate_text(text).to_json()))
    for sentence in answer["sentences"]:
        assert [text[start:end] for start, end in sentence["offsets"]] == sentence["words"]
    records = [json.loads(line) for line in of_predict(run, text, "json").split("\n") if line]
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        of_line = [record for record in records if record["id"].partition(".")[0] == str(number)]
        if not line and number == len(lines):
            assert of_line == []
        elif any("skipped" in record for record in of_line):
            assert [record["words"] for record in of_line] == [[]]
            may_be_text = "\r" in line.rstrip("\r") or "\0" in line
            assert may_be_text or not model.annotate_text(line).sentences
        else:
            expected = json.loads(json.dumps(model.annotate_text(line).to_json()))["sentences"]
            assert [*map(without_id, of_line)] == [*map(without_id, expected)]


@pytest.mark.parametrize(
    "text", ["We ate. It rained!!\nThanks  a\u00a0lot.\n", "\ufeffHe left.\n\ufeff\ufeffOk\n"]
)
def test_both_outputs_of_predict_are_read_back_with_ids_that_are_made_up(
    run: Path, text: str, tmp_path: Path
) -> None:
    for output, read in (("json", read_jsonl), ("conllu", read_conllu)):
        (tmp_path / output).write_text(of_predict(run, text, output))
        sentences = read(tmp_path / output)
        assert [type(sentence.id) for sentence in sentences] == [MadeUpId] * len(sentences) != []
    lines = text.split("\n")
    for record in map(json.loads, (tmp_path / "json").read_text().splitlines()):
        line = lines[int(record["id"].partition(".")[0]) - 1]
        assert [line[start:end] for start, end in record["offsets"]] == record["words"]


def test_an_answer_with_probabilities_is_a_record_that_can_be_read(model: JointModel) -> None:
    answer = model.annotate_text("We ate.", probabilities=2)
    [record] = answer.to_json()["sentences"]
    assert {"offsets", "probabilities"} <= record.keys()
    assert from_json(json.loads(json.dumps(record))) == answer.sentences[0]
