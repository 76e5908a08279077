"""Specifications are consistent, list unknown settings, and plan their scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from reproduction.plan import Request, plan_cases, settings_of
from reproduction.specification import (
    SCALES,
    Case,
    ModelEntry,
    ScaleEntry,
    Specification,
    TaskEntry,
    read_specification,
    specification_names,
)
from temper import methods
from temper.data.suites.suite import read_suite
from temper.data.tasks.registry import TASKS
from temper.errors import SettingError


@pytest.fixture
def tasks(tmp_path: Path) -> Path:
    """Return a data root with a folder for every task, and a set of every suite."""
    cases = [case for name in specification_names() for case in read_specification(name).case]
    suites = {case.task.suite for case in cases if case.task.suite is not None}
    first = [next(iter(read_suite(suite).anomaly.values())).path for suite in suites]
    for name, split in [str(path).split("@") for path in first]:
        (tmp_path / name).mkdir(exist_ok=True)
        (tmp_path / name / f"{split}.jsonl").write_text('{"text": "a", "label": 0}\n')
    for case in cases:
        (tmp_path / case.source).mkdir(exist_ok=True)
    return tmp_path


@pytest.mark.parametrize("name", specification_names())
def test_a_grid_names_methods_and_tasks_that_there_are(name: str) -> None:
    read = read_specification(name)
    for column in read.columns():
        assert methods.name_faults(column.method or column.name) == []
    assert {case.source for case in read.case if case.task.file is None} <= set(TASKS)
    assert read.grid_from.endswith(".")


@pytest.mark.parametrize("scale", SCALES)
@pytest.mark.parametrize("name", specification_names())
def test_every_scale_becomes_studies_whose_settings_are_right(
    name: str, scale: str, tasks: Path
) -> None:
    read = read_specification(name)
    result = plan_cases(Request(read, scale, data_root=tasks))
    assert {case.name for each in result for case in each.cases} == {
        case.name for case in read.cases(scale)
    }
    for each in result:
        plans = each.plan.tasks.values() if len(each.cases) > 1 else [each.plan]
        for case, plan in zip(each.cases, plans, strict=True):
            assert plan.reference == read.column[0].name
            entry = read.scales[scale]
            alone = entry.case[case.name].seeds if case.name in entry.case else None
            assert len(plan.seeds) == (alone or entry.seeds)


def test_tables_that_read_the_same_models_share_grid_and_folder() -> None:
    scores, brier = read_specification("jachess-scores"), read_specification("jachess-brier")
    assert brier.family == scores.family == "jachess"
    assert (brier.case, brier.column, brier.scales) == (scores.case, scores.column, scores.scales)
    assert brier.score != scores.score


def test_figure_three_has_a_column_for_every_pair_and_a_scale_some() -> None:
    read = read_specification("uegr-figure-3")
    names = [column.name for column in read.columns()]
    assert len(names) == 82
    assert "uegr_0.1_0.9" in names
    assert "uegr_0.9_0.1" in names
    assert len(read.columns(read.scales["small"])) == 17


def test_seeds_cases_and_model_replace_those_of_the_scale(tasks: Path) -> None:
    read = read_specification("uegr-table-1")
    asked = Request(
        read, "small", seeds=2, cases=("bert-base-rte",), model="other", data_root=tasks
    )
    (result,) = plan_cases(asked)
    assert result.plan.seeds == (0, 1)
    assert {run.model for run in result.plan.runs.values()} == {"other"}
    assert result.plan.data.source == str(tasks / "rte")
    assert result.plan.data.task == "rte"


def test_a_multi_task_model_is_one_study_of_all_its_tasks(tasks: Path) -> None:
    read = read_specification("uegr-table-2")
    cases = ("bert-base-rte", "mt-dnn-rte", "mt-dnn-stsb")
    alone, together = plan_cases(Request(read, "full", cases=cases, data_root=tasks))
    assert (alone.name, together.name) == ("bert-base-rte", "mt-dnn")
    assert set(together.plan.tasks) == {"mt-dnn-rte", "mt-dnn-stsb"}
    # The paper has it plain alone.
    assert [column.name for column in together.plan.tasks["mt-dnn-rte"].columns] == ["plain"]
    (single,) = plan_cases(Request(read, "full", cases=("mt-dnn-rte",), data_root=tasks))
    assert single.plan is None
    assert "two or more" in single.reason


def test_a_task_that_is_not_under_the_data_root_is_planned_as_not_run(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    result = plan_cases(Request(read_specification("uegr-table-1"), "small", data_root=tmp_path))
    lacking = {each.name: each.reason for each in result if each.plan is None}
    assert set(lacking) == {"bert-base-mrpc", "bert-base-stsb"}
    assert "mrpc" in lacking["bert-base-mrpc"]


def test_a_suite_without_its_sets_is_planned_as_not_run(tmp_path: Path) -> None:
    (tmp_path / "sst2").mkdir()
    for root, reason in ((None, "--data-root"), (tmp_path, "None of the")):
        (result,) = plan_cases(
            Request(read_specification("roast-sentiment"), "small", data_root=root)
        )
        assert result.plan is None
        assert reason in result.reason


def test_every_number_of_the_papers_tables_is_at_hand() -> None:
    counts = {name: len(read_specification(name).printed) for name in specification_names()}
    papers = {f"uegr-table-{n}": count for n, count in enumerate((90, 100, 72, 105, 20), start=1)}
    assert {name: count for name, count in counts.items() if count} == {
        **papers,
        "roast-entailment": 1,
        "roast-sentiment": 1,
    }
    number = read_specification("uegr-table-4").number("accuracy", "text_han", "uegr", "tnews")
    assert number.value == "56.32"


TABLE = read_specification("uegr-table-4").model_dump(exclude={"printed"})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"task": "imbd"}, "Unknown task 'imbd'.* mean 'imdb'"),
        ({"model": "cnn"}, "Unknown model 'cnn'"),
        ({"column": "ueg"}, "Unknown column 'ueg'"),
        ({"score": "acuracy"}, "Unknown score 'acuracy'"),
        ({"value": "about 83"}, "the digits as printed"),
        ({"value": 83.0}, "in quotes"),
    ],
)
def test_wrong_numbers_raise_an_error(change: dict[str, Any], match: str) -> None:
    number = {"score": "accuracy", "model": "text_cnn", "column": "uegr", "task": "imdb"}
    printed = [{**number, "value": "83.0", **change}]
    with pytest.raises(ValidationError, match=match):
        Specification.model_validate({**TABLE, "printed": printed})


def test_an_unknown_table_or_case_lists_near_names() -> None:
    with pytest.raises(SettingError, match="Did you mean 'uegr-table-4'"):
        read_specification("uegr-tabel-4")
    with pytest.raises(SettingError, match="Unknown case of uegr-table-4 'imdb'"):
        read_specification("uegr-table-4").cases("small", ["imdb"])


@pytest.mark.parametrize(
    ("setting", "match"),
    [({"seeds": 0}, "at least 1, got 0"), ({"data_root": Path("none")}, "must be a folder")],
)
def test_meaningless_requests_raise_an_error(setting: dict[str, Any], match: str) -> None:
    with pytest.raises(SettingError, match=match):
        Request(read_specification("uegr-table-4"), **setting)


def test_settings_of_a_case_override_those_of_the_scale() -> None:
    entry = ScaleEntry.model_validate(
        {
            "seeds": 1,
            "data": {"rows": 9, "eval_rows": 7},
            "train": {"epochs": 2.0},
            "case": {"net-one": {"data": {"rows": 5}, "train": {"batch_size": 8}}},
        }
    )
    model = ModelEntry(name="net", label="Net", model="m", train={"epochs": 9.0})
    one, other = (
        settings_of(
            Case(model=model, task=TaskEntry(name=name, data={"rows": 3, "max_length": 20})),
            entry,
            model="m",
            source="s",
            task="sst2",
        )
        for name in ("one", "other")
    )
    shared = {"source": "s", "task": "sst2", "eval_rows": 7, "max_length": 20}
    assert one["data"] == {**shared, "rows": 5}
    assert one["train"] == {"epochs": 2.0, "batch_size": 8}
    assert other["data"] == {**shared, "rows": 9}
    assert other["train"] == {"epochs": 2.0}
