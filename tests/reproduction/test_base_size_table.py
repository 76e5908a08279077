"""The verdicts of docs/base-size.md, on runs whose true gains are planted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from reproduction import base_size, base_size_table
from reproduction.base_size_table import METHODS, METRICS, PLAIN, Decision
from temper.functional.effects import Effect

RATES = {"plain": 2e-5, "attacked": 4e-5}
SCORE, ECE = METRICS[0], METRICS[1]
SHIFT = next(metric for metric in METRICS if metric.perspective == "shift")
COLUMNS = [*PLAIN, *METHODS]


def line(task: str, column: str, seed: int, score: float, ece: float = 0.1) -> dict[str, Any]:
    side = base_size.PROTOCOL["column"][column]["side"]
    names = base_size.PROTOCOL["task"][task]["choose_by"] or ["accuracy"]
    scores = [["task", "dev", "clean", name, score] for name in names]
    return {
        "task": task,
        "column": column,
        "seed": seed,
        "rate": RATES[side],
        "validation": scores if task != "rte" else [],
        "reported": [*scores, ["calibration", "dev", "clean", "ece_10", ece]],
    }


def runs(
    task: str, gains: Mapping[str, float], noise: float, draw: int = 0, seeds: int = 3
) -> list[dict[str, Any]]:
    """Cells of ``score = 80 + gain of the column + luck of the seed + noise``, in points."""
    generator = np.random.default_rng(draw)
    luck = generator.normal(0.0, 1.0, seeds)
    return [
        line(task, column, seed, (80 + gain + luck[seed] + generator.normal(0.0, noise)) / 100)
        for column, gain in gains.items()
        for seed in range(seeds)
    ]


def verdicts(lines: list[dict[str, Any]], task: str = "cola") -> dict[str, Decision]:
    return {one.column: one for one in base_size_table.decide(lines, task, SCORE)}


def effect(low: float, high: float, p: float = 0.01, seeds: int = 3) -> Effect:
    return Effect((low + high) / 2, low, high, p, seeds, (high - low) / 4.3, 14.0)


def decision(first: Effect, second: Effect, *, column: str = "uegr", p: float = 0.01) -> Decision:
    return Decision("sst2", column, SCORE, ("plain", "plain_3x"), (first, second), 3, p)


def test_a_planted_gain_is_confirmed_a_planted_loss_refuted_and_no_gain_neither() -> None:
    gains = dict.fromkeys(COLUMNS, 0.0) | {"uegr": 3.0, "r_drop": -3.0}

    result = verdicts(runs("cola", gains, noise=0.3))

    assert result["uegr"].verdict == "confirmed"
    assert result["r_drop"].verdict == "refuted"
    for gain in result["uegr"].gains:
        assert gain is not None
        assert gain.mean == pytest.approx(3.0, abs=0.8)


def test_of_columns_without_a_gain_few_are_confirmed() -> None:
    draws = 150
    wrong = covered = 0
    for draw in range(draws):
        result = verdicts(runs("cola", dict.fromkeys(COLUMNS, 0.0), noise=0.5, draw=draw))
        wrong += any(one.verdict.startswith("confirmed") for one in result.values())
        gain = result["uegr"].gains[1]
        assert gain is not None
        covered += gain.low <= 0.0 <= gain.high

    assert wrong / draws <= 0.05
    assert 0.90 <= covered / draws <= 0.99


def test_a_gain_over_one_baseline_alone_is_not_confirmed() -> None:
    gains = dict.fromkeys(COLUMNS, 0.0) | {"uegr": 3.0, "plain_3x": 3.0}
    lines = runs("cola", gains, noise=0.2)
    for each in lines:
        # On validation rows three times the epochs gain nothing, so tuned plain has three.
        each["validation"] = [["task", "dev", "clean", "mcc", 0.8]]

    result = verdicts(lines)["uegr"]

    assert result.baselines == ("plain", "plain_3x")
    assert result.gains[0] is not None
    assert result.gains[0].low > 0.0
    assert not result.verdict.startswith("confirmed")


def test_a_lower_calibration_error_is_a_gain() -> None:
    lines = [
        line("cola", column, seed, 0.8, (0.10 - 0.05 * (column == "uegr")) + 0.001 * draw)
        for column in COLUMNS
        for seed, draw in enumerate(np.random.default_rng(1).normal(size=3))
    ]
    # Without a residual there is no interval, so one cell differs.
    lines[0]["reported"][-1][-1] += 0.002

    (result,) = (one for one in base_size_table.decide(lines, "cola", ECE) if one.column == "uegr")

    assert result.gains[1] is not None
    assert result.gains[1].mean == pytest.approx(5.0)
    assert result.verdict == "confirmed"


@pytest.mark.parametrize("left_out", [[], [("uegr", 2), ("at", 0), ("at", 1)]])
def test_the_pooled_variance_is_that_of_a_loop_in_float64(left_out: list[tuple[str, int]]) -> None:
    generator = np.random.default_rng(3)
    values = {
        column: {
            seed: float(generator.normal(80.0, 2.0))
            for seed in range(5 if column in ("plain", "uegr") else 3)
            if (column, seed) not in left_out
        }
        for column in COLUMNS
    }
    of_column, of_seed = dict.fromkeys(values, 0.0), dict.fromkeys(range(5), 0.0)
    for _ in range(500):
        for column, scores in values.items():
            apart = [score - of_seed[seed] for seed, score in scores.items()]
            of_column[column] = sum(apart) / len(apart)
        for seed in of_seed:
            apart = [scores[seed] - of_column[c] for c, scores in values.items() if seed in scores]
            of_seed[seed] = sum(apart) / len(apart)
    total, count = 0.0, 0
    for column, scores in values.items():
        for seed, score in scores.items():
            total += (score - of_column[column] - of_seed[seed]) ** 2
            count += 1
    freedom = count - len(of_column) - len(of_seed) + 1

    variance, result = base_size_table.residual_variance(values)
    gain = base_size_table.gain(values, "r_drop", "plain", 1)

    assert result == freedom
    assert variance == pytest.approx(total / freedom, rel=1e-9)
    assert gain is not None
    assert gain.standard_error == pytest.approx((2 * total / freedom / 3) ** 0.5, rel=1e-9)
    mean = sum(values["r_drop"][seed] - values["plain"][seed] for seed in range(3)) / 3
    assert gain.mean == pytest.approx(mean)


def test_holm_corrects_the_larger_p_over_the_methods_of_a_family(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ps = {
        ("uegr", "plain_3x"): 0.010,
        ("uegr_one_pass", "plain_2x"): 0.020,
        ("at", "plain_2x"): 0.015,
        ("cautious", "plain"): 0.012,
    }

    def gain(values: Any, column: str, baseline: str, sign: int) -> Effect | None:
        if column not in ("uegr", "uegr_one_pass", "at", "cautious"):
            return None
        return effect(0.5, 1.5, ps.get((column, baseline), 0.001))

    monkeypatch.setattr(base_size_table, "gain", gain)
    result = {one.column: one.p for one in base_size_table.decide([], "cola", SCORE)}

    # Five methods of the papers: 5 x 0.010, then 4 x 0.015, then 3 x 0.020; methods without a p
    # count. Three inexpensive ones: 3 x 0.012.
    assert result["cautious"] == pytest.approx(0.036)
    assert [result[name] for name in ("uegr", "at", "uegr_one_pass")] == pytest.approx(
        [0.05, 0.06, 0.06]
    )
    assert result["r_drop"] == result["r_at_su"] == 1.0


def test_a_gain_below_the_printed_one_is_refuted() -> None:
    # Table I prints for SST-2 91.75 and 93.92 (BERT-base), 94.45 and 95.56 (RoBERTa-base).
    assert decision(effect(0, 1), effect(0, 1)).printed == pytest.approx([2.17, 1.11])
    assert decision(effect(0, 1), effect(0, 1), column="at").printed == []
    assert decision(effect(-0.5, 1.5), effect(-1.0, 1.0)).verdict == "refuted"
    assert decision(effect(-0.5, 1.5), effect(-1.0, 1.2)).verdict.startswith("undecided (")
    assert decision(effect(0.2, 1.5), effect(0.1, 1.0)).verdict == "confirmed, below printed"
    assert decision(effect(0.2, 1.5), effect(0.1, 1.2), p=0.06).verdict.startswith("undecided (")
    # Where no gain is printed, 0 takes its place.
    assert decision(effect(-2, -1), effect(-1, 1), column="at").verdict == "refuted"
    assert decision(effect(-2, 0.1), effect(-1, 1), column="at").verdict.startswith("undecided (")


@pytest.mark.parametrize(
    ("low", "high", "seeds", "more"),
    [
        (-0.1, 1.0, 3, True),
        (0.1, 1.0, 3, True),
        (-1.0, 0.2, 3, True),
        (-0.5, 0.5, 3, False),
        (0.5, 1.0, 3, False),
        (-0.1, 1.0, 5, False),
    ],
)
def test_an_interval_that_ends_near_zero_gets_more_seeds(
    low: float, high: float, seeds: int, more: bool
) -> None:
    assert decision(effect(low, high, seeds=seeds), effect(5.0, 6.0)).more_seeds is more


def test_tuned_plain_has_the_fewest_epochs_within_three_tenths_and_rte_those_of_mrpc() -> None:
    validation = {"plain": 0.890, "plain_2x": 0.898, "plain_3x": 0.900}
    lines = [line("mrpc", column, 0, score) for column, score in validation.items()]
    # Another seed does not choose.
    lines += [line("mrpc", "plain", 1, 0.99)]

    assert base_size_table.tuned_plain(lines, "mrpc")[0] == "plain_2x"
    assert base_size_table.tuned_plain(lines, "rte")[0] == "plain_2x"
    assert base_size_table.tuned_plain(lines[1:], "mrpc")[0] is None
    assert base_size_table.tuned_plain(lines, "cola")[0] is None


def test_equal_compute_is_the_smallest_plain_column_that_costs_as_much() -> None:
    result = {column: base_size_table.equal_compute(column) for column in METHODS}

    assert result["uegr"] == result["r_at_su"] == "plain_3x"
    assert result["uegr_one_pass"] == result["at"] == result["r_drop"] == "plain_2x"


def test_means_are_over_the_sets_that_every_cell_has() -> None:
    lines = [line("sst2", column, 0, 0.9) for column in ("plain", "uegr", "at")]
    lines[0]["suite"] = [["shift", name, "clean", "accuracy", 0.8] for name in ("imdb", "books")]
    lines[1]["suite"] = [["shift", "imdb", "clean", "accuracy", 0.9]]

    result = base_size_table.scores(lines, "sst2", SHIFT)

    assert result == {"plain": {0: pytest.approx(80.0)}, "uegr": {0: pytest.approx(90.0)}}


def test_an_undefined_score_of_the_task_counts_as_0() -> None:
    collapsed = line("stsb", "uegr", 0, 0.9)
    collapsed["reported"] = [["task", "dev", "clean", "mse", 2.0]]

    assert base_size_table.scores([collapsed], "stsb", SCORE) == {"uegr": {0: 0.0}}


def test_missing_cells_are_reported_and_other_rates_ignored() -> None:
    lines = runs("cola", dict.fromkeys([*PLAIN, "uegr"], 0.0), noise=0.5)
    lines += [line("sst2", "plain", 0, 0.9) | {"suite": []}]
    lines += [line("mrpc", "uegr", 0, 0.9) | {"rate": 8e-5}]

    text = base_size_table.tables(lines, RATES)

    _, score = text.split("**GLUE's score**")
    grid, gains = score.split("**ECE**")[0].split("| task |")
    cells = {row.split(" | ")[0].strip("| "): row.split(" | ")[1:] for row in grid.split("\n")}
    assert cells["plain"][0] == "90.0 (1 seed)"
    assert cells["uegr"][0] == cells["uegr"][2] == "not run"
    assert cells["uegr"][1].endswith(")")
    assert "| cola | uegr |" in gains
    assert "\n- sst2: uegr, " in gains
    shift = text.split("**Shift accuracy**")[1].split("**")[0]
    assert "| plain | not stored |" in shift
    assert "uegr" not in shift
    assert max(map(len, text.splitlines())) <= 100


def test_without_cells_there_is_no_verdict() -> None:
    text = base_size_table.tables([], {})

    for word in ("confirmed", "refuted", "undecided"):
        assert word not in text
    for metric in METRICS:
        assert f"**{metric.title}**: not run" in text


def test_tables_are_written_between_the_markers(tmp_path: Path) -> None:
    document = tmp_path / "page.md"
    document.write_text("before\n<!-- base-size -->\nold\n<!-- /base-size -->\nafter\n")

    base_size.table(tmp_path, document)

    text = document.read_text()
    assert text.startswith("before\n<!-- base-size -->\n### ")
    assert text.endswith("-->\nafter\n")
    assert "old" not in text


def test_the_mean_over_the_tasks_counts_each_task_once_and_only_shared_seeds() -> None:
    values = {
        "sst2": {"uegr": {0: 91.0, 1: 93.0}, "plain": {0: 90.0, 1: 90.0, 2: 0.0}},
        "cola": {"uegr": {0: 40.0}, "plain": {0: 39.0}},
        "mrpc": {"uegr": {0: 80.0}, "plain": {0: 77.0}},
        "rte": {"uegr": {0: 80.0}, "plain": {1: 70.0}},
    }

    text = base_size_table.over_tasks(values, "uegr", dict.fromkeys(values, "plain"), 1)

    # Gains 2, 1 and 3: mean 2, standard error 1 / sqrt(3), t of 2 degrees of freedom 4.303.
    assert text == "+2.0 [−0.5, +4.5] (3)"


def test_a_lower_score_is_a_gain_of_calibration_and_two_tasks_have_no_interval() -> None:
    values = {task: {"uegr": {0: 4.0}, "plain": {0: 6.0}} for task in ("sst2", "cola")}

    text = base_size_table.over_tasks(values, "uegr", dict.fromkeys(values, "plain"), -1)

    assert text == "+2.0 (2)"
