"""Every method against a loop written from its equation: total loss and every weight's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.methods import configure
from temper.types import Batch
from tests.methods import reference
from tests.methods.tiny import TinyNetwork, recorded_drops, rows, tiny_network

CLOSE = {"rtol": 1e-8, "atol": 1e-10}
SIZES = ((5, 3, 6), (4, 2))
"""Lengths of the rows of two micro-batches, the last one short."""


def ours(
    name: str,
    settings: dict[str, Any],
    batches: Sequence[dict[str, Tensor]],
    *,
    class_weights: Sequence[float] | None = None,
    classes: int = 3,
    special_ids: Sequence[int] = (),
) -> tuple[float, dict[str, Tensor], reference.Drops, TinyNetwork]:
    """Run a method's forward stage: total, gradients, what was dropped, and the network."""
    network = tiny_network(classes=classes)
    stepper = Stepper(
        network,
        configure(name, settings),
        seed=11,
        class_weights=class_weights,
        special_ids=special_ids,
    )
    # Probing runs a forward of its own, which must not be taken for one of the method's.
    stepper.network.probe(Batch.of(batches[0]))
    with recorded_drops(network) as drops:
        logs = stepper.backward(*batches)
    grads = {key: tensor.clone() for key, tensor in stepper.params.gradients().items()}
    return logs["loss"], grads, drops, network


def leaves(network: TinyNetwork) -> reference.Weights:
    return {
        name: value.detach().clone().requires_grad_() for name, value in network.named_parameters()
    }


def compare(total: Tensor, weights: reference.Weights, loss: float, grads: Any) -> None:
    expected = torch.autograd.grad(total, list(weights.values()))
    # The log's total is a Python float made from the same numbers.
    assert loss == pytest.approx(total.item(), rel=1e-9)
    assert set(grads) == set(weights)
    for name, gradient in zip(weights, expected, strict=True):
        torch.testing.assert_close(
            grads[name], gradient, msg=lambda m, n=name: f"{n}: {m}", **CLOSE
        )


def batches_of(*, regression: bool = False) -> list[dict[str, Tensor]]:
    return [
        rows(*lengths, seed=place, regression=regression) for place, lengths in enumerate(SIZES)
    ]


@pytest.mark.parametrize(
    ("regression", "class_weights"), [(False, None), (False, (0.5, 2.0, 1.25)), (True, None)]
)
def test_vanilla_is_the_mean_cross_entropy_over_all_micro_batches(
    regression: bool, class_weights: Sequence[float] | None
) -> None:
    batches = batches_of(regression=regression)
    classes = 1 if regression else 3
    loss, grads, drops, network = ours(
        "vanilla", {}, batches, class_weights=class_weights, classes=classes
    )
    weights = leaves(network)
    total = sum(
        reference.row_losses(
            reference.forward(weights, batch, drops, call=place), batch["labels"], class_weights
        ).sum()
        for place, batch in enumerate(batches)
    )
    compare(total / 5, weights, loss, grads)


def test_dropout_drops_at_the_set_rate_everywhere() -> None:
    batches = batches_of()
    loss, grads, drops, network = ours("dropout", {"rate": 0.5}, batches)
    for calls in drops.values():
        for multipliers in calls:
            assert set(multipliers.unique().tolist()) <= {0.0, 2.0}
    weights = leaves(network)
    total = sum(
        reference.row_losses(
            reference.forward(weights, batch, drops, call=place), batch["labels"], None
        ).sum()
        for place, batch in enumerate(batches)
    )
    compare(total / 5, weights, loss, grads)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("divergence", ["js", "sym_kl"])
def test_r_drop_is_half_both_losses_and_a_weighted_divergence(
    divergence: str, reduction: str, regression: bool
) -> None:
    batches = batches_of(regression=regression)
    settings = {"weight": 0.7, "divergence": divergence, "reduction": reduction}
    loss, grads, drops, network = ours("r_drop", settings, batches, classes=1 if regression else 3)
    weights = leaves(network)
    total = torch.zeros((), dtype=torch.float64)
    for place, batch in enumerate(batches):
        size = len(batch["labels"])
        first, second = (
            reference.forward(
                weights, batch, drops, call=place, rows=slice(size * k, size * (k + 1))
            )
            for k in range(2)
        )
        for output in (first, second):
            losses = reference.row_losses(output, batch["labels"], None)
            total = total + 0.5 * losses.sum() / 5
        kind = "mse" if regression else divergence
        total = total + 0.7 * reference.pairs(
            kind, [first, second], reduction=reduction, rows_of_step=5
        )
    compare(total, weights, loss, grads)


