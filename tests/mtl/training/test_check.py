"""Settings that cannot be are refused in one line before anything is read.
Targets and penalties by kind of attention that cannot be are refused before anything is read.
Corpora and encoders that runs cannot use are refused, also by a dry run that only looks at them.
"""

from __future__ import annotations

import dataclasses
import io
import math
from pathlib import Path
from typing import get_args

import pytest
from huggingface_hub.errors import LocalEntryNotFoundError
from rich.console import Console
from transformers import T5Config

from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.config.keys import hints_of, without_null
from mtl.config.parse import changed, out_of_range, range_of
from mtl.config.schema import (
    COMPARING,
    BalancerConfig,
    BatchConfig,
    CorpusConfig,
    EncoderConfig,
    Files,
    GatesConfig,
    TrainConfig,
    TrainerConfig,
)
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.errors import InputError
from mtl.heads.families import heads_by_kind
from mtl.models.found import check_encoder
from mtl.models.inputs import InputCache
from mtl.tasks.task import Range
from mtl.training import balancers
from mtl.training.check import check_inputs, check_settings, check_target, said_of_unused
from mtl.training.train import train
from tests.kit.absent import absent_features, needs


@pytest.mark.parametrize(
    "word",
    [
        "--optimizer.encoder_lr=-1", "--optimizer.encoder_lr=1e6", "--optimizer.clip=-1",
        "--optimizer.weight_decay=-1", "--optimizer.warmup=2", "--optimizer.warmup=nan", "--dep.arc_dim=0",
        "--dep.arc_dim=100000000", "--dep.dropout=1.0", "--dep.dropout=1.5", "--dep.dropout=-0.1",
        "--encoder.word_dropout=1", "--patience=0", "--trainer.checkpoint_minutes=-1", "--trainer.threads=0",
        "--max_epochs=100000000000000000000000", "--max_epochs=0", "--gates.lr=0", "--batch.temperature=0",
        "--gates.target_open=0", "--gates.target_open=3.5", "--gates.penalty=inf", "--seed=-1",
        "--batch.sentences=0", "--balancer.weights.dep=-1",
        "--optimizer.accumulate=0", "--srl.dim=0", "--gates.temperature=0", "--trainer.devices=0",
    ],
)  # fmt: skip
def test_a_number_out_of_range_is_refused_by_its_key_before_anything_is_read(word, capsys, tmp_path):
    words = ["train", "--corpus.path=nowhere", "--encoder.name=nowhere", f"--runs={tmp_path}", "--tasks=dep"]
    assert main([*words, word]) == 2
    errors = capsys.readouterr().err
    key = word[2:].partition("=")[0]
    assert errors.startswith((f"mtl: {key}=", f"mtl: {key}: "))
    assert errors.count("\n") == 1
    assert len(errors) < 150
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["../../evil", "/abs/path", "", "a\nb", "x" * 300, "lr/2"])
def test_a_runs_name_stays_in_its_folder(name, capsys, tmp_path):
    assert main(["train", f"--name={name}", f"--runs={tmp_path / 'runs'}", "--corpus.path=nowhere"]) == 2
    errors = capsys.readouterr().err
    assert errors.startswith("mtl: name=")
    assert errors.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_wrong_values_are_reported_before_the_run_that_is_there(capsys, tmp_path):
    (tmp_path / "x").mkdir()
    (tmp_path / "x" / "config.yaml").write_text("seed: 5\n")
    words = ["train", "--name=x", f"--runs={tmp_path}", "--tasks=dep", "--dep.dropout=1.5"]
    assert main([*words, "--overwrite"]) == 2
    assert "dep.dropout=1.5" in capsys.readouterr().err
    assert (tmp_path / "x" / "config.yaml").exists()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pruning": "dynamic", "gates.target_open": math.inf}, "gates.target_open=inf: use a number"),
        ({"pruning": "dynamic", "gates.target_open": {"self": math.inf}}, "gates.target_open.self=inf: use"),
    ],
)  # fmt: skip
def test_rules_on_several_settings_are_for_values_in_their_ranges(changes, message):
    config = changed(TrainConfig, plain(dataclasses.asdict(TrainConfig())), changes, "a block's set")
    with pytest.raises(InputError, match=message):
        check_settings(config)


