"""The examples behind an attack's scores: text, answers before and after, and what was changed.

Those that broke first are shown, of every attack so many. Rows and texts are read a piece at a
time: what stays of those that are not shown is a few numbers each, and answers and texts are read
of the chosen ones alone. Evaluations from before texts were kept have none.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice, zip_longest
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pandas as pd

from temper.display.cells import ScoreKey
from temper.display.folders import Run, Source
from temper.display.parameters import Parameters
from temper.functional.resampling import IntegerArray
from temper.report import stream
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


OUTCOMES = ("broken", "held", "wrong before")
ROWS, TEXTS = "the evaluated rows", "the texts"

_AT = ("perspective", "set", "condition", "index")
_PART = ("perspective", "set", "condition", "parameters")
MEASURED = ("queries", "changed")
"""What is shown of an attack on a row, where it was measured."""
_SHIFT = 40  # bits of a key that hold a row's index


@dataclass
class AttackedRows:
    """Hold the rows of one attack on one set that a page may show.

    Args:
        run: The run whose rows they are.
        most: How many are kept.
        kept: The rows, those that broke first, then by row hash; columns ``answer_at``,
            ``clean_at``, ``text_at`` and ``changed_at`` say where answers and texts stand in their
            files (-1: the text was not changed).
        total: How many there are in all.
    """

    run: Run
    most: int
    kept: pd.DataFrame = field(default_factory=pd.DataFrame)
    total: int = 0

    def add(self, rows: pd.DataFrame) -> None:
        """Add rows of the attack, in the file's order.

        Args:
            rows: With an ``outcome``, an index of `OUTCOMES`, and a ``row``.
        """
        self.total += len(rows)
        every = pd.concat([self.kept, rows]) if len(self.kept) else rows
        self.kept = every.sort_values(["outcome", "row"]).head(self.most)


def attacked_rows(run: Run, *, most: int) -> dict[str, list[AttackedRows]]:
    """Gather the attacks of a run whose texts were kept.

    Args:
        run: An evaluated run of a classification.
        most: Rows to keep of each attack, >= 1.

    Returns:
        Parts by perspective, in the order of the files; none without texts.

    Raises:
        CheckpointError: Rows or texts are damaged.
    """
    if run.evaluation is None or not (texts := run.evaluation / "texts.parquet").exists():
        return {}
    table = _Texts.read(texts)
    if not len(table.clean):
        return {}
    rows = run.evaluation / "rows.parquet"
    known = _known(rows, table)
    attacks: dict[str, dict[tuple[Any, ...], AttackedRows]]
    attacks = {name: {} for name in table.perspectives}
    known_columns = stream.columns(rows, what=ROWS)
    measured = [name for name in MEASURED if name in known_columns]
    wanted = (*_AT, "row", "label", "prediction", "parameters", *measured)
    for piece in stream.pieces(rows, wanted, what=ROWS):
        own = piece[piece["perspective"].isin(table.perspectives)]
        own = own[own["label"].notna() & own["prediction"].notna()]
        found = table.changed(_joined(own, known, table))
        if not len(found):
            continue
        found = found.assign(outcome=_outcomes(found))
        for key, alike in found.groupby(list(_PART), sort=False):
            attacks[key[0]].setdefault(tuple(key), AttackedRows(run, most)).add(alike)
    return {name: list(own.values()) for name, own in attacks.items() if own}


def records(parts: Sequence[tuple[AttackedRows, int]]) -> list[dict[str, Any]]:
    """Read answers and texts of chosen rows.

    Args:
        parts: Parts of one run, with the place of the chosen row among those that are kept.

    Returns:
        What is known of each row, by the names of the columns; of the unchanged text as ``text``
        and ``text_pair``, of the answer to it ``probabilities_clean``.

    Raises:
        CheckpointError: Rows or texts are damaged.
    """
    if not parts or (folder := parts[0][0].run.evaluation) is None:
        return []
    rows = [part.kept.iloc[place].to_dict() for part, place in parts]
    answers = stream.taken(
        folder / "rows.parquet",
        ["probabilities"],
        [row[name] for row in rows for name in ("answer_at", "clean_at")],
        what=ROWS,
    )
    texts = stream.taken(
        folder / "texts.parquet",
        ["text", "text_pair"],
        [row[name] for row in rows for name in ("text_at", "changed_at")],
        what=TEXTS,
    )
    nothing = {"text": None, "text_pair": None}
    found = []
    for row in rows:
        changed = texts.get(row["changed_at"], nothing)
        found.append(
            {
                **row,
                "probabilities": answers[row["answer_at"]]["probabilities"],
                "probabilities_clean": answers[row["clean_at"]]["probabilities"],
                **texts[row["text_at"]],
                **{f"{name}_changed": changed[name] for name in nothing},
            }
        )
    return found


@dataclass
class _Texts:
    """Say where texts stand in their file, as numbers alone.

    Args:
        clean: Place of every unchanged text, by the key of its set and index.
        altered: Place of every changed one, by the key of perspective, set, condition and index.
        codes: Number of every name that a key is made of.
        perspectives: Perspectives whose rows are examples; some leave texts alone.
        changing: Those of them that change texts.
    """

    clean: pd.Series[int]
    altered: pd.Series[int]
    codes: dict[tuple[Any, ...], int]
    perspectives: tuple[str, ...]
    changing: frozenset[str]

    @classmethod
    def read(cls, path: Path) -> _Texts:
        codes: dict[tuple[Any, ...], int] = {}
        clean, altered, names = [], [], []
        unchanged = [view.name for view in views() if view.unchanged_texts]
        for piece in stream.pieces(path, _AT, what=TEXTS):
            plain = piece["perspective"].isna()
            clean.append(_places(piece[plain].assign(perspective=""), codes))
            altered.append(_places(piece[~plain], codes))
            names += list(piece.loc[~plain, "perspective"].unique())
        perspectives = tuple(dict.fromkeys([*unchanged, *names]))
        return cls(_first(clean), _first(altered), codes, perspectives, frozenset(names))

    def changed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Say where the changed texts of rows stand; rows whose text was left alone are none."""
        at = _positions(self.altered, _keys(rows, self.codes))
        # Where texts were changed, those that were not are no example of it.
        return rows.assign(changed_at=at)[(at >= 0) | ~rows["perspective"].isin(self.changing)]


