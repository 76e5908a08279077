"""The further models that an evaluation's settings name, loaded once before any work.

A look at a model's config does not show that its weights are there and whole; loading does. What
was loaded is let go again: who needs it comes hours later.
"""

from __future__ import annotations

from collections.abc import Callable

from temper.errors import ModelError, SettingError
from temper.evaluation.perspectives.representation import RepresentationSettings
from temper.evaluation.settings import EvaluationSettings
from temper.evaluation.text_attack.settings import TextAttackSettings
from temper.models.hf import load_classifier


def check_named_models(
    settings: EvaluationSettings, *, regression: bool, reference: bool = True
) -> None:
    """Load every further model that will be needed.

    Args:
        settings: What is to be measured; it names the models.
        regression: Whether values are predicted, which no text attack misleads.
        reference: Whether the pre-trained model is looked at, too; False where it is loaded anyway.

    Raises:
        SettingError: Models cannot be loaded; it names each with the setting that names it.
    """
    named: dict[str, tuple[str | None, Callable[[str], object]]] = {}
    if reference:
        asked = settings.section("representation", RepresentationSettings)
        named["representation.reference"] = (asked.reference, _reference)
    if "text_attack" in settings.perspectives and not regression:
        attack = settings.section("text_attack", TextAttackSettings)
        named["text_attack.masked_model"] = (attack.masked_model, _masked)
        named["text_attack.similarity_model"] = (attack.similarity_model, _similarity)
    faults = []
    for setting, (model, load) in named.items():
        try:
            if model is not None:
                load(model)
        except ModelError as error:
            faults.append(f"`evaluate.{setting}`: {error}")
    if faults:
        raise SettingError("\n".join(faults))


def _reference(name: str) -> object:
    # Its head is new, as `temper.app.reference` loads it.
    return load_classifier(name, labels=("0", "1"))


def _masked(name: str) -> object:
    from temper.models.masked import MaskedModel

    return MaskedModel.load(name)


def _similarity(name: str) -> object:
    from temper.models.sentence import SentenceEncoder

    return SentenceEncoder.load(name)
