"""Wrong labels: each row is predicted by models that never saw it, and wrong labels rank first."""

from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import temper
from temper.data.examples import Examples, Splits
from temper.data.splitting import fold_of_rows, folds
from temper.errors import DataError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.study import wrong_labels as module
from temper.study.wrong_labels import label_losses, out_of_fold
from temper.training.config import RunConfig
from temper.training.prepared import prepare
from tests.cli.calls import call, refused
from tests.cli.tiny_project import make_model, sentences, write_csv

ROWS, WRONG = 60, (3, 20, 41)


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wrong_labels")
    make_model(folder / "model")
    rows = sentences(ROWS)
    other = {label: next(b for _, b in rows if b != label) for _, label in rows}
    dirty = [(t, other[b] if n in WRONG else b) for n, (t, b) in enumerate(rows)]
    write_csv(folder / "reviews.csv", dirty)
    return folder


def options(project: Path, **changes: Any) -> dict[str, Any]:
    train = {"learning_rate": 1e-2, "device": "cpu"}
    return {"model": str(project / "model"), "epochs": 2, "train": train, **changes}


def config(project: Path) -> RunConfig:
    return RunConfig.of(
        {
            "model": str(project / "model"),
            "data": {"source": str(project / "reviews.csv")},
            "method": {"name": "plain"},
            "train": {"max_steps": 2, "device": "cpu"},
        }
    )


def test_wrong_labels_rank_first_with_the_right_one_suggested(project: Path) -> None:
    result = temper.check_labels(project / "reviews.csv", folds=3, **options(project))
    assert sorted(result["row"]) == list(range(1, ROWS + 1))
    assert result["score"].is_monotonic_decreasing
    first = result.head(len(WRONG))
    assert sorted(first["row"]) == [row + 1 for row in WRONG]
    assert (first["label"] != first["suggested"]).all()


def test_no_model_predicts_a_text_that_it_was_trained_on(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Examples, Examples]] = []

    def watched(run: RunConfig, splits: Splits) -> Any:
        seen.append((splits.train, splits.dev))
        return prepare(run, splits)

    monkeypatch.setattr(module, "prepare", watched)
    texts = [text for text, _ in sentences(50)]
    # Every text twice, with different labels: a copy in training would decide the other's score.
    labels = [index % 2 for index in range(100)]
    rows = Examples("twice", texts * 2, labels=labels, kind="classification")
    result = out_of_fold(config(project), rows, folds=4)
    assert result.probabilities.shape == (100, 2)
    np.testing.assert_allclose(result.probabilities.sum(axis=1), 1.0)
    assert sum(len(kept) for _, kept in seen) == 100
    assert all(not kept.overlap(train) for train, kept in seen)


def test_the_mean_is_over_all_epochs(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[np.ndarray[Any, Any]] = []
    predict = ClassifierPredictor.predict

    def watched(self: Any, examples: Examples, **given: Any) -> Any:
        prediction = predict(self, examples, **given)
        calls.append(prediction.probabilities)
        return prediction

    monkeypatch.setattr(ClassifierPredictor, "predict", watched)
    rows = Examples(
        "rows",
        [text for text, _ in sentences(ROWS)],
        labels=[index % 2 for index in range(ROWS)],
        kind="classification",
    )
    run = config(project)
    train = run.train.model_copy(update={"max_steps": None, "epochs": 3.0})
    run = run.model_copy(update={"train": train})
    result = out_of_fold(run, rows, folds=2)
    assert len(calls) == 6
    of_row = np.asarray(fold_of_rows(rows, 2, seed=run.seed))
    for fold in (0, 1):
        mean = sum(calls[3 * fold : 3 * fold + 3]) / 3
        np.testing.assert_allclose(result.fine_tuned[of_row == fold], mean)


@given(
    st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 2)), min_size=3, max_size=30),
    st.integers(2, 5),
    st.integers(0, 9),
)
def test_folds_are_the_rows_of_their_number(
    pairs: list[tuple[str, int]], count: int, seed: int
) -> None:
    rows = Examples(
        "rows", [t for t, _ in pairs], labels=[b for _, b in pairs], kind="classification"
    )
    of_row = fold_of_rows(rows, count, seed=seed)
    texts: dict[str, set[int]] = {}
    for (text, _), fold in zip(pairs, of_row, strict=True):
        texts.setdefault(text, set()).add(fold)
    assert all(len(result) == 1 for result in texts.values())
    for number, part in enumerate(folds(rows, count, seed=seed)):
        wanted = [text for (text, _), own in zip(pairs, of_row, strict=True) if own == number]
        assert list(part.text) == wanted


def test_a_loss_is_finite_and_that_of_the_label() -> None:
    probabilities = np.array([[0.2, 0.8], [1.0, 0.0]])
    np.testing.assert_allclose(label_losses(probabilities, np.array([0, 0])), -np.log([0.2, 1.0]))
    assert np.isfinite(label_losses(probabilities, np.array([0, 1]))).all()


def test_few_rows_float_labels_and_networks_from_scratch_raise_an_error(project: Path) -> None:
    rows = Examples("few", ["a", "b"], labels=[0, 1], kind="classification")
    with pytest.raises(DataError, match="50"):
        out_of_fold(config(project), rows)
    values = replace(rows, labels=[0.5, 1.5], kind="regression")
    with pytest.raises(DataError, match="few"):
        out_of_fold(config(project), values)
    with pytest.raises(SettingError, match="folds"):
        temper.check_labels(project / "reviews.csv", **options(project, folds=1))
    with pytest.raises(SettingError, match="text_cnn"):
        temper.check_labels(project / "reviews.csv", model="text_cnn")


def test_a_model_trained_on_the_rows_raises_an_error(project: Path, tmp_path: Path) -> None:
    train = {"max_steps": 1, "device": "cpu"}
    data, model = str(project / "reviews.csv"), str(project / "model")
    temper.train(data, model=model, method="plain", out=tmp_path / "run", train=train)
    with pytest.raises(SettingError, match="trained on"):
        temper.check_labels(data, **options(project, model=str(tmp_path / "run")))


def test_the_command_writes_every_row_and_escapes_formulas(project: Path, tmp_path: Path) -> None:
    with (project / "reviews.csv").open(encoding="utf-8", newline="") as file:
        rows = [(row["text"], row["label"]) for row in csv.DictReader(file)]
    rows[5] = ("=" + rows[5][0], rows[5][1])
    source, out = write_csv(tmp_path / "more.csv", rows), tmp_path / "new" / "checked.csv"
    words = ("--model", str(project / "model"), "--epochs", "1", "--folds", "2")
    device = ("--device", "cpu", "--out", str(out), "--json", "--worst", "4")
    printed = json.loads(call("check-labels", str(source), *words, *device).stdout)
    with out.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    assert list(lines[0]) == ["row", "text", "label", "suggested", "score"]
    assert len(lines) == printed["rows"] == ROWS
    assert [int(line["row"]) for line in lines[:4]] == [row["row"] for row in printed["worst"]]
    assert next(line["text"] for line in lines if line["row"] == "6").startswith("'=")
    refused(call("check-labels", str(source), *words, "--out", "checked.txt"), ".csv")
