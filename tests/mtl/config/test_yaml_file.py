"""What YAML accepts silently, and what would never end, is refused with file and line."""

from __future__ import annotations

import time
from pathlib import Path

import pytest
import yaml

from mtl.config.parse import configured
from mtl.config.schema import TrainConfig
from mtl.config.yaml_file import DEEPEST, SHIPPED, dump, read_mapping
from mtl.errors import InputError

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


@pytest.mark.parametrize("text", SPELLINGS)
@pytest.mark.parametrize("key", ["max_epochs", "patience", "optimizer.encoder_lr", "overwrite"])
def test_a_value_means_the_same_in_a_file_and_as_an_option(key, text, tmp_path):
    *above, last = key.split(".")
    path = tmp_path / "c.yaml"
    line = f"{last}: {text}"
    for group in above:
        line = f"{group}: {{{line}}}"
    path.write_text(f"{line}\n")

    def outcome(word: str) -> object:
        try:
            return configured("mtl train", TrainConfig, [word])
        except InputError as error:
            return str(error).removeprefix(f"{path}: line 1: ").split(":")[0]

    assert outcome(str(path)) == outcome(f"--{key}={text}")
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
