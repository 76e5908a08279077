"""Runs of ``temper.train`` in several processes: the result of each, and the folders.

torchrun runs this file as ``runs.py FOLDER``; the tests repeat the runs in their own process.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import temper
from temper.errors import TemperError, Terminated
from temper.progress import Progress
from tests.cli.tiny_project import make_data, make_model
from tests.distributed.launching import end_at_once

STEPS, STOPPED_AT = 9, 4
BATCH = 6
"""Of the 40 rows, the last batch of an epoch has 4: step 7."""
EXACT: dict[str, dict[str, Any]] = {
    # Draws nothing by row but the mask, which is drawn by position.
    "uegr": {
        "method": {
            "name": "uegr",
            "adaptive": {"kind": "uniform"},
            "epsilon": 0.2,
            "relative": False,
        }
    },
    "lp_ft": {"method": {"name": "lp_ft"}},
    "best": {"method": {"name": "plain"}, "train": {"keep": "best"}},
    "fsdp": {"method": {"name": "plain"}, "train": {"fsdp": True}},
}
"""Runs that one process can repeat."""
NOISY: dict[str, Any] = {"method": {"name": "dropout", "rate": 0.3}}
REFUSED: dict[str, dict[str, Any]] = {
    "indivisible": {"train": {"batch_size": 5}},
    "device": {"train": {"device": "cuda:1"}},
    "lora": {"train": {"fsdp": True, "lora": {"rank": 2}}},
    "teacher": {"method": {"name": "distil", "teacher": {"kind": "ensemble", "folders": ["tiny"]}}},
    "tasks": {"tasks": {"one": {}, "two": {}}},
    "unknown": {"method": {"name": "uerg"}},
}


def make_project(folder: Path) -> None:
    """Write the data, and a model without dropout."""
    make_data(folder / "data")
    config = make_model(folder / "tiny") / "config.json"
    plain = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    config.write_text(json.dumps({**json.loads(config.read_text("utf-8")), **plain}), "utf-8")


def settings_of(folder: Path, changes: dict[str, Any]) -> dict[str, Any]:
    """Return nested settings of a run in a project."""
    train = {
        "max_steps": STEPS,
        "batch_size": BATCH,
        "learning_rate": 1e-4,
        "warmup_ratio": 0.0,
        "logging_steps": 1,
        "save_steps": 100,
        "device": "cpu",
    }
    data = {"source": str(folder / "data" / "reviews"), "max_length": 32}
    tree: dict[str, Any] = {"model": str(folder / "tiny"), "method": {"name": "plain"}, **changes}
    tree["train"] = {**train, **changes.get("train", {})}
    tree["data"] = {**data, **changes.get("data", {})}
    return tree


class StopAt(Progress):
    """Send this process a signal while a step is reported."""

    def __init__(self, step: int) -> None:
        self.step = step

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        if done == self.step:
            signal.raise_signal(signal.SIGTERM)


def outcome(work: Callable[[], Any]) -> dict[str, Any]:
    """Do some work, and return what became of it."""
    begun = time.perf_counter()
    try:
        result = work()
    except (TemperError, Terminated) as error:
        return {"error": type(error).__name__, "message": str(error)}
    return {"status": result.record["status"], "seconds": time.perf_counter() - begun}


def main(folder: Path) -> None:
    """Do all runs, and write what became of them here."""
    torch.set_num_threads(1)
    os.chdir(folder)
    rank = int(os.environ["RANK"])
    report: dict[str, Any] = {}

    def run(case: str, changes: dict[str, Any], name: str = "", **more: Any) -> None:
        tree = settings_of(folder, changes)
        report[name or case] = outcome(
            lambda: temper.train(out=folder / "out" / case, config=tree, **more)
        )

    for case, changes in REFUSED.items():
        run(case, changes)
    run("disagree", {"seed": rank})
    run("missing", {"data": {"source": "nothing.csv"}} if rank else {})
    for case, changes in EXACT.items():
        run(case, changes)
    run("lp_ft", EXACT["lp_ft"], name="again")
    run("whole", NOISY)
    for case in ("parts", "left"):
        run(case, NOISY, name=f"{case}-stopped", progress=StopAt(STOPPED_AT))
    run("parts", NOISY)
    (folder / f"report_{rank}.json").write_text(json.dumps(report), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    end_at_once()
