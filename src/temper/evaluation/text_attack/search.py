"""The greedy search that all recipes share, for many rows at a time.

One row's search is a generator (`_searched`) that reads like the published algorithm (DeepWordBug,
TextFooler: Jin et al., 2020): rank the words, take them in that order, try the words offered for
each, keep the one that raises the gain most, stop at the first that reaches the goal::

    order = places by importance, the largest first
    for place in order, until the budget of words or queries is spent:
        answers = ask about the draft with each word offered for the place
        where one reaches the goal: it is done (of several the nearest in meaning, else the best)
        where the best raises the gain: go on with it

It yields what it wants to know. `attack` runs the searches of all rows side by side and answers all
open requests of a kind in one call, so that the predictor sees large batches; what a row asks, and
in which order, does not depend on the others. Gains within `TOLERANCE` count as equal, and the
first of them is taken: batches move an answer's last digits.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import numpy as np

from temper.data.examples import Examples
from temper.data.words import Words, is_stop_word
from temper.errors import ModelError
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack.contract import Ask, Draft, Place, Recipe, Similarity
from temper.evaluation.text_attack.settings import TextAttackSettings
from temper.functional.resampling import IntegerArray

TOLERANCE = 1e-4
"""Nats within which two gains count as equal."""

# Texts handed to the predictor at a time: the texts of a whole round may be gigabytes.
_AT_A_TIME = 2048


@dataclass(frozen=True)
class Answer:
    """What the predictor says of one text.

    Args:
        gain: What the search raises: the log odds against the label, or for the target, in nats.
        reached: Whether the goal is reached.
        source: The answers that this one is among.
        at: Which of them.
    """

    gain: float
    reached: bool
    source: Prediction
    at: int


@dataclass(frozen=True)
class Outcome:
    """How the attack on one row went.

    Args:
        draft: The row at its end; of a targeted attack that fails as it was.
        answer: What the predictor says of it.
        queries: Texts that it was asked about, ranking included.
        changed: Words that were changed.
        words: Words of the texts that were attacked.
    """

    draft: Draft
    answer: Answer
    queries: int = 0
    changed: int = 0
    words: int = 0

    @property
    def share(self) -> float:
        """Changed words over all, 0 where there are none."""
        return self.changed / self.words if self.words else 0.0


@dataclass(frozen=True)
class Row:
    """One row to attack.

    Args:
        draft: It, unchanged.
        answer: What the predictor says of it, which is not the goal.
        places: Words that may be changed.
        words: Words of the texts that are attacked.
        seed: Of its draws.
    """

    draft: Draft
    answer: Answer
    places: tuple[Place, ...]
    words: int
    seed: int


class _Rank(NamedTuple):
    draft: Draft
    places: Sequence[Place]


class _Compare(NamedTuple):
    pairs: list[tuple[str, str]]


class _Query(NamedTuple):
    draft: Draft
    changes: list[tuple[Place, str]]


_Request = _Rank | Ask | _Compare | _Query
_Steps = Generator[_Request, Any, Outcome]


def free_places(draft: Draft, settings: TextAttackSettings) -> tuple[tuple[Place, ...], int]:
    """Return the words that may be changed, and how many words the attacked texts have.

    Args:
        draft: A row.
        settings: With ``field``, ``stop_words`` and ``protected``.
    """
    sides = {"text": (0,), "text_pair": (1,), "both": (0, 1)}[settings.field]
    protected = {word.casefold() for word in settings.protected}

    def free(word: str) -> bool:
        return word.casefold() not in protected and not (settings.stop_words and is_stop_word(word))

    places = tuple(
        Place(side, number)
        for side in sides
        for number, word in enumerate(draft.sides[side].words)
        if free(word)
    )
    return places, sum(len(draft.sides[side]) for side in sides)


def draft_of(
    row: str, label: int, text: str, text_pair: str | None, target: int | None = None
) -> Draft:
    """Return a row's draft.

    Args:
        row: Hash of its text.
        label: Its class.
        text: Its text.
        text_pair: Its second text.
        target: The class that is wanted, None for any wrong one.
    """
    texts = [text] if text_pair is None else [text, text_pair]
    return Draft(row, label, tuple(map(Words.of, texts)), target)


def answers_of(prediction: Prediction, drafts: Sequence[Draft]) -> list[Answer]:
    """Read answers by each row's goal.

    The log odds order texts as the probability does, and still tell apart what a sure classifier
    rounds to 1.

    Args:
        prediction: n answers.
        drafts: The n rows that they belong to.
    """
    goals = [draft.label if draft.target is None else draft.target for draft in drafts]
    odds = _log_odds(prediction, np.asarray(goals, dtype=np.int64))
    found = []
    for at, (draft, goal) in enumerate(zip(drafts, goals, strict=True)):
        hit = bool(prediction.prediction[at] == goal)
        gain, reached = (-odds[at], not hit) if draft.target is None else (odds[at], hit)
        found.append(Answer(gain, reached, prediction, at))
    return found


def _log_odds(prediction: Prediction, classes: IntegerArray) -> list[float]:
    """Return ``log p_c / (1 - p_c)`` of a class of each row; infinite where p_c is 0 or 1."""
    if prediction.logits is None:
        with np.errstate(divide="ignore"):
            values = np.log(prediction.probabilities)
    else:
        values = prediction.logits
    rows = np.arange(len(classes))
    others = values.copy()
    others[rows, classes] = -np.inf
    against = np.logaddexp.reduce(others, axis=1)
    return [float(value) for value in values[rows, classes] - against]


def attack(
    rows: Sequence[Row],
    predictor: Predictor,
    recipe: Recipe,
    settings: TextAttackSettings,
    *,
    similarity: Similarity | None = None,
    batch_size: int | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Attack rows side by side.

    Args:
        rows: What to attack.
        predictor: Whom.
        recipe: How.
        settings: Within which bounds.
        similarity: Who compares meanings, where ``min_similarity`` is set.
        batch_size: Texts of a forward pass; changes no result.
        tell: Called with rows done and rows in all.

    Returns:
        One outcome a row, in order.

    Raises:
        ModelError: A proposer, ranker or similarity does not answer every request.
    """
    service = _Service(predictor, recipe, similarity, batch_size)
    searches = [_searched(row, recipe, settings) for row in rows]
    outcomes: dict[int, Outcome] = {}
    waiting: dict[int, _Request] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(rows)))
    while answers:
        for number, answer in answers.items():
            try:
                waiting[number] = searches[number].send(answer)
            except StopIteration as end:
                outcomes[number] = end.value
        if tell is not None:
            tell(len(outcomes), len(rows))
        # The model is asked when nothing else is open: then all rows stand at a question to it.
        kinds = (_Rank, Ask, _Compare, _Query)
        kind = next((k for k in kinds if any(isinstance(r, k) for r in waiting.values())), None)
        chosen = [] if kind is None else [n for n, r in waiting.items() if isinstance(r, kind)]
        requests = [waiting.pop(number) for number in chosen]
        answers = dict(zip(chosen, service.serve(requests), strict=True)) if requests else {}
    return [outcomes[number] for number in range(len(rows))]


