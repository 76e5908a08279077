"""Scores after each epoch change no weight, survive a stop, and may select the checkpoint."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temper.data.examples import Examples
from temper.data.sources import load_splits
from temper.errors import CheckpointError, SettingError
from temper.training.config import RunConfig
from temper.training.recorder import EpochScores, carve
from temper.training.run import train
from tests.cli.tiny_project import write_csv
from tests.training.listeners import Heard, StopAt
from tests.training.tiny_training import (
    logs,
    record,
    settings_of_run,
)


def config(project: Path, *, method: str = "uegr", source: str = "", **train: Any) -> RunConfig:
    train = {"epochs": 3, "logging_steps": 2, "batch_size": 8, "learning_rate": 1e-2, **train}
    data = {"source": source} if source else {}
    return RunConfig.of(settings_of_run(project, method=method, data=data, **train))


def accuracy(folder: Path, rows: Examples) -> float:
    """Return the accuracy by Transformers alone, row by row."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    right = 0
    for text, label in zip(rows.text, rows.labels or [], strict=True):
        inputs = tokenizer(text, return_tensors="pt", truncation=True, max_length=32)
        right += int(model(**inputs).logits.argmax()) == label
    return right / len(rows)


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return train(config(project), project / "scored")


@pytest.fixture(scope="module")
def best(project: Path) -> Path:
    return train(config(project, keep="best", keep_fraction=0.2), project / "best")


def test_scoring_dev_rows_after_epochs_changes_no_weight(project: Path) -> None:
    method = "roast"
    runs = [
        train(config(project, method=method, evaluate=each), project / f"{method}-{each}")
        for each in ("epoch", "off")
    ]
    scored, plain = runs
    assert weights(scored) == weights(plain)
    assert record(scored)["key"] == record(plain)["key"]
    assert len(record(scored)["epochs"]["scores"]) == 3
    assert "epochs" not in record(plain)
    assert [log for log in logs(scored) if "loss" in log] == logs(plain)


def test_the_last_epoch_score_equals_an_evaluation_of_the_run(whole: Path) -> None:
    content = record(whole)["epochs"]
    assert (content["metric"], content["kept"]["by"]) == ("accuracy", "last")
    assert [entry["epoch"] for entry in content["scores"]] == [1.0, 2.0, 3.0]
    assert content["kept"] == {"by": "last", **content["scores"][-1]}
    dev = load_splits(config(whole.parent).data).dev
    assert content["kept"]["dev"] == pytest.approx(accuracy(whole, dev))


@pytest.mark.parametrize("step", [5, 6])
def test_a_stopped_run_resumes_to_the_same_scores(project: Path, whole: Path, step: int) -> None:
    out = project / f"stopped-{step}"
    with pytest.raises(KeyboardInterrupt):
        train(config(project), out, progress=StopAt(step))
    train(config(project), out)
    assert weights(out) == weights(whole)
    assert logs(out) == logs(whole)
    assert record(out)["epochs"] == record(whole)["epochs"]


