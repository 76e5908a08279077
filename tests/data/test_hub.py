"""Hub ids from a local cache laid out as the datasets library does; and one real download."""

from __future__ import annotations

import os
from pathlib import Path

import datasets
import pytest

from temper.data.sources import load_examples
from temper.errors import DataError
from tests.data.task_files import hub_cache, splits_of


def cached(cache: Path, *, config: str = "default") -> None:
    """Write owner/reviews as a download leaves it, its test split without labels."""
    splits = {"train": [0, 1] * 10, "validation": [0, 1] * 3, "test": [-1] * 4}
    names = ("worse", "better")
    hub_cache(cache, "owner/reviews", config, columns=["sentence"], names=names, splits=splits)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path)
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    return tmp_path


def test_a_hub_id_is_read_from_the_local_cache(cache: Path) -> None:
    cached(cache)
    splits = splits_of("owner/reviews")
    assert (len(splits.train), len(splits.dev)) == (20, 6)
    assert splits.train.label_names == ("worse", "better")
    assert splits.train.text[:2] == ["sentence of train 0", "sentence of train 1"]
    assert splits.train.source == {
        "id": "owner/reviews",
        "config": "default",
        "revision": "3f2a",
        "split": "train",
        "columns": {"text": "sentence", "label": "label"},
    }
    # GLUE's test splits carry -1 for every label.
    assert splits.test.kind == "unlabeled"


def test_configuration_and_split_of_a_hub_id_can_be_named(cache: Path) -> None:
    cached(cache, config="food")
    assert len(load_examples("owner/reviews:food@validation")) == 6
    assert load_examples("owner/reviews:food@train").source["config"] == "food"
    assert len(splits_of("owner/reviews", config="food").train) == 20
    with pytest.raises(DataError, match=r"owner/reviews \(configuration foood\).*could not be loa"):
        load_examples("owner/reviews:foood")
    with pytest.raises(DataError, match="Unknown split 'dev2'.*Known: test, train, validation"):
        load_examples("owner/reviews:food@dev2")
    with pytest.raises(DataError, match="names configuration 'food', but config='x' was given too"):
        splits_of("owner/reviews:food", config="x")


def test_a_hub_id_that_is_not_cached_raises_an_error_offline(cache: Path) -> None:
    with pytest.raises(DataError, match="owner/none .*loaded from the Hub"):
        load_examples("owner/none")


@pytest.mark.network
@pytest.mark.skipif(os.environ.get("HF_HUB_OFFLINE") != "0", reason="needs HF_HUB_OFFLINE=0")
def test_a_real_data_set_is_downloaded() -> None:
    examples = load_examples("nyu-mll/glue:wnli@validation")
    assert len(examples) == 71
    assert examples.label_names == ("not_entailment", "entailment")
    assert examples.text_pair is not None
