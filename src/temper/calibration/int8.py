"""Make the 8-bit copy of a checkpoint, and compare its predictions with those in fp32."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.identity import model_identity
from temper.data.collator import Collator
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.blocks import labels_of
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.int8 import Int8Predictor
from temper.evaluation.predictor import Predictor
from temper.models.classical import ARCHITECTURES
from temper.models.int8 import write_int8
from temper.progress import Progress

CHOSEN_ON = 64
"""Maximum number of rows to choose the finely quantized products on."""
COMPARED = 500
"""Maximum number of rows on which both models are compared."""
ALIKE = 0.99
"""Fraction of equal predictions below which there is a notice."""


def make_int8(
    model: Checkpoint,
    predictor: Predictor,
    rows: Examples,
    folder: Path,
    *,
    progress: Progress,
) -> tuple[Int8Predictor, dict[str, Any], list[str]]:
    """Write an 8-bit copy of a checkpoint into an empty folder, and load it.

    ``rows`` are labeled held-out rows that set no threshold. They decide which matrix products need
    finer scales. Return also how the copy's predictions on at most 500 of the rows differ, and
    warnings.
    """
    if not isinstance(predictor, ClassifierPredictor) or predictor.config is None:
        raise ModelError(
            f"{model} is not a Transformers checkpoint, so it cannot have an 8-bit copy. Use the "
            "backend torch."
        )
    if predictor.config.model_type in ARCHITECTURES:
        raise ModelError(
            f"{model} is a {predictor.config.model_type!r}, and only Transformers models can have "
            "8-bit copies. Use the backend torch."
        )
    progress.info("Making the 8-bit copy, which takes a minute or two.")
    encoded = predictor.encoded(rows.select(range(min(len(rows), CHOSEN_ON))))
    collate = Collator(predictor.tokenizer)
    inputs = [collate([item]) for item in encoded.items if len(item["input_ids"]) > 1]
    if not inputs:
        raise ModelError(f"All texts of set {rows.name!r} have one token. Pass longer texts.")
    for batch in inputs:
        del batch["attention_mask"]
    write_int8(
        predictor.model,
        predictor.tokenizer,
        inputs,
        folder,
        fields={"model": model_identity(model.name)},
    )
    quantized = Int8Predictor.load(folder, max_length=predictor.max_length)
    compared = rows.select(range(min(len(rows), COMPARED)))
    differences = _compared(predictor, quantized, compared)
    notices = []
    if differences["same_label"] is not None and differences["same_label"] < ALIKE:
        notices.append(
            f"The 8-bit copy predicts another class for {1 - differences['same_label']:.1%} of "
            f"{differences['rows']} held-out rows. Compare the accuracy on more rows before using "
            "it."
        )
    return quantized, differences, notices


def _compared(one: Predictor, other: Predictor, rows: Examples) -> dict[str, Any]:
    first, second = one.predict(rows), other.predict(rows)
    gaps = np.abs(first.decoded - second.decoded)
    same, accuracy = None, None
    if not first.regression:
        labels = labels_of(rows)
        same = float((first.prediction == second.prediction).mean())
        named = {"fp32": first, "int8": second}
        accuracy = {key: float((item.prediction == labels).mean()) for key, item in named.items()}
    return {
        "rows": len(rows),
        "mean_difference": float(gaps.mean()),
        "largest_difference": float(gaps.max()),
        "same_label": same,
        "accuracy": accuracy,
    }
