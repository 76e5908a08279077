"""Checkpoints of several processes, and sharded weights (FSDP2), on the CPU with gloo.

One launch runs every training (tests/distributed/saved.py); the tests read its files.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from tests.contracts.architectures import tiny
from tests.distributed.launching import launch_script
from tests.distributed.saved import FEW, LONG, MOVED, RULES, long_runs, ruled_toys
from tests.distributed.worker import NOISY

Weights = dict[str, Tensor]


@dataclass(frozen=True)
class Launch:
    """What one process reached, what several did, and where they wrote."""

    folder: Path
    alone: Weights
    weights: list[Weights]


def launched(folder: Path, which: str, *, processes: int, limit: int) -> Launch:
    """Train in this process, then in several from what it has written."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("ACCELERATE_USE_CPU", "true")
        alone = long_runs(folder / "alone", processes=1)
    launch_script("saved.py", folder, which, processes=processes, limit=limit)
    result = [load_file(folder / f"weights_{rank}.safetensors") for rank in range(processes)]
    return Launch(folder, alone, result)


@pytest.fixture(scope="session")
def two(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run a few methods in two processes, once for all tests."""
    return launched(tmp_path_factory.mktemp("two"), "few", processes=2, limit=240)


@pytest.fixture(scope="session")
def three(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run what one process can repeat in three."""
    return launched(tmp_path_factory.mktemp("three"), "none", processes=3, limit=240)


@pytest.fixture(scope="session")
def every(tmp_path_factory: pytest.TempPathFactory) -> Launch:
    """Run every method in two processes."""
    return launched(tmp_path_factory.mktemp("every"), "all", processes=2, limit=1200)


@pytest.fixture(params=["two", pytest.param("three", marks=pytest.mark.slow)])
def several(request: pytest.FixtureRequest) -> Launch:
    """Return what two, and in the slow job three, processes reached."""
    launch: Launch = request.getfixturevalue(request.param)
    return launch


def of_case(weights: Weights, case: str) -> Weights:
    """Return the tensors under ``CASE/``."""
    return {
        name.removeprefix(f"{case}/"): value
        for name, value in weights.items()
        if name.startswith(f"{case}/")
    }


def check_close(result: Weights, expected: Weights) -> None:
    """Check that two trainings in float64 reached the same weights."""
    assert set(result) == set(expected) != set()
    for name, value in expected.items():
        torch.testing.assert_close(result[name], value, rtol=0, atol=1e-10)


def check_resumed(weights: Weights, case: str) -> None:
    """Check resuming to the bit, and shared-out weights against replicated ones."""
    runs = {
        how: [of_case(weights, f"saved/{case}/{how}/{when}") for when in ("whole", "resumed")]
        for how in ("replicated", "sharded")
    }
    for whole, resumed in runs.values():
        assert set(whole) == set(resumed) == set(tiny("bert").state_dict())
        assert [name for name in whole if not torch.equal(whole[name], resumed[name])] == []
    check_close(runs["sharded"][0], runs["replicated"][0])


@pytest.mark.parametrize("case", FEW)
def test_two_processes_resume_bit_for_bit_with_or_without_sharding(two: Launch, case: str) -> None:
    check_resumed(two.weights[0], case)


@pytest.mark.slow
@pytest.mark.parametrize("case", NOISY)
def test_every_method_resumes_to_the_bit_and_is_the_same_sharded(every: Launch, case: str) -> None:
    check_resumed(every.weights[0], case)


def test_all_processes_gather_the_same_weights(several: Launch) -> None:
    first, *others = several.weights
    for other in others:
        assert set(first) == set(other)
        assert [name for name in first if not torch.equal(first[name], other[name])] == []


@pytest.mark.parametrize("case", LONG)
def test_sharded_processes_train_to_the_weights_of_one_process(several: Launch, case: str) -> None:
    expected = of_case(several.alone, case)
    check_close(of_case(several.weights[0], f"long/{case}"), expected)
    start = tiny("bert", dropout=0.0).double().state_dict()
    assert max(float((expected[name] - start[name]).abs().max()) for name in start) > 1e-3


@pytest.mark.parametrize("case", MOVED)
def test_several_processes_go_on_from_a_checkpoint_of_one_and_one_from_theirs(
    several: Launch, case: str, tmp_path: Path
) -> None:
    expected = of_case(several.alone, case)
    check_close(of_case(several.weights[0], f"again/{case}"), expected)
    back = long_runs(tmp_path, processes=1, origin=several.folder / "long", cases=[case])
    check_close(of_case(back, case), expected)


@pytest.mark.parametrize("case", RULES)
def test_a_rule_on_sharded_rows_equals_the_rule_on_whole_weights(
    several: Launch, case: str
) -> None:
    expected = of_case(ruled_toys(sharded=False, cases=[case]), case)
    result = of_case(several.weights[0], f"rules/{case}")
    assert set(result) == set(expected) != set()
    for name, value in expected.items():
        # A logged value is a sum over all processes; no entry depends on its last bit.
        tolerance = 1e-5 if name.startswith("log/") else 0.0
        torch.testing.assert_close(result[name], value, rtol=tolerance, atol=0)
