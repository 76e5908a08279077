"""Tiny copies of tasks, in the layouts of GLUE, CLUE and the Hub's cache."""

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

Rows = Sequence[Sequence[str]]

SENTENCES = ("sentence1", "sentence2")
LABELS = ("label", "Quality", "is_duplicate", "score", "gold_label")
HEADERS = {
    "SST-2": ["sentence", "label"],
    "MRPC": ["Quality", "#1 ID", "#2 ID", "#1 String", "#2 String"],
    "QQP": ["id", "qid1", "qid2", "question1", "question2", "is_duplicate"],
    "STS-B": ["index", "genre", "filename", "year", "old_index", *SENTENCES, "score"],
    "MNLI": ["index", "pairID", "genre", "sentence1_parse", *SENTENCES, "label1", "gold_label"],
    "QNLI": ["index", "question", "sentence", "label"],
    "RTE": ["index", *SENTENCES, "label"],
    "WNLI": ["index", *SENTENCES, "label"],
}


def splits_of(source: str | Path, **settings: Any) -> Splits:
    """Load what a training on a source needs."""
    return load_splits(DataSettings(source=str(source), **settings))


def tabs(path: Path, rows: Rows) -> Path:
    """Write lines of fields with tabs between them, quotes as they stand."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(row) + "\n" for row in rows), encoding="utf-8")
    return path


def glue_row(task: str, number: int, label: str) -> list[str]:
    """Return a line of one of GLUE's files with an unpaired quote in its first text."""
    texts = {"first": f'{task} "{number}', "second": f"second {number}"}
    meaning = {
        "sentence": texts["first"] if task == "SST-2" else texts["second"],
        "question": texts["first"],
        "sentence1": texts["first"],
        "sentence2": texts["second"],
        "question1": texts["first"],
        "question2": texts["second"],
        "#1 String": texts["first"],
        "#2 String": texts["second"],
    }
    return [
        label if name in LABELS else meaning.get(name, f"{name}{number}") for name in HEADERS[task]
    ]


def glue(root: Path, task: str, labels: Sequence[str], *, splits: Sequence[str]) -> Path:
    """Write the files of one GLUE task, a row for each label, and a test file without labels."""
    start = 0
    for split in splits:
        rows = [glue_row(task, start + place, label) for place, label in enumerate(labels)]
        tabs(root / task / f"{split}.tsv", [HEADERS[task], *rows])
        start += len(labels)
    header = [name for name in HEADERS[task] if name not in LABELS]
    tabs(root / task / "test.tsv", [header, [f"{name} of test" for name in header]])
    return root


def json_lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    """Write one object a line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def plain_folder(folder: Path, names: Sequence[str] | None, **splits: Sequence[Any]) -> str:
    """Write a folder as Temper lays tasks out: a file a split, dataset.json with the labels."""
    for split, labels in splits.items():
        rows = [{"text": f"{split} {place}", "label": label} for place, label in enumerate(labels)]
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
    told = datasets.SplitDict(dataset_name=name)
    for split, labels in splits.items():
        with ArrowWriter(features=features, path=str(folder / f"{name}-{split}.arrow")) as writer:
            for place, label in enumerate(labels):
                words = {column: f"{column} of {split} {place}" for column in columns}
                writer.write({**words, "label": label})
            writer.finalize()
        told.add(datasets.SplitInfo(split, num_examples=len(labels), dataset_name=name))
    datasets.DatasetInfo(
        features=features,
        builder_name="parquet",
        dataset_name=name,
        config_name=config,
        version="0.0.0",
        splits=told,
    ).write_to_directory(str(folder))
