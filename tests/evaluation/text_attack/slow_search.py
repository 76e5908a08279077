"""The greedy attack as published, one example and one query per forward pass.

Written from Algorithm 1 of TextFooler (Jin et al., 2020) and the scheme of DeepWordBug (Gao et al.,
2018), in double precision and without code of the package's search. Words are separated by single
spaces. The arguments are a function from a text to probabilities, and one from a list of words and
an index to candidates.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

NEARLY = 1e-4


@dataclass
class Counted:
    """A function from a text to probabilities that counts its calls.

    Args:
        ask: The function.
    """

    ask: Callable[[str], list[float]]
    calls: int = 0

    def __call__(self, text: str) -> list[float]:
        self.calls += 1
        return self.ask(text)


def first_of_the_largest(numbers: list[float]) -> int:
    """Return the first index of the largest number, or of one nearly as large."""
    reach = max(numbers)
    # Everything that a chain of small gaps links to the largest.
    for number in sorted(numbers, reverse=True):
        if reach - number <= NEARLY:
            reach = number
    return next(at for at, number in enumerate(numbers) if number >= reach)


def largest_first(numbers: list[float]) -> list[int]:
    """Sort positions by taking the largest again and again."""
    left, result = list(range(len(numbers))), []
    while left:
        result.append(left.pop(first_of_the_largest([numbers[at] for at in left])))
    return result


def slow_attack(
    text: str,
    label: int,
    ask: Callable[[str], list[float]],
    candidates: Callable[[list[str], int], list[str]],
    *,
    target: int | None = None,
    kept: Iterable[str] = (),
    max_changed: float = 0.3,
    max_queries: int | None = None,
    near: Callable[[str, str], float] | None = None,
    least: float = -1.0,
) -> tuple[str, int, int]:
    """Attack one text.

    Args:
        text: Words between single spaces.
        label: Its class.
        ask: Returns the probabilities of a text.
        candidates: Returns the replacements for the word at an index of the words.
        target: Class to reach, None for any other than the label.
        kept: Words that stay, in lower case.
        max_changed: Fraction of words that may change.
        max_queries: Budget.
        near: Similarity of two texts.
        least: Smallest similarity.

    Returns:
        The text at the end, the queries, and the number of changed words.
    """
    model = Counted(ask)
    words = text.split(" ")

    def worth(probabilities: list[float]) -> float:
        goal = label if target is None else target
        others = [each for at, each in enumerate(probabilities) if at != goal]
        odds = math.log(probabilities[goal] / math.fsum(others))
        return -odds if target is None else odds

    def done(probabilities: list[float]) -> bool:
        best = probabilities.index(max(probabilities))
        return best != label if target is None else best == target

    def spent() -> bool:
        return max_queries is not None and model.calls >= max_queries

    current = worth(ask(text))
    free = [position for position, word in enumerate(words) if word.lower() not in set(kept)]
    importance: list[float] = []
    for position in free:
        if len(free) > 1 and not spent():
            importance.append(worth(model(" ".join(words[:position] + words[position + 1 :]))))
    order = [free[at] for at in largest_first(importance)] + free[len(importance) :]
    changed = 0
    for position in order:
        if changed >= 1 and changed + 1 > max_changed * len(words) + 1e-9:
            break
        tried: list[tuple[str, float, bool, float]] = []
        for word in candidates(words, position):
            whole = " ".join([*words[:position], word, *words[position + 1 :]])
            similar = 0.0 if near is None else near(text, whole)
            if (near is None or similar >= least) and not spent():
                output = model(whole)
                tried.append((word, worth(output), done(output), similar))
        if not tried:
            continue
        winners = [each for each in tried if each[2]]
        if winners:
            by = 1 if near is None else 3
            chosen = winners[first_of_the_largest([float(each[by]) for each in winners])]
            words[position] = chosen[0]
            return " ".join(words), model.calls, changed + 1
        chosen = tried[first_of_the_largest([each[1] for each in tried])]
        if chosen[1] > current + NEARLY:
            words[position], current = chosen[0], chosen[1]
            changed += 1
    if target is not None:
        return text, model.calls, 0
    return " ".join(words), model.calls, changed
