"""Models on the hub: what is uploaded is downloaded again, and what goes wrong is one line."""

from __future__ import annotations

import copy
import json
import os
import re
import stat
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import polars as pl
import pytest
import torch
import yaml
from huggingface_hub import constants
from huggingface_hub.errors import HFValidationError, OfflineModeIsEnabled

from mtl import JointModel, load_pruned, prune_heads
from mtl.commands.main import main
from mtl.corpora.formats.jsonl import write_jsonl
from mtl.errors import InputError
from mtl.heads.gates import FixedGates
from mtl.models.found import check_encoder
from mtl.models.hub import hub_errors, upload
from mtl.tasks.sentence import Sentence
from mtl.tasks.sentence_tasks import Cola
from mtl.tasks.structured import Pos
from mtl.tasks.task import Labels
from tests.kit.absent import may_be_absent
from tests.mtl import tiny
from tests.mtl.models.hub_server import Hub, Repository, serving

SENTENCES = [list(tiny.WORDS), ["a", "cat", "saw", "the", "dog"], ["dog"]]
TASKS = {"pos": Pos(inventory="tags"), "cola": Cola(pooling="mean")}
LABELS = {"pos": Labels(("DT", "NN", "VBD")), "cola": Labels(("0", "1"))}
CONFIG = {
    "tasks": ["pos", "cola"], "corpus": {"path": "data/ewt5"}, "encoder": {"name": "minilm"},
}  # fmt: skip
METRICS = {
    "dev": {"pos": {"accuracy": 91.25}, "cola": {"accuracy": 80.5, "matthews": 75.125, "accuracy/0": 1.0}},
    "test": {"pos": {"accuracy": 90.0}, "cola": {"accuracy": 79.0, "matthews": 74.0}},
}


def model_of(seed: int = 0) -> JointModel:
    """Two tasks on a tiny encoder, with a mask for each."""
    gates = torch.ones(2, tiny.LAYERS, tiny.HEADS)
    gates[0, 0, 1:] = 0.0
    gates[1] = 0.0
    masks = FixedGates(gates, ("pos", "cola"))
    model = JointModel(tiny.encoder("bert", dtype=torch.float32), TASKS, LABELS, masks)
    torch.manual_seed(seed)
    for value in model.decoders.parameters():
        torch.nn.init.normal_(value)
    return model.eval()


def run_of(folder: Path, model: JointModel) -> Path:
    """A run's folder with the model, its configuration and scores."""
    model.save(folder / "model")
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG))
    (folder / "metrics.json").write_text(json.dumps(METRICS | {"signatures": {}}))
    return folder


def at(endpoint: str) -> dict[str, object]:
    """What HF_ENDPOINT would have set before the hub's client was imported."""
    return {
        "HF_HUB_OFFLINE": False,
        "ENDPOINT": endpoint,
        "HUGGINGFACE_CO_URL_TEMPLATE": f"{endpoint}/{{repo_id}}/resolve/{{revision}}/{{filename}}",
    }


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with serving() as found:
        for name, value in at(found.endpoint).items():
            monkeypatch.setattr(constants, name, value)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
        yield found


def test_loading_leaves_the_random_generator_as_it_is(tmp_path: Path):
    folder = run_of(tmp_path / "run", model_of())
    generator = torch.get_rng_state()
    JointModel.from_pretrained(folder)
    assert torch.equal(torch.get_rng_state(), generator)


def test_a_model_knows_the_files_of_each_task(tmp_path: Path):
    folder = run_of(tmp_path / "run", model_of())
    files = {"pos": {"train": "a/train.conllu"}, "instances": {"cola": {"train": "b/en.txt:b/de.txt"}}}
    (folder / "config.yaml").write_text(yaml.safe_dump(CONFIG | {"corpus": files}))
    assert JointModel.from_pretrained(folder).origin.corpus == "pos: train.conllu, cola: en.txt:de.txt"


