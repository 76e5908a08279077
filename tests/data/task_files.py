"""Tiny copies of tasks, in folders and in the Hub's cache."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import datasets
from datasets.arrow_writer import ArrowWriter

from temper.data.examples import Splits
from temper.data.settings import DataSettings
from temper.data.sources import load_splits


def splits_of(source: str | Path, **settings: Any) -> Splits:
    """Load what a training on a source needs."""
    return load_splits(DataSettings(source=str(source), **settings))


def mnli_folder(root: Path, labels: Sequence[str], *, splits: Sequence[str]) -> Path:
    """Write a folder of MNLI below a folder of tasks, a row for each label, no text twice."""
    number = 0
    for split in splits:
        rows = [
            {"text": f"MNLI {number + index}", "text_pair": "b", "label": label}
            for index, label in enumerate(labels)
        ]
        json_lines(root / "MNLI" / f"{split}.jsonl", rows)
        number += len(labels)
    return root


def json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def plain_folder(folder: Path, names: Sequence[str] | None, **splits: Sequence[Any]) -> str:
    """Write a folder as Temper lays tasks out: a file a split, dataset.json with the labels."""
    for split, labels in splits.items():
        rows = [{"text": f"{split} {index}", "label": label} for index, label in enumerate(labels)]
        json_lines(folder / f"{split}.jsonl", rows)
    if names is not None:
        (folder / "dataset.json").write_text(json.dumps({"label_names": list(names)}))
    return str(folder)


def hub_cache(
    cache: Path,
    identifier: str,
    config: str,
    *,
    columns: Sequence[str],
    names: Sequence[str],
    splits: dict[str, Sequence[int]],
) -> None:
    """Write a data set as a download leaves it: OWNER___NAME/CONFIG/VERSION/REVISION/."""
    owner, name = identifier.split("/")
    folder = cache / f"{owner}___{name}" / config / "0.0.0" / "3f2a"
    folder.mkdir(parents=True)
    texts = {column: datasets.Value("string") for column in columns}
    features = datasets.Features({**texts, "label": datasets.ClassLabel(names=list(names))})
    sizes = datasets.SplitDict(dataset_name=name)
    for split, labels in splits.items():
        with ArrowWriter(features=features, path=str(folder / f"{name}-{split}.arrow")) as writer:
            for index, label in enumerate(labels):
                words = {column: f"{column} of {split} {index}" for column in columns}
                writer.write({**words, "label": label})
            writer.finalize()
        sizes.add(datasets.SplitInfo(split, num_examples=len(labels), dataset_name=name))
    datasets.DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name=name,
        config_name=config,
        version="0.0.0",
        splits=sizes,
    ).write_to_directory(str(folder))
