"""Rows that a run has seen are recognized by their hashes in every set."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.evaluation.function import CallablePredictor
from temper.evaluation.run import EvaluationData, evaluate, write
from temper.evaluation.sets import seen_among, trained_among, trained_rows
from temper.evaluation.settings import EvaluationSettings
from tests.cli.tiny_project import sentences, write_csv
from tests.messages import assert_messages


def texts(thing: str, count: int) -> list[str]:
    return [text for text, _ in sentences(count, thing=thing)]


def rows(*found: str) -> Examples:
    labels = [index % 2 for index in range(len(found))]
    return Examples("rows", list(found), labels=labels, kind="classification")


def source(folder: Path, thing: str) -> Path:
    write_csv(folder / "train.csv", sentences(20, thing=thing))
    write_csv(folder / "dev.csv", sentences(8, thing=f"{thing} it"))
    return folder


def run(folder: Path, source: Path, **sampled: Any) -> Path:
    """Write the record that a run on a source leaves."""
    splits = load_splits(DataSettings(source=str(source), **sampled))
    sets = {"train": splits.train, "dev": splits.dev}
    record = {
        "settings": {"data": {"source": str(source), **sampled}},
        "data": {name: {"rows": len(each), "hash": each.hash} for name, each in sets.items()},
    }
    folder.mkdir(parents=True)
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return folder


def test_rows_of_train_and_dev_are_recognized(tmp_path: Path) -> None:
    made = run(tmp_path / "run", source(tmp_path / "films", "film"))
    new, train, dev = texts("phone", 2), texts("film", 20), texts("film it", 8)
    seen = seen_among(Checkpoint.of(made), rows(new[0], train[3], dev[0], new[1], train[3], dev[7]))
    assert (seen.trained, seen.judged, seen.notices) == ((1, 4), (2, 5), ())


def test_rows_outside_the_training_sample_are_not_seen(tmp_path: Path) -> None:
    films = source(tmp_path / "films", "film")
    made = run(tmp_path / "run", films, rows=10, eval_rows=4)
    whole = rows(*texts("film", 20), *texts("film it", 8))
    seen = seen_among(Checkpoint.of(made), whole)
    drawn = load_splits(DataSettings(source=str(films), rows=10, eval_rows=4))
    assert {whole.text[index] for index in seen.trained} == set(drawn.train.text)
    assert {whole.text[index] for index in seen.judged} == set(drawn.dev.text)
    assert (len(seen.trained), len(seen.judged)) == (10, 4)


def test_a_plain_checkpoint_has_no_known_training_rows(tmp_path: Path) -> None:
    seen = seen_among(Checkpoint.of(tmp_path), rows("a", "b"))
    assert (seen.trained, seen.judged, seen.notices) == ((), (), ())


def test_unchecked_rows_of_missing_data_are_reported(tmp_path: Path) -> None:
    films = source(tmp_path / "films", "film")
    made = run(tmp_path / "run", films)
    splits = load_splits(DataSettings(source=str(films)))
    shutil.rmtree(films)
    seen = seen_among(Checkpoint.of(made), rows(*texts("film", 3)))
    assert seen.trained == ()
    assert_messages(
        seen.notices, "trained on .*could not be checked", "evaluated on .*could not be checked"
    )
    # The hash of a whole set still identifies it.
    assert len(seen_among(Checkpoint.of(made), splits.train).trained) == 20
    assert len(seen_among(Checkpoint.of(made), splits.dev).judged) == 8


def test_an_evaluation_in_the_run_folder_identifies_the_dev_rows(tmp_path: Path) -> None:
    films = source(tmp_path / "films", "film")
    made = run(tmp_path / "run", films)
    splits = load_splits(DataSettings(source=str(films)))
    predictor = CallablePredictor(
        lambda texts: [[0.4, 0.6]] * len(texts),
        gives="probabilities",
        label_names=splits.dev.label_names,
    )
    settings = EvaluationSettings(perspectives=("task",), bootstrap=0)
    write(evaluate(predictor, EvaluationData(splits.dev), settings), made / "evaluation")
    shutil.rmtree(films)
    seen = seen_among(Checkpoint.of(made), rows("why", *texts("film it", 2)))
    assert seen.judged == (1, 2)
    (notice,) = seen.notices
    assert "was trained on" in notice


def test_training_rows_of_the_run_that_a_run_started_from_are_known(tmp_path: Path) -> None:
    first = run(tmp_path / "first", source(tmp_path / "films", "film"))
    second = run(tmp_path / "second", source(tmp_path / "phones", "phone"))
    record = json.loads((second / "run.json").read_text(encoding="utf-8"))
    (second / "run.json").write_text(json.dumps({**record, "model": str(first)}), encoding="utf-8")
    some = rows("new", *texts("film", 2), *texts("phone", 1), *texts("film it", 1))
    trained, unknown = trained_among(Checkpoint.of(second), some)
    assert [row in trained for row in some.rows] == [False, True, True, True, False]
    assert unknown == []
    # A run that names itself, or a name that is no folder, has no further rows.
    (second / "run.json").write_text(json.dumps({**record, "model": str(second)}), encoding="utf-8")
    trained, _ = trained_among(Checkpoint.of(second), some)
    assert [row in trained for row in some.rows] == [False, False, False, True, False]


def test_unchecked_rows_are_reported(tmp_path: Path) -> None:
    films = source(tmp_path / "films", "film")
    made = str(run(tmp_path / "film", films))
    shutil.rmtree(films)
    trained, (unknown,) = trained_among(Checkpoint(made), rows("new", *texts("film", 3)))
    assert not trained
    assert_messages([unknown], "trained on .*could not be checked")
    assert trained_among(Checkpoint.of(tmp_path / "plain"), rows("new")) == (set(), [])


def test_changed_data_are_not_used_as_the_training_rows(tmp_path: Path) -> None:
    films = source(tmp_path / "films", "film")
    made = run(tmp_path / "run", films)
    source(films, "phone")
    seen = seen_among(Checkpoint.of(made), rows(*texts("phone", 3)))
    assert (seen.trained, seen.judged, len(seen.notices)) == ((), (), 2)


def test_a_run_returns_its_training_rows(tmp_path: Path) -> None:
    made = run(tmp_path / "run", source(tmp_path / "films", "film"))
    result, notices = trained_rows(Checkpoint.of(made))
    assert result is not None
    assert (result.text, notices) == (texts("film", 20), ())
    assert trained_rows(Checkpoint.of(tmp_path / "plain")) == (None, ())