def test_tasks_are_given_once():
    with pytest.raises(InputError, match="dep,dep names a task twice"):
        check_settings(TrainConfig(tasks=("dep", "dep")))


def test_a_gpu_that_is_not_there_and_heads_that_are_not_there_are_told_before_the_corpus_is_read(
    tiny_encoder, capsys, monkeypatch, tmp_path
):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    words = ["train", "--corpus.path=nowhere", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}"]
    assert main([*words, "--trainer.accelerator=gpu"]) == 2
    assert "sees no GPU" in capsys.readouterr().err
    assert main([*words, "--pruning=dynamic", "--gates.target_open=1000", "--trainer.accelerator=cpu"]) == 2
    assert "gates.target_open=1000: " in capsys.readouterr().err
    assert main([*words, "--encoder.name=minilm-l7", "--trainer.accelerator=cpu"]) == 2
    assert "no encoder 'minilm-l7'" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["bert-base-cased", "nobody/nothing"])
def test_a_hub_that_is_off_is_blamed_and_not_the_encoders_name(name, monkeypatch):
    def download(*_):
        raise LocalEntryNotFoundError("no connection")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    with pytest.raises(InputError, match=f"no encoder '{name}' here, and the hub, .* cannot be reached"):
        check_encoder(name)


def test_a_target_is_looked_at_only_where_masks_are_learned(tiny_encoder):
    config = TrainConfig()
    encoder = dataclasses.replace(config.encoder, name=str(tiny_encoder))
    gates = dataclasses.replace(config.gates, target_open=1000.0)
    check_target(dataclasses.replace(config, encoder=encoder, gates=gates))
    with pytest.raises(InputError, match=r"gates\.target_open=1000: "):
        check_target(dataclasses.replace(config, encoder=encoder, gates=gates, pruning="dynamic"))


def test_the_defaults_are_in_range_and_every_number_has_a_range():
    assert list(out_of_range(TrainConfig())) == []
    assert [key for key, found in _numbers(TrainConfig) if found is None] == []
    assert len(list(_numbers(TrainConfig))) > 60 or absent_features()


def _numbers(kind, prefix=""):
    """The dotted keys of the numbers in a configuration, with their ranges."""
    for name, hint in hints_of(kind).items():
        inner, _ = without_null(hint)
        if dataclasses.is_dataclass(inner):
            yield from _numbers(inner, f"{prefix}{name}.")
        elif {int, float} & {inner, *get_args(inner)} and name != "columns":
            yield f"{prefix}{name}", range_of(kind, name)


def test_ends_of_a_range_belong_to_it_unless_open():
    assert 0 in Range(0, 1)
    assert 0 not in Range(0, 1, open_low=True)
    assert 1 not in Range(0, 1, open_high=True)
    assert str(Range(0, 1, open_high=True)) == "from 0 to below 1"
    assert str(Range(0, 1, open_low=True, open_high=True)) == "between 0 and 1"
    assert Range(1, math.inf).wanted() == "at least 1"
    assert Range(0, math.inf).wanted() == "0 or more"
    assert Range(0, math.inf, open_low=True).wanted() == "a number above 0"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["compare", "a", "--against=b", "--level=1"], "--level=1.0: use a number between 0 and 1"),
        (["compare", "a", "--against=b", "--draws=99"], "--draws=99: use at least 100"),
        pytest.param(
            ["curve", "a", "--targets=0.5,-1"],
            "--targets[1]=-1.0: use a number above 0",
            marks=needs("curves"),
        ),
        (["compare", "a", "--against=b", "--level=.nan"], "--level=nan: use a number between 0 and 1"),
        (["importance", "a", "--top=-1"], "--top=-1: use 0 or more"),
        pytest.param(
            ["study", "a", "--jobs=-1"], "--jobs=-1: use a number from 0 to 1,000,000", marks=needs("study")
        ),
    ],
)
def test_an_option_out_of_its_range_is_refused_before_anything_is_read(words, message, capsys):
    assert main(words) == 2
    assert capsys.readouterr().err == f"mtl: {message}\n"


