"""`mtl importance` and `mtl ablate` on a run's folder."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import yaml

import mtl.analysis.ablation as ablation_run
from mtl.analysis.ablation import Ablator, every_ablation, measure_ablation
from mtl.analysis.trained import open_trained
from mtl.commands.main import main
from mtl.config.schema import CorpusConfig
from mtl.corpora.formats.jsonl import read_jsonl, write_jsonl
from mtl.probes.statistics.compared_runs import score_losses
from mtl.probes.tables import heads_table
from tests.mtl.analysis import worth


@pytest.fixture
def run(toy: Path, tmp_path: Path) -> Path:
    """A run's folder as training leaves it: a model and its configuration."""
    import torch

    model = worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32)
    folder = tmp_path / "run"
    model.save(folder / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (folder / "config.yaml").write_text(yaml.safe_dump(config))
    return folder


def command(*words: str) -> int:
    return main(list(words))


def test_both_commands_write_into_one_table(run, capsys) -> None:
    assert command("importance", str(run), "--sentences=8", "--steps=2") == 0
    assert command("ablate", str(run), "--sentences=8", "--close=[head,layer]", "--draws=20") == 0
    table, provenance = heads_table.read_heads_table(run / "heads.parquet")
    measures = set(table["measure"])
    said = capsys.readouterr().out
    assert said.count("with 20 resamples the q of one in 12 cannot be below 0.57; --draws=240 suffices") == 2
    assert said.count("one in 3 cannot be below 0.14; --draws=60 suffices") == 2
    assert provenance["ablation.draws"] == "20"
    assert {
        "importance",
        "taylor",
        "fisher",
        "integrated",
        "ablation",
        "ablation_q",
        "ablation_layer",
    } <= measures
    single = table.filter(measure="ablation", task="dep")
    assert single.height == 12
    assert single["head"].null_count() == 0
    assert table.filter(measure="ablation_layer", task="dep")["head"].null_count() == 3
    assert provenance["importance.split"] == "dev"
    assert provenance["ablation.split"] == "test"
    assert provenance["ablation.sentences"] == "8"
    # Again, with other settings: the rows are replaced, the others stay.
    assert command("importance", str(run), "--sentences=4", "--task=pos") == 0
    again, _ = heads_table.read_heads_table(run / "heads.parquet")
    assert set(again.filter(measure="importance")["task"]) == {"pos"}
    assert again.filter(measure="integrated").is_empty()
    assert again.filter(measure="ablation").equals(table.filter(measure="ablation"))
    assert command("ablate", str(run), "--sentences=4", "--close=layer", "--draws=60") == 0
    assert "suffices" not in capsys.readouterr().out
    assert "cost significantly" in said


def test_a_set_of_heads_is_closed_together(run, tmp_path) -> None:
    out = tmp_path / "figures.json"
    assert command("ablate", str(run), "--heads=0.1,L2", f"--json_out={out}", "--draws=20") == 0
    [ablated] = json.loads(out.read_text())["dep"]["ablations"]
    assert ablated["closed"] == [["self", 0, 1], *(["self", 2, head] for head in range(4))]
    assert not (run / "heads.parquet").exists()


def test_a_mask_file_says_what_is_closed(run, tmp_path) -> None:
    gates = pl.DataFrame(
        {
            "task": "shared", "step": 1, "attention": "self",
            "layer": np.repeat(np.arange(3), 4), "head": np.tile(np.arange(4), 3),
            "log_alpha": 0.0, "gate": [1.0] * 10 + [0.0, 0.0], "open": [True] * 10 + [False] * 2,
        }
    )  # fmt: skip
    gates.write_parquet(tmp_path / "gates.parquet")
    out = tmp_path / "figures.json"
    given = f"--mask={tmp_path / 'gates.parquet'}"
    assert command("ablate", str(run), given, f"--json_out={out}", "--draws=20") == 0
    [ablated] = json.loads(out.read_text())["pos"]["ablations"]
    assert ablated["closed"] == [["self", 2, 2], ["self", 2, 3]]
    gates.filter(pl.col("layer") < 2).write_parquet(tmp_path / "gates.parquet")
    assert command("ablate", str(run), given) == 2


def test_a_killed_ablation_is_resumed(run, monkeypatch) -> None:
    trained = open_trained(run, None, "test", sentences=12)
    chosen = every_ablation(trained, ("head",))
    expected = measure_ablation(trained, chosen, draws=20)
    monkeypatch.setattr(ablation_run, "SAVED_EVERY", 0.0)
    monkeypatch.setitem(ablation_run.BATCH_TOKENS, "cpu", 60)
    calls = 0
    compute = Ablator.__call__

    def counted(self, batch):
        nonlocal calls
        calls += 1
        if calls == 4:
            raise KeyboardInterrupt
        return compute(self, batch)

    monkeypatch.setattr(Ablator, "__call__", counted)
    with pytest.raises(KeyboardInterrupt):
        measure_ablation(trained, chosen, draws=20)
    assert (run / ".ablation.parquet").exists()
    total = len(list(trained.batches(60)))
    resumed = measure_ablation(trained, chosen, draws=20)
    assert calls - 4 == total - 3
    assert not (run / ".ablation.parquet").exists()
    for name, losses in expected.losses.items():
        np.testing.assert_allclose(resumed.losses[name].loss, losses.loss)


def test_what_is_done_so_far_of_something_else_is_not_used(run, monkeypatch) -> None:
    trained = open_trained(run, None, "test", sentences=6)
    chosen = every_ablation(trained, ("head",))
    expected = measure_ablation(trained, chosen, draws=20)
    for content in (b"", b"PAR1 damaged"):
        (run / ".ablation.parquet").write_bytes(content)
        again = measure_ablation(trained, chosen, draws=20)
        np.testing.assert_allclose(again.losses["pos"].loss, expected.losses["pos"].loss)
    assert not list(run.glob(".ablation.*"))


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["ablate", "RUN", "--heads=9.1"], "layers 0 to 2"),
        (["ablate", "RUN", "--heads=a"], "write a head as L2H9 and a whole layer as L2"),
        (["ablate", "RUN", "--heads=1", "--mask=x"], "use one of them"),
        (["ablate", "RUN", "--heads=1", "--out=x.parquet"], "with --json_out=FILE"),
        (["ablate", "RUN", "--draws=0"], "at least 1"),
        (["ablate", "RUN", "--heads=0.1", "--json_out=RUN"], "it is a folder, not a file"),
        (["ablate", "RUN", "--seed=-1"], "seed=-1: use a number from 0 to 4,294,967,295"),
        (["ablate", "RUN", "--task=srl"], "has no task 'srl'"),
        (["ablate", "RUN/nowhere"], "not a run folder"),
        (["importance", "RUN", "--steps=-1"], "use 0"),
        (["importance", "RUN", "--sentences=0"], "at least 1"),
        (["importance", "RUN", "--top=-1"], "top=-1: use 0 or more"),
    ],
)
def test_bad_input_is_one_line(run, capsys, words, message) -> None:
    assert command(*(word.replace("RUN", str(run)) for word in words)) == 2
    error = capsys.readouterr().err.strip()
    assert message in error
    assert "\n" not in error


