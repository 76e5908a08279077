"""The ``temper`` command: parse, call, print; nothing else.

Only this package prints. What a program reads goes to stdout, what a person watches to stderr.
"""

from __future__ import annotations

from temper.cli.app import main, process

__all__ = ["main", "process"]
