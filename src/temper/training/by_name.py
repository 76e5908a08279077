"""A model and encoded rows from a model's name and datasets with a text column."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded
from temper.data.examples import NAMED, Examples
from temper.data.in_memory import hold
from temper.data.sources import load_examples
from temper.errors import SettingError
from temper.training.config import RunConfig
from temper.training.prepared import label_names, make_network


def from_name(
    model: str, settings: Mapping[str, Any], *, seed: int
) -> tuple[Any, float, dict[str, Any]]:
    """Load the model and encode the rows of a `RobustTrainer` that was given a model's name.

    ``settings`` are its keyword arguments; ``train_dataset`` and ``eval_dataset`` have a text and a
    label column, as in `temper.train`. The result is the model, its default learning rate, and the
    settings with encoded rows, their collator and the tokenizer.
    """
    given = [key for key in ("processing_class", "data_collator") if settings.get(key) is not None]
    got = f", got {', '.join(given)}" if given else ""
    if given or settings.get("train_dataset") is None:
        raise SettingError(
            "A RobustTrainer with the name of a model needs `train_dataset` with a text column, "
            f"and chooses `processing_class` and `data_collator` itself{got}. Give "
            "`train_dataset` alone, or a loaded model with encoded rows."
        )
    source = hold(settings["train_dataset"])
    rows = load_examples(source)
    config = RunConfig.of({"model": model, "data": {"source": source}, "seed": seed})
    labels = label_names(rows) if rows.kind in NAMED else None
    network, tokenizer, _ = make_network(config, rows, labels=labels)

    def encoded(examples: Examples) -> LazilyEncoded:
        return LazilyEncoded(examples, tokenizer, max_length=config.data.max_length)

    changed: dict[str, Any] = {
        **settings,
        "train_dataset": encoded(rows),
        "data_collator": Collator(tokenizer),
        "processing_class": tokenizer,
    }
    if settings.get("eval_dataset") is not None:
        evaluated = load_examples(hold(settings["eval_dataset"]))
        changed["eval_dataset"] = encoded(
            evaluated if labels is None else evaluated.map_labels(labels)
        )
    return network, config.train.learning_rate, changed
