"""``temper calibrate`` with enough rows: sets, anomalies, shifts, abstention, refusals."""

from __future__ import annotations

import csv
import json
import re
import shutil
from math import ceil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from scipy.special import softmax

from temper import Classifier
from temper.checkpoints.identity import model_identity
from temper.errors import CheckpointError, ModelError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.models.hf import load_classifier
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import OTHERS, write_csv

Array = np.ndarray[Any, Any]
WORDS = ("good", "fine", "great", "bad", "poor", "awful")


def texts_of(count: int, *, seed: int, words: tuple[str, ...] = (*WORDS, *OTHERS)) -> list[str]:
    draws = np.random.default_rng(seed)
    return [" ".join(draws.choice(words, draws.integers(3, 9))) for _ in range(count)]


def write_rows(path: Path, texts: list[str], run: Path, *, seed: int) -> Path:
    """Label texts by draws from the model's probabilities, so that it is right by chance alone."""
    draws = np.random.default_rng(seed)
    chances = softmax(logits_of(run, texts) * 3.0, axis=1)[:, 1]
    labels = np.where(draws.random(len(texts)) < chances, "positive", "negative")
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["text", "label"])
        writer.writerows(zip(texts, labels, strict=True))
    return path


def read_table(path: Path) -> list[dict[str, str]]:
    with path.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def logits_of(run: Path, texts: list[str]) -> Array:
    network, tokenizer = load_classifier(str(run))
    batch = tokenizer(texts, return_tensors="pt", padding=True)
    with torch.no_grad():
        return np.asarray(network(**batch).logits.double().numpy())


def states_of(run: Path, texts: list[str]) -> Array:
    """Return the mean over the tokens of every layer, text by text, [n, L, D]."""
    network, tokenizer = load_classifier(str(run))
    with torch.no_grad():
        result = [
            network(**tokenizer(text, return_tensors="pt"), output_hidden_states=True)
            for text in texts
        ]
    return np.stack([torch.cat(each.hidden_states).double().mean(1).numpy() for each in result])


