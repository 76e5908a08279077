"""The greedy search of all recipes, for many rows at a time.

The search of a row is a generator (`_searched`) with the published algorithm (DeepWordBug;
TextFooler: Jin et al., 2020)::

    order = positions by importance, the largest first
    for position in order, until the budget of words or queries is spent:
        outputs = predict the draft with each candidate word at the position
        if one reaches the goal: stop (of several, the nearest in meaning)
        if the best one raises the gain: keep it

The generator yields requests for predictions, words and similarities. `attack` runs the searches of
several rows at the same time and serves their requests of one kind together, so that the predictor
gets large batches. A row's requests do not depend on other rows. Finished rows are replaced by new
ones, so that the memory does not depend on the number of all rows.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from temper.data.examples import Examples
from temper.data.words import Words, is_stop_word
from temper.evaluation.prediction import Prediction
from temper.evaluation.text_attack.contract import (
    IN_FLIGHT,
    Ask,
    Draft,
    Position,
    Recipe,
    RecipeName,
    TextAttackSettings,
)
from temper.functional.resampling import IntegerArray
from temper.seeding import derive_seed

if TYPE_CHECKING:
    from temper.models.sentence import SentenceEncoder

TOLERANCE = 1e-4
"""Difference in nats up to which two gains count as equal."""


@dataclass(frozen=True)
class Output:
    """The predictor's output for one text.

    Args:
        gain: Objective of the search in nats: log odds against the label, or for the target class.
        reached: Whether the prediction is wrong, or the target class.
        source: The predictions of a batch that contains this text.
        index: Index of the text in this batch.
    """

    gain: float
    reached: bool
    source: Prediction
    index: int

    def alone(self) -> Output:
        """Return a copy without the batch, so that the batch can be freed."""
        return Output(self.gain, self.reached, self.source.take([self.index]), 0)


def outputs_of(prediction: Prediction, drafts: Sequence[Draft]) -> list[Output]:
    """Return the output for each text of a prediction.

    Log odds order texts as probabilities do, but differ even if probabilities round to 1.
    """
    goals = [draft.label if draft.target is None else draft.target for draft in drafts]
    odds = _log_odds(prediction, np.asarray(goals, dtype=np.int64))
    result = []
    for index, (draft, goal) in enumerate(zip(drafts, goals, strict=True)):
        hit = bool(prediction.prediction[index] == goal)
        gain, reached = (-odds[index], not hit) if draft.target is None else (odds[index], hit)
        result.append(Output(gain, reached, prediction, index))
    return result


def in_order(gains: Sequence[float]) -> list[int]:
    """Return positions by descending gain; equal gains keep their order.

    Gains count as equal if neighbors in the order differ by at most `TOLERANCE`.

    Example:
        >>> in_order([0.5, 0.7, 0.70005, 0.1])
        [1, 2, 0, 3]
    """
    order = sorted(range(len(gains)), key=lambda index: (-gains[index], index))
    runs: list[list[int]] = []
    for index in order:
        # The difference of two infinite gains is NaN; they count as equal.
        if runs and not gains[runs[-1][-1]] - gains[index] > TOLERANCE:
            runs[-1].append(index)
        else:
            runs.append([index])
    return [index for run in runs for index in sorted(run)]


def _log_odds(prediction: Prediction, classes: IntegerArray) -> list[float]:
    """Return ``log(p_c / (1 - p_c))`` of a given class c of each row; infinite if p_c is 0 or 1."""
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


# Maximum number of texts per call of the predictor, because all requested texts may be gigabytes.
_AT_A_TIME = 2048


class Rank(NamedTuple):
    """Request for the importance of the words at some positions of a row."""

    draft: Draft
    positions: Sequence[Position]


class Compare(NamedTuple):
    """Request for the similarity of pairs of texts."""

    pairs: list[tuple[str, str]]


class Query(NamedTuple):
    """Request for predictions of a row with each of several single changes."""

    draft: Draft
    changes: list[tuple[Position, str]]


Request = Rank | Ask | Compare | Query
# `Query` is last: when no other request is open, all rows share the predictor's batches.
ORDER = (Rank, Ask, Compare, Query)
"""Kinds of requests in the order in which they are served."""


def _serve(
    requests: list[Any],
    predict: Callable[[Examples], Prediction],
    recipe: Recipe,
    encoder: SentenceEncoder | None,
) -> list[Any]:
    """Return the results of requests of one kind: importance, words, cosines or outputs."""
    first = requests[0]
    if isinstance(first, Query):
        changes = [(request.draft, *change) for request in requests for change in request.changes]
        outputs: list[Output] = []
        for start in range(0, len(changes), _AT_A_TIME):
            some = changes[start : start + _AT_A_TIME]
            texts = [draft.texts_with(index, word) for draft, index, word in some]
            pair = [second for _, second in texts if second is not None]
            examples = Examples("text attack", [text for text, _ in texts], pair or None)
            prediction = predict(examples)
            outputs += outputs_of(prediction, [draft for draft, _, _ in some])
        return _split(outputs, [len(request.changes) for request in requests])
    if isinstance(first, Compare):
        assert encoder is not None
        pairs = [pair for request in requests for pair in request.pairs]
        texts, others = (list(column) for column in zip(*pairs, strict=True))
        values = encoder.similarity(texts, others).tolist()
        return _split(values, [len(request.pairs) for request in requests])
    if isinstance(first, Ask):
        return recipe.propose(requests)
    assert recipe.rank is not None
    drafts, indices = zip(*requests, strict=True)
    return recipe.rank(drafts, indices)


def _split(values: Sequence[Any], lengths: Sequence[int]) -> list[Any]:
    ends = np.cumsum(lengths).tolist()
    return [list(values[end - length : end]) for end, length in zip(ends, lengths, strict=True)]


@dataclass(frozen=True)
class Outcome:
    """The result of the attack on one row.

    Args:
        draft: The row after the attack; unchanged if a targeted attack failed.
        output: The predictor's output for ``draft``.
        queries: Number of predicted texts, including those for the ranking.
        changed: Number of changed words.
        words: Number of words in the row.
        ranking: Number of queries to rank all words. If ``max_queries`` is not larger, no query is
            left to try a change.
    """

    draft: Draft
    output: Output
    queries: int = 0
    changed: int = 0
    words: int = 0
    ranking: int = 0

    @property
    def fraction(self) -> float:
        """Fraction of changed words, 0 if there are no words."""
        return self.changed / self.words if self.words else 0.0


@dataclass(frozen=True)
class Row:
    """One row to attack.

    Args:
        draft: The unchanged row.
        output: The predictor's output for ``draft``; it does not reach the goal.
        positions: Words that may be changed.
        words: Number of words in the row.
        seed: Seed of the row's draws.
    """

    draft: Draft
    output: Output
    positions: tuple[Position, ...]
    words: int
    seed: int


_Steps = Generator[Request, Any, Outcome]


def free_positions(draft: Draft, settings: TextAttackSettings) -> tuple[tuple[Position, ...], int]:
    """Return the positions of words that may be changed, and the number of all words."""
    sides = {"text": (0,), "text_pair": (1,), "both": (0, 1)}[settings.field]
    protected = {word.casefold() for word in settings.protected}

    def free(word: str) -> bool:
        return word.casefold() not in protected and not (settings.stop_words and is_stop_word(word))

    indices = tuple(
        Position(side, number)
        for side in sides
        for number, word in enumerate(draft.sides[side].words)
        if free(word)
    )
    return indices, sum(len(draft.sides[side]) for side in sides)


def draft_of(
    row: str, label: int, text: str, text_pair: str | None, target: int | None = None
) -> Draft:
    texts = [text] if text_pair is None else [text, text_pair]
    return Draft(row, label, tuple(map(Words.of, texts)), target)


def attack(
    rows: Sequence[Row],
    predict: Callable[[Examples], Prediction],
    recipe: Recipe,
    settings: TextAttackSettings,
    *,
    encoder: SentenceEncoder | None = None,
    tell: Callable[[int, int], None] | None = None,
) -> list[Outcome]:
    """Attack rows, `IN_FLIGHT` of them at the same time.

    ``encoder`` computes similarities for ``min_similarity``. ``tell`` is called with the number of
    finished rows and of all rows.
    """
    upcoming = enumerate(rows)
    searches: dict[int, _Steps] = {}
    outcomes: dict[int, Outcome] = {}
    waiting: dict[int, Request] = {}
    replies: dict[int, Any] = {}
    while True:
        # Refill only when half are finished: a few new rows would be a small batch to rank.
        if len(searches) <= IN_FLIGHT // 2:
            for number, row in islice(upcoming, IN_FLIGHT - len(searches)):
                searches[number], replies[number] = _searched(row, recipe, settings), None
        if not replies:
            return [outcomes[number] for number in range(len(rows))]
        for number in list(replies):
            try:
                # Popped, because a reply that stays here would keep its whole batch in memory.
                waiting[number] = searches[number].send(replies.pop(number))
            except StopIteration as end:
                outcomes[number] = end.value
                del searches[number]
        if tell is not None:
            tell(len(outcomes), len(rows))
        kind = next((k for k in ORDER if any(isinstance(r, k) for r in waiting.values())), None)
        chosen = [] if kind is None else [n for n, r in waiting.items() if isinstance(r, kind)]
        requests = [waiting.pop(number) for number in chosen]
        if requests:
            served = _serve(requests, predict, recipe, encoder)
            replies = dict(zip(chosen, served, strict=True))
            del served


def starved(outcomes: Sequence[Outcome], name: str, settings: TextAttackSettings) -> str:
    """Return a notice on rows for which ranking used all queries, so that no change was tried."""
    most = settings.max_queries
    needed = [
        outcome.ranking for outcome in outcomes if most is not None and outcome.ranking >= most
    ]
    if not needed:
        return ""
    return (
        f"The text attack {name!r} spent all queries (`max_queries` {most}) on "
        f"ranking the words of {len(needed)} of {len(outcomes)} attacked rows, so that no change "
        f"of them was tried. Ranking takes up to {max(needed)} queries per row: set `max_queries` "
        "above that, or leave it out."
    )


def _searched(row: Row, recipe: Recipe, settings: TextAttackSettings) -> _Steps:
    # Add a small number against rounding: 0.29 * 100 is 28.999999999999996.
    most = max(1, int(settings.max_changed * row.words + 1e-9))
    order, queries, ranking = yield from _ranked(row, recipe, settings)
    result = Outcome(row.draft, row.output, queries=queries, words=row.words, ranking=ranking)
    for index in order:
        if result.changed == most or _left(settings, result.queries) == 0:
            break
        result = yield from _tried(row, result, index, settings)
        if result.output.reached:
            break
    if row.draft.target is not None and not result.output.reached:
        result = replace(result, draft=row.draft, output=row.output, changed=0)
    return result


def _tried(
    row: Row, outcome: Outcome, position: Position, settings: TextAttackSettings
) -> Generator[Request, Any, Outcome]:
    words = yield Ask(outcome.draft, position, row.seed)
    words, nearness = yield from _near(row, outcome.draft, position, words, settings)
    words = words[: _left(settings, outcome.queries)]
    if not words:
        return outcome
    outputs = yield Query(outcome.draft, [(position, word) for word in words])
    outcome = replace(outcome, queries=outcome.queries + len(words))
    # The nearest text that reaches the goal, or the largest gain.
    reached = [index for index, output in enumerate(outputs) if output.reached]
    among = reached or list(range(len(outputs)))
    values = nearness if reached and nearness else [output.gain for output in outputs]
    best = among[in_order([values[index] for index in among])[0]]
    if not outputs[best].reached and not outputs[best].gain > outcome.output.gain + TOLERANCE:
        return outcome
    draft = outcome.draft.replaced(position, words[best])
    return replace(outcome, draft=draft, output=outputs[best].alone(), changed=outcome.changed + 1)


def _ranked(
    row: Row, recipe: Recipe, settings: TextAttackSettings
) -> Generator[Request, Any, tuple[list[Position], int, int]]:
    """Return positions by importance, the queries used, and the queries to rank all words."""
    indices = row.positions
    if len(indices) < 2:
        return list(indices), 0, 0
    if recipe.rank is not None:
        gains = yield Rank(row.draft, indices)
        return [indices[index] for index in in_order(gains)], 1, 1
    probed = indices[: _left(settings, 0)]
    outputs = yield Query(row.draft, [(index, "") for index in probed])
    order = in_order([output.gain for output in outputs])
    ranked = [probed[index] for index in order] + list(indices[len(probed) :])
    return ranked, len(probed), len(indices)


def _near(
    row: Row, draft: Draft, position: Position, words: list[str], settings: TextAttackSettings
) -> Generator[Request, Any, tuple[list[str], list[float]]]:
    """Return the words with which the text stays similar enough, and the similarities."""
    if settings.min_similarity is None or not words:
        return words, []
    changed = [draft.sides[position.side].replaced(position.word, word).text for word in words]
    original = row.draft.sides[position.side].text
    result = yield Compare([(original, text) for text in changed])
    kept = [
        (word, value)
        for word, value in zip(words, result, strict=True)
        if value >= settings.min_similarity
    ]
    return [word for word, _ in kept], [value for _, value in kept]


def _left(settings: TextAttackSettings, queries: int) -> int | None:
    return None if settings.max_queries is None else settings.max_queries - queries


def drafts_of(examples: Examples, target: int | None = None) -> list[Draft]:
    pairs: Sequence[str | None] = examples.text_pair or [None] * len(examples)
    labels = examples.labels or []
    return [
        draft_of(row, int(label), text, pair, target)
        for row, label, text, pair in zip(examples.rows, labels, examples.text, pairs, strict=True)
    ]


def attacked(
    drafts: Sequence[Draft],
    before: Sequence[Output],
    name: RecipeName,
    settings: TextAttackSettings,
    seed: int,
) -> dict[int, Row]:
    """Return position -> row to attack, for the rows that are predicted correctly."""
    chosen = {}
    for number, (draft, output) in enumerate(zip(drafts, before, strict=True)):
        if output.source.prediction[output.index] == draft.label:
            indices, words = free_positions(draft, settings)
            row_seed = derive_seed(seed, "text_attack", name, draft.row)
            chosen[number] = Row(draft, output, indices, words, row_seed)
    return chosen
