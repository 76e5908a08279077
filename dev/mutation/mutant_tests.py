"""A pytest plugin of `dev.mutation.mutants` that limits the time of a mutant's tests.

mutmut runs the fastest tests first and stops at the first failure. This plugin switches off
hypothesis' shrinking of failures, and skips the slow tests after the faster ones have used
`BUDGET`. A mutant that only a skipped test would detect counts as a survivor.
"""

from __future__ import annotations

import itertools
import json
import os
from pathlib import Path

import hypothesis
import pytest

BUDGET = 30.0
"""Seconds for the tests of one mutant, by their times on the unchanged code."""


def pytest_configure() -> None:
    """Switch off the shrinking of failing examples."""
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
        # The unchanged code passed all tests when their times were measured.
        del items[1:]
    spent = itertools.accumulate(stats["duration_by_test"].get(item.nodeid, 0.0) for item in items)
    items[:] = [item for item, until in zip(items, spent, strict=True) if until <= BUDGET]
