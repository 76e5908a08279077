"""The plan of a study: columns (methods with settings) times seeds, on the same data."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from temper import methods
from temper.data.settings import AUGMENTATION, DataSettings
from temper.errors import SettingError, unknown
from temper.evaluation.settings import EvaluationSettings, SetSources
from temper.methods import Method
from temper.methods.recipes import recipe_named
from temper.methods.registry import ALIASES
from temper.settings import Faults, Tree, override, parse_assignment, section
from temper.training.config import RunConfig, without_unread

KEYS = ("model", "data", "train", "architecture", "evaluate")
# A column may have the name of a composition: r_drop+at.
COLUMN = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.+-]*")
# Settings by which a column may differ in training rows and network.
VARIANT_SETTINGS = {*(("data", name) for name in AUGMENTATION), ("architecture", "dropout")}
OPENING, CLOSING = "[{", "]}"


@dataclass(frozen=True)
class Column:
    """A method with settings, compared in a study.

    Args:
        name: Name in the table; letters, digits, ``_``, ``.``, ``-`` and ``+``.
        method: A method of ``temper list methods``, or several with ``+`` between.
        settings: Settings that differ from the study's, nested: ``{"method": {...}, "train":
            {...}}``.
    """

    name: str
    method: str
    settings: Tree = field(default_factory=dict)

    @classmethod
    def of(cls, method: str | Method) -> Column:
        """Return the column of a method, with the method's name and settings.

        Example:
            >>> Column.of("r_drop + at").name
            'r_drop+at'
        """
        if not isinstance(method, str):
            named = cls.of(methods.name_of(method))
            return replace(named, settings={"method": method.settings()})
        method = ALIASES.get(method, method)
        return cls("".join(method.split()), method)

    @classmethod
    def parse(cls, text: str) -> Column:
        """Parse ``NAME=METHOD,key=value,...`` of ``--variant``.

        Raises:
            SettingError: If the text is invalid or sets something that all columns must share.

        Example:
            >>> Column.parse("plain_x3=plain,train.epochs=9").settings
            {'train': {'epochs': 9}}
        """
        name, equals, rest = text.partition("=")
        method, *pairs = split_outside_brackets(rest)
        name, method = name.strip(), method.strip()
        if not equals or not COLUMN.fullmatch(name) or not method:
            raise SettingError(
                "A variant is written NAME=METHOD,key=value,... "
                "(NAME of letters, digits, '_', '.', '-', '+'), "
                f"for example plain_x3=plain,train.epochs=9, got {text!r}."
            )
        return cls.changed(name, method, [parse_assignment(pair) for pair in pairs])

    @classmethod
    def changed(
        cls, name: str, method: str, assignments: Sequence[tuple[tuple[str, ...], Any]]
    ) -> Column:
        """Return the column of a method with changed settings.

        Raises:
            SettingError: If it sets something that all columns must share.
        """
        for path, _ in assignments:
            is_free = (
                path[0] in ("method", "train") and len(path) > 1 and path != ("method", "name")
            )
            if not is_free and path not in VARIANT_SETTINGS:
                raise SettingError(
                    f"Variant {name!r} sets `{'.'.join(path)}`, but a variant may set "
                    "`method.KEY`, `train.KEY`, `data.augment` and its settings "
                    f"({', '.join(f'`data.{name}`' for name in AUGMENTATION[1:])}) and "
                    "`architecture.dropout` only: model, data and seeds are shared."
                )
        return cls(name, method, override({}, assignments))


@dataclass(frozen=True)
class StudyConfig:
    """The checked plan of a study.

    Args:
        base: Nested settings that all runs share: ``model``, ``data``, ``train``, and
            ``architecture`` for a network trained from scratch.
        columns: The columns; the first is the reference of every difference.
        seeds: The seeds; runs of one seed share data order and head initialization.
        runs: The checked settings of every run, by column name and seed.
    """

    base: Tree
    columns: tuple[Column, ...]
    seeds: tuple[int, ...]
    evaluate: EvaluationSettings
    sets: SetSources
    runs: dict[tuple[str, int], RunConfig]

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        columns: Sequence[Column],
        seeds: Sequence[int],
        sets: SetSources | None = None,
    ) -> StudyConfig:
        """Check a study's settings before anything is trained."""
        sets = sets or SetSources()
        tree = sets.completed(tree)
        faults = Faults(_unknown_key(name) for name in tree if name not in KEYS)
        faults += _repeats("method", [column.name for column in columns])
        faults += _repeats("seed", list(seeds))
        faults += [
            f"The method name {column.name!r} must be made of letters, digits, '_', '.', '-' "
            "and '+'."
            for column in columns
            if not COLUMN.fullmatch(column.name)
        ]
        base: Tree = {name: tree[name] for name in KEYS if name in tree and name != "evaluate"}
        evaluate = EvaluationSettings()
        with faults.caught():
            evaluate = section(EvaluationSettings, "evaluate", tree.get("evaluate", {}))
            faults += sets.faults(evaluate)
        runs = {}
        for column in columns:
            for seed in seeds:
                with faults.caught():
                    runs[column.name, seed] = _run(base, column, seed)
        given = isinstance(base.get("data"), dict) and base["data"].get("unlabeled") is not None
        if not faults and given and all(run.data.unlabeled is None for run in runs.values()):
            names = ", ".join(repr(column.name) for column in columns)
            faults.append(
                f"There is text without labels, but no method trains on it ({names}). Leave "
                "`data.unlabeled` out, or add a method that does."
            )
        faults.refuse()
        return cls(base, tuple(columns), tuple(seeds), evaluate, sets, runs)

    @property
    def reference(self) -> str:
        """Name of the column that the others are compared with."""
        return self.columns[0].name

    @property
    def data(self) -> DataSettings:
        """Data settings that all runs share, with the unlabeled text if a run uses any."""
        tables = [run.data for run in self.runs.values()]
        return next((data for data in tables if data.unlabeled is not None), tables[0])

    @property
    def any_run(self) -> RunConfig:
        """Any run, for its common settings."""
        return next(iter(self.runs.values()))

    def with_column(self, column: Column) -> StudyConfig:
        runs = {(column.name, seed): _run(self.base, column, seed) for seed in self.seeds}
        return replace(self, columns=(*self.columns, column), runs=self.runs | runs)

    def order(self) -> list[tuple[str, int]]:
        """Return column and seed of the runs: all columns of one seed, then the next seed."""
        # A stopped study then has complete pairs, and a slower machine affects all columns.
        return [(column.name, seed) for seed in self.seeds for column in self.columns]


