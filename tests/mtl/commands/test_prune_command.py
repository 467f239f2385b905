"""`mtl prune`: runs and encoders, by masks, tables and names of heads; smaller or of the same shape."""

from __future__ import annotations

import itertools
import json
import logging
import re
from pathlib import Path

import polars as pl
import pytest
import torch
from transformers import AutoModel

from mtl.commands.common import heads_given
from mtl.commands.main import main
from mtl.errors import InputError
from mtl.heads.attentions import recorded_cuts
from mtl.heads.gate_file import read_masks
from mtl.heads.load import MASKS, load_pruned
from mtl.heads.tap import head_scale
from mtl.models.derived import gates_for
from mtl.models.encoder import Encoder
from mtl.models.joint import JointModel
from mtl.probes.sites import Site
from mtl.runs.folder.run import Run
from tests.mtl import tiny
from tests.mtl.commands.runs_for_commands import with_and_without_masks


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory, tiny_encoder: Path, toy: Path) -> Path:
    """A run without masks and one with a mask."""
    folder = tmp_path_factory.mktemp("prune")
    with_and_without_masks(tiny_encoder, toy, folder, "pos")
    return folder


def hidden(model: torch.nn.Module) -> torch.Tensor:
    ids, mask = tiny.batch()
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask).last_hidden_state * mask[..., None]


def test_a_run_of_the_same_shape_is_what_plain_transformers_loads(runs: Path, tmp_path: Path, capsys) -> None:
    masked = JointModel.from_pretrained(runs / "dynamic")
    gates, _ = gates_for(masked)
    with head_scale(masked.encoder.transformer.double(), gates):
        expected = hidden(masked.encoder.transformer)
    out = tmp_path / "closed"
    assert main(["prune", str(runs / "dynamic"), f"--out={out}", "--keep_shape=true"]) == 0
    text = capsys.readouterr().out
    assert "4 of 12 heads open, the others closed in weights of the same shape" in text
    assert f"AutoModel.from_pretrained loads {out}/model" in text
    plain = AutoModel.from_pretrained(out / "model", add_pooling_layer=False, dtype=torch.float64).eval()
    torch.testing.assert_close(hidden(plain), expected, rtol=0, atol=1e-7)
    assert main(["evaluate", str(out)]) == 0
    scores = Run.open(out).metrics()["dev"]["pos"]
    assert main(["prune", str(runs / "dynamic"), f"--out={tmp_path / 'cut'}"]) == 0
    assert Run.open(tmp_path / "cut").metrics()["dev"]["pos"] == scores


def test_plain_transformers_says_that_masks_are_missing(runs: Path, tmp_path: Path, caplog) -> None:
    folder = runs / "dynamic" / "model"
    assert "mtl prune RUN --keep_shape=true" in json.loads((folder / "config.json").read_text())[MASKS]
    with caplog.at_level(logging.WARNING, logger="transformers"):
        plain = AutoModel.from_pretrained(folder, add_pooling_layer=False)
    model = JointModel.from_pretrained(folder)
    again = load_pruned(folder)
    for loaded in (model.encoder.transformer, again):
        assert not hasattr(loaded.config, MASKS)
        assert torch.equal(hidden(loaded.eval()), hidden(plain.eval()))
    model.save(tmp_path / "again")
    again.save_pretrained(tmp_path / "bare")
    for written, said in ((folder, True), (tmp_path / "again", True), (tmp_path / "bare", False)):
        assert (MASKS in json.loads((written / "config.json").read_text())) == said
    assert MASKS not in json.loads((runs / "none" / "model" / "config.json").read_text())
    *_, report = AutoModel.from_pretrained(folder, output_loading_info=True)
    assert MASKS in report["unexpected_keys"]


