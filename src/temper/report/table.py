"""Compare methods (columns) over seeds: means, paired differences, intervals, significance."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from itertools import product
from pathlib import Path
from statistics import mean, stdev
from typing import Any

from pydantic import Field

from temper.display.cells import (
    NAMED,
    Cell,
    Comparison,
    Difference,
    Row,
    ScoreKey,
    TrainingCost,
    Verdict,
    grouped,
)
from temper.display.folders import Source, read
from temper.display.records import NamedRecord, Number, Record, ScoreRecord, parse
from temper.display.wording import folded, higher_is_better, listed, plural, unit
from temper.errors import CheckpointError
from temper.files import write_text
from temper.functional.effects import LEAST_SEEDS, RowVariance, effect
from temper.functional.intervals import LEAST_ROWS, holm
from temper.functional.units import MARGIN, PERCENT, check_detect, check_margin
from temper.report.derived import (
    Scores,
    add_mean_rank,
    add_relative_improvement,
    add_set_means,
    view_of,
    views,
)
from temper.report.gains import equal_compute
from temper.report.headline import headline

FILE = "paired.json"


class PairedScoreRecord(NamedRecord):
    """95% interval and p of one score's difference from the reference, over n examples."""

    low: Number
    high: Number
    p: Number
    n: int


class RowVarianceRecord(NamedRecord):
    """Variance over rows of one score's difference; see `RowVariance`."""

    rows: Number
    columns: tuple[Number, Number]


class PairedColumnRecord(Record):
    """Paired statistics of one method: ``scores`` for one seed, ``variances`` for several."""

    seed: int | None = None
    scores: list[PairedScoreRecord] = Field(default_factory=list)
    seeds: list[int] = Field(default_factory=list)
    variances: list[RowVarianceRecord] = Field(default_factory=list)


class PairedRecord(Record):
    """``paired.json``."""

    resamples: int
    columns: dict[str, PairedColumnRecord] = Field(default_factory=dict)
    equal_compute: dict[str, dict[str, PairedColumnRecord]] = Field(default_factory=dict)


@dataclass(frozen=True)
class Paired:
    """Paired statistic of a method's difference from the reference at common seeds.

    For one seed it is the interval and p over examples, for several the variance over rows.
    """

    seeds: frozenset[int | None]
    statistic: PairedScoreRecord | RowVariance


PairedStatistics = dict[tuple[str, ScoreKey], Paired]


def read_paired(folder: Path, *, against: str | None = None) -> PairedStatistics:
    """Read a study's paired statistics: (method, score) -> statistic.

    ``against`` is a baseline of equal compute; None for the reference.
    """
    file = folder / FILE
    if not file.exists():
        return {}
    result: PairedStatistics = {}
    record = parse(file, PairedRecord)
    columns = record.columns if against is None else record.equal_compute.get(against, {})
    for column, kept in columns.items():
        for one in kept.scores:
            result[column, ScoreKey.of(one)] = Paired(frozenset({kept.seed}), one)
        for many in kept.variances:
            variance = RowVariance(many.rows, many.columns)
            result[column, ScoreKey.of(many)] = Paired(frozenset(kept.seeds), variance)
    return result


def comparison(
    folder: Path | str, *, margin: float = MARGIN, detect: float | None = None
) -> Comparison:
    """Compare the methods (columns) of a study from its rows and JSON files.

    Args:
        folder: A study folder. For a run or evaluation folder, there are only scores.
        margin: Largest negligible difference in points; 0 turns it off.
        detect: Difference in points to detect; the headline reports the number of seeds it needs.

    Returns:
        Every score of every method with mean and standard deviation over seeds, and the difference
        from the reference over common seeds. The 95% interval is over seeds and rows
        (`temper.functional.effects`), with Holm's correction over the methods. It needs three
        seeds, or two if the study stored row statistics; with one seed it is over examples. Without
        a common seed or enough rows, the difference has a reason instead of a verdict.

    Raises:
        CheckpointError: The folder is none of these or damaged, or its runs had different tasks.
        SettingError: ``margin`` or ``detect`` is invalid.
    """
    return compare(read(folder), margin=margin, detect=detect)


def compare(source: Source, *, margin: float = MARGIN, detect: float | None = None) -> Comparison:
    """Compare the methods of a folder that was already read; see `comparison`."""
    check_margin(margin)
    check_detect(detect)
    result = _compared(source, margin=margin, detect=detect)
    names = equal_compute(source, result.costs)
    others = {
        name: _compared(replace(source, reference=name), against=name, margin=margin)
        for name in dict.fromkeys(names.values())
    }
    result = replace(result, equal={column: others[name] for column, name in names.items()})
    return replace(result, headline=headline(result).text)


