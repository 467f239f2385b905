"""Settings are judged together: every pair of values trains a step, or is refused before anything is read."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl
import pytest
from rich.console import Console

from mtl.config.instances import whole_of
from mtl.config.keys import hints_of, known_keys_of
from mtl.config.marks import Forbidden, Joint, Used, Was, faults, marked
from mtl.config.parse import configured
from mtl.config.part import files_of_parts
from mtl.config.ranges import out_of_range
from mtl.config.schema import TASK_NAMES, TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.models.joint import JointModel
from mtl.registries import names as entries
from mtl.tasks.pos import Pos
from mtl.tasks.ranges import Range
from mtl.tasks.sentence import Sentence
from mtl.tasks.task import Labels
from mtl.training.check import check_settings
from mtl.training.check_gates import check_target
from mtl.training.train import train
from tests.mtl import tiny
from tests.pairwise import Combination, pairwise

VALUES: dict[str, tuple[str, ...]] = {
    "pruning": ("none", "dynamic", "static --from=SOURCE", "gates_only --from=SOURCE",
        "fixed --gates.masks=MASKS",
    ),
    "balancer.name": (
        "uniform", "fixed --balancer.weights={pos: 2}", "moving_average", "uncertainty", "gradnorm", "pcgrad",
    ),
    "gates.scope": ("shared", "per_task"),
    "gates.target_open": ("null", "0.5", "3", "null --gates.penalty=0.1", "0.5 --gates.at_most=1"),
    "gates.unit": ("head", "group"),
    "gates.kinds": ("null", "[self]", "[cross]"),
    "gates.overlap_penalty": ("0", "0.1", "-0.1"),
    "keep": ("auto", "best", "last"),
    "batch.mode": ("aligned", "separate --batch.sampling=in_turn", "separate --batch.sampling=tempered"),
    "tasks": ("pos", "pos,dep", "dep~a,dep~b", "control", "pos,control,srl", "translate"),
    "gradient_conflict_every": ("0", "1"),
    "clones.kind": (
        "none", "rows", "split --clones.heads=all", "routed --clones.heads=all",
        "shuffled --clones.heads=all", "transplant",
    ),
    "optimizer.accumulate": ("1", "2"),
    "importance_every": ("0", "1"),
    "trainer.devices": ("1", "2"),
    "encoder.layers": ("last", "mix"),
    "encoder.pooling": ("null", "first", "last"),
    "seq2seq.components": ("null", "8"),
}  # fmt: skip
"""By key its values; what follows a value are other keys that it needs."""
VALUES = {key: values for key, values in VALUES.items() if key in known_keys_of(TrainConfig)}
_KNOWN = {*TASK_NAMES, *entries("presets")}
VALUES["tasks"] = tuple(names for names in VALUES["tasks"] if {*map(whole_of, names.split(","))} <= _KNOWN)
# Keys and tasks of packages beside the core are there with these.


class Watched(InputCache):
    """Knows whether a corpus was read."""

    has_read = False

    def split(self, *given: Any) -> list[Sentence]:
        """As `InputCache`."""
        self.has_read = True
        return super().split(*given)


MASK = {"task": ["pos"] * 4, "attention": "self", "layer": [0, 0, 1, 1], "head": [0, 1, 0, 1], "gate": 1.0}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--pruning=dynamic", "--gates.unit=group"], "no heads of the encoder share keys and values"),
        (["--pruning=dynamic", "--gates.target_open=13"], "there are only 12 heads"),
        (["--pruning=dynamic", "--gates.kinds=[cross]"], "no attention of kind cross"),
        (
            ["--pruning=fixed", "--gates.masks=MASKS"],
            "a mask over 2 layers of 2 heads, but the encoder has 3",
        ),
        (["--encoder.layers=mix", "--encoder.word_dropout=2"], "encoder.word_dropout=2"),
        *(
            (
                ["--tasks=pos,dep", "--clones.kind=split", f"--{key}=CLAIMS"],
                "about 2 layers of 2 heads, and the encoder has 3 layers of 4",
            )
            for key in files_of_parts()
        ),
        (["--from=MODEL", "--tasks=dep", "--pruning=static"], "was not trained on dep"),
        (["--from=MODEL", "--tasks=translate"], "a translation model cannot become a labelling model"),
        (["--from=MODEL", "--pruning=dynamic", "--gates.unit=group"], "no heads of the encoder share keys"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_a_corpus_is_read(words, said, tiny_encoder, tmp_path):
    masks, claims, model = (tmp_path / name for name in ("masks.parquet", "claims.json", "model"))
    pl.DataFrame(MASK).write_parquet(masks)
    claims.write_text('{"layers": 2, "heads": 2, "claims": {"pos": [], "dep": []}}')
    JointModel(tiny.encoder("bert"), {"pos": Pos()}, {"pos": Labels({"pos": ("A", "B")})}).save(model)
    places = {"MASKS": masks, "CLAIMS": claims, "MODEL": model}
    for name, place in places.items():
        words = [word.replace(name, str(place)) for word in words]
    if not any(word.startswith("--from") for word in words):
        words = [*words, f"--encoder.name={tiny_encoder}"]
    if not any(word.startswith("--tasks") for word in words):
        words = [*words, "--tasks=pos"]
    write_toy(tmp_path / "toy", 3, 1, 1, seed=5)
    inputs = Watched()
    words = [*words, f"--corpus.path={tmp_path / 'toy'}", f"--runs={tmp_path}", "--name=run"]
    with pytest.raises(InputError, match=re.escape(said)) as raised:
        train(configured("mtl train", TrainConfig, words), console=Console(quiet=True), inputs=inputs)
    assert "\n" not in str(raised.value)
    assert not inputs.has_read
    assert not (tmp_path / "run").exists()


def words_of(combination: Combination, places: dict[str, Any]) -> list[str]:
    words = " ".join(f"--{key}={value}" for key, value in combination.items())
    for name, place in places.items():
        words = words.replace(name, str(place))
    return [f"--{word}" for word in words.removeprefix("--").split(" --")]


def test_pairs_of_settings_are_judged_without_a_traceback(tiny_encoder):
    places = {"SOURCE": "nowhere", "MASKS": "nowhere"}
    accepted, lines = 0, []
    for combination in pairwise(VALUES, tries=20):
        words = [*words_of(combination, places), f"--encoder.name={tiny_encoder}"]
        try:
            config = configured("mtl train", TrainConfig, words)
            check_settings(config)
            check_target(config)
            accepted += 1
        except InputError as error:
            lines.append(str(error))
    assert accepted
    assert lines
    assert not [line for line in lines if "\n" in line]


PARTS = 6
"""Parts of the matrix: each is a test, so that none takes minutes."""


@pytest.mark.parametrize("balancer", ["gradnorm", "pcgrad"])
def test_gradients_of_a_frozen_encoder_cannot_be_compared(balancer):
    words = ["--tasks=pos,ner", "--pruning=gates_only", "--from=x", f"--balancer.name={balancer}"]
    with pytest.raises(InputError, match="gates_only freezes"):
        check_settings(configured("mtl train", TrainConfig, words))


class Matrix:
    """The combinations of values, and runs that some of them start from."""

    def __init__(self, folder: Path, encoder: Path) -> None:
        write_toy(folder / "toy", 12, 2, 2, seed=5)
        self.folder = folder
        self.given = [
            f"--corpus.path={folder / 'toy'}", f"--encoder.name={encoder}", "--max_epochs=1",
            "--trainer.accelerator=cpu", "--batch.sentences=6", "--importance_sentences=4",
        ]  # fmt: skip
        self.inputs = Watched(keep=True)
        source = self.run("source", ["--tasks=pos,dep"])
        masks = self.run("masks", ["--tasks=pos,dep", "--pruning=dynamic"]) / "gates.parquet"
        self.places = {"SOURCE": source, "MASKS": masks}
        values = VALUES | {"trainer.devices": ("1",)}  # no process is started here
        self.combinations = pairwise(values, self.accepted, tries=6, first=0.85)

    def run(self, name: str, words: list[str]) -> Path:
        """The folder of a run with these settings."""
        words = [*self.given, *words, f"--runs={self.folder}", f"--name={name}"]
        config = configured("mtl train", TrainConfig, words)
        return train(config, console=Console(quiet=True), inputs=self.inputs).folder

    def accepted(self, combination: Combination) -> bool:
        """Whether the settings are in order, as far as that is known without a model."""
        try:
            words = [*self.given, *words_of(combination, self.places)]
            config = configured("mtl train", TrainConfig, words)
            check_settings(config)
            check_target(config)
        except InputError:
            return False
        return True


@pytest.fixture(scope="module")
def matrix(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"), tiny_encoder)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_settings_trains_or_is_refused_before_anything_is_read(part, matrix):
    wrong, trained = [], 0
    for number in range(part, len(matrix.combinations), PARTS):
        words = words_of(matrix.combinations[number], matrix.places)
        matrix.inputs.has_read = False
        try:
            matrix.run(f"run-{number}", words)
            trained += 1
            continue
        except InputError as error:
            said = str(error)
        except Exception as error:  # any other one is what this test looks for
            wrong.append((words, f"{type(error).__name__}: {error}"))
            continue
        if "\n" in said or matrix.inputs.has_read or (matrix.folder / f"run-{number}").exists():
            wrong.append((words, said))
    assert trained > 20 / PARTS
    assert not wrong, "\n".join(f"{said}: {' '.join(words)}" for words, said in wrong)


FORBIDDEN = {
    "tasks is empty": "--tasks=[]",
    "tasks=pos,pos names a task twice": "--tasks=pos,pos",
    "pruning=static starts from a trained model": "--pruning=static",
    "corpus.files.layer=x is for files of one task": "--corpus.files.layer=x",
    "balancer.weights names dep, which is not trained (tasks are pos)": "--tasks=pos "
    "--balancer.weights.dep=2",
    "balancer pcgrad compares the tasks' gradients in the encoder": "--balancer.name=pcgrad "
    "--pruning=gates_only --from=x",
    "balancer pcgrad compares the tasks' gradients in every step": "--balancer.name=pcgrad "
    "--batch.mode=separate",
    "gates.target_open=3.5: use a share": "--gates.target_open=3.5",
    "gates.at_most needs gates.scope=per_task": "--gates.at_most=1 --pruning=dynamic",
    "gates.at_most is for a target's choice": "--gates.at_most=1 --pruning=dynamic --gates.scope=per_task "
    "--gates.penalty=1",
    "pruning=fixed takes its masks from a file": "--pruning=fixed",
    "gates.masks=x is for pruning=fixed, and pruning=none": "--gates.masks=x",
    "seq2seq.mixing=blocks is for heads that share components": "--seq2seq.mixing=blocks",
    "seq2seq.architecture=bart is for the task translate": "--seq2seq.architecture=bart",
    "seq2seq.components=8 is for the task translate": "--seq2seq.components=8",
    "translate is trained alone, because it uses a different model: leave out pos": "--tasks=translate,pos",
    "seq2seq.components=8 is for a model from scratch": "--tasks=translate --seq2seq.components=8",
    "seq2seq.components=999: use 1 to 128 components": "--tasks=translate --seq2seq.components=999 "
    "--seq2seq.architecture=bart",
    "encoder.name=minilm has no decoder": "--tasks=translate",
}  # fmt: skip
"""For each rule over several settings its message's beginning, and words that break that rule first."""


