"""Cost: counts of passes, with a fake clock."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from temper import memory
from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.pairing import paired_differences
from temper.evaluation.perspectives import cost
from temper.evaluation.perspectives.cost import passes
from temper.evaluation.rows import to_blocks
from temper.evaluation.run import EvaluationData, evaluate, score
from temper.evaluation.settings import EvaluationSettings
from temper.memory import Gauge, gauge_of
from tests.evaluation.conftest import assert_same_scores, changed, make_examples

SETTINGS = EvaluationSettings(perspectives=("cost",), bootstrap=50)


@pytest.fixture(autouse=True)
def three_passes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cost, "REPETITIONS", 3)


@dataclass
class Clock:
    """A clock that work moves forward."""

    now: float = 0.0
    order: list[str] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now

    def work(self, name: str, times: Iterator[float]) -> None:
        self.order.append(name)
        self.now += next(times)


@dataclass
class Steady:
    """A function that takes a tenth of a second a call and a hundredth a row, of our own clock."""

    clock: Clock
    calls: list[int] = field(default_factory=list)

    def __call__(self, texts: list[Any]) -> Any:
        self.calls.append(len(texts))
        self.clock.now += 0.1 + 0.01 * len(texts)
        return np.tile([0.4, 0.6], (len(texts), 1))


def timed(monkeypatch: pytest.MonkeyPatch, peaks: list[int] | None) -> Steady:
    """Put our clock and our gauge in place of the machine's."""
    clock = Clock()
    left = iter(peaks or ())
    gauge = Gauge("memory_resident", start=lambda: None, peak=lambda: next(left))
    monkeypatch.setattr(cost, "passes", partial(passes, clock=clock))
    monkeypatch.setattr(cost, "gauge_of", lambda device: None if peaks is None else gauge)
    return Steady(clock)


def measured(function: Any, rows: int, settings: EvaluationSettings = SETTINGS) -> Any:
    predictor = CallablePredictor(function, gives="probabilities")
    return evaluate(predictor, EvaluationData(make_examples(rows=rows)), settings)


def values(evaluation: Any) -> dict[str, float]:
    return {entry["name"]: entry["value"] for entry in evaluation.scores}


def test_timed_passes_alternate_after_a_warm_up() -> None:
    clock = Clock()
    slow, fast = iter([9.0, 1.0, 3.0]), iter([9.0, 2.0, 4.0])
    result = passes(
        {"a": lambda: clock.work("a", slow), "b": lambda: clock.work("b", fast)},
        repetitions=2,
        clock=clock,
    )
    assert clock.order == ["a", "b", "a", "b", "a", "b"]
    assert result["a"].tolist() == [1.0, 3.0]
    assert result["b"].tolist() == [2.0, 4.0]


def test_throughput_is_timed_on_batches_and_latency_on_single_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = timed(monkeypatch, [2**20, 3 * 2**20, 2**21])
    monkeypatch.setattr(cost, "ROWS", 50)
    result = values(measured(steady, 60, changed(SETTINGS, {"cost": {"batch": 20}})))
    # 50 rows in three calls take .3 + .5 s; a row alone .11 s. The peaks' middle is 2 MiB.
    assert result["rows_per_second"] == pytest.approx(50 / 0.8)
    assert result["seconds_per_row"] == pytest.approx(0.11)
    assert result["memory_mib"] == pytest.approx(2.0)
    # Functions have no tokens.
    assert "tokens_per_second" not in result
    # The dev rows are predicted once for the task; then four passes of three batches and 32 rows.
    one_round = [20, 20, 10, *[1] * 32]
    assert steady.calls[-4 * len(one_round) :] == one_round * 4


