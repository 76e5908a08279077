"""Verdicts on pairs of seeds, mean ranks, and a recommendation that they support."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.display.cells import Comparison, Difference, ScoreKey
from temper.display.folders import read
from temper.display.records import ScoreRecord
from temper.errors import CheckpointError
from temper.functional.effects import RowVariance
from temper.functional.intervals import LEAST_ROWS
from temper.report.derived import Scores, add_mean_rank
from temper.report.table import (
    Paired,
    PairedScoreRecord,
    _cell,
    _with_differences,
    comparison,
    read_paired,
)
from temper.report.view import about
from tests.report.conftest import Plan, write_study

KEY = ScoreKey("task", "dev", "clean", "accuracy")


def record(value: float | None, key: ScoreKey = KEY, **more: Any) -> ScoreRecord:
    """Return one score."""
    return ScoreRecord(perspective=key.perspective, set=key.set, name=key.name, value=value, **more)


def over_rows(seed: int, low: float, high: float, p: float, n: int) -> Paired:
    """Return what a study of one seed keeps of `KEY`."""
    named = {"perspective": KEY.perspective, "set": KEY.set, "name": KEY.name}
    return Paired(frozenset({seed}), PairedScoreRecord(**named, low=low, high=high, p=p, n=n))


def differ(
    seeds: dict[int, tuple[float, float]],
    *,
    higher: bool | None = True,
    paired: Paired | None = None,
    margin: float | None = None,
    common: Collection[int] | None = None,
    largest: float | None = None,
    **more: Any,
) -> Difference:
    """Return the difference of two columns that were evaluated at some common seeds."""
    cells = {
        name: _cell(
            {seed: record(pair[index], **more) for seed, pair in seeds.items()},
            dict.fromkeys(seeds, "run"),
        )
        for index, name in enumerate(("plain", "uegr"))
    }
    result = _with_differences(
        cells,
        "plain",
        higher=higher,
        common=dict.fromkeys(cells, len(seeds if common is None else common)),
        of_rows=True,
        paired={} if paired is None else {"uegr": paired},
        margin=margin,
        largest=largest,
    )
    difference = result["uegr"].difference
    assert difference is not None
    return difference


UP = {0: (0.80, 0.83), 1: (0.80, 0.84), 2: (0.81, 0.84)}


@pytest.mark.parametrize(
    ("seeds", "higher", "said"),
    [
        (UP, True, "better"),
        (UP, False, "worse"),
        (UP, None, "higher"),
        ({seed: (two, one) for seed, (one, two) in UP.items()}, None, "lower"),
        ({0: (0.70, 0.69), 1: (0.72, 0.74), 2: (0.74, 0.73)}, True, "not significant"),
        ({0: UP[0], 1: UP[1]}, True, "undecidable (2 common seeds of at least 3)"),
        (
            {0: (0.70, 0.68), 1: (0.70, 0.68), 2: (0.70, 0.68)},
            True,
            "undecidable (the same scores",
        ),
    ],
)
def test_a_verdict_follows_from_the_seeds_and_the_direction(
    seeds: dict[int, tuple[float, float]], higher: bool | None, said: str
) -> None:
    difference = differ(seeds, higher=higher)
    assert difference.said.startswith(said)
    # Without a verdict there is no interval either.
    assert (difference.low is None) == ("undecidable" in said) == (difference.p is None)


@pytest.mark.parametrize(
    ("seeds", "more", "said"),
    [
        ({0: UP[0], 2: UP[2]}, {"common": (0, 1, 2)}, "seeds missing (2 of 3 seeds)"),
        ({}, {"common": (0, 1, 2)}, "seeds missing (0 of 3 seeds)"),
        ({}, {"common": ()}, "no common seed"),
        (UP, {"n": 34}, f"too few rows (34 of at least {LEAST_ROWS})"),
        # The smallest class counts, and not all rows.
        (UP, {"n": 500, "fewest": 9}, f"too few rows (9 of at least {LEAST_ROWS})"),
    ],
)
def test_a_difference_of_too_few_seeds_or_rows_has_no_verdict(
    seeds: dict[int, tuple[float, float]], more: dict[str, Any], said: str
) -> None:
    difference = differ(seeds, **more)
    assert difference.said == said
    assert difference.low is None


def test_two_seeds_give_no_interval_beyond_possible_differences() -> None:
    # Seeds that vary less than the rows leave almost no degrees of freedom.
    paired = Paired(frozenset({0, 1}), RowVariance(1e-4, (0.01, 0.01)))
    seeds = {0: (0.50, 0.52), 1: (0.52, 0.53)}
    free = differ(seeds, paired=paired)
    assert free.low is not None
    assert free.low < -1000.0
    limited = differ(seeds, paired=paired, largest=1.0)
    assert (limited.low, limited.high, limited.least) == (-1.0, 1.0, None)
    assert limited.verdict == "not significant"


PAIRS = st.lists(st.tuples(st.floats(-1, 1), st.floats(-1, 1)), min_size=3, max_size=6)


@given(PAIRS, st.booleans())
def test_reversing_columns_and_direction_keeps_the_verdict(
    pairs: list[tuple[float, float]], higher: bool
) -> None:
    plain = differ(dict(enumerate(pairs)), higher=higher)
    turned = {seed: (-one, -other) for seed, (one, other) in enumerate(pairs)}
    assert differ(turned, higher=not higher).verdict == plain.verdict
    if plain.low is not None and plain.high is not None:
        assert plain.includes_zero == (plain.low <= 0 <= plain.high)


def test_one_seed_is_judged_over_examples() -> None:
    difference = differ({0: UP[0]}, paired=over_rows(0, 0.01, 0.05, 0.004, 500))
    assert difference.verdict == "better"
    assert (difference.low, difference.high, difference.examples) == (0.01, 0.05, 500)
    assert difference.holm_p == 0.004
    noise = differ({0: UP[0]}, paired=over_rows(0, -0.01, 0.05, 0.2, 500))
    assert noise.verdict == "not significant"


# A mean of 0, and intervals that reach .0037, .0060 and .0075 to both sides: 4.3 of 2 degrees.
NARROW, WIDE, WIDER = (
    {seed: (0.80, 0.80 + step * side) for seed, side in enumerate((-1, 0, 1))}
    for step in (0.0015, 0.0024, 0.003)
)


@pytest.mark.parametrize(
    ("seeds", "shift", "higher", "verdict"),
    [
        (NARROW, 0.0, True, "equivalent"),
        (NARROW, 0.0, None, "equivalent"),
        (NARROW, 0.003, True, "non-inferior"),
        (NARROW, 0.003, False, "non-superior"),
        (NARROW, 0.003, None, "not significant"),
        (NARROW, -0.003, True, "non-superior"),
        (NARROW, -0.003, False, "non-inferior"),
        (NARROW, 0.004, True, "better"),
        (WIDE, 0.0, True, "not significant"),
        (WIDE, 0.002, True, "non-inferior"),
        (WIDER, 0.002, True, "not significant"),
    ],
)
def test_the_verdict_depends_on_interval_and_margin(
    seeds: dict[int, tuple[float, float]], shift: float, higher: bool | None, verdict: str
) -> None:
    moved = {seed: (one, two + shift) for seed, (one, two) in seeds.items()}
    result = differ(moved, higher=higher, margin=0.005)
    assert result.verdict == verdict
    assert result.includes_zero == (verdict != "better")
    # What has no margin is not significant or it is not.
    plain = differ(moved, higher=higher).verdict
    assert plain == ("better" if verdict == "better" else "not significant")


@pytest.mark.parametrize("seeds", [{1: UP[1]}, {0: UP[0], 1: UP[1]}])
def test_intervals_over_rows_of_one_seed_do_not_decide_other_seeds(
    seeds: dict[int, tuple[float, float]],
) -> None:
    paired = over_rows(0, 0.01, 0.05, 0.004, 500)
    assert differ(seeds, paired=paired).verdict == "undecidable"


def test_stored_pairings_are_read_by_column_and_score(tmp_path: Path) -> None:
    assert read_paired(tmp_path) == {}
    score = {"perspective": "task", "set": "dev", "condition": "clean", "name": "accuracy"}
    content = {
        "resamples": 10,
        "columns": {
            "uegr": {"seed": 3, "scores": [{**score, "low": 0.0, "high": 0.5, "p": 0.1, "n": 9}]}
        },
    }
    (tmp_path / "paired.json").write_text(json.dumps(content))
    assert read_paired(tmp_path) == {("uegr", KEY): over_rows(3, 0.0, 0.5, 0.1, 9)}
    (tmp_path / "paired.json").write_text('{"columns": {}}')
    with pytest.raises(CheckpointError, match="resamples"):
        read_paired(tmp_path)


def scores_of(values: dict[ScoreKey, list[float | None]]) -> Scores:
    """Collect the scores of three columns at one seed."""
    runs = [(name, 0) for name in ("a", "b", "c")]
    result = Scores("accuracy", runs)
    for key, line in values.items():
        for run, value in zip(runs, line, strict=True):
            result.add(key, run, record(value, key))
    return result


def ranks_of(values: dict[ScoreKey, list[float | None]]) -> list[float | None]:
    """Return the mean ranks of three columns."""
    scores = scores_of(values)
    add_mean_rank(scores)
    key = ScoreKey("rank", "", "clean", "mean_rank")
    at = scores.values.get(key, {})
    return [record.value for record in at.values()]


def test_each_perspective_counts_once_and_ties_share_a_rank() -> None:
    shift = [ScoreKey("shift", name, "clean", "accuracy") for name in ("x", "y", "z")]
    result = ranks_of(
        {
            KEY: [0.9, 0.8, 0.8],
            **{key: [0.1, 0.2, 0.3] for key in shift},
            ScoreKey("calibration", "dev", "clean", "ece_10"): [0.3, 0.1, 0.2],
        }
    )
    # task 1, 2.5, 2.5; shift 3, 2, 1; ECE, where less is better, 3, 1, 2.
    assert result == pytest.approx([7 / 3, 5.5 / 3, 5.5 / 3])


def test_a_score_that_one_column_lacks_is_left_out_for_all() -> None:
    odd = ScoreKey("anomaly", "odd", "clean", "auroc")
    assert ranks_of({KEY: [0.9, 0.8, 0.7], odd: [0.1, None, 0.9]}) == [1.0, 2.0, 3.0]


def test_only_the_primary_score_of_a_perspective_is_ranked() -> None:
    others = {
        ScoreKey("task", "dev", "clean", "macro_f1"): [0.1, 0.2, 0.3],
        ScoreKey("calibration", "dev", "temperature", "ece_10"): [0.9, 0.2, 0.1],
        ScoreKey("anomaly", "odd", "energy", "auroc"): [0.1, 0.2, 0.3],
    }
    assert ranks_of({KEY: [0.9, 0.8, 0.7], **others}) == [1.0, 2.0, 3.0]
    assert ranks_of(others) == []


def unfinished(folder: Path, *, done: Mapping[str, Sequence[str]]) -> Comparison:
    """Return the comparison of a study of which only some seeds were run."""
    study = write_study(folder, Plan())
    record = json.loads((study / "study.json").read_text())
    record["runs"] = {
        name: {seed: record["runs"][name][seed] for seed in seeds} for name, seeds in done.items()
    }
    (study / "study.json").write_text(json.dumps(record))
    return comparison(study)


def test_a_study_with_one_finished_run_reports_that_nothing_can_be_compared(
    tmp_path: Path,
) -> None:
    result = unfinished(tmp_path / "one", done={"plain": ["0"]})
    assert result.headline.startswith("Only 1 of 6 runs")
    assert "`temper compare`" in result.headline
    assert not [row for row in result.rows if row.key.perspective == "summary"]
    assert not any("average relative improvement" in notice for notice in result.notices)
    assert ("runs", "1 of 6 finished and measured") in about(read(tmp_path / "one"), result)
    apart = unfinished(tmp_path / "apart", done={"plain": ["0", "1"], "uegr": ["2"]})
    assert apart.headline.startswith("Only 3 of 6 runs")
    assert not [row for row in apart.rows if row.key.perspective == "summary"]


def test_a_partly_finished_study_reports_the_number_of_finished_runs(tmp_path: Path) -> None:
    seeds = ["0", "1", "2"]
    result = unfinished(tmp_path / "some", done={"plain": seeds, "uegr": seeds[:1]})
    assert "Only 4 of 6 runs are finished and measured." in result.headline
    assert [row for row in result.rows if row.key.perspective == "summary"]
    whole = unfinished(tmp_path / "all", done={"plain": seeds, "uegr": seeds})
    assert whole.unfinished == ""


def test_a_notice_of_some_runs_names_column_and_seed(tmp_path: Path) -> None:
    study = write_study(tmp_path / "study", Plan())
    run = study / "runs" / "uegr-s1-abc" / "run.json"
    run.write_text(run.read_text().replace('"notices": [', '"notices": ["One row is lost.", '))
    assert "One row is lost. (uegr, seed 1)" in comparison(study).notices
