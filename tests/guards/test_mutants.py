"""The reasons why mutants survive, and what the tool that makes them reads of its names."""

from __future__ import annotations

import doctest
import inspect
import json
import pkgutil
import tomllib
from pathlib import Path

import pytest

from dev.mutation import mutant_tests, mutants


def test_every_reason_is_of_code_that_stands() -> None:
    reasons = tomllib.loads(mutants.REASONS.read_text(encoding="utf-8"))
    for name, changes in reasons.items():
        source = " ".join(inspect.getsource(pkgutil.resolve_name(name)).split())
        for change, reason in changes.items():
            # A signature has an arrow of its own, up to which it stands there, too.
            before = " ".join(change.split(" -> ")[0].split())
            assert before in source, f"{name} holds no {before!r} any more."
            assert reason


def test_names_and_changes_of_mutants_are_read() -> None:
    found = doctest.testmod(mutants)
    assert found.attempted >= 6
    assert not found.failed


def test_a_draw_is_that_of_its_seed() -> None:
    names = [f"a__mutmut_{number}" for number in range(40)]
    first = mutants.drawn(names, 5, "0 functional")
    assert first == mutants.drawn(list(reversed(names)), 5, "0 functional")
    assert first != mutants.drawn(names, 5, "1 functional")
    assert len(set(first)) == 5
    assert mutants.drawn(names, None, "0") == sorted(names)


class _Item:
    def __init__(self, nodeid: str) -> None:
        self.nodeid = nodeid


def test_a_mutant_s_tests_come_fastest_first_up_to_the_budget(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seconds = {"slow": mutant_tests.BUDGET, "fast": 0.1, "middle": 2.0}
    monkeypatch.chdir(tmp_path)
    Path("mutmut-stats.json").write_text(json.dumps({"duration_by_test": seconds}))
    for mutant, kept in {
        "temper.x__mutmut_1": ["fast", "middle"],
        "": ["fast"],
        "stats": ["slow", "fast", "middle"],
    }.items():
        monkeypatch.setenv("MUTANT_UNDER_TEST", mutant)
        items = [_Item(name) for name in seconds]
        mutant_tests.pytest_collection_modifyitems(items)
        assert [item.nodeid for item in items] == kept
