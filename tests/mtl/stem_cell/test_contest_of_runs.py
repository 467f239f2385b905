"""The contest for heads read from run folders: figures, the report's first screen, and what is missing."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import polars as pl
import pytest

from mtl.commands.report import figure, report
from mtl.errors import InputError
from mtl.probes.report.page_part import answers
from mtl.probes.report.report import report_page
from mtl.probes.stem_cell.answers import by_ablation as beside_importance
from mtl.probes.stem_cell.answers import sharing_groups
from mtl.probes.stem_cell.contest import estimate_contest
from mtl.probes.stem_cell.contest_table import IMPORTANCE, Estimates, head_lines, worth_table
from mtl.probes.tables import heads_table
from mtl.runs.compare.run_set import RunSet
from mtl.runs.figures.table import draw, page_parts
from mtl.runs.report.gather import gather
from mtl.stem_cell.pair_runs import pairs_of
from tests.mtl.stem_cell.contest_study import ContestStudy
from tests.mtl.stem_cell.page_data import page_data
from tests.mtl.studies import SCORES, Study

pytestmark = pytest.mark.usefixtures("undrawn")

CONTEST = "Is a head worth less to a task beside a partner that claims it, too?"
SHARING = "Does sharing an encoder hurt?"


@pytest.fixture(scope="module")
def planted(tmp_path_factory):
    """A study in which a fifth of worth is lost to partners that claim the head, too."""
    study = ContestStudy(tmp_path_factory.mktemp("contest") / "planted")
    study.whole()
    study.twins("dep", 1)
    study.twins("dep", 2)
    return study


def runs_of(study, *patterns):
    return [path for pattern in patterns for path in sorted((study.root / "runs").glob(pattern))]


@pytest.mark.slow
def test_forest_of_runs_has_the_estimates_of_their_numbers(planted, tmp_path, capsys):
    runs = runs_of(planted, "*-dynamic-*", "*-none-*")
    figure("forest", runs, tmp_path / "forest.pdf")
    table = pl.read_parquet(tmp_path / "forest.parquet")
    first = table.row(0, named=True)
    expected = estimate_contest(planted.cells)
    assert first["primary"]
    assert first["estimate"] == "importance, logs"
    assert first["beta"] == pytest.approx(expected.beta)
    assert (first["share_low"], first["share_high"]) == pytest.approx(
        (expected.share_low, expected.share_high)
    )
    assert first["word"] == "supported"
    alone = {f"{task} alone" for task in ("pos", "dep", "srl")}
    assert set(table["estimate"][1:]) == {"importance, normal scores", *alone}
    assert not table["primary"][1:].any()
    printed = " ".join(capsys.readouterr().out.split())
    assert "wrote" in printed
    assert "the contest by importance: supported, " in printed
    # One seed gives figures, and no word.
    few = runs_of(planted, "*-dynamic-*", "*-none-*1")
    figure("contest", few, tmp_path / "few.png")
    assert "1 of 3 seeds that an answer on the contest needs" in " ".join(capsys.readouterr().out.split())
    figure("forest", few, tmp_path / "few.png")
    assert "cannot tell, 1 seed of every pair, and 3 are needed" in " ".join(capsys.readouterr().out.split())


def test_contest_of_runs_has_their_heads_and_the_twin_at_the_side(planted, tmp_path):
    figure("contest", runs_of(planted, "*-dynamic-*", "*-none-*"), tmp_path / "contest.png")
    heads = pl.read_parquet(tmp_path / "contest-heads.parquet")
    key = ["task", "layer", "head"]
    assert heads.sort(key).select("apart", "beside").to_numpy() == pytest.approx(
        head_lines(planted.cells).sort(key).select("apart", "beside").to_numpy()
    )
    side = pl.read_parquet(tmp_path / "contest-sides.parquet")
    # Claimed heads of the twin are worth 1, the other 54 of 72 a hundredth: their place in standardised logs.
    logs = np.log(np.where(planted.cells.claims["dep"], 1.0, 0.01))
    expected = (logs.max() - logs.mean()) / logs.std()
    assert side.select("task", "partner", "seeds").row(0) == ("dep", "twin", 2)
    assert side["mean"].to_list() == pytest.approx([expected])


def test_figures_say_which_runs_are_missing(planted, tmp_path):
    with pytest.raises(InputError, match="no single-task run with masks"):
        figure("contest", runs_of(planted, "pos-dep-none-*"), tmp_path / "x.png")
    with pytest.raises(InputError, match="no run of two tasks without masks"):
        figure("forest", runs_of(planted, "pos-dynamic-*", "dep-none-*"), tmp_path / "x.png")
    one_pair = runs_of(planted, "pos-dynamic-*", "dep-dynamic-*", "pos-dep-none-*")
    for name in ("contest", "forest"):
        with pytest.raises(InputError, match="no claimed head has both a partner"):
            figure(name, one_pair, tmp_path / "x.png")
    bare = Study(tmp_path / "bare", layers=6, heads=12)
    masked = [bare.run([task], 1, probe=False) for task in ("pos", "dep")]
    pair = bare.run(["pos", "dep"], 1, pruning="none", probe=False)
    with pytest.raises(InputError, match="no importance of heads in these pairs: 'mtl importance RUN'"):
        figure("contest", [*masked, pair], tmp_path / "x.png")


@pytest.mark.slow
def test_the_first_screen_answers_in_order(planted, tmp_path, capsys):
    report(planted.root, json_out=tmp_path / "answers.json")
    told = json.loads((tmp_path / "answers.json").read_text(encoding="utf-8"))["answers"]
    assert [each["question"] for each in told] == [answer.question for answer in answers_of(planted.root)]
    html = (planted.root / "report.html").read_text(encoding="utf-8")
    told, left = (
        html[(start := html.index(f'id="{name}"')) : html.index("</section>", start)]
        for name in ("answers", "open")
    )
    assert re.findall(r'<h3>(.*?) <span class="word ([\w-]+)">', told) == [
        (SHARING, "yes"),
        (CONTEST, "supported"),
    ]
    assert re.findall(r"<li><b>(.*?)</b> .*?<code>(.*?)</code>", left) == [
        (
            "Do tasks want the same heads?",
            "- {setups: [STL, control], masks: [dynamic], draws: {control: [1, 2, 3, 4, 5]}}",
        ),
        (
            "Do tasks keep the same heads more often than by chance?",
            "mtl study FILE --train.max_epochs=30",
        ),
        (
            "Does a task lose by keeping few of its heads?",
            "mtl study FILE --seeds=1,2,3,4,5,6",
        ),
    ]
    assert (told.count('<img class="figure"'), left.count('<img class="figure"')) == (3, 1)
    assert (told.count("What it cannot say."), left.count("What an answer cannot say.")) == (2, 3)
    assert "No masks of a control task" in left
    # Made-up scores: 1 point less with all three than alone, of whatever seed.
    assert "scores 1.00 points less than alone (95% interval of 3 tasks together 0." in told
    places = [html.index(f'id="{name}"') for name in ("seeds", "cost", "kept", "answers", "scores", "open")]
    assert places == sorted(places)
    printed = capsys.readouterr().out
    assert "These runs cannot tell: " in printed
    assert len(printed.splitlines()) <= 13  # and two lines of the study
    record = json.loads((planted.root / "answers.json").read_text(encoding="utf-8"))
    assert any(note.startswith("no control runs beside the contest") for note in record["notes"])
    assert {"wanted", "sharing", "contest-estimates", "contest-heads", "contest-tasks", "contest-sides"} <= {
        name for answer in answers_of(planted.root) for name in answer.tables
    }


@pytest.mark.slow
def test_estimates_of_answers_are_those_of_their_tables(planted):
    page = report_page(gather(planted.root, "test", SCORES), parts=page_parts())
    told = json.loads(json.dumps(page.record(), allow_nan=False))["answers"]
    assert [(each["question"], each["word"], each["reason"]) for each in told] == [
        (answer.question, answer.word, answer.reason) for answer in page.answers
    ]
    found = [one for each in told for one in each["estimates"]]
    assert {one["source"] for one in found} == {"wanted", "common-heads", "sharing", "contest-estimates"}
    tables = dict(page.tables)
    tables["wanted"] = tables["wanted"].group_by("kind").agg(pl.col("jaccard").mean())
    for one in found:
        table = tables[one["source"]]
        numbers = [table[name].drop_nulls() for name, kind in table.schema.items() if kind.is_numeric()]
        values = np.concatenate([each.to_numpy() for each in numbers])
        for name in ("estimate", "low", "high", "p"):
            assert one[name] is None or np.isclose(values, one[name]).any(), (one, name)
    first = next(one for one in found if one["source"] == "contest-estimates")
    assert (first["word"], first["n"], first["n_of"], first["level"]) == ("supported", 3, "seeds", 0.95)


@pytest.mark.parametrize(("by_ablation", "contradict"), [("refuted", True), ("cannot tell", False)])
def test_what_ablation_says_stands_beside_importance(planted, by_ablation, contradict):
    table = pl.DataFrame(
        {"estimate": ["importance, logs", "ablation, normal scores"], "share": [0.2, -0.01],
         "share_low": [0.1, -0.09], "share_high": [0.3, 0.06], "word": ["supported", by_ablation]}
    )  # fmt: skip
    told = beside_importance(Estimates(estimate_contest(planted.cells), table, ()))
    assert told.startswith(
        f"; by ablation, normal scores, it is worth 1.0 % more (9.0 % more to 6.0 % less): {by_ablation}"
    )
    assert ("contradict each other" in told) == contradict


def answers_of(root):
    """The first screen's answers."""
    evidence = gather(root, "test", SCORES)
    return answers(page_data(evidence), page_parts())


