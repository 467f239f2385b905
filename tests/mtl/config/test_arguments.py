"""What a signature and a docstring declare, and what a command line gives for it."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from mtl.config.arguments import Arguments, OutFile, arguments_of
from mtl.config.parse import Words, configured
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.files import check_file_place

NONE: list[Path] = []


def several(kind: Literal["a", "b"], runs: list[Path], out: OutFile, seed: int = 1, again: bool = False):
    """Do it.

    Args:
        kind: The kind.
        out: The file.
    """


def placed(run: str, file: Path | None = None, *, names: list[str] | None = None, out: OutFile | None = None):
    """Do it."""


def keyed(
    words: Words[TrainConfig],
    *,
    jobs: int = 0,
    again: list[str] | None = None,
    dry_run: bool = False,
    others: list[Path] = NONE,
):
    """Do it."""


def read(function, *words: str):
    return Arguments.of(function).read("mtl x", words)


def test_places_and_requirements_follow_from_the_signature():
    """Of the parameters before `*`, or else of those without a default, a list takes all later places."""
    one, other, third = map(Arguments.of, (several, placed, keyed))
    assert (one.places, one.required) == (["kind", "runs"], ["kind", "runs", "out"])
    assert one.usage("mtl x") == "mtl x KIND RUNS … --out=OUT [--OPTION=VALUE …]"
    assert (other.places, other.required) == (["run", "file"], ["run"])
    assert other.usage("mtl x") == "mtl x RUN [FILE] [--OPTION=VALUE …]"
    assert (third.places, third.required, third.keys) == ([], [], TrainConfig)
    assert {name: place.check for name, place in one.written.items()} == {"out": check_file_place}
    assert [*other.written] == ["out"]


def test_some_of_the_parameters_need_no_other_to_be_understood():
    def measure(trained: Unknown, *, order: int = 2):  # noqa: F821
        """Measure."""

    kind = arguments_of(measure, ("order",))
    assert (kind().order, kind.__doc__) == (2, "Measure.")


def test_values_are_read_by_place_and_by_name():
    assert read(several, "a", "x", "--again", "y", "--out", "z") == {
        "kind": "a", "runs": [Path("x"), Path("y")], "out": Path("z"), "seed": 1, "again": True,
    }  # fmt: skip
    assert read(several, "--runs", "x", "y", "--kind=b", "--out=z", "--again=false")["runs"] == [
        Path("x"), Path("y"),
    ]  # fmt: skip
    assert read(placed, "a", "--names", "--out=x")["names"] == []
    assert read(placed, "a", "--names", "b", "c", "--names=[d,e]")["names"] == ["b", "c", "d", "e"]
    assert read(placed, "a")["names"] is None
    assert read(placed, "a", "--names", "[b", "[,c]", "[x][y]")["names"] == ["[b", "[,c]", "[x][y]"]


@pytest.mark.parametrize(
    ("function", "words", "message"),
    [
        (several, ["a", "x"], "--out=OUT is missing; usage: mtl x KIND"),
        (several, ["a", "--out=x"], "RUNS is missing; usage"),
        (several, ["a", "x", "--out=y", "--runs"], "--runs needs a value: --runs=VALUE"),
        (several, ["c", "x", "--out=y"], "unknown 'c': choose from a, b"),
        (several, ["", "x", "--out=y"], "KIND is empty; usage"),
        (several, ["a", "x", "--out="], "out: expected a path, not ''"),
        (several, ["a", "--runs=", "--out=y"], "RUNS is empty; usage"),
        (several, ["a", "[]", "--out=y"], "RUNS is missing; usage"),
        (several, ["a", "['']", "--out=y"], "runs: expected a path, not ''"),
        (several, ["a", "--out=y", "--runs", "x", ""], "RUNS is empty; usage"),
        (keyed, ["--others", "x", ""], "others: expected a path, not ''"),
        (several, ["a", "x", "--out=y", "--sede=1"], "unknown key 'sede': did you mean 'seed'?"),
        (placed, ["a", "b", "c"], "'c' is one argument too many; usage"),
    ],
)
def test_what_does_not_fit_is_refused(function, words, message):
    with pytest.raises(InputError) as refused:
        read(function, *words)
    assert message in str(refused.value)


def test_what_is_no_option_is_left_to_the_configuration():
    given = read(
        keyed, "a.yaml", "--seed", "3", "--jobs", "2", "--overwrite", "b.yaml", "--dry-run", "--again"
    )
    words = given.pop("words")
    assert given == {"jobs": 2, "again": [], "dry_run": True, "others": []}
    assert words.words == ["a.yaml", "--seed=3", "--overwrite=true", "b.yaml"]
    assert words.files == ["a.yaml", "b.yaml"]
    with pytest.raises(InputError, match=r"unknown key 'jobz': did you mean 'jobs'\?"):
        read(keyed, "--jobz=1")["words"].configured()


def test_a_key_inside_a_group_needs_no_value_to_be_true():
    """Help shows it so: `--dep.projective`."""
    given = read(keyed, "--dep.projective", "dep", "--tasks.srl.senses", "False")["words"].words
    assert given == ["--dep.projective=true", "dep", "--tasks.srl.senses=False"]
    made = configured(
        "mtl train", TrainConfig, ["--tasks=[dep,srl]", "--dep.projective", "--tasks.srl.senses"]
    )
    assert made.dep.projective
    assert made.srl.senses


def test_names_and_files_that_look_like_keys_of_tasks_are_none(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("tasks.small.yaml").write_text("tasks: [pos]\n")
    assert configured("mtl train", TrainConfig, ["tasks.small.yaml", "--name", "tasks.x"]).tasks == ("pos",)
    with pytest.raises(InputError, match=r"^--tasks\.dep\.arc_dim=3: dep is not trained"):
        configured("mtl train", TrainConfig, ["tasks.small.yaml", "--tasks.dep.arc_dim", "3"])
