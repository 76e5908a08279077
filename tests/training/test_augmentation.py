"""Runs with perturbed training rows: key, metadata, resuming, and unchanged rows."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.augmentation import AugmentedExamples
from temper.data.sources import load_splits
from temper.errors import SettingError
from temper.evaluation.request import EvaluationRequest
from temper.study.plan import Column, StudyConfig
from temper.training.config import RunConfig, run_key
from temper.training.prepared import prepare
from temper.training.run import train
from tests.training.listeners import StopAt
from tests.training.tiny_training import (
    Rows,
    make_trainer,
    record,
    settings_of_run,
)


def tree(project: Path, method: str = "plain", **data: Any) -> dict[str, Any]:
    # 40 rows in tens: four steps an epoch.
    loop = {"epochs": 2, "batch_size": 10, "save_steps": 3}
    return settings_of_run(project, method=method, data=data, **loop)


def config(project: Path, method: str = "plain", **data: Any) -> RunConfig:
    return RunConfig.of(tree(project, method, **data))


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return train(config(project, augment=["typos", "spaces"]), project / "whole")


def test_the_record_contains_the_augmentations(whole: Path) -> None:
    content = record(whole)["settings"]["data"]
    assert (content["augment"], content["augment_fraction"]) == (["typos", "spaces"], 0.5)
    assert record(whole)["times"]["steps"] == 8


# In the first epoch, at its end, and in the second.
@pytest.mark.parametrize("stop", [3, 4, 7])
def test_a_stopped_run_resumes_to_the_same_weights(project: Path, whole: Path, stop: int) -> None:
    out = project / f"stopped-{stop}"
    settings = config(project, augment=["typos", "spaces"])
    with pytest.raises(KeyboardInterrupt):
        train(settings, out, progress=StopAt(stop))
    assert record(out)["status"] == "stopped"
    train(settings, out)
    assert weights(out) == weights(whole)
    assert (out / "metrics.jsonl").read_bytes() == (whole / "metrics.jsonl").read_bytes()


def test_a_run_with_a_pre_pass_resumes_to_the_same_weights(project: Path) -> None:
    settings = config(project, "child_tuning_d", augment=["typos"])
    first = train(settings, project / "measured")
    with pytest.raises(KeyboardInterrupt):
        train(settings, project / "measured-stopped", progress=StopAt(5))
    assert weights(train(settings, project / "measured-stopped")) == weights(first)


def test_perturbing_changes_the_weights_and_perturbing_nothing_does_not(
    project: Path, whole: Path
) -> None:
    plain = train(config(project), project / "plain")
    assert weights(plain) != weights(whole)
    # Nothing can be expanded in these sentences, nor is a letter of them large.
    for name in ("expansions", "lowercase"):
        same = train(config(project, augment=name, augment_fraction=1.0), project / name)
        assert weights(same) == weights(plain)


def test_the_key_depends_on_augmentations_their_order_and_fraction(project: Path) -> None:
    plain = config(project)
    splits = load_splits(plain.data)
    old = plain.key(model="m", train_hash="t", dev_hash="d")
    others: list[dict[str, Any]] = [
        {"augment": ["typos"]},
        {"augment": ["typos"], "augment_fraction": 0.2},
        {"augment": ["typos", "spaces"]},
        {"augment": ["spaces", "typos"]},
    ]
    keys = [config(project, **each).key(model="m", train_hash="t", dev_hash="d") for each in others]
    assert len({old, *keys}) == 5
    assert run_key(plain, splits) != run_key(config(project, augment="typos"), splits)


def test_a_column_of_a_comparison_may_perturb_the_shared_rows(project: Path) -> None:
    column = Column.parse('noisy=plain,data.augment=["typos","spaces"],data.augment_fraction=0.3')
    shared = tree(project)
    plan = StudyConfig.of(
        {name: shared[name] for name in ("model", "data", "train")},
        columns=[Column.of("plain"), column],
        seeds=[0],
    )
    assert plan.runs["plain", 0].data.augment == ()
    assert plan.runs["noisy", 0].data.augment == ("typos", "spaces")
    assert plan.runs["noisy", 0].data.augment_fraction == 0.3
    with pytest.raises(SettingError, match=r"`data\.augment` and its settings"):
        Column.parse("more=plain,data.rows=9")


@pytest.mark.parametrize("name", ["augment", "augment_fraction"])
def test_an_evaluation_refuses_to_perturb_training_rows(name: str) -> None:
    with pytest.raises(SettingError, match=rf"`data\.{name}` is a training setting"):
        EvaluationRequest.of({"data": {"source": "demo", name: "typos"}}, model=Checkpoint("m"))


def test_an_evaluation_with_rows_names_the_setting_that_limits_them() -> None:
    with pytest.raises(SettingError, match=r"`data\.rows` .* data\.eval_rows"):
        EvaluationRequest.of({"data": {"source": "demo", "rows": 9}}, model=Checkpoint("m"))


def test_a_user_dataset_receives_every_epoch(tmp_path: Path) -> None:
    class Counting(Rows):
        def __init__(self, count: int) -> None:
            super().__init__(count)
            self.heard: list[int] = []
            self.given: list[tuple[int, int]] = []

        def set_epoch(self, epoch: int) -> None:
            self.heard.append(epoch)

        def __getitem__(self, index: int) -> dict[str, Any]:
            if self.heard:
                self.given.append((self.heard[-1], index))
            return super().__getitem__(index)

    rows = Counting(12)
    make_trainer(tmp_path, rows=rows, num_train_epochs=3).train()
    assert rows.heard == [0, 1, 2]
    for epoch in range(3):
        assert sorted(index for heard, index in rows.given if heard == epoch) == list(range(12))


def test_unlabeled_rows_are_not_augmented(project: Path) -> None:
    data = {"unlabeled": str(project / "data" / "anomaly.csv"), "augment": "typos"}
    settings = config(project, "jachess_unlabeled", **data)
    prepared = prepare(settings, load_splits(settings.data))
    assert isinstance(prepared.rows, AugmentedExamples)
    assert not isinstance(prepared.unlabeled, AugmentedExamples)
