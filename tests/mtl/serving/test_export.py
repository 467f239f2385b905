"""Models exported to ONNX annotate as they do in torch, and what cannot be exported is one line."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import jaxtyping
import pytest
import torch
from torch.utils import _pytree as pytree

from mtl import export_onnx, load_exported
from mtl.commands.main import main
from mtl.config.instances import Instance
from mtl.errors import InputError
from mtl.heads.gates import OPEN, HeadGates
from mtl.models.batches import examples, unlabelled
from mtl.models.evaluate import batches, evaluate_model
from mtl.models.joint import JointModel
from mtl.models.model_files import weights_checksum
from mtl.serving import onnx
from mtl.serving.onnx import ExportedModel
from mtl.tasks.catalogue import TASKS
from mtl.tasks.sentence import Arc, Arcs, Graph, Sentence
from tests.mtl import tiny
from tests.mtl.analysis import worth

ON_WORDS = ("pos", "dep", "srl")
FIRST = {"pooling": "first"}
OF_TWO = Sentence(
    ("the", "dog"),
    layers=dict.fromkeys(("crf2o", "vi"), Arcs((2, 0), ("det", "root"))),
    graph=Graph((Arc(1, 2, "det"), Arc(2, 0, "root"))),
)
"""The layers of tasks that the generated corpus lacks."""


@pytest.fixture(scope="module", autouse=True)
def unchecked() -> Iterator[None]:
    """Switch off the checks of shapes, since the exporter's sizes are symbols."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)


class Case(NamedTuple):
    """A model in torch, and the folder that it was exported to."""

    model: JointModel
    folder: Path

    def exported(self) -> ExportedModel:
        return load_exported(self.folder)


def made(
    toy: Path, settings: Mapping[str, Mapping[str, str]], masks: Sequence[str] = (), family: str = "bert"
) -> JointModel:
    """Tasks with settings on a tiny encoder; of its heads, masks close about half."""
    torch.manual_seed(0)
    encoder = tiny.encoder(family, dtype=torch.float32, word_dropout=0.0)
    tasks = {
        name: Instance(**given).task(name) if "kind" in given else TASKS[name](**given)  # type: ignore[arg-type]
        for name, given in settings.items()
    }
    sentences = (*worth.generated(toy / "train.jsonl"), OF_TWO)
    labels = {name: task.labels(sentences) for name, task in tasks.items()}
    gates = None
    if masks:
        gates = HeadGates(encoder.layers, encoder.heads, masks=tuple(masks), init_mean=0.0, init_std=2.0)
    model = JointModel(encoder, tasks, labels, gates).eval()
    tiny.shake(model.decoders)
    return model


CASES = {
    "no masks": ({key: {} for key in worth.STRUCTURED}, (), "bert"),
    "one mask": ({key: {} for key in ON_WORDS}, ("all",), "bert"),
    "a mask per task": ({**{key: {} for key in ON_WORDS}, "cola": FIRST}, (*ON_WORDS, "cola"), "roberta"),
    "of words, sentences and pairs": ({"pos": {}, "cola": FIRST, "rte": {}}, (), "bert"),
    "arcs that depend on each other": (
        {
            **{name: {"kind": "tree", "decoder": name} for name in ("crf2o", "vi")},
            "graph": {"kind": "graph", "decoder": "vi"},
        },
        (),
        "bert",
    ),
    "decoder-only": ({"pos": {}, "con": {"decoding": "mbr"}}, (), "llama"),
}
"""Settings of tasks, masks, and the encoder's family."""


