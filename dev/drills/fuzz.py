"""Damage every kind of file that Temper reads, and check its errors: ``python -m dev.drills.fuzz``.

Real files (data of every format, suites, settings, records, a run with its evaluation, a model's
folder) are changed at random: bytes are flipped, cut, duplicated or overwritten with strings that
break parsers, and values of JSON are replaced by unusual ones. Reading such a file may succeed or
raise a `TemperError`. Everything else is a fault: another exception, a timeout, or memory beyond
the limit. Each input is a function of (seed, target, number); the file of a fault is kept.
"""

from __future__ import annotations

import hashlib
import json
import random
import shutil
import signal
import sys
import tempfile
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

import pandas as pd

from dev.drills.commands import make_project
from dev.drills.drilling import Found, drilled
from temper.checkpoints.checkpoint import Checkpoint
from temper.errors import LONGEST_MESSAGE, TemperError
from temper.memory import MEBIBYTE, gauge_of

ROOT = Path(__file__).parents[2]
SECONDS, MEBIBYTES = 10, 2048
"""Limits of one input."""

ODD: tuple[Any, ...] = (
    *(None, True, -1, 0, 10**30, 1e308, -0.0, "", " ", "\u200b", "a" * 70_000, "\x00", "../../etc"),
    *([], {}, [[]], [None], {"": {}}, "{{ 7 * 7 }}", "<script>", "nan", "1e999", ["x"] * 5000),
)
BYTES = (
    *(
        b"\x00",
        b"\xff\xfe",
        b"\xef\xbb\xbf",
        b"\xed\xa0\x80",
        b'"',
        b"'",
        b"\n",
        b"\r",
        b"\t",
        b",",
    ),
    *(b"[" * 3000, b"{" * 3000, b"\\ud800", b"NaN", b"-Infinity", b"1" * 5000, b"1e999", b"null"),
    *(b"]", b"}", b";"),
)


