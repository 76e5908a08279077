"""The tables of docs/base-size.md: scores, gains over both baselines, and verdicts.

All scores are shown times 100, and a positive gain is always an improvement. Scores of one task
follow ``score = column + seed + residual``, with one residual variance for all columns of the task.
"""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from textwrap import fill
from typing import Any, NamedTuple, TypeVar

import numpy as np
from scipy import stats

from temper.display.wording import pipe_table
from temper.functional.effects import LEAST_SEEDS, LEVEL, Effect
from temper.functional.intervals import holm

PROTOCOL = tomllib.loads(Path(__file__).with_name("base_size.toml").read_text(encoding="utf-8"))
PRINTED = tomllib.loads(
    (Path(__file__).parent / "tables" / "uegr-table-1.toml").read_text(encoding="utf-8")
)["printed"]["score"]
PLAIN: list[str] = [
    name for name, column in PROTOCOL["column"].items() if column["method"] == "plain"
]
"""Columns of plain fine-tuning, fewest epochs first."""
FAMILIES: dict[str, list[str]] = {}
"""Family -> its methods; Holm's correction is over one family."""
for _name, _column in PROTOCOL["column"].items():
    if _name not in PLAIN:
        FAMILIES.setdefault(_column.get("family", "papers"), []).append(_name)
METHODS: list[str] = [name for names in FAMILIES.values() for name in names]
MARGIN = 0.3
"""Points below the best validation score that a less expensive setting may have."""
MORE_SEEDS = 5
NOT_RUN, NOT_STORED = "not run", "not stored"
WIDTH = 100
FIRST, LAST = "<!-- base-size -->", "<!-- /base-size -->"

Line = Mapping[str, Any]
Values = dict[str, dict[int, float]]
"""Column -> seed -> score, of one task."""
Key = TypeVar("Key")


class Metric(NamedTuple):
    """A score, or the mean of several over the sets of a part of the evaluation."""

    title: str
    part: str
    perspective: str
    condition: str = "clean"
    names: tuple[str, ...] = ()
    sign: int = 1


CALIBRATION = {"ECE": "ece_10", "Brier score": "brier", "NLL": "nll"}
VALIDATION = Metric("validation score", "validation", "task")
GLUE = Metric("GLUE's score", "reported", "task")
METRICS = [
    GLUE,
    *(
        Metric(f"{title}{scaled}", "reported", "calibration", condition, (name,), -1)
        for title, name in CALIBRATION.items()
        for condition, scaled in (("clean", ""), ("temperature", " after temperature scaling"))
    ),
    Metric("Shift accuracy", "suite", "shift", names=("accuracy",)),
    Metric("Adversarial accuracy", "suite", "adversarial", names=("accuracy",)),
    Metric("OOD AUROC, softmax", "suite", "anomaly", names=("auroc",)),
    Metric("OOD AUROC, Mahalanobis", "suite", "anomaly", "mahalanobis", ("auroc",)),
    *(
        Metric(f"{title} over the suite{scaled}", "suite", "calibration", condition, (name,), -1)
        for title, name in CALIBRATION.items()
        for condition, scaled in (("clean", ""), ("temperature", ", after temperature scaling"))
    ),
]


class Decision(NamedTuple):
    """A method's gains on a task, by one metric: over tuned plain, and over equal compute."""

    task: str
    column: str
    metric: Metric
    baselines: tuple[str | None, str]
    gains: tuple[Effect | None, Effect | None]
    seeds: int
    p: float = 1.0

    @property
    def printed(self) -> list[float]:
        """Gains that the paper prints for BERT-base and RoBERTa-base; of GLUE's score alone."""
        tables = [PRINTED[model] for model in ("bert-base", "roberta-base")]
        if self.metric is not GLUE or any(self.column not in table for table in tables):
            return []
        return [
            float(table[self.column][self.task]) - float(table["plain"][self.task])
            for table in tables
        ]

    @property
    def verdict(self) -> str:
        """Confirmed, refuted or undecided (with the minimum detectable effect)."""
        first, second = self.gains
        if first is None or second is None:
            few = self.seeds < LEAST_SEEDS
            return f"{self.seeds} of {LEAST_SEEDS} seeds" if few else "no interval"
        low, high = min(first.low, second.low), min(first.high, second.high)
        smaller = high < min(self.printed, default=0.0)
        if low > 0.0 and self.p <= LEVEL:
            return "confirmed, below printed" if smaller else "confirmed"
        return "refuted" if smaller else f"undecided ({max(first.least, second.least):.1f})"

    @property
    def more_seeds(self) -> bool:
        """Whether an interval ends within a third of its width of 0, after fewer than 5 seeds."""
        return any(
            gain.seeds < MORE_SEEDS
            and min(abs(gain.low), abs(gain.high)) <= (gain.high - gain.low) / 3
            for gain in self.gains
            if gain is not None
        )


