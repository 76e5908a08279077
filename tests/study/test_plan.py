"""Plans of studies: columns, variants, seeds and their common settings."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from temper.data.sources import load_splits
from temper.errors import SettingError
from temper.study.plan import (
    Column,
    StudyConfig,
    columns_of,
    split_outside_brackets,
)
from temper.study.work import evaluation_sets
from tests.cli.tiny_project import sentences, write_csv

BASE: dict[str, Any] = {"model": "minilm", "data": {"source": "demo"}, "train": {"epochs": 3}}


def plan(
    *variants: str, seeds: tuple[int, ...] = (0, 1), tree: dict[str, Any] | None = None
) -> StudyConfig:
    return StudyConfig.of(
        BASE if tree is None else tree, columns=columns_of(["plain"], variants), seeds=seeds
    )


def test_validation_rows_that_are_trained_on_too_are_not_scored(tmp_path: Path) -> None:
    write_csv(tmp_path / "train.csv", sentences(20))
    write_csv(tmp_path / "dev.csv", [*sentences(4), *sentences(8, thing="phone")])
    tree = {**BASE, "data": {"source": str(tmp_path)}}
    of = plan(tree=tree)
    sets = evaluation_sets(of, load_splits(of.data))
    assert len(sets.data.dev) == 8
    assert sets.seen[0].startswith("4 of 12 rows of set 'dev' were trained on")
    apart = plan(tree={**tree, "data": {**tree["data"], "drop_overlap": True}})
    assert len(evaluation_sets(apart, load_splits(apart.data)).data.dev) == 12


def test_a_variant_has_a_column_name_and_settings() -> None:
    column = Column.parse(
        "x3=uegr,train.epochs=9,train.class_weights=[1.0, 2.0],method.epsilon=0.1"
    )
    assert (column.name, column.method) == ("x3", "uegr")
    assert column.settings == {
        "train": {"epochs": 9, "class_weights": [1.0, 2.0]},
        "method": {"epsilon": 0.1},
    }


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("plain", "NAME=METHOD"),
        ("=plain", "NAME=METHOD"),
        ("a b=plain", "NAME=METHOD"),
        ("../a=plain", "NAME=METHOD"),
        ("x3=", "NAME=METHOD"),
        ("x3=plain,train.epochs", "KEY=VALUE"),
        ("x3=plain,", "KEY=VALUE"),
        ("x3=plain,seed=4", "sets `seed`"),
        ("x3=plain,data.rows=4", "sets `data.rows`"),
        ("x3=plain,model=other", "sets `model`"),
        ("x3=plain,method.name=uegr", r"sets `method\.name`"),
        ("x3=plain,train=4", "sets `train`"),
        ("x3=plain,train.epochs=1,train.epochs=2", "given twice"),
    ],
)
def test_a_variant_of_another_form_raises_an_error(text: str, message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Column.parse(text)


def test_every_column_is_planned_for_every_seed_with_its_settings() -> None:
    config = plan("x3=plain,train.epochs=9")
    epochs = {run: settings.train.epochs for run, settings in config.runs.items()}
    assert epochs == {
        ("plain", 0): 3.0,
        ("plain", 1): 3.0,
        ("x3", 0): 9.0,
        ("x3", 1): 9.0,
    }
    assert {run: settings.seed for run, settings in config.runs.items()}["x3", 1] == 1
    assert config.reference == "plain"


def test_all_columns_of_a_seed_run_before_the_next_seed() -> None:
    order = plan("x3=plain,train.epochs=9").order()
    assert order == [("plain", 0), ("x3", 0), ("plain", 1), ("x3", 1)]


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        ({**BASE, "method": {"epsilon": 1}}, r"`method\.KEY` cannot be set.*--variant"),
        ({**BASE, "seed": 1}, "--seeds"),
        ({**BASE, "trian": {}}, "Unknown setting 'trian'.*'train'"),
        ({**BASE, "evaluate": {"radius": [1]}}, "Unknown setting 'evaluate.radius'"),
        ({"data": {"source": "demo"}}, "`model` is missing"),
        ({"model": "minilm"}, "`data.source` is missing"),
        ({**BASE, "train": {"epochs": -1}}, "`train.epochs`"),
    ],
)
def test_wrong_settings_of_a_study_are_named_once(tree: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message) as caught:
        plan(tree=tree)
    lines = str(caught.value).splitlines()
    assert len(lines) == len(set(lines)) == 1


@pytest.mark.parametrize(
    ("names", "seeds", "message"),
    [
        (["plain", "plain"], (0,), "'plain' is given twice"),
        (["plain"], (0, 0), "seed 0 is given twice"),
        (["plain"], (), "at least one seed"),
        ([], (0,), "at least one method"),
        (["plain"], (-1,), "`seed`"),
    ],
)
def test_columns_and_seeds_must_be_there_and_differ(
    names: list[str], seeds: tuple[int, ...], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        StudyConfig.of(BASE, columns=columns_of(names, []), seeds=seeds)


def test_a_composition_is_a_column_called_after_it_without_spaces() -> None:
    columns = columns_of(["plain", "r_drop + at"], ["x=uegr + adv_weight,method.uegr.epsilon=0.1"])
    assert [column.name for column in columns] == ["plain", "r_drop+at", "x"]
    config = StudyConfig.of(BASE, columns=columns, seeds=(0,))
    assert config.runs["r_drop+at", 0].method_name == "r_drop + at"
    assert config.runs["x", 0].method["uegr"]["epsilon"] == 0.1
    assert config.runs["x", 0].method["adv_weight"]["rho"] == 0.05


def test_faults_in_all_column_names_are_reported_together() -> None:
    with pytest.raises(SettingError, match="Unknown method 'plian'") as caught:
        columns_of(["plian", "at + r_dorp", "uegr.rule"], ["a=r_drop + plian", "b"])
    assert len(str(caught.value).splitlines()) == 4
    for words in ("NAME=METHOD", "'plain'", "'r_drop'", "Unknown method 'uegr.rule'"):
        assert words in str(caught.value)


def test_conflicting_or_wrongly_set_compositions_are_reported_together() -> None:
    columns = columns_of(["at + uegr", "at + at"], ["x=r_drop + at,method.epsilon=1"])
    with pytest.raises(SettingError, match="both use the perturbation") as caught:
        StudyConfig.of(BASE, columns=columns, seeds=(0, 1))
    first, second, third = str(caught.value).splitlines()
    assert ("'at' and 'uegr'" in first, "is named twice" in second) == (True, True)
    assert "`method.epsilon`" in third


def test_a_composition_spaced_in_two_ways_is_one_column_given_twice() -> None:
    with pytest.raises(SettingError, match=r"'r_drop\+at' is given twice"):
        StudyConfig.of(BASE, columns=columns_of(["r_drop+at", "r_drop + at"], []), seeds=(0,))


@given(st.lists(st.text(st.characters(exclude_characters=",[]{}\"'"), max_size=6), min_size=1))
def test_plain_parts_are_split_at_every_comma(parts: list[str]) -> None:
    assert split_outside_brackets(",".join(parts)) == parts


@given(st.text(alphabet=",[]{}\"'a=."))
def test_splitting_loses_no_character(text: str) -> None:
    assert ",".join(split_outside_brackets(text)) == text


@given(st.text())
def test_no_variant_fails_with_anything_but_a_setting_error(text: str) -> None:
    column = None
    with contextlib.suppress(SettingError):
        column = Column.parse(text)
    assert column is None or set(column.settings) <= {"method", "train"}


def test_a_variant_may_set_the_settings_of_its_method() -> None:
    settings = {"method": {"name": "uegr", "preset": "one_pass"}, "train": {"epochs": 2}}
    (column,) = columns_of((), {"cheap": settings})
    assert (column.name, column.method) == ("cheap", "uegr")
    assert column.settings == {"method": {"preset": "one_pass"}, "train": {"epochs": 2}}
