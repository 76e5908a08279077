"""The ``temper`` command: only parse, call and print.

Only this package prints: results to stdout, progress and warnings to stderr.
"""

from __future__ import annotations

from temper.cli.app import main, process

__all__ = ["main", "process"]
