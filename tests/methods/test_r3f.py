"""r3f against a loop written from its equation, and its special cases."""

from __future__ import annotations

import logging
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.errors import CompositionError
from temper.methods import configure
from tests.methods import reference
from tests.methods.perturbed import deltas
from tests.methods.tiny import recorded_drops, rows, tiny_bert, tiny_network
from tests.methods.weights import compare, leaves, ours, two_batches

__all__ = ["deltas"]

CASES: dict[str, dict[str, Any]] = {
    "published": {},
    "loud": {"epsilon": 0.3},
    "normal": {"epsilon": 0.3, "law": "normal"},
    "js": {"epsilon": 0.3, "divergence": "js"},
    "sum": {"epsilon": 0.3, "reduction": "sum", "weight": 0.7},
    "output": {"epsilon": 0.3, "site": "output"},
    "same_dropout": {"epsilon": 0.3, "same_dropout": True},
    "detached": {"epsilon": 0.3, "detached": True},
    "rte": {"preset": "rte", "epsilon": 0.3},
}


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_the_clean_one_and_a_divergence_that_pulls_at_both_passes(
    case: str, regression: bool, deltas: list[Tensor]
) -> None:
    batches, settings = two_batches(regression=regression), CASES[case]
    loss, grads, drops, network = ours("r3f", settings, batches, classes=1 if regression else 3)
    measured = not settings.get("same_dropout", False)
    first = 2 + measured
    assert [not each.numel() for each in deltas] == (
        [True, False, True, True, False] if measured else [True, False, True, False]
    )
    # lambda of the paper is on the sum of both directions; it is 1, and .7 for RTE.
    published = {"sum": 0.35, "rte": 0.7}.get(case, 1.0)
    weights = leaves(network)
    total = torch.zeros((), dtype=torch.float64)
    for index, batch in enumerate(batches):
        call = index * first
        noise = deltas[call + 1]
        inside = dict(weights)
        if case == "detached":
            inside["words.weight"] = weights["words.weight"].detach()
        clean = reference.forward(weights, batch, drops, call=call)
        site = settings.get("site", "word")
        noised = reference.forward(inside, batch, drops, call=call + 1, delta=noise, site=site)
        total = total + reference.row_losses(clean, batch["labels"], None).sum() / 5
        for row in range(len(batch["labels"])):
            if regression:
                both = 2 * (clean[row, 0] - noised[row, 0]) ** 2
            else:
                p, q = (reference.probabilities(each[row]) for each in (clean, noised))
                there, back = reference.kullback_leibler(p, q), reference.kullback_leibler(q, p)
                both = there + back
                if case == "js":
                    both = 2 * reference.divergence_of("js", clean[row], noised[row])
            total = total + published * both / (1 if case == "sum" else 5)
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("law", ["uniform", "normal"])
def test_the_noise_has_its_distribution_and_is_zero_at_padding(
    law: str, deltas: list[Tensor]
) -> None:
    network = tiny_network(width=512)
    batches = [rows(5, 3, 6), rows(4, 2)]
    Stepper(network, configure("r3f", {"epsilon": 0.2, "law": law})).backward(*batches)
    noises = [each for each in deltas if each.numel()]
    assert len(noises) == 2
    assert not torch.equal(noises[0][:2, :4], noises[1])
    for noise, batch in zip(noises, batches, strict=True):
        real = batch["attention_mask"].bool()
        assert not noise[~real].any()
        inside = noise[real]
        # Of n draws the mean has a standard error of deviation / sqrt n.
        deviation = 0.2 / (3**0.5 if law == "uniform" else 1)
        assert abs(inside.mean().item()) < 5 * deviation / inside.numel() ** 0.5
        assert inside.std().item() == pytest.approx(deviation, rel=0.1)
        assert (inside.abs().max() <= 0.2) == (law == "uniform")


def test_with_separate_dropout_masks_the_divergence_is_due_to_dropout() -> None:
    logs = Stepper(tiny_network(), "r3f").backward(rows(5, 3))
    assert logs["divergence/dropout_fraction"] == pytest.approx(1.0, abs=1e-3)
    # And it is R-Drop's of the same two passes: what differs is the noise.
    assert logs["loss/consistency"] > 0.01
    logs = Stepper(tiny_bert(), configure("r3f", {"preset": "noise"})).backward(rows(5, 3))
    assert "divergence/dropout_fraction" not in logs
    assert 0 < logs["loss/consistency"] < 0.1


def test_with_r_drop_the_noisy_pass_is_compared_with_both_clean_ones(deltas: list[Tensor]) -> None:
    batch = rows(5, 3, 6)
    network = tiny_network()
    settings = {"r_drop": {"weight": 0.4}, "r3f": {"epsilon": 0.3, "weight": 1.2}}
    stepper = Stepper(network, configure("r_drop + r3f", settings), seed=11)
    stepper.backward(batch)
    deltas.clear()
    stepper.discard()
    with recorded_drops(network) as drops:
        logs = stepper.backward(batch)
    grads = stepper.params.gradients()
    weights = leaves(network)
    clean = [
        reference.forward(weights, batch, drops, call=0, rows=slice(3 * k, 3 * (k + 1)))
        for k in range(2)
    ]
    noise = next(each for each in deltas if each.numel())
    noised = reference.forward(weights, batch, drops, call=1, delta=noise)
    total: Tensor | float = 0.4 * reference.pairs("sym_kl", clean, reduction="mean", rows_of_step=3)
    for output in clean:
        total = total + 0.5 * reference.row_losses(output, batch["labels"], None).mean()
        total = total + 0.6 * reference.pairs(
            "sym_kl", [output, noised], reduction="mean", rows_of_step=3
        )
    assert isinstance(total, Tensor)
    compare(total, weights, logs["loss"], grads)


def test_equal_dropout_masks_of_passes_conflict_with_r_drop() -> None:
    settings = {"r3f": {"same_dropout": True, "epsilon": 0.1}}
    with pytest.raises(CompositionError, match="both use the sub-models"):
        configure("r_drop + r3f", settings)


@pytest.mark.parametrize(
    ("settings", "warned"),
    [({}, True), ({"epsilon": 1e-3}, False), ({"epsilon": 9e-4}, True), ({"weight": 0.0}, False)],
)
def test_negligible_noise_without_dropout_warns(
    settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(rate=0.0), configure("r3f", settings))
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(2):
            stepper.backward(rows(5, 3))
            stepper.discard()
    assert caplog.text.count("Every dropout rate of") == int(warned)
