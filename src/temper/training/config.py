"""Settings of a run: read from TOML and ``--set``, checked all at once, hashed to a key.

A run is ``model``, ``seed`` and three tables: ``data``, ``method`` (with its ``name``) and
``train``; and ``architecture``, of a network that is trained from scratch::

    model = "minilm"
    seed = 0
    [data]
    source = "reviews.csv"
    [method]
    name = "uegr"
    epsilon = 0.025
    [train]
    epochs = 3.0

A composition has a table of settings for each of its methods::

    [method]
    name = "r_drop + at"
    [method.r_drop]
    weight = 2.0
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal, Self, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    model_validator,
)

from temper import methods
from temper.data.settings import UNLABELLED, DataSettings
from temper.errors import CompositionError, Option, SettingError, faults, unknown
from temper.models.adapters import Lora
from temper.training import scratch
from temper.training.assignments import Tree
from temper.training.checks import check_unlabelled, wants_unlabelled
from temper.training.trackers import known_tracker

Settings = TypeVar("Settings", bound=BaseModel)
# TOML and JSON know lists only, which strict checking would not take for tuples.
Names = Annotated[tuple[str, ...], Field(strict=False)]
Trackers = Annotated[
    tuple[Annotated[str, AfterValidator(known_tracker)], ...],
    Field(strict=False),
    BeforeValidator(lambda given: (given,) if isinstance(given, str) else given),
]
Device = Annotated[str, AfterValidator(lambda device: known_device(device))]
Weights = Annotated[tuple[Annotated[float, Field(gt=0)], ...], Field(strict=False)]

PLACES = ("model", "seed", "data", "method", "train", "architecture")
LARGEST_SEED = 2**32 - 1
KEEP_SHARE = 0.1
DEVICE = re.compile(r"auto|cpu|mps|cuda(:\d+)?")


class LoraSettings(BaseModel):
    """A LoRA adapter that is trained in place of the model's own weights (Hu et al., ICLR 2022).

    Args:
        rank: Rank of the update of each matrix, >= 1.
        alpha: The update is scaled by alpha / rank, > 0.
        dropout: Dropout rate before the update, in [0, 1).
        target_modules: Names of the linear layers that get one; None takes PEFT's choice for the
            architecture, ``"all-linear"`` every one below the head.
        merge: Whether the trained adapter is added to the model, so that the run is a plain
            checkpoint.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    rank: int = Field(8, ge=1)
    alpha: float = Field(16.0, gt=0)
    dropout: float = Field(0.0, ge=0, lt=1)
    target_modules: Literal["all-linear"] | Names | None = None
    merge: bool = False

    def adapter(self) -> Lora:
        """Return how the adapter is made."""
        return Lora(**self.model_dump(exclude={"merge"}))


