"""What every registered method keeps: the off law, its settings' bounds, the registry's words."""

from __future__ import annotations

import copy
import logging
import types
import typing
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from pydantic import BaseModel
from torch import nn

from temper import UEGR, RobustTrainer, Stepper
from temper.errors import SettingError, TemperError
from temper.methods import Method, build, configure, entry, names, register
from temper.methods.selection import Selective
from temper.methods.uegr import Uniform
from temper.methods.vanilla import Vanilla
from temper.training.checks import wants_unlabelled
from temper.types import Batch, Step
from tests.backward.test_rule import arguments, dataset
from tests.methods.tiny import rows, tiny_bert, tiny_network

EVERY = names()
FIRST = {"vanilla", "at", "dropout", "r_at", "r_at_su", "r_drop", "uegr"}


def train(model: nn.Module, method: Method, *, steps: int = 3) -> dict[str, torch.Tensor]:
    """Take steps of AdamW over two micro-batches each and return the weights."""
    stepper = Stepper(model, method, seed=3, total=steps, special_ids=(1, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stepper.prepare([rows(5, 3)])
    stepper.begin_epoch(0)
    for step in range(steps):
        optimizer.zero_grad()
        batches = [rows(5, 3, seed=step), rows(4, seed=step + 10)]
        if wants_unlabelled(stepper.method):
            del batches[1]["labels"]
        stepper.backward(*batches)
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
    stepper.finish()
    stepper.release()
    return {name: value.clone() for name, value in model.state_dict().items()}


def test_the_seven_methods_are_registered_vanilla_first() -> None:
    assert set(EVERY) >= FIRST
    assert EVERY[0] == "vanilla"


def test_off_is_plain_fine_tuning_in_the_trainer_too(tmp_path: Path) -> None:
    found = []
    for place, method in enumerate([build("vanilla"), *[build(n).off() for n in EVERY[1:]]]):
        model = tiny_bert()
        settings = arguments(tmp_path / str(place), optim="adamw_torch", learning_rate=1e-2)
        RobustTrainer(model, settings, method=method, train_dataset=dataset()).train()
        found.append(model.state_dict())
    for other in found[1:]:
        assert all(torch.equal(other[key], found[0][key]) for key in found[0])


@pytest.mark.parametrize("name", ["vanilla", "at", "r_at", "r_drop", "uegr"])
def test_without_dropout_the_mean_over_ranks_equals_one_process(name: str) -> None:
    settings = {"mask": False, "adaptive": {"low": 0.0, "high": 0.0}} if name == "uegr" else {}
    whole = rows(5, 3, 6, 4)
    one = Stepper(tiny_network(rate=0.0), configure(name, settings))
    one.backward(whole)
    halves = []
    for rank in range(2):
        half = {key: value[2 * rank : 2 * rank + 2] for key, value in whole.items()}
        stepper = Stepper(tiny_network(rate=0.0), configure(name, settings))
        stepper.accumulate(Batch.of(half), Step(rows=4, ranks=2))
        halves.append(stepper.params.gradients())
    for key, gradient in one.params.gradients().items():
        torch.testing.assert_close((halves[0][key] + halves[1][key]) / 2, gradient)


# Settings


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
def test_any_settings_give_a_method_or_one_setting_error(name: str) -> None:
    @given(settings_for(entry(name).config))
    def check(settings: dict[str, Any]) -> None:
        try:
            method = build(configure(name, settings))
        except SettingError:
            return
        assert method.name == name
        assert method.off().config.off() == method.off().config

    logging.disable(logging.WARNING)
    try:
        check()
    finally:
        logging.disable(logging.NOTSET)


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        ("uegr", {"epsilon": -0.1}, r"`UEGR.epsilon` must be >= 0, got -0.1"),
        ("uegr", {"mask": {"alpha": 1.5}}, r"`UEGR.mask.alpha` must be <= 1"),
        ("uegr", {"mask": {"beta": 0.0}}, r"`UEGR.mask.beta` must be > 0"),
        ("uegr", {"passes": 0}, r"`UEGR.passes` must be >= 1"),
        (
            "uegr",
            {"adaptive": {"low": 0.5, "high": 0.2}},
            "low must be at most high, got low=0.5 and high=0.2",
        ),
        ("uegr", {"adaptive": {"kind": "fixed", "rates": [0.1]}}, "needs 2 rates, one a pass, got"),
        (
            "uegr",
            {"adaptive": {"kind": "fixed", "rates": [0.1, 1.0]}},
            "`UEGR.adaptive.rates` must be < 1",
        ),
        ("uegr", {"epsilom": 0.1}, "Did you mean 'UEGR.epsilon'"),
        ("at", {"ascent": {"steps": 1}}, r"`AT.ascent.steps` must be >= 2"),
        ("at", {"norm": "l3"}, r"`AT.norm` must be 'l2', 'linf' or 'linf_scaled', got 'l3'"),
        ("dropout", {"rate": 1.0}, r"`Dropout.rate` must be < 1"),
        ("r_drop", {"preset": "released_brt"}, "Did you mean 'released_bert'"),
        ("r_at", {"preset": "released", "relative": True}, "set relative=False, norm='l2' and"),
        (
            "r_at",
            {"preset": "released", "norm": "linf", "site": "output"},
            "got .*norm='linf'",
        ),
        ("uegr", {"alpha": 0.5}, "Did you mean 'UEGR.mask.alpha'"),
        ("uegr", {"mask": {"alhpa": 0.5}}, "setting of the kind 'selective' 'alhpa'. Did you mean"),
    ],
)
def test_a_wrong_setting_says_where_what_was_expected_and_what_came(
    name: str, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        configure(name, settings)


def test_all_faults_are_told_at_once() -> None:
    with pytest.raises(SettingError, match=r"(?s)UEGR.mask.alpha.*UEGR.epsilon.*setting 'UEGR.x'"):
        configure("uegr", {"epsilon": -1, "x": 1, "mask": {"alpha": 7}})


def test_an_unknown_method_lists_near_ones() -> None:
    with pytest.raises(SettingError, match="Unknown method 'uerg'. Did you mean 'uegr'"):
        build("uerg")


def test_settings_are_frozen() -> None:
    with pytest.raises(ValueError, match="frozen"):
        UEGR().epsilon = 1.0  # type: ignore[misc]


def test_a_preset_gives_way_to_what_is_set() -> None:
    found = UEGR.preset("sentiment", mask={"alpha": 0.7})
    assert (found.mask.alpha, found.mask.beta) == (0.7, 10.0)


def test_a_preset_s_tables_are_completed_and_another_kind_replaces_them() -> None:
    assert configure("uegr", {"preset": "paper", "adaptive": {"high": 0.4}}).adaptive.low == 0.3
    assert configure("uegr", {"preset": "paper", "adaptive": "uniform"}).adaptive == Uniform()
    assert configure("roast", {"mask": {"alpha": 0.9}}).mask.refresh == "epoch"
    assert configure("roast", {"mask": Selective(alpha=0.9)}).mask.refresh == "epoch"


@pytest.mark.parametrize(
    ("settings", "warned"),
    [
        ({"mask": {"normalise": "range", "beta": 5.0}}, True),
        ({"mask": {"normalise": "range", "beta": 4.9}}, False),
        ({"mask": {"normalise": "range", "beta": 5.0, "orientation": "printed"}}, False),
        ({"mask": {"beta": 10.0}}, False),
    ],
)
def test_range_normalisation_of_a_sharp_rising_probability_warns(
    settings: dict[str, Any], warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        configure("uegr", settings)
    assert ("almost nothing moves" in caplog.text) == warned


def test_one_pass_has_no_divergence_and_no_adversarial_weight_then_is_plain() -> None:
    model = tiny_network()
    stepper = Stepper(model, UEGR(passes=1, adversarial_weight=0.0, mask=False))
    logs = stepper.backward(rows(5, 3))
    assert set(logs) == {"loss", "loss/task", "gradient/task"}
    stepper = Stepper(tiny_network(), UEGR(passes=1))
    assert "loss/divergence" not in stepper.backward(rows(5, 3))


def test_a_name_is_registered_once() -> None:
    with pytest.raises(ValueError, match="named 'vanilla' is registered already"):
        register("vanilla", summary="x", cost="3F", memory="none", paper="x")(Vanilla)


def test_a_method_can_be_given_as_name_settings_or_method() -> None:
    method = UEGR().build()
    assert build(method) is method
    assert build(UEGR()).config == build("uegr").config == method.config


def test_class_weights_on_a_regression_are_refused() -> None:
    stepper = Stepper(tiny_network(classes=1), "vanilla", class_weights=[1.0])
    with pytest.raises(TemperError, match="have no classes"):
        stepper.backward(rows(5, 3, regression=True))


def test_a_copied_model_trains_alike() -> None:
    model = tiny_bert()
    other = copy.deepcopy(model)
    first, second = train(model, build("uegr"), steps=1), train(other, build("uegr"), steps=1)
    assert all(torch.equal(first[key], second[key]) for key in first)
