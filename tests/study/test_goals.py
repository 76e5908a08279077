"""The parts of a goal: 1 is perfect, for every leading score."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from temper.study.goals import part_scores


@pytest.mark.parametrize(
    ("metric", "value", "part"),
    [
        ("accuracy", 0.75, 0.75),
        ("completion_loss", 0.0, 1.0),
        ("completion_loss", 2.0, math.exp(-2)),
    ],
)
def test_the_accuracy_of_a_goal_is_higher_for_better_models(
    tmp_path: Path, metric: str, value: float, part: float
) -> None:
    entry = {"perspective": "task", "name": metric, "condition": "clean", "value": value}
    content = {"task": {"metric": metric}, "scores": [entry]}
    (tmp_path / "scores.json").write_text(json.dumps(content), encoding="utf-8")
    assert part_scores(tmp_path, {"accuracy": 1.0}) == {"accuracy": pytest.approx(part)}
