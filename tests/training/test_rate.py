"""The search for a learning rate: its laws, its kept parts, what it must not read."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import temper
from temper.errors import CheckpointError, SettingError
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import run_study
from temper.training import rate as module
from temper.training.arguments import arguments_of
from temper.training.config import RunConfig
from temper.training.multi_task import MultiTaskConfig
from temper.training.progress import Progress
from temper.training.rate import candidates, stable_edge
from temper.training.settings import TrainSettings
from tests.cli.tiny_project import sentences, study_tree, write_csv
from tests.training.listeners import Heard
from tests.training.tiny_training import record, settings_of_run


class StopWhile(Progress):
    """Interrupt the search while it tries the candidate of a number."""

    def __init__(self, number: int) -> None:
        self.number = number
        self.begun: list[int] = []

    def evaluation(self, done: int, total: int, what: str) -> None:
        self.begun.append(done)
        if done == self.number:
            raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def _short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "RANGE_STEPS", 12)
    monkeypatch.setattr(module, "LEAST_STEPS", 3)


def tree(project: Path, **train: Any) -> dict[str, Any]:
    return settings_of_run(project, **{"max_steps": 4, "learning_rate": "auto", **train})


def search(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "rate.json").read_text(encoding="utf-8"))
    return content


@pytest.fixture(scope="module")
def searched(project: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "RANGE_STEPS", 12)
        patch.setattr(module, "LEAST_STEPS", 3)
        temper.train(project / "searched", config=tree(project))
    return project / "searched"


def test_the_edge_lies_before_the_loss_leaves_its_valley() -> None:
    rates = [10.0**power for power in range(-10, 2)]
    calm = [1.0, 1.0, 1.0, 0.99, 0.97, 0.9, 0.8, 0.7]
    assert stable_edge(rates, [*calm, 5.0, 9.0, 9.0, 9.0]) == rates[7]
    # A training that broke off: the last rate that gave a loss.
    assert stable_edge(rates, calm) == rates[7]
    assert stable_edge(rates, [1.0 - 0.01 * step for step in range(12)]) == rates[-1]


@given(
    losses=st.lists(st.floats(1e-3, 1e3), min_size=4, max_size=40),
    scale=st.sampled_from([0.25, 2.0, 1024.0]),
)
def test_the_edge_is_one_of_the_rates_and_knows_no_unit_of_the_loss(
    losses: list[float], scale: float
) -> None:
    rates = [1e-6 * 1.5**step for step in range(len(losses))]
    edge = stable_edge(rates, losses)
    assert edge in rates
    # Powers of two change no digit, so that every comparison comes out alike.
    assert stable_edge(rates, [scale * loss for loss in losses]) == edge


def test_candidates_fall_by_half_decades_below_the_edge() -> None:
    found = candidates(2e-3)
    assert found == [6.3e-4, 2e-4, 6.3e-5, 2e-5, 6.3e-6]


def test_the_range_test_rises_geometrically_and_the_best_candidate_is_trained_with(
    searched: Path,
) -> None:
    found = search(searched)
    steps = [math.log10(rate) for rate in found["range"]["rates"]]
    gaps = [after - before for before, after in pairwise(steps)]
    assert (steps[0], gaps) == (pytest.approx(-6), pytest.approx([5 / 11] * len(gaps)))
    losses = {each["rate"]: each["loss"] for each in found["tried"]}
    assert list(losses) == candidates(found["edge"])
    assert losses[found["chosen"]] == min(losses.values())
    run = record(searched)
    assert run["settings"]["train"]["learning_rate"] == found["chosen"]
    assert any("was found on rows held back" in notice for notice in run["notices"])


@pytest.mark.parametrize("number", [0, 1, 3])
def test_a_stopped_search_goes_on_and_finds_the_same(
    project: Path, searched: Path, tmp_path: Path, number: int
) -> None:
    out = tmp_path / "run"
    with pytest.raises(KeyboardInterrupt):
        temper.train(out, config=tree(project), progress=StopWhile(number))
    assert (out / "run.json").exists() is False
    again = StopWhile(-1)
    temper.train(out, config=tree(project), progress=again)
    # What was finished is not done again.
    assert again.begun == list(range(number, 6))
    assert search(out) == search(searched)
    weights = [(folder / "model.safetensors").read_bytes() for folder in (out, searched)]
    assert weights[0] == weights[1]


def test_a_finished_run_is_kept_and_nothing_is_searched_again(
    project: Path, searched: Path
) -> None:
    heard = Heard()
    temper.train(searched, config=tree(project), progress=heard)
    assert any("is finished already" in notice for notice in heard.notices)
    assert not any("range test" in notice for notice in heard.notices)


def test_the_search_does_not_read_the_dev_rows(project: Path, tmp_path: Path) -> None:
    found = []
    for labels in (("positive", "negative"), ("negative", "positive")):
        folder = tmp_path / labels[0]
        write_csv(folder / "train.csv", sentences(40))
        rows = [(text, labels[label == "negative"]) for text, label in sentences(12, thing="phone")]
        write_csv(folder / "dev.csv", rows)
        temper.train(folder / "run", config=tree(project), data=folder)
        found.append(search(folder / "run"))
    assert found[0]["tried"] == found[1]["tried"]
    assert found[0]["key"] != found[1]["key"]


def test_the_cost_is_told_before(project: Path, tmp_path: Path) -> None:
    heard = Heard()
    temper.train(tmp_path / "run", config=tree(project, max_steps=4), progress=heard)
    told = next(notice for notice in heard.notices if "range test" in notice)
    # 12 steps of the range test and 5 trainings of 3 steps, over 4 steps.
    for part in ("12 steps", "5 trainings of 3 steps", "6.8 times"):
        assert part in told


def test_columns_find_their_own_rates_once_for_all_seeds(project: Path, tmp_path: Path) -> None:
    base = study_tree(
        project / "model",
        project / "data" / "reviews",
        train={"max_steps": 4, "learning_rate": "auto"},
    )
    columns = columns_of(["vanilla"], ["given=vanilla,train.learning_rate=1e-3"])
    config = StudyConfig.of(base, columns=columns, seeds=(0, 1))
    run_study(config, tmp_path / "study")
    searches = list((tmp_path / "study" / "rates").iterdir())
    assert len(searches) == 1
    chosen = json.loads(searches[0].read_text(encoding="utf-8"))["chosen"]
    runs = json.loads((tmp_path / "study" / "study.json").read_text(encoding="utf-8"))["runs"]
    rates = {
        name: {
            record(tmp_path / "study" / place)["settings"]["train"]["learning_rate"]
            for place in places.values()
        }
        for name, places in runs.items()
    }
    assert rates == {"vanilla": {chosen}, "given": {1e-3}}
    # A second call reads the rate back, and so knows its runs.
    before = [file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("run.json")]
    run_study(config, tmp_path / "study")
    assert before == [file.stat().st_mtime_ns for file in (tmp_path / "study").rglob("run.json")]


def test_a_folder_with_another_search_or_a_given_rate_is_refused(
    project: Path, searched: Path, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointError, match="search for the rate of other settings"):
        temper.train(searched, config=tree(project, weight_decay=0.5))
    temper.train(tmp_path / "given", config=tree(project, learning_rate=1e-3))
    with pytest.raises(CheckpointError, match="whose learning rate was given"):
        temper.train(tmp_path / "given", config=tree(project))


def test_a_rate_that_is_not_found_yet_is_refused_where_none_is_looked_for(
    project: Path, tmp_path: Path
) -> None:
    with pytest.raises(SettingError, match="here no rate is looked for"):
        arguments_of(TrainSettings(learning_rate="auto"), tmp_path, seed=0)
    tasks = {name: {"source": str(project / "data" / "reviews")} for name in ("one", "two")}
    given = {name: each for name, each in tree(project).items() if name != "data"}
    with pytest.raises(SettingError, match="'auto' is for a training on one task"):
        MultiTaskConfig.of({**given, "tasks": tasks})


def test_short_names_bring_the_rate_at_which_their_model_learns() -> None:
    def rate(model: str, **train: Any) -> Any:
        data = {"source": "demo"}
        return RunConfig.of({"model": model, "data": data, "train": train}).train.learning_rate

    assert rate("minilm") == 1e-4
    assert rate("bert-base-uncased") == rate("some/model") == 2e-5
    assert rate("minilm", learning_rate=3e-5) == 3e-5
    assert rate("text_cnn") == 2e-3
