"""Studies on a Ray cluster of two nodes on this machine: stopped, resumed, and continued without one node."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator
from dataclasses import replace
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from types import ModuleType, SimpleNamespace

import psutil
import pytest
from rich.console import Console
from safetensors.torch import load_file

from mtl.commands.main import main
from mtl.config.parse import read_configuration
from mtl.errors import InputError
from mtl.models.inputs import InputCache
from mtl.runs.folder.run import Run
from mtl.study import run_ray as on_ray
from mtl.study.config import StudyConfig
from mtl.study.jobs import JobProgress, StudyFolder
from mtl.study.perform import StudyJobs, check_node
from mtl.study.plan import carrying_out, make_plan
from mtl.study.run_ray import StudyLocation, connected, fitting_in, ray_worker, run_on_ray
from mtl.workers import pool
from mtl.workers.queue import INTERRUPTED
from tests.mtl.forked import ended, forked, printed
from tests.mtl.study import small

EPOCHS = 5
NAMES = {"pos-seed1", "ner-seed1", "pos-seed2", "ner-seed2"}

# Without a token of its own a cluster would make one in the user's home, or use what is there.
ENVIRONMENT = {
    **os.environ, "OMP_NUM_THREADS": "1", "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": uuid.uuid4().hex
}  # fmt: skip


class Node:
    """A Ray node of one core, as `ray start … &` in a script makes it: Ctrl-C is not for it.

    All its processes descend from one.
    """

    def __init__(self, *words: str) -> None:
        ray = Path(sys.executable).with_name("ray")
        self.process = subprocess.Popen(
            [
                "sh", "-c", "trap '' INT; exec \"$@\"", "sh", str(ray), "start", "--block", "--num-cpus=1",
                "--num-gpus=0", f"--object-store-memory={80 << 20}", "--disable-usage-stats", *words,
            ],
            env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        )  # fmt: skip

    def holds(self, pid: int) -> bool:
        """Whether a process is this node's."""
        return pid in {process.pid for process in self._all()}

    def lose(self) -> None:
        """As when a machine is switched off."""
        for process in self._all():
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.process.wait()

    def _all(self) -> list[psutil.Process]:
        with contextlib.suppress(psutil.NoSuchProcess):
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        return []


@pytest.fixture
def cluster() -> Iterator[tuple[str, Callable[[], Node]]]:
    """The address of a cluster of one node, and a function that adds nodes to it."""
    pytest.importorskip("ray")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Not tmp_path: names of sockets must be short.
    with tempfile.TemporaryDirectory(prefix="ray", dir="/tmp", ignore_cleanup_errors=True) as place:
        head = Node(
            "--head", f"--port={port}", "--include-dashboard=false",
            f"--temp-dir={place}",
        )  # fmt: skip
        nodes = [head]

        def add() -> Node:
            nodes.append(Node(f"--address=127.0.0.1:{port}"))
            return nodes[-1]

        try:
            until(lambda: answers(port), head)
            yield f"127.0.0.1:{port}", add
        finally:
            for node in reversed(nodes):
                node.lose()


@pytest.fixture
def begin() -> Iterator[Callable[..., ForkServerProcess]]:
    """A function that starts `mtl study` for a file; what the last one prints is in FILE.out and FILE.err."""
    with contextlib.ExitStack() as begun:

        def one(file: Path, *more: str) -> ForkServerProcess:
            return begun.enter_context(
                forked("mtl", ["study", str(file), *more], file, environment=ENVIRONMENT)
            )

        yield one


def answers(port: int) -> bool:
    with socket.socket() as attempt:
        return attempt.connect_ex(("127.0.0.1", port)) == 0


def until(holds: Callable[[], object], alive: Node | ForkServerProcess) -> None:
    """Wait for something while a process lives."""
    for _ in range(3000):
        if holds():
            return
        code = alive.process.poll() if isinstance(alive, Node) else alive.exitcode
        assert code is None, f"{alive} has ended with {code}"
        time.sleep(0.1)
    pytest.fail("waited for five minutes")


def plan(file: Path) -> StudyFolder:
    study = StudyFolder(small.folder(file))
    with carrying_out(make_plan(read_configuration(StudyConfig, file), study, InputCache())):
        return study


