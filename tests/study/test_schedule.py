"""Studies on a tiny model: stopped ones resume, finished ones are kept."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from temper.errors import CheckpointError
from temper.progress import Progress
from temper.report import table
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import Study, run_study, step_cost
from tests.cli.tiny_project import study_tree
from tests.report.conftest import row_of


class Watch(Progress):
    """Count steps and evaluations by run; stop the study at a step of a run."""

    def __init__(self, stop: tuple[str, int] | None = None) -> None:
        self.stop = stop
        self.name = ""
        self.started: dict[str, int] = {}
        self.trained: dict[str, int] = {}
        self.judged: list[str] = []

    def runs(self, number: int, total: int, name: str) -> None:
        self.name = name

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        # The first call of a run has its first step.
        self.trained[self.name] = done - self.started.setdefault(self.name, done)
        if self.stop == (self.name, done):
            raise KeyboardInterrupt

    def evaluation(self, done: int, total: int, what: str) -> None:
        if done == total:
            self.judged.append(self.name)


def study(model: Path, data: Path, out: Path, **options: Any) -> tuple[Study, Watch]:
    """Run a study of plain and a variant over two seeds."""
    watch = options.pop("watch", Watch())
    train = {"max_steps": 4, "save_steps": 1, **options.pop("train", {})}
    evaluate = options.pop("evaluate", {})
    config = StudyConfig.of(
        study_tree(model, data / "reviews", train=train, evaluate=evaluate),
        columns=columns_of(["plain"], [options.pop("short", "short=uegr,train.max_steps=2")]),
        seeds=options.pop("seeds", (0, 1)),
        **options,
    )
    return run_study(config, out, progress=watch), watch


def models(folder: Path) -> dict[str, tuple[bytes, int]]:
    """Return the weights of every run and when they were written."""
    return {
        file.parent.name: (file.read_bytes(), file.stat().st_mtime_ns)
        for file in sorted((folder / "runs").glob("*/model.safetensors"))
    }


@pytest.fixture(scope="module")
def whole(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("study") / "whole"
    _, watch = study(tiny_model, tiny_data, out)
    assert watch.trained == {
        "plain, seed 0": 4,
        "short, seed 0": 2,
        "plain, seed 1": 4,
        "short, seed 1": 2,
    }
    return out


def test_the_record_names_every_run_and_its_cost(whole: Path) -> None:
    record = json.loads((whole / "study.json").read_text())
    assert record["reference"] == "plain"
    assert record["columns"][1] == {
        "name": "short",
        "method": "uegr",
        "settings": {"train": {"max_steps": 2}},
    }
    for column in ("plain", "short"):
        for seed in ("0", "1"):
            folder = whole / record["runs"][column][seed]
            assert json.loads((folder / "run.json").read_text())["status"] == "finished"
            assert (folder / "evaluation" / "scores.json").is_file()
    assert record["cost"]["plain"]["over_reference"] == 1.0
    assert record["cost"]["short"]["over_reference"] > 0
    assert {"report.html", "table.json"} <= {entry.name for entry in whole.iterdir()}


def test_a_finished_study_is_not_changed(whole: Path, tiny_model: Path, tiny_data: Path) -> None:
    before = models(whole)
    _, watch = study(tiny_model, tiny_data, whole)
    assert models(whole) == before
    assert (watch.trained, watch.judged) == ({}, [])


def test_a_run_killed_after_its_last_step_has_no_step_time(
    whole: Path, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = Path(shutil.copytree(whole, tmp_path / "out"))
    for file in out.glob("runs/short-*/run.json"):
        record = json.loads(file.read_text())
        record["times"]["step_seconds_median"] = None
        file.write_text(json.dumps(record))
    study(tiny_model, tiny_data, out)
    assert json.loads((out / "study.json").read_text())["cost"].keys() == {"plain"}


def test_a_study_without_its_plan_is_recognized_by_its_runs(
    whole: Path, tiny_model: Path, tiny_data: Path
) -> None:
    before, plan = models(whole), (whole / "study.json").read_text(encoding="utf-8")
    (whole / "study.json").write_text(plan[: len(plan) // 2], encoding="utf-8")
    with pytest.raises(CheckpointError, match=r"study\.json cannot be read.*Remove it"):
        study(tiny_model, tiny_data, whole)
    (whole / "study.json").unlink()
    _, watch = study(tiny_model, tiny_data, whole)
    assert models(whole) == before
    assert watch.trained == {}
    assert (whole / "study.json").read_text(encoding="utf-8") == plan


def test_another_seed_trains_only_its_runs(whole: Path, tiny_model: Path, tiny_data: Path) -> None:
    before = models(whole)
    _, watch = study(tiny_model, tiny_data, whole, seeds=(0, 1, 2))
    assert set(watch.trained) == {"plain, seed 2", "short, seed 2"}
    after = models(whole)
    assert {name: after[name] for name in before} == before


def test_other_perspectives_evaluate_again_without_training(
    whole: Path, tiny_model: Path, tiny_data: Path
) -> None:
    before = models(whole)
    _, watch = study(tiny_model, tiny_data, whole, evaluate={"bootstrap": 5})
    assert models(whole) == before
    assert watch.trained == {}
    assert len(watch.judged) == 4


def test_a_column_with_other_settings_raises_an_error(
    whole: Path, tiny_model: Path, tiny_data: Path
) -> None:
    before = models(whole)
    with pytest.raises(CheckpointError, match=r"'plain' had other settings: train\.max_steps"):
        study(tiny_model, tiny_data, whole, train={"max_steps": 3})
    assert models(whole) == before


def test_a_study_of_other_seeds_is_not_overwritten(
    whole: Path, tiny_model: Path, tiny_data: Path
) -> None:
    before = (whole / "study.json").read_bytes()
    with pytest.raises(CheckpointError, match=r"columns or seeds \(plain, short\)"):
        study(tiny_model, tiny_data, whole, seeds=(7, 8))
    assert (whole / "study.json").read_bytes() == before


def test_an_unstarted_column_may_have_other_settings(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        study(tiny_model, tiny_data, out, watch=Watch(stop=("plain, seed 0", 3)))
    _, watch = study(tiny_model, tiny_data, out, short="short=uegr,train.max_steps=1")
    assert {name: steps for name, steps in watch.trained.items() if "short" in name} == {
        "short, seed 0": 1,
        "short, seed 1": 1,
    }


def test_a_stopped_study_resumes_to_the_same_weights(
    whole: Path, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "study"
    with pytest.raises(KeyboardInterrupt):
        study(tiny_model, tiny_data, out, watch=Watch(stop=("plain, seed 1", 3)))
    finished = models(out)
    assert len(finished) == 2
    _, watch = study(tiny_model, tiny_data, out)
    # The stop came in step 3, before its checkpoint: steps 3 and 4 are left.
    assert watch.trained == {"plain, seed 1": 2, "short, seed 1": 2}
    after = models(out)
    assert {name: after[name] for name in finished} == finished
    reference = models(whole)
    assert {name: weights for name, (weights, _) in after.items()} == {
        name: reference[name][0] for name in after
    }


def test_columns_of_one_seed_share_their_rows_and_those_of_two_seeds_do_not(whole: Path) -> None:
    records = {
        folder.name.rsplit("-", 1)[0]: json.loads((folder / "run.json").read_text())
        for folder in (whole / "runs").iterdir()
    }
    assert len({record["data"]["train"]["hash"] for record in records.values()}) == 1
    weights = models(whole)
    by_column = {name.rsplit("-", 1)[0]: result[0] for name, result in weights.items()}
    assert by_column["plain-s0"] != by_column["plain-s1"]


def test_one_seed_is_paired_over_examples_until_there_are_more(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The tiny corpus has fewer rows than a verdict needs.
    monkeypatch.setattr(table, "LEAST_ROWS", 1)
    out = tmp_path / "study"
    one, _ = study(tiny_model, tiny_data, out, seeds=(0,))
    kept = json.loads((out / "paired.json").read_text())
    assert kept["columns"]["short"]["seed"] == 0
    names = {entry["name"] for entry in kept["columns"]["short"]["scores"]}
    assert "accuracy" in names
    cell = row_of(one.comparison, "task", "accuracy").cells["short"]
    difference = cell.difference
    assert difference is not None
    assert difference.low is not None
    assert difference.verdict in ("better", "worse", "not significant")
    assert (
        difference.examples == row_of(one.comparison, "task", "accuracy").cells["short"].examples[0]
    )

    study(tiny_model, tiny_data, out, seeds=(0,))
    assert json.loads((out / "paired.json").read_text()) == kept

    two, _ = study(tiny_model, tiny_data, out, seeds=(0, 1))
    kept = json.loads((out / "paired.json").read_text())
    assert kept["columns"]["short"]["seeds"] == [0, 1]
    difference = row_of(two.comparison, "task", "accuracy").cells["short"].difference
    assert difference is not None
    assert difference.low is not None
    assert difference.examples is None
    (entry,) = [
        entry
        for entry in kept["columns"]["short"]["variances"]
        if (entry["perspective"], entry["name"]) == ("task", "accuracy")
    ]
    shared = max(0.0, entry["rows"] - sum(entry["columns"]) / 2)
    assert difference.row_variance == pytest.approx(shared)

    study(tiny_model, tiny_data, out, seeds=(0, 1))
    assert json.loads((out / "paired.json").read_text()) == kept


def test_the_ratio_is_the_median_over_the_seeds_that_both_have() -> None:
    seconds = {"plain": {0: 1.0, 1: 2.0, 2: 4.0}, "uegr": {0: 3.0, 1: 4.0, 3: 50.0}}
    cost = step_cost(seconds, reference="plain")
    assert cost["plain"] == {"step_seconds": 2.0, "over_reference": 1.0}
    assert cost["uegr"] == {"step_seconds": 4.0, "over_reference": 2.5}
    unknown = {"plain": {0: None, 1: 2.0}, "uegr": {0: 3.0, 1: 5.0}}
    assert step_cost(unknown, reference="plain")["uegr"] == {
        "step_seconds": 4.0,
        "over_reference": 2.5,
    }
