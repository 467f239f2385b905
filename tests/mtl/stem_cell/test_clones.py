"""Heads copied before a training, and the runs that train them."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import pytest
import torch

from mtl.commands.main import main
from mtl.config.effective import counting_settings, different_keys, only_used, plain
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.heads.records import recorded_copies
from mtl.models.joint import JointModel
from mtl.probes.tables import heads_table
from mtl.stem_cell.claims_file import Claims, read_claims, write_claims
from mtl.stem_cell.clones import CopiedHead, describe_clones, planned_copies, swapped
from mtl.stem_cell.clones_start import ClonesConfig
from mtl.training.check import check_settings

THERE = [tuple(range(6))] * 3
CLAIMS = Claims(
    (3, 6),
    {"pos": ((0, 1), (2, 0), (2, 3)), "dep": ((0, 1), (0, 2), (2, 3), (2, 0)), "con": ((2, 0), (1, 1))},
)


def plan(tasks: tuple[str, ...] = ("pos", "dep"), **settings: object) -> list[CopiedHead]:
    return planned_copies(CLAIMS, THERE, tasks, ClonesConfig(claims="FILE", **settings))


def test_contested_heads_are_copied_once_per_claimant() -> None:
    pair = (("pos",), ("dep",))
    assert plan() == [CopiedHead(0, 1, pair), CopiedHead(2, 0, pair), CopiedHead(2, 3, pair)]
    assert plan(("pos", "dep", "con")) == [
        CopiedHead(0, 1, (("pos", "con"), ("dep",))),
        CopiedHead(2, 0, (("pos",), ("dep",), ("con",))),
        CopiedHead(2, 3, (("pos", "con"), ("dep",))),
    ]


def test_the_placebo_is_as_many_uncontested_heads_of_the_same_layers() -> None:
    drawn = set()
    for seed in range(30):
        placebo = plan(("pos", "dep", "con"), heads="uncontested", seed=seed)
        assert placebo == plan(("pos", "dep", "con"), heads="uncontested", seed=seed)
        assert sorted((copied.layer, len(copied.groups)) for copied in placebo) == [(0, 2), (2, 2), (2, 3)]
        assert not {(copied.layer, copied.head) for copied in placebo} & {(0, 1), (2, 0), (2, 3)}
        drawn |= {(copied.layer, copied.head) for copied in placebo}
    # All others of the two layers come up, claimed by one task or by none.
    assert drawn == {(0, 0), (0, 2), (0, 3), (0, 4), (0, 5), (2, 1), (2, 2), (2, 4), (2, 5)}


def test_a_transplant_and_its_placebo_lose_the_same_heads_which_nobody_claims() -> None:
    for seed in range(20):
        contested = plan(kind="transplant", seed=seed)
        placebo = plan(kind="transplant", heads="uncontested", seed=seed)
        assert [(copied.layer, copied.head) for copied in contested] == [(0, 1), (2, 0), (2, 3)]
        lost = {(copied.layer, head) for copied in contested for head in copied.onto}
        assert lost == {(copied.layer, head) for copied in placebo for head in copied.onto}
        assert len(lost) == 3
        assert not lost & {(0, 1), (0, 2), (2, 0), (2, 3)}
        assert not lost & {(copied.layer, copied.head) for copied in placebo}
        assert not {(copied.layer, copied.head) for copied in placebo} & {(0, 1), (2, 0), (2, 3)}


def test_what_cannot_be_planned_is_one_line() -> None:
    with pytest.raises(InputError, match="no head is claimed by two of pos, ner"):
        planned_copies(
            Claims((3, 6), {"pos": ((0, 1),), "ner": ()}), THERE, ("pos", "ner"), ClonesConfig(claims="FILE")
        )
    every = tuple((0, head) for head in range(4))
    crowded = Claims((1, 6), {"pos": every, "dep": every})
    with pytest.raises(InputError, match=r"L0 has 2 heads for the placebo .*, and 4 are needed"):
        planned_copies(crowded, THERE, ("pos", "dep"), ClonesConfig(claims="FILE", heads="uncontested"))
    with pytest.raises(InputError, match=r"L0 has 2 heads that no task claims, .*, and 4 are needed"):
        planned_copies(crowded, THERE, ("pos", "dep"), ClonesConfig(claims="FILE", kind="transplant"))
    with pytest.raises(InputError, match="L0H1 is claimed, but it has been cut out"):
        planned_copies(CLAIMS, [(0, 2)] * 3, ("pos", "dep"), ClonesConfig(claims="FILE"))


def test_claims_are_written_and_read(tmp_path: Path) -> None:
    path = tmp_path / "claims.json"
    write_claims(path, CLAIMS, {"pos": ["pos-1"]})
    assert read_claims(path, ("pos", "dep"), (3, 6)).of_task["dep"] == ((0, 1), (0, 2), (2, 0), (2, 3))
    assert json.loads(path.read_text())["runs"] == {"pos": ["pos-1"]}
    with pytest.raises(InputError, match="no claims of srl, only of pos, dep, con"):
        read_claims(path, ("srl",), (3, 6))
    with pytest.raises(InputError, match="3 layers of 6 heads, and the encoder has 6 layers of 12"):
        read_claims(path, ("pos",), (6, 12))
    with pytest.raises(InputError, match="no such file"):
        read_claims(tmp_path / "none.json", ("pos",), (3, 6))
    path.write_text('{"layers": 3, "heads": 6, "claims": {"pos": [[3, 0]]}}')
    with pytest.raises(InputError, match="pos claims L3H0, which does not exist"):
        read_claims(path, ("pos",), (3, 6))
    path.write_text("[]")
    with pytest.raises(InputError, match="is not a file of claims"):
        read_claims(path, ("pos",), (3, 6))


def test_settings_that_a_run_does_not_use_do_not_count() -> None:
    def of(**settings: object) -> dict[str, object]:
        config = TrainConfig(tasks=("pos", "dep"), clones=ClonesConfig(**settings))
        return plain(dataclasses.asdict(only_used(config)))

    assert different_keys(of(), of(seed=3, noise=0.5, claims="x")) == []
    assert different_keys(of(kind="rows"), of(kind="rows", heads="all", claims="x")) == []
    assert different_keys(of(kind="routed", noise=0.1), of(kind="routed", seed=4)) == []
    assert different_keys(
        of(kind="routed", heads="uncontested"), of(kind="routed", heads="uncontested", seed=4)
    ) == ["clones.seed"]
    assert different_keys(of(kind="split"), of(kind="split", noise=0.1)) == ["clones.noise"]
    assert counting_settings(of(kind="split", claims="x")) == {
        "tasks": ["pos", "dep"],
        "clones.kind": "split",
        "optimizer.encoder_lr": 3e-4,
        "optimizer.decoder_lr": 2e-3,
    }


@pytest.fixture(scope="module")
def claims(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of an encoder of 3 layers of 4 heads."""
    path = tmp_path_factory.mktemp("claims") / "claims.json"
    write_claims(path, Claims((3, 4), {"pos": ((0, 1), (2, 2)), "dep": ((0, 1), (2, 2), (1, 0))}), {})
    return path