def answer_of(root, question):
    """The first screen's answer to a question."""
    [answer] = [answer for answer in answers_of(root) if answer.question == question]
    return answer


@pytest.mark.slow
def test_a_null_is_refuted(tmp_path):
    answer = answer_of(ContestStudy(tmp_path / "null", loss=0.0, noise=0.05).whole(), CONTEST)
    assert answer.word == "refuted"
    assert answer.reason.startswith("less than 10% is lost: a claimed head is worth")


def test_without_pairs_the_screen_says_what_to_run(tmp_path):
    study = Study(tmp_path / "few")
    root = study.small(seeds=(1,))
    assert {answer.word for answer in answers_of(root)} == {"cannot tell"}
    missing = "no pair runs without masks; in a study, the setup pairs has them"
    assert answer_of(root, CONTEST).reason == missing
    missing = "no joint and single-task runs without masks"
    assert answer_of(root, SHARING).reason.startswith(missing)
    alone = Study(tmp_path / "alone")
    alone.run(["dep"], 1)
    assert answers_of(alone.root) == ()


@pytest.mark.slow
def test_what_pairs_lack_is_one_line(tmp_path):
    study = Study(tmp_path / "bare")
    for task in ("pos", "dep"):
        study.run([task], 1)
    study.run(["pos", "dep"], 1, pruning="none")
    missing = "no importance of heads in the pair runs; 'mtl importance RUN' measures it"
    assert answer_of(study.root, CONTEST).reason == missing
    closed = ContestStudy(tmp_path / "cut")
    root = closed.whole()
    worth = {name: closed.of(name, other, 1).copy() for name, other in (("pos", "dep"), ("dep", "pos"))}
    worth["pos"][5] = 0.0
    closed.worth(root / "runs" / "pos-dep-none-shared-seed1", worth)
    assert answer_of(root, CONTEST).reason.startswith(
        "pos beside dep, srl: 1 head has importance 0 or none (closed or cut heads)"
    )


