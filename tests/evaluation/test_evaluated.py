"""Which rows a run is evaluated on, and by whose settings they are read."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.evaluate import evaluate_model
from temper.evaluation.function import CallablePredictor
from temper.evaluation.predictor import Gives
from temper.evaluation.request import EvaluationRequest
from tests.data.test_hub import cache, cached

__all__ = ["cache"]

# By their usual names these rows have a text, a second one and a label; the run read others.
ROWS = {
    "train": ["good one", "bad one", "good two", "bad two", "good three", "bad three"],
    "dev": ["good dev", "bad dev"],
    "test": ["bad test", "good test", "bad tests"],
}
NAMES = {"text_column": "words", "text_pair_column": "more", "label_column": "verdict"}


def asked(_texts: object) -> Any:
    pytest.fail("The model was asked for a prediction.")


def write_reviews(folder: Path) -> Path:
    """Write three splits that have columns with unusual and with usual names."""
    folder.mkdir()
    for split, words in ROWS.items():
        lines = [f"{each},by {each},{each.split()[0]},x,y,no" for each in words]
        table = "\n".join(["words,more,verdict,text,text_pair,label", *lines])
        (folder / f"{split}.csv").write_text(table + "\n", encoding="utf-8")
    return folder


def write_run(folder: Path, **data: Any) -> str:
    """Write the record of a run, the only file that these tests read."""
    folder.mkdir()
    record = {"settings": {"data": data}}
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    return str(folder)


@pytest.fixture
def run(tmp_path: Path) -> str:
    source = write_reviews(tmp_path / "reviews")
    return write_run(
        tmp_path / "run", source=str(source), kind="classification", dev_fraction=0.25, **NAMES
    )


def evaluated(run: str, data: Mapping[str, Any], *, gives: Gives = "probabilities") -> Examples:
    """Load what an evaluation with these settings of data would measure a run on."""
    predictor = CallablePredictor(asked, gives=gives)
    return EvaluationRequest.of({"data": data}, model=Checkpoint(run)).rows(predictor)


def test_another_split_of_the_data_of_a_run_is_read_with_its_settings(run: str) -> None:
    result = evaluated(run, {"eval_split": "test"})
    assert list(result.text) == ROWS["test"]
    assert list(result.text_pair or ()) == [f"by {text}" for text in ROWS["test"]]
    assert result.label_names is not None
    assert [result.label_names[int(label)] for label in result.labels or ()] == [
        "bad",
        "good",
        "bad",
    ]


def test_settings_of_another_split_override_those_of_the_run(run: str) -> None:
    result = evaluated(run, {"eval_split": "test", "text_column": "text"})
    assert list(result.text) == ["x"] * 3
    assert list(result.text_pair or ()) == [f"by {text}" for text in ROWS["test"]]


def test_data_of_a_run_are_read_with_its_kind(tmp_path: Path) -> None:
    folder = tmp_path / "stars"
    folder.mkdir()
    for split in ("train", "test"):
        (folder / f"{split}.csv").write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    run = write_run(tmp_path / "run", source=str(folder), kind="regression")
    assert (
        EvaluationRequest.of({"data": {"eval_split": "test"}}, model=Checkpoint(run)).data.kind
        == "regression"
    )
    assert evaluated(run, {"eval_split": "test"}, gives="values").labels == [0.0, 1.0]


@pytest.mark.usefixtures("cache")
def test_data_of_a_run_are_read_with_its_hub_configuration(cache: Path, tmp_path: Path) -> None:
    cached(cache, config="drinks")
    cached(cache, config="food")
    run = write_run(tmp_path / "run", source="owner/reviews", config="food")
    result = evaluated(run, {"eval_split": "validation"})
    assert (result.source["config"], len(result)) == ("food", 6)


@pytest.mark.parametrize(
    ("name", "own", "other"),
    [
        ("text_column", "words", "text"),
        ("text_pair_column", "more", "text_pair"),
        ("label_column", "verdict", "label"),
        ("dev_fraction", 0.25, 0.5),
        ("config", None, "food"),
        ("train_split", "train", "test"),
    ],
)
@pytest.mark.parametrize("named", [False, True], ids=["own source", "source named"])
def test_other_data_settings_for_the_rows_of_a_run_raise_an_error(
    run: str, tmp_path: Path, name: str, own: Any, other: Any, named: bool
) -> None:
    data = {"source": str(tmp_path / "reviews")} if named else {}
    message = re.escape(f"but data.{name}: {own!r} -> {other!r}")
    with pytest.raises(SettingError, match=f"{message}.* --data SOURCE@SPLIT"):
        evaluated(run, {**data, name: other})


def test_all_differences_are_reported_at_once(run: str) -> None:
    with pytest.raises(SettingError, match=r"data\.text_column: .*; data\.label_column: "):
        evaluated(run, {"text_column": "text", "label_column": "label"})


@pytest.mark.parametrize("given", [{}, {**NAMES, "kind": "classification", "dev_fraction": 0.25}])
def test_settings_equal_to_those_of_the_run_are_accepted(run: str, given: dict[str, Any]) -> None:
    assert list(evaluated(run, given).text) == ROWS["dev"]


def test_a_task_type_that_fits_the_model_is_accepted_if_the_run_has_none(
    tmp_path: Path,
) -> None:
    source = write_reviews(tmp_path / "reviews")
    run = write_run(tmp_path / "run", source=str(source), **NAMES)
    assert list(evaluated(run, {"kind": "classification"}).text) == ROWS["dev"]


def test_the_number_of_rows_seed_length_and_group_may_differ_from_the_run(run: str) -> None:
    free = {"eval_rows": 1, "seed": 7, "max_length": 16, "group_column": "label"}
    result = evaluated(run, free)
    assert len(result) == 1
    assert result.group == ["no"]


def test_a_kind_of_labels_that_the_model_does_not_predict_raises_an_error(
    run: str, tmp_path: Path
) -> None:
    file = tmp_path / "other.csv"
    file.write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    message = r"`data\.kind` is 'regression', but .*run predicts classification\. Leave it"
    for data in ({"kind": "regression"}, {"kind": "regression", "source": str(file)}):
        with pytest.raises(SettingError, match=message):
            evaluated(run, data)


def test_a_maximum_length_may_be_a_string(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    data = {"source": str(tiny_data / "shift.csv"), "max_length": "16"}
    measured = {"perspectives": ["task"], "bootstrap": 0}
    asked = EvaluationRequest.of(
        {"data": data, "evaluate": measured, "predictor": {"device": "cpu"}},
        model=Checkpoint.of(tiny_model),
    )
    assert asked.max_length == 16
    scores = evaluate_model(asked, tmp_path / "out")
    assert {score["n"] for score in scores["scores"]} == {10}
