"""An evaluation's folder: written whole or not at all, and read only where it is whole."""

from __future__ import annotations

from pathlib import Path

import pytest

from temper.errors import CheckpointError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import (
    Evaluation,
    EvaluationData,
    EvaluationSettings,
    evaluate,
    read,
    write,
)

CLEAN = EvaluationSettings(perspectives=("task", "shift", "calibration", "anomaly"), bootstrap=50)


def test_an_evaluation_replaces_an_older_one_and_nothing_else(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    found = evaluate(predictor, data, CLEAN)
    out = tmp_path / "deep" / "evaluation"
    write(found, out)
    write(found, out)
    assert sorted(path.name for path in out.parent.iterdir()) == ["evaluation"]
    files = ["rows.parquet", "scores.json", "texts.parquet"]
    assert sorted(path.name for path in out.iterdir()) == files
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds other files \(notes.txt\)"):
        write(found, out)
    assert (out / "notes.txt").read_text() == "mine"
    with pytest.raises(CheckpointError, match="is a file"):
        write(found, out / "notes.txt")


def test_a_write_that_fails_leaves_the_older_evaluation_and_no_rest(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    found = evaluate(predictor, data, CLEAN)
    write(found, tmp_path / "evaluation")
    broken = Evaluation(found.rows, [{"value": float("nan")}])
    with pytest.raises(ValueError, match="not JSON compliant"):
        write(broken, tmp_path / "evaluation")
    assert read(tmp_path / "evaluation") == found
    assert [path.name for path in tmp_path.iterdir()] == ["evaluation"]


def test_damaged_evaluations_are_refused(
    predictor: ClassifierPredictor, data: EvaluationData, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(tmp_path / "none")
    out = write(evaluate(predictor, data, CLEAN), tmp_path / "evaluation")
    scores = out / "scores.json"
    whole = scores.read_text()
    scores.write_text(whole.replace('"schema": 1', '"schema": 2'))
    with pytest.raises(CheckpointError, match="must have schema 1, got 2"):
        read(out)
    scores.write_text(whole[:-20])
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(out)
    scores.write_text(whole)
    (out / "rows.parquet").write_bytes(b"PAR1")
    with pytest.raises(CheckpointError, match="Cannot read the evaluation in"):
        read(out)
