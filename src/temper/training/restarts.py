"""The length and the learning rate of a run that consists of several trainings."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections.abc import Callable, Sequence
from typing import Any

from torch.optim.lr_scheduler import LambdaLR

from temper.errors import SettingError


def times_as_long(args: Any, trainings: int) -> Any:
    """Return training arguments that ask for the steps of several trainings.

    Args:
        args: ``TrainingArguments`` of one of them.
        trainings: How many.
    """
    longer = copy.copy(args)
    longer.num_train_epochs *= trainings
    if longer.max_steps > 0:
        longer.max_steps *= trainings
    return longer


def restart(scheduler: Any, starts: Sequence[int], *, method: str, given: bool) -> None:
    """Let a scheduler run through its course from each of several steps on.

    Args:
        scheduler: Made for the steps of one training.
        starts: The steps with which trainings begin, 0 and others in order.
        method: Name of the method, for errors.
        given: Whether a user made the scheduler, for steps that are not known.

    Raises:
        SettingError: A user made it, or it is of a kind whose course does not follow from the step.
    """
    if given or not isinstance(scheduler, LambdaLR):
        came = "one was given" if given else f"{type(scheduler).__name__} cannot begin anew"
        raise SettingError(
            f"The method {method!r} runs through the learning rate's course several times, for "
            f"which it needs a scheduler of Transformers' making, and {came}. Leave the scheduler "
            "out of `optimizers`, and take linear, cosine or constant as `lr_scheduler_type`."
        )
    scheduler.lr_lambdas = [_from_each(course, starts) for course in scheduler.lr_lambdas]


def _from_each(course: Callable[[int], float], starts: Sequence[int]) -> Callable[[int], float]:
    return lambda step: course(step - starts[bisect_right(starts, step) - 1])