@pytest.fixture
def words(toy: Path, tiny_encoder: Path, tmp_path: Path, claims: Path) -> list[str]:
    return [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--name=run",
        "--tasks=pos,dep", "--max_epochs=1", "--trainer.accelerator=cpu", f"--clones.claims={claims}",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("settings", "copies", "routed"),
    [
        pytest.param(["rows"], {}, True, marks=pytest.mark.slow),
        pytest.param(["routed"], {0: {4: 1}, 2: {4: 2}}, True, marks=pytest.mark.slow),
        pytest.param(
            ["routed", "all"], {layer: {4 + head: head for head in range(4)} for layer in range(3)}, True,
            marks=pytest.mark.slow,
        ),
        (["shuffled"], {0: {4: 1}, 2: {4: 2}}, True),
        pytest.param(["split"], {0: {4: 1}, 2: {4: 2}}, False, marks=pytest.mark.slow),
    ],
)  # fmt: skip
def test_runs_train_with_copies(
    words: list[str], settings: list[str], copies: dict[int, dict[int, int]], routed: bool, tmp_path: Path
) -> None:
    words += [f"--clones.kind={settings[0]}", *(f"--clones.heads={heads}" for heads in settings[1:])]
    assert main(words) == 0
    model = JointModel.from_pretrained(tmp_path / "run")
    assert recorded_copies(model.encoder.transformer.config) == copies
    assert (model.routes is not None) == routed
    assert model.reassign is None
    assert main(["evaluate", str(tmp_path / "run"), "--split=dev"]) == 0
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert set(metrics["test"]) == {"pos", "dep"}
    assert main(words) == 0  # finished already


def test_what_was_copied_is_said_by_the_heads_names_and_by_what_was_learned(tmp_path: Path) -> None:
    copied = [CopiedHead(2, 1, (("pos",), ("dep",)))]
    config = ClonesConfig(kind="split", claims=str(tmp_path / "claims.json"))
    of_task = {"pos": ((2, 1),), "dep": ((2, 1), (0, 0))}
    for learned, told in (
        (None, ""),
        ({"pos": ((2, 1),), "dep": ((0, 0),)}, "; heads contested by learned claims alone: 0"),
    ):
        write_claims(tmp_path / "claims.json", Claims((3, 4), of_task, learned), {})
        said = describe_clones(copied, config, ("pos", "dep"))
        assert said == f"clones: split, contested: 1 head: L2H1 x 2{told}"