@pytest.fixture(scope="module")
def trained(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a run with random weights: the tiny one predicts the same for all texts."""
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("drawn") / "run"))
    network, _ = load_classifier(str(run))
    draws = torch.Generator().manual_seed(0)
    for weight in network.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight.data, std=0.5, generator=draws)
    network.save_pretrained(run)
    logits = logits_of(run, texts_of(200, seed=1))
    apart = logits[:, 1] - logits[:, 0]
    head = list(network.parameters())[-2:]
    for parameter in head:
        parameter.data /= float(apart.std())
    head[1].data[1] -= float(apart.mean() / apart.std())
    network.save_pretrained(run)
    return run


@pytest.fixture(scope="module")
def rows(trained: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("held_out")
    return write_rows(folder / "held_out.csv", texts_of(300, seed=0), trained, seed=0)


@pytest.fixture(scope="module")
def calibrated(trained: Path, rows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = Path(shutil.copytree(trained, tmp_path_factory.mktemp("calibrated") / "run"))
    before = model_identity(str(run))
    succeed("calibrate", run, "--data", rows, "--device", "cpu")
    assert model_identity(str(run)) == before
    return run


def kept(run: Path) -> tuple[dict[str, Any], dict[str, Array]]:
    record = json.loads((run / "calibration.json").read_text(encoding="utf-8"))
    return record, load_file(run / record["arrays"]["file"])


def quantile(scores: Array, coverage: float) -> float:
    return float(np.sort(scores)[ceil((len(scores) + 1) * coverage) - 1])


def test_thresholds_follow_from_the_held_out_rows_by_the_equations(calibrated: Path) -> None:
    record, arrays = kept(calibrated)
    texts = texts_of(40, seed=5)
    temperature = record["temperature"]
    held_out = softmax(arrays["held_out.predictions"] / temperature, axis=1)
    labels = arrays["held_out.labels"].astype(int)
    q = quantile(1 - held_out[np.arange(len(held_out)), labels], 0.8)
    fractions = softmax(logits_of(calibrated, texts) / temperature, axis=1)
    means, white, centers, scales = (
        arrays[f"mahalanobis.{name}"] for name in ("means", "whitening", "centers", "scales")
    )
    apart = states_of(calibrated, texts) - means
    far = (np.einsum("lde,nle->nld", white, apart) ** 2).sum(axis=2)
    distance = ((far - centers) / scales).mean(axis=1)
    result = Classifier.load(calibrated, device="cpu", batch_size=7)(texts, coverage=0.8)
    for row, p, d in zip(result, fractions, distance, strict=True):
        assert list(row.probabilities.values()) == pytest.approx(p.tolist(), abs=1e-5)
        names = list(row.probabilities)
        if np.abs(1 - p - q).min() > 1e-4:
            assert row.set == tuple(n for n, s in zip(names, p, strict=True) if 1 - s <= q)
        assert row.anomaly == pytest.approx(d, rel=1e-3, abs=1e-3)
        assert row.anomalous == (row.anomaly > quantile(arrays["held_out.anomaly"], 0.95))
        assert row.abstain is None
    # Nothing of them was fitted: those are as many others.
    assert record["held_out"]["fit"] == record["held_out"]["thresholds"] == len(labels) == 150
    assert record["sets"]["thresholds"]["0.9"]["threshold"] == pytest.approx(
        quantile(1 - held_out[np.arange(len(held_out)), labels], 0.9)
    )


def test_a_model_that_is_right_on_every_row_still_gets_sets_detector_and_monitor(
    trained: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    texts = texts_of(200, seed=3)
    names = np.where(np.diff(logits_of(run, texts), axis=1)[:, 0] > 0, "positive", "negative")
    right = write_csv(tmp_path / "right.csv", list(zip(texts, names.tolist(), strict=True)))
    result = succeed("calibrate", run, "--data", right, "--device", "cpu")
    assert "Temperature 1 is kept" in result.stderr
    record, arrays = kept(run)
    assert record["temperature"] == 1.0
    assert {"sets", "anomaly"} <= record.keys()
    # `temper predict` compares later texts with these.
    assert len(arrays["held_out.anomaly"]) == len(arrays["shift.states"]) == 100
    assert Classifier.load(run, device="cpu")(texts[:1])[0].set == (names[0],)


def test_sets_of_new_rows_contain_the_label_and_few_rows_are_flagged(
    calibrated: Path, tmp_path: Path
) -> None:
    new = write_rows(tmp_path / "new.csv", texts_of(600, seed=7), calibrated, seed=9)
    texts, labels = ([row[name] for row in read_table(new)] for name in ("text", "label"))
    result = Classifier.load(calibrated, device="cpu")(texts)
    covered = np.mean([label in row.set for label, row in zip(labels, result, strict=True)])
    alarms = np.mean([row.anomalous for row in result])
    # Four deviations, of 600 rows and of the 150 that set the thresholds.
    assert abs(covered - 0.9) < 4 * np.sqrt(0.09 * (1 / 600 + 1 / 150))
    assert abs(alarms - 0.05) < 4 * np.sqrt(0.05 * 0.95 * (1 / 600 + 1 / 150))
    assert result.shift is not None
    assert not result.shift.shifted
    others = Classifier.load(calibrated, device="cpu")(texts_of(50, seed=3, words=("why", "how")))
    assert others.shift is not None
    assert others.shift.shifted
    assert np.mean([row.anomalous for row in others]) > 0.5
    assert any("has shifted" in message for message in others.notices)
    few = Classifier.load(calibrated, device="cpu")(texts[:10])
    assert few.shift is None


def test_one_pass_computes_predictions_and_states_for_any_batch_size(calibrated: Path) -> None:
    texts = texts_of(30, seed=11)
    classifier = Classifier.load(calibrated, device="cpu", batch_size=8)
    passes = []
    hook = classifier.predictor.model.register_forward_hook(lambda *_: passes.append(1))
    first = classifier(texts)
    hook.remove()
    assert len(passes) == ceil(30 / 8)
    second = Classifier.load(calibrated, device="cpu", batch_size=1)(texts)
    for one, other in zip(first, second, strict=True):
        assert (one.label, one.set, one.anomalous) == (other.label, other.set, other.anomalous)
        assert one.anomaly == pytest.approx(other.anomaly, rel=1e-4, abs=1e-4)


def test_the_command_writes_sets_flags_reasons_and_a_summary(
    calibrated: Path, tmp_path: Path
) -> None:
    texts = [*texts_of(20, seed=13), "why how why"]
    asked = ("--abstain", "anomaly,set>1", "--coverage", ".95", "--device", "cpu")
    lines = tmp_path / "texts.csv"
    lines.write_text("text\n" + "\n".join(texts) + "\n", encoding="utf-8")
    summary = tmp_path / "summary.json"
    result = json_output("predict", calibrated, "--data", lines, *asked, "--summary", summary)
    predictions = Classifier.load(calibrated, device="cpu")(
        texts, coverage=0.95, abstain="anomaly,set>1"
    )
    both = zip(predictions, texts, strict=True)
    assert [{**row.record(), "text": text} for row, text in both] == result
    for row in result:
        wanted = ["anomaly"] * row["anomalous"]
        wanted += [] if len(row["set"]) == 1 else [f"set of {n}" if (n := len(row["set"])) else ""]
        assert row["abstain"] == ", ".join(each or "empty set" for each in wanted)
    record = json.loads(summary.read_text(encoding="utf-8"))
    assert record["rows"] == 21
    assert record["abstained"] == sum(bool(row["abstain"]) for row in result)
    assert record["anomalous"] == sum(row["anomalous"] for row in result)
    assert set(record["shift"]) == {"p", "shifted", "rows"}
    table = tmp_path / "out.csv"
    succeed("predict", calibrated, "--data", lines, *asked, "--out", table)
    written = read_table(table)
    assert [int(row["set:positive"]) for row in written] == [
        int("positive" in row["set"]) for row in result
    ]
    shown = call("predict", calibrated, "--text", texts[-1], *asked).stdout.splitlines()
    assert shown[0].split() == ["label", "probability", "set", "anomaly", "abstain", "text"]


def test_evaluate_without_labels_estimates_the_same_as_predict(
    calibrated: Path, trained: Path, tmp_path: Path
) -> None:
    lines, summary = tmp_path / "texts.csv", tmp_path / "summary.json"
    lines.write_text("text\n" + "\n".join(texts_of(80, seed=21)) + "\n", encoding="utf-8")
    asked = ("--data", lines, "--device", "cpu")
    succeed("predict", calibrated, *asked, "--summary", summary)
    record = json.loads(summary.read_text(encoding="utf-8"))
    estimate = record["estimate"]["accuracy"]
    assert 0.5 < estimate["low"] < estimate["value"] < estimate["high"] < 1.0
    result = json_output("evaluate", calibrated, *asked, "--out", tmp_path / "out")
    assert {"schema": 1, **result} == record
    assert json.loads((tmp_path / "out" / "estimate.json").read_text("utf-8")) == record
    few = succeed("evaluate", calibrated, *asked, "--eval-rows", "5").stdout
    assert "cannot be estimated" in few
    # Everything else needs labels, and so does a model without held-out rows.
    refused(call("evaluate", calibrated, *asked, "--perspectives", "task"), "has no labels")
    refused(call("evaluate", trained, *asked), "classifier", "calibrate", str(trained))


def test_a_risk_has_a_confidence_threshold_or_raises_an_error(calibrated: Path) -> None:
    classifier = Classifier.load(calibrated, device="cpu")
    texts = texts_of(40, seed=17)
    known = classifier.calibration
    assert known is not None
    selection = known.confident(0.25)
    result = classifier(texts, max_risk=0.25)
    for row in result:
        sure = max(row.probabilities.values())
        assert bool(row.abstain) == (sure < selection.threshold)
    assert 0 < sum(bool(row.abstain) for row in result) < len(result)
    assert any("at most 25.00% of the predictions" in message for message in result.notices)
    with pytest.raises(SettingError, match="`max_risk` 0.001 cannot be guaranteed") as refusal:
        classifier(texts, max_risk=0.001)
    (least,) = map(float, re.findall(r"--max-risk\) to (\d\.\d+),", str(refusal.value)))
    assert any(row.abstain == "" for row in classifier(texts, max_risk=least))
    with pytest.raises(SettingError):
        classifier(texts, max_risk=least - 1e-3)


def test_the_coverage_holds_within_each_class(trained: Path, rows: Path, tmp_path: Path) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    succeed("calibrate", run, "--data", rows, "--by", "class", "--device", "cpu")
    record, arrays = kept(run)
    held_out = softmax(arrays["held_out.predictions"] / record["temperature"], axis=1)
    labels = arrays["held_out.labels"].astype(int)
    scores = 1 - held_out[np.arange(len(held_out)), labels]
    wanted = [quantile(scores[labels == label], 0.9) for label in (0, 1)]
    assert record["sets"]["thresholds"]["0.9"]["threshold"] == pytest.approx(wanted)


def test_the_best_detector_is_chosen_if_anomalies_are_given(
    trained: Path, rows: Path, tiny_data: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    anomalies = ("--anomaly", f"odd={tiny_data / 'anomaly.csv'}")
    made = json_output("calibrate", run, "--data", rows, *anomalies, "--device", "cpu")
    scores = {name: sets["odd"] for name, sets in made["anomaly"]["auroc"].items()}
    assert set(scores) == {"mahalanobis", "energy", "max_softmax"}
    assert made["anomaly"]["detector"] == max(scores, key=scores.__getitem__)
    assert any("Mean AUROC" in message for message in made["notices"])
    again = Classifier.load(run, device="cpu")(["why is it"])
    assert again[0].anomalous is not None


def test_a_model_without_hidden_states_is_calibrated_by_its_predictions(
    trained: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def lacking(*_: object, **__: object) -> None:
        raise ModelError("It does not give its hidden states.")

    monkeypatch.setattr(ClassifierPredictor, "predict_with_states", lacking)
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    made = succeed("calibrate", run, "--data", rows, "--device", "cpu")
    assert "Hidden states cannot be read" in made.stderr
    assert "shift.states" not in kept(run)[1]
    classifier = Classifier.load(run, device="cpu")
    result, others = classifier(texts_of(40, seed=5)), classifier(["why how"] * 40)
    assert all(row.set is not None and row.anomalous is not None for row in result)
    assert result.shift is not None
    assert others.shift is not None
    assert (result.shift.shifted, others.shift.shifted) == (False, True)


def test_unsupported_requests_raise_an_error_before_any_work(
    trained: Path, rows: Path, calibrated: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(trained, tmp_path / "run"))
    few = tmp_path / "few.csv"
    first = rows.read_text(encoding="utf-8").splitlines()[:21]
    few.write_text("\n".join(first) + "\n", encoding="utf-8")
    refused(
        call("calibrate", run, "--data", few, "--coverage", ".95", "--device", "cpu"),
        "a coverage of 0.95 needs at least 19 rows", "there are 10",
    )  # fmt: skip
    assert not (run / "calibration.json").exists()
    refused(call("predict", run, "--text", "a", "--coverage", ".9"), "has no calibration")
    refused(call("predict", calibrated, "--text", "a", "--coverage", ".999"), "at least 999")
    refused(call("predict", calibrated, "--text", "a", "--abstain", "set>0"), "got 'set>0'")
    refused(call("predict", calibrated, "--text", "a", "--max-risk", "2"), "fraction in (0, 1)")


def test_an_incomplete_calibration_raises_an_error_and_remove_deletes_all_files(
    calibrated: Path, tmp_path: Path
) -> None:
    run = Path(shutil.copytree(calibrated, tmp_path / "run"))
    (arrays,) = run.glob("calibration-*.safetensors")
    content = arrays.read_bytes()
    arrays.write_bytes(content[:-8] + bytes(8))
    with pytest.raises(CheckpointError, match="differs from the one"):
        Classifier.load(run)
    arrays.unlink()
    with pytest.raises(CheckpointError, match="is damaged"):
        Classifier.load(run)
    arrays.write_bytes(content)
    (run / f"calibration-{'0' * 12}.safetensors").write_bytes(b"left by a killed process")
    succeed("calibrate", run, "--remove")
    assert not list(run.glob("calibration*"))