def first_near_best(scores: Mapping[Key, float]) -> Key:
    """Return the first setting within `MARGIN` of the best; settings are in order of cost."""
    least = max(scores.values()) - MARGIN - 1e-9
    return next(key for key, score in scores.items() if score >= least)


def at_chosen_rates(lines: Sequence[Line], chosen: Mapping[str, float]) -> list[Line]:
    """Return the cells that were trained at the chosen learning rate (side -> rate)."""
    return [
        line
        for line in lines
        if line["rate"] == chosen.get(PROTOCOL["column"][line["column"]]["side"])
    ]


def of_sets(line: Line, metric: Metric) -> dict[tuple[str, str], float]:
    """Return a cell's values of a metric by set and name, times 100.

    A collapsed model has no correlation; a score of the task that is undefined counts as 0.
    """
    names = metric.names or PROTOCOL["task"][line["task"]]["choose_by"] or ("accuracy",)
    kind = (metric.perspective, metric.condition)
    rows = [row for row in line.get(metric.part, ()) if (row[0], row[2]) == kind]
    undefined = {(row[1], name): 0.0 for row in rows for name in names}
    values = {(row[1], row[3]): 100 * row[4] for row in rows if row[3] in names}
    return {**undefined, **values} if metric.perspective == "task" else values


def scores(lines: Sequence[Line], task: str, metric: Metric) -> Values:
    """Return a task's scores: the mean over the sets on which every cell has a value."""
    cells = {
        (line["column"], line["seed"]): values
        for line in lines
        if line["task"] == task and (values := of_sets(line, metric))
    }
    common = set.intersection(*(set(values) for values in cells.values())) if cells else set()
    result: Values = defaultdict(dict)
    for (column, seed), values in cells.items():
        if common:
            result[column][seed] = fmean(values[key] for key in common)
    return dict(result)


def residual_variance(values: Values) -> tuple[float, int]:
    """Return the variance that column and seed leave, pooled over the columns, and its freedom."""
    cells = [(column, seed) for column, seeds in values.items() for seed in seeds]
    effects = [*values, *sorted({seed for _, seed in cells})]
    design = np.array([[float(effect in cell) for effect in effects] for cell in cells])
    target = np.array([values[column][seed] for column, seed in cells])
    fitted, _, rank, _ = np.linalg.lstsq(design, target, rcond=None)
    freedom = len(cells) - int(rank)
    return float(((target - design @ fitted) ** 2).sum()) / max(1, freedom), freedom


def gain(values: Values, column: str, baseline: str | None, sign: int) -> Effect | None:
    """Return the paired gain of a column, None below `LEAST_SEEDS` shared seeds or without noise.

    ``mean +- t sqrt(2 s^2 / n)`` over n shared seeds, with s^2 of `residual_variance`.
    """
    own, other = values.get(column, {}), values.get(baseline or "", {})
    shared = sorted(own.keys() & other.keys())
    if len(shared) < LEAST_SEEDS:
        return None
    variance, freedom = residual_variance(values)
    error = (2 * variance / len(shared)) ** 0.5
    if error < 1e-9:
        return None
    mean = sign * fmean(own[seed] - other[seed] for seed in shared)
    reach = float(stats.t.ppf(1 - LEVEL / 2, freedom)) * error
    p = 2 * float(stats.t.sf(abs(mean) / error, freedom))
    return Effect(mean, mean - reach, mean + reach, p, len(shared), error, float(freedom))


def tuned_plain(lines: Sequence[Line], task: str) -> tuple[str | None, dict[str, float]]:
    """Choose a task's epochs of plain fine-tuning by validation scores of the first seed.

    Returns:
        The column, None until all have a score, and the scores.
    """
    source = PROTOCOL["task"][task].get("epochs_of", task)
    values = scores(lines, source, VALIDATION)
    result = {name: values[name][0] for name in PLAIN if 0 in values.get(name, {})}
    return (first_near_best(result) if len(result) == len(PLAIN) else None), result


def equal_compute(column: str) -> str:
    """Return the plain column with the fewest epochs that costs at least as much as a method."""
    base = PROTOCOL["train"]["epochs"]
    cost = base * PROTOCOL["column"][column]["cost"]
    return next(name for name in PLAIN if PROTOCOL["column"][name].get("epochs", base) >= cost)