def holders(study: StudyFolder) -> dict[str, int]:
    return {name: holder.pid for name, holder in study.holders(study.jobs()).items()}


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_study_on_two_nodes_is_stopped_goes_on_loses_a_node_and_ends_as_on_one_machine(
    cluster, begin, toy, tiny_encoder, tmp_path
):
    address, add = cluster
    second = add()
    more = {"seeds": [1, 2], "grid": [{"setups": ["STL"]}], "train": {"max_epochs": EPOCHS}}
    more["probes"] = {"masks": []}
    file, alone = (
        small.write(tmp_path / name, toy, tiny_encoder, **more) for name in ("ray.yaml", "alone.yaml")
    )
    study = StudyFolder(small.folder(file))
    words = (file, "--engine=ray", f"--ray_address={address}", "--jobs=2")

    stopped = begin(*words)
    until(lambda: any(study.epochs(name) for name in holders(study)), stopped)
    os.kill(stopped.pid, signal.SIGINT)
    assert ended(stopped, 120) == 130, printed(file)
    assert "Traceback" not in printed(file)
    assert holders(study) == {}
    interrupted = {job.name for job in study.jobs() if study.last_progress(job.name).state == "interrupted"}
    assert interrupted
    before = {job.name: study.epochs(job.name) for job in study.jobs()}

    going_on = begin(*words)

    def at_work_on(node: Node) -> dict[str, int]:
        return {name: pid for name, pid in holders(study).items() if node.holds(pid)}

    def in_the_middle() -> set[str]:
        """Runs of the second node that have been trained since the stop, and are not yet done with it."""
        return {
            name for name in at_work_on(second)
            if before[name] < study.epochs(name) < EPOCHS and Run(study.run(name)).resume_checkpoint.exists()
        }  # fmt: skip

    def only_the_second_goes_on() -> bool:
        """Have the first node wait in its run: the lost one is left to the node that comes instead."""
        (other,) = set(holders(study).values()) - set(at_work_on(second).values()) or {None}
        if other is None or not in_the_middle():
            return False
        psutil.Process(other).suspend()
        if other in holders(study).values() and in_the_middle():
            return True
        psutil.Process(other).resume()
        return False

    until(only_the_second_goes_on, going_on)
    lost = set(at_work_on(second))
    second.lose()
    until(lambda: len(holders(study)) == 1, going_on)
    (other,) = (psutil.Process(pid) for pid in holders(study).values())
    third = add()
    until(lambda: lost == set(at_work_on(third)), going_on)
    other.resume()
    assert ended(going_on, 300) == 0, printed(file)
    assert not list(study.path.glob(".ray-*"))
    assert ": joined: 1\n" in printed(file)
    assert "raylet" not in printed(file)  # what Ray itself says of a lost node

    progress = small.progress(file)
    assert {name for name, job in progress.items() if job["state"] == "finished"} == NAMES
    assert {name: job["tries"] for name, job in progress.items()} == {
        name: 2 if name in lost else 1 for name in NAMES
    }
    for name in NAMES:
        begun = [
            line for line in study.log(name).read_text().splitlines() if line.startswith(str(study.runs))
        ]
        if name in lost:
            assert ": resuming " in begun[-1]
        elif name not in interrupted:
            assert len(begun) == 1
            assert ": training " in begun[0]

    StudyJobs(plan(alone), InputCache(keep=True)).work()
    assert small.metrics(file) == small.metrics(alone)
    for name in NAMES:
        ours, theirs = (
            load_file(small.folder(study_file) / "runs" / name / "model" / "model.safetensors")
            for study_file in (file, alone)
        )
        assert all((ours[key] == theirs[key]).all() for key in ours | theirs)


@pytest.fixture
def planned(toy, tiny_encoder, tmp_path) -> StudyFolder:
    """A study that nobody works on yet."""
    return plan(small.write(tmp_path / "s.yaml", toy, tiny_encoder))


def plan_otherwise(study: StudyFolder, part: str) -> str:
    """Plan a job as a machine with a different PART would; returns the job's name."""
    job = study.jobs()[0]
    study.write_job(replace(job, made_of=job.made_of | {part: "something else"}))
    return job.name


