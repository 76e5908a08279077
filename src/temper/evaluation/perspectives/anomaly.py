"""Anomaly detection: does the model notice texts that do not belong to its task?

Dev rows are the ordinary ones, anomalies are positive. The condition ``clean`` is the score
``-max softmax``, read from the answers; every other detector is a condition of its own, whose rows
hold its score of each text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.alignment import Aligned
from temper.evaluation.measurement import Measurement
from temper.evaluation.perspectives.contract import Perspective
from temper.evaluation.predictor import StatePredictor
from temper.evaluation.rows import Block, Condition
from temper.evaluation.scoring import Entry, Scoring
from temper.functional import detectors
from temper.functional.detection import aupr, auroc, fpr95
from temper.functional.intervals import Statistic
from temper.functional.proportions import OfKinds
from temper.functional.resampling import FloatArray

if TYPE_CHECKING:
    # The settings list the perspectives, and these take the settings.
    from temper.evaluation.settings import Detector

MEASURES = {"auroc": auroc, "aupr": aupr, "fpr95": fpr95}
OF_LOGITS: dict[str, Callable[[FloatArray], FloatArray]] = {
    "max_logit": detectors.max_logit,
    "energy": detectors.energy,
}
OF_STATES = ("mahalanobis", "knn")

Judge = Callable[[str, Examples], FloatArray]
"""From a set's name and rows to a score of anomaly each, [n]."""


def rows(measurement: Measurement) -> Iterable[Block]:
    """Predict every anomaly set, and let each detector score dev and these sets.

    The sets' labels, if they have any, belong to another task.
    """
    if not measurement.anomaly:
        return
    if "max_softmax" in measurement.settings.detectors:
        for name, examples in measurement.anomaly.items():
            yield measurement.clean_block("anomaly", name, Aligned(examples), labelled=False)
    sets = {"dev": measurement.dev, **measurement.anomaly}
    for detector, judge in _judges(measurement).items():
        for name, examples in sets.items():
            yield Block.of_values(
                Condition("anomaly", name, detector),
                examples.rows,
                np.arange(len(examples)),
                judge(name, examples),
            )


def score(scoring: Scoring) -> list[Entry]:
    """Score each detector on each anomaly set against the dev rows."""
    blocks = scoring.of("anomaly")
    ordinary = {b.condition.name: b for b in blocks if b.condition.set == "dev"}
    entries = []
    for block in blocks:
        if block.condition.set == "dev":
            continue
        dev = ordinary.get(block.condition.name, scoring.clean)
        total = len(dev) + len(block)
        if block.value is None and not block.classifies:
            reason = "a regression gives no probabilities"
            entries += [
                scoring.undefined(block.condition, name, reason=reason, rows=total)
                for name in MEASURES
            ]
            continue
        entries += [
            scoring.entry(block.condition, name, statistic=_statistic(name, dev, block), rows=total)
            for name in MEASURES
        ]
    return entries


def _statistic(name: str, ordinary: Block, anomalies: Block) -> Statistic:
    """Return a score of two blocks as a function of resample counts."""
    measure = MEASURES[name]
    flags = np.concatenate([np.zeros(len(ordinary)), np.ones(len(anomalies))])
    values = np.concatenate([_values(ordinary), _values(anomalies)])
    return OfKinds(lambda counts: measure(flags, values, counts=counts), flags)


def _values(block: Block) -> FloatArray:
    """Return each row's score of anomaly."""
    return detectors.max_softmax(block.probabilities) if block.value is None else block.value


def _judges(measurement: Measurement) -> dict[Detector, Judge]:
    """Return what scores texts for each detector but ``max_softmax``; leave out what cannot be."""
    wanted = [name for name in measurement.settings.detectors if name != "max_softmax"]
    found: dict[Detector, Judge] = {}
    states: _States | str | None = None
    for detector in wanted:
        if detector in OF_STATES:
            states = _ordinary_states(measurement) if states is None else states
            judge = states if isinstance(states, str) else states.judge(detector)
        else:
            judge = _of_logits(measurement, detector)
        if isinstance(judge, str):
            measurement.notices.append(f"The anomaly detector {detector!r} is left out: {judge}.")
        else:
            found[detector] = judge
    return found


