"""What a command takes as options and a Python call as keywords, read from the settings' models.

A setting of a table goes by its own name: ``data.eval_rows`` is ``--eval-rows`` and ``eval_rows=``,
with the type, the default and the words of its class. Whole tables are keywords too:
``train={"epochs": 1}``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel

from temper.calibration.settings import CalibrationSettings
from temper.data.settings import TRAINING_ONLY, DataSettings, source_name
from temper.errors import SettingError, brief, unknown
from temper.evaluation.sources import ROOT, PredictorSettings, SetSources
from temper.service.settings import ServiceSettings
from temper.settings import (
    Faults,
    Tree,
    override,
    parse_assignment,
    parse_value,
    read_toml,
)
from temper.training.settings import ALIASES, TrainSettings, without_alias

MODELS: dict[str, type[BaseModel]] = {
    "data": DataSettings,
    "train": TrainSettings,
    "sets": SetSources,
    "predictor": PredictorSettings,
    "service": ServiceSettings,
    "calibrate": CalibrationSettings,
}
# Settings whose names mean something else in front of a table.
_OTHERWISE = {"config", "seed", "evaluate"}


@dataclass(frozen=True)
class Keyword:
    """A setting that an option or a keyword gives.

    Args:
        path: Where it stands in nested settings; empty where it gives several.
        kind: Type of its values: bool, int, float or str.
        many: Whether it takes several: texts with commas between, or ``NAME=PATH`` of a mapping.
        metavar: How its value is written; empty where the type says it.
        meaning: What the settings' class says of it.
        default: What is taken where it is not given.
    """

    path: tuple[str, ...]
    kind: type = str
    many: bool = False
    metavar: str = ""
    meaning: str = ""
    default: Any = None

    def read(self, value: Any) -> Any:
        """Return what texts stand for; anything else is left for the settings' class to check.

        Args:
            value: Of an option, or of a keyword.

        Raises:
            SettingError: Where nothing stands between two commas.
        """
        if self.metavar.startswith(f"{NUMBER}|") and isinstance(value, str):
            return parse_value(value)
        if not self.many or self.metavar in PAIRS or isinstance(value, Mapping):
            return value
        parts: list[Any] = []
        for given in [value] if isinstance(value, str) else value:
            parts += (
                split_list(given, f"--{name_of(self.path)}") if isinstance(given, str) else [given]
            )
        if len(parts) == 1 and parts[0] in self.metavar.split("|"):
            return parts[0]
        texts = self.kind is str
        return [parse_value(p) if isinstance(p, str) and not texts else p for p in parts]


SETS, CLASSES = PAIRS = ("NAME=PATH", "MODEL=DATA,...")
"""Metavars of the options that take mappings: of sets, and of class names."""
NUMBER = "NUMBER"


def name_of(path: tuple[str, ...]) -> str:
    """Return the name of a setting's option, without its dashes in front.

    Example:
        >>> name_of(("data", "eval_rows")), name_of(("data", "source"))
        ('eval-rows', 'data')
    """
    return "data" if path == ("data", "source") else path[1].replace("_", "-")


def split_list(text: str, option: str) -> list[str]:
    """Split ``a,b,c``.

    Raises:
        SettingError: Where nothing stands between two commas.

    Example:
        >>> split_list("vanilla,uegr", "--methods")
        ['vanilla', 'uegr']
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise SettingError(f"{option} takes names with commas between them, got {text!r}.")
    return names


@cache
def keywords_of(table: str) -> dict[str, Keyword]:
    """Return the settings of a table that are options, by name: those that one word can give.

    Args:
        table: One of `MODELS`.

    Example:
        >>> keywords_of("data")["eval_rows"].kind
        <class 'int'>
    """
    model = MODELS[table]
    keywords = {}
    for setting, field in model.model_fields.items():
        annotation: Any = field.annotation
        parts = list(_alternatives(annotation))
        choices = [
            str(choice)
            for part in parts
            if get_origin(part) is Literal
            for choice in get_args(part)
        ]
        plain = [part for part in parts if part in (bool, int, float, str)]
        many = [part for part in parts if get_origin(part) in (tuple, dict)]
        nested = len(parts) > len(plain) + len(many) + bool(choices) + (Path in parts)
        if setting in _OTHERWISE or nested or any(Any in get_args(part) for part in many):
            continue
        metavar = "|".join(choices)
        kind = plain[0] if plain else str
        if choices and kind is float:
            kind, metavar = str, f"{NUMBER}|{metavar}"
        if many:
            kind = next(_alternatives(get_args(many[0])[0]))
            pairs = CLASSES if setting == "label_map" else SETS
            metavar = pairs if get_origin(many[0]) is dict else "|".join((*choices, "A,B"))
        default = None if field.is_required() else field.get_default(call_default_factory=True)
        path = (table, setting)
        keywords[name_of(path).replace("-", "_")] = Keyword(
            path, kind, bool(many), metavar, field.description or "", default
        )
    return keywords