def in_order(gains: Sequence[float]) -> list[int]:
    """Return positions from the largest gain to the smallest, equal ones as they stand.

    Args:
        gains: Any numbers, infinite ones too.

    Returns:
        Positions. A run of gains each of which is within `TOLERANCE` of the next counts as equal.

    Example:
        >>> in_order([0.5, 0.7, 0.70005, 0.1])
        [1, 2, 0, 3]
    """
    order = sorted(range(len(gains)), key=lambda at: (-gains[at], at))
    runs: list[list[int]] = []
    for at in order:
        # Two infinite gains differ by no number, and are no longer apart than that.
        if runs and not gains[runs[-1][-1]] - gains[at] > TOLERANCE:
            runs[-1].append(at)
        else:
            runs.append([at])
    return [at for run in runs for at in sorted(run)]


def _searched(row: Row, recipe: Recipe, settings: TextAttackSettings) -> _Steps:
    """Search one row."""
    found = Outcome(row.draft, row.answer, words=row.words)
    # Rounded up by a hair: 0.29 * 100 is 28.999999999999996.
    most = max(1, int(settings.max_changed * row.words + 1e-9))
    order, queries = yield from _ranked(row, recipe, settings)
    for place in order:
        left = _left(settings, queries)
        if found.changed == most or left == 0:
            break
        words = yield Ask(found.draft, place, row.seed)
        words, nearness = yield from _near(row, found.draft, place, words, settings)
        words = words[:left]
        if not words:
            continue
        answers = yield _Query(found.draft, [(place, word) for word in words])
        queries += len(words)
        best = _best(answers, nearness)
        if answers[best].reached or answers[best].gain > found.answer.gain + TOLERANCE:
            draft = found.draft.replaced(place, words[best])
            found = replace(found, draft=draft, answer=answers[best], changed=found.changed + 1)
        if found.answer.reached:
            break
    if row.draft.target is not None and not found.answer.reached:
        found = Outcome(row.draft, row.answer, words=row.words)
    return replace(found, queries=queries)


