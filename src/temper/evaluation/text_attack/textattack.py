"""The recipes ``textattack:NAME``: attacks of the package TextAttack, where it is installed.

NAME is a class of ``textattack.attack_recipes``, for instance ``TextFoolerJin2019``. TextAttack is
no dependency, as it asks for other versions of Transformers and downloads word lists and vectors.
Its recipes choose words, candidates and bounds by themselves; ``rows``, ``field``, ``protected``
and ``max_queries`` hold for them too. Rows are attacked one after the other, each with draws of
its own.
"""

from __future__ import annotations

import difflib
import importlib
import importlib.util
import random
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import numpy as np

from temper.data.examples import Examples
from temper.data.words import Words
from temper.errors import SettingError, unknown
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack.contract import OUTSIDE, TextAttackSettings, examples_of
from temper.evaluation.text_attack.search import Outcome, Row, answers_of
from temper.functional.resampling import FloatArray
from temper.seeding import derive_seed, seeded

_COLUMNS = ("text", "text_pair")
# What a recipe of TextAttack decides by itself.
_OWN = ("max_changed", "stop_words", "min_similarity")


class Wrapped:
    """A predictor as TextAttack asks models: texts, or pairs of texts, to probabilities.

    Args:
        predictor: Who is attacked.
        batch_size: Texts of a forward pass.
    """

    def __init__(self, predictor: Predictor, batch_size: int | None = None) -> None:
        # TextAttack looks at the class of `model` and logs that it does not know it.
        self.model = predictor
        self._batch_size = batch_size

    def __call__(self, inputs: Sequence[Any], **options: Any) -> FloatArray:
        """Return probabilities [n, C].

        Args:
            inputs: n texts, or tuples of two texts.
            options: What TextAttack passes on to tokenizers; there is none here.
        """
        texts = [each if isinstance(each, str) else each[0] for each in inputs]
        pairs = [each[1] for each in inputs if not isinstance(each, str)]
        examples = Examples("text attack", texts, pairs or None)
        return self.model.predict(examples, batch_size=self._batch_size).probabilities


def textattack_faults(settings: TextAttackSettings) -> list[str]:
    """Say what keeps the recipes of TextAttack that were asked for from working.

    Args:
        settings: With ``recipes``; others than ``textattack:NAME`` are not looked at.
    """
    asked = [name for name in settings.recipes if name.startswith(OUTSIDE)]
    if not asked:
        return []
    faults = []
    if settings.goal != "untargeted":
        faults.append(f"The recipe {asked[0]!r} has the goal 'untargeted', got {settings.goal!r}.")
    given = [name for name in _OWN if name in settings.model_fields_set]
    if given and len(asked) == len(settings.recipes):
        faults.append(
            f"{asked} bound their changes by themselves, so `{'`, `'.join(given)}` would be "
            "ignored. Leave it out."
        )
    for name in asked:
        try:
            _recipe(name)
        except SettingError as error:
            faults.append(str(error))
            break
    return faults


