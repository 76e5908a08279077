"""The papers' claims, and what our kept numbers say of each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from temper.study.reproduction.lines import Line, corrected, group, means
from temper.study.reproduction.specification import (
    PAPERS,
    Entry,
    Specification,
    read_specification,
)
from temper.study.reproduction.table import reproduction_table
from temper.study.reproduction.theorem import NAME, Finding, Statement, check_theorem

HOLDS, FAILS = "holds", "does not hold"
NOISE, UNTESTED = "not shown: inside the noise", "not tested here"
_FILE = Path(__file__).parent / "assets" / "claims.toml"


class Trial(Entry):
    """How a claim is tested: something is better than something else by more than the noise.

    Args:
        reproduction: The table whose kept scores are read.
        score: The score; of several cases the mean, and of several conditions, such as radii.
        column: A method, set against the reference.
        within: In its place: the mean of the pairs whose values both lie within these bounds is
            set against the mean of all other pairs.
        higher: What is claimed of a score that has no better side of its own.
    """

    reproduction: str
    score: str
    column: str = ""
    within: tuple[float, float] | None = None
    higher: bool | None = None

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
class Judged:
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
    return Claims.model_validate(tomllib.loads(_FILE.read_text(encoding="utf-8"))).claim


def judge_claims(claims: Iterable[Claim], root: Path) -> list[Judged]:
    """Say of each claim what the kept scores under a clone's root say.

    A claim that something is better holds where its difference against something else (`Trial`) is
    outside the noise (`Line.side`) on the better side, does not where it is so on the other, and is
    not shown where it is inside. Where nothing is kept the claim is not tested here.

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
            found = findings[claim.theorem]
            verdict = HOLDS if found.holds else FAILS
            number = f"{found.found}, expected {found.expected}"
            judged.append(Judged(claim, verdict, number, f"temper reproduce {NAME}"))
        elif claim.test is not None:
            judged.append(_tested(claim, claim.test, root))
        else:
            judged.append(Judged(claim, UNTESTED, claim.why, ""))
    return judged


def verdict_of(line: Line | None) -> str:
    """Say what a line says of the claim that its method is better.

    Args:
        line: The line; None where there is none.
    """
    if line is None or line.side is None or line.higher_is_better is None:
        return UNTESTED
    return {1: HOLDS, 0: NOISE, -1: FAILS}[line.side * (1 if line.higher_is_better else -1)]


def _default_findings() -> dict[Statement, Finding]:
    """Return the findings at the default setting of the selective update."""
    return {finding.statement: finding for finding in reversed(check_theorem())}


def _tested(claim: Claim, test: Trial, root: Path) -> Judged:
    specification = read_specification(test.reproduction)
    kept = specification.folder
    command = f"temper reproduce {specification.name}"
    if not (root / kept).is_dir():
        return Judged(claim, UNTESTED, "", command)
    table = reproduction_table(specification, root / kept)
    lines = [line for line in table.lines if line.score == test.score]
    cases = {case.name for case in specification.case}
    if len(cases & {line.case for line in lines}) > 1:
        # Of several cases the mean is judged; a method that one of them lacks has none.
        lines = [line for line in lines if line.case not in cases]
        if test.column and not any(line.column == test.column for line in lines):
            return Judged(claim, UNTESTED, f"{test.column} is not in every finished case", command)
    lines = _over_conditions(lines, table.reference)
    against = table.reference
    if test.within is None:
        line = next((line for line in lines if line.column == test.column), None)
    elif table.not_run:
        return Judged(claim, UNTESTED, "not every pair is finished", command)
    else:
        line, against = _pairs_within(specification, test.within, lines), "all other pairs"
    if line is not None and line.higher_is_better is None:
        line = replace(line, higher_is_better=test.higher)
    verdict = verdict_of(line)
    if line is None or line.to_reference is None:
        return Judged(claim, verdict, "", command)
    number = f"{line.to_reference.text(line.unit)} in {line.label} against {against}, {line.case}"
    if line.corrected is not None:
        number += f"; corrected p {line.corrected:.2f}"
    return Judged(claim, verdict, number, f"{command} --from {kept}")


def _over_conditions(lines: list[Line], reference: str) -> list[Line]:
    """Return the mean over a score's conditions, where it has several.

    To judge by one of them would be a choice.
    """
    conditions = sorted({line.label for line in lines})
    if len(conditions) < 2:
        return lines
    label = f"the mean of {len(conditions)} conditions"
    return corrected(
        means(lines, conditions, lambda line: line.label, reference=reference, label=label)
    )


def _pairs_within(
    specification: Specification, bounds: tuple[float, float], lines: Sequence[Line]
) -> Line | None:
    """Return the mean of the pairs within bounds, set against that of the others."""
    if specification.pairs is None:
        raise ValueError(f"{specification.name} has no pairs")
    inside = specification.pairs.within(*bounds)
    pairs = {column.name for column in specification.pairs.columns()}
    return group(
        [line for line in lines if line.column in inside],
        [line for line in lines if line.column in pairs - inside],
    )
