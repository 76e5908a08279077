"""Methods, one file each: settings, losses and update rule.

Names are imported on first use, so that `--help` does not import torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from temper.importing import on_first_use

if TYPE_CHECKING:
    from temper.methods.composition import Composed as Composed
    from temper.methods.composition import build as build
    from temper.methods.composition import compose as compose
    from temper.methods.composition import configure as configure
    from temper.methods.method import Method as Method
    from temper.methods.registry import DEFAULT as DEFAULT
    from temper.methods.registry import Entry as Entry
    from temper.methods.registry import entry as entry
    from temper.methods.registry import name_faults as name_faults
    from temper.methods.registry import name_of as name_of
    from temper.methods.registry import names as names
    from temper.methods.registry import register as register

_NAMES = {
    "composition": ("Composed", "build", "compose", "configure"),
    "method": ("Method",),
    "registry": ("DEFAULT", "Entry", "entry", "name_faults", "name_of", "names", "register"),
}
_PUBLIC = {name: module for module, names in _NAMES.items() for name in names}

_public = on_first_use(__name__, _PUBLIC)


def __getattr__(name: str) -> Any:
    """Import and return a public name or the settings class of a method, such as ``FreeLB``."""
    if name not in _PUBLIC and not name.startswith("_"):
        for registered in _public("names")():
            config = _public("entry")(registered).config
            if config.__name__ == name:
                return config
    return _public(name)
