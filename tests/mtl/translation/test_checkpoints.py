"""`mtl train` on encoder-decoder checkpoints in a folder, of one pair of languages and of many."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from transformers import MBart50Tokenizer, NllbTokenizer, PreTrainedTokenizerBase

from mtl.commands.main import main
from mtl.models.joint import JointModel
from mtl.runs.folder.run import Run
from mtl.translation.pieces import train_vocabulary
from mtl.translation.seq2seq import Seq2Seq
from tests.mtl import tiny
from tests.mtl.translation import digits

LETTERS = ("▁", *"0123456789", *sorted(set("".join(digits.NAMES))), ".")
SPECIALS = ("<s>", "<pad>", "</s>", "<unk>")
SLOW = pytest.mark.slow


def of_digits() -> PreTrainedTokenizerBase:
    return train_vocabulary([text for digit in "0123456789" for text in digits.pair(digit)], 300, 40)


def mbart50() -> PreTrainedTokenizerBase:
    return MBart50Tokenizer(vocab=[(piece, 0.0) for piece in (*SPECIALS, *LETTERS)])


def nllb() -> PreTrainedTokenizerBase:
    vocabulary = {piece: number for number, piece in enumerate((*SPECIALS, *LETTERS))}
    return NllbTokenizer(vocab=vocabulary, merges=[])


def checkpoint(architecture: str, tokenizer: PreTrainedTokenizerBase, folder: Path) -> Path:
    """A random model of the architecture, with its tokenizer, as `transformers` saves them."""
    start = tokenizer.pad_token_id if architecture == "t5" else tokenizer.eos_token_id
    transformer = tiny.translator(
        architecture, vocab_size=len(tokenizer), pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id, decoder_start_token_id=start,
    )  # fmt: skip
    transformer.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def words(folder: Path, encoder: Path, source: str, target: str) -> list[str]:
    """A training of two epochs on 24 sentences."""
    files = {split: digits.write(folder, number, seed) for split, number, seed in
             (("train", 24, 1), ("dev", 4, 2), ("test", 4, 3))}  # fmt: skip
    return [
        "train", f"--encoder.name={encoder}", "--tasks=translate", "--corpus.path=null",
        "--corpus.translate.format=parallel",
        *(f"--corpus.translate.{split}={pair}" for split, pair in files.items()),
        f"--translate.source={source}", f"--translate.target={target}", "--translate.beam=2",
        "--max_epochs=2", "--name=run", f"--runs={folder}", "--trainer.accelerator=cpu",
        "--pruning=dynamic", "--gates.target_open=0.5",
    ]  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("architecture", "tokenizer", "source", "target"),
    [
        pytest.param("bart", of_digits, "digits", "names", marks=SLOW),
        pytest.param("t5", of_digits, "digits", "names", marks=SLOW),
        ("mbart", mbart50, "en_XX", "de_DE"),
        pytest.param("m2m_100", nllb, "eng_Latn", "deu_Latn", marks=SLOW),
    ],
)
def test_a_checkpoint_is_trained_on_and_translates(architecture, tokenizer, source, target, tmp_path, capsys):
    folder = checkpoint(architecture, tokenizer(), tmp_path / "checkpoint")
    assert main(words(tmp_path, folder, source, target)) == 0
    run = Run.open(tmp_path / "run")
    assert 0 <= run.metrics()["test"]["translate"]["bleu"] <= 100
    trained, before = (
        JointModel.from_pretrained(run.model),
        Seq2Seq.from_pretrained(str(folder), source, target),
    )
    assert isinstance(trained.encoder, Seq2Seq)
    assert (trained.encoder.source, trained.encoder.target) == (source, target)
    assert type(trained.encoder.tokenizer.tokenizer) is type(before.tokenizer.tokenizer)
    moved = [
        name for name, weights in before.transformer.named_parameters()
        if not weights.equal(trained.encoder.transformer.get_parameter(name))
    ]  # fmt: skip
    for kind in ("encoder.", "decoder."):
        assert any(kind in name for name in moved)
    capsys.readouterr()
    assert main(["evaluate", str(run.folder)]) == 0
    assert f"{run.metrics()['test']['translate']['bleu']:.2f}" in capsys.readouterr().out


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The message of a command that is refused, in one line: the console's width breaks it."""
    assert main(command) == 2
    message = " ".join(capsys.readouterr().err.split())
    assert "Traceback" not in message
    return message


@pytest.mark.parametrize(("tokenizer", "code"), [(mbart50, "de_DE"), (nllb, "deu_Latn")])
def test_a_language_that_a_checkpoint_does_not_know_is_one_line_before_training(
    tokenizer, code, tmp_path, capsys
):
    folder = checkpoint("mbart", tokenizer(), tmp_path / "checkpoint")
    message = refused(words(tmp_path, folder, code, "de"), capsys)
    assert "translate.target=de:" in message
    assert code in message
    assert not (tmp_path / "run" / "model").exists()


def test_files_of_unequal_length_are_refused(tmp_path, capsys):
    folder = checkpoint("bart", of_digits(), tmp_path / "checkpoint")
    command = words(tmp_path, folder, "digits", "names")
    with (tmp_path / "2.names").open("a") as file:
        file.write("eins.\n")
    message = refused(command, capsys)
    assert "2.digits" in message
    assert "4 lines" in message
    assert "5" in message


def test_a_pair_given_the_wrong_way_round_is_refused(tmp_path, capsys):
    folder = checkpoint("marian", of_digits(), tmp_path / "checkpoint")
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(
        json.dumps({**settings, "source_lang": "digits", "target_lang": "names"})
    )
    message = refused(words(tmp_path, folder, "names", "digits"), capsys)
    assert "translates from digits to names, the other way round: use translate.source=digits" in message


def test_models_of_the_other_shape_are_refused(tiny_encoder, toy, tmp_path, capsys):
    message = refused(words(tmp_path, tiny_encoder, "digits", "names"), capsys)
    assert "has no decoder that reads an encoder, and cannot translate: use an encoder-decoder" in message
    folder = checkpoint("bart", of_digits(), tmp_path / "checkpoint")
    tagging = [
        "train",
        f"--encoder.name={folder}",
        f"--corpus.path={toy}",
        "--tasks=pos",
        f"--runs={tmp_path}",
    ]
    assert "has no vector for each word of one text" in refused([*tagging, "--name=x"], capsys)


def test_groups_that_do_not_divide_the_heads_are_refused(toy, tmp_path, capsys):
    encoder, folder = tiny.encoder("llama"), tmp_path / "llama"
    encoder.transformer.save_pretrained(folder)
    encoder.tokenizer.tokenizer.save_pretrained(folder)
    settings = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**settings, "num_key_value_heads": 3}))
    tagging = [
        "train",
        f"--encoder.name={folder}",
        f"--corpus.path={toy}",
        "--tasks=pos",
        f"--runs={tmp_path}",
    ]
    assert "3 groups of keys and values do not divide 4 heads" in refused([*tagging, "--name=x"], capsys)
