"""Nested settings from a TOML file, keywords and ``KEY=VALUE``, not checked yet."""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from temper.api.keywords import SETTINGS, TABLES, Paths
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import check_output_folder
from temper.data.settings import source_name
from temper.data.sources import check_source
from temper.data.tasks.registry import task_named, task_source
from temper.display.wording import listed
from temper.errors import SettingError, brief, unknown
from temper.evaluation.settings import ROOT
from temper.models.names import check_model
from temper.settings import (
    Faults,
    Tree,
    override,
    parse_assignment,
    parse_value,
    read_toml,
    section,
)
from temper.training.settings import without_alias

LISTS = (
    "augment", "class_weights", "coverage", "label_names", "perspectives", "report_to", "trust",
)  # fmt: skip
"""Keywords that take a list or a string with commas."""
NUMBERS = ("class_weights", "coverage")
OF_ONE_DATASET = {
    "data", "text_column", "text_pair_column", "label_column", "train_split", "eval_split",
}  # fmt: skip
"""Keywords that describe one dataset; a run on several tasks does not accept them."""


def nested(
    paths: Paths,
    config: Any = None,
    given: Mapping[str, Any] | None = None,
    assignments: Iterable[str] | None = None,
) -> Tree:
    """Join a file of settings, keywords and ``KEY=VALUE`` to nested settings, not checked yet.

    Args:
        paths: Keyword -> path of its setting.
        config: Settings that the others override: the path of a TOML file, nested settings, or a
            checked `RunConfig`.
        given: Keyword -> value; a value None counts as not given.
        assignments: Strings ``KEY=VALUE``; a key is a setting's dotted name or a keyword.

    Raises:
        SettingError: If a name is unknown, a string is not ``KEY=VALUE``, or a setting is given
            twice.

    Example:
        >>> from temper.api.keywords import TRAIN
        >>> nested(TRAIN, None, {"data": "a.csv", "epochs": 1.0}, ["seed=2"])
        {'data': {'source': 'a.csv'}, 'train': {'epochs': 1.0}, 'seed': 2}
    """
    tree = _config(config)
    values = {name: value for name, value in (given or {}).items() if value is not None}
    faults = Faults(unknown("setting", name, paths) for name in values if name not in paths)
    assigned: list[tuple[tuple[str, ...], Any]] = []
    for text in assignments or ():
        with faults.caught():
            path, value = parse_assignment(text)
            if len(path) == 1 and path[0] in paths and path[0] not in values:
                values[path[0]] = value
            elif path[-1] in LISTS and len(path) == 2 and isinstance(value, str):
                assigned.append((path, _listed(path[-1], value)))
            else:
                assigned.append((path, value))
    roots = {path[0] for path in paths.values()}
    tables = dict.fromkeys((*tree, *(path[0] for path, _ in assigned)))
    faults += [_misplaced(table) for table in tables if table in TABLES.keys() - roots]
    faults.refuse()
    lora = values.pop("lora", None)
    pairs: list[tuple[tuple[str, ...], Any]] = []
    for table, settings in _joined(values, tree, has_tasks="tasks" in paths).items():
        pairs += [((table, name), value) for name, value in settings.items()]
    for name, value in values.items():
        path = paths[name]
        if name == "peft":
            pairs.append((path, _peft_table(value)))
        elif name == path[0] and isinstance(value, Mapping | BaseModel):
            pairs += [((name, key), item) for key, item in _table(name, value).items()]
        else:
            pairs.append((path, _listed(name, value) if name in LISTS else value))
    tree = override(tree, [without_alias(*pair) for pair in (*pairs, *assigned)])
    if lora and isinstance(train := tree.setdefault("train", {}), dict):
        train["lora"] = train.get("lora") or {} if lora is True else dict(_table("lora", lora))
    elif lora is False and isinstance(train := tree.get("train"), dict):
        train.pop("lora", None)
    return tree


def _misplaced(table: str) -> str:
    commands = [
        name for name, paths in SETTINGS.items() if table in {path[0] for path in paths.values()}
    ]
    return (
        f"`{table}` is a table of temper {listed(commands)}, and this command does not read it. "
        "Leave it out."
    )


def split_list(text: str | Iterable[Any], option: str) -> list[Any]:
    """Split ``a,b,c``; an empty name raises a `SettingError`. A list is returned as it is.

    Example:
        >>> split_list("plain,uegr", "--methods")
        ['plain', 'uegr']
    """
    if not isinstance(text, str):
        return list(text)
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise SettingError(f"{option} takes names with commas between them, got {text!r}.")
    return names