def test_balancers_that_compare_gradients_are_known_as_such():
    kinds = (
        balancers.GradNorm, balancers.PCGrad, balancers.TorchJD, balancers.Uncertainty,
        balancers.MovingAverage,
    )  # fmt: skip
    comparing = {kind.__name__.lower() for kind in kinds if kind.gradients != "none"}
    assert comparing == set(COMPARING)
    config = TrainConfig(balancer=BalancerConfig(name="gradnorm"), batch=BatchConfig(mode="separate"))
    with pytest.raises(InputError, match="gradnorm compares the tasks' gradients"):
        check_settings(config)


def test_a_balancer_of_a_library_that_is_not_there_is_refused(monkeypatch):
    config = TrainConfig(balancer=BalancerConfig(name="torchjd"))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: object())
    check_settings(config)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'mtl-heads\[torchjd\]'"):
        check_settings(config)


@pytest.mark.parametrize(
    "word", ["--corpus.path=none", "--batch.max_words=1", "--pruning=fixed --gates.masks=none.parquet"]
)
def test_a_run_that_is_refused_leaves_no_folder(word, toy, tiny_encoder, tmp_path, capsys):
    words = [f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", "--tasks=pos", *word.split()]
    assert main(["train", *words, f"--runs={tmp_path / 'runs' / 'in'}"]) == 2
    assert capsys.readouterr().err.count("\n") == 1
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("place", ["run", "run/model"])
def test_a_run_cannot_start_from_itself(place: str, tiny_encoder: Path, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    config = TrainConfig(
        name="run", runs=str(tmp_path), tasks=("pos",), init_from=str(tmp_path / "." / place), overwrite=True,
        encoder=EncoderConfig(name=str(tiny_encoder)), trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip
    with pytest.raises(InputError, match=r"run cannot start from itself \(--from\): use another --name$"):
        train(config)
    assert not [*(tmp_path / "run").iterdir()]


def test_an_encoder_has_one_kind(tiny_encoder):
    encoder = dataclasses.replace(TrainConfig().encoder, name=str(tiny_encoder))
    config = TrainConfig(tasks=("pos",), pruning="dynamic", encoder=encoder)
    with pytest.raises(InputError, match=r"gates\.target_open\.cross=2: the model has no .* it has self"):
        check_settings(dataclasses.replace(config, gates=GatesConfig(target_open={"cross": 2.0})))
    many = dataclasses.replace(config, gates=GatesConfig(target_open={"self": 1000.0}))
    check_settings(many)  # the encoder's configuration is not read yet
    with pytest.raises(InputError, match=r"gates\.target_open\.self=1000: .* there are only 12 heads"):
        check_target(many)
    floor = dataclasses.replace(config, gates=GatesConfig(at_least=2))  # a third of 12 heads in 3 layers
    check_settings(floor)
    with pytest.raises(InputError, match=r"gates\.at_least=2: 3 layers would keep 6 heads, .* target is 4:"):
        check_target(floor)
    check_target(dataclasses.replace(floor, gates=GatesConfig(at_least=2, target_open=6)))


def test_heads_are_counted_by_kind():
    config = T5Config(num_layers=3, num_decoder_layers=2, num_heads=4)
    assert heads_by_kind(config) == {"encoder": (3, 4), "decoder": (2, 4), "cross": (2, 4)}


@pytest.mark.parametrize(
    ("pruning", "gates", "named"),
    [
        ("none", GatesConfig(target_open=0.3, penalty=0.1), "gates.penalty, gates.target_open"),
        ("none", GatesConfig(masks="gates.parquet"), "gates.masks"),
        ("fixed", GatesConfig(masks="gates.parquet", scope="per_task", penalty=0.1), "gates.penalty"),
        ("fixed", GatesConfig(masks="gates.parquet", scope="per_task"), None),
        ("none", GatesConfig(at_least=1), "gates.at_least"),
        ("none", GatesConfig(), None),
        ("dynamic", GatesConfig(target_open=0.3), None),
        ("static", GatesConfig(penalty=0.1), None),
    ],
)
def test_settings_of_gates_that_a_run_does_not_use_are_named(pruning, gates, named):
    lines = said_of_unused(TrainConfig(pruning=pruning, gates=gates))
    expected = f"without effect with pruning={pruning}, which learns no mask: {named}"
    assert lines == ([] if named is None else [expected])


def test_heads_in_every_layer_are_for_runs_with_a_target():
    said = "without effect on this run, which does not use them: gates.at_least"
    by_kind = {"encoder": 0.1}
    for gates, lines in [
        (GatesConfig(at_least=1), []),
        (GatesConfig(at_least=1, target_open=4), []),
        (GatesConfig(at_least=1, penalty=0.1), [said]),
        (GatesConfig(at_least=1, penalty=by_kind), [said]),
        (GatesConfig(at_least=1, penalty=by_kind, target_open={"decoder": 4}), []),
    ]:
        assert said_of_unused(TrainConfig(pruning="dynamic", gates=gates)) == lines


def test_a_training_prints_the_settings_that_it_does_not_use(few, tiny_encoder, tmp_path):
    console = Console(file=io.StringIO(), width=200)
    config = TrainConfig(
        name="run", runs=str(tmp_path), corpus=CorpusConfig(str(few)), tasks=("pos",), max_epochs=1,
        encoder=EncoderConfig(str(tiny_encoder)), gates=GatesConfig(target_open=0.3),
        trainer=TrainerConfig(accelerator="cpu"),
    )  # fmt: skip
    train(config, console=console)
    assert "no mask: gates.target_open" in console.file.getvalue()


@pytest.fixture
def corpus(toy: Path, tmp_path: Path) -> Path:
    """A few sentences of the toy corpus, that may be changed."""
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / f"{split}.jsonl", read_jsonl(toy / f"{split}.jsonl")[:8])
    return tmp_path


def config_of(folder: Path) -> TrainConfig:
    return TrainConfig(tasks=("pos", "srl"), corpus=CorpusConfig(path=str(folder)))


def test_a_dry_run_reads_no_further_than_the_first_annotated_sentence(corpus):
    sentences = read_jsonl(corpus / "train.jsonl")
    without_frames = [dataclasses.replace(sentence, frames=None) for sentence in sentences[:3]]
    write_jsonl(corpus / "train.jsonl", [*without_frames, *sentences[3:]])
    check_inputs([config_of(corpus)], None)
    with (corpus / "train.jsonl").open("a") as file:
        file.write("{}\n")
    check_inputs([config_of(corpus)], None)
    with pytest.raises(InputError, match=r"train\.jsonl:9: 'words' is missing"):
        check_inputs([config_of(corpus)], InputCache(keep=True))


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_a_task_without_an_annotated_sentence_is_refused(corpus, inputs):
    path = corpus / "dev.jsonl"
    write_jsonl(path, [dataclasses.replace(sentence, frames=None) for sentence in read_jsonl(path)])
    with pytest.raises(InputError, match="no dev sentence of 8 is annotated for srl: leave srl out of tasks"):
        check_inputs([config_of(corpus)], inputs)


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_a_blind_test_split_needs_a_sentence_only(corpus, inputs):
    path = corpus / "test.jsonl"
    write_jsonl(path, [dataclasses.replace(sentence, frames=None) for sentence in read_jsonl(path)])
    check_inputs([config_of(corpus)], inputs)
    path.write_text("")
    with pytest.raises(InputError, match=r"test\.jsonl: no sentence in it"):
        check_inputs([config_of(corpus)], inputs)


@pytest.mark.parametrize("inputs", [None, InputCache(keep=True)])
def test_files_that_are_not_there_are_named(corpus, inputs):
    own = Files(str(corpus / "train.jsonl"), str(corpus / "dev.jsonl"), None, "jsonl")
    config = TrainConfig(tasks=("pos",), corpus=CorpusConfig(path=None, pos=own))
    with pytest.raises(InputError, match=r"no test file for pos: set corpus\.pos\.test"):
        check_inputs([config], inputs)
    (corpus / "dev.jsonl").unlink()
    with pytest.raises(InputError, match=r"dev\.jsonl: no such file"):
        check_inputs([config], inputs)
