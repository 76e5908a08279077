"""A tiny random BERT with a tokenizer of a small vocabulary, and small sets of texts."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import BertConfig, BertForSequenceClassification, PreTrainedTokenizerFast

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import EvaluationData
from tests.models.tiny_text import MARKS, marked

WORDS = [f"word{number}" for number in range(95)]


def assert_same_scores(again: list[dict[str, Any]], scores: list[dict[str, Any]]) -> None:
    """Check that rows give the same scores again, whatever order a kernel adds them up in."""
    assert len(again) == len(scores)
    for one, other in zip(again, scores, strict=True):
        rounded = {name for name, value in other.items() if isinstance(value, float)}
        assert {**one, **dict.fromkeys(rounded)} == {**other, **dict.fromkeys(rounded)}
        for name in rounded:
            assert one[name] == pytest.approx(other[name], rel=1e-9, abs=1e-12, nan_ok=True), name


def make_tokenizer() -> PreTrainedTokenizerFast:
    """Return a word-level tokenizer that adds [CLS] and [SEP]."""
    vocabulary = {word: number for number, word in enumerate([*MARKS, *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    return marked(core, length=64)


def make_model(*, classes: int = 2, seed: int = 0, scale: float = 1.0) -> Any:
    """Return a random BERT whose embeddings are large enough that words matter."""
    torch.manual_seed(seed)
    config = BertConfig(
        vocab_size=100,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        num_labels=classes,
    )
    model = BertForSequenceClassification(config)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight.normal_(0, 0.5)
        model.classifier.weight.normal_(0, scale)
    return model


def make_examples(
    name: str = "dev",
    rows: int = 24,
    *,
    seed: int = 0,
    classes: int = 2,
    kind: Any = "classification",
    **more: Any,
) -> Examples:
    """Return distinct texts of 1 to 12 words with arbitrary labels."""
    draw = random.Random(f"{name} {seed}")
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(1, 12))) for _ in range(rows)]
    labels: Any = None
    if kind == "classification":
        labels = [index % classes for index in range(rows)]
    elif kind == "regression":
        labels = [draw.uniform(-1, 1) for _ in range(rows)]
    return Examples(name, texts, labels=labels, kind=kind, **more)


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
        anomaly={"odd": examples_of("odd", rows=15, kind="unlabelled")},
    )
