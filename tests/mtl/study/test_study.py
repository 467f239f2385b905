"""Studies as a user has them: one command, several processes, kills, failures, a full disk."""

from __future__ import annotations

import cProfile
import json
import os
import shutil
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from mtl.commands.command_table import arguments_for
from mtl.commands.main import main
from mtl.config.schema import TrainConfig
from mtl.corpora.toy.corpus import write_toy
from mtl.errors import InputError
from mtl.probes.tables import heads_table as table
from mtl.study.command import study_folder_of
from mtl.study.config import ProbesConfig
from mtl.study.jobs import MEASURED, Job, JobProgress, StudyFolder, StudySnapshot, remaining_seconds
from tests.mtl.forked import ended, forked, printed
from tests.mtl.study import small

GRID = [
    {"setups": ["pretrained", "STL", "MTL"], "masks": ["none", "dynamic"]},
    {"setups": ["MTL"], "masks": ["static", "dynamic_per_task"]},
]
NAMES = {
    "pretrained", "pos-seed1", "ner-seed1", "MTL-seed1", "pos-dynamic-seed1", "ner-dynamic-seed1",
    "MTL-dynamic-seed1", "MTL-static-seed1", "MTL-dynamic_per_task-seed1",
}  # fmt: skip


@pytest.fixture(scope="module")
def finished_study(few: Path, tiny_encoder: Path, tmp_path_factory) -> tuple[Path, str]:
    """A study that was carried out, and what it printed."""
    file = small.write(tmp_path_factory.mktemp("whole") / "s.yaml", few, tiny_encoder, grid=GRID)
    return file, small.carry_out(file, "--jobs=2", module="mtl")


@pytest.fixture(scope="module")
def carried_out(few: Path, tiny_encoder: Path, tmp_path_factory) -> Path:
    """The folder `studies` of two runs that were carried out."""
    file = small.write(tmp_path_factory.mktemp("two") / "s.yaml", few, tiny_encoder)
    small.carry_out(file)
    return file.parent / "studies"


@pytest.mark.slow
def test_one_command_makes_runs_probes_figures_tables_and_the_report(finished_study):
    file, printed = finished_study
    folder = small.folder(file)
    assert {name for name, job in small.progress(file).items() if job["state"] == "finished"} == NAMES
    assert {path.parent.name for path in folder.glob("runs/*/heads.parquet")} == {
        "pretrained", "pos-seed1", "ner-seed1", "MTL-seed1"
    }  # fmt: skip
    assert not list(folder.glob("runs/*/checkpoints"))  # nothing is left to go on with
    assert yaml.safe_load((folder / "study.yaml").read_text())["train"]["tasks"] == ["pos", "ner"]
    assert {path.suffix for path in (folder / "tables").iterdir()} == {".csv", ".md", ".tex", ".parquet"}
    # Such short runs learn nothing, so their masks claim no head.
    assert (folder / "tables" / "scores.csv").exists()
    assert any(
        "nothing was learned" in note for note in json.loads((folder / "answers.json").read_text())["notes"]
    )
    assert (folder / "figures" / "heads-kept.pdf").stat().st_size > 1000
    assert f"report: {folder / 'report.html'}" in printed
    lines = printed.splitlines()
    last = max(place for place, line in enumerate(lines) if line.partition(":")[0] in NAMES)
    assert 3 < len(lines) - last <= 15
    assert "MTL-dynamic_per_task-seed1" in (folder / "report.html").read_text()


@pytest.mark.slow
def test_a_finished_study_does_nothing_again(finished_study):
    file, _ = finished_study

    def state() -> tuple[dict[Path, int], set[Path]]:
        """When files of runs were written, and the logs of all processes that were started."""
        folder = small.folder(file)
        written = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*")}
        return written, set(folder.glob("logs/worker-*"))

    before = state()
    assert len(before[1]) == 2
    printed = small.carry_out(file, "--jobs=2")
    assert state() == before
    assert "9 finished" in printed
    assert "running" not in printed


@pytest.mark.slow
def test_runs_of_one_process_are_what_they_are_alone(finished_study, tmp_path):
    """Nothing that one run leaves to the next in a process, such as the InputCache, changes a result."""
    file, _ = finished_study
    config = small.folder(file) / "runs" / "MTL-dynamic-seed1" / "config.yaml"
    words = ["train", f"--config={config}", f"--runs={tmp_path}", "--name=alone"]
    with forked("mtl", words, tmp_path / "said") as process:
        assert ended(process, 280) == 0, printed(tmp_path / "said")
    alone = json.loads((tmp_path / "alone" / "metrics.json").read_text())
    assert alone == small.metrics(file)["MTL-dynamic-seed1"]


