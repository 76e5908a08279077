"""Arithmetic of printed averages, Theorem 1, and verdicts on claims."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from reproduction.arithmetic import check_averages
from reproduction.claims import (
    FAILS,
    HOLDS,
    NOISE,
    UNTESTED,
    JudgedClaim,
    Trial,
    judge_claims,
    read_claims,
    verdict_of,
)
from reproduction.lines import Interval, Line
from reproduction.specification import AVERAGE, Printed, read_specification
from reproduction.theorem import check_theorem
from temper.errors import SettingError
from temper.functional.masks import levels_of, quantise, thin
from tests.reproduction.kept_studies import make_line, write_study


def printed(case: str, value: str, column: str = "uegr") -> Printed:
    return Printed(case=case, column=column, score="accuracy", value=value)


def averages(values: list[str], average: str) -> list[bool]:
    """Check one printed average over the four cases of Table V."""
    read = read_specification("uegr-table-5")
    numbers = [printed(case.name, value) for case, value in zip(read.case, values, strict=False)]
    table = read.model_copy(update={"printed": (*numbers, printed(AVERAGE, average))})
    return [each.right for each in check_averages([table])]


def test_an_average_that_is_the_mean_of_the_printed_columns_is_right() -> None:
    assert averages(["90.0", "91.0", "92.0", "93.0"], "91.5") == [True]


def test_rounding_of_both_is_allowed_for_and_no_more() -> None:
    # The mean is 91.5: what was rounded to one digit may be .05 off, and so may the average.
    values = ["90.0", "91.0", "92.0", "93.0"]
    assert averages(values, "91.6") == [True]
    assert averages(values, "91.7") == [False]
    assert averages(values, "91.61") == [False]


def test_an_average_over_numbers_that_are_not_at_hand_is_not_judged() -> None:
    assert averages(["90.0", "91.0"], "10.0") == []


@given(st.lists(st.integers(0, 10_000), min_size=4, max_size=4))
def test_the_rounded_mean_of_any_columns_is_right(values: list[int]) -> None:
    assert averages([f"{value / 100:.2f}" for value in values], f"{sum(values) / 400:.2f}") == [
        True
    ]


@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_one_holds_in_mean_and_variance_and_its_prose_does_not(seed: int) -> None:
    findings = check_theorem(entries=256, draws=1500, seed=seed)
    assert [(found.statement, found.holds) for found in findings] == 2 * [
        ("mean", True),
        ("variance", True),
        ("less", False),
    ]


def test_the_added_variance_is_what_the_formula_gives() -> None:
    # Two entries of p = 1/2 and noise of the entry's size: E G^2 (1 - p) / p = 2 g^2, twice the
    # noise's own variance g^2; the mask as it is drawn, not the module's own simulation.
    gradient = torch.tensor([3.0, -1.0], dtype=torch.float64).repeat(20_000)
    q = quantise(torch.full_like(gradient, 0.5), p_min=0.0)
    assert float(q[0]) / levels_of(q) == 0.5
    draws = torch.Generator().manual_seed(0)
    noise = gradient.abs() * torch.randn(len(gradient), dtype=torch.float64, generator=draws)
    masked = thin(gradient + noise, q, draws, scale=True)
    added = ((masked - gradient).square().sum() - noise.square().sum()) / gradient.square().sum()
    assert float(added) == pytest.approx(2.0, abs=0.1)


def test_too_few_draws_are_refused() -> None:
    with pytest.raises(SettingError, match="draws >= 3, got 2048 and 2"):
        check_theorem(draws=2)


def line(low: float | None, high: float | None, *, higher: bool | None = True) -> Line:
    middle = 0.0 if low is None or high is None else (low + high) / 2
    difference = Interval(middle, low, high)
    return replace(make_line("score", "jachess", [0.5], higher=higher), to_reference=difference)


@pytest.mark.parametrize(
    ("found", "verdict"),
    [
        (line(0.01, 0.02), HOLDS),
        (line(-0.02, -0.01), FAILS),
        (line(-0.01, 0.02), NOISE),
        (line(-0.02, -0.01, higher=False), HOLDS),
        (line(0.01, 0.02, higher=None), UNTESTED),
        (line(None, None), UNTESTED),
        (None, UNTESTED),
    ],
)
def test_a_verdict_follows_the_interval(found: Line | None, verdict: str) -> None:
    assert verdict_of(found) == verdict


def test_claims_are_judged_by_what_is_kept_and_else_not_tested(tmp_path: Path) -> None:
    claims = [claim for claim in read_claims() if claim.theorem is None]
    before = judge_claims(claims, tmp_path)
    assert {found.verdict for found in before} == {UNTESTED}
    assert all(found.command or found.number for found in before)
    better = {"vanilla": (0.5, 0.5, 0.5), "uegr": (0.59, 0.61, 0.6)}
    kept = tmp_path / "results" / "uegr-table-4"
    write_study(kept / "text_cnn-imdb", better)
    after = judge_claims(claims, tmp_path)
    (changed,) = [found for found, old in zip(after, before, strict=True) if found != old]
    assert changed.verdict == HOLDS
    assert changed.number.startswith("+10.00 [+7.52, +12.48] in accuracy (%) against vanilla")
    assert changed.command.endswith("--from results/uegr-table-4")


def judged(root: Path, reproduction: str) -> JudgedClaim:
    """Judge the one claim that is tested by a table."""
    own = [each for each in read_claims() if each.test and each.test.reproduction == reproduction]
    (found,) = judge_claims(own, root)
    return found


def test_a_claim_over_several_conditions_is_judged_by_their_mean(tmp_path: Path) -> None:
    """Not by the last radius alone, at which UEGR is better here."""
    study = tmp_path / "results" / "uegr-figure-2" / "sst2"
    near = {"vanilla": (0.10, 0.11, 0.12), "uegr": (0.40, 0.41, 0.45)}
    far = {"vanilla": 0.30, "uegr": 0.20}
    attack = "embedding_attack"
    write_study(study, near, name="drop", perspective=attack, higher_is_better=False)
    for file in study.glob("runs/*/evaluation/scores.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        (first,) = content["scores"]
        further = {"value": far[file.parts[-3].partition("-")[0]], "parameters": {"radius": 0.5}}
        content["scores"] = [{**first, "parameters": {"radius": 0.1}}, {**first, **further}]
        file.write_text(json.dumps(content), encoding="utf-8")
    found = judged(tmp_path, "uegr-figure-2b")
    # Seed by seed .3 and -.1, .3 and -.1, .33 and -.1: .1, .1 and .115, in per cent.
    assert found.number.startswith("+10.50 [+8.35, +12.65] in the mean of 2 conditions")
    assert found.verdict == FAILS


def test_a_claim_is_not_judged_by_the_one_case_that_has_its_method(tmp_path: Path) -> None:
    kept = tmp_path / "results" / "uegr-table-4"
    plain = (0.5, 0.5, 0.5)
    for case in ("text_cnn-imdb", "text_cnn-tnews"):
        write_study(kept / case, {"vanilla": plain, "uegr": (0.6, 0.61, 0.6)})
    assert judged(tmp_path, "uegr-table-4").verdict == HOLDS
    write_study(kept / "bilstm-imdb", {"vanilla": plain})
    found = judged(tmp_path, "uegr-table-4")
    assert (found.verdict, found.number) == (UNTESTED, "uegr is not in every finished case")


def test_a_score_without_a_better_side_is_judged_by_what_is_claimed_of_it(tmp_path: Path) -> None:
    """UEGR's representations are said to stay nearer: higher, in the mean of the layers."""
    study = tmp_path / "results" / "uegr-figure-2" / "sst2"
    scores = {"vanilla": (0.50, 0.51, 0.52), "uegr": (0.40, 0.41, 0.43)}
    write_study(study, scores, name="cka", perspective="representation", higher_is_better=None)
    assert judged(tmp_path, "uegr-figure-2a").verdict == FAILS


