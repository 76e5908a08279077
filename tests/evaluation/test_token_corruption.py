"""Token corruption: predictions for corrupted texts, their curve, and refused settings."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, processors
from transformers import (
    AutoModelForSequenceClassification,
    AutoTokenizer,
    BertForSequenceClassification,
    BertForTokenClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
)

from temper.data.corruptions import corrupt
from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate
from temper.functional.entities import COUNTS, tag_counts
from temper.functional.scores import measure_of
from temper.testing.tiny import WORDS
from tests.evaluation.conftest import changed, make_model
from tests.messages import assert_messages

ONLY = EvaluationSettings(perspectives=("token_corruption",), bootstrap=20)
KINDS = ("random", "mask", "drop")


def left_padded() -> Any:
    """Return the tokenizer of a decoder: it pads on the left and knows no mask token."""
    vocabulary = {word: number for number, word in enumerate(["<pad>", "<unk>", "<s>", *WORDS])}
    core = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    core.pre_tokenizer = pre_tokenizers.Whitespace()
    core.post_processor = processors.TemplateProcessing(
        single="<s> $A", pair="<s> $A <s> $B", special_tokens=[("<s>", 2)]
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token="<pad>",
        unk_token="<unk>",
        bos_token="<s>",
        padding_side="left",
        model_max_length=64,
    )


def sharpened(network: Any, *, only: str = "") -> Any:
    """Redraw a network's matrices so large that a single word moves its output well above 1e-5."""
    draw = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for name, weight in network.named_parameters():
            if weight.dim() == 2 and name.startswith(only):
                weight.normal_(0, 0.4, generator=draw)
    return network


def tiny_decoder() -> Any:
    config = LlamaConfig(
        vocab_size=98,
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        num_labels=2,
        pad_token_id=0,
        bos_token_id=2,
        eos_token_id=None,
    )
    return sharpened(LlamaForSequenceClassification(config))


@pytest.fixture(params=["encoder", "decoder", "minilm"])
def predictor(request: pytest.FixtureRequest, tokenizer: Any) -> ClassifierPredictor:
    if request.param == "encoder":
        return ClassifierPredictor(sharpened(make_model()), tokenizer, max_length=64)
    if request.param == "decoder":
        return ClassifierPredictor(tiny_decoder(), left_padded(), max_length=64)
    folder = request.getfixturevalue("minilm")
    network = AutoModelForSequenceClassification.from_pretrained(folder, num_labels=2)
    sharpened(network, only="classifier")
    return ClassifierPredictor(network, AutoTokenizer.from_pretrained(folder), max_length=32)


@pytest.fixture
def encoder(model: Any, tokenizer: Any) -> ClassifierPredictor:
    return ClassifierPredictor(sharpened(model), tokenizer, max_length=64)


def corrupted(result: Any) -> dict[tuple[str, float], Block]:
    """Return the blocks of corrupted rows by kind and rate."""
    return {
        (block.condition.name, block.condition.parameters.number("rate") or 0.0): block
        for block in to_blocks(result.rows)
        if block.condition.perspective == "token_corruption"
    }


def values(result: Any, name: str, kind: str) -> list[float]:
    """Return the scores of a name and kind, in the order of their rates."""
    return [
        entry["value"]
        for entry in result.scores
        if (entry["perspective"], entry["name"], entry["condition"])
        == ("token_corruption", name, kind)
    ]


def test_every_row_is_predicted_as_its_corrupted_tokens_alone_would_be(
    predictor: ClassifierPredictor, examples_of: Any
) -> None:
    dev = examples_of(rows=4)
    blocks = corrupted(evaluate(predictor, EvaluationData(dev), ONLY))
    kinds = [kind for kind in KINDS if kind != "mask" or predictor.tokenizer.mask_token]
    assert list(blocks) == [(kind, rate) for kind in kinds for rate in (0.05, 0.1, 0.2)]
    predictor.model.eval()
    clean = predictor.predict(dev).probabilities
    for (kind, rate), block in blocks.items():
        if rate == 0.2:
            assert np.abs(block.probabilities - clean).max() > 1e-3
        for index, text in enumerate(dev.text):
            item = {name: list(ids) for name, ids in predictor.tokenizer(text).items()}
            changed = corrupt(
                item,
                kind=kind,
                rate=rate,
                row=dev.rows[index],
                vocabulary=predictor.vocabulary(),
            )
            inputs = {name: torch.tensor([ids]) for name, ids in changed.items()}
            with torch.no_grad():
                wanted = predictor.model(**inputs).logits.double().softmax(-1)[0]
            assert block.probabilities[index] == pytest.approx(wanted.numpy(), abs=1e-5)


def test_the_area_of_each_kind_is_the_mean_over_its_rates(
    encoder: ClassifierPredictor, examples_of: Any
) -> None:
    settings = EvaluationSettings(
        perspectives=("task", "token_corruption"),
        token_corruption={"rates": (0.4, 0.1)},
        bootstrap=20,
    )
    result = evaluate(encoder, EvaluationData(examples_of(rows=40)), settings)
    clean = result.scores[0]["value"]
    for kind in KINDS:
        high, low = values(result, "accuracy", kind)
        # Trapezoids of the widths .1 and .3.
        wanted = (0.1 * (clean + low) / 2 + 0.3 * (low + high) / 2) / 0.4
        assert values(result, "area", kind) == [pytest.approx(wanted)]
    entries = [e for e in result.scores if e["perspective"] == "token_corruption"]
    assert len(entries) == 9
    assert [e["parameters"]["rate"] for e in entries if e["name"] == "accuracy"] == [0.4, 0.1] * 3
    assert all(e["low"] <= e["value"] <= e["high"] for e in entries)


