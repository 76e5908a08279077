"""The text-attack perspective: attacked rows, stored rows, and scores."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from temper.data.examples import Examples
from temper.errors import DataError, SettingError
from temper.evaluation.function import CallablePredictor
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate

NAMES = ("bad", "fine", "good")
LETTERS = ("d", "n", "o")


def by_letters(texts: Sequence[Any]) -> list[list[float]]:
    """Score each class by one plus the count of its letter in the text."""
    joined = [text if isinstance(text, str) else text[1] for text in texts]
    counts = [[1 + text.count(letter) for letter in LETTERS] for text in joined]
    return [[count / sum(row) for count in row] for row in counts]


def predictor_of(**more: Any) -> CallablePredictor:
    return CallablePredictor(by_letters, gives="probabilities", label_names=NAMES, **more)


TEXTS = [
    "madder adder",  # sure of class 0: d four times
    "dizzy ladder and faded",
    "noon moon",  # four o's and three n's: class 2 by one letter
    "cannon banners",  # five n's: class 1 and one o
    "bold gold",  # as many o's as d's: class 0, the first of the two
    "the and of",  # stop words alone
    "?!",
]
LABELS = [0, 0, 2, 1, 2, 0, 0]


def dev_of(**more: Any) -> Examples:
    return Examples(
        "reviews", TEXTS, labels=LABELS, label_names=NAMES, kind="classification", **more
    )


def settings_of(*, bootstrap: int = 20, seed: int = 0, **attack: Any) -> EvaluationSettings:
    return EvaluationSettings.model_validate(
        {
            "perspectives": ("text_attack",),
            "bootstrap": bootstrap,
            "seed": seed,
            "text_attack": attack,
        }
    )


def block_of(result: Any, recipe: str = "characters") -> Block:
    blocks = [
        block for block in to_blocks(result.rows) if block.condition.perspective == "text_attack"
    ]
    return next(block for block in blocks if block.condition.name == recipe)


def value(result: Any, name: str) -> Any:
    entries = [
        entry
        for entry in result.scores
        if (entry["perspective"], entry["name"]) == ("text_attack", name)
    ]
    assert len(entries) == 1
    return entries[0]


def test_the_scores_are_those_of_the_rows_by_hand() -> None:
    result = evaluate(predictor_of(), EvaluationData(dev_of()), settings_of(max_changed=1.0))
    block = block_of(result)
    right = np.array([by_letters([text])[0] for text in TEXTS]).argmax(1) == np.array(LABELS)
    assert right.tolist() == [True, True, True, True, False, True, True]
    # The row that is wrong unchanged is left alone, and rows without a word to change cost nothing.
    assert block.measured["queries"][4:].tolist() == [0, 0, 0]
    assert block.measured["changed"][4:].tolist() == [0, 0, 0]
    assert (block.measured["queries"][:4] > 0).all()
    wrong = block.prediction != np.array(LABELS)
    assert wrong[4]
    broken, changed = right & wrong, block.measured["changed"]
    assert 0 < broken.sum() < right.sum()
    assert value(result, "accuracy")["value"] == pytest.approx(1 - wrong.mean())
    assert value(result, "drop")["value"] == pytest.approx(right.mean() - (1 - wrong.mean()))
    assert value(result, "attack_success")["value"] == pytest.approx(broken.sum() / 6)
    assert value(result, "attack_success")["n"] == 6
    assert value(result, "changed_words")["value"] == pytest.approx(changed[broken].mean())
    assert value(result, "changed_words")["n"] == broken.sum()
    assert value(result, "queries")["value"] == pytest.approx(block.measured["queries"].sum() / 6)
    directions = {name: value(result, name)["higher_is_better"] for name in ("drop", "queries")}
    assert directions == {"drop": False, "queries": True}


def test_rows_contain_the_prediction_for_the_stored_text() -> None:
    result = evaluate(predictor_of(), EvaluationData(dev_of()), settings_of(max_changed=1.0))
    block = block_of(result)
    kept = result.texts.to_pandas()
    own = kept[kept["condition"] == "characters"].set_index("index")["text"]
    assert sorted(own.index) == np.flatnonzero(block.measured["changed"] > 0).tolist()
    texts = [own.get(at, text) for at, text in enumerate(TEXTS)]
    np.testing.assert_allclose(block.probabilities, by_letters(texts))
    labels = np.array(LABELS)
    np.testing.assert_allclose(block.loss, -np.log(block.probabilities[range(7), labels]))
    # Both forms of a text are known by the row that it was.
    assert set(kept["row"]) <= set(dev_of().rows)


def test_a_targeted_attack_skips_the_target_class_and_reverts_failures() -> None:
    settings = settings_of(goal="targeted", target="fine", max_changed=1.0)
    result = evaluate(predictor_of(), EvaluationData(dev_of()), settings)
    block = block_of(result)
    assert block.index.tolist() == [0, 1, 2, 4, 5, 6]
    attacked = block.measured["queries"] > 0
    # Wrong after the attack means that the target was reached, and unreached texts are as before.
    assert set(block.prediction[attacked & (block.correct == 0)]) <= {1.0}
    assert (block.measured["changed"][block.correct == 1] == 0).all()
    assert "leaves out 1 of 7 rows" in " ".join(result.notices)
    by_index = settings_of(goal="targeted", target=1, max_changed=1.0)
    again = evaluate(predictor_of(), EvaluationData(dev_of()), by_index)
    assert again.rows.equals(result.rows)


def test_the_second_text_of_a_pair_is_attacked_on_request() -> None:
    pairs = replace(dev_of(), text=["x y z"] * 7, text_pair=TEXTS, rows=[])
    result = evaluate(predictor_of(), EvaluationData(pairs), settings_of(field="text_pair"))
    kept = result.texts.to_pandas()
    own = kept[kept["condition"] == "characters"]
    assert len(own)
    assert set(own["text"]) == {"x y z"}
    assert all(own["text_pair"].iloc[at] != TEXTS[index] for at, index in enumerate(own["index"]))


def test_the_number_of_attacked_rows_is_limited() -> None:
    result = evaluate(predictor_of(), EvaluationData(dev_of()), settings_of(rows=3))
    assert len(block_of(result)) == 3
    more = evaluate(predictor_of(), EvaluationData(dev_of()), settings_of(rows=5))
    assert set(block_of(result).row) < set(block_of(more).row)


def test_scores_without_a_row_to_attack_have_a_reason() -> None:
    wrong = replace(dev_of(), labels=[1, 1, 1, 2, 2, 1, 1])
    result = evaluate(predictor_of(), EvaluationData(wrong), settings_of())
    for name in ("attack_success", "queries"):
        entry = value(result, name)
        assert entry["value"] is None
        assert "no row is right" in entry["reason"]
    assert value(result, "changed_words")["reason"] == "no attack succeeded"
    assert value(result, "accuracy")["value"] == 0


def test_a_regression_is_skipped_with_a_reason_and_refused_if_nothing_else_is_requested() -> None:
    regressor = CallablePredictor(lambda texts: [0.0] * len(texts), gives="values")
    targets = [float(label) for label in LABELS]
    dev = Examples("reviews", TEXTS, labels=targets, kind="regression")
    both = settings_of().model_copy(update={"perspectives": ("task", "text_attack")})
    result = evaluate(regressor, EvaluationData(dev, metric="mse"), both)
    assert "(not for numbers)" in result.skipped["text_attack"]
    with pytest.raises(SettingError, match="not for numbers.*Choose other"):
        evaluate(regressor, EvaluationData(dev, metric="mse"), settings_of())


def test_unsuitable_targets_and_data_raise_an_error() -> None:
    data = EvaluationData(dev_of())
    with pytest.raises(SettingError, match="Unknown target 'fin'.*fine"):
        evaluate(predictor_of(), data, settings_of(goal="targeted", target="fin"))
    with pytest.raises(SettingError, match=r"must be a class in \[0, 2\], got 3"):
        evaluate(predictor_of(), data, settings_of(goal="targeted", target=3))
    with pytest.raises(SettingError, match="'reviews' has no second text. Use 'text'"):
        evaluate(predictor_of(), data, settings_of(field="both"))
    alike = EvaluationData(replace(dev_of(), labels=[1] * 7))
    with pytest.raises(DataError, match="label of all 7 rows"):
        evaluate(predictor_of(), alike, settings_of(goal="targeted", target=1))


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recipes": ()}, "at least one value"),
        ({"recipes": ("characters", "characters")}, "must not repeat a value"),
        ({"recipes": "chars"}, "Input should be 'characters', 'swaps' or 'masked'"),
        ({"goal": "targeted"}, "`target` must be given with goal 'targeted'"),
        ({"target": 1}, "`target` must be given with goal 'targeted', and only then"),
        ({"min_similarity": 0.8}, "must be given together"),
        ({"masked_model": "folder"}, "`masked_model` .*with the recipe 'masked'"),
        ({"recipes": "masked"}, "`masked_model` .*with the recipe 'masked'"),
        ({"protected": "two words"}, "single words, got 'two words'"),
        ({"max_changed": 0}, "greater than 0"),
        ({"max_queries": 0}, "greater than or equal to 1"),
        ({"unknown": 1}, "Extra inputs are not permitted"),
    ],
)
def test_settings_that_contradict_each_other_raise_an_error(
    settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=said):
        settings_of(**settings)