def _of_logits(measurement: Measurement, detector: Detector) -> Judge | str:
    """Return a detector that reads logits, or why there is none."""
    if measurement.predictor.gives != "logits":
        return f"it needs logits, and the predictor gives {measurement.predictor.gives}"

    def judge(name: str, examples: Examples) -> FloatArray:
        logits = measurement.clean(name, examples).logits
        assert logits is not None
        return OF_LOGITS[detector](logits)

    return judge


@dataclass
class _States:
    """The last hidden states of ordinary rows and, as they are asked for, of the scored sets."""

    measurement: Measurement
    ordinary: FloatArray
    classes: FloatArray
    read: dict[str, FloatArray]

    def judge(self, detector: Detector) -> Judge | str:
        """Return a detector that has learnt from the ordinary rows, or why there is none."""
        fitted: detectors.Mahalanobis | detectors.Neighbours
        try:
            if detector == "mahalanobis":
                fitted = detectors.Mahalanobis.of(self.ordinary, self.classes)
            else:
                k = self.measurement.settings.neighbours
                fitted = detectors.Neighbours.of(self.ordinary, k=k)
        except ValueError as error:
            return f"of the ordinary rows that it learns from {error}"

        def judge(name: str, examples: Examples) -> FloatArray:
            if name not in self.read:
                self.read[name] = last_states(self.measurement, examples)
            return fitted.score(self.read[name])

        return judge


def _ordinary_states(measurement: Measurement) -> _States | str:
    """Read the states of the rows that detectors learn from, or say why there are none."""
    if not isinstance(measurement.predictor, StatePredictor):
        return f"hidden states of a {type(measurement.predictor).__name__} cannot be read"
    if measurement.fit is None:
        return "there are no ordinary rows for it to learn from, such as training rows"
    chosen = measurement.fit.apart([measurement.dev])
    if not chosen:
        return "all rows that it could learn from are scored too"
    settings = measurement.settings
    examples = measurement.fit.select(chosen).sample(settings.detector_rows, seed=settings.seed)
    try:
        ordinary = last_states(measurement, examples)
    except ModelError as error:
        return f"the hidden states cannot be read ({str(error).rstrip('.')})"
    return _States(measurement, ordinary, _classes(measurement, examples), {})


def _classes(measurement: Measurement, examples: Examples) -> FloatArray:
    """Return the class of each ordinary row: its label, else what is predicted; one of values."""
    if measurement.regression:
        return np.zeros(len(examples))
    if examples.kind == "classification" and examples.labels is not None:
        return np.asarray(examples.labels, dtype=np.float64)
    size = measurement.settings.batch_size
    return measurement.predictor.predict(examples, batch_size=size).prediction


def last_states(measurement: Measurement, examples: Examples) -> FloatArray:
    """Return the state that the head classifies for each row, [n, D].

    Args:
        measurement: Whose predictor lets its states be read.
        examples: n rows.

    Raises:
        ModelError: The model has no layers, its logits do not depend on the last one, or a state
            is not finite.
    """
    found: FloatArray | None = None
    size, done = measurement.settings.batch_size, 0
    for part in measurement.stateful.states(examples, batch_size=size):
        last = part.layers[-1].double().numpy()
        if found is None:
            found = np.empty((len(examples), last.shape[1]))
        found[part.indices] = last
        done += len(part.indices)
        measurement.tell(done, len(examples), f"hidden states ({examples.name})")
    assert found is not None
    if not bool(np.isfinite(found).all()):
        raise ModelError(
            f"A hidden state of set {examples.name!r} is not finite. The model is broken, or its "
            "precision too low."
        )
    return found


ANOMALY = Perspective(
    name="anomaly",
    summary="Anomaly detection by max softmax and other detectors: AUROC, AUPR, FPR at 95 % TPR",
    scores=tuple(MEASURES),
    rows=rows,
    score=score,
    reads=("detectors", "detector_rows", "neighbours"),
)
