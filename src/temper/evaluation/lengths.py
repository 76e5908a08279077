"""Maximum number of tokens of a model's input, and windows over longer texts."""

from __future__ import annotations

from dataclasses import asdict
from typing import NoReturn

from torch.nn import Module

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.encode import cut_notice
from temper.data.windows import NOT_IN_WINDOWS, check_windows
from temper.errors import SettingError
from temper.evaluation.classifier import TextPredictor
from temper.evaluation.int8 import Int8Predictor
from temper.evaluation.predictor import KINDS, Predictor
from temper.evaluation.settings import PredictorSettings
from temper.models.kinds import head_of
from temper.models.windows import set_windows, windows_of
from temper.types import Windows

DEFAULT_LENGTH = 128


def check_length(asked: int | None) -> None:
    """Raise a `SettingError` if a ``max_length`` given by the user is below 4."""
    if asked is not None and asked < 4:
        raise SettingError(f"`max_length` must be >= 4, got {asked}.")


def length_of(model: Checkpoint, asked: int | None, network: Module | None = None) -> int:
    """Return the maximum number of tokens of a text, or of a window.

    It is the user's setting ``asked``, else that of the training, else 128.
    """
    result = None if network is None else windows_of(network)
    # A published model has no record of its run.
    default = DEFAULT_LENGTH if result is None else result.max_length
    length: int = model.data.get("max_length", default) if asked is None else asked
    return length


def read_in_windows(network: Module, settings: PredictorSettings, *, max_length: int) -> None:
    """Make a model read long texts in windows, by the settings, else as in training."""
    given, result = settings.given_windows, windows_of(network)
    if given:
        check_windows(head_of(network).name, setting="predictor.stride")
        known = {} if result is None else asdict(result.windows)
        if "stride" not in known | given:
            refuse_windows("the model reads each text as one sequence, and no stride is given")
        windows = Windows(**(known | given))
        one = windows.max_windows == 1
        set_windows(network, None if one else windows, max_length=max_length)
    elif result is not None:
        set_windows(network, result.windows, max_length=max_length)


def refuse_windows(why: str) -> NoReturn:
    """Raise a `SettingError`: settings of windows have no effect, for the reason ``why``."""
    raise SettingError(
        "`predictor.stride`, `predictor.pool` and `predictor.max_windows` apply to checkpoints "
        f"that read long texts in windows: {why}. Leave them out."
    )


def longest_row(predictor: Predictor) -> int | None:
    """Return a predictor's maximum number of tokens of a text, None if unknown."""
    length = getattr(predictor, "max_length", None)
    return None if length is None else int(length)


def windows_read(predictor: Predictor) -> Windows | None:
    """Return how a predictor splits long texts into windows, None if it truncates them."""
    windows: Windows | None = getattr(predictor, "windows", None)
    return windows


def cut_in(predictor: Predictor, fraction: float | None, *, rows: str) -> tuple[str, ...]:
    """Return a notice on the fraction of rows that were truncated; empty if there are none."""
    if not fraction or not isinstance(predictor, TextPredictor):
        return ()
    longest, positions = predictor.tokenizer.model_max_length, predictor.positions
    longest = longest if positions is None else min(longest, positions)
    no_windows = KINDS[predictor.gives] in NOT_IN_WINDOWS or isinstance(predictor, Int8Predictor)
    notice = cut_notice(
        fraction,
        rows=rows,
        max_length=predictor.max_length,
        longest=longest,
        windows=predictor.windows,
        stride="" if no_windows else "--set predictor.stride=",
    )
    return (notice,)
