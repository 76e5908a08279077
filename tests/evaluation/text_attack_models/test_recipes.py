"""The recipes that need a model, from the settings to the rows."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper.data.examples import Examples
from temper.data.words import Words, is_stop_word
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.evaluation.text_attack.contract import Ask, Position, TextAttackSettings
from temper.evaluation.text_attack.recipes import masked_words
from temper.evaluation.text_attack.search import draft_of
from temper.models.masked import Blank, MaskedModel
from temper.models.sentence import SentenceEncoder
from tests.models.tiny_text import (
    WORDS,
    classifier_bert,
    encoder_bert,
    masked_bert,
    wordpiece,
)


@pytest.fixture(scope="module")
def masked_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("masked"), masked_bert(wordpiece()))


@pytest.fixture(scope="module")
def encoder_folder(tmp_path_factory: pytest.TempPathFactory) -> str:
    return saved(tmp_path_factory.mktemp("encoder"), encoder_bert(wordpiece()))


def saved(folder: Path, model: Any) -> str:
    model.save_pretrained(folder)
    wordpiece().save_pretrained(folder)
    return str(folder)


def predictor() -> ClassifierPredictor:
    tokenizer = wordpiece()
    return ClassifierPredictor(classifier_bert(tokenizer), tokenizer, max_length=40)


def data() -> EvaluationData:
    generator = np.random.default_rng(0)
    texts = [" ".join(generator.choice(WORDS, size=6)) for _ in range(12)]
    labels = predictor().predict(Examples("dev", texts)).prediction.astype(int).tolist()
    # Two rows are wrong unchanged.
    labels = [1 - label if at < 2 else label for at, label in enumerate(labels)]
    return EvaluationData(Examples("dev", texts, labels=labels, kind="classification"))


def asked(**settings: Any) -> EvaluationSettings:
    return EvaluationSettings(
        perspectives=("task", "text_attack"), bootstrap=0, text_attack={"rows": 50, **settings}
    )


# The words of a masked model


class Known:
    """A masked model that proposes the same for every blank."""

    def __init__(self, *words: str) -> None:
        self.words = words
        self.blanks: list[Blank] = []

    def propose(self, blanks: Sequence[Blank], *, count: int) -> list[list[str]]:
        self.blanks += blanks
        return [list(self.words[:count]) for _ in blanks]


def test_words_are_predicted_in_context_and_keep_the_case_of_the_original(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("temper.evaluation.text_attack.recipes.CANDIDATES", 2)
    model: Any = Known("good", "the", "Good", "fine", "poor")
    draft = draft_of("row", 0, "Bad film, BAD!", None)
    result = masked_words(model, [Ask(draft, Position(0, at), 0) for at in range(3)])
    assert model.blanks == [
        Blank("", " film, BAD!", "Bad"),
        Blank("Bad ", ", BAD!", "film"),
        Blank("Bad film, ", "!", "BAD"),
    ]
    assert result == [["Good", "Fine"], ["good", "Good"], ["GOOD", "FINE"]]


def test_the_masked_text_of_a_pair_is_that_of_the_word() -> None:
    model: Any = Known("good")
    draft = draft_of("row", 0, "one film", "two films")
    masked_words(model, [Ask(draft, Position(1, 0), 0)])
    assert model.blanks == [Blank("", " films", "two")]


def test_offered_words_are_the_models_without_stop_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("temper.evaluation.text_attack.recipes.CANDIDATES", 5)
    tokenizer = wordpiece()
    model = MaskedModel(masked_bert(tokenizer), tokenizer)
    draft = draft_of("row", 0, "the film was good", None)
    (result,) = masked_words(model, [Ask(draft, Position(0, 1), 0)])
    (every,) = model.propose([Blank("the ", " was good", "film")], count=99)
    assert result == [word for word in every if not is_stop_word(word)][:5]


# From the settings to the rows


def changed_texts(result: Evaluation) -> list[tuple[str, str, str]]:
    """Return each changed text: its recipe, as it was, as it is."""
    texts = result.texts.to_pylist()
    before = {text["row"]: text["text"] for text in texts if text["condition"] == "clean"}
    return [
        (text["condition"], before[text["row"]], text["text"])
        for text in texts
        if text["condition"] != "clean"
    ]


def test_swaps_and_masked_words_attack_within_their_bounds(
    masked_folder: str, encoder_folder: str
) -> None:
    result = evaluate(
        predictor(),
        data(),
        asked(
            recipes=("swaps", "masked"),
            masked_model=masked_folder,
            similarity_model=encoder_folder,
            min_similarity=0.5,
            max_changed=0.5,
        ),
    )
    rows = [row for row in result.rows.to_pylist() if row["perspective"] == "text_attack"]
    assert [row["condition"] for row in rows] == ["swaps"] * 12 + ["masked"] * 12
    assert all(row["changed"] <= 0.5 for row in rows)
    assert all(row["queries"] == 0 for row in rows if row["index"] < 2)
    encoder = SentenceEncoder.load(encoder_folder)
    pairs = changed_texts(result)
    assert {condition for condition, _, _ in pairs} == {"swaps", "masked"}
    for _, before, after in pairs:
        old, new = Words.of(before), Words.of(after)
        differ = [at for at in range(6) if old.words[at] != new.words[at]]
        assert 1 <= len(differ) <= 3
        assert all(not is_stop_word(old.words[at]) for at in differ)
        assert encoder.similarity([old.text], [new.text])[0] >= 0.5 - 1e-6


def test_swaps_mislead_a_random_model_more_than_chance_would() -> None:
    result = evaluate(predictor(), data(), asked(recipes="swaps", max_changed=1.0))
    (success,) = [entry for entry in result.scores if entry["name"] == "attack_success"]
    assert success["value"] > 0.3


# What is refused before any work


def refused(wanted: Any, settings: EvaluationSettings, match: str) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the predictor was asked")

    wanted.predict = never
    with pytest.raises(SettingError, match=match):
        evaluate(wanted, data(), settings)


def test_a_model_without_a_masked_head_raises_an_error(encoder_folder: str, tmp_path: Path) -> None:
    refused(
        predictor(),
        asked(recipes="masked", masked_model=encoder_folder),
        "`masked_model`: .*masked language model, got BertModel",
    )
    refused(
        predictor(),
        asked(recipes="masked", masked_model=str(tmp_path / "absent")),
        "`masked_model`: No model could be loaded",
    )


def test_a_missing_similarity_model_raises_an_error(tmp_path: Path) -> None:
    refused(
        predictor(),
        asked(similarity_model=str(tmp_path / "absent"), min_similarity=0.5),
        "`similarity_model`: No model could be loaded",
    )


@pytest.mark.parametrize("name", ["typos", "swap"])
def test_unknown_attack_recipes_raise_an_error_in_the_settings(name: str) -> None:
    with pytest.raises(ValueError, match="Input should be 'characters', 'swaps' or 'masked'"):
        TextAttackSettings(recipes=name)