def test_a_part_that_a_method_is_better_without_refutes_the_claim(tmp_path: Path) -> None:
    """Table V is against the whole method, and the correction is over what it lacks."""
    kept = tmp_path / "results" / "uegr-table-5"
    scores = {
        "vanilla": (0.70, 0.71, 0.73),
        "uegr": (0.80, 0.81, 0.82),
        "without_selective_update": (0.90, 0.91, 0.921),
        "without_adaptive_dropout": (0.80, 0.82, 0.81),
    }
    write_study(kept / "text_cnn-tnews", scores)
    own = [each for each in read_claims() if each.test and each.test.reproduction == "uegr-table-5"]
    judged_claims = judge_claims(own, tmp_path)
    found = {
        claim.test.column: each
        for claim, each in zip(own, judged_claims, strict=True)
        if claim.test
    }
    assert found["vanilla"].verdict == HOLDS
    assert found["vanilla"].number.startswith("vanilla: \u22129.67")
    assert found["without_selective_update"].verdict == FAILS
    assert found["without_adaptive_dropout"].verdict == NOISE
    assert found["without_divergence"].verdict == UNTESTED


PAIRS = {
    "uegr_0.3_0.3": (0.80, 0.81, 0.82),
    "uegr_0.3_0.5": (0.80, 0.81, 0.82),
    "uegr_0.1_0.3": (0.85, 0.86, 0.86),
    "uegr_0.1_0.9": (0.50, 0.50, 0.50),
    "uegr_0.5_0.9": (0.70, 0.71, 0.71),
}


def of_pairs(root: Path) -> dict[str, JudgedClaim]:
    """Judge the claims on Figure 3, by what the pairs are set against."""
    own = [each for each in read_claims() if each.test and each.test.within]
    found = judge_claims(own, root)
    return {claim.test.beside: each for claim, each in zip(own, found, strict=True) if claim.test}


def test_pairs_within_bounds_are_set_against_lower_and_against_higher_ones(tmp_path: Path) -> None:
    """A pair that is lower and higher is in neither, and so is the method without pairs."""
    study = tmp_path / "results" / "uegr-figure-3" / "sst2"
    write_study(study, {"vanilla": (0.1, 0.2, 0.3), **PAIRS})
    found = of_pairs(tmp_path)
    # Seed by seed -.05, -.05, -.04, and .10, .10, .11.
    assert found["lower"].number.startswith(
        "\u22124.67 [\u22126.10, \u22123.23] in accuracy (%) against pairs with a lower value, sst2"
    )
    assert found["lower"].verdict == FAILS
    assert found["higher"].number.startswith("+10.33 [+8.90, +11.77] in accuracy (%)")
    assert found["higher"].verdict == HOLDS


def test_pairs_are_not_judged_before_all_are_finished(tmp_path: Path) -> None:
    study = tmp_path / "results" / "uegr-figure-3" / "sst2"
    write_study(study, {"vanilla": (0.1, 0.2, 0.3), **PAIRS})
    (study / "runs" / "uegr_0.1_0.9-s1-key" / "evaluation" / "scores.json").unlink()
    for found in of_pairs(tmp_path).values():
        assert (found.verdict, found.number) == (UNTESTED, "not every pair is finished")


@pytest.mark.parametrize("named", [{}, {"column": "uegr", "within": (0.3, 0.5)}])
def test_a_claim_is_of_a_method_or_of_pairs(named: dict[str, Any]) -> None:
    with pytest.raises(ValidationError, match="either a column or the bounds"):
        Trial(reproduction="uegr-figure-3", score="accuracy", **named)
