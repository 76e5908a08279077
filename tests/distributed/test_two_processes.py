"""Two gloo processes on the CPU: weights equal those of one process, and no process waits forever.

One launch runs every training (tests/distributed/worker.py); the tests read its files.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from temper.backward.hooks import Accumulates, RecomputesGradient
from temper.backward.rule import implements
from temper.methods import build
from temper.methods.soup import members_of
from temper.training.config import wants_unlabeled
from tests.distributed.launching import launch_script
from tests.distributed.worker import EXACT, NOISY, STEPPER_CASES, exact_runs, start, stepper_run


@dataclass(frozen=True)
class Launch:
    """What each of the two processes wrote."""

    weights: list[dict[str, Tensor]]
    reports: list[dict[str, Any]]


@pytest.fixture(scope="session")
def launch(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run the worker in two processes, once for all tests."""
    folder = tmp_path_factory.mktemp("distributed")
    launch_script("worker.py", folder)
    return Launch(
        [load_file(folder / f"weights_{rank}.safetensors") for rank in range(2)],
        [json.loads((folder / f"report_{rank}.json").read_text("utf-8")) for rank in range(2)],
    )


@pytest.fixture(scope="session")
def alone(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Tensor], dict[str, float]]:
    """Run the same members in this process, on the whole batch."""
    return exact_runs(tmp_path_factory.mktemp("alone"))


def of_case(weights: dict[str, Tensor], case: str) -> dict[str, Tensor]:
    """Return one training's weights."""
    return {
        name.removeprefix(f"{case}/"): value
        for name, value in weights.items()
        if name.startswith(f"{case}/")
    }


@pytest.mark.parametrize("case", [*NOISY, *EXACT, *STEPPER_CASES])
def test_both_processes_end_with_the_same_weights_to_the_bit(launch: Launch, case: str) -> None:
    first, second = (of_case(weights, case) for weights in launch.weights)
    begin = start(tagged=case.startswith("tagged")).state_dict()
    assert set(first) == set(second) == set(begin)
    assert [name for name in first if not torch.equal(first[name], second[name])] == []
    moved = [name for name in first if not torch.equal(first[name], begin[name])]
    assert len(moved) > len(begin) * 0.8


@pytest.mark.parametrize("case", NOISY)
def test_the_logged_parts_add_up_to_the_loss_of_both_processes(launch: Launch, case: str) -> None:
    for report in launch.reports:
        losses = report["measured"][case]["losses"]
        assert losses
        for whole, parts in losses:
            assert parts == pytest.approx(whole, rel=1e-5)


@pytest.mark.parametrize("case", ["jacobian", "jachess", "jachess_unlabeled"])
def test_measurements_of_the_network_are_equal_in_both_processes(launch: Launch, case: str) -> None:
    """Gradients are averaged, so equal weights do not show that the factors are equal."""
    first, second = (report["measured"][case] for report in launch.reports)
    assert first == second
    assert len(first["ratios"]) > 1
    assert first["eta"] > 0
    assert bool(first["weights"]) == case.startswith("jachess")


@pytest.mark.parametrize("case", EXACT)
def test_two_processes_reach_the_weights_of_one_on_the_whole_batch(
    launch: Launch, alone: tuple[dict[str, Tensor], dict[str, float]], case: str
) -> None:
    weights, losses = alone
    ours, theirs = of_case(launch.weights[0], case), of_case(weights, case)
    begin = start(tagged=case.startswith("tagged")).state_dict()
    for name, value in theirs.items():
        torch.testing.assert_close(ours[name], value, rtol=0, atol=1e-5)
    way = max(float((theirs[name] - begin[name]).abs().max()) for name in begin)
    assert way > 1e-3
    assert launch.reports[0]["losses"][case] == pytest.approx(losses[case], rel=1e-4)


@pytest.mark.parametrize("case", ["stepper-plain", "stepper-uegr"])
def test_the_stepper_in_two_processes_reaches_the_weights_of_one(launch: Launch, case: str) -> None:
    method, dropout = STEPPER_CASES[case]
    expected = stepper_run(method, dropout=dropout).state_dict()
    for name, value in of_case(launch.weights[0], case).items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5)


@pytest.mark.parametrize("case", NOISY)
def test_gradients_are_exchanged_once_a_step_however_many_passes_and_micro_batches(
    launch: Launch, case: str
) -> None:
    """20 rows, 4 a micro-batch, 2 micro-batches a step: 3 steps an epoch, and a phase's 3 more."""
    method = build(NOISY[case])
    rule = method.rule
    steps = members_of(rule) * (6 if case == "uegr-epoch" or wants_unlabeled(method) else 3)
    # A second gradient is exchanged like the first; a pre-pass exchanges those of its 5 batches.
    recomputed = implements(rule, RecomputesGradient)
    reductions = steps * (2 if recomputed else 1) + (5 if implements(rule, Accumulates) else 0)
    for report in launch.reports:
        assert report["counts"][case] == [reductions, steps]


def test_the_platform_reduces_gradients_whose_forward_was_outside_no_sync(launch: Launch) -> None:
    """Trap 16: ``no_sync`` must cover the forward, not the backward alone."""
    for report in launch.reports:
        assert report["forward_outside_no_sync"] == [True, False]


@pytest.mark.parametrize("case", ["nan", "nan-again"])
def test_a_loss_that_is_not_finite_in_one_process_stops_both(launch: Launch, case: str) -> None:
    healthy, broken = (report["failures"][case] for report in launch.reports)
    assert "A loss on process 1 is not finite at step 0" in healthy
    assert "The loss term 'task' is not finite at step 0, rows [3]" in broken


def test_the_stepper_stops_both_processes_and_wants_to_know_how_many_there_are(
    launch: Launch,
) -> None:
    healthy, broken = (report["failures"]["stepper"] for report in launch.reports)
    assert "A loss on process 1 is not finite at step 0" in healthy
    assert "The loss term 'task' is not finite at step 0, indices in the batch [0]" in broken
    for report in launch.reports:
        assert "ranks" in report["failures"]["alone"]


def test_a_signal_to_one_process_stops_both_after_one_step_with_a_checkpoint(
    launch: Launch,
) -> None:
    # Its second step had ended, so that both know in the third.
    assert [report["stopped"] for report in launch.reports] == [["checkpoint-3"]] * 2