def test_what_is_pushed_is_loaded_again(hub: Hub, tmp_path: Path):
    model = JointModel.from_pretrained(run_of(tmp_path / "run", model_of()))
    made = model.push_to_hub("someone/parser", token="good", commit_message="first")
    assert made.oid == hub.repositories["someone/parser"].branches["main"]
    loaded = JointModel.from_pretrained("someone/parser")
    assert loaded.annotate(SENTENCES) == model.annotate(SENTENCES)
    assert not loaded.training
    assert loaded.origin == model.origin
    hub.asked.clear()
    again = JointModel.from_pretrained("someone/parser", local_files_only=True)
    assert again.annotate(SENTENCES) == model.annotate(SENTENCES)
    assert hub.asked == []


def test_a_revision_is_a_branch_or_a_commit(hub: Hub, tmp_path: Path):
    first, second = model_of(1), model_of(2)
    before = first.push_to_hub("someone/parser", token="good").oid
    second.push_to_hub("someone/parser", token="good", revision="larger")
    assert sorted(hub.repositories["someone/parser"].branches) == ["larger", "main"]
    wanted = {None: first, "larger": second, before: first}
    assert first.annotate(SENTENCES) != second.annotate(SENTENCES)
    for revision, model in wanted.items():
        loaded = JointModel.from_pretrained(
            "someone/parser", revision=revision, cache_dir=tmp_path / "elsewhere"
        )
        assert loaded.annotate(SENTENCES) == model.annotate(SENTENCES)
    assert not (tmp_path / "cache").exists()


def test_only_the_files_of_a_model_are_downloaded(hub: Hub):
    model_of().push_to_hub("someone/parser", token="good")
    repository = hub.repositories["someone/parser"]
    files = repository.commits[repository.branches["main"]]
    repository.commit("main", files | {"data/train.json": b"{}", "paper.pdf": b"%"})
    JointModel.from_pretrained("someone/parser")
    got = {line.rpartition("/")[2] for line in hub.asked if line.startswith("GET") and "/resolve/" in line}
    assert {"model.json", "decoders.safetensors", "model.safetensors"} <= got
    assert not got & {"paper.pdf", "train.json", "README.md"}


def test_weights_without_a_successor_are_deleted(hub: Hub, tmp_path: Path):
    model_of().push_to_hub("someone/parser", token="good")
    repository = hub.repositories["someone/parser"]
    files = repository.commits[repository.branches["main"]]
    stale = {
        "model-00001-of-00002.safetensors": b"old", "model.safetensors.index.json": b"{}", "notes.md": b"mine"
    }  # fmt: skip
    repository.commit("main", files | stale)
    model_of(3).push_to_hub("someone/parser", token="good")
    left = repository.commits[repository.branches["main"]]
    assert left.keys() == files.keys() | {"notes.md"}


def test_a_cut_encoder_is_loaded_by_name_and_revision(hub: Hub, tmp_path: Path):
    encoder = tiny.encoder("bert", dtype=torch.float32)
    prune_heads(encoder.transformer, {0: [1, 2]})
    encoder.save(tmp_path / "cut")
    with pytest.raises(InputError, match=r"^someone/cut: the hub answers 403 .*a token that may write"):
        upload(
            tmp_path / "cut", "someone/cut", message="x", private=None, revision=None, create_pr=False,
            token="other",
        )  # fmt: skip
    upload(
        tmp_path / "cut", "someone/cut", message="x", private=True, revision="small", create_pr=False,
        token="good",
    )  # fmt: skip
    loaded = load_pruned("someone/cut", "bfloat16", revision="small", token="good")
    assert loaded.dtype == torch.bfloat16
    loaded = load_pruned("someone/cut", revision="small", local_files_only=True)
    assert torch.equal(tiny.vectors(loaded, *tiny.batch()), tiny.vectors(encoder.transformer, *tiny.batch()))
    with pytest.raises(InputError, match=r"^cannot load someone/cut \(") as raised:
        load_pruned("someone/cut", revision="smaller", token="good")
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("someone/nothing", {}, "no such folder, and no such repository on the hub"),
        ("someone/secret", {}, "no such folder, and no such repository on the hub"),
        ("someone/parser", {"revision": "v9"}, "has no branch, tag or commit 'v9'"),
        ("someone/other", {}, "holds no joint model (no model.json)"),
        ("someone/secret", {"token": "good", "local_files_only": True}, "not in the cache of the hub"),
        ("runs/joint/model", {}, "no such folder, and not a valid name of a repository"),
    ],
)
def test_what_cannot_be_loaded_is_one_line(hub: Hub, name: str, options: dict[str, object], message: str):
    model = model_of()
    model.push_to_hub("someone/parser", token="good")
    model.push_to_hub("someone/secret", token="good", private=True)
    model.push_to_hub("someone/other", token="good")
    other = hub.repositories["someone/other"]
    other.commit("main", {"config.json": b"{}"})
    with pytest.raises(InputError) as raised:
        JointModel.from_pretrained(name, **options)  # type: ignore[arg-type]
    assert str(raised.value).startswith(f"{name}: ")
    assert message in str(raised.value)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("error", [OfflineModeIsEnabled("off"), HFValidationError("no name")])