@pytest.mark.slow
def test_the_list_of_runs_and_the_state(finished_study, tmp_path):
    file, _ = finished_study
    for where in (file, small.folder(file)):
        printed = small.carry_out(where, "--status")
        assert "9 jobs: 9 finished" in printed
    printed = small.carry_out(file, "--dry-run", "--seeds=[1,2]")
    assert "17 jobs: 9 finished, 8 waiting" in printed
    assert "remaining" in printed


@pytest.mark.slow
def test_a_study_that_is_killed_goes_on_to_the_same_scores(finished_study, few, tiny_encoder, tmp_path):
    grid = [{"setups": ["STL", "MTL"], "masks": ["dynamic"]}, {"setups": ["MTL"], "masks": ["static"]}]
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=grid)
    with small.begun(file, "--jobs=2") as process:
        _wait_for(lambda: len(list(small.folder(file).glob("runs/*/history.csv"))) > 1)
        for pid in [process.pid, *_children(process.pid)]:
            os.kill(pid, signal.SIGKILL)
    small.carry_out(file, "--jobs=2")
    scores = small.metrics(file)
    assert {"MTL-static-seed1", "pos-dynamic-seed1"} < scores.keys()
    assert scores.items() <= small.metrics(finished_study[0]).items()
    assert not list((small.folder(file) / "jobs").glob("*.lease"))


@pytest.mark.slow
def test_ctrl_c_saves_the_runs_and_workers_end_with_a_killed_parent(few, tiny_encoder, tmp_path):
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, train={"max_epochs": 200})
    # As a shell begins what it puts in the background: with SIGINT ignored.
    words = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *small.command(file)]
    process = subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    _wait_for(lambda: (small.folder(file) / "runs" / "pos-seed1" / "history.csv").exists())
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "run the command again to resume" in errors
    assert small.progress(file)["pos-seed1"]["state"] == "interrupted"
    assert (small.folder(file) / "runs" / "pos-seed1" / "checkpoints" / "last.ckpt").exists()

    with small.begun(file) as process:
        _wait_for(lambda: small.progress(file)["pos-seed1"]["state"] == "running")
        workers = _children(process.pid)
        process.kill()
    _wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in workers))
    assert small.progress(file)["pos-seed1"]["state"] == "interrupted"


@pytest.mark.slow
def test_two_commands_on_one_folder_share_the_runs(few, tiny_encoder, tmp_path):
    # The first run lasts until the other command is there.
    grid = [{"setups": ["pos"], "seeds": [1], "set": {"max_epochs": 30}}, {"setups": ["ner"]}]
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, seeds=[1, 2], grid=grid)
    with (
        small.begun(file) as first,
        forked("mtl", ["study", str(file)], tmp_path / "said", workers=1) as second,
    ):
        assert (ended(first, 240), ended(second, 240)) == (0, 0)
    progress = small.progress(file)
    assert len(progress) == 3
    assert {job["tries"] for job in progress.values()} == {1}
    assert len({job["worker"] for job in progress.values()}) == 2
    for name in progress:
        log = (small.folder(file) / "logs" / f"{name}.log").read_text()
        assert log.count("training ") == 1


@pytest.mark.slow
def test_a_failed_run_stops_no_other_and_is_listed_with_its_log(few, tiny_encoder, tmp_path):
    grid = [
        {"setups": ["STL"]},
        {"setups": ["pos"], "masks": ["static"], "label": "impossible", "set": {"gates.target_open": 5000}},
        {"setups": ["ner"], "masks": ["dynamic"]},
    ]
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=grid)
    printed = small.carry_out(file, code=1)
    progress = small.progress(file)
    assert progress["pos-static-impossible-seed1"]["state"] == "failed"
    assert {name for name, job in progress.items() if job["state"] == "finished"} == {
        "pos-seed1", "ner-seed1", "ner-dynamic-seed1"
    }  # fmt: skip
    log = small.folder(file) / "logs" / "pos-static-impossible-seed1.log"
    assert log.name in printed.replace("\n", "")
    assert "there are only 12 heads" in log.read_text()
    assert "1 job failed; run the command again to retry" in printed


