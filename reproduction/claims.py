"""The papers' claims, and what our kept numbers say of each."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from reproduction.lines import Line, corrected, group_difference, mean_lines
from reproduction.specification import (
    PAPERS,
    THEOREM,
    Entry,
    Specification,
    read_specification,
)
from reproduction.table import reproduction_table
from reproduction.theorem import Finding, Statement, check_theorem
from temper.training.assignments import read_toml

HOLDS, FAILS = "holds", "does not hold"
NOISE, UNTESTED = "not shown: inside the noise", "not tested here"
Claimed = Literal["better", "worse", "higher", "lower"]
_FILE = Path(__file__).parent / "claims.toml"


class Trial(Entry):
    """How a claim is tested: something differs from something else by more than the noise.

    Args:
        reproduction: The table whose kept scores are read.
        score: The score; of several cases the mean, and of several conditions, such as radii.
        column: A method, set against the reference.
        within: In its place: the mean of the pairs whose values both lie within these bounds.
        beside: What that is set against: the mean of the pairs that have a ``lower`` value and no
            higher one than the bounds, or a ``higher`` and no lower one. All others together would
            let rates that teach nothing decide.
        claimed: Of the method or the pairs; ``higher`` or ``lower`` of a score that has no better
            side of its own.
    """

    reproduction: str
    score: str
    column: str = ""
    within: tuple[float, float] | None = None
    beside: Literal["lower", "higher"] = "lower"
    claimed: Claimed = "better"

    @model_validator(mode="after")
    def _names_one(self) -> Self:
        if bool(self.column) == (self.within is not None):
            raise ValueError("needs either a column or the bounds of pairs")
        return self


class Claim(Entry):
    """One claim of a paper, in our words.

    Args:
        paper: Key of `PAPERS`.
        text: What is claimed.
        test: How it is tested by scores.
        theorem: Which statement of `check_theorem` it is.
        why: Why it is not tested here, where no command tests it.
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
        verdict: ``holds``, ``does not hold``, ``not shown: inside the noise`` or ``not tested
            here``.
        number: Our number with its interval, or why there is none.
        command: What prints it, or what would run it.
    """

    claim: Claim
    verdict: str
    number: str
    command: str

    @property
    def paper(self) -> str:
        """The paper's name."""
        return PAPERS[self.claim.paper].partition(",")[0]


def read_claims() -> tuple[Claim, ...]:
    """Read the claims that come with Temper."""
    return Claims.model_validate(read_toml(_FILE)).claim


def judge_claims(claims: Iterable[Claim], root: Path) -> list[JudgedClaim]:
    """Say of each claim what the kept scores under a clone's root say.

    A claim that something is better holds where its difference against something else (`Trial`) is
    outside the noise (`Line.side`) on the better side, does not where it is so on the other, and is
    not shown where it is inside; a claim that it is worse, higher or lower likewise. Where nothing
    is kept the claim is not tested here.

    Args:
        claims: The claims.
        root: Folder that holds ``results``.

    Raises:
        TemperError: Where kept scores are damaged, or a claim names what there is not.
    """
    findings: dict[Statement, Finding] = {}
    judged = []
    for claim in claims:
        if claim.theorem is not None:
            findings = findings or _default_findings()
            finding = findings[claim.theorem]
            verdict = HOLDS if finding.holds else FAILS
            number = f"{finding.measured}, expected {finding.expected}"
            judged.append(JudgedClaim(claim, verdict, number, f"temper reproduce {THEOREM}"))
        elif claim.test is not None:
            judged.append(_tested(claim, claim.test, root))
        else:
            judged.append(JudgedClaim(claim, UNTESTED, claim.why, ""))
    return judged


def verdict_of(line: Line | None, claimed: Claimed = "better") -> str:
    """Say what a line says of the claim that its method is better, worse, higher or lower.

    Args:
        line: The line; None where there is none.
        claimed: What is claimed.
    """
    if line is None or line.side is None:
        return UNTESTED
    up = claimed == "higher"
    if claimed in ("better", "worse"):
        if line.higher_is_better is None:
            return UNTESTED
        up = line.higher_is_better == (claimed == "better")
    return {1: HOLDS, 0: NOISE, -1: FAILS}[line.side * (1 if up else -1)]


def _default_findings() -> dict[Statement, Finding]:
    """Return the findings at the default setting of the selective update."""
    return {finding.statement: finding for finding in reversed(check_theorem())}


def _tested(claim: Claim, test: Trial, root: Path) -> JudgedClaim:
    specification = read_specification(test.reproduction)
    kept = specification.folder
    command = f"temper reproduce {specification.name}"
    if not (root / kept).is_dir():
        return JudgedClaim(claim, UNTESTED, "", command)
    table = reproduction_table(specification, root / kept)
    lines = [line for line in table.lines if line.score == test.score]
    cases = {case.name for case in specification.case}
    if len(cases & {line.case for line in lines}) > 1:
        # Of several cases the mean is judged; a method that one of them lacks has none.
        lines = [line for line in lines if line.case not in cases]
        if test.column and not any(line.column == test.column for line in lines):
            return JudgedClaim(
                claim, UNTESTED, f"{test.column} is not in every finished case", command
            )
    lines = _over_conditions(lines, table.reference)
    against = table.reference
    if test.within is None:
        line = next((line for line in lines if line.column == test.column), None)
    elif table.not_run:
        return JudgedClaim(claim, UNTESTED, "not every pair is finished", command)
    else:
        line = _pairs_within(specification, test.within, test.beside == "lower", lines)
        against = f"pairs with a {test.beside} value"
    verdict = verdict_of(line, test.claimed)
    if line is None or line.to_reference is None:
        return JudgedClaim(claim, verdict, "", command)
    number = f"{line.to_reference.text(line.unit)} in {line.label} against {against}, {line.case}"
    if test.claimed == "worse":
        number = f"{line.column}: {number}"
    if line.corrected is not None:
        number += f"; corrected p {line.corrected:.2f}"
    return JudgedClaim(claim, verdict, number, f"{command} --from {kept}")


def _over_conditions(lines: list[Line], reference: str) -> list[Line]:
    """Return the mean over a score's conditions, where it has several.

    To judge by one of them would be a choice.
    """
    conditions = sorted({line.label for line in lines})
    if len(conditions) < 2:
        return lines
    label = f"the mean of {len(conditions)} conditions"
    return corrected(
        mean_lines(lines, conditions, lambda line: line.label, reference=reference, label=label)
    )


def _pairs_within(
    specification: Specification, bounds: tuple[float, float], lower: bool, lines: Sequence[Line]
) -> Line | None:
    """Return the mean of the pairs within bounds, set against that of lower or higher ones."""
    if specification.pairs is None:
        raise ValueError(f"{specification.name} has no pairs")
    low, high = bounds
    inside = specification.pairs.within(low, high)
    wider = (-math.inf, high) if lower else (low, math.inf)
    further = specification.pairs.within(*wider)
    return group_difference(
        [line for line in lines if line.column in inside],
        [line for line in lines if line.column in further - inside],
    )
