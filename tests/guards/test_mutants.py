"""The reasons in survivors.toml, and the parsing of mutmut's names."""

from __future__ import annotations

import doctest
import inspect
import pkgutil
import tomllib

from dev.mutation import mutants


def test_every_explained_mutant_refers_to_existing_code() -> None:
    reasons = tomllib.loads(mutants.REASONS.read_text(encoding="utf-8"))
    for name, changes in reasons.items():
        source = " ".join(inspect.getsource(pkgutil.resolve_name(name)).split())
        for change, reason in changes.items():
            # A signature has an arrow of its own, up to which it stands there, too.
            before = " ".join(change.split(" -> ")[0].split())
            assert before in source, f"{name} holds no {before!r} any more."
            assert reason


def test_names_and_changes_of_mutants_are_read() -> None:
    result = doctest.testmod(mutants)
    assert result.attempted >= 6
    assert not result.failed
