"""The first screen of a run without evaluation: its validation scores, and next steps."""

from __future__ import annotations

from collections.abc import Mapping
from shlex import quote
from typing import Any

from temper.display.cells import Comparison
from temper.display.folders import Source
from temper.display.records import RunRecord
from temper.display.wording import plural, title, unit, within
from temper.functional.proportions import wilson
from temper.report.headline import LEARNED, Headline, headline
from temper.report.levels import percent_of_way


def verdict(source: Source, comparison: Comparison) -> Headline:
    """Return the first screen; for a run without evaluation, that of its validation scores."""
    runs = source.runs
    if source.kind == "run" and runs[0].scores is None and runs[0].record is not None:
        return trained(runs[0].record, str(source.folder))
    return headline(comparison)


def trained(record: RunRecord, folder: str) -> Headline:
    """Return the first screen of a run that has only validation scores."""
    times, rows = record.times, record.data.get("train", {}).get("rows")
    took = [f"`{record.method}` was trained"]
    if rows is not None:
        took.append(f"on {plural(rows, 'row')}")
    if "steps" in times and "train_seconds" in times:
        took.append(f"in {plural(times['steps'], 'step')} and {times['train_seconds']:.0f} s")
    scored = record.epochs if "tasks" in (record.model_extra or {}) else {"": record.epochs}
    values = [_value(name, item, record.data) for name, item in scored.items() if item]
    if not values:
        return Headline(
            f"{' '.join(took)}; the validation set was not scored.", _next(record, folder)
        )
    reached = ", ".join(f"{value} {what}" for _, value, what in values)
    sentence = f"{' '.join(took)}, and reaches {reached}."
    if len(values) == 1:
        (scores,) = filter(None, scored.values())
        metric, classes = str(scores["metric"]), len(record.task.labels) if record.task else 0
        score = scores["kept"].get("dev")
        percent = percent_of_way(metric, score, classes=classes, metric=metric)
        if percent is not None and percent < LEARNED:
            sentence += (
                " It has hardly learned: train longer or with a higher learning rate (--epochs, "
                "--learning-rate), or pass more rows."
            )
    return Headline(sentence, _next(record, folder), values=tuple(values))


def _value(task: str, scores: Mapping[str, Any], data: Mapping[str, Any]) -> tuple[str, str, str]:
    metric, kept = str(scores["metric"]), scores["kept"]
    score = kept.get("dev")
    rows = (data.get(task, {}) if task else data).get("dev", {}).get("rows")
    shown = unit(metric, metric)
    text = shown.with_sign(shown.text(score))
    if metric == "accuracy" and score is not None and rows:
        low, high = wilson(round(score * rows), rows)
        text += f" [{shown.text(low)}, {shown.text(high)}]"
    chosen = ", the best epoch on other rows" if kept["by"] == "best" else ""
    return (
        f"{task} epoch {kept['epoch']:.3g}".strip(),
        text,
        f"{within(title(metric))} on {f'{rows:,} ' if rows else ''}validation rows{chosen}",
    )


def _next(record: RunRecord, folder: str) -> str:
    """Return a sentence with the next commands: evaluation or prediction, by task."""
    wanted = record.settings.get("data", {}).get("eval_rows")
    command = f"temper evaluate {quote(folder)}"
    if "tasks" in (record.model_extra or {}):
        command += "/tasks/NAME"
    elif wanted is not None:
        command += f" --eval-rows {wanted}"
    # The command comes last and unquoted, so that it can be copied.
    if record.task is not None and record.task.kind in ("completions", "seq2seq"):
        return f"To continue prompts: temper predict {quote(folder)} --data FILE"
    if record.task is not None and record.task.kind == "spans":
        return f"To measure distribution shift, with --shift NAME=FILE: {command}"
    if record.task is not None and record.task.kind in (
        "regression",
        "multi_label",
        "tokens",
        "choices",
    ):
        return (
            "Robustness to attacks and noise is not measured yet (with --shift: distribution shift "
            f"too): {command}"
        )
    return (
        "Calibration and robustness to attacks and noise are not measured yet (with --shift and "
        f"--anomaly: distribution shift and OOD detection too): {command}"
    )