def test_a_regression_has_its_errors_and_an_area_that_may_be_worse_lower(
    model_of: Any, tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    data = EvaluationData(examples_of(kind="regression"), metric="mse")
    result = evaluate(predictor, data, ONLY)
    block = corrupted(result)["mask", 0.2]
    wanted = np.mean((block.prediction - block.label) ** 2)
    assert values(result, "mse", "mask")[2] == pytest.approx(wanted)
    (entry,) = [e for e in result.scores if (e["name"], e["condition"]) == ("area", "mask")]
    assert entry["higher_is_better"] is False


def test_masking_without_a_mask_token_is_skipped_with_a_notice(examples_of: Any) -> None:
    predictor = ClassifierPredictor(tiny_decoder(), left_padded(), max_length=64)
    result = evaluate(predictor, EvaluationData(examples_of(rows=5)), ONLY)
    assert_messages(result.notices, "'mask' is left out: .*no mask token")
    assert {kind for kind, _ in corrupted(result)} == {"random", "drop"}


def test_only_masking_without_a_mask_token_raises_an_error_before_any_work(
    examples_of: Any,
) -> None:
    decoder = tiny_decoder()
    decoder.register_forward_pre_hook(lambda *_: pytest.fail("the model was run"))
    predictor = ClassifierPredictor(decoder, left_padded(), max_length=64)
    settings = changed(ONLY, {"token_corruption": {"kinds": ("mask",)}})
    message = "supports none of `kinds`: not 'mask' .*no mask token"
    with pytest.raises(SettingError, match=message):
        evaluate(predictor, EvaluationData(examples_of(rows=5)), settings)


def test_corrupted_tokens_keep_the_tags_of_their_words(tokenizer: Any, examples_of: Any) -> None:
    names = ["O", "B-X", "I-X"]
    texts = examples_of(rows=6, kind="unlabeled").text
    words = [text.split(" ") for text in texts]
    labels = [[position % 3 for position in range(len(row))] for row in words]
    dev = Examples("dev", texts, labels=labels, label_names=names, kind="tokens")
    network = sharpened(BertForTokenClassification(make_model(classes=3).config))
    predictor = ClassifierPredictor(network.eval(), tokenizer, max_length=64)
    predictor.label_names = tuple(names)
    result = evaluate(predictor, EvaluationData(dev, metric="entity_f1"), ONLY)
    assert any("'drop' is left out: a word that is dropped" in each for each in result.notices)
    blocks = corrupted(result)
    assert list(blocks) == [
        (kind, rate) for kind in ("random", "mask") for rate in (0.05, 0.1, 0.2)
    ]
    for (kind, rate), block in blocks.items():
        predictions = []
        for row, of_words in zip(dev.rows, words, strict=True):
            encoded = tokenizer(of_words, is_split_into_words=True)
            item = {"input_ids": list(encoded["input_ids"])}
            changed = corrupt(
                item, kind=kind, rate=rate, row=row, vocabulary=predictor.vocabulary()
            )
            with torch.no_grad():
                tags = network(torch.tensor([changed["input_ids"]])).logits[0].argmax(-1)
            ids = encoded.word_ids()
            predictions.append([int(tags[ids.index(word)]) for word in range(len(of_words))])
        for name, counts in zip(COUNTS, tag_counts(labels, predictions, names).T, strict=True):
            assert block.measured[name].tolist() == counts.tolist()
    assert not np.array_equal(blocks["mask", 0.2].measured["predicted"], [0] * 6)


def test_corrupted_tokens_of_several_labels_are_scored_by_the_mean_average_precision(
    tokenizer: Any, examples_of: Any
) -> None:
    texts = examples_of(rows=30, kind="unlabeled").text
    labels = [[number % 2, number % 3 == 0, 1 - number % 2] for number in range(30)]
    dev = Examples("dev", texts, labels=labels, label_names=list("abc"), kind="multi_label")
    config = make_model(classes=3).config
    config.problem_type = "multi_label_classification"
    network = sharpened(BertForSequenceClassification(config)).eval()
    predictor = ClassifierPredictor(network, tokenizer, max_length=64)
    predictor.label_names = tuple("abc")
    result = evaluate(predictor, EvaluationData(dev, metric="map"), ONLY)
    block = corrupted(result)["drop", 0.2]
    item = {name: list(ids) for name, ids in tokenizer(texts[0]).items()}
    changed = corrupt(
        item, kind="drop", rate=0.2, row=dev.rows[0], vocabulary=predictor.vocabulary()
    )
    inputs = {name: torch.tensor([ids]) for name, ids in changed.items()}
    with torch.no_grad():
        wanted = network(**inputs).logits.double().sigmoid()[0]
    assert block.probabilities[0] == pytest.approx(wanted.numpy(), abs=1e-5)
    assert values(result, "map", "drop")[2] == pytest.approx(
        float(measure_of("map")(block.applies, block.probabilities))
    )