def _ranked(
    row: Row, recipe: Recipe, settings: TextAttackSettings
) -> Generator[_Request, Any, tuple[list[Place], int]]:
    """Order the words, and count what that cost."""
    places = row.places
    if len(places) < 2:
        return list(places), 0
    if recipe.ranker is not None:
        left = _left(settings, 0)
        if left is not None and left < recipe.ranker.queries:
            return list(places), 0
        gains = yield _Rank(row.draft, places)
        return [places[at] for at in in_order(gains)], recipe.ranker.queries
    probed = places[: _left(settings, 0)]
    answers = yield _Query(row.draft, [(place, recipe.stand_in) for place in probed])
    order = in_order([answer.gain for answer in answers])
    return [probed[at] for at in order] + list(places[len(probed) :]), len(probed)


def _near(
    row: Row, draft: Draft, place: Place, words: list[str], settings: TextAttackSettings
) -> Generator[_Request, Any, tuple[list[str], list[float]]]:
    """Keep the words that leave the text's meaning near enough, with how near."""
    if settings.min_similarity is None or not words:
        return words, []
    changed = [draft.sides[place.side].replaced(place.word, word).text for word in words]
    original = row.draft.sides[place.side].text
    found = yield _Compare([(original, text) for text in changed])
    kept = [
        (word, value)
        for word, value in zip(words, found, strict=True)
        if value >= settings.min_similarity
    ]
    return [word for word, _ in kept], [value for _, value in kept]


def _best(answers: Sequence[Answer], nearness: Sequence[float]) -> int:
    """Choose: the nearest in meaning of those that reach the goal, else what gains most."""
    reached = [at for at, answer in enumerate(answers) if answer.reached]
    among = reached or list(range(len(answers)))
    values = nearness if reached and nearness else [answer.gain for answer in answers]
    return among[in_order([values[at] for at in among])[0]]


def _left(settings: TextAttackSettings, queries: int) -> int | None:
    """Return the queries that are left, None where there is no limit."""
    return None if settings.max_queries is None else settings.max_queries - queries


class _Service:
    """Answers the requests of many searches."""

    def __init__(
        self,
        predictor: Predictor,
        recipe: Recipe,
        similarity: Similarity | None,
        batch_size: int | None,
    ) -> None:
        self.predictor = predictor
        self.recipe = recipe
        self.similarity = similarity
        self.batch_size = batch_size

    def serve(self, requests: list[Any]) -> list[Any]:
        """Answer requests of one kind."""
        first = requests[0]
        if isinstance(first, _Query):
            return self._asked(requests)
        if isinstance(first, Ask):
            found: list[Any] = self.recipe.proposer.propose(requests)
        elif isinstance(first, _Rank):
            assert self.recipe.ranker is not None
            drafts, places = zip(*requests, strict=True)
            found = self.recipe.ranker.rank(drafts, places)
            _check(list(map(len, found)), list(map(len, places)), "Ranker", self.recipe.name)
        else:
            found = self._compared(requests)
        _check([len(found)], [len(requests)], type(first).__name__, self.recipe.name)
        return found

    def _compared(self, requests: list[_Compare]) -> list[Any]:
        assert self.similarity is not None
        pairs = [pair for request in requests for pair in request.pairs]
        values = self.similarity.similarities(pairs)
        _check([len(values)], [len(pairs)], "Similarity", self.recipe.name)
        return _split(values, [len(request.pairs) for request in requests])

    def _asked(self, requests: list[_Query]) -> list[Any]:
        """Predict the texts of all requests, some thousands at a time."""
        changes = [(request.draft, *change) for request in requests for change in request.changes]
        answers: list[Answer] = []
        for start in range(0, len(changes), _AT_A_TIME):
            some = changes[start : start + _AT_A_TIME]
            texts = [draft.texts_with(place, word) for draft, place, word in some]
            pair = [second for _, second in texts if second is not None]
            examples = Examples("text attack", [text for text, _ in texts], pair or None)
            prediction = self.predictor.predict(examples, batch_size=self.batch_size)
            answers += answers_of(prediction, [draft for draft, _, _ in some])
        return _split(answers, [len(request.changes) for request in requests])


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
    """Cut a list into parts."""
    ends = np.cumsum(lengths).tolist()
    return [list(values[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


def _check(found: list[int], wanted: list[int], who: str, recipe: str) -> None:
    if found != wanted:
        raise ModelError(
            f"{who} of the recipe {recipe!r} must answer every request, expected {wanted[:3]} "
            f"answers, got {found[:3]}."
        )
