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

from reproduction.arithmetic import check_averages, check_prose
from reproduction.claims import (
    FAILS,
    HOLDS,
    NOISE,
    UNTESTED,
    Claim,
    JudgedClaim,
    Trial,
    judge_claims,
    read_claims,
    verdict_of,
)
from reproduction.lines import Interval, Line
from reproduction.specification import (
    AVERAGE,
    Printed,
    read_specification,
    specification_names,
)
from reproduction.theorem import check_theorem
from temper.errors import SettingError
from temper.functional.masks import levels_of, quantize, thin
from tests.reproduction.kept_studies import make_line, write_study


def averages(values: list[str], average: str) -> list[bool]:
    """Check one printed average over the four tasks of Table IV."""
    read = read_specification("uegr-table-4")
    tasks = [*(task.name for task in read.task), AVERAGE]
    numbers = [
        Printed(score="accuracy", model="text_han", column="uegr", task=task, value=value)
        for task, value in zip(tasks, [*values, average], strict=True)
    ]
    return [each.right for each in check_averages(read.model_copy(update={"printed": numbers}))]


def test_an_average_that_is_the_mean_of_the_printed_columns_is_right() -> None:
    assert averages(["90.0", "91.0", "92.0", "93.0"], "91.5") == [True]


def test_rounding_of_both_is_allowed_for_and_no_more() -> None:
    # The mean is 91.5: what was rounded to one digit may be .05 off, and so may the average.
    values = ["90.0", "91.0", "92.0", "93.0"]
    assert averages(values, "91.6") == [True]
    assert averages(values, "91.7") == [False]
    assert averages(values, "91.61") == [False]


@given(st.lists(st.integers(0, 10_000), min_size=4, max_size=4))
def test_the_rounded_mean_of_any_columns_is_right(values: list[int]) -> None:
    assert averages([f"{value / 100:.2f}" for value in values], f"{sum(values) / 400:.2f}") == [
        True
    ]


def test_the_slips_of_the_paper_are_found() -> None:
    """The averages that ../shared/papers lists, worked out there by hand."""
    tables = {name: read_specification(name) for name in specification_names()}
    wrong = [each for table in tables.values() for each in check_averages(table) if not each.right]
    assert [each.says for each in wrong] == [
        "roberta-base, r_at, average: 88.39",
        "bilstm, r_drop, average: 71.99",
        "bilstm, r_at, average: 72.22",
        "bilstm, uegr, average: 73.24",
        "text_cnn, dropout, average: 71.51",
    ]
    prose = {each.says: each for each in check_prose(tables)}
    assert prose["BERT-base rises from 79.02 to 80.76"].right
    assert prose["UEGR is the best method on every model"].right
    # 90.79 - 89.45, but the prose has 1.67; CoLA 53.98, and R-AT's 54.17.
    assert prose["RoBERTa gains 1.67 on QQP over the baseline"].numbers.startswith("+1.34 over")
    assert "cola: r_at 54.17" in prose["UEGR is the best of all in every task"].numbers
    assert not prose["RoBERTa-large, sentiment, AdvWeight: 47.52"].right
    assert "83.21 is roberta-base" in prose["RoBERTa-large rises from 81.79 to 83.21"].numbers


@pytest.mark.parametrize("seed", [0, 1])
def test_theorem_one_holds_in_mean_and_variance_but_its_prose_does_not(seed: int) -> None:
    findings = check_theorem(entries=256, draws=1500, seed=seed)
    assert [(result.statement, result.holds) for result in findings] == 2 * [
        ("mean", True),
        ("variance", True),
        ("less", False),
    ]


def test_the_added_variance_equals_the_formula() -> None:
    # Two entries of p = 1/2 and noise of the entry's size: E G^2 (1 - p) / p = 2 g^2, twice the
    # noise's own variance g^2; the mask as it is drawn, not the module's own simulation.
    gradient = torch.tensor([3.0, -1.0], dtype=torch.float64).repeat(20_000)
    q = quantize(torch.full_like(gradient, 0.5), p_min=0.0)
    assert float(q[0]) / levels_of(q) == 0.5
    draws = torch.Generator().manual_seed(0)
    noise = gradient.abs() * torch.randn(len(gradient), dtype=torch.float64, generator=draws)
    masked = thin(gradient + noise, q, 1, scale=True)
    added = ((masked - gradient).square().sum() - noise.square().sum()) / gradient.square().sum()
    assert float(added) == pytest.approx(2.0, abs=0.1)


def test_too_few_draws_raise_an_error() -> None:
    with pytest.raises(SettingError, match="draws >= 3, got 2048 and 2"):
        check_theorem(draws=2)


