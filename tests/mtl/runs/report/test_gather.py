"""`mtl report` on made-up folders of runs."""

from __future__ import annotations

import contextlib
import io
import itertools
import json
import re
import shutil
import time
from dataclasses import asdict
from html.parser import HTMLParser
from pathlib import Path

import polars as pl
import pytest
from matplotlib.figure import Figure
from rich.console import Console

from mtl.commands.report import report
from mtl.config.arguments import Arguments
from mtl.config.effective import plain
from mtl.config.schema import GatesConfig, TrainConfig
from mtl.errors import InputError
from mtl.probes.appearance import Appearance, ShownNames
from mtl.probes.report.head_maps import _side_by_side, head_map
from mtl.probes.report.report import report_page as made_page
from mtl.probes.sites import Site
from mtl.probes.tables import heads_table
from mtl.runs.compare.setups import setting_in_words, setups_of
from mtl.runs.figures.drawn import FigureWithTables
from mtl.runs.folder.run import Run
from mtl.runs.report.gather import ReportSource, gather, training_facts
from mtl.runs.report.write import write_files
from tests.conftest import undraw
from tests.kit.absent import needs
from tests.mtl.studies import SCORES, TASKS, Study
from tests.probes import worlds

pytestmark = pytest.mark.usefixtures("undrawn")


class Page(HTMLParser):
    """What a page contains, and what it would load."""

    def __init__(self, text):
        super().__init__()
        self.loaded, self.ids, self.unclosed, self.text = [], set(), [], []
        self.maps = 0
        self.feed(text)
        self.data = json.loads(re.search(r'id="data">(.*?)</script>', text, re.S)[1]) if self.maps else None

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        self.ids.add(attributes.get("id"))
        self.maps += attributes.get("class", "").split(" ")[0] == "map" if attributes.get("class") else 0
        self.loaded += [
            attributes[name]
            for name in ("src", "href", "data", "srcset", "action")
            if name in attributes and not attributes[name].startswith(("#", "data:"))
        ]
        if tag not in ("meta", "link", "input", "br", "img"):
            self.unclosed.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.handle_starttag(tag, attributes)
        self.unclosed.pop()

    def handle_endtag(self, tag):
        assert self.unclosed.pop() == tag, f"</{tag}> does not close what was opened last"

    def handle_data(self, data):
        if "script" not in self.unclosed and "style" not in self.unclosed:
            self.text.append(data)

    def says(self, text):
        return text in " ".join(" ".join(self.text).split())


def page_of(folder, **arguments):
    report(folder, **arguments)
    return Page((folder / "report.html").read_text(encoding="utf-8"))


