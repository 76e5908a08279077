"""Studies of a model on several tasks: one study per task, which share runs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file

from reproduction.multi_task import MultiTaskStudyConfig, run_multi_task_study
from temper.errors import SettingError
from temper.study.plan import columns_of
from tests.cli.tiny_project import make_data, make_model, sentences, write_csv
from tests.study.test_schedule import Watch


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Return the settings of a study on reviews (two classes) and on stars (numbers)."""
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    stars = [(text, str(n / 4)) for n, (text, _) in enumerate(sentences(25, thing="it"))]
    write_csv(folder / "data" / "stars" / "train.csv", stars)
    unseen = [(text, str(n / 4)) for n, (text, _) in enumerate(sentences(6, thing="phone"))]
    write_csv(folder / "data" / "stars" / "dev.csv", unseen)
    return {
        "model": str(folder / "model"),
        "data": {"max_length": 32},
        "train": {"max_steps": 3, "batch_size": 10, "device": "cpu"},
        "evaluate": {"perspectives": ["task"], "bootstrap": 0},
        "tasks": {
            "reviews": {"source": str(folder / "data" / "reviews")},
            "stars": {"source": str(folder / "data" / "stars"), "evaluate": {"bootstrap": 0}},
        },
    }


def config(settings: dict[str, Any], **change: Any) -> MultiTaskStudyConfig:
    return MultiTaskStudyConfig.of(
        {**settings, **change}, columns=columns_of(["plain", "r_drop"], []), seeds=(0,)
    )


def test_every_task_has_a_study_of_the_classifiers_that_were_trained_together(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    studies = run_multi_task_study(config(settings), tmp_path / "out")
    assert set(studies) == {"reviews", "stars"}
    assert {study.comparison.metric for study in studies.values()} == {"accuracy", "pearson"}
    weights = []
    for name, study in studies.items():
        plan = json.loads((tmp_path / "out" / name / "study.json").read_text(encoding="utf-8"))
        run = (tmp_path / "out" / name / plan["runs"]["r_drop"]["0"]).resolve()
        assert run.parts[-2:] == ("tasks", name)
        weights.append(load_file(run / "model.safetensors"))
        assert study.page.exists()
        assert study.comparison.columns == ("plain", "r_drop")
    # One encoder, two heads.
    (first, second) = weights
    assert first["bert.pooler.dense.weight"].equal(second["bert.pooler.dense.weight"])
    assert first["classifier.weight"].shape != second["classifier.weight"].shape


def test_finished_runs_are_reused_and_stopped_runs_resume(
    settings: dict[str, Any], tmp_path: Path
) -> None:
    stopped = {**settings["train"], "save_steps": 1}
    plan = config(settings, train=stopped)
    with pytest.raises(KeyboardInterrupt):
        run_multi_task_study(plan, tmp_path, progress=Watch(stop=("r_drop, seed 0", 2)))
    again = Watch()
    run_multi_task_study(plan, tmp_path, progress=again)
    # A step is reported before its checkpoint is written.
    assert again.started == {"r_drop, seed 0": 1}
    third = Watch()
    run_multi_task_study(plan, tmp_path, progress=third)
    assert third.started == {}
    assert third.judged == []


def test_all_faults_of_all_tasks_are_reported_before_loading(settings: dict[str, Any]) -> None:
    lora = {**settings["train"], "lora": {}}
    with pytest.raises(SettingError, match="adapter.*on one task"):
        config(settings, train=lora)
    with pytest.raises(SettingError, match="two or more tasks"):
        config(settings, tasks={"reviews": settings["tasks"]["reviews"]})
