"""`temper tune`: its rows, its budget, resuming, and the files it writes."""

from __future__ import annotations

import importlib.util
import json
import math
from collections.abc import Generator, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import temper
from temper.calibration.files import read_calibration
from temper.checkpoints.checkpoint import Checkpoint
from temper.cluster.machines import Cluster
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.data.splitting import folds
from temper.errors import CheckpointError, DataError, NonFiniteError, SettingError
from temper.evaluation.folder import read
from temper.export.verify import verify
from temper.methods.recipes import Recipe, recipes
from temper.progress import Progress
from temper.study import search as module
from temper.study.cluster import Job
from temper.study.goals import GOALS, Budget, goal_weights, improvement
from temper.study.search import FOLDS, dev_folds
from tests.cli.tiny_project import make_model, sentences, write_csv
from tests.training.listeners import Heard

TRAIN, REPORTED = 60, 12


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tune")
    make_model(folder / "model")
    write_csv(folder / "data" / "train.csv", sentences(TRAIN))
    write_csv(folder / "data" / "dev.csv", sentences(REPORTED, thing="phone"))
    return folder


def options(project: Path, **changes: Any) -> dict[str, Any]:
    return {
        "model": str(project / "model"),
        "data": str(project / "data"),
        "train": {"max_steps": 3, "learning_rate": 1e-2, "device": "cpu"},
        "perspectives": ["task", "calibration"],
        "recipes": "ema",
        "goal": "accuracy=1,calibration=1",
        "budget": "12runs",
        "seeds": (0,),
        **changes,
    }


@pytest.fixture(scope="module")
def searched(project: Path) -> Path:
    temper.tune(out=project / "searched", **options(project))
    return project / "searched"


def record(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "tune.json").read_text(encoding="utf-8"))
    return content


class StopAtRun(Progress):
    """Interrupt the search at a step of a run, counted over all runs."""

    def __init__(self, at: int) -> None:
        self.left = at

    def steps(self, done: int, total: int, *, loss: float | None) -> None:
        self.left -= 1
        if self.left == 0:
            raise KeyboardInterrupt


@given(
    labels=st.lists(st.integers(0, 2), min_size=10, max_size=60),
    texts=st.lists(st.integers(0, 40), min_size=60, max_size=60),
    seed=st.integers(0, 5),
)
def test_folds_are_stratified_and_keep_equal_texts_together(
    labels: list[int], texts: list[int], seed: int
) -> None:
    words = [str(text) for text in texts[: len(labels)]]
    rows = Examples("toy", words, labels=labels, kind="classification")
    cut = folds(rows, 5, seed=seed)
    assert sorted(text for fold in cut for text in fold.text) == sorted(words)
    homes = [set(fold.text) for fold in cut]
    assert sum(len(home) for home in homes) == len(set(words))
    if len(set(words)) == len(words):
        for label in set(labels):
            counts = [list(fold.labels or ()).count(label) for fold in cut]
            assert max(counts) - min(counts) <= 1
    order = sorted(range(len(words)), key=lambda index: (words[index], index))
    again = folds(rows.select(order), 5, seed=seed)
    if len(set(words)) == len(words):
        assert [set(fold.text) for fold in again] == homes


def test_goals_are_weights_that_add_up_to_one() -> None:
    for goal in GOALS:
        assert math.isclose(sum(goal_weights(goal).values()), 1.0)
    assert goal_weights("accuracy=2,robustness=2") == {"accuracy": 0.5, "robustness": 0.5}
    with pytest.raises(SettingError, match="Unknown goal 'accurate'"):
        goal_weights("accurate")
    with pytest.raises(SettingError, match="Unknown part of a goal 'speed'"):
        goal_weights("speed=1")
    with pytest.raises(SettingError, match="must be above 0"):
        goal_weights("accuracy=-1")


