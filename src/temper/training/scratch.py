"""Settings of a run whose network is trained from scratch: what suits it where nobody says more.

A network without pre-trained weights learns at other rates, has a table of settings of its own
(``architecture``), and has no use for methods that hold on to pre-trained weights.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from temper import methods
from temper.errors import CompositionError, SettingError
from temper.methods.composition import Composed
from temper.methods.method import MethodConfig
from temper.methods.variants import merged
from temper.models.classical import ARCHITECTURES
from temper.models.classical.build import DROPOUT
from temper.models.classical.registry import ArchitectureSettings
from temper.models.classical.vectors import content_hash

Tree = dict[str, Any]


def is_scratch(model: object) -> bool:
    """Tell whether a model's name stands for a network that is trained from scratch.

    Args:
        model: A name as `RunConfig` takes it, not checked yet.

    Example:
        >>> is_scratch("text_cnn"), is_scratch("minilm")
        (True, False)
    """
    return isinstance(model, str) and model in ARCHITECTURES


def completed(tree: Mapping[str, Any]) -> Tree:
    """Return nested settings with what suits a network that is trained from scratch.

    Args:
        tree: As `RunConfig.of` takes it; what is wrong is left for it to refuse.

    Returns:
        The same settings for other models. Else the training loop's have the network's defaults,
        methods have theirs (selective updates cover all parameters, UEGR drops more), and
        ``architecture.dropout`` is 0 under ``vanilla`` and .5 under other methods (UEGR, Table IV),
        each where nobody says otherwise.
    """
    if not is_scratch(tree.get("model")):
        return dict(tree)
    settings = ARCHITECTURES[tree["model"]].settings
    train, method = tree.get("train", {}), tree.get("method", {})
    architecture = tree.get("architecture", {})
    result = dict(tree)
    if isinstance(train, Mapping):
        result["train"] = {**settings.TRAIN, **train}
    if isinstance(method, Mapping) and isinstance(method.get("name"), str):
        result["method"] = _suited(method)
    if isinstance(architecture, Mapping):
        plain = isinstance(method, Mapping) and method.get("name") == "vanilla"
        rate = 0.0 if plain else DROPOUT
        given = {name: value for name, value in architecture.items() if value is not None}
        result["architecture"] = {"dropout": rate, **given}
    return result


def settings_class(model: object) -> type[ArchitectureSettings]:
    """Return the class of a network's settings.

    Args:
        model: The network's name.

    Raises:
        SettingError: If the model is not trained from scratch, so that it has no such settings.
    """
    if not is_scratch(model):
        raise SettingError(
            f"`architecture` describes a network that is trained from scratch "
            f"({', '.join(ARCHITECTURES)}), and the model {model!r} brings its own. Leave it out."
        )
    return ARCHITECTURES[str(model)].settings


def check_method(model: str, config: MethodConfig) -> None:
    """Refuse a method that holds on to pre-trained weights, where there are none.

    Args:
        model: The network's name.
        config: The method's settings.

    Raises:
        SettingError: If it, or one of a composition, does.
    """
    shares = config.shares if isinstance(config, Composed) else ()
    parts = [(share.name, share.config) for share in shares] or [(methods.name_of(config), config)]
    found = [
        f"The method {name!r} {each.PRETRAINED}, and {model!r} is trained from scratch, so it has "
        "none. Use another method, or a pre-trained model."
        for name, each in parts
        if each.PRETRAINED
    ]
    if found:
        raise SettingError("\n".join(found))


def identity(architecture: Mapping[str, Any]) -> Tree:
    """Return what decides a network: its settings, with the content of its vectors for their path.

    Args:
        architecture: The checked table.

    Raises:
        DataError: The file of word vectors cannot be read.
    """
    vectors = architecture.get("vectors")
    if vectors is None:
        return dict(architecture)
    return {**architecture, "vectors": content_hash(Path(vectors).expanduser())}


def _suited(method: Mapping[str, Any]) -> Tree:
    """Let each method have what suits a network from scratch, where nobody says otherwise."""
    given = {name: value for name, value in method.items() if name != "name"}
    try:
        config = methods.configure(method["name"], given)
    except (SettingError, CompositionError):
        return dict(method)
    if not isinstance(config, Composed):
        suits = type(config).from_scratch(given)
        return {**merged(suits, given, config=type(config)), "name": method["name"]}
    tables = {}
    for share in config.shares:
        table, settings = given.get(share.name, {}), type(share.config)
        suits = settings.from_scratch(table)
        if share.half != "both":
            # A half of a method refuses settings that only its other half reads.
            suits = {name: suits[name] for name in suits if settings.reads(name, share.half)}
        tables[share.name] = merged(suits, table, config=settings)
    return {**method, **tables}
