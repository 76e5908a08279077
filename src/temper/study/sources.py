"""Where the sets to judge models on come from: options, or a suite and a folder of data."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.data.suites import KINDS, FoundSuite, find_sets, read_suite
from temper.errors import SettingError

if TYPE_CHECKING:
    from temper.evaluation.settings import EvaluationSettings
    from temper.training.assignments import Tree

ROOT = "TEMPER_DATA"
"""Environment variable of the folder that suites look for their sets in."""

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


@dataclass(frozen=True)
class SetSources:
    """Where the sets to judge on come from.

    Args:
        shift: Name to source of labelled sets under distribution shift.
        adversarial: Name to source of labelled sets that were made to mislead.
        anomaly: Name to source of sets that do not belong to the task.
        suite: A suite and what of it is there.
        fit: Source of ordinary rows that detectors learn from; None takes the run's training rows.
        held_out: Source of labelled rows that a temperature is fitted on.
    """

    shift: dict[str, str] = field(default_factory=dict)
    adversarial: dict[str, str] = field(default_factory=dict)
    anomaly: dict[str, str] = field(default_factory=dict)
    suite: FoundSuite | None = None
    fit: str | None = None
    held_out: str | None = None

    def __post_init__(self) -> None:
        names = [
            name
            for kind in KINDS
            for name in (*getattr(self, kind), *(self.suite.suite.sets(kind) if self.suite else ()))
        ]
        twice = sorted({name for name in names if names.count(name) > 1})
        if twice:
            raise SettingError(
                f"The set name {twice[0]!r} is given twice, counting those of the suite. Give each "
                "set a name of its own."
            )

    @classmethod
    def of(
        cls,
        *,
        shift: Iterable[str] | None = None,
        adversarial: Iterable[str] | None = None,
        anomaly: Iterable[str] | None = None,
        suite: str | None = None,
        data_root: Path | str | None = None,
        fit: str | None = None,
        held_out: str | None = None,
    ) -> SetSources:
        """Read the options of ``evaluate`` and ``compare``.

        Args:
            shift: Texts ``NAME=PATH``.
            adversarial: The same of adversarial sets.
            anomaly: The same of anomalies.
            suite: Name of a suite, or its file.
            data_root: Where the suite's sets lie; None takes what ``TEMPER_DATA`` says.
            fit: Source of ordinary rows.
            held_out: Source of held-out rows.

        Raises:
            SettingError: Where a text has another form, a name comes twice or the suite is wrong.
        """
        return cls(
            named_sources(shift or [], "--shift"),
            named_sources(adversarial or [], "--adversarial"),
            named_sources(anomaly or [], "--anomaly"),
            suite=_suite(suite, data_root),
            fit=fit,
            held_out=held_out,
        )

    def named(self, kind: str) -> dict[str, str]:
        """Return name to source of a kind, those of the suite last.

        Args:
            kind: One of `temper.data.suites.KINDS`.
        """
        own: dict[str, str] = getattr(self, kind)
        found = {} if self.suite is None else self.suite.sets(kind)
        return {**own, **{name: each.source for name, each in found.items()}}

    def given(self) -> list[str]:
        """Return the sources that options name, those of a suite left out."""
        kinds = [*self.shift.values(), *self.adversarial.values(), *self.anomaly.values()]
        return [each for each in (*kinds, self.fit, self.held_out) if each is not None]

    @property
    def missing(self) -> dict[str, str]:
        """Why sets of the suite are not measured, by name."""
        return {} if self.suite is None else self.suite.missing

    def completed(self, tree: Mapping[str, Any]) -> Tree:
        """Return nested settings with what the suite says and nobody else does.

        Args:
            tree: Settings with a table ``evaluate``, not checked yet.
        """
        table = tree.get("evaluate", {})
        if self.suite is None or self.suite.suite.merge is None or not isinstance(table, Mapping):
            return dict(tree)
        return {**tree, "evaluate": {"merge": self.suite.suite.merge, **table}}

    def detects(self, settings: EvaluationSettings) -> bool:
        """Say whether detectors of anomalies, which learn from ordinary rows, are measured.

        Args:
            settings: What is measured.
        """
        anomalies = self.anomaly or (self.suite is not None and self.suite.suite.anomaly)
        return bool(anomalies) and "anomaly" in settings.perspectives

    def faults(self, settings: EvaluationSettings) -> list[str]:
        """Say which rows are given that nothing that is measured reads.

        Args:
            settings: What is measured.
        """
        found = []
        if self.fit is not None and not self.detects(settings):
            found.append(
                "--fit names rows that detectors of anomalies learn from, but no anomalies are "
                "measured. Leave it out, or give --anomaly NAME=PATH."
            )
        if self.held_out is not None and "calibration" not in settings.perspectives:
            found.append(
                "--held-out names rows that a temperature is fitted on, but `calibration` is not "
                "measured. Leave it out, or add that perspective."
            )
        return found


def named_sources(texts: Iterable[str], option: str) -> dict[str, str]:
    """Read ``NAME=PATH`` of ``--shift``, ``--adversarial`` and ``--anomaly``.

    Args:
        texts: What came.
        option: The option's name, for messages.

    Returns:
        Name to path or other data source.

    Raises:
        SettingError: Where a text has another form or a name comes twice.

    Example:
        >>> named_sources(["yelp=data/yelp.csv"], "--shift")
        {'yelp': 'data/yelp.csv'}
    """
    sources: dict[str, str] = {}
    found = []
    for text in texts:
        name, equals, source = text.partition("=")
        name, source = name.strip(), source.strip()
        if not equals or not _NAME.fullmatch(name) or not source:
            found.append(
                f"{option} is written NAME=PATH, for example yelp=data/yelp.csv, got {text!r}."
            )
        elif name in sources:
            found.append(f"{option} names {name!r} twice. Give each set a name of its own.")
        sources[name] = source
    if found:
        raise SettingError("\n".join(found))
    return sources


def _suite(name: str | None, root: Path | str | None) -> FoundSuite | None:
    """Read a suite and look what of it is there."""
    if name is None:
        if root is not None:
            raise SettingError(
                "--data-root says where a suite's sets lie, but there is no suite. Give --suite "
                "NAME, or leave it out."
            )
        return None
    suite = read_suite(name)
    root = os.environ.get(ROOT) if root is None else root
    if not root:
        raise SettingError(
            f"Suite {suite.name!r} looks for its sets in a folder of data, and none is named. Give "
            f"--data-root DIR, or set the environment variable {ROOT}."
        )
    return find_sets(suite, root)
