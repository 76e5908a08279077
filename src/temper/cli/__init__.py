"""The ``temper`` command: parse, call, print; nothing else.

Only this package prints: results to stdout, progress and warnings to stderr.
"""

from __future__ import annotations

from temper.cli.app import main, process

__all__ = ["main", "process"]
