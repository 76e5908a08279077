"""``python -m temper``: the command line, if its script is not on the path."""

from __future__ import annotations

from temper.cli import process

if __name__ == "__main__":
    process()
