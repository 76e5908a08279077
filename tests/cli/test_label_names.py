"""``evaluate`` and ``predict`` match labels by name, not by the order of the classes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper import evaluate
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.evaluation.loading import load_predictor
from temper.models.hf import load_classifier
from tests.cli.calls import call, json_output, refused
from tests.cli.tiny_project import sentences, write_csv

MEASURED = ("--perspectives", "task", "--set", "evaluate.bootstrap=0", "--device", "cpu")


TEXTS = [text for text, _ in sentences(12)]


@pytest.fixture(scope="module")
def model(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the tiny model with a head that predicts each of its classes as often."""
    folder = Path(shutil.copytree(tiny_model, tmp_path_factory.mktemp("even") / "model"))
    network, _ = load_classifier(str(folder))
    logits = (
        load_predictor(Checkpoint.of(folder), device="cpu").predict(Examples("t", TEXTS)).logits
    )
    assert logits is not None
    network.classifier.bias.data[1] -= float(np.median(logits[:, 1] - logits[:, 0]))
    network.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def predicted(model: Path) -> list[tuple[str, int]]:
    """Return texts and the class that the model predicts for each, half of them each."""
    result = (
        load_predictor(Checkpoint.of(model), device="cpu").predict(Examples("t", TEXTS)).prediction
    )
    assert result.sum() == 6
    return list(zip(TEXTS, result.astype(int).tolist(), strict=True))


def renamed(model: Path, folder: Path, *names: str) -> Path:
    """Return a copy of the model that calls its outputs so."""
    shutil.copytree(model, folder)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    config |= {"id2label": dict(enumerate(names)), "label2id": {n: i for i, n in enumerate(names)}}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return folder


def right(path: Path, predicted: list[tuple[str, int]], *names: object) -> Path:
    """Write the texts with the right label under these names of the outputs."""
    return write_csv(path, [(text, str(names[output])) for text, output in predicted])


def accuracy(result: Any) -> float:
    (value,) = (score["value"] for score in result["scores"] if score["name"] == "accuracy")
    return float(value)


@pytest.mark.parametrize("names", [("pos", "neg"), ("Pos", "NEG"), ("1", "0"), ("0", "1")])
def test_labels_meet_classes_by_name(
    model: Path, tmp_path: Path, predicted: list[tuple[str, int]], names: tuple[str, str]
) -> None:
    called = renamed(model, tmp_path / "model", *names)
    data = right(tmp_path / "data.csv", predicted, *(name.lower() for name in names))
    result = json_output("evaluate", called, "--data", data, "--out", tmp_path / "out", *MEASURED)
    assert accuracy(result) == 1.0
    assert result["task"]["labels"] == list(names)
    assert not any("by index" in notice for notice in result["notices"])
    assert any("in case only" in note for note in result["notices"]) is (names == ("Pos", "NEG"))


@pytest.mark.parametrize("names", [("LABEL_0", "LABEL_1"), ("POSITIVE", "NEGATIVE"), ("1", "0")])
def test_other_label_names_raise_an_error_and_mapped_ones_are_correct(
    model: Path, tmp_path: Path, predicted: list[tuple[str, int]], names: tuple[str, str]
) -> None:
    called = renamed(model, tmp_path / "model", *names)
    data = right(tmp_path / "data.csv", predicted, "pos", "neg")
    words = ("evaluate", called, "--data", data, "--out", tmp_path / "out", *MEASURED)
    refused(call(*words), "neg, pos", "--label-names")
    mapped = json_output(*words, "--label-map", f"{names[0]}=pos,{names[1]}=neg")
    assert accuracy(mapped) == 1.0
    assert mapped["task"]["labels"] == ["pos", "neg"]
    refused(call(*words, "--label-names", "neg,pos"), "label_names")
    out = tmp_path / "python"
    given: dict[str, Any] = {"perspectives": "task", "device": "cpu", "out": out}
    result = evaluate(called, data, label_names=["pos", "neg"], **given)
    assert result.scores.set_index("name")["value"]["accuracy"] == 1.0


def test_a_set_without_a_class_of_the_model_is_matched_by_name(
    model: Path, tmp_path: Path, predicted: list[tuple[str, int]]
) -> None:
    called = renamed(model, tmp_path / "model", "-1", "1")
    ones = [row for row in predicted if row[1] == 1]
    data = write_csv(tmp_path / "ones.csv", [(text, "1") for text, _ in ones])
    result = json_output("evaluate", called, "--data", data, "--out", tmp_path / "out", *MEASURED)
    assert accuracy(result) == 1.0


def test_bare_integers_meet_words_by_index_with_a_notice(
    model: Path, tmp_path: Path, predicted: list[tuple[str, int]]
) -> None:
    data = right(tmp_path / "data.csv", predicted, 0, 1)
    result = json_output("evaluate", model, "--data", data, "--out", tmp_path / "out", *MEASURED)
    assert accuracy(result) == 1.0
    assert any("by index: 0 is 'negative', 1 is 'positive'" in text for text in result["notices"])


def test_predictions_have_the_mapped_names(model: Path) -> None:
    given = ("--label-map", "negative=bad", "--device", "cpu", "--json", "--text", "the film was")
    row = json_output("predict", model, *given)[0]
    assert set(row["probabilities"]) == {"bad", "positive"}


def test_a_wrong_map_raises_an_error(model: Path, tmp_path: Path) -> None:
    words = ("evaluate", model, "--data", "demo", "--out", tmp_path / "out", *MEASURED)
    refused(call(*words, "--label-map", "negative"), "predictor.label_map", "MODEL=DATA")
    refused(call(*words, "--label-map", "negativ=bad"), "Unknown class 'negativ'")
    refused(call(*words, "--label-names", "a,b,c"), "gives 3 names", "2 classes")
