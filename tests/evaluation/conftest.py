"""A tiny random BERT with a tokenizer of a small vocabulary, and small sets of texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pytest
from transformers import PreTrainedTokenizerFast

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import EvaluationData
from temper.evaluation.settings import EvaluationSettings
from temper.testing import tiny
from tests.cli.tiny_project import tiny_data, tiny_model

__all__ = ["tiny_data", "tiny_model"]


def assert_same_scores(again: list[dict[str, Any]], scores: list[dict[str, Any]]) -> None:
    """Check that rows have the same scores again, up to the order of sums in a kernel."""
    assert len(again) == len(scores)
    for one, other in zip(again, scores, strict=True):
        rounded = {name for name, value in other.items() if isinstance(value, float)}
        assert {**one, **dict.fromkeys(rounded)} == {**other, **dict.fromkeys(rounded)}
        for name in rounded:
            assert one[name] == pytest.approx(other[name], rel=1e-9, abs=1e-12, nan_ok=True), name


make_tokenizer, make_model, make_examples = (
    tiny.tiny_tokenizer,
    tiny.tiny_model,
    tiny.tiny_examples,
)


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return make_tokenizer()


@pytest.fixture
def model() -> Any:
    return make_model()


@pytest.fixture
def model_of() -> Callable[..., Any]:
    return make_model


@pytest.fixture
def examples_of() -> Callable[..., Examples]:
    return make_examples


@pytest.fixture
def predictor(model: Any, tokenizer: Any) -> ClassifierPredictor:
    return ClassifierPredictor(model, tokenizer, max_length=64)


@pytest.fixture
def data(examples_of: Any) -> EvaluationData:
    return EvaluationData(
        examples_of(rows=30),
        shift={"far": examples_of("far", rows=20)},
        anomaly={"odd": examples_of("odd", rows=15, kind="unlabeled")},
    )


def changed(settings: EvaluationSettings, values: Mapping[str, Any]) -> EvaluationSettings:
    """Return the settings with some other values; of a perspective's section, with some of them."""
    whole: dict[str, Any] = settings.model_dump()
    for name, value in values.items():
        within = isinstance(value, Mapping) and isinstance(whole.get(name), dict)
        whole[name] = {**whole[name], **value} if within else value
    return EvaluationSettings(**whole)
