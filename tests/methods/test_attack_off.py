"""A weight of 0 switches an attack off, or an error names the setting that keeps it on."""

from __future__ import annotations

from typing import Any

import pytest
from torch import Tensor

from temper import Stepper
from temper.errors import SettingError
from temper.methods import configure, entry, names
from temper.training.config import wants_unlabeled
from tests.methods.perturbed import deltas
from tests.methods.tiny import rows, tiny_bert

__all__ = ["deltas"]

BATCH = rows(5, 3)
MOVING = [name for name in names() if "perturbation" in entry(name).conflicts["losses"]]
WEIGHTS = ("adversarial_weight", "weight")


def weight_of_attack(name: str) -> str | None:
    """Return the setting that a user would set to 0, of a method that perturbs embeddings."""
    return next((each for each in WEIGHTS if each in entry(name).config.model_fields), None)


ATTACKS = {name: weight for name in MOVING if (weight := weight_of_attack(name))}


def step(config: Any) -> None:
    stepper = Stepper(tiny_bert(), config, total=2, special_ids=(1, 2))
    assert not wants_unlabeled(stepper.method)
    stepper.prepare([BATCH])
    stepper.begin_epoch(0)
    stepper.backward(BATCH)


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_perturbs_embeddings_by_default(name: str, deltas: list[Tensor]) -> None:
    step(configure(name))
    assert any(each.any() for each in deltas)


@pytest.mark.parametrize("name", ATTACKS)
def test_a_weight_of_0_disables_the_perturbation_or_raises_an_error(
    name: str, deltas: list[Tensor]
) -> None:
    config, message = switched_off(name)
    if config is None:
        others = set(entry(name).config.model_fields) - {ATTACKS[name]}
        assert any(f"{each}=" in message or f" {each} " in message for each in others)
        return
    step(config)
    assert deltas
    assert not any(each.any() for each in deltas)


def switched_off(name: str) -> tuple[Any, str]:
    """Return settings with the attack's weight at 0, or why there are none."""
    try:
        return configure(name, {ATTACKS[name]: 0.0}), ""
    except SettingError as error:
        return None, str(error)


@pytest.mark.parametrize("name", ["uegr", "r_at", "r_at_su", "adv_embed", "roast"])
def test_only_both_weights_at_0_disable_the_attack(name: str, deltas: list[Tensor]) -> None:
    with pytest.raises(SettingError, match="set divergence_weight=0 too"):
        configure(name, {"adversarial_weight": 0.0})
    step(configure(name, {"adversarial_weight": 0.0, "divergence_weight": 0.0}))
    assert not any(each.any() for each in deltas)
    deltas.clear()
    step(configure(name, {"adversarial_weight": 0.0, "divergence_weight": 0.01}))
    assert any(each.any() for each in deltas)


def test_an_epsilon_of_0_keeps_the_sub_models_without_a_perturbation(deltas: list[Tensor]) -> None:
    step(configure("uegr", {"epsilon": 0.0}))
    assert len(deltas) == 2
    assert not any(each.any() for each in deltas)


@pytest.mark.parametrize(("epsilon", "warned"), [(0.0, 1), (0.1, 0)])
def test_an_attack_of_size_0_without_dropout_warns(
    epsilon: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(
        tiny_bert(dropout=0.0, attention=0.0), configure("adv_embed", {"epsilon": epsilon})
    )
    stepper.backward(BATCH)
    assert caplog.text.count("Every dropout rate of") == warned


def test_all_known_attacks_are_tested() -> None:
    assert {"at", "pgd", "freelb", "r_at", "r_at_su", "uegr", "adv_embed", "roast"} <= set(ATTACKS)


SPARING = [name for name in MOVING if "special_tokens" in entry(name).config.model_fields]


@pytest.mark.parametrize("name", SPARING)
def test_special_tokens_can_be_excluded_from_every_attack(name: str, deltas: list[Tensor]) -> None:
    step(configure(name, {"special_tokens": False}))
    special = BATCH["input_ids"] <= 2
    moved = [each.unflatten(0, (-1, len(special))) for each in deltas if each.any()]
    assert moved
    assert not any(each[:, special].any() for each in moved)