def _compared(
    source: Source, *, margin: float, against: str | None = None, detect: float | None = None
) -> Comparison:
    """Compare methods with the reference, or with ``against``, a baseline of equal compute."""
    scores = _collect(source)
    if source.reference is not None:
        add_relative_improvement(scores, source.reference)
        add_mean_rank(scores)
    add_set_means(scores)
    order = {name: index for index, name in enumerate(views())}
    # Unknown perspectives come last, by name.
    keys = sorted(
        scores.values, key=lambda key: (order.get(key.perspective, len(order)), key.perspective)
    )
    minor = _minor(keys)
    paired = read_paired(source.folder, against=against) if source.kind == "study" else {}
    paired |= _of_means(paired, scores, [column.name for column in source.columns])
    rows = tuple(
        replace(_row(key, scores, source, paired, margin=margin), minor=key in minor)
        for key in keys
    )
    return Comparison(
        kind=source.kind,
        model=source.model,
        metric=scores.metric,
        reference=source.reference,
        columns=tuple(column.name for column in source.columns),
        seeds=source.seeds,
        rows=rows,
        missing=source.missing,
        notices=(*_notices(source), *scores.notices, *_undefined(rows)),
        margin=margin,
        detect=detect,
        costs=_costs(source),
        classes=max((len(run.scores.task.labels) for run in source.runs if run.scores), default=0),
        seen=tuple(
            folded(
                message
                for run in source.runs
                if run.scores is not None
                for message in run.scores.seen
            )
        ),
    )


def _costs(source: Source) -> dict[str, TrainingCost]:
    result = {}
    for column in source.columns:
        records = [run.record for run in column.runs.values() if run.record is not None]
        passes = [
            record.passes * steps
            for record in records
            if record.passes and isinstance(steps := record.times.get("steps"), int)
        ]
        memory = [record.times.get("memory_mib") for record in records]
        sizes = [record.parameters.get("all") for record in records]
        result[column.name] = TrainingCost(_mean(passes), _mean(memory), _mean(sizes))
    return result


def _mean(numbers: Iterable[object]) -> float | None:
    known = [float(number) for number in numbers if isinstance(number, int | float)]
    return mean(known) if known else None


def _of_means(paired: PairedStatistics, scores: Scores, columns: Sequence[str]) -> PairedStatistics:
    """Return the variances over rows for means over sets, if the sets share no rows."""
    result: PairedStatistics = {}
    means = [key for key in scores.means if view_of(key.perspective).own_rows]
    for key, column in product(means, columns):
        kept = [paired[column, one] for one in scores.means[key] if (column, one) in paired]
        sets = [one.statistic for one in kept if isinstance(one.statistic, RowVariance)]
        if len(sets) < len(scores.means[key]) or len({one.seeds for one in kept}) > 1:
            continue
        parts = [(one.difference, *one.columns) for one in sets]
        whole, first, second = (sum(part) / len(sets) ** 2 for part in zip(*parts, strict=True))
        result[column, key] = Paired(kept[0].seeds, RowVariance(whole, (first, second)))
    return result


def _minor(keys: Sequence[ScoreKey]) -> set[ScoreKey]:
    groups = grouped(keys, lambda key: key.perspective)
    return {key for name, alike in groups.items() for key in view_of(name).minor(alike)}


def _undefined(rows: Sequence[Row]) -> list[str]:
    lacking: dict[str, dict[str, list[str]]] = {}
    for row in rows:
        for column, cell in row.cells.items():
            for reason in cell.reasons:
                scores = lacking.setdefault(reason, {}).setdefault(f"{row.group}, {row.label}", [])
                scores.append(column)
    messages = []
    for reason, result in lacking.items():
        (name, columns), *others = result.items()
        if not others:
            messages.append(f"{name}: undefined for {listed(columns)}. {reason}")
            continue
        concerned = list(dict.fromkeys(name for names in result.values() for name in names))
        messages.append(
            f"{len(result)} scores are undefined for {listed(concerned)}, the first of them "
            f"{name}: {reason}"
        )
    return sorted(messages)


def _collect(source: Source) -> Scores:
    scored = [(run, run.scores) for run in source.runs if run.scores is not None]
    tasks = {(scores.task.kind, scores.task.metric) for _, scores in scored}
    if len(tasks) > 1:
        raise CheckpointError(
            f"The runs in {source.folder} were evaluated on different tasks: {sorted(tasks)}. "
            "Evaluate all on one task to compare them."
        )
    metric = next(iter(tasks))[1] if tasks else ""
    collected = Scores(metric, [(run.column, run.seed) for run, _ in scored])
    for run, scores in scored:
        for record in scores.scores:
            key = ScoreKey.of(record)
            if not collected.add(key, (run.column, run.seed), record):
                label = view_of(key.perspective).label(key)
                raise CheckpointError(
                    f"{run.evaluation}/scores.json has the score {label!r} twice. "
                    "Evaluate the model again."
                )
    return collected


