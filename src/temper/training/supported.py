"""Which arguments and hooks of Transformers' Trainer RobustTrainer supports.

Each is in one of three lists: it works, it raises an error before training, or it has no effect.
The lists are ``assets/supported.toml``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from temper.files import asset
from temper.settings import Faults

Verdict = Literal["works", "refused", "no effect"]


@dataclass(frozen=True)
class Support:
    """Whether and how one argument or hook is supported.

    Args:
        verdict: The list that it is in.
        note: Advice on what to use instead, or why it has no effect.
        refuses: The values that raise an error, if it works with others.
    """

    verdict: Verdict
    note: str
    refuses: str


def _refused(refuses: str, value: Any) -> bool:
    if refuses == "inside_backward":
        name = str(getattr(value, "value", value))
        return "lomo" in name or "layerwise" in name
    if refuses == "reentrant":
        return isinstance(value, Mapping) and bool(value.get("use_reentrant"))
    if refuses == "other_labels":
        return value is not None and list(value) != ["labels"]
    # Any value that is not empty.
    return refuses == "refused" and bool(value)


def _supported(kind: str) -> dict[str, Support]:
    result: dict[str, Support] = {}
    for entry in _CONTENT[kind]:
        verdict, note = entry["verdict"], entry.get("note", "")
        support = Support(verdict, note, entry.get("refuses", verdict))
        result |= dict.fromkeys(entry["names"], support)
    return result


_CONTENT = tomllib.loads(asset("temper.training", "supported.toml"))
ARGUMENTS = _supported("arguments")
"""Field of ``TrainingArguments`` -> its support."""
PARAMETERS = _supported("parameters")
"""Parameter of ``Trainer.__init__`` -> its support."""
HOOKS = _supported("hooks")
"""Method or attribute of ``Trainer`` that a subclass may override -> its support."""


def check_arguments(args: Any) -> None:
    """Raise a `SettingError` on unsupported ``TrainingArguments``, with advice for each."""
    Faults(
        f"`{name}` is {getattr(args, name)!r}. {support.note}"
        for name, support in ARGUMENTS.items()
        if _refused(support.refuses, getattr(args, name, None))
    ).refuse()


def check_hooks(trainer: Any, own: type) -> None:
    """Raise a `SettingError` if a subclass overrides hooks that training would not call."""
    find = inspect.getattr_static
    Faults(
        f"{type(trainer).__name__}.{name} is overridden, and training would not call it. "
        f"{support.note}"
        for name, support in HOOKS.items()
        if support.verdict == "refused" and find(trainer, name, None) is not find(own, name, None)
    ).refuse()


KINDS: dict[str, Mapping[str, Support]] = {
    "Arguments of `Trainer`": PARAMETERS,
    "Fields of `TrainingArguments`": ARGUMENTS,
    "Methods and attributes of `Trainer` that a subclass may override": HOOKS,
}
