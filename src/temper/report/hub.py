"""What the Hub reads of a model card: every score, and the set that it belongs to.

The Hub files scores by a set's type, configuration and split. Sets of which all three are the same
would become one entry under the first one's name, so each has an identity of its own here.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult

from temper.display.cells import Comparison, Row
from temper.display.records import RunRecord

TASK = "text-classification"
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".gz")

# The Hub's names of metrics, where they differ from ours.
_METRICS = {
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "macro_f1": "f1",
    "auroc": "roc_auc",
}


class Origin(NamedTuple):
    """Say where a set comes from, as the Hub tells sets apart.

    Args:
        type: Its id on the Hub, else the name of its file, else the set's own name.
        config: The configuration on the Hub; of a set whose origin others share, its own name.
        split: The split, None where none is known.
    """

    type: str
    config: str | None
    split: str | None


def hub_id(name: str) -> str | None:
    """Return the name where it is an id on the Hub: an owner and a name, and no path.

    Args:
        name: Of a model or a data set.

    Example:
        >>> hub_id("stanfordnlp/imdb"), hub_id("minilm")
        ('stanfordnlp/imdb', None)
    """
    taken = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).exists()
    return name if taken else None


def origin(told: str, name: str, split: str | None = None) -> Origin:
    """Read where a set comes from.

    Args:
        told: Its source as the command line takes it, parts of a set joined by `` + ``; empty where
            it is unknown.
        name: The set's own name.
        split: Its split, unless the source names one.

    Returns:
        The origin; of a path its last name alone, which says nothing of this machine.

    Example:
        >>> origin("nyu-mll/glue:rte@validation", "dev")
        Origin(type='nyu-mll/glue', config='rte', split='validation')
        >>> origin("/home/me/reviews.csv", "films")
        Origin(type='reviews', config=None, split=None)
    """
    parts = [_part(part, name, split) for part in told.split(" + ")]
    types, configs, splits = (list(dict.fromkeys(found)) for found in zip(*parts, strict=True))
    if len(types) > 1 or len(configs) > 1:
        return Origin(name, None, None)
    # A set of two splits is neither of them.
    return Origin(
        types[0], configs[0], " + ".join(one or "?" for one in splits) if any(splits) else None
    )


def _part(told: str, name: str, split: str | None) -> Origin:
    path, marked, named = told.rpartition("@")
    if marked and "/" not in named:
        told, split = path, named
    owned, _, config = told.partition(":")
    # A card may be written elsewhere than where the file lies.
    if hub_id(owned) and not owned.endswith(_FILES):
        return Origin(owned, config or None, split)
    return Origin(Path(told.removesuffix(".gz")).stem or name, None, split)


def results(
    comparison: Comparison, data: Mapping[str, str], record: RunRecord | None
) -> list[EvalResult]:
    """Return every shown score that has a value, as the Hub writes results.

    Args:
        comparison: The scores of one model.
        data: Name of a set to its source.
        record: ``run.json``, whose dev set is meant where ``data`` names none; None without one.

    Returns:
        The scores; those of one set share an identity, and no other set's scores have it.
    """
    (column,) = comparison.columns
    found = []
    for row in comparison.shown:
        value = row.cells[column].mean
        if value is None:
            continue
        name = _set(row)
        told, split = data.get(name, ""), None
        if not told and name == "dev":
            told, split = _dev(record)
        where = origin(told, name, split)
        found.append(
            EvalResult(
                task_type=TASK,
                dataset_name=name,
                dataset_type=where.type,
                dataset_config=where.config,
                dataset_split=where.split,
                metric_type=_METRICS.get(row.key.name, row.key.name),
                metric_name=f"{row.group}: {row.label}",
                metric_value=value,
            )
        )
    return _told_apart(found)


def _set(row: Row) -> str:
    """Return the set's name; a mean over sets is another set in each perspective."""
    return f"{row.group}, {row.key.set}" if row.key.over_sets else row.key.set


def _dev(record: RunRecord | None) -> tuple[str, str | None]:
    """Return the source and the split of a run's dev rows, as far as they are recorded."""
    source = {} if record is None else record.data.get("dev", {}).get("source", {})
    path, split = source.get("path"), source.get("split")
    return "" if path is None else str(path), None if split is None else str(split)


def _told_apart(found: list[EvalResult]) -> list[EvalResult]:
    """Give sets whose origins are the same their own names in place of a configuration."""
    sets = {(one.unique_identifier, one.dataset_name) for one in found}
    sharing = Counter(identity for identity, _ in sets)
    return [
        # No configuration on the Hub has a space in its name, so this is nobody else's.
        replace(one, dataset_config=f"set {one.dataset_name}")
        if sharing[one.unique_identifier] > 1
        else one
        for one in found
    ]
