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
from collections.abc import Callable, Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from temper import methods
from temper.data.settings import UNLABELLED, DataSettings
from temper.errors import CompositionError, Option, SettingError, faults, unknown
from temper.training import scratch
from temper.training.assignments import Tree, section
from temper.training.checks import check_unlabelled, wants_unlabelled
from temper.training.settings import TrainSettings

PLACES = ("model", "seed", "data", "method", "train", "architecture")
LARGEST_SEED = 2**32 - 1


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


def digest(content: Any) -> str:
    """Hash JSON content to 12 hexadecimal digits, whatever the order of its keys.

    Example:
        >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
        True
    """
    text = json.dumps(content, sort_keys=True, ensure_ascii=True, allow_nan=False)
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()


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
