"""What trained models answer to the training rows, asked once before a student learns from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from temper.data.encode import EncodedExamples
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.methods import Method
from temper.models.hf import load_classifier
from temper.training.config import RunConfig
from temper.types import TEACHER

SMALLEST = 1e-8
"""Below this a probability is taken as this, so that its logarithm is finite."""


def teachers_of(method: Method) -> tuple[str, ...]:
    """Return the folders of the models that a method learns from.

    Args:
        method: The method.
    """
    return tuple(getattr(method.objective, "teachers", ()))


def teacher_logits(
    folders: Sequence[str],
    examples: Examples,
    *,
    labels: Sequence[str] | None,
    max_length: int = 128,
    batch_size: int = 32,
    device: str = "auto",
) -> Tensor:
    """Ask an ensemble: the logarithm of the mean of the models' probabilities.

    The models are loaded one after the other and answer in evaluation mode. Their classes are
    matched by name.

    Args:
        folders: Runs, or any checkpoints of sequence classifiers, at least one.
        examples: n texts; labels are not looked at.
        labels: Names of the student's classes in its order; None is a regression.
        max_length: Tokens a text is cut to.
        batch_size: Rows of a forward pass.
        device: Where the models run.

    Returns:
        [n, C] in fp32 on the CPU; [n, 1], the mean of the values, for a regression.

    Raises:
        ModelError: If a model cannot be loaded or has other classes than the student.
    """
    total: Any = 0.0
    for folder in folders:
        model, tokenizer = load_classifier(folder, device=device)
        predictor = ClassifierPredictor(
            model, tokenizer, max_length=max_length, batch_size=batch_size
        )
        order = _order_of_classes(folder, predictor, labels)
        answers = predictor.predict(examples)
        total += (
            answers.prediction[:, np.newaxis] if labels is None else answers.probabilities[:, order]
        )
    mean = torch.from_numpy(np.asarray(total / len(folders)))
    return (mean if labels is None else mean.clamp(min=SMALLEST).log()).float()


def ask_teachers(
    rows: EncodedExamples,
    examples: Examples,
    folders: Sequence[str],
    config: RunConfig,
    *,
    labels: Sequence[str] | None,
) -> str:
    """Give each encoded row what the teachers answer to its text.

    Args:
        rows: The encoded rows, which get ``teacher_logits``.
        examples: The same rows as texts.
        folders: The teachers.
        config: The settings of the run.
        labels: Names of the student's classes; None is a regression.

    Returns:
        What a person should know of it.
    """
    answers = teacher_logits(
        folders,
        examples,
        labels=labels,
        max_length=config.data.max_length,
        device=config.train.device,
    )
    for item, answer in zip(rows.items, answers.tolist(), strict=True):
        item[TEACHER] = answer
    return f"{len(folders)} trained models answered the {len(rows):,} training rows."


def _order_of_classes(
    folder: str, predictor: ClassifierPredictor, labels: Sequence[str] | None
) -> list[int]:
    """Return where a teacher has each class of the student."""
    theirs: tuple[str, ...] | None = None
    if predictor.gives != "values":
        outputs: Any = predictor.model.config
        unnamed = tuple(f"LABEL_{index}" for index in range(outputs.num_labels))
        theirs = predictor.label_names or unnamed
    if (labels is None) != (theirs is None) or sorted(labels or ()) != sorted(theirs or ()):
        came, expected = (
            "no classes (a regression)" if names is None else f"the classes {', '.join(names)}"
            for names in (theirs, labels)
        )
        raise ModelError(
            f"The teacher {folder} has {came}, and the training data has {expected}. Give a model "
            "that was trained on these."
        )
    return [theirs.index(label) for label in labels or ()] if theirs else []