def test_messages_about_uploads_mention_no_folders_and_caches(error: Exception):
    with pytest.raises(InputError) as raised, hub_errors("someone/parser", None):
        raise error
    assert not re.search("folder|cache", str(raised.value))


def test_a_gated_repository_is_not_called_missing(hub: Hub):
    hub.repositories["someone/gated"] = Repository(private=False, gated=True)
    for look in (check_encoder, JointModel.from_pretrained):
        with pytest.raises(InputError, match=r"^someone/gated: its owner decides who may read it: accept"):
            look("someone/gated")


def test_a_path_is_never_asked_for_on_the_hub(hub: Hub):
    with pytest.raises(InputError, match=r"^someone/parser holds no trained model"):
        JointModel.from_pretrained(Path("someone/parser"))
    assert hub.asked == []


@pytest.mark.parametrize(("token", "status"), [(None, 403), ("other", 403)])
def test_a_push_without_the_right_is_one_line(hub: Hub, token: str | None, status: int):
    with pytest.raises(InputError, match=f"^someone/parser: the hub answers {status} .*use a token"):
        model_of().push_to_hub("someone/parser", token=token or False)
    assert hub.repositories == {}


def test_without_a_network_it_is_one_line(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    with serving() as gone:
        endpoint = gone.endpoint
    for name, value in at(endpoint).items():
        monkeypatch.setattr(constants, name, value)
    monkeypatch.setattr(time, "sleep", lambda seconds: None)  # between tries
    with pytest.raises(InputError, match=r"^someone/parser: .*not in the cache.*the hub cannot"):
        JointModel.from_pretrained("someone/parser", cache_dir=tmp_path)
    with pytest.raises(InputError, match=r"^someone/parser: the hub cannot be reached \("):
        model_of().push_to_hub("someone/parser", token="good")


@pytest.mark.parametrize("umask", [0o022, 0o007])
def test_a_saved_model_has_the_permissions_of_the_umask(tmp_path, umask):
    """Weights, too, which safetensors makes readable by their owner only: a service may be another user."""
    before = os.umask(umask)
    try:
        model_of().save_pretrained(tmp_path / "saved")
    finally:
        os.umask(before)
    modes = {path.name: stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "saved").iterdir()}
    assert modes == dict.fromkeys(modes, 0o666 & ~umask)


def test_the_card_says_what_the_run_says(tmp_path: Path):
    model = JointModel.from_pretrained(run_of(tmp_path / "run", model_of()))
    model.save_pretrained(tmp_path / "parser")
    _, header, text = (tmp_path / "parser" / "README.md").read_text().split("---\n", 2)
    assert yaml.safe_load(header) == {
        "library_name": "mtl", "base_model": "sentence-transformers/all-MiniLM-L6-v2",
        "tags": ["mtl", "multi-task-learning", "pos", "cola"],
    }  # fmt: skip
    lines = text.splitlines()
    assert "# parser" in lines
    assert "- Encoder: minilm" in lines
    assert "- Corpus: ewt5" in lines
    assert "| pos | accuracy | 91.25 | 90.00 |" in lines
    assert "| cola | matthews | 75.12 | 74.00 |" in lines
    pos = [f"L{layer}H{head}" for layer in range(3) for head in range(4) if layer or not head]
    assert f"| pos | 9 of 12: {' '.join(pos)} |" in lines
    assert "| cola | 0 of 12: none |" in lines
    assert 'model = JointModel.from_pretrained("parser")' in lines
    again = JointModel.from_pretrained(tmp_path / "parser")
    assert again.annotate(SENTENCES) == model.annotate(SENTENCES)
    again.save_pretrained(tmp_path / "copy" / "parser")
    assert (tmp_path / "copy" / "parser" / "README.md").read_bytes() == (
        tmp_path / "parser" / "README.md"
    ).read_bytes()


