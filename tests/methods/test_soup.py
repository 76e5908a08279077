"""Model soup: the mean of members trained separately from the same initial weights."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import TrainingArguments

from temper import RobustTrainer, Stepper
from temper.errors import CompositionError, SettingError
from temper.methods import configure
from temper.methods.soup import Soup, SoupConfig
from tests.methods.tiny import rows, tiny_bert, tiny_network
from tests.methods.weights import copies

STEPS = 7


@given(st.integers(1, 9), st.integers(9, 500))
def test_steps_are_divided_evenly_between_members(members: int, total: int) -> None:
    starts = [0, *Soup(members).first_steps(total), total]
    lengths = [after - before for before, after in pairwise(starts)]
    assert len(lengths) == members
    assert max(lengths) - min(lengths) <= 1


def test_the_kept_weights_are_the_mean_of_separately_trained_members() -> None:
    """Each from the same weights, with a new AdamW, on the rows that the run has at its steps."""
    starts = [*Soup(3).first_steps(STEPS), STEPS]
    alone, first = [], 0  # without dropout, whose draws follow the number of the step
    for after in starts:
        plain = Stepper(tiny_network(rate=0.0), "plain")
        optimizer = torch.optim.AdamW(plain.params.tensors.values(), lr=0.05, weight_decay=0.1)
        for step in range(first, after):
            optimizer.zero_grad()
            plain.backward(rows(5, 3, seed=step))
            plain.step(optimizer)
        alone.append(copies(plain.network.model))
        first = after
    stepper = Stepper(tiny_network(rate=0.0), SoupConfig(members=3), total=STEPS)
    optimizer = torch.optim.AdamW(stepper.params.tensors.values(), lr=0.05, weight_decay=0.1)
    for step in range(STEPS):
        optimizer.zero_grad()
        stepper.backward(rows(5, 3, seed=step))
        stepper.step(optimizer)
    last = copies(stepper.network.model)
    stepper.finish()
    for name, kept in copies(stepper.network.model).items():
        expected = sum(weights[name] for weights in alone) / 3
        torch.testing.assert_close(kept, expected, rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(last[name], alone[-1][name], rtol=1e-12, atol=1e-14)
        assert not torch.equal(kept, last[name])


TEXTS = [{"input_ids": [2, 3 + number], "labels": number % 2} for number in range(6)]


def _trainer(
    folder: Path, *, arguments: dict[str, Any] | None = None, **settings: Any
) -> RobustTrainer:
    given = TrainingArguments(
        output_dir=str(folder),
        max_steps=3,
        per_device_train_batch_size=2,
        learning_rate=0.5,
        warmup_steps=1,
        logging_steps=1,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **(arguments or {}),
    )
    settings.setdefault("model", tiny_bert())
    return RobustTrainer(args=given, method=SoupConfig(members=3), train_dataset=TEXTS, **settings)


def test_each_training_has_the_whole_course_of_the_learning_rate(tmp_path: Path) -> None:
    trainer = _trainer(tmp_path)
    trainer.train()
    rates = [line["learning_rate"] for line in trainer.state.log_history if "loss" in line]
    # One step of warm-up from 0, then down to 0 at the end of three steps.
    assert rates == pytest.approx([0.0, 0.5, 0.25] * 3)


def test_a_user_defined_scheduler_raises_an_error(tmp_path: Path) -> None:
    model = tiny_bert()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1.0)
    trainer = _trainer(tmp_path, model=model, optimizers=(optimizer, scheduler))
    with pytest.raises(SettingError, match=r"'soup' .* one was given"):
        trainer.train()


def test_a_scheduler_that_cannot_restart_raises_an_error(tmp_path: Path) -> None:
    plateau = {"eval_strategy": "steps", "lr_scheduler_type": "reduce_lr_on_plateau"}
    trainer = _trainer(tmp_path, arguments=plateau, eval_dataset=TEXTS)
    with pytest.raises(SettingError, match=r"'soup' .* ReduceLROnPlateau cannot"):
        trainer.train()


@pytest.mark.parametrize(("total", "times"), [(2, 1), (3, 0), (4, 0)])
def test_a_run_of_too_few_steps_warns_once(
    total: int, times: int, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(rate=0.0), SoupConfig(members=3), total=total)
    for number in range(2):
        stepper.backward(rows(5, 3, seed=0))
        stepper.discard()
        stepper.number = number + 1
    assert caplog.text.count("fewer than its 3 members") == times
    assert Soup(3).first_steps(2) == [1]


@pytest.mark.parametrize("other", ["ema", "lp_ft", "wise_ft"])
def test_soup_conflicts_with_other_averages_and_phases(other: str) -> None:
    with pytest.raises(CompositionError, match="both use"):
        configure(f"soup + {other}")
