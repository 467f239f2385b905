"""A new measure is a file and a row, from which its command and its place in studies and figures follow."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import torch
import yaml

from mtl.commands.command_table import COMMANDS, measuring_command
from mtl.commands.help import help_of
from mtl.commands.main import main
from mtl.config.effective import plain
from mtl.errors import InputError
from mtl.features import features
from mtl.models.inputs import InputCache
from mtl.probes.measures.groups import GROUPS, measured_groups
from mtl.probes.tables import heads_table
from tests.kit.absent import needs
from tests.mtl.analysis import worth
from tests.mtl.analysis.norm_measure import ROW

if "study" in features():
    from mtl.study.config import ProbesConfig
    from mtl.study.grid import check_measures
    from mtl.study.perform import make_measurement
    from mtl.study.plan import probe_settings

of_studies = needs("study")

ROOT = Path(__file__).resolve().parents[3]


@pytest.fixture
def norm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(GROUPS, "norm", ROW)
    monkeypatch.setitem(COMMANDS, "norm", measuring_command("norm"))


@pytest.fixture
def run(toy: Path, tmp_path: Path) -> Path:
    model = worth.joint_model(toy, ("pos", "dep"), dtype=torch.float32)
    model.save(tmp_path / "run" / "model")
    config = {"tasks": ["pos", "dep"], "seed": 1, "corpus": {"path": str(toy)}, "encoder": {"name": "minilm"}}
    (tmp_path / "run" / "config.yaml").write_text(yaml.safe_dump(config))
    return tmp_path / "run"


def test_the_command_has_the_settings_of_the_function(norm, run, capsys) -> None:
    shown = help_of("norm")
    assert "Measure how large the outputs of heads are" in shown
    assert all(
        f"--{key}" in shown for key in ("task", "corpus", "split=dev", "sentences", "top=10", "order=2")
    )
    assert "The order of the norm." in shown
    assert main(["norm", str(run), "--order=1", "--sentences=5", "--top=3", "--task=[pos]"]) == 0
    printed = capsys.readouterr().out
    assert "pos: the 3 heads of highest norm, of 12" in " ".join(printed.split())
    assert "dep" not in printed
    heads, made_of = heads_table.read_heads_table(run / "heads.parquet")
    assert set(heads["measure"]) == {"norm"}
    assert set(heads["task"]) == {"pos"}
    assert (made_of["norm.order"], made_of["norm.split"], made_of["norm.sentences"]) == ("1", "dev", "5")
    assert main(["norm", str(run), "--order=x"]) == 2
    assert main(["norm", str(run), "--oder=1"]) == 2
    assert "did you mean 'order'" in capsys.readouterr().err


@of_studies
def test_a_study_measures_it_with_settings_of_its_own(norm, run) -> None:
    # The name itself is a value of `probes.measures` where the row is there before the study's module.
    probes = ProbesConfig(sentences=4, options={"norm": {"order": 1}})
    check_measures(probes)
    settings = {**plain(asdict(probes)), "target": str(run)}
    assert make_measurement("norm", settings, InputCache()) is None
    heads, made_of = heads_table.read_heads_table(run / "heads.parquet")
    assert set(heads["measure"]) == {"norm"}
    assert (made_of["norm.order"], made_of["norm.sentences"]) == ("1", "4")
    # What the result is made of.
    assert probe_settings(probes, "norm") == {"probes.sentences": 4, "probes.options.order": 1}
    assert measured_groups().index("norm") < measured_groups().index("curve")  # whose orders may use it
    for wrong, message in (
        ({"norm": {"oder": 1}}, "unknown key 'oder': did you mean 'order'"),
        ({"norn": {}}, "'norn' has no settings of its own: did you mean 'norm'"),
        ({"curve": {}}, "'curve' has no settings of its own"),
    ):
        with pytest.raises(InputError, match=message):
            check_measures(ProbesConfig(options=wrong))


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_it_is_trained_measured_drawn_and_reported_from_the_command_line(toy, tmp_path, tiny_encoder) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "from mtl.probes.measures.groups import add_group\n"
        "from tests.mtl.analysis.norm_measure import ROW\n"
        "add_group('norm', ROW)\n"
    )
    environment = {
        **os.environ, "PYTHONPATH": f"{tmp_path}:{ROOT}", "OMP_NUM_THREADS": "1", "COLUMNS": "200"
    }  # fmt: skip
    study = {
        "studies": str(tmp_path / "studies"), "seeds": [1], "grid": [{"setups": ["MTL"], "masks": ["none"]}],
        "train": {
            "tasks": ["pos", "ner"], "max_epochs": 1, "corpus": {"path": str(toy)},
            "encoder": {"name": str(tiny_encoder)}, "trainer": {"accelerator": "cpu", "threads": 1},
        },
        "probes": {
            "measures": ["norm", "ablation", "curve"], "sentences": 6, "orders": ["norm"],
            "options": {"norm": {"order": 1}},
        },
    }  # fmt: skip
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(study))

    def mtl(*words: str) -> str:
        done = subprocess.run(
            [sys.executable, "-m", "mtl", *words], capture_output=True, text=True, check=False,
            env=environment, cwd=tmp_path, timeout=280,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    mtl("study", "own.yaml")
    (folder,) = (tmp_path / "studies" / "own" / "runs").glob("*/heads.parquet")
    heads, made_of = heads_table.read_heads_table(folder)
    assert {"norm", "ablation"} <= set(heads["measure"])
    assert made_of["norm.order"] == "1"
    assert (folder.parent / "curve.parquet").exists()
    mtl("figure", "heads", str(folder.parent), "--measure=norm", "--out=norm.svg")
    assert (tmp_path / "norm.csv").read_text().count("\n") > 12
    mtl("figure", "prediction", str(folder.parent), "--out=prediction.svg")
    assert "norm" in (tmp_path / "prediction.csv").read_text()
    page = next((tmp_path / "studies" / "own").rglob("*.html")).read_text()
    assert "mean norm of the head" in page
    assert "output norm" in page
    mtl("norm", str(folder.parent), "--order=2")
    assert heads_table.read_heads_table(folder)[1]["norm.order"] == "2"
