"""All perspectives, in the order of reports: a new one is a file and a line here."""

from __future__ import annotations

from temper.errors import SettingError, unknown
from temper.evaluation.perspectives.adversarial import ADVERSARIAL
from temper.evaluation.perspectives.anomaly import ANOMALY
from temper.evaluation.perspectives.calibration import CALIBRATION
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.perspectives.cost import COST
from temper.evaluation.perspectives.embedding_attack import EMBEDDING_ATTACK
from temper.evaluation.perspectives.embedding_noise import EMBEDDING_NOISE
from temper.evaluation.perspectives.groups import GROUPS
from temper.evaluation.perspectives.representation import REPRESENTATION
from temper.evaluation.perspectives.shift import SHIFT
from temper.evaluation.perspectives.smoothness import SMOOTHNESS
from temper.evaluation.perspectives.task import TASK
from temper.evaluation.perspectives.text_attack import TEXT_ATTACK
from temper.evaluation.perspectives.token_corruption import TOKEN_CORRUPTION
from temper.evaluation.perspectives.worst_case import WORST_CASE

PERSPECTIVES: dict[str, Perspective] = {
    entry.name: entry
    for entry in (
        TASK,
        SHIFT,
        ADVERSARIAL,
        GROUPS,
        EMBEDDING_ATTACK,
        TEXT_ATTACK,
        EMBEDDING_NOISE,
        TOKEN_CORRUPTION,
        WORST_CASE,
        SMOOTHNESS,
        CALIBRATION,
        ANOMALY,
        REPRESENTATION,
        COST,
    )
}


def names() -> tuple[str, ...]:
    """Return the names of all perspectives in the order of reports."""
    return tuple(PERSPECTIVES)


def defaults() -> tuple[str, ...]:
    """Return the names of the perspectives that are measured where nobody says what is."""
    return tuple(name for name, entry in PERSPECTIVES.items() if entry.by_default)


def readers(setting: str) -> tuple[str, ...]:
    """Return the names of the perspectives that read a setting; none where all do.

    Args:
        setting: A field of `temper.evaluation.settings.EvaluationSettings`.

    Example:
        >>> readers("sigmas")
        ('embedding_noise',)
    """
    return tuple(name for name, entry in PERSPECTIVES.items() if setting in entry.reads)


def perspective(name: str) -> Perspective:
    """Return a perspective by name.

    Args:
        name: Its name.

    Raises:
        SettingError: There is none of that name.

    Example:
        >>> perspective("calibration").directions["ece_10"]
        False
    """
    if name not in PERSPECTIVES:
        raise SettingError(unknown("perspective", name, PERSPECTIVES))
    return PERSPECTIVES[name]


def listing() -> list[dict[str, object]]:
    """Return what ``temper list perspectives`` shows: one mapping each, with ``name`` first."""
    return [
        {
            "name": entry.name,
            "summary": entry.summary,
            "scores": list(entry.scores),
            "higher_is_better": entry.directions,
            "needs": entry.needs,
            "by_default": entry.by_default,
        }
        for entry in PERSPECTIVES.values()
    ]
