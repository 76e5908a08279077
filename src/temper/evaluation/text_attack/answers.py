"""What the predictor says of texts under attack, read by each row's goal.

Gains within `TOLERANCE` count as equal, and the first of them is taken: batches move an answer's
last digits.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from temper.evaluation.prediction import Prediction
from temper.evaluation.text_attack.contract import Draft
from temper.functional.resampling import IntegerArray

TOLERANCE = 1e-4
"""Nats within which two gains count as equal."""


@dataclass(frozen=True)
class Answer:
    """What the predictor says of one text.

    Args:
        gain: What the search raises: the log odds against the label, or for the target, in nats.
        reached: Whether the goal is reached.
        source: The answers that this one is among.
        at: Which of them.
    """

    gain: float
    reached: bool
    source: Prediction
    at: int

    def alone(self) -> Answer:
        """Return the answer among no others, so that keeping it keeps no batch in memory."""
        source = self.source
        logits = None if source.logits is None else source.logits[[self.at]]
        own = Prediction(source.probabilities[[self.at]], source.prediction[[self.at]], logits)
        return Answer(self.gain, self.reached, own, 0)


def answers_of(prediction: Prediction, drafts: Sequence[Draft]) -> list[Answer]:
    """Read answers by each row's goal.

    The log odds order texts as the probability does, and still tell apart what a sure classifier
    rounds to 1.

    Args:
        prediction: n answers.
        drafts: The n rows that they belong to.
    """
    goals = [draft.label if draft.target is None else draft.target for draft in drafts]
    odds = _log_odds(prediction, np.asarray(goals, dtype=np.int64))
    found = []
    for at, (draft, goal) in enumerate(zip(drafts, goals, strict=True)):
        hit = bool(prediction.prediction[at] == goal)
        gain, reached = (-odds[at], not hit) if draft.target is None else (odds[at], hit)
        found.append(Answer(gain, reached, prediction, at))
    return found


def best_of(answers: Sequence[Answer], nearness: Sequence[float]) -> int:
    """Choose: the nearest in meaning of those that reach the goal, else what gains most.

    Args:
        answers: At least one.
        nearness: How near each text is to the unchanged one; empty where nobody looked.

    Returns:
        The position of the chosen one.
    """
    reached = [at for at, answer in enumerate(answers) if answer.reached]
    among = reached or list(range(len(answers)))
    values = nearness if reached and nearness else [answer.gain for answer in answers]
    return among[in_order([values[at] for at in among])[0]]


def in_order(gains: Sequence[float]) -> list[int]:
    """Return positions from the largest gain to the smallest, equal ones as they stand.

    Args:
        gains: Any numbers, infinite ones too.

    Returns:
        Positions. A run of gains each of which is within `TOLERANCE` of the next counts as equal.

    Example:
        >>> in_order([0.5, 0.7, 0.70005, 0.1])
        [1, 2, 0, 3]
    """
    order = sorted(range(len(gains)), key=lambda at: (-gains[at], at))
    runs: list[list[int]] = []
    for at in order:
        # Two infinite gains differ by no number, and are no longer apart than that.
        if runs and not gains[runs[-1][-1]] - gains[at] > TOLERANCE:
            runs[-1].append(at)
        else:
            runs.append([at])
    return [at for run in runs for at in sorted(run)]


def _log_odds(prediction: Prediction, classes: IntegerArray) -> list[float]:
    """Return ``log p_c / (1 - p_c)`` of a class of each row; infinite where p_c is 0 or 1."""
    if prediction.logits is None:
        with np.errstate(divide="ignore"):
            values = np.log(prediction.probabilities)
    else:
        values = prediction.logits
    rows = np.arange(len(classes))
    others = values.copy()
    others[rows, classes] = -np.inf
    against = np.logaddexp.reduce(others, axis=1)
    return [float(value) for value in values[rows, classes] - against]
