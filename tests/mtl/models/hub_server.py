"""A hub on localhost: what `huggingface_hub` asks for to make repositories, commit, list and download.

Every file is committed as a regular one; the hub's own storage for large files is not here.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import unquote, urlsplit

Files = dict[str, bytes]


@dataclass
class Repository:
    """Branches with their commits, and the files of each commit."""

    private: bool
    gated: bool = False
    """Whether its owner gives access to nobody here."""
    branches: dict[str, str] = field(default_factory=dict)
    commits: dict[str, Files] = field(default_factory=dict)

    def commit(self, branch: str, files: Files) -> str:
        """Add a commit; returns its hash."""
        parts = [self.branches.get(branch, ""), *(f"{name} {files[name]!r}" for name in sorted(files))]
        sha = hashlib.sha1("".join(parts).encode()).hexdigest()
        self.branches[branch], self.commits[sha] = sha, files
        return sha

    def find(self, revision: str) -> str | None:
        """The commit of a branch or a hash."""
        return revision if revision in self.commits else self.branches.get(revision)


@dataclass
class Hub:
    """The repositories, what was asked for, and where."""

    endpoint: str
    repositories: dict[str, Repository] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)


class Answer(Exception):
    """An answer other than success."""

    def __init__(self, status: int, code: str, message: str, values: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.code, self.message, self.values = status, code, message, values or {}


@contextmanager
def serving() -> Iterator[Hub]:
    """A hub without repositories; tokens are `good`, which may write, and any other, which may not."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    hub = Hub(f"http://127.0.0.1:{server.server_port}")
    server.hub = hub  # type: ignore[attr-defined]
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *parts: Any) -> None:
        """No lines on stderr."""

    def do_GET(self) -> None:
        self._answered()

    def do_HEAD(self) -> None:
        self._answered()

    def do_POST(self) -> None:
        self._answered()

    @property
    def hub(self) -> Hub:
        found: Hub = self.server.hub  # type: ignore[attr-defined]
        return found

    def _answered(self) -> None:
        path = urlsplit(self.path).path
        self.body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        self.hub.asked.append(f"{self.command} {path}")
        try:
            content, headers = self._content(path)
            status = 200
        except Answer as answer:
            content, status = json.dumps({"error": answer.message, **answer.values}).encode(), answer.status
            headers = {"X-Error-Code": answer.code, "X-Error-Message": answer.message}
        self.send_response(status)
        for name, value in ({"Content-Length": str(len(content))} | headers).items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def _content(self, path: str) -> tuple[bytes, dict[str, str]]:
        if found := re.fullmatch(r"/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
            sha, files = self._commit(found[1], unquote(found[2]))
            if found[3] not in files:
                raise Answer(404, "EntryNotFound", "Entry not found")
            content = files[found[3]]
            return content, {"ETag": f'"{hashlib.sha1(content).hexdigest()}"', "X-Repo-Commit": sha}
        return json.dumps(self._value(path)).encode(), {"Content-Type": "application/json"}

    def _value(self, path: str) -> Any:
        if path == "/api/validate-yaml":
            return {"errors": [], "warnings": []}
        if self.command == "POST":
            if self.headers.get("Authorization") != "Bearer good":
                raise Answer(403, "", "you have no right to write here")
            return self._written(path)
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/tree/([^/]+)", path):
            _, files = self._commit(found[1], unquote(found[2]))
            return [
                {
                    "type": "file", "path": name, "size": len(content),
                    "oid": hashlib.sha1(content).hexdigest(),
                }
                for name, content in files.items()
            ]  # fmt: skip
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)(?:/revision/([^/]+))?", path):
            sha, files = self._commit(found[1], unquote(found[2] or "main"))
            return {"id": found[1], "sha": sha, "siblings": [{"rfilename": name} for name in files]}
        raise Answer(404, "", f"nothing at {path}")

    def _written(self, path: str) -> Any:
        if path == "/api/repos/create":
            asked = json.loads(self.body)
            name = f"{asked['organization']}/{asked['name']}"
            if name in self.hub.repositories:
                raise Answer(409, "", "exists", {"url": f"{self.hub.endpoint}/{name}"})
            private = asked.get("private") or asked.get("visibility") == "private"
            repository = self.hub.repositories[name] = Repository(bool(private))
            repository.commit("main", {".gitattributes": b""})
            return {"url": f"{self.hub.endpoint}/{name}", "name": name, "id": name}
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/branch/([^/]+)", path):
            repository = self._repository(found[1])
            if found[2] in repository.branches:
                raise Answer(409, "", "Reference already exists")
            repository.branches[found[2]] = repository.branches["main"]
            return {}
        if re.fullmatch(r"/api/models/[^/]+/[^/]+/preupload/[^/]+", path):
            names = [file["path"] for file in json.loads(self.body)["files"]]
            return {
                "files": [{"path": name, "uploadMode": "regular", "shouldIgnore": False} for name in names]
            }
        if found := re.fullmatch(r"/api/models/([^/]+/[^/]+)/commit/([^/]+)", path):
            _, before = self._commit(found[1], unquote(found[2]))
            files = dict(before)
            for line in map(json.loads, self.body.splitlines()):
                if line["key"] == "deletedFile":
                    del files[line["value"]["path"]]
                elif line["key"] == "file":
                    files[line["value"]["path"]] = base64.b64decode(line["value"]["content"])
            sha = self._repository(found[1]).commit(unquote(found[2]), files)
            url = f"{self.hub.endpoint}/{found[1]}/commit/{sha}"
            return {"success": True, "commitOid": sha, "commitUrl": url, "hookOutput": ""}
        raise Answer(404, "", f"nothing at {path}")

    def _repository(self, name: str) -> Repository:
        if name not in self.hub.repositories:
            raise Answer(404, "RepoNotFound", "Repository not found")
        return self.hub.repositories[name]

    def _commit(self, name: str, revision: str) -> tuple[str, Files]:
        repository = self._repository(name)
        if repository.gated:
            raise Answer(403, "GatedRepo", "Access to this repository is restricted")
        if repository.private and self.headers.get("Authorization") != "Bearer good":
            raise Answer(401, "RepoNotFound", "Repository not found")
        sha = repository.find(revision)
        if sha is None:
            raise Answer(404, "RevisionNotFound", f"Invalid rev id: {revision}")
        return sha, repository.commits[sha]
