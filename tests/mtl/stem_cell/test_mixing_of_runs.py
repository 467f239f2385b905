"""The figure of mixing vectors, from folders of collaborative models with planted components."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import polars as pl
import pytest
import torch

from mtl.commands.figure import figure
from mtl.errors import InputError
from mtl.files import fingerprint
from mtl.heads.attentions import attentions
from mtl.heads.collaborative import collaborate
from mtl.heads.families import family_of
from mtl.heads.prune import prune_heads
from mtl.runs.folder.content import files_of_encoder
from mtl.stem_cell.mixing import mixing_overlaps
from tests.mtl import tiny
from tests.mtl.studies import Study

ROUND_CLAIMS = {"pos": (0, 1), "dep": (0, 1, 2)}


def collaborative(seed: int = 0, joined: bool = False):
    """A model of three layers of four heads; `joined`: heads 0 and 1 weigh components alike."""
    torch.manual_seed(0)
    model = tiny.model("bert")
    collaborate(model, 6, steps=2, starts=1)
    torch.manual_seed(seed)
    for attention in attentions(model, family_of(model)):
        mixing = attention.module.mixing.data
        mixing.copy_(torch.randn_like(mixing))
        if joined:
            mixing[1] = -2 * mixing[0]
    return model


class Mixed(Study):
    """Masks as planted, and models."""

    def gates(self, tasks, scope, shape):
        table = super().gates(tasks, scope, shape)
        claimed = pl.col("head").is_in(ROUND_CLAIMS[tasks[0]])
        return table.with_columns(gate=claimed.cast(table["gate"].dtype), open=claimed)

    def model(self, folder: Path, model) -> Path:
        model.save_pretrained(folder)
        return folder


@pytest.fixture(scope="module")
def study(tmp_path_factory):
    study = Mixed(tmp_path_factory.mktemp("mixing"), layers=tiny.LAYERS, heads=tiny.HEADS)
    for task in ROUND_CLAIMS:
        for seed in (1, 2):
            study.run([task], seed, probe=False)
    for seed in (1, 2):
        run = study.run(["pos", "dep"], seed, pruning="none", probe=False, name=f"joint{seed}")
        study.model(run / "model", collaborative(seed, joined=True))
        run = study.run(["pos"], seed, pruning="none", probe=False, name=f"alone{seed}")
        study.model(run / "model", collaborative(10 + seed))
    study.model(study.root / "before", collaborative(20))
    return study


def paths(study, *names):
    return [path for name in names for path in sorted((study.root / "runs").glob(name))]


def test_overlap_is_that_of_components_of_one_length():
    model = collaborative(3)
    table = mixing_overlaps(model)
    module = attentions(model, family_of(model))[1].module
    queries, keys = (matrix.detach().numpy() for matrix in module.shared())
    # What a component adds to the scores of a head, as a matrix of length |weight| |query| |key|.
    sizes = [np.linalg.norm(np.outer(queries[:, component], keys[:, component])) for component in range(6)]
    one, other = (module.mixing.detach().numpy()[head] * sizes for head in (0, 3))
    expected = abs(one @ other) / np.linalg.norm(one) / np.linalg.norm(other)
    row = table.row(by_predicate=(pl.col("layer") == 1) & (pl.col("first") == 0) & (pl.col("second") == 3))
    assert row[-1] == pytest.approx(expected, abs=1e-6)
    # The same model, with the size of components elsewhere.
    module.mixing.data *= 4
    module.query.weight.data /= 2
    module.key.weight.data[2] *= -1
    assert mixing_overlaps(model)["overlap"].to_list() == pytest.approx(table["overlap"].to_list(), abs=1e-6)


def test_heads_that_were_cut_keep_the_numbers_of_others():
    model = collaborative(4)
    whole = mixing_overlaps(model)
    prune_heads(model, {0: [1], 2: [0, 1, 2, 3]})
    left = whole.filter(
        (pl.col("layer") < 2) & ~((pl.col("layer") == 0) & ((pl.col("first") == 1) | (pl.col("second") == 1)))
    )
    cut = mixing_overlaps(model)
    assert cut.drop("overlap").equals(left.drop("overlap"))
    assert cut["overlap"].to_list() == pytest.approx(left["overlap"].to_list())


def test_a_planted_world_is_drawn(study, tmp_path, capsys):
    runs = paths(study, "*-dynamic-*", "joint*", "alone*")
    figure("mixing", [*runs, study.root / "before"], tmp_path / "mixing.svg")
    table = pl.read_csv(tmp_path / "mixing.csv")
    assert table["models"].unique(maintain_order=True).to_list() == [
        "before", "joint", "alone", "joint less before", "alone less before"
    ]  # fmt: skip
    several = table.filter(claims="several").rows_by_key("models", named=True, unique=True)
    assert several["joint"]["overlap"] == pytest.approx(1)
    assert several["joint"]["seeds"] == 2
    assert several["joint"]["pairs"] == tiny.LAYERS
    assert several["joint"]["above"] > 0.2
    before = several["before"]
    assert before["seeds"] == 1
    assert several["joint less before"]["overlap"] == pytest.approx(1 - before["overlap"])
    layers = pl.read_csv(tmp_path / "mixing-layers.csv")
    assert layers.filter(models="joint", claims="several")["overlap"].to_list() == pytest.approx(
        [1.0] * tiny.LAYERS
    )
    assert pl.read_parquet(tmp_path / "mixing-pairs.parquet").filter(models="joint").height == (
        tiny.LAYERS * 6
    )
    notes = [line for line in capsys.readouterr().out.splitlines() if line.startswith("note:")]
    # The planted runs name another encoder than the folder that is given.
    start = study.root / "before"
    assert len(notes) == 1
    assert notes[0].startswith(
        f"note: {start} is taken for the model before training, but the joint runs name"
    )
    # A model is the one before training by what it is, whatever its folder is called.
    moved = tmp_path / "elsewhere"
    shutil.copytree(start, moved)
    for folder in paths(study, "joint*"):
        status = json.loads((folder / "status.json").read_text())
        status["encoder_fingerprint"] = fingerprint(files_of_encoder(start))
        (folder / "status.json").write_text(json.dumps(status))
    figure("mixing", [*runs, moved], tmp_path / "again.svg")
    assert "note:" not in capsys.readouterr().out


def test_a_copy_of_a_run_counts_once(study, tmp_path, capsys):
    """The overlap before or alone is the mean over models: of two tasks of a seed each counts as much."""
    other = Mixed(tmp_path, layers=tiny.LAYERS, heads=tiny.HEADS)
    dep = other.run(["dep"], 1, pruning="none", probe=False, name="alone-dep")
    other.model(dep / "model", collaborative(30))
    runs = [*paths(study, "*-dynamic-*", "joint1", "alone1"), dep]
    figure("mixing", runs, tmp_path / "once.svg")
    copy = tmp_path / "copy"
    shutil.copytree(dep, copy)
    capsys.readouterr()
    figure("mixing", [*runs, copy], tmp_path / "twice.svg")
    once, twice = (
        pl.read_parquet(tmp_path / f"{name}-pairs.parquet").drop("notes", strict=False)
        for name in ("once", "twice")
    )
    assert twice.equals(once)
    assert f"note: {copy} repeats {dep}, seed and all: left out" in capsys.readouterr().out


def test_what_is_missing_is_one_line(study, tmp_path, capsys):
    out = tmp_path / "mixing.svg"
    with pytest.raises(InputError, match="no collaborative joint run among these: train one with"):
        figure("mixing", paths(study, "*-dynamic-*", "alone*"), out)
    with pytest.raises(InputError, match="two or more of pos, dep; there are such runs of pos: train them"):
        figure("mixing", paths(study, "pos-dynamic-*", "joint*"), out)
    other = Mixed(tmp_path, layers=tiny.LAYERS, heads=tiny.HEADS)
    plain = other.run(["pos", "dep"], 3, pruning="none", probe=False, name="plain")
    other.model(plain / "model", tiny.model("bert"))
    with pytest.raises(InputError, match="plain share no components: 'mtl collaborate' makes such"):
        figure("mixing", [*paths(study, "*-dynamic-*"), plain], out)
    small = tiny.model("bert")
    collaborate(small, 5, steps=1, starts=1)
    five = other.model(tmp_path / "five", small)
    with pytest.raises(InputError, match="have different numbers of components"):
        figure("mixing", [*paths(study, "*-dynamic-*", "joint1"), five], out)
    albert = tiny.model("albert")
    collaborate(albert, 6, steps=1, starts=1)
    other.model(five, albert)
    with pytest.raises(InputError, match=r"is a model of the family albert, .* of bert: use models that"):
        figure("mixing", [*paths(study, "*-dynamic-*", "joint1"), five], out)
    again = other.run(["pos", "dep"], 1, pruning="none", probe=False, name="again")
    other.model(again / "model", collaborative(1))
    with pytest.raises(InputError, match="both joint runs of seed 1"):
        figure("mixing", [*paths(study, "*-dynamic-*", "joint*"), again], out)
    with pytest.raises(InputError, match=r"holds no model \(no config.json\)"):
        figure("mixing", [*paths(study, "*-dynamic-*", "joint*"), tmp_path], out)
    assert not out.exists()
    derived = study.root / "runs" / "alone1" / "status.json"
    status = derived.read_text()
    derived.write_text(json.dumps(json.loads(status) | {"collaborated_from": "x", "components": 6}))
    try:
        figure("mixing", paths(study, "*-dynamic-*", "joint*", "alone1"), out)
    finally:
        derived.write_text(status)
    assert set(pl.read_csv(tmp_path / "mixing.csv")["models"]) == {"before", "joint", "joint less before"}
    capsys.readouterr()
    figure("mixing", paths(study, "*-dynamic-*", "joint*"), out)
    assert "note: no encoder before training" in capsys.readouterr().out
