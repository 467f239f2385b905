"""The ids under which git stores files."""

from __future__ import annotations

import shutil
import subprocess
import threading
from collections import Counter
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from rich.console import Console

from mtl.corpora.ewt5.build import GITHUB, UPSTREAM, UpstreamFile, download_ewt5, git_blob_id, manifest
from mtl.errors import InputError

CONTENT = {
    "UD_English-EWT/en_ewt-ud-dev.conllu": b"one\n" * 3000,
    "UNER_English-EWT/en_ewt-ud-train.iob2": b"two\n",
    "propbank-release/data/google/ewt/answers/00/x.xml.gold_skel": b"three\n",
}
QUIET = Console(quiet=True)


class Server:
    """GitHub's raw files on localhost; the server can break connections and serve other content."""

    def __init__(self) -> None:
        self.requests: Counter[str] = Counter()
        self.broken: Counter[str] = Counter()
        self.content = {_address(path): content for path, content in CONTENT.items()}
        server = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                server.requests[self.path] += 1
                content = server.content.get(self.path)
                if content is None:
                    self.send_error(404)
                    return
                self.send_response(200)
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                if server.broken[self.path]:
                    server.broken[self.path] -= 1
                    content = content[: len(content) // 2]
                self.wfile.write(content)

            def log_message(self, format: str, *args: object) -> None:
                return

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.http.server_port}/{{repository}}/{{commit}}/{{path}}"


def _address(path: str) -> str:
    folder, _, inside = path.partition("/")
    commits = UPSTREAM[folder]
    commit = commits.get(f"commit of {inside}", commits["commit"])
    return f"/{commits['repository']}/{commit}/{inside}"


@pytest.fixture
def server(monkeypatch) -> Iterator[Server]:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    server = Server()
    thread = threading.Thread(target=server.http.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield server
    server.http.shutdown()
    thread.join()
    server.http.server_close()


@pytest.fixture
def files(tmp_path) -> list[UpstreamFile]:
    scratch, wanted = tmp_path / "scratch", []
    for path, content in CONTENT.items():
        scratch.write_bytes(content)
        wanted.append(UpstreamFile(path, git_blob_id(scratch)))
    return wanted


def held(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_everything_once(server, files, tmp_path):
    folder = tmp_path / "ewt5"
    for _ in range(2):
        assert download_ewt5(folder, server.url, files, console=QUIET) == folder
        assert held(folder) == CONTENT
    assert server.requests == Counter(map(_address, CONTENT))


def test_a_broken_connection_is_tried_again(server, files, tmp_path):
    first = _address(files[0].path)
    server.broken[first] = 1
    download_ewt5(tmp_path / "ewt5", server.url, files, retries=1, console=QUIET)
    assert held(tmp_path / "ewt5") == CONTENT
    assert server.requests[first] == 2


def test_an_interrupted_download_goes_on(server, files, tmp_path):
    folder, last = tmp_path / "ewt5", _address(files[2].path)
    server.broken[last] = 1
    with pytest.raises(InputError, match=r"x\.xml\.gold_skel: .* failed .*run again") as error:
        download_ewt5(folder, server.url, files, retries=0, workers=1, console=QUIET)
    assert "\n" not in str(error.value)
    assert held(folder).keys() == {file.path for file in files[:2]}  # whole files only, no parts
    download_ewt5(folder, server.url, files, retries=0, console=QUIET)
    assert held(folder) == CONTENT
    assert server.requests == Counter({**Counter(map(_address, CONTENT)), last: 2})


def test_what_is_not_the_pinned_content_never_gets_its_name(server, files, tmp_path):
    folder, wrong = tmp_path / "ewt5", files[1]
    server.content[_address(wrong.path)] = b"tampered\n"
    with pytest.raises(InputError, match=f"gave the git blob .* where {wrong.blob} is pinned"):
        download_ewt5(folder, server.url, files, retries=0, console=QUIET)
    assert wrong.path not in held(folder)
    with pytest.raises(InputError, match="404"):
        download_ewt5(folder, server.url, [UpstreamFile("UD_English-EWT/none", "0" * 40)], 0, console=QUIET)


def test_a_spoilt_file_is_fetched_again(server, files, tmp_path):
    folder = tmp_path / "ewt5"
    download_ewt5(folder, server.url, files, console=QUIET)
    (folder / files[0].path).write_bytes(b"spoilt")
    download_ewt5(folder, server.url, files, console=QUIET)
    assert held(folder) == CONTENT
    assert sorted(server.requests.values()) == [1, 1, 2]


def test_the_manifest():
    files = manifest()
    assert len({file.path for file in files}) == len(files) == 1154
    assert sum(file.path.endswith(".gold_skel") for file in files) == 1145
    assert all(len(file.blob) == 40 and int(file.blob, 16) >= 0 for file in files)
    by_path = {file.path: file for file in files}
    train = by_path["UNER_English-EWT/en_ewt-ud-train.iob2"]
    assert (train.blob, train.commit[:7]) == ("236914d90bc061dfaae0abf322ab36da483fd70a", "0c7ce0d")
    dev = by_path["UNER_English-EWT/en_ewt-ud-dev.iob2"]
    assert GITHUB.format(repository=dev.repository, commit=dev.commit, path="a/b") == (
        "https://raw.githubusercontent.com/UniversalNER/UNER_English-EWT/8ed072de2fd24022cc62458997fe96a8fe191ea4/a/b"
    )
    blobs = {
        "train": "34731d23bafeeff233fdcee18ffc0254b1aa0e28",
        "dev": "a994b6990643429070ecc6e236d26ad6a04bfefb",
        "test": "c59667960ae967636606f47bc35f132a5557ad39",
    }
    assert {split: by_path[f"UD_English-EWT/en_ewt-ud-{split}.conllu"].blob for split in blobs} == blobs


def test_blob_ids_known_to_git(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"")
    assert git_blob_id(path) == "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    path.write_bytes(b"hello\n")
    assert git_blob_id(path) == "ce013625030ba8dba906f756967f9e9ca394464a"


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_blob_ids_against_git(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(bytes(range(256)) * 40)
    command = ["git", "hash-object", "--no-filters", str(path)]
    assert (
        git_blob_id(path)
        == subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    )
