"""The papers' claims, and the verdict of our stored numbers on each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from decimal import Decimal
from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from reproduction.lines import Line, group_difference
from reproduction.specification import (
    PAPERS,
    THEOREM,
    Case,
    Entry,
    Specification,
    read_specification,
)
from reproduction.table import ReproductionTable, reproduction_table
from reproduction.theorem import Finding, Statement, check_theorem
from temper.functional.effects import LEVEL
from temper.functional.intervals import holm
from temper.settings import read_toml

HOLDS, FAILS = "holds", "does not hold"
NOISE, UNTESTED = "not shown", "not tested here"
Claimed = Literal["better", "worse", "higher", "lower", "same"]
_FILE = Path(__file__).parent / "claims.toml"


class Trial(Entry):
    """How a claim is tested: whether one thing differs significantly from another.

    Args:
        reproduction: The table whose kept scores are read.
        score: The score; several cases or conditions, such as radii, are averaged.
        models, tasks: Names of the models and tasks of the claim; empty for all of the table.
        column: A method.
        against: Its baseline; default: the table's reference.
        within: Instead of a column: the mean of the pairs whose values are both in these bounds.
        beside: Their baseline: the mean of the pairs that have a ``lower`` value and no higher one
            than the bounds, or a ``higher`` and no lower one. A mean of all other pairs would be
            decided by rates at which nothing is learned.
        claimed: The claim about the method or the pairs; ``higher`` or ``lower`` for a score
            without a direction; ``same`` for a difference within the bound.
        bound: The smallest relevant difference for ``same``, in the unit of the table.
    """

    reproduction: str
    score: str
    models: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    column: str = ""
    against: str = ""
    within: tuple[float, float] | None = None
    beside: Literal["lower", "higher"] = "lower"
    claimed: Claimed = "better"
    bound: Annotated[float, Field(ge=0)] = 0.0

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if bool(self.column) == (self.within is not None):
            raise ValueError("needs either a column or the bounds of pairs")
        if bool(self.bound) != (self.claimed == "same"):
            raise ValueError("a bound is of what is claimed to be the same, which needs one")
        return self


class Claim(Entry):
    """One claim of a paper, in our words.

    Args:
        paper: Key of `PAPERS`.
        text: The claim.
        test: How scores test it.
        theorem: Its statement in `check_theorem`.
        why: Why no command tests it.
    """

    paper: Literal["uegr", "roast", "jachess"]
    text: str
    test: Trial | None = None
    theorem: Statement | None = None
    why: str = ""


class Claims(Entry):
    """The file of claims."""

    claim: tuple[Claim, ...] = Field(min_length=1)


@dataclass(frozen=True)
class JudgedClaim:
    """A claim with our verdict.

    Args:
        claim: The claim.
        verdict: ``holds``, ``does not hold``, ``not shown`` or ``not tested here``.
        number: Our number with its interval, or why there is none.
        least: The smallest true effect that our runs detect with 80% power; empty without a
            number.
        paper_number: The mean of the paper's printed numbers; empty if it prints none.
        command: The command that prints our number, or that would run it.
    """

    claim: Claim
    verdict: str
    number: str
    least: str = ""
    paper_number: str = ""
    command: str = ""

    @property
    def paper(self) -> str:
        """The paper's name."""
        return PAPERS[self.claim.paper].partition(",")[0]


@dataclass(frozen=True)
class Measured:
    """The stored difference that tests a claim.

    Args:
        line: The difference; None if it does not exist.
        where: Cases and conditions that it is a mean of.
        why: Why it does not exist.
        paper: The same difference in the paper.
        command: As in `JudgedClaim`.
    """

    line: Line | None
    where: str = ""
    why: str = ""
    paper: str = ""
    command: str = ""


def read_claims() -> tuple[Claim, ...]:
    """Read the claims that come with Temper."""
    return Claims.model_validate(read_toml(_FILE)).claim


def judge_claims(claims: Iterable[Claim], root: Path) -> list[JudgedClaim]:
    """Return the verdict of the stored scores of a clone on each claim.

    A claim that something is better holds if the 95% interval of the difference is entirely on the
    better side, and does not hold if it is entirely on the other. In both cases p must be small
    enough after Holm's correction over the claims that are tested on the same scores of one table.
    Otherwise the claim is not shown. A claim that two things are the same holds if the interval is
    within the bound, and does not hold if it is outside of it. Without stored scores, or if no case
    is learned, the claim is not tested here.

    Args:
        claims: The claims.
        root: Root of the clone.

    Raises:
        TemperError: Stored scores are damaged, or a claim names something that does not exist.
    """
    claims = list(claims)
    tables: dict[str, ReproductionTable] = {}
    measured = [
        None if claim.test is None else _measure(claim.test, root, tables) for claim in claims
    ]
    outlasting = _outlasting(claims, measured)
    findings = _default_findings() if any(claim.theorem for claim in claims) else {}
    judged = []
    for index, (claim, result) in enumerate(zip(claims, measured, strict=True)):
        if claim.theorem is not None:
            finding = findings[claim.theorem]
            judged.append(
                JudgedClaim(
                    claim,
                    HOLDS if finding.holds else FAILS,
                    f"{finding.measured}, expected {finding.expected}",
                    command=f"temper reproduce {THEOREM}",
                )
            )
        elif claim.test is None or result is None:
            judged.append(JudgedClaim(claim, UNTESTED, claim.why))
        else:
            judged.append(_judge(claim, claim.test, result, outlasts=index in outlasting))
    return judged


