"""``temper calibrate`` of a regression on pairs of texts: intervals, anomalies, shift, refusals."""

from __future__ import annotations

import csv
import json
from math import ceil
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from temper import Classifier
from temper.data.examples import Examples
from temper.evaluation.predictor import Predictor
from tests.cli.calls import call, json_output, refused, succeed
from tests.export.test_standalone import predictor_of, texts_of

COVERAGE, ALARMS = 0.8, 0.1


def write_rows(path: Path, predictor: Predictor, count: int, *, seed: int) -> Path:
    """Write pairs with a model's values plus noise that is wider on the left."""
    draws = np.random.default_rng(seed)
    texts, others = texts_of(count, seed), texts_of(count, seed + 1)
    values = predictor.predict(Examples("pairs", texts, others)).prediction
    noise = draws.exponential(size=count) * np.where(draws.random(count) < 0.3, 0.5, -1.0)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "text_pair", "label"])
        writer.writerows(zip(texts, others, values + noise, strict=True))
    return path


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Predictor]:
    folder = tmp_path_factory.mktemp("regression") / "model"
    predictor = predictor_of(folder, 1)
    (folder / "export.json").unlink()
    return folder, predictor


def calibrated(
    model: tuple[Path, Predictor], rows: Path, *given: str
) -> tuple[dict, dict[str, np.ndarray]]:
    folder, _ = model
    succeed(
        "calibrate", folder, "--data", rows, "--coverage", COVERAGE, "--false-alarms", ALARMS,
        "--max-length", "24", "--device", "cpu", *given,
    )  # fmt: skip
    record = json.loads((folder / "calibration.json").read_text(encoding="utf-8"))
    return record, load_file(folder / record["arrays"]["file"])


def quantile(scores: np.ndarray, coverage: float) -> float:
    return float(np.sort(scores)[ceil((len(scores) + 1) * coverage) - 1])


def test_intervals_contain_the_target_and_few_rows_are_flagged(
    model: tuple[Path, Predictor], tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "held_out.csv", model[1], 300, seed=0)
    record, arrays = calibrated(model, rows)
    assert "temperature" not in record
    residuals = np.abs(arrays["held_out.predictions"] - arrays["held_out.labels"])
    width = quantile(residuals, COVERAGE)
    kept = record["sets"]["thresholds"][f"{COVERAGE:g}"]["threshold"]
    assert kept == pytest.approx(width)
    new = write_rows(tmp_path / "new.csv", model[1], 600, seed=7)
    with new.open(encoding="utf-8", newline="") as file:
        table = list(csv.DictReader(file))
    result = json_output(
        "predict", model[0], "--data", new, "--max-length", "24",
        "--device", "cpu", "--abstain", "anomaly",
    )  # fmt: skip
    covered, flagged = [], []
    for row, predicted in zip(table, result, strict=True):
        low, high = predicted["interval"]
        assert (predicted["value"] - low, high - predicted["value"]) == pytest.approx(
            (width, width)
        )
        covered.append(low <= float(row["label"]) <= high)
        flagged.append(predicted["anomalous"])
        assert predicted["abstain"] == ("anomaly" if predicted["anomalous"] else "")
    # Four deviations, of 600 rows and of the rows that set the thresholds.
    for fraction, wanted in ((np.mean(covered), COVERAGE), (np.mean(flagged), ALARMS)):
        spread = wanted * (1 - wanted) * (1 / 600 + 1 / len(residuals))
        assert abs(fraction - wanted) < 4 * np.sqrt(spread)


def test_a_shift_is_detected_for_other_texts_only(
    model: tuple[Path, Predictor], tmp_path: Path
) -> None:
    calibrated(model, write_rows(tmp_path / "held_out.csv", model[1], 300, seed=0))
    classifier = Classifier.load(model[0], device="cpu", max_length=24)
    same = classifier(texts_of(100, seed=20), texts_of(100, seed=21))
    others = classifier(["why not"] * 50, ["good"] * 50)
    assert same.shift is not None
    assert others.shift is not None
    assert (same.shift.shifted, others.shift.shifted) == (False, True)


def test_options_for_classes_raise_an_error_for_a_regression(
    model: tuple[Path, Predictor], tmp_path: Path
) -> None:
    rows = write_rows(tmp_path / "held_out.csv", model[1], 300, seed=0)
    asked = ("--data", rows, "--device", "cpu")
    refused(call("calibrate", model[0], *asked, "--by", "class"), "regression")
    few = write_rows(tmp_path / "few.csv", model[1], 30, seed=0)
    refused(
        call("calibrate", model[0], "--data", few, "--coverage", ".95", "--device", "cpu"),
        "a coverage of 0.95 needs at least 19 rows", "there are 15",
    )  # fmt: skip
    calibrated(model, rows)
    for rule in (("--abstain", "set>1"), ("--max-risk", ".1")):
        refused(call("predict", model[0], *asked, *rule), "need one class per text")
