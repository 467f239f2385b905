"""W&B's own agent, and a stand-in for its server: a sweep is made, its trials are trained and logged."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from mtl.runs.folder.run import Run
from tests.mtl.wandb_log import logs

TRIALS = {"first": {"seed": {"value": 3}}}
"""What the server has tried, by the ids of the runs."""


class Server(ThreadingHTTPServer):
    """Answers what an agent and the maker of a sweep ask; other questions get an error."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.sweep: dict[str, Any] = {}
        self.left = list(TRIALS)

    def answer(self, query: str, given: dict[str, Any]) -> dict[str, Any] | None:
        """The data of an answer to a query of GraphQL."""
        if "upsertSweep" in query:
            self.sweep = yaml.safe_load(given["config"])
            project = {"id": "p", "name": given["projectName"], "entity": {"id": "e", "name": "me"}}
            made = {"id": "s", "name": "sweep1", "displayName": "a sweep", "project": project}
            return {"upsertSweep": {"sweep": made, "configValidationWarnings": []}}
        if "sweepName" in query:
            found = {"name": "sweep1", "config": yaml.safe_dump(self.sweep), "runs": {"edges": []}}
            return {"project": {"sweep": found}}
        if "createAgent" in query:
            return {"createAgent": {"agent": {"id": "agent1"}}}
        if "agentHeartbeat" in query:
            running = any(json.loads(given["runState"]).values())
            commands = json.dumps([] if running else self.commands())
            return {"agentHeartbeat": {"agent": {"id": "agent1"}, "commands": commands}}
        if "viewer" in query:
            entities = {"edges": [{"node": {"name": "me"}}]}
            return {
                "viewer": {
                    "id": "v", "entity": "me", "username": "me", "flags": "{}", "teams": entities,
                    "admin": False, "apiKeys": entities, "email": "", "name": "me",
                }
            }  # fmt: skip
        return None

    def commands(self) -> list[dict[str, Any]]:
        """The next trial, or the end after the last one."""
        if not self.left:
            return [{"type": "exit"}]
        name = self.left.pop(0)
        return [{"type": "run", "run_id": name, "args": TRIALS[name], "program": None}]


class Handler(BaseHTTPRequestHandler):
    """Passes queries on to the server."""

    server: Server

    def do_POST(self) -> None:
        """Answer a query; what else W&B sends counts for nothing."""
        if self.path != "/graphql":
            self.send_error(404)
            return
        content = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        data = self.server.answer(content["query"], content.get("variables") or {})
        body = json.dumps({"data": data} if data else {"errors": [{"message": "unknown"}]}).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *words: object) -> None:
        """Say nothing."""


@pytest.fixture
def server() -> Iterator[Server]:
    """A server that is running."""
    with Server() as made:
        thread = threading.Thread(target=made.serve_forever)
        thread.start()
        yield made
        made.shutdown()
        thread.join()


@pytest.mark.slow
def test_the_agent_trains_what_the_server_says(server, few, tiny_encoder, tmp_path) -> None:
    command = [
        "mtl", "train", "--tasks=pos", f"--corpus.path={few}", f"--encoder.name={tiny_encoder}",
        "--max_epochs=1", "--log_every=1", "--wandb.mode=offline", "--trainer.accelerator=cpu", "${args}",
    ]  # fmt: skip
    sweep = {
        "method": "grid", "metric": {"name": "dev/mean", "goal": "maximize"}, "project": "heads",
        "entity": "me", "command": command, "parameters": {"seed": {"values": [3, 4]}},
    }  # fmt: skip
    (tmp_path / "search.yaml").write_text(yaml.safe_dump(sweep))
    kept = {key: value for key, value in os.environ.items() if not key.startswith("WANDB_")}
    environment = kept | {
        "WANDB_BASE_URL": f"http://127.0.0.1:{server.server_port}", "WANDB_API_KEY": "0" * 40,
        "WANDB_DATA_DIR": str(tmp_path / "staged"), "WANDB_CONFIG_DIR": str(tmp_path / "settings"),
        "PYTHONPATH": os.pathsep.join([str(Path.cwd()), os.environ.get("PYTHONPATH", "")]),
    }  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-m", "mtl", "sweep", "search.yaml"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=600,
    )  # fmt: skip
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert "mtl sweep --join me/heads/sweep1" in done.stdout
    logged = {log.run.run_id: log for log in logs(tmp_path)}  # where the agent says
    for name, values in TRIALS.items():
        seed = values["seed"]["value"]
        run = Run(tmp_path / "runs" / "sweep-sweep1" / f"pos-seed{seed}-{name}")
        assert (run.status()["state"], run.config()["seed"]) == ("finished", seed)
        log = logged[name]
        assert (log.run.sweep_id, log.run.project) == ("sweep1", "heads")
        metric = [row["dev/mean"] for row in log.rows if "dev/mean" in row]  # a key of the history
        assert log.summary["dev/mean"]["last"] == metric[-1]
        assert log.summary["dev/mean"]["max"] == max(metric)