def check_workers(workers: int) -> None:
    if workers < 1:
        raise SettingError(f"--workers is the number of processes, at least 1, got {workers}.")


def columns_of(
    chosen: Iterable[str | Method],
    variants: Iterable[str] | Mapping[str, Mapping[str, Any]],
    *,
    recipes: Iterable[str] = (),
) -> list[Column]:
    """Parse ``--methods``, ``--recipes`` and ``--variant``; the columns are in this order.

    Args:
        chosen: Names of methods or compositions, or settings objects of methods.
        variants: Strings for `Column.parse`, or name -> settings, each with a ``method``.
        recipes: Names of recipes.
    """
    columns, faults = [Column.of(method) for method in chosen], Faults()
    for name in recipes:
        with faults.caught():
            recipe = recipe_named(name)
            column = Column(name, recipe.method, dict(recipe.settings))
            # `plain` is both a method and a recipe.
            columns += [column] if column not in columns else []
    for variant in variants:
        with faults.caught():
            if isinstance(variants, Mapping):
                columns.append(_variant(variant, variants[variant]))
            else:
                columns.append(Column.parse(variant))
    for column in columns:
        faults += methods.name_faults(column.method)
    faults.refuse()
    return columns


def _variant(name: str, settings: Mapping[str, Any]) -> Column:
    given = settings.get("method")
    method_settings = dict(given) if isinstance(given, Mapping) else {"name": given}
    method = method_settings.pop("name", None)
    tables = {**settings, "method": method_settings}
    if not isinstance(method, str) or not COLUMN.fullmatch(name):
        raise SettingError(
            f"Variant {name!r} must be a name of letters, digits, '_', '.', '-' and '+' with a "
            f"table that names its `method`, got {dict(settings)}."
        )
    assignments: list[tuple[tuple[str, ...], Any]] = []
    for table, values in tables.items():
        if not isinstance(values, Mapping):
            raise SettingError(f"`{table}` of variant {name!r} must be a table, got {values!r}.")
        assignments += [((table, key), value) for key, value in values.items()]
    return Column.changed(name, method, assignments)


def split_outside_brackets(text: str) -> list[str]:
    """Split at commas outside of brackets and quotes.

    Example:
        >>> split_outside_brackets("plain,train.class_weights=[1.0, 2.0],train.epochs=9")
        ['plain', 'train.class_weights=[1.0, 2.0]', 'train.epochs=9']
    """
    parts, current, depth, quote = [], "", 0, ""
    for character in text:
        if quote:
            quote = "" if character == quote else quote
        elif character in "\"'":
            quote = character
        elif character in OPENING:
            depth += 1
        elif character in CLOSING:
            depth -= 1
        if character == "," and depth <= 0 and not quote:
            parts.append(current)
            current = ""
        else:
            current += character
    return [*parts, current]


def _run(base: Tree, column: Column, seed: int) -> RunConfig:
    assignments: list[tuple[tuple[str, ...], Any]] = [
        (("method", "name"), column.method),
        (("seed",), seed),
    ]
    for table, settings in column.settings.items():
        assignments += [((table, name), value) for name, value in settings.items()]
    return RunConfig.of(without_unread(override(base, assignments)))


def _unknown_key(name: str) -> str:
    if name == "method":
        return (
            "`method.KEY` cannot be set for all methods of a comparison: write "
            "--variant NAME=METHOD,method.KEY=VALUE for the method that it belongs to."
        )
    if name == "seed":
        return "`seed` cannot be set in a comparison: pass --seeds 0,1,2."
    return unknown("setting", name, KEYS)


def _repeats(kind: str, names: Sequence[object]) -> list[str]:
    if not names:
        return [f"A comparison needs at least one {kind}."]
    return [
        f"The {kind} {name!r} is given twice. Pass each {kind} once."
        for name in dict.fromkeys(names)
        if names.count(name) > 1
    ]
