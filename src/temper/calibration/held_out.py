"""Load the held-out rows of a calibration: labeled rows that the model has not seen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from temper.data.examples import Examples
from temper.errors import DataError
from temper.evaluation.alignment import align
from temper.evaluation.predictor import Predictor
from temper.evaluation.request import EvaluationRequest
from temper.evaluation.sets import seen_among


def held_out_rows(
    request: EvaluationRequest, predictor: Predictor, *, with_dev: bool
) -> tuple[Examples, dict[str, int], list[str]]:
    """Load the rows that the model has not seen, with labels in the model's order.

    ``with_dev`` keeps the validation rows of the model's run.

    Returns:
        The rows; reason -> number of rows left out; and notices.

    Raises:
        DataError: The model has seen all of the rows, or does not know their labels.
    """
    model, source = request.model, request.data.source
    rows = replace(request.rows(predictor), name="held_out")
    seen = seen_among(model, rows)
    notices = [*rows.notices, *seen.notices]
    whom = str(model) if model.run is not None else f"a run of {model}"
    if seen.trained:
        notices.append(
            f"{len(seen.trained)} of {len(rows)} rows, the first row {seen.trained[0] + 1}, are "
            f"left out: {whom} was trained on them, and a model is overconfident on such rows."
        )
    if seen.judged and with_dev:
        notices.append(
            f"{len(seen.judged)} of {len(rows)} rows are validation rows of {whom}: later scores "
            "on them will be too high."
        )
    elif seen.judged:
        notices.append(
            f"{len(seen.judged)} of {len(rows)} rows, the first row {seen.judged[0] + 1}, are left "
            f"out: they are validation rows of {whom}. --with-dev uses them, but later scores on "
            "them will then be too high."
        )
    gone = {*seen.trained, *(() if with_dev else seen.judged)}
    kept = [index for index in range(len(rows)) if index not in gone]
    if not kept:
        advice = "Pass rows that the model has not seen with --data"
        if not seen.trained:
            raise DataError(
                f"All {len(rows)} rows of {source} are validation rows of {whom}, so none is left "
                f"to fit a temperature on. {advice}, or use these with --with-dev."
            )
        dev = f", and {len(seen.judged)} are its validation rows" if seen.judged else ""
        advice += ", or use the validation rows with --with-dev" if seen.judged else ""
        raise DataError(
            f"None of the {len(rows)} rows of {source} is left to fit a temperature on: {whom} was "
            f"trained on {len(seen.trained)} of them{dev}. {advice}."
        )
    counts = {"trained": len(seen.trained), "dev": 0 if with_dev else len(seen.judged)}
    unseen = rows.select(kept) if gone else rows
    return align_all(unseen, predictor.label_names, source=source), counts, notices


def align_all(examples: Examples, label_names: Sequence[str] | None, *, source: str) -> Examples:
    """Renumber a set's labels by name; see `temper.evaluation.alignment.align`.

    Raises a `DataError` if an NLI set has two labels and the model three classes.
    """
    aligned, entailment = align(examples, label_names)
    if entailment is not None:
        raise DataError(
            f"The rows of {source} have two labels, entailment or not, but the model has three "
            "classes. Pass rows with three labels."
        )
    return aligned
