"""Six methods on every head against losses written from the definitions, in float64.

The model is a black box: its logits and word embeddings are recorded in every pass. The reference
computes the loss, its gradient with respect to these logits, and each perturbation.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.heads import UNLABELED
from temper.methods import configure
from temper.types import Batch
from tests.heads.models import MODELS, Inputs, model_of

EPSILON = 0.3
Unit = tuple[int, Tensor, Tensor]
"""Row, logits of the classes [C], and the label's distribution [C]."""


def onehot(label: Tensor, classes: int) -> Tensor:
    target = torch.zeros(classes, dtype=torch.float64)
    target[int(label)] = 1.0
    return target


def units_of(head: str, logits: Tensor, inputs: Inputs) -> Iterator[Unit]:
    """Yield the labeled units of a pass over B rows, one by one."""
    for row in range(len(inputs["input_ids"])):
        z = logits[row]
        if head == "multi_label":
            for label, target in enumerate(inputs["labels"][row]):
                two = torch.stack([torch.zeros_like(z[label]), z[label]])
                yield row, two, torch.stack([1 - target, target])
        elif head == "spans":
            real = inputs["attention_mask"][row].bool() & inputs["context_mask"][row].bool()
            for side, name in enumerate(("start_positions", "end_positions")):
                position = inputs[name][row]
                if position < len(real):
                    chosen = onehot(position, len(real))
                    yield row, z[side][real], chosen[real]
        elif head in ("choices", "classification"):
            yield row, z, onehot(inputs["labels"][row], len(z))
        else:
            assert head in ("tokens", "completions", "seq2seq"), head
            # The logits at a token of a causal model are for the next one.
            shift = 1 if head == "completions" else 0
            for index, label in enumerate(inputs["labels"][row][shift:]):
                if label != UNLABELED:
                    yield row, z[index], onehot(label, z.shape[-1])


def cross_entropy(head: str, logits: Tensor, inputs: Inputs) -> Tensor:
    losses = [-(t * z.log_softmax(0)).sum() for _, z, t in units_of(head, logits, inputs)]
    return torch.stack(losses).sum()


def divergence(head: str, first: Tensor, second: Tensor, inputs: Inputs, kind: str) -> Tensor:
    total = torch.zeros((), dtype=torch.float64)
    pairs = zip(units_of(head, first, inputs), units_of(head, second, inputs), strict=True)
    for (_, a, _), (_, b, _) in pairs:
        p, q = a.softmax(0), b.softmax(0)
        if kind == "sym_kl":
            total = total + ((p * (p / q).log()).sum() + (q * (q / p).log()).sum()) / 2
        else:
            m = (p + q) / 2
            total = total + ((p * (p / m).log()).sum() + (q * (q / m).log()).sum()) / 2
    return total


class Passes:
    """Logits and word embeddings of every pass of a step, with the gradients that arrive there."""

    def __init__(self, head: str, stepper: Stepper, inputs: Inputs) -> None:
        self.head, self.inputs, self._first = head, inputs, False
        self.logits: list[Tensor] = []
        self.gradients: dict[int, Tensor] = {}
        self.words: list[Tensor] = []
        stepper.network.probe(Batch.of(inputs))
        result = stepper.network._found
        assert result is not None
        model: nn.Module = stepper.network.model
        model.register_forward_pre_hook(lambda *_: self._begin())
        model.register_forward_hook(lambda _, __, output: self._record(output))
        result.module.register_forward_hook(lambda _, __, output: self._embedded(output))

    def _begin(self) -> None:
        self._first = True

    def _embedded(self, output: Tensor) -> None:
        if self._first:  # not the decoder's call
            self.words.append(output.detach())
        self._first = False

    def _record(self, output: Any) -> None:
        if self.head == "spans":
            logits = torch.stack([output.start_logits, output.end_logits], 1)
            output.start_logits, output.end_logits = logits.unbind(1)
        else:
            logits = output.logits
        if self.head == "completions" and logits.shape[1] < self.inputs["input_ids"].shape[1]:
            # Logits at the positions before a target only.
            wide = logits.new_zeros(*self.inputs["input_ids"].shape, logits.shape[-1])
            wide = wide.repeat(len(logits) // len(wide), 1, 1)
            targets = (self.inputs["labels"][:, 1:] != UNLABELED).any(0).nonzero().flatten()
            self.places = targets
            wide[:, targets] = logits.detach()
        else:
            wide = logits.detach()
        number = len(self.logits)
        if logits.requires_grad:  # not a diagnostic
            self.logits.append(wide.clone())
            logits.register_hook(lambda g: self._arrived(number, g))

    def _arrived(self, number: int, gradient: Tensor) -> None:
        if gradient.shape != self.logits[number].shape:
            wide = torch.zeros_like(self.logits[number])
            wide[:, self.places] = gradient
            gradient = wide
        # RoAST's attack reads a gradient of its own before; the step's arrives last.
        self.gradients[number] = gradient.detach()


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "r_drop": {"weight": 0.7},
    "at": {"epsilon": EPSILON, "relative": False, "adversarial_weight": 0.8},
    "freelb": {"step_size": EPSILON, "relative": False, "passes": 2},
    "uegr": {
        "epsilon": EPSILON,
        "relative": False,
        "divergence_weight": 0.6,
        "divergence": "js",
        "reduction": "sum",
        "adaptive": "uniform",
    },
    "roast": {
        "epsilon": EPSILON,
        "relative": False,
        "site": "word",
        "noise": 0.0,
        "divergence_weight": 0.6,
        "mask": "off",
    },
}


