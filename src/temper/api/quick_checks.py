"""Check what needs no torch, so that a mistyped name or path is told at once.

Importing torch takes seconds. What is checked here is checked again by whoever does the work. All
faults are one error, and nothing is refused that the work would take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from temper.api.keywords import MODELS
from temper.errors import CheckpointError, SettingError
from temper.settings import Faults, section

Check = Callable[[], object]
"""Raises a `TemperError` where something is wrong; what it returns is not used."""
REPORTED = ("study.json", "run.json", "scores.json")


def refuse(checks: Iterable[Check]) -> None:
    """Run checks, and raise the faults of all of them as one error.

    Args:
        checks: What to check.

    Raises:
        SettingError: If there is a fault.
    """
    faults = Faults()
    for check in checks:
        with faults.caught():
            check()
    faults.refuse()


def of_settings(tree: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the names and paths in nested settings.

    Args:
        tree: Nested settings, not checked yet; what is missing or of another type is left to them.
    """
    from temper.models.names import check_model

    checks: list[Check] = []
    for table, settings in MODELS.items():
        # Several tasks have data of their own; an evaluation without data takes the run's.
        if table == "data" and ("tasks" in tree or _setting(tree, "data", "source") is None):
            continue
        if table in tree:
            checks.append(partial(section, settings, table, tree[table]))
    method = _setting(tree, "method", "name")
    if isinstance(method, str):
        checks.append(partial(check_methods, [method]))
    model = tree.get("model")
    if isinstance(model, str) and model:
        checks.append(partial(check_model, model))
    # Several tasks have data of their own, and no text without labels.
    names = () if "tasks" in tree else ("source", "unlabeled")
    sources = [_setting(tree, "data", name) for name in names]
    checks += of_sources(source for source in sources if isinstance(source, str) and source)
    measured = _setting(tree, "evaluate", "perspectives")
    measured = measured if isinstance(measured, list | tuple) else [measured]
    checks += [partial(_check_perspective, name) for name in measured if isinstance(name, str)]
    for table in ("train", "predictor"):
        if (pairs := _setting(tree, table, "label_map")) is not None:
            checks.append(partial(_check_pairs, f"{table}.label_map", pairs))
    return checks


def _check_pairs(setting: str, pairs: object) -> None:
    from temper.settings import named_pairs

    try:
        named_pairs(pairs)
    except (TypeError, ValueError) as error:
        raise SettingError(f"`{setting}` {error}, got {pairs!r}.") from error


def of_sources(sources: Iterable[str]) -> list[Check]:
    """Return the checks of data that are named beside settings."""
    from temper.data.sources import check_source

    return [partial(check_source, source) for source in sources]


def of_room(out: Path, what: str, record: str) -> Check:
    """Return the check that a folder has room for what is to be written, or holds such already.

    Args:
        out: The folder.
        what: What is to be written.
        record: The file by which such a folder is known.
    """
    from temper.checkpoints.folder import check_room

    return partial(check_room, out, what=what, held=partial(os.path.exists, out / record))


def check_methods(names: Iterable[str]) -> None:
    """Refuse unknown methods.

    Args:
        names: Names of methods and compositions.

    Raises:
        SettingError: With every fault.
    """
    from temper.methods.declared import name_faults

    Faults(fault for name in names for fault in name_faults(name)).refuse()


def check_predictor(model: str) -> None:
    """Refuse a model that is not there, where it is no code and no pipeline.

    Args:
        model: As `temper.evaluation.loading.load_predictor` takes it.

    Raises:
        ModelError: If there is none.
    """
    path = Path(model).expanduser()
    is_code = model.endswith(".py") or (":" in model and not os.path.exists(path))
    # A pipeline's file, or one that is refused; a number behind a point is a version.
    is_file = path.suffix[1:].isalpha() or path.is_file()
    if is_code or is_file or (path.is_dir() and any(path.glob("*.skops"))):
        return
    from temper.models.names import check_model

    check_model(model)


def check_reported(folder: Path) -> None:
    """Refuse a folder that nothing can be reported from.

    Raises:
        CheckpointError: If it is none, or holds neither a study nor a run nor an evaluation.
    """
    if not any((folder / name).exists() for name in REPORTED):
        from temper.models.names import near_folder

        what = f"holds no {', '.join(REPORTED)}" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"{folder} {what}.{near_folder(folder)} Give the --out folder of `temper compare`, "
            "`temper train` or `temper evaluate`."
        )


def _check_perspective(name: str) -> None:
    from temper.evaluation.perspectives.declared import name_faults

    Faults(name_faults(name)[:1]).refuse()


def _setting(tree: Mapping[str, Any], table: str, name: str) -> Any:
    """Return a setting of a table, None where there is none."""
    settings = tree.get(table)
    return settings.get(name) if isinstance(settings, Mapping) else None
