"""Read a run's predictions on unperturbed texts, and the stored texts."""

from __future__ import annotations

from typing import Final

import pandas as pd

from temper.display.folders import Run, read_columns
from temper.report.derived import views

KEYS: Final = ["set", "index"]
"""Columns that together identify a text."""
COLUMNS: Final = [*KEYS, "row", "condition", "label", "prediction", "probabilities"]


def clean_predictions(run: Run) -> pd.DataFrame:
    """Return the predictions on unperturbed labeled texts, a row per text, with `COLUMNS`."""
    tables = [run.rows(COLUMNS, view.name) for view in views().values() if view.unperturbed]
    rows = pd.concat([table for table in tables if len(table)] or tables[:1])
    return rows[(rows["condition"] == "clean") & rows["label"].notna()].drop_duplicates(KEYS)


def kept_texts(run: Run) -> pd.DataFrame | None:
    """Return the run's ``texts.parquet``, None without one.

    ``perspective`` is null for texts that no perspective changed.
    """
    if run.evaluation is None or not (path := run.evaluation / "texts.parquet").exists():
        return None
    columns = ["perspective", *KEYS, "number", "condition", "text", "text_pair"]
    return read_columns(path, columns, "texts")
