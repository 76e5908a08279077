"""Trackers that a training reports to: whether what they need is installed, before any work.

Transformers looks for a tracker's package when its Trainer is made, which is after the data and the
model were loaded. Nothing is imported here.
"""

from __future__ import annotations

import importlib.util

from temper.errors import unknown

TRACKERS: dict[str, tuple[str, ...]] = {
    "azure_ml": ("azureml",),
    "clearml": ("clearml",),
    "codecarbon": ("codecarbon",),
    "comet_ml": ("comet_ml",),
    "dagshub": ("dagshub",),
    "dvclive": ("dvclive",),
    "flyte": ("flytekit",),
    "kubeflow": (),
    "mlflow": ("mlflow",),
    "neptune": ("neptune",),
    "swanlab": ("swanlab",),
    "tensorboard": ("tensorboard", "tensorboardX"),
    "trackio": ("trackio",),
    "wandb": ("wandb",),
}
"""Trackers that Transformers knows, and the packages of which each needs one."""

_WORDS = ("all", "none")
# What to install where it is not called like the package that it brings.
_INSTALLED_AS = {"azureml": "azureml-mlflow"}


def known_tracker(name: str) -> str:
    """Check the name of a tracker, and that it is installed.

    Args:
        name: A tracker of Transformers, ``all`` that are installed, or ``none``.

    Raises:
        ValueError: Where it is unknown or not installed; pydantic turns it into a fault.

    Example:
        >>> known_tracker("none")
        'none'
    """
    if name in _WORDS:
        return name
    if name not in TRACKERS:
        raise ValueError(unknown("tracker", name, (*TRACKERS, *_WORDS)))
    packages = TRACKERS[name]
    if packages and not any(map(_is_installed, packages)):
        install = _INSTALLED_AS.get(packages[0], packages[0])
        raise ValueError(
            f"{name!r} is not installed. Run: pip install {install} (or leave it out)."
        )
    return name


def _is_installed(package: str) -> bool:
    return importlib.util.find_spec(package) is not None
