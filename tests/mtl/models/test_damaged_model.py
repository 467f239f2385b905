"""Files of a saved model that were cut, emptied, changed or deleted: one line that names the folder."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from transformers import BertForMaskedLM

from mtl.errors import InputError
from mtl.heads.gates import HeadGates
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.tasks.structured import Dep, Pos
from tests.mtl import tiny

TASKS = {"pos": Pos(), "dep": Dep()}


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    from mtl.corpora.formats.jsonl import read_jsonl

    sentences = read_jsonl(toy / "dev.jsonl")
    encoder = tiny.encoder("bert")
    labels = {name: task.labels(sentences) for name, task in TASKS.items()}
    gates = HeadGates(tiny.LAYERS, tiny.HEADS)
    folder = tmp_path_factory.mktemp("saved")
    JointModel(encoder, TASKS, labels, gates).save(folder)
    JointModel.from_pretrained(folder)
    return folder


def names(saved: Path) -> list[str]:
    return sorted(path.name for path in saved.iterdir())


def message_of(folder: Path) -> str | None:
    """What loading a damaged model says; `None` if it loads."""
    try:
        JointModel.from_pretrained(folder)
    except InputError as error:
        return str(error)
    return None


def test_every_file_cut_emptied_or_replaced(saved: Path, tmp_path: Path) -> None:
    for name in names(saved):
        content = (saved / name).read_bytes()
        huge_header = b"\xff\xff\xff\xff\xff\xff\xff\x7f{}"
        variants = (content[: len(content) // 2], b"", b"[]", b"{}", b"\xff" * 9, huge_header, None)
        for number, damaged in enumerate(variants):
            folder = tmp_path / f"{name}-{number}"
            shutil.copytree(saved, folder)
            if damaged is None:
                (folder / name).unlink()
            else:
                (folder / name).write_bytes(damaged)
            message = message_of(folder)
            assert message is not None, (name, number)
            assert str(folder) in message
            assert "\n" not in message
            assert len(message) < 600


def test_a_file_of_another_model_of_the_same_shape_is_named(saved: Path, tmp_path: Path) -> None:
    other = tmp_path / "other"
    model = JointModel.from_pretrained(saved)
    model.encoder.word_dropout /= 2
    tiny.shake(model)
    model.labels["pos"] = type(model.labels["pos"])(model.labels["pos"].names[::-1])
    model.save(other)
    JointModel.from_pretrained(other)
    differing = [name for name in names(saved) if (saved / name).read_bytes() != (other / name).read_bytes()]
    assert {"labels.json", "encoder.json", "model.safetensors", "decoders.safetensors"} <= set(differing)
    for name in differing:
        folder = tmp_path / name
        shutil.copytree(saved, folder)
        shutil.copy(other / name, folder / name)
        message = message_of(folder)
        assert "is not what was saved with this model (model.json): put it back" in str(message)


@pytest.mark.parametrize(("broken", "said"), [(1, "1 parameter in all"), (2, "2 parameters in all")])
def test_parameters_that_are_not_finite_are_counted(
    broken: int, said: str, saved: Path, tmp_path: Path
) -> None:
    model = JointModel.from_pretrained(saved)
    for parameter in list(model.decoders.parameters())[:broken]:
        parameter.data.fill_(torch.nan)
    model.save(tmp_path / "model")
    assert said in str(message_of(tmp_path / "model"))


@pytest.mark.parametrize("left", [None, "{}"])
def test_an_encoder_without_its_tokenizers_settings_says_so(left, tiny_encoder, tmp_path) -> None:
    assert Encoder.from_pretrained(str(tiny_encoder)).note is None
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_encoder, folder)
    path = folder / "tokenizer_config.json"
    path.unlink() if left is None else path.write_text(left)
    note = Encoder.from_pretrained(str(folder)).note
    state = "missing" if left is None else "empty"
    assert str(note).startswith(f"{path} is {state}: the tokenizer has its family's settings")


@pytest.mark.parametrize(
    ("file", "old", "new"),
    [
        ("model.json", '"dep"', '"depp"'),
        ("model.json", '"dropout"', '"dropuot"'),
        ("model.json", '"arc_dim": ', '"arc_dim": 1'),
        ("labels.json", '"pos"', '"poss"'),
        ("encoder.json", '"pooling": "mean"', '"pooling": "median"'),
        ("config.json", '"hidden_size": 32', '"hidden_size": 64'),
        ("config.json", f'"num_hidden_layers": {tiny.LAYERS}', f'"num_hidden_layers": {tiny.LAYERS - 1}'),
        ("config.json", f'"num_hidden_layers": {tiny.LAYERS}', f'"num_hidden_layers": {tiny.LAYERS + 1}'),
        ("config.json", '"model_type": "bert"', '"model_type": "unheard-of"'),
    ],
)
def test_changed_settings(saved: Path, tmp_path: Path, file: str, old: str, new: str) -> None:
    folder = tmp_path / "model"
    shutil.copytree(saved, folder)
    text = (folder / file).read_text()
    assert old in text
    (folder / file).write_text(text.replace(old, new, 1))
    json.loads((folder / file).read_text())
    message = message_of(folder)
    assert message is not None
    assert str(folder) in message
    assert "\n" not in message


@pytest.mark.parametrize("groups", [1, 4])
def test_weights_of_another_number_of_groups_are_named(groups: int, tmp_path: Path) -> None:
    encoder = tiny.encoder("llama")
    encoder.transformer.save_pretrained(tmp_path)
    encoder.tokenizer.tokenizer.save_pretrained(tmp_path)
    settings = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**settings, "num_key_value_heads": groups}))
    message = rf"first at layers\.0\.self_attn\.k_proj\.weight is \(16, 32\), not \({8 * groups}, 32\)\)"
    with pytest.raises(InputError, match=message):
        Encoder.from_pretrained(str(tmp_path))


def test_an_encoder_from_elsewhere_may_have_a_head_but_no_further_layers(tmp_path: Path) -> None:
    encoder = tiny.encoder("bert")
    pretrained = BertForMaskedLM(encoder.transformer.config)
    pretrained.save_pretrained(tmp_path)
    encoder.tokenizer.tokenizer.save_pretrained(tmp_path)
    Encoder.from_pretrained(str(tmp_path))
    path = tmp_path / "config.json"
    path.write_text(
        path.read_text().replace(
            f'"num_hidden_layers": {tiny.LAYERS}', f'"num_hidden_layers": {tiny.LAYERS - 1}'
        )
    )
    with pytest.raises(
        InputError, match=rf"do not fit its config\.json \(first at .*layer\.{tiny.LAYERS - 1}"
    ):
        Encoder.from_pretrained(str(tmp_path))
