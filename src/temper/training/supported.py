"""What RobustTrainer makes of every argument and hook of Transformers' Trainer.

Each is in one of three lists: it works, it is refused before training, or it has no effect by
nature. The lists are ``assets/supported.toml``.
"""

from __future__ import annotations

import inspect
import tomllib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.resources import files
from typing import Any, Literal

from temper.errors import SettingError

Verdict = Literal["works", "refused", "no effect"]


@dataclass(frozen=True)
class Support:
    """What becomes of one argument or hook.

    Args:
        verdict: The list that it is in.
        note: What to do instead of what is refused, or why there is no effect.
        refuses: Which of its values are refused, of one that works a few; None for none.
    """

    verdict: Verdict
    note: str
    refuses: Callable[[Any], bool] | None


def _inside_backward(optim: Any) -> bool:
    name = str(getattr(optim, "value", optim))
    return "lomo" in name or "layerwise" in name


def _reentrant(settings: Any) -> bool:
    return isinstance(settings, Mapping) and bool(settings.get("use_reentrant"))


def _other_labels(names: Any) -> bool:
    return names is not None and list(names) != ["labels"]


_REFUSES: dict[str, Callable[[Any], bool] | None] = {
    "works": None,
    "no effect": None,
    # Any value that is not empty.
    "refused": bool,
    "inside_backward": _inside_backward,
    "other_labels": _other_labels,
    "reentrant": _reentrant,
}


def _supported(kind: str) -> dict[str, Support]:
    found: dict[str, Support] = {}
    for entry in _CONTENT[kind]:
        verdict, note = entry["verdict"], entry.get("note", "")
        refuses = _REFUSES[entry.get("refuses", verdict)]
        found |= dict.fromkeys(entry["names"], Support(verdict, note, refuses))
    return found


_CONTENT = tomllib.loads(
    (files("temper.training") / "assets" / "supported.toml").read_text(encoding="utf-8")
)
ARGUMENTS = _supported("arguments")
"""Fields of ``TrainingArguments``."""
PARAMETERS = _supported("parameters")
"""Parameters of ``Trainer.__init__``."""
HOOKS = _supported("hooks")
"""Methods and attributes of ``Trainer`` that a subclass may override."""


def check_arguments(args: Any) -> None:
    """Refuse arguments that training could not keep, all at once.

    Args:
        args: ``TrainingArguments``.

    Raises:
        SettingError: If there are some; it says of each what to do instead.
    """
    faults = [
        f"`{name}` is {getattr(args, name)!r}. {support.note}"
        for name, support in ARGUMENTS.items()
        if support.refuses is not None and support.refuses(getattr(args, name, None))
    ]
    if faults:
        raise SettingError("\n".join(faults))


def check_hooks(trainer: Any, own: type) -> None:
    """Refuse hooks that were overridden and that training would not call.

    Args:
        trainer: A `RobustTrainer`, or an instance of a subclass.
        own: The class `RobustTrainer`.

    Raises:
        SettingError: If there are some; it says of each what to do instead.
    """
    find = inspect.getattr_static
    faults = [
        f"{type(trainer).__name__}.{name} is overridden, and training would not call it. "
        f"{support.note}"
        for name, support in HOOKS.items()
        if support.verdict == "refused" and find(trainer, name, None) is not find(own, name, None)
    ]
    if faults:
        raise SettingError("\n".join(faults))


KINDS: dict[str, Mapping[str, Support]] = {
    "Arguments of `Trainer`": PARAMETERS,
    "Fields of `TrainingArguments`": ARGUMENTS,
    "Methods and attributes of `Trainer` that a subclass may override": HOOKS,
}

INTRODUCTIONS: dict[Verdict, str] = {
    "works": "**Works**, as Transformers documents it:",
    "refused": "**Refused** before training:",
    "no effect": "**No effect**, by nature:",
}


def markdown() -> str:
    """Write the lists as they stand in docs/trainer.md."""
    parts: list[str] = []
    for title, kind in KINDS.items():
        parts.append(f"### {title}\n")
        for verdict, introduction in INTRODUCTIONS.items():
            named = {name: each for name, each in kind.items() if each.verdict == verdict}
            if not named:
                continue
            parts.append(f"{introduction}\n")
            if verdict == "works":
                parts.append(", ".join(f"`{name}`" for name in named) + ".\n")
                named = {name: each for name, each in named.items() if each.note}
            parts += [f"- `{name}`: {each.note}" for name, each in named.items()]
            if named:
                parts.append("")
    return "\n".join(parts).rstrip() + "\n"
