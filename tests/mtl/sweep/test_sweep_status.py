"""`mtl sweep --dry-run` prints and does nothing; options without an effect are refused."""

from __future__ import annotations

import io
import math
from unittest.mock import Mock

import optuna
import pytest
from rich.console import Console

from mtl.commands.main import main
from mtl.sweep.file import Stopping, Sweep
from mtl.sweep.folder import SweepFolder, best_of, drawn_at
from mtl.sweep.report import _row
from mtl.workers.lease import lease
from mtl.workers.watch import watching
from tests.mtl.sweep.conftest import PRODUCT, Bench, sweep_of

GRID = """
command: [mtl, train, configs/joint.yaml, --pruning=dynamic, "${args}"]
method: grid
metric: {name: dev/mean, goal: maximize, target: 90}
early_terminate: {type: hyperband, max_iter: 9, s: 2}
parameters:
  gates: {parameters: {penalty: {values: [0.01, 0.1, 1.0]}}}
  seed: {values: [1, 2]}
"""
DRAWN = """
method: bayes
metric: {name: loss/pos, goal: minimize}
parameters:
  optimizer.encoder_lr: {distribution: log_uniform_values, min: 1.0e-5, max: 1.0e-3}
  gates.penalty: {distribution: normal, mu: 0, sigma: 1}
  max_epochs: {min: 1, max: 9}
  batch.tokens: {distribution: q_uniform, min: 1000, max: 2000, q: 100}
  seed: {value: 3}
"""


@pytest.fixture
def shown(tmp_path, capsys):
    """Writes a sweep file and returns what a dry run prints."""

    def show(text, *words):
        file = tmp_path / "search.yaml"
        file.write_text(text)
        code = main(["sweep", str(file), "--dry-run", f"--sweeps={tmp_path / 'sweeps'}", *words])
        out, errors = capsys.readouterr()
        return code, out.splitlines(), errors

    return show


def test_a_grid_is_listed_point_by_point(shown, tmp_path):
    code, lines, _ = shown(GRID)
    assert code == 0
    assert lines[:4] == [
        "sweep search: grid, to maximize dev/mean, until 90",
        "all trials share: mtl train configs/joint.yaml --pruning=dynamic",
        "early termination: after 1, 3 evaluations one in 3 continues",
        "trials: 6",
    ]
    assert lines[4:10] == [
        f"  trial-{number:04}: gates.penalty={penalty}, seed={seed}"
        for number, (penalty, seed) in enumerate(PRODUCT)
    ]
    assert lines[10:] == [f"with --local in {tmp_path / 'sweeps' / 'search'}: not started"]
    assert not (tmp_path / "sweeps").exists()
    code, lines, _ = shown(GRID, "--trials=2")
    assert lines[3] == "trials: 2 of the grid's 6 points"
    assert len([line for line in lines if "trial-0" in line]) == 2


def test_drawn_parameters_are_told_with_their_distributions(shown, tmp_path):
    code, lines, _ = shown(DRAWN)
    assert code == 0
    assert lines == [
        "sweep search: bayes, to minimize loss/pos",
        "all trials share: mtl train",
        "early termination: none",
        "trials: no limit; with --local, give run_cap or --trials=N",
        "  optimizer.encoder_lr: log_uniform_values: min 1e-05, max 0.001",
        "  gates.penalty: normal: mu 0, sigma 1",
        "  max_epochs: int_uniform: min 1, max 9",
        "  batch.tokens: q_uniform: min 1000, max 2000, q 100",
        "  seed: constant: value 3",
        f"with --local in {tmp_path / 'sweeps' / 'search'}: not started",
    ]
    assert shown(DRAWN, "--trials=7", "--name=mine")[1][3] == "trials: 7"
    assert shown(f"{DRAWN}run_cap: 5")[1][3] == "trials: 5"
    code, lines, errors = shown(DRAWN, "--local")
    assert (code, lines) == (2, [])
    assert "parameters: gates.penalty: distribution normal runs only with W&B's server" in errors


def test_a_long_grid_is_cut(shown):
    _, lines, _ = shown("{method: grid, parameters: {seed: {min: 1, max: 1000000000}}}")
    assert lines[-2] == "  … and 999999000 more"
    assert len(lines) == 4 + 1000 + 2


def test_trials_so_far_are_counted_and_a_changed_sweep_is_said(shown, tmp_path):
    # The same parameters over the defaults.
    words = GRID.replace('command: [mtl, train, configs/joint.yaml, --pruning=dynamic, "${args}"]\n', "")
    from mtl.sweep.file import read_sweep
    from mtl.sweep.trial_config import base_of

    shown(words)
    sweep = read_sweep(tmp_path / "search.yaml")
    bench = Bench(tmp_path / "sweeps", sweep, 4)
    bench.folder.sweep_file.unlink()
    bench.folder.start(sweep, base_of(sweep), {"corpus": "c", "version": "d"})
    bench.work(None)
    files = {path: path.read_bytes() for path in bench.folder.path.rglob("*") if path.is_file()}
    code, lines, errors = shown(words)
    assert (code, errors) == (0, "")
    assert lines[-1].endswith("search: 6 trials: 4 finished, 2 to come")
    assert {path: path.read_bytes() for path in bench.folder.path.rglob("*") if path.is_file()} == files
    code, lines, errors = shown(words.replace("[1, 2]", "[1, 2, 3]"))
    assert code == 2
    assert len([line for line in lines if "trial-0" in line]) == 9
    assert "other parameters.seed" in errors