def test_sets_of_heads_are_swapped_at_random() -> None:
    routes = torch.eye(2)[:, None]
    torch.manual_seed(0)
    drawn = [swapped(routes) for _ in range(20)]
    flipped = [torch.equal(each, routes.flip(0)) for each in drawn]
    assert 4 < sum(flipped) < 16
    assert all(flip or torch.equal(each, routes) for flip, each in zip(flipped, drawn, strict=True))


def test_a_transplanted_run_has_no_more_parameters(words: list[str], tmp_path: Path, capsys) -> None:
    assert main([*words, "--clones.kind=transplant"]) == 0
    assert "clones: transplant, contested: 2 heads: L0H1 onto L0H" in capsys.readouterr().out
    model = JointModel.from_pretrained(tmp_path / "run")
    assert [set(heads.values()) for heads in recorded_copies(model.encoder.transformer.config).values()] == [
        {1},
        {2},
    ]
    assert model.encoder.heads == 4
    assert model.routes is None


@pytest.mark.slow
def test_routed_copies_are_gated_probed_and_measured(words: list[str], tmp_path: Path, capsys) -> None:
    masks = ["--pruning=dynamic", "--gates.scope=per_task", "--gates.target_open=0.5"]
    assert main([*words, "--clones.kind=routed", *masks]) == 0
    run = tmp_path / "run"
    model = JointModel.from_pretrained(run)
    assert model.gates is not None
    assert model.gates.present == 14
    assert model.gates.open().sum((1, 2)).tolist() == [7, 7]
    assert not model.gates.open()[:, 1, 4].any()
    for command in (["probe"], ["importance"], ["relevance", "--sentences=4"], ["ablate", "--sentences=4"]):
        assert main([command[0], str(run), *command[1:]]) == 0
    table, _ = heads_table.read(run / "heads.parquet")
    for task, other in (("pos", 4), ("dep", 1)):  # the other task's copy of head 1 of layer 0
        worth = table.filter(task=task, layer=0, head=other)
        for measure in ("importance", "relevance"):
            assert worth.filter(measure=measure)["value"].to_list() == [0.0]
        assert set(worth.filter(measure="ablation")["value"]) == {0.0}
    assert set(table.filter(measure="ablation", layer=1)["head"]) == {0, 1, 2, 3}
    assert main(["prune", str(run), f"--out={tmp_path / 'cut'}", "--task=dep"]) == 0
    assert JointModel.from_pretrained(tmp_path / "cut").routes is None
    capsys.readouterr()
    assert (
        main([*words[:-1], "--name=on", f"--from={run}", "--clones.kind=routed", "--clones.heads=all"]) == 2
    )
    assert "start from another run" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["--clones.kind=routed", "--tasks=pos"], "is for two tasks or more"),
        (["--clones.kind=routed", "--clones.claims=null"], "use clones.claims=FILE"),
        (["--clones.kind=transplant", "--clones.heads=all"], "needs heads to overwrite"),
        (["--clones.kind=rows", "--gradient_conflict_every=2"], "clones.kind that makes a row per task"),
        (["--clones.kind=routed", "--tasks=pos,con"], "has no claims of con, only of pos, dep"),
        (["--clones.noise=2"], "clones.noise=2.0: use a number from 0 to 1"),
    ],
)
def test_bad_settings_are_one_line(words: list[str], settings: list[str], message: str, capsys) -> None:
    assert main([*words, *settings]) == 2
    error = capsys.readouterr().err
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"clones": ClonesConfig("rows"), "pruning": "static"}, "starts from a trained model: use one of"),
        ({"gradient_conflict_every": 2, "pruning": "gates_only"}, "gates_only freezes: leave one out"),
    ],
)
def test_settings_that_exclude_each_other_are_refused(settings: dict[str, Any], message: str) -> None:
    config = TrainConfig(tasks=("pos", "dep"), init_from="x", **settings)
    with pytest.raises(InputError, match=message):
        check_settings(config)


def test_a_family_that_cannot_be_cut_is_one_line(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from tests.mtl import tiny

    tiny.encoder("albert", dtype=torch.float32).save(tmp_path / "albert")
    (tmp_path / "albert" / "encoder.json").unlink()
    assert main([*words, f"--encoder.name={tmp_path / 'albert'}", "--clones.kind=routed"]) == 2
    assert "no heads can be copied in AlbertModel: one attention module" in capsys.readouterr().err
