"""All perspectives: every file in this folder is registered.

An installed package adds perspectives by an entry point for a `Perspective` or a module of them::

    [project.entry-points."temper.perspectives"]
    my_perspective = "my_package.my_perspective"

The option ``--import`` registers those of a user's file or module.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from importlib.metadata import entry_points
from types import ModuleType
from typing import Literal, get_args

from pydantic import BaseModel

from temper.data.examples import Kind, ScoredKind
from temper.display.views import View
from temper.errors import SettingError, unknown
from temper.evaluation.common_settings import CommonSettings
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.predictor import (
    PerturbablePredictor,
    Predictor,
    StatePredictor,
    TokenPredictor,
)
from temper.evaluation.rows import Block
from temper.evaluation.scoring import ScoreEntry, Scoring
from temper.functional.scores import SCORES, ScoreFacts, add_scores
from temper.importing import run_import

Need = Literal["predictions", "tokens", "embeddings", "states"]

NEEDS: dict[Need, tuple[type, str]] = {
    "predictions": (Predictor, "a predictor"),
    "tokens": (TokenPredictor, "a model whose token ids can be changed"),
    "embeddings": (PerturbablePredictor, "a model whose embeddings can be perturbed"),
    "states": (StatePredictor, "a model whose hidden states can be read"),
}
"""Capability that a perspective may need -> protocol of the predictor, and its description."""


ALL_KINDS: tuple[Kind, ...] = get_args(ScoredKind)
ONE_LABEL: tuple[Kind, ...] = ("classification", "regression")
"""Kinds with one label per text."""
ONE_PREDICTION: tuple[Kind, ...] = (*ONE_LABEL, "choices")
"""Kinds with one prediction per text: `ONE_LABEL`, and questions with choices."""
LABELED = ("task", "shift", "adversarial")
"""Perspectives whose rows are unperturbed labeled sets; other perspectives score them too."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Perspective(View):
    """A perspective: a group of metrics, with its measurement, scores and view in reports.

    ``misfits``, ``faults`` and ``lacking`` are called before any work and return sentences.

    Args:
        summary: Purpose in one line, for lists.
        scores: Names of known scores (`temper.functional.scores.SCORES`), and `ScoreFacts` of new
            ones.
        score: Computes score entries from all rows of an evaluation, and from nothing else.
        rows: Measures rows; by default none, for perspectives that score rows of others.
        needs: Capability of the predictor, a key of `NEEDS`; all predictors have ``predictions``.
        rescores: Other perspectives whose rows it scores; they must be measured too.
        settings: Class of its settings, which are in ``evaluate`` under its name; None without
            settings.
        perturbs: Whether it only uses the validation rows that ``attack_rows`` chooses.
        misfits: Returns errors of the settings that do not depend on the predictor, such as an
            unknown class.
        faults: Returns errors of settings that the predictor does not support.
        kinds: Kinds of labels that it supports.
        lacking: Returns why it cannot be measured, so that it is skipped; empty if it can.
        left_out: Why it is not measured by default; empty if it is.
        repeats: Whether its rows are reproducible. If not, the rows of two models cannot be paired,
            and their difference has no bootstrap interval.
    """

    summary: str
    scores: tuple[str | ScoreFacts, ...]
    score: Callable[[Scoring], list[ScoreEntry]]
    rows: Callable[[Measurement], Iterable[Block]] = lambda measurement: ()
    needs: Need = "predictions"
    rescores: tuple[str, ...] = ()
    settings: type[BaseModel] | None = None
    perturbs: bool = False
    misfits: Callable[[EvaluationData, CommonSettings, Sequence[str] | None], list[str]] = (
        lambda data, settings, label_names: []
    )
    faults: Callable[[Predictor, EvaluationData, CommonSettings], list[str]] = (
        lambda predictor, data, settings: []
    )
    lacking: Callable[[Predictor, EvaluationData], str] = lambda predictor, data: ""
    kinds: tuple[Kind, ...] = ONE_LABEL
    left_out: str = ""
    repeats: bool = True

    def __post_init__(self) -> None:
        add_scores(*(score for score in self.scores if isinstance(score, ScoreFacts)))
        lacking = [name for name in self.score_names if name not in SCORES]
        if lacking:
            raise ValueError(unknown("score", lacking[0], SCORES))

    @property
    def by_default(self) -> bool:
        return not self.left_out

    @property
    def score_names(self) -> tuple[str, ...]:
        return tuple(score if isinstance(score, str) else score.name for score in self.scores)

    @property
    def directions(self) -> dict[str, bool | None]:
        """Score -> whether higher is better; None if neither is."""
        return {name: SCORES[name].higher_is_better for name in self.score_names}


PACKAGE = "temper.evaluation.perspectives"
GROUP = "temper.perspectives"
"""Group of the entry points with which other packages add perspectives."""
ALIASES = ("all", "default")
"""Names that settings accept for several perspectives."""

_PERSPECTIVES: dict[str, Perspective] = {}


def register(perspective: Perspective) -> Perspective:
    """Add a perspective; raise a `ValueError` if its name is taken."""
    if _PERSPECTIVES.setdefault(perspective.name, perspective) is not perspective:
        raise ValueError(
            f"A perspective named {perspective.name!r} is registered already. Rename one."
        )
    return perspective


def register_all(module: ModuleType) -> None:
    for value in vars(module).values():
        if isinstance(value, Perspective):
            register(value)


@contextmanager
def registered_for_a_while(perspective: Perspective) -> Iterator[None]:
    """Register a perspective for the duration of a `with` block, unless it is registered."""
    _load()
    before = _PERSPECTIVES.get(perspective.name)
    _PERSPECTIVES[perspective.name] = perspective
    try:
        yield
    finally:
        del _PERSPECTIVES[perspective.name]
        if before is not None:
            _PERSPECTIVES[perspective.name] = before


@cache
def _load() -> None:
    """Import all files of this folder, and load the entry points of installed packages."""
    package = importlib.import_module(PACKAGE)
    for file in pkgutil.iter_modules(package.__path__):
        register_all(importlib.import_module(f"{PACKAGE}.{file.name}"))
    for point in entry_points(group=GROUP):
        name = f"the entry point {point.name} = {point.value} ({GROUP})"
        offered = run_import(name, partial(point.load), purpose="perspectives")
        if isinstance(offered, Perspective):
            register(offered)
        else:
            register_all(offered)


def perspectives() -> dict[str, Perspective]:
    """Return all perspectives by name, in the order of reports."""
    _load()
    ordered = sorted(_PERSPECTIVES.values(), key=lambda entry: entry.order)
    return {entry.name: entry for entry in ordered}


def names() -> tuple[str, ...]:
    """Return the names of all perspectives in the order of reports."""
    return tuple(perspectives())


def defaults() -> tuple[str, ...]:
    """Return the names of the perspectives that are measured by default."""
    return tuple(name for name, entry in perspectives().items() if entry.by_default)


def perspective(name: str) -> Perspective:
    """Return a perspective by name; raise a `SettingError` if there is none."""
    known = perspectives()
    if name not in known:
        raise SettingError(unknown("perspective", name, known))
    return known[name]


def listing() -> list[dict[str, object]]:
    """Return the rows of ``temper list perspectives`` as mappings, ``name`` first."""
    return [
        {
            "name": entry.name,
            "summary": entry.summary,
            "scores": list(entry.score_names),
            "higher_is_better": entry.directions,
            "needs": entry.needs,
            "by_default": entry.by_default,
        }
        for entry in perspectives().values()
    ]