@pytest.mark.slow
def test_a_changed_study_makes_only_what_has_changed(carried_out, few, tiny_encoder, tmp_path):
    shutil.copytree(carried_out, tmp_path / "studies")
    grid = [{"setups": ["pos"]}, {"setups": ["ner"], "set": {"max_epochs": 2}}]
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=grid)
    before = (small.folder(file) / "runs" / "pos-seed1" / "metrics.json").stat().st_mtime_ns
    printed = small.carry_out(file)
    assert "ner-seed1: the configuration changed (max_epochs); made again" in printed
    assert (small.folder(file) / "runs" / "pos-seed1" / "metrics.json").stat().st_mtime_ns == before
    history = (small.folder(file) / "runs" / "ner-seed1" / "history.csv").read_text()
    assert len(history.splitlines()) == 3


@pytest.mark.slow
def test_a_full_disk_stops_the_study_in_good_order(few, tiny_encoder, tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=300k", "none", str(disk)], capture_output=True
    )
    if mounted.returncode:
        pytest.skip(f"no small disk can be mounted: {mounted.stderr.decode().strip()}")
    try:
        file = small.write(tmp_path / "s.yaml", few, tiny_encoder)
        printed = small.carry_out(file, f"--studies={disk}", code=2)
        assert "the disk is full" in printed
        assert "Traceback" not in printed
        subprocess.run(["mount", "-o", "remount,size=100m", str(disk)], check=True)
        assert "2 finished" in small.carry_out(file, f"--studies={disk}")
        assert shutil.disk_usage(disk).used > 300_000
    finally:
        subprocess.run(["umount", str(disk)], check=True)


def large_study(path: Path, runs: int) -> StudyFolder:
    """A study of which every second run seems finished."""
    folder = StudyFolder(path)
    config = TrainConfig(tasks=("pos",))
    for number in range(runs):
        name, made_of = (
            f"pos-dynamic-seed{number}",
            {"configuration": "c" * 64, "corpus": "d" * 64, "version": "1"},
        )
        folder.write_job(Job(name, "STL, dynamic", config, number=number, made_of=made_of))
        folder.write_progress(
            name, JobProgress("finished" if number % 2 else "waiting", 1, made_of=made_of, seconds=60.0)
        )
    return folder


def calls_of_status(path: Path, runs: int) -> int:
    """How many functions `mtl study FOLDER --status` calls for a study of so many runs."""
    folder = large_study(path / str(runs), runs)
    for file in folder.path.rglob("*"):
        os.utime(file, (0, 0))  # files that are still being written are read more than once
    profile = cProfile.Profile()
    assert profile.runcall(main, ["study", str(folder.path), "--status"]) == 0
    return sum(entry.callcount for entry in profile.getstats())


@pytest.mark.slow
def test_the_work_of_listing_runs_grows_with_their_number_and_is_little(tmp_path, capsys):
    """Calls are counted, which do not depend on what else the machine does."""
    calls_of_status(tmp_path, 1)  # what is done once in a process
    few, more, many = (calls_of_status(tmp_path, runs) for runs in (100, 300, 500))
    assert "500 jobs: 250 finished, 250 waiting" in capsys.readouterr().out
    assert many - more == pytest.approx(more - few, rel=0.02)
    assert many - more < 200 * 2000  # 2,000 calls take less than a millisecond


def test_the_time_that_is_left_follows_from_what_is_finished():
    def job(name: str, setup: str, epochs: int = 10) -> Job:
        config = TrainConfig(tasks=("pos",), max_epochs=epochs)
        return Job(name, setup, config, made_of={"configuration": name})

    jobs = [job("a", "STL"), job("b", "STL"), job("c", "MTL", 20)]
    progress = {job.name: JobProgress() for job in jobs}
    snapshot = StudySnapshot({job.name: job for job in jobs}, progress)
    assert remaining_seconds(snapshot) is None
    progress["a"] = JobProgress("finished", made_of=jobs[0].made_of, seconds=100.0)
    assert remaining_seconds(snapshot) == pytest.approx(100 + 200)
    # A run that is trained is only measured: importance again, and ablation, which took 30 seconds a task.
    measured = Job(
        "d", "MTL", TrainConfig(tasks=("pos", "ner")), probes=ProbesConfig(measures=MEASURED),
        made_of={"importance": "new"},
    )  # fmt: skip
    progress["c"] = JobProgress("finished", made_of={"configuration": "c"}, seconds=500.0)
    progress["d"] = JobProgress(
        "finished", made_of={"importance": "old"}, seconds=900.0, measured={"importance": 4.0}
    )
    progress["a"] = replace(progress["a"], measured={"ablation": 30.0})
    jobs_now = {**snapshot.jobs, "d": measured}
    assert StudySnapshot(jobs_now, progress).left_to_measure("d") == list(MEASURED)
    assert remaining_seconds(StudySnapshot(jobs_now, progress)) == pytest.approx(100 + 2 * 30 + 2 * 2)


