"""Commands on texts longer than the maximum length: training, calibration and prediction."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from temper import Classifier
from temper.checkpoints.checkpoint import Checkpoint
from temper.evaluation.loading import load_predictor
from temper.evaluation.settings import PredictorSettings
from temper.models.hf import load_classifier
from temper.types import Windows
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import BAD, GOOD, OTHERS, make_model, write_csv
from tests.service.serving import running

LENGTH = 16
LONG = "the film was very " * 30 + "good"


def long_sentences(count: int) -> list[tuple[str, str]]:
    """Return rows of 6 to 60 words whose last word alone decides the label."""
    rows = []
    for number in range(count):
        words = [OTHERS[(number + index) % len(OTHERS)] for index in range(5 + number % 55)]
        last = (GOOD if number % 2 else BAD)[number // 2 % 3]
        rows.append((" ".join([*words, last]), "positive" if number % 2 else "negative"))
    return rows


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    rows = long_sentences(180)
    write_csv(folder / "data" / "train.csv", rows[:60])
    write_csv(folder / "data" / "dev.csv", rows[60:80])
    write_csv(folder / "held-out.csv", rows[80:])
    return folder


@pytest.fixture(scope="module")
def run(project: Path) -> Path:
    succeed(
        "train", "--model", project / "model", "--data", project / "data", "--max-length", LENGTH,
        "--stride", 4, "--set", "data.max_windows=12", "--method", "r_drop", "--epochs", 1,
        "--device", "cpu", "--out", project / "run",
    )  # fmt: skip
    return project / "run"


def by_hand(folder: Path, text: str, *, pool: str = "mean") -> np.ndarray[Any, Any]:
    """Return the logits of a text: those of its windows, one by one, pooled."""
    model, tokenizer = load_classifier(str(folder))
    tokens = tokenizer(text, add_special_tokens=False)["input_ids"]
    step, result = LENGTH - 2 - 4, []
    for start in range(0, max(len(tokens) - 4, 1), step):
        window = [tokenizer.cls_token_id, *tokens[start : start + LENGTH - 2]]
        ids = torch.tensor([[*window, tokenizer.sep_token_id]])
        with torch.no_grad():
            result.append(model(input_ids=ids).logits[0].double().numpy())
    assert len(result) == 12
    return np.mean(result, 0) if pool == "mean" else np.max(result, 0)


def test_a_run_predicts_long_texts_in_the_windows_of_its_training(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    assert record["truncated"] == 0
    assert record["settings"]["data"]["stride"] == 4
    logits = by_hand(run, LONG)
    expected = np.exp(logits[1]) / np.exp(logits).sum()
    (row,) = json_output("predict", run, "--text", LONG)
    assert row["probabilities"]["positive"] == pytest.approx(expected, abs=1e-5)
    classifier = Classifier.load(run, device="cpu")
    assert not classifier([LONG]).notices
    with running(classifier) as service:
        body = service.client.predict({"texts": [LONG, "good"]}).content
    result = [each["probabilities"]["positive"] for each in body["predictions"]]
    assert result[0] == pytest.approx(expected, abs=1e-5)


def test_a_published_model_keeps_windows_and_length(run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    (copy / "run.json").unlink()
    predictor: Any = load_predictor(Checkpoint.of(copy), device="cpu")
    assert predictor.windows == Windows(4, "mean", 12)
    assert predictor.max_length == LENGTH


def test_windows_of_the_predictor_override_those_of_the_training(run: Path) -> None:
    model = Checkpoint.of(run)

    def windows(**settings: Any) -> Any:
        given = PredictorSettings(device="cpu", **settings)
        return load_predictor(model, settings=given).windows  # type: ignore[attr-defined]

    assert windows(stride=2, pool="max") == Windows(2, "max", 12)
    assert windows(max_windows=3) == Windows(4, "mean", 3)
    assert windows(max_windows=1) is None


def test_a_calibration_records_its_windows(project: Path, run: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(run, tmp_path / "copy"))
    succeed("calibrate", copy, "--data", project / "held-out.csv")
    kept = json.loads((copy / "calibration.json").read_text())
    assert kept["windows"] == {"stride": 4, "pool": "mean", "max_windows": 12}
    notices = Classifier.load(copy, device="cpu")([LONG]).notices
    assert not any("Calibrate again" in message for message in notices)
    other = PredictorSettings(device="cpu", stride=2)
    notices = Classifier.load(copy, settings=other)([LONG]).notices
    assert any("Calibrate again" in message for message in notices)


def test_a_model_without_windows_truncates_texts_and_names_the_setting(
    project: Path, tmp_path: Path
) -> None:
    short = ("--max-length", LENGTH)
    output = succeed("predict", project / "model", "--text", LONG, *short).stderr
    assert "--set predictor.stride=4" in output
    succeed("predict", project / "model", "--text", LONG, *short, "--set", "predictor.stride=4")
    words = ("`predictor.stride`", "no stride is given")
    refused(
        call("predict", project / "model", "--text", LONG, "--set", "predictor.pool=max"), *words
    )


def test_windows_raise_an_error_for_exports_other_heads_and_mixup(
    project: Path, run: Path, tmp_path: Path
) -> None:
    refused(call("export", run, "--out", tmp_path / "export"), "windows", "temper push")
    held_out = ("--data", project / "held-out.csv")
    refused(call("calibrate", run, *held_out, "--backend", "int8"), "windows")
    tags = tmp_path / "tags.jsonl"
    tags.write_text('{"tokens": ["Ada", "was", "here"], "ner_tags": ["B-PER", "O", "O"]}\n' * 8)
    given = ("--model", project / "model", "--max-length", LENGTH, "--stride", 4)
    refused(call("train", *given, "--data", tags, "--out", tmp_path / "run"), "data.stride")
    reviews = ("--data", project / "data", "--method", "mixup", "--out", tmp_path / "run")
    refused(call("train", *given, *reviews), "mixup", "windows")


def test_training_from_a_run_with_windows_uses_its_windows(
    project: Path, run: Path, tmp_path: Path
) -> None:
    given = ("--model", run, "--data", project / "data", "--max-length", LENGTH, "--device", "cpu")
    short = ("--set", "train.max_steps=1", "--out", tmp_path / "run")
    output = succeed("train", *given, *short).stderr
    assert "stride=4" in output
    predictor: Any = load_predictor(Checkpoint.of(tmp_path / "run"), device="cpu")
    assert predictor.windows is None
    assert "text_windows" not in json.loads((tmp_path / "run" / "config.json").read_text())
