"""Relevance for tasks on pairs of sentences, alone and beside tasks on one sentence."""

from __future__ import annotations

from pathlib import Path

import polars as pl
import pytest
import torch
import yaml

from mtl.analysis.trained import open_trained
from mtl.commands.main import main
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.heads.gates import Mask
from mtl.models.joint import JointModel
from mtl.models.subwords import SubwordTokenizer
from mtl.relevance.measure import measure_relevance
from mtl.relevance.propagation import Explainer, RelevanceItem, head_relevance
from mtl.relevance.rules import Rules
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Cola, Mrpc, Stsb
from mtl.tasks.structured import Pos
from tests.mtl import tiny
from tests.mtl.models.test_subwords import pair, tokenizer_of

SENTENCES = [
    Sentence(("the", "dog"), tags=("X", "Y"), cola="1"),
    pair("the dog", "a cat saw", mrpc="1", stsb=2.5),
    Sentence(("a", "cat", "saw"), tags=("Y", "X", "Y")),
    pair("a dog", "cat", mrpc="0"),
    pair("the cat saw the", "a dog", stsb=4.0),
]
ITEMS = [RelevanceItem(name, "") for name in ("pos", "cola", "mrpc", "stsb")]


def joint(family: str = "bert", mrpc: str = "mean", dtype: torch.dtype = torch.float64) -> JointModel:
    """POS, CoLA by the first token, and two tasks on pairs."""
    torch.manual_seed(0)
    encoder = tiny.encoder(family, dtype=dtype, word_dropout=0.0)
    encoder.tokenizer = SubwordTokenizer(tokenizer_of(family), 64)
    tasks = {"pos": Pos(), "cola": Cola(pooling="first"), "mrpc": Mrpc(pooling=mrpc), "stsb": Stsb()}
    labels = {name: task.labels(SENTENCES) for name, task in tasks.items()}
    model = JointModel(encoder, tasks, labels).to(dtype).eval()
    for parameter in model.decoders.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    return model


def by_sentence(
    model: JointModel, sentences: list[Sentence], **settings
) -> dict[RelevanceItem, torch.Tensor]:
    """The heads' relevance of each item, sorted so that batches do not matter."""
    explainer = Explainer(model, sentences, ITEMS, **settings)
    parts: dict[RelevanceItem, list[torch.Tensor]] = {}
    for batch in range(len(explainer.batches)):
        for result in explainer.relevance(batch):
            parts.setdefault(result.item, []).append(result.heads)
    return {item: torch.cat(heads).sum(0) for item, heads in parts.items()}


@pytest.mark.parametrize(
    ("family", "mrpc", "rules"),
    [("bert", "mean", "paper"), ("bert", "attention", "attnlrp"), ("roberta", "first", "paper")],
)
def test_it_is_conserved_also_through_token_types_and_pooling(family: str, mrpc: str, rules: Rules) -> None:
    explainer = Explainer(joint(family, mrpc), SENTENCES, ITEMS, rules=rules)
    assert len(explainer.batches) == 1
    assert explainer.conservation(0).error < 1e-9
    found = {result.item.task: len(result.score) for result in explainer.relevance(0)}
    assert found == {"pos": 2, "cola": 1, "mrpc": 2, "stsb": 2}


def test_a_sentence_is_explained_alone_as_beside_others() -> None:
    model = joint()
    together = by_sentence(model, SENTENCES)
    alone = by_sentence(model, SENTENCES, batch_tokens=1)
    assert set(together) == set(alone) == set(ITEMS)
    for item, heads in together.items():
        torch.testing.assert_close(alone[item], heads)


def test_predictions_are_explained_in_the_tasks_that_fit() -> None:
    model = joint()
    annotated = model.annotate(SENTENCES)
    gold = by_sentence(model, annotated)
    predicted = by_sentence(model, SENTENCES, output="predicted")
    assert set(gold) == set(predicted) == set(ITEMS)
    for item, heads in gold.items():
        torch.testing.assert_close(predicted[item], heads)
    heads, _ = head_relevance(model, SENTENCES, Mask("", ("pos", "mrpc"), None), output="predicted")
    assert set(heads.filter(task="pos")["count"]) == {2}
    assert set(heads.filter(task="mrpc")["count"]) == {3}


def test_mtl_relevance_on_a_run_with_pairs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = tmp_path / "run"
    joint(dtype=torch.float32).save(run / "model")
    for name, sentences in (("dev", SENTENCES), ("other", SENTENCES[:3])):
        write_jsonl(tmp_path / name / "dev.jsonl", sentences)
    config = {"tasks": ["pos", "cola", "mrpc", "stsb"], "seed": 1, "corpus": {"path": str(tmp_path / "dev")}}
    (run / "config.yaml").write_text(yaml.safe_dump(config))
    assert main(["relevance", str(run), "--label=['1',X]"]) == 0
    heads = pl.read_parquet(run / "heads.parquet").filter(measure="relevance")
    counts = {(row["task"], row["label"]): row["count"] for row in heads.iter_rows(named=True)}
    assert counts == {
        ("pos", ""): 2, ("pos", "X"): 2, ("cola", ""): 1, ("cola", "1"): 1,
        ("mrpc", ""): 2, ("mrpc", "1"): 1, ("stsb", ""): 2,
    }  # fmt: skip
    per_layer = heads.group_by("task", "label", "layer").agg(pl.col("value").sum())["value"]
    assert per_layer.to_list() == pytest.approx([1.0] * len(per_layer))
    predicted = measure_relevance(open_trained(run, None, "dev"), output="predicted").rows
    assert {row["task"]: row["count"] for row in predicted.iter_rows(named=True)} == {
        "pos": 2, "cola": 2, "mrpc": 3, "stsb": 3
    }  # fmt: skip
    # A class that only other sentences have, although the task's classes are fixed.
    monkeypatch.setattr("mtl.relevance.propagation.head_relevance", None)
    words = ["relevance", str(run), "--task=[mrpc]", "--label=['0']", f"--corpus={tmp_path / 'other'}"]
    assert main(words) == 2
    assert "label=0: none of the 3 sentences has it" in capsys.readouterr().err
