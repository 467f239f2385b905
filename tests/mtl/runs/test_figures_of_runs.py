"""`mtl figure` on run folders made by hand."""

from __future__ import annotations

import itertools
import json
import re
from pathlib import Path
from pkgutil import resolve_name
from shutil import copytree

import numpy as np
import polars as pl
import pytest
import yaml
from PIL import Image

from mtl.commands.help import help_of
from mtl.commands.main import main
from mtl.commands.report import figure
from mtl.config.arguments import Arguments
from mtl.errors import InputError
from mtl.heads.gates import gate_table
from mtl.probes.tables import heads_table
from mtl.runs.figures.drawn import save
from mtl.runs.figures.table import FIGURES, draw
from mtl.runs.folder.run import Run
from tests.mtl.studies import Study

LAYERS, HEADS = 2, 3


class Folders:
    """Makes run folders with only the files that figures read."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.random = np.random.default_rng(0)

    def run(
        self, tasks, seed=1, *, encoder="minilm", gates=True, scope="per_task", heads=HEADS, init_from=None
    ):
        folder = self.root / f"{'-'.join(tasks)}-{scope}-{encoder}-{seed}-{gates}-{heads}-{init_from is None}"
        folder.mkdir()
        config = {"tasks": tasks, "seed": seed, "encoder": {"name": encoder}, "init_from": init_from}
        (folder / "config.yaml").write_text(yaml.safe_dump(config | {"gates": {"scope": scope}}))
        scores = {"pos": "accuracy", "dep": "las", "ner": "f1", "con": "f1", "srl": "f1"}
        metrics = {"test": {task: {scores[task]: 90.0 - seed} for task in tasks}}
        (folder / "metrics.json").write_text(json.dumps(metrics))
        if gates:
            self.gates(tasks, scope, heads).write_parquet(folder / "gates.parquet")
        return folder

    def gates(self, tasks, scope, heads):
        rows = []
        for step in (10, 20):
            shared = self.random.random((LAYERS, heads))
            for task in tasks:
                gate = shared if scope == "shared" else self.random.random((LAYERS, heads))
                for (layer, head), each in np.ndenumerate(np.where(gate < 0.4, 0, gate)):
                    place = {"task": task, "step": step, "attention": "self", "layer": layer, "head": head}
                    rows.append(place | {"log_alpha": 0.0, "gate": float(each), "open": bool(each > 1e-3)})
        return gate_table(rows)

    def probe(self, folder, tasks, *, labels=("a", "b"), split="test", target="minilm"):
        """Give a folder a table of probes."""
        folder.mkdir(exist_ok=True)
        count = np.arange(len(labels), 0, -1) * 30
        parts = []
        for task in tasks:
            value = self.random.random((len(labels), LAYERS, HEADS))
            parts.append(heads_table.rows("attention", task, labels, value, count))
            parts.append(heads_table.rows("attention_offset", task, labels, value[:, 0, 0] / 2, count))
        parts.append(
            heads_table.rows("confidence", "", ("",), self.random.random((1, LAYERS, HEADS)), count[:1])
        )
        heads_table.write_heads_table(
            folder / "heads.parquet", pl.concat(parts), {"split": split, "target": target}
        )
        return folder


@pytest.fixture
def folders(tmp_path):
    return Folders(tmp_path)


@pytest.fixture
def seeds(folders):
    """Three runs of one task."""
    return [folders.run(["dep"], seed) for seed in (1, 2, 3)]


def final(folder):
    """The last gates of a run of one task."""
    return pl.read_parquet(folder / "gates.parquet").filter(pl.col("step") == 20)["gate"].to_numpy()


def has_colour(path, colour):
    with Image.open(path) as image:
        return (np.asarray(image.convert("RGB")) == colour).all(-1).any()


def test_the_signature_is_the_command_line():
    words = ["rgb", "runs/a", "runs/b", "--out=x.pdf", "--tasks=[pos,dep]", "--tables=false", "--size=[6,4]"]
    assert Arguments.of(figure).read("mtl figure", words) == {
        "name": "rgb", "runs": [Path("runs/a"), Path("runs/b")], "out": Path("x.pdf"),
        "tasks": ("pos", "dep"), "split": "test", "measure": "ablation", "tables": False,
        "title": "", "names": None, "size": (6.0, 4.0), "font": "", "font_size": None,
        "palette": "", "colours": None, "order": (), "log": False,
    }  # fmt: skip
    with pytest.raises(InputError, match="rgbb"):
        Arguments.of(figure).read("mtl figure", ["rgbb", "runs/a", "--out=x.pdf"])


@pytest.mark.parametrize("name", FIGURES)
def test_every_row_of_the_table_names_functions_and_is_in_the_help(name):
    row = FIGURES[name]
    assert row.draw or row.animate
    assert all(callable(resolve_name(function)) for function in (row.draw, row.animate) if function)
    assert f"\n  {name} " in help_of("figure")


def test_rgb_of_three_runs_has_their_colours(seeds, tmp_path, capsys):
    figure("rgb", seeds, tmp_path / "rgb.png")
    for colour in np.rint(255 * (1 - np.stack([final(folder) for folder in seeds], axis=1))):
        assert has_colour(tmp_path / "rgb.png", colour)
    assert "wrote" in capsys.readouterr().out


def test_rgb_in_chosen_colours_and_order(seeds, tmp_path):
    chosen = {"seed 2": "#0000ff", "seed 1": "white"}
    figure("rgb", seeds, tmp_path / "rgb.png", colours=chosen, order=("seed 3", "seed 2"))
    gates = np.stack([final(folder) for folder in seeds], axis=1)
    for _, two, three in gates:
        blend = np.array([1 - two, 1 - two, 1]) * [1 - three, 1, 1]  # white leaves no trace
        assert has_colour(tmp_path / "rgb.png", np.rint(255 * blend))
    assert list(pl.read_csv(tmp_path / "rgb.csv")["mask"].unique(maintain_order=True)) == [
        "seed 3", "seed 2", "seed 1",
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("chosen", "said"),
    [
        ({"colours": {"seed 4": "red"}}, "the figure rgb has no 'seed 4'; it has seed 1, seed 2, seed 3"),
        ({"colours": {"seed 1": "redd"}}, "colours: seed 1: no colour 'redd'"),
        ({"order": ("seed 4",)}, "order: the figure rgb has no 'seed 4'"),
        ({"order": ("seed 1", "seed 1")}, "'seed 1' is listed twice"),
        ({"palette": "Dark9"}, "no 'Dark9' with 8 colours; there are "),
        ({"palette": "Dark2", "name": "grey"}, "the figure grey has no colours of names"),
        ({"title": "Heads", "name": "animation", "out": "a.gif"}, "a moving figure is drawn as it is"),
    ],
)
def test_an_appearance_that_cannot_be_is_refused_before_a_file_is_written(seeds, tmp_path, chosen, said):
    given = {"name": "rgb", "out": "a.png"} | chosen
    with pytest.raises(InputError, match=re.escape(said)):
        figure(runs=seeds[:1] if "title" in chosen else seeds, **given | {"out": tmp_path / given["out"]})
    assert not list(tmp_path.glob("a.*"))


def test_rgb_of_three_tasks_is_of_mean_gates(folders, tmp_path):
    runs = {task: [folders.run([task], seed) for seed in (1, 2)] for task in ("pos", "dep", "srl")}
    figure("rgb", list(itertools.chain(*runs.values())), tmp_path / "rgb.png")
    means = [np.mean([final(folder) for folder in each], axis=0) for each in runs.values()]
    for colour in np.rint(255 * (1 - np.stack(means, axis=1))):
        assert has_colour(tmp_path / "rgb.png", colour)


def test_rgb_of_three_tasks_in_one_run(folders, tmp_path):
    run = folders.run(["pos", "ner", "dep", "srl"])
    with pytest.raises(
        InputError, match=r"masks of pos, ner, dep, srl: add runs, or choose with --tasks=\[a,b,c\]"
    ):
        figure("rgb", [run], tmp_path / "rgb.png")
    figure("rgb", [run], tmp_path / "rgb.png", ("pos", "ner", "srl"))
    assert (tmp_path / "rgb.png").exists()


def test_a_single_run_where_three_are_needed(seeds, tmp_path):
    with pytest.raises(InputError, match=r"needs three runs .* and has 1 with masks of dep"):
        figure("rgb", seeds[:1], tmp_path / "rgb.png")
    assert not (tmp_path / "rgb.png").exists()


def test_a_shared_mask_counts_once(folders, tmp_path):
    shared = [folders.run(["pos", "dep", "srl"], seed, scope="shared") for seed in (1, 2, 3)]
    with pytest.raises(InputError, match=r"and has 2 with masks of pos\+dep\+srl"):
        figure("rgb", shared[:2], tmp_path / "rgb.png")
    figure("rgb", shared, tmp_path / "rgb.png")


@pytest.mark.parametrize("name", ["rgb", "grey", "correlation", "heads-kept"])
def test_runs_of_different_encoders(folders, seeds, name, tmp_path):
    other = folders.run(["dep"], 4, encoder="bert-base")
    with pytest.raises(InputError, match=r"different encoders: .* of bert-base, .* of minilm"):
        figure(name, [*seeds, other], tmp_path / "x.png")


def test_the_encoder_of_a_run_that_started_from_another(folders, seeds, tmp_path):
    other = folders.run(["dep"], 4, encoder="bert-base", init_from=str(seeds[0]))
    figure("grey", [*seeds, other], tmp_path / "x.png")


@pytest.mark.parametrize("name", ["grey", "correlation"])
def test_runs_of_different_shapes(folders, seeds, name, tmp_path):
    other = folders.run(["pos"], 1, heads=HEADS + 1)
    with pytest.raises(InputError, match="masks of different shapes"):
        figure(name, [*seeds, other], tmp_path / "x.png")


def test_a_run_without_masks_is_left_out_and_said(folders, seeds, tmp_path, capsys):
    bare = folders.run(["dep"], 9, gates=False)
    figure("grey", [bare, *seeds], tmp_path / "x.png")
    assert f"note: {bare} has no masks (no gates.parquet): left out" in capsys.readouterr().out
    with pytest.raises(
        InputError, match=r"has no masks .*; nothing to draw: give runs trained with --pruning"
    ):
        figure("grey", [bare], tmp_path / "y.png")


@pytest.mark.parametrize("name", ["rgb", "grey"])
def test_a_mask_of_a_task_that_was_not_learned_is_drawn_and_said(seeds, name, tmp_path, capsys):
    (seeds[1] / "metrics.json").write_text(json.dumps({"test": {"dep": {"las": 0.0}}}))
    figure(name, seeds, tmp_path / "x.png")
    printed = capsys.readouterr().out
    assert f"note: {seeds[1]}: dep: nothing was learned: las 0.00 on test" in printed
    assert printed.count("nothing was learned") == 1


def test_a_shared_mask_is_that_of_the_tasks_that_were_learned(folders, tmp_path, capsys):
    run = folders.run(["pos", "ner", "dep"], scope="shared")
    learned, nothing = {"accuracy": 90.0}, {"ner": {"f1": 0.0}, "dep": {"las": 0.0}}
    for pos, tasks, means in (
        (learned, ("ner", "dep"), "it shares the mask of pos"),
        ({"accuracy": 0.0}, ("pos", "ner", "dep"), "its mask claims no head"),
    ):
        (run / "metrics.json").write_text(json.dumps({"test": {"pos": pos, **nothing}}))
        figure("masks", [run], tmp_path / "x.png")
        notes = [line for line in capsys.readouterr().out.splitlines() if "nothing was learned" in line]
        assert [line.split(": ")[2] for line in notes] == [*tasks]
        assert all(line.endswith(f": {means}") for line in notes)


def test_a_copy_of_a_run_is_no_further_mask(folders, seeds, tmp_path, capsys):
    pos = [folders.run(["pos"], seed) for seed in (1, 2, 3)]
    copy = copytree(seeds[0], tmp_path / "z-copy")
    figure("grey", [*seeds, *pos, copy], tmp_path / "g.pdf")
    assert set(pl.read_parquet(tmp_path / "g.parquet")["masks"]) == {6}
    assert f"note: {copy} repeats {seeds[0]}, seed and all: left out" in capsys.readouterr().out


def test_missing_seeds_are_said_and_the_common_ones_drawn(folders, seeds, tmp_path, capsys):
    pos = [folders.run(["pos"], seed) for seed in (1, 2)]
    figure("correlation", [*seeds, *pos], tmp_path / "c.svg")
    said = capsys.readouterr().out
    assert "note: no mask of pos with seed 3: that seed is left out" in said
    assert "note: 2 seeds: the diagonal needs three" in said
    table = pl.read_parquet(tmp_path / "c.parquet")
    dep, other = (np.mean([final(folder) for folder in each], axis=0) for each in (seeds[:2], pos))
    between = table.filter(pl.col("first") != pl.col("second"))["paper"][0]
    assert between == pytest.approx(np.corrcoef(dep, other)[0, 1], abs=1e-6)
    assert (tmp_path / "c-overlap.csv").exists()
    assert (tmp_path / "c.tex").read_text().startswith(r"\begin{tabular}")


def test_two_runs_of_one_task_and_seed(folders, seeds, tmp_path):
    again = folders.run(["dep"], 1, scope="shared")
    with pytest.raises(InputError, match="all have a mask of dep with seed 1"):
        figure("correlation", [*seeds, again], tmp_path / "x.png")


@pytest.mark.parametrize(("name", "end"), [("gates", "pdf"), ("masks", "svg"), ("animation", "gif")])
def test_figures_of_one_run(folders, seeds, name, end, tmp_path):
    joint = folders.run(["pos", "dep"])
    out = tmp_path / f"x.{end}"
    figure(name, [joint], out, ("dep",))
    assert out.stat().st_size > 500
    with pytest.raises(InputError, match="shows one run, not 3"):
        figure(name, seeds, out)


@pytest.mark.parametrize(("name", "out"), [("rgb", "x.gif"), ("rgb", "x"), ("animation", "x.png")])
def test_a_wrong_suffix(seeds, name, out, tmp_path):
    with pytest.raises(InputError, match="use a file that ends in"):
        figure(name, seeds, tmp_path / out)


def test_labels_by_setup(folders, tmp_path, capsys):
    static = folders.probe(tmp_path / "static", ["dep", "pos"])
    single = [folders.probe(folders.run(["dep"], seed), ["dep", "pos"]) for seed in (1, 2)]
    joint = folders.probe(folders.run(["pos", "dep", "srl"]), ["dep"], labels=("a",))
    figure("labels", [static, *single, joint], tmp_path / "l.png", ("dep",))
    said = capsys.readouterr().out
    assert "note: the MTL runs have no dep label b" in said
    assert "note: no joint run of dep with seed 2" in said
    table = pl.read_parquet(tmp_path / "l.parquet")
    assert table["label"].to_list() == ["a", "b"]
    values = [
        pl.read_parquet(folder / "heads.parquet").filter(
            (pl.col("task") == "dep") & (pl.col("measure") == "attention") & (pl.col("label") == "a")
        )["value"].max()
        for folder in single
    ]  # fmt: skip
    assert table["stl"][0] == pytest.approx(np.mean(values))
    assert table["joint"][1] is None


def test_labels_need_one_task_and_comparable_probes(folders, tmp_path):
    static = folders.probe(tmp_path / "static", ["dep", "pos"])
    with pytest.raises(InputError, match=r"shows one task: choose with --tasks=\[dep\] \(or pos\)"):
        figure("labels", [static], tmp_path / "l.png")
    dev = folders.probe(folders.run(["dep"]), ["dep"], split="dev")
    with pytest.raises(InputError, match=r"split=dev, .* split=test; probe both alike"):
        figure("labels", [static, dev], tmp_path / "l.png", ("dep",))
    other = folders.probe(tmp_path / "other", ["dep"], target="bert-base")
    with pytest.raises(InputError, match="different encoders"):
        figure("labels", [static, other], tmp_path / "l.png", ("dep",))
    with pytest.raises(InputError, match=r"was not probed .* give probed runs"):
        figure("labels", [folders.run(["pos"])], tmp_path / "l.png")
    with pytest.raises(InputError, match="has nothing on srl, only on dep, pos"):
        figure("labels", [static], tmp_path / "l.png", ("srl",))


def test_every_run_that_is_left_out_is_named_or_counted(folders, tmp_path):
    bare = [folders.run(["pos"], seed, gates=False) for seed in range(1, 7)]
    for name, reason in (("labels", "was not probed"), ("grey", "has no masks"), ("heads", "has no heads")):
        with pytest.raises(InputError, match="nothing to draw") as caught:
            figure(name, bare[:3], tmp_path / "x.png")
        assert all(f"{run} {reason}" in str(caught.value) for run in bare[:3])
        with pytest.raises(InputError, match="; 2 more like these; nothing to draw"):
            figure(name, bare, tmp_path / "x.png")


def test_runs_with_other_measures_than_probes_are_named(folders, tmp_path, capsys):
    static = folders.probe(tmp_path / "static", ["dep"])
    run = folders.probe(folders.run(["dep"]), ["dep"])
    path = run / "heads.parquet"
    importance = pl.read_parquet(path).with_columns(measure=pl.lit("importance"))
    heads_table.write_heads_table(path, importance, {"split": "test", "target": "minilm"})
    figure("labels", [static, run], tmp_path / "l.png")
    assert f"note: {run} was not probed: left out" in capsys.readouterr().out
    for name in ("labels", "heatmap", "map", "layers"):
        with pytest.raises(InputError, match="none of these was probed"):
            figure(name, [run], tmp_path / "l.png")


def test_heat_map_of_one_setup(folders, tmp_path):
    static = folders.probe(tmp_path / "static", ["dep"])
    figure("heatmap", [static], tmp_path / "h.pdf", tables=False)
    assert not (tmp_path / "h.csv").exists()
    run = folders.probe(folders.run(["dep"]), ["dep"])
    with pytest.raises(InputError, match="one regime, and these are of pretrained, stl"):
        figure("heatmap", [static, run], tmp_path / "h.pdf")


def test_somebodys_own_latex_beside_a_figure_is_not_replaced(seeds, tmp_path):
    own = tmp_path / "grey.tex"
    own.write_text("\\includegraphics{grey.pdf}")
    with pytest.raises(InputError, match=r"the figure's numbers would replace .*grey\.tex: "):
        figure("grey", seeds, tmp_path / "grey.pdf")
    assert own.read_text() == "\\includegraphics{grey.pdf}"
    assert not (tmp_path / "grey.pdf").exists()
    own.unlink()
    figure("grey", seeds, tmp_path / "grey.pdf")
    figure("grey", seeds[:2], tmp_path / "grey.pdf")  # its own tables are


def test_a_cut_model_is_drawn_with_the_heads_that_are_left(folders, seeds, tmp_path, capsys):
    cut = folders.run(["dep"], 4, gates=False)
    (cut / "status.json").write_text(json.dumps({"cut_from": str(seeds[0]), "heads_kept": 2}))
    smaller, copy = (copytree(cut, tmp_path / name) for name in ("smaller", "z-copy"))
    (smaller / "status.json").write_text(json.dumps({"cut_from": str(seeds[0]), "heads_kept": 1}))
    figure("heads-kept", [*seeds, cut, smaller, copy], tmp_path / "k.png")
    kept = dict(pl.read_parquet(tmp_path / "k.parquet").select("run", "kept").iter_rows())
    assert (kept[str(cut)], kept[str(smaller)], kept.get(str(copy))) == (2, 1, None)
    printed = capsys.readouterr().out
    assert "stand at all heads" not in printed
    assert printed.count("seed and all: left out") == 1


def test_heads_kept_has_runs_without_masks_at_all_heads(folders, seeds, tmp_path, capsys):
    bare = folders.run(["dep"], 9, gates=False)
    figure("heads-kept", [*seeds, bare], tmp_path / "k.png")
    assert "stand at all heads" in capsys.readouterr().out
    table = pl.read_csv(tmp_path / "k.csv")
    kept = dict(table.select("run", "kept").iter_rows())
    assert kept == {str(folder): (final(folder) > 1e-3).sum() for folder in seeds} | {
        str(bare): LAYERS * HEADS
    }
    with pytest.raises(InputError, match="has no scores on dev"):
        figure("heads-kept", seeds, tmp_path / "k.png", split="dev")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("{", "it is not JSON"),
        ("[]", "it holds no scores by split and task"),
        ('{"test": {"dep": 1}}', "it holds no scores by split and task"),
        ('{"test": {"dep": {"las": "<script>"}}}', "the las of dep is not a number"),
    ],
)
def test_a_broken_metrics_file_is_named(seeds, tmp_path, text, reason):
    (seeds[1] / "metrics.json").write_text(text)
    named = rf"{re.escape(str(seeds[1]))}/metrics\.json cannot be read \({re.escape(reason)}\)"
    with pytest.raises(InputError, match=named):
        figure("heads-kept", seeds, tmp_path / "k.png")


def test_a_score_that_is_no_number_is_left_out_with_a_note(seeds, tmp_path, capsys):
    (seeds[1] / "metrics.json").write_text('{"test": {"dep": {"las": NaN}}}')
    figure("heads-kept", seeds, tmp_path / "k.png")
    assert f"{seeds[1]}: the las of dep on test is not a number: left out" in capsys.readouterr().out
    assert pl.read_csv(tmp_path / "k.csv")["run"].to_list() == [str(seeds[0]), *map(str, seeds[2:])]


def kept_table(runs, tmp_path):
    figure("heads-kept", runs, tmp_path / "kept.png")
    return pl.read_parquet(tmp_path / "kept.parquet")


def test_heads_kept_tells_setups_apart_and_penalties_are_one(tmp_path):
    study = Study(tmp_path / "study")
    runs = {
        (penalty, seed): study.run(
            ["dep"], seed, name=f"p{penalty}-{seed}", gates={"scope": "shared", "penalty": penalty}
        )
        for penalty in (0.1, 0.5)
        for seed in (1, 2)
    }
    gates = {"scope": "shared", "penalty": 0.1}
    longer = study.run(["dep"], 1, name="longer", max_epochs=60, gates=gates)
    static = study.run(["dep"], 1, name="static", pruning="static", gates=gates)
    bare = study.run(["dep"], 1, name="bare", pruning="none", gates=gates)
    by_kind = [
        study.run(["dep"], seed, name=f"kinds-{seed}", gates={"scope": "shared", "target_open": targets})
        for seed, targets in ((1, {"encoder": 2.0, "cross": 3.0}), (2, {"cross": 3.0, "encoder": 2.0}))
    ]
    table = kept_table([*runs.values(), longer, static, bare, *by_kind], tmp_path)
    of = {row["run"]: (row["setup"], row["setting"], row["seed"]) for row in table.iter_rows(named=True)}
    for (penalty, seed), run in runs.items():
        setting = f"penalty {penalty}"
        assert of[str(run)] == ("STL, dynamic, 30 epochs", setting, seed)
    for seed, run in enumerate(by_kind, 1):  # whatever order kinds are named in
        setting = "cross target 3, encoder target 2"
        assert of[str(run)] == ("STL, dynamic, 30 epochs", setting, seed)
    assert of[str(longer)][0] == "STL, dynamic, 60 epochs"
    assert of[str(static)][0] == "STL, static, 30 epochs"
    assert of[str(bare)][:2] == ("STL, 30 epochs", "")


@pytest.mark.slow
def test_very_many_setups_are_points_without_lines_and_that_is_said(tmp_path, capsys):
    study = Study(tmp_path / "study")
    runs = [study.run(["dep"], 1, name=f"{place}", max_epochs=place) for place in range(1, 18)]
    assert kept_table(runs[:16], tmp_path)["setup"].n_unique() == 16
    assert "too many" not in capsys.readouterr().out
    table = kept_table(runs, tmp_path)
    assert table["setup"].n_unique() == 1
    assert table["setting"].null_count() == table.height == 17
    assert "note: 17 setups are too many to be told apart" in capsys.readouterr().out


def test_numbers_replace_no_table_that_no_figure_wrote(tmp_path) -> None:
    run = Folders(tmp_path).run(["pos", "dep"])
    masks = (run / "gates.parquet").read_bytes()
    with pytest.raises(InputError, match=r"the figure's numbers would replace .*gates\.parquet: "):
        figure("heads-kept", [run], run / "gates.svg")
    assert (run / "gates.parquet").read_bytes() == masks
    assert not (run / "gates.svg").exists()
    figure("heads-kept", [run], run / "gates.svg", tables=False)
    for _ in range(2):  # a figure's own tables are replaced
        figure("heads-kept", [run], run / "kept.svg")
    drawn = draw("heads-kept", [run])
    with pytest.raises(InputError, match=r"would replace .*kept\.parquet: "):
        save(drawn, run / "kept.png", sources=[run / "kept.parquet"])


@pytest.mark.parametrize(
    ("name", "file", "content", "message"),
    [
        ("masks", "config.yaml", b"tasks: [pos]\nseed", r"config\.yaml is no YAML \(.*\): put back"),
        ("masks", "config.yaml", b"\xb5", r"config\.yaml is no UTF-8 text \(byte 0\)"),
        ("masks", "config.yaml", b"", r"config\.yaml is empty"),
    ],
)
def test_a_damaged_file_of_a_run_is_named(tmp_path, name, file, content, message) -> None:
    run = Folders(tmp_path).run(["pos", "dep"])
    (run / file).write_bytes(content)
    with pytest.raises(InputError, match=message):
        figure(name, [run], tmp_path / "x.svg")


@pytest.mark.parametrize("name", ["masks", "gates", "grey", "correlation"])
def test_a_damaged_table_of_gates_is_named(tmp_path, name) -> None:
    run = Folders(tmp_path).run(["pos", "dep"])
    path = run / "gates.parquet"
    gates = pl.read_parquet(path)
    gates.drop("gate").write_parquet(path)
    with pytest.raises(InputError, match=r"gates\.parquet: cannot be read \(.*gate.*\); train"):
        figure(name, [run], tmp_path / "x.svg")
    gates.with_columns(gate=pl.lit(float("nan"), dtype=pl.Float32)).write_parquet(path)
    with pytest.raises(InputError, match=r"gates\.parquet: cannot be used \([0-9]+ gates with a value"):
        figure(name, [run], tmp_path / "x.svg")


def test_a_run_given_twice_is_refused(tmp_path) -> None:
    run = Folders(tmp_path).run(["pos", "dep"])
    with pytest.raises(InputError, match="is given twice: name every run once"):
        figure("grey", [run, run / ".." / run.name], tmp_path / "x.svg")


@pytest.mark.parametrize(("content", "message"), [("{", "is no JSON"), ("[]", "holds no keys")])
def test_a_damaged_status_is_named(tmp_path, content, message) -> None:
    (tmp_path / "status.json").write_text(content)
    with pytest.raises(InputError, match=rf"status\.json {message}"):
        Run(tmp_path).status()


@pytest.mark.parametrize(
    ("name", "choice"),
    [
        ("forest", "--tasks=pos"),
        ("rgb", "--measure=taylor"),
        ("rgb", "--split=dev"),
        ("heads-kept", "--measure=taylor"),
    ],
)
def test_a_choice_that_a_figure_does_not_depend_on_is_refused(name, choice, tmp_path, capsys):
    assert main(["figure", name, "runs", f"--out={tmp_path / 'x.pdf'}", choice]) == 2
    refused = f"the figure {name} does not depend on {choice.partition('=')[0]}: leave it out"
    assert refused in capsys.readouterr().err
