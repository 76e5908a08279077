"""The Hub's HTTP interface, as far as an upload needs it, on 127.0.0.1."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any

OWNER, TOKEN = "ada", "hf_secret"


@dataclass
class Hub:
    """What a hub holds, and what it was asked."""

    url: str = ""
    private: dict[str, bool] = field(default_factory=dict)
    files: dict[str, dict[str, bytes]] = field(default_factory=dict)
    asked: list[str] = field(default_factory=list)
    objects: dict[str, bytes] = field(default_factory=dict)
    commits: int = 0

    def create(self, asked: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        repo = f"{asked.get('organization') or OWNER}/{asked['name']}"
        content = {"url": f"{self.url}/{repo}", "id": repo, "name": repo}
        if repo in self.private:
            return 409, {**content, "error": "You already created this model repo"}
        self.private[repo] = asked.get("visibility") == "private" or bool(asked.get("private"))
        self.files[repo] = {}
        return 200, content

    def modes(self, asked: dict[str, Any]) -> dict[str, Any]:
        def mode(name: str) -> str:
            return "lfs" if name.endswith((".safetensors", ".parquet")) else "regular"

        names = [file["path"] for file in asked["files"]]
        return {
            "files": [
                {"path": name, "uploadMode": mode(name), "shouldIgnore": False} for name in names
            ]
        }

    def batch(self, asked: dict[str, Any]) -> dict[str, Any]:
        def action(one: dict[str, Any]) -> dict[str, Any]:
            return {**one, "actions": {"upload": {"href": f"{self.url}/put/{one['oid']}"}}}

        return {"transfer": "basic", "objects": [action(one) for one in asked["objects"]]}

    def commit(self, repo: str, body: bytes) -> dict[str, Any]:
        kept: dict[str, bytes] = {}
        for line in map(json.loads, body.splitlines()):
            value = line["value"]
            if line["key"] == "file":
                kept[value["path"]] = base64.b64decode(value["content"])
            elif line["key"] == "lfsFile":
                kept[value["path"]] = self.objects[value["oid"]]
        self.files[repo].update(kept)
        self.commits += 1
        return {"commitUrl": f"{self.url}/{repo}/commit/1", "commitOid": "1" * 40}

    def post(self, path: str, body: bytes) -> tuple[int, dict[str, Any]]:
        if path == "/api/repos/create":
            return self.create(json.loads(body))
        if path == "/api/validate-yaml":
            return 200, {"errors": [], "warnings": []}
        if path.endswith("/info/lfs/objects/batch"):
            return 200, self.batch(json.loads(body))
        result = re.fullmatch(r"/api/models/(.+)/(preupload|commit)/main", path)
        if result is None:
            return 404, {"error": path}
        is_commit = result[2] == "commit"
        return 200, self.commit(result[1], body) if is_commit else self.modes(json.loads(body))


@contextmanager
def running() -> Iterator[Hub]:
    """Serve a hub while the block runs."""
    hub = Hub()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: Any) -> None:
            """Say nothing."""

        def respond(self, status: int, content: Any) -> None:
            body = json.dumps(content).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            if status >= 400:
                self.send_header("X-Error-Message", content.get("error", "refused"))
            self.end_headers()
            self.wfile.write(body)

        def asked(self) -> bytes:
            hub.asked.append(f"{self.command} {self.path}")
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def do_PUT(self) -> None:
            body, oid = self.asked(), self.path.rpartition("/")[2]
            assert hashlib.sha256(body).hexdigest() == oid
            hub.objects[oid] = body
            self.respond(200, {})

        def do_GET(self) -> None:
            self.asked()
            repo = self.path.removeprefix("/api/models/").partition("?")[0]
            if repo not in hub.private:
                self.respond(404, {"error": "Repository not found"})
                return
            self.respond(200, {"id": repo, "private": hub.private[repo], "sha": "1" * 40})

        def do_POST(self) -> None:
            body = self.asked()
            if self.headers.get("Authorization") != f"Bearer {TOKEN}":
                self.respond(401, {"error": "Invalid user token."})
            else:
                self.respond(*hub.post(self.path, body))

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
