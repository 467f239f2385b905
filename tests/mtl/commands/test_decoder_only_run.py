"""A decoder-only model from its folder to the report: train, probe, measure, ablate, prune."""

from __future__ import annotations

import json
from pathlib import Path

import polars as pl
import pytest
import torch
from tokenizers import ByteLevelBPETokenizer
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from mtl.commands.command_table import MEASURES
from mtl.commands.main import main
from mtl.corpora.readers import read_sentences
from mtl.models.joint import JointModel
from mtl.probes.measures.groups import GROUPS
from mtl.runs.folder.run import Run
from tests.mtl import tiny
from tests.mtl.training.test_sentence_tasks import options, planted


@pytest.fixture(scope="module")
def qwen(tmp_path_factory: pytest.TempPathFactory, toy: Path) -> Path:
    """A folder as a hub would give it: weights for generating text, byte-level subwords, no mask token."""
    folder = tmp_path_factory.mktemp("qwen")
    pieces = ByteLevelBPETokenizer()
    texts = (" ".join(sentence.words) for sentence in read_sentences(toy / "train.jsonl", "jsonl"))
    pieces.train_from_iterator(texts, vocab_size=320, special_tokens=["<|endoftext|>"], show_progress=False)
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=pieces._tokenizer, eos_token="<|endoftext|>", pad_token="<|endoftext|>"
    )
    torch.manual_seed(0)
    config = tiny.config("qwen2", vocab_size=len(tokenizer), num_hidden_layers=2, max_position_embeddings=256)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    assert AutoConfig.from_pretrained(folder).architectures == ["Qwen2ForCausalLM"]
    assert AutoTokenizer.from_pretrained(folder).mask_token is None
    return folder


@pytest.mark.slow
def test_from_training_to_the_cut_model(
    qwen: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = [
        "train", f"--encoder.name={qwen}", f"--corpus.path={toy}", "--tasks=pos,dep",
        "--max_epochs=1", "--batch.sentences=16", f"--runs={tmp_path}", "--name=run", "--pruning=dynamic",
        "--gates.penalty=0.1", "--trainer.accelerator=cpu", "--trainer.precision=bf16-mixed",
    ]  # fmt: skip
    assert main(words) == 0
    assert "encoder.word_dropout is 0: the encoder's tokenizer has no mask token" in capsys.readouterr().out
    model = JointModel.from_pretrained(run)
    assert (model.encoder.causal, model.encoder.pooling) == (True, "last")
    assert model.encoder.tokenizer.prefix == model.encoder.tokenizer.suffix == []

    assert main(["probe", str(run)]) == 0
    heads = pl.read_parquet(run / "heads.parquet")
    assert "root+words, none ahead" in set(heads["choice"])
    ahead = heads.filter((pl.col("measure") == "positional") & pl.col("label").str.starts_with("+"))
    assert ahead["value"].max() == 0
    limits = heads.filter(measure="syntactic_possible")
    found = heads.filter(measure="syntactic").join(limits, on="label", suffix="_limit")
    assert (found["value"] <= found["value_limit"]).all()

    for command in (*MEASURES, "ablate"):
        assert main([command, str(run), "--split=dev", "--sentences=8"]) == 0, command
    heads = pl.read_parquet(run / "heads.parquet")
    assert {"ablation", *(GROUPS[group].measures[0].name for group in MEASURES)} <= set(heads["measure"])
    assert main(["prune", str(run), f"--out={tmp_path / 'cut'}"]) == 0
    assert main(["evaluate", str(tmp_path / "cut"), "--split=dev"]) == 0
    assert main(["report", str(tmp_path)]) == 0


@pytest.mark.slow
def test_sentences_and_pairs_are_classified(qwen: Path, tmp_path: Path) -> None:
    """CoLA's label follows from the first word, which the last piece has to look back to."""
    planted(tmp_path, 0, 200)
    words = options(tmp_path, qwen, "cola", "mrpc")
    assert main([*words, f"--runs={tmp_path}", "--name=run", "--max_epochs=8"]) == 0
    run = Run.open(tmp_path / "run")
    assert run.metrics()["test"]["cola"]["matthews"] > 90
    assert main(["evaluate", str(run.folder), f"--json_out={tmp_path / 'scores.json'}"]) == 0
    again = json.loads((tmp_path / "scores.json").read_text())["test"]
    for task in ("cola", "mrpc"):
        assert again[task] == pytest.approx(run.metrics()["test"][task])


@pytest.mark.slow
def test_the_configuration_of_five_tasks(qwen: Path, toy: Path, tmp_path: Path) -> None:
    words = ["train", "configs/joint.yaml", f"--encoder.name={qwen}", f"--corpus.path={toy}"]
    assert main([*words, "--max_epochs=1", f"--runs={tmp_path}", "--name=run"]) == 0


@pytest.mark.slow
def test_gates_by_group_cut_whole_groups(
    qwen: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [
        "train", f"--encoder.name={qwen}", f"--corpus.path={toy}", "--tasks=pos", "--max_epochs=2",
        f"--runs={tmp_path}", "--pruning=dynamic", "--gates.unit=group", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main([*words, "--name=run", "--gates.target_open=4"]) == 0
    gates = pl.read_parquet(tmp_path / "run" / "gates.parquet")
    assert set(gates["unit"]) == {"group"}
    last = gates.filter(pl.col("step") == pl.col("step").max()).sort("layer", "head")
    by_group = last.with_columns(group=pl.col("head") // 2).group_by("layer", "group")
    assert set(by_group.agg(pl.col("open").sum())["open"]) <= {0, 2}
    assert last["open"].sum() == 4
    assert main(["prune", str(tmp_path / "run"), f"--out={tmp_path / 'cut'}"]) == 0
    transformer = JointModel.from_pretrained(tmp_path / "cut").encoder.transformer
    kept = [layer.self_attn for layer in transformer.layers if hasattr(layer.self_attn, "k_proj")]
    assert sum(attention.k_proj.out_features for attention in kept) == 2 * tiny.HEAD_DIM
    assert "keys and values: 4 -> 2" in capsys.readouterr().out.splitlines()
    assert main([*words, "--name=odd", "--gates.target_open=3"]) == 2
    assert "heads go by groups of 2" in " ".join(capsys.readouterr().err.split())
