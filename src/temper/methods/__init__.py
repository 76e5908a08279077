"""Methods, one file each: the only place that joins a forward and a backward stage."""

from temper.methods.method import Method, MethodConfig
from temper.methods.registry import Entry, build, configure, entry, names, register

__all__ = [
    "Entry",
    "Method",
    "MethodConfig",
    "build",
    "configure",
    "entry",
    "names",
    "register",
]
