"""Long texts in windows: pooled logits, losses and gradients against the definition, in float64."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.errors import ModelError
from temper.heads import HEADS
from temper.methods import configure
from temper.models.windows import set_windows, windows_of
from temper.types import POOLS, Pool, Windows
from tests.heads.models import CLASSES, LABELS, Inputs, draws, windowed
from tests.heads.test_methods import DETERMINISTIC, SPLIT

OUTPUTS = {"regression": 1, "multi_label": LABELS}
HEAD: dict[str, dict[str, Any]] = {
    name: {"num_labels": OUTPUTS.get(name, CLASSES), "problem_type": head.problem_type}
    for name, head in HEADS.items()
    if not head.not_in_windows
}
NUMBERS = (2, 3, 1, 2)


def in_float64(pool: Pool, head: str, *numbers: int) -> tuple[nn.Module, Inputs]:
    torch.manual_seed(1)
    model, inputs = windowed(*numbers, pool=pool, **HEAD[head])
    with torch.no_grad():
        for tensor in model.parameters():
            if tensor.dim() > 1:
                tensor.mul_(4)
    if head == "regression":
        inputs["labels"] = torch.randn(len(numbers), generator=draws(), dtype=torch.float64)
    elif head == "multi_label":
        labels = torch.randint(2, (len(numbers), LABELS), generator=draws())
        inputs["labels"] = labels.double()
    return model.double().eval(), inputs


def by_definition(model: nn.Module, inputs: Inputs, pool: Pool) -> list[Tensor]:
    """Return each text's logits [C]: its windows run one by one, without padding, then pooled."""
    result = []
    for ids, mask in zip(inputs["input_ids"], inputs["attention_mask"], strict=True):
        windows = [
            model(input_ids=one[real.bool()].unsqueeze(0)).logits[0]
            for one, real in zip(ids, mask, strict=True)
            if real.any()
        ]
        if pool == "mean":
            result.append(sum(windows) / len(windows))
        else:
            result.append(torch.stack([max(column) for column in zip(*windows, strict=True)]))
    return result


def loss_of(head: str, logits: list[Tensor], labels: Tensor) -> Tensor:
    """Return the mean loss of texts."""
    total = torch.zeros((), dtype=torch.float64)
    for z, label in zip(logits, labels, strict=True):
        if head == "regression":
            total = total + (z[0] - label) ** 2
        elif head == "classification":
            total = total - z[label] + z.exp().sum().log()
        else:
            assert head == "multi_label", head
            p = 1 / (1 + (-z).exp())
            total = total - (label * p.log() + (1 - label) * (1 - p).log()).sum()
    return total / labels.numel()