def test_the_value_of_an_option_is_not_taken_for_the_file(shown, tmp_path, capsys):
    shown(GRID)
    words = ["--max_epochs", "3", str(tmp_path / "search.yaml"), "--overwrite", "--dry-run"]
    assert main(["sweep", *words]) == 0
    assert (
        "all trials share: mtl train configs/joint.yaml --pruning=dynamic --max_epochs=3 --overwrite=true"
        in (capsys.readouterr().out)
    )


def test_bad_files_are_said_by_a_dry_run_too(shown):
    code, lines, errors = shown(GRID.replace("penalty", "penalti"))
    assert (code, lines) == (2, [])
    assert "did you mean 'gates.penalty'?" in errors


def test_a_local_sweep_without_an_end_is_refused_by_a_dry_run_too(shown):
    text = "{method: random, metric: {name: loss/pos, goal: minimize}, parameters: {seed: {min: 1, max: 9}}}"
    assert shown(text)[0] == 0
    code, lines, errors = shown(text, "--local")
    assert (code, lines) == (2, [])
    assert "method random never ends: use run_cap in the file, or --trials=20" in errors
    assert shown(text, "--local", "--trials=3")[0] == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--join=a/b/c", "FILE"], "has no effect with --join"),
        (["--join=a/b/c", "--jobs=2"], "--jobs has no effect with --join"),
        (["--join=a/b/c", "--trials=0"], "--trials=0: use a number from 1"),
        (["FILE", "--jobs=2"], "--jobs has no effect without --local"),
        (["FILE", "--wandb=disabled"], "--wandb has no effect without --local"),
        (["FILE", "--sweeps=x"], "--sweeps has no effect without --local"),
        (["FILE", "--status", "--trials=3"], "--trials has no effect with --status"),
        (["FILE", "--status", "--seed=3"], "--seed=3 has no effect with --status"),
        (["FILE", "--dry-run", "--jobs=3"], "--jobs has no effect with --dry-run"),
        (["FILE", "--local", "--dry-run", "--status"], "--dry-run has no effect with --status"),
        (["FILE", "--local", "--jobs=-1"], "--jobs=-1"),
        (["FILE", "--local", "--seed=3"], "--seed=3 in the command has no effect"),
        (["FILE", "--local", "--trails=3"], "did you mean 'trials'?"),
    ],
)
def test_options_without_effect_are_said(words, message, tmp_path, capsys):
    file = tmp_path / "search.yaml"
    file.write_text(GRID)
    assert main(["sweep", *(str(file) if word == "FILE" else word for word in words)]) == 2
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1


def test_values_are_told_to_the_last_digit(shown):
    text = "{method: grid, parameters: {gates.penalty: {values: [0.123456, 0.123457]}}}"
    assert [line for line in shown(text)[1] if "trial-0" in line] == [
        "  trial-0000: gates.penalty=0.123456",
        "  trial-0001: gates.penalty=0.123457",
    ]
    assert sweep_of().points() == 6


def test_a_trial_is_reported_with_its_values_or_not_yet(bench):
    work = bench()
    study, view = work.study, work.view()
    output = io.StringIO()

    def printed(look):
        """What a look at the sweep prints."""
        look()
        text = output.getvalue()
        output.seek(0)
        output.truncate()
        return text.splitlines()

    with watching(view, Console(file=output, width=200)) as look:
        study.enqueue_trial(drawn_at(work.sweep, 0))
        with lease(work.folder.lease_file("trial-0000")):
            trial = study.ask()
            assert printed(look) == []
            trial.set_user_attr("values", {"gates.penalty": 0.01, "seed": 1})
            assert printed(look) == ["trial-0000: running with gates.penalty=0.01, seed=1"]
            assert printed(look) == []
        study.tell(0, 1.0)
        assert printed(look) == ["trial-0000: finished: dev/mean 1 with gates.penalty=0.01, seed=1"]
        assert look() == 1


@pytest.mark.parametrize(
    ("settings", "numbers"),
    [
        ({"min_iter": 2}, "2, 6, …"),
        ({"max_iter": 9, "s": 1}, "3"),
        ({"max_iter": 9, "s": 2}, "1, 3"),
        ({"max_iter": 81, "s": 3}, "3, 9, … up to 27"),
    ],
)
def test_comparisons_are_listed_up_to_the_last(settings, numbers):
    assert str(Stopping("hyperband", **settings)) == f"after {numbers} evaluations one in 3 continues"


@pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf])
def test_a_trial_that_is_not_finite_has_no_place_among_the_others(bad):
    folder = Mock(spec=SweepFolder)
    folder.progress.return_value = Mock(state="finished", seconds=1.0)
    row = _row(folder, optuna.trial.create_trial(value=bad if not math.isnan(bad) else -math.inf))
    assert row.score is None


def test_a_trial_that_is_not_finite_is_never_the_best():
    sweep = Mock(spec=Sweep)
    sweep.metric = Mock()
    sweep.metric.better = lambda one, other: one < other
    trials = [optuna.trial.create_trial(value=value) for value in (-math.inf, 2.0, math.inf, 1.0)]
    assert best_of(sweep, trials) is trials[3]
    assert best_of(sweep, trials[:1]) is None
