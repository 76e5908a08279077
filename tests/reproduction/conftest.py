"""Fixtures: a tiny model."""

from __future__ import annotations

from tests.cli.tiny_project import tiny_model

__all__ = ["tiny_model"]
