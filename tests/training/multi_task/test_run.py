"""A run on several tasks: its folder, its metadata, and the classifier of each task."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModel, AutoModelForSequenceClassification

from temper.data.sources import load_splits
from temper.errors import CheckpointError, SettingError
from temper.models.hf import load_classifier
from temper.models.multi_task import MTDNNForSequenceClassification
from temper.training.config import RunConfig
from temper.training.multi_task import MultiTaskConfig, prepare_tasks, train_tasks
from temper.training.prepared import prepare
from tests.cli.tiny_project import make_data, make_model, sentences, write_csv
from tests.training.listeners import StopAt
from tests.training.tiny_training import record


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    stars = [(text, str(n / 4)) for n, (text, _) in enumerate(sentences(25, thing="it"))]
    write_csv(folder / "data" / "stars" / "train.csv", stars)
    # Two of these rows are train rows of the reviews.
    shared = [(text, "1.5") for text, _ in sentences(2)]
    write_csv(folder / "data" / "stars" / "dev.csv", [*stars[:3], *shared])
    return folder


def tree(project: Path, **more: Any) -> dict[str, Any]:
    """Return settings of five batches an epoch: 40 and 25 rows in tens, and a rest."""
    return {
        "model": str(project / "model"),
        "data": {"max_length": 32},
        "method": {"name": "uegr"},
        "train": {"epochs": 1, "batch_size": 10, "save_steps": 2, "logging_steps": 1,
                  "device": "cpu", "learning_rate": 1e-3},
        "tasks": {
            "reviews": {"source": str(project / "data" / "reviews")},
            "stars": {"source": str(project / "data" / "stars"), "drop_overlap": True},
        },
        **more,
    }  # fmt: skip


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return train_tasks(MultiTaskConfig.of(tree(project)), project / "whole")


def test_the_first_task_may_be_a_regression_of_an_encoder_without_a_head(
    project: Path, tmp_path: Path
) -> None:
    body = tmp_path / "body"
    shutil.copytree(project / "model", body)
    AutoModel.from_pretrained(body).save_pretrained(body)
    tasks = tree(project)["tasks"]
    order = {name: tasks[name] for name in ("stars", "reviews")}
    config = MultiTaskConfig.of(tree(project, model=str(body), tasks=order))
    splits = {name: load_splits(run.data) for name, run in config.tasks.items()}
    assert prepare_tasks(config, splits).model.config.task_names == ("stars", "reviews")


def test_the_run_and_each_of_its_tasks_have_a_record(whole: Path) -> None:
    content = record(whole)
    assert content["status"] == "finished"
    # 40 rows, and 25 less three that are dev rows, in tens.
    assert content["times"]["steps"] == 4 + 3
    assert content["tasks"] == {
        "reviews": {
            "kind": "classification",
            "metric": "accuracy",
            "labels": ["negative", "positive"],
            "folder": "tasks/reviews",
        },
        "stars": {"kind": "regression", "metric": "pearson", "labels": [], "folder": "tasks/stars"},
    }
    assert "task" not in content
    assert content["data"]["reviews"]["train"]["rows"] == 40
    assert content["settings"]["tasks"]["stars"]["drop_overlap"] is True
    assert content["notices"][0].startswith(
        "Trained on 2 tasks: reviews (40 rows), stars (22 rows)"
    )
    assert any(
        re.match("reviews: 2 train rows .*dev of stars", text) for text in content["notices"]
    )
    own = record(whole / "tasks" / "stars")
    assert own["status"] == "finished"
    assert own["data"] == content["data"]["stars"]
    assert own["settings"]["data"] == content["settings"]["tasks"]["stars"]
    assert own["notices"][-1].startswith("Trained together with reviews: ")
    assert own["key"] != content["key"]


def test_each_task_is_a_plain_checkpoint_that_predicts_as_the_whole_model(whole: Path) -> None:
    model = AutoModelForSequenceClassification.from_pretrained(whole).eval()
    assert isinstance(model, MTDNNForSequenceClassification)
    ids = torch.tensor([[2, 5, 9, 3], [2, 7, 8, 3]])
    for name, outputs in (("reviews", 2), ("stars", 1)):
        plain, tokenizer = load_classifier(str(whole / "tasks" / name))
        assert type(plain).__name__ == "BertForSequenceClassification"
        assert plain(ids).logits.shape == (2, outputs)
        assert torch.equal(plain(ids).logits, model(ids, task=name).logits)
        assert tokenizer("good").input_ids == [2, 5, 3]


def test_fine_tuning_continues_from_the_head_of_a_task(project: Path, whole: Path) -> None:
    folder = whole / "tasks" / "reviews"
    alone = {name: value for name, value in tree(project).items() if name not in ("tasks", "data")}
    source = {"source": str(project / "data" / "reviews"), "max_length": 32}
    config = RunConfig.of({**alone, "model": str(folder), "data": source})
    prepared = prepare(config, load_splits(config.data))
    trained, _ = load_classifier(str(folder))
    assert torch.equal(prepared.model.classifier.weight, trained.classifier.weight)


def test_each_task_has_its_own_metric_after_each_epoch(whole: Path) -> None:
    content = record(whole)["epochs"]
    assert list(content) == ["reviews", "stars"]
    assert content["reviews"]["metric"] == "accuracy"
    assert content["stars"]["metric"] != "accuracy"
    for name, each in content.items():
        assert each["kept"]["by"] == "last"
        assert record(whole / "tasks" / name)["epochs"] == each
    lines = map(json.loads, (whole / "metrics.jsonl").read_text().splitlines())
    scores = next(line for line in lines if "loss" not in line)
    assert scores["dev/reviews/accuracy"] == content["reviews"]["scores"][0]["dev"]


def test_a_stopped_run_resumes_to_the_same_weights_and_logs(project: Path, whole: Path) -> None:
    out = project / "stopped"
    config = MultiTaskConfig.of(tree(project))
    with pytest.raises(KeyboardInterrupt):
        train_tasks(config, out, progress=StopAt(3))
    assert record(out)["status"] == "stopped"
    assert not (out / "tasks").exists()
    train_tasks(config, out)
    names = ("model.safetensors", "metrics.jsonl", "tasks/stars/model.safetensors")
    assert [n for n in names if (out / n).read_bytes() != (whole / n).read_bytes()] == []


def test_a_finished_run_is_kept_and_another_seed_is_another_run(project: Path, whole: Path) -> None:
    before = (whole / "run.json").read_bytes()
    train_tasks(MultiTaskConfig.of(tree(project)), whole)
    assert (whole / "run.json").read_bytes() == before
    other = MultiTaskConfig.of(tree(project, seed=1))
    with pytest.raises(CheckpointError, match=r"seed: \d -> 1"):
        train_tasks(other, whole)


def test_a_network_from_scratch_has_the_vocabulary_of_all_tasks(project: Path) -> None:
    changes = {"model": "text_cnn", "architecture": {"min_frequency": 1, "filters": 4}}
    settings = tree(project, **changes)
    settings["data"] = {"max_length": 32, "augment": ["lowercase"], "augment_fraction": 1.0}
    out = train_tasks(MultiTaskConfig.of(settings), project / "scratch")
    plain, tokenizer = load_classifier(str(out / "tasks" / "reviews"))
    assert type(plain).__name__ == "TextCNNForSequenceClassification"
    # Only the stars have "it", and only the reviews have "film".
    words = tokenizer.get_vocab()
    assert {"it", "film"} <= set(words)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ({"tasks": {"reviews": {"source": "a.csv"}}}, "two or more tasks"),
        ({"data": {"source": "a.csv"}}, r"Write `tasks\.NAME\.source`"),
        ({"mixed": {}}, "Unknown setting 'mixed'"),
        ({"data": []}, "`data` must be a table"),
        ({"data": {"row": 3}}, r"^Unknown setting 'data\.row'"),
        ({"tasks": {"a": {"source": "a.csv"}, "b": {"source": "b.csv", "row": 3}}},
         r"^Task 'b' \(`tasks\.b`\): Unknown setting 'data\.row'"),
        ({"data": {"unlabeled": "a.csv"}, "method": {"name": "jachess_unlabeled"}},
         "Text without labels"),
        (
            {"method": {"name": "distil", "teacher": {"folders": ["a"]}}},
            "A teacher .*on one task",
        ),
        ({"train": {"keep": "best"}}, "`train.keep` 'best' .*on one task"),
        ({"train": {"lora": {}}}, r"An adapter \(`train\.lora`.* on one task"),
        ({"train": {"class_weights": "balanced"}}, r"`train\.class_weights` is for"),
        ({"tasks": {"a": {"source": "a.csv"}, "b c": {"source": "b.csv"}}}, "of letters, digits"),
        ({"tasks": {"a": {"source": "a.csv"}, "training": {"source": "b.csv"}}}, "of letters,"),
        ({"tasks": {"a": {"source": "a.csv"}, "b": "b.csv"}}, r"Write `tasks\.b\.source=PATH`"),
    ],
)  # fmt: skip
def test_invalid_multi_task_settings_raise_an_error(
    project: Path, more: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        MultiTaskConfig.of(tree(project, **more))


CLASSES_ONLY = [
    ({"name": "label_smoothing"}, "Label smoothing needs classes"),
    ({"name": "cross_holder"}, "differences of logits needs classes"),
    ({"name": "r_drop + label_smoothing"}, "Label smoothing needs classes"),
    ({"name": "cross_holder + child_tuning_d"}, "differences of logits needs classes"),
]


@pytest.mark.parametrize(("method", "said"), CLASSES_ONLY)
def test_a_method_that_needs_classes_raises_an_error_for_a_regression_task(
    project: Path, method: dict[str, Any], said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "temper.training.multi_task.make_network", lambda *_, **__: pytest.fail("made")
    )
    config = MultiTaskConfig.of(tree(project, method=method))
    with pytest.raises(
        SettingError, match=rf"^Task 'stars' \(`tasks\.stars`\): .*{said}"
    ) as raised:
        train_tasks(config, project / "refused")
    assert len(str(raised.value).splitlines()) == 1
    assert not (project / "refused").exists()


@pytest.mark.parametrize(
    "method",
    [
        {"name": "label_smoothing", "smoothing": 0.0},
        {"name": "cross_holder", "strength": {"weight": 0.0}},
        {"name": "uegr + label_smoothing", "label_smoothing": {"smoothing": 0.0}},
        {"name": "jacobian"},
    ],
)
def test_a_method_that_is_off_or_supports_one_output_accepts_a_regression(
    project: Path, method: dict[str, Any]
) -> None:
    config = MultiTaskConfig.of(tree(project, method=method))
    splits = {name: load_splits(run.data) for name, run in config.tasks.items()}
    assert prepare_tasks(config, splits).model.config.task_names == ("reviews", "stars")


def test_an_error_of_all_tasks_is_reported_once(project: Path) -> None:
    with pytest.raises(SettingError) as raised:
        MultiTaskConfig.of(tree(project, train={"epochs": 0}))
    assert str(raised.value).count("train.epochs") == 1
    assert len(str(raised.value).splitlines()) == 1
