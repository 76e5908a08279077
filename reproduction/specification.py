"""Tables and figures of the papers as studies: one TOML file each in ``tables``.

A file names the paper and its table, the grid of models, tasks and columns (methods), the scores
and the numbers that the paper prints, and three scales at which the grid is run. A model on a task
is a case, and a case is one study. ``like`` copies grid and scales of another file, so that tables
that read the same models train them once.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator, model_validator

from temper.errors import SettingError, unknown
from temper.settings import Tree, override, read_toml

Scale = Literal["smoke", "small", "full"]
SCALES: tuple[Scale, ...] = ("smoke", "small", "full")
AVERAGE = "average"
"""Name of a printed mean over tasks, or over models."""
METRIC, MEAN = "metric", "mean"
"""In ``score.select``: the task's own score for a name, the mean over sets for a set."""
PAPERS = {
    "uegr": "UEGR, arXiv 2503.16550",
    "roast": "RoAST, arXiv 2312.04032",
    "jachess": "JacHess, TACL 2025, arXiv 2404.00758",
    "temper": "Temper",
}
"""Paper of a table; Temper's tables have no printed numbers."""
_FOLDER = Path(__file__).parent / "tables"
_SUITES = Path(__file__).parent / "suites"
_NAMED = ("score", "model", "column", "task")
_GRID = ("column", "pairs", "model", "task", "scales", "kept", "grid_from", "unknown")


class Entry(BaseModel):
    """One entry of a file; unknown keys raise an error."""

    model_config = ConfigDict(frozen=True, extra="forbid")


class Printed(Entry):
    """A number as the paper prints it: ``printed.SCORE.MODEL.COLUMN.TASK = "81.20"`` in the file.

    Args:
        score, column: Their names.
        model: Name of a model, or ``average``: the mean over the models.
        task: Name of a task, or ``average``: the mean over the tasks.
        value: The digits as text, so that a trailing zero counts.
    """

    score: str
    model: str
    column: str
    task: str
    value: str

    @field_validator("value", mode="before")
    @classmethod
    def _digits(cls, value: object) -> object:
        if not isinstance(value, str) or not re.fullmatch(r"-?\d+(\.\d+)?", value):
            raise ValueError(f'must be the digits as printed, in quotes ("81.20"), got {value!r}')
        return value

    @property
    def place(self) -> tuple[str, ...]:
        """Score, model, column and task of the number."""
        return self.score, self.model, self.column, self.task


class ColumnEntry(Entry):
    """One method of the table.

    Args:
        name: Name in the table.
        method: A method of ``temper list methods``; default: the name.
        settings: ``method.KEY`` values.
        train: ``train.KEY`` values.
        removed: Why it is no longer run: its method was removed, its stored scores are still shown.
    """

    name: str
    removed: str = ""
    method: str | None = None
    settings: Tree = Field(default_factory=dict)
    train: Tree = Field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Tree]:
        """The settings by the table that they belong to."""
        return {"method": self.settings, "train": self.train}


class Pairs(Entry):
    """Columns made of every ordered pair of values of one setting, after the written ones.

    Args:
        method: The method.
        setting: Its setting, a list of two values; a nested setting by its dotted name.
        values: Possible values of both.
        settings: Further settings of each of them.
    """

    method: str
    setting: str
    values: tuple[float, ...]
    settings: Tree = Field(default_factory=dict)

    def columns(self) -> list[ColumnEntry]:
        """Return the columns, named after their two values."""
        return [
            ColumnEntry(
                name=self._name(first, second),
                method=self.method,
                settings=override(
                    self.settings, [(tuple(self.setting.split(".")), [first, second])]
                ),
            )
            for first, second in product(self.values, repeat=2)
        ]

    def within(self, low: float, high: float) -> frozenset[str]:
        """Return the names of the columns whose values both lie from ``low`` to ``high``."""
        inside = [value for value in self.values if low <= value <= high]
        return frozenset(self._name(*pair) for pair in product(inside, repeat=2))

    def _name(self, first: float, second: float) -> str:
        return f"{self.method}_{first:g}_{second:g}"


class Settings(Entry):
    """Settings of a model, of a task, or of a case at one scale.

    Args:
        data, train, evaluate: Their tables.
    """

    data: Tree = Field(default_factory=dict)
    train: Tree = Field(default_factory=dict)
    evaluate: Tree = Field(default_factory=dict)


