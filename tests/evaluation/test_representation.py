"""CKA by layer: against one Gram matrix of all rows, over orders and batches, and errors."""

from __future__ import annotations

from collections.abc import Iterator
from copy import deepcopy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.perspectives.representation import batches, states_of
from temper.evaluation.predictor import States
from temper.evaluation.rows import to_blocks
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from tests.evaluation.conftest import changed, make_examples, make_model, make_tokenizer

SETTINGS = EvaluationSettings(
    perspectives=("representation",), representation={"batch": 4}, bootstrap=50
)


def predictor_of(model: Any) -> ClassifierPredictor:
    return ClassifierPredictor(model, make_tokenizer(), max_length=32)


def measured(
    model: Any, reference: Any, settings: EvaluationSettings = SETTINGS, *, dev: Any = None
) -> Any:
    data = EvaluationData(
        make_examples() if dev is None else dev, reference=predictor_of(reference)
    )
    return evaluate(predictor_of(model), data, settings)


def by_layer(evaluation: Any) -> dict[int, float]:
    return {
        entry["parameters"].get("layer"): entry["value"]
        for entry in evaluation.scores
        if entry["name"] == "cka"
    }


def cls_states(model: Any, dev: Examples) -> list[np.ndarray]:
    """Return the [CLS] state of each layer, row by row, as Transformers gives it."""
    tokenizer = make_tokenizer()
    result = []
    for text in dev.text:
        with torch.no_grad():
            output = model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
        result.append([layer[0, 0].double().numpy() for layer in output.hidden_states[1:]])
    return [np.stack(layer) for layer in zip(*result, strict=True)]


def hoeffding(first: np.ndarray, second: np.ndarray) -> float:
    """HSIC_1 by sums over Gram matrices, the other way round than the library."""
    n = len(first)
    # A shift changes nothing but rounding: the states at [CLS] of this model hardly vary.
    first, second = first - first.mean(0), second - second.mean(0)
    k, other = first @ first.T, second @ second.T
    k, other = k - np.diag(np.diag(k)), other - np.diag(np.diag(other))
    one = np.ones(n)
    terms = np.trace(k @ other) + (one @ k @ one) * (one @ other @ one) / ((n - 1) * (n - 2))
    return float(terms - 2 / (n - 2) * (one @ k @ other @ one)) / (n * (n - 3))


def test_the_states_of_bert_are_transformers_own_at_cls() -> None:
    model, dev = make_model(seed=1).eval(), make_examples()
    result = states_of(predictor_of(model), dev, batch_size=5)
    for own, expected in zip(result, cls_states(model, dev), strict=True):
        np.testing.assert_allclose(own, expected, atol=1e-5)


def test_one_batch_of_all_rows_is_cka_by_whole_gram_matrices() -> None:
    model, reference, dev = make_model(seed=1), make_model(seed=2), make_examples()
    whole = changed(SETTINGS, {"representation": {"batch": 24}, "batch_size": 24})
    pairs = zip(
        states_of(predictor_of(model), dev, batch_size=24),
        states_of(predictor_of(reference), dev, batch_size=24),
        strict=True,
    )
    expected = {
        layer: hoeffding(one, two) / (hoeffding(one, one) * hoeffding(two, two)) ** 0.5
        for layer, (one, two) in enumerate(pairs, start=1)
    }
    result = by_layer(measured(model, reference, whole))
    assert result == pytest.approx(expected, rel=1e-6)
    assert 0.0 < result[1] < 0.99


def test_a_model_has_an_alignment_of_1_with_itself() -> None:
    model = make_model(seed=3)
    assert by_layer(measured(model, model)) == pytest.approx({1: 1.0, 2: 1.0}, abs=1e-9)


def test_the_head_does_not_affect_the_alignment() -> None:
    model, other, base = make_model(seed=4), make_model(seed=4), make_model(seed=5)
    torch.nn.init.normal_(other.classifier.weight, std=3.0)
    assert by_layer(measured(other, base)) == by_layer(measured(model, base))