def test_pairs_trained_otherwise_are_left_out_and_named(tmp_path):
    study = ContestStudy(tmp_path / "more")
    root = study.whole()
    study.pair("pos", "dep", 1, max_epochs=60, name="longer")
    evidence = gather(root, "test", SCORES)
    assert str(root / "runs" / "longer") not in set(evidence.evidence["pairs"]["run"])
    assert any(
        note.startswith("the contest: runs/longer was trained with another max_epochs than ")
        for note in evidence.notes
    )
    assert worth_table(evidence.worth, evidence.evidence["pairs"], IMPORTANCE).height == 3 * 2 * 3 * 72


def test_a_controls_own_heads_are_not_compared(tmp_path):
    study = ContestStudy(tmp_path / "control")
    folder = study.run(["dep", "control"], 1, pruning="none", probe=False, scores=False)
    study.worth(folder, {name: np.ones(72) for name in ("dep", "control")})
    pairs = gather(study.root, "test", SCORES).evidence["pairs"]
    assert pairs.select("task", "of", "partner").rows() == [("dep", "dep", "control")]


def test_scores_of_pairs_are_one_group(planted):
    groups = sharing_groups(gather(planted.root, "test", SCORES))
    assert list(groups) == ["MTL-3", "MTL-2"]
    assert len(groups["MTL-2"]) == 3  # the twins are none of them
    assert set(groups["MTL-2"].values()) == {"STL"}


