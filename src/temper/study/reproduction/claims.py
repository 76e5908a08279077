"""The papers' claims, and what our kept numbers say of each."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import fmean
from typing import Literal

from pydantic import Field

from temper.study.reproduction.lines import Interval, Line
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
        score: The score; of several conditions, such as radii, the mean over them.
        case: The case; None takes the mean over all of them, or the only one.
    """

    reproduction: str
    column: str
    score: str
    case: str | None = None


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

    A claim that a method is better holds where the 95 % interval of its difference against the
    reference lies wholly on the better side, does not where it lies on the other, and is not shown
    where it holds 0. Where nothing is kept the claim is not tested here.

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
    if line is None or line.to_reference is None or line.to_reference.side is None:
        return UNTESTED
    if line.higher_is_better is None:
        return UNTESTED
    side = line.to_reference.side * (1 if line.higher_is_better else -1)
    return {1: HOLDS, 0: NOISE, -1: FAILS}[side]


def _default_findings() -> dict[Statement, Finding]:
    """Return the findings at the default setting of the selective update."""
    return {finding.statement: finding for finding in reversed(check_theorem())}


def _tested(claim: Claim, test: Trial, root: Path) -> Judged:
    specification = read_specification(test.reproduction)
    kept = specification.folder
    if not (root / kept).is_dir():
        return Judged(claim, UNTESTED, "", f"temper reproduce {specification.name}")
    table = reproduction_table(specification, root / kept)
    lines = [line for line in table.lines if line.score == test.score]
    if test.case is not None:
        lines = [line for line in lines if line.case == test.case]
    own = [line for line in lines if line.column == test.column]
    command = f"temper reproduce {specification.name}"
    cases = {case.name for case in specification.case}
    finished = cases & {line.case for line in lines}
    if len(finished) > 1:
        own = [line for line in own if line.case not in cases]
        if not own:
            return Judged(claim, UNTESTED, f"{test.column} is not in every finished case", command)
    bases = [line for line in lines if line.column == table.reference]
    line = own[0] if len(own) == 1 else _over_conditions(own, bases)
    verdict = verdict_of(line)
    if line is None or line.to_reference is None:
        return Judged(claim, verdict, "", command)
    difference = line.to_reference.text(line.unit)
    number = f"{difference} in {line.label} against {table.reference}, {line.case}"
    return Judged(claim, verdict, number, f"{command} --from {kept}")


def _over_conditions(own: Sequence[Line], bases: Sequence[Line]) -> Line | None:
    """Return the mean over a score's conditions; to judge by one of them would be a choice.

    Args:
        own: The method's line of each condition.
        bases: Those of the reference.

    Returns:
        A line whose difference is that of the means, seed by seed; None where there is no line, or
        the reference lacks a condition.
    """
    base = {line.label: line for line in bases}
    pairs = [(line.seeds, base[line.label].seeds) for line in own if line.label in base]
    if not own or len(pairs) < len(own):
        return None
    common = set.intersection(*(ours.keys() & theirs.keys() for ours, theirs in pairs))
    seeds = {seed: fmean(ours[seed] for ours, _ in pairs) for seed in sorted(common)}
    differences = [fmean(ours[seed] - theirs[seed] for ours, theirs in pairs) for seed in seeds]
    return replace(
        own[0],
        label=f"the mean of {len(own)} conditions",
        seeds=seeds,
        to_paper=None,
        to_reference=Interval.of(differences),
    )
