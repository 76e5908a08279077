"""The files of `make dist`: their content, and that they work without the clone."""

from __future__ import annotations

import os
import shutil
import subprocess
import sysconfig
import tarfile
import venv
import zipfile
from pathlib import Path

import pytest

import temper
from tests.cli.tiny_project import make_data, make_model

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
NAME = f"temper_lm-{temper.__version__}"
TOOLS = ROOT / ".venv-tools" / "bin" / "python"
"""What `make dist` builds with."""
LARGEST = 2**20
"""Bytes; both are below it, and a data set or a picture that slips in is not."""


def call(*words: object, cwd: Path, **environment: str) -> str:
    """Run a program that must succeed, and return what it printed."""
    done = subprocess.run(
        list(map(str, words)),
        cwd=cwd,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder with source and wheel, built from a copy of what git knows."""
    if not TOOLS.exists():
        pytest.skip("needs the tools of `make dist`")
    clone = tmp_path_factory.mktemp("dist") / "clone"
    for name in call(
        "git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=ROOT
    ).splitlines():
        if (ROOT / name).is_file():
            (clone / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, clone / name)
    call(TOOLS, "-m", "build", "--no-isolation", cwd=clone)
    return clone / "dist"


def test_twine_accepts_the_built_distributions(built: Path) -> None:
    files = sorted(built.iterdir())
    assert [path.name for path in files] == [f"{NAME}-py3-none-any.whl", f"{NAME}.tar.gz"]
    assert "FAILED" not in call(TOOLS, "-m", "twine", "check", "--strict", *files, cwd=built)


def test_the_wheel_contains_only_the_complete_package(built: Path) -> None:
    wheel = built / f"{NAME}-py3-none-any.whl"
    with zipfile.ZipFile(wheel) as archive:
        kept = {name for name in archive.namelist() if not name.startswith(f"{NAME}.dist-info/")}
    source = ROOT / "src"
    known = call("git", "ls-files", "--cached", "--others", "--exclude-standard", cwd=source)
    assert kept == set(known.splitlines())
    assert wheel.stat().st_size < LARGEST


def test_the_source_builds_without_tests_results_and_documents(built: Path) -> None:
    source = built / f"{NAME}.tar.gz"
    with tarfile.open(source) as archive:
        kept = {name.split("/")[1] for name in archive.getnames() if "/" in name}
    assert kept == {"LICENSE", "PKG-INFO", "README.md", "pyproject.toml", "setup.cfg", "src"}
    assert source.stat().st_size < LARGEST


def test_the_wheel_trains_in_a_separate_environment(built: Path, tmp_path: Path) -> None:
    """Its requirements are those of this environment, so nothing is downloaded."""
    home = tmp_path / "venv"
    venv.create(home, with_pip=True)
    binaries = home / ("Scripts" if os.name == "nt" else "bin")

    def inside(program: str, *words: object) -> str:
        alone = {"PYTHONPATH": "", "HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1"}
        return call(binaries / program, *words, cwd=tmp_path, **alone)

    wheel = built / f"{NAME}-py3-none-any.whl"
    inside("python", "-m", "pip", "install", "--no-deps", "--no-index", wheel)
    site = inside("python", "-c", "import sysconfig; print(sysconfig.get_path('purelib'))")
    # A path in a .pth file is searched last, and .pth files there, of an editable Temper, are not.
    Path(site.strip(), "requirements.pth").write_text(sysconfig.get_path("purelib"), "utf-8")
    result = inside("python", "-c", "import temper; print(temper.__file__)")
    assert Path(result.strip()).is_relative_to(home)
    assert inside("temper", "--version") == f"temper {temper.__version__}\n"
    assert "uegr" in inside("temper", "list", "methods")
    model, data = make_model(tmp_path / "model"), make_data(tmp_path / "data")
    steps = ("--set", "train.max_steps=2")
    inside("temper", "train", "--model", model, "--data", data / "reviews", *steps, "--out", "run")
    inside("temper", "evaluate", "run", "--set", "evaluate.bootstrap=0")
    inside("temper", "report", "run")
    assert (tmp_path / "run" / "model.safetensors").is_file()
    assert (tmp_path / "run" / "report.html").is_file()
