"""Trackers get loss terms during training and scores at the end, one tracker run per run."""

from __future__ import annotations

import importlib.machinery
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

import temper
from temper.errors import SettingError
from temper.training.trackers import TrackedRun, tracked
from tests.cli.tiny_project import make_model, sentences, write_csv

SCORE = "evaluation/task/dev/clean/accuracy"
TERMS = {"train/loss/task", "train/loss/adversarial"}
Compare = Callable[..., Any]


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked")
    make_model(folder / "model")
    write_csv(folder / "reviews" / "train.csv", sentences(24))
    write_csv(folder / "reviews" / "dev.csv", sentences(10, thing="phone"))
    return folder


@pytest.fixture
def compare(project: Path) -> Compare:
    """Return the settings of a comparison of two methods with a tracker."""

    def compare_with(out: Path, report_to: str, **settings: Any) -> Any:
        given: dict[str, Any] = {"methods": ["plain", "at"], "seeds": [0], **settings}
        return temper.compare(
            out=out,
            equal_compute=False,
            model=str(project / "model"),
            data=project / "reviews",
            max_length=16,
            device="cpu",
            perspectives="task",
            evaluate={"bootstrap": 0},
            train={"max_steps": 2, "logging_steps": 1, "report_to": report_to},
            **given,
        )

    return compare_with


