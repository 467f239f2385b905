"""Files and dotted keys become typed values; what does not fit is described by its key and type.
What YAML accepts silently, and what would never end, is refused with file and line.
"""

from __future__ import annotations

import time
from dataclasses import make_dataclass
from pathlib import Path

import pytest
import yaml

from mtl.config.keys import known_keys_of
from mtl.config.parse import (
    DEEPEST,
    SHIPPED,
    configuration_from,
    configured,
    dump,
    read_configuration,
    read_mapping,
    spelt,
)
from mtl.config.schema import TrainConfig
from mtl.errors import InputError
from mtl.features import features
from tests.kit.absent import needs

if "study" in features():
    from mtl.study.config import StudyConfig

of_studies = needs("study")


def train(*words: str) -> TrainConfig:
    return configured("mtl train", TrainConfig, words)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--max_epochs=abc", "max_epochs: expected a whole number, not 'abc'"),
        ("--seed=1.5", "seed: expected a whole number, not '1.5'"),
        (
            "--gates.target_open=x",
            "gates.target_open: expected a number, or KEY: VALUE pairs, each value a number, or null, not",
        ),
        ("--gates.target_open.crss=3", "'gates.target_open.crss': did you mean 'gates.target_open.cross'?"),
        (
            "--gates.target_open={crss: 3}",
            "'gates.target_open.crss': did you mean 'gates.target_open.cross'?",
        ),
        ("--gates.penalty.cross=x", "gates.penalty: expected a number, or KEY: VALUE pairs"),
        ("--gates.target_open=nan", "gates.target_open"),
        ("--overwrite=maybe", "overwrite: expected true or false, not 'maybe'"),
        ("--pruning=dynmic", "pruning: unknown 'dynmic': did you mean 'dynamic'?"),
        ("--pruning=zzz", "pruning: unknown 'zzz': choose from none, dynamic, static, gates_only"),
        ("--tasks=pos,dpe", "tasks: unknown 'dpe': did you mean 'dep'?"),
        ("--encoder=x", "encoder holds other keys, and cannot be 'x'; set encoder.KEY"),
        ("--encodr.name=x", "unknown key 'encodr.name': did you mean 'encoder.name'?"),
        ("--balancer.weights=3", "balancer.weights: expected KEY: VALUE pairs, each value a number, not '3'"),
        ("--balancer.weights.dep=x", "balancer.weights: expected KEY: VALUE pairs"),
        ("--corpus.pos.trian=x", "unknown key 'corpus.pos.trian': did you mean 'corpus.pos.train'?"),
        ("--ner.threshold=2", "threshold 2.0 is not a probability"),
        ("--seed", "write --seed=VALUE"),
        ("--seeed", "unknown key 'seeed': did you mean 'seed'?"),
        ("--zzz", "unknown key 'zzz'; see --help"),
        ("--out=runs/x", "unknown key 'out': here 'name' says where the result goes"),
        ("-seed=1", "write --seed=VALUE"),
    ],
)
def test_a_bad_argument_is_described_by_key_and_type(word, message):
    with pytest.raises(InputError) as error:
        train(word)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert "class" not in str(error.value)


@of_studies
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--seeds=1,b", "seeds: expected a list, each a whole number, not [1, b]"),
        ("--seeds=[1", "seeds: expected a list, for instance --seeds=[1], not [1"),
        ("--seeds=[a]", "seeds: expected a list, each a whole number"),
        ("--grid=[{setps: [a]}]", "unknown key 'grid[0].setps': did you mean 'grid[0].setups'?"),
        ("--grid=[{masks: [dynmic]}]", "grid[0].masks: unknown 'dynmic': did you mean 'dynamic'?"),
        ("--grid=[3]", "grid[0] holds other keys, and cannot be '3'"),
        (
            "--train.gates.lr=x",
            "train.gates.lr: expected a number, or KEY: VALUE pairs, each value a number, or null, not 'x'",
        ),
    ],
)
def test_a_bad_study_is_described_alike(word, message):
    with pytest.raises(InputError) as error:
        configured("mtl study", StudyConfig, [word])
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "hint", "value"),
    [
        ("1", tuple[int, ...], [1]),
        ("1, 4,16", tuple[int, ...], [1, 4, 16]),
        ("[1,4]", tuple[int, ...], [1, 4]),
        ("0.2,1e-1", tuple[float, ...], [0.2, 0.1]),
        ("7,pos", tuple[str, ...], ["7", "pos"]),
        ("runs/a,runs/b", tuple[Path, ...], [Path("runs/a"), Path("runs/b")]),
        ("1,2", tuple[int, ...] | None, [1, 2]),
        ("null", tuple[int, ...] | None, None),
        ("null", tuple[str, ...] | None, None),
    ],
)
def test_a_list_needs_no_brackets(text, hint, value):
    kind = make_dataclass("Options", [("key", hint)])
    made = configuration_from(kind, {"key": spelt(text, hint)})
    assert made.key == (value if value is None else tuple(value))


