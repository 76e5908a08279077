"""`temper serve` with a calibration: sets, flags, abstention, and shifts of its requests."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.stats import binom

pytest.importorskip("fastapi", reason="needs the extra serve")
pytest.importorskip("prometheus_client", reason="needs the extra serve")
pytest.importorskip("uvicorn", reason="needs the extra serve")

from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule
from temper.calibration.classifier import ALARM, Classifier
from temper.errors import SettingError
from temper.evaluation.function import CallablePredictor
from temper.evaluation.prediction import Prediction
from temper.service.metrics import ShiftWindow
from temper.service.settings import ServiceSettings
from temper.service.web import Service
from tests.cli.calls import call, refused
from tests.service.serving import Model, running

Array = np.ndarray[Any, Any]
NAMES = ("no", "yes")


def predict(texts: list[str]) -> Array:
    """Predict texts that are numbers by two logits whose sum is that of an ordinary text or not."""
    values = np.asarray([float(text) for text in texts])
    return np.stack([-values, values], axis=1)


def drawn(count: int, *, seed: int, mean: float = 0.0) -> list[str]:
    return [f"{value:.6f}" for value in np.random.default_rng(seed).normal(mean, 1.5, count)]


def calibrated(seed: int = 0, *, rows: int = 400) -> Classifier:
    """Return a classifier that is right as often as it says, calibrated on rows of its own."""
    draws = np.random.default_rng([seed, 1])
    own = Prediction.of_logits(predict(drawn(rows, seed=seed)))
    labels = (draws.random(rows) < own.probabilities[:, 1]).astype(np.float64)
    detector = Detector("energy")
    held_out = HeldOut(own, labels, detector.score(own, own, np.zeros((rows, 0))))
    known = Calibration(
        None,
        1.0,
        held_out,
        SetRule("all", (0.9, 0.8)),
        detector,
        confidences=np.asarray([0.99, 0.9, 0.8]),
    )
    predictor = CallablePredictor(predict, gives="logits", label_names=NAMES)
    return Classifier(predictor, name="it", calibration=known)


def test_responses_equal_predict_with_the_same_options() -> None:
    asked = {"coverage": 0.95, "abstain": "anomaly,set>1", "max_risk": 0.2}
    classifier, texts = calibrated(), [*drawn(40, seed=5), "0.001"]
    terms = classifier.terms(**asked)
    with running(classifier, terms=terms) as served:
        result = served.client.predict({"texts": texts}).content["predictions"]
        counted = served.client.metrics()
        less = served.client.predict({"texts": texts, "coverage": 0.8}).content["predictions"]
    assert result == [row.record() for row in classifier(texts, **asked)]
    assert less == [row.record() for row in classifier(texts, **{**asked, "coverage": 0.8})]
    assert [row["set"] for row in less] != [row["set"] for row in result]
    assert {"label", "set", "anomaly", "anomalous", "abstain", "probabilities"} == set(result[0])
    starts = {"anomaly": "anomaly", "set": ("set of", "empty"), "confidence": "confidence"}
    for rule, start in starts.items():
        wanted = sum(
            any(reason.startswith(start) for reason in row["abstain"].split(", ")) for row in result
        )
        assert counted[f'temper_abstentions_total{{rule="{rule}"}}'] == wanted
    assert result[-1]["abstain"].startswith("anomaly, set of 2, confidence below 0.")
    assert counted["temper_anomalies_total"] == sum(row["anomalous"] for row in result) > 0


@pytest.mark.parametrize(
    ("question", "words"),
    [
        ({"coverage": 0.5}, "`coverage` must be a value of `temper calibrate` (0.9, 0.8)."),
    ],
)
def test_options_without_calibration_return_an_error(question: Any, words: str) -> None:
    with running(calibrated()) as served:
        reply = served.client.predict({"texts": ["1"], **question})
        assert (reply.status, reply.content) == (422, {"error": words})
    with running(Model().classifier()) as served:
        reply = served.client.predict({"texts": ["1"], "coverage": 0.9})
        assert (reply.status, "(none)" in reply.content["error"]) == (422, True)


def test_options_are_checked_before_anything_listens(tmp_path: Path) -> None:
    code = tmp_path / "asked.py"
    code.write_text(
        "def ask(texts):\n    return [[0.5, 0.5]] * len(texts)\nask.gives = 'probabilities'\n"
    )
    for option in (["--coverage", ".9"], ["--abstain", "anomaly"], ["--max-risk", ".1"]):
        result = call("serve", f"{code}:ask", "--port", "0", *option)
        refused(result, "has no calibration", "temper calibrate")
    refused(
        call("serve", f"{code}:ask", "--port", "0", "--set", "service.shift_rows=50"),
        "`service.shift_rows`",
    )
    refused(
        call("serve", f"{code}:ask", "--port", "0", "--set", "service.shift_rows=5"),
        "shift_rows",
        "20",
    )
    plain = Model().classifier()
    with pytest.raises(SettingError, match="`service.shift_rows` .* has none"):
        Service(plain, ServiceSettings(shift_rows=100))
    Service(plain, ServiceSettings())
    with pytest.raises(SettingError, match="`coverage` needs a calibration with thresholds"):
        plain.terms(coverage=0.9)


def alarms(*, mean: float, windows: int, rows: int = 20) -> int:
    """Return the number of windows of requests that raise an alarm, each with new held-out rows."""
    result = []
    for seed in range(windows):
        classifier = calibrated(10_000 + seed, rows=30)
        window = ShiftWindow(classifier, rows)
        texts = drawn(rows, seed=20_000 + seed, mean=mean)
        # Batches of uneven sizes: one window each, however the texts came.
        for part in (texts[:7], texts[7:8], texts[8:]):
            predictions = classifier(part)
            result.append(window.add(predictions))
    shifts = [each[0] for each in result if each is not None]
    assert len(shifts) == windows
    assert all(shift.rows == rows for shift in shifts)
    return sum(shift.shifted for shift in shifts)


def test_in_distribution_traffic_alarms_at_the_declared_rate() -> None:
    windows = 200
    # Held-out rows and traffic are exchangeable: each window alarms with probability .01 or less.
    assert alarms(mean=0.0, windows=windows) <= binom.isf(1e-3, windows, ALARM)


def test_shifted_traffic_raises_the_alarm_and_its_counters() -> None:
    assert alarms(mean=3.0, windows=20) == 20
    estimate = 'temper_estimate{{bound="{}",score="accuracy"}}'
    with running(calibrated(), shift_rows=50) as served:
        ask, metrics = served.client.predict, served.client.metrics
        assert math.isnan(metrics()["temper_shift_p"])
        ask({"texts": drawn(49, seed=1)})
        assert metrics()["temper_shift_tests_total"] == 0
        ask({"texts": drawn(1, seed=2)})
        seen = metrics()
        assert (seen["temper_shift_tests_total"], seen["temper_shift_alarms_total"]) == (1, 0)
        assert seen["temper_shift_p"] > ALARM
        low, value, high = (seen[estimate.format(bound)] for bound in ("low", "value", "high"))
        assert 0.5 < low < value < high < 1.0
        for seed in range(10):
            ask({"texts": drawn(5, seed=seed, mean=4.0)})
        seen = metrics()
    assert (seen["temper_shift_tests_total"], seen["temper_shift_alarms_total"]) == (2, 1)
    assert seen["temper_shift_p"] <= ALARM
    assert math.isnan(seen[estimate.format("value")])


def test_a_window_is_of_the_last_texts_alone() -> None:
    classifier = calibrated()
    window = ShiftWindow(classifier, 30)
    texts = [*drawn(100, seed=3, mean=9.0), *drawn(30, seed=4)]
    whole = classifier(texts)
    shifts = window.add(whole)
    assert shifts is not None
    assert (shifts[0].rows, shifts[0].shifted) == (30, False)
    alone = classifier(texts[100:])
    assert shifts == (alone.shift, alone.scores)
