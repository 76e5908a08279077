"""The further models of an evaluation: those that its settings name, and the pre-trained one.

All that are named are loaded once before any work: a look at a model's config does not show that
its weights are there and whole. What was loaded is let go again: who needs it comes hours later.
"""

from __future__ import annotations

from dataclasses import replace

from temper.checkpoints.checkpoint import Checkpoint
from temper.errors import ModelError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.perspectives.representation import RepresentationSettings
from temper.evaluation.predictor import Predictor
from temper.evaluation.sets import EvaluationSets
from temper.evaluation.settings import EvaluationSettings
from temper.evaluation.text_attack.contract import TextAttackSettings
from temper.models.classical import ARCHITECTURES
from temper.models.hf import load_classifier
from temper.models.masked import MaskedModel
from temper.models.sentence import SentenceEncoder


def named_models(settings: EvaluationSettings) -> dict[str, str]:
    """Return the further models that settings name, by the setting.

    Args:
        settings: What is measured.
    """
    attack = settings.section("text_attack", TextAttackSettings)
    reference = settings.section("representation", RepresentationSettings).reference
    named = {
        "representation.reference": reference,
        "text_attack.masked_model": attack.masked_model,
        "text_attack.similarity_model": attack.similarity_model,
    }
    return {setting: model for setting, model in named.items() if model is not None}


def check_named_models(
    settings: EvaluationSettings, *, regression: bool, reference: bool = True
) -> None:
    """Load every further model that will be needed.

    Args:
        settings: What is to be measured; it names the models.
        regression: Whether values are predicted, which no text attack misleads.
        reference: Whether the pre-trained model is looked at too; False where it is loaded anyway.

    Raises:
        SettingError: Models cannot be loaded; it names each with the setting that names it.
    """
    attacks = "text_attack" in settings.perspectives and not regression
    faults = []
    for setting, model in named_models(settings).items():
        try:
            if setting == "representation.reference":
                if reference:
                    # Its head is new: states are read below it.
                    load_classifier(model, labels=("0", "1"), new_head=True)
            elif attacks and setting == "text_attack.masked_model":
                MaskedModel.load(model)
            elif attacks:
                SentenceEncoder.load(model)
        except ModelError as error:
            faults.append(f"`evaluate.{setting}`: {error}")
    if faults:
        raise SettingError("\n".join(faults))


def with_reference(
    sets: EvaluationSets, model: Checkpoint, predictor: Predictor, settings: EvaluationSettings
) -> EvaluationSets:
    """Add the pre-trained model to the sets where a perspective compares with it.

    It is read with the fine-tuned model's longest row, on its device. Its head is new: states are
    read below the head.

    Args:
        sets: The loaded sets.
        model: What was loaded: a run, another checkpoint, or something without states.
        predictor: It.
        settings: What is measured, and ``reference`` where a person names one.

    Returns:
        The same sets, with the reference or a notice on why there is none.

    Raises:
        ModelError: The model that was named cannot be loaded.
        SettingError: One was named for something without hidden states.
    """
    asked = settings.section("representation", RepresentationSettings).reference
    if "representation" not in settings.perspectives:
        return sets
    if not isinstance(predictor, ClassifierPredictor):
        if asked is not None:
            raise SettingError(
                f"`reference` names a model to compare hidden states with, and {model} is no "
                "checkpoint, so it shows none. Leave the name out."
            )
        return sets
    name = asked or model.pretrained
    if name is None:
        return sets
    if asked is None and name in ARCHITECTURES:
        notice = (
            f"{model} was trained from scratch, so there is no pre-trained model to compare its "
            "hidden states with. To compare with another, set evaluate.representation.reference."
        )
        return replace(sets, notices=(*sets.notices, notice))
    try:
        network, tokenizer = load_classifier(
            name, labels=("0", "1"), device=str(predictor.device), new_head=True
        )
    except ModelError as error:
        if asked is not None:
            raise
        notice = f"The pre-trained model {name!r} of {model} could not be loaded: {error}"
        return replace(sets, notices=(*sets.notices, notice))
    reference = ClassifierPredictor(
        network,
        tokenizer,
        max_length=predictor.max_length,
        batch_size=predictor.batch_size,
        precision=predictor.precision,
    )
    return replace(sets, data=replace(sets.data, reference=reference))