WITHOUT_ROWS = (
    "Only scores were stored, without rows.parquet: reliability diagrams, ROC curves and examples "
    "are missing."
)


def _notices(source: Source) -> list[str]:
    """Return the notices of all runs, each once, with the runs that have it."""
    runs_of: dict[str, list[str]] = {}
    for run in source.runs:
        name = f"{run.column}, seed {run.seed}"
        notices = list(run.record.notices) if run.record is not None else []
        if run.record is not None and run.record.truncated:
            notices.append(
                f"{run.record.truncated:.1%} of the training rows were truncated to the maximum "
                "length"
            )
        # The evaluation's notices report truncated rows of its sets.
        notices += list(run.scores.notices) if run.scores is not None else []
        if run.scores is not None and not run.rows_kept:
            notices.append(WITHOUT_ROWS)
        for notice in dict.fromkeys(notices):
            runs_of.setdefault(notice, []).append(name)
    messages = []
    for notice, names in runs_of.items():
        many = f"{len(names)} runs, the first {names[0]}"
        which = "; ".join(names) if len(names) <= NAMED else many
        messages.append(notice if len(names) == len(source.runs) else f"{notice} ({which})")
    return messages


def _row(
    key: ScoreKey, scores: Scores, source: Source, paired: PairedStatistics, *, margin: float
) -> Row:
    records, view = scores.values[key], view_of(key.perspective)
    cells = {}
    for column in source.columns:
        runs = {seed: run for seed, run in column.runs.items() if (column.name, seed) in records}
        of_seeds = {seed: records[column.name, seed] for seed in runs}
        cells[column.name] = _cell(of_seeds, {seed: run.name for seed, run in runs.items()})
    stated = next(iter(records.values())).higher_is_better
    higher = higher_is_better(key.name, stated)
    shown = unit(key.name, scores.metric)
    if source.reference is not None:
        seeds = {column.name: column.runs.keys() for column in source.columns}
        values = [value for cell in cells.values() for value in cell.seeds.values()]
        is_fraction = shown == PERCENT and all(0.0 <= value <= 1.0 for value in values)
        cells = _with_differences(
            cells,
            source.reference,
            higher=higher,
            common={name: len(seeds[name] & seeds[source.reference]) for name in seeds},
            of_rows=view.counts == "examples",
            paired={name: paired[name, key] for name in cells if (name, key) in paired},
            margin=shown.margin(margin),
            largest=1.0 if view.counts == "examples" and is_fraction else None,
        )
    return Row(key, view.title, view.label(key), higher, shown, cells)


def _cell(records: dict[int, ScoreRecord], runs: dict[int, str]) -> Cell:
    values = {seed: rec.value for seed, rec in records.items() if rec.value is not None}
    errors = {s: rec.standard_error for s, rec in records.items() if rec.standard_error is not None}
    alone = next(iter(records.values())) if len(records) == 1 else None
    defined = [rec for rec in records.values() if rec.value is not None]
    fewest = [rec.n if rec.fewest is None else rec.fewest for rec in defined]
    counted = [number for number in fewest if number is not None]
    reasons = {
        rec.reason or "No reason was given." for rec in records.values() if rec.value is None
    }
    return Cell(
        seeds=values,
        runs=runs,
        mean=mean(values.values()) if values else None,
        standard_deviation=stdev(values.values()) if len(values) > 1 else None,
        examples=tuple(sorted({rec.n for rec in records.values() if rec.n is not None})),
        fewest=min(counted, default=None),
        low=alone.low if alone else None,
        high=alone.high if alone else None,
        standard_errors=errors,
        reasons=tuple(sorted(reasons)),
    )


def _with_differences(
    cells: dict[str, Cell],
    reference: str,
    *,
    common: Mapping[str, int],
    of_rows: bool,
    paired: Mapping[str, Paired],
    **how: Any,
) -> dict[str, Cell]:
    """Add the paired differences of one score, with Holm's correction over methods.

    ``common`` maps a method to the number of seeds at which both it and the reference were
    evaluated. ``how`` are the arguments of `_judged`.
    """
    base = cells[reference]
    differences = {}
    for name, cell in cells.items():
        if name != reference:
            statistic, count = paired.get(name), common[name]
            result = _difference(cell, base, statistic, common=count, of_rows=of_rows)
            differences[name] = _judged(result, **how)
    tested = {name: item.p for name, item in differences.items() if item.p is not None}
    for name, p in zip(tested, holm(list(tested.values())), strict=True):
        differences[name] = replace(differences[name], holm_p=p)
    return {name: replace(cell, difference=differences.get(name)) for name, cell in cells.items()}