def _children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def _wait_for(condition, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "waited in vain"
        time.sleep(0.1)


def place_of(*words: str) -> Path:
    """The folder of the study that these words of `mtl study --status` name."""
    return study_folder_of(arguments_for("study").read("mtl study", words)["words"]).path


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["a/first.yaml"], "studies/first"),
        (["a/first.yaml", "--seeds", "[1]", "--train.max_epochs", "3"], "studies/first"),
        (["--config", "a/first.yaml"], "studies/first"),
        (["--config=a/first.yaml", "--name", "other"], "studies/other"),
        (["a/first.yaml", "--studies", "/elsewhere"], "/elsewhere/first"),
    ],
)
def test_a_study_is_named_after_its_file_and_nothing_else(words, place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a").mkdir()
    (tmp_path / "a" / "first.yaml").write_text("seeds: [1]\n")
    assert place_of(*words) == Path(place)


def test_of_two_files_the_later_one_counts(tmp_path):
    first, second = tmp_path / "first.yaml", tmp_path / "second.yaml"
    first.write_text("name: one\nstudies: here\n")
    second.write_text("name: two\n")
    assert place_of(str(first), str(second)) == Path("here/two")


def test_a_study_reads_the_configuration_of_a_training(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_toy(Path("toy"), 4, 2, 2, seed=1)
    Path("mine.yaml").write_text(
        "tasks: {pos: {dropout: 0.2}, dep: {}, ner: {}}\ncorpus: {path: toy}\nseed: 1\n"
    )
    Path("s.yaml").write_text("grid: [{setups: [STL, MTL]}]\nseeds: [1]\ntrain: mine.yaml\n")
    assert main(["study", "s.yaml", "--dry-run", "--train.tasks=[pos,dep]"]) == 0
    assert [line.split()[0] for line in capsys.readouterr().out.splitlines()[2:-1]] == [
        "pos-seed1", "dep-seed1", "MTL-seed1",
    ]  # fmt: skip
    given = arguments_for("study").read("mtl study", ["s.yaml", "--train.max_epochs=2"])["words"]
    train = given.configured().train
    assert (train.pos.dropout, train.corpus.path, train.max_epochs) == (0.2, "toy", 2)
    Path("mine.yaml").write_text("tasks: [pos]\nsed: 1\n")
    assert main(["study", "s.yaml", "--dry-run"]) == 2
    assert "mine.yaml: line 2: unknown key 'train.sed'" in capsys.readouterr().err


def test_what_the_state_of_a_study_has_no_use_for_is_refused(tmp_path):
    (tmp_path / "s.yaml").write_text("seeds: [1]\n")
    with pytest.raises(InputError, match=r"^unknown key 'nmae': did you mean 'name'\?$"):
        place_of(str(tmp_path / "s.yaml"), "--nmae=x")
    with pytest.raises(InputError, match=r"^--name has no effect with --status of a folder: leave it out$"):
        place_of(str(tmp_path), "--name=x")


@pytest.mark.parametrize("name", ["../x", "a/b", "", "/abs"])
def test_a_study_s_name_stays_in_its_folder(name, tmp_path):
    (tmp_path / "s.yaml").write_text("seeds: [1]\n")
    with pytest.raises(InputError, match=r"^name=.*use a plain name"):
        place_of(str(tmp_path / "s.yaml"), f"--name={name}")


@pytest.mark.slow
def test_changed_probes_are_measured_again_and_nothing_is_trained(carried_out, few, tiny_encoder, tmp_path):
    shutil.copytree(carried_out, tmp_path / "studies")
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder)
    weights = small.folder(file) / "runs" / "pos-seed1" / "model"
    before = {path: path.stat().st_mtime_ns for path in weights.iterdir()}
    printed = small.carry_out(file, "--probes.split=dev")
    assert "pos-seed1: the settings of probes changed; its training stays" in printed
    assert {path: path.stat().st_mtime_ns for path in weights.iterdir()} == before
    assert table.read_heads_table(weights.parent / "heads.parquet")[1]["split"] == "dev"
    [kept] = (small.folder(file) / ".replaced").glob("pos-seed1-*/heads.parquet")
    assert table.read_heads_table(kept)[1]["split"] == "test"
    assert "2 finished" in small.carry_out(file, "--probes.split=dev", "--dry-run")


@pytest.mark.slow
def test_what_messages_on_a_study_s_folder_say_succeeds(few, tiny_encoder, tmp_path):
    def study(*words: Path | str) -> tuple[int | None, str]:
        file, *options = words
        with small.begun(file, *options) as process:
            process.join(280)
        return process.exitcode, " ".join(printed(file).split())

    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=[{"setups": ["pos"]}])
    code, said = study(file, "--status")
    assert (code, "holds no study; start one with 'mtl study STUDY.yaml'" in said) == (2, True)
    assert study(file)[0] == 0
    scores, jobs = small.metrics(file), small.folder(file) / "jobs"
    for damaged in (jobs / "pos-seed1.progress.json", jobs / "pos-seed1.job.json"):
        damaged.write_text(damaged.read_text()[:40])
        for words in ([small.folder(file), "--status"], [file]):
            code, said = study(*words)
            assert (code, f"{damaged} cannot be read" in said) == (2, True)
            assert "remove it, and run 'mtl study' with the study's file again" in said
        damaged.unlink()
    assert study(file)[0] == 0
    assert small.metrics(file) == scores
    code, said = study(small.folder(file), "--status")
    assert (code, "1 job: 1 finished" in said) == (0, True)


