"""Where models run: on a GPU if there is one, in every command that uses a trained model."""

from __future__ import annotations

import io
import shutil
from pathlib import Path

import pytest
import torch
from torch.utils import _pytree as pytree

from mtl.commands.main import main
from mtl.corpora.formats.jsonl import read_jsonl
from mtl.errors import InputError
from mtl.models import opened
from mtl.models.batches import examples
from mtl.models.evaluate import batches
from mtl.models.joint import JointModel
from mtl.models.opened import device_of, prepare
from mtl.probes.tables.heads_table import read_heads_table
from mtl.tasks.catalogue import TASKS
from mtl.tasks.decoders.srl import SrlDecoder
from mtl.tasks.lemmas import Lemmas
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Classify, Regress
from mtl.tasks.structured import Graphs
from mtl.tasks.task import Task, instance
from tests.mtl import tiny
from tests.mtl.analysis import worth
from tests.mtl.training.test_graph_tasks import with_graph


def test_one_function_names_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a run's status and its table of times name one device in two ways."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    assert opened.device_name(torch.device("cpu")) == "CPU, 1 thread"
    code = Path(opened.__file__).parents[1]
    naming = {file.name for file in code.rglob("*.py") if "get_device_name(" in file.read_text()}
    assert naming == {"doctor.py", "opened.py"}  # doctor lists the GPUs


def test_the_accelerator_chooses_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert [device_of(name).type for name in ("auto", "cpu", "gpu")] == ["cuda", "cpu", "cuda"]
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert [device_of(name).type for name in ("auto", "cpu")] == ["cpu", "cpu"]
    with pytest.raises(InputError, match=r"^trainer\.accelerator=gpu, but torch sees no GPU here"):
        device_of("gpu", "trainer.accelerator")


def test_bfloat16_rounds_the_transformer_alone() -> None:
    encoder = tiny.encoder("bert", dtype=torch.float32, layers="mix")
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["the", "dog"]]))
    exact = encoder(subwords)
    assert prepare(encoder, "cpu", "bf16-true") is encoder
    assert {weight.dtype for weight in encoder.transformer.parameters()} == {torch.bfloat16}
    assert encoder.mix is not None
    assert encoder.mix.dtype == torch.float32
    rounded = encoder(subwords)
    assert rounded.dtype == torch.float32
    assert not torch.equal(rounded, exact)
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)
    seen = encoder.observe(subwords)
    assert {tensor.dtype for tensor in (*seen.attentions, *seen.outputs)} == {torch.float32}


def every_decoder(sentences: list[Sentence]) -> JointModel:
    """A joint model with each kind of decoder that labels text; its weights do not depend on the call."""
    torch.manual_seed(0)
    kinds = {"deps": Graphs, "forms": Lemmas, "odd": Classify, "size": Regress}
    more = {name: instance(name, kind, name)() for name, kind in kinds.items()}
    tasks: dict[str, Task] = {**{name: TASKS[name]() for name in worth.STRUCTURED}, **more}
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), tasks, labels).eval()
    tiny.shake(model.decoders)
    return model


def test_bfloat16_rounds_the_decoders_that_allow_it(toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(SrlDecoder, "narrow", False)
    sentences = []
    for number, sentence in enumerate(read_jsonl(toy / "dev.jsonl")[:24]):
        more = {"forms": sentence.words, "odd": str(number % 2), "size": float(number)}
        sentences.append(sentence.with_layers({**with_graph(sentence).layers, **more}))
    exact, rounded = every_decoder(sentences), every_decoder(sentences)
    prepare(rounded, "cpu", "bf16-true")
    for name, decoder in rounded.decoders.items():
        dtype = torch.float32 if name == "srl" else torch.bfloat16
        assert {weight.dtype for weight in decoder.parameters()} == {dtype}
    for batch in batches(examples(sentences, exact.tokenizer, exact.tasks, exact.labels), exact):
        with torch.inference_mode():
            both = [pytree.tree_leaves(model(batch)) for model in (exact, rounded)]
        for one, other in zip(*both, strict=True):
            if isinstance(one, torch.Tensor) and one.is_floating_point():
                there = one.isfinite()
                assert torch.equal(other.isfinite(), there)
                assert torch.dist(other[there].float(), one[there]) < 0.05 * one[there].norm()
    monkeypatch.undo()
    all_rounded = prepare(every_decoder(sentences), "cpu", "bf16-true")
    for sentence in all_rounded.annotate(sentences, probabilities=3):
        assert all(sentence.items[name] for name in ("pos", "dep", "deps", "forms", "odd"))
        for name, items in sentence.items.items():
            for item in items:
                probabilities = [value.probability for value in item.best]
                assert all(0.0 <= probability <= 1.0 + 1e-6 for probability in probabilities)
                assert sum(probabilities) <= 1.0 + 1e-5 or name == "deps"  # its values do not exclude others


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, few: Path) -> Path:
    """A finished run of two tasks with a shared mask."""
    folder = tmp_path_factory.mktemp("device")
    words = [
        "train", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}", f"--runs={folder}", "--name=run",
        "--max_epochs=1", "--tasks=pos,dep", "--pruning=dynamic", "--trainer.accelerator=cpu",
    ]  # fmt: skip
    assert main(words) == 0
    return folder / "run"


@pytest.mark.parametrize("command", ["evaluate", "predict", "prune"])
def test_commands_move_the_model_to_the_chosen_device(
    command: str, run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen: list[str] = []
    moved: list[torch.device] = []

    def counted(accelerator: str, key: str = "accelerator") -> torch.device:
        chosen.append(accelerator)
        return torch.device("cpu")

    move = JointModel.to

    def to(model: JointModel, where: torch.device) -> JointModel:
        moved.append(where)
        return move(model, where)

    monkeypatch.setattr(opened, "device_of", counted)
    monkeypatch.setattr(JointModel, "to", to)
    for words in ([], ["--accelerator=cpu"]):
        shutil.rmtree(tmp_path / "out", ignore_errors=True)
        extra = [f"--out={tmp_path / 'out'}"] if command == "prune" else []
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"We ate .\n")))
        assert main([command, str(run), *extra, *words]) == 0
    assert chosen == ["auto", "cpu"]
    assert moved == [torch.device("cpu")] * 2


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there_is_one_line(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--accelerator=gpu"]) == 2
    assert "accelerator=gpu, but torch sees no GPU" in capsys.readouterr().err


def test_probing_in_bfloat16_is_on_record(run: Path, few: Path, tmp_path: Path) -> None:
    seen = []
    for precision in ("bf16-true", "32-true"):
        words = [
            "probe",
            str(run),
            f"--corpus={few}",
            f"--out={tmp_path}",
            "--split=dev",
            "--accelerator=cpu",
        ]
        assert main([*words, f"--precision={precision}"]) == 0
        heads, provenance = read_heads_table(tmp_path / "heads.parquet")
        seen.append((provenance.get("precision"), heads["value"].to_list()))
    assert [precision for precision, _ in seen] == ["bf16-true", "32-true"]
    assert seen[0][1] != seen[1][1]


def test_evaluation_in_bfloat16_scores_nearly_the_same(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--accelerator=cpu", "--precision=bf16-true"]) == 0
    assert "pos" in capsys.readouterr().out
