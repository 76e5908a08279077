from __future__ import annotations

import json

import pytest

from temper.methods import names
from tests.methods.trajectories import BOUND, NUDGE, RECORDED, STEPS, losses_of

KNOWN: dict[str, list[float]] = json.loads(RECORDED.read_text(encoding="utf-8"))


def test_every_method_has_a_recorded_trajectory() -> None:
    assert set(KNOWN) == set(names())
    assert all(len(losses) == STEPS for losses in KNOWN.values())
    # These are plain fine-tuning until they end.
    assert KNOWN["wise_ft"] == KNOWN["ema"] == KNOWN["vanilla"]
    assert len({tuple(losses) for losses in KNOWN.values()}) == len(KNOWN) - 2


@pytest.mark.parametrize("name", KNOWN)
def test_twenty_steps_give_the_recorded_losses(name: str) -> None:
    assert losses_of(name) == pytest.approx(KNOWN[name], abs=BOUND)


# The longest graph, the deepest mask, the most ascents, the steepest penalty.
@pytest.mark.parametrize("name", ["uegr", "roast", "pgd", "cross_holder"])
def test_the_bound_leaves_room_for_more_than_rounding(name: str) -> None:
    assert losses_of(name, nudge=NUDGE) == pytest.approx(KNOWN[name], abs=BOUND)
