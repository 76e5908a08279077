"""Settings of a run: read from TOML and ``--set``, checked all at once, hashed to a key.

A network without pre-trained weights needs other learning rates, has an additional table of
settings (``architecture``), and does not support methods that use pre-trained weights. Its defaults
are filled in unless set otherwise.

A run is ``model``, ``seed`` and three tables: ``data``, ``method`` (with its ``name``) and
``train``. A network that is trained from scratch also has ``architecture``::

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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from temper import methods
from temper.backward.hooks import OnTrainEnd
from temper.backward.rule import InitialWeightsRule, WeightAverageRule, implements, rules_of
from temper.checkpoints.identity import digest, model_identity
from temper.data.examples import Splits
from temper.data.settings import UNLABELED, DataSettings
from temper.errors import CompositionError, Option, SettingError, faults, unknown
from temper.methods.composition import Composed
from temper.methods.distil import Distil
from temper.methods.method import Method
from temper.methods.reinit import TopLayers
from temper.methods.variants import merged
from temper.models.classical import ARCHITECTURES
from temper.models.classical.registry import DROPOUT, ArchitectureSettings
from temper.models.classical.vectors import content_hash
from temper.models.names import MODELS
from temper.settings import Faults, Tree, section
from temper.training.settings import TrainSettings
from temper.types import Step

KEYS = ("model", "seed", "data", "method", "train", "architecture")
LARGEST_SEED = 2**32 - 1


class RunConfig(BaseModel):
    """All settings of one training run.

    Args:
        model: A Hub id, a folder, or a short name of ``temper list models``.
        data: Where the text comes from.
        method: The method's ``name`` and its settings, or those of each method of a composition;
            missing ones are the methods' defaults.
        train: The training loop.
        architecture: The network, if it is trained from scratch; else None.
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

        Raises:
            SettingError: If anything is wrong; the message lists all faults.
        """
        result = Faults(unknown("setting", name, KEYS) for name in tree if name not in KEYS)
        table = tree.get("method", {})
        if isinstance(table, Mapping) and "name" not in table:
            tree = {**tree, "method": {"name": methods.DEFAULT, **table}}
        tree = completed(tree)
        checks: dict[str, Callable[[Any], Any]] = {
            "data": lambda table: section(DataSettings, "data", table),
            "method": checked_method,
            "train": lambda table: section(TrainSettings, "train", table),
        }
        if "architecture" in tree:
            checks["architecture"] = lambda table: section(
                settings_class(tree.get("model")), "architecture", table
            ).model_dump(mode="json")
        checked: Tree = {name: tree[name] for name in ("model", "seed") if name in tree}
        for name, check in checks.items():
            with result.caught():
                checked[name] = check(tree.get(name, {}))
        try:
            config = cls.model_validate(checked)
        except ValidationError as error:
            # A table that failed above is missing here; its own faults are on the list already.
            failed = tuple(f"`{name}`" for name in checks if name not in checked)
            result += [fault for fault in faults(error, cls, "") if not fault.startswith(failed)]
        if "data" in checked and "method" in checked:
            result += _conflicts(checked, tree.get("model"))
        result.refuse()
        return config

    @property
    def method_name(self) -> str:
        return str(self.method["name"])

    def method_config(self) -> Method:
        return _method_of(self.method)

    def settings(self) -> Tree:
        """Return the resolved settings in the form of ``run.json``."""
        return {
            "method": self.method,
            "train": self.train.model_dump(mode="json"),
            "data": self.data.model_dump(mode="json"),
            **({} if self.architecture is None else {"architecture": self.architecture}),
        }

    def key(
        self,
        *,
        model: str,
        train_hash: str,
        dev_hash: str,
        unlabeled_hash: str | None = None,
        teachers: Sequence[str] = (),
    ) -> str:
        """Return a hash of everything that determines the result, 12 hexadecimal digits.

        Paths and the device are left out. The rows' hashes replace the data's source, so a run is
        recognized after its data or its folder was moved. ``model`` and ``teachers`` identify
        weights: by a Hub id, or by a hash of a folder's content. Unlabeled rows count if the method
        trains on them.
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
        if teachers:
            decides["teachers"] = list(teachers)
        if self.architecture is not None:
            decides["architecture"] = self.architecture
            if (vectors := self.architecture.get("vectors")) is not None:
                # The path of word vectors is left out, too.
                content = content_hash(Path(vectors).expanduser())
                decides["architecture"] = {**self.architecture, "vectors": content}
        if (windows := self.data.windows) is not None:
            decides["windows"] = asdict(windows)
        decides |= self.data.augmentation()
        return digest(decides)