def line(low: float | None, high: float | None, *, higher: bool | None = True) -> Line:
    middle = 0.0 if low is None or high is None else (low + high) / 2
    difference = Interval(middle, low, high)
    return replace(make_line("score", "jachess", [0.5], higher=higher), to_reference=difference)


@pytest.mark.parametrize(
    ("found", "claimed", "verdict"),
    [
        (line(0.01, 0.02), "better", HOLDS),
        (line(-0.02, -0.01), "better", FAILS),
        (line(-0.01, 0.02), "better", NOISE),
        (line(-0.02, -0.01), "worse", HOLDS),
        (line(-0.02, -0.01, higher=False), "better", HOLDS),
        (line(0.01, 0.02, higher=None), "better", UNTESTED),
        (line(0.01, 0.02, higher=None), "higher", HOLDS),
        (line(None, None), "better", UNTESTED),
        # Within half a point, beyond it, and not known.
        (line(-0.004, 0.003), "same", HOLDS),
        (line(0.006, 0.02), "same", FAILS),
        (line(-0.01, 0.003), "same", NOISE),
    ],
)
def test_a_verdict_follows_the_interval(found: Line, claimed: str, verdict: str) -> None:
    bound = 0.5 if claimed == "same" else 0.0
    test = Trial(reproduction="", score="", column="jachess", claimed=claimed, bound=bound)
    assert verdict_of(found, test) == verdict


def of_table(name: str, **said: Any) -> list[Claim]:
    """Return the claims that are tested by a table, of those that say so."""
    return [
        claim
        for claim in read_claims()
        if claim.test
        and claim.test.reproduction == name
        and all(getattr(claim.test, key) == value for key, value in said.items())
    ]


def judged(root: Path, name: str, **said: Any) -> JudgedClaim:
    """Judge the one claim of a table that says so, by itself."""
    (claim,) = of_table(name, **said)
    (result,) = judge_claims([claim], root)
    return result


def test_claims_without_saved_scores_are_not_tested(tmp_path: Path) -> None:
    claims = [claim for claim in read_claims() if claim.theorem is None]
    before = judge_claims(claims, tmp_path)
    assert {result.verdict for result in before} == {UNTESTED}
    assert all(result.command or result.number for result in before)
    better = {"plain": (0.5, 0.5, 0.5), "uegr": (0.59, 0.61, 0.6)}
    kept = tmp_path / "reproduction" / "results" / "uegr-table-4"
    write_study(kept / "text_cnn-imdb", better)
    after = judge_claims(claims, tmp_path)
    (changed,) = [result for result in after if result.verdict != UNTESTED]
    assert changed.verdict == HOLDS
    assert changed.number == "+10.00 [+7.52, +12.48] in accuracy (%), text_cnn-imdb"
    # The mean over the twelve printed entries of UEGR less those without dropout.
    assert changed.paper_number == "+1.65, mean of 12"
    assert changed.command.endswith("--from reproduction/results/uegr-table-4")


