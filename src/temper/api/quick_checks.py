"""Check settings and paths before torch is imported, and report all faults as one error.

Models and data are checked again by the code that opens them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from temper.api.keywords import TABLES
from temper.checkpoints.checkpoint import Checkpoint
from temper.errors import CheckpointError
from temper.settings import Faults, section

Check = Callable[[], object]
"""Raises a `TemperError` if something is wrong."""
REPORTED = ("study.json", "run.json", "scores.json")


def refuse(checks: Iterable[Check]) -> list[Any]:
    """Run checks, and raise the faults of all of them as one error.

    Args:
        checks: What to check.

    Returns:
        The result of each check.

    Raises:
        SettingError: If there is a fault.
    """
    faults, results = Faults(), []
    for check in checks:
        with faults.caught():
            results.append(check())
    faults.refuse()
    return results


def of_tables(tree: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the tables of nested settings, each by its own class.

    Args:
        tree: Nested settings, not checked yet. A table ``data`` without a source is skipped.
    """
    checks: list[Check] = []
    for table, settings in TABLES.items():
        # Several tasks have data of their own; an evaluation without data takes the run's.
        if table == "data" and ("tasks" in tree or _setting(tree, "data", "source") is None):
            continue
        if table in tree:
            checks.append(partial(section, settings, table, tree[table]))
    if "evaluate" in tree:
        from temper.evaluation.settings import EvaluationSettings

        checks.append(partial(section, EvaluationSettings, "evaluate", tree["evaluate"]))
    if "method" in tree:
        from temper.training.config import checked_method

        checks.append(partial(checked_method, tree["method"]))
    return checks


def of_paths(tree: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the model and the data in nested settings.

    Args:
        tree: Nested settings, not checked yet; values of another type are skipped.
    """
    from temper.models.names import check_model

    model = tree.get("model")
    checks: list[Check] = []
    if isinstance(model, str) and model:
        checks.append(partial(check_model, model))
    # Several tasks have data of their own, and no text without labels.
    names = () if "tasks" in tree else ("source", "unlabeled")
    sources = [_setting(tree, "data", name) for name in names]
    return checks + of_sources(source for source in sources if isinstance(source, str) and source)


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


def check_loadable(model: Checkpoint) -> None:
    """Refuse weights that are not there; the other kinds of models are checked by loading them.

    Raises:
        ModelError: There are none, or the name is that of a pickle.
        SettingError: The name is that of a Python file, without a function's name.
    """
    if model.kind == "weights":
        from temper.models.names import check_model

        check_model(model.name)


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


def _setting(tree: Mapping[str, Any], table: str, name: str) -> Any:
    """Return a setting of a table, None where there is none."""
    settings = tree.get(table)
    return settings.get(name) if isinstance(settings, Mapping) else None
