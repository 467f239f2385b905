"""`mtl relevance`: what it writes, under which masks, and what it says to bad input."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import polars as pl
import pytest
import torch

from mtl.analysis.trained import open_trained
from mtl.commands import common
from mtl.commands.main import main
from mtl.config.schema import CorpusConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.corpora.toy.corpus import write_toy
from mtl.heads.gates import HeadGates, Mask
from mtl.models.joint import JointModel
from mtl.probes.measures.groups import BY_NAME, MADE_BY_PROBING
from mtl.probes.tables import heads_table as table
from mtl.relevance import propagation as relevance_table
from mtl.relevance.measure import measure_relevance
from mtl.relevance.propagation import head_relevance
from mtl.tasks.catalogue import TASKS
from tests.mtl import tiny
from tests.mtl.unrecorded import forget_files

MEASURES = ("relevance", "relevance_signed")


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A smaller one than elsewhere."""
    folder = tmp_path_factory.mktemp("small")
    write_toy(folder, 12, 12, 12, seed=1)
    return folder


def saved_run(toy: Path, folder: Path, masks: tuple[str, ...] | None = None) -> JointModel:
    """A run of POS and DEP with random weights; of its masks each closes heads of its own."""
    encoder = tiny.encoder("bert", dtype=torch.float32)
    chosen = {name: TASKS[name]() for name in ("pos", "dep")}
    sentences = read_jsonl(toy / "dev.jsonl")
    gates = None
    if masks is not None:
        gates = HeadGates(encoder.layers, encoder.heads, masks=masks, init_mean=0.0, init_std=4.0)
        assert not gates.open().all()
    model = JointModel(
        encoder, chosen, {name: task.labels(sentences) for name, task in chosen.items()}, gates
    ).eval()
    for parameter in model.decoders.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save(folder / "model")
    (folder / "config.yaml").write_text(f"tasks: [pos, dep]\ncorpus:\n  path: {toy}\n")
    return model


