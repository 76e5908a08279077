"""Recipes: they fit the methods, and settings override them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, get_args

import pytest

import temper
from temper.errors import SettingError
from temper.methods.recipes import Evidence, default_recipe, recipes, with_recipe
from temper.methods.soup import members_of
from temper.study.plan import StudyConfig, columns_of
from temper.training.config import RunConfig
from temper.training.cost import passes_of
from tests.cli.tiny_project import make_data, make_model
from tests.training.tiny_training import Rows, collate, record, settings_of_run, tiny_model

EVERY = sorted(recipes())


def tree(name: str, **tables: Any) -> dict[str, Any]:
    return with_recipe(
        {"recipe": name, "model": "some/model", "data": {"source": "demo"}, **tables}
    )


@pytest.mark.parametrize("name", EVERY)
def test_every_recipe_is_a_run_with_a_reason(name: str) -> None:
    recipe = recipes()[name]
    assert recipe.summary
    assert recipe.evidence in get_args(Evidence)
    assert set(recipe.settings) <= {"method", "train"}
    RunConfig.of(tree(name))


def test_the_default_is_the_baseline_and_claims_no_evidence_of_its_own() -> None:
    assert default_recipe().evidence == "baseline"
    assert [name for name in EVERY if recipes()[name].evidence == "baseline"] == ["plain"]


@pytest.mark.parametrize("name", EVERY)
def test_a_recipe_has_its_declared_cost(name: str) -> None:
    method = RunConfig.of(tree(name)).method_config()
    counted = passes_of(tiny_model(), method, collate([Rows(8)[index] for index in range(4)]))
    # Heads and layers above the attacked embeddings weigh more in a model of two small layers.
    assert counted is not None
    members = members_of(method.rule)
    assert counted * members == pytest.approx(recipes()[name].passes, rel=0.15)


def test_plain_fine_tuning_is_a_recipe_and_one_recipe_is_the_default() -> None:
    assert (recipes()["plain"].method, recipes()["plain"].settings) == ("plain", {})
    assert [recipe.default for recipe in recipes().values()].count(True) == 1
    assert with_recipe({})["method"]["name"] == default_recipe().method


def test_user_settings_override_the_recipe() -> None:
    changed = tree("uegr", method={"epsilon": 0.5}, train={"epochs": 1.0})
    run = RunConfig.of(changed)
    assert (run.method_name, run.method["epsilon"], run.train.epochs) == ("uegr", 0.5, 1.0)


def test_a_method_with_a_recipe_and_an_unknown_recipe_raise_an_error() -> None:
    with pytest.raises(SettingError, match="Pass --recipe or --method"):
        with_recipe({"recipe": "uegr", "method": {"name": "plain"}})
    with pytest.raises(SettingError, match="Unknown recipe 'uegrr'"):
        with_recipe({"recipe": "uegrr"})


def test_a_recipe_trains_like_its_method(tmp_path: Path) -> None:
    make_model(tmp_path / "model")
    make_data(tmp_path / "data")
    given = settings_of_run(tmp_path, method="plain", max_steps=1)
    temper.train(out=tmp_path / "method", config=given)
    rest = {name: table for name, table in given.items() if name != "method"}
    temper.train(out=tmp_path / "recipe", config=rest, recipe="plain")
    assert record(tmp_path / "method")["key"] == record(tmp_path / "recipe")["key"]


def test_recipes_become_columns_of_a_comparison() -> None:
    columns = columns_of(["plain"], [], recipes=["plain", "uegr_no_mask"])
    config = StudyConfig.of(
        {"model": "some/model", "data": {"source": "demo"}}, columns=columns, seeds=[0]
    )
    assert [run.method_name for run in config.runs.values()] == ["plain", "uegr"]
    assert config.runs["uegr_no_mask", 0].method["mask"] == {"kind": "off"}
    assert [column.name for column in columns] == ["plain", "uegr_no_mask"]
    with pytest.raises(SettingError, match="Unknown recipe 'nothing'"):
        columns_of([], [], recipes=["nothing"])
