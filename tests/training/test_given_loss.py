"""User-defined losses, label smoothing and compute_loss_func, and the heads that are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import (
    BertConfig,
    BertForMaskedLM,
)

from temper import AT, UEGR, RDrop, Stepper
from temper.errors import CompositionError, DataError, ModelError, SettingError
from temper.methods import configure
from tests.training.tiny_training import (
    Rows,
    collate,
    farthest,
    make_trainer,
    quiet_model,
    stock_trainer,
    tiny_model,
    training_logs,
    unbucketed_trainer,
    unequal,
    weights,
)

SINGLE = 1e-7
"""Transformers' label smoother sums in single precision for every dtype of the logits."""

# Clipping would hide a factor on the gradient.
UNCLIPPED: dict[str, Any] = {"optim": "sgd", "max_grad_norm": 0.0}
BALANCE = torch.tensor([0.5, 3.0], dtype=torch.float64)


def summed(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return 2 * cross_entropy(outputs.logits, labels, reduction="sum") / num_items_in_batch


def averaged(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    return 2 * cross_entropy(outputs["logits"], labels)


def balanced(outputs: Any, labels: Tensor, num_items_in_batch: Any = None) -> Tensor:
    """Torch's weighted mean, which is no mean of losses of rows."""
    return cross_entropy(outputs[0], labels, weight=BALANCE)


def ours(folder: Path, **changes: Any) -> Any:
    trainer = unbucketed_trainer(folder, model=quiet_model().double(), **UNCLIPPED, **changes)
    trainer.train()
    return trainer


def stock(folder: Path, **changes: Any) -> Any:
    trainer = stock_trainer(folder, model=quiet_model().double(), **UNCLIPPED, **changes)
    trainer.train()
    return trainer


def test_label_smoothing_trains_as_transformers_own_trainer(tmp_path: Path) -> None:
    smooth = ours(tmp_path, label_smoothing_factor=0.3)
    theirs = stock(tmp_path, label_smoothing_factor=0.3)
    assert farthest(weights(smooth.model), weights(theirs.model)) < SINGLE
    assert farthest(weights(smooth.model), weights(ours(tmp_path).model)) > 1e-4
    judged = [trainer.evaluate(Rows(6))["eval_loss"] for trainer in (smooth, theirs)]
    assert judged[0] == pytest.approx(judged[1], rel=1e-5)


@pytest.mark.parametrize("given", [summed, averaged, balanced])
def test_a_loss_function_trains_as_in_transformers_own_trainer(tmp_path: Path, given: Any) -> None:
    more = {"compute_loss_func": given}
    mine, theirs = ours(tmp_path, more=more), stock(tmp_path, more=more)
    assert farthest(weights(mine.model), weights(theirs.model)) < 1e-12
    assert farthest(weights(mine.model), weights(ours(tmp_path).model)) > 1e-4
    assert [log["loss"] for log in training_logs(mine)] == pytest.approx(
        [log["loss"] for log in theirs.state.log_history if "loss" in log], rel=1e-4
    )


@pytest.mark.parametrize("given", [summed, averaged])
@pytest.mark.parametrize("rows", [16, 22])
def test_a_loss_function_is_independent_of_accumulation(
    tmp_path: Path, given: Any, rows: int
) -> None:
    settings: dict[str, Any] = {"rows": rows, "train_sampling_strategy": "sequential"}
    more = {"compute_loss_func": given}
    whole = ours(tmp_path, more=more, per_device_train_batch_size=16, **settings)
    parts = ours(tmp_path, more=more, gradient_accumulation_steps=4, **settings)
    assert farthest(weights(whole.model), weights(parts.model)) < 1e-12


@pytest.mark.parametrize("method", [AT(), UEGR(), RDrop(), configure("pgd"), configure("freelb")])
def test_a_given_loss_function_replaces_every_task_loss(method: Any) -> None:
    batch = collate([Rows(4)[index] for index in range(4)])

    def doubled(logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * cross_entropy(logits, labels)

    def by_row(logits: Tensor, labels: Tensor) -> Tensor:
        return 2 * cross_entropy(logits, labels, reduction="none")

    plain = Stepper(tiny_model().train(), method, seed=1).backward(batch)
    for given in (doubled, by_row):
        logs = Stepper(tiny_model().train(), method, seed=1, task_loss=given).backward(batch)
        for name in {"loss/task", "loss/adversarial"} & set(plain):
            assert logs[name] == pytest.approx(2 * plain[name], rel=1e-4)


def test_the_attacked_losses_are_smoothed_as_a_composition_smooths_them(tmp_path: Path) -> None:
    composed = AT() + configure("label_smoothing", {"smoothing": 0.3})
    result = [
        make_trainer(tmp_path, more={"method": AT()}, label_smoothing_factor=0.3),
        make_trainer(tmp_path, more={"method": composed}),
        make_trainer(tmp_path, more={"method": AT()}),
    ]
    for trainer in result:
        trainer.train()
    first, second, plain = (training_logs(trainer)[0] for trainer in result)
    assert first["loss/adversarial"] == second["loss/adversarial"] != plain["loss/adversarial"]
    assert not unequal(weights(result[0].model), weights(result[1].model))


def test_two_ways_to_smooth_raise_an_error_before_training(tmp_path: Path) -> None:
    with pytest.raises(CompositionError, match="'label_smoothing' and 'label_smoothing_factor'"):
        make_trainer(tmp_path, more={"method": "label_smoothing"}, label_smoothing_factor=0.1)
    with pytest.raises(SettingError, match="smoothing` must be < 1"):
        make_trainer(tmp_path, label_smoothing_factor=1.0)


@pytest.mark.parametrize(
    ("more", "changes", "ignored"),
    [
        ({"class_weights": [1.0, 2.0]}, {}, "class_weights"),
        ({"method": "label_smoothing"}, {}, "label smoothing"),
        ({}, {"label_smoothing_factor": 0.1}, "label smoothing"),
    ],
)
def test_a_loss_function_with_settings_that_it_ignores_raises_an_error(
    tmp_path: Path, more: Any, changes: Any, ignored: str
) -> None:
    with pytest.raises(SettingError, match=f"would ignore {ignored}. Leave it out"):
        make_trainer(tmp_path, more={"compute_loss_func": summed, **more}, **changes)


@pytest.mark.parametrize(
    ("value", "came"),
    [
        (lambda logits, labels: 1.0, "float"),
        (lambda logits, labels: logits, r"\(4, 2\)"),
        (lambda logits, labels: logits[:2, 0], r"\(2,\)"),
    ],
)
def test_a_loss_function_that_returns_something_else_is_named(value: Any, came: str) -> None:
    stepper = Stepper(tiny_model(), task_loss=value)
    with pytest.raises(SettingError, match=rf"loss per row \[4\], got {came}"):
        stepper.backward(collate([Rows(4)[index] for index in range(4)]))


# Heads that no method trains


def small() -> BertConfig:
    return BertConfig(
        vocab_size=32,
        hidden_size=8,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=8,
    )


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda: BertForMaskedLM(small()), "BertForMaskedLM"),
    ],
)
def test_a_model_of_another_kind_raises_an_error_at_once(
    tmp_path: Path, make: Any, said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        make_trainer(tmp_path, model=make())
    with pytest.raises(ModelError, match=said):
        Stepper(make())


class ByToken(nn.Module):
    """A module of one's own with logits for every token."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(32, 2)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.words(input_ids)


@pytest.mark.parametrize("method", ["plain", "uegr"])
def test_logits_of_another_shape_raise_an_error_in_the_first_step(method: str) -> None:
    batch = collate([Rows(4)[index] for index in range(4)])
    with pytest.raises(ModelError, match=r"\[4, classes\], but ByToken returned \(4, \d, 2\)"):
        Stepper(ByToken(), method).backward(batch)


@pytest.mark.parametrize("labels", [torch.ones(4, 2), torch.ones(4, 5, dtype=torch.int64)])
@pytest.mark.parametrize("method", ["plain", "uegr", "freelb"])
def test_labels_of_another_shape_raise_an_error_in_the_first_step(
    labels: Tensor, method: str
) -> None:
    batch = {**collate([Rows(4)[index] for index in range(4)]), "labels": labels}
    before = weights(model := tiny_model())
    with pytest.raises(DataError, match=r"one label per row, \[4\]"):
        Stepper(model, method).backward(batch)
    assert not unequal(before, weights(model))


def test_labels_of_shape_n_1_are_accepted() -> None:
    batch = collate([Rows(4)[index] for index in range(4)])
    column = {**batch, "labels": batch["labels"].unsqueeze(-1)}
    first, second = (Stepper(quiet_model()).backward(each) for each in (batch, column))
    assert first == second