@pytest.mark.parametrize("part", ["version", "corpus"])
def test_a_node_that_would_make_something_else_is_refused(planned, part):
    check_node(planned, InputCache(keep=True))
    name = plan_otherwise(planned, part)
    with pytest.raises(InputError, match=rf"^{name} would have another {part} here: every node needs"):
        check_node(planned, InputCache(keep=True))


@pytest.mark.slow
def test_the_refused_node_is_named_and_nothing_is_begun(planned):
    name = plan_otherwise(planned, "version")
    (planned.path / "mark").touch()
    problem = ray_worker(StudyLocation(str(planned.path), str(Path.cwd()), "mark"), 1, on_gpu=False)
    assert problem is not None
    assert problem.startswith(f"node {socket.gethostname()}: {name} would have another version here")
    assert {planned.last_progress(job.name).state for job in planned.jobs()} == {"waiting"}


def test_a_node_without_the_folder_is_refused(tmp_path):
    here, nowhere = str(Path.cwd()), str(tmp_path / "nowhere")
    for location in (
        StudyLocation(str(tmp_path), here, ".ray-of-another-call"),
        StudyLocation(str(tmp_path), nowhere, "."),
    ):
        problem = ray_worker(location, 1, on_gpu=False)
        assert problem is not None
        message = f"node {socket.gethostname()} does not see {tmp_path}, or not from {location.directory}: "
        assert problem.startswith(message)
        assert "file system that all nodes share" in problem


def test_what_a_node_cannot_write_is_said_and_is_no_question_of_versions(planned):
    (planned.path / "mark").touch()
    (planned.path / "logs").write_text("a file where the folder of logs should be")
    problem = ray_worker(StudyLocation(str(planned.path), str(Path.cwd()), "mark"), 1, on_gpu=False)
    assert problem is not None
    assert problem.startswith(f"node {socket.gethostname()}: ")
    assert problem.endswith(f"File exists: '{planned.path / 'logs'}'")


def test_a_process_that_others_interrupt_is_begun_again(planned, monkeypatch):
    codes = [INTERRUPTED, 0]

    def start(*_: object) -> subprocess.Popen[bytes]:
        return subprocess.Popen(["sh", "-c", f"exit {codes.pop(0)}"])

    monkeypatch.setattr(pool, "start_worker", start)
    monkeypatch.setattr(on_ray.signal, "signal", lambda *_: None)
    (planned.path / "mark").touch()
    assert ray_worker(StudyLocation(str(planned.path), str(Path.cwd()), "mark"), 1, on_gpu=False) is None
    assert codes == []


def test_processes_have_the_account_of_the_command_unless_the_node_has_one(planned, monkeypatch):
    started: list[dict[str, str]] = []

    def start(words: list[str], environment: dict[str, str], *_: object) -> subprocess.Popen[bytes]:
        started.append(environment)
        return subprocess.Popen(["true"])

    monkeypatch.setattr(pool, "start_worker", start)
    monkeypatch.setattr(on_ray.signal, "signal", lambda *_: None)
    for name in on_ray.ACCOUNT:
        monkeypatch.setenv(name, "the command's")
    (planned.path / ".ray-left").touch()
    with on_ray._marker_file(planned) as marker:
        # Not an argument of the task, which Ray keeps in its object store, and nobody else's to read.
        location = StudyLocation(str(planned.path), str(Path.cwd()), marker.name)
        assert "the command's" not in repr(location)
        assert marker.stat().st_mode & 0o777 == 0o600
        monkeypatch.delenv("WANDB_API_KEY")
        monkeypatch.setenv("WANDB_BASE_URL", "the node's")
        assert ray_worker(location, 1, on_gpu=False) is None
    assert started[0]["WANDB_API_KEY"] == "the command's"
    assert started[0]["WANDB_BASE_URL"] == "the node's"
    assert not list(planned.path.glob(".ray-*"))


