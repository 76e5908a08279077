"""Every architecture trains with every method, right- and left-padded, and nothing else changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from temper.errors import ModelError
from temper.methods import Method, configure, names
from temper.methods.at import AT
from temper.methods.r_at import RAT
from temper.methods.r_at_su import RATSU
from temper.methods.uegr import UEGR
from temper.models.blocks import find_blocks
from temper.training.stepper import Stepper
from tests.contracts.architectures import (
    CASES,
    CLASSICAL,
    LORA,
    inputs_of,
    marks,
    of,
    plain_logits,
    tiny,
)

each_case = pytest.mark.parametrize(("name", "side"), CASES)

# They give no attention probabilities, which HiddenCut reads.
WITHOUT_ATTENTION: frozenset[str] = frozenset(CLASSICAL)

METHODS: dict[str, Method] = {
    **{name: configure(name) for name in names()},
    "uegr-gradient": UEGR(epsilon=0.2),
    "uegr-uniform": UEGR(adaptive="uniform", mask={"scope": "all"}),
    "uegr-fixed": UEGR(site="output", adaptive={"kind": "fixed", "rates": (0.1, 0.3)}),
    "r_at-released": RAT.preset("released"),
    "at": AT(ascent={"steps": 2}),
    "r_at_su": RATSU(mask={"scope": "all"}),
    # Its published times are hundreds of steps; here it anneals within the four.
    "rec_adam": configure("rec_adam", {"gamma": 1.0, "anneal": {"t0": 1}}),
}


# Between them an attack, dropout, a mask and attention probabilities.
CORE = ("uegr", "hidden_cut")


def combinations() -> list[Any]:
    """Return every architecture with the core methods, BERT with every method, and the rest slow.

    Left padding changes the forward alone, so one method does there.
    """
    result: list[Any] = []
    for name, side in CASES:
        for method in METHODS if side == "right" else ("uegr-gradient",):
            quick = name == "bert" or method in CORE or side == "left"
            result.append(pytest.param(name, side, method, marks=() if quick else pytest.mark.slow))
    return result


@pytest.mark.parametrize(("name", "side", "method"), combinations())
def test_steps_change_only_weights_in_scope_and_removed_hooks_leave_no_trace(
    name: str, side: str, method: str
) -> None:
    model, inputs = tiny(name).train(), inputs_of(name, side=side)
    before, start = marks(model), {k: v.clone() for k, v in model.state_dict().items()}
    if method == "reinit" and not find_blocks(model):
        with pytest.raises(ModelError, match="this model has none"):
            Stepper(model, METHODS[method])
        return
    stepper = Stepper(model, METHODS[method], seed=1, total=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if method == "hidden_cut" and name in WITHOUT_ATTENTION:
        with pytest.raises(ModelError, match="attention"):
            stepper.backward(inputs)
        stepper.remove_hooks()
        assert marks(model) == before
        return
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    for _ in range(4):
        optimizer.zero_grad()
        logs = stepper.backward(inputs)
        stepper.step(optimizer)
        assert all(torch.isfinite(torch.tensor(value)) for value in logs.values())
        assert logs.get("loss/task", logs["loss"]) > 0
    stepper.finish()
    still = [
        key
        for key, tensor in stepper.params.tensors.items()
        if tensor.grad is not None
        and tensor.grad.abs().max() > 1e-6
        and torch.equal(tensor.detach(), start[key])
    ]
    assert still == []
    blocks = stepper.params.blocks
    assert (
        sum(not torch.equal(model.state_dict()[key], start[key]) for key in blocks)
        > len(blocks) * 0.7
    )
    stepper.remove_hooks()
    assert marks(model) == before
    assert list(model.state_dict()) == list(start)
    fresh = tiny(name)
    fresh.load_state_dict(model.state_dict())
    assert torch.equal(plain_logits(model.eval(), inputs), plain_logits(fresh, inputs))


@each_case
def test_micro_batches_give_the_gradient_of_one_batch(name: str, side: str) -> None:
    method: Method = AT(epsilon=0.3, relative=False)
    if side == "right":
        # Decoders without dropout layers have a rate of their own under "uniform".
        still = {"kind": "fixed", "rates": (0.0, 0.0)}
        method = UEGR(adaptive=still, epsilon=0.3, relative=False, mask=False)
    inputs = inputs_of(name, side=side)
    parts = [{key: value[rows] for key, value in inputs.items()} for rows in ([0], [1, 2], [3])]
    gradients = []
    for micro_batches in ([inputs], parts):
        stepper = Stepper(tiny(name, dropout=0.0).train(), method)
        logs = stepper.backward(*micro_batches)
        gradients.append((logs["loss"], stepper.params.gradients()))
    (whole_loss, whole), (loss, summed) = gradients
    assert loss == pytest.approx(whole_loss, rel=1e-4)
    assert set(summed) == set(whole)
    scale = max(float(g.abs().max()) for g in whole.values())
    for key, gradient in whole.items():
        torch.testing.assert_close(summed[key], gradient, rtol=1e-3, atol=2e-5 * scale)


@pytest.mark.parametrize("name", [name for name, side in CASES if side == "right"])
def test_a_regression_trains_on_float_labels(name: str) -> None:
    model = tiny(name, labels=1).train()
    stepper = Stepper(model, UEGR())
    inputs = inputs_of(name, regression=True)
    logs = stepper.backward(inputs)
    logits = plain_logits(tiny(name, labels=1, dropout=0.0), inputs)
    assert logs["loss/divergence"] > 0
    quiet = Stepper(tiny(name, labels=1, dropout=0.0), "plain").backward(inputs)
    expected = (logits[:, 0] - inputs["labels"]).square().mean()
    assert quiet["loss"] == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama", "t5", "xlnet", LORA])
def test_under_bf16_autocast_delta_and_gradients_stay_fp32_and_near(name: str) -> None:
    inputs = inputs_of(name)
    gradients = []
    for half in (False, True):
        stepper = Stepper(tiny(name, dropout=0.0).train(), AT(epsilon=0.1))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=half):
            logs = stepper.backward(inputs)
        assert 0 < logs["loss/adversarial"] < 20
        gradients.append(torch.cat([g.flatten() for g in stepper.params.gradients().values()]))
    plain, half_precision = gradients
    assert half_precision.dtype == torch.float32
    assert not torch.equal(plain, half_precision)
    assert nn.functional.cosine_similarity(plain, half_precision, dim=0) > 0.9


@each_case
def test_more_padding_changes_neither_the_clean_loss_nor_the_attacked_one(
    name: str, side: str
) -> None:
    if (name, side) in {("xlnet", "right"), ("gpt2", "left")}:
        pytest.skip("the architecture itself is not indifferent to padding on this side")
    inputs = inputs_of(name, side=side)
    fill = {"input_ids": of(name).pad, "attention_mask": 0}
    room = (0, 2) if side == "right" else (2, 0)
    wider = {
        key: nn.functional.pad(value, room, value=fill[key]) if key in fill else value
        for key, value in inputs.items()
    }
    method = AT(epsilon=0.3, relative=False)
    losses = [
        Stepper(tiny(name, dropout=0.0).train(), method).backward(each) for each in (inputs, wider)
    ]
    assert losses[1] == pytest.approx(losses[0], rel=1e-4)
