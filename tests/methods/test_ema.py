"""Weight averaging against its recursion in float64."""

from __future__ import annotations

import logging
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments

from temper import RobustTrainer, Stepper
from temper.backward.averaging import FinalAverage, RunningAverage
from temper.backward.rule import chain
from temper.errors import CompositionError, SettingError
from temper.methods import configure
from temper.methods.ema import EMA
from temper.models.network import Network, Parameters
from temper.training.config import RunConfig
from temper.types import Step
from tests.methods.tiny import rows, tiny_bert, tiny_network
from tests.methods.weights import copies, same

Weights = dict[str, np.ndarray]


def course(config: EMA, *, steps: int, total: int = 0) -> tuple[Stepper, list[Weights]]:
    """Train and return the weights after each step."""
    stepper = Stepper(tiny_network(), config, seed=5, total=total)
    optimizer = torch.optim.SGD(stepper.params.tensors.values(), lr=0.3)
    seen = []
    for step in range(steps):
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=step))
        stepper.step(optimizer)
        seen.append({n: v.numpy() for n, v in copies(stepper.network.model).items()})
    return stepper, seen


@pytest.mark.parametrize(
    ("config", "total"),
    [
        (EMA(decay=0.8, warm_up=0.0), 0),
        (EMA(decay=0.8, warm_up=1.0), 0),
        (EMA(), 0),
        (EMA(decay=0.5, warm_up=9.0, begin=0.3), 7),
        (EMA.preset("mean"), 7),
    ],
)
def test_the_kept_weights_follow_the_recursion(config: EMA, total: int) -> None:
    stepper, seen = course(config, steps=7, total=total)
    last = copies(stepper.network.model)
    stepper.finish()
    for name, kept in copies(stepper.network.model).items():
        # Step 1 ends a seventh of the run, and so on: what ends after ``begin`` counts.
        late = [weights[name] for step, weights in enumerate(seen, 1) if step / 7 > config.begin]
        expected = late[0]
        for count, value in enumerate(late[1:], 1):
            ratio = min(config.decay, count / (count + config.warm_up))
            expected = ratio * expected + (1 - ratio) * value
        np.testing.assert_allclose(kept.numpy(), expected, rtol=1e-12, atol=1e-14)
        assert not torch.equal(kept, last[name])


def test_the_mean_is_the_mean_of_the_last_quarter() -> None:
    stepper, seen = course(EMA.preset("mean"), steps=8, total=8)
    stepper.finish()
    for name, kept in copies(stepper.network.model).items():
        np.testing.assert_allclose(
            kept.numpy(), (seen[6][name] + seen[7][name]) / 2, rtol=1e-12, atol=1e-14
        )


@given(st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=12), st.floats(1.0, 20.0))
def test_an_average_without_a_bound_is_the_polynomial_decay_average(
    values: list[float], warm_up: float
) -> None:
    """Shamir and Zhang: the weight of w_t is (eta + 1) / (t + eta), with eta = warm_up - 1."""
    weight = torch.nn.Parameter(torch.zeros(1, dtype=torch.float64))
    params = Parameters({"w": weight}, frozenset())
    rule = FinalAverage(decay=1.0, warm_up=warm_up)
    state = rule.init(params)
    expected, eta = 0.0, warm_up - 1
    for t, value in enumerate(values, 1):
        with torch.no_grad():
            weight.fill_(value)
            rule.after_step(params, state, Step(t - 1))
        expected = (1 - (eta + 1) / (t + eta)) * expected + (eta + 1) / (t + eta) * value
    with torch.no_grad():
        rule.on_train_end(params, state)
    assert weight.item() == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_training_itself_is_plain_and_a_skipped_step_does_not_count() -> None:
    stepper, seen = course(EMA(), steps=3)
    plain, expected = course(EMA(**EMA.OFF), steps=3)
    for ours, theirs in zip(seen, expected, strict=True):
        assert all(np.array_equal(ours[name], theirs[name]) for name in ours)
    kept = stepper.state["final_average"]["weights"]
    before = {name: value.clone() for name, value in kept.items()}
    stepper.rule.after_step(stepper.params, stepper.state, Step(3, skipped=True))
    assert same(before, kept)
    assert plain.state == {}