@pytest.fixture(scope="module")
def case(request: pytest.FixtureRequest, toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Case:
    model = made(toy, *CASES[request.param])
    before, heads = weights_checksum(model), model.encoder.tap.remaining
    folder = tmp_path_factory.mktemp("exported") / "model"
    generator = torch.get_rng_state()
    export_onnx(model, folder)
    load_exported(folder)
    assert len({path.stat().st_mode for path in folder.iterdir()}) == 1
    assert torch.equal(torch.get_rng_state(), generator)
    assert (weights_checksum(model), model.encoder.tap.remaining) == (before, heads)
    return Case(model, folder)


def sentences(model: JointModel, toy: Path) -> list[Sentence]:
    """One word, longer than a window, and of many lengths; pairs, too, if there is a task for them."""
    long = WORDS_OF_WINDOWS[:40] if "crf2o" in model.tasks else WORDS_OF_WINDOWS  # its sums are cubic
    words = [
        ("cat",),
        long,
        ("the", "dog"),
        *(each.words for each in worth.generated(toy / "dev.jsonl")),
    ]
    pairs = [Sentence(("the", "dog", "saw"), second=1), Sentence(("a", "cat"), second=1)]
    return [*map(Sentence, words), *(pairs if "rte" in model.tasks else [])]


WORDS_OF_WINDOWS = ("the", "dog", "saw", "Paris") * 30


@pytest.mark.slow
@pytest.mark.parametrize("case", CASES, indirect=True)
def test_annotations_and_scores_are_those_of_torch(case: Case, toy: Path) -> None:
    model, loaded = case.model, case.exported()
    given = sentences(model, toy)
    expected = model.annotate(given)
    assert loaded.annotate(given) == expected
    assert loaded.annotate(given, batch_tokens=1, threads=2) == expected
    tokens = model.encoder.tokenizer
    batch = unlabelled(examples(given, tokens, {}, {}), tokens, model.tasks)
    with torch.inference_mode():
        scores = model(batch)
    found = loaded(batch)
    assert found.keys() == scores.keys() == model.tasks.keys()
    for name, of_task in scores.items():
        assert torch.equal(found[name].mask, of_task.mask)
        assert type(found[name].scores) is type(of_task.scores)
        parts = (pytree.tree_leaves(each.scores) for each in (found[name], of_task))
        for one, other in zip(*parts, strict=True):
            largest = other[other.isfinite()].abs().max().item()  # sums of many terms of both signs
            torch.testing.assert_close(one, other, rtol=1e-4, atol=max(1e-4, 1e-5 * largest))


@pytest.mark.slow
@pytest.mark.parametrize("case", ["no masks"], indirect=True)
def test_scores_probabilities_and_text_are_those_of_torch(case: Case, toy: Path) -> None:
    model, loaded = case.model, case.exported()
    corpus = worth.corpus(model, toy)
    assert evaluate_model(loaded, batches(corpus, loaded)) == evaluate_model(model, batches(corpus, model))
    with pytest.raises(InputError, match="has its masks in the graph"):
        evaluate_model(loaded, batches(corpus, loaded), torch.ones(model.encoder.layers, model.encoder.heads))
    text = "The dog saw a cat. It was in Paris."
    found, expected = (each.annotate_text(text, probabilities=1) for each in (loaded, model))
    assert list(found) == list(expected)
    for items, others in zip(found.items or (), expected.items or (), strict=True):
        assert {name: len(each) for name, each in items.items()} == {
            name: len(each) for name, each in others.items()
        }


def test_heads_that_one_mask_closes_are_cut_out_of_a_copy(toy: Path) -> None:
    model = made(toy, *CASES["one mask"])
    before = [len(heads) for heads in model.encoder.tap.remaining]
    graph = onnx._to_export(model)
    opened = (model.scales.of_task("pos") > OPEN).sum(1).tolist()
    assert [len(heads) for heads in graph.model.encoder.tap.remaining] == opened != before
    assert [len(heads) for heads in model.encoder.tap.remaining] == before
    assert graph.scale is None


@pytest.fixture(scope="module")
def run(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run with random weights."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    made(toy, {key: {} for key in ON_WORDS}).save(folder / "model")
    (folder / "config.yaml").write_text(f"tasks: [{', '.join(ON_WORDS)}]\n")
    (folder / "status.json").write_text('{"state": "finished"}')
    return folder


@pytest.mark.slow
def test_commands_take_the_folder_in_place_of_a_run(
    run: Path, toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = tmp_path / "lines.txt"
    lines.write_text("the dog saw a cat\ncat\n")
    written, sizes = {}, {}
    folders = {weights: tmp_path / weights for weights in ("float32", "int8")}
    for weights, folder in folders.items():
        assert main(["export", str(run), f"--out={folder}", f"--weights={weights}"]) == 0
        assert str(folder) in capsys.readouterr().out
        sizes[weights] = (folder / "model.onnx").stat().st_size
    for model in (run, *folders.values()):
        assert main(["predict", str(model), str(lines), "--input=tokens", "--output=json"]) == 0
        written[model.name] = capsys.readouterr().out
        assert main(["evaluate", str(model), f"--corpus={toy}"]) == 0
        assert "las" in capsys.readouterr().out.lower()
    assert written["float32"] == written["run"]
    assert written["int8"].count("\n") == 2
    assert sizes["int8"] < sizes["float32"]
    folder = folders["float32"]
    for words, said in (
        (["evaluate", str(folder)], "use --corpus=FOLDER"),
        (["predict", str(folder), str(lines), "--accelerator=gpu"], "leave out --accelerator"),
        (["predict", str(folder), str(lines), "--precision=bf16-true"], "leave out --accelerator"),
        (["export", str(folder), f"--out={tmp_path / 'again'}"], "but an exported one (exported.json)"),
        (["prune", str(folder), f"--out={tmp_path / 'cut'}"], "mtl.load_exported loads it"),
        (["train", f"--corpus.path={toy}", f"--init_from={folder}"], "mtl.load_exported loads it"),
        (["export", str(run), f"--out={folder}"], "is no empty folder"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    with (folder / "model.onnx").open("r+b") as graph:
        graph.write(b"\xff\xff")
    with pytest.raises(InputError, match=r"model\.onnx is not what was saved"):
        load_exported(folder)
    (folder / "decoders.safetensors").unlink()
    with pytest.raises(InputError, match=r"decoders\.safetensors is missing"):
        load_exported(folder)


@pytest.mark.slow
def test_a_graph_that_computes_something_else_is_not_written(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made(toy, {"pos": {}})

    def other(folder: Path) -> ExportedModel:
        loaded = load_exported(folder)
        found = loaded.forward
        monkeypatch.setattr(
            loaded,
            "forward",
            lambda batch: {key: each._replace(scores=each.scores + 1) for key, each in found(batch).items()},
        )
        return loaded

    monkeypatch.setattr(onnx, "load_exported", other)
    with pytest.raises(
        InputError, match=r"the graph of this model \(BertModel, pos\) gives other scores for pos"
    ):
        export_onnx(model, tmp_path / "out")
    forward = model.decoder("pos").forward
    monkeypatch.setattr(
        model.decoder("pos"), "forward", lambda words, mask: forward(words, mask) * float(words.sum())
    )
    with pytest.raises(InputError, match=r"torch's exporter cannot write this model \(BertModel, pos\)"):
        export_onnx(model, tmp_path / "out")
    assert not any(tmp_path.iterdir())
    assert capsys.readouterr() == ("", "")


def test_what_cannot_be_exported_is_one_line(
    run: Path, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = made(toy, {"pos": {}})
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").touch()
    for given, said in (
        ({"model": "runs/a"}, "use a JointModel"),
        ({"weights": "int4"}, "use one of float32, int8"),
        ({"out": 3}, "use a folder's name"),
        ({"out": tmp_path / "full"}, "is no empty folder"),
    ):
        with pytest.raises(InputError, match=said):
            export_onnx(**{"model": model, "out": tmp_path / "out", **given})
    monkeypatch.setattr(onnx, "find_spec", lambda name: None)
    missing = (
        r"needs onnx and onnxruntime and onnxscript, not installed here: pip install 'mtl-heads\[onnx\]'"
    )
    with pytest.raises(InputError, match=missing):
        export_onnx(model, tmp_path / "out")
    for words, said in (
        (["export", str(run), f"--out={tmp_path / 'full'}"], "is no empty folder"),
        (["export", str(run), f"--out={tmp_path / 'out'}"], "pip install 'mtl-heads[onnx]'"),
    ):
        assert main(words) == 2
        assert said in capsys.readouterr().err
    (tmp_path / "full" / "exported.json").write_text("{}")
    with pytest.raises(InputError, match="an exported model needs onnxruntime, not installed"):
        load_exported(tmp_path / "full")
    monkeypatch.undo()
    monkeypatch.setattr(JointModel, "does", "translates")
    with pytest.raises(InputError, match="a model that translates is not exported"):
        export_onnx(model, tmp_path / "out")
    monkeypatch.undo()
    with pytest.raises(InputError, match="holds no exported model"):
        load_exported(tmp_path / "nowhere")
    assert main(["export", "nowhere", f"--out={tmp_path / 'out'}"]) == 2
    assert not (tmp_path / "out").exists()