def _listed(name: str, value: Any) -> Any:
    parts: list[Any] = []
    single = isinstance(value, str) or not isinstance(value, Iterable)
    for part in [value] if single else value:
        parts += split_list(part, f"`{name}`") if isinstance(part, str) else [part]
    if name in NUMBERS:
        parts = [parse_value(part) if isinstance(part, str) else part for part in parts]
    return "balanced" if parts == ["balanced"] else parts


def _joined(values: dict[str, Any], tree: Tree, *, has_tasks: bool) -> dict[str, dict[str, Any]]:
    """Remove the keywords that choose method, task and data; return the settings that they mean."""
    joined: dict[str, dict[str, Any]] = {}
    if isinstance(values.get("method"), str):
        joined["method"] = {"name": values.pop("method")}
    root = values.pop("data_root", None)
    task, tasks = values.pop("task", None), values.pop("tasks", None)
    if has_tasks and tasks is None and task is not None:
        named = [task] if isinstance(task, str) else list(task)
        if len(named) > 1 or any("=" in name for name in named):
            tasks, task = named, None
        else:
            (task,) = named
    if tasks:
        used = sorted(OF_ONE_DATASET & set(values))
        if used or task is not None:
            options = ", ".join(f"`{name}`" for name in used or ["task"])
            raise SettingError(
                f"{options} describes one dataset, and there are several tasks. Leave it out, or "
                "set it for each: `tasks.NAME.KEY`."
            )
        return {**joined, "tasks": tasks_settings(tasks, root)}
    sets = tree.get("sets", {})
    suite = values.get("suite") or (sets.get("suite") if isinstance(sets, Mapping) else None)
    if suite is not None and root is not None:
        joined["sets"] = {"data_root": root}
    joined["data"] = task_settings(task, source_name(values.pop("data", None)), root, suite=suite)
    return joined


def default_folder(tree: Mapping[str, Any], name: str, *apart: object) -> Path:
    """Return the default output folder, the same for the same settings.

    Example:
        >>> default_folder({"data": {"source": "data/reviews.csv"}}, "uegr").as_posix()
        'runs/reviews-uegr-e6b44d'
    """
    data = tree.get("data", {})
    dataset = data.get("task") or data.get("source") if isinstance(data, Mapping) else None
    source = Path(str(dataset or "-".join(tree.get("tasks", {})) or "data"))
    words = re.sub(r"[^A-Za-z0-9_.]+", "-", f"{source.stem[:24]}-{name}").strip("-.")
    # 2.0 (from --epochs 2) and 2 (from epochs=2) must have the same hash.
    text = re.sub(r"(\d)\.0\b", r"\1", json.dumps([tree, apart], sort_keys=True, default=str))
    return Path("runs", f"{words}-{hashlib.sha256(text.encode()).hexdigest()[:6]}")


def task_settings(
    task: str | None, data: str | None, root: Path | str | None, *, suite: str | None = None
) -> dict[str, Any]:
    """Return ``source`` and ``task`` of the table ``data`` for the keywords ``task`` and ``data``.

    A task without ``data`` gets its folder under ``root``. If that is None, it is under the folder
    in TEMPER_DATA, or on the Hub if TEMPER_DATA is not set.

    Example:
        >>> task_settings(None, "reviews.csv", None)
        {'source': 'reviews.csv'}
    """
    if root is not None and suite is None and (task is None or data is not None):
        why = "there is neither" if task is None else f"the data of the task are {data}"
        raise SettingError(
            f"`data_root` is the folder with the data of `task` and `suite`, but {why}. Leave it "
            "out, or pass a `task` without data."
        )
    if task is not None and data is None:
        data = task_source(task, root or os.environ.get(ROOT))
    settings = {"task": task, "source": data}
    return {name: value for name, value in settings.items() if value is not None}


def tasks_settings(
    named: Iterable[str] | Mapping[str, Any], root: Path | str | None = None
) -> dict[str, dict[str, Any]]:
    """Return the table of settings of each task, by name, for a run on several tasks.

    A table has ``source``, and ``task`` if it is a benchmark task. ``named`` has strings ``NAME``
    or ``NAME=PATH``, or maps names to data or to settings. ``root`` is as in `task_settings`.

    Example:
        >>> tasks_settings(["reviews=a.csv", "rte=data/RTE"])
        {'reviews': {'source': 'a.csv'}, 'rte': {'task': 'rte', 'source': 'data/RTE'}}
    """
    items = named.items() if isinstance(named, Mapping) else named
    pairs: Any = (_name_and_path(item) if isinstance(item, str) else item for item in items)
    settings: dict[str, dict[str, Any]] = {}
    root_is_read = False
    for name, source in pairs:
        if name in settings:
            raise SettingError(f"`task` names {name!r} twice. Name it once.")
        if isinstance(source, Mapping) and source.keys() & {"source", "task"}:
            settings[name] = dict(source)
            continue
        settings[name] = {}
        try:
            settings[name]["task"] = task_named(name).name
        except ValueError as error:
            if source is None:
                raise SettingError(f"{error} Pass its data: {name}=PATH.") from error
        if source is None:
            root_is_read, source = True, task_source(name, root or os.environ.get(ROOT))
        settings[name]["source"] = source_name(source)
    if root is not None and not root_is_read:
        raise SettingError(
            "`data_root` is the folder of the data of tasks, but each `task` names its own. Leave "
            "it out, or pass names without =PATH."
        )
    return settings