def test_every_timed_pass_is_stored_and_scores_follow_from_them(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steady = timed(monkeypatch, [7, 5, 6])
    result = measured(steady, 10)
    blocks = [block for block in to_blocks(result.rows) if block.condition.perspective == "cost"]
    names = [block.condition.name for block in blocks]
    assert names == ["rows_per_second", "seconds_per_row", "memory_resident"]
    assert [len(block) for block in blocks] == [3, 3, 3]
    assert blocks[2].value is not None
    assert (blocks[2].value * 2**20).tolist() == [7.0, 5.0, 6.0]
    assert_same_scores(score(result.rows, "accuracy", settings=SETTINGS), result.scores)
    by_name = {entry["name"]: entry for entry in result.scores}
    assert by_name["memory_mib"]["condition"] == "memory_resident"
    assert by_name["memory_mib"]["n"] == 3
    assert (by_name["memory_mib"]["low"], by_name["memory_mib"]["high"]) == pytest.approx(
        (5 / 2**20, 7 / 2**20)
    )
    directions = {name: entry["higher_is_better"] for name, entry in by_name.items()}
    assert directions == {
        "rows_per_second": True,
        "seconds_per_row": False,
        "memory_mib": False,
    }


def test_passes_of_two_models_are_not_paired(monkeypatch: pytest.MonkeyPatch) -> None:
    both = SETTINGS.model_copy(update={"perspectives": ("task", "cost")})
    result = [measured(timed(monkeypatch, [7, 5, 6]), 10, both).rows for _ in range(2)]
    compared = paired_differences(
        *result, "accuracy", chosen=both.perspectives, seed=0, resamples=9
    )
    assert {score["perspective"] for score in compared} == {"task"}


def test_an_unsupported_memory_measurement_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    steady = timed(monkeypatch, None)
    result = measured(steady, 10)
    assert "memory_mib" not in values(result)
    assert any("without memory" in notice for notice in result.notices)


def test_tokens_are_counted_without_padding(
    monkeypatch: pytest.MonkeyPatch, model: Any, tokenizer: Any
) -> None:
    clock = Clock()
    monkeypatch.setattr(cost, "gauge_of", lambda device: None)
    monkeypatch.setattr(cost, "passes", partial(passes, clock=clock))
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    predict = predictor.predict

    def two_seconds(examples: Examples, *, batch_size: int | None = None) -> Any:
        clock.now += 2.0
        return predict(examples, batch_size=batch_size)

    monkeypatch.setattr(predictor, "predict", two_seconds)
    # [CLS], the words and [SEP].
    dev = Examples("dev", ["word1 word2 word3", "word4"], labels=[0, 1], kind="classification")
    result = values(evaluate(predictor, EvaluationData(dev), SETTINGS))
    assert result["tokens_per_second"] == pytest.approx((5 + 3) / 2.0)
    assert result["rows_per_second"] == pytest.approx(1.0)


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux forgets a peak")
def test_the_memory_peak_excludes_earlier_passes() -> None:
    gauge = gauge_of(None)
    assert gauge is not None
    if gauge.name != "memory_resident":
        pytest.skip("this system does not let a process forget its peak")
    size = 256 * 2**20
    gauge.start()
    low = gauge.peak()
    kept = np.ones(size // 8)
    high = gauge.peak()
    assert high - low > 0.9 * size
    del kept
    gauge.start()
    assert gauge.peak() < high - 0.5 * size


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_on_a_gpu_the_peak_is_that_of_gpu_memory(model: Any, tokenizer: Any) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64, device="cuda")
    gauge = gauge_of(predictor.device)
    assert gauge is not None
    assert gauge.name == "memory_cuda"
    gauge.start()
    predictor.predict(make_examples())
    weights = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    assert weights < gauge.peak() < weights + 2**30


def test_free_memory_is_the_minimum_of_system_and_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    system, group = tmp_path / "meminfo", tmp_path / "cgroup"
    monkeypatch.setattr(memory, "_SYSTEM", system)
    monkeypatch.setattr(memory, "_GROUP", group)
    assert memory.free_memory() is None
    system.write_text("MemTotal: 8 kB\nMemAvailable:   5 kB\n", encoding="ascii")
    assert memory.free_memory() == 5 * 1024
    group.mkdir()
    (group / "memory.current").write_text("4000\n", encoding="ascii")
    (group / "memory.stat").write_text("anon 1\ninactive_file 500\n", encoding="ascii")
    (group / "memory.max").write_text("max\n", encoding="ascii")
    assert memory.free_memory() == 5 * 1024
    (group / "memory.max").write_text("6000\n", encoding="ascii")
    assert memory.free_memory() == 6000 - 4000 + 500