class Cluster(ModuleType):
    """A fake of the module `ray`: a cluster of small nodes whose workers all have the same outcome."""

    def __init__(self, cpus: float = 1.0, outcome: Exception | str | None = None) -> None:
        super().__init__("ray")
        self.exceptions = SimpleNamespace(
            RayError=RayError, RayTaskError=type("RayTaskError", (RayError,), {})
        )
        self.begun, self.cancelled, self.outcome = 0, 0, outcome
        self.cpus = cpus

    def init(self, **_: object) -> None: ...

    def shutdown(self) -> None: ...

    def cluster_resources(self) -> dict[str, float]:
        return {"CPU": self.cpus}

    def nodes(self) -> list[dict[str, object]]:
        return [{"NodeID": "one", "Alive": True, "Resources": self.cluster_resources()}]

    def remote(self, **_: object) -> Callable[..., object]:
        def task(*_: object) -> int:
            self.begun += 1
            return self.begun

        return lambda function: SimpleNamespace(remote=task)

    def wait(self, workers: list[int], **_: object) -> tuple[list[int], list[int]]:
        time.sleep(0.01)
        return ([], workers) if self.outcome is None else (workers[:1], workers[1:])

    def get(self, worker: int) -> str | None:
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def cancel(self, worker: int) -> None:
        self.cancelled += 1


class RayError(Exception): ...


@pytest.fixture
def handlers() -> Iterator[None]:
    """Restores the handlers of signals."""
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = {number: signal.getsignal(number) for number in numbers}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def test_a_cluster_whose_nodes_are_too_small_is_not_waited_for_for_ever(planned, monkeypatch, handlers):
    cluster = Cluster(cpus=1.0)
    monkeypatch.setitem(sys.modules, "ray", cluster)
    monkeypatch.setattr(on_ray, "ROOMLESS", 0.1)
    console = Console(record=True, width=200, file=io.StringIO())
    too_small = r"no node has room for a run \(no node has more than 1 core and 0 GPUs\): start a larger one"
    with pytest.raises(InputError, match=too_small):
        run_on_ray(planned, planned.jobs(), 0, console, cpus=8.0)
    assert console.export_text().count("waiting") == 1
    assert cluster.cancelled == cluster.begun == len(planned.jobs())


def test_nodes_that_come_and_go_are_said(planned, monkeypatch, handlers):
    cluster = Cluster()
    known = [["one", "two"], ["one", "two"], ["two"], ["two", "three"], ["two", "three"]]

    def nodes() -> list[dict[str, object]]:
        alive = known.pop(0) if len(known) > 1 else known[0]
        cluster.outcome = "stop here" if len(known) == 1 else None
        return [
            {"NodeID": name, "Alive": name in alive, "Resources": {"CPU": 1.0}}
            for name in ("one", "two", "three")
        ]

    cluster.nodes = nodes  # type: ignore[method-assign]
    monkeypatch.setitem(sys.modules, "ray", cluster)
    console = Console(record=True, width=200, file=io.StringIO())
    with pytest.raises(InputError, match=r"^stop here$"):
        run_on_ray(planned, planned.jobs(), 0, console)
    of_run = "; cores of a run: 1, GPUs: 0)"
    message = [line for line in console.export_text().splitlines() if line.startswith("Ray (")]
    assert message == [
        f"Ray (nodes: 2{of_run}: 2 side by side",
        f"Ray (nodes: 1{of_run}: lost: 1",
        f"Ray (nodes: 2{of_run}: joined: 1",
    ]


def test_workers_are_as_many_as_jobs_are_left_and_none_for_a_finished_study(planned, monkeypatch, handlers):
    cluster = Cluster(outcome="stop here")
    monkeypatch.setitem(sys.modules, "ray", cluster)
    first, *others = planned.jobs()
    planned.write_progress(first.name, JobProgress("finished", made_of=first.made_of))
    with pytest.raises(InputError, match=r"^stop here$"):
        run_on_ray(planned, planned.jobs(), 0, Console(quiet=True))
    assert cluster.begun == len(others) > 0
    for job in others:
        planned.write_progress(job.name, JobProgress("finished", made_of=job.made_of))
    run_on_ray(planned, planned.jobs(), 0, Console(quiet=True))
    assert cluster.begun == len(others)


