"""Preparation of a run: rows, model, tokenizer and method are loaded and checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from temper.data.augmentation import AugmentedExamples, augmented
from temper.data.collator import Collator
from temper.data.encode import LazilyEncoded, unknown_notices
from temper.data.examples import LABELS_OF, NAMED, Examples, Splits, label_counts
from temper.data.in_memory import hold
from temper.data.sources import load_examples
from temper.data.tasks.registry import default_metric
from temper.data.windows import check_windows
from temper.errors import SettingError
from temper.functional.label_names import are_named, is_numeral, match_names
from temper.models.classical.build import build_classifier
from temper.models.heads import order_of_head, set_new_bias
from temper.models.hf import HEADED, head_names, is_encoder_decoder, load_classifier, load_headed
from temper.models.windows import set_windows
from temper.training.checks import check_head, check_in_windows
from temper.training.config import RunConfig, settings_class, teachers_of
from temper.training.distilling import teacher_logits
from temper.training.recorder import DEV, SELECTION, ScoredSet
from temper.types import TEACHER

LOWEST_ADAPTER_RATE = 1e-4
"""Lowest learning rate that suits an adapter; LoRA's paper has 2e-4 to 5e-4 (table 9)."""


@dataclass(frozen=True)
class Prepared:
    """The rows, model, tokenizer and method of a run, loaded and checked.

    Args:
        class_weights: Weight of each class, None if all are equal.
        unlabeled: The encoded unlabeled rows, None if the method trains on none.
        scored: The rows that are scored after each epoch.
        selection: The rows that choose the epoch whose weights are kept; None if none does.
    """

    model: Any
    tokenizer: Any
    method: Any
    rows: LazilyEncoded | AugmentedExamples
    class_weights: list[float] | None
    unlabeled: LazilyEncoded | None = None
    notices: tuple[str, ...] = ()
    scored: tuple[ScoredSet, ...] = ()
    selection: Examples | None = None


def prepare(
    config: RunConfig,
    splits: Splits,
    *,
    selection: Examples | None = None,
) -> Prepared:
    """Load and build everything that a run needs, so that errors come before any writing."""
    method = config.method_config()
    check_head(method, {f"Method {config.method_name!r}": splits.train.kind})
    windows, length = config.data.windows, config.data.max_length
    if windows is not None:
        check_windows(splits.train.kind, setting="data.stride")
        check_in_windows(method)
    weights = class_weights(config.train.class_weights, splits.train)
    labels = label_names(splits.train) if splits.train.kind in NAMED else None
    model, tokenizer, notices = make_network(config, splits.train, labels=labels)
    clean = LazilyEncoded(splits.train, tokenizer, max_length=length, windows=windows)
    notices += unknown_tokens(config, clean, tokenizer)
    folders = teachers_of(method)
    if splits.train.kind in HEADED and (folders or splits.unlabeled is not None):
        raise SettingError(
            f"Method {config.method_name!r} learns from texts without labels or from a teacher, "
            f"which is not supported if the labels are {LABELS_OF[splits.train.kind]}. Choose "
            "another method."
        )
    if folders:
        logits = teacher_logits(
            folders, splits.train, labels=labels, max_length=length, device=config.train.device
        )
        clean.columns[TEACHER] = logits.tolist()
        models = f"{len(folders)} trained model{'s' if len(folders) > 1 else ''}"
        notices += (f"{models} predicted the {len(clean):,} training rows.",)
    unlabeled = None
    if splits.unlabeled is not None:
        unlabeled = LazilyEncoded(splits.unlabeled, tokenizer, max_length=length, windows=windows)
    scored = scored_sets(config, {DEV: splits.dev, SELECTION: selection}, tokenizer)
    rows = augmented(clean, splits.train, tokenizer, config.data, seed=config.seed)
    return Prepared(model, tokenizer, method, rows, weights, unlabeled, notices, scored, selection)


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
            f"and chooses `processing_class` and `data_collator` itself{got}. Pass "
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


def unknown_tokens(config: RunConfig, encoded: LazilyEncoded, tokenizer: Any) -> tuple[str, ...]:
    return unknown_notices(
        encoded,
        tokenizer,
        rows="training rows",
        model=config.model,
        own_vocabulary=config.architecture is not None,
    )


