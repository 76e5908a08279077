"""Examples of attacked texts on a page: the changes, and predictions before and after.

Texts that the attack made wrong come first. There are none unless the evaluation stored texts.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from itertools import islice, zip_longest
from typing import Any, Literal, TypeVar

import numpy as np
import pandas as pd

from temper.display.cells import ScoreKey
from temper.display.folders import Run, Source
from temper.display.records import Parameters
from temper.report.derived import view_of, views
from temper.report.predictions import COLUMNS, KEYS, clean_predictions, kept_texts

Kind = Literal["same", "removed", "added"]
Segment = tuple[Kind, str]

CUT = " […] "
"""Stands for the left-out middle of a long text."""

# A word with its apostrophes, a stretch of white space, or one other character.
_PARTS = re.compile(r"\w+(?:['’]\w+)*|\s+|[^\w\s]")


def word_diff(original: str, changed: str) -> list[Segment]:
    """Return the difference of two texts as ``same``, ``removed`` and ``added`` segments.

    Segments are in reading order. A removed segment precedes the added one that replaces it.

    Example:
        >>> word_diff("a good film", "a g00d film")
        [('same', 'a '), ('removed', 'good'), ('added', 'g00d'), ('same', ' film')]
    """
    first, second = _PARTS.findall(original), _PARTS.findall(changed)
    # The heuristic for long inputs treats frequent words as noise and misses their matches.
    codes = SequenceMatcher(None, first, second, autojunk=False).get_opcodes()
    pieces = [("".join(first[a:b]), "".join(second[c:d]), tag) for tag, a, b, c, d in codes]
    segments: list[Segment] = []
    removed = added = ""
    for index, (before, after, tag) in enumerate(pieces):
        inside = 0 < index < len(pieces) - 1
        # A space between two changed words belongs to the change: it reads as one.
        if tag != "equal" or (inside and before.isspace()):
            removed, added = removed + before, added + after
            continue
        segments += _changed(removed, added)
        removed = added = ""
        segments.append(("same", before))
    return segments + _changed(removed, added)


def shorten(segments: Sequence[Segment], *, longest: int) -> list[Segment]:
    """Replace the middle of long segments by `CUT`, so that all changes stay visible.

    Half of ``longest`` characters, at least 2, remain at both ends.

    Example:
        >>> shorten([("same", "abcdefgh")], longest=4)
        [('same', 'ab […] gh')]
    """
    half = longest // 2
    return [
        (kind, text if len(text) <= longest else text[:half] + CUT + text[len(text) - half :])
        for kind, text in segments
    ]


def _changed(removed: str, added: str) -> list[Segment]:
    result: list[Segment] = [("removed", removed)] if removed else []
    return [*result, ("added", added)] if added else result


MOST = 300
"""Default of the maximum number of examples on a page."""

# Characters of an unchanged text, and of each stretch between two changes.
_WHOLE, _BETWEEN = 1200, 240
_KINDS = {"same": 0, "removed": 1, "added": 2}

_Any = TypeVar("_Any")


@dataclass(frozen=True)
class Example:
    """One example under one attack.

    Args:
        row: Hash of the text.
        outcome: ``broken`` (right, then wrong), ``held`` (right both times) or ``wrong before``.
        changed: Fraction of changed words; None if no word changed.
        queries: Number of model queries; None for a gradient attack.
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
    """The examples on a page; ``seeds`` maps each method to the seed of the shown run."""

    shown: tuple[Example, ...]
    total: int
    labels: tuple[str, ...]
    seeds: dict[str, int]

    @property
    def columns(self) -> list[str]:
        return list(dict.fromkeys(example.column for example in self.shown))

    @property
    def attacks(self) -> list[tuple[str, str]]:
        return list(dict.fromkeys((example.group, example.attack) for example in self.shown))

    def label(self, index: int) -> str:
        """Return a class's name, or its index if it has none."""
        return self.labels[index] if index < len(self.labels) else str(index)

    def to_json(self) -> dict[str, Any]:
        """Return the data for the script of the report page; each text is stored once."""
        texts: dict[tuple[tuple[Segment, ...], ...], int] = {}
        entries = []
        columns, attacks = self.columns, self.attacks
        for example in self.shown:
            text = (example.text, example.text_pair)
            coded = {
                "column": columns.index(example.column),
                "attack": attacks.index((example.group, example.attack)),
                "outcome": OUTCOMES.index(example.outcome),
                "text": texts.setdefault(text, len(texts)),
            }
            as_they_are = {name: getattr(example, name) for name in _SHOWN}
            entries.append({**as_they_are, **coded})
        classes = {label for one in self.shown for label in (one.label, one.before, one.after)}
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