def _conflicts(checked: Tree, model: object) -> Faults:
    """Return the faults of a method with other tables; tables that are wrong are missing."""
    result, train = Faults(), checked.get("train")
    with result.caught():
        method = _method_of(checked["method"])
        check_unlabeled(method, given=checked["data"].unlabeled is not None)
        if train is not None and train.keep == "best":
            check_kept(method, "`train.keep` 'best'")
        adapted = train is not None and train.adapter is not None
        if adapted and implements(method.rule, InitialWeightsRule):
            result.append(
                f"The method {method.name!r} uses the initial values of the trained weights. With "
                "an adapter these are the adapter's random weights, not the pre-trained ones. Use "
                "another method, or leave --lora and --peft out."
            )
        if adapted and implements(method.rule, TopLayers):
            result.append(
                f"The method {method.name!r} re-initializes layers, and with an adapter these are "
                "frozen. Use another method, or leave --lora and --peft out."
            )
        if "architecture" in checked and adapted:
            result.append(
                f"An adapter (--lora, --peft) changes pre-trained weights, and {model!r} is "
                "trained from scratch. Leave it out."
            )
        if "architecture" in checked:
            result += [
                f"The method {methods.name_of(member)!r} {member.PRETRAINED}, and {model!r} is "
                "trained from scratch, so it has none. Use another method, or a pre-trained model."
                for member in method.composed()
                if member.PRETRAINED
            ]
    return result


def run_key(config: RunConfig, splits: Splits, *, identity: str | None = None) -> str:
    """Return the key of a run on its loaded data; see `RunConfig.key`."""
    # A comparison loads unlabeled rows for all its methods, but not every method uses them.
    unlabeled = splits.unlabeled if config.data.unlabeled is not None else None
    return config.key(
        model=identity or model_identity(config.model),
        # The checkpoint has the label names, which the hash of the rows does not cover.
        train_hash=digest([splits.train.hash, splits.train.label_names]),
        dev_hash=splits.dev.hash,
        unlabeled_hash=None if unlabeled is None else unlabeled.hash,
        teachers=[model_identity(folder) for folder in teachers_of(config.method_config())],
    )


def teachers_of(method: Method) -> tuple[str, ...]:
    """Return the folders of the models that a method learns from."""
    distilled = (member for member in method.composed() if isinstance(member, Distil))
    return tuple(folder for member in distilled for folder in member.folders)


def without_unread(tree: Mapping[str, Any]) -> Tree:
    """Return nested settings without unlabeled text that their method does not train on.

    Example:
        >>> data = {"source": "demo", "unlabeled": "pool.csv"}
        >>> without_unread({"data": data, "method": {"name": "plain"}})["data"]
        {'source': 'demo'}
    """
    data = tree.get("data")
    if not isinstance(data, Mapping) or data.get("unlabeled") is None:
        return dict(tree)
    try:
        wanted = wants_unlabeled(_method_of(checked_method(tree.get("method", {}))))
    # RunConfig.of raises on wrong settings.
    except (SettingError, CompositionError):
        wanted = True
    if wanted:
        return dict(tree)
    return {**tree, "data": {name: data[name] for name in data if name not in UNLABELED}}


def checked_method(table: Any) -> Tree:
    """Check the table ``method``, its ``name`` and settings, and fill in defaults."""
    if not isinstance(table, Mapping):
        raise SettingError(
            f"`method` must be a table with a `name`, got {table!r}. Write `method.name=NAME`."
        )
    name = table.get("name")
    if not isinstance(name, str):
        raise SettingError(
            f"`method.name` must be a method's name, got {name!r}: pass --method NAME "
            "(`temper list methods` shows them)."
        )
    preset = table.get("preset", "")
    if not isinstance(preset, str):
        raise SettingError(f"`method.preset` must be a name, got {preset!r}.")
    config = methods.configure(name, _without_name(table), prefix="method.")
    # "r_drop+at" and "r_drop + at" are one method, and so one key.
    return {"name": methods.name_of(config), **config.settings()}


def _method_of(table: Tree) -> Method:
    return methods.configure(str(table["name"]), _without_name(table))


def _without_name(table: Mapping[str, Any]) -> Tree:
    return {key: value for key, value in table.items() if key != "name"}


def is_scratch(model: object) -> bool:
    """Return whether a model's name is that of a network that is trained from scratch.

    Example:
        >>> is_scratch("text_cnn"), is_scratch("minilm")
        (True, False)
    """
    return isinstance(model, str) and model in ARCHITECTURES


