"""Fit the calibration of a checkpoint on held-out rows, and store it in its folder.

A hash of each row splits the rows into two parts. The temperature and the OOD detector are fitted
on the first part. Every threshold is a quantile over the second part, as the guarantees of split
conformal prediction require.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from temper.calibration.calibration import (
    REFERENCE,
    Calibration,
    Detector,
    HeldOut,
    SetRule,
    middle,
    one_class,
)
from temper.calibration.detecting import States, choose_detector
from temper.calibration.files import write_calibration
from temper.calibration.held_out import held_out_rows
from temper.calibration.int8 import make_int8
from temper.calibration.settings import MEASURES, Backend, CalibrationSettings
from temper.calibration.thresholds import choose_thresholds, label_temperatures
from temper.checkpoints.folder import read_json
from temper.checkpoints.identity import CALIBRATION as FILE
from temper.data.examples import Examples
from temper.data.reading import read_as
from temper.data.sources import load_examples
from temper.display.wording import plural
from temper.errors import CheckpointError, DataError, ModelError, SettingError
from temper.evaluation.blocks import block_of, labels_of
from temper.evaluation.lengths import cut_in, longest_row, windows_read
from temper.evaluation.loading import check_kind, unknown_in
from temper.evaluation.perspectives.calibration import statistic_of
from temper.evaluation.perspectives.registry import ONE_LABEL, ONE_PREDICTION
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import KINDS, Predictor, StateReader
from temper.evaluation.request import EvaluationRequest
from temper.evaluation.rows import Condition
from temper.evaluation.sets import trained_rows
from temper.evaluation.tag_calibration import tag_errors, tagged_words, word_labels
from temper.files import staged_folder, writing
from temper.functional.calibration import EveryRowRightError, fit_temperature
from temper.functional.conformal import BooleanArray, least_rows
from temper.functional.decisions import decision_scores
from temper.functional.intervals import LEAST_ROWS
from temper.functional.resampling import FloatArray, IntegerArray
from temper.lazy import pandas
from temper.locks import locked
from temper.models.int8 import FOLDER as INT8
from temper.models.names import checkpoint_folder
from temper.models.onnx_files import check_onnx_installed
from temper.progress import Progress
from temper.seeding import derive_seed

MOST_FITTED = 2000
"""Maximum number of rows to fit the temperature or the OOD detector on."""
ANOMALIES = 1000
"""Maximum number of rows of each OOD set by which detectors are compared."""


def calibrate(
    request: EvaluationRequest,
    settings: CalibrationSettings | None = None,
    *,
    with_dev: bool = False,
    backend: Backend = "torch",
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Fit a temperature, thresholds and an OOD detector, and write ``calibration.json``.

    Training rows are left out, because a model is overconfident on them. So are its validation
    rows, on which scores are reported; ``with_dev`` keeps them. With fewer than 100 rows and
    default settings, only a temperature is fitted. An earlier calibration is replaced.

    The backend ``int8`` makes an 8-bit copy of the model (`temper.models.int8`), calibrates the
    copy, and stores both in ``int8`` in the model's folder.

    Returns:
        The content of ``calibration.json`` (docs/formats.md).

    Raises:
        TemperError: The folder has no checkpoint, the model has seen all of the rows, they are
            too few for a threshold, or no temperature can be fitted.
    """
    progress, settings = progress or Progress(), settings or CalibrationSettings()
    folder = checkpoint_folder(request.model.name)
    predictor = request.load()
    kinds = ONE_LABEL if backend == "int8" else (*ONE_PREDICTION, "multi_label", "tokens")
    what = "An 8-bit copy" if backend == "int8" else "A calibration"
    check_kind(predictor, request.model, kinds, what=what)
    if backend == "int8":
        if windows_read(predictor) is not None:
            raise ModelError(
                f"{request.model} reads long texts in windows, and an 8-bit copy reads each text "
                "as one sequence. Use the backend torch."
            )
        check_onnx_installed("--backend int8")
    kept = folder / INT8 if backend == "int8" else folder
    with (
        writing(folder / FILE),
        locked(folder),
        staged_folder(kept) if backend == "int8" else nullcontext(folder) as written,
    ):
        rows, left_out, notices = held_out_rows(request, predictor, with_dev=with_dev)
        progress.info_all(filter(None, [read_as(rows)]))
        progress.notice_all(notices)
        before = _before(kept / FILE)
        copied = written if backend == "int8" else None
        fit = _Fit(request, settings, predictor, rows, notices, progress, copied)
        calibration, record = fit.run(had_sets=before is not None and "sets" in before)
        if before is not None and not _is_same(before, record.get("temperature"), rows.hash):
            earlier = before.get("temperature")
            detail = f" (temperature {earlier:.4f})" if isinstance(earlier, float) else ""
            fit.notice(f"The calibration that {kept / FILE} held{detail} is replaced.")
        record["held_out"] |= {"hash": rows.hash, "source": rows.source, "left_out": left_out}
        return write_calibration(written, calibration, {**record, "notices": notices})