def values_in(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Read TensorBoard's scalars back: step and value by name."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    result = EventAccumulator(str(folder)).Reload()
    return {
        name: [(event.step, event.value) for event in result.Scalars(name)]
        for name in result.Tags()["scalars"]
    }


def test_tensorboard_gets_the_terms_of_each_run_and_its_scores(
    compare: Compare, tmp_path: Path
) -> None:
    pytest.importorskip("tensorboard")
    study = compare(tmp_path / "study", "tensorboard")
    for column in ("plain", "at"):
        runs = json.loads((study.folder / "study.json").read_text())["runs"]
        run = study.folder / runs[column]["0"]
        values = values_in(run / "tensorboard")
        logs = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
        losses = {log["step"]: log["loss"] for log in logs if "loss" in log}
        assert dict(values["train/loss"]) == pytest.approx(losses)
        assert (set(values) >= TERMS) == (column == "at")
        (epoch,) = (log for log in logs if "dev/accuracy" in log)
        assert values["dev/accuracy"] == [(2, pytest.approx(epoch["dev/accuracy"]))]
        scores = json.loads((run / "evaluation" / "scores.json").read_text())["scores"]
        (accuracy,) = (s["value"] for s in scores if s["name"] == "accuracy")
        assert values[SCORE] == [(2, pytest.approx(accuracy))]


class Recorded:
    """A fake tracker package that records its calls."""

    def __init__(self) -> None:
        self.runs: dict[str, dict[str, float]] = {}
        self.begun: list[str] = []
        self.ended: list[tuple[str, object]] = []
        self.open: str | None = None

    def begin(self, known: str | None) -> None:
        assert self.open is None
        self.open = known or f"run-{len(self.runs)}"
        self.runs.setdefault(self.open, {})
        self.begun.append(self.open)

    def note(self, values: Any) -> None:
        assert self.open is not None
        self.runs[self.open].update(values)

    def end(self, how: object) -> None:
        assert self.open is not None
        self.ended.append((self.open, how))
        self.open = None


def planted(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> ModuleType:
    module = ModuleType(name)
    module.__spec__ = importlib.machinery.ModuleSpec(name, None)
    module.__dict__.update(content)
    monkeypatch.setitem(sys.modules, name, module)
    return module


@pytest.fixture
def wandb(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    noted = Recorded()

    class Config(dict):  # type: ignore[type-arg]
        def update(self, values: Any, allow_val_change: bool = False) -> None:  # type: ignore[override]
            super().update(values)

    def init(project: str, name: str, id: str | None = None, resume: str | None = None) -> None:  # noqa: A002
        assert (id is None) == (resume is None)
        noted.begin(id)
        module.run = SimpleNamespace(id=noted.open, summary={}, _label=lambda code: None)

    def finish(exit_code: int) -> None:
        noted.end(exit_code)
        module.run = None

    module = planted(
        monkeypatch, "wandb", run=None, init=init, finish=finish, log=noted.note, config=Config()
    )
    planted(monkeypatch, "wandb.sdk")
    planted(monkeypatch, "wandb.sdk.lib")
    planted(monkeypatch, "wandb.sdk.lib.config_util", ConfigError=ValueError)
    return noted


@pytest.fixture
def mlflow(monkeypatch: pytest.MonkeyPatch) -> Recorded:
    noted = Recorded()

    def active_run() -> Any:
        return noted.open and SimpleNamespace(info=SimpleNamespace(run_id=noted.open))

    def log_metrics(metrics: Any, **_: Any) -> None:
        assert not [name for name in metrics if set(name) & set("()=,[]")]
        noted.note(metrics)

    limits = SimpleNamespace(MAX_PARAM_VAL_LENGTH=6000, MAX_PARAMS_TAGS_PER_BATCH=100)
    planted(
        monkeypatch,
        "mlflow",
        __version__="3.0.0",
        utils=SimpleNamespace(validation=limits),
        active_run=active_run,
        start_run=lambda run_id=None, run_name=None: noted.begin(run_id),
        end_run=lambda status="FINISHED": noted.end(status),
        is_tracking_uri_set=lambda: True,
        get_tracking_uri=lambda: "",
        set_tags=lambda tags: None,
        log_params=lambda params, **_: None,
        log_metrics=log_metrics,
    )
    return noted


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_each_run_of_a_comparison_is_one_run_of_the_tracker(
    name: str, compare: Compare, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    noted: Recorded = request.getfixturevalue(name)
    compare(tmp_path / "study", name)
    plain, attacked = noted.runs.values()
    terms = TERMS if name == "wandb" else {term.removeprefix("train/") for term in TERMS}
    assert terms <= set(attacked)
    assert not terms <= set(plain)
    for run in (plain, attacked):
        assert {SCORE, "dev/accuracy"} <= set(run)
    # Training opens the run, and the evaluation the same one again.
    assert noted.begun == ["run-0", "run-0", "run-1", "run-1"]
    assert noted.open is None
    assert {how for _, how in noted.ended} == {0 if name == "wandb" else "FINISHED"}


def test_a_resumed_run_continues_from_its_checkpoint(wandb: Recorded, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    for step, value in ((0, 1.0), (2, 5.0)):
        with tracked(TrackedRun(tmp_path, {}, step), ["tensorboard", "wandb"]) as trackers:
            for index in range(step + 1, 4):
                trackers.send({"loss": value + index}, index)
    assert wandb.begun == ["run-0", "run-0"]
    # The third step was logged before the stop and is logged again.
    assert values_in(tmp_path / "tensorboard")["loss"] == [(1, 2.0), (2, 3.0), (3, 8.0)]


def test_a_run_that_fails_is_closed_as_failed(wandb: Recorded, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="at step 3"), tracked(TrackedRun(tmp_path, {}), ["wandb"]):
        raise ValueError("at step 3")
    assert wandb.ended == [("run-0", 1)]


def test_a_run_that_the_caller_has_opened_is_left_open(
    mlflow: Recorded, wandb: Recorded, tmp_path: Path
) -> None:
    sys.modules["wandb"].init("mine", "mine")
    sys.modules["mlflow"].start_run()
    with tracked(TrackedRun(tmp_path, {}), ["wandb", "mlflow"]) as trackers:
        trackers.send({"a": 1.0, "undefined": None}, 3)
    assert wandb.runs == {"run-0": {"a": 1.0, "train/global_step": 3}}
    assert mlflow.runs == {"run-0": {"a": 1.0}}
    assert wandb.ended == mlflow.ended == []


def test_a_tracker_that_cannot_be_opened_is_one_error(
    wandb: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(**_: Any) -> None:
        raise OSError("no API key.")

    monkeypatch.setattr(sys.modules["wandb"], "init", refuse)
    with (
        pytest.raises(SettingError, match=r"'wandb' cannot be opened: OSError: no API key\. Fix"),
        tracked(TrackedRun(tmp_path, {}), ["wandb"]),
    ):
        pass


def test_a_missing_package_raises_an_error_before_any_work(
    compare: Compare, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(SettingError, match="'mlflow' is not installed. Run: pip install mlflow"):
        compare(tmp_path / "study", "mlflow")
    assert not (tmp_path / "study").exists()
