"""Choose the attacked rows that a page shows: those that broke first, of every attack so many.

Rows and texts are read a piece at a time. What stays of those that are not shown is a few numbers
each; answers and texts are read of the chosen ones alone.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from temper.display.folders import Run
from temper.functional.resampling import IntegerArray
from temper.report import stream
from temper.report.derived import views

OUTCOMES = ("broken", "held", "wrong before")
ROWS, TEXTS = "the evaluated rows", "the texts"

_AT = ("perspective", "set", "condition", "index")
_PART = ("perspective", "set", "condition", "parameters")
MEASURED = ("queries", "changed")
"""What is shown of an attack on a row, where it was measured."""
_SHIFT = 40  # bits of a key that hold a row's index


@dataclass
class Part:
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


def attacked(run: Run, *, most: int) -> dict[str, list[Part]]:
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
    parts: dict[str, dict[tuple[Any, ...], Part]] = {name: {} for name in table.perspectives}
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
            parts[key[0]].setdefault(tuple(key), Part(run, most)).add(alike)
    return {name: list(own.values()) for name, own in parts.items() if own}


def records(parts: Sequence[tuple[Part, int]]) -> list[dict[str, Any]]:
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
        unchanged = [view.name for view in views().those("unchanged_texts")]
        for piece in stream.pieces(path, _AT, what=TEXTS):
            plain = piece["perspective"].isna()
            clean.append(_places(piece[plain].assign(perspective=""), codes))
            altered.append(_places(piece[~plain], codes))
            names += list(piece.loc[~plain, "perspective"].unique())
        perspectives = tuple(dict.fromkeys([*unchanged, *names]))
        return cls(_first(clean), _first(altered), codes, perspectives, frozenset(names))

    def changed(self, rows: pd.DataFrame) -> pd.DataFrame:
        """Say where the changed texts of rows stand; rows whose text was left alone are none."""
        at = _found(self.altered, _keys(rows, self.codes))
        # Where texts were changed, those that were not are no example of it.
        return rows.assign(changed_at=at)[(at >= 0) | ~rows["perspective"].isin(self.changing)]


def _known(path: Path, texts: _Texts) -> pd.DataFrame:
    """Return place and prediction of the answers to the kept unchanged texts, by their keys."""
    found = []
    answered = [view.name for view in views().those("answered")]
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


def _found(places: pd.Series[int], keys: IntegerArray) -> IntegerArray:
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