class TrainSettings(BaseModel):
    """Settings of the training loop; the defaults suit an encoder of the BERT family.

    Args:
        epochs: Passes over the training rows, > 0; fractions are allowed.
        max_steps: Optimiser steps, >= 1; where given it replaces ``epochs``.
        batch_size: Rows of one micro-batch on one process, >= 1.
        accumulation: Micro-batches per optimiser step, >= 1: ``batch_size`` 4 with 4 of them sees
            the rows of ``batch_size`` 16.
        learning_rate: Peak learning rate, > 0.
        weight_decay: Decoupled weight decay, >= 0; biases and norms are spared.
        warmup_ratio: Share of the steps over which the rate climbs from 0, in [0, 1).
        schedule: Course of the learning rate after the warm-up.
        max_grad_norm: l2 norm to clip the gradient to, >= 0; 0 switches clipping off.
        precision: ``fp32``, or mixed precision in ``bf16`` or ``fp16``.
        save_steps: Optimiser steps between two checkpoints, >= 1.
        logging_steps: Optimiser steps between two lines of ``metrics.jsonl``, >= 1.
        group_by_length: Put rows of similar length into one batch; each epoch still sees every row
            once.
        class_weights: Weight of each class in the task loss, in the order of the labels;
            ``"balanced"`` takes rows / (classes * rows of the class); None weighs all rows alike.
        device: ``auto``, ``cpu``, ``cuda``, ``cuda:N`` or ``mps``.
        gradient_checkpointing: Recompute activations in the backward pass to save memory.
        report_to: Trackers that Transformers knows, for example ``("tensorboard",)``; one
            name may stand alone.
        evaluate: ``epoch`` scores the dev rows after each epoch; ``off`` does not. Either way the
            weights are the same.
        keep: ``last`` keeps the weights of the last step; ``best`` those of the epoch that is best
            on rows which are taken out of the training rows for it. The dev rows choose nothing.
        keep_share: With ``keep="best"``, the share of the training rows that choose, in (0, 0.5].
        lora: A table of settings of a LoRA adapter; None trains all weights.

    Example:
        >>> TrainSettings(epochs=1).batch_size
        16
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)

    epochs: float = Field(3.0, gt=0)
    max_steps: int | None = Field(None, ge=1)
    batch_size: int = Field(16, ge=1)
    accumulation: int = Field(1, ge=1)
    learning_rate: float = Field(2e-5, gt=0)
    weight_decay: float = Field(0.01, ge=0)
    warmup_ratio: float = Field(0.06, ge=0, lt=1)
    schedule: Literal["linear", "cosine", "constant_with_warmup", "constant"] = "linear"
    max_grad_norm: float = Field(1.0, ge=0)
    precision: Literal["fp32", "bf16", "fp16"] = "fp32"
    save_steps: int = Field(200, ge=1)
    logging_steps: int = Field(10, ge=1)
    group_by_length: bool = True
    class_weights: Literal["balanced"] | Weights | None = None
    device: Device = "auto"
    gradient_checkpointing: bool = False
    report_to: Trackers = ()
    evaluate: Literal["epoch", "off"] = "epoch"
    keep: Literal["last", "best"] = "last"
    keep_share: float = Field(KEEP_SHARE, gt=0, le=0.5)
    lora: Annotated[LoraSettings, Field(strict=False)] | None = None

    @model_validator(mode="after")
    def _keep_share_is_read(self) -> Self:
        if self.keep == "last" and self.keep_share != KEEP_SHARE:
            raise ValueError(
                "`train.keep_share` is read with `train.keep` 'best' alone, and it is 'last'. Set "
                "train.keep=best, or leave it out."
            )
        return self

    def deciding(self) -> Tree:
        """Return the settings that decide the trained weights; a key is made of them."""
        apart = {"device", "save_steps", "logging_steps", "report_to", "evaluate"}
        if self.keep == "last":
            apart |= {"keep", "keep_share"}
        if self.lora is None:
            apart |= {"lora"}
        return self.model_dump(mode="json", exclude=apart)


class RunConfig(BaseModel):
    """All settings of one training run.

    Args:
        model: A Hub id, a folder, or a short name of ``temper list models``.
        data: Where the text comes from.
        method: The method's ``name`` (``uegr`` where none is given) and its settings, or those of
            each method of a composition; the rest is filled with the methods' defaults.
        train: The training loop.
        architecture: The network, where it is trained from scratch; else None.
        seed: Seed of every random draw, in [0, 2^32).
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: Annotated[str, Option("--model NAME")] = Field(min_length=1)
    data: DataSettings
    method: Tree
    train: TrainSettings = Field(default_factory=TrainSettings)
    architecture: Tree | None = None
    seed: int = Field(0, ge=0, le=LARGEST_SEED, strict=True)

    @classmethod
    def of(cls, tree: Mapping[str, Any]) -> Self:
        """Check nested settings and fill in defaults.

        Args:
            tree: ``{"model": ..., "seed": ..., "data": {...}, "method": {...}, "train": {...}}``.

        Returns:
            The checked run.

        Raises:
            SettingError: Where anything is wrong; it lists every fault, not only the first.
        """
        found = [unknown("setting", name, PLACES) for name in tree if name not in PLACES]
        tree = scratch.completed(_with_method(tree))
        checks: dict[str, Callable[[Any], Any]] = {
            "data": lambda table: section(DataSettings, "data", table),
            "method": _method,
            "train": lambda table: section(TrainSettings, "train", table),
        }
        if "architecture" in tree:
            checks["architecture"] = lambda table: _architecture(tree.get("model"), table)
        checked: Tree = {name: tree[name] for name in ("model", "seed") if name in tree}
        for name, check in checks.items():
            try:
                checked[name] = check(tree.get(name, {}))
            except (SettingError, CompositionError) as error:
                found.append(str(error))
        try:
            config = cls.model_validate(checked)
        except ValidationError as error:
            # A table that failed above is missing here; its own faults are on the list already.
            failed = tuple(f"`{name}`" for name in checks if name not in checked)
            found += [fault for fault in faults(error, cls, "") if not fault.startswith(failed)]
        if "data" in checked and "method" in checked:
            try:
                given = checked["data"].unlabeled is not None
                method = _built(checked["method"])
                check_unlabelled(method, given=given)
                lora = "train" in checked and checked["train"].lora is not None
                if lora and method.rule.wants_start:
                    found.append(_reads_the_start(method.name))
                if "architecture" in checked and lora:
                    found.append(
                        f"`train.lora` adapts pre-trained weights, and {tree['model']!r} is "
                        "trained from scratch. Leave it out."
                    )
                if "architecture" in checked:
                    scratch.check_method(tree["model"], method.config)
            except (SettingError, CompositionError) as error:
                found.append(str(error))
        if found:
            raise SettingError("\n".join(found))
        return config

    @property
    def method_name(self) -> str:
        """Name of the method."""
        return str(self.method["name"])

    def method_config(self) -> Any:
        """Return the method's own config, built from ``method``."""
        return methods.configure(self.method_name, _without_name(self.method))

    def settings(self) -> Tree:
        """Return the resolved settings as ``run.json`` holds them."""
        own = {} if self.architecture is None else {"architecture": self.architecture}
        return {
            "method": self.method,
            "train": self.train.model_dump(mode="json"),
            "data": self.data.model_dump(mode="json"),
            **own,
        }

    def key(
        self,
        *,
        model: str,
        train_hash: str,
        dev_hash: str,
        unlabeled_hash: str | None = None,
        augment_models: Mapping[str, str] | None = None,
    ) -> str:
        """Hash all that decides the outcome.

        Paths and the device are left out: the rows' hashes stand for the data's source, so a run is
        recognised after its data or its folder moved.

        Args:
            model: What identifies the starting weights: a Hub id, or a hash of a folder's content.
            train_hash: Hash of the training rows and labels.
            dev_hash: Hash of the evaluated rows and labels.
            unlabeled_hash: Hash of the unlabelled rows, where the method trains on such.
            augment_models: What identifies the models that change rows, by setting.

        Returns:
            12 hexadecimal digits.
        """
        unlabeled = [] if unlabeled_hash is None else [unlabeled_hash]
        decides = {
            "model": model,
            "seed": self.seed,
            "method": self.method,
            "train": self.train.deciding(),
            "max_length": self.data.max_length,
            "rows": [train_hash, dev_hash, *unlabeled],
        }
        if self.architecture is not None:
            decides["architecture"] = scratch.identity(self.architecture)
        decides |= self.data.augmentation(augment_models or {}, seed=self.data.seed)
        return digest(decides)