@pytest.mark.parametrize(("said", "words"), FORBIDDEN.items())
def test_a_forbidden_pair_is_refused_with_its_message(said, words):
    with pytest.raises(InputError) as raised:
        check_settings(configured("mtl train", TrainConfig, words.split()))
    assert str(raised.value).startswith(said)
    assert "{" not in str(raised.value).replace("weights={}", "")


def test_every_rule_over_several_settings_is_among_these():
    groups = (TrainConfig, *(hint for hint in hints_of(TrainConfig).values()))
    assert sum(len(getattr(group, "FORBIDDEN", ())) for group in groups) == len(FORBIDDEN)


@dataclass(frozen=True)
class Extra:
    """Settings from elsewhere, with all that is said of them."""

    rate: Annotated[float, Range(0, 1), Was(0.5), Used(lambda run: run.extra.on), Joint()] = 0.1
    on: bool = False
    FORBIDDEN: ClassVar[tuple[Forbidden, ...]] = (
        Forbidden(lambda run: run.extra.on and run.pruning == "none", "extra.on needs masks: {found}"),
    )


@dataclass(frozen=True)
class Extended(TrainConfig):
    """A configuration with them."""

    extra: Extra = field(default_factory=Extra)


def test_settings_from_elsewhere_bring_their_ranges_rules_and_use():
    run = Extended(extra=Extra(rate=2, on=True))
    assert list(out_of_range(run)) == ["extra.rate=2: use a number from 0 to 1"]
    assert list(faults(run)) == ["extra.on needs masks: True"]
    assert dict(marked(Extended, Was))["extra.rate"] == Was(0.5)
    assert "extra.rate" in [key for key, _ in marked(Extended, Joint)]
    used = dict(marked(Extended, Used))["extra.rate"]
    assert used.when(run)
    assert not used.when(Extended())