def test_a_claim_over_several_conditions_is_judged_by_their_mean(tmp_path: Path) -> None:
    """Not by the last radius alone, at which UEGR is better here."""
    study = tmp_path / "reproduction" / "results" / "uegr-figure-2" / "roberta-large-sst2"
    near = {"plain": (0.10, 0.11, 0.12), "uegr": (0.40, 0.41, 0.45)}
    far = {"plain": 0.30, "uegr": 0.20}
    attack = "embedding_attack"
    write_study(study, near, name="drop", perspective=attack, higher_is_better=False)
    for file in study.glob("runs/*/evaluation/scores.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        (first,) = content["scores"]
        further = {"value": far[file.parts[-3].partition("-")[0]], "parameters": {"radius": 0.5}}
        content["scores"] = [{**first, "parameters": {"radius": 0.1}}, {**first, **further}]
        file.write_text(json.dumps(content), encoding="utf-8")
    result = judged(tmp_path, "uegr-figure-2b", against="")
    # Seed by seed .3 and -.1, .3 and -.1, .33 and -.1: .1, .1 and .115, in per cent.
    assert result.number.startswith("+10.50 [+8.23, +12.77] in the mean of 2 conditions")
    assert result.verdict == FAILS


def test_a_claim_is_not_judged_by_a_single_case(tmp_path: Path) -> None:
    kept = tmp_path / "reproduction" / "results" / "uegr-table-4"
    plain = (0.5, 0.5, 0.5)
    for case in ("text_cnn-imdb", "text_cnn-tnews"):
        write_study(kept / case, {"plain": plain, "uegr": (0.6, 0.61, 0.6)})
    assert judged(tmp_path, "uegr-table-4", against="").verdict == HOLDS
    write_study(kept / "bilstm-imdb", {"plain": plain})
    result = judged(tmp_path, "uegr-table-4", against="")
    assert result.verdict == UNTESTED
    assert "not every finished case" in result.number


def test_a_claim_may_be_against_another_method_and_of_one_model(tmp_path: Path) -> None:
    kept = tmp_path / "reproduction" / "results" / "uegr-table-1"
    scores = {"plain": (0.5, 0.5, 0.5), "r_at": (0.7, 0.7, 0.7), "uegr": (0.6, 0.61, 0.6)}
    write_study(kept / "bert-base-sst2", scores)
    assert judged(tmp_path, "uegr-table-1", models=("bert-base",)).verdict == HOLDS
    assert judged(tmp_path, "uegr-table-1", against="r_at").verdict == FAILS
    assert judged(tmp_path, "uegr-table-1", models=("roberta-base",)).verdict == UNTESTED


def test_claims_on_the_same_scores_are_corrected_together(tmp_path: Path) -> None:
    """Steps of .07 at deviations of .02 have p = .0128: enough alone, and not as one of six."""
    kept = tmp_path / "reproduction" / "results" / "uegr-table-4"
    plain = (0.80, 0.82, 0.84)
    noise = dict.fromkeys(("dropout", "at", "r_drop", "r_at", "r_at_su"), (0.84, 0.88, 0.91))
    write_study(kept / "text_cnn-imdb", {"plain": plain, **noise, "uegr": (0.87, 0.89, 0.91)})
    assert judged(tmp_path, "uegr-table-4", against="").verdict == HOLDS
    together = judge_claims(of_table("uegr-table-4"), tmp_path)
    assert together[0].verdict == NOISE


def test_a_score_without_a_direction_is_judged_by_that_of_the_claim(tmp_path: Path) -> None:
    """The claim: UEGR's representations stay nearer, so the mean CKA is higher."""
    study = tmp_path / "reproduction" / "results" / "uegr-figure-2" / "roberta-large-sst2"
    scores = {"plain": (0.50, 0.51, 0.52), "uegr": (0.40, 0.41, 0.43)}
    write_study(study, scores, name="cka", perspective="representation", higher_is_better=None)
    assert judged(tmp_path, "uegr-figure-2a", against="").verdict == FAILS


PAIRS = {
    "uegr_0.3_0.3": (0.80, 0.81, 0.82),
    "uegr_0.3_0.5": (0.80, 0.81, 0.82),
    "uegr_0.1_0.3": (0.85, 0.86, 0.86),
    "uegr_0.1_0.9": (0.50, 0.50, 0.50),
    "uegr_0.5_0.9": (0.70, 0.71, 0.71),
}


def of_pairs(root: Path) -> dict[str, JudgedClaim]:
    """Judge the claims on Figure 3, by what the pairs are set against."""
    claims = of_table("uegr-figure-3")
    result = judge_claims(claims, root)
    return {
        claim.test.beside: each for claim, each in zip(claims, result, strict=True) if claim.test
    }


def test_pairs_within_bounds_are_set_against_lower_and_against_higher_ones(tmp_path: Path) -> None:
    """A pair that is lower and higher is in neither, and so is the method without pairs."""
    study = tmp_path / "reproduction" / "results" / "uegr-figure-3" / "bert-base-sst2"
    write_study(study, {"plain": (0.1, 0.2, 0.3), **PAIRS})
    result = of_pairs(tmp_path)
    # Seed by seed -.05, -.05, -.04, and .10, .10, .11.
    assert result["lower"].number.startswith(
        "\u22124.67 [\u22126.52, \u22122.82] in accuracy (%), bert-base-sst2"
    )
    assert result["lower"].verdict == FAILS
    assert result["higher"].number.startswith("+10.33 [+8.48, +12.18] in accuracy (%)")
    assert result["higher"].verdict == HOLDS


def test_pairs_are_not_judged_before_all_are_finished(tmp_path: Path) -> None:
    study = tmp_path / "reproduction" / "results" / "uegr-figure-3" / "bert-base-sst2"
    write_study(study, {"plain": (0.1, 0.2, 0.3), **PAIRS})
    (study / "runs" / "uegr_0.1_0.9-s1-key" / "evaluation" / "scores.json").unlink()
    for result in of_pairs(tmp_path).values():
        assert (result.verdict, result.number) == (UNTESTED, "not every pair is finished")


@pytest.mark.parametrize(
    ("named", "match"),
    [
        ({}, "either a column or"),
        ({"column": "uegr", "within": (0.3, 0.5)}, "either a column or"),
        ({"column": "uegr", "claimed": "same"}, "needs one"),
    ],
)
def test_an_incomplete_or_overspecified_trial_raises_an_error(
    named: dict[str, Any], match: str
) -> None:
    with pytest.raises(ValidationError, match=match):
        Trial(reproduction="uegr-figure-3", score="accuracy", **named)