def without_unread(tree: Mapping[str, Any]) -> Tree:
    """Return nested settings without unlabelled text that their method does not train on.

    Args:
        tree: As `RunConfig.of` takes it; settings that are wrong are left for it to refuse.

    Example:
        >>> data = {"source": "demo", "unlabeled": "pool.csv"}
        >>> without_unread({"data": data, "method": {"name": "vanilla"}})["data"]
        {'source': 'demo'}
    """
    data = tree.get("data")
    if not isinstance(data, Mapping) or data.get("unlabeled") is None:
        return dict(tree)
    try:
        wanted = wants_unlabelled(_built(_method(tree.get("method", {}))))
    except (SettingError, CompositionError):
        return dict(tree)
    if wanted:
        return dict(tree)
    return {**tree, "data": {name: data[name] for name in data if name not in UNLABELLED}}


def known_device(device: str) -> str:
    """Check the name of a device.

    Raises:
        ValueError: Where it has another form; pydantic turns it into a fault.

    Example:
        >>> known_device("cuda:1")
        'cuda:1'
    """
    if not DEVICE.fullmatch(device):
        raise ValueError("must be auto, cpu, cuda, cuda:N or mps")
    return device


def digest(content: Any) -> str:
    """Hash JSON content to 12 hexadecimal digits, whatever the order of its keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


def section(settings: type[Settings], name: str, table: Any) -> Settings:
    """Check one table of settings.

    Args:
        settings: The class that describes the table.
        name: The table's name, for messages.
        table: What came.

    Returns:
        The settings, defaults filled in.

    Raises:
        SettingError: Where anything in the table is wrong; it lists every fault.
    """
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`{name}` must be a table of settings, got {table!r}. Write `{name}.KEY=VALUE`."
        )
    try:
        return settings.model_validate(dict(table))
    except ValidationError as error:
        raise SettingError("\n".join(faults(error, settings, f"{name}."))) from error


def _with_method(tree: Mapping[str, Any]) -> Tree:
    """Name the default method where none is named."""
    table = tree.get("method", {})
    if not isinstance(table, Mapping) or "name" in table:
        return dict(tree)
    return {**tree, "method": {"name": methods.DEFAULT, **table}}


def _method(table: Any) -> Tree:
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`method` must be a table with a `name`, got {table!r}. Write `method.name=NAME`."
        )
    name = table.get("name")
    if not isinstance(name, str):
        raise SettingError(
            f"`method.name` must be a method's name, got {name!r}: give --method NAME "
            "(`temper list methods` shows them)."
        )
    preset = table.get("preset", "")
    if not isinstance(preset, str):
        raise SettingError(f"`method.preset` must be a name, got {preset!r}.")
    config = methods.configure(name, _without_name(table), prefix="method.")
    # "r_drop+at" and "r_drop + at" are one method, and so one key.
    written = config.name if isinstance(config, methods.Composed) else name
    return {"name": written, **config.settings()}


def _reads_the_start(method: str) -> str:
    return (
        f"The method {method!r} sets the weights against those before training, and under "
        "`train.lora` these are frozen: it would act on the adapter's random start. Use another "
        "method, or leave train.lora out (--lora)."
    )


def _architecture(model: Any, table: Any) -> Tree:
    return section(scratch.settings_class(model), "architecture", table).model_dump(mode="json")


def _built(method: Tree) -> methods.Method:
    return methods.build(methods.configure(str(method["name"]), _without_name(method)))


def _without_name(table: Mapping[str, Any]) -> Tree:
    return {key: value for key, value in table.items() if key != "name"}
