from __future__ import annotations

import json

import pytest

from temper.methods import names
from tests.methods.trajectories import BOUND, NUDGE, RECORDED, STEPS, losses_of

# Half of what is recorded finds the same faults in half the time.
FIRST = 10
KNOWN: dict[str, list[float]] = json.loads(RECORDED.read_text(encoding="utf-8"))


def test_every_method_has_a_recorded_trajectory() -> None:
    assert set(KNOWN) == set(names())
    assert all(len(losses) == STEPS for losses in KNOWN.values())
    # These are plain fine-tuning until they end.
    assert KNOWN["wise_ft"] == KNOWN["ema"] == KNOWN["plain"]
    assert len({tuple(losses) for losses in KNOWN.values()}) == len(KNOWN) - 2


@pytest.mark.parametrize("name", KNOWN)
def test_the_first_steps_give_the_recorded_losses(name: str) -> None:
    assert losses_of(name, steps=FIRST) == pytest.approx(KNOWN[name][:FIRST], abs=BOUND)


def test_the_tolerance_of_trajectories_exceeds_rounding_errors() -> None:
    name = "cross_holder"  # the steepest penalty
    assert losses_of(name, nudge=NUDGE) == pytest.approx(KNOWN[name], abs=BOUND)