def test_a_list_of_names_may_have_one_and_a_name_may_stand_for_a_list():
    assert train("--gates.kinds=encoder").gates.kinds == ("encoder",)
    assert train("--encoder.freeze=all").encoder.freeze == "all"
    assert train("--encoder.freeze=embeddings,0").encoder.freeze == ("embeddings", 0)


def test_later_files_and_keys_win_and_groups_are_merged(tmp_path):
    (tmp_path / "a.yaml").write_text("max_epochs: 3\noptimizer: {clip: 2, warmup: 1e-1}\n")
    (tmp_path / "b.yaml").write_text("optimizer: {clip: 4}\nbalancer: {name: fixed, weights: {dep: 2}}\n")
    config = train(
        str(tmp_path / "a.yaml"), "--optimizer.encoder_lr=1e-4", "--config", str(tmp_path / "b.yaml"),
        "--balancer.weights.pos", "3", "--corpus.pos.train=x", "--overwrite", "--tasks", "pos,dep",
        "--wandb.tags=[a, b]", "--from=runs/y", "--gates.lr=null", "--name=7",
    )  # fmt: skip
    assert (config.max_epochs, config.optimizer.clip, config.optimizer.warmup) == (3, 4.0, 0.1)
    assert (config.optimizer.encoder_lr, config.balancer.weights) == (1e-4, {"dep": 2.0, "pos": 3.0})
    assert (config.corpus.pos.train, config.corpus.path) == ("x", "data/ewt5")
    assert (config.overwrite, config.tasks, config.wandb.tags) == (True, ("pos", "dep"), ("a", "b"))
    assert (config.init_from, config.gates.lr, config.name) == ("runs/y", None, "7")


def test_values_as_pythons_own_spelling_are_read():
    assert train("--gates.lr=None").gates.lr is None
    assert train("--balancer.weights={'pos': 2, 'dep': 1.5}").balancer.weights == {"pos": 2.0, "dep": 1.5}
    assert train("--name=Nonesuch").name == "Nonesuch"


def test_a_number_for_all_kinds_of_attention_or_one_for_each(tmp_path):
    assert train("--gates.target_open=8").gates.target_open == 8.0
    assert train("--gates.target_open=null").gates.target_open is None
    by_kind = {"encoder": 8.0, "cross": 0.5}
    for words in (
        ["--gates.target_open={encoder: 8, cross: 0.5}"],
        ["--gates.target_open={'encoder': 8, 'cross': 0.5}"],
        ["--gates.target_open=24", "--gates.target_open.encoder=8", "--gates.target_open.cross=0.5"],
    ):
        assert train(*words).gates.target_open == by_kind
    (tmp_path / "a.yaml").write_text("gates: {penalty: {encoder: 1e-2, cross: 0}}\n")
    config = train(str(tmp_path / "a.yaml"), "--gates.penalty.cross=2")
    assert config.gates.penalty == {"encoder": 0.01, "cross": 2.0}


def test_known_keys_are_groups_and_leaves():
    keys = known_keys_of(TrainConfig)
    assert {"encoder", "encoder.name", "corpus.pos", "corpus.pos.train", "balancer.weights"} <= set(keys)
    assert {"gates.penalty", "gates.penalty.cross", "gates.target_open.self"} <= set(keys)


def test_where_begins_the_message():
    with pytest.raises(InputError, match=r"^file\.yaml: seed cannot be null"):
        configuration_from(TrainConfig, {"seed": None}, "file.yaml")


def test_equal_values_of_other_types_are_judged_by_themselves():
    """Values are remembered with their types: 1, 1.0 and true are equal in Python."""
    assert train("--max_epochs=1").max_epochs == 1
    for value in ("true", "1.5"):
        with pytest.raises(InputError, match="max_epochs: expected a whole number"):
            train(f"--max_epochs={value}")
    kinds = [make_dataclass("Options", [("key", hint)]) for hint in (int, float, bool)]
    made = [configuration_from(kind, {"key": value}) for kind, value in zip(kinds, (1, 1, True), strict=True)]
    assert [type(one.key) for one in made] == [int, float, bool]
    with pytest.raises(InputError):
        configuration_from(kinds[0], {"key": True})
    with pytest.raises(InputError):
        configuration_from(kinds[2], {"key": 1})