@pytest.mark.slow
def test_a_study_that_is_moved_in_the_middle_of_a_static_run_goes_on(few, tiny_encoder, tmp_path):
    grid = [{"setups": ["pos"], "masks": ["static"], "set": {"max_epochs": 15}}]
    here = tmp_path / "here"
    here.mkdir()
    file = small.write(here / "s.yaml", few, tiny_encoder, grid=grid)
    with small.begun(file) as process:
        _wait_for(lambda: (small.folder(file) / "runs" / "pos-static-seed1" / "history.csv").exists())
        os.kill(process.pid, signal.SIGINT)
        assert ended(process, 60) == 130
    assert small.progress(file)["pos-static-seed1"]["state"] == "interrupted"
    here.rename(tmp_path / "there")
    file = small.write(tmp_path / "there" / "s.yaml", few, tiny_encoder, grid=grid)
    printed = small.carry_out(file)
    assert "made again" not in printed
    log = (small.folder(file) / "logs" / "pos-static-seed1.log").read_text()
    assert "resuming pos" in log
    config = yaml.safe_load((small.folder(file) / "runs" / "pos-static-seed1" / "config.yaml").read_text())
    assert config["init_from"] == str(small.folder(file) / "runs" / "pos-seed1")


@pytest.mark.slow
def test_after_a_failed_run_a_process_still_hears_ctrl_c(few, tiny_encoder, tmp_path):
    """The first Ctrl-C, in the middle of a later run, stops it with its state saved."""
    grid = [{"setups": ["pos"]}, {"setups": ["ner"], "set": {"max_epochs": 300}}]
    file = small.write(tmp_path / "s.yaml", few, tiny_encoder, grid=grid)
    in_the_way = small.folder(file) / "runs" / "pos-seed1" / "checkpoints"
    in_the_way.parent.mkdir(parents=True)
    in_the_way.touch()
    with small.begun(file) as process:
        _wait_for(lambda: (small.folder(file) / "runs" / "ner-seed1" / "history.csv").exists())
        assert small.progress(file)["pos-seed1"]["state"] == "failed"
        os.kill(process.pid, signal.SIGINT)
        assert ended(process, 60) == 130
    assert small.progress(file)["ner-seed1"]["state"] == "interrupted"


@pytest.mark.slow
def test_heads_of_all_runs_are_probed_on_the_same_sentences_where_tasks_have_own_files(
    few, tiny_encoder, tmp_path
):
    write_toy(tmp_path / "other", 40, 12, 12, seed=2)

    def files(corpus: Path) -> dict[str, str]:
        return {split: str(corpus / f"{split}.jsonl") for split in ("train", "dev", "test")}

    tasks = {
        "marks": {"kind": "tags", "layer": "upos", "files": files(few)},
        "dep": {"files": files(tmp_path / "other")},
    }
    train = {"tasks": tasks, "corpus": {}}
    file = small.write(
        tmp_path / "s.yaml", few, tiny_encoder, grid=[{"setups": ["pretrained", "STL", "MTL"]}]
    )
    content = yaml.safe_load(file.read_text())
    content["train"] |= train
    file.write_text(yaml.safe_dump(content))
    small.carry_out(file)
    probed = {
        path.parent.name: table.read_heads_table(path)
        for path in small.folder(file).glob("runs/*/heads.parquet")
    }
    assert set(probed) == {"pretrained", "marks-seed1", "dep-seed1", "MTL-seed1"}
    assert all({"marks", "dep"} <= set(heads["task"].unique().to_list()) for heads, _ in probed.values())
    assert len({(made["corpus"], made["sentences"]) for _, made in probed.values()}) == 1
