"""W&B without a network: a local log, the configuration in it, and no connection to anywhere else."""

from __future__ import annotations

import socket
from pathlib import Path

from mtl.cli import main


def test_masks_are_logged_as_pictures(toy, tiny_encoder, tmp_path: Path):
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--name=run",
        "--tasks=pos,dep", "--max_epochs=2", "--trainer.accelerator=cpu", "--wandb.mode=offline",
        "--pruning=dynamic", "--gates.scope=per_task",
    ]  # fmt: skip
    assert main(words) == 0
    assert len(list((tmp_path / "run" / "wandb").rglob("media/images/masks*.png"))) == 2
    for name, kind in (("masks.png", b"\x89PNG"), ("masks.gif", b"GIF89a")):
        assert (tmp_path / "run" / name).read_bytes().startswith(kind)
    content = next((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb")).read_bytes()
    assert b"gates/dep/open" in content


def test_offline_logs_locally_and_connects_to_nothing(toy, tiny_encoder, tmp_path: Path, monkeypatch):
    reached = []
    connect = socket.socket.connect

    def watched(self: socket.socket, address):
        if self.family in (socket.AF_INET, socket.AF_INET6) and address[0] not in (
            "127.0.0.1",
            "::1",
            "localhost",
        ):
            reached.append(address)
        return connect(self, address)

    monkeypatch.setattr(socket.socket, "connect", watched)
    # Whatever wandb's own process would ask for, it must not find a server to ask.
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")
    words = [
        "train", f"--corpus.path={toy}", f"--encoder.name={tiny_encoder}", f"--runs={tmp_path}", "--name=run",
        "--tasks=pos", "--max_epochs=1", "--trainer.accelerator=cpu", "--wandb.mode=offline",
        "--wandb.group=g",
    ]  # fmt: skip
    assert main(words) == 0
    assert reached == []
    logs = list((tmp_path / "run" / "wandb").glob("offline-run-*/*.wandb"))
    assert len(logs) == 1
    content = logs[0].read_bytes()
    assert b"dev/pos/accuracy" in content
    assert b"encoder" in content
