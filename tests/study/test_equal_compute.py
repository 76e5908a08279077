"""Plain fine-tuning of equal compute, which a comparison adds automatically."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import temper
from temper.data.sources import load_splits
from temper.display.folders import is_plain
from temper.progress import Progress
from temper.study.plan import Column, StudyConfig, columns_of
from temper.study.schedule import costs, with_equal_compute
from tests.cli.tiny_project import study_tree


class Told(Progress):
    """Keep the notices."""

    def __init__(self) -> None:
        self.said: list[str] = []

    def notice(self, text: str) -> None:
        self.said.append(text)


@pytest.fixture
def planned(tiny_model: Path, tiny_data: Path) -> Any:
    def make(*chosen: str, variants: tuple[str, ...] = (), **train: Any) -> StudyConfig:
        tree = study_tree(tiny_model, tiny_data / "reviews", train=train)
        if "epochs" in train:
            del tree["train"]["max_steps"]
        return StudyConfig.of(tree, columns=columns_of(chosen, variants), seeds=(0, 1))

    return make


def added(config: StudyConfig) -> tuple[list[Column], list[str]]:
    """Return the columns that a plan is given, and the notices."""
    progress = Told()
    result = with_equal_compute(config, load_splits(config.data), progress)
    assert result.columns[: len(config.columns)] == config.columns
    assert set(result.runs) == {(column.name, seed) for column in result.columns for seed in (0, 1)}
    return list(result.columns[len(config.columns) :]), progress.said


def test_a_column_costs_its_passes_times_its_length_times_its_trainings(planned: Any) -> None:
    config = planned(
        "plain",
        "r_drop",
        variants=("long=r_drop,train.max_steps=4", "x2=plain,train.max_steps=4"),
    )
    result = costs(config, load_splits(config.data))
    # R-Drop has every row twice in a step.
    assert result == pytest.approx({"plain": 1.0, "r_drop": 2.0, "long": 4.0, "x2": 2.0}, rel=0.01)


def test_the_added_column_is_the_reference_as_long_as_the_costliest_method(planned: Any) -> None:
    (column,), (notice,) = added(planned("plain", "r_drop", "ema"))
    assert (column.name, column.method) == ("plain_x2", "plain")
    assert column.settings == {"train": {"max_steps": 4}}
    assert "`plain_x2`" in notice
    assert "`r_drop`" in notice
    (column,), _ = added(planned("plain", variants=("own=r_drop,train.epochs=4",), epochs=2.0))
    assert (column.name, column.settings) == ("plain_x4", {"train": {"epochs": 8.0}})


@pytest.mark.parametrize(
    ("chosen", "variants"),
    [
        # A method that costs the same, and no method at all.
        (("plain", "ema"), ()),
        (("plain",), ("smooth=plain,train.learning_rate=1e-4",)),
        # Plain fine-tuning of that length, or longer, is there.
        (("plain", "r_drop"), ("long=plain,train.max_steps=4",)),
        (("plain", "r_drop"), ("long=plain,train.max_steps=9",)),
        # The name is taken.
        (("plain", "r_drop"), ("plain_x2=plain,train.max_steps=3",)),
        # Another baseline than plain fine-tuning.
        (("ema", "r_drop"), ()),
    ],
)
def test_plain_of_equal_compute_is_not_added_if_it_is_there(
    planned: Any, chosen: tuple[str, ...], variants: tuple[str, ...]
) -> None:
    assert added(planned(*chosen, variants=variants)) == ([], [])


def test_a_plain_column_may_differ_only_in_training_settings() -> None:
    texts = ("a=plain,train.epochs=9", "b=plain,data.augment=typos", "c=uegr")
    columns = [Column.parse(text) for text in texts]
    assert [is_plain(each.method, each.settings) for each in columns] == [True, False, False]


@pytest.mark.parametrize("equal_compute", [True, False])
def test_a_comparison_adds_plain_of_equal_compute_by_default(
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    *,
    equal_compute: bool,
) -> None:
    study = temper.compare(
        methods="plain,r_drop",
        seeds=[0],
        equal_compute=equal_compute,
        out=tmp_path / "study",
        config=study_tree(tiny_model, tiny_data / "reviews"),
    )
    assert "at least 50 evaluation rows, and there are 12" in caplog.text
    wanted = ("plain", "r_drop", "plain_x2")
    assert study.comparison.columns == (wanted if equal_compute else wanted[:2])