def _alternatives(annotation: Any) -> Iterator[Any]:
    """Return the types of a union, without their bounds."""
    if get_origin(annotation) is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for part in get_args(annotation):
            yield from _alternatives(part)
    elif annotation is not NoneType:
        yield annotation


OF_ONE_DATASET = {
    "task", "data", "text_column", "text_pair_column", "label_column", "train_split", "eval_split",
}  # fmt: skip
"""Names that say which data are meant, or what their columns and splits are called."""


def task_settings(
    task: str | None, data: str | None, root: Path | str | None, *, suite: str | None = None
) -> dict[str, Any]:
    """Find the data of a task.

    Args:
        task: The task's name.
        data: A copy of its data, or other data where no task is named.
        root: Folder that holds the folders of tasks; None takes what ``TEMPER_DATA`` says, and the
            Hub where it says nothing.
        suite: The suite whose sets lie under the root too.

    Returns:
        Settings of ``data``.

    Raises:
        SettingError: If the task is unknown, its data are not under the root, or nothing is looked
            for there.

    Example:
        >>> task_settings(None, "reviews.csv", None)
        {'source': 'reviews.csv'}
    """
    if root is not None and suite is None and (task is None or data is not None):
        why = "there is neither" if task is None else f"the task's are --data {data}"
        raise SettingError(
            f"--data-root says where the data of --task and --suite lie, but {why}. Leave it out, "
            "or give --task NAME without --data."
        )
    if task is not None and data is None:
        from temper.data.tasks.layouts import task_source

        data = task_source(task, root or os.environ.get(ROOT))
    settings = {"task": task, "source": data}
    return {name: value for name, value in settings.items() if value is not None}


def multi_task_settings(
    named: Iterable[str] | Mapping[str, str | None], root: Path | str | None
) -> dict[str, dict[str, str]]:
    """Find the data of several tasks.

    Args:
        named: Texts ``NAME`` or ``NAME=PATH``, or a mapping of names to paths.
        root: As `task_settings` takes it.

    Returns:
        Settings of each of ``tasks``: its ``source``, and ``task`` where the name is one that
        ``--task`` takes.

    Raises:
        SettingError: If a name is twice there or has no data.

    Example:
        >>> multi_task_settings(["reviews=a.csv", "rte=data/RTE"], None)
        {'reviews': {'source': 'a.csv'}, 'rte': {'task': 'rte', 'source': 'data/RTE'}}
    """
    from temper.data.tasks.layouts import task_source
    from temper.data.tasks.registry import task_named

    if isinstance(named, Mapping):
        named = [
            name if path is None else f"{name}={source_name(path)}" for name, path in named.items()
        ]
    settings: dict[str, dict[str, str]] = {}
    root_is_read = False
    for text in named:
        name, equals, path = text.partition("=")
        if name in settings:
            raise SettingError(f"--multi-task names {name!r} twice. Name it once.")
        if equals and not path:
            raise SettingError(f"--multi-task must be NAME or NAME=PATH, got {text!r}.")
        settings[name] = {}
        try:
            settings[name]["task"] = task_named(name).name
        except ValueError as error:
            if not equals:
                raise SettingError(f"{error} Give its data: {name}=PATH.") from error
        root_is_read |= not equals
        source = path if equals else task_source(name, root or os.environ.get(ROOT))
        settings[name]["source"] = source
    if root is not None and not root_is_read:
        raise SettingError(
            "--data-root says where the data of tasks lie, but each --multi-task names its own. "
            "Leave it out, or give --multi-task NAME without =PATH."
        )
    return settings


