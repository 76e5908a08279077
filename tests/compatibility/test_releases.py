"""Folders of every release open, and those of later ones are refused in words."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

import temper
from temper.app.predictors import load_predictor
from temper.app.sidecar import read_calibration
from temper.app.verify import verify
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.errors import CheckpointError
from temper.evaluation.folder import read
from temper.files import SCHEMA, write_json
from temper.report import build, comparison
from tests.compatibility.make import HERE

RELEASES = sorted(place for place in HERE.iterdir() if place.is_dir() and place.name[0].isdigit())


@pytest.fixture(params=RELEASES, ids=lambda place: place.name)
def release(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    """Return a copy of what a release wrote."""
    return Path(shutil.copytree(request.param, tmp_path / "kept"))


def test_this_release_is_kept() -> None:
    assert temper.__version__ in [place.name for place in RELEASES]


def test_files_are_those_that_were_written(release: Path) -> None:
    for name in ("calibrate", "compare", "soup"):
        assert [fault for each in verify(release / name) for fault in each.faults] == []


def test_a_checkpoint_answers_as_it_did(release: Path) -> None:
    rows = load_splits(DataSettings(source=str(release / "data.jsonl"), dev_share=0.1)).dev
    written = read(release / "calibrate" / "evaluation").rows.to_pydict()
    answers = load_predictor(str(release / "calibrate"), max_length=8, device="cpu").predict(rows)
    before = dict(zip(written["row"], written["probabilities"], strict=True))
    for row, probabilities in zip(rows.rows, answers.probabilities, strict=True):
        np.testing.assert_allclose(probabilities, before[row], atol=1e-4)
    kept = read_calibration(str(release / "calibrate"))
    assert kept is not None
    assert kept.scaling is not None
    assert kept.scaling.weights > 0


def test_a_study_has_its_page_and_its_table(release: Path) -> None:
    assert build(release / "compare").stat().st_size > 10_000
    assert comparison(release / "compare").columns == ("vanilla", "r_drop")
    assert build(release / "calibrate").exists()


def test_a_soup_loads(release: Path) -> None:
    rows = load_splits(DataSettings(source=str(release / "data.jsonl"), dev_share=0.1)).dev
    assert (
        load_predictor(str(release / "soup"), device="cpu").predict(rows).probabilities.shape[1]
        == 2
    )


@pytest.mark.parametrize(
    "name", ["calibrate/run.json", "compare/study.json", "calibrate/evaluation/scores.json"]
)
def test_a_later_release_s_record_is_refused_in_words(release: Path, name: str) -> None:
    file = release / name
    content = json.loads(file.read_text(encoding="utf-8"))
    write_json(file, {**content, "schema": SCHEMA + 1, "labels_of": "a form that nobody knows"})
    folder = file.parent.parent if file.name == "scores.json" else file.parent
    with pytest.raises(CheckpointError, match=r"has schema 2.*another release of Temper wrote it"):
        build(folder)


def test_every_record_has_its_number(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"b": 1})
    assert json.loads((tmp_path / "a.json").read_text(encoding="utf-8")) == {"schema": 1, "b": 1}
