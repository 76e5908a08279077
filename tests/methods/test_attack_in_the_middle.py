"""UEGR from the middle of the blocks: the clean pass's lower half is the attacked passes' too."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import cross_entropy

from temper import UEGR, Stepper
from temper.errors import ModelError
from temper.methods import configure
from temper.models.network import Network, Recording
from temper.types import Batch
from tests.contracts.architectures import (
    ARCHITECTURES,
    LORA,
    batch_of,
    inputs_of,
    marks,
    plain_logits,
    tiny,
)
from tests.methods.tiny import TinyNetwork, recorded_drops, rows, tiny_bert, tiny_network

BATCH = rows(5, 3, 4, 2)
NO_MIDDLE = {"albert", "t5", "text_cnn", "text_han"}
EPSILON = 0.3


def middle(**settings: Any) -> UEGR:
    """Return UEGR in the middle, without a mask."""
    return UEGR(site="middle", mask="off", relative=True, **{"epsilon": EPSILON, **settings})


def upper(model: TinyNetwork, state: Tensor, mask: Tensor) -> Tensor:
    hidden = model.layers[1](state)
    real = mask.unsqueeze(-1).to(hidden.dtype)
    return model.head((hidden * real).sum(1) / real.sum(1))


def test_the_gradient_is_that_of_the_clean_loss_and_of_the_loss_at_the_moved_state() -> None:
    model = tiny_network(rate=0.0)
    trained = tiny_network(rate=0.0)
    Stepper(trained, middle(adaptive="uniform")).backward(BATCH)
    mask, labels = BATCH["attention_mask"], BATCH["labels"]
    state = model.layers[0](model.words(BATCH["input_ids"]))
    clean = cross_entropy(upper(model, state, mask), labels, reduction="none")
    (g,) = torch.autograd.grad(clean.sum(), state, retain_graph=True)
    real = mask.unsqueeze(-1).double()
    size, length = ((each * real).flatten(1).norm(dim=1) for each in (state.detach(), g))
    delta = g * real * (EPSILON * size / length).view(-1, 1, 1)
    attacked = cross_entropy(upper(model, state + delta, mask), labels)
    (clean.mean() + attacked).backward()
    for found, parameter in zip(trained.parameters(), model.parameters(), strict=True):
        torch.testing.assert_close(found.grad, parameter.grad, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("share", [1.0, 0.5])
def test_the_lower_half_runs_once_and_what_it_drops_holds_for_all_passes(share: float) -> None:
    model = tiny_network(rate=0.4)
    stepper = Stepper(model, middle(epsilon=0.0, share=share))
    stepper.network.halves(Batch.of(BATCH))
    with recorded_drops(model) as drops:
        stepper.backward(BATCH)
    assert {name: len(calls) for name, calls in drops.items()} == {
        "after_words": 2,
        "layers.0.dropout": 1,
        "layers.1.dropout": 2,
        "before_head": 2,
    }
    # Where only the lower half drops, an attack of size 0 is the clean pass itself.
    model = tiny_network(rate=0.0)
    model.layers[0].dropout.p = 0.5
    log = Stepper(model, middle(epsilon=0.0, adaptive="uniform")).backward(BATCH)
    assert log["loss/adversarial"] == pytest.approx(log["loss/task"], rel=1e-12)
    assert log["loss/divergence"] == pytest.approx(0.0, abs=1e-12)


def test_the_moved_state_raises_the_loss_and_its_size_is_epsilon() -> None:
    log = Stepper(tiny_network(rate=0.0), middle(adaptive="uniform")).backward(BATCH)
    assert log["loss/adversarial"] > log["loss/task"]
    assert log["attack/relative_size"] == pytest.approx(EPSILON)


@pytest.mark.parametrize("other", ["jacobian", "cross_holder", "r_drop"])
def test_beside_another_method_the_attacked_loss_is_what_it_is_alone(other: str) -> None:
    settings = {**middle(passes=1, adaptive="uniform", divergence_weight=0.0).model_dump()}
    losses = []
    for name, given in (("uegr", settings), (f"{other} + uegr", {"uegr": settings})):
        log = Stepper(tiny_network(rate=0.0), configure(name, given)).backward(BATCH)
        losses.append(log["loss/adversarial"])
    assert losses[1] == pytest.approx(losses[0], rel=1e-9)
    assert losses[0] > 0


@pytest.mark.parametrize("side", ["right", "left"])
@pytest.mark.parametrize("name", [*ARCHITECTURES, LORA])
def test_from_its_own_middle_a_model_goes_on_to_the_same_answer_or_is_refused(
    name: str, side: str
) -> None:
    model, batch = tiny(name), batch_of(name, side=side)
    before, network = marks(model), Network(model)
    if name in NO_MIDDLE:
        with pytest.raises(ModelError, match=r"site='(middle|word)'"):
            network.halves(batch)
    else:
        width = network.width(batch, site="middle")
        zero = torch.zeros(*batch.inputs["input_ids"].shape, width)
        noted = Recording(cut=True)
        whole = network.logits(batch, delta=zero, site="middle", recording=noted)
        again = network.logits(batch, delta=zero, site="middle", middle_state=noted.shared())
        torch.testing.assert_close(again, whole)
        torch.testing.assert_close(whole, plain_logits(tiny(name), batch.inputs))
    network.release()
    assert marks(model) == before


def test_what_cannot_start_in_the_middle_is_refused_in_one_line() -> None:
    model = tiny_bert()
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)()
    with pytest.raises(ModelError, match="Gradient checkpointing recomputes"):
        Stepper(model, middle()).backward(BATCH)
    with pytest.raises(ModelError, match=r"two repeated blocks .* has 1"):
        Stepper(tiny_bert(num_hidden_layers=1), middle()).backward(BATCH)
    bart = tiny("bart").train()
    bart.get_encoder().layerdrop = 1.0
    with pytest.raises(ModelError, match="layerdrop"):
        Stepper(bart, middle()).backward(inputs_of("bart"))