@dataclass
class _Fit:
    request: EvaluationRequest
    settings: CalibrationSettings
    predictor: Predictor
    rows: Examples
    notices: list[str]
    progress: Progress
    int8: Path | None = None
    """Empty folder for an 8-bit copy to calibrate; None calibrates the model itself."""
    predictions: Prediction = field(init=False)
    states: States = field(init=False)
    record: dict[str, Any] = field(default_factory=dict, init=False)

    def notice(self, *texts: str) -> None:
        self.progress.notice_all(texts)
        self.notices += texts

    def run(self, *, had_sets: bool) -> tuple[Calibration, dict[str, Any]]:
        """Return the calibration and further fields of ``calibration.json``.

        ``had_sets``: whether the earlier calibration has more than a temperature. It is not
        replaced by one that has less.
        """
        self._check_kind()
        first, second = self._parts()
        self._check_enough(second[~self._repeats(second)])
        if had_sets and not len(second):
            raise SettingError(
                f"{self.request.model.folder / FILE} has thresholds or a detector, and these "
                f"{len(self.rows)} rows would replace it by a temperature only. Pass at least "
                f"{2 * LEAST_ROWS} rows{self._or_sets}, or remove the calibration first (--remove)."
            )
        record = self.record
        if self.int8 is not None:
            chosen_on = self.rows.select(first.tolist())
            self.predictor, record["int8"], notices = make_int8(
                self.request.model, self.predictor, chosen_on, self.int8, progress=self.progress
            )
            self.notice(*notices)
        self.predictions, self.states = self._read(self.rows)
        self.notice(
            *cut_in(self.predictor, self.predictions.truncated, rows="held-out rows"),
            *unknown_in(self.predictor, self.request.model, {"held-out rows": self.rows}),
        )
        regression, fitted_on = self.predictions.regression, self.predictions.take(first)
        if not regression:
            record["temperature"] = self._temperature(self._labels(first), fitted_on)
        length, windows = longest_row(self.predictor), windows_read(self.predictor)
        calibration = Calibration(length, record.get("temperature"), windows=windows)
        if self.settings.threshold is not None:
            chosen = self._thresholds(self._labels(first), calibration.applied(fitted_on))
            record["decision"] = {"rule": self.settings.threshold, "thresholds": chosen}
            calibration = replace(calibration, thresholds=chosen)
        record["held_out"] = {"rows": len(self.rows), "fit": len(first), "thresholds": len(second)}
        if not regression:
            self._measure(calibration, second if len(second) else first)
        if len(second):
            calibration = self._with_thresholds(calibration, first, second)
        return calibration, record

    def _with_thresholds(
        self, calibration: Calibration, first: IntegerArray, second: IntegerArray
    ) -> Calibration:
        """Add the detector, fitted on rows ``first``, and rows ``second``, which set thresholds."""
        # A text that also sets thresholds would be its own nearest neighbor.
        texts = {self.rows.rows[row] for row in second}
        distinct = [row for row in first if self.rows.rows[row] not in texts]
        detector = self._detector(
            calibration, np.asarray(distinct, np.int64) if distinct else first
        )
        for_thresholds, seen = self.predictions.take(second), self.states[second]
        scores = detector.score(for_thresholds, calibration.applied(for_thresholds), seen)
        repeats = self._repeats(second)
        if repeats.any():
            self.notice(
                f"{int(repeats.sum())} of the {len(second)} rows that set thresholds repeat an "
                "earlier text. Each threshold is the more conservative of two: over all rows, "
                "and over each distinct text."
            )
        # The distinct percentiles of the calibrated confidence, in descending order.
        confidences = None
        if one_class(self.predictions):
            sure = calibration.applied(self.predictions.take(first)).probabilities.max(axis=1)
            percentiles = np.quantile(sure, np.linspace(0.0, 1.0, 101))
            confidences = np.unique(percentiles)[::-1]
        labels, repeated = self._labels(second), repeats if repeats.any() else None
        return replace(
            calibration,
            held_out=HeldOut(for_thresholds, labels, scores, repeated),
            rule=None if self._tagged else SetRule(self.settings.by, self.settings.coverage),
            detector=detector,
            false_alarms=self.settings.false_alarms,
            reference=middle(seen[:REFERENCE]) if seen.shape[2] else None,
            confidences=confidences,
        )

    def _parts(self) -> tuple[IntegerArray, IntegerArray]:
        """Return the indices of the rows to fit on, and of those that set thresholds."""
        count, settings = len(self.rows), self.settings
        asked = self._asked or bool(self.request.sets.anomaly)
        # Drawn by row, not by label or text, so that they are exchangeable with new rows. If equal
        # texts stayed together, a text with 10% of all rows could have 0% or 20% of a part.
        seen: Counter[str] = Counter()
        keys = []
        for row in self.rows.rows:
            repeat = (seen[row],) if seen[row] else ()
            keys.append(derive_seed(self.request.data.seed, "calibrate", row, *repeat))
            seen[row] += 1
        order = sorted(range(count), key=lambda index: (keys[index], index))
        if not asked and count < 2 * LEAST_ROWS:
            what = "intervals" if self.predictor.gives == "values" else "prediction sets"
            sets = "" if self._tagged else f"{what} and for "
            message = (
                f"{plural(count, 'held-out row')} are too few for {sets}the detection of "
                f"OOD texts and shifts: pass {2 * LEAST_ROWS}, half of them to fit on and half to "
                f"set thresholds{self._or_sets}."
            )
            if self.predictor.gives == "values":
                raise DataError(
                    f"{message} A regression has no temperature that could be fitted instead."
                )
            self.notice(message)
            return np.asarray(order, dtype=np.int64), np.zeros(0, dtype=np.int64)
        size = min(count, settings.fit_rows or min(count // 2, MOST_FITTED))
        return np.asarray(order[:size], dtype=np.int64), np.asarray(order[size:], dtype=np.int64)

    def _repeats(self, rows: IntegerArray) -> BooleanArray:
        """Return whether an earlier one of these rows has the same text."""
        repeats = pandas.Index([self.rows.rows[row] for row in rows]).duplicated()
        return np.asarray(repeats, dtype=np.bool_)

    def _labels(self, indices: IntegerArray) -> FloatArray:
        """Return the labels of rows; for tags, those of the words with predictions, [W]."""
        chosen = self.rows.select(indices.tolist())
        if self._tagged:
            return word_labels(chosen, self.predictions.take(indices))
        return labels_of(chosen)

    @property
    def _tagged(self) -> bool:
        return self.predictor.gives == "tags"

    @property
    def _asked(self) -> bool:
        """Whether a setting is given that needs separate rows to set thresholds."""
        return bool(self.settings.model_fields_set - {"threshold"})

    @property
    def _or_sets(self) -> str:
        """A second way to get thresholds; tags have no prediction sets."""
        return "" if self._tagged else ", or request sets explicitly (--coverage 0.9)"

    def _check_kind(self) -> None:
        if self.settings.by == "class" and self.predictor.gives == "values":
            raise SettingError(
                f"calibrate.by=class needs classes, and {self.request.model} is a regression. "
                "Leave it out."
            )
        sets = sorted(self.settings.model_fields_set & {"coverage", "by"})
        if self._tagged and sets:
            raise SettingError(
                f"calibrate.{sets[0]} is for prediction sets, and {self.request.model} predicts "
                "tags of words, which have none. Leave it out."
            )
        two = KINDS[self.predictor.gives] == "classification" and self.rows.classes == 2
        if self.settings.threshold is not None and not (two or self.predictor.gives == "labels"):
            raise SettingError(
                f"calibrate.threshold (--threshold) needs two classes or several labels per text, "
                f"but {self.request.model} has neither. Leave it out."
            )

    def _check_enough(self, second: IntegerArray) -> None:
        """Raise before any forward pass if there are too few rows for a threshold."""
        if not len(second) and not self._asked:
            return
        coverages = () if self._tagged else self.settings.coverage
        wanted = {f"a coverage of {coverage:g}": least_rows(coverage) for coverage in coverages}
        names: tuple[str, ...] = ("",)
        kinds = np.zeros(len(second), dtype=np.int64)
        if self.settings.by == "class":
            names = self._names
            kinds = labels_of(self.rows)[second].astype(np.int64)
            # A row counts for each of its labels.
            kinds = np.nonzero(kinds)[1] if kinds.ndim == 2 else kinds
        elif self.predictor.gives == "labels":
            kinds = kinds[labels_of(self.rows)[second].any(axis=1)]
        rows = np.bincount(kinds, minlength=len(names))
        faults = [
            f"{what} needs at least {least} rows"
            + (f" of class {name!r}" if name else "")
            + f" to set a threshold, and there are {result}"
            for what, least in wanted.items()
            for name, result in zip(names, rows, strict=True)
            if result < least
        ]
        alarm = least_rows(1.0 - self.settings.false_alarms)
        if len(second) < alarm:
            faults.append(
                f"a false alarm rate of {self.settings.false_alarms:g} needs at least {alarm} rows "
                f"to set a threshold, and there are {len(second)}"
            )
        if faults:
            raise DataError(
                f"The held-out rows are too few: {faults[0]}. The other "
                f"{len(self.rows) - len(second)} of {len(self.rows)} rows are for fitting "
                "(`calibrate.fit_rows`). Pass more rows with --data, lower --coverage or raise "
                "--false-alarms."
            )

    def _read(self, rows: Examples) -> tuple[Prediction, States]:
        size = self.request.evaluate.batch_size
        try:
            if isinstance(self.predictor, StateReader):
                return self.predictor.predict_with_states(rows, batch_size=size)
        except ModelError as error:
            message = f"Hidden states cannot be read, so only predictions are used: {error}"
            if message not in self.notices:
                self.notice(message)
        predictions = self.predictor.predict(rows, batch_size=size)
        return predictions, np.zeros((len(rows), 1, 0), np.float32)

    def _temperature(
        self, labels: FloatArray, predictions: Prediction
    ) -> float | tuple[float, ...]:
        """Fit the temperature, or one for each of several labels, on labeled predictions."""
        if predictions.applies is not None:
            assert predictions.logits is not None
            result, notices = label_temperatures(labels, predictions.logits, self._names)
            self.notice(*notices)
            return result
        if self._tagged:
            labels, predictions = tagged_words(labels, predictions, self._names)
        logits = predictions.logits
        # Only predictors that return logits can be calibrated.
        assert logits is not None
        try:
            temperature = fit_temperature(labels, logits).value
        except EveryRowRightError:
            # Prediction sets and the detector need no temperature, so calibration continues.
            self.notice(
                f"All {len(labels)} rows that a temperature is fitted on are right, so no "
                "temperature is optimal. Temperature 1 is kept, which leaves the probabilities "
                "unchanged. To fit one, pass more rows (--data) until some predictions are wrong."
            )
            temperature = 1.0
        except ValueError as error:
            raise DataError(
                f"No temperature can be fitted on the {len(labels)} rows of "
                f"{self.request.data.source}: {error}. Pass other or more rows with --data."
            ) from error
        if self._tagged:
            # The notice below is about prediction sets, which tags do not have.
            return temperature
        missing = sorted(set(range(logits.shape[1])) - set(labels_of(self.rows).astype(int)))
        names = self.predictor.label_names
        for label in missing:
            name = label if names is None else names[label]
            self.notice(f"No held-out row is of class {name!r}, so its sets are not calibrated.")
        return temperature

    def _thresholds(self, labels: FloatArray, scaled: Prediction) -> tuple[float, ...]:
        assert self.settings.threshold is not None
        chances = scaled.label_probabilities
        names, rule = self._names[-chances.shape[1] :], self.settings.threshold
        result, notices = choose_thresholds(
            labels.reshape(chances.shape), chances, names, rule=rule
        )
        self.notice(*notices)
        return result

    @property
    def _names(self) -> tuple[str, ...]:
        return self.predictor.label_names or tuple(map(str, range(self.rows.classes)))

    def _measure(self, calibration: Calibration, indices: IntegerArray) -> None:
        """Add calibration errors and decision scores to the record, before and after."""
        rows, chosen = self.rows.select(indices.tolist()), self.predictions.take(indices)
        before, after = _measures(rows, chosen), _measures(rows, calibration.applied(chosen))
        self.record |= _before_and_after(before, after)
        if calibration.thresholds is not None:
            both = [
                item.applied(chosen)
                for item in (replace(calibration, thresholds=None), calibration)
            ]
            labels = self._labels(indices).reshape(len(indices), -1)
            self.record["decision"] |= _before_and_after(
                *(decision_scores(labels, item.label_decisions) for item in both)
            )
        self.notice(*doubts(self.record["held_out"]["fit"], before, after))

    def _detector(self, calibration: Calibration, indices: IntegerArray) -> Detector:
        predictions, states = self.predictions.take(indices), self.states[indices]
        training = self._training_states() if states.shape[2] else None
        try:
            best, scores = choose_detector(
                calibration, predictions, states, training, self._anomalies()
            )
        except ValueError as error:
            raise DataError(
                f"No OOD detector can be fitted for {self.request.model}: {error}."
            ) from error
        self.record["anomaly"] = {
            "learnt_from": {
                "rows": len(states if training is None else training),
                "kind": "held_out" if training is None else "training",
            },
            **({"auroc": scores} if scores else {}),
        }
        if scores:
            means = {name: np.mean(list(of_sets.values())) for name, of_sets in scores.items()}
            listed = ", ".join(f"{name} {value:.3f}" for name, value in means.items())
            self.notice(f"OOD detector: {best.name}. Mean AUROC: {listed}.")
        return best

    def _training_states(self) -> States | None:
        """Return training rows' states to fit the Mahalanobis detector on; None if unknown."""
        train, _ = trained_rows(self.request.model)
        if train is None:
            return None
        kept = train.apart([self.rows])
        if not kept:
            return None
        chosen = train.select(kept).sample(MOST_FITTED, seed=self.request.data.seed)
        return self._read(replace(chosen, name="train"))[1]

    def _anomalies(self) -> dict[str, tuple[Prediction, States]]:
        data, known = self.request.data, self.request.model.columns
        result = {}
        for name, source in self.request.sets.anomaly.items():
            rows = load_examples(source, labeled=False, reading=data.reading, known=known)
            rows = replace(rows.sample(data.eval_rows or ANOMALIES, seed=data.seed), name=name)
            result[name] = self._read(rows)
        return result


def doubts(rows: int, before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    """Return warnings that a temperature may not help on new rows.

    ``before`` and ``after``: name of `MEASURES` -> error without and with the temperature.
    """
    reasons = []
    if rows < LEAST_ROWS:
        reasons.append(
            f"The temperature is fitted on {plural(rows, 'row')} only and may differ a lot on "
            f"other rows. Pass at least {LEAST_ROWS} rows with --data, or remove it with --remove."
        )
    reasons += [
        f"The temperature increases the {MEASURES[key]} of these rows, {before[key]:.4f} -> "
        f"{after[key]:.4f}. Check it on other rows before using it, or remove it with `temper "
        "calibrate` and --remove."
        for key in before
        if round(after[key], 4) > round(before[key], 4)
    ]
    return reasons


def _before_and_after(
    before: Mapping[str, float], after: Mapping[str, float]
) -> dict[str, dict[str, float]]:
    return {name: {"before": before[name], "after": after[name]} for name in before}


def _before(file: Path) -> dict[str, Any] | None:
    """Return the earlier ``calibration.json``: empty if damaged, None if there is none."""
    with suppress(CheckpointError):
        return read_json(file) if file.is_file() else None
    return {}


def _is_same(content: Mapping[str, Any], temperature: object, rows_hash: str) -> bool:
    """Return whether an earlier ``calibration.json`` has this temperature, fitted on these rows."""
    value, rows = content.get("temperature"), content.get("held_out")
    value = tuple(value) if isinstance(value, list) else value
    hashed = rows.get("hash") if isinstance(rows, dict) else None
    return value is not None and (value, hashed) == (temperature, rows_hash)


def _measures(rows: Examples, prediction: Prediction) -> dict[str, float]:
    """Return NLL and ECE of labeled rows, by name; for several labels, means over the labels."""
    if prediction.words is not None:
        return tag_errors(rows, prediction)
    block = block_of(Condition("calibration", "held_out"), rows, prediction)
    names = ("nll", "classwise_ece" if block.kind == "multi_label" else "ece_15")
    counts = np.ones((1, len(block)))
    return {name: float(statistic_of(name, block)(counts)[0]) for name in names}