@dataclass(frozen=True)
class Keywords:
    """What one command, and the Python call behind it, can be told.

    Args:
        tables: The tables of its nested settings.
        further: Settings that stand in no table of `MODELS`, by name.
        without: Settings of the tables that have no meaning here.
    """

    tables: tuple[str, ...]
    further: Mapping[str, Keyword]
    without: Collection[str] = ()

    @cached_property
    def settings(self) -> dict[str, Keyword]:
        """The settings that are options, by name."""
        of_tables = {
            name: keyword
            for table in self.tables
            if table in MODELS
            for name, keyword in keywords_of(table).items()
            if name not in self.without and name not in self.further
        }
        return {**self.further, **of_tables}

    def tree(
        self,
        config: Any = None,
        given: Mapping[str, Any] | None = None,
        assignments: Iterable[str] = (),
    ) -> Tree:
        """Join a file of settings, keywords and ``KEY=VALUE`` to nested settings.

        Args:
            config: The settings that the others override: path of a TOML file, nested settings, or
                a checked run's.
            given: Values by name; None stands for one that is not given.
            assignments: Texts ``KEY=VALUE``.

        Returns:
            Nested settings, not checked yet.

        Raises:
            SettingError: Where a name is unknown, a text has another form, or two say the same.
        """
        tree = _config(config)
        values = {name: value for name, value in (given or {}).items() if value is not None}
        aliases = ALIASES if "train" in self.tables else {}
        known = dict.fromkeys((*self.settings, *self.tables, *aliases))
        faults = Faults(unknown("setting", name, known) for name in values if name not in known)
        pairs: list[tuple[tuple[str, ...], Any]] = []
        assigned = []
        for text in assignments:
            with faults.caught():
                assigned.append(parse_assignment(text))
        faults.refuse()
        lora = values.pop("lora", None)
        if (adapter := values.pop("peft", None)) is not None:
            pairs.append((("train", "peft"), _peft_table(adapter)))
        # What several names together say.
        for table, settings in self._joined(values, tree).items():
            pairs += [((table, name), value) for name, value in settings.items()]
        for name, value in values.items():
            if name in self.tables and (isinstance(value, Mapping | BaseModel)):
                pairs += [((name, key), each) for key, each in _table(name, value).items()]
            elif name in self.settings:
                pairs.append((self.settings[name].path, self.settings[name].read(value)))
            elif name in aliases:
                pairs.append((("train", name), value))
            else:
                pairs.append(((name,), value))
        tree = override(tree, [without_alias(*pair) for pair in (*pairs, *assigned)])
        if lora and isinstance(train := tree.setdefault("train", {}), dict):
            train["lora"] = train.get("lora") or {} if lora is True else dict(_table("lora", lora))
        elif lora is False and isinstance(train := tree.get("train"), dict):
            train.pop("lora", None)
        return tree

    def _joined(self, values: dict[str, Any], tree: Tree) -> dict[str, dict[str, Any]]:
        """Take out the names that only together say where data lie and what the method is."""
        joined: dict[str, dict[str, Any]] = {}
        halves = {half: values.pop(half, None) for half in ("objective", "rule")}
        if any(halves.values()) or isinstance(values.get("method"), str):
            joined["method"] = {"name": method_name(values.pop("method", None), **halves)}
        tasks = values.pop("multi_task", None)
        root = values.pop("data_root", None)
        if tasks:
            if used := sorted(OF_ONE_DATASET & set(values)):
                options = ", ".join(f"--{name.replace('_', '-')}" for name in used)
                raise SettingError(
                    f"{options} is of one data set, and --multi-task names several. Leave it out, "
                    "or set it for each: --set tasks.NAME.KEY=VALUE."
                )
            return {**joined, "tasks": multi_task_settings(tasks, root)}
        sets = tree.get("sets", {})
        suite = values.get("suite") or (sets.get("suite") if isinstance(sets, Mapping) else None)
        if suite is not None and root is not None:
            joined["sets"] = {"data_root": root}
        if not _is_settings(values.get("data")):
            source = source_name(values.pop("data", None))
            joined["data"] = task_settings(values.pop("task", None), source, root, suite=suite)
        return joined


def _is_settings(data: Any) -> bool:
    """Return whether a value is data settings; data itself may be a mapping too."""
    if not isinstance(data, Mapping) or set(data) <= set(DataSettings.model_fields):
        return isinstance(data, Mapping | BaseModel)
    from temper.data.in_memory import is_data

    return not is_data(data)


def method_name(method: str | None, objective: str | None, rule: str | None) -> str | None:
    """Join ``--method``, ``--objective`` and ``--rule`` to one name.

    Args:
        method: A whole method, or several with ``+`` between.
        objective: Methods of which only the objective is taken; the update rule is plain then.
        rule: Methods of which only the update rule is taken; the objective is plain then.

    Returns:
        What ``method.name`` is set to; None where no option was given.

    Raises:
        SettingError: Where the options contradict each other.

    Example:
        >>> method_name(None, "uegr", "child_tuning_d")
        'uegr.objective + child_tuning_d.rule'
    """
    halves = {"objective": objective, "rule": rule}
    if method is not None:
        given = [half for half, name in halves.items() if name is not None]
        if given:
            raise SettingError(
                f"--method names a whole method and --{given[0]} half of one: give either. A "
                f"mixture is written --method 'NAME + OTHER.{given[0]}'."
            )
        return method
    if objective is not None and objective == rule:
        raise SettingError(
            f"--objective and --rule both name {rule!r}, and that is --method {rule}."
        )
    labels = [
        f"{label.strip()}.{half}"
        for half, name in halves.items()
        if name is not None
        for label in name.split("+")
    ]
    return " + ".join(labels) or None


