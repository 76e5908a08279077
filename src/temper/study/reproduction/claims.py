"""The papers' claims, and what our kept numbers say of each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from pydantic import Field

from temper.study.reproduction.lines import Line, corrected, means
from temper.study.reproduction.specification import PAPERS, Entry, read_specification
from temper.study.reproduction.table import reproduction_table
from temper.study.reproduction.theorem import NAME, Finding, Statement, check_theorem

HOLDS, FAILS = "holds", "does not hold"
NOISE, UNTESTED = "not shown: inside the noise", "not tested here"
_FILE = Path(__file__).parent / "assets" / "claims.toml"


class Trial(Entry):
    """How a claim is tested: a method is better than the reference by more than the noise.

    Args:
        reproduction: The table whose kept scores are read.
        column: The method.
        score: The score; of several cases the mean, and of several conditions, such as radii.
    """

    reproduction: str
    column: str
    score: str


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

    A claim that a method is better holds where its difference against the reference is outside the
    noise (`Line.side`) on the better side, does not where it is so on the other, and is not shown
    where it is inside. Where nothing is kept the claim is not tested here.

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
        if not any(line.column == test.column for line in lines):
            return Judged(claim, UNTESTED, f"{test.column} is not in every finished case", command)
    conditions = sorted({line.label for line in lines})
    if len(conditions) > 1:
        # To judge by one of them would be a choice.
        label = f"the mean of {len(conditions)} conditions"
        lines = corrected(
            means(
                lines,
                conditions,
                lambda line: line.label,
                reference=table.reference,
                label=label,
            )
        )
    line = next((line for line in lines if line.column == test.column), None)
    verdict = verdict_of(line)
    if line is None or line.to_reference is None:
        return Judged(claim, verdict, "", command)
    number = (
        f"{line.to_reference.text(line.unit)} in {line.label} against {table.reference}, "
        f"{line.case}"
    )
    if line.corrected is not None:
        number += f"; corrected p {line.corrected:.2f}"
    return Judged(claim, verdict, number, f"{command} --from {kept}")
