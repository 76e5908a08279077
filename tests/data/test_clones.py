"""Folders of save_to_disk, and clones of the Hub: shards, configurations, a README with both."""

from __future__ import annotations

from pathlib import Path

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from temper.data import clones
from temper.data.settings import DataSettings
from temper.data.sources import is_taken_whole, load_examples, load_splits
from temper.errors import DataError


def shard(path: Path, *rows: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    table = {"text": [f"text {row}" for row in rows], "label": [row % 2 for row in rows]}
    if path.suffix == ".parquet":
        pq.write_table(pa.table(table), path)
    else:
        lines = [f"{t},{y}" for t, y in zip(table["text"], table["label"], strict=True)]
        path.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")


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
    found = load_examples(str(tmp_path / "one"))
    assert (len(found), found.label_names, found.labels) == (20, ("pos", "neg"), [0, 1] * 10)
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
    ("first", "second", "test"),
    [
        ("data/train-00000-of-00002.parquet", "data/train-00001-of-00002.parquet",
         "data/test-00000-of-00001.parquet"),
        ("train-00000-of-00002-1a2b3c.parquet", "train-00001-of-00002-4d5e6f.parquet",
         "test-00000-of-00001-7a8b9c.parquet"),
        ("default/train/0000.parquet", "default/train/0001.parquet", "default/test/0000.parquet"),
        ("food/train-00000-of-00002.csv", "food/train-00001-of-00002.csv", "food/test.csv"),
    ],
)  # fmt: skip
def test_shards_are_one_split_in_their_order(
    tmp_path: Path, first: str, second: str, test: str
) -> None:
    shard(tmp_path / second, 4, 5, 6)
    shard(tmp_path / first, 0, 1, 2, 3)
    shard(tmp_path / test, 7, 8)
    assert sizes(tmp_path) == (7, 2)
    rows = load_examples(f"{tmp_path}@train")
    assert rows.text == [f"text {row}" for row in range(7)]
    assert rows.labels == [0, 1, 0, 1, 0, 1, 0]
    assert not is_taken_whole(DataSettings(source=str(tmp_path)))


def test_a_bad_row_is_named_by_its_own_file(tmp_path: Path) -> None:
    for place, texts in enumerate((["a", "b"], ["c", None])):
        table = pa.table({"text": texts, "label": [0, 1]})
        pq.write_table(table, tmp_path / f"train-{place:05}-of-00002.parquet")
    with pytest.raises(DataError, match=r"train-00001-of-00002\.parquet, row 2"):
        load_splits(DataSettings(source=str(tmp_path)))
    rows = load_examples(
        f"{tmp_path}@train", reading=DataSettings(source="demo", skip_bad_rows=True).reading
    )
    assert (rows.text, list(rows.numbers or ())) == (["a", "b", "c"], [1, 2, 3])


def test_shards_with_other_columns_are_refused(tmp_path: Path) -> None:
    shard(tmp_path / "train-00000-of-00002.parquet", 0, 1)
    other = pa.table({"text": ["a"], "stars": [1]})
    pq.write_table(other, tmp_path / "train-00001-of-00002.parquet")
    with pytest.raises(DataError, match="text, stars, and .* has text, label"):
        sizes(tmp_path)


def test_of_several_configurations_one_is_named(tmp_path: Path) -> None:
    for config, rows in (("food", 4), ("films", 6)):
        shard(tmp_path / config / "train-00000-of-00001.parquet", *range(rows))
        shard(tmp_path / config / "test-00000-of-00001.parquet", 20, 21)
    assert sizes(f"{tmp_path}:films") == (6, 2)
    assert len(load_splits(DataSettings(source=str(tmp_path), config="food")).train) == 4
    with pytest.raises(DataError, match=r"configurations films, food\. Name one"):
        sizes(tmp_path)
    with pytest.raises(DataError, match="Unknown configuration 'foot'"):
        sizes(f"{tmp_path}:foot")


def test_a_readme_names_the_files_of_each_configuration(tmp_path: Path) -> None:
    shard(tmp_path / "a" / "part1.parquet", 0, 1)
    shard(tmp_path / "a" / "part2.parquet", 2, 3)
    shard(tmp_path / "b.csv", 4, 5)
    shard(tmp_path / "all.csv", *range(9))
    readme = tmp_path / "README.md"
    readme.write_text(
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - split: train\n    path: a/*\n"
        "  - split: test\n    path: [b.csv]\n- config_name: other\n  data_files: all.csv\n---\nX\n",
        encoding="utf-8",
    )
    assert sizes(tmp_path) == (4, 2)
    assert len(load_examples(f"{tmp_path}:other@train")) == 9
    for outside in ("../x.csv", "/etc/x.csv"):
        readme.write_text(f"---\nconfigs:\n- data_files: {outside}\n---\n", encoding="utf-8")
        with pytest.raises(DataError, match="not a path inside the folder"):
            sizes(tmp_path)
    readme.write_text("---\nconfigs:\n- data_files: gone-*.parquet\n---\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"'gone-\*\.parquet', but no readable file"):
        sizes(tmp_path)
    readme.write_text("---\nconfigs: [\n---\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"README\.md: the metadata"):
        sizes(tmp_path)


def test_a_folder_with_too_many_data_files_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        shard(tmp_path / "data" / f"train-{number:05}-of-00003.csv", number)
    monkeypatch.setattr(clones, "_MOST", 2)
    with pytest.raises(DataError, match="more than 2 data files"):
        sizes(tmp_path)


def test_a_pickle_in_a_clone_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "train.pkl").write_bytes(b"cos\nsystem\n(S'false'\ntR.")
    with pytest.raises(DataError, match="holds no data"):
        sizes(tmp_path)
