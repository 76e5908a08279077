"""A pytest plugin of `dev.mutation.mutants` that makes the tests of a mutant cheap.

mutmut runs the fastest tests first and stops at the first that fails. Here a failure is not made
smaller by hypothesis, and slow tests are left out once the faster ones took `BUDGET`. A mutant that
only they would notice counts as one that survives.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import hypothesis
import pytest

BUDGET = 30.0
"""Seconds that the tests of one mutant may take, as they were measured on the unchanged code."""


def pytest_configure() -> None:
    """Let a failing example stand as it is drawn."""
    phases = (hypothesis.Phase.explicit, hypothesis.Phase.generate)
    hypothesis.settings.register_profile("mutants", hypothesis.settings.default, phases=phases)
    hypothesis.settings.load_profile("mutants")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Keep the fastest tests of a mutant, up to `BUDGET`."""
    mutant = os.environ.get("MUTANT_UNDER_TEST", "")
    if mutant in ("stats", "list_all_tests"):
        return
    stats = json.loads(Path("mutmut-stats.json").read_text(encoding="utf-8"))
    items.sort(key=lambda item: stats["duration_by_test"].get(item.nodeid, 0.0))
    if not mutant:
        # The unchanged code has passed all tests when they were measured.
        del items[1:]
    spent = itertools.accumulate(stats["duration_by_test"].get(item.nodeid, 0.0) for item in items)
    items[:] = [item for item, until in zip(items, spent, strict=True) if until <= BUDGET]
