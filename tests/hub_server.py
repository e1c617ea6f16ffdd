"""A small Hugging Face hub on 127.0.0.1: repositories by commit, range requests, and failures.

It speaks as much of the protocol as ``huggingface_hub`` needs to read a repository:
``/api/{models,datasets}/ID[/revision/REV]``, ``/api/…/tree/REV`` and ``/ID/resolve/REV/PATH``, with
HEAD, ETag, X-Repo-Commit, X-Linked-Size and Range, but without xet. As on the hub, a large file is
known by its sha256 and a small one by git's hash, and a stranger gets 401 for a missing repository.
"""

import contextlib
import hashlib
import json
import re
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

LARGE = 5_000  # bytes
API = re.compile(r"/api/(models|datasets)/([^/]+/[^/]+)(?:/(revision|tree)/([^/]+))?/?")
RESOLVE = re.compile(r"/(datasets/)?([^/]+/[^/]+)/resolve/([^/]+)/(.+)")


@dataclass
class Repository:
    """The files of each commit, what the references point to, and how the repository fails."""

    commits: dict[str, dict[str, bytes]]
    refs: dict[str, str]
    gated: bool = False
    busy: bool = False  # every request is answered with 429
    refusals: int = 0  # the first requests for a file are answered with 429
    cuts: dict[str, list[int]] = field(default_factory=dict)  # path: bytes sent until it breaks off
    damaged: str = ""  # a file whose last bit is not what its hash says


@dataclass
class Hub:
    """Repositories by kind and id, and the requests so far."""

    url: str = ""
    away: bool = False  # every connection is closed without an answer
    repositories: dict[tuple[str, str], Repository] = field(default_factory=dict)
    requests: list[str] = field(default_factory=list)

    def add(self, kind: str, name: str, *versions: Path | dict[str, bytes], **faults) -> list[str]:
        """Serve folders, or ``{path: bytes}``, as the commits of a repository; main is the last."""
        commits = {}
        for version in versions:
            if isinstance(version, Path):
                version = {file.name: file.read_bytes() for file in version.iterdir()}
            commits[hashlib.sha1(repr((name, version)).encode()).hexdigest()] = version
        self.repositories[kind, name] = Repository(commits, {"main": list(commits)[-1]}, **faults)
        return list(commits)


def entry(path: str, content: bytes) -> dict:
    """A file as the hub lists it."""
    oid = hashlib.sha1(b"blob %d\0" % len(content) + content).hexdigest()
    row = {"type": "file", "path": path, "rfilename": path, "size": len(content), "oid": oid}
    if len(content) > LARGE:
        sha256 = hashlib.sha256(content).hexdigest()
        row["lfs"] = {"oid": sha256, "sha256": sha256, "size": len(content), "pointerSize": 134}
    return row


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: Hub

    def log_message(self, *_):
        pass

    def do_GET(self):
        path = unquote(urlsplit(self.path).path)
        if self.hub.away:
            self.close_connection = True
            return
        self.hub.requests.append(f"{self.command} {path} {self.headers.get('Range', '')}".strip())
        if match := API.fullmatch(path):
            self.listing(*match.groups())
        elif match := RESOLVE.fullmatch(path):
            self.file("datasets" if match[1] else "models", *match.groups()[1:])
        else:
            self.answer(404)

    do_HEAD = do_GET

    def find(self, kind: str, name: str, revision: str | None):
        """The repository and the commit, or an error sent and (None, "")."""
        repository = self.hub.repositories.get((kind, name))
        if repository is None:
            self.answer(401, headers={"X-Error-Code": "RepoNotFound"})
        elif repository.busy:
            self.answer(429, headers={"Retry-After": "0"})
        elif (sha := repository.refs.get(revision or "main", revision)) in repository.commits:
            return repository, sha
        else:
            self.answer(404, headers={"X-Error-Code": "RevisionNotFound"})
        return None, ""

    def listing(self, kind: str, name: str, call: str | None, revision: str | None):
        repository, sha = self.find(kind, name, revision)
        if repository is not None:
            rows = [entry(*item) for item in repository.commits[sha].items()]
            about = {"id": name, "sha": sha, "private": False, "tags": [], "siblings": rows}
            content = json.dumps(rows if call == "tree" else about).encode()
            self.answer(200, content, {"Content-Type": "application/json"})

    def file(self, kind: str, name: str, revision: str, path: str):
        repository, sha = self.find(kind, name, revision)
        if repository is None:
            return
        headers = {"X-Repo-Commit": sha, "Accept-Ranges": "bytes"}
        content = repository.commits[sha].get(path)
        if repository.gated:
            return self.answer(401, headers=headers | {"X-Error-Code": "GatedRepo"})
        if content is None:
            return self.answer(404, headers=headers | {"X-Error-Code": "EntryNotFound"})
        if repository.refusals:
            repository.refusals -= 1
            return self.answer(429, headers=headers | {"Retry-After": "0"})
        row = entry(path, content)
        headers["ETag"] = f'"{row.get("lfs", row)["oid"]}"'
        headers["X-Linked-Size"] = str(len(content))
        if path == repository.damaged:
            content = content[:-1] + bytes([content[-1] ^ 1])
        status = 200
        if match := re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range") or ""):
            headers["Content-Range"] = f"bytes {match[1]}-{len(content) - 1}/{len(content)}"
            status, content = 206, content[int(match[1]) :]
        cuts = repository.cuts.get(path) if self.command == "GET" else None
        self.answer(status, content, headers, cut=cuts.pop(0) if cuts else None)

    def answer(self, status: int, content: bytes = b"", headers=(), cut: int | None = None):
        self.send_response(status)
        for name, value in {**dict(headers), "Content-Length": str(len(content))}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content[:cut])
        self.close_connection = self.close_connection or cut is not None


@contextlib.contextmanager
def serve():
    """A hub on a free port of this machine, answering from threads."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Bound", (Handler,), {"hub": hub}))
    hub.url = f"http://127.0.0.1:{server.server_port}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