def test_improvement_is_the_mean_fraction_of_the_error_removed() -> None:
    scores = {"accuracy": 0.9, "calibration": 0.7}
    plain = {"accuracy": 0.8, "calibration": 0.8}
    # A half of an error of .2 is gone, and an error of .2 has grown by half.
    weights = {"accuracy": 0.75, "calibration": 0.25}
    assert improvement(scores, plain, weights) == pytest.approx(0.75 * 0.5 - 0.25 * 0.5)
    assert improvement(plain, plain, weights) == 0
    # What is perfect cannot be improved, and is no division by 0.
    assert improvement({"accuracy": 0.99}, {"accuracy": 1.0}, {"accuracy": 1.0}) == -1


@pytest.mark.parametrize("text", ["", "30", "runs", "0m", "3 days", "-2h"])
def test_a_budget_of_another_form_raises_an_error(text: str) -> None:
    with pytest.raises(SettingError, match="--budget must be a time"):
        Budget.parse(text)


def test_no_trial_reads_a_reported_row(project: Path, searched: Path) -> None:
    splits = load_splits(DataSettings(source=str(project / "data")))
    looked_at: set[str] = set()
    trials = searched / "trials"
    evaluations = list(trials.glob("runs/*/evaluation"))
    for folder in evaluations:
        looked_at |= set(read(folder).rows["row"].to_pylist())
    assert len(evaluations) >= 2 * FOLDS - 1
    assert looked_at <= set(splits.train.rows)
    assert not looked_at & set(splits.dev.rows)


def test_a_reported_text_among_the_training_rows_reaches_no_fold(
    project: Path, tmp_path: Path
) -> None:
    planted = sentences(REPORTED, thing="phone")[:5]
    write_csv(tmp_path / "train.csv", [*sentences(TRAIN), *planted])
    write_csv(tmp_path / "dev.csv", sentences(REPORTED, thing="phone"))
    leaking = load_splits(DataSettings(source=str(tmp_path)))
    with pytest.raises(DataError, match="validation fold are also reported"):
        dev_folds(leaking, seed=0)
    heard = Heard()
    temper.tune(
        out=tmp_path / "out",
        progress=heard,
        **options(project, data=str(tmp_path), budget="9runs"),
    )
    assert any("5 rows dropped from train" in notice for notice in heard.notices)
    for folder in (tmp_path / "out" / "trials").glob("**/evaluation"):
        assert not set(read(folder).rows["row"].to_pylist()) & set(leaking.dev.rows)


