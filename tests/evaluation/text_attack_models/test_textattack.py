"""The adapter of TextAttack, against a stand-in of its interface."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.data.words import Words
from temper.errors import SettingError
from temper.evaluation.function import CallablePredictor
from temper.evaluation.text_attack import textattack
from temper.evaluation.text_attack.contract import OUTSIDE, TextAttackSettings
from temper.evaluation.text_attack.search import Row, answers_of, attacked, drafts_of
from temper.evaluation.text_attack.textattack import attack_with, textattack_faults
from tests.evaluation.text_attack_models import stub

DOUBLING = f"{OUTSIDE}Doubling2020"


def counted(asked: list[Any], needed: int) -> CallablePredictor:
    """Return a predictor that errs where so many words of a text end in two equal letters."""

    def answer(texts: list[Any]) -> list[list[float]]:
        asked.extend(texts)
        answers = []
        for text in texts:
            words = (text if isinstance(text, str) else " ".join(text)).split(" ")
            doubled = sum(word[-2:-1] == word[-1:] for word in words)
            answers.append([0.2, 0.8] if doubled >= needed else [0.9, 0.1])
        return answers

    return CallablePredictor(answer, gives="probabilities")


def rows_of(
    predictor: CallablePredictor, settings: TextAttackSettings, *texts: tuple[str, str | None]
) -> list[Row]:
    first, second = zip(*texts, strict=True)
    pairs = list(second) if second[0] is not None else None
    examples = Examples("toy", list(first), pairs, labels=[0] * len(texts), kind="classification")
    drafts = drafts_of(examples)
    answers = answers_of(predictor.predict(examples), drafts)
    return list(attacked(drafts, answers, DOUBLING, settings, seed=0).values())


@pytest.fixture
def _installed(monkeypatch: pytest.MonkeyPatch) -> None:
    stub.install(monkeypatch)


@pytest.mark.usefixtures("_installed")
def test_texts_queries_and_changes_are_those_of_the_recipe() -> None:
    asked: list[Any] = []
    predictor = counted(asked, 2)
    settings = TextAttackSettings(recipes=DOUBLING)
    rows = rows_of(predictor, settings, ("a god film", None), ("one", None))
    asked.clear()
    told: list[tuple[int, int]] = []
    first, second = attack_with(
        DOUBLING, rows, predictor, settings, tell=lambda *both: told.append(both)
    )
    words = first.draft.text.split(" ")
    assert sum(word != old for word, old in zip(words, ["a", "god", "film"], strict=True)) == 2
    assert (first.changed, first.words, first.queries) == (2, 3, 2)
    assert first.answer.reached
    assert first.answer.gain == pytest.approx(np.log(0.8 / 0.2))
    # One word cannot be doubled twice: the attack fails with the text that it came to.
    assert (second.draft.text, second.changed, second.queries) == ("onee", 1, 1)
    assert not second.answer.reached
    assert told == [(1, 2), (2, 2)]
    # The first query of each row is about the unchanged text; the ends are asked once more.
    assert len(asked) == (1 + 2) + (1 + 1) + 2


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(("field", "side"), [("text", 0), ("text_pair", 1)])
def test_only_the_wanted_text_of_a_pair_is_changed(field: str, side: int) -> None:
    predictor = counted([], 99)
    settings = TextAttackSettings(recipes=DOUBLING, field=field)
    rows = rows_of(predictor, settings, ("a film", "the cast"))
    (outcome,) = attack_with(DOUBLING, rows, predictor, settings)
    texts = (outcome.draft.text, outcome.draft.text_pair)
    assert texts[1 - side] == ("a film", "the cast")[1 - side]
    assert texts[side] == ("aa filmm", "thee castt")[side]
    assert outcome.changed == outcome.words == 2


@pytest.mark.usefixtures("_installed")
def test_protected_words_are_left_in_any_case() -> None:
    predictor = counted([], 99)
    settings = TextAttackSettings(recipes=DOUBLING, protected="FILM")
    rows = rows_of(predictor, settings, ("Film of a film", None))
    (outcome,) = attack_with(DOUBLING, rows, predictor, settings)
    assert outcome.draft.text == "Film off aa film"


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize("most", [1, 2, 3])
def test_queries_stop_at_the_limit(most: int) -> None:
    predictor = counted([], 99)
    settings = TextAttackSettings(recipes=DOUBLING, max_queries=most)
    rows = rows_of(predictor, settings, ("one two six ten", None))
    (outcome,) = attack_with(DOUBLING, rows, predictor, settings)
    assert outcome.queries == outcome.changed == most


@pytest.mark.usefixtures("_installed")
def test_draws_belong_to_the_row_and_leave_the_generators_alone() -> None:
    predictor = counted([], 1)
    settings = TextAttackSettings(recipes=DOUBLING)
    rows = rows_of(predictor, settings, *[(f"one two six ten t{at}", None) for at in range(8)])
    before = random.getstate(), np.random.get_state()[1].copy(), torch.get_rng_state()
    forward = attack_with(DOUBLING, rows, predictor, settings)
    assert random.getstate() == before[0]
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])
    assert torch.equal(torch.get_rng_state(), before[2])
    random.random()
    backward = attack_with(DOUBLING, rows[::-1], predictor, settings)[::-1]
    assert [each.draft for each in forward] == [each.draft for each in backward]
    # Different rows draw different words.
    assert len({tuple(map(len, each.draft.sides[0].words)) for each in forward}) > 1


@pytest.mark.usefixtures("_installed")
def test_no_rows_are_no_outcomes() -> None:
    settings = TextAttackSettings(recipes=DOUBLING)
    assert attack_with(DOUBLING, [], counted([], 1), settings) == []


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("a good film", "a good film", 0),
        ("a good film", "a bad film", 1),
        ("a good film", "a film", 1),
        ("a good film", "a very good film", 1),
        ("a good film", "one bad cat", 3),
        ("a good film", "a g o od film", 3),
    ],
)
def test_changed_words_are_counted_by_hand(old: str, new: str, expected: int) -> None:
    assert textattack._changed(Words.of(old), Words.of(new)) == expected


# What is refused before any work


def test_without_the_package_the_install_command_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(textattack.importlib.util, "find_spec", lambda name: None)
    (fault,) = textattack_faults(TextAttackSettings(recipes=("characters", DOUBLING)))
    assert "pip install textattack" in fault
    assert repr(DOUBLING) in fault


def test_a_package_that_cannot_be_imported_says_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stub.install(monkeypatch)

    def broken(name: str) -> Any:
        raise ImportError("flair needs transformers < 5")

    monkeypatch.setattr(textattack.importlib, "import_module", broken)
    (fault,) = textattack_faults(TextAttackSettings(recipes=DOUBLING))
    assert "(ImportError: flair needs transformers < 5)" in fault


# As NLTK 3.10 words what TextAttack 0.3.11 asks it for when it is imported.
@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recipes": f"{OUTSIDE}Doubling202"}, "Did you mean 'textattack:Doubling2020'"),
        ({"recipes": f"{OUTSIDE}AttackRecipe"}, "Unknown recipe 'textattack:AttackRecipe'"),
        ({"recipes": DOUBLING, "goal": "targeted", "target": 1}, "has the goal 'untargeted'"),
        ({"recipes": DOUBLING, "max_changed": 0.1}, "`max_changed` would be ignored"),
    ],
)
def test_what_a_recipe_cannot_do_is_a_fault(settings: dict[str, Any], said: str) -> None:
    (fault,) = textattack_faults(TextAttackSettings(**settings))
    assert said in fault


@pytest.mark.usefixtures("_installed")
def test_bounds_that_another_recipe_reads_are_no_fault() -> None:
    settings = TextAttackSettings(recipes=("characters", DOUBLING), max_changed=0.1)
    assert textattack_faults(settings) == []
    assert textattack_faults(TextAttackSettings(goal="targeted", target=1)) == []


@pytest.mark.usefixtures("_installed")
@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("Gradient2020", "cannot be built for CallablePredictor .ValueError: Cannot perform"),
        ("Targeted2020", "must aim at a wrong class .*, it aims at TargetedClassification"),
    ],
)
def test_a_recipe_that_does_not_fit_is_refused(name: str, said: str) -> None:
    predictor = counted([], 1)
    settings = TextAttackSettings(recipes=OUTSIDE + name)
    rows = rows_of(predictor, settings, ("one", None))
    with pytest.raises(SettingError, match=said):
        attack_with(OUTSIDE + name, rows, predictor, settings)


@pytest.mark.parametrize("name", ["typos", "swap", "textattack"])
def test_unknown_recipes_are_refused_in_the_settings(name: str) -> None:
    with pytest.raises(ValueError, match=f"Unknown recipe '{name}'"):
        TextAttackSettings(recipes=name)