def tasks_of(metric: Metric) -> list[str]:
    """Return the tasks that have a metric: a regression has no calibration, only SST-2 a suite."""
    return [
        name
        for name, task in PROTOCOL["task"].items()
        if (metric.part != "suite" or "suite" in task)
        and (metric.perspective != "calibration" or "pearson" not in task["choose_by"])
    ]


def decide(lines: Sequence[Line], task: str, metric: Metric) -> list[Decision]:
    """Compare every method on a task, with Holm's correction over the methods of its family.

    The p of a method is the larger one of both baselines; a method without interval has p = 1.
    """
    values, (tuned, _) = scores(lines, task, metric), tuned_plain(lines, task)
    result = []
    for family in FAMILIES.values():
        of_family = []
        for column in family:
            pair = (tuned, equal_compute(column))
            gains = tuple(gain(values, column, baseline, metric.sign) for baseline in pair)
            seeds = len(values.get(column, {}))
            of_family.append(Decision(task, column, metric, pair, (gains[0], gains[1]), seeds))
        largest = [max(1.0 if each is None else each.p for each in one.gains) for one in of_family]
        result += [one._replace(p=p) for one, p in zip(of_family, holm(largest), strict=True)]
    return result


def tables(lines: Sequence[Line], chosen: Mapping[str, float]) -> str:
    """Return the Markdown tables.

    Args:
        lines: Finished cells.
        chosen: Side -> learning rate; cells of other rates are not read.
    """
    used = at_chosen_rates(lines, chosen)
    result = {
        metric: [one for task in tasks_of(metric) for one in decide(used, task, metric)]
        for metric in METRICS
    }
    parts = ["### Learning rates", _rates(lines, chosen)]
    parts += ["### Tuned plain fine-tuning", _tuned(used), "### Scores and gains", _explained()]
    parts += [_section(used, metric, decisions) for metric, decisions in result.items()]
    parts += ["### Means over the tasks", _over_tasks(used)]
    parts += ["### Two more seeds", _more_seeds([one for each in result.values() for one in each])]
    return "\n\n".join(parts)


def _rates(lines: Sequence[Line], chosen: Mapping[str, float]) -> str:
    (stage,) = (each for each in PROTOCOL["stage"] if each["name"] == "rates")
    result = {
        (line["column"], line["rate"], line["task"]): fmean(of_sets(line, VALIDATION).values())
        for line in lines
        if line["seed"] in stage["seeds"] and line["task"] in stage["tasks"]
    }
    rows = []
    for column in stage["columns"]:
        best = chosen.get(PROTOCOL["column"][column]["side"])
        for rate in stage["rates"]:
            keys = [(column, rate, task) for task in stage["tasks"]]
            cells = [f"{result[key]:.1f}" if key in result else NOT_RUN for key in keys]
            rows.append([column, f"{rate:g}", *cells, "chosen" if rate == best else ""])
    text = pipe_table(["column", "rate", *stage["tasks"], ""], rows)
    return f"Validation scores of seed 0.\n\n{text}"


def _tuned(lines: Sequence[Line]) -> str:
    rows = []
    for task in PROTOCOL["task"]:
        column, result = tuned_plain(lines, task)
        cells = [f"{result[name]:.1f}" if name in result else NOT_RUN for name in PLAIN]
        rows.append([task, *cells, column or "not chosen"])
    text = pipe_table(["task", *PLAIN, "chosen"], rows)
    return f"Validation scores of seed 0; RTE takes MRPC's choice.\n\n{text}"


def _explained() -> str:
    return fill(
        "Scores: mean (standard deviation over seeds), times 100; columns without runs are left "
        "out. Gains: positive is better, in points, with 95% intervals. *Printed*: the paper's "
        "gain for BERT-base / RoBERTa-base. "
        "*p*: the larger one of both baselines, with Holm's correction over the methods of the "
        f"papers ({len(FAMILIES['papers'])}) or the inexpensive ones "
        f"({len(FAMILIES['inexpensive'])}). *Undecided*: with the minimum detectable effect.",
        width=WIDTH,
    )