def test_a_fault_of_a_file_names_the_file_once_and_one_of_the_command_line_none(tmp_path):
    bad = tmp_path / "bad.yaml"
    for content, message in (
        ("seed: x", f"{bad}: line 1: seed: expected"),
        ("# why\nseed: [", f"{bad} is no YAML"),
        ("seed: 1\ngates:\n  lr: x", f"{bad}: line 3: gates.lr: expected"),
        ("seed: 1\ngates:\n  rl: 1", f"{bad}: line 3: unknown key 'gates.rl'"),
        ("gates: {target_open: {crss: 1}}", f"{bad}: line 1: unknown key 'gates.target_open.crss'"),
        ("\ntasks:\n- pos\n- dpe", f"{bad}: line 2: tasks: unknown 'dpe'"),
        ("seed: 1\nner:\n  threshold: 3", f"{bad}: line 2: ner: threshold 3.0 is not a probability"),
    ):
        bad.write_text(content)
        with pytest.raises(InputError) as error:
            train(str(bad), "--max_epochs=2")
        assert str(error.value).startswith(message)
        assert str(error.value).count(str(bad)) == 1
    bad.write_text("max_epochs: 3")
    with pytest.raises(InputError, match=r"^seed: expected"):
        train(str(bad), "--seed=x")
    good = tmp_path / "good.yaml"
    good.write_text("\nseed: 3")
    bad.write_text("seed: x")
    assert train(str(bad), str(good)).seed == 3  # only what counts is judged
    good.write_text("seed: y")
    with pytest.raises(InputError, match=r"good\.yaml: line 1: seed"):
        train(str(bad), str(good))
    good.write_text("\ngates: {lr: 1000}")
    with pytest.raises(InputError, match=r"good\.yaml: line 2: gates\.lr=1000.0: use a number above"):
        train(str(good))


@of_studies
def test_a_fault_in_a_list_of_groups_has_its_line(tmp_path):
    path = tmp_path / "study.yaml"
    path.write_text("grid:\n- setups: [MTL]\n- setups: [MTL]\n  masks: [dynmic]\n")
    with pytest.raises(InputError, match=r"study\.yaml: line 4: grid\[1\]\.masks: unknown 'dynmic'"):
        configured("mtl study", StudyConfig, [str(path)])


