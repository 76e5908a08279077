"""The runs at the papers' size: the rule that chooses rates, and lines that a kill cut off."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from reproduction import base_size
from temper.evaluation.perspectives.registry import perspectives

TASKS = {"sst2": ["accuracy"], "cola": ["mcc"], "mrpc": ["accuracy", "f1"]}


def line(task: str, column: str, rate: float, score: float, seed: int = 0) -> dict[str, Any]:
    validation = [["task", "dev", "clean", name, score] for name in TASKS[task]]
    # A score on reported rows must not count, however high.
    reported = [["task", "dev", "clean", name, 1.0] for name in TASKS[task]]
    cell = {"task": task, "column": column, "seed": seed, "rate": rate}
    return {**cell, "validation": validation, "reported": reported}


def test_of_rates_within_three_tenths_of_a_point_the_lowest_is_chosen() -> None:
    means = {2e-5: 0.898, 4e-5: 0.900, 8e-5: 0.880}
    lines = [line(task, "plain", rate, mean) for task in TASKS for rate, mean in means.items()]
    lines += [line(task, "uegr", rate, mean) for task in TASKS for rate, mean in means.items()]
    # Another seed and another column of the same side decide nothing.
    lines += [line(task, "plain", 8e-5, 1.0, seed=1) for task in TASKS]
    lines += [line(task, "plain_2x", 8e-5, 1.0) for task in TASKS]

    chosen = {side: rate for side, (rate, _) in base_size.rates(lines).items()}

    assert chosen == {"plain": 2e-5, "attacked": 2e-5}


def test_a_rate_that_one_task_lacks_is_not_chosen() -> None:
    lines = [line(task, "plain", 2e-5, 0.80) for task in TASKS]
    lines += [line(task, "plain", 4e-5, 0.95) for task in ("sst2", "cola")]

    rate, means = base_size.rates(lines)["plain"]

    assert (rate, list(means)) == (2e-5, [2e-5])


def test_a_line_that_a_kill_cut_off_is_run_again(tmp_path: Path) -> None:
    whole = json.dumps(line("sst2", "plain", 2e-5, 0.9))
    (tmp_path / "runs.jsonl").write_text(f"{whole}\n{whole[:40]}", encoding="utf-8")

    lines = base_size.finished(tmp_path)

    assert [base_size.key_of(each) for each in lines] == [("sst2", "plain", 0, 2e-5)]


def test_a_cell_without_its_scores_under_shift_is_not_whole() -> None:
    cell = line("sst2", "plain", 2e-5, 0.9)
    calibration = ["calibration", "imdb", "clean", "ece_10", 0.1]

    assert base_size.is_whole(line("cola", "plain", 2e-5, 0.9))
    assert not base_size.is_whole({**cell, "suite": [calibration]})
    shift = ["shift", "imdb", "clean", "accuracy", 0.8]
    assert base_size.is_whole({**cell, "suite": [calibration, shift]})


def test_every_saved_score_is_a_score_of_its_perspective() -> None:
    for perspective, names in base_size.KEPT.items():
        known = {getattr(score, "name", score) for score in perspectives()[perspective].scores}
        assert set(names) <= known


def test_every_named_task_and_column_exists() -> None:
    protocol = base_size.PROTOCOL
    for stage in protocol["stage"]:
        assert set(stage["tasks"]) <= set(protocol["task"])
        assert set(stage["columns"]) <= set(protocol["column"])
