"""Predictions of teachers for the training rows, computed once before the student trains."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from temper.checkpoints.folder import TEACHER_PREDICTIONS
from temper.checkpoints.identity import model_identity
from temper.data.examples import Examples
from temper.errors import ModelError, WriteError
from temper.evaluation.classifier import ClassifierPredictor
from temper.files import replaced
from temper.functional.label_names import match_names, placeholders
from temper.functional.resampling import FloatArray
from temper.models.hf import load_classifier

SMALLEST = 1e-8
"""Lower bound of probabilities, so that their logarithms are finite."""
_METADATA = b"temper"


def teacher_logits(
    folders: Sequence[str],
    examples: Examples,
    *,
    labels: Sequence[str] | None,
    max_length: int = 128,
    device: str = "auto",
) -> Tensor:
    """Return the logarithm of the mean of the models' probabilities, [n, C].

    The models are loaded one after the other and predict in evaluation mode. Their classes are
    matched with ``labels`` by name. Each model's folder caches its predictions by row hash. For a
    regression (no ``labels``) the result is the mean of the values, [n, 1]. It is in fp32 on the
    CPU.
    """
    total: FloatArray | float = 0.0
    for folder in folders:
        theirs, by_row = _predictions(folder, examples, max_length=max_length, device=device)
        order = _order_of_classes(folder, theirs, labels)
        rows = np.array([by_row[row] for row in examples.rows])
        total = total + (rows if order is None else rows[:, order])
    mean = torch.from_numpy(np.asarray(total) / len(folders))
    return (mean if labels is None else mean.clamp(min=SMALLEST).log()).float()


def _predictions(
    folder: str, examples: Examples, *, max_length: int, device: str
) -> tuple[list[str] | None, dict[str, list[float]]]:
    """Return a teacher's class names (None for a regression), and row hash -> its prediction."""
    asked = {"identity": model_identity(folder), "max_length": max_length}
    file = Path(folder) / TEACHER_PREDICTIONS
    names, by_row = _kept(file, asked)
    # Only rows whose predictions the folder does not have are run.
    missing = [index for index, row in enumerate(examples.rows) if row not in by_row]
    if by_row and not missing:
        return names, by_row
    try:
        model, tokenizer = load_classifier(folder, device=device)
    except ModelError as error:
        raise ModelError(f"A teacher in `teacher.folders` cannot be used: {error}") from error
    predictor = ClassifierPredictor(model, tokenizer, max_length=max_length)
    result = predictor.predict(examples.select(missing))
    values, names = result.decoded, None
    if not result.regression:
        names = list(predictor.label_names or placeholders(values.shape[1]))
    by_row |= zip([examples.rows[index] for index in missing], values.tolist(), strict=True)
    # The file is only a cache, and the folder may be read-only.
    if file.parent.is_dir():
        table = pa.table({"row": list(by_row), "prediction": list(by_row.values())})
        metadata = json.dumps({**asked, "labels": names}).encode()
        with suppress(OSError, WriteError), replaced(file) as temporary:
            pq.write_table(table.replace_schema_metadata({_METADATA: metadata}), temporary)
    return names, by_row


def _kept(file: Path, asked: dict[str, Any]) -> tuple[list[str] | None, dict[str, list[float]]]:
    """Return a file's cached predictions; none if unreadable or of a model with other weights."""
    with suppress(OSError, ValueError, KeyError, TypeError, pa.ArrowException):
        table = pq.read_table(file)
        metadata = json.loads(table.schema.metadata[_METADATA])
        labels = metadata.pop("labels")
        if metadata == asked:
            columns = table.to_pydict()
            return labels, dict(zip(columns["row"], columns["prediction"], strict=True))
    return None, {}


def _order_of_classes(
    folder: str, theirs: Sequence[str] | None, labels: Sequence[str] | None
) -> list[int] | None:
    """Return the index of each of the student's classes in a teacher's outputs."""
    if labels is None and theirs is None:
        return None
    order = [name for name in match_names(labels or (), theirs or ()) if name is not None]
    if not order or not len(set(order)) == len(labels or ()) == len(theirs or ()):
        got, expected = (
            "no classes (a regression)" if names is None else f"the classes {', '.join(names)}"
            for names in (theirs, labels)
        )
        raise ModelError(
            f"The teacher {folder} has {got}, and the training data has {expected}. Pass a model "
            "that was trained on these labels."
        )
    return order
