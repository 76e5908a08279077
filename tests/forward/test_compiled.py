"""The smoothness penalty on a model that ``torch.compile`` has wrapped."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

from temper import Stepper
from temper.errors import ModelError
from temper.methods import configure
from tests.methods.tiny import rows, tiny_bert

SETTINGS: dict[str, Any] = {"strength": {"weight": 1e-3}, "layers": "uniform"}


def gradients(*, compiled: bool, scheme: str) -> dict[str, torch.Tensor]:
    model = tiny_bert(dropout=0.0, attention=0.0, num_hidden_layers=1).double()
    # This backend compiles no kernels, but traces and cuts the graph as the others do.
    given: Any = torch.compile(model, backend="aot_eager") if compiled else model
    stepper = Stepper(given, configure("jachess", {**SETTINGS, "scheme": scheme}), seed=1)
    stepper.backward(rows(5, 3))
    return {name: p.grad for name, p in model.named_parameters() if p.grad is not None}


def test_four_point_scheme_has_the_same_gradient_when_compiled() -> None:
    plain = gradients(compiled=False, scheme="four_point")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        result = gradients(compiled=True, scheme="four_point")
    assert result.keys() == plain.keys()
    for name, gradient in plain.items():
        torch.testing.assert_close(result[name], gradient, rtol=1e-5, atol=1e-7, msg=name)


def test_schemes_with_a_second_derivative_raise_an_error_for_a_compiled_model() -> None:
    with pytest.raises(ModelError, match="Do not compile it. Use scheme='four_point'"):
        gradients(compiled=True, scheme="difference")
