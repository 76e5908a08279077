"""Folders of save_to_disk; clones of the Hub, which are errors."""

from __future__ import annotations

from pathlib import Path

import datasets
import pytest

from temper.data.settings import DataSettings
from temper.data.sources import is_taken_whole, load_examples, load_splits
from temper.errors import DataError


def sizes(source: Path | str) -> tuple[int, int]:
    splits = load_splits(DataSettings(source=str(source)))
    return len(splits.train), len(splits.dev)


def saved(rows: int) -> datasets.Dataset:
    features = datasets.Features(
        {"text": datasets.Value("string"), "label": datasets.ClassLabel(names=["pos", "neg"])}
    )
    columns = {"text": [f"text {row}" for row in range(rows)], "label": [0, 1] * (rows // 2)}
    return datasets.Dataset.from_dict(columns, features=features)


def test_a_saved_dataset_is_read(tmp_path: Path) -> None:
    saved(20).save_to_disk(tmp_path / "one")
    assert sizes(tmp_path / "one") == (18, 2)
    result = load_examples(str(tmp_path / "one"))
    assert (len(result), result.label_names, result.labels) == (20, ("pos", "neg"), [0, 1] * 10)
    assert is_taken_whole(DataSettings(source=str(tmp_path / "one")))


def test_a_saved_dataset_dict_is_read_by_split(tmp_path: Path) -> None:
    both = datasets.DatasetDict(train=saved(20), test=saved(6))
    both.save_to_disk(tmp_path / "both", num_shards={"train": 3, "test": 1})
    assert sizes(tmp_path / "both") == (20, 6)
    assert len(load_examples(f"{tmp_path / 'both'}@train")) == 20
    assert not is_taken_whole(DataSettings(source=str(tmp_path / "both")))
    (tmp_path / "both" / "train" / "state.json").write_text("{", encoding="utf-8")
    with pytest.raises(DataError, match="save_to_disk but cannot be read"):
        sizes(tmp_path / "both")


@pytest.mark.parametrize(
    "file",
    ["train-00000-of-00002.parquet", "train-00000-of-00001-1a2b3c.csv", "data/train.csv"],
)
def test_a_clone_of_a_hub_dataset_raises_an_error_with_the_hub_id(
    tmp_path: Path, file: str
) -> None:
    (tmp_path / file).parent.mkdir(exist_ok=True)
    (tmp_path / file).write_bytes(b"text,label\na,0\n")
    with pytest.raises(DataError, match="Hub id"):
        sizes(tmp_path)