def completed(tree: Mapping[str, Any]) -> Tree:
    """Return nested settings with their model's defaults; `RunConfig.of` raises on wrong ones.

    A pre-trained model gets the learning rate of its short name. For a network from scratch, the
    training loop has the network's defaults, methods have theirs (selective updates cover all
    parameters, UEGR drops more), and ``architecture.dropout`` is 0 under ``plain`` and 0.5 under
    other methods (UEGR, Table IV), each unless set otherwise.
    """
    model, train, result = tree.get("model"), tree.get("train", {}), dict(tree)
    defaults: Mapping[str, Any] = {}
    if is_scratch(model):
        defaults = ARCHITECTURES[str(model)].TRAIN
    elif isinstance(model, str) and model in MODELS:
        defaults = {"learning_rate": float(MODELS[model]["learning_rate"])}
    if isinstance(train, Mapping):
        result["train"] = {**defaults, **train}
    if not is_scratch(model):
        return result
    method, architecture = tree.get("method", {}), tree.get("architecture", {})
    if isinstance(method, Mapping) and isinstance(method.get("name"), str):
        result["method"] = _suited(method)
    if isinstance(architecture, Mapping):
        plain = isinstance(method, Mapping) and method.get("name") == "plain"
        rate = 0.0 if plain else DROPOUT
        given = {name: value for name, value in architecture.items() if value is not None}
        result["architecture"] = {"dropout": rate, **given}
    return result


def settings_class(model: object) -> type[ArchitectureSettings]:
    """Return the class of a network's settings."""
    if not is_scratch(model):
        raise SettingError(
            f"`architecture` describes a network that is trained from scratch "
            f"({', '.join(ARCHITECTURES)}), and the model {model!r} is pre-trained. "
            "Leave it out."
        )
    return ARCHITECTURES[str(model)]


def _suited(method: Mapping[str, Any]) -> Tree:
    """Fill in the defaults that each method has for a network from scratch."""
    given = _without_name(method)
    try:
        config = methods.configure(method["name"], given)
    except (SettingError, CompositionError):
        return dict(method)
    tables = given if isinstance(config, Composed) else {config.name: given}
    suited: Tree = {}
    for member in config.composed():
        table = tables.get(member.name, {})
        suited[member.name] = merged(member.from_scratch(table), table, config=type(member))
    return {**method, **(suited if isinstance(config, Composed) else suited[config.name])}


def wants_unlabeled(method: Method) -> bool:
    """Return whether a method needs unlabeled rows to train on."""
    # Switched off, a method reads labels like plain fine-tuning.
    return any(
        member.NEEDS_UNLABELED and not member.plan(Step()).needs_labels
        for member in method.composed()
    )


def check_unlabeled(method: Method, *, given: bool) -> None:
    """Raise if a method needs unlabeled rows and gets none, or gets some and does not use them."""
    wanted = wants_unlabeled(method)
    if wanted and not given:
        raise SettingError(
            f"The method {method.name!r} also trains on unlabeled text, and there is none. "
            "Pass --set data.unlabeled=PATH (for RobustTrainer: unlabeled_dataset=ROWS)."
        )
    if given and not wanted:
        raise SettingError(
            f"There is unlabeled text, but the method {method.name!r} does not train on it. "
            "Leave `data.unlabeled` out (for RobustTrainer: unlabeled_dataset), or use a method "
            "that does, such as jachess_unlabeled."
        )


def check_kept(method: Method, best: str) -> None:
    """Raise if a method replaces the final weights although ``best`` keeps the best epoch's."""
    averages = [rule for rule in rules_of(method.rule) if isinstance(rule, WeightAverageRule)]
    if any(isinstance(rule, OnTrainEnd) for rule in averages):
        raise SettingError(
            f"{best} chooses the epoch whose weights are kept, but the method {method.name!r} "
            "replaces the weights at the end of training by its own average. Leave one of "
            "them out."
        )


def check_sharded(method: Method) -> None:
    """Raise if a method's update rule needs whole weights and the model is sharded."""
    whole = [rule.name for rule in rules_of(method.rule) if not rule.supports_fsdp]
    if whole:
        raise SettingError(
            f"The update rule {whole[0]!r} of the method {method.name!r} does not support weights "
            "sharded by FSDP2. Use distributed data parallel (without fsdp), or adapt the rule to "
            "sharded weights and set its `supports_fsdp`."
        )
