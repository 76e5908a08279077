"""``temper calibrate``: stored calibration, changed predictions, and refusals."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper import Classifier
from temper.calibration.calibrate import doubts
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.identity import model_identity
from temper.data.examples import Examples
from temper.evaluation.loading import load_predictor
from temper.export.export import Likeness
from temper.functional.calibration import fit_temperature, log_probabilities
from temper.models.standalone.pipeline import Pipeline
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import sentences, write_csv


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "run"))


@pytest.fixture
def held_out(trained: Path, tmp_path: Path) -> Path:
    """Return rows of which the run gets some wrong, and its surer ones right."""
    texts = [text for text, _ in sentences(20, thing="it")]
    predictor = load_predictor(Checkpoint.of(trained), device="cpu")
    result = predictor.predict(Examples("h", texts))
    assert result.logits is not None
    sure = np.argsort(np.abs(result.logits[:, 1] - result.logits[:, 0]))
    wrong = set(sure[:6].tolist())
    names = ("negative", "positive")
    labels = [names[int(y) ^ (n in wrong)] for n, y in enumerate(result.prediction.astype(int))]
    return write_csv(tmp_path / "held_out.csv", list(zip(texts, labels, strict=True)))


def predicted(run: Path, data: Path) -> list[dict[str, Any]]:
    result = succeed("predict", run, "--data", data, "--device", "cpu", "--json")
    results: list[dict[str, Any]] = json.loads(result.stdout)
    return results


def test_a_temperature_is_saved_applied_and_removed(run: Path, held_out: Path) -> None:
    before, identity = predicted(run, held_out), model_identity(str(run))
    result = succeed("calibrate", run, "--data", held_out, "--device", "cpu", "--json")
    made = json.loads(result.stdout)
    assert made == json.loads((run / "calibration.json").read_text(encoding="utf-8"))
    fractions = np.asarray([list(row["probabilities"].values()) for row in before])
    lines = held_out.read_text(encoding="utf-8").splitlines()[1:]
    labels = np.asarray([line.endswith("positive") for line in lines], dtype=int)
    fitted = fit_temperature(labels, log_probabilities(fractions))
    assert made["temperature"] == pytest.approx(fitted.value, rel=1e-6)
    assert made["nll"]["before"] == pytest.approx(fitted.before)
    assert made["nll"]["after"] == pytest.approx(fitted.after)
    assert made["nll"]["after"] < made["nll"]["before"]
    assert set(made["ece_15"]) == {"before", "after"}
    assert made["held_out"]["rows"] == 20
    assert made["held_out"]["source"]["path"].endswith("held_out.csv")
    assert made["max_length"] == 32
    # Other files in the folder do not change the weights' hash.
    assert model_identity(str(run)) == identity == made["model"]
    after = predicted(run, held_out)
    powers = fractions ** (1 / made["temperature"])
    wanted = powers / powers.sum(1, keepdims=True)
    results = np.asarray([list(row["probabilities"].values()) for row in after])
    assert results == pytest.approx(wanted)
    assert np.abs(results - fractions).max() > 1e-4
    assert [row["label"] for row in after] == [row["label"] for row in before]
    assert [row["anomaly"] for row in after] == pytest.approx((1 - wanted.max(1)).tolist())
    shown = call("calibrate", run, "--data", held_out, "--device", "cpu")
    assert f"Temperature {made['temperature']:.4f} from 20 rows" in shown.stdout
    succeed("calibrate", run, "--remove")
    assert predicted(run, held_out) == before
    refused(call("calibrate", run, "--remove"), "has no calibration to remove")


def test_an_evaluation_measures_the_uncalibrated_model_and_reports_it(
    run: Path, held_out: Path, tmp_path: Path
) -> None:
    def evaluated(name: str) -> dict[str, Any]:
        result = succeed(
            "evaluate", run, "--data", held_out, "--perspectives", "task,calibration", "--device",
            "cpu", "--set", "evaluate.bootstrap=0", "--out", tmp_path / name, "--json",
        )  # fmt: skip
        results: dict[str, Any] = json.loads(result.stdout)
        return results

    first = evaluated("first")
    succeed("calibrate", run, "--data", held_out, "--device", "cpu")
    second = evaluated("second")
    assert second["scores"] == first["scores"]
    assert any("has a calibration" in notice for notice in second["notices"])
    assert not any("has a calibration" in notice for notice in first["notices"])


def labeled(held_out: Path) -> list[tuple[str, str]]:
    lines = held_out.read_text(encoding="utf-8").splitlines()[1:]
    return [(text, label) for text, _, label in (line.rpartition(",") for line in lines)]


def test_dev_rows_of_the_run_are_excluded_by_default(
    run: Path, held_out: Path, tiny_data: Path, tmp_path: Path
) -> None:
    data = tiny_data / "reviews"
    refused(
        call("calibrate", run, "--data", data, "--device", "cpu"),
        f"All 12 rows of {data} are validation rows of", "--with-dev",
    )  # fmt: skip
    few = write_csv(tmp_path / "few.csv", [*sentences(3, thing="phone"), *labeled(held_out)])
    without = call("calibrate", run, "--data", few, "--device", "cpu", "--json")
    assert json.loads(without.stdout)["held_out"]["left_out"] == {"trained": 0, "dev": 3}
    assert json.loads(without.stdout)["held_out"]["rows"] == 20
    assert "3 of 23 rows, the first row 1, are left out" in without.stderr
    taken = call("calibrate", run, "--data", few, "--with-dev", "--device", "cpu", "--json")
    assert json.loads(taken.stdout)["held_out"]["left_out"] == {"trained": 0, "dev": 0}
    assert json.loads(taken.stdout)["held_out"]["rows"] == 23
    assert "3 of 23 rows are validation rows" in taken.stderr


def test_a_doubtful_temperature_and_a_replaced_one_are_reported(
    run: Path, held_out: Path, tmp_path: Path
) -> None:
    def calibrated(data: Path) -> tuple[dict[str, Any], str]:
        result = succeed("calibrate", run, "--data", data, "--device", "cpu", "--json")
        return json.loads(result.stdout), " ".join(result.stderr.split())

    first, message = calibrated(held_out)
    few = "The temperature is fitted on 20 rows only"
    assert few in message
    assert any(notice.startswith(few) for notice in first["notices"])
    assert "is replaced" not in message
    ece = first["ece_15"]
    assert ("increases the ECE" in message) == (ece["after"] > ece["before"])
    many = write_csv(tmp_path / "many.csv", [row for _ in range(3) for row in labeled(held_out)])
    second, message = calibrated(many)
    assert "fewer than" not in message
    replaced = f"(temperature {first['temperature']:.4f}) is replaced."
    assert replaced in message
    assert any(notice.endswith(replaced) for notice in second["notices"])


def test_scores_that_a_temperature_worsens_are_named() -> None:
    before, after = {"nll": 0.7, "ece_15": 0.23}, {"nll": 0.6, "ece_15": 0.34}
    (message,) = doubts(50, before, after)
    assert re.search(r"increases the ECE .* 0\.2300 -> 0\.3400", message)
    assert "--remove" in message
    assert len(doubts(50, after, before)) == 1
    assert doubts(50, before, before) == []
    assert len(doubts(49, before, after)) == 2


def test_a_temperature_alone_does_not_replace_a_full_calibration(run: Path, held_out: Path) -> None:
    asked = ("--coverage", ".5", "--false-alarms", ".5", "--set", "calibrate.fit_rows=16")
    succeed("calibrate", run, "--data", held_out, *asked, "--device", "cpu")
    before = (run / "calibration.json").read_bytes()
    refused(
        call("calibrate", run, "--data", held_out, "--device", "cpu"),
        "thresholds or a detector", "20 rows", "--remove",
    )  # fmt: skip
    assert (run / "calibration.json").read_bytes() == before


def test_fit_rows_limits_the_rows_of_the_fit(run: Path, held_out: Path) -> None:
    asked = ("--coverage", ".5", "--false-alarms", ".5", "--set", "calibrate.fit_rows=16")
    made = succeed("calibrate", run, "--data", held_out, *asked, "--device", "cpu", "--json")
    rows = json.loads(made.stdout)["held_out"]
    assert (rows["rows"], rows["fit"], rows["thresholds"]) == (20, 16, 4)


def test_a_damaged_or_outdated_temperature_raises_an_error(run: Path, held_out: Path) -> None:
    succeed("calibrate", run, "--data", held_out, "--device", "cpu")
    file = run / "calibration.json"
    kept = json.loads(file.read_text(encoding="utf-8"))
    file.write_text(json.dumps({**kept, "model": "other"}), encoding="utf-8")
    refused(call("predict", run, "--data", held_out), "fitted for weights that differ", "--remove")
    for fault in ({"temperature": 0.0}, {"temperature": "warm"}, {"schema": 2}):
        file.write_text(json.dumps({**kept, **fault}), encoding="utf-8")
        message = "reads schema 1" if "schema" in fault else "is damaged: `temperature`"
        refused(call("predict", run, "--data", held_out), message)
    del kept["schema"]
    file.write_text(json.dumps(kept), encoding="utf-8")
    refused(call("predict", run, "--data", held_out), "is damaged: `schema` is missing")
    succeed("calibrate", run, "--data", held_out, "--device", "cpu")


def test_a_calibration_is_exported_whole(run: Path, held_out: Path, tmp_path: Path) -> None:
    given = (
        "--coverage",
        ".5",
        "--false-alarms",
        ".5",
        "--set",
        "calibrate.fit_rows=16",
        "--device",
        "cpu",
    )
    succeed("calibrate", run, "--data", held_out, *given)
    succeed("export", run, "--out", tmp_path / "out")
    texts = ["the film was good", "a", "it was bad"]
    predictions = Pipeline(tmp_path / "out")(texts, abstain="anomaly, set>1")
    assert {"set", "anomalous", "abstain"} <= predictions[0].keys()
    for folder in (run, tmp_path / "out"):
        known = Classifier.load(str(folder), device="cpu")(texts, abstain="anomaly, set>1")
        result = Likeness.of([each.record() for each in known], predictions)
        assert (result.alike, result.largest_difference < 1e-5) == (len(texts), True)


def test_another_maximum_length_than_in_the_fit_is_reported(run: Path, held_out: Path) -> None:
    succeed("calibrate", run, "--data", held_out, "--device", "cpu")
    result = call("predict", run, "--data", held_out, "--max-length", 16, "--device", "cpu")
    assert re.search(r"cut at 32 tokens, .*cut at 16 tokens", result.stderr)


def test_rows_without_an_error_keep_temperature_1_with_a_warning(
    run: Path, held_out: Path, tmp_path: Path
) -> None:
    before = predicted(run, held_out)
    rows = [(row["text"], row["label"]) for row in before]
    right = write_csv(tmp_path / "right.csv", rows)
    result = succeed("calibrate", run, "--data", right, "--device", "cpu", "--json")
    assert json.loads(result.stdout)["temperature"] == 1.0
    assert re.search("All 20 rows .* are right", result.stderr)
    after = predicted(run, held_out)
    for one, other in zip(before, after, strict=True):
        assert one["probabilities"] == pytest.approx(other["probabilities"])


def test_the_classes_of_a_model_are_mapped_to_the_labels_of_held_out_rows(
    run: Path, held_out: Path, tmp_path: Path
) -> None:
    made = json_output("calibrate", run, "--data", held_out, "--device", "cpu")
    other = Path(shutil.copytree(run, tmp_path / "other"))
    (other / "calibration.json").unlink()
    config = json.loads((other / "config.json").read_text("utf-8"))
    config["id2label"] = {"0": "NO", "1": "YES"}
    (other / "config.json").write_text(json.dumps(config), encoding="utf-8")
    words = ("calibrate", other, "--data", held_out, "--device", "cpu")
    refused(call(*words), "--label-map")
    result = json_output(*words, "--label-map", "YES=positive,NO=negative")
    assert result["temperature"] == made["temperature"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("nowhere", "--data", "d.csv"), "nowhere is not one"),
        (("nowhere",), "--data is missing"),
        (("nowhere", "--remove", "--data", "d.csv"), "--remove accepts no other option"),
        (("model", "--data", "demo", "--set", "train.epochs=1"), "train"),
        (("model", "--data", "demo", "--set", "sets.suite=sentiment"), "sets.suite"),
        (("model", "--data", "demo", "--set", "evaluate.bootstrap=0"), "evaluate.bootstrap"),
        (("model", "--data", "demo", "--set", "evaluate=3"), "`evaluate` must be a table"),
        (("model", "--data", "demo", "--set", "sets=text"), "`sets` must be a table"),
    ],
)
def test_wrong_options_raise_an_error_before_any_work(
    tiny_model: Path, arguments: tuple[str, ...], words: str
) -> None:
    named = (tiny_model if word == "model" else word for word in arguments)
    refused(call("calibrate", *named), words)