def _name_and_path(text: str) -> tuple[str, str | None]:
    name, equals, path = text.partition("=")
    if equals and not path:
        raise SettingError(f"`task` must be NAME or NAME=PATH, got {text!r}.")
    return name, path or None


def _config(config: Any) -> Tree:
    if isinstance(config, str | Path):
        config = read_toml(Path(config))
    if config is None or isinstance(config, Mapping):
        tree = dict(config or {})
        if isinstance(train := tree.get("train"), Mapping):
            pairs = [without_alias(("train", name), value) for name, value in train.items()]
            tree |= override({"train": {}}, pairs)
        return tree
    if not hasattr(config, "settings"):
        raise SettingError(
            "`config` must be the path of a TOML file, nested settings or a `RunConfig`, got "
            f"{brief(config)}."
        )
    return {"model": config.model, "seed": config.seed, **config.settings()}


def _peft_table(given: Any) -> dict[str, Any]:
    """Return the arguments of a PEFT configuration as a dict; it may be the path of a JSON file."""
    if isinstance(given, Mapping):
        return dict(given)
    if hasattr(given, "to_dict"):
        # Sets and enumerations become what JSON has.
        return dict(json.loads(json.dumps(given.to_dict(), default=list)))
    path = Path(given)
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SettingError(
            f"The file {path} of `peft` is not readable JSON: {error}. Pass an adapter_config.json."
        ) from error
    if not isinstance(content, dict):
        raise SettingError(f"The file {path} of `peft` must have a JSON object with a `peft_type`.")
    return content


def _table(name: str, table: Mapping[str, Any] | BaseModel) -> Mapping[str, Any]:
    """Return a table as a mapping; of a settings object, the fields that its caller has set."""
    if isinstance(table, Mapping):
        return table
    if name != "method":
        return table.model_dump(exclude_unset=True)
    from temper.methods import Method, name_of

    assert isinstance(table, Method)
    return {"name": name_of(table), **table.settings()}


Check = Callable[[], object]
"""A function that raises a `TemperError` if something is wrong."""


def refuse(*checks: Check) -> list[Any]:
    """Run checks and return their results; raise the faults of all as one `SettingError`."""
    faults, results = Faults(), []
    for check in checks:
        with faults.caught():
            results.append(check())
    faults.refuse()
    return results


def of_tables(tree: Mapping[str, Any]) -> list[Check]:
    """Return a check for each table of nested settings, by its settings class."""
    checks: list[Check] = []
    for table, settings in TABLES.items():
        # Several tasks have their own data; an evaluation without data takes the run's.
        if table == "data" and ("tasks" in tree or _of_data(tree, "source") is None):
            continue
        if table in tree:
            checks.append(partial(section, settings, table, tree[table]))
    if "method" in tree:
        from temper.training.config import checked_method

        checks.append(partial(checked_method, tree["method"]))
    return checks


def of_paths(tree: Mapping[str, Any], *sources: str) -> list[Check]:
    """Return the checks of the model, the data and further ``sources`` of nested settings."""
    # Several tasks have their own data, and no text without labels.
    names = () if "tasks" in tree else ("source", "unlabeled")
    given: list[tuple[Callable[[str], object], Any]] = [(check_model, tree.get("model"))]
    given += [(check_source, _of_data(tree, name)) for name in names]
    given += [(check_source, source) for source in sources]
    # Values of another type are reported by the check of their table.
    return [partial(check, name) for check, name in given if isinstance(name, str) and name]


def of_output_folder(out: Path, what: str, record: str) -> Check:
    """Return the check that a folder is new or empty, or has such a result already."""
    return partial(check_output_folder, out, what=what, held=partial(os.path.exists, out / record))


def check_loadable(model: Checkpoint) -> None:
    """Raise if a checkpoint or Hub model does not exist; other kinds are checked on loading."""
    if model.kind == "weights":
        check_model(model.name)


def _of_data(tree: Mapping[str, Any], name: str) -> Any:
    settings = tree.get("data")
    return settings.get(name) if isinstance(settings, Mapping) else None
