"""Mixup against a loop in float64 over pairs of rows of different lengths."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from temper import RDrop, Stepper
from temper.errors import CompositionError, DataError, SettingError
from temper.methods import configure
from temper.methods.mixup import MixupConfig, mixed_words
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch
from tests.contracts.architectures import inputs_of, tiny
from tests.methods import reference
from tests.methods.tiny import recorded_drops, rows, tiny_network
from tests.methods.weights import compare, leaves, two_batches

SEED = 11


def drawn(micro: int, size: int, alpha: float) -> tuple[list[int], list[float]]:
    """Return what the streams give: partners and shares."""
    draws = np.random.default_rng(Streams(SEED, micro=micro).local("mixup"))
    return draws.permutation(size).tolist(), draws.beta(alpha, alpha, size).tolist()


def step_of(config: MixupConfig, batches: list[dict[str, Tensor]], classes: int) -> Any:
    model = tiny_network(classes=classes)
    stepper = Stepper(model, config, seed=SEED)
    stepper.network.probe(Batch.of(batches[0]))
    with recorded_drops(model) as drops:
        logs = stepper.backward(*batches)
    return logs, stepper.params.gradients(), drops, leaves(model)


def mixture(
    weights: reference.Weights, batch: dict[str, Tensor], partner: list[int], fractions: list[float]
) -> tuple[dict[str, Tensor], Tensor]:
    """Return a batch as long as the mixtures, and what makes its embeddings theirs."""
    B, T = batch["input_ids"].shape
    lengths = batch["attention_mask"].sum(1).tolist()
    mask = torch.zeros(B, T, dtype=torch.long)
    moved = []
    for i, (j, q) in enumerate(zip(partner, fractions, strict=True)):
        mask[i, : max(lengths[i], lengths[j])] = 1
        zero = torch.zeros(weights["words.weight"].shape[1], dtype=torch.float64)
        tokens = []
        for t in range(T):
            ours = weights["words.weight"][batch["input_ids"][i, t]] if t < lengths[i] else zero
            theirs = weights["words.weight"][batch["input_ids"][j, t]] if t < lengths[j] else zero
            # The loop below adds it to the embedding of id 0.
            tokens.append(q * ours + (1 - q) * theirs - weights["words.weight"][0])
        moved.append(torch.stack(tokens))
    fed = {**batch, "input_ids": torch.zeros(B, T, dtype=torch.long), "attention_mask": mask}
    return fed, torch.stack(moved)


@pytest.mark.parametrize("regression", [False, True])
def test_the_loss_of_mixed_words_is_that_of_the_paper(regression: bool) -> None:
    classes = 1 if regression else 3
    batches = two_batches(regression=regression)
    config = MixupConfig(weight=0.8, alpha=0.7)
    logs, gradients, drops, weights = step_of(config, batches, classes)
    total = torch.zeros((), dtype=torch.float64)
    larger = [
        max(q, 1 - q) for m, b in enumerate(batches) for q in drawn(m, len(b["labels"]), 0.7)[1]
    ]
    assert min(larger) <= logs["mixup/fraction"] <= max(larger)
    for micro, batch in enumerate(batches):
        size = len(batch["labels"])
        partner, fractions = drawn(micro, size, 0.7)
        fed, delta = mixture(weights, batch, partner, fractions)
        scores = reference.forward(weights, fed, drops, call=micro, delta=delta)
        ours = reference.row_losses(scores, batch["labels"], None)
        theirs = reference.row_losses(scores, batch["labels"][partner], None)
        for i, q in enumerate(fractions):
            total = total + 0.8 * (q * ours[i] + (1 - q) * theirs[i]) / 5
    compare(total, weights, logs["loss"], gradients)


def test_the_loss_of_mixed_pooled_states_is_that_of_the_paper() -> None:
    batches = two_batches()
    config = MixupConfig(weight=0.8, alpha=0.7, level="pooled", clean_weight=0.5)
    logs, gradients, drops, weights = step_of(config, batches, 3)
    total = torch.zeros((), dtype=torch.float64)
    for micro, batch in enumerate(batches):
        partner, fractions = drawn(micro, len(batch["labels"]), 0.7)
        scores = reference.forward(weights, batch, drops, call=micro)
        total = total + 0.5 * reference.row_losses(scores, batch["labels"], None).sum() / 5
        # The last layer is linear: undone, its states are mixed and it is applied again.
        head, bias = weights["head.weight"], weights["head.bias"]
        states = (scores - bias) @ torch.linalg.pinv(head).T
        for i, (j, q) in enumerate(zip(partner, fractions, strict=True)):
            mixed = (head @ (q * states[i] + (1 - q) * states[j]) + bias).unsqueeze(0)
            ours = reference.row_losses(mixed, batch["labels"][[i]], None)[0]
            theirs = reference.row_losses(mixed, batch["labels"][[j]], None)[0]
            total = total + 0.8 * (q * ours + (1 - q) * theirs) / 5
    compare(total, weights, logs["loss"], gradients)


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "xlnet"])
def test_a_row_mixed_with_itself_is_itself(name: str) -> None:
    model, inputs = tiny(name).eval(), inputs_of(name)
    batch = Batch.of(inputs)
    network = Network(model)
    network.probe(batch)
    alone = torch.arange(batch.size)
    with torch.no_grad():
        fed, delta = mixed_words(network, batch, alone, torch.full((batch.size,), 0.3))
        mixed = network.logits(fed, delta=delta)
        torch.testing.assert_close(mixed, network.logits(batch), rtol=1e-5, atol=1e-6)
        # At a fraction of 0 a row equals its partner, for any lengths.
        other = torch.arange(batch.size).flip(0)
        fed, delta = mixed_words(network, batch, other, torch.zeros(batch.size))
        reversed_logits = network.logits(fed, delta=delta)
    if name == "bert":
        # Its union with a longer row leaves tokens of zeros that are attended to.
        longest = int(batch.mask.sum(1).argmax())
        index = int(other[longest])
        torch.testing.assert_close(
            reversed_logits[index], network.logits(batch)[longest], rtol=1e-5, atol=1e-6
        )
    network.remove_hooks()


def test_partners_lie_within_a_micro_batch() -> None:
    alone = [rows(5, seed=1), rows(3, seed=2)]
    logs = Stepper(tiny_network(rate=0.0), MixupConfig()).backward(*alone)
    plain = Stepper(tiny_network(rate=0.0), "plain").backward(*alone)
    assert logs["loss"] == pytest.approx(plain["loss"], rel=1e-12)


def test_with_several_clean_passes_each_is_mixed() -> None:
    config = RDrop() + MixupConfig(level="pooled", clean_weight=1.0)
    stepper = Stepper(tiny_network(rate=0.0), config, seed=SEED)
    single = Stepper(tiny_network(rate=0.0), MixupConfig(level="pooled"), seed=SEED)
    batch = rows(5, 3, 4)
    result, expected = stepper.backward(batch), single.backward(batch)
    assert result["loss/mixup"] == pytest.approx(expected["loss/mixup"], rel=1e-12)


def test_mixup_without_labels_or_weight_raises_an_error() -> None:
    batch = rows(5, 3)
    del batch["labels"]
    with pytest.raises(DataError, match="The batch has no labels"):
        Stepper(tiny_network(), MixupConfig()).backward(batch)
    with pytest.raises(SettingError, match="so nothing is minimized"):
        MixupConfig(weight=0.0)
    with pytest.raises(
        CompositionError, match=r"'uegr' and .* in 'mixup'|'mixup' and .* in 'uegr'"
    ):
        configure("uegr + mixup")
    assert configure("uegr + mixup", {"mixup": {"clean_weight": 1.0}})


def test_a_fraction_of_1_keeps_the_row_and_mixtures_are_in_single_precision() -> None:
    """Its token types, too, where its partner is as long as it is."""
    network = Network(tiny("bert").bfloat16().eval())
    inputs = {**rows(5, 5, 3), "token_type_ids": torch.tensor([[0] * 5, [1] * 5, [0] * 5])}
    batch = Batch.of(inputs)
    network.probe(batch)
    fractions = torch.tensor([1.0, 1.0, 0.5], dtype=torch.float64)
    fed, delta = mixed_words(network, batch, torch.tensor([1, 0, 0]), fractions)
    assert delta.dtype == torch.float32
    assert torch.equal(fed.inputs["token_type_ids"], inputs["token_type_ids"][[0, 1, 0]])
    assert not delta[:2].any()
    words = network.embeddings(batch).float()
    # The third row is half of its own three words and half of the first row's five.
    half = words[2] * (torch.arange(5) < 3).unsqueeze(1) / 2 + words[0] / 2
    torch.testing.assert_close(delta[2] + words[0], half)