def cut(model: JointModel) -> None:
    prune_heads(model.encoder.transformer, {1: [0]})


def trained(model: JointModel) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    next(model.parameters()).grad = torch.ones_like(next(model.parameters()))
    optimizer.step()


@pytest.mark.parametrize("change", [cut, trained])
def test_a_changed_model_has_no_scores(change, tmp_path: Path):
    model = JointModel.from_pretrained(run_of(tmp_path / "run", model_of()))
    change(model)
    model.save_pretrained(tmp_path / "changed")
    text = (tmp_path / "changed" / "README.md").read_text()
    assert "the model was changed after it was loaded" in text
    assert "91.25" not in text
    assert JointModel.from_pretrained(tmp_path / "changed").origin.scores == {}


def test_a_copy_of_a_model_has_its_scores(tmp_path: Path):
    model = JointModel.from_pretrained(run_of(tmp_path / "run", model_of()))
    copy.deepcopy(model).save_pretrained(tmp_path / "copy")
    assert "91.25" in (tmp_path / "copy" / "README.md").read_text()


def test_a_damaged_run_does_not_keep_its_model_from_loading(tmp_path: Path):
    run = run_of(tmp_path / "run", model_of())
    (run / "metrics.json").write_text("{")
    JointModel.from_pretrained(run).save_pretrained(tmp_path / "saved")
    assert f"None: {run / 'metrics.json'} is no JSON" in (tmp_path / "saved" / "README.md").read_text()


def test_the_type_of_weights_is_chosen(tmp_path: Path):
    run = run_of(tmp_path / "run", model_of())
    half = JointModel.from_pretrained(run, dtype="bfloat16")
    assert half.encoder.transformer.dtype == torch.bfloat16
    assert {value.dtype for value in half.decoders.parameters()} == {torch.float32}
    half.save_pretrained(tmp_path / "half")
    assert JointModel.from_pretrained(tmp_path / "half").encoder.transformer.dtype == torch.float32
    auto = JointModel.from_pretrained(tmp_path / "half", dtype="auto")
    assert auto.encoder.transformer.dtype == torch.bfloat16
    assert auto.annotate(SENTENCES) == half.annotate(SENTENCES)
    with pytest.raises(InputError, match="dtype='int9': use auto, torch"):
        JointModel.from_pretrained(run, dtype="int9")


@pytest.fixture
def labelled(tmp_path: Path) -> Path:
    """A corpus for the tasks of `model_of`."""
    tags = ("DT", "NN", "VBD", "DT", "NN")
    sentence = Sentence(("the", "dog", "saw", "a", "cat"), tags=tags, id="1")
    for split in ("train", "dev", "test"):
        write_jsonl(tmp_path / "corpus" / f"{split}.jsonl", [sentence])
    return tmp_path / "corpus"


