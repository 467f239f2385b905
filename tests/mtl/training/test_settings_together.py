"""Settings are judged together: every pair of values trains a step, or is refused before anything is read."""

from __future__ import annotations

import json
import random
import re
from dataclasses import dataclass, field
from itertools import count, islice
from pathlib import Path
from typing import Annotated, Any, ClassVar

import polars as pl
import pytest
from rich.console import Console

from mtl.config.keys import Forbidden, Joint, Used, faults, hints_of, known_keys_of, marked
from mtl.config.parse import configured, out_of_range
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.models.joint import JointModel
from mtl.tasks.structured import Pos
from mtl.tasks.task import Labels, Range
from mtl.training.check import check_settings, check_target
from mtl.training.train import train
from tests.mtl import tiny
from tests.mtl.training.setting_values import LEFT_OUT, WRITTEN, Combination, all_values, words_of
from tests.mtl.training.settings_matrix import Matrix, Watched, ended_well
from tests.mtl.training.still import carried_out, free_ports
from tests.pairwise import pairwise

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
        (["--encoder.freeze=[0,3]"], "there is no layer 3: the encoder has 3, from 0"),
        (
            ["--encoder.freeze=[2]", "--tasks=pos,dep", "--balancer.name=gradnorm"],
            "encoder.freeze freezes all in which balancer gradnorm compares",
        ),
        (["--encoder.layers=mix", "--encoder.word_dropout=2"], "encoder.word_dropout=2"),
        (["--from=MODEL", "--tasks=dep", "--pruning=static"], "was not trained on dep"),
        (["--from=MODEL", "--tasks=translate"], "a translation model cannot become a labelling model"),
        (["--from=MODEL", "--pruning=dynamic", "--gates.unit=group"], "no heads of the encoder share keys"),
    ],
)
def test_what_does_not_fit_the_model_is_refused_before_a_corpus_is_read(words, said, tiny_encoder, tmp_path):
    masks, model = (tmp_path / name for name in ("masks.parquet", "model"))
    pl.DataFrame(MASK).write_parquet(masks)
    JointModel(tiny.encoder("bert"), {"pos": Pos()}, {"pos": Labels({"pos": ("A", "B")})}).save(model)
    places = {"MASKS": masks, "MODEL": model}
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


GENERATED = all_values()
NAMED = (
    "pruning", "balancer.name", "gates.scope", "gates.target_open", "gates.unit", "gates.kinds",
    "keep", "batch.mode", "tasks", "gradient_conflict_every",
    "optimizer.accumulate", "importance_every", "encoder.layers", "encoder.pooling",
    "seq2seq.components",
)  # fmt: skip
"""The keys of which every pair of values is tried."""
EXAMPLES = 200
"""Combinations of values of all keys, drawn at random."""
TRAINED = 60
"""Those of them that are trained, on one device and on two."""


def drawn(seed: int, share: float) -> Combination:
    """Values of all keys, most of them defaults; tasks and pruning are any."""
    rng = random.Random(seed)
    always = ("tasks", "pruning")
    return {
        key: rng.choice(values) if key in always or rng.random() < share else values[0]
        for key, values in GENERATED.items()
    }


def test_every_key_has_values_or_is_left_out_by_name():
    assert not [key for key, values in GENERATED.items() if not values]
    known = known_keys_of(TrainConfig)
    assert not [key for key in (*LEFT_OUT, *WRITTEN) if key not in known]
    several = [key for key, values in GENERATED.items() if len(values) > 1]
    assert len(several) > 0.95 * len(GENERATED)


def test_values_are_judged_without_a_traceback(tiny_encoder):
    places = {"SOURCE": "nowhere", "MASKS": "nowhere"}
    accepted, lines = 0, []
    for seed in range(EXAMPLES):
        words = [*words_of(drawn(seed, 0.08), places), f"--encoder.name={tiny_encoder}"]
        try:
            config = configured("mtl train", TrainConfig, words)
            check_settings(config)
            check_target(config)
            accepted += 1
        except InputError as error:
            lines.append(str(error))
    assert accepted > EXAMPLES / 4
    assert len(lines) > EXAMPLES / 10
    assert not [line for line in lines if "\n" in line]