def make_network(
    config: RunConfig, rows: Examples, *, labels: Sequence[str] | None, new_head: bool = False
) -> tuple[Any, Any, tuple[str, ...]]:
    """Load a run's model, or build it from the training text if it is trained from scratch.

    A regression has no ``labels``. The result is (model, tokenizer, notices). The weights of a
    network from scratch, or of a new head, are drawn from the seed. The head is new if ``new_head``
    is set or that of the checkpoint does not fit.
    """
    if rows.kind in HEADED:
        if config.architecture is not None:
            raise SettingError(
                f"{config.model} is a classifier from scratch, and the labels are "
                f"{LABELS_OF[rows.kind]}. Pass a pre-trained model, such as a language model for "
                "prompts."
            )
        model, tokenizer = load_headed(
            config.model,
            rows.kind,
            seed=config.seed,
            new_adapter=config.train.adapter,
            trained=True,
        )
        return model, tokenizer, ()
    if config.architecture is None:
        model, tokenizer = load_classifier(
            config.model,
            labels=labels,
            kind=rows.kind,
            seed=config.seed,
            new_adapter=config.train.adapter,
            given=config.train.given_names,
            new_head=new_head or config.train.new_head,
        )
        notices: tuple[str, ...] = ()
    else:
        model, tokenizer, notices = build_classifier(
            config.model,
            [*rows.text, *(rows.text_pair or ())],
            labels=labels,
            kind=rows.kind,
            settings=settings_class(config.model).model_validate(config.architecture),
            max_length=config.data.max_length,
            seed=config.seed,
        )
    # The checkpoint may read texts in its own windows.
    set_windows(model, config.data.windows, max_length=config.data.max_length)
    if rows.kind == "multi_label" and rows.labels:
        # The bias of a new head starts at the log-odds of each label: from 0, rare labels take
        # hundreds of steps (Lin et al. 2017, arXiv 1708.02002, section 4.1). One pseudo-row with
        # and one without each label keep them finite.
        counts = np.asarray(rows.labels, dtype=np.int8).sum(axis=0) + 1
        set_new_bias(model, np.log(counts / (len(rows) + 2 - counts)))
    return model, tokenizer, notices


def network_notices(config: RunConfig, model: Any, tokenizer: Any) -> list[str]:
    """Return a line on the size of a network from scratch or an adapter; empty for other models."""
    counts, rate = parameter_counts(model), config.train.learning_rate
    if (adapter := config.train.adapter) is not None:
        kind = "LoRA" if adapter["peft_type"] == "LORA" else adapter["peft_type"]
        notices = [
            f"{kind} adapter: {counts['trained']:,} of {counts['all']:,} parameters are trained."
        ]
        if rate < LOWEST_ADAPTER_RATE:
            notices.append(
                f"The learning rate is {rate:g}; adapters usually take {LOWEST_ADAPTER_RATE:g} and "
                "more. Set --learning-rate (`train.learning_rate`)."
            )
        return notices
    if config.architecture is None:
        return []
    return [
        f"{config.model} is trained from scratch: {len(tokenizer):,} words of the training text, "
        f"{counts['all'] / 1e6:.2f} M parameters, dropout {config.architecture['dropout']:g}, "
        f"learning rate {rate:g}, batches of {config.train.batch_size}."
    ]


def parameter_counts(model: Any) -> dict[str, int]:
    sizes = [(parameter.numel(), parameter.requires_grad) for parameter in model.parameters()]
    return {
        "all": sum(size for size, _ in sizes),
        "trained": sum(n for n, trained in sizes if trained),
    }


def scored_sets(
    config: RunConfig,
    sets: Mapping[str, Examples | None],
    tokenizer: Any,
    *,
    task: str | None = None,
) -> tuple[ScoredSet, ...]:
    """Encode the rows that are scored after each epoch, by name."""
    return tuple(
        ScoredSet(
            name,
            metric_of(config, rows),
            LazilyEncoded(
                rows, tokenizer, max_length=config.data.max_length, windows=config.data.windows
            ),
            kind=rows.kind,
            names=rows.label_names or (),
            task=task,
        )
        for name, rows in sets.items()
        if rows is not None
        and rows.labels is not None
        and (name != DEV or config.train.evaluate == "epoch")
    )


def metric_of(config: RunConfig, rows: Examples) -> str:
    kind = "classification" if rows.kind == "unlabeled" else rows.kind
    names = rows.label_names or ()
    return default_metric(config.data.source, kind, task=config.data.task, names=names)


def label_names(examples: Examples) -> list[str]:
    """Return the names of the classes, or their indices if they have no names."""
    if examples.label_names is not None:
        return list(examples.label_names)
    return [str(index) for index in range(examples.classes)]