def test_a_worker_that_ray_gives_up_is_said_in_one_line(planned, monkeypatch, handlers):
    monkeypatch.setitem(sys.modules, "ray", Cluster(outcome=RayError("it was cancelled\nby somebody")))
    with pytest.raises(InputError, match=r"^Ray lost a worker \(RayError: it was cancelled\); "):
        run_on_ray(planned, planned.jobs(), 0, Console(quiet=True))


@pytest.mark.parametrize(
    ("cause", "said"), [(ImportError("no\nmodule"), "module"), (AssertionError(), "AssertionError")]
)
def test_an_error_in_a_worker_is_named_with_its_node(planned, monkeypatch, handlers, cause, said):
    cluster = Cluster()
    error = cluster.exceptions.RayTaskError()
    error.cause, error.ip = cause, "10.0.0.2"
    cluster.outcome = error
    monkeypatch.setitem(sys.modules, "ray", cluster)
    with pytest.raises(InputError, match=rf"^node 10\.0\.0\.2: {said} \(every node needs the same version"):
        run_on_ray(planned, planned.jobs(), 0, Console(quiet=True))


def test_a_cluster_of_other_versions_is_said_with_both():
    cluster = Cluster()

    def init(**_: object) -> None:
        # As Ray says it.
        raise RuntimeError(
            "Version mismatch: The cluster was started with:\n    Ray: 2.60.0\n    Python: 3.11.2\n"
            "This process on node 127.0.0.1 was started with:\n    Ray: 2.60.0\n    Python: 3.12.1\n"
        )

    cluster.init = init  # type: ignore[method-assign]
    message = "this machine cannot be used .*: Version mismatch: .*Python: 3.11.2 .*Python: 3.12.1$"
    with pytest.raises(InputError, match=message), connected(cluster, None):
        pass


def test_without_ray_the_mend_is_said(planned, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(InputError, match=r"^--engine ray needs Ray.*; run: pip install 'mtl-heads\[ray\]'$"):
        run_on_ray(planned, planned.jobs(), 0, Console(quiet=True))


def test_where_no_cluster_answers_the_address_is_said_at_once(planned):
    pytest.importorskip("ray")
    with socket.socket() as taken:  # bound, but nobody listens
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with pytest.raises(InputError, match=f"^the Ray cluster at {address} cannot be used .*refused"):
            run_on_ray(planned, planned.jobs(), 0, Console(quiet=True), address)


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("--jobs=-1", "use a number from 0 to 1,000,000"),
        ("--cpus=0.0", "use a number above 0"),
        ("--gpus=-0.5", "use a number from 0 to 1"),
        ("--gpus=2.0", "use a number from 0 to 1"),
    ],
)
def test_impossible_resources_are_refused(word, message, capsys):
    assert main(["study", "configs/study/toy.yaml", "--engine=ray", word]) == 2
    assert capsys.readouterr().err == f"mtl: {word}: {message}\n"


@pytest.mark.parametrize("word", ["--ray_address=head:6379", "--cpus=2", "--gpus=0.25"])
def test_options_of_ray_are_refused_without_it(word, capsys):
    assert main(["study", "configs/study/toy.yaml", word]) == 2
    option = word.partition("=")[0]
    said = f"mtl: {option} has no effect without --engine=ray: leave it out\n"
    assert capsys.readouterr().err == said


def test_what_fits_is_counted_by_node():
    gpu = {"Alive": True, "Resources": {"CPU": 8.0, "GPU": 2.0}}
    cpu = {"Alive": True, "Resources": {"CPU": 3.0}}
    lost = {"Alive": False, "Resources": {"CPU": 64.0, "GPU": 8.0}}
    nodes = [gpu, cpu, lost]
    assert fitting_in(nodes, 1.0, 0.0) == 11
    assert fitting_in(nodes, 2.0, 0.0) == 5  # 4 and 1: no run lies across two nodes
    assert fitting_in(nodes, 1.0, 0.25) == 8
    assert fitting_in(nodes, 3.0, 0.25) == 2  # of cores there are fewer
    assert fitting_in(nodes, 16.0, 0.0) == 0
