"""A failing tracker is reported, and the work continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

import temper
from temper.errors import SettingError
from temper.progress import Progress
from temper.training.trackers import KNOWN, TrackedRun, Tracker, tracked
from tests.cli.tiny_project import make_data, make_model, study_tree
from tests.messages import assert_messages


def broken(*_: object) -> Tracker:
    """Open, and take nothing."""

    def send(values: Mapping[str, float], step: int) -> None:
        raise ConnectionError("no route\nto the host.")

    def close(failed: bool) -> None:
        raise OSError(f"failed is {failed}.")

    return Tracker("run", send, close)


class Heard(Progress):
    def __init__(self) -> None:
        self.notices: list[str] = []

    def notice(self, text: str) -> None:
        self.notices.append(text)


def test_a_failing_tracker_is_reported_and_others_get_the_scores(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[Any] = []

    working = Tracker("run", lambda *values: sent.append(values), sent.append)
    monkeypatch.setitem(KNOWN, "tensorboard", broken)
    monkeypatch.setitem(KNOWN, "wandb", lambda *_: working)
    heard = Heard()
    with tracked(TrackedRun(tmp_path, {}), ["tensorboard", "wandb"], heard.notice) as trackers:
        trackers.send({"a": 0.5, "b": None}, 3)
    assert sent == [({"a": 0.5}, 3), False]
    assert_messages(
        heard.notices,
        "'tensorboard' .*step 3: ConnectionError: no route to the host",
        "'tensorboard' .*closed: OSError: failed is False",
    )


def test_a_study_keeps_its_scores_if_no_tracker_can_be_opened(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise SettingError("The tracker 'wandb' cannot be opened: no network.")

    monkeypatch.setattr("temper.study.work.tracked", refuse)
    data, model, heard = make_data(tmp_path / "data"), make_model(tmp_path / "model"), Heard()
    tree = study_tree(model, data / "reviews")
    study = temper.compare(
        out=tmp_path / "study", methods=["plain"], seeds=[0], config=tree, progress=heard
    )
    assert len(study.scores)
    assert any(
        "were not sent. The tracker 'wandb' cannot be opened" in message
        for message in heard.notices
    )
