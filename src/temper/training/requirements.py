"""Requirements of a method: unlabeled rows, its own weights at the end, whole parameters."""

from __future__ import annotations

from temper.backward.hooks import OnTrainEnd
from temper.backward.rule import WeightAverageRule, rules_of
from temper.errors import SettingError
from temper.methods import Method
from temper.types import Step


def wants_unlabelled(method: Method) -> bool:
    """Tell whether a method trains on rows without labels too, and so needs some."""
    # Switched off, a method reads labels like plain fine-tuning.
    return any(
        member.NEEDS_UNLABELED and not member.plan(Step()).needs_labels
        for member in method.composed()
    )


def check_unlabelled(method: Method, *, given: bool) -> None:
    """Refuse a method without the unlabelled rows that it learns from, and such rows for no use.

    Args:
        method: The method.
        given: Whether there are unlabelled rows.

    Raises:
        SettingError: If they are wanted and not given, or given and not wanted.
    """
    wanted = wants_unlabelled(method)
    if wanted and not given:
        raise SettingError(
            f"The method {method.name!r} trains on text without labels too, and there is none. "
            "Give --set data.unlabeled=PATH (of RobustTrainer unlabeled_dataset=)."
        )
    if given and not wanted:
        raise SettingError(
            f"There is text without labels, but the method {method.name!r} has no phase for it. "
            "Leave `data.unlabeled` (of RobustTrainer unlabeled_dataset=) out, or use a method "
            "that does."
        )


def check_kept(method: Method, best: str) -> None:
    """Refuse to choose an epoch's weights where the method puts others in their place.

    Args:
        method: The method.
        best: The setting that chooses an epoch, as errors name it; empty where none does.

    Raises:
        SettingError: If the choice would come to nothing.
    """
    averages = [rule for rule in rules_of(method.rule) if isinstance(rule, WeightAverageRule)]
    if best and any(isinstance(rule, OnTrainEnd) for rule in averages):
        raise SettingError(
            f"{best} chooses the epoch whose weights are kept, and the method {method.name!r} "
            "replaces the weights at the end of training by its own average of them. Leave one of "
            "them out."
        )


def check_sharded(method: Method) -> None:
    """Refuse a method whose update rule must see whole weights, where each process has some rows.

    Args:
        method: The method.

    Raises:
        SettingError: If it is one.
    """
    whole = [rule.name for rule in rules_of(method.rule) if not rule.supports_fsdp]
    if whole:
        raise SettingError(
            f"The update rule {whole[0]!r} of the method {method.name!r} does not support weights "
            "sharded by FSDP2. Use distributed data parallel (without fsdp), or adapt the rule to "
            "sharded weights and set its `supports_fsdp`."
        )
