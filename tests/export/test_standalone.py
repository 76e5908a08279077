"""`pipeline.py` and `shift.py` of an export have the predictions of `temper.Classifier`."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule, middle
from temper.calibration.classifier import Classifier
from temper.calibration.files import read_calibration, write_calibration
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.export.export import Likeness
from temper.functional.calibration import scaled
from temper.functional.detectors import Mahalanobis
from temper.models.standalone.pipeline import Pipeline
from temper.models.standalone.shift import shift
from tests.cli.tiny_project import BAD, GOOD, OTHERS, make_model

WORDS = (*GOOD, *BAD, *OTHERS)
TEMPERATURE = 0.7


def texts_of(count: int, seed: int) -> list[str]:
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(WORDS, draws.integers(2, 30))) for _ in range(count)]


def predictor_of(folder: Path, classes: int) -> ClassifierPredictor:
    """Save and load a model with drawn weights and so many outputs."""
    make_model(folder)
    names = {"num_labels": classes} if classes == 1 else {"id2label": dict(enumerate("abc"))}
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, ignore_mismatched_sizes=True, **names
    )
    draws = torch.Generator().manual_seed(0)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight.data, std=0.5, generator=draws)
    model.save_pretrained(folder)
    record = {
        "schema": 1,
        "gives": "values" if classes == 1 else "logits",
        "labels": [] if classes == 1 else list("abc"),
        "settings": {"data": {"max_length": 24}},
        "states": True,
    }
    (folder / "export.json").write_text(json.dumps(record), encoding="utf-8")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    return ClassifierPredictor(model.eval(), tokenizer, max_length=24, batch_size=8)


class Setting:
    """A model, held-out rows that it has predicted, and calibrations of every kind of them."""

    def __init__(self, folder: Path, classes: int) -> None:
        self.folder, self.classes = folder, classes
        self.predictor = predictor_of(folder, classes)
        rows = Examples("held_out", texts_of(240, seed=0))
        self.held, self.states = self.predictor.predict_with_states(rows)
        draws = np.random.default_rng(0)
        if classes == 1:
            self.labels = self.held.prediction + draws.normal(size=240)
        else:
            fractions = np.exp(scaled(self.held.logits, TEMPERATURE))
            self.labels = (
                (fractions.cumsum(axis=1) < draws.random((240, 1))).sum(axis=1).astype(float)
            )
        self.pipeline = Pipeline(folder, batch_size=8)

    def kept(self, made: Calibration) -> Pipeline:
        """Write a calibration, and return the pipeline that has read it."""
        details = {} if self.classes == 1 else {"temperature": TEMPERATURE}
        record = write_calibration(self.folder, made, details)
        self.pipeline.calibration = json.loads((self.folder / "calibration.json").read_bytes())
        self.pipeline.arrays = load_file(self.folder / record["arrays"]["file"])
        return self.pipeline

    def calibration(self, by: Any, detector: Any) -> Calibration:
        fitted = Mahalanobis.of(self.states[:120]) if detector == "mahalanobis" else None
        temperature = None if self.classes == 1 else TEMPERATURE
        made = Calibration(24, temperature, detector=Detector(detector, fitted), false_alarms=0.1)
        own, seen = self.held.take(np.arange(120, 240)), self.states[120:]
        scores = made.detector.score(own, made.applied(own), seen)
        return replace(
            made,
            held_out=HeldOut(own, self.labels[120:], scores),
            rule=SetRule(by, (0.5, 0.8)),
            reference=middle(seen[:60]),
            confidences=None if self.classes == 1 else np.linspace(0.99, 0.34, 40),
        )


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("standalone") / "classes", 3)


@pytest.fixture(scope="module")
def regression(tmp_path_factory: pytest.TempPathFactory) -> Setting:
    return Setting(tmp_path_factory.mktemp("standalone") / "values", 1)


def alike(setting: Setting, made: Calibration, texts: list[str], **asked: Any) -> None:
    """Write a calibration, and compare what both say of texts by it."""
    pipeline = setting.kept(made)
    known = Classifier(
        setting.predictor, calibration=read_calibration(Checkpoint.of(setting.folder))
    )
    wanted = known(texts, **asked)
    both = pipeline.outputs(texts)
    predictions = pipeline.predictions(*both, **asked)
    result = Likeness.of([row.record() for row in wanted], predictions)
    assert (result.alike, result.largest_difference < 1e-6) == (len(texts), True)
    assert "abstain" in predictions[0]
    message = shift(pipeline, both[1])
    assert message is not None
    assert wanted.shift is not None
    assert (message["p"], message["shifted"], message["rows"]) == (
        wanted.shift.p,
        wanted.shift.shifted,
        wanted.shift.rows,
    )


@pytest.mark.parametrize("by", ["all", "class"])
@pytest.mark.parametrize("detector", ["mahalanobis", "energy", "max_softmax"])
def test_every_kind_of_calibration_has_equal_predictions(
    classifier: Setting, by: str, detector: str
) -> None:
    made = classifier.calibration(by, detector)
    asked = (
        {"coverage": None, "abstain": "set > 2", "max_risk": None},
        {"coverage": 0.8, "abstain": "anomaly, set>1", "max_risk": 0.3},
        {"coverage": 0.8, "abstain": "anomaly", "max_risk": 0.5},
    )
    for number, each in enumerate(asked):
        alike(classifier, made, texts_of(20 + 50 * number, seed=number + 1), **each)


def test_a_regression_has_equal_predictions(regression: Setting) -> None:
    made = regression.calibration("all", "mahalanobis")
    alike(regression, made, texts_of(230, seed=2), coverage=0.8, abstain="anomaly")


def test_exported_risk_limits_equal_the_calibration(classifier: Setting) -> None:
    made = classifier.calibration("all", "energy")
    arrays = classifier.kept(made).arrays
    shown = []
    for risk in np.linspace(0.02, 0.9, 45).tolist():
        try:
            wanted = made.confident(risk).threshold
        except SettingError:
            wanted = None
        kept = arrays["risk.confidences"][arrays["risk.limits"] <= risk]
        assert (kept[-1] if len(kept) else None) == wanted
        shown.append(wanted)
    assert len(set(shown)) > 2


def test_a_model_that_shows_no_states_is_compared_by_its_outputs(
    classifier: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = classifier.calibration("all", "energy")
    made = replace(made, reference=None)
    assert not made.wants_states
    monkeypatch.setitem(classifier.pipeline.record, "states", False)
    alike(classifier, made, texts_of(40, seed=3), abstain="anomaly")


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        ({"coverage": 0.7}, r"one of \['0.5', '0.8'\], got 0.7"),
        ({"abstain": "anomalies"}, "calibrated rules: 'anomaly' or 'set>K'"),
        ({"max_risk": 1e-9}, "No threshold .*1e-09"),
    ],
)
def test_options_without_calibration_raise_an_error(
    classifier: Setting, asked: dict[str, Any], words: str
) -> None:
    made = classifier.calibration("all", "energy")
    with pytest.raises(ValueError, match=words):
        classifier.kept(made)(["a"], **asked)


def test_rules_of_classes_raise_an_error_for_a_regression(regression: Setting) -> None:
    of_values = regression.kept(regression.calibration("all", "mahalanobis"))
    with pytest.raises(ValueError, match="must name calibrated rules"):
        of_values(["a"], abstain="set>1")
    assert of_values([]) == []
    assert shift(of_values, np.zeros((19, 16))) is None
