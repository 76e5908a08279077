"""A stand-in for the package TextAttack, with the part of its public interface that is used.

Written after TextAttack 0.3: ``AttackRecipe.build(model_wrapper)`` gives an ``Attack`` whose
``attack(example, ground_truth_output)`` takes a text or an ``OrderedDict`` of texts and gives a
result with ``perturbed_text()``, ``num_queries`` and ``perturbed_result.attacked_text``.
"""

from __future__ import annotations

import random
import sys
import types
from collections import OrderedDict
from typing import Any

import numpy as np
import pytest


class AttackedText:
    def __init__(self, texts: OrderedDict[str, str]) -> None:
        self._texts = texts

    @property
    def tokenizer_input(self) -> str | tuple[str, ...]:
        values = tuple(self._texts.values())
        return values[0] if len(values) == 1 else values

    @property
    def column_labels(self) -> list[str]:
        return list(self._texts)

    def printable_text(self) -> str:
        if len(self._texts) == 1:
            return next(iter(self._texts.values()))
        return "\n".join(f"{key}: {text}" for key, text in self._texts.items())


class UntargetedClassification:
    query_budget: float = float("inf")

    def __init__(self, model_wrapper: Any) -> None:
        # The package reads this attribute's class.
        self.model_class = model_wrapper.model.__class__
        self.model = model_wrapper
        self.num_queries = 0

    def scores(self, texts: list[AttackedText]) -> np.ndarray:
        self.num_queries += len(texts)
        scores = np.asarray(self.model([text.tokenizer_input for text in texts]))
        assert scores.shape[0] == len(texts)
        assert np.allclose(scores.sum(axis=1), 1, atol=1e-6)
        return scores


class TargetedClassification(UntargetedClassification):
    pass


class InputColumnModification:
    def __init__(self, matching_column_labels: list[str], columns_to_ignore: set[str]) -> None:
        self.matching_column_labels = matching_column_labels
        self.columns_to_ignore = columns_to_ignore

    def allows(self, column: str, labels: list[str], word: str) -> bool:
        return labels != self.matching_column_labels or column not in self.columns_to_ignore


class StopwordModification:
    def __init__(self, stopwords: set[str]) -> None:
        self.stopwords = stopwords

    def allows(self, column: str, labels: list[str], word: str) -> bool:
        return word not in self.stopwords


class Result:
    def __init__(self, text: AttackedText, num_queries: int) -> None:
        self.perturbed_result = types.SimpleNamespace(attacked_text=text, num_queries=num_queries)
        self.num_queries = num_queries

    def perturbed_text(self) -> str:
        return self.perturbed_result.attacked_text.printable_text()


class Attack:
    """Doubles the last letter of words in a drawn order, until the answer is wrong."""

    def __init__(self, goal_function: Any) -> None:
        self.goal_function = goal_function
        self.pre_transformation_constraints: list[Any] = []

    def attack(self, example: Any, ground_truth_output: int) -> Result:
        assert isinstance(example, str | OrderedDict)
        texts = OrderedDict([("text", example)]) if isinstance(example, str) else example
        current = AttackedText(OrderedDict(texts))
        goal = self.goal_function
        goal.num_queries = 0
        if goal.scores([current])[0].argmax() != ground_truth_output:
            return Result(current, goal.num_queries)
        places = [
            (column, number)
            for column, text in texts.items()
            for number, word in enumerate(text.split(" "))
            if all(
                bound.allows(column, current.column_labels, word)
                for bound in self.pre_transformation_constraints
            )
        ]
        random.shuffle(places)
        for column, number in places:
            if goal.num_queries >= goal.query_budget:
                break
            words = current._texts[column].split(" ")
            words[number] += words[number][-1]
            current = AttackedText(OrderedDict(current._texts, **{column: " ".join(words)}))
            if goal.scores([current])[0].argmax() != ground_truth_output:
                break
        return Result(current, goal.num_queries)


class AttackRecipe(Attack):
    goal = UntargetedClassification

    @classmethod
    def build(cls, model_wrapper: Any) -> Attack:
        return Attack(cls.goal(model_wrapper))


class Doubling2020(AttackRecipe):
    pass


class Targeted2020(AttackRecipe):
    goal = TargetedClassification


class Gradient2020(AttackRecipe):
    @classmethod
    def build(cls, model_wrapper: Any) -> Attack:
        raise ValueError("Cannot perform GradientBasedWordSwap on model")


def install(monkeypatch: pytest.MonkeyPatch) -> None:
    """Put the stand-in where the package would be."""
    package = types.ModuleType("textattack")
    recipes = types.ModuleType("textattack.attack_recipes")
    constraints = types.ModuleType("textattack.constraints")
    bounds = types.ModuleType("textattack.constraints.pre_transformation")
    for each in (AttackRecipe, Doubling2020, Targeted2020, Gradient2020):
        setattr(recipes, each.__name__, each)
    bounds.InputColumnModification = InputColumnModification  # type: ignore[attr-defined]
    bounds.StopwordModification = StopwordModification  # type: ignore[attr-defined]
    package.__spec__ = types.SimpleNamespace(name="textattack")  # type: ignore[assignment]
    for module in (package, recipes, constraints, bounds):
        monkeypatch.setitem(sys.modules, module.__name__, module)