def test_a_split_without_gold_is_one_line(run, toy, tmp_path, capsys) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for split in ("train", "dev", "test"):
        lines = (toy / f"{split}.jsonl").read_text().splitlines()
        kept = [{key: value for key, value in json.loads(line).items() if key != "arcs"} for line in lines]
        (bare / f"{split}.jsonl").write_text("\n".join(map(json.dumps, kept)) + "\n")
    found = set(json.loads((bare / "dev.jsonl").read_text().splitlines()[0]))
    assert command("importance", str(run), f"--corpus={bare}", "--task=dep") == 2
    assert "annotated for dep" in capsys.readouterr().err, found
    assert command("importance", str(run), f"--corpus={bare}", "--sentences=4") == 0
    assert "not measured: dep" in capsys.readouterr().out


@pytest.mark.slow
def test_ablation_resamples_whole_documents(run, toy, tmp_path, capsys) -> None:
    sentences = [
        replace(sentence, document=f"d{number // 2}")
        for number, sentence in enumerate(read_jsonl(toy / "test.jsonl")[:24])
    ]
    write_jsonl(tmp_path / "test.jsonl", sentences)
    out = tmp_path / "ablation.json"
    words = ("ablate", str(run), "--task=pos", "--draws=50", f"--json_out={out}", "--close=layer")
    assert command(*words, f"--corpus={tmp_path}") == 0
    assert "resampled: 12 documents" in capsys.readouterr().out
    found = json.loads(out.read_text())["pos"]
    assert (found["units"], found["resampled"]) == ("documents", 12)
    _, provenance = heads_table.read_heads_table(run / "heads.parquet")
    assert json.loads(provenance["ablation.units"]) == {"pos": "documents"}
    trained = open_trained(run, CorpusConfig(str(tmp_path)), "test", tasks=["pos"])
    chosen = every_ablation(trained, ("layer",))
    batches = list(trained.batches(ablation_run.BATCH_TOKENS["cpu"]))
    counts = ablation_run.joined_counts([Ablator(trained.model, chosen)(batch) for batch in batches])["pos"]
    documents = [sentence.document for batch in batches for sentence in batch.of_task("pos")]
    order = list(dict.fromkeys(documents))
    whole = [[place for place, name in enumerate(documents) if name == one] for one in order]
    lost = score_losses(
        np.array([counts.unchanged[places].sum(0) for places in whole]),
        np.stack([counts.ablated[:, places].sum(1) for places in whole], 1),
        trained.tasks["pos"].metric().score,
        draws=50,
    )
    for one, low, high, p in zip(found["ablations"], lost.low, lost.high, lost.p, strict=True):
        assert one["p"] == pytest.approx(p)
        assert (one["low"] is None) == bool(np.isnan(low))
        if one["low"] is not None:
            assert (one["low"], one["high"]) == pytest.approx((low, high))
    # Few sentences have no interval, and p all the same.
    assert command(*words, "--sentences=8") == 0
    found = json.loads(out.read_text())["pos"]
    assert {(one["low"], one["high"]) for one in found["ablations"]} == {(None, None)}
    assert all(0 < one["p"] <= 1 for one in found["ablations"])
    table, _ = heads_table.read_heads_table(run / "heads.parquet")
    assert set(table["measure"]) == {"ablation_layer", "ablation_layer_p", "ablation_layer_q"}
