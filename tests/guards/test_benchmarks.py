"""Calculations of the benchmarks."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from dev.benchmarks import account
from dev.benchmarks.ledger import Ledger
from dev.benchmarks.step_cost import summary
from dev.tables import between
from temper.models.network import Network

KILOBYTE = 256  # fp32 numbers


def test_the_ledger_counts_a_storage_once_and_notices_its_end() -> None:
    known = torch.ones(KILOBYTE)
    with Ledger([known]) as ledger:
        first = known * 2
        view = first.view(2, -1)[1]
        second = first + 1
        del first
        kept = view  # the view keeps the first storage alive
        third = second * 3
        del kept, view, second
        fourth = third * 4
        del third, fourth
    # Most live at once: first (through its view), second, third.
    assert ledger.peak() == 3 * 1024
    assert sum(size for _, size in ledger.events) == 0


def test_the_ledger_counts_allocations_of_backward_without_gradients() -> None:
    weight = torch.ones(KILOBYTE, requires_grad=True)
    with Ledger([weight]) as ledger:
        # exp keeps its result for backward (1 kB); the sum's gradient is expanded, not copied; the
        # product of both is the gradient itself (1 kB); the two scalars are 4 bytes each.
        weight.exp().sum().backward()
    whole = ledger.peak()
    assert 2 * 1024 <= whole <= 2 * 1024 + 64
    assert whole - ledger.peak(without=[weight.grad]) == 1024


def test_an_operation_in_place_allocates_nothing() -> None:
    values = torch.ones(KILOBYTE)
    with Ledger([values]) as ledger:
        values.mul_(2).add_(1)
    assert ledger.events == []


def test_a_ratio_is_between_medians_and_its_middle_half_between_rounds() -> None:
    samples = {"plain": [1.0, 2.0, 3.0, 4.0], "uegr": [3.0, 4.0, 9.0, 20.0]}
    result = summary(samples)["uegr"]
    # Medians 2.5 and 6.5; rounds 3, 2, 3, 5, whose quartiles (exclusive) are 2.25 and 4.5.
    assert result["over_plain"] == pytest.approx(2.6)
    assert result["middle_half"] == pytest.approx([2.25, 4.5])
    assert summary(samples)["plain"]["over_plain"] == 1.0


def test_the_time_limit_adds_passes_and_memory_traffic_of_a_method() -> None:
    # Worked by hand: passes of 60 ms take 9/3 as long, 10 ms of update, 1e7 numbers at 2 ns each.
    times = {"plain_passes": 0.06, "plain_update": 0.01, "seconds_a_number": 2e-9}
    assert account.limit(9.0, 1e7, **times) == pytest.approx(0.21 / 0.07)
    assert account.limit(3.0, 0, **times) == 1.0


def test_rules_have_their_declared_memory_traffic() -> None:
    model = account.counted_model()
    params = Network(model).parameters()
    whole = sum(parameter.numel() for parameter in model.parameters())
    blocks = sum(parameter.numel() for parameter in model.bert.encoder.parameters())
    assert account.moved("uegr", params) == {"selective": (3.0, blocks)}
    assert account.moved("ema", params) == {"final_average": (3.0, whole)}
    assert account.moved("adv_weight", params) == {"ascent": (7.0, whole)}
    assert account.moved("at", params) == {}


@pytest.mark.slow
def test_the_page_contains_the_declared_costs_of_the_methods() -> None:
    text = DOCUMENT.read_text(encoding="utf-8")
    assert between(text, account.OPENING, account.CLOSING, lambda _: account.markdown()) == text


ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"