class ModelEntry(Settings):
    """One model of the table.

    Args:
        name: Name used in the names of cases.
        label: Name in the paper.
        model: The model.
        columns: Names of the columns that the paper has for it; empty for all.
        tasks: Names of the tasks that it is run on; empty for all.
        architecture: Settings of a network from scratch.
        multi_task: Whether one network is trained on all tasks at once, as MT-DNN is.
    """

    name: str
    label: str
    model: str
    columns: tuple[str, ...] = ()
    tasks: tuple[str, ...] = ()
    architecture: Tree = Field(default_factory=dict)
    multi_task: bool = False


class TaskEntry(Settings):
    """One task of the table.

    Args:
        name: Name used in the names of cases.
        task: The task: its folder under the data root, or a task of ``temper list tasks``;
            default: the name.
        suite: Suite of additional evaluation sets: one of Temper's, or a file of the folder
            ``suites``.
        file: File of the task's folder with the rows; dev rows are held out of them. None reads
            the folder.
        shift: Further sets by name: files of the task's folder.
    """

    name: str
    task: str = ""
    suite: str | None = None
    file: str | None = None
    shift: dict[str, str] = Field(default_factory=dict)

    @field_validator("suite")
    @classmethod
    def _own_suite(cls, suite: str | None) -> str | None:
        own = suite is not None and suite.endswith(".toml")
        return str(_SUITES / str(suite)) if own else suite


class Case(Entry):
    """One model on one task, which is one study.

    Args:
        model: The model.
        task: The task.
    """

    model: ModelEntry
    task: TaskEntry

    @property
    def name(self) -> str:
        """Name of its study's folder."""
        return f"{self.model.name}-{self.task.name}"

    @property
    def source(self) -> str:
        """The task's name in ``temper list tasks``."""
        return self.task.task or self.task.name


class CaseAtScale(Settings):
    """Settings of one case at one scale.

    Args:
        seeds: Number of seeds; None uses the scale's.
    """

    seeds: Annotated[int, Field(ge=1)] | None = None


class ScaleEntry(Settings):
    """How the grid is run; its settings apply to every case.

    Args:
        seeds: Number of seeds.
        model: Model that replaces the model of every case; None uses the case's.
        source: Data that replace every task's data; None uses the task's.
        suites: Whether the evaluation suites of the tasks are used.
        cases: Names of the cases that are run; empty for all.
        columns: Names of the columns; empty for all. The first column of the file is always run.
        values: Values of ``pairs`` that are run; empty for all.
        pairs: Settings that replace those of ``pairs``.
        case: Additional settings of single cases, by name, because their costs differ.
        method: ``method.KEY`` values that replace those of a column at this scale, by the column's
            name.
        search: Settings that each case searches, by the column's name, with their possible values.
            Every combination is tried at seed 0 on rows held out of train.
    """

    seeds: Annotated[int, Field(ge=1)]
    model: str | None = None
    source: str | None = None
    suites: bool = True
    cases: tuple[str, ...] = ()
    columns: tuple[str, ...] = ()
    values: tuple[float, ...] = ()
    pairs: Tree | None = None
    case: dict[str, CaseAtScale] = Field(default_factory=dict)
    method: dict[str, Tree] = Field(default_factory=dict)
    search: dict[str, dict[str, tuple[float, ...]]] = Field(default_factory=dict)

    def candidates(self, column: ColumnEntry) -> list[ColumnEntry]:
        """Return the combinations that a column searches; empty if it searches nothing."""
        searched = self.search.get(column.name, {})
        return [
            column.model_copy(
                update={
                    "name": "-".join([column.name, *(f"{value:g}" for value in values)]),
                    "method": column.method or column.name,
                    "settings": override(
                        column.settings,
                        [
                            (tuple(setting.split(".")), value)
                            for setting, value in zip(searched, values, strict=True)
                        ],
                    ),
                }
            )
            for values in product(*searched.values())
            if searched
        ]


class Score(Entry):
    """One score that the table prints.

    Args:
        name: Key of the score in the file.
        label: Name of the score in the printed table.
        select: Required fields of the score's key (docs/formats.md, ``scores.json``). The name
            `METRIC` selects the task's metric, the set `MEAN` the mean over several sets. If
            several scores match, each is a line.
        times: Factor from our scores to the printed ones: 100 for percent.
        average: Whether a mean over a model's tasks is meaningful.
        over_conditions: Whether the paper has the mean over the conditions, such as layers;
            otherwise each condition is a line.
    """

    name: str
    label: str
    select: Tree
    times: float = 1.0
    average: bool = True
    over_conditions: bool = False


