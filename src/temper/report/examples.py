"""The examples behind an attack's scores: text, answers before and after, and what was changed.

Read from ``rows.parquet`` and ``texts.parquet``; evaluations from before texts were kept have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice, zip_longest
from typing import Any, TypeVar

import pandas as pd

from temper.display.cells import ScoreKey
from temper.display.folders import Source
from temper.display.parameters import Parameters
from temper.report.attacked import MEASURED, OUTCOMES, Part, attacked, records
from temper.report.derived import views
from temper.report.diff import Segment, shorten, word_diff

MOST = 300
"""Examples that a page holds unless told otherwise."""

# Characters of an unchanged text, and of each stretch between two changes.
_WHOLE, _BETWEEN = 1200, 240
_KINDS = {"same": 0, "removed": 1, "added": 2}

_Any = TypeVar("_Any")


@dataclass(frozen=True)
class Example:
    """Hold one example under one attack.

    Args:
        column: Column of the comparison.
        group: Title of the perspective.
        attack: What was done, in words.
        set: Name of the data set.
        row: Hash of the text.
        label: The right class.
        before, after: Predicted class without and under attack.
        confidence_before, confidence_after: Their probabilities.
        outcome: ``broken`` (right, then wrong), ``held`` (right both times) or ``wrong before``.
        changed: Share of the words that were changed, None where no word was.
        queries: Texts that the attack asked about, None where it asked by gradients.
        text: What it was and became, in segments.
        text_pair: The same of the second text, empty where there is none.
    """

    column: str
    group: str
    attack: str
    set: str
    row: str
    label: int
    before: int
    after: int
    confidence_before: float
    confidence_after: float
    outcome: str
    changed: float | None
    queries: int | None
    text: tuple[Segment, ...]
    text_pair: tuple[Segment, ...] = ()


@dataclass(frozen=True)
class Gallery:
    """Hold the examples that a page shows.

    Args:
        shown: The examples.
        total: How many there are in all.
        labels: Class names by index.
        seeds: Seed whose run is shown, by column.
    """

    shown: tuple[Example, ...]
    total: int
    labels: tuple[str, ...]
    seeds: dict[str, int]

    @property
    def columns(self) -> list[str]:
        """Columns that have an example here."""
        return list(dict.fromkeys(example.column for example in self.shown))

    @property
    def attacks(self) -> list[tuple[str, str]]:
        """Perspective and attack, in words, each once."""
        return list(dict.fromkeys((example.group, example.attack) for example in self.shown))

    def label(self, index: int) -> str:
        """Return a class's name, or its index where it has none."""
        return self.labels[index] if index < len(self.labels) else str(index)

    def to_json(self) -> dict[str, Any]:
        """Return what the page's script shows; a text that several attacks share stands once."""
        texts: dict[tuple[tuple[Segment, ...], ...], int] = {}
        entries = []
        columns, attacks = self.columns, self.attacks
        for example in self.shown:
            text = (example.text, example.text_pair)
            entries.append(
                {
                    "column": columns.index(example.column),
                    "attack": attacks.index((example.group, example.attack)),
                    "set": example.set,
                    "label": example.label,
                    "before": example.before,
                    "after": example.after,
                    "sure": round(example.confidence_before, 4),
                    "then": round(example.confidence_after, 4),
                    "outcome": OUTCOMES.index(example.outcome),
                    "changed": example.changed,
                    "queries": example.queries,
                    "text": texts.setdefault(text, len(texts)),
                }
            )
        classes = {index for entry in entries for index in _classes(entry)}
        return {
            "columns": columns,
            "attacks": [f"{group}: {name}" for group, name in attacks],
            "labels": {str(index): self.label(index) for index in sorted(classes)},
            "outcomes": OUTCOMES,
            "texts": [
                [[[_KINDS[kind], words] for kind, words in part] for part in pair if part]
                for pair in texts
            ],
            "entries": entries,
        }


def gallery(source: Source, *, most: int = MOST) -> Gallery | None:
    """Gather the examples of every attack whose texts were kept.

    Of each column the first seed is read. Where there are more than ``most``, perspectives, then
    their attacks and columns take turns, and each gives those that broke first, by row hash.

    Args:
        source: The folder.
        most: Examples to keep at most, >= 0; 0 keeps none.

    Returns:
        The examples, or None where there are none: no attack, no texts, or a regression.

    Raises:
        CheckpointError: Rows or texts are damaged.
    """
    by_perspective: dict[str, list[Part]] = {}
    labels: tuple[str, ...] = ()
    seeds = {}
    for column in source.columns if most else ():
        run = next(iter(column.runs.values()), None)
        if run is None or run.scores is None or run.scores.task.kind != "classification":
            continue
        labels = labels or tuple(run.scores.task.labels)
        for perspective, parts in attacked(run, most=most).items():
            seeds[run.column] = run.seed
            by_perspective.setdefault(perspective, []).extend(parts)
    total = sum(part.total for parts in by_perspective.values() for part in parts)
    if not total:
        return None
    turns = [_in_turn([_places(part) for part in parts]) for parts in by_perspective.values()]
    chosen = list(islice(_in_turn(turns), most))
    found: dict[int, Example] = {}
    for column_name in dict.fromkeys(part.run.column for part, _ in chosen):
        own = [number for number, (part, _) in enumerate(chosen) if part.run.column == column_name]
        rows = records([chosen[number] for number in own])
        found.update(zip(own, (_example(column_name, row) for row in rows), strict=True))
    return Gallery(tuple(found[number] for number in range(len(chosen))), total, labels, seeds)


def _example(column: str, row: dict[str, Any]) -> Example:
    before, after = int(row["prediction_clean"]), int(row["prediction"])
    own = {name: None if pd.isna(row.get(name)) else row[name] for name in MEASURED}
    parameters = Parameters.of_text(row["parameters"])
    key = ScoreKey(row["perspective"], row["set"], row["condition"], "", parameters)
    view = views().of(key.perspective)
    return Example(
        column=column,
        group=view.title,
        attack=view.attack(key),
        set=row["set"],
        row=row["row"],
        label=int(row["label"]),
        before=before,
        after=after,
        confidence_before=float(row["probabilities_clean"][before]),
        confidence_after=float(row["probabilities"][after]),
        outcome=OUTCOMES[row["outcome"]],
        changed=None if own["changed"] is None else float(own["changed"]),
        queries=None if own["queries"] is None else int(own["queries"]),
        text=_segments(row["text"], row["text_changed"]),
        text_pair=_segments(row["text_pair"], row["text_pair_changed"]),
    )


def _classes(entry: dict[str, Any]) -> tuple[int, int, int]:
    return entry["label"], entry["before"], entry["after"]


def _segments(text: Any, changed: Any) -> tuple[Segment, ...]:
    """Compare two texts; without a second one the first stands unchanged."""
    if not isinstance(text, str):
        return ()
    if not isinstance(changed, str) or changed == text:
        return tuple(shorten([("same", text)], longest=_WHOLE))
    return tuple(shorten(word_diff(text, changed), longest=_BETWEEN))


def _places(part: Part) -> Iterator[tuple[Part, int]]:
    return ((part, place) for place in range(len(part.kept)))


def _in_turn(parts: Iterable[Iterable[_Any]]) -> Iterator[_Any]:
    """Take one of each part, then the next of each, until all are taken."""
    return (found for turn in zip_longest(*parts) for found in turn if found is not None)