ATTACKS = {
    "absolute": {"epsilon": 0.3, "relative": False},
    "relative": {"epsilon": 0.1},
    "token": {"epsilon": 0.3, "relative": False, "attack_scope": "token"},
    "relative_token": {"epsilon": 0.1, "attack_scope": "token"},
    "batch": {"epsilon": 0.3, "relative": False, "attack_scope": "batch"},
    "linf_scaled_token": {
        "epsilon": 0.2,
        "relative": False,
        "norm": "linf_scaled",
        "attack_scope": "token",
    },
    "relative_linf_scaled": {"epsilon": 0.2, "norm": "linf_scaled"},
    "linf": {"epsilon": 0.2, "relative": False, "norm": "linf"},
    "output": {"epsilon": 0.2, "site": "output"},
    "spared": {"epsilon": 0.2, "special_tokens": False},
}


def attacked_total(
    weights: reference.Weights,
    batches: Sequence[dict[str, Tensor]],
    drops: reference.Drops,
    settings: dict[str, Any],
    *,
    passes: int,
    adversarial_weight: float,
    divergence_weight: float,
    divergence: str,
    reduction: str,
    class_weights: Sequence[float] | None = None,
) -> Tensor:
    """Write ``CE(x) + w 1/K sum CE_k(x + delta) + lambda sum_{l<k} D`` as a loop (Eqs. 2 to 6)."""
    site = settings.get("site", "word")
    total = torch.zeros((), dtype=torch.float64)
    count = sum(len(batch["labels"]) for batch in batches)
    for place, batch in enumerate(batches):
        size = len(batch["labels"])
        zero = torch.zeros(*batch["input_ids"].shape, 4, dtype=torch.float64, requires_grad=True)
        output = reference.forward(weights, batch, drops, call=2 * place, delta=zero, site=site)
        clean = reference.row_losses(output, batch["labels"], class_weights).sum() / count
        (gradient,) = torch.autograd.grad(clean, zero, retain_graph=True)
        total = total + clean
        movable = batch["attention_mask"].bool()
        if not settings.get("special_tokens", True):
            movable &= batch["input_ids"] > 2
        embeddings = weights["words.weight"].detach()[batch["input_ids"]]
        if site == "output":
            embeddings = embeddings * drops["after_words"][2 * place]
        delta = reference.attack(
            gradient,
            embeddings,
            movable,
            epsilon=settings["epsilon"],
            relative=settings.get("relative", True),
            norm=settings.get("norm", "l2"),
            scope=settings.get("attack_scope", "example"),
        )
        outputs = []
        for k in range(passes):
            rows_of_pass = slice(size * k, size * (k + 1))
            outputs.append(
                reference.forward(
                    weights,
                    batch,
                    drops,
                    call=2 * place + 1,
                    rows=rows_of_pass,
                    delta=delta,
                    site=site,
                )
            )
            losses = reference.row_losses(outputs[-1], batch["labels"], class_weights)
            total = total + adversarial_weight * losses.sum() / (passes * count)
        total = total + divergence_weight * reference.pairs(
            divergence, outputs, reduction=reduction, rows_of_step=count
        )
    return total


@pytest.mark.parametrize("attack", ATTACKS)
def test_at_is_the_clean_loss_plus_the_loss_at_one_step(attack: str) -> None:
    batches = batches_of()
    settings = {**ATTACKS[attack], "adversarial_weight": 0.6}
    loss, grads, drops, network = ours("at", settings, batches, special_ids=(1, 2))
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=1,
        adversarial_weight=0.6,
        divergence_weight=0.0,
        divergence="js",
        reduction="sum",
    )
    compare(total, weights, loss, grads)


