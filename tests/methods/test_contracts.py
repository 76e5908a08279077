"""Settings of every registered method: bounds, refusals, warnings, presets."""

from __future__ import annotations

import logging
import re
import types
import typing
from collections.abc import Iterator, Mapping
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from temper import UEGR, Stepper
from temper.errors import SettingError
from temper.forward import plain
from temper.methods import build, compose, configure, entry, names, register
from temper.methods.plain import Plain
from temper.methods.selection import Selective
from temper.methods.uegr import Uniform
from temper.methods.variants import kinds_of
from temper.types import Step
from tests.methods.tiny import rows, tiny_network

EVERY = names()
# Each kind of bound as written, and the distance of a wrong value from it.
BOUNDS = {"ge": (">=", -1), "gt": (">", 0), "le": ("<=", 1), "lt": ("<", 0)}


def candidates(annotation: Any) -> st.SearchStrategy[Any]:
    """Return values of a field's type, in and out of bounds, and of other types."""
    origin, arguments_of = typing.get_origin(annotation), typing.get_args(annotation)
    other = st.sampled_from([None, "x", -1, float("nan"), [], {}])
    if annotation is bool:
        return st.booleans() | other
    if annotation is int:
        return st.integers(-2, 70) | other
    if annotation is float:
        return st.floats(-2, 200) | st.sampled_from([0.0, 1.0, float("inf")]) | other
    if origin is typing.Literal:
        return st.sampled_from(arguments_of) | other
    if origin in (typing.Union, types.UnionType):
        return st.one_of([candidates(each) for each in arguments_of if each is not type(None)])
    if origin is tuple:
        return st.lists(st.floats(-0.5, 1.5), max_size=3)
    return other


def settings_for(config: type[BaseModel]) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {},
        optional={
            name: candidates(field.annotation) for name, field in config.model_fields.items()
        },
    )


@pytest.mark.parametrize("name", EVERY)
def test_any_settings_configure_a_method_or_raise_one_setting_error(name: str) -> None:
    @given(settings_for(entry(name).config))
    def check(settings: dict[str, Any]) -> None:
        try:
            method = build(configure(name, settings))
        except SettingError:
            return
        assert method.name == name

    logging.disable(logging.WARNING)
    try:
        check()
    finally:
        logging.disable(logging.NOTSET)


def beyond_bounds(fields: Mapping[str, FieldInfo]) -> Iterator[tuple[dict[str, Any], str]]:
    """Yield settings with one value just out of bounds, and what the error must say."""
    for name, field in fields.items():
        for kind, variant in kinds_of(field).items():
            for inner, message in beyond_bounds(variant.model_fields):
                yield {name: {"kind": kind, **inner}}, f"{name}.{message}"
        for limit in field.metadata:
            for bound, (sign, further) in BOUNDS.items():
                edge = getattr(limit, bound, None)
                if edge is not None:
                    yield {name: edge + further}, f"{name}` must be {sign} {edge:g}"


