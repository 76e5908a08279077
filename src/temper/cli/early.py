"""Check what needs no torch, so that a mistyped name or path is told at once.

Importing torch takes seconds. What is checked here is checked again by whoever does the work, since
Python code comes by another door. All faults are one error, and nothing is refused that the work
would take.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from temper.errors import CheckpointError, SettingError, TemperError

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
    found: list[str] = []
    for check in checks:
        try:
            check()
        except TemperError as error:
            found += str(error).splitlines()
    if found:
        raise SettingError("\n".join(dict.fromkeys(found)))


def of_training(tree: Mapping[str, Any], out: Path) -> list[Check]:
    """Return the checks of a training's settings.

    Args:
        tree: Nested settings, not checked yet; what is missing or of another type is left to them.
        out: The run's folder.
    """
    from temper.training.checkpoint_folder import RunFolder

    checks = [*_of_settings(tree), RunFolder(out).record]
    name = _at(tree, "method", "name")
    return [partial(check_methods, [name]), *checks] if isinstance(name, str) else checks


def of_comparison(tree: Mapping[str, Any], methods: Iterable[str], out: Path) -> list[Check]:
    """Return the checks of a comparison's settings.

    Args:
        tree: Nested settings, not checked yet.
        methods: Names of methods and compositions.
        out: The study's folder.
    """
    from temper.training.checkpoint_folder import check_study_room

    return [
        partial(check_methods, list(methods)),
        *_of_settings(tree),
        partial(check_study_room, out),
    ]


def of_calibration(tree: Mapping[str, Any], model: str) -> list[Check]:
    """Return the checks of what is asked of a model that a temperature is fitted for.

    Args:
        tree: Nested settings, not checked yet.
        model: Folder of a checkpoint.
    """
    return [partial(check_calibrated, model), *_of_settings(tree)]


def of_evaluation(tree: Mapping[str, Any], model: str, out: Path) -> list[Check]:
    """Return the checks of an evaluation's settings.

    Args:
        tree: Nested settings, not checked yet.
        model: What is to be measured.
        out: The evaluation's folder.
    """
    from temper.training.checkpoint_folder import check_room

    held = (out / "scores.json").exists()
    return [
        partial(check_predictor, model),
        *_of_settings(tree),
        partial(check_room, out, what="evaluation", held=held),
    ]


def of_soup(tree: Mapping[str, Any], runs: Iterable[str], out: Path) -> list[Check]:
    """Return the checks of a soup's settings.

    Args:
        tree: Nested settings, not checked yet.
        runs: Folders of its runs.
        out: The soup's folder.
    """
    from temper.training.checkpoint_folder import check_room

    held = (out / "soup.json").exists()
    return [
        *(partial(check_predictor, run) for run in runs),
        *_of_settings(tree),
        partial(check_room, out, what="soup", held=held),
    ]


def of_sources(sources: Iterable[str | None]) -> list[Check]:
    """Return the checks of data that are named beside settings."""
    return [partial(_check_source, source) for source in sources if source is not None]


def check_methods(names: Iterable[str]) -> None:
    """Refuse unknown methods.

    Args:
        names: Names of methods and compositions.

    Raises:
        SettingError: With every fault.
    """
    from temper.methods.declared import name_faults

    found = [fault for name in names for fault in name_faults(name)]
    if found:
        raise SettingError("\n".join(dict.fromkeys(found)))


def check_predictor(model: str) -> None:
    """Refuse a model that is not there, where it is no code and no pipeline.

    Args:
        model: As `temper.app.predictors.load_predictor` takes it.

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


def check_calibrated(model: str) -> None:
    """Refuse a model that a temperature cannot be kept with.

    Args:
        model: Folder of a checkpoint.

    Raises:
        SettingError: If it is none.
    """
    from temper.models.names import checkpoint_folder

    checkpoint_folder(model, what="A temperature")


def check_judged(folder: Path) -> None:
    """Check that a folder holds an evaluation.

    Raises:
        CheckpointError: It does not.
    """
    if not (folder / "scores.json").exists():
        raise CheckpointError(
            f"{folder} holds no scores.json. Give the --out folder of `temper evaluate`."
        )


def check_reported(folder: Path) -> None:
    """Refuse a folder that nothing can be reported from.

    Raises:
        CheckpointError: If it is none, or holds neither a study nor a run nor an evaluation.
    """
    if not any((folder / name).exists() for name in REPORTED):
        what = f"holds no {', '.join(REPORTED)}" if folder.is_dir() else "is not a folder"
        raise CheckpointError(
            f"{folder} {what}. Give the --out folder of `temper compare`, `temper train` or "
            "`temper evaluate`."
        )


def _of_settings(tree: Mapping[str, Any]) -> list[Check]:
    """Return the checks of the names and paths in nested settings."""
    checks: list[Check] = []
    model = tree.get("model")
    if isinstance(model, str) and model:
        checks.append(partial(_check_model, model))
    # Several tasks have data of their own, and no text without labels.
    named = () if "tasks" in tree else ("source", "unlabeled")
    sources = [_at(tree, "data", name) for name in named]
    checks += of_sources(source for source in sources if isinstance(source, str) and source)
    asked = _at(tree, "evaluate", "perspectives")
    names = [asked] if isinstance(asked, str) else asked if isinstance(asked, list) else []
    checks += [partial(_check_perspective, name) for name in names if isinstance(name, str)]
    return checks


def _check_model(model: str) -> None:
    from temper.models.names import check_model

    check_model(model)


def _check_source(source: str) -> None:
    from temper.data.sources import check_source

    check_source(source)


def _check_perspective(name: str) -> None:
    from temper.evaluation.perspectives.declared import name_faults

    if found := name_faults(name):
        raise SettingError(found[0])


def _at(tree: Mapping[str, Any], *path: str) -> Any:
    """Return a nested setting, None where it is not there."""
    found: Any = tree
    for part in path:
        found = found.get(part) if isinstance(found, Mapping) else None
    return found