def _known(path: Path, texts: _Texts) -> pd.DataFrame:
    """Return place and prediction of the answers to the kept unchanged texts, by their keys."""
    found = []
    answered = [view.name for view in views() if view.answered]
    for piece in stream.pieces(path, [*_AT, "prediction"], what=ROWS):
        own = piece[piece["perspective"].isin(answered) & (piece["condition"] == "clean")]
        keys = _keys(own.assign(perspective=""), texts.codes)
        answers = pd.DataFrame(
            {"clean_at": own.index, "prediction_clean": own["prediction"].to_numpy()}, index=keys
        )
        found.append(answers[answers.index.isin(texts.clean.index)])
    return _first(found)


def _joined(rows: pd.DataFrame, known: pd.DataFrame, texts: _Texts) -> pd.DataFrame:
    """Give attacked rows the answer to the unchanged text; rows without one are left out."""
    keys = _keys(rows.assign(perspective="", condition="clean"), texts.codes)
    inside = known.index.get_indexer(keys) >= 0
    rows, keys = rows[inside], keys[inside]
    clean = known.loc[keys]
    return rows.assign(
        answer_at=rows.index,
        clean_at=clean["clean_at"].to_numpy(),
        prediction_clean=clean["prediction_clean"].to_numpy(),
        text_at=texts.clean.loc[keys].to_numpy(),
    )


def _keys(rows: pd.DataFrame, codes: dict[tuple[Any, ...], int]) -> IntegerArray:
    """Return one number for perspective, set, condition and index of each row."""
    keys: IntegerArray = rows["index"].to_numpy(dtype=np.int64, copy=True)
    for name, places in rows.groupby(list(_AT[:3]), sort=False).indices.items():
        keys[places] |= codes.setdefault(tuple(name), len(codes)) << _SHIFT
    return keys


def _places(rows: pd.DataFrame, codes: dict[tuple[Any, ...], int]) -> pd.Series[int]:
    return pd.Series(rows.index.to_numpy(dtype=np.int64), index=_keys(rows, codes))


def _first(parts: Iterable[Any]) -> Any:
    """Join pieces that are indexed by keys; of a key that stands twice the first counts."""
    every = pd.concat([*parts] or [pd.Series(dtype=np.int64)])
    return every[~every.index.duplicated()]


def _positions(places: pd.Series[int], keys: IntegerArray) -> IntegerArray:
    """Return the place of each key, -1 where there is none."""
    at = places.index.get_indexer(keys)
    inside = at >= 0
    found = np.full(len(keys), -1, dtype=np.int64)
    found[inside] = places.to_numpy()[at[inside]]
    return found


def _outcomes(rows: pd.DataFrame) -> IntegerArray:
    """Return the index of each row's outcome in `OUTCOMES`."""
    broken = rows["prediction"] != rows["label"]
    wrong = rows["prediction_clean"] != rows["label"]
    return np.where(wrong, 2, np.where(broken, 0, 1))


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
    by_perspective: dict[str, list[AttackedRows]] = {}
    labels: tuple[str, ...] = ()
    seeds = {}
    for column in source.columns if most else ():
        run = next(iter(column.runs.values()), None)
        if run is None or run.scores is None or run.scores.task.kind != "classification":
            continue
        labels = labels or tuple(run.scores.task.labels)
        for perspective, parts in attacked_rows(run, most=most).items():
            seeds[run.column] = run.seed
            by_perspective.setdefault(perspective, []).extend(parts)
    total = sum(part.total for parts in by_perspective.values() for part in parts)
    if not total:
        return None
    turns = [_in_turn([_candidates(part) for part in parts]) for parts in by_perspective.values()]
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


def _candidates(part: AttackedRows) -> Iterator[tuple[AttackedRows, int]]:
    return ((part, place) for place in range(len(part.kept)))


def _in_turn(parts: Iterable[Iterable[_Any]]) -> Iterator[_Any]:
    """Take one of each part, then the next of each, until all are taken."""
    return (found for turn in zip_longest(*parts) for found in turn if found is not None)
