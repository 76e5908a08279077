"""Known tasks."""

from __future__ import annotations

import pytest

from temper.data.tasks.registry import TASKS, default_metric, task_of


@pytest.mark.parametrize(
    ("source", "name"),
    [
        ("cola", "cola"),
        ("nyu-mll/glue:mrpc", "mrpc"),
        ("/data/GLUE/STS-B", "stsb"),
        ("/data/sst2/train.jsonl.gz", "sst2"),
        ("data/ag_news@test", "ag_news"),
        ("stanfordnlp/imdb", "imdb"),
    ],
)
def test_a_task_is_recognised_by_the_name_of_its_source(source: str, name: str) -> None:
    task = task_of(source)
    assert task.name == name


@pytest.mark.parametrize("source", ["", "reviews.csv", "/home/rte/mine/reviews/train.csv"])
def test_another_source_is_no_known_task(source: str) -> None:
    assert task_of(source) is None


@pytest.mark.parametrize(
    ("source", "kind", "metric"),
    [
        ("cola", "classification", "mcc"),
        ("mrpc", "classification", "f1"),
        ("stsb", "regression", "pearson"),
        ("stsb", "classification", "accuracy"),
        ("reviews.csv", "classification", "accuracy"),
        ("reviews.csv", "regression", "pearson"),
    ],
)
def test_the_metric_follows_the_task_and_the_kind(source: str, kind, metric: str) -> None:  # type: ignore[no-untyped-def]
    assert default_metric(source, kind) == metric


def test_every_task_is_found_by_its_own_name_and_hub_id() -> None:
    for name, task in TASKS.items():
        assert task_of(name) is task
        if name != "paws":  # its configuration carries another name
            assert task_of(task.hub) is task