@pytest.fixture(scope="module")
def matrix(tiny_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> Matrix:
    return Matrix(tmp_path_factory.mktemp("matrix"), tiny_encoder)


PARTS = 8
"""Parts of the matrix: each is a test, so that none takes minutes."""


def defaults(**values: str) -> Combination:
    """The default of every key, but for these values."""
    return {key: of_key[0] for key, of_key in GENERATED.items()} | values


@pytest.fixture(scope="module")
def combinations(matrix: Matrix) -> list[Combination]:
    """Every pair of values of the named keys, and `TRAINED` random combinations of values of all."""
    named = {key: GENERATED[key] for key in NAMED if key in GENERATED}
    pairs = pairwise(named, lambda some: matrix.accepted(defaults(**some)), tries=6, first=0.85)
    # On one device, since processes of a second one would run these tests; two have a test of their own.
    alone = ({**drawn(seed, 0.05), "trainer.devices": "1"} for seed in count(EXAMPLES))
    random_ones = filter(matrix.accepted, alone)
    return [*(defaults(**some) for some in pairs), *islice(random_ones, TRAINED)]


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_every_pair_of_settings_trains_or_is_refused_before_anything_is_read(part, combinations, matrix):
    found: dict[str, str] = {}
    for number, combination in list(enumerate(combinations))[part::PARTS]:
        found[" ".join(matrix.words(combination))] = matrix.outcome(f"run-{number}", combination)
    assert list(found.values()).count("trained") > len(found) / 2
    wrong = [f"{said} | {words}" for words, said in found.items() if not ended_well(said)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.slow
def test_settings_on_two_devices_train_or_are_refused_before_anything_is_read(matrix):
    """Ranks agree, and none waits for one that was refused."""
    jobs: list[dict[str, Any]] = []
    for seed, port in zip(count(10 * EXAMPLES), free_ports(TRAINED), strict=False):
        name = f"two-{seed}"
        combination = {**drawn(seed, 0.1), "trainer.devices": "2"}
        words = [*matrix.words(combination), f"--name={name}"]
        jobs.append({"words": words, "folder": str(matrix.folder / name), "port": port})
    path = matrix.folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    carried_out("tests.mtl.training.settings_matrix", [str(path), "2"])
    first, second = (path.with_suffix(f".{rank}").read_text().splitlines() for rank in (0, 1))
    assert len(first) == len(jobs)
    assert [line.partition(":")[0] for line in first] == [line.partition(":")[0] for line in second]
    assert first.count('"trained"') > TRAINED / 3


FORBIDDEN = {
    "tasks is empty": "--tasks=[]",
    "tasks=pos,pos names a task twice": "--tasks=pos,pos",
    "pruning=static starts from a trained model": "--pruning=static",
    "corpus.files.layer=x is for files of one task": "--corpus.files.layer=x",
    "balancer.weights names dep, which is not trained (tasks are pos)": "--tasks=pos "
    "--balancer.weights.dep=2",
    "balancer pcgrad compares the tasks' gradients in the encoder": "--balancer.name=pcgrad "
    "--pruning=gates_only --from=x",
    "balancer gradnorm compares the tasks' gradients in the encoder, which encoder.freeze=all": "--balancer"
    ".name=gradnorm --encoder.freeze=all",
    "encoder.freeze is empty": "--encoder.freeze=[]",
    "pruning=static trains the encoder and its gates": "--pruning=static --from=x --encoder.freeze=all",
    "gates.lr is given by task, and gates.scope=shared has one mask for pos, dep": "--tasks=pos,dep "
    "--pruning=dynamic --gates.lr.pos=1",
    "balancer pcgrad compares the tasks' gradients in every step": "--balancer.name=pcgrad "
    "--batch.mode=separate",
    "gates.target_open=3.5: use a share": "--gates.target_open=3.5",
    "pruning=fixed takes its masks from a file": "--pruning=fixed",
    "gates.masks=x is for pruning=fixed, and pruning=none": "--gates.masks=x",
    "seq2seq.mixing=blocks is for heads that share components": "--seq2seq.mixing=blocks",
    "seq2seq.architecture=bart is for translations": "--seq2seq.architecture=bart",
    "seq2seq.components=8 is for translations": "--seq2seq.components=8",
    "translate is trained alone, because it uses a different model: leave out pos": "--tasks=translate,pos",
    "seq2seq.components=8 is for a model from scratch": "--tasks=translate --seq2seq.components=8",
    "seq2seq.components is empty: use one number": "--tasks=translate --seq2seq.components={} "
    "--seq2seq.architecture=bart",
    "seq2seq.components=999: use 1 to 128 components": "--tasks=translate --seq2seq.components=999 "
    "--seq2seq.architecture=bart",
    "seq2seq.width=10 is no multiple of seq2seq.heads=4": "--tasks=translate --seq2seq.width=10 "
    "--seq2seq.architecture=bart",
    "trainer.precision=16-mixed scales the loss, and balancer pcgrad takes": "--trainer.precision=16-mixed "
    "--tasks=pos,dep --balancer.name=pcgrad",
    "keep=average is the average of the last snapshots": "--keep=average --snapshots=1",
    "keep=average is for models with the same masks": "--keep=average --snapshots=2 --pruning=dynamic",
    "wandb.id=a/b: W&B refuses ids with /": "--wandb.id=a/b",
    f"wandb.id={'x' * 129}: use 1 to 128 characters": f"--wandb.id={'x' * 129}",
    "wandb.resume=allow asks the server": "--wandb.mode=offline --wandb.resume=allow",
    "gates.unit=group is for heads that share keys and values": "--tasks=translate --pruning=dynamic "
    "--seq2seq.architecture=bart --gates.unit=group",
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

    rate: Annotated[float, Range(0, 1), Used(lambda run: run.extra.on), Joint()] = 0.1
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
    assert "extra.rate" in [key for key, _ in marked(Extended, Joint)]
    used = dict(marked(Extended, Used))["extra.rate"]
    assert used.when(run)
    assert not used.when(Extended())