@pytest.mark.parametrize("pool", POOLS)
@pytest.mark.parametrize("head", HEAD)
def test_logits_loss_and_gradient_are_those_of_the_definition(head: str, pool: Pool) -> None:
    model, inputs = in_float64(pool, head, *NUMBERS)
    result = model(**{name: each for name, each in inputs.items() if name != "labels"}).logits
    expected = by_definition(model, inputs, pool)
    torch.testing.assert_close(result, torch.stack(expected), rtol=1e-10, atol=1e-12)
    loss = loss_of(head, expected, inputs["labels"])
    wanted = torch.autograd.grad(loss, list(model.parameters()))
    stepper = Stepper(model, "plain")
    assert stepper.backward(inputs)["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for parameter, gradient in zip(model.parameters(), wanted, strict=True):
        assert parameter.grad is not None
        torch.testing.assert_close(parameter.grad, gradient, rtol=1e-6, atol=1e-9)


def backward(name: str, inputs: Inputs, *, windows: bool) -> tuple[float, list[Tensor]]:
    torch.manual_seed(2)
    model, _ = windowed(1)
    if not windows:
        set_windows(model, None)
    stepper = Stepper(model.train(), configure(name, DETERMINISTIC.get(name, {})), seed=4)
    stepper.begin_epoch(0)
    loss = stepper.backward(inputs)["loss"]
    return loss, [each.grad for each in model.parameters() if each.grad is not None]


@pytest.mark.parametrize("name", SPLIT)
def test_one_window_per_text_equals_no_windows(name: str) -> None:
    _, inputs = windowed(1, 1, 1, 1)
    flat = {key: each if key == "labels" else each[:, 0] for key, each in inputs.items()}
    loss, gradients = backward(name, inputs, windows=True)
    expected, wanted = backward(name, flat, windows=False)
    assert loss == expected
    assert all(map(torch.equal, gradients, wanted))
    # A batch of sequences is read as before, even by a model of windows.
    assert backward(name, flat, windows=True)[0] == loss


def micro(inputs: Inputs, start: int, end: int) -> Inputs:
    """Return some texts, with as many windows as the longest of them has."""
    part = {name: each[start:end] for name, each in inputs.items()}
    windows = int(part["attention_mask"].any(-1).sum(1).max())
    return {name: each if name == "labels" else each[:, :windows] for name, each in part.items()}


@pytest.mark.parametrize("name", SPLIT)
def test_four_micro_batches_of_four_texts_are_one_of_sixteen(name: str) -> None:
    numbers = [1 + index % 4 if index > 3 else 1 for index in range(16)]
    result = []
    for parts in (1, 4):
        model, inputs = in_float64("mean", "classification", *numbers)
        stepper = Stepper(model, configure(name, DETERMINISTIC.get(name, {})), seed=4)
        stepper.begin_epoch(0)
        size = 16 // parts
        batches = [micro(inputs, start, start + size) for start in range(0, 16, size)]
        result.append((stepper.backward(*batches)["loss"], stepper.params.gradients()))
    assert result[1][0] == pytest.approx(result[0][0], rel=1e-6)
    for key, gradient in result[1][1].items():
        torch.testing.assert_close(gradient, result[0][1][key], rtol=1e-5, atol=1e-8, msg=key)


@pytest.mark.parametrize("pool", POOLS)
def test_empty_windows_and_padding_change_no_logits(pool: Pool) -> None:
    model, inputs = in_float64(pool, "classification", *NUMBERS)
    given = {name: each for name, each in inputs.items() if name != "labels"}
    expected = model(**given).logits
    for padding in ((0, 4), (0, 0, 0, 2), (0, 3, 0, 3)):
        wide = {name: nn.functional.pad(each, padding) for name, each in given.items()}
        torch.testing.assert_close(model(**wide).logits, expected, rtol=1e-9, atol=1e-12)


def test_hidden_states_are_those_of_each_text() -> None:
    model, inputs = in_float64("mean", "classification", *NUMBERS)
    given = {name: each for name, each in inputs.items() if name != "labels"}
    batch, windows, tokens = given["input_ids"].shape
    layers = model(**given, output_hidden_states=True).hidden_states
    assert [tuple(each.shape) for each in layers] == [(batch, windows * tokens, 8)] * 3
    (alone,) = model(input_ids=given["input_ids"][1, 2:3], output_hidden_states=True).hidden_states[
        -1:
    ]
    torch.testing.assert_close(layers[-1][1, 2 * tokens :], alone[0])


def test_the_config_keeps_windows_and_a_damaged_one_raises_an_error(tmp_path: Any) -> None:
    model, _ = windowed(2, pool="max", tokens=7)
    model.save_pretrained(tmp_path)
    result = windows_of(type(model).from_pretrained(tmp_path))
    assert result is not None
    assert (result.windows, result.max_length) == (Windows(1, "max"), 7)
    damaged: list[dict[str, Any]] = [
        {"stride": 9}, {"stride": "1"}, {"pool": "sum"}, {"max_windows": 0}, {"length": 3},
    ]  # fmt: skip
    for wrong in damaged:
        model.config.text_windows = {**model.config.text_windows, **wrong}
        with pytest.raises(ModelError, match="text_windows"):
            windows_of(model)
        set_windows(model, Windows(1, "max"), max_length=7)
    set_windows(model, None)
    assert windows_of(model) is None
