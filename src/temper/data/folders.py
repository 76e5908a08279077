"""Find the splits of a data folder, and the label names that lie beside its files."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeVar

from temper.data.formats import format_of, stem_of
from temper.errors import DataError, unknown

Value = TypeVar("Value")

# Names of one and the same split; the first is how messages call it.
SAME_SPLIT = (
    ("train", "training"),
    ("dev", "validation", "valid", "val", "eval"),
    ("dev_matched", "validation_matched"),
    ("dev_mismatched", "validation_mismatched"),
)
EVALUATION_SPLITS = ("dev", "dev_matched", "test")
STANDALONE_SPLITS = ("test", "dev", "dev_matched", "train")

# What describes a folder rather than holds its rows.
_DESCRIPTIONS = {"dataset.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}


def split_files(folder: Path) -> dict[str, Path]:
    """List a folder's data files by split, ``train`` for ``train.csv.gz``.

    Args:
        folder: The folder.

    Returns:
        Files by name without format, sorted.

    Raises:
        DataError: If there are none, or two files claim one split.
    """
    found: dict[str, Path] = {}
    for path in sorted(folder.iterdir()):
        hidden = path.name.startswith(".") or path.name in _DESCRIPTIONS
        if hidden or format_of(path) is None or not path.is_file():
            continue
        stem = stem_of(path)
        if stem in found:
            raise DataError(
                f"{folder} holds split {stem!r} twice: {found[stem].name} and {path.name}. "
                "Remove one."
            )
        found[stem] = path
    if not found:
        raise DataError(
            f"{folder} holds no data: expected train.csv, dev.jsonl.gz, test.parquet or the like."
        )
    return found


def choose_split(splits: Mapping[str, Value], name: str, *, title: str) -> str:
    """Find a split by its name or by another name of the same split.

    Args:
        splits: What there is, by name.
        name: The name asked for, for example ``dev`` where the file is ``validation.csv``.
        title: The source, for the error.

    Returns:
        The name as the source has it.

    Raises:
        DataError: If there is none, or ``name`` fits two.
    """
    if name in splits:
        return name
    same = next((group for group in SAME_SPLIT if name in group), (name,))
    found = [other for other in same if other in splits]
    if len(found) > 1:
        raise DataError(f"{title}: split {name!r} could be {' or '.join(found)}. Name one of them.")
    if not found:
        raise DataError(f"{title}: {unknown('split', name, splits)}")
    return found[0]


def first_split(splits: Mapping[str, Value], names: Iterable[str]) -> str | None:
    """Return the first of some splits that is there, under any of its names; None where none is."""
    for name in names:
        same = next((group for group in SAME_SPLIT if name in group), (name,))
        found = next((other for other in same if other in splits), None)
        if found is not None:
            return found
    return None


def named_labels(folder: Path) -> tuple[str, ...] | None:
    """Read ``label_names`` from a folder's ``dataset.json``.

    Args:
        folder: The folder with the data files.

    Returns:
        The names by index; None where there is no such file or it names none.

    Raises:
        DataError: If the file is damaged or the names are not distinct strings.
    """
    path = folder / "dataset.json"
    if not path.is_file():
        return None
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error}). Mend or remove it.") from None
    names = content.get("label_names") if isinstance(content, dict) else None
    if names is None:
        return None
    distinct = isinstance(names, list) and all(isinstance(name, str) for name in names)
    if not distinct or not names or len(set(names)) != len(names):
        raise DataError(
            f"{path}: label_names must be a list of distinct strings, got {names!r:.80}."
        )
    return tuple(names)
