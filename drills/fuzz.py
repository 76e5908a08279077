"""Damage every kind of file that Temper reads, and watch what it says: ``python -m drills.fuzz``.

Real files (data of every format, suites, settings, records, a run with its evaluation, a model's
folder) are changed at random: bytes flipped, cut, doubled or overwritten with what parsers stumble
over, values of JSON replaced by odd ones. Reading such a file may succeed or end in a
`TemperError`. Anything else is a fault: another exception, a minute-long silence, memory beyond the
limit. Each input is a function of (seed, target, number); a fault's file is kept.
"""

from __future__ import annotations

import argparse
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
from rich.console import Console
from rich.table import Table

from temper.errors import LONGEST_MESSAGE, TemperError
from temper.memory import MEBIBYTE, gauge_of

ROOT = Path(__file__).parent.parent
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
        name: What it is.
        make: Writes a good example into an empty folder.
        files: Patterns of the files that are damaged, relative to the folder.
        read: Reads the folder as a command would.
    """

    name: str
    make: Callable[[Path], None]
    files: tuple[str, ...]
    read: Callable[[Path], object]


def damaged(raw: bytes, draws: random.Random, *, is_json: bool) -> bytes:
    """Change a file's content at random, mostly a little.

    Args:
        raw: The content.
        draws: Where chance comes from.
        is_json: Whether values may be replaced where it parses.
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
    place = draws.randrange(len(lines))
    content = json.loads(lines[place])
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
    lines[place] = json.dumps(content).encode()
    return b"\n".join(lines)


class Overtime(BaseException):
    """Raised where an input takes too long; no reader takes it for an error of its own."""


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


def drill(target: Target, *, inputs: int, seed: int, keep: Path) -> dict[str, Any]:
    """Damage one kind of file many times.

    Args:
        target: What is damaged and how it is read.
        inputs: How many times.
        seed: Seed of the damage.
        keep: Folder for files that are read badly.

    Returns:
        Counts of ``accepted`` and ``refused`` inputs, and the ``faults``.
    """
    found: dict[str, Any] = {"accepted": 0, "refused": 0, "faults": []}
    gauge = gauge_of(None)
    with tempfile.TemporaryDirectory() as made, tempfile.TemporaryDirectory() as work:
        good, folder = Path(made) / "good", Path(work) / "input"
        good.mkdir()
        target.make(good)
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
                found["accepted"] += 1
            except TemperError as error:
                found["refused"] += 1
                if len(str(error)) > LONGEST_MESSAGE:
                    fault = f"a message of {len(str(error)):,} characters"
            except (Exception, Overtime):  # noqa: BLE001 - whatever it is, it is looked for
                fault = traceback.format_exc(limit=-3)
            if gauge is not None and gauge.peak() - base > MEBIBYTES * MEBIBYTE:
                fault = fault or f"took {(gauge.peak() - base) / MEBIBYTE:,.0f} MiB"
            if fault:
                place = keep / f"{target.name.replace(' ', '-')}-{number}"
                shutil.rmtree(place, ignore_errors=True)
                shutil.copytree(folder, place)
                where = str(file.relative_to(folder))
                found["faults"].append({"number": number, "file": where, "fault": fault})
    return found


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
    def make(folder: Path) -> None:
        _write_table(folder / f"a.{suffix}")

    return Target(f"data {suffix}", make, ("*",), _read_table)


def _layout(folder: Path) -> None:
    _write_table(folder / "train.csv")
    names = {"label_names": ["bad", "good"], "text_column": "text"}
    (folder / "dataset.json").write_text(json.dumps(names))


def _read_layout(folder: Path) -> None:
    from temper.data.settings import DataSettings
    from temper.data.sources import load_splits

    load_splits(DataSettings(source=str(folder)))


def _suite(folder: Path) -> None:
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


def _settings(folder: Path) -> None:
    (folder / "settings.toml").write_text(SETTINGS)


def _read_settings(folder: Path) -> None:
    from temper.training.assignments import read_toml
    from temper.training.config import RunConfig

    RunConfig.of(read_toml(folder / "settings.toml"))


_RUN: dict[str, Path] = {}


def _run(folder: Path) -> None:
    """Train and evaluate a tiny model once, and copy it."""
    if not _RUN:
        from transformers.utils.logging import disable_progress_bar

        import temper
        from temper.testing.tiny import tiny_model, tiny_tokenizer

        disable_progress_bar()
        base = Path(tempfile.mkdtemp(prefix="drills-"))
        tiny_model().save_pretrained(base / "tiny")
        tiny_tokenizer().save_pretrained(base / "tiny")
        (base / "data.jsonl").write_text("\n".join(json.dumps(row) for row in _rows()))
        run = base / "run"
        data = str(base / "data.jsonl")
        temper.train(
            run, model=str(base / "tiny"), data=data, method="vanilla", epochs=1, max_length=8
        )
        temper.evaluate(str(run), data, out=run / "evaluation")
        _RUN["run"] = run
    shutil.copytree(_RUN["run"], folder, dirs_exist_ok=True)


def _read_run(folder: Path) -> None:
    from temper.report import build

    build(folder, folder / "page.html")


def _read_model(folder: Path) -> None:
    from temper.app.predictors import load_predictor

    load_predictor(str(folder), max_length=8, batch_size=4, device="cpu")


def _verify(folder: Path) -> None:
    from temper.app.verify import verify

    verify(folder)


def _study(folder: Path) -> None:
    shutil.copytree(ROOT / "results/uegr-parts/text_cnn-tnews", folder, dirs_exist_ok=True)


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
    """Drill all targets, or those named, and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--inputs", type=int, default=200, help="inputs of each target")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--targets", help="names with commas between")
    parser.add_argument("--keep", type=Path, default=Path("drills-faults"))
    arguments = parser.parse_args()
    named = arguments.targets.split(",") if arguments.targets else None
    table = Table("target", "inputs", "accepted", "refused", "faults")
    console, faults = Console(), 0
    for target in TARGETS:
        if named is not None and target.name not in named:
            continue
        found = drill(target, inputs=arguments.inputs, seed=arguments.seed, keep=arguments.keep)
        row = (arguments.inputs, found["accepted"], found["refused"], len(found["faults"]))
        table.add_row(target.name, *map(str, row))
        for fault in found["faults"]:
            console.print(f"{target.name} {fault['number']}, {fault['file']}:\n{fault['fault']}",
                          markup=False, highlight=False)  # fmt: skip
        faults += len(found["faults"])
    console.print(table)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