@pytest.fixture
def study(tmp_path):
    return Study(tmp_path / "study")


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a study, its page, and what was printed."""
    folder = Study(tmp_path_factory.mktemp("whole") / "study").small()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stdout(io.StringIO()) as printed:
        undraw(patch)
        return folder, page_of(folder), printed.getvalue()


def test_the_signature_is_the_command_line():
    words = Arguments.of(report).read("mtl report", ["studies/a", "--split=dev"])
    assert {key: str(value) for key, value in words.items()} == {
        "folder": "studies/a", "out": "None", "split": "dev", "claims": "None", "palette": "",
        "colours": "None", "order": "()", "json_out": "None", "log": "False",
    }  # fmt: skip


def test_a_whole_study(whole):
    _, page, printed = whole
    assert page.unclosed == []
    assert {"scores", "masks", "overlap", "labels", "explorer", "provenance"} <= page.ids
    # 15 masks of single tasks, 15 of joint runs, five of three seeds, and their twins in grey, and the map
    # of claims; and that of losses where the laboratory is.
    assert page.maps == 41 + ("competition" in page.ids)
    assert page.says("18 runs of minilm , 2 setups, seeds 1, 2, 3; 3 layers of 4 heads")
    assert "report.html" in printed
    assert "note:" not in printed
    assert page.says("Corpus fingerprint: " + "f0" * 32)
    assert page.says("18 runs with python 3.11 torch 2.13 mtl 0.1.0")
    assert page.says(f"runs/{'-'.join(TASKS)}-dynamic-per_task-seed3")
    for task in TASKS:
        assert page.says(f"{task}2")


@pytest.mark.slow
def test_heads_that_a_target_forced_are_marked_wherever_claims_are_shown(study):
    """POS and DEP keep what they kept, and learned to keep two heads and one."""
    for seed in (1, 2, 3):
        for task, learned in (("pos", 2), ("dep", 1)):
            study.force(study.run([task], seed), {task: learned})
        study.run(["pos", "dep"], seed, pruning="none")
    page = page_of(study.root)
    tables = made_page(gather(study.root, "test", SCORES)).tables
    claims = tables["claims"]
    of_training = claims["claimed"] - claims["opened_by_force"]
    assert [*zip(claims["task"], of_training, strict=True)] == [("pos", 2), ("dep", 1)]
    claimed = dict(claims.select("task", "claimed").rows())
    assert min(claimed.values()) > 2
    words = f"pos {claimed['pos']} (training chose 2), dep {claimed['dep']} (training chose 1)"
    assert page.says(f"STL, dynamic: {words})")
    # A stroke through every open head but the learned ones.
    text = (study.root / "report.html").read_text(encoding="utf-8")
    assert len(re.findall(r" heads open, \d+ opened by force", text)) == 6
    strokes = [re.findall(r'class="forced open on-\w+" d="(.*?)"', svg) for svg in text.split("<svg")[1:]]
    per_map = {sum(part.count("M") for part in parts) for parts in strokes}
    forced = [
        int(last["open"].sum()) - learned
        for task, learned in (("pos", 2), ("dep", 1))
        for seed in (1, 2, 3)
        for table in [
            pl.read_parquet(study.root / "runs" / f"{task}-dynamic-shared-seed{seed}/gates.parquet")
        ]
        for last in [table.filter(pl.col("step") == 20)]
    ]
    assert set(forced) <= per_map
    assert page.says("opened and closed by force")
    assert sum(mask.count("x") for of in page.data["masks"] for mask in of["forced"]) == sum(forced)
    overlap = tables["overlap-STL-dynamic"].row(0, named=True)
    assert (overlap["learned_first"], overlap["learned_second"]) == (2, 1)
    assert overlap["open_first"] == claimed["pos"]


@pytest.mark.slow
def test_a_study_of_three_kinds_of_attention(tmp_path):
    """As one kind with as many layers; only the names of the layers are others."""
    flat, three = (Study(tmp_path / name, layers=6, heads=3) for name in ("flat", "three"))
    for made in (flat, three):
        made.static()
        for seed in (1, 2, 3):
            for tasks in (["pos"], ["dep"], ["pos", "dep"]):
                made.run(tasks, seed, scope="per_task")
    three.with_kinds()
    page, other = page_of(flat.root), page_of(three.root)
    assert other.says("2 encoder, 2 decoder and 2 cross layers of 3 heads")
    assert other.data.pop("sites") == [[kind, layer] for kind in worlds.KINDS for layer in (0, 1)]
    assert page.data.pop("sites") == [["self", layer] for layer in range(6)]
    for of in (page, other):
        assert len(set(of.data.pop("names"))) == 18
    assert other.data == page.data
    assert other.maps == page.maps
    name = next(text for text in other.text if re.match(r"(encoder|decoder|cross) L[01]H", text))
    assert not page.says(name)
    # A run of other kinds of attention is not compared, though it has as many layers.
    mixed = Study(tmp_path / "mixed", layers=6, heads=3)
    mixed.run(["pos"], 1)
    mixed.with_kinds()
    for seed in (2, 3):
        mixed.run(["pos"], seed)
    notes = gather(mixed.root, "test", SCORES).notes
    assert "runs/pos-dynamic-shared-seed1: masks of 2 encoder, 2 decoder and 2 cross layers of 3 heads, " in (
        "".join(notes)
    )


def test_nothing_is_loaded_from_elsewhere(whole):
    folder, page, _ = whole
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert page.loaded == []
    assert not re.search(r"@import|url\(|fetch\(|XMLHttpRequest|import\(", text)
    assert set(re.findall(r"https?://[^\"' ]+", text)) == {"http://www.w3.org/2000/svg"}


def test_scores_are_means_and_differences_over_common_seeds(study):
    for seed in (1, 2, 3):
        study.run(["dep"], seed)
    study.run(["pos", "dep"], 3)
    page = page_of(study.root)
    # 89.5 + seed / 4; joint 89 + 3 / 4, against the single run of seed 3.
    assert page.says("90.00 ± 0.25 (3)")
    assert page.says("89.75 \N{MINUS SIGN}0.50 ± – (1)")
    assert page.says("no scores of pos, dep in MTL-2, dynamic with seed 1, 2")


def test_the_explorer_knows_gates_and_values(whole):
    root, page, _ = whole
    [mask] = [
        each for each in page.data["masks"] if each["task"] == "dep" and each["setup"].startswith("STL")
    ]
    folder = root / "runs/dep-dynamic-shared-seed2"
    gates = pl.read_parquet(folder / "gates.parquet").filter(pl.col("step") == 20)["gate"]
    packed = mask["gates"][mask["seeds"].index(2)]
    assert [int(packed[2 * cell : 2 * cell + 2], 36) for cell in range(12)] == [
        round(100 * value) for value in gates
    ]
    place = page.data["labels"].index(["dep", "dep1", 60, True])
    heads = pl.read_parquet(root / "static/heads.parquet")
    value = heads.filter((pl.col("label") == "dep1") & (pl.col("measure") == "attention"))["value"]
    known = page.data["value"]["pretrained"][place]
    assert [int(known[2 * cell : 2 * cell + 2], 36) for cell in range(12)] == [round(100 * v) for v in value]
    skill = page.data["skill"]["pretrained"][place]
    assert [int(skill[2 * cell : 2 * cell + 2], 36) for cell in range(12)] == [
        round(100 * max(0, v - 0.3)) for v in value
    ]
    claims = {
        task: [int(x, 36) > 0 for x in re.findall("..", row)] for task, row in page.data["claims"].items()
    }
    assert claims.keys() == set(TASKS)


def test_setups_are_named_by_what_differs():
    def config(tasks, seed=1, pruning="none", **changes):
        return {"tasks": tasks, "seed": seed, "pruning": pruning, "name": f"{seed}", "lr": 1} | changes

    configs = [
        config(["pos"]), config(["dep"], seed=2), config(["pos"], pruning="dynamic"),
        config(["pos", "dep"]), config(["pos", "ner"]), config(["pos", "dep"], pruning="dynamic"),
        config(["pos", "dep", "ner"], lr=1, pruning="dynamic"),
        config(["pos", "dep", "ner"], lr=2, pruning="dynamic"),
    ]  # fmt: skip
    setups = setups_of(configs)
    assert [setup.name for setup in setups] == [
        "STL", "STL", "STL, dynamic", "MTL-2 pos+dep", "MTL-2 pos+ner", "MTL-2 pos+dep, dynamic",
        "MTL-3, dynamic, lr 1", "MTL-3, dynamic, lr 2",
    ]  # fmt: skip
    assert [setup.baseline for setup in setups] == [
        None, None, "STL", "STL", "STL", "STL, dynamic", "STL, dynamic", "STL, dynamic",
    ]  # fmt: skip


def test_a_joint_setup_is_compared_with_the_single_tasks_of_its_own_settings():
    def config(tasks, epochs, pruning="none", **gates):
        settings = TrainConfig(tasks=tasks, pruning=pruning, max_epochs=epochs, gates=GatesConfig(**gates))
        return plain(asdict(settings))

    pair, five = ("pos", "dep"), ("pos", "ner", "dep", "con", "srl")
    configs = [
        config(("pos",), 10), config(("pos",), 5), config(pair, 5), config(five, 5), config(five, 10),
        config(("pos",), 5, "dynamic", target_open=14.0), config(five, 5, "dynamic", target_open=22.0),
        config(five, 5, "fixed", masks="m.parquet"),
    ]  # fmt: skip
    assert [(setup.name, setup.baseline) for setup in setups_of(configs)] == [
        ("STL, 10 epochs", "STL, 5 epochs"), ("STL, 5 epochs", None), ("MTL-2", "STL, 5 epochs"),
        ("MTL-5, 5 epochs", "STL, 5 epochs"), ("MTL-5, 10 epochs", "STL, 10 epochs"),
        ("STL, dynamic, 5 epochs, target 14", "STL, 5 epochs"),
        ("MTL-5, dynamic, 5 epochs, target 22", "STL, dynamic, 5 epochs, target 14"),
        ("MTL-5, fixed, 5 epochs", "STL, 5 epochs"),
    ]  # fmt: skip


def test_runs_made_before_a_key_existed_are_of_the_setup_of_its_default():
    now = plain(asdict(TrainConfig(tasks=("dep",))))
    before = {key: value for key, value in now.items() if key not in ("importance_every", "cola")}
    before["corpus"] = {key: value for key, value in now["corpus"].items() if key != "cola"}
    other = now | {"importance_every": 2}
    names = [setup.name for setup in setups_of([now, before, other])]
    assert names == ["STL, importance every 0", "STL, importance every 0", "STL, importance every 2"]
    assert {setup.name for setup in setups_of([now, before])} == {"STL"}
    masked = now | {"pruning": "dynamic", "gates": now["gates"] | {"target_open": 9.0}}
    older = now | {"pruning": "dynamic", "gates": {"target_open": 24.0}}
    names = [setup.name for setup in setups_of([masked, older, before])]
    assert names == ["STL, dynamic, target 9", "STL, dynamic, target 24", "STL"]


@needs("translation")
def test_setups_with_targets_by_kind_are_named_by_kind():
    def config(**gates):
        return plain(asdict(TrainConfig(tasks=("translate",), pruning="dynamic", gates=GatesConfig(**gates))))

    configs = [
        config(target_open=24.0), config(target_open={"encoder": 8.0, "cross": 4.0}),
        config(target_open={"cross": 4.0}, penalty={"encoder": 0.5}),
    ]  # fmt: skip
    assert [setup.name for setup in setups_of(configs)] == [
        "STL, dynamic, target 24",
        "STL, dynamic, encoder target 8, cross target 4",
        "STL, dynamic, cross target 4, encoder penalty 0.5",
    ]


def test_an_empty_folder_and_none(tmp_path):
    with pytest.raises(InputError, match="is not a folder"):
        report(tmp_path / "none")
    with pytest.raises(InputError, match="holds no runs: give a folder of runs that 'mtl train' made"):
        report(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a/config.yaml").write_text("tasks: [")
    with pytest.raises(InputError, match=r"holds no runs \(.*a/config.yaml cannot be used"):
        report(tmp_path)
    assert not (tmp_path / "report.html").exists()


def test_runs_without_masks_and_probes(study):
    for seed in (1, 2):
        study.run(["pos"], seed, pruning="none", probe=False)
    page = page_of(study.root)
    assert page.maps == 0
    assert page.says("no run has masks: train with --pruning=dynamic")
    assert page.says("not probed (no heads.parquet; 'mtl probe' makes it)")
    assert page.says("89.88 ± 0.18 (2)")


def test_heads_that_nobody_probed_are_not_said_to_do_nothing(study):
    for seed, task in itertools.product((1, 2, 3), ("pos", "dep")):
        study.run([task], seed, probe=False)
    page = page_of(study.root)
    assert page.says("Nothing was probed, so what they do is not known")
    assert not page.says("does nothing that the probes find")


def test_a_mask_that_tasks_share_is_not_shown_as_that_of_each(study):
    for seed in (1, 2, 3):
        study.run(["pos", "dep"], seed, probe=False)
    page = page_of(study.root)
    assert page.says("Which heads the tasks keep together")
    assert not page.says("Which heads each task keeps")
    assert (
        " ".join(page.text).count("one mask, which these tasks share") == 2
    )  # the overlay, the masks of seeds


def test_probes_alone(study):
    study.static()
    page = page_of(study.root)
    assert page.says("0 runs of minilm")
    assert page.says("srl2")


@pytest.mark.slow
def test_what_cannot_be_used_is_left_out_and_said(study):
    study.small()
    study.run(["dep"], 4, encoder="bert-base")
    study.run(["pos"], 5, shape=(2, 4))
    study.run(["ner"], 1, name="again")
    damaged = study.run(["ner"], 6)
    (damaged / "gates.parquet").write_bytes(b"no")
    (damaged / "heads.parquet").write_bytes(b"no")
    (damaged / "metrics.json").write_text("{")
    other = study.run(["srl"], 7)
    study.probe(other, ["srl"], split="dev")
    absent = study.run(["con"], 8)
    study.probe(absent, ["con"], drop=["con1"])
    unmasked = study.run(["con"], 9)
    (unmasked / "gates.parquet").unlink()
    page = page_of(study.root)
    for note in (
        "dep-dynamic-shared-seed4 is of bert-base, most runs are of minilm",
        "pos-dynamic-shared-seed5: masks of 2 layers of 4 heads, most are of 3 layers of 4 heads: left out",
        "pos-dynamic-shared-seed5: probes of 2 layers of 4 heads, most are of 3 layers of 4 heads: left out",
        "repeats runs/again, seed and all: left out",
        "ner-dynamic-shared-seed6/gates.parquet: cannot be read",
        "ner-dynamic-shared-seed6/heads.parquet: cannot be read",
        "ner-dynamic-shared-seed6/metrics.json cannot be read (it is not JSON)",
        "srl-dynamic-shared-seed7 was probed with other settings (split=dev, not test): left out",
        "con-dynamic-shared-seed9 has no masks (no gates.parquet): left out",
    ):
        assert page.says(note), note
    # All masks but those of another encoder, of another shape and the damaged one; the map of
    # claims (and of losses), five of seeds.
    assert page.maps == 30 + 2 + 1 + 2 * 5 + ("competition" in page.ids)


def damaged_gates(folder, change):
    path = folder / "gates.parquet"
    change(pl.read_parquet(path)).write_parquet(path)


CONFIG = "{tasks: [dep], seed: 1, encoder: {name: minilm}, "


@pytest.mark.slow
@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (
            lambda run: (run / "config.yaml").write_text(CONFIG.replace("[dep]", "dep") + "}"),
            "config.yaml cannot be used (has no list of tasks",
        ),
        (
            lambda run: (run / "config.yaml").write_text(CONFIG + "corpus: here}"),
            "config.yaml cannot be used",
        ),
        (
            lambda run: damaged_gates(run, lambda table: table.with_columns(gate=pl.lit(float("nan")))),
            "gates.parquet: cannot be used (24 gates with a value",
        ),
    ],
)
def test_a_damaged_file_is_named_and_the_rest_shown(study, damage, said):
    study.small()
    damage(study.root / "runs/dep-dynamic-shared-seed1")
    page = page_of(study.root)
    assert page.says(said)
    assert page.says("STL, dynamic: no mask of dep with seed 1: that seed is left out of comparisons")


@pytest.mark.slow
def test_damaged_files_of_several_runs_are_all_named(study):
    study.small()
    damages = {
        "pos": (lambda run: (run / "status.json").write_text("[1]"), "status.json cannot be used"),
        "ner": (lambda run: (run / "status.json").write_text("{"), "status.json cannot be used (not JSON)"),
        "dep": (
            lambda run: (run / "config.yaml").write_text(CONFIG + "optimizer: fast}"),
            "config.yaml cannot be used",
        ),
        "con": (
            lambda run: damaged_gates(run, lambda table: table.with_columns(gate=None)),
            "gates.parquet: cannot be used (24 gates with",
        ),
        "srl": (lambda run: damaged_gates(run, lambda table: table.clear()), "gates.parquet is empty: left"),
    }
    for task, (damage, _) in damages.items():
        damage(study.root / f"runs/{task}-dynamic-shared-seed1")
    (study.root / "runs/pos-dynamic-shared-seed2/config.yaml").write_text("")
    page = page_of(study.root)
    for task, (_, said) in damages.items():
        assert re.search(rf"{task}-dynamic-shared-seed1/{re.escape(said)}", " ".join(page.text)), task
    assert page.says("pos-dynamic-shared-seed2/config.yaml cannot be used")
    assert page.says("STL, dynamic: no mask of pos with seed 2: that seed is left out of comparisons")


def test_versions_that_are_no_list_of_names_are_not_shown(study):
    folder = study.run(["dep"], 1)
    (folder / "status.json").write_text('{"state": "finished", "versions": [1]}')
    assert page_of(study.root).says("runs/dep-dynamic-shared-seed1")


@pytest.mark.slow
def test_probes_that_are_not_numbers_are_left_out(study):
    study.small()
    path = study.root / "runs/dep-dynamic-shared-seed1/heads.parquet"
    table, provenance = heads_table.read_heads_table(path)
    broken = pl.when((pl.col("layer") == 0) & (pl.col("head") == 0)).then(float("nan")).otherwise("value")
    heads_table.write_heads_table(path, table.with_columns(value=broken), provenance)
    page = page_of(study.root)
    assert page.says("dep-dynamic-shared-seed1/heads.parquet: 3 values are not numbers")


@pytest.mark.slow
def test_masks_that_a_target_forced_are_noted(study):
    study.small()
    forced, few = study.run(["pos", "dep"], 1, scope="per_task"), study.run(["ner"], 9)
    choices = {
        forced: {"open_at_choice": 8, "forced_open": 7, "forced_closed": 0},
        few: {"open_at_choice": 14, "forced_open": 1, "forced_closed": 0},
    }
    for folder, choice in choices.items():
        status = folder / "status.json"
        known = json.loads(status.read_text()) if status.exists() else {}
        status.write_text(json.dumps(known | {"choices": {"pos": choice}}))
    status = forced / "status.json"
    known = json.loads(status.read_text())
    by_kind = {"pos/encoder": choices[forced], "pos/cross": choices[forced]}  # of one mask
    status.write_text(json.dumps(known | {"choices": by_kind}))
    note = (
        f"1 mask ({forced.name}): training had not decided which 15 heads to keep, so 7 heads of each were "
        "set at its end"
    )
    assert page_of(study.root).says(note)
    status.write_text(json.dumps(known))
    page = page_of(study.root)
    # 7 of 15 wanted; the other run's 1 of 15 is less than a tenth.
    assert page.says(note)


@pytest.mark.slow
def test_a_mask_that_lacks_heads_is_left_out(study):
    study.small()
    folder = study.run(["pos", "dep"], 1, scope="per_task")
    gates = pl.read_parquet(folder / "gates.parquet")
    gates.filter((pl.col("head") > 0) | (pl.col("layer") > 0)).write_parquet(folder / "gates.parquet")
    page = page_of(study.root)
    assert page.says("the mask of pos has 11 heads, not 3 layers of 4 heads: left out")
    assert page.says("the mask of dep has 11 heads, not 3 layers of 4 heads: left out")
    assert page.maps == 41 + ("competition" in page.ids)


@pytest.mark.slow
def test_runs_of_several_setups_that_are_taken_together_are_said(study):
    study.small()
    study.run(["dep"], 1, pruning="none")
    study.run(["dep", "pos"], 1)
    study.run(["dep", "ner"], 1)
    page = page_of(study.root)
    assert page.says("probes of stl runs are means over 2 setups: STL; STL, dynamic")
    assert not page.says("probes of joint runs")
    assert not page.says("probes of pair runs")
    assert page.says("the MTL-2 runs have no probes of con")


def with_static_masks(study):
    """Also single-task runs with masks learned after training, and joint ones with one mask for all."""
    study.small()
    for seed in (1, 2, 3):
        for task in TASKS:
            study.run([task], seed, pruning="static", probe=False)
    return study.root


@pytest.mark.slow
def test_the_claims_that_decide_can_be_chosen(study):
    folder = with_static_masks(study)
    assert page_of(folder).says("in more than half of the seeds (STL, dynamic:")
    assert page_of(folder, claims="STL, static").says("in more than half of the seeds (STL, static:")
    with pytest.raises(
        InputError, match=r"setup in --claims: 'STL statc': did you mean 'STL, static'\? .* STL, dynamic;"
    ):
        report(folder, claims="STL statc")
    study.run(["pos", "dep"], 1, scope="shared")
    with pytest.raises(
        InputError, match="--claims=MTL-2, dynamic, one mask has no masks of several tasks; use one of"
    ):
        report(folder, claims="MTL-2, dynamic, one mask")


def test_claims_of_runs_without_masks(study):
    study.run(["pos"], 1, pruning="none")
    with pytest.raises(InputError, match="no setup here has masks of several tasks"):
        report(study.root, claims="STL")


@pytest.mark.slow
def test_joint_masks_that_were_chosen_are_said_to_be_of_joint_runs(study):
    page = page_of(study.small(), claims="MTL-5, dynamic")
    assert page.says("claims are those of MTL-5, dynamic, whose runs are joint runs")


def test_masks_of_joint_runs_where_no_task_has_its_own(study):
    study.run(TASKS, 1, scope="per_task")
    assert page_of(study.root).says("no single-task run has masks: claims are those of MTL-5, dynamic")


def test_a_label_that_joint_runs_lack(study):
    study.static()
    for seed in (1, 2, 3):
        study.run(["dep"], seed)
        study.probe(study.run(TASKS, seed, scope="per_task"), TASKS, joint=True, drop=["dep1"])
    page = page_of(study.root)
    assert page.says("the MTL runs have no dep label dep1")
    place = page.data["labels"].index(["dep", "dep1", 60, True])
    assert page.data["value"]["joint"][place] is None
    assert page.data["value"]["stl"][place] is not None


@pytest.mark.slow
def test_runs_that_nobody_wanted_to_probe_are_not_missed(study):
    study.small()
    folder = study.run(["dep"], 1, pruning="none", probe=False)

    def notes(**arguments):
        return gather(study.root, "test", SCORES, **arguments).notes

    assert any(note.startswith("not probed") for note in notes())
    assert not any(note.startswith("not probed") for note in notes(not_to_probe={folder}))


@pytest.mark.parametrize("text", ['{"test": 3}', '{"test": {"dep": {"las": "high"}}}'])
def test_scores_of_another_form_are_noted(study, text):
    (study.run(["dep"], 1) / "metrics.json").write_text(text)
    data = gather(study.root, "test", SCORES)
    assert data.scores.is_empty()
    assert any("dep-dynamic-shared-seed1/metrics.json cannot be read (" in note for note in data.notes)


def test_a_bug_is_no_damaged_file(study, monkeypatch):
    """An error that no damaged file raises is not taken for a damaged file."""
    study.run(["dep"], 1)

    def broken(run):
        raise ZeroDivisionError

    monkeypatch.setattr("mtl.runs.compare.comparable.encoder_of", broken)
    with pytest.raises(ZeroDivisionError):
        gather(study.root, "test", SCORES)


def test_the_page_explains_its_words_and_shows_three_seeds_first(whole):
    folder, page, _ = whole
    text = (folder / "report.html").read_text(encoding="utf-8")
    for word in ("STL", "MTL-n", "dynamic, static", "claim", "skill"):
        assert f"<dt>{word}</dt>" in text
    first, words = text.index('id="seeds"'), text.index("<dt>STL</dt>")
    assert first < text.index('id="kept"') < words < text.index('id="scores"')
    assert page.says("Each map puts three masks on top of each other, one for each seed (STL, dynamic)")
    assert page.says("from left to right, the thirds of a head are seed 1, seed 2, seed 3")
    assert page.says("score against open heads") or "score against open heads" in text
    assert "scores on dev while training" in text


@pytest.mark.slow
def test_a_history_that_cannot_be_read_is_noted(study):
    study.small()
    (study.root / "runs/dep-dynamic-shared-seed1/history.csv").unlink()
    assert page_of(study.root).says(
        "runs/dep-dynamic-shared-seed1/history.csv cannot be read: no learning curve of this run"
    )


def test_a_run_that_was_cut_has_no_history_and_no_note_about_it(study):
    study.small()
    source = study.root / "runs/dep-dynamic-shared-seed1"
    run = Run(source.with_name("cut"))
    shutil.copytree(source, run.folder)
    for name in ("history.csv", "gates.parquet"):
        (run.folder / name).unlink()
    run.update_status({"cut_from": str(source), "heads_kept": 2})
    report = gather(study.root, "test", SCORES)
    assert report.kept.table.filter(pl.col("run") == str(run.folder))["kept"].to_list() == [2]
    noise = [note for note in report.notes if re.search("no masks|history|repeats", note)]
    assert noise == []
    setups = report.scores.select("setup", "run").unique().rows()
    assert any(setup == "STL, dynamic, cut" and name.endswith("cut") for setup, name in setups)
    assert any(name.endswith("dep-dynamic-shared-seed1") for _, name in setups)  # no repeat of its cut model


def test_every_size_of_a_run_that_was_cut_to_several_is_a_setup(study):
    study.small()
    for seed in (1, 2):
        source = study.root / f"runs/dep-dynamic-shared-seed{seed}"
        for heads in (2, 1):
            cut = shutil.copytree(source, source.with_name(f"cut{heads}-seed{seed}"))
            for name in ("history.csv", "gates.parquet"):
                (cut / name).unlink()
            Run(cut).update_status({"cut_from": str(source), "heads_kept": heads})
    report = gather(study.root, "test", SCORES)
    of_cut = report.scores.filter(pl.col("run").str.contains("/cut"))
    seeds = dict(of_cut.group_by("setup").agg("seed").rows())
    assert {setup: sorted(of) for setup, of in seeds.items()} == {
        "STL, dynamic, cut, 2 heads kept": [1, 2],
        "STL, dynamic, cut, 1 head kept": [1, 2],
    }
    assert not [note for note in report.notes if "repeats" in note]
    kept = report.kept.table.filter(pl.col("run").str.contains("/cut"))
    assert sorted(kept["kept"]) == [1, 1, 2, 2]
    assert kept["setup"].n_unique() == 1  # the figure joins the sizes of a setup by a line


def test_cut_runs_of_several_seeds_are_one_setup_whatever_their_sizes(study):
    study.small()
    for seed in (1, 2):
        source = study.root / f"runs/dep-dynamic-shared-seed{seed}"
        cut = shutil.copytree(source, source.with_name(f"cut-seed{seed}"))
        Run(cut).update_status({"cut_from": str(source), "heads_kept": seed})
    setups = gather(study.root, "test", SCORES).scores.filter(pl.col("run").str.contains("/cut"))["setup"]
    assert setups.to_list() == ["STL, dynamic, cut"] * 2


def test_runs_of_one_seed_that_start_from_runs_of_two_do_not_repeat_each_other(study):
    sources = [study.run(["dep"], seed, pruning="none") for seed in (1, 2)]
    for name, source in zip(("a", "b", "copy"), (*sources, sources[0]), strict=True):
        study.run(["dep"], 1, pruning="static", name=name, init_from=str(source))
    report = gather(study.root, "test", SCORES)
    assert {"a", "b"} == {Path(run).name for run in report.scores["run"]} - {run.name for run in sources}
    assert [note for note in report.notes if "repeats" in note] == [
        "runs/copy repeats runs/a, seed and all: left out"
    ]


@pytest.mark.parametrize("place", ["s", "."])
def test_notes_name_runs_by_their_place_in_the_folder(study, monkeypatch, place):
    study.small()
    run = Run(study.run(["dep"], 7))
    run.update_status({"state": "running"})
    root = study.root.rename(study.root.with_name("s"))
    monkeypatch.chdir(root if place == "." else root.parent)
    notes = gather(Path(place), "test", SCORES).notes
    assert f"runs/{run.folder.name} is not finished (running): left out" in notes


def test_dots_that_would_touch_are_moved_aside_and_no_others():
    assert _side_by_side([10.0, 50.0, 90.0], 6.0, 30.0) == [0, 0, 0]
    assert _side_by_side([10.0, 12.0, 13.0, 40.0], 6.0, 30.0) == [0, 6, -6, 0]


def test_settings_in_words_are_never_the_same():
    keys = [
        "max_epochs", "gates.penalty", "gates.scope", "gates.target_open", "batch.sentences", "dep.dropout",
        "optimizer.encoder_lr", "a.b_c", "balancer", "gates.penalty.cross", "gates.target_open.cross",
        "gates.target_open.encoder",
    ]  # fmt: skip
    values = ["1", "2", "True", "False", "None", "none", "shared", "per_task"]
    words = [setting_in_words(key, value) for key in keys for value in values]
    assert len(set(words)) == len(words)
    assert setting_in_words("max_epochs", "1") == "1 epoch"
    assert setting_in_words("gates.scope", "per_task") == "a mask per task"
    assert setting_in_words("gates.target_open.cross", "8.0") == "cross target 8"


def test_texts_are_escaped(study):
    study.run(["dep"], 1, name="<b>&run")
    page = page_of(study.root)
    assert page.unclosed == []
    assert "<b>&run" not in (study.root / "report.html").read_text(encoding="utf-8")


@pytest.mark.slow
def test_sixty_runs_are_small_and_fast(tmp_path):
    study = Study(tmp_path / "sixty", 12, 12, labels=None)
    folder = study.sixty()
    assert len(list((folder / "runs").iterdir())) == 60
    start = time.process_time()
    page_of(folder)
    assert time.process_time() - start < 15
    assert (folder / "report.html").stat().st_size < 2_000_000


@pytest.mark.slow
def test_the_same_runs_give_the_same_page(whole, tmp_path):
    folder, *_ = whole
    report(folder, tmp_path / "again.html")
    assert (tmp_path / "again.html").read_bytes() == (folder / "report.html").read_bytes()


def test_a_head_map_draws_every_head_in_its_shade():
    values = pl.Series([0.0, 1.0, 1.0, 0.5, -0.5, float("nan")]).to_numpy().reshape(2, 3)
    drawn = str(head_map(values, (Site("self", 0), Site("self", 1)), "a <map>"))
    assert 'class="up" fill-opacity="1" d="M1 0h2v1h-2z"' in drawn
    assert 'class="up" fill-opacity="0.5" d="M0 1h1v1h-1z"' in drawn
    assert 'class="down" fill-opacity="0.5" d="M1 1h1v1h-1z"' in drawn
    assert drawn.count("<path") == 4
    assert 'aria-label="a &lt;map&gt;"' in drawn


def test_the_same_tasks_in_another_order_are_a_repetition(study):
    """Otherwise one seed would count with two runs."""
    study.run(["pos", "dep"], 1, pruning="none", name="a")
    study.run(["dep", "pos"], 1, pruning="none", name="b")
    report = gather(study.root, "test", SCORES)
    assert report.scores["run"].n_unique() == 1
    assert "runs/b repeats runs/a, seed and all: left out" in [
        note.replace(f"{study.root}/", "") for note in report.notes
    ]


def test_answers_on_undertrained_runs_say_so_where_they_are_printed(study, capsys):
    study.run(["pos"], 1, pruning="none")
    report(study.root)
    assert "undertrained, scores on dev still rise: STL (pos +20.0)\n" in capsys.readouterr().out


def test_what_a_figure_of_the_report_leaves_out_is_printed(study):
    study.run(["pos"], 1, pruning="none")
    printed = io.StringIO()
    drawn = FigureWithTables(Figure(), ("two runs were left out",))
    made = made_page(gather(study.root, "test", SCORES))
    looks, console = ShownNames(Appearance()), Console(file=printed, width=300)
    write_files(ReportSource(study.root), made, {"curve": lambda: drawn}, console, looks)
    assert "note: figure curve: two runs were left out\n" in printed.getvalue()


def test_rates_by_task_are_shown_with_their_tasks():
    config = {
        "tasks": ["pos", "dep"], "encoder": {"name": "minilm"},
        "optimizer": {"encoder_lr": 1e-5, "decoder_lr": {"pos": 0.002, "dep": 0.01}},
    }  # fmt: skip
    assert training_facts(config, {})[-1] == "1e-05, pos 0.002 dep 0.01"


def test_masks_of_what_was_not_learned_claim_nothing(study):
    """POS alone scores what one label for all words does, with one seed; NER alone scores 0 with all."""
    study.small()
    for path in sorted(study.root.glob("runs/*/metrics.json")):
        metrics = json.loads(path.read_text())
        alone, seed = len(metrics["test"]) == 1, path.parent.name[-1]
        for scores in metrics.values():
            for task, of_task in scores.items():
                same = of_task[SCORES[task]] - (0.0 if alone and seed == "2" else 5.0)
                of_task |= {"majority": same, "chance": 20.0} if task == "pos" else {}
                if task == "ner" and alone:
                    of_task[SCORES[task]] = 0.0
        path.write_text(json.dumps(metrics))
    data = gather(study.root, "test", SCORES)
    masks = set(data.gates.filter(pl.col("setup") == "STL, dynamic").select("task", "seed").iter_rows())
    assert masks == {
        (task, seed) for task in TASKS for seed in (1, 2, 3) if task != "ner" and (task, seed) != ("pos", 2)
    }
    jointly = data.gates.filter(pl.col("setup") != "STL, dynamic")
    assert jointly.select("task", "seed").n_unique() == 3 * len(TASKS)
    why = ": such masks claim no head and are left out"
    assert f"pos in STL, dynamic: nothing was learned with seed 2{why}" in data.notes
    assert f"ner in STL, dynamic: nothing was learned with seed 1, 2, 3{why}" in data.notes
    assert data.same_answer["pos"]["chance"] == 20.0
    page = made_page(data)
    assert "ner" not in set(page.tables["claims"].filter(setup="STL, dynamic")["task"])
    assert not [
        name for name in page.tables if name.startswith("overlap-STL") and "ner" in str(page.tables[name])
    ]
    assert "Without a look at the input: one label for all items scores" in page.html
    assert any(
        "labels drawn at their frequencies score 20.00 in pos" in note
        for note in page.about["scores-by-setup"].notes
    )