def expected(name: str, head: str, inputs: Inputs, leaves: list[Tensor]) -> Tensor:
    """Return the step's loss from the logits of its passes."""

    units = sum(1 for _ in units_of(head, leaves[0], inputs))

    def ce(z: Tensor) -> Tensor:
        return cross_entropy(head, z, inputs) / units

    def parts(z: Tensor) -> list[Tensor]:
        return list(z.chunk(2))

    rows = len(inputs["input_ids"])
    if name == "plain":
        return ce(leaves[0])
    if name == "r_drop":
        one, two = parts(leaves[0])
        apart = divergence(head, one, two, inputs, "sym_kl") / units
        return (ce(one) + ce(two)) / 2 + 0.7 * apart
    if name == "at":
        return ce(leaves[0]) + 0.8 * ce(leaves[1])
    if name == "freelb":
        return (ce(leaves[0]) + ce(leaves[1])) / 2
    if name == "uegr":
        one, two = parts(leaves[1])
        apart = divergence(head, one, two, inputs, "js") * rows / units
        return ce(leaves[0]) + (ce(one) + ce(two)) / 2 + 0.6 * apart
    apart = divergence(head, leaves[0], leaves[1], inputs, "sym_kl") * rows / units
    return (ce(leaves[0]) + ce(leaves[1])) / 2 + 0.6 * apart


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", SETTINGS)
def test_a_step_is_that_of_the_definition(name: str, model_name: str) -> None:
    head = model_name.partition("-")[0]
    model, inputs = model_of(model_name)
    stepper = Stepper(model, configure(name, SETTINGS[name]), seed=3)
    stepper.begin_epoch(0)
    passes = Passes(head, stepper, inputs)
    logs = stepper.backward(inputs)
    leaves = [each.clone().requires_grad_() for each in passes.logits]
    loss = expected(name, head, inputs, leaves)
    assert logs["loss"] == pytest.approx(loss.item(), rel=1e-6)
    for number, gradient in enumerate(torch.autograd.grad(loss, leaves)):
        torch.testing.assert_close(passes.gradients[number], gradient, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("model_name", MODELS)
@pytest.mark.parametrize("name", ["at", "freelb", "uegr", "roast"])
def test_an_attacked_pass_is_perturbed_along_the_gradient(name: str, model_name: str) -> None:
    head = model_name.partition("-")[0]
    model, inputs = model_of(model_name)
    model.eval()  # the reference's own pass drops nothing
    stepper = Stepper(model, configure(name, SETTINGS[name]), seed=3)
    stepper.begin_epoch(0)
    passes = Passes(head, stepper, inputs)
    stepper.backward(inputs)
    clean, moved = (each[: len(passes.words[0])] for each in passes.words[:2])
    stepper.remove_hooks()

    words = clean.clone().requires_grad_()
    reader = model.get_encoder() if head == "seq2seq" else model
    replaced = reader.get_input_embeddings().register_forward_hook(once(words))
    output = model(**model_inputs(inputs, model))
    replaced.remove()
    logits = output.logits if head != "spans" else torch.stack(list(output.values())[:2], 1)
    (gradient,) = torch.autograd.grad(cross_entropy(head, logits, inputs), words)

    rows = len(inputs["input_ids"])
    mask = inputs["attention_mask"].reshape(rows, -1, 1).double()
    if head == "completions":  # attacks move the prompt alone
        mask = mask * (inputs["labels"] == UNLABELED).unsqueeze(-1)
    g = gradient.reshape(*mask.shape[:2], -1) * mask
    size = g.abs().amax(2, True) if name == "roast" else g.flatten(1).norm(dim=1).view(-1, 1, 1)
    step = EPSILON * g / size.clamp(min=1e-300)
    delta = (moved - clean).reshape(step.shape)
    torch.testing.assert_close(delta, step, rtol=1e-5, atol=1e-7)


def model_inputs(inputs: Inputs, model: nn.Module) -> Inputs:
    """Return the arguments of a forward without a loss."""
    others = ("labels", "start_positions", "end_positions", "context_mask")
    given = {name: each for name, each in inputs.items() if name not in others}
    if hasattr(model, "prepare_decoder_input_ids_from_labels") and "labels" in inputs:
        shifted = model.prepare_decoder_input_ids_from_labels(labels=inputs["labels"])
        given["decoder_input_ids"] = shifted
    return given


def once(words: Tensor) -> Any:
    """Return a hook that puts other embeddings in the place of the first call's."""
    calls: list[int] = []

    def hook(*_: Any) -> Tensor | None:
        calls.append(1)
        return words if len(calls) == 1 else None

    return hook
