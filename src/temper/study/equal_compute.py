"""Plain fine-tuning of equal compute: the column that a costlier method has to beat as well."""

from __future__ import annotations

import math
from typing import Any

from temper import methods
from temper.data.encode import Collator, LazilyEncoded
from temper.data.examples import NAMED, Splits
from temper.display.folders import is_plain
from temper.methods.soup import trainings_of
from temper.progress import Progress
from temper.settings import override
from temper.study.alternatives import passes_over_rows
from temper.study.plan import Column, StudyConfig
from temper.training.config import RunConfig
from temper.training.passes import PLAIN, passes_of
from temper.training.prepared import label_names, make_network, with_head


def with_equal_compute(config: StudyConfig, splits: Splits, progress: Progress) -> StudyConfig:
    """Add plain fine-tuning that is as long as the costliest column is costly.

    The column is the reference with K times its epochs or steps, and `_xK` behind its name; K is
    the forward passes of the costliest column's training over those of the reference, rounded.

    Args:
        config: A plan whose first column is the reference.
        splits: The rows to train on.
        progress: Receives a notice of the added column.

    Returns:
        The plan with the column; the same plan if the reference is not plain fine-tuning, no column
        costs 1.5 times as much, or plain fine-tuning of that length is among the columns.

    Raises:
        TemperError: The model cannot be loaded, or its head does not fit.
    """
    reference = config.columns[0]
    if not _plain(reference) or all(_plain(column) for column in config.columns):
        return config
    found = costs(config, splits)
    others = [column.name for column in config.columns if not _plain(column)]
    costliest = max(others, key=lambda name: found.get(name, 0.0))
    times = math.floor(found.get(costliest, 0.0) + 0.5)
    name = f"{reference.name}_x{times}"
    longest = max(found[column.name] for column in config.columns if _plain(column))
    # A column of that name stands for what its author says.
    if times < 2 or longest >= times - 0.5 or name in [column.name for column in config.columns]:
        return config
    train = config.runs[reference.name, config.seeds[0]].train
    length: tuple[str, Any] = ("epochs", times * train.epochs)
    if train.max_steps is not None:
        length = ("max_steps", times * train.max_steps)
    settings = override(reference.settings, [(("train", length[0]), length[1])])
    progress.notice(
        f"Column `{name}` is added: plain fine-tuning with {times} times the training, since "
        f"`{costliest}` costs about {found[costliest]:.1f}x plain fine-tuning. "
        "--no-equal-compute leaves it out."
    )
    return config.with_column(Column(name, reference.method, settings))


def costs(config: StudyConfig, splits: Splits) -> dict[str, float]:
    """Return what training each column takes, in forward passes relative to the reference.

    The passes of a step are counted on one network, and multiplied by steps and trainings.

    Args:
        config: A plan whose first column is plain fine-tuning.
        splits: The rows to train on.

    Returns:
        The cost by column name; without columns whose passes cannot be counted.

    Raises:
        TemperError: The model cannot be loaded, or its head does not fit.
    """
    runs = {column.name: config.runs[column.name, config.seeds[0]] for column in config.columns}
    reference = runs[config.reference]
    rows = with_head(reference, splits).train
    labels = label_names(rows) if rows.kind in NAMED else None
    model, tokenizer, _ = make_network(reference, rows, labels=labels)
    encoded = LazilyEncoded(rows, tokenizer, max_length=reference.data.max_length)
    batch = Collator(tokenizer)(encoded.shortest(2))

    def cost(run: RunConfig, *, plain: bool) -> float | None:
        length = passes_over_rows(run, len(rows)) / passes_over_rows(reference, len(rows))
        if plain:
            return length
        method = methods.build(run.method_config())
        passes = passes_of(model, method, batch)
        return None if passes is None else trainings_of(method.rule) * length * passes / PLAIN

    known = {each.name: cost(runs[each.name], plain=_plain(each)) for each in config.columns}
    return {name: value for name, value in known.items() if value is not None}


def _plain(column: Column) -> bool:
    return is_plain(column.method, column.settings)