def test_an_epoch_stopped_before_its_score_is_scored_on_resume(
    project: Path, whole: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    out = project / "cut-off"
    with monkeypatch.context() as patched:
        patched.setattr(EpochScores, "on_epoch_end", stop)
        with pytest.raises(KeyboardInterrupt):
            train(config(project, save_steps=5), out)
    assert (out / "checkpoints" / "checkpoint-5").is_dir()
    train(config(project, save_steps=5), out)
    assert logs(out) == logs(whole)


@pytest.mark.parametrize("step", [5, 9])
def test_a_stopped_run_keeps_the_same_best_epoch(project: Path, best: Path, step: int) -> None:
    out = project / f"best-{step}"
    settings = config(project, keep="best", keep_fraction=0.2)
    with pytest.raises(KeyboardInterrupt):
        train(settings, out, progress=StopAt(step))
    train(settings, out)
    assert weights(out) == weights(best)
    assert record(out)["epochs"] == record(best)["epochs"]


def test_the_record_contains_the_best_epoch_and_its_selection_rows(
    project: Path, best: Path
) -> None:
    epochs, data = record(best)["epochs"], record(best)["data"]
    values = [entry["selection"] for entry in epochs["scores"]]
    chosen = values.index(max(values))
    assert epochs["kept"] == {"by": "best", **epochs["scores"][chosen]}
    assert (data["selection"]["rows"], data["train"]["rows"]) == (8, 32)
    assert data["selection"]["seed"] == 0
    _, expected = carve(load_splits(config(project).data).train, 0.2, seed=0)
    assert data["selection"]["hash"] == expected.hash
    assert any("8 of 40 training rows choose the epoch" in text for text in record(best)["notices"])


def test_keep_best_saves_the_weights_of_the_best_epoch(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = iter([0.5, 0.9, 0.9])
    monkeypatch.setattr("temper.training.recorder.ScoredSet.score", lambda *_, **__: next(values))
    settings = {"keep": "best", "evaluate": "off", "schedule": "constant", "warmup_ratio": 0.0}
    out = train(config(project, **settings), project / "second")
    assert record(out)["epochs"]["kept"]["epoch"] == 2.0
    values = iter([0.5, 0.9])
    short = train(config(project, **{**settings, "epochs": 2}), project / "two")
    assert weights(out) == weights(short)
    values = iter([0.5, 0.6, 0.9])
    last = train(config(project, **settings), project / "third")
    assert weights(last) != weights(out)


def test_final_steps_of_a_method_apply_to_the_best_epoch(project: Path) -> None:
    out = train(config(project, method="wise_ft", keep="best"), project / "wise")
    content = record(out)["epochs"]
    dev = load_splits(config(project).data).dev
    assert content["kept"]["dev"] == pytest.approx(accuracy(out, dev))


def test_a_missing_best_epoch_is_an_error_and_not_another_model(project: Path) -> None:
    out = project / "robbed"
    settings = config(project, keep="best")
    with pytest.raises(KeyboardInterrupt):
        train(settings, out, progress=StopAt(8))
    for folder in (out / "checkpoints").glob("best-*"):
        shutil.rmtree(folder)
    with pytest.raises(CheckpointError, match=r"best-.* is missing.*--restart"):
        train(settings, out)


def test_the_progress_receives_losses_and_scores(project: Path) -> None:
    heard = Heard()
    out = train(config(project, evaluate="epoch"), project / "heard", progress=heard)
    assert heard.entries == logs(out)
    assert sum("dev/accuracy" in entry for entry in heard.entries) == 3


def test_a_regression_is_scored_by_its_own_score(project: Path) -> None:
    rows = [(f"the film was {'very ' * n}good", f"{n}.5") for n in range(12)]
    write_csv(project / "stars" / "train.csv", rows)
    write_csv(project / "stars" / "dev.csv", [(t.replace("film", "phone"), v) for t, v in rows])
    out = train(
        config(project, method="plain", source=str(project / "stars"), keep="best"),
        project / "regression",
    )
    content = record(out)["epochs"]
    assert content["metric"] in ("pearson", "spearman", "mse")
    assert {"dev", "selection"} <= content["scores"][0].keys()


def test_selection_rows_are_stratified_and_independent_of_the_order() -> None:
    text = [f"row {number}" for number in range(40)]
    labels = [0 if number % 4 else 1 for number in range(40)]
    rows = Examples("toy", text, labels=labels, kind="classification")
    rest, chosen = carve(rows, 0.2, seed=3)
    assert (len(rest), len(chosen), sorted(chosen.labels or [])) == (32, 8, [0] * 6 + [1] * 2)
    assert not set(rest.text) & set(chosen.text)
    turned = carve(rows.select(range(39, -1, -1)), 0.2, seed=3)[1]
    assert sorted(turned.text) == sorted(chosen.text)
    assert sorted(carve(rows, 0.2, seed=4)[1].text) != sorted(chosen.text)


def test_equal_texts_and_single_rows_of_a_class_are_not_split() -> None:
    text = ["same"] * 6 + [f"row {number}" for number in range(13)] + ["alone"]
    labels = [0] * 6 + [1] * 13 + [2]
    rows = Examples("toy", text, labels=labels, kind="classification")
    for seed in range(20):
        rest, chosen = carve(rows, 0.5, seed=seed)
        assert not set(rest.text) & set(chosen.text)
        assert set(rest.labels or []) == {0, 1, 2}


def test_too_few_rows_to_choose_by_raise_an_error() -> None:
    rows = Examples("toy", ["a", "b"], labels=[0, 1], kind="classification")
    with pytest.raises(SettingError, match="too few for that"):
        carve(rows, 0.1, seed=0)


def test_keep_fraction_without_keep_best_raises_an_error(project: Path) -> None:
    with pytest.raises(SettingError, match=r"keep_fraction.*no effect.*'last'"):
        config(project, keep_fraction=0.3)
