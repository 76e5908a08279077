"""Unlabeled texts: sources, sampling, and separation from evaluation sets."""

from __future__ import annotations

from pathlib import Path

import pydantic
import pytest

from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.errors import DataError
from tests.data.task_files import json_lines, splits_of
from tests.messages import assert_messages


def unlabeled(source: str, pool: str | Path, **settings: object) -> Examples | None:
    given = {"source": source, "unlabeled": str(pool), **settings}
    return load_splits(DataSettings.model_validate(given)).unlabeled


def task(count: int, start: int = 0) -> list[dict[str, object]]:
    return [{"text": f"row {i}", "label": i % 2} for i in range(start, start + count)]


def texts(*names: str) -> list[dict[str, object]]:
    return [{"text": name} for name in names]


@pytest.fixture
def source(tmp_path: Path) -> str:
    """A task of 8 train rows (0 to 7), 4 dev rows (8 to 11) and 2 test rows (12, 13)."""
    for name, count, start in (("train", 8, 0), ("dev", 4, 8), ("test", 2, 12)):
        json_lines(tmp_path / "task" / f"{name}.jsonl", task(count, start))
    return str(tmp_path / "task")


def test_unlabeled_texts_keep_the_order_of_the_file_and_labels_are_ignored(
    source: str, tmp_path: Path
) -> None:
    rows = [
        {"text": "b", "label": {"of": "no kind"}},
        {"text": "a", "label": -1},
        {"text": "b", "label": None},
    ]
    pool = json_lines(tmp_path / "pool.jsonl", rows)
    result = unlabeled(source, pool)
    assert (result.name, result.text) == ("unlabeled", ["b", "a", "b"])
    assert (result.labels, result.label_names, result.kind) == (None, None, "unlabeled")
    assert result.source["path"] == str(pool)
    assert len(result.source["sha256"]) == 64


def test_the_labeled_rows_are_those_of_a_training_without_it(source: str, tmp_path: Path) -> None:
    pool = json_lines(tmp_path / "pool.jsonl", texts("x", "row 3", "row 9"))
    with_it = splits_of(source, rows=4, eval_rows=2, unlabeled=str(pool))
    without = splits_of(source, rows=4, eval_rows=2)
    assert with_it.unlabeled is not None
    assert with_it.labeled() == without


def test_a_notice_reports_the_unlabeled_rows_and_the_evaluated_ones(
    source: str, tmp_path: Path
) -> None:
    pool = json_lines(tmp_path / "pool.jsonl", texts("x", "row 9", "row 10", "row 12", "row 3"))
    splits = splits_of(source, unlabeled=str(pool))
    option = "--set data.drop_overlap=true"
    assert_messages(
        splits.notices,
        f"^5 rows of unlabeled text .*{pool}",
        f"^2 unlabeled rows .*in dev .*{option}",
        f"^1 unlabeled row .*in test .*{option}",
    )
    assert splits.unlabeled.notices == splits.notices


def test_rows_that_are_evaluated_are_dropped_as_train_rows_are(source: str, tmp_path: Path) -> None:
    pool = json_lines(tmp_path / "pool.jsonl", texts("x", "row 9", "row 9", "row 12", "row 3"))
    splits = splits_of(source, unlabeled=str(pool), drop_overlap=True)
    assert splits.unlabeled.text == ["x", "row 3"]
    assert_messages(
        splits.notices,
        f"^2 rows of unlabeled text .*{pool}",
        "^2 rows dropped from unlabeled .*in dev$",
        "^1 row dropped from unlabeled .*in test$",
    )


def test_rows_of_a_carved_dev_split_are_evaluated_rows_too(tmp_path: Path) -> None:
    everything = str(json_lines(tmp_path / "all.jsonl", task(20)))
    settings = DataSettings(source=everything, unlabeled=everything, drop_overlap=True)
    splits = load_splits(settings)
    assert not set(splits.unlabeled.text) & set(splits.dev.text)
    assert sorted(splits.unlabeled.text) == sorted(splits.train.text)