OUTCOMES = ("broken", "held", "wrong before")
MEASURED = ("queries", "changed")
"""Optional columns of attacked rows that are shown."""
_SHOWN = ("set", "label", "before", "after", "confidence_before", "confidence_after", *MEASURED)


def gallery(source: Source, *, most: int = MOST) -> Gallery | None:
    """Collect examples of every attack whose texts were stored, of each method's first seed.

    At most ``most`` are taken, in turn from perspectives, attacks and methods: successful attacks
    first, then by row hash. The result is None without attacks or texts, and for a regression.
    """
    by_perspective: dict[str, list[Iterator[Example]]] = {}
    labels: tuple[str, ...] = ()
    seeds, total = {}, 0
    for column in source.columns if most else ():
        run = next(iter(column.runs.values()), None)
        if run is None or run.scores is None or run.scores.task.kind != "classification":
            continue
        labels = labels or tuple(run.scores.task.labels)
        for perspective, rows in _attacks(run):
            seeds[run.column] = run.seed
            total += len(rows)
            by_perspective.setdefault(perspective, []).append(_examples(run, perspective, rows))
    if not total:
        return None
    shown = islice(_in_turn(map(_in_turn, by_perspective.values())), most)
    return Gallery(tuple(shown), total, labels, seeds)


def _attacks(run: Run) -> Iterator[tuple[str, pd.DataFrame]]:
    """Yield (perspective, rows) of each attack of a run whose texts were stored."""
    texts = kept_texts(run)
    if texts is None:
        return
    clean = clean_predictions(run)
    if clean.empty:
        return
    changed = texts["perspective"].notna()
    known = texts[~changed].drop_duplicates(KEYS).drop(columns=["perspective", "condition"])
    clean = clean.drop(columns=["row", "condition", "label"]).merge(known, on=KEYS)
    unchanged = [view.name for view in views().values() if view.unchanged_texts]
    for name in dict.fromkeys([*unchanged, *texts.loc[changed, "perspective"]]):
        rows = run.rows([*COLUMNS, "parameters"], name, optional=MEASURED)
        rows = rows[rows["label"].notna() & rows["prediction"].notna()]
        rows = rows.merge(clean, on=KEYS, suffixes=("", "_clean"))
        changed_texts = texts[texts["perspective"] == name].drop(columns="perspective")
        # If the attack changes texts, unchanged texts are not examples of it.
        how: Literal["inner", "left"] = "inner" if len(changed_texts) else "left"
        rows = rows.merge(
            changed_texts, on=[*KEYS, "condition"], how=how, suffixes=("", "_changed")
        )
        for _, attack in rows.groupby(["set", "condition", "parameters"], sort=False):
            yield name, attack


def _examples(run: Run, perspective: str, rows: pd.DataFrame) -> Iterator[Example]:
    """Yield the examples of an attack, successful ones first, then by row hash."""
    broken = rows["prediction"] != rows["label"]
    wrong = rows["prediction_clean"] != rows["label"]
    rows = rows.assign(outcome=np.where(wrong, 2, np.where(broken, 0, 1)))
    view = view_of(perspective)
    for _, row in rows.sort_values(["outcome", "row"]).iterrows():
        before, after = int(row["prediction_clean"]), int(row["prediction"])
        measured = {name: None if pd.isna(row.get(name)) else row[name] for name in MEASURED}
        parameters = Parameters.of_text(row["parameters"])
        yield Example(
            column=run.column,
            group=view.title,
            attack=view.attack(ScoreKey(perspective, row["set"], row["condition"], "", parameters)),
            set=row["set"],
            row=row["row"],
            label=int(row["label"]),
            before=before,
            after=after,
            confidence_before=float(row["probabilities_clean"][before]),
            confidence_after=float(row["probabilities"][after]),
            outcome=OUTCOMES[row["outcome"]],
            changed=measured["changed"],
            queries=None if measured["queries"] is None else int(measured["queries"]),
            text=_segments(row["text"], row["text_changed"]),
            text_pair=_segments(row["text_pair"], row["text_pair_changed"]),
        )


def _segments(text: Any, changed: Any) -> tuple[Segment, ...]:
    if not isinstance(text, str):
        return ()
    if not isinstance(changed, str) or changed == text:
        return tuple(shorten([("same", text)], longest=_WHOLE))
    return tuple(shorten(word_diff(text, changed), longest=_BETWEEN))


def _in_turn(parts: Iterable[Iterable[_Any]]) -> Iterator[_Any]:
    return (result for turn in zip_longest(*parts) for result in turn if result is not None)