@pytest.mark.parametrize("name", EVERY)
def test_a_value_beyond_a_bound_raises_an_error_with_the_setting_and_the_bound(name: str) -> None:
    config = entry(name).config
    for settings, message in beyond_bounds(config.model_fields):
        with pytest.raises(SettingError, match=re.escape(f"`{config.__name__}.{message}")):
            configure(name, settings)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("uegr", {"epsilom": 0.1}, "Did you mean 'UEGR.epsilon'"),
        ("uegr", {"alpha": 0.5}, "Did you mean 'UEGR.mask.alpha'"),
        ("uegr", {"mask": {"alhpa": 0.5}}, "setting of the kind 'selective' 'alhpa'. Did you mean"),
        ("uegr", {"adaptive": {"low": 0.5, "high": 0.2}}, "got low=0.5 and high=0.2"),
        ("uegr", {"adaptive": {"kind": "fixed", "rates": [0.1]}}, "needs 2 rates"),
        ("uegr", {"adaptive": {"rates": [0.1, 1.0]}}, "`UEGR.adaptive.rates` must be < 1"),
        ("uegr", {"adaptive": {"kind": "uniform", "low": 0.3}}, "'low' belongs to the kind"),
        ("uegr", {"adaptive": {"low": 0.3, "rates": [0.1, 0.2]}}, "'rates' belongs to the kind"),
        (
            "uegr",
            {"adaptive": "unifrom"},
            "`UEGR.adaptive`: Unknown kind .* mean 'uniform'",
        ),
        ("uegr", {"adaptive": "fixed"}, "`UEGR.adaptive.rates` is missing"),
        ("uegr", {"adaptive": 3}, "must be one of gradient, uniform, fixed, or a table with such"),
        ("at", {"norm": "l3"}, r"`AT.norm` must be 'l2', 'linf' or 'linf_scaled', got 'l3'"),
        ("r_drop", {"preset": "released_brt"}, "Did you mean 'released_bert'"),
        ("r_at", {"preset": "released", "relative": True}, "Set relative=False, norm='l2' and"),
        ("r_at", {"preset": "released", "norm": "linf", "site": "output"}, "got .*norm='linf'"),
        ("freelb", {"adversarial_weight": 0.0}, "both 0, so nothing is minimized"),
        ("pgd", {"adversarial_weight": 0.0}, "both 0, so nothing is minimized"),
        (
            "adv_embed",
            {"clean_weight": 0, "adversarial_weight": 0, "divergence_weight": 0},
            "nothing is minimized",
        ),
        ("adv_embed", {"clean_weight": float("inf")}, "`AdvEmbed.clean_weight`"),
        ("w_cons", {"weight": float("nan")}, "`WCons.weight`"),
        ("adv_weight", {"adaptive": {"kind": "off", "eta": 0.1}}, "belongs to the kind 'asam'"),
        ("lp_ft", {"probe": {"fraction": 0.1, "steps": 5}}, "'steps' belongs to the kind 'steps'"),
        ("rec_adam", {"anneal": {"kind": "off", "t0": 10}}, "belongs to the kind 'sigmoid'"),
        ("vat", {"ascent": {"kind": "single", "step_size": 0.3}}, "to the kind 'projected'"),
        ("jachess", {"strength": {"weight": 0.5, "ratio": 1.0}}, "belongs to the kind 'weight'"),
        ("jachess", {"strength": {"ratio": None}}, "`JacHess.strength.ratio` must be a valid"),
        ("jachess", {"jacobian_weight": 0, "hessian_weight": 0}, "above 0; to switch the penalty"),
        ("jachess", {"layers": {"kind": "logits", "rows": 8}}, "'log' or 'normalized' or"),
        ("jachess_unlabeled", {"preset": "lazy"}, "lazy"),
    ],
)
def test_the_error_of_a_wrong_setting_names_it_and_the_expected_value(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        configure(name, settings)


def test_all_errors_are_reported_at_once() -> None:
    with pytest.raises(SettingError, match=r"(?s)UEGR.mask.alpha.*UEGR.epsilon.*setting 'UEGR.x'"):
        configure("uegr", {"epsilon": -1, "x": 1, "mask": {"alpha": 7}})


SMALL = {"divergence": "js", "reduction": "mean", "divergence_weight": 0.0144}
FROZEN = {"same_dropout": True}


@pytest.mark.parametrize(
    ("name", "settings", "words"),
    [
        ("uegr", {"mask": {"normalize": "range", "beta": 5.0}}, ["almost nothing is updated"]),
        ("uegr", {"mask": {"normalize": "range", "beta": 4.9}}, []),
        ("uegr", {"mask": {"normalize": "range", "beta": 5.0, "orientation": "printed"}}, []),
        ("uegr", {"mask": {"beta": 10.0}}, []),
        ("uegr", SMALL, ["almost no effect"]),
        ("adv_embed", SMALL, ["almost no effect"]),
        ("r_at", SMALL, ["almost no effect"]),
        ("r_at", {**SMALL, "divergence_weight": 0.0145}, []),
        ("r_at", {**SMALL, "reduction": "sum"}, []),
        ("r_at", {**SMALL, "divergence": "sym_kl"}, []),
        ("r_at", {**SMALL, "divergence_weight": 0.0}, []),
        ("freelb", {"step_size": 0.1}, ["may reduce accuracy to chance"]),
        ("freelb", {"step_size": 0.1, "max_norm": 0.1}, []),
        ("freelb", {"init": 0.5}, ["may reduce accuracy to chance"]),
        ("freelb", {"step_size": 0.1, "relative": False}, []),
        ("freelb", {"step_size": 0.1, "adversarial_weight": 0.0, "clean_weight": 1.0}, []),
        ("r3f", {**FROZEN, "epsilon": 0.0009}, ["the method is inert"]),
        ("r3f", {**FROZEN, "epsilon": 0.001}, []),
        ("r3f", {**FROZEN, "weight": 0.0}, []),
        ("vat", {"init_noise": 1e-4}, ["rounding errors"]),
        ("vat", {"epsilon": 0.0}, ["next to nothing"]),
        ("vat", {"epsilon": 1e-5, "relative": False}, ["next to nothing"]),
        ("vat", {"epsilon": 0.01, "relative": False, "init_noise": 0.01}, ["mostly noise"]),
        ("vat", {"preset": "smart_paper", "weight": 0.0}, []),
        ("smart", {"preset": "paper"}, ["rounding errors", "inert"]),
        ("adv_weight", {"rho": 2.0}, ["radius for adaptive=True"]),
        ("adv_weight", {"rho": 2.0, "adaptive": True}, []),
        *((name, {}, []) for name in EVERY),
    ],
)
def test_settings_with_too_little_or_too_much_effect_warn(
    name: str, settings: dict[str, Any], words: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        configure(name, settings)
    assert len(caplog.records) == len(words)
    assert all(each in caplog.text for each in words)


@pytest.mark.parametrize("name", ["freelb", "pgd", "adv_embed"])
def test_without_an_attack_the_clean_loss_keeps_its_weight(name: str) -> None:
    off = dict.fromkeys(("adversarial_weight", "divergence_weight"), 0.0)
    known = {key: off[key] for key in off if key in entry(name).config.model_fields}
    light = configure(name, {**known, "clean_weight": 0.3})
    assert light.plan(Step()) == plain(0.3)


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        UEGR().epsilon = 1.0  # type: ignore[misc]


def test_settings_override_a_preset_and_complete_its_tables() -> None:
    result = UEGR.preset("sentiment", mask={"alpha": 0.7})
    assert (result.mask.alpha, result.mask.beta) == (0.7, 10.0)
    assert configure("uegr", {"preset": "paper", "adaptive": {"high": 0.4}}).adaptive.low == 0.3
    assert configure("uegr", {"preset": "paper", "adaptive": "uniform"}).adaptive == Uniform()
    assert configure("roast", {"mask": {"alpha": 0.9}}).mask.refresh == "epoch"
    assert configure("roast", {"mask": Selective(alpha=0.9)}).mask.refresh == "epoch"


def test_one_pass_has_no_divergence_and_no_adversarial_weight_then_is_plain() -> None:
    stepper = Stepper(tiny_network(), UEGR(passes=1, adversarial_weight=0.0, mask=False))
    assert set(stepper.backward(rows(5, 3))) == {"loss", "loss/task", "gradient/task"}
    stepper = Stepper(tiny_network(), UEGR(passes=1))
    assert "loss/divergence" not in stepper.backward(rows(5, 3))


def test_a_name_is_registered_once_and_an_unknown_one_lists_near_ones() -> None:
    assert EVERY[0] == "plain"
    with pytest.raises(ValueError, match="named 'plain' is registered already"):
        register("plain", summary="x", cost="3F", memory="none", paper="x")(Plain)
    with pytest.raises(SettingError, match="Unknown method 'uerg'. Did you mean 'uegr'"):
        build("uerg")


def test_a_method_can_be_given_as_name_or_method() -> None:
    method = UEGR()
    assert build(method) is method
    assert build("uegr") == method


@pytest.mark.parametrize("wrong", [3, None, UEGR])
def test_what_is_no_method_raises_a_setting_error(wrong: Any) -> None:
    for function in (build, compose):
        with pytest.raises(SettingError, match="a method or its name"):
            function(wrong)