def test_dropping_every_row_raises_an_error(source: str, tmp_path: Path) -> None:
    pool = json_lines(tmp_path / "pool.jsonl", texts("row 9", "row 10"))
    with pytest.raises(DataError, match="Every unlabeled row .*in dev, so drop_overlap"):
        unlabeled(source, pool, drop_overlap=True)


def test_rows_are_drawn_with_the_seed_of_the_data(source: str, tmp_path: Path) -> None:
    pool = json_lines(tmp_path / "pool.jsonl", texts(*(f"text {i}" for i in range(40))))

    def drawn(seed: int, rows: int) -> list[str]:
        return unlabeled(source, pool, unlabeled_rows=rows, seed=seed).text

    assert drawn(1, 10) == drawn(1, 10)
    assert len(drawn(1, 10)) == 10
    assert drawn(1, 10) != drawn(2, 10)
    assert set(drawn(1, 10)) < set(drawn(1, 20))
    asked = DataSettings(source=source, unlabeled=str(pool), unlabeled_rows=50)
    assert "50 rows of unlabeled requested, all 40 are used" in load_splits(asked).notices


def test_columns_are_those_of_the_source(tmp_path: Path) -> None:
    rows = [{"words": f"w {i}", "label": i % 2} for i in range(8)]
    source = str(json_lines(tmp_path / "a.jsonl", rows))
    pool = json_lines(tmp_path / "b.jsonl", [{"words": "one", "text": "two"}])
    assert unlabeled(source, pool, text_column="words").text == ["one"]
    bare = json_lines(tmp_path / "c.jsonl", texts("one"))
    with pytest.raises(DataError, match=r"c\.jsonl: Unknown column 'words'.*text"):
        unlabeled(source, bare, text_column="words")


def test_pairs_and_single_texts_do_not_go_together(source: str, tmp_path: Path) -> None:
    pair = {"premise": "a", "hypothesis": "b"}
    rows = [{**pair, "label": i % 2} for i in range(8)]
    pairs = str(json_lines(tmp_path / "pairs.jsonl", rows))
    assert unlabeled(pairs, pairs).text_pair == ["b"] * 8
    with pytest.raises(DataError, match=r"unlabeled rows .*one text .* got two"):
        unlabeled(source, pairs)
    single = json_lines(tmp_path / "single.jsonl", texts("a"))
    with pytest.raises(DataError, match=r"unlabeled rows .*two texts .* got one"):
        unlabeled(pairs, single)


def test_the_train_split_of_a_folder_is_the_default(source: str, tmp_path: Path) -> None:
    for name in ("train", "test", "more"):
        json_lines(tmp_path / "pool" / f"{name}.jsonl", texts(f"of {name}"))
    pool = str(tmp_path / "pool")

    assert unlabeled(source, pool).text == ["of train"]
    assert unlabeled(source, f"{pool}@more").text == ["of more"]
    (tmp_path / "pool" / "train.jsonl").unlink()
    with pytest.raises(DataError, match=r"pool has no split train; it has more, test.*@SPLIT"):
        unlabeled(source, pool)


def test_the_demo_corpus_can_be_read_as_unlabeled_text() -> None:
    rows = unlabeled("demo", "demo", rows=20, eval_rows=10)
    assert rows.rows == splits_of("demo").train.rows
    assert rows.labels is None
    assert unlabeled("demo", "demo:anomaly", rows=20, eval_rows=10).name == "unlabeled"


def test_missing_or_empty_unlabeled_text_raises_an_error(source: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"No such file or folder: .*missing\.csv"):
        unlabeled(source, tmp_path / "missing.csv")
    empty = json_lines(tmp_path / "empty.jsonl", [])
    with pytest.raises(DataError, match=r"empty\.jsonl"):
        unlabeled(source, empty)
    with pytest.raises(pydantic.ValidationError, match="unlabeled_rows is 5, but there is no"):
        DataSettings(source=source, unlabeled_rows=5)
    with pytest.raises(pydantic.ValidationError, match="unlabeled_rows"):
        unlabeled(source, empty, unlabeled_rows=0)