def test_at_on_a_regression_attacks_the_squared_error() -> None:
    batches = batches_of(regression=True)
    settings = ATTACKS["relative"]
    loss, grads, drops, network = ours("at", settings, batches, classes=1)
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=1,
        adversarial_weight=1.0,
        divergence_weight=0.0,
        divergence="mse",
        reduction="sum",
    )
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("norm", "scope"), [("l2", "example"), ("linf_scaled", "token")])
def test_several_steps_climb_and_stay_within_the_budget(
    norm: str, scope: str, relative: bool
) -> None:
    batch = rows(5, 3, 6)
    settings = {
        "epsilon": 0.3,
        "relative": relative,
        "norm": norm,
        "attack_scope": scope,
        "ascent": {"steps": 3, "step_size": 0.6},
    }
    loss, grads, drops, network = ours("at", settings, [batch])
    weights = leaves(network)
    real = batch["attention_mask"].bool()
    embeddings = weights["words.weight"].detach()[batch["input_ids"]]
    whole = {"epsilon": 0.3, "relative": relative, "norm": norm, "scope": scope}
    delta = torch.zeros(3, 6, 4, dtype=torch.float64)
    total = torch.zeros((), dtype=torch.float64)
    for call in range(4):
        point = delta.clone().requires_grad_()
        output = reference.forward(weights, batch, drops, call=call, delta=point)
        mean = reference.row_losses(output, batch["labels"], None).sum() / 3
        if call in (0, 3):
            total = total + mean
        if call == 3:
            break
        (gradient,) = torch.autograd.grad(mean, point, retain_graph=True)
        moved = delta + reference.attack(
            gradient, embeddings, real, **{**whole, "epsilon": 0.3 * 0.6}
        )
        # Projection is what scales a too long step back to the budget's own length.
        ball = reference.attack(moved, embeddings, real, **whole)
        if norm == "l2":
            longer = moved.flatten(1).norm(dim=1) > ball.flatten(1).norm(dim=1)
            delta = torch.where(longer[:, None, None], ball, moved)
        else:
            radius = ball.abs().amax(-1, keepdim=True)
            delta = torch.clamp(moved, -radius, radius)
    assert torch.equal(delta[~real], torch.zeros_like(delta[~real]))
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("divergence", ["js", "sym_kl"])
def test_r_at_is_the_clean_loss_half_both_attacked_ones_and_a_divergence(
    divergence: str, reduction: str, regression: bool
) -> None:
    batches = batches_of(regression=regression)
    class_weights = None if regression else (0.5, 2.0, 1.25)
    settings = {"epsilon": 0.2, "divergence": divergence, "reduction": reduction}
    loss, grads, drops, network = ours(
        "r_at", settings, batches, class_weights=class_weights, classes=1 if regression else 3
    )
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=2,
        adversarial_weight=1.0,
        divergence_weight=0.5,
        divergence="mse" if regression else divergence,
        reduction=reduction,
        class_weights=class_weights,
    )
    compare(total, weights, loss, grads)


def test_r_at_as_released_moves_the_embedding_matrix_and_throws_the_attack_away() -> None:
    batch = rows(5, 3, 6)
    loss, grads, drops, network = ours("r_at", {"preset": "released"}, [batch])
    clean_pass, attack, _ = drops["before_head"]
    assert not torch.equal(attack, clean_pass)
    weights = leaves(network)
    output = reference.forward(weights, batch, drops, call=1)
    attacked = reference.row_losses(output, batch["labels"], None).mean()
    (matrix,) = torch.autograd.grad(attacked, weights["words.weight"])
    step = 1.0 * matrix / matrix.norm()
    moved = {**weights, "words.weight": weights["words.weight"] + step}
    clean = reference.forward(weights, batch, drops, call=0)
    outputs = [
        reference.forward(moved, batch, drops, call=2, rows=slice(3 * k, 3 * (k + 1)))
        for k in range(2)
    ]
    total = reference.row_losses(clean, batch["labels"], None).mean()
    for output in outputs:
        total = total + 0.5 * reference.row_losses(output, batch["labels"], None).mean()
    total = total + 0.5 * reference.pairs("sym_kl", outputs, reduction="sum", rows_of_step=3)
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("passes", [1, 2, 3])
@pytest.mark.parametrize("adaptive", ["gradient", "uniform", "fixed"])
def test_uegr_sums_clean_attacked_and_divergence(adaptive: str, passes: int) -> None:
    batches = batches_of()
    class_weights = (0.5, 2.0, 1.25)
    settings = {
        "epsilon": 0.2,
        "passes": passes,
        "adaptive": {
            "gradient": {"low": 0.3, "high": 0.5},
            "uniform": "uniform",
            "fixed": {"rates": (0.1, 0.5, 0.3)[:passes]},
        }[adaptive],
        "adversarial_weight": 0.8,
        "divergence_weight": 0.3,
    }
    loss, grads, drops, network = ours("uegr", settings, batches, class_weights=class_weights)
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=passes,
        adversarial_weight=0.8,
        divergence_weight=0.3,
        divergence="js",
        reduction="sum",
        class_weights=class_weights,
    )
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_uegr_on_a_regression_holds_the_passes_together_by_their_squared_difference(
    reduction: str,
) -> None:
    batches = batches_of(regression=True)
    settings = {"epsilon": 0.2, "reduction": reduction, "divergence_weight": 0.3}
    loss, grads, drops, network = ours("uegr", settings, batches, classes=1)
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=2,
        adversarial_weight=1.0,
        divergence_weight=0.3,
        divergence="mse",
        reduction=reduction,
    )
    compare(total, weights, loss, grads)


def test_a_dropped_attacked_loss_leaves_clean_loss_and_divergence() -> None:
    batches = batches_of()
    settings = {"epsilon": 0.2, "adversarial_weight": 0.0, "divergence_weight": 0.3}
    loss, grads, drops, network = ours("uegr", settings, batches)
    weights = leaves(network)
    total = attacked_total(
        weights,
        batches,
        drops,
        settings,
        passes=2,
        adversarial_weight=0.0,
        divergence_weight=0.3,
        divergence="js",
        reduction="sum",
    )
    compare(total, weights, loss, grads)