class Choice(Entry):
    """A column that each case chooses by one score and reports by another.

    Args:
        by: The score that decides, by its mean over the seeds.
        reported: The score that is reported of the chosen column.
        among: Columns to choose from.
        against: Baselines; the chosen column is compared with the best of them by the same
            score.
    """

    by: str
    reported: str
    among: Annotated[tuple[str, ...], Field(min_length=1)]
    against: Annotated[tuple[str, ...], Field(min_length=1)]


class RelativeTo(Entry):
    """The common baseline of relative improvements, as in UEGR's Table III.

    Args:
        model: The model whose reference is the baseline.
        score: The score that is a relative improvement.
        parts: The scores whose improvements are averaged; the perfect value is 1, or 0 if lower is
            better.
    """

    model: str
    score: str
    parts: Annotated[tuple[str, ...], Field(min_length=1)]


class Specification(Entry):
    """A table or figure of a paper as a study.

    Args:
        name: Name of the file.
        title: Content of the table.
        paper: Key of `PAPERS`.
        place: Table or figure of the paper.
        grid_from: Source of the grid, and how it differs from the paper.
        family: Name of the folder that tables of the same models share.
        like: File whose grid and scales are used.
        column: Methods; the first is the reference of every study.
        against: The baseline of the table's differences; default: the first method.
        relative_to: Baseline of the relative improvement; default: the reference of each model.
        pairs: Columns made of pairs of values.
        model, task: The two axes of the grid; a model is run on every task, or on those it names.
        score: The scores that are printed.
        frontier: The score of the figure of gains and costs; empty for no figure.
        choice: Settings that each case chooses for itself.
        scales: How the grid is run, by name.
        kept: Folder of the stored scores, relative to the clone; default:
            ``reproduction/results/FAMILY``.
        unknown: Settings missing in the available text of the paper; ``full`` has Temper's
            defaults.
        printed: The available numbers of the paper.
    """

    name: str
    title: str
    paper: Literal["uegr", "roast", "jachess", "temper"]
    place: str
    grid_from: str
    family: str
    like: str | None = None
    column: tuple[ColumnEntry, ...]
    against: str = ""
    relative_to: RelativeTo | None = None
    pairs: Pairs | None = None
    model: tuple[ModelEntry, ...]
    task: tuple[TaskEntry, ...]
    score: tuple[Score, ...]
    frontier: str = ""
    choice: Choice | None = None
    scales: dict[Scale, ScaleEntry]
    kept: str = ""
    unknown: tuple[str, ...] = ()
    printed: tuple[Printed, ...] = ()

    @cached_property
    def case(self) -> tuple[Case, ...]:
        """Every model on every task that it is run on."""
        return tuple(
            Case(model=model, task=task)
            for model in self.model
            for task in self.task
            if not model.tasks or task.name in model.tasks
        )

    @property
    def published(self) -> bool:
        """Whether it is a table or figure of a paper."""
        return self.paper != "temper"

    @property
    def reference(self) -> str:
        """The baseline of the differences."""
        return self.against or self.column[0].name

    @property
    def folder(self) -> str:
        """Folder of the stored scores, relative to the clone."""
        return self.kept or f"reproduction/results/{self.family}"

    @field_validator("printed", mode="before")
    @classmethod
    def _read_printed(cls, given: Any) -> Any:
        if not isinstance(given, Mapping):
            return given
        numbers = []
        for names, value in leaves(given):
            if len(names) != len(_NAMED):
                raise ValueError(
                    f"names {'.'.join(names)!r}, and a number is named by {', '.join(_NAMED)}"
                )
            numbers.append({**dict(zip(_NAMED, names, strict=True)), "value": value})
        return numbers

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        columns, scores = [each.name for each in self.columns()], [each.name for each in self.score]
        models, tasks = [each.name for each in self.model], [each.name for each in self.task]
        cases = [each.name for each in self.case]
        for kind, names in (
            ("column", columns),
            ("model", models),
            ("task", tasks),
            ("score", scores),
        ):
            if len(set(names)) < len(names):
                raise ValueError(f"gives a {kind} twice: {', '.join(names)}")
        if set(SCALES) != set(self.scales):
            raise ValueError(f"must have the scales {', '.join(SCALES)}")
        written = [each.name for each in self.column]
        _known("column", [self.reference], written)
        if self.relative_to is not None:
            _known("model", [self.relative_to.model], models)
            _known("score", [self.relative_to.score, *self.relative_to.parts], scores)
        for model in self.model:
            _known("column", model.columns, columns)
            _known("task", model.tasks, tasks)
        for scale in self.scales.values():
            _known("case", [*scale.cases, *scale.case], cases)
            _known("column", [*scale.columns, *scale.method, *scale.search], written)
        if self.choice is not None:
            _known("score", [self.choice.by, self.choice.reported], scores)
            _known("column", [*self.choice.among, *self.choice.against], columns)
        for number in self.printed:
            _known("model", [number.model], [*models, AVERAGE])
            _known("task", [number.task], [*tasks, AVERAGE])
            _known("column", [number.column], columns)
            _known("score", [number.score], scores)
        return self

    def columns(
        self, scale: ScaleEntry | None = None, model: ModelEntry | None = None
    ) -> list[ColumnEntry]:
        """Return the methods of a scale; the first and the reference are in any.

        Args:
            scale: The scale; None returns all methods.
            model: Return only the methods that the table has for this model; None: for all.
        """
        pairs = self.pairs
        always = {self.column[0].name, self.reference}
        wanted = [
            each
            for each in self.column
            if model is None or not model.columns or each.name in {*model.columns, *always}
        ]
        if scale is None:
            return [*wanted, *(pairs.columns() if pairs else ())]
        written = [
            each.model_copy(update={"settings": scale.method.get(each.name, each.settings)})
            for each in wanted
            if not each.removed
            if not scale.columns or each.name in {*scale.columns, *always}
        ]
        if pairs is not None:
            values = scale.values or pairs.values
            settings = pairs.settings if scale.pairs is None else scale.pairs
            pairs = pairs.model_copy(update={"values": values, "settings": settings})
        return written if pairs is None else [*written, *pairs.columns()]

    def cases(self, scale: Scale, named: Iterable[str] | None = None) -> list[Case]:
        """Return the cases that a scale runs.

        Args:
            scale: The scale.
            named: Names of cases; None uses the scale's.

        Raises:
            SettingError: A named case is not in the grid.
        """
        chosen = self.scales[scale].cases if named is None else tuple(named)
        known = [each.name for each in self.case]
        for name in chosen:
            if name not in known:
                raise SettingError(unknown(f"case of {self.name}", name, known))
        return [each for each in self.case if not chosen or each.name in chosen]

    def number(self, score: str, model: str, column: str, task: str) -> Printed | None:
        """Return the number that the paper prints there, None if it is not available."""
        return self._numbers.get((score, model, column, task))

    @cached_property
    def _numbers(self) -> dict[tuple[str, ...], Printed]:
        return {number.place: number for number in self.printed}


