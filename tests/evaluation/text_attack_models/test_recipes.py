"""The recipes that need a model or another package, from the settings to the rows."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.data.words import Words, is_stop_word
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.evaluation.text_attack import textattack
from temper.evaluation.text_attack.contract import OUTSIDE, Ask, Place, TextAttackSettings
from temper.evaluation.text_attack.recipes import MaskedWords, SentenceSimilarity
from temper.evaluation.text_attack.search import Row, answers_of, attacked, draft_of, drafts_of
from temper.evaluation.text_attack.textattack import attack_with, textattack_faults
from temper.models.masked import Blank, MaskedModel, Proposal
from temper.models.sentence import SentenceEncoder
from tests.evaluation.text_attack_models import stub
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

    def propose(self, blanks: Sequence[Blank], *, count: int) -> list[list[Proposal]]:
        self.blanks += blanks
        return [[Proposal(word, 0.1) for word in self.words[:count]] for _ in blanks]


def test_words_are_asked_for_in_their_place_and_offered_in_the_case_of_the_old_one() -> None:
    model: Any = Known("good", "the", "Good", "fine", "poor")
    draft = draft_of("row", 0, "Bad film, BAD!", None)
    found = MaskedWords(model, candidates=2).propose(
        [Ask(draft, Place(0, at), 0) for at in range(3)]
    )
    assert model.blanks == [
        Blank("", " film, BAD!", "Bad"),
        Blank("Bad ", ", BAD!", "film"),
        Blank("Bad film, ", "!", "BAD"),
    ]
    assert found == [["Good", "Fine"], ["good", "Good"], ["GOOD", "FINE"]]


def test_of_a_pair_the_side_of_the_word_is_read() -> None:
    model: Any = Known("good")
    draft = draft_of("row", 0, "one film", "two films")
    MaskedWords(model).propose([Ask(draft, Place(1, 0), 0)])
    assert model.blanks == [Blank("", " films", "two")]


def test_offered_words_are_the_models_without_stop_words() -> None:
    tokenizer = wordpiece()
    model = MaskedModel(masked_bert(tokenizer), tokenizer)
    draft = draft_of("row", 0, "the film was good", None)
    (found,) = MaskedWords(model, candidates=5).propose([Ask(draft, Place(0, 1), 0)])
    (every,) = model.propose([Blank("the ", " was good", "film")], count=99)
    assert found == [each.word for each in every if not is_stop_word(each.word)][:5]


# Similarity


def test_similarities_are_the_encoders_and_each_original_is_embedded_once() -> None:
    tokenizer = wordpiece()
    encoder = SentenceEncoder(encoder_bert(tokenizer), tokenizer)
    similarity = SentenceSimilarity(encoder)
    pairs = [("good film", "bad film"), ("good film", "good film"), ("dull plot", "poor cast")]
    expected = encoder.similarity([text for text, _ in pairs], [text for _, text in pairs])
    seen: list[str] = []
    embeddings = encoder.embeddings

    def watched(texts: Sequence[str]) -> Any:
        seen.extend(texts)
        return embeddings(texts)

    encoder.embeddings = watched  # type: ignore[method-assign]
    assert similarity.similarities(pairs) == pytest.approx(expected.tolist(), abs=1e-6)
    assert similarity.similarities(pairs[:1]) == pytest.approx(expected[:1].tolist(), abs=1e-6)
    assert seen == ["bad film", "good film", "poor cast", "good film", "dull plot", "bad film"]


# From the settings to the rows


def changed_texts(found: Evaluation) -> list[tuple[str, str, str]]:
    """Return each changed text: its recipe, as it was, as it is."""
    texts = found.texts.to_pylist()
    before = {text["row"]: text["text"] for text in texts if text["condition"] == "clean"}
    return [
        (text["condition"], before[text["row"]], text["text"])
        for text in texts
        if text["condition"] != "clean"
    ]


def test_swaps_and_masked_words_attack_within_their_bounds(
    masked_folder: str, encoder_folder: str
) -> None:
    found = evaluate(
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
    rows = [row for row in found.rows.to_pylist() if row["perspective"] == "text_attack"]
    assert [row["condition"] for row in rows] == ["swaps"] * 12 + ["masked"] * 12
    assert all(row["changed"] <= 0.5 for row in rows)
    assert all(row["queries"] == 0 for row in rows if row["index"] < 2)
    encoder = SentenceEncoder.load(encoder_folder)
    pairs = changed_texts(found)
    assert {condition for condition, _, _ in pairs} == {"swaps", "masked"}
    for _, before, after in pairs:
        old, new = Words.of(before), Words.of(after)
        differ = [at for at in range(6) if old.words[at] != new.words[at]]
        assert 1 <= len(differ) <= 3
        assert all(not is_stop_word(old.words[at]) for at in differ)
        assert encoder.similarity([old.text], [new.text])[0] >= 0.5 - 1e-6


def test_swaps_mislead_a_random_model_more_than_chance_would() -> None:
    found = evaluate(predictor(), data(), asked(recipes="swaps", max_changed=1.0))
    (success,) = [entry for entry in found.scores if entry["name"] == "attack_success"]
    assert success["value"] > 0.3


def test_a_recipe_of_textattack_becomes_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    stub.install(monkeypatch)
    found = evaluate(predictor(), data(), asked(recipes="textattack:Doubling2020"))
    rows = [row for row in found.rows.to_pylist() if row["perspective"] == "text_attack"]
    assert {row["condition"] for row in rows} == {"textattack:Doubling2020"}
    assert all((row["queries"] > 0) == (row["index"] >= 2) for row in rows)
    assert max(row["changed"] for row in rows) > 0


# What is refused before any work


def refused(wanted: Any, settings: EvaluationSettings, match: str) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("the predictor was asked")

    wanted.predict = never
    with pytest.raises(SettingError, match=match):
        evaluate(wanted, data(), settings)


def test_a_masked_model_that_is_none_is_refused(encoder_folder: str, tmp_path: Path) -> None:
    refused(
        predictor(),
        asked(recipes="masked", masked_model=encoder_folder),
        "`masked_model`: .* must be a masked language model, got BertModel",
    )
    refused(
        predictor(),
        asked(recipes="masked", masked_model=str(tmp_path / "absent")),
        "`masked_model`: No model could be loaded from",
    )


def test_a_similarity_model_that_is_not_there_is_refused(tmp_path: Path) -> None:
    refused(
        predictor(),
        asked(similarity_model=str(tmp_path / "absent"), min_similarity=0.5),
        "`similarity_model`: No model could be loaded from",
    )


def test_textattack_that_is_not_installed_is_refused() -> None:
    refused(predictor(), asked(recipes="textattack:TextFoolerJin2019"), "pip install textattack")


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
