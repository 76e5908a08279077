"""Every method against a loop written from its equation: total loss and every weight's gradient."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tests.methods import reference
from tests.methods.tiny import rows
from tests.methods.weights import compare, expected_loss, leaves, ours, two_batches


@pytest.mark.parametrize(
    ("regression", "class_weights"), [(False, None), (False, (0.5, 2.0, 1.25)), (True, None)]
)
def test_plain_is_the_mean_cross_entropy_over_all_micro_batches(
    regression: bool, class_weights: Sequence[float] | None
) -> None:
    batches, classes = two_batches(regression=regression), 1 if regression else 3
    loss, grads, drops, network = ours(
        "plain", {}, batches, class_weights=class_weights, classes=classes
    )
    weights = leaves(network)
    total = expected_loss(weights, batches, drops, class_weights=class_weights)
    compare(total, weights, loss, grads)


def test_dropout_drops_at_the_set_rate_everywhere() -> None:
    batches = two_batches()
    loss, grads, drops, network = ours("dropout", {"rate": 0.5}, batches)
    for calls in drops.values():
        for multipliers in calls:
            assert set(multipliers.unique().tolist()) <= {0.0, 2.0}
    weights = leaves(network)
    compare(expected_loss(weights, batches, drops), weights, loss, grads)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("divergence", ["js", "sym_kl"])
def test_r_drop_is_half_both_losses_and_a_weighted_divergence(
    divergence: str, reduction: str, regression: bool
) -> None:
    batches = two_batches(regression=regression)
    settings = {"weight": 0.7, "divergence": divergence, "reduction": reduction}
    loss, grads, drops, network = ours("r_drop", settings, batches, classes=1 if regression else 3)
    weights = leaves(network)
    total = torch.zeros((), dtype=torch.float64)
    for index, batch in enumerate(batches):
        size = len(batch["labels"])
        first, second = (
            reference.forward(
                weights, batch, drops, call=index, rows=slice(size * k, size * (k + 1))
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


def check_attacked(
    name: str,
    settings: dict[str, Any],
    *,
    passes: int = 1,
    adversarial_weight: float = 1.0,
    divergence_weight: float = 0.0,
    divergence: str = "js",
    class_weights: Sequence[float] | None = None,
    regression: bool = False,
) -> None:
    """Compare with ``CE(x) + w 1/K sum CE_k(x + delta) + lambda sum_{l<k} D`` (Eqs. 2 to 6)."""
    batches = two_batches(regression=regression)
    loss, grads, drops, network = ours(
        name,
        settings,
        batches,
        class_weights=class_weights,
        classes=1 if regression else 3,
        special_ids=(1, 2),
    )
    weights, reduction = leaves(network), settings.get("reduction", "sum")
    kind = "mse" if regression else divergence
    site, ascent = settings.get("site", "word"), settings.get("ascent", {})
    steps, special = ascent.get("steps", 1), settings.get("special_tokens", True)
    total = torch.zeros((), dtype=torch.float64)
    count = sum(len(batch["labels"]) for batch in batches)
    for index, batch in enumerate(batches):
        size, first = len(batch["labels"]), (steps + 1) * index
        around = reference.surroundings(
            weights, batch, drops, call=first, site=site, special_tokens=special
        )
        delta = torch.zeros_like(around[0])
        for step in range(steps):
            point = delta.clone().requires_grad_()
            output = reference.forward(
                weights, batch, drops, call=first + step, delta=point, site=site
            )
            mean = reference.row_losses(output, batch["labels"], class_weights).sum() / count
            if not step:
                total = total + mean
            fraction = ascent.get("step_size", 1.0)
            delta = reference.climb(
                mean, point, around, reference.geometry(settings), fraction=fraction
            )
        outputs = []
        for k in range(passes):
            rows_of_pass = slice(size * k, size * (k + 1))
            outputs.append(
                reference.forward(
                    weights,
                    batch,
                    drops,
                    call=first + steps,
                    rows=rows_of_pass,
                    delta=delta,
                    site=site,
                )
            )
            losses = reference.row_losses(outputs[-1], batch["labels"], class_weights)
            total = total + adversarial_weight * losses.sum() / (passes * count)
        total = total + divergence_weight * reference.pairs(
            kind, outputs, reduction=reduction, rows_of_step=count
        )
    compare(total, weights, loss, grads)


@pytest.mark.parametrize("attack", ATTACKS)
def test_at_is_the_clean_loss_plus_the_loss_at_one_step(attack: str) -> None:
    settings = {**ATTACKS[attack], "adversarial_weight": 0.6}
    check_attacked("at", settings, adversarial_weight=0.6)


def test_at_on_a_regression_attacks_the_squared_error() -> None:
    check_attacked("at", ATTACKS["relative"], regression=True)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize(("norm", "scope"), [("l2", "example"), ("linf_scaled", "token")])
def test_several_steps_climb_and_stay_within_the_budget(
    norm: str, scope: str, relative: bool
) -> None:
    settings = {
        "epsilon": 0.3,
        "relative": relative,
        "norm": norm,
        "attack_scope": scope,
        "ascent": {"steps": 3, "step_size": 0.6},
    }
    check_attacked("at", settings)


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("divergence", ["js", "sym_kl"])
def test_r_at_is_the_clean_loss_half_both_attacked_ones_and_a_divergence(
    divergence: str, reduction: str, regression: bool
) -> None:
    check_attacked(
        "r_at",
        {"epsilon": 0.2, "divergence": divergence, "reduction": reduction},
        passes=2,
        divergence_weight=0.5,
        divergence=divergence,
        class_weights=None if regression else (0.5, 2.0, 1.25),
        regression=regression,
    )


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
def test_uegr_is_the_sum_of_clean_loss_attacked_losses_and_divergence(
    adaptive: str, passes: int
) -> None:
    rates = {
        "gradient": {"low": 0.3, "high": 0.5},
        "uniform": "uniform",
        "fixed": {"rates": (0.1, 0.5, 0.3)[:passes]},
    }
    check_attacked(
        "uegr",
        {
            "epsilon": 0.2,
            "passes": passes,
            "adaptive": rates[adaptive],
            "adversarial_weight": 0.8,
            "divergence_weight": 0.3,
        },
        passes=passes,
        adversarial_weight=0.8,
        divergence_weight=0.3,
        class_weights=(0.5, 2.0, 1.25),
    )


@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_uegr_on_a_regression_penalizes_squared_differences_of_passes(
    reduction: str,
) -> None:
    settings = {"epsilon": 0.2, "reduction": reduction, "divergence_weight": 0.3}
    check_attacked("uegr", settings, passes=2, divergence_weight=0.3, regression=True)


def test_a_dropped_attacked_loss_leaves_clean_loss_and_divergence() -> None:
    settings = {"epsilon": 0.2, "adversarial_weight": 0.0, "divergence_weight": 0.3}
    check_attacked("uegr", settings, passes=2, adversarial_weight=0.0, divergence_weight=0.3)