def test_heads_are_cut_by_name_out_of_runs_and_encoders(
    runs: Path, tiny_encoder: Path, tmp_path: Path, capsys
) -> None:
    assert main(["prune", str(runs / "none"), f"--out={tmp_path / 'run'}", "--heads=L0H1, 2.3,L1"]) == 0
    assert "6 of 12 heads kept" in capsys.readouterr().out
    cut = JointModel.from_pretrained(tmp_path / "run").encoder.transformer
    assert recorded_cuts(cut.config) == {0: [1], 1: [0, 1, 2, 3], 2: [3]}
    words = ["prune", str(tiny_encoder), f"--out={tmp_path / 'encoder'}", "--heads=L0H1,L0H2"]
    assert main(words) == 0
    assert re.search(r"10 of 12 heads kept; encoder parameters [\d,]+ -> [\d,]+", capsys.readouterr().out)
    smaller = Encoder.from_pretrained(str(tmp_path / "encoder")).eval().transformer
    assert main([*words[:2], f"--out={tmp_path / 'same'}", words[3], "--keep_shape=true"]) == 0
    closed = AutoModel.from_pretrained(tmp_path / "same", add_pooling_layer=False).eval()
    torch.testing.assert_close(hidden(closed), hidden(smaller), rtol=0, atol=1e-6)
    # The run's own mask closes heads as well.
    dynamic = JointModel.from_pretrained(runs / "dynamic")
    gates, _ = gates_for(dynamic)
    first = int(gates[0].argmax())
    assert main(["prune", str(runs / "dynamic"), f"--out={tmp_path / 'more'}", f"--heads=L0H{first}"]) == 0
    assert f"{int((gates > 0.001).sum()) - int(gates[0, first] > 0.001)} of 12 heads kept" in (
        capsys.readouterr().out
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--heads=L3H0"], "--heads=L3H0: the model has layers 0 to 2 of heads 0 to 3"),
        (["--heads=0.4"], "--heads=0.4: the model has layers 0 to 2 of heads 0 to 3"),
        (
            ["--heads=first"],
            "--heads=first: write a head as L2H9 and a whole layer as L2, both counted from 0",
        ),
        (["--heads=L0H1,"], "--heads=L0H1,: write a head as L2H9"),
        (["--heads=cross.0.1"], "the model has no attention of kind cross: it has self"),
        (["--heads=L0H1", "--mask=m.parquet"], "--heads and --mask both say what to cut"),
        ([], "is an encoder, so it has no masks"),
    ],
)
def test_what_cannot_be_cut_is_one_line(
    words: list[str], said: str, tiny_encoder: Path, tmp_path: Path, capsys
) -> None:
    assert main(["prune", str(tiny_encoder), f"--out={tmp_path / 'out'}", *words]) == 2
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_names_with_kinds_of_attention() -> None:
    sites = [Site(kind, layer) for kind in ("encoder", "decoder", "cross") for layer in range(2)]
    given = heads_given("cross L1H3,cross.1.2,encoder.0.1,decoder L1", sites, 4)
    assert given == {0: [1], 3: [0, 1, 2, 3], 5: [2, 3]}
    of_kind = heads_given("cross L1H3,cross, Encoder.0.1", sites, 4)
    assert of_kind == {0: [1], 4: [0, 1, 2, 3], 5: [0, 1, 2, 3]}
    with pytest.raises(InputError, match="write a head as cross L2H9"):
        heads_given("L1H3", sites, 4)


def test_a_table_by_hand_says_all_that_it_lacks(runs: Path, tmp_path: Path, capsys) -> None:
    path = tmp_path / "by_hand.parquet"
    rows = list(itertools.product(["pos"], range(3), range(4)))
    table = pl.DataFrame(rows, schema=["task", "layer", "head"], orient="row").with_columns(
        gate=pl.when(pl.col("head") == 2).then(0).otherwise(1)
    )
    table.write_parquet(path)
    assert main(["prune", str(runs / "none"), f"--mask={path}", f"--out={tmp_path / 'cut'}"]) == 0
    assert "9 of 12 heads kept" in capsys.readouterr().out
    needed = ["task", "layer", "head", "gate"]
    for size in range(1, 5):
        for absent in itertools.combinations(needed, size):
            table.drop(absent).with_columns(other=1).write_parquet(path)
            with pytest.raises(InputError) as raised:
                read_masks(path)
            named = re.search(r"lacks the columns? ([a-z, ]+):", str(raised.value))
            assert named[1].split(", ") == list(absent)


@pytest.mark.parametrize("shape", [[], ["--keep_shape=true"]])
def test_the_output_says_whose_mask_was_applied(
    shape: list[str], runs: Path, tiny_encoder: Path, tmp_path: Path, capsys
) -> None:
    path = tmp_path / "chunks.parquet"
    rows = list(itertools.product(["chunks"], range(3), range(4)))
    table = pl.DataFrame(rows, schema=["task", "layer", "head"], orient="row")
    table = table.with_columns(gate=pl.when(pl.col("head") == 2).then(0).otherwise(1))
    table.write_parquet(path)
    tasks = ", ".join(JointModel.from_pretrained(runs / "none").tasks)
    done = "closed" if shape else "cut"
    for model, others in ((runs / "none", f", for a model of {tasks}\n"), (tiny_encoder, "\n")):
        out = tmp_path / f"of_{model.name}"
        assert main(["prune", str(model), f"--mask={path}", f"--out={out}", *shape]) == 0
        said = capsys.readouterr().out
        assert f"heads are {done} by the mask of chunks in {path}{others}" in said
    task = tasks.partition(",")[0]
    both = pl.concat([table, table.with_columns(task=pl.lit(task), gate=pl.lit(1))], how="vertical_relaxed")
    both.write_parquet(path)
    words = [f"--task={task}", f"--mask={path}", f"--out={tmp_path / 'own'}", *shape]
    assert main(["prune", str(runs / "none"), *words]) == 0
    assert f"by the mask of {task} in {path}\n" in capsys.readouterr().out
