"""Fill the folder that `make gpu` needs on a machine without a network: MiniLM, SST-2, wheels.

Run ``make gpu-kit`` on a machine with network access and the data. ``.gpu-kit/`` is ignored by git
and stays under 60 MiB. It has MiniLM's weights in half precision, the files of SST-2 (from
``TEMPER_DATA``), and wheels that a machine with torch and Transformers may lack. ``make gpu``
installs only the wheels whose packages cannot be imported.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import zipfile
from importlib.util import find_spec
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
KIT = ROOT / ".gpu-kit"
MOST = 60 * 2**20
TOKENIZER = ("config.json", "tokenizer.json", "tokenizer_config.json", "vocab.txt")

# Module to import -> packages. The packages of one line are installed together or not at all,
# because their versions depend on each other.
WHEELS: tuple[dict[str, str], ...] = (
    {
        "pydantic": "pydantic",
        "pydantic_core": "pydantic_core",
        "annotated_types": "annotated-types",
        "typing_inspection": "typing-inspection",
        "typing_extensions": "typing_extensions",
    },
    {"accelerate": "accelerate"},
    {"psutil": "psutil"},
    {"jinja2": "Jinja2"},
    {"markupsafe": "MarkupSafe"},
    {"pytest": "pytest", "_pytest": "pytest", "pluggy": "pluggy", "iniconfig": "iniconfig"},
    {"pygments": "Pygments"},
    {"hypothesis": "hypothesis", "sortedcontainers": "sortedcontainers"},
)


def fill(kit: Path, *, data: Path, python: str, platform: str) -> int:
    """Write the whole kit and return its size in bytes.

    Args:
        kit: The folder; its content is replaced.
        data: The folder that holds ``sst2``.
        python: Version of the interpreter that the wheels are for, as ``3.12``.
        platform: Machine that the wheels are for, as ``x86_64``.
    """
    # Imported here, so that the machine that only reads the kit does not need them.
    import torch
    from safetensors.torch import load_file, save_file

    from dev.benchmarks.workload import minilm_folder

    shutil.rmtree(kit, ignore_errors=True)
    (kit / "minilm").mkdir(parents=True)
    source = minilm_folder()
    weights = load_file(source / "model.safetensors")
    half = {
        name: value.to(torch.float16) if value.is_floating_point() else value
        for name, value in weights.items()
    }
    save_file(half, kit / "minilm" / "model.safetensors", metadata={"format": "pt"})
    for name in TOKENIZER:
        shutil.copy(source / name, kit / "minilm" / name)
    (kit / "sst2").mkdir()
    for name in ("train.jsonl.gz", "dev.jsonl"):
        shutil.copy(data / "sst2" / name, kit / "sst2" / name)
    wanted = dict.fromkeys(name for group in WHEELS for name in group.values())
    tags = [f"manylinux_2_{minor}_{platform}" for minor in (28, 17)]
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
    command += ["--only-binary=:all:", "--python-version", python, "--implementation", "cp"]
    for tag in (*tags, f"manylinux2014_{platform}"):
        command += ["--platform", tag]
    command += ["--dest", str(kit / "wheels")]
    pinned = (ROOT / "requirements" / "dev.txt").read_text(encoding="utf-8")
    versions = dict(re.findall(r"^([\w.-]+)==([^\s;]+)", pinned, re.MULTILINE))
    names = [name.lower().replace("_", "-") for name in wanted]
    subprocess.run([*command, *(f"{name}=={versions[name]}" for name in names)], check=True)
    return sum(file.stat().st_size for file in kit.rglob("*") if file.is_file())


def unpack(kit: Path, site: Path) -> list[str]:
    """Unpack the kit's wheels that this interpreter lacks into a folder.

    Args:
        kit: The filled kit.
        site: Folder of the packages, for ``PYTHONPATH``.

    Returns:
        The unpacked distributions.
    """
    taken: list[str] = []
    shutil.rmtree(site, ignore_errors=True)
    for group in WHEELS:
        if all(find_spec(module) is not None for module in group):
            continue
        for name in dict.fromkeys(group.values()):
            start = name.lower().replace("-", "_")
            wheels = (kit / "wheels").glob("*.whl")
            matching = [file for file in wheels if file.name.lower().startswith(f"{start}-")]
            if not matching:
                raise SystemExit(f"{kit}/wheels has no {name}: fill the kit by `make gpu-kit`.")
            with zipfile.ZipFile(matching[0]) as archive:
                archive.extractall(site)
            taken.append(name)
    return taken


def main() -> None:
    """Fill the kit and print its size."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--python", default="3.12", help="version that the wheels are for")
    parser.add_argument("--platform", default="x86_64", help="machine that the wheels are for")
    default = os.environ.get("TEMPER_DATA", str(ROOT.parent / "shared" / "data"))
    parser.add_argument("--data", type=Path, default=Path(default), help="folder that holds sst2")
    arguments = parser.parse_args()
    if not (arguments.data / "sst2").is_dir():
        raise SystemExit(f"No sst2 in {arguments.data}. Name its folder: --data or TEMPER_DATA.")
    size = fill(KIT, data=arguments.data, python=arguments.python, platform=arguments.platform)
    print(f"{KIT}: {size / 2**20:.1f} MiB of at most {MOST // 2**20}")
    if size > MOST:
        raise SystemExit("The kit exceeds the size limit.")


if __name__ == "__main__":
    main()
