"""Install the pinned versions, every file compared with its hash; write the hashes anew.

    python pins.py install dependencies dev    what these lists of pyproject.toml ask for
    python pins.py hash                        hashes.txt, from constraints.txt and the index

`make` calls the first with the interpreter of a new environment, so that only the standard
library is used. pip refuses hashes in constraints beside an editable project and beside versions
that they do not pin by themselves. It is asked twice instead: what it would install, which runs
nothing of it, and to install exactly that, by hash.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import tomllib
import urllib.request
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent
JSON = "application/vnd.pypi.simple.v1+json"
"""The index's answer as JSON (PEP 691)."""

Hashes = Mapping[str, tuple[str, tuple[str, ...]]]
"""Canonical name -> the pinned version and the SHA-256 of each of its wheels."""


def canonical(name: str) -> str:
    """Return a distribution's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def read(name: str, root: Path = ROOT) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Return what constraints.txt or hashes.txt pins, in its order."""
    found = {}
    for line in (root / name).read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pin, *hashes = line.split(" --hash=sha256:")
            distribution, version = pin.split("==")
            found[canonical(distribution)] = version, tuple(hashes)
    return found


def requirements(lists: Iterable[str], root: Path = ROOT) -> list[str]:
    """Return the requirements of pyproject.toml: ``build``, ``dependencies`` and extras by name."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))
    known = {
        "build": project["build-system"]["requires"],
        "dependencies": project["project"]["dependencies"],
        **project["project"]["optional-dependencies"],
    }
    return [requirement for name in lists for requirement in known[name]]


def locked(report: Mapping[str, Any], hashes: Hashes) -> Iterator[str]:
    """Yield a line with version and hashes for each distribution that pip would install.

    A version with a local label (``torch 2.13.0+cpu``) is one that the machine's pip is set up
    for, from a folder or an index of its own, and the public index does not have it: it is taken
    as it is, and said.

    Args:
        report: What ``pip install --report`` writes.
        hashes: What hashes.txt holds.

    Raises:
        SystemExit: Something has no pin.
    """
    for item in report["install"]:
        name, version = item["metadata"]["name"], item["metadata"]["version"]
        _, allowed = hashes.get(canonical(name), ("", ()))
        if "+" in version:
            allowed = (digest_of(item["download_info"]),)
            sys.stderr.write(f"{name} {version} is no public build: it is taken as pip finds it.\n")
        if not allowed:
            raise SystemExit(
                f"{name} {version} has no hash in hashes.txt. Either pin it in constraints.txt and "
                "run `python pins.py hash`, or install the build that you trust first, with "
                f"`{sys.executable} -m pip install ...`: what is installed is kept."
            )
        yield f"{name}=={version}" + "".join(f" --hash=sha256:{digest}" for digest in allowed)


def digest_of(download: Mapping[str, Any]) -> str:
    """Return the SHA-256 of a file: as its index says, or of the file itself where none does."""
    address, told = download["url"], download.get("archive_info", {}).get("hashes", {})
    if not address.startswith("file:") and "sha256" in told:
        return str(told["sha256"])
    with urllib.request.urlopen(address) as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def pip(*words: str, **environment: str) -> str:
    """Run pip, whose messages go to the terminal, and return what it wrote.

    Raises:
        SystemExit: pip failed; it has said why.
    """
    command = [sys.executable, "-m", "pip", *words]
    environment = {**os.environ, **environment}
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8")
    if done.returncode:
        raise SystemExit(done.returncode)
    return done.stdout


def install(wanted: Iterable[str], root: Path = ROOT) -> None:
    """Install requirements into this interpreter's environment.

    Only wheels: a source distribution runs code before its hash can be compared.
    """
    words = ["install", "--quiet", "--only-binary", ":all:"]
    constraints = str(root / "constraints.txt")
    report = pip(*words, "--dry-run", "--report", "-", "--constraint", constraints, *wanted)
    with tempfile.TemporaryDirectory() as folder:
        lock = Path(folder, "lock.txt")
        lock.write_text("\n".join(locked(json.loads(report), read("hashes.txt", root))) + "\n")
        if lock.stat().st_size > 1:
            pip(*words, "--require-hashes", "--no-deps", "--requirement", str(lock))


def index() -> str:
    """Return the address of the index that pip is set up with, as its help says."""
    # So wide that no address is broken off.
    words = " ".join(pip("install", "--help", COLUMNS="1000").split())
    found = re.search(r"Base URL of the Python Package Index \(default (\S+?)/?\)", words)
    if found is None:
        raise SystemExit("`pip install --help` does not say which index it asks.")
    return found[1]


def hashes_of(address: str, name: str, version: str) -> list[str]:
    """Return the SHA-256 of every wheel that an index has of a version.

    Raises:
        SystemExit: It has none, or it does not answer in JSON.
    """
    request = urllib.request.Request(f"{address}/{canonical(name)}/", headers={"Accept": JSON})
    with urllib.request.urlopen(request, timeout=60) as answer:
        if answer.headers.get_content_type() != JSON:
            raise SystemExit(f"The index does not answer in JSON (PEP 691) about {name}.")
        files = json.load(answer)["files"]
    found = {
        file["hashes"]["sha256"]
        for file in files
        if file["filename"].endswith(".whl") and file["filename"].split("-")[1] == version
    }
    if not found:
        raise SystemExit(f"The index has no wheel of {name} {version}.")
    return sorted(found)


def write(address: str, root: Path = ROOT) -> None:
    """Write hashes.txt: for each pin, what the index has of it."""
    pins = [(name, version) for name, (version, _) in read("constraints.txt", root).items()]
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(lambda pin: hashes_of(address, *pin), pins))
    lines = [
        f"{name}=={version}" + "".join(f" --hash=sha256:{digest}" for digest in digests)
        for (name, version), digests in zip(pins, found, strict=True)
    ]
    head = "# Written by `python pins.py hash`: the SHA-256 of every wheel of constraints.txt."
    text = "\n".join([head, *lines]) + "\n"
    (root / "hashes.txt").write_text(text, encoding="utf-8", newline="\n")


def main(words: list[str]) -> None:
    """Do what the command line asks."""
    match words:
        case ["hash"]:
            write(index())
        case ["install", *lists] if lists:
            install(requirements(lists))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
