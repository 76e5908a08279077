"""The temperature that a checkpoint's folder keeps in ``calibration.json``."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.errors import CheckpointError
from temper.evaluation.perspectives.calibration import with_temperature
from temper.evaluation.predictor import Prediction
from temper.files import write_json
from temper.training.checkpoint_folder import read_json
from temper.training.config import model_identity
from temper.training.recorder import versions

FILE = "calibration.json"


@dataclass(frozen=True)
class StoredTemperature:
    """A temperature that was fitted for a checkpoint.

    Args:
        value: T > 0, which the logits are divided by.
        max_length: Tokens that texts were cut to when it was fitted.
    """

    value: float
    max_length: int

    def applied(self, prediction: Prediction) -> Prediction:
        """Return a classifier's answers with calibrated probabilities; what is predicted stays.

        Args:
            prediction: What the checkpoint answered.
        """
        return with_temperature(prediction, self.value)


def store_temperature(
    folder: Path,
    value: float,
    *,
    before: Mapping[str, float],
    after: Mapping[str, float],
    held_out: Mapping[str, Any],
    max_length: int | None,
    notices: Sequence[str] = (),
) -> dict[str, Any]:
    """Keep a temperature in a checkpoint's folder.

    Args:
        folder: The folder.
        value: T > 0.
        before: Measures of the held-out rows without it, by name.
        after: The same with it.
        held_out: Which rows it was fitted on.
        max_length: Tokens that their texts were cut to, None where they were not.
        notices: What a person should know of it.

    Returns:
        The content of ``calibration.json``.
    """
    record = {
        "temperature": value,
        **{name: {"before": before[name], "after": after[name]} for name in before},
        "held_out": held_out,
        "max_length": max_length,
        "model": model_identity(str(folder)),
        "notices": list(notices),
        "versions": versions(),
    }
    return write_json(folder / FILE, record)


def stored_temperature(model: str) -> StoredTemperature | None:
    """Read the temperature of a checkpoint's folder.

    Args:
        model: Folder of a checkpoint; anything else has none.

    Returns:
        The temperature, None where none is stored.

    Raises:
        CheckpointError: The file is damaged, or the weights beside it are others than those that
            it was fitted for.
    """
    file = Path(model).expanduser() / FILE
    if not file.is_file():
        return None
    content = read_json(file)
    value, length = content.get("temperature"), content.get("max_length")
    whole = isinstance(value, int | float) and math.isfinite(value) and value > 0
    if "schema" not in content or not whole or not isinstance(length, int):
        raise CheckpointError(
            f"{file} must have a temperature > 0, max_length and schema, got {value!r}, "
            f"{length!r} and {content.get('schema')!r}. Fit it again with `temper "
            f"calibrate`, or remove it with `temper calibrate {model} --remove`."
        )
    if content.get("model") != model_identity(str(file.parent)):
        raise CheckpointError(
            f"The temperature in {file} was fitted for other weights than those beside it. Fit it "
            f"again with `temper calibrate`, or remove it with `temper calibrate {model} --remove`."
        )
    assert isinstance(value, int | float)
    return StoredTemperature(float(value), length)


def stored_temperature_notices(model: str) -> tuple[str, ...]:
    """Return what an evaluation, which measures a model as it is, says of a stored temperature.

    Args:
        model: Folder of a checkpoint, or anything else.
    """
    if not (Path(model).expanduser() / FILE).is_file():
        return ()
    return (
        f"{model} keeps a temperature, which `temper predict` applies. It is not applied here: "
        "scores are of the model's own answers.",
    )
