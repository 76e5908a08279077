"""Two models on the same rows: the same resamples, and refusal of other rows."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from temper.data.examples import Examples
from temper.errors import CheckpointError
from temper.evaluation.function import CallablePredictor
from temper.evaluation.pairing import RowSamples, paired_differences, row_variances
from temper.evaluation.perspectives.calibration import fold_numbers
from temper.evaluation.rows import Block, Condition, to_table
from temper.evaluation.run import Evaluation, EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.calibration import fit_temperature, scaled

ROWS = 40
SETTINGS = EvaluationSettings(perspectives=("task", "calibration", "anomaly"), bootstrap=0)


def dev(rows: int = ROWS) -> Examples:
    """Return rows of class 0."""
    return Examples(
        "dev", [f"text {index}" for index in range(rows)], labels=[0] * rows, kind="classification"
    )


def evaluation_of(wrong: set[int], *, rows: int = ROWS) -> Evaluation:
    """Return the evaluation of a model that is wrong on some rows."""

    def predict(texts: list[str]) -> list[list[float]]:
        indices = [int(text.split()[1]) for text in texts]
        return [[0.2, 0.8] if index in wrong else [0.9, 0.1] for index in indices]

    strange = Examples("odd", [f"odd {index}" for index in range(9)])
    predictor = CallablePredictor(predict, gives="probabilities")
    return evaluate(predictor, EvaluationData(dev(rows), anomaly={"odd": strange}), SETTINGS)


def differences(
    first: Evaluation, second: Evaluation, resamples: int = 2000
) -> dict[tuple[str, str], dict[str, float]]:
    """Return intervals by perspective and score."""
    result = paired_differences(
        first.rows,
        second.rows,
        "accuracy",
        chosen=SETTINGS.perspectives,
        seed=0,
        resamples=resamples,
    )
    assert all({"parameters", "low", "high"} <= set(entry) for entry in result)
    return {(entry["perspective"], entry["name"]): entry for entry in result}


def test_the_interval_is_that_of_paired_row_differences() -> None:
    # Row by row the difference is +1 on eight rows and 0 on the others: a binomial share.
    result = differences(evaluation_of({0, 1}), evaluation_of(set(range(10))))
    entry = result["task", "accuracy"]
    drawn = np.random.default_rng(1).binomial(ROWS, 8 / ROWS, size=200_000) / ROWS
    assert entry["low"] == pytest.approx(np.quantile(drawn, 0.025), abs=0.026)
    assert entry["high"] == pytest.approx(np.quantile(drawn, 0.975), abs=0.026)
    # The exact sign test of eight rows against none.
    assert entry["p"] == pytest.approx(2 * 0.5**8, abs=0.003)
    assert entry["n"] == ROWS


def test_equal_models_have_an_interval_around_0() -> None:
    same = evaluation_of({3, 4, 5})
    result = differences(same, same)
    # Only shares have an interval: resamples of any other score show no difference at all.
    assert {name for _, name in result} == {"accuracy"}
    for entry in result.values():
        assert entry["low"] < 0 < entry["high"]
        assert entry["low"] == pytest.approx(-entry["high"])
        assert entry["p"] == 1.0


def test_swapping_the_models_reverses_the_interval() -> None:
    first, second = evaluation_of({0, 1, 2}), evaluation_of({2, 3})
    there, back = differences(first, second), differences(second, first)
    assert set(there) == set(back)
    assert ("anomaly", "auroc") in there
    for key, entry in there.items():
        assert entry["low"] == pytest.approx(-back[key]["high"], abs=1e-12)
        assert entry["p"] == back[key]["p"]


def test_models_evaluated_on_different_rows_raise_an_error() -> None:
    with pytest.raises(CheckpointError, match="different rows of set 'dev'"):
        differences(evaluation_of(set()), evaluation_of(set(), rows=30))


def test_attacked_models_are_compared_on_the_rows_of_both() -> None:
    def block_of(wrong: set[int], condition: Condition, broken: set[int]) -> Block:
        prediction = np.array([float(row in wrong | broken) for row in range(ROWS)])
        return Block(
            condition,
            [f"{row:016x}" for row in range(ROWS)],
            np.arange(ROWS),
            np.zeros(ROWS),
            prediction,
            np.stack([1 - prediction, prediction], axis=1),
            prediction,
            measured={"queries": np.full(ROWS, 5.0), "changed": np.full(ROWS, 0.1)},
        )

    def rows_of(wrong: set[int]) -> Any:
        attacked = Condition("text_attack", "dev", "characters")
        clean = block_of(wrong, Condition("task", "dev"), set())
        return to_table([clean, block_of(wrong, attacked, set(range(20, 30)))])

    # Both fall on the same ten rows, and each was wrong before on two rows of its own.
    result = paired_differences(
        rows_of({0, 1}),
        rows_of({38, 39}),
        "accuracy",
        chosen=("text_attack",),
        seed=0,
        resamples=500,
    )
    success = next(entry for entry in result if entry["name"] == "attack_success")
    # A resample differs by how often it holds the two rows, and not by which ten fell.
    assert -0.06 < success["low"] <= 0.0 <= success["high"] < 0.06
    assert success["p"] > 0.5


WRONG = ({0, 1, 2, 3}, {0, 1, 4, 5, 6, 7}, {0, 8}), ({10, 11, 0}, {11, 12, 13, 14}, {10, 15})
"""Rows that each seed of two columns has wrong."""


def samples_of(*columns: tuple[set[int], ...], rows: int = ROWS) -> list[list[RowSamples]]:
    """Return the runs of some columns on resamples of their rows."""
    return [
        [
            RowSamples.of(
                evaluation_of(wrong, rows=rows).rows,
                "accuracy",
                chosen=SETTINGS.perspectives,
                seed=0,
            )
            for wrong in column
        ]
        for column in columns
    ]


def test_variances_over_rows_are_those_of_the_rows_themselves() -> None:
    result = {
        (named["perspective"], named["name"]): variance
        for named, variance in row_variances(*samples_of(*WRONG))
    }
    right = np.array(
        [[[index not in wrong for index in range(ROWS)] for wrong in column] for column in WRONG],
        dtype=np.float64,
    )
    accuracy = result["task", "accuracy"]
    means = right.mean(axis=1)
    # 200 resamples estimate a variance to 10%; the tolerance is three times that.
    assert accuracy.difference == pytest.approx((means[0] - means[1]).var() / ROWS, rel=0.3)
    # What seeds differ by row by row, without what they differ by in all rows.
    apart = right - right.mean(axis=2, keepdims=True)
    within = apart.var(axis=1, ddof=1).mean(axis=1) / ROWS
    assert accuracy.columns == pytest.approx(tuple(within), rel=0.3)
    assert ("calibration", "ece_10") in result


def test_equal_runs_have_no_variance_over_rows() -> None:
    (first,) = samples_of(WRONG[0])
    assert all(variance.difference == 0.0 for _, variance in row_variances(first, first))
    alike = [first[0], first[0]]
    for _, variance in row_variances(alike, alike):
        assert variance.columns == pytest.approx((0.0, 0.0), abs=1e-12)


def test_scores_on_other_rows_or_that_a_run_lacks_have_no_variance() -> None:
    first, second = samples_of(*WRONG)
    (other,) = samples_of(WRONG[1], rows=ROWS + 1)
    assert row_variances(first, second)
    assert row_variances(first, other) == []
    kept = dict(second[1].samples)
    for key in [key for key in kept if key[1] == "accuracy"]:
        del kept[key]
    lacking = [second[0], replace(second[1], samples=kept), second[2]]
    names = {named["name"] for named, _ in row_variances(first, lacking)}
    assert "accuracy" not in names
    assert "macro_f1" in names


def drawn_tables(draws: np.random.Generator, study: int, rows: int) -> list[pa.Table]:
    """Return the rows of two models of one law: dev, a harder set, and both after scaling."""
    sets = {}
    for name, gain in (("dev", 2.2), ("far", 1.2)):
        labels = draws.integers(0, 3, rows)
        shared = draws.normal(size=(rows, 3))
        shared[np.arange(rows), labels] += gain
        texts = [f"{name} {study} {index}" for index in range(rows)]
        sets[name] = texts, labels, shared, fold_numbers(texts, seed=0)

    def block(condition: Condition, texts: list[str], labels: Any, logs: Any) -> Block:
        return Block(
            condition,
            texts,
            np.arange(rows),
            labels.astype(float),
            logs.argmax(axis=1).astype(float),
            np.exp(logs),
            -logs[np.arange(rows), labels],
        )

    tables = []
    for _ in range(2):
        noise = {name: draws.normal(size=(rows, 3)) for name in sets}
        logits = {name: 2.0 * (each[2] + noise[name]) for name, each in sets.items()}
        _, labels, _, folds = sets["dev"]
        temperatures = np.array(
            [
                fit_temperature(labels[folds != fold], logits["dev"][folds != fold]).value
                for fold in (0, 1)
            ]
        )
        blocks = []
        for name, (texts, own, _, own_folds) in sets.items():
            perspective = "task" if name == "dev" else "shift"
            plain, after = scaled(logits[name], 1.0), scaled(logits[name], temperatures[own_folds])
            blocks.append(block(Condition(perspective, name), texts, own, plain))
            scaling = Condition("calibration", name, "temperature")
            blocks.append(block(scaling, texts, own, after))
        tables.append(to_table(blocks))
    return tables


def test_equally_good_models_differ_significantly_in_5_percent_of_studies() -> None:
    """By simulation: thresholds of sets and temperatures come from rows that vary, too."""
    draws, studies = np.random.default_rng(0), 30
    watched = {
        ("coverage", "dev", "lac", "set_size"),
        ("coverage", "far", "lac", "coverage"),
        ("calibration", "far", "temperature", "ece_10"),
        ("calibration", "far", "temperature", "nll"),
        ("calibration", "dev", "clean", "classwise_ece"),
    }
    false = dict.fromkeys(watched, 0)
    for study in range(studies):
        for entry in paired_differences(
            *drawn_tables(draws, study, 100),
            "accuracy",
            chosen=("calibration", "coverage"),
            seed=0,
            resamples=100,
        ):
            key = tuple(entry[part] for part in ("perspective", "set", "condition", "name"))
            if key in watched and not entry["parameters"]:
                false[key] += entry["low"] > 0 or entry["high"] < 0
    # At 5% more than 6 of 30 come with probability 0.0006. With fixed thresholds 13 to 21 of the
    # sizes have a verdict.
    assert max(false.values()) <= 6, false
