"""Every registered perspective keeps the contract, and the check names one that does not."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from temper.display.views import View
from temper.evaluation import perspectives
from temper.evaluation.perspectives import Perspective, perspective
from temper.testing.perspectives import check_perspective

SMALL: dict[str, dict[str, Any]] = {
    "embedding_attack": {"pgd": {"steps": 2}, "radii": [0.25]},
    "representation": {"batch": 8},
    "smoothness": {"rows": 6, "projections": 1},
    "text_attack": {"rows": 6, "max_queries": 20},
}


@pytest.mark.parametrize("name", perspectives.names())
def test_every_perspective_passes_the_contract_checks(name: str) -> None:
    check_perspective(perspective(name), settings=SMALL.get(name))


def test_rows_that_depend_on_their_position_are_detected() -> None:
    kept = perspective("embedding_noise")

    def by_place(measurement: Any) -> Any:
        for block in kept.rows(measurement):
            values = np.arange(len(block), dtype=np.float64)
            yield replace(block, measured={**block.measured, "place": values})

    with pytest.raises(AssertionError, match="`place` of noise on dev .*batch size"):
        check_perspective(replace(kept, rows=by_place))


def test_a_model_that_is_changed_is_found() -> None:
    kept = perspective("shift")

    def careless(measurement: Any) -> Any:
        measurement.predictor.model.classifier.weight.data.add_(1.0)
        yield from kept.rows(measurement)

    with pytest.raises(AssertionError, match="Measuring changes the weights"):
        check_perspective(replace(kept, rows=careless))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"scores": ("accuracy",)}, "The score 'macro_f1' is not in its `scores`"),
        ({"leads": "macro_f2"}, "score that leads, 'macro_f2'"),
        ({"words": lambda key: "a score"}, "have the same label: 'a score'"),
        ({"score": lambda scoring: []}, "score under its own name"),
        ({"summary": " "}, "`summary` says nothing"),
    ],
)
def test_an_incomplete_perspective_is_detected(change: dict[str, Any], said: str) -> None:
    with pytest.raises(AssertionError, match=said):
        check_perspective(replace(perspective("shift"), **change))


def test_a_checked_perspective_is_not_registered_by_it() -> None:
    mine = replace(perspective("shift"), name="mine", rows=lambda measurement: ())
    with pytest.raises(AssertionError, match="mine breaks the contract"):
        check_perspective(mine)
    assert "mine" not in perspectives.names()


def test_two_perspectives_cannot_have_one_name() -> None:
    with pytest.raises(ValueError, match="'shift' is registered already"):
        perspectives.register(replace(perspective("shift"), title="Mine"))


def test_a_perspective_is_a_view() -> None:
    assert issubclass(Perspective, View)