def attack_with(
    name: str,
    rows: Sequence[Row],
    predictor: Predictor,
    settings: TextAttackSettings,
    *,
    batch_size: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Attack rows by a recipe of TextAttack.

    Args:
        name: ``textattack:NAME``.
        rows: What to attack.
        predictor: Whom.
        settings: With ``field``, ``protected`` and ``max_queries``.
        batch_size: Texts of a forward pass; changes no result.
        tell: Called with rows done and rows in all.

    Returns:
        One outcome a row, in order. Its query about the unchanged text is not counted.

    Raises:
        SettingError: There is no such recipe, or it does not work on this predictor.
    """
    attack = _built(name, Wrapped(predictor, batch_size), rows, settings)
    ends = []
    for number, row in enumerate(rows):
        texts = [side.text for side in row.draft.sides]
        example: Any = texts[0]
        if len(texts) == 2:
            example = OrderedDict(zip(_COLUMNS, texts, strict=True))
        with _drawn(row.seed):
            result = attack.attack(example, row.draft.label)
        # `perturbed_text()` is for printing: it sets column names before the texts of a pair.
        found = result.perturbed_result.attacked_text.tokenizer_input
        changed = (found,) if isinstance(found, str) else tuple(found)
        ends.append((changed, max(0, int(result.num_queries) - 1)))
        if tell is not None:
            tell(number + 1, len(rows))
    return _outcomes(rows, ends, predictor, batch_size)


def _outcomes(
    rows: Sequence[Row],
    ends: Sequence[tuple[tuple[str, ...], int]],
    predictor: Predictor,
    batch_size: int | None,
) -> list[Outcome]:
    """Ask the predictor about the texts at the end, and count what was changed."""
    if not rows:
        return []
    drafts = [
        replace(row.draft, sides=tuple(map(Words.of, texts)))
        for row, (texts, _) in zip(rows, ends, strict=True)
    ]
    answers = answers_of(predictor.predict(examples_of(drafts), batch_size=batch_size), drafts)
    return [
        Outcome(
            draft,
            answer,
            queries=queries,
            changed=sum(map(_changed, row.draft.sides, draft.sides)),
            words=row.words,
        )
        for row, draft, answer, (_, queries) in zip(rows, drafts, answers, ends, strict=True)
    ]


def _changed(old: Words, new: Words) -> int:
    """Count the words that were replaced, put in or taken out."""
    matcher = difflib.SequenceMatcher(None, old.words, new.words, autojunk=False)
    return sum(
        max(old_end - old_start, new_end - new_start)
        for kind, old_start, old_end, new_start, new_end in matcher.get_opcodes()
        if kind != "equal"
    )


def _recipe(name: str) -> Any:
    """Return a recipe's class."""
    if importlib.util.find_spec("textattack") is None:
        raise SettingError(
            f"The recipe {name!r} needs the package TextAttack, which is not installed. Run: pip "
            "install textattack. It asks for other versions of Transformers than Temper does, so "
            "'swaps' and 'masked' may be what you want."
        )
    try:
        module = importlib.import_module("textattack.attack_recipes")
    except (ImportError, OSError, LookupError) as error:
        raise SettingError(
            f"The recipe {name!r} needs the package TextAttack, which cannot be imported "
            f"({type(error).__name__}: {error}). Importing it downloads word lists, and needs the "
            "versions that it asks for. Mend its installation, or leave the recipe out."
        ) from error
    base = module.AttackRecipe
    known = {
        OUTSIDE + key: value
        for key, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, base) and value is not base
    }
    if name not in known:
        raise SettingError(unknown("recipe", name, known))
    return known[name]


def _built(name: str, wrapped: Wrapped, rows: Sequence[Row], settings: TextAttackSettings) -> Any:
    """Return the attack, bound by the settings that hold for it."""
    recipe = _recipe(name)
    try:
        attack = recipe.build(wrapped)
    except (AttributeError, ImportError, LookupError, OSError, TypeError, ValueError) as error:
        raise SettingError(
            f"The recipe {name!r} cannot be built for {type(wrapped.model).__name__} "
            f"({type(error).__name__}: {error}). "
            "Some recipes need a model of TextAttack's own or download vectors; use another."
        ) from error
    goal = type(attack.goal_function).__name__
    if goal != "UntargetedClassification":
        raise SettingError(
            f"The recipe {name!r} must aim at a wrong class (UntargetedClassification), it aims at "
            f"{goal}. Use another."
        )
    constraints = importlib.import_module("textattack.constraints.pre_transformation")
    bounds = attack.pre_transformation_constraints
    left = {"text": {_COLUMNS[1]}, "text_pair": {_COLUMNS[0]}, "both": set[str]()}[settings.field]
    if left:
        bounds.append(constraints.InputColumnModification(list(_COLUMNS), left))
    protected = {word.casefold() for word in settings.protected}
    # TextAttack compares words as they are written.
    spared = {
        word
        for row in rows
        for side in row.draft.sides
        for word in side.words
        if word.casefold() in protected
    }
    if spared:
        bounds.append(constraints.StopwordModification(stopwords=spared))
    if settings.max_queries is not None:
        # The first query is about the unchanged text.
        attack.goal_function.query_budget = settings.max_queries + 1
    return attack


@contextmanager
def _drawn(seed: int) -> Iterator[None]:
    """Seed the generators that TextAttack draws from, and put their states back."""
    states = random.getstate(), np.random.get_state()
    try:
        random.seed(derive_seed(seed, "random"))
        np.random.seed(derive_seed(seed, "numpy") % 2**32)
        with seeded(derive_seed(seed, "torch")):
            yield
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