def _difference(
    cell: Cell, base: Cell, paired: Paired | None, *, common: int, of_rows: bool
) -> Difference:
    """Return a method's difference from the reference, with its interval or the reason for none.

    ``of_rows``: whether n counts rows; a verdict then needs a minimum of them.
    """
    shared = [seed for seed in cell.seeds if seed in base.seeds]
    seeds = {seed: cell.seeds[seed] - base.seeds[seed] for seed in shared}
    result = partial(Difference, seeds, mean(seeds.values()) if seeds else None)
    if not common:
        return result(verdict="no common seed")
    if len(seeds) < common:
        return result(verdict="seeds missing", why=f"{len(seeds)} of {plural(common, 'seed')}")
    rows = [item.fewest for item in (cell, base) if item.fewest is not None]
    if of_rows and rows and min(rows) < LEAST_ROWS:
        return result(verdict="too few rows", why=f"{min(rows)} of at least {LEAST_ROWS}")
    kept = paired.statistic if paired is not None and paired.seeds == set(shared) else None
    if isinstance(kept, PairedScoreRecord):
        return result(low=kept.low, high=kept.high, p=kept.p, examples=kept.n)
    ours, theirs = ([item.seeds[seed] for seed in shared] for item in (cell, base))
    test = effect(ours, theirs, rows=kept)
    if test is None and len(seeds) < LEAST_SEEDS:
        return result(why=f"{plural(len(seeds), 'common seed')} of at least {LEAST_SEEDS}")
    if test is None:
        return result(why="the same scores at every seed")
    names = ("low", "high", "p", "standard_error", "freedom", "row_variance", "least")
    return result(**{name: getattr(test, name) for name in names})


def _judged(
    difference: Difference, *, higher: bool | None, margin: float | None, largest: float | None
) -> Difference:
    """Add the verdict, and cut the interval at ``largest``, the largest possible difference."""
    low, high, least = difference.low, difference.high, difference.least
    if low is None or high is None:
        return difference
    if largest is not None:
        # The interval of two seeds may exceed it by far.
        low, high = max(low, -largest), min(high, largest)
        least = least if least is not None and least <= largest else None
    return replace(
        difference,
        low=low,
        high=high,
        least=least,
        includes_zero=low <= 0.0 <= high,
        verdict=_verdict(low, high, higher=higher, margin=margin),
        margin=margin,
    )


def _verdict(low: float, high: float, *, higher: bool | None, margin: float | None) -> Verdict:
    if low > 0.0 or high < 0.0:
        if higher is None:
            return "higher" if low > 0.0 else "lower"
        return "better" if (low > 0.0) == higher else "worse"
    if margin is None:
        return "not significant"
    above, below = low > -margin, high < margin
    if above and below:
        return "equivalent"
    if higher is not None and (above or below):
        return "non-inferior" if above == higher else "non-superior"
    return "not significant"


CSV_COLUMNS = (
    *("perspective", "set", "condition", "name", "parameters"),
    *("column", "seed", "run", "value", "standard_error", "low", "high", "n"),
)


def write(comparison: Comparison, folder: Path | str) -> None:
    """Write ``scores.csv``, and for a study the whole comparison as ``table.json``.

    ``scores.csv`` has a line per score, method and seed. With several seeds, interval and n are
    empty.
    """
    folder = Path(folder)
    if comparison.kind == "study":
        document = json.dumps(comparison.to_json(), indent=1, ensure_ascii=False, allow_nan=False)
        write_text(folder / "table.json", document + "\n")
    lines = io.StringIO(newline="")
    writer = csv.DictWriter(lines, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for row in comparison.rows:
        for column, cell in row.cells.items():
            for seed, value in cell.seeds.items():
                run = {"column": column, "seed": seed, "run": cell.runs[seed], "value": value}
                doubt = {"standard_error": cell.standard_errors.get(seed)}
                doubt |= {"low": cell.low, "high": cell.high}
                count = {"n": cell.examples[0] if len(cell.examples) == 1 else None}
                key = {**asdict(row.key), "parameters": row.key.parameters.to_text()}
                writer.writerow({**key, **run, **doubt, **count})
    write_text(folder / "scores.csv", lines.getvalue())
