"""Translation models from scratch whose heads share components: run, measured, cut, resumed, and refused."""

from __future__ import annotations

import dataclasses
import io
import sys
from pathlib import Path

import polars as pl
import pytest
import torch
from rich.console import Console
from transformers import BartConfig, BartModel

from mtl.collaborative.attention import CollaborativeAttention
from mtl.collaborative.sharing import recorded_components, start_as_configured, start_collaborative
from mtl.commands.main import main
from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.attentions import attentions
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.training.check import check_settings
from mtl.training.train import train
from mtl.translation.config import Seq2SeqConfig
from tests.mtl.translation import digits

SHARED = Seq2SeqConfig("marian", 1, None, 2, 16, 16, 0.0, 300, components=6)
QUIET = Console(quiet=True)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A run with masks, that has learned a little."""
    folder = tmp_path_factory.mktemp("shared")
    printed = io.StringIO()
    config = digits.config(folder, sentences=300, epochs=3, pruning="dynamic", seq2seq=SHARED)
    made = train(config, console=Console(file=printed, width=200))
    # Three attentions of 2 x 16 x 6 weights, 2 mixing vectors of 6 and 2 content biases of 16.
    assert f"{3 * (2 * 16 * 6 + 2 * 6 + 2 * 16)} of them in queries and keys" in printed.getvalue()
    return made


def test_the_run_records_what_is_shared_and_loads(run):
    model = JointModel.from_pretrained(run.folder)
    transformer = model.encoder.transformer
    assert recorded_components(transformer.config) == {0: 6, 1: 6, 2: 6}
    module = transformer.get_submodule("model.decoder.layers.0.encoder_attn")
    assert module.mixing.shape == (2, 6)
    # The zeros of the start have been trained.
    assert (module.mixing != 0).all()
    assert run.config()["seq2seq"]["components"] == 6


@pytest.mark.slow
def test_it_is_translated_measured_and_cut(run, tmp_path, monkeypatch, capsys):
    folder = str(run.folder)
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"1 2\n7\n")))
    assert main(["translate", folder]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 2
    assert main(["importance", folder, "--split=dev", "--sentences=4"]) == 0
    assert main(["ablate", folder, "--split=dev", "--sentences=4"]) == 0
    kinds = pl.read_parquet(run.folder / "heads.parquet").filter(measure="ablation")["attention"]
    assert kinds.value_counts().sort("attention").rows() == [("cross", 2), ("decoder", 2), ("encoder", 2)]
    assert main(["prune", folder, f"--out={tmp_path / 'cut'}"]) == 0
    cut = Run.open(tmp_path / "cut")
    scores = cut.metrics()["dev"]["translate"]
    assert scores == pytest.approx(run.metrics()["dev"]["translate"], rel=1e-4)
    mixed = tmp_path / "mixing.csv"
    assert main(["energy", folder, f"--mixing={mixed}"]) == 0
    assert pl.read_csv(mixed).height == 3 * 2 * 6
    capsys.readouterr()
    assert main(["collaborate", folder, "--dim=4", f"--out={tmp_path / 'again'}"]) == 2
    assert "translates, and mtl collaborate is for encoders" in capsys.readouterr().err


@pytest.mark.slow
def test_heads_of_some_kinds_share_and_others_stay_as_they_are(tmp_path):
    printed, by_kind = io.StringIO(), {"encoder": 4, "cross": 6}
    settings = dataclasses.replace(SHARED, components=by_kind)
    config = digits.config(tmp_path, seq2seq=settings)
    run = train(config, console=Console(file=printed, width=200))
    shared = sum(2 * 16 * number + 2 * number + 2 * 16 for number in by_kind.values())
    assert f"{shared + 2 * (16 * 16 + 16)} of them in queries and keys" in printed.getvalue()
    again = digits.config(tmp_path, name="after", seq2seq=Seq2SeqConfig(), init_from=str(run.folder))
    after = train(again, console=QUIET)
    assert after.config()["seq2seq"]["components"] == by_kind
    for folder in (run.folder, after.folder):
        model = JointModel.from_pretrained(folder)
        assert recorded_components(model.encoder.transformer.config) == {0: 4, 2: 6}
        found = attentions(model.encoder.transformer, model.encoder.family)
        modules = [attention.module for attention in found]
        assert [isinstance(module, CollaborativeAttention) for module in modules] == [True, False, True]
        assert [module.mixing.shape for module in modules[::2]] == [(2, 4), (2, 6)]
        decoded = model.state_dict()["encoder.transformer.model.decoder.layers.0.self_attn.q_proj.weight"]
        assert decoded.shape == (16, 16)
    with pytest.raises(InputError, match=r"the model has no attention of kind self: it has e"):
        start_collaborative(model.encoder.transformer, {"self": 2}, 0.1)


def test_another_run_starts_from_it(run, tmp_path):
    config = digits.config(tmp_path, seq2seq=Seq2SeqConfig(), init_from=str(run.folder))
    after = train(dataclasses.replace(config, name="after"), console=QUIET)
    model = JointModel.from_pretrained(after.folder)
    assert recorded_components(model.encoder.transformer.config) == {0: 6, 1: 6, 2: 6}
    assert after.config()["seq2seq"]["components"] == 6


def test_other_components_than_those_of_the_first_run_are_not_ignored(tmp_path):
    run = train(digits.config(tmp_path), console=QUIET)
    again = digits.config(
        tmp_path, name="again", seq2seq=Seq2SeqConfig(components=6), init_from=str(run.folder)
    )
    with pytest.raises(InputError, match=r"seq2seq.components=6, but .* was trained with null"):
        train(again, console=QUIET)


@pytest.mark.slow
def test_a_mixing_matrix_of_blocks_is_not_learned(tmp_path):
    blocks = dataclasses.replace(SHARED, mixing="blocks")
    run = train(digits.config(tmp_path, seq2seq=blocks, pruning="dynamic"), console=QUIET)
    after = train(
        digits.config(tmp_path, name="after", seq2seq=Seq2SeqConfig(), init_from=str(run.folder)),
        console=QUIET,
    )
    assert main(["prune", str(run.folder), f"--out={tmp_path / 'cut'}"]) == 0
    start = torch.tensor([[1.0, 1, 1, 0, 0, 0], [0, 0, 0, 1, 1, 1]])
    for folder in (run.folder, after.folder, tmp_path / "cut"):
        model = JointModel.from_pretrained(folder)
        shared = [module for module in model.modules() if isinstance(module, CollaborativeAttention)]
        assert shared
        for module in shared:
            assert all(any(torch.equal(row, other) for other in start) for row in module.mixing)
            assert not module.mixing.requires_grad
            assert module.content.requires_grad
    assert after.config()["seq2seq"]["mixing"] == "blocks"


def test_heads_of_a_mixing_matrix_of_blocks_are_concatenated():
    """Each head's scores are those of its own columns of queries and keys, as without sharing."""
    config = BartConfig(
        d_model=16, encoder_layers=1, decoder_layers=1, encoder_attention_heads=2, decoder_attention_heads=2,
        encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=20, max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BartModel(config).eval()
    start_collaborative(model, 6, 0.5, learned=False)
    module = model.get_submodule("encoder.layers.0.self_attn")
    words = torch.randn(1, 5, 16)
    with torch.no_grad():
        queries, keys = words @ module.q_proj.weight.T, words @ module.k_proj.weight.T
        _, probabilities = module(words)
        for head, columns in enumerate((slice(0, 3), slice(3, 6))):
            scores = queries[0, :, columns] @ keys[0, :, columns].T / 8**0.5
            assert torch.allclose(probabilities[0, head], scores.softmax(-1), atol=1e-6)


@pytest.mark.parametrize("mixing", ["learned", "ones", "normal"])
def test_mixing_vectors_are_learned_from_the_start_that_is_named(mixing) -> None:
    config = BartConfig(
        d_model=256, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4, encoder_ffn_dim=8, decoder_ffn_dim=8, vocab_size=20,
        max_position_embeddings=8,
    )  # fmt: skip
    torch.manual_seed(0)
    model = BartModel(config).eval()
    start_as_configured(model, dataclasses.replace(SHARED, width=256, components=256, mixing=mixing))
    module = model.get_submodule("encoder.layers.0.self_attn")
    vectors, (_, probabilities) = module.mixing.detach(), module(torch.randn(1, 5, 256))
    assert module.mixing.requires_grad
    alike = bool((probabilities - probabilities[:, :1]).abs().max() < 1e-6)
    assert alike == (mixing == "ones")
    if mixing == "normal":
        assert vectors.mean().abs() < 0.03
        assert vectors.std().item() == pytest.approx(0.2, rel=0.1)
    else:
        assert vectors.unique().tolist() == ([1] if mixing == "ones" else [0, 1])
    # The start of components is the same for every start of the vectors.
    assert module.q_proj.weight.std().item() == pytest.approx(256**-0.5, rel=0.1)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Seq2SeqConfig("marian", components=0), "seq2seq.components=0: use a number from 1 to"),
        (Seq2SeqConfig("marian", width=64, components=65), "components=65: use 1 to 64 components"),
        (Seq2SeqConfig("marian", components={}), "seq2seq.components is empty: use one number, or one"),
        (
            Seq2SeqConfig("marian", width=64, components={"cross": 65}),
            "cross=65: use 1 to 64 comp",
        ),
        (Seq2SeqConfig("t5", components=64), "the heads of t5 cannot share query and key components: the"),
        (Seq2SeqConfig(components=64), "components=64 is for a model from scratch: use seq2seq.arch"),
        (Seq2SeqConfig("mbart", mixing="blocks"), "seq2seq.mixing=blocks is for heads that share components"),
    ],
)
def test_components_that_cannot_be_are_refused_in_one_line(settings, message):
    with pytest.raises(InputError, match=message) as refused:
        check_settings(TrainConfig(tasks=("translate",), seq2seq=settings))
    assert "\n" not in str(refused.value)


def test_components_are_for_translation():
    with pytest.raises(InputError, match="is for translations, and tasks is pos: 'mtl collaborate'"):
        check_settings(TrainConfig(tasks=("pos",), seq2seq=Seq2SeqConfig(components=6)))
    with pytest.raises(InputError, match=r"unknown key 'seq2seq.components.self'"):
        configured("mtl train", TrainConfig, ["--tasks=translate", "--seq2seq.components={self: 6}"])


@pytest.mark.slow
def test_the_same_seed_gives_the_same_start(tmp_path: Path):
    files = digits.config(tmp_path, seq2seq=SHARED)
    weights = []
    for name in ("one", "other"):
        run = train(dataclasses.replace(files, name=name), console=QUIET)
        weights.append(JointModel.from_pretrained(run.folder).state_dict())
    assert all(torch.equal(value, weights[1][key]) for key, value in weights[0].items())