@pytest.mark.slow
def test_the_table_is_that_of_the_model_and_other_measures_stay(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = saved_run(toy, tmp_path / "run")
    assert main(["probe", str(tmp_path / "run")]) == 0
    left: list[int] = []

    @contextmanager
    def progress(total: int) -> Iterator[Callable[[int], None]]:
        left.append(total)
        yield lambda done: left.append(left.pop() - done)

    monkeypatch.setattr(common, "sentence_progress", progress)
    assert main(["relevance", str(tmp_path / "run"), "--rule=attnlrp", "--label=[NN]"]) == 0
    heads, provenance = table.read_heads_table(tmp_path / "run" / "heads.parquet")
    assert set(MEASURES) < set(BY_NAME)
    assert set(heads["measure"]) > set(MEASURES)
    assert set(heads["measure"]) & set(MADE_BY_PROBING)
    ours = heads.filter(pl.col("measure").is_in(MEASURES))
    expected, _ = head_relevance(
        model, read_jsonl(toy / "dev.jsonl"), Mask("", ("pos", "dep"), None), labels=["NN"], rules="attnlrp"
    )
    assert ours.equals(expected)
    assert set(ours["label"]) == {"", "NN"}
    assert (provenance["split"], provenance["relevance.split"]) == ("test", "dev")
    assert provenance["relevance.rules"] == "attnlrp"
    assert float(provenance["relevance.conservation_error"]) < 1e-4
    printed = capsys.readouterr()
    assert "pos NN (" in printed.out
    assert "conserved to" in printed.out
    assert "wrote" in printed.out.splitlines()[-1]
    assert left == [0]

    assert main(["relevance", str(tmp_path / "run"), "--task=[dep]", "--sentences=5"]) == 0
    heads, provenance = table.read_heads_table(tmp_path / "run" / "heads.parquet")
    ours = heads.filter(pl.col("measure").is_in(MEASURES))
    assert set(ours["task"]) == {"dep"}
    assert set(ours["count"]) == {5}
    assert set(heads["measure"]) & set(MADE_BY_PROBING)
    assert provenance["relevance.sentences"] == "5"
    dev = read_jsonl(toy / "dev.jsonl")
    sample = [dev[number * len(dev) // 5] for number in range(5)]
    assert ours.equals(head_relevance(model, sample, Mask("", ("dep",), None))[0])


def test_each_task_is_explained_under_its_own_mask(toy: Path, tmp_path: Path) -> None:
    model = saved_run(toy, tmp_path / "run", masks=("pos", "dep"))
    heads = measure_relevance(open_trained(tmp_path / "run", None, "dev")).rows
    gates = model.gates.gate().detach()
    for turn, name in enumerate(("pos", "dep")):
        ours = heads.filter(task=name)
        mask = Mask(name, (name,), gates[turn])
        assert ours.equals(head_relevance(model, read_jsonl(toy / "dev.jsonl"), mask)[0])
        closed = [(layer, head) for layer, head in (gates[turn] == 0).nonzero().tolist()]
        assert closed
        for layer, head in closed:
            assert set(ours.filter(layer=layer, head=head)["value"]) == {0.0}


def test_a_shared_mask_serves_all_tasks(toy: Path, tmp_path: Path) -> None:
    model = saved_run(toy, tmp_path / "run", masks=("shared",))
    mask = Mask("", ("pos", "dep"), model.gates.gate()[0].detach())
    expected, _ = head_relevance(model, read_jsonl(toy / "dev.jsonl"), mask)
    assert measure_relevance(open_trained(tmp_path / "run", None, "dev")).rows.equals(expected)


@pytest.mark.slow
def test_bad_input_is_one_line(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    model = saved_run(toy, run)
    tagged = [dataclasses.replace(sentence, arcs=None) for sentence in read_jsonl(toy / "dev.jsonl")]
    write_jsonl(tmp_path / "tags" / "dev.jsonl", tagged)

    def refused(*words: str) -> str:
        capsys.readouterr()
        assert main(["relevance", *words]) == 2
        error = capsys.readouterr().err
        lines = [line for line in error.splitlines() if not line.startswith("sentences")]
        assert len(lines) == 1
        return lines[0]

    only_tags = f"--corpus={tmp_path / 'tags'}"
    assert "dep" in refused(str(run), "--task=[dep]", only_tags)
    assert "has no task 'srl'" in refused(str(run), "--task=[srl]")
    assert "no label 'nsub': did you mean 'nsubj'?" in refused(str(run), "--task=[dep]", "--label=[nsub]")
    assert "use at least 1" in refused(str(run), "--sentences=0")
    assert "is not a run" in refused(str(run / "model"))
    assert "is for runs that translate, not for pos, dep" in refused(str(run), "--contributions")
    assert not (run / "heads.parquet").exists()

    # A known label that no sentence has.
    other = [
        dataclasses.replace(sentence, tags=tuple(tag.replace("NN", "DT") for tag in sentence.tags or ()))
        for sentence in tagged
    ]
    write_jsonl(tmp_path / "other" / "dev.jsonl", other)
    words = [str(run), "--task=[pos]", "--label=[NN]", f"--corpus={tmp_path / 'other'}"]
    with monkeypatch.context() as patch:  # before anything is computed
        patch.setattr(relevance_table, "head_relevance", None)
        assert "label=NN: none of the 12 sentences has it" in refused(*words)
    gold = {tag for sentence in other for tag in sentence.tags or ()}
    unused = next(name for name in model.labels["pos"].names if name not in gold)
    predicted = [sentence.tags for sentence in model.annotate(other)]
    assert not any(unused in (tags or ()) for tags in predicted)
    message = refused(*words[:2], f"--label=[{unused}]", words[3], "--output=predicted", "--sentences=3")
    assert f"label={unused}: none of the 3 sentences has it" in message

    # An activation that no rule knows, in a model that does not know what its files were.
    config = forget_files(run) / "model" / "config.json"
    config.write_text(config.read_text().replace('"hidden_act": "gelu"', '"hidden_act": "sigmoid"'))
    assert "no rule for torch.sigmoid in model type 'bert'" in refused(str(run))

    # What is left out is reported.
    config.write_text(config.read_text().replace('"hidden_act": "sigmoid"', '"hidden_act": "gelu"'))
    assert main(["relevance", str(run), only_tags]) == 0
    assert "not measured: dep: no dev sentence is annotated for it" in capsys.readouterr().out
    trained = open_trained(run, CorpusConfig(str(tmp_path / "tags")), "dev")
    heads = measure_relevance(trained, output="predicted").rows
    assert set(heads["choice"]) == {"paper, predicted, absolute", "paper, predicted"}


def test_a_layer_without_open_heads_has_no_most_relevant_one(
    toy: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    saved_run(toy, tmp_path / "run", masks=("pos", "dep"))
    saved = JointModel.from_pretrained(tmp_path / "run" / "model")
    assert isinstance(saved.gates, HeadGates)
    saved.gates.log_alpha.data.fill_(5.0)[1, 2] = -5.0
    saved.save(tmp_path / "run" / "model")
    assert main(["relevance", str(tmp_path / "run")]) == 0
    rows = [line.split("│") for line in capsys.readouterr().out.splitlines() if line.startswith("│")]
    layer, pos, dep = (cell.strip() for cell in rows[2][1:4])
    assert (layer, dep) == ("L2", "none open")
    assert "none" not in pos