def test_weights_in_half_precision_are_averaged_in_single() -> None:
    weight = torch.nn.Parameter(torch.ones(3, dtype=torch.bfloat16))
    params = Parameters({"w": weight}, frozenset())
    rule = RunningAverage(decay=0.999, warm_up=0.0)
    state = rule.init(params)
    with torch.no_grad():
        rule.after_step(params, state, Step(0))
        weight.fill_(2.0)
        rule.after_step(params, state, Step(1))
    # 1.001 is 1 in bf16.
    assert state["weights"]["w"].tolist() == pytest.approx([1.001] * 3)


def test_the_average_is_taken_after_all_other_rules() -> None:
    settings = {"mixout": {"probability": 0.5}}
    kept = []
    for name in ("ema + mixout", "mixout + ema"):
        stepper = Stepper(tiny_network(), configure(name, settings), seed=5)
        optimizer = torch.optim.SGD(stepper.params.tensors.values(), lr=0.3)
        stepper.backward(rows(5, 3))
        stepper.step(optimizer)
        last = copies(stepper.network.model)
        stepper.finish()
        # The average of one step is its weights, those that mixout has put back among them.
        assert same(copies(stepper.network.model), last)
        kept.append(last)
    assert same(*kept)


def test_a_run_without_a_counted_step_keeps_its_weights() -> None:
    stepper = Stepper(tiny_network(), EMA())
    before = copies(stepper.network.model)
    stepper.finish()
    assert same(before, copies(stepper.network.model))


def test_batch_normalization_is_warned_of(caplog: pytest.LogCaptureFixture) -> None:
    model = torch.nn.Sequential(torch.nn.Embedding(5, 4), torch.nn.BatchNorm1d(4))
    with caplog.at_level(logging.WARNING, logger="temper"):
        RunningAverage().init(Network(model).parameters())
        RunningAverage().init(Network(tiny_network()).parameters())
    assert caplog.text.count("whose running statistics") == 1


def test_an_average_that_never_moves_raises_an_error() -> None:
    with pytest.raises(SettingError, match="decay=1 with warm_up=0 would keep the weights"):
        EMA(decay=1.0, warm_up=0.0)
    with pytest.raises(SettingError, match="'final_average' needs the number of"):
        Stepper(tiny_network(), EMA(begin=0.5)).backward(rows(5, 3))
    with pytest.raises(CompositionError, match="'ema' and 'wise_ft' both use the on_train_end"):
        configure("ema + wise_ft")


def test_keeping_the_best_epoch_with_an_average_raises_an_error(tmp_path: Path) -> None:
    tree = {"model": "minilm", "data": {"source": "demo"}, "method": {"name": "ema"}}
    with pytest.raises(SettingError, match=r"`train.keep` 'best' chooses the epoch.*'ema'"):
        RunConfig.of({**tree, "train": {"keep": "best"}})
    arguments = TrainingArguments(
        str(tmp_path),
        load_best_model_at_end=True,
        eval_strategy="epoch",
        save_strategy="epoch",
        report_to=[],
        use_cpu=True,
    )
    with pytest.raises(SettingError, match="`load_best_model_at_end` chooses the epoch"):
        RobustTrainer(tiny_bert(), arguments, method="ema", eval_dataset=[])


def test_an_average_that_is_not_kept_does_not_change_the_weights() -> None:
    weight = torch.nn.Parameter(torch.zeros(1))
    params, rule = Parameters({"w": weight}, frozenset()), chain(RunningAverage())
    state = rule.init(params)
    with torch.no_grad():
        for number in range(2):
            weight.fill_(float(number))
            rule.after_step(params, state, Step(number))
        rule.on_train_end(params, state)
    assert weight.item() == 1.0 > state["final_average"]["weights"]["w"].item()