def test_conflict_of_runs_is_the_mean_over_epochs_by_claims(tmp_path, capsys):
    study = ContestStudy(tmp_path / "conflict")
    masked = [study.run([task], 11, probe=False) for task in ("pos", "dep")]
    pairs = [study.run(["pos", "dep"], seed, pruning="none", probe=False) for seed in (1, 2)]
    for number, folder in enumerate(pairs):
        epochs = [
            heads_table.rows(
                "gradient_conflict", "", ["pos-dep"], np.full((1, 6, 12), value + number), np.array([count]),
                f"epoch {epoch}",
            )
            for epoch, (value, count) in enumerate(((0.0, 10), (0.3, 20)), start=1)
        ]  # fmt: skip
        heads_table.write_heads_table(folder / "heads.parquet", pl.concat(epochs), {})
    figure("conflict", [*masked, *pairs], tmp_path / "conflict.png")
    table = pl.read_parquet(tmp_path / "conflict.parquet")
    assert table["cosine"].to_numpy() == pytest.approx(0.2 + 0.5)
    both = study.cells.claims["pos"] & study.cells.claims["dep"]
    assert table.filter(pl.col("claims") == "both").height == both.sum()
    answer = answer_of(study.root, CONTEST)
    assert answer.reason.startswith("no importance of heads in the pair runs")
    assert answer.tables["conflict"]["cosine"].to_numpy() == pytest.approx(0.2 + 0.5)
    assert [caption.split(" at heads")[0] for _, caption in answer.figures] == [
        "Cosines of two tasks' gradients"
    ]
    copy = tmp_path / "copy"
    shutil.copytree(pairs[0], copy)
    capsys.readouterr()
    figure("conflict", [*masked, *pairs, copy], tmp_path / "copied.png")
    assert pl.read_parquet(tmp_path / "copied.parquet")["cosine"].equals(table["cosine"])
    assert f"note: {copy} repeats {pairs[0]}, seed and all: left out" in capsys.readouterr().out
    with pytest.raises(InputError, match="train them with --gradient_conflict_every"):
        figure("conflict", [*masked, study.pair("pos", "dep", 3)], tmp_path / "x.png")


@pytest.mark.slow
@pytest.mark.parametrize("level", [pytest.param(0.4, marks=pytest.mark.slow), 0.95])
def test_clustering_beyond_the_layers_input_is_estimated_where_all_runs_have_projections(tmp_path, level):
    """Also where every head is below the projections, as on real encoders."""
    study = ContestStudy(tmp_path / "skill")
    root = study.whole()
    random = np.random.default_rng(1)
    for folder in runs_of(study, "pos-none-*", "pos-dep-none-*", "pos-srl-none-*"):
        count = np.array([50])
        probed = [
            heads_table.rows("clustering", "pos", ["NN"], random.uniform(0.5, 0.9, (1, 6, 12)), count),
            heads_table.rows("clustering_projection", "pos", ["NN"], np.full((1, 6), level), count),
        ]
        path = folder / "heads.parquet"
        if path.is_file():
            probed.append(heads_table.read_heads_table(path)[0])
        heads_table.write_heads_table(path, pl.concat(probed), {"target": "minilm", "split": "test"})
    name = "skill of clustering, uncut, beyond the layer's input"
    answer = answer_of(root, CONTEST)
    estimates = answer.tables["contest-estimates"]
    assert estimates.filter(estimate=name)["unit"].to_list() == ["skill above a random projection"]
    assert not any(name in note for note in answer.notes)
    # Tables of runs that were probed before there were projections.
    for path in runs_of(study, "pos-dep-none-*/heads.parquet"):
        old, provenance = heads_table.read_heads_table(path)
        heads_table.write_heads_table(
            path, old.filter(pl.col("measure") != "clustering_projection"), provenance
        )
    answer = answer_of(root, CONTEST)
    assert answer.word == "supported"
    assert answer.tables["contest-estimates"].filter(estimate=name).is_empty()
    [note] = [note for note in answer.notes if name in note]
    assert note.startswith(f"no estimate of the contest by {name}: 3 runs, such as ")
    assert note.endswith("probed without clustering_projection: 'mtl probe RUN' measures it")


def test_figures_of_the_contest_count_claims_that_a_target_forced(tmp_path):
    study = ContestStudy(tmp_path / "forced", seeds=1)
    study.whole()
    runs = runs_of(study, "*-dynamic-*", "*-none-*")
    assert not any("training chose" in note for note in draw("contest", runs).notes)
    for run in runs_of(study, "pos-dynamic-*"):
        study.force(run, {"pos": 5})
    [note] = [note for note in draw("contest", runs).notes if "training chose" in note]
    assert note.startswith("heads that most seeds keep: pos 18 (training chose 5), dep ")


def test_a_task_with_the_name_of_a_partner_is_none(tmp_path):
    """`control` and `twin` stand for kinds of partners in the contest's tables, not for tasks of a user's."""
    study = Study(tmp_path / "named")
    study.run(["pos", "dep"], 1, pruning="none", probe=False)
    for name in ("twin", "control"):
        instances = {name: {"kind": "tags", "layer": "tags"}}
        study.run(["pos", name], 1, pruning="none", probe=False, scores=False, instances=instances)
    drawn = {"noise": {"kind": "drawn"}}
    study.run(["pos", "noise"], 1, pruning="none", probe=False, scores=False, instances=drawn)
    runs = RunSet.open(runs_of(study, "*"))
    pairs = pairs_of(runs)
    assert sorted(pairs.select("of", "partner").rows()) == [
        ("dep", "pos"),
        ("pos", "control"),
        ("pos", "dep"),
    ]
    assert sum("has a task named" in note for note in runs.notes) == 2