def lines_of(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    """What a command prints."""
    capsys.readouterr()
    assert main(list(words)) == 0
    return capsys.readouterr().out.splitlines()


@pytest.mark.slow
def test_commands_take_a_model_on_the_hub_at_a_revision(hub: Hub, labelled: Path, tmp_path: Path, capsys):
    run = run_of(tmp_path / "run", model_of(1))
    model_of(2).push_to_hub("someone/parser", token="good")
    JointModel.from_pretrained(run).push_to_hub("someone/parser", token="good", revision="v1")
    named, corpus = ("someone/parser", "--revision=v1"), f"--corpus={labelled}"
    text = tmp_path / "text"
    text.write_text("a cat saw the dog\n")

    predict = ("predict", f"--file={text}", "--input=tokens", "--output=json")
    expected = lines_of(capsys, *predict, str(run))
    assert lines_of(capsys, *predict, *named) == expected
    assert lines_of(capsys, *predict, "someone/parser") != expected
    assert lines_of(capsys, *predict, str(run / "model")) == expected

    lines_of(capsys, "evaluate", str(run), corpus, f"--json_out={tmp_path / 'run.json'}")
    lines_of(capsys, "evaluate", *named, corpus, f"--json_out={tmp_path / 'hub.json'}")
    assert (tmp_path / "hub.json").read_text() == (tmp_path / "run.json").read_text()

    heads = {}
    for target in (named, (str(run),), (*named, "--masks=false")):
        lines_of(capsys, "probe", *target, corpus, f"--out={tmp_path}")
        heads[target] = pl.read_parquet(tmp_path / "heads.parquet")
    assert heads[named].equals(heads[str(run),])
    assert not heads[named].equals(heads[*named, "--masks=false"])


def test_a_model_on_the_hub_is_cut_and_shares_components(hub: Hub, tmp_path: Path, capsys):
    model_of().push_to_hub("someone/parser", token="good")
    out, shared = tmp_path / "cut", tmp_path / "shared"
    lines_of(capsys, "prune", "someone/parser", "--task=pos", f"--out={out}")
    cut = JointModel.from_pretrained(out)
    assert [len(there) for there in cut.encoder.tap.remaining] == [1, 4, 4]
    assert [sentence.tags for sentence in cut.annotate(SENTENCES)] == [
        sentence.tags for sentence in model_of().annotate(SENTENCES)
    ]
    card = (out / "README.md").read_text()
    assert "# cut\n" in card
    assert cut.origin.derivation == "cut"
    if may_be_absent(["collaborate"]):
        return
    lines_of(capsys, "collaborate", str(out), "--dim=4", "--steps=1", "--lengths=[]", f"--out={shared}")
    assert JointModel.from_pretrained(shared).origin.derivation == "cut, collaborative 4"
    assert any("someone/parser" in line for line in lines_of(capsys, "energy", "someone/parser"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("ablate", "someone/parser"), "a model on the hub has no configuration and tables"),
        (("importance", "someone/parser"), "a model on the hub has no configuration and tables"),
        (("curve", "someone/parser"), "a model on the hub has no configuration and tables"),
        (("evaluate", "someone/parser"), "is a model without its run"),
        (("probe", "someone/parser"), "use --corpus=FOLDER"),
        (("predict", "someone/parser", "--revision=v9"), "has no branch, tag or commit 'v9'"),
        (("predict", "someone/nothing"), "no such folder, and no such repository on the hub"),
        (("translate", "someone/parser"), "does not translate"),
        (("predict", "tests", "--revision=v1"), "tests is a folder"),
        (("predict", "runs/a/model"), "is not a run folder"),
    ],
)
def test_what_a_command_cannot_take_from_the_hub_is_one_line(
    hub: Hub, words: tuple[str, ...], said: str, capsys
):
    model_of().push_to_hub("someone/parser", token="good")
    capsys.readouterr()
    assert main(list(words)) == 2
    shown, _, error = capsys.readouterr().err.rpartition("\nmtl: ")  # after the bar of a download
    assert said in (error or shown)
    assert "\n" not in shown
    assert error.count("\n") <= 1


PROGRAM = """
import sys
import time
from mtl import JointModel
model = JointModel.from_pretrained(sys.argv[1])
model.push_to_hub("someone/parser")
again = JointModel.from_pretrained("someone/parser")
assert again.annotate([["the", "dog"]]) == model.annotate([["the", "dog"]])
"""


@pytest.mark.slow
def test_the_program_s_environment_names_hub_and_token(tmp_path: Path):
    run = run_of(tmp_path / "run", model_of())
    with serving() as found:
        environment = {
            **os.environ, "HF_ENDPOINT": found.endpoint, "HF_HUB_OFFLINE": "0", "HF_TOKEN": "good",
            "HF_HOME": str(tmp_path / "home"),
        }  # fmt: skip
        subprocess.run(
            [sys.executable, "-W", "error", "-c", PROGRAM, str(run)], env=environment, check=True, timeout=250
        )
        assert (
            "model.json"
            in found.repositories["someone/parser"].commits[
                found.repositories["someone/parser"].branches["main"]
            ]
        )