THEOREM = "uegr-theorem-1"
"""Name of the reproduction that is a computation without a study."""


def specification_names() -> tuple[str, ...]:
    """Return the names of all tables and figures that are specified."""
    return tuple(sorted(path.stem for path in _FOLDER.glob("*-*.toml")))


def read_specification(name: str) -> Specification:
    """Read a specification.

    Args:
        name: One of `specification_names`.

    Returns:
        The checked specification.

    Raises:
        SettingError: There is no such table, or its file is wrong; all faults at once.

    Example:
        >>> read_specification("uegr-table-4").place
        'Table IV'
    """
    if name not in specification_names():
        raise SettingError(unknown("reproduction", name, specification_names()))
    content = read_toml(_FOLDER / f"{name}.toml")
    like = content.get("like")
    if like is not None:
        base = read_toml(_FOLDER / f"{like}.toml")
        grid = {key: base[key] for key in _GRID if key in base}
        content = {"family": base.get("family", like), **grid, **content}
    try:
        return Specification.model_validate({"family": name, **content, "name": name})
    except ValidationError as error:
        lines = [
            f"{name}.toml, {'.'.join(str(part) for part in fault['loc']) or 'the whole'}: "
            f"{fault['msg'].removeprefix('Value error, ')}."
            for fault in error.errors()
        ]
        raise SettingError("\n".join(lines)) from error


def leaves(tree: Mapping[str, Any], *above: str) -> Iterator[tuple[tuple[str, ...], Any]]:
    """Yield the values of a nested table with their names from the outermost in.

    Args:
        tree: The table.
        above: Names of the tables around it.
    """
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from leaves(value, *above, name)
        else:
            yield (*above, name), value


def _known(kind: str, named: Iterable[str], known: Iterable[str]) -> None:
    names = list(known)
    for name in named:
        if name not in names:
            raise ValueError(unknown(kind, name, names).rstrip("."))