def _config(config: Any) -> Tree:
    if config is None or isinstance(config, Mapping):
        return _without_aliases(config or {})
    if isinstance(config, str | Path):
        return _without_aliases(read_toml(Path(config)))
    if not hasattr(config, "settings"):
        raise SettingError(
            "`config` must be the path of a TOML file, nested settings or a checked run's, got "
            f"{brief(config)}."
        )
    return {"model": config.model, "seed": config.seed, **config.settings()}


def _without_aliases(tree: Mapping[str, Any]) -> Tree:
    """Return nested settings with the settings of ``train`` under their own names."""
    if not isinstance(tree.get("train"), Mapping):
        return dict(tree)
    pairs = [without_alias(("train", name), value) for name, value in tree["train"].items()]
    return {**tree, **override({"train": {}}, pairs)}


def _peft_table(given: Any) -> dict[str, Any]:
    """Return the arguments of a PEFT configuration: of a JSON file, a mapping or the object."""
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "to_dict"):
        # Sets and enumerations become what JSON has.
        return dict(json.loads(json.dumps(given.to_dict(), default=list)))
    path = Path(given)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(f"--peft {path} is not a readable JSON file: {error}.") from error
    if not isinstance(content, dict):
        raise SettingError(f"--peft {path} must be a JSON object with a `peft_type`.")
    return content


def _table(name: str, table: Mapping[str, Any] | BaseModel) -> Mapping[str, Any]:
    """Return a table of settings, or the settings that an object was made with."""
    if isinstance(table, Mapping):
        return table
    if name != "method":
        return table.model_dump(exclude_unset=True)
    from temper.methods import Composed, Method, name_of

    assert isinstance(table, Method)
    return {
        "name": table.name if isinstance(table, Composed) else name_of(table),
        **table.settings(),
    }


_MODEL = {
    "model": Keyword(("model",), meaning="Hub id, folder, or short name of `temper list models`.")
}
_MEASURED = {
    "perspectives": Keyword(
        ("evaluate", "perspectives"),
        many=True,
        metavar="A,B",
        meaning="What to measure, with commas between: names of `temper list perspectives`, "
        "`default`, `all`.",
    )
}
TRAIN = Keywords(
    ("data", "method", "train", "architecture", "tasks", "mixing"),
    {
        **_MODEL,
        "method": Keyword(
            ("method", "name"),
            meaning="A method of `temper list methods`, or `ONE + OTHER`; the default recipe if "
            "left out.",
        ),
        "recipe": Keyword(
            ("recipe",),
            meaning="A recipe of `temper list recipes`: a method with settings that go together.",
        ),
        "objective": Keyword((), meaning="A method of which only the objective is taken."),
        "rule": Keyword((), meaning="A method of which only the update rule is taken."),
        "multi_task": Keyword(
            (),
            many=True,
            metavar="NAME[=PATH]",
            meaning="Train one encoder on several tasks, a head each (MT-DNN); once for every "
            "task. A name that --task takes is found as --task finds it, or lies in PATH; any "
            "other name is PATH's.",
        ),
        "data_root": Keyword(
            (),
            metavar="DIR",
            meaning="Folder that holds the tasks' folders; TEMPER_DATA if left out, else the Hub.",
        ),
        "seed": Keyword(("seed",), int, meaning="Seed of every random draw."),
        "lora": Keyword(
            (),
            bool,
            meaning="Train a LoRA adapter and the head alone; --set train.lora.rank=16 ...",
        ),
        "peft": Keyword(
            (),
            metavar="FILE",
            meaning="Train an adapter of any PEFT type: its adapter_config.json.",
        ),
    },
)
COMPARE = Keywords(
    ("data", "train", "sets", "architecture", "evaluate"), {**_MODEL, **_MEASURED}, {"fit"}
)
EVALUATE = Keywords(
    ("data", "sets", "predictor", "evaluate"),
    {
        **_MEASURED,
        "reference": Keyword(
            ("evaluate", "representation", "reference"),
            metavar="MODEL",
            meaning="The pre-trained model that `representation` compares with, where the model's "
            "own record does not name it.",
        ),
    },
    {*TRAINING_ONLY, "train_split"},
)
CALIBRATE = Keywords(
    ("data", "predictor", "evaluate", "sets", "calibrate"),
    {},
    {*TRAINING_ONLY, "train_split", "task", "gives", "trust", "group_column"}
    | {*SetSources.model_fields} - {"anomaly"},
)
PREDICT = Keywords(
    ("data", "predictor"),
    {},
    {"data", *DataSettings.model_fields}
    - {
        "text_column",
        "text_pair_column",
        "encoding",
        "skip_bad_rows",
        "max_length",
    },
)
EXPORT = Keywords(
    ("data", "predictor"),
    {},
    {
        *TRAINING_ONLY,
        *("data", "train_split", "task", "group_column", "seed", "device", "gives", "trust"),
    },
)
SERVE = Keywords(
    ("data", "predictor", "service"), {}, {"data", *DataSettings.model_fields} - {"max_length"}
)
