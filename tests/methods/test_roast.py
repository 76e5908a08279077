"""adv_embed and roast against loops written from RoAST's equations, and their properties."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.errors import ModelError
from temper.methods import configure
from temper.methods.selection import EpochSelectiveUpdate, Selective
from temper.types import Step
from tests.methods import reference
from tests.methods.perturbed import deltas
from tests.methods.tiny import MeanOfWords, rows, tiny_network
from tests.methods.weights import compare, leaves, ours, two_batches

__all__ = ["deltas"]

PUBLISHED = {
    "epsilon": 0.1,
    "relative": False,
    "norm": "linf_scaled",
    "attack_scope": "token",
    "site": "output",
    "clean_weight": 0.5,
    "adversarial_weight": 0.5,
    "divergence_weight": 0.01,
    "divergence": "sym_kl",
    "reduction": "sum",
    "same_dropout": False,
    "detached": False,
}
# The noise is raised so that a forgotten one shows.
NOISY = {"noise": 0.05}
CASES: dict[str, dict[str, Any]] = {
    "published": {},
    "noisy": NOISY,
    "heavy": {**NOISY, "divergence_weight": 0.8, "clean_weight": 0.3, "adversarial_weight": 0.9},
    "js": {**NOISY, "divergence": "js", "divergence_weight": 0.8},
    "mean": {**NOISY, "reduction": "mean", "divergence_weight": 0.8},
    "word": {**NOISY, "site": "word", "epsilon": 0.4, "divergence_weight": 0.8},
    "relative": {"relative": True, "norm": "l2", "attack_scope": "example", "epsilon": 0.3},
    "same_dropout": {**NOISY, "same_dropout": True, "divergence_weight": 0.8},
    "released": {"detached": True, "adversarial_weight": 0.0, "divergence_weight": 0.8, **NOISY},
    "divergence_alone": {"adversarial_weight": 0.0, "divergence_weight": 0.8},
    "no_divergence": {"divergence_weight": 0.0},
    "no_clean_loss": {**NOISY, "clean_weight": 0.0},
}


def by_the_equation(
    weights: reference.Weights,
    batches: Sequence[dict[str, Tensor]],
    drops: reference.Drops,
    noises: Sequence[Tensor],
    settings: dict[str, Any],
    *,
    kind: str,
) -> Tensor:
    """Write ``c CE(x+n) + a CE(x~) + w D(x+n, x~)``, ``x~ = x + n + epsilon g / max|g|``."""
    total = torch.zeros((), dtype=torch.float64)
    count = sum(len(batch["labels"]) for batch in batches)
    call = 0
    measured = settings["divergence_weight"] > 0 and not settings["same_dropout"]
    for index, batch in enumerate(batches):
        site = settings["site"]
        noise = noises[index].clone().requires_grad_()
        clean = reference.forward(weights, batch, drops, call=call, delta=noise, site=site)
        losses = reference.row_losses(clean, batch["labels"], None)
        (gradient,) = torch.autograd.grad(losses.sum(), noise, retain_graph=True)
        around = reference.surroundings(weights, batch, drops, call=call, site=site)
        step = reference.attack(gradient, *around, **reference.geometry(settings))
        inside = dict(weights)
        if settings["detached"]:
            inside["words.weight"] = weights["words.weight"].detach()
        moved = reference.forward(
            inside, batch, drops, call=call + 1, delta=noises[index] + step, site=site
        )
        total = total + settings["clean_weight"] * losses.sum() / count
        attacked = reference.row_losses(moved, batch["labels"], None)
        total = total + settings["adversarial_weight"] * attacked.sum() / count
        total = total + settings["divergence_weight"] * reference.pairs(
            kind, [clean, moved], reduction=settings["reduction"], rows_of_step=count
        )
        # The first micro-batch of the first step has one more pass, which measures.
        call += 3 if index == 0 and measured else 2
    return total


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("name", ["adv_embed", "roast"])
@pytest.mark.parametrize("case", CASES)
def test_the_loss_is_both_losses_and_a_divergence_that_pulls_at_both_passes(
    case: str, name: str, regression: bool, deltas: list[Tensor]
) -> None:
    batches = two_batches(regression=regression)
    changed = CASES[case]
    loss, grads, drops, network = ours(name, changed, batches, classes=1 if regression else 3)
    settings = {**PUBLISHED, **changed}
    measured = settings["divergence_weight"] > 0 and not settings["same_dropout"]
    assert len(deltas) == 4 + measured
    noises = [deltas[0], deltas[2 + measured]]
    for noise, batch in zip(noises, batches, strict=True):
        real = batch["attention_mask"].bool()
        assert (noise[real] > 0).all()
        assert noise.max() <= settings.get("noise", 1e-5)
        assert not noise[~real].any()
    weights = leaves(network)
    total = by_the_equation(
        weights,
        batches,
        drops,
        noises,
        settings,
        kind="mse" if regression else settings["divergence"],
    )
    compare(total, weights, loss, grads)


def test_the_noise_is_new_at_every_step_and_the_passes_are_two(deltas: list[Tensor]) -> None:
    stepper = Stepper(tiny_network(), "adv_embed", seed=2)
    optimizer = torch.optim.SGD(stepper.network.model.parameters(), lr=0.1)
    counts = []
    for _ in range(3):
        before = len(deltas)
        logs = stepper.backward(rows(5, 3))
        stepper.step(optimizer)
        counts.append(len(deltas) - before)
        assert ("divergence/dropout_fraction" in logs) == (counts[-1] == 3)
        assert logs["attack/relative_size"] > 0
    assert counts == [3, 2, 2]
    firsts = [deltas[0], deltas[3], deltas[5]]
    assert not any(torch.equal(firsts[a], firsts[b]) for a, b in ((0, 1), (0, 2), (1, 2)))


@pytest.mark.parametrize(("name", "settings"), [("adv_embed", {}), ("adv_embed", {"noise": 0.0})])
def test_all_divergence_is_due_to_dropout_without_an_attack_and_none_without_dropout(
    name: str, settings: dict[str, Any]
) -> None:
    logs = Stepper(tiny_network(), configure(name, {"epsilon": 0.0, **settings})).backward(
        rows(5, 3)
    )
    assert logs["divergence/dropout_fraction"] == pytest.approx(1.0)
    assert logs["attack/relative_size"] == pytest.approx(0.0, abs=1e-4)
    logs = Stepper(tiny_network(rate=0.0), configure(name, settings)).backward(rows(5, 3))
    assert logs["divergence/dropout_fraction"] == pytest.approx(0.0, abs=1e-9)


# The mask


def test_roast_is_its_objective_and_an_epoch_s_mask_over_the_blocks() -> None:
    method = configure("roast")
    (rule,) = method.rule.rules
    assert isinstance(rule, EpochSelectiveUpdate)
    assert rule.settings == Selective(refresh="epoch")
    assert method.plan(Step()).conflicts == configure("adv_embed").plan(Step()).conflicts
    sentiment = configure("roast", {"preset": "sentiment"})
    assert (sentiment.mask.alpha, sentiment.mask.beta) == (0.9, 10.0)


# Settings


def test_the_error_for_a_network_without_blocks_suggests_word_embeddings() -> None:
    with pytest.raises(ModelError, match="Use site='word'"):
        Stepper(MeanOfWords(), "adv_embed").backward(rows(5, 3))
    logs = Stepper(MeanOfWords(), configure("adv_embed", {"site": "word"})).backward(rows(5, 3))
    assert logs["loss/adversarial"] > 0