def with_head(config: RunConfig, splits: Splits) -> Splits:
    """Give the data the class names that the run's model will have.

    Labels without names get the names of the checkpoint's head. Classes that only the head has are
    added after the data's, so that the head keeps them. Labels are matched by name; if that fails,
    `load_classifier` raises an error.
    """
    train, given = splits.train, config.train.given_names
    from_scratch = config.architecture is not None
    if train.kind in HEADED:
        if given or config.train.new_head:
            raise SettingError(
                "`train.label_names`, `train.label_map` and `train.new_head` are about the head of "
                f"a classifier, and the labels are {LABELS_OF[train.kind]}. Leave them out."
            )
        writes = train.kind == "completions" and not from_scratch
        if writes and is_encoder_decoder(config.model):
            dev = splits.dev
            dev = dev if dev.kind == "unlabeled" else replace(dev, kind="seq2seq")
            return replace(splits, train=replace(train, kind="seq2seq"), dev=dev)
        return splits
    head = (
        None
        if from_scratch or config.train.new_head
        else head_names(config.model, given, kind=train.kind)
    )
    if train.kind == "regression":
        if given:
            raise SettingError(
                "`train.label_names` and `train.label_map` name classes, and the labels are "
                "numbers of a regression. Leave them out, or set data.kind=classification."
            )
        return splits
    if head is None:
        if given.label_map:
            raise SettingError(
                f"`train.label_map` renames the classes of a trained head, and {config.model} gets "
                "a new head. Leave it out."
            )
        return splits if given.label_names is None else _named_like(splits, given.label_names)
    class_names = label_names(train)
    occurring = (
        class_names if train.label_names else sorted({str(label) for label in train.labels or ()})
    )
    outputs = match_names(occurring, head)
    if None not in outputs and are_named(head):
        others = [name for index, name in enumerate(head) if index not in outputs]
        # The labels of named data keep their numbers; the head's outputs are put in their order.
        by_name = are_named(train.label_names)
        named = _named_like(splits, (*class_names, *others) if by_name else head)
        if others:
            kept = f"{config.model} has classes that do not occur in the data and are kept: "
            named = replace(named, notices=(*named.notices, f"{kept}{', '.join(others)}."))
        return named
    if len(class_names) != len(head):
        notice = (
            f"The head of {config.model} has {len(head)} classes, {', '.join(head)}, and the "
            f"data has {len(class_names)}, {', '.join(class_names)}: a new head is drawn."
        )
        return replace(splits, notices=(*splits.notices, notice))
    if not are_named(train.label_names) and are_named(head) and not any(map(is_numeral, head)):
        return _named_like(splits, head)
    order_of_head(head, class_names, config.model)
    return splits


def _named_like(splits: Splits, names: Sequence[str]) -> Splits:
    train, dev = splits.train.map_labels(names), splits.dev
    # Dev rows may have no labels.
    dev = dev if dev.kind == "unlabeled" else dev.map_labels(names)
    test = splits.test
    if test is not None and test.kind != "unlabeled":
        test = test.map_labels(names)
    new = (notice for notice in train.notices if notice not in splits.train.notices)
    return replace(splits, train=train, dev=dev, test=test, notices=(*splits.notices, *new))


def class_weights(setting: Any, train_rows: Examples) -> list[float] | None:
    """Resolve ``train.class_weights``, ``"balanced"`` or numbers in the order of the labels.

    The result has one weight per class. ``balanced`` is rows / (classes * rows of the class); for
    several labels per text, the rows without a label over those with it, 1 if there are none.
    """
    if setting is None:
        return None
    if train_rows.kind not in NAMED:
        raise SettingError(
            "`train.class_weights` needs classes, but the labels are "
            f"{LABELS_OF[train_rows.kind]}. Leave it out."
        )
    classes = len(label_names(train_rows))
    if setting == "balanced" and train_rows.kind == "multi_label":
        applies = np.array(train_rows.labels).sum(0)
        return [(len(train_rows) - n) / n if n else 1.0 for n in applies.tolist()]
    if setting == "balanced":
        counts = label_counts(train_rows)
        return [
            len(train_rows) / (len(counts) * counts[index]) if index in counts else 1.0
            for index in range(classes)
        ]
    weights = [float(weight) for weight in setting]
    if len(weights) != classes:
        raise SettingError(
            f"`train.class_weights` must be {classes} numbers, one per label in the order "
            f"{', '.join(label_names(train_rows))}, got {weights}."
        )
    return weights