@dataclass(frozen=True)
class Target:
    """One kind of file.

    Args:
        name: Name of the kind.
        make: Writes a valid example into an empty folder; may use the folder of `make_project`.
        files: Patterns of the damaged files, relative to the folder.
        read: Reads the folder like a command.
    """

    name: str
    make: Callable[[Path, Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]


def damaged(raw: bytes, draws: random.Random, *, is_json: bool) -> bytes:
    """Change a file's content at random, usually a little.

    Args:
        raw: The content.
        draws: Random generator.
        is_json: Whether values may be replaced if the content parses.
    """
    if is_json and draws.random() < 0.7:
        try:
            return _odd_value(raw, draws)
        except ValueError:
            pass
    changed = bytearray(raw)
    for _ in range(draws.choice((1, 1, 1, 2, 5))):
        at = draws.randrange(len(changed) + 1) if changed else 0
        length = draws.choice((1, 2, 8, 64, 1000))
        kind = draws.randrange(5)
        if kind == 0 and at < len(changed):
            changed[at] ^= 1 << draws.randrange(8)
        elif kind == 1:
            del changed[at : at + length]
        elif kind == 2:
            changed[at:at] = changed[at : at + length]
        elif kind == 3:
            changed[at:at] = draws.choice(BYTES)
        else:
            changed[at : at + length] = draws.randbytes(min(length, 64))
    if draws.random() < 0.05:
        del changed[draws.randrange(len(changed) + 1) :]
    return bytes(changed)


def _odd_value(raw: bytes, draws: random.Random) -> bytes:
    lines = raw.splitlines() if raw.count(b"\n{") else [raw]
    position = draws.randrange(len(lines))
    content = json.loads(lines[position])
    nodes: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key in node if isinstance(node, dict) else range(len(node)):
            nodes.append((node, key))
            if isinstance(node[key], dict | list):
                walk(node[key])

    if isinstance(content, dict | list):
        walk(content)
    if not nodes:
        return json.dumps(draws.choice(ODD)).encode()
    node, key = draws.choice(nodes)
    if draws.random() < 0.25:
        del node[key]
    else:
        node[key] = draws.choice(ODD)
    lines[position] = json.dumps(content).encode()
    return b"\n".join(lines)


class Overtime(BaseException):
    """Raised if an input takes too long; a BaseException, so that no reader catches it."""


@contextmanager
def _limited() -> Iterator[None]:
    def late(number: int, frame: FrameType | None) -> None:
        raise Overtime(f"took more than {SECONDS} s")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


KEPT = Path("drills-faults")
"""Folder for the inputs that cause a fault."""


def drill(project: Path, target: Target, *, inputs: int, seed: int) -> Found:
    """Damage one kind of file many times.

    Args:
        project: The folder of `make_project`.
        target: The kind of file.
        inputs: Number of inputs.
        seed: Seed of the damage.
    """
    result = Found()
    gauge = gauge_of(None)
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as work:
        good, folder = Path(made) / "good", Path(work) / "input"
        good.mkdir()
        target.make(good, project)
        files = sorted(file for pattern in target.files for file in good.glob(pattern))
        for number in range(inputs):
            draws = random.Random(f"{seed} {target.name} {number}")
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(good, folder)
            file = folder / draws.choice(files).relative_to(good)
            is_json = file.suffix in (".json", ".jsonl")
            file.write_bytes(damaged(file.read_bytes(), draws, is_json=is_json))
            if gauge is not None:
                gauge.start()
                base = gauge.peak()
            fault = ""
            try:
                with _limited(), warnings.catch_warnings():
                    warnings.simplefilter("ignore")
                    target.read(folder)
                result.count("accepted")
            except TemperError as error:
                result.count("refused")
                if len(str(error)) > LONGEST_MESSAGE:
                    fault = f"a message of {len(str(error)):,} characters"
            except (Exception, Overtime):  # noqa: BLE001 - any exception is a fault
                fault = traceback.format_exc(limit=-3)
            if gauge is not None and gauge.peak() - base > MEBIBYTES * MEBIBYTE:
                fault = fault or f"took {(gauge.peak() - base) / MEBIBYTE:,.0f} MiB"
            if fault:
                position = KEPT / f"{target.name.replace(' ', '-')}-{number}"
                shutil.rmtree(position, ignore_errors=True)
                shutil.copytree(folder, position)
                result.fault(number, file.relative_to(folder), fault)
    return result


def _rows() -> list[dict[str, Any]]:
    return [
        {"text": f"a text, number {row} \u00e9", "label": "good" if row % 3 else "bad"}
        for row in range(40)
    ]


def _write_table(path: Path) -> None:
    frame, suffix = pd.DataFrame(_rows()), path.name.partition(".")[2]
    if suffix == "parquet":
        frame.to_parquet(path)
    elif suffix in ("json", "jsonl"):
        frame.to_json(path, orient="records", lines=suffix == "jsonl")
    else:
        frame.to_csv(path, sep="\t" if suffix == "tsv" else ",", index=False)


def _read_table(folder: Path) -> None:
    (file,) = folder.iterdir()
    _read_layout(file)


def _table_target(suffix: str) -> Target:
    def make(folder: Path, _: Path) -> None:
        _write_table(folder / f"a.{suffix}")

    return Target(f"data {suffix}", make, ("*",), _read_table)


def _layout(folder: Path, _: Path) -> None:
    _write_table(folder / "train.csv")
    names = {"label_names": ["bad", "good"], "text_column": "text"}
    (folder / "dataset.json").write_text(json.dumps(names))


def _read_layout(folder: Path) -> None:
    from temper.data.settings import DataSettings
    from temper.data.sources import load_splits

    load_splits(DataSettings(source=str(folder)))


def _suite(folder: Path, _: Path) -> None:
    source = ROOT / "src/temper/data/suites/sentiment.toml"
    text = source.read_text(encoding="utf-8")
    (folder / "mine.toml").write_text(text, encoding="utf-8")


def _read_suite(folder: Path) -> None:
    from temper.data.suites.suite import read_suite

    read_suite(str(folder / "mine.toml"))


SETTINGS = """
model = "minilm"
method = { name = "uegr", epsilon = 0.025 }
[data]
source = "demo"
rows = 100
[train]
epochs = 2
learning_rate = 1e-4
"""


def _settings(folder: Path, _: Path) -> None:
    (folder / "settings.toml").write_text(SETTINGS)


def _read_settings(folder: Path) -> None:
    from temper.settings import read_toml
    from temper.training.config import RunConfig

    RunConfig.of(read_toml(folder / "settings.toml"))


def _run(folder: Path, project: Path) -> None:
    shutil.copytree(project / "run", folder, dirs_exist_ok=True)


def _read_run(folder: Path) -> None:
    from temper.report import build

    build(folder, folder / "page.html")


def _read_model(folder: Path) -> None:
    from temper.evaluation.loading import load_predictor

    load_predictor(Checkpoint.of(folder), max_length=8, batch_size=4, device="cpu")


def _verify(folder: Path) -> None:
    from temper.export.verify import verify

    faults = [fault for checked in verify(folder) for fault in checked.faults]
    if faults:
        raise TemperError(faults[0])
    for file in (folder / "run.json", folder / "evaluation" / "settings.json"):
        for name, recorded in json.loads(file.read_bytes()).get("files", {}).items():
            content = (file.parent / name).read_bytes()
            assert hashlib.sha256(content).hexdigest() == recorded, f"{name} was accepted"


def _study(folder: Path, _: Path) -> None:
    shutil.copytree(
        ROOT / "reproduction/results/uegr-parts/text_cnn-tnews", folder, dirs_exist_ok=True
    )


TARGETS = (
    *(_table_target(suffix) for suffix in ("csv", "tsv", "jsonl", "json", "parquet", "csv.gz")),
    Target("data folder", _layout, ("*",), _read_layout),
    Target("suite", _suite, ("*",), _read_suite),
    Target("settings", _settings, ("*",), _read_settings),
    Target("kept study", _study, ("study.json", "scores.parquet", "paired.json"), _read_run),
    Target("run records", _run, ("run.json", "metrics.jsonl", "evaluation/*"), _read_run),
    Target("verify", _run, ("*.json", "evaluation/*.json"), _verify),
    Target("model folder", _run, ("config.json", "tokenizer*.json", "*.safetensors"), _read_model),
)


def main() -> int:
    """Run the drill on all kinds of files, or the given ones, and print the results."""
    return drilled(__doc__, TARGETS, make_project, drill, inputs=200)


if __name__ == "__main__":
    sys.exit(main())
