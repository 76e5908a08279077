"""Training from a checkpoint with a trained head: its classes match the data's by name."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import ModelError, SettingError
from temper.evaluation.loading import load_predictor
from temper.training.config import RunConfig
from temper.training.run import train
from tests.cli.tiny_project import make_model, sentences, write_csv
from tests.training.listeners import Heard
from tests.training.tiny_training import record

TEXTS = Examples("texts", [text for text, _ in sentences(12)])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_model(tmp_path_factory.mktemp("base") / "model")


def checkpoint(base: Path, folder: Path, *names: str) -> Path:
    """Return a copy of the model whose outputs have these names."""
    import torch
    from transformers import AutoModelForSequenceClassification

    shutil.copytree(base, folder)
    torch.manual_seed(1)
    model = AutoModelForSequenceClassification.from_pretrained(
        base, num_labels=len(names), ignore_mismatched_sizes=True
    )
    torch.nn.init.normal_(model.classifier.weight)
    model.config.id2label = dict(enumerate(names))
    model.config.label2id = {name: index for index, name in enumerate(names)}
    model.save_pretrained(folder)
    return folder


def rows_of(path: Path, *labels: object, count: int = 24) -> Path:
    """Write rows whose labels take turns."""
    texts = [text for text, _ in sentences(count)]
    return write_csv(
        path, [(text, str(labels[row % len(labels)])) for row, text in enumerate(texts)]
    )


def trained(model: Path, data: Path, out: Path, **settings: Any) -> tuple[Path, list[str]]:
    """Train without changing any weight, and return the folder and the messages."""
    tree = {
        "model": str(model),
        "data": {"source": str(data), "max_length": 32},
        "train": {"max_steps": 1, "learning_rate": 1e-12, "device": "cpu", **settings},
        "method": {"name": "plain"},
    }
    heard = Heard()
    return train(RunConfig.of(tree), out, progress=heard), heard.notices


def by_name(folder: Path, **renamed: str) -> dict[str, np.ndarray[Any, Any]]:
    """Return the logits of each class by its name."""
    predictor = load_predictor(Checkpoint.of(folder), device="cpu")
    # Transformers leaves placeholders out of the file.
    unnamed = {"0": "LABEL_0", "1": "LABEL_1"}
    names = json.loads((folder / "config.json").read_text()).get("id2label", unnamed)
    logits = predictor.predict(TEXTS).logits
    assert logits is not None
    return {renamed.get(name, name): logits[:, int(index)] for index, name in names.items()}


def check_same(result: dict[str, Any], expected: dict[str, Any]) -> None:
    assert set(result) == set(expected)
    for name, logits in expected.items():
        np.testing.assert_allclose(result[name], logits, atol=1e-5)


@pytest.mark.parametrize("names", [("pos", "neg"), ("neg", "pos"), ("Pos", "NEG")])
def test_a_trained_head_is_matched_by_name_in_any_order(
    base: Path, tmp_path: Path, names: tuple[str, str]
) -> None:
    model = checkpoint(base, tmp_path / "model", *names)
    run, _ = trained(model, rows_of(tmp_path / "rows.csv", "neg", "pos"), tmp_path / "run")
    check_same(by_name(run), by_name(model, Pos="pos", NEG="neg"))
    assert record(run)["task"]["labels"] == ["neg", "pos"]


def test_a_head_of_numerals_is_matched_by_the_numbers(base: Path, tmp_path: Path) -> None:
    model = checkpoint(base, tmp_path / "model", "1", "0")
    data = rows_of(tmp_path / "rows.csv", 0, 1)
    run, notices = trained(model, data, tmp_path / "run")
    check_same(by_name(run), by_name(model))
    assert not any("by index" in notice for notice in notices)


def test_classes_without_rows_are_kept_and_reported(base: Path, tmp_path: Path) -> None:
    model = checkpoint(base, tmp_path / "model", "c", "b", "a")
    run, notices = trained(model, rows_of(tmp_path / "rows.csv", "a", "c"), tmp_path / "run")
    check_same(by_name(run), by_name(model))
    assert record(run)["task"]["labels"] == ["a", "c", "b"]
    assert any(notice.endswith("and are kept: b.") for notice in notices)


def test_a_head_with_other_names_needs_a_label_map_or_names(base: Path, tmp_path: Path) -> None:
    data = rows_of(tmp_path / "rows.csv", "neg", "pos")
    unnamed = checkpoint(base, tmp_path / "unnamed", "LABEL_0", "LABEL_1")
    other = checkpoint(base, tmp_path / "other", "POSITIVE", "NEGATIVE")
    for model, names in ((unnamed, "LABEL_0, LABEL_1"), (other, "POSITIVE, NEGATIVE")):
        with pytest.raises(ModelError, match=f"{names}, .* the labels neg, pos.*train.label_map"):
            trained(model, data, tmp_path / "refused")
        assert not (tmp_path / "refused").exists()
    run, _ = trained(unnamed, data, tmp_path / "one", label_names=["pos", "neg"])
    check_same(by_name(run), by_name(unnamed, LABEL_0="pos", LABEL_1="neg"))
    mapped = {"POSITIVE": "pos", "NEGATIVE": "neg"}
    run, _ = trained(other, data, tmp_path / "two", label_map=mapped)
    check_same(by_name(run), by_name(other, **mapped))
    run, _ = trained(other, data, tmp_path / "three", new_head=True)
    result, before = by_name(run), by_name(other, **mapped)
    assert not any(np.allclose(result[name], before[name], atol=1e-3) for name in ("neg", "pos"))


def test_integer_labels_get_the_names_of_the_head_by_index(base: Path, tmp_path: Path) -> None:
    model = checkpoint(base, tmp_path / "model", "pos", "neg")
    run, notices = trained(model, rows_of(tmp_path / "rows.csv", 0, 1), tmp_path / "run")
    check_same(by_name(run), by_name(model))
    assert any("by index: 0 is 'pos', 1 is 'neg'" in notice for notice in notices)


def test_another_number_of_classes_initializes_a_reported_new_head(
    base: Path, tmp_path: Path
) -> None:
    model = checkpoint(base, tmp_path / "model", "entailment", "neutral", "contradiction")
    data = rows_of(tmp_path / "rows.csv", "entailment", "not_entailment")
    run, notices = trained(model, data, tmp_path / "run")
    assert set(by_name(run)) == {"entailment", "not_entailment"}
    assert any("a new head is drawn" in notice for notice in notices)


def test_classes_without_names_are_named_by_their_numbers(base: Path, tmp_path: Path) -> None:
    data = rows_of(tmp_path / "rows.csv", 0, 1, 2)
    run, _ = trained(base, data, tmp_path / "run")
    assert set(by_name(run)) == {"0", "1", "2"}
    names = ["bad", "so so", "good"]
    run, _ = trained(base, data, tmp_path / "named", label_names=names, new_head=True)
    assert list(by_name(run)) == ["bad", "so so", "good"]


def test_a_label_map_without_a_trained_head_or_classes_raises_an_error(
    base: Path, tmp_path: Path
) -> None:
    data = rows_of(tmp_path / "rows.csv", "neg", "pos")
    with pytest.raises(SettingError, match="label_map"):
        trained(base, data, tmp_path / "run", label_map={"a": "b"}, new_head=True)
    numbers = rows_of(tmp_path / "numbers.csv", 0.5, 0.25)
    with pytest.raises(SettingError, match="train.label_names"):
        trained(base, numbers, tmp_path / "run", label_names=["a", "b"])
    with pytest.raises(SettingError, match="MODEL=DATA"):
        trained(base, data, tmp_path / "run", label_map=["a"])
    with pytest.raises(SettingError, match="names 'a' twice"):
        trained(base, data, tmp_path / "run", label_map="a=b,a=c")
