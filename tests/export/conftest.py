"""Fixtures: a tiny model and tiny data."""

from __future__ import annotations

from tests.cli.tiny_project import tiny_data, tiny_model

__all__ = ["tiny_data", "tiny_model"]