def test_scores_follow_from_the_batches_rows() -> None:
    result = measured(make_model(seed=10), make_model(seed=11))
    blocks = {
        (block.condition.name, block.condition.parameters.get("layer")): block
        for block in to_blocks(result.rows)
        if block.condition.perspective == "representation"
    }
    assert list(blocks) == [
        (name, layer) for layer in (1, 2) for name in ("hsic_xy", "hsic_xx", "hsic_yy")
    ]
    assert {len(block) for block in blocks.values()} == {6}
    assert len({tuple(block.row) for block in blocks.values()}) == 1
    assert len(set(blocks["hsic_xy", 1].row)) == 6
    cross, own, other = (
        float(np.sum(blocks[name, 2].value)) for name in ("hsic_xy", "hsic_xx", "hsic_yy")
    )
    entry = next(entry for entry in result.scores if entry["parameters"].get("layer") == 2)
    assert entry["value"] == pytest.approx(cross / (own * other) ** 0.5)
    assert (entry["n"], entry["condition"], entry["higher_is_better"]) == (6, "cka", None)
    assert entry["low"] <= entry["value"] <= entry["high"]


def test_one_batch_has_no_interval() -> None:
    result = measured(
        make_model(), make_model(seed=1), changed(SETTINGS, {"representation": {"batch": 24}})
    )
    assert {(entry["n"], entry["low"], entry["high"]) for entry in result.scores} == {
        (1, None, None)
    }


@pytest.mark.parametrize(
    ("rows", "size", "sizes"),
    [(8, 4, [4, 4]), (11, 4, [6, 5]), (7, 4, [7]), (5, 64, [5]), (130, 64, [65, 65])],
)
def test_rows_of_a_small_last_batch_are_spread_over_the_others(
    rows: int, size: int, sizes: list[int]
) -> None:
    hashes = [f"row{number}" for number in range(rows)]
    result = batches(hashes, size, seed=0)
    assert [len(part) for part in result] == sizes
    assert sorted(index for part in result for index in part) == list(range(rows))


def test_batches_depend_on_row_hashes_and_not_on_the_order() -> None:
    hashes = [f"row{number}" for number in range(12)]
    named = [[hashes[index] for index in part] for part in batches(hashes, 4, seed=0)]
    turned = hashes[::-1]
    again = [[turned[index] for index in part] for part in batches(turned, 4, seed=0)]
    assert named == again
    assert batches(hashes, 4, seed=1) != batches(hashes, 4, seed=0)


class Watched:
    """A reference that notes how many rows it is asked about at once."""

    gives = "logits"
    label_names = None

    def __init__(self) -> None:
        self.inner = predictor_of(make_model(seed=1))
        self.asked: list[int] = []

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Any:
        raise AssertionError("the reference predicts nothing")

    def states(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[States]:
        self.asked.append(len(examples))
        return self.inner.states(examples, batch_size=batch_size)


def test_only_the_states_of_one_batch_are_in_memory() -> None:
    watched = Watched()
    data = EvaluationData(make_examples(), reference=watched)
    evaluate(predictor_of(make_model()), data, SETTINGS)
    # The first row is enough to check the layers before any work.
    assert watched.asked == [1, *[4] * 6]


def test_without_a_reference_representation_is_skipped_with_advice() -> None:
    data = EvaluationData(make_examples())
    settings = SETTINGS.model_copy(update={"perspectives": ("task", "representation")})
    result = evaluate(predictor_of(make_model()), data, settings)
    assert "this model is unknown" in result.skipped["representation"]
    assert {entry["perspective"] for entry in result.scores} == {"task"}
    with pytest.raises(SettingError, match="representation compares with the pre-trained model"):
        evaluate(predictor_of(make_model()), data, SETTINGS)


def test_a_reference_of_other_depth_raises_an_error_before_any_work() -> None:
    deeper = make_model()
    deeper.bert.encoder.layer.append(deepcopy(deeper.bert.encoder.layer[0]))
    with pytest.raises(SettingError, match="has 2 layers, the pre-trained one 3"):
        measured(make_model(), deeper)


def test_a_head_that_reads_no_hidden_state_is_reported() -> None:
    blind = make_model()
    torch.nn.init.zeros_(blind.classifier.weight)
    with pytest.raises(SettingError, match="cannot read .*pre-trained model"):
        measured(make_model(), blind)


def test_three_rows_are_too_few() -> None:
    with pytest.raises(SettingError, match="at least 4 rows of dev, got 3"):
        measured(make_model(), make_model(), dev=make_examples(rows=3))


def test_states_that_do_not_vary_leave_the_score_undefined() -> None:
    dev = replace(make_examples(rows=8), text=["word1 word2"] * 8, rows=[])
    result = measured(make_model(), make_model(seed=1), dev=replace(dev, rows=[]))
    assert {entry["value"] for entry in result.scores} == {None}
    assert {"hardly vary" in entry["reason"] for entry in result.scores} == {True}
