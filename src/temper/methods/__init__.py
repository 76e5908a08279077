"""Methods, one file each: the only place that joins a forward and a backward stage."""

from temper.methods.composition import Composed, compose, name_faults
from temper.methods.method import Method, MethodConfig
from temper.methods.registry import (
    DEFAULT,
    Entry,
    build,
    configure,
    entry,
    name_of,
    names,
    register,
)

__all__ = [
    "DEFAULT",
    "Composed",
    "Entry",
    "Method",
    "MethodConfig",
    "build",
    "compose",
    "configure",
    "entry",
    "name_faults",
    "name_of",
    "names",
    "register",
]


def __getattr__(name: str) -> type[MethodConfig]:
    """Return a method's settings class: ``from temper.methods import FreeLB``."""
    for registered in names():
        config = entry(registered).config
        if config.__name__ == name:
            return config
    raise AttributeError(f"module 'temper.methods' has no attribute {name!r}")