def test_no_row_is_in_both_parts_of_a_fold(project: Path) -> None:
    splits = load_splits(DataSettings(source=str(project / "data")))
    for fold in dev_folds(splits, seed=0):
        assert not len(fold.dev.overlap(fold.train))


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Do the runs of a cluster here, loaded as there; return how many were asked for at once."""
    result: list[int] = []

    def do_runs(
        jobs: Sequence[Job], _: Cluster, progress: Progress
    ) -> Generator[tuple[Job, float | None]]:
        assert len({job.key for job in jobs}) == len(jobs)
        result.append(len(jobs))
        for job in reversed(jobs):
            yield job, job.folder.load().do(job.cell, progress=progress)

    monkeypatch.setattr(Cluster, "check", lambda _: None)
    monkeypatch.setattr(Cluster, "connection", lambda _: nullcontext())
    for module_of in ("search", "schedule"):
        monkeypatch.setattr(f"temper.study.{module_of}.do_runs", do_runs)
    return result


def test_a_failing_cluster_leaves_no_record(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    @contextmanager
    def refuse(_: Cluster) -> Iterator[None]:
        raise SettingError("No machine of the cluster has what a run takes")
        yield

    monkeypatch.setattr(Cluster, "check", lambda _: None)
    monkeypatch.setattr(Cluster, "connection", refuse)
    with pytest.raises(SettingError, match="No machine of the cluster"):
        temper.tune(out=tmp_path / "out", **options(project, cluster="HOST:1"))
    assert not (tmp_path / "out" / "tune.json").exists()


# Between the folds of a trial, and in the final comparison.
@pytest.mark.parametrize("step", [9, 31])
def test_a_stopped_search_ends_as_the_uninterrupted_one(
    project: Path, searched: Path, tmp_path: Path, step: int
) -> None:
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        temper.tune(out=out, progress=StopAtRun(step), **options(project))
    before = {
        file: file.stat().st_mtime_ns for file in out.glob("trials/runs/*/evaluation/scores.json")
    }
    temper.tune(out=out, **options(project))
    assert record(out) == record(searched)
    # Finished runs are reused.
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_a_killed_search_repeats_its_last_trial(
    project: Path, searched: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Killed(BaseException):
        """Ends the process before Optuna can write the state of the trial."""

    run, calls = module.Search.run, []

    def killed(self: module.Search, jobs: Sequence[Job]) -> None:
        calls.append(jobs)
        run(self, jobs)
        if len(calls) == FOLDS + 1:
            raise Killed

    monkeypatch.setattr(module.Search, "run", killed)
    with pytest.raises(Killed):
        temper.tune(out=tmp_path / "killed", **options(project))
    temper.tune(out=tmp_path / "killed", **options(project))
    assert record(tmp_path / "killed") == record(searched)


def test_a_trial_whose_loss_is_not_finite_fails_alone(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = module.Search.run

    def diverging(self: module.Search, jobs: Sequence[Job]) -> None:
        if jobs[0].cell[0] == "ema":
            raise NonFiniteError("The loss is not finite.", step=0, term="labels", rows=())
        run(self, jobs)

    monkeypatch.setattr(module.Search, "run", diverging)
    heard = Heard()
    temper.tune(out=tmp_path / "out", progress=heard, **options(project, budget="9runs"))
    assert record(tmp_path / "out")["winner"]["recipe"] == "plain"
    assert any(notice.startswith("ema failed") for notice in heard.notices)


def test_a_cluster_runs_the_folds_of_a_trial_at_once_with_the_scores_of_one_process(
    project: Path, searched: Path, tmp_path: Path, rounds: list[int]
) -> None:
    given = options(project, cluster="HOST:1")
    temper.tune(out=tmp_path / "whole", **given)
    # The last round is the final comparison: plain fine-tuning and the winner.
    *trials, _ = rounds
    assert len(trials) >= 2
    assert set(trials) == {FOLDS}
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        temper.tune(out=out, progress=StopAtRun(14), **given)
    temper.tune(out=out, **given)
    assert record(out) == record(tmp_path / "whole")
    here, there = (
        {
            file.parent.parent.name: file.read_bytes()
            for file in folder.glob("trials/runs/*/evaluation/scores.json")
        }
        for folder in (searched, out)
    )
    shared = here.keys() & there.keys()
    assert len(shared) >= FOLDS
    assert {name: here[name] for name in shared} == {name: there[name] for name in shared}
    assert all(not result.faults for result in verify(out))


def test_plain_fine_tuning_is_tuned_at_the_same_budget(searched: Path) -> None:
    result = record(searched)
    assert result["recipes"] == ["plain", "ema"]
    assert {line["recipe"] for line in result["ranking"]} >= {"plain"}
    assert result["ranking"][0] == result["winner"]
    values = [line["improvement"] for line in result["ranking"]]
    assert values == sorted(values, reverse=True)
    assert [line["improvement"] for line in result["ranking"] if not line["trial"]] == [0.0]


def test_the_best_recipe_is_compared_with_tuned_plain_fine_tuning(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def scores(evaluation: Path, weights: Any) -> dict[str, float]:
        return {"accuracy": 0.9 if evaluation.parent.name.startswith("ema") else 0.8}

    monkeypatch.setattr(module, "part_scores", scores)
    tuned = temper.tune(out=tmp_path / "out", **options(project, goal="accuracy"))
    result = tuned.record
    assert (result["winner"]["recipe"], result["winner"]["improvement"]) == ("ema", 0.5)
    assert "The search chose ema" in tuned.summary
    study = json.loads((tmp_path / "out" / "final" / "study.json").read_text(encoding="utf-8"))
    assert list(study["runs"]) == ["plain", "ema", "frozen_embeddings"]
    assert 'name = "ema"' in (tmp_path / "out" / "winner.toml").read_text(encoding="utf-8")


def test_logistic_regression_on_frozen_embeddings_is_in_the_final_comparison(
    searched: Path,
) -> None:
    # The budget does not allow SetFit, which costs three plain runs.
    assert list(record(searched)["alternatives"]) == ["frozen_embeddings"]
    study = json.loads((searched / "final" / "study.json").read_text(encoding="utf-8"))
    run = searched / "final" / study["runs"]["frozen_embeddings"]["0"]
    judged = read(run / "evaluation").rows["row"].to_pylist()
    assert len(set(judged)) == REPORTED
    report = (searched / "final" / "report.md").read_text(encoding="utf-8")
    assert "frozen" in report


def test_setfit_is_in_the_final_comparison_if_the_budget_allows(
    project: Path, tmp_path: Path
) -> None:
    heard = Heard()
    temper.tune(out=tmp_path / "out", progress=heard, **options(project, budget="22runs"))
    assert set(record(tmp_path / "out")["alternatives"]) == {"frozen_embeddings", "setfit"}
    study = json.loads((tmp_path / "out/final/study.json").read_text(encoding="utf-8"))
    judged = read(tmp_path / "out" / "final" / study["runs"]["setfit"]["0"] / "evaluation")
    assert len(set(judged.rows["row"].to_pylist())) == REPORTED


def test_the_winner_s_file_repeats_its_final_run(searched: Path, tmp_path: Path) -> None:
    temper.train(out=tmp_path / "again", config=searched / "winner.toml")
    again = json.loads((tmp_path / "again" / "run.json").read_text(encoding="utf-8"))
    name = record(searched)["winner"]["recipe"]
    runs = json.loads((searched / "final" / "study.json").read_text(encoding="utf-8"))["runs"]
    final = searched / "final" / runs[name]["0"]
    assert again["key"] == json.loads((final / "run.json").read_text(encoding="utf-8"))["key"]
    weights = [folder / "model.safetensors" for folder in (final, tmp_path / "again")]
    assert weights[0].read_bytes() == weights[1].read_bytes()
    # It has no held-out rows, and a temperature of the trials' smaller models does not fit it.
    assert read_calibration(Checkpoint.of(final)) is None


def test_a_finished_search_is_reused_without_reading_test_rows_again(
    project: Path, searched: Path
) -> None:
    files = sorted(searched.rglob("scores.json"))
    before = [file.stat().st_mtime_ns for file in files]
    heard = Heard()
    result = temper.tune(out=searched, progress=heard, **options(project, budget="50runs"))
    assert any("Up to date" in notice for notice in heard.notices)
    assert before == [file.stat().st_mtime_ns for file in files]
    assert (result.page.exists(), result.summary) == (True, record(searched)["summary"])
    with pytest.raises(CheckpointError, match="has another search"):
        temper.tune(out=searched, **options(project, goal="accuracy"))


def test_a_too_small_budget_raises_an_error_with_the_minimum(project: Path, tmp_path: Path) -> None:
    # Three folds of 4/5 of the rows for each side, and the final part: 2 * 2.4 + 2.
    with pytest.raises(SettingError, match=r"too small: .* need at least 6\.8 runs"):
        temper.tune(out=tmp_path / "out", **options(project, budget="6runs"))
    assert not (tmp_path / "out").exists()


def test_a_too_short_time_raises_an_error_after_the_first_fold(
    project: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    with pytest.raises(SettingError, match=r"too small: .* need at least .* minutes"):
        temper.tune(out=out, **options(project, budget="0.001s"))
    assert len(list(out.glob("trials/runs/*"))) == 1
    # What was done is kept for a larger budget.
    done = [file.stat().st_mtime_ns for file in out.glob("trials/runs/*/run.json")]
    with pytest.raises(SettingError, match="too small"):
        temper.tune(out=out, **options(project, budget="0.002s"))
    assert done == [file.stat().st_mtime_ns for file in out.glob("trials/runs/*/run.json")]


def test_unsearchable_settings_raise_an_error_before_any_work(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(match: str, **changes: Any) -> None:
        with pytest.raises((SettingError, DataError), match=match):
            temper.tune(out=tmp_path / "out", **options(project, **changes))
        assert not (tmp_path / "out").exists()

    refused("Unknown goal", goal="fast")
    refused("Unknown recipe 'nothing'", recipes="nothing")
    refused("Plain fine-tuning is always included", recipes="plain")
    refused("has 30 rows.*at least 50", rows=30)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    refused(r"pip install 'optuna>=")


def test_recipes_that_the_model_does_not_support_are_skipped_unless_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heard = Heard()
    odd = Recipe("odd", "for pre-trained models alone", "lp_ft", 3.0, "candidate")
    monkeypatch.setitem(recipes(), "odd", odd)
    given = {"model": "text_cnn", "data": "demo", "rows": 60, "goal": "accuracy", "seeds": (0,)}
    with pytest.raises(SettingError, match="too small"):
        temper.tune(out=tmp_path / "out", budget="1runs", progress=heard, **given)
    assert any(notice.startswith("Skipping odd") for notice in heard.notices)
    with pytest.raises(SettingError, match="is trained from scratch"):
        temper.tune(out=tmp_path / "out", budget="1runs", recipes="odd", **given)


@pytest.fixture(scope="module")
def other_model(project: Path) -> str:
    make_model(project / "other", seed=1)
    return str(project / "other")


def of_models(project: Path, other_model: str, **changes: Any) -> dict[str, Any]:
    models = (str(project / "model"), other_model)
    return {**options(project, budget="16runs"), "model": None, "models": models, **changes}


def test_recipes_are_searched_for_the_best_model_on_the_folds(
    project: Path, other_model: str, tmp_path: Path
) -> None:
    given = of_models(project, other_model)
    tuned = temper.tune(out=tmp_path / "whole", **given)
    lines = tuned.record["models"]
    assert {line["model"] for line in lines} == set(given["models"])
    assert lines == sorted(lines, key=lambda line: -line["improvement"])
    reference = [
        line
        for line in lines
        if (line["model"], line["learning_rate"]) == (given["models"][0], 0.01)
    ]
    assert [line["improvement"] for line in reference] == [0.0]
    assert all(line["train_seconds"] > 0 and line["predict_ms"] > 0 for line in lines)
    # Each model once on three folds of 48 of 60 rows, and more rates within half of the budget.
    each = FOLDS * 48 / TRAIN
    assert tuned.record["used"] == pytest.approx(len(lines) * each)
    assert 2 * each <= tuned.record["used"] <= 8
    winner = (tmp_path / "whole" / "winner.toml").read_text(encoding="utf-8")
    assert f"model = {json.dumps(lines[0]['model'])}" in winner


def test_a_stopped_comparison_of_models_is_resumed(
    project: Path, other_model: str, tmp_path: Path
) -> None:
    given = of_models(project, other_model)
    out = tmp_path / "stopped"
    with pytest.raises(KeyboardInterrupt):
        temper.tune(out=out, progress=StopAtRun(14), **given)
    temper.tune(out=out, **given)
    temper.tune(out=tmp_path / "whole", **given)

    def lasting(content: dict[str, Any]) -> dict[str, Any]:
        times = ("train_seconds", "predict_ms")
        lines = content["models"]
        rest = [{k: v for k, v in line.items() if k not in times} for line in lines]
        return {**content, "models": rest}

    assert lasting(record(out)) == lasting(record(tmp_path / "whole"))


@pytest.mark.parametrize(
    "models", [("minilm",), ("minilm", "minilm"), "minilm,", ("minilm", "nowhere/at-all/x")]
)
def test_models_that_cannot_be_compared_raise_an_error(
    project: Path, tmp_path: Path, models: Any
) -> None:
    given = {**options(project), "model": None, "models": models}
    with pytest.raises((SettingError, temper.errors.ModelError)):
        temper.tune(out=tmp_path / "out", **given)


def test_model_with_models_raises_an_error(project: Path, other_model: str, tmp_path: Path) -> None:
    with pytest.raises(SettingError, match="--model and --models"):
        temper.tune(out=tmp_path / "out", **of_models(project, other_model, model="minilm"))