def _section(lines: Sequence[Line], metric: Metric, decisions: Sequence[Decision]) -> str:
    tasks = tasks_of(metric)
    values = {task: scores(lines, task, metric) for task in tasks}
    run = {(line["task"], line["column"]) for line in lines if line["task"] in tasks}
    if not run:
        return f"**{metric.title}**: {NOT_RUN} ({', '.join(tasks)})."

    def cell(task: str, column: str) -> str:
        seeds = list(values[task].get(column, {}).values())
        if not seeds:
            return NOT_STORED if (task, column) in run else NOT_RUN
        return f"{fmean(seeds):.1f} ({f'{stdev(seeds):.1f}' if len(seeds) > 1 else '1 seed'})"

    rows = [
        [column, *(cell(task, column) for task in tasks)]
        for column in PROTOCOL["column"]
        if any(ran == column for _, ran in run)
    ]
    parts = [f"**{metric.title}**", pipe_table(["column", *tasks], rows)]
    head = ["task", "method", "printed", "over tuned plain", "over equal compute", "p", "verdict"]
    rows = [
        [
            *(one.task, one.column, " / ".join(_signed(each) for each in one.printed)),
            *(_interval(each) for each in one.gains),
            "" if None in one.gains else f"{one.p:.2f}",
            one.verdict,
        ]
        for one in decisions
        if one.gains != (None, None)
    ]
    parts += [pipe_table(head, rows)] * bool(rows)
    # The cells of a run are scored by every metric, so one list is enough.
    if metric is GLUE:
        parts += _without_gain(decisions)
    return "\n\n".join(parts)


def _without_gain(decisions: Sequence[Decision]) -> list[str]:
    missing: dict[str, list[str]] = defaultdict(list)
    for one in decisions:
        if one.gains == (None, None):
            seeds = f" ({one.seeds} of {LEAST_SEEDS} seeds)" if one.seeds else ""
            missing[one.task].append(f"{one.column}{seeds}")
    listed = [f"- {task}: {', '.join(columns)}" for task, columns in missing.items()]
    return ["\n".join(["No gain by any score, because runs are missing:\n", *listed])] * bool(
        listed
    )


def _over_tasks(lines: Sequence[Line]) -> str:
    rows = []
    # Only one task has a suite.
    for metric in (each for each in METRICS if each.part != "suite"):
        values = {task: scores(lines, task, metric) for task in tasks_of(metric)}
        tuned = {task: tuned_plain(lines, task)[0] for task in values}
        for column in METHODS:
            if sum(column in of_task for of_task in values.values()) < 2:
                continue
            baselines = (
                dict.fromkeys(values, PLAIN[0]),
                tuned,
                dict.fromkeys(values, equal_compute(column)),
            )
            cells = [over_tasks(values, column, each, metric.sign) for each in baselines]
            rows.append([metric.title, column, *cells])
    text = fill(
        "Gains in points, the mean over the tasks with runs of both sides; each task counts once, "
        "with the mean over its shared seeds. In parentheses: the number of tasks. The 95% "
        "intervals (t, of at least three tasks) describe other tasks. They decide no verdict. "
        "Methods that were run on one task are left out.",
        width=WIDTH,
    )
    head = ["score", "method", "over plain", "over tuned plain", "over equal compute"]
    return f"{text}\n\n{pipe_table(head, rows)}"


def over_tasks(
    values: Mapping[str, Values], column: str, baselines: Mapping[str, str | None], sign: int
) -> str:
    """Return a column's mean gain over the tasks, its 95% interval, and the number of tasks.

    Args:
        values: Task -> scores.
        column: The method.
        baselines: Task -> the column that it is compared with.
        sign: 1 if a higher score is better, else -1.
    """
    gains = []
    for task, of_task in values.items():
        ours, theirs = of_task.get(column, {}), of_task.get(baselines[task] or "", {})
        if shared := ours.keys() & theirs.keys():
            gains.append(sign * fmean(ours[seed] - theirs[seed] for seed in shared))
    if not gains:
        return NOT_RUN
    interval = ""
    if len(gains) >= LEAST_SEEDS:
        low, high = stats.ttest_1samp(gains, 0.0).confidence_interval(1 - LEVEL)
        interval = f" [{_signed(low)}, {_signed(high)}]"
    return f"{_signed(fmean(gains))}{interval} ({len(gains)})"


def _interval(effect: Effect | None) -> str:
    if effect is None:
        return "no interval"
    return f"{_signed(effect.mean)} [{_signed(effect.low)}, {_signed(effect.high)}]"


def _signed(points: float) -> str:
    # Adding 0.0 turns a rounded -0.0 into 0.0.
    return f"{round(points, 1) + 0.0:+.1f}".replace("-", "−")


def _more_seeds(decisions: Sequence[Decision]) -> str:
    cells: dict[str, set[str]] = defaultdict(set)
    for one in decisions:
        # Calibration and OOD detection have so many scores that most cells would be run again.
        if one.metric.perspective in ("task", "shift", "adversarial") and one.more_seeds:
            cells[one.task] |= {one.column, *(name for name in one.baselines if name)}
    lines = [
        f"- {task}: {', '.join(name for name in PROTOCOL['column'] if name in columns)}"
        for task, columns in cells.items()
    ]
    return "\n".join(lines) or "None, of the intervals that exist."
