"""What a step costs over the reference, worked by hand."""

from __future__ import annotations

from temper.study.schedule import step_cost


def test_the_ratio_is_the_median_over_the_seeds_that_both_have() -> None:
    seconds = {"vanilla": {0: 1.0, 1: 2.0, 2: 4.0}, "uegr": {0: 3.0, 1: 4.0, 3: 50.0}}
    cost = step_cost(seconds, reference="vanilla")
    assert cost["vanilla"] == {"step_seconds": 2.0, "over_reference": 1.0}
    assert cost["uegr"] == {"step_seconds": 4.0, "over_reference": 2.5}


def test_without_a_common_seed_there_is_no_ratio() -> None:
    cost = step_cost({"vanilla": {}, "uegr": {0: 3.0}}, reference="vanilla")
    assert cost == {"uegr": {"step_seconds": 3.0}}
