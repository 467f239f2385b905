"""Trainings, of cut models and others, in which only parts of the attention are trained."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2Model

from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.curves.keys import modules_of
from mtl.errors import InputError
from mtl.heads.families import family_of
from mtl.runs.folder.run import Run
from mtl.training.check import check_settings
from tests.mtl.analysis import worth
from tests.mtl.curves.test_curve_command import folder_of, table
from tests.mtl.stopped import weights

ATTENTION = {"values": ".attention.self.value.", "output": ".attention.output.dense."}


@pytest.mark.slow
def test_only_the_parts_that_are_named_are_trained_after_a_cut(tmp_path: Path, capsys) -> None:
    write_toy(tmp_path / "corpus", 12, 8, 8, seed=1)
    model = worth.joint_model(tmp_path / "corpus", ("pos",), dtype=torch.float32)
    run = folder_of(model, tmp_path / "corpus", tmp_path / "run")
    words = ["curve", str(run), "--by=random", "--draws=1", "--keep=[6]", "--accelerator=cpu"]
    assert main([*words, "--train=[values,output]"]) == 2
    assert "--train has no effect without --epochs" in capsys.readouterr().err
    for parts in (["values", "output"], ["output", "decoder"]):
        assert main([*words, "--epochs=1", f"--train=[{','.join(parts)}]"]) == 0
        rows = table(run).filter(trained_epochs=1).sort("kept")
        assert rows["kept"].to_list() == [6, 12]
        for source in rows["source"]:
            trained = Run.open(Path(source))
            before, after = weights(Run.open(Path(trained.config()["init_from"]))), weights(trained)
            assert trained.folder.name.endswith("-".join(["1-epochs", *parts]))
            changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
            inside = [ATTENTION[part] for part in parts if part in ATTENTION]
            expected = {name for name in after if any(part in name for part in inside)}
            if "decoder" in parts:
                assert any("decoders" in name for name in changed)
                changed = {name for name in changed if "decoders" not in name}
            assert changed == expected
            assert len(expected) >= 2 * len(inside)


def test_what_cannot_be_trained_alone_is_refused() -> None:
    model = GPT2Model(GPT2Config(n_embd=8, n_layer=1, n_head=2, vocab_size=9, n_positions=8))
    encoder: Any = SimpleNamespace(transformer=model, family=family_of(model))
    assert list(modules_of(encoder, ["output"])) == [model.h[0].attn.c_proj]
    with pytest.raises(InputError, match="so that values cannot be trained alone: train output"):
        list(modules_of(encoder, ["values"]))
    config = configured("mtl train", TrainConfig, ["--tasks=pos", "--trained_parts=[keys,values]"])
    frozen = dataclasses.replace(config, encoder=dataclasses.replace(config.encoder, freeze="all"))
    with pytest.raises(InputError, match=r"trained_parts=keys,values and encoder.freeze=all both say what"):
        check_settings(frozen)
    scratch = ["--tasks=translate", "--seq2seq.architecture=bart", "--trained_parts=[keys]"]
    with pytest.raises(InputError, match="trained_parts=keys is for trained models, and the run starts from"):
        check_settings(configured("mtl train", TrainConfig, scratch))
