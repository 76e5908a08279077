"""`temper.Classifier` predicts as ``temper predict``, in any thread."""

from __future__ import annotations

import json
import re
import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.special import softmax

import temper
from temper.calibration.classifier import Classifier
from temper.checkpoints.identity import model_identity
from temper.errors import DataError
from temper.evaluation.function import CallablePredictor
from temper.models.hf import load_classifier
from tests.cli.calls import succeed
from tests.cli.tiny_project import make_model, sentences

TEXTS = [text for text, _ in sentences(30)]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("classifier") / "tiny")


@pytest.fixture(scope="module")
def calibrated(model: Path) -> Path:
    identity = model_identity(str(model))
    kept = {"schema": 1, "temperature": 0.1, "max_length": 128, "model": identity}
    (model / "calibration.json").write_text(json.dumps(kept), encoding="utf-8")
    return model


def reference(model: Path, texts: list[str]) -> np.ndarray[Any, Any]:
    """Return softmax(z / T) of texts run one by one, without padding."""
    network, tokenizer = load_classifier(str(model))
    with torch.no_grad():
        logits = [network(**tokenizer(text, return_tensors="pt")).logits[0] for text in texts]
    return np.asarray(softmax(torch.stack(logits).double().numpy() / 0.1, axis=1))


def test_predictions_equal_the_network_at_the_saved_temperature(calibrated: Path) -> None:
    result = temper.Classifier.load(calibrated, device="cpu", batch_size=7)(TEXTS)
    wanted = reference(calibrated, TEXTS)
    assert [list(row.probabilities.values()) for row in result] == [
        pytest.approx(row, abs=1e-5) for row in wanted.tolist()
    ]
    for row in result:
        assert row.label == max(row.probabilities, key=row.probabilities.__getitem__)
        assert row.anomaly == pytest.approx(1 - max(row.probabilities.values()))
    assert result.notices == ()
    (message,) = Classifier.load(str(calibrated), device="cpu", max_length=64)(TEXTS).notices
    assert re.search(r"cut at 128 tokens, .*cut at 64 tokens", message)


def test_a_calibration_without_a_maximum_length_is_described_in_words(
    calibrated: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(calibrated, tmp_path / "model"))
    file = model / "calibration.json"
    file.write_text(json.dumps({**json.loads(file.read_text("utf-8")), "max_length": None}))
    (message,) = Classifier.load(model, device="cpu", max_length=64)(TEXTS).notices
    assert re.search(r"were not cut, .*cut at 64 tokens", message)


def test_the_command_writes_the_same_records(calibrated: Path) -> None:
    lines = succeed("predict", calibrated, "--device", "cpu", text="\n".join(TEXTS)).stdout
    predictions = Classifier.load(calibrated, device="cpu")(TEXTS)
    wanted = [{"text": t, **row.record()} for t, row in zip(TEXTS, predictions, strict=True)]
    assert [json.loads(line) for line in lines.splitlines()] == wanted


def test_threads_that_share_a_classifier_get_the_same_predictions(calibrated: Path) -> None:
    classifier = Classifier.load(calibrated, device="cpu", batch_size=4)
    # Of several lengths, so that tokenizers which hold their padding would be caught.
    parts = [TEXTS[start : start + 3 + start % 5] for start in range(20)]
    wanted = [classifier(part).rows for part in parts]
    with ThreadPoolExecutor(8) as pool:
        result = list(pool.map(lambda part: classifier(part).rows, parts * 3))
    assert result == wanted * 3


def test_pairs_regressions_and_no_texts_at_all() -> None:
    lengths = CallablePredictor(lambda pairs: [len(a) - len(b) for a, b in pairs], gives="values")
    (prediction,) = Classifier(lengths)(["four"], ["six---"])
    assert prediction.record() == {"value": -2.0}
    assert (prediction.label, prediction.probabilities, prediction.anomaly) == (None, {}, None)
    assert len(Classifier(lengths)([])) == 0


@pytest.mark.parametrize(
    ("texts", "pairs", "words"),
    [
        ("one text", None, "`texts` .*, got str"),
        (["a", 3], None, "got int at index 1"),
        (["a"], ["b", "c"], "got 2 for 1"),
        (["a"], [None], "`text_pairs` .*, got NoneType at index 0"),
        (["a", "x\ud800"], None, r"half of a surrogate pair, '\\ud800'"),
        (["a"], ["\udfff"], r"half of a surrogate pair, '\\udfff'"),
    ],
)
def test_values_other_than_texts_raise_an_error(texts: Any, pairs: Any, words: str) -> None:
    never = CallablePredictor(lambda _: pytest.fail("it was asked"), gives="values")
    with pytest.raises(DataError, match=words):
        Classifier(never)(texts, pairs)