def _judge(claim: Claim, test: Trial, result: Measured, *, outlasts: bool) -> JudgedClaim:
    line = result.line
    if line is None or line.to_reference is None:
        return JudgedClaim(
            claim, UNTESTED, result.why, paper_number=result.paper, command=result.command
        )
    difference = line.to_reference
    text = f"{difference.text(line.unit)} in {line.label}, {result.where}"
    least = "" if difference.least is None else line.unit.text(difference.least)
    verdict = verdict_of(line, test)
    if verdict in (HOLDS, FAILS) and test.claimed != "same" and not outlasts:
        verdict = NOISE
    return JudgedClaim(claim, verdict, text, least, result.paper, result.command)


def verdict_of(line: Line, test: Trial) -> str:
    """Return the verdict of a difference on a claim, before correction.

    Args:
        line: The difference.
        test: The test of the claim.
    """
    difference = line.to_reference
    if difference is None or difference.low is None or difference.high is None:
        return UNTESTED
    if test.claimed == "same":
        bound = test.bound / line.unit.scale
        if -bound <= difference.low and difference.high <= bound:
            return HOLDS
        return FAILS if difference.low > bound or difference.high < -bound else NOISE
    up = test.claimed == "higher"
    if test.claimed in ("better", "worse"):
        if line.higher_is_better is None:
            return UNTESTED
        up = line.higher_is_better == (test.claimed == "better")
    return {1: HOLDS, 0: NOISE, -1: FAILS}[(difference.side or 0) * (1 if up else -1)]


def _outlasting(claims: Sequence[Claim], measured: Sequence[Measured | None]) -> set[int]:
    """Return the indices of the claims that are significant after the correction."""
    families: dict[tuple[str, str], dict[int, float]] = {}
    for index, (claim, result) in enumerate(zip(claims, measured, strict=True)):
        difference = result.line.to_reference if result and result.line else None
        if claim.test is None or claim.test.claimed == "same":
            continue
        if difference is not None and difference.p is not None:
            key = claim.test.reproduction, claim.test.score
            families.setdefault(key, {})[index] = difference.p
    return {
        index
        for family in families.values()
        for index, p in zip(family, holm(list(family.values())), strict=True)
        if p <= LEVEL
    }


def _default_findings() -> dict[Statement, Finding]:
    """Return the findings at the default setting of the selective update."""
    return {finding.statement: finding for finding in reversed(check_theorem())}


def _measure(test: Trial, root: Path, tables: dict[str, ReproductionTable]) -> Measured:
    specification = read_specification(test.reproduction)
    command = f"temper reproduce {specification.name}"
    columns, others = _sides(specification, test)
    paper = _printed_difference(specification, test)
    cases = {case.name for case in specification.case if _is_meant(test, case)}
    kept = root / specification.folder
    if not kept.is_dir():
        return Measured(None, paper=paper, command=command)
    if specification.name not in tables:
        tables[specification.name] = reproduction_table(specification, kept)
    table = tables[specification.name]
    lines = [line for line in table.lines if line.score == test.score and line.case in cases]
    parts = {(line.case, line.label) for line in lines if line.learned}
    if not parts:
        why = "no case is learned by plain training" if lines else ""
        return Measured(None, why=why, paper=paper, command=command)
    sides = [
        [line for line in lines if line.learned and line.column in side]
        for side in (columns, others)
    ]
    for side, names in zip(sides, (columns, others), strict=True):
        if test.within is None and len(side) < len(parts):
            why = f"not every finished case has runs of {', '.join(sorted(names))}"
            return Measured(None, why=why, paper=paper, command=command)
    if test.within is not None and table.not_run:
        return Measured(None, why="not every pair is finished", paper=paper, command=command)
    line = group_difference(*sides)
    finished = sorted({case for case, _ in parts})
    labels = {label for _, label in parts}
    if line is not None and len(labels) > 1:
        line = replace(line, label=f"the mean of {len(labels)} conditions")
    where = finished[0] if len(finished) == 1 else f"mean of {len(finished)} cases"
    return Measured(
        line, where=where, paper=paper, command=f"{command} --from {specification.folder}"
    )


def _is_meant(test: Trial, case: Case) -> bool:
    """Whether a claim is about a case."""
    return (not test.models or case.model.name in test.models) and (
        not test.tasks or case.task.name in test.tasks
    )


def _sides(specification: Specification, test: Trial) -> tuple[frozenset[str], frozenset[str]]:
    """Return the columns of a claim and their baselines."""
    if test.within is None:
        return frozenset({test.column}), frozenset({test.against or specification.reference})
    if specification.pairs is None:
        raise ValueError(f"{specification.name} has no pairs")
    low, high = test.within
    inside = specification.pairs.within(low, high)
    wider = (-math.inf, high) if test.beside == "lower" else (low, math.inf)
    return inside, specification.pairs.within(*wider) - inside


def _printed_difference(specification: Specification, test: Trial) -> str:
    """Return the mean of a claim's differences in the paper; empty if it prints none."""
    if test.within is not None:
        return ""
    against = test.against or specification.reference
    pairs = [
        (of, base)
        for case in specification.case
        if _is_meant(test, case)
        for of in [specification.number(test.score, case.model.name, test.column, case.task.name)]
        for base in [specification.number(test.score, case.model.name, against, case.task.name)]
        if of is not None and base is not None
    ]
    if not pairs:
        return ""
    mean = sum(Decimal(of.value) - Decimal(base.value) for of, base in pairs) / len(pairs)
    return f"{mean:+.2f}".replace("-", "\u2212") + (
        f", mean of {len(pairs)}" if len(pairs) > 1 else ""
    )