def test_a_key_that_is_given_again_has_the_place_of_its_last_value(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("gates:\n  lr: x\n  init_std: 1\n")
    second.write_text("\ngates: {lr: 1000}\ntasks:\n  pos: {weight: x}\n")
    for words, message in (
        ([first], f"{first}: line 2: gates.lr: expected"),
        ([first, "--gates.lr=y"], "gates.lr: expected"),
        ([first, "--gates={lr: y}"], "gates.lr: expected"),
        ([first, "--gates.lr=1", "--gates.init_std=y"], "gates.init_std: expected"),
        ([first, second, "--tasks=pos"], f"{second}: line 4: balancer.weights: expected"),
        ([first, second, "--tasks.pos.weight=2"], f"{second}: line 2: gates.lr=1000.0: use"),
    ):
        with pytest.raises(InputError) as error:
            train(*map(str, words))
        assert str(error.value).startswith(message)


def test_a_mapping_replaces_another_and_a_key_of_it_does_not():
    weights = "--balancer.weights={pos: 2, dep: 3}"
    assert train(weights, "--balancer.weights={ner: 1}").balancer.weights == {"ner": 1.0}
    assert train(weights, "--balancer.weights.ner=1").balancer.weights == {"pos": 2.0, "dep": 3.0, "ner": 1.0}
    assert train(weights, "--balancer={name: fixed}").balancer.weights == {"pos": 2.0, "dep": 3.0}


@pytest.mark.parametrize("group", ["optimizer", "gates"])
def test_a_group_that_is_none_in_a_runs_configuration_is_said(group, tmp_path):
    path = tmp_path / "config.yaml"
    path.write_text(f"seed: 1\n{group}: 3\n")
    with pytest.raises(InputError, match=rf"config\.yaml: line 2: {group} holds other keys"):
        read_configuration(TrainConfig, path)


BOMB = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 10)
)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "is empty: write a line KEY: VALUE"),
        (b"# nothing\n", "is empty"),
        (b"- a\n- b\n", "holds no keys"),
        (b"just words\n", "holds no keys"),
        ("name: Käse\n".encode("latin-1"), "is no UTF-8 text (byte 7)"),
        (bytes(range(256)), "is no UTF-8 text"),
        (b"a\x00b: 1\n", "is no YAML"),
        (b"a: [1\n", "is no YAML"),
        (b"a: !!python/object/apply:os.system [ls]\n", "is no YAML"),
        (b"seed: 1\ntasks: [pos]\nseed: 2\n", "line 3: the key seed is given twice"),
        (b"gates:\n  lr: 1\n  lr: 2\n", "line 3: the key lr is given twice"),
        (b"a: &a [*a]\n", "line 1: *a names nothing above it, or holds itself"),
        (b"a: " + b"[" * 5000 + b"]" * 5000 + b"\n", f"more than {DEEPEST} mappings and lists"),
        ("".join(f"{' ' * n}a:\n" for n in range(5000)).encode(), f"more than {DEEPEST} mappings"),
        (BOMB.encode(), "line 5: with its aliases, the file has more than 100,000 values"),
    ],
)
def test_bad_files_are_refused_in_one_line(content, message, tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(content)
    started = time.process_time()
    with pytest.raises(InputError) as error:
        read_mapping(path)
    assert message in str(error.value)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    assert time.process_time() - started < 5


def test_missing_files_and_folders_are_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.yaml: no such file"):
        read_mapping(tmp_path / "nowhere.yaml")
    with pytest.raises(InputError, match="is a folder"):
        read_mapping(tmp_path)


def test_values_are_those_of_yaml_but_for_dates_and_with_plain_exponents(tmp_path):
    path = tmp_path / "file.yaml"
    path.write_bytes(
        b"\xef\xbb\xbfa: 1e-3\r\nb: -.5\nc: 1_000\nd: 2020-01-01\ne: [yes, null]\nf: .inf\ng: &x {h: 1}\n"
        b"i: *x\nj: 1.5e+3\nk: 1.2.3\nl: e5\nm: 12e03\nn: -x\n"
    )
    assert read_mapping(path) == {
        "a": 1e-3, "b": -0.5, "c": 1000, "d": "2020-01-01", "e": [True, None], "f": float("inf"),
        "g": {"h": 1}, "i": {"h": 1}, "j": 1500.0, "k": "1.2.3", "l": "e5", "m": 12000.0, "n": "-x",
    }  # fmt: skip


def test_configurations_of_the_package_are_found_by_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # outside a checkout
    for file in SHIPPED.rglob("*.yaml"):
        inside = file.relative_to(SHIPPED)
        command = inside.parts[0] if len(inside.parts) == 2 else "train"
        for path in (Path(inside.stem), Path("configs", inside)):
            assert read_mapping(path, command) == read_mapping(file)
    with pytest.raises(InputError, match=r"^jont: no such file; .* come with mtl are .*joint"):
        read_mapping(Path("jont"), "train")
    (tmp_path / "joint").write_text("seed: 3\n")
    assert read_mapping(Path("joint"), "train") == {"seed": 3}  # a file of the user's goes before


SPELLINGS = ["030", "010", "08", "1_000", "-7", "+3", "0x1f", "1:30", "1e3", "true", "null", "~"]
TEXTS = ["null", "1e5", "030", "1:30", "0o17", "1_0", "yes", "~", "0x1f", ".5", "-.inf", "2024-01-01"]


@pytest.mark.parametrize("key", ["max_epochs", "patience", "optimizer.encoder_lr", "overwrite"])
def test_a_value_means_the_same_in_a_file_and_as_an_option(key, tmp_path):
    *above, last = key.split(".")
    path = tmp_path / "c.yaml"

    def outcome(word: str) -> object:
        try:
            return configured("mtl train", TrainConfig, [word])
        except InputError as error:
            return str(error).removeprefix(f"{path}: line 1: ").split(":")[0]

    for text in SPELLINGS:
        line = f"{last}: {text}"
        for group in above:
            line = f"{group}: {{{line}}}"
        path.write_text(f"{line}\n")
        assert outcome(str(path)) == outcome(f"--{key}={text}"), text
    assert configured("mtl train", TrainConfig, ["--max_epochs=030"]).max_epochs == 30


@pytest.mark.parametrize("digits", ["0x" + 5000 * "f", 5000 * "9"])
def test_a_number_that_python_does_not_write_is_one_line(digits, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"name: run\nseed: {digits}\n")
    with pytest.raises(InputError, match=r"c.yaml is no YAML: line 2: a number longer than 1,000 digits"):
        configured("mtl train", TrainConfig, [str(path)])
    with pytest.raises(InputError, match=r"^seed: expected a whole number, not '\w{40,60}…'$"):
        configured("mtl train", TrainConfig, [f"--seed={digits}"])
    with pytest.raises(InputError, match=r"balancer.weights"):
        configured("mtl train", TrainConfig, [f"--balancer.weights={{pos: {digits}}}"])


@pytest.mark.parametrize("name", TEXTS)
def test_a_text_stays_one_through_files_and_options(name, tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(f"name: '{name}'\n")
    assert configured("mtl train", TrainConfig, [str(path)]).name == name
    path.write_text(dump({"name": name, "balancer": {"weights": {"pos": 1.5}}}))
    assert configured("mtl train", TrainConfig, [str(path)]).name == name
    assert yaml.safe_load(path.read_text())["name"] == name
    expected = None if name == "null" else name
    assert configured("mtl train", TrainConfig, [f"--name={name}"]).name == expected
