"""Load a model as a predictor: weights, a skops file, a Python function."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from torch.nn import Module

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import read_json
from temper.checkpoints.identity import digest, model_identity
from temper.data.encode import ENCODED_FIRST, unknown_notices
from temper.data.examples import LABELS_OF, Examples, Kind
from temper.data.windows import check_windows
from temper.errors import CheckpointError, ModelError, SettingError, unknown
from temper.evaluation.classifier import ClassifierPredictor, TextPredictor
from temper.evaluation.function import (
    OF_FUNCTIONS,
    CallablePredictor,
    EstimatorPredictor,
    PipelinePredictor,
)
from temper.evaluation.generator import TextGenerator
from temper.evaluation.int8 import Int8Predictor
from temper.evaluation.lengths import check_length, length_of, read_in_windows, refuse_windows
from temper.evaluation.perspectives.representation import RepresentationSettings
from temper.evaluation.predictor import KINDS, Precision, Predictor
from temper.evaluation.sets import EvaluationSets
from temper.evaluation.settings import EvaluationSettings, PredictorSettings
from temper.evaluation.text_attack.contract import TextAttackSettings
from temper.functional.label_names import GivenNames, placeholders
from temper.heads import Completions
from temper.importing import import_named
from temper.models.classical.registry import ARCHITECTURES
from temper.models.hf import HEADED, checkpoint_head, load_classifier, load_headed
from temper.models.int8 import FOLDER as INT8
from temper.models.int8 import RECORD
from temper.models.masked import MaskedModel
from temper.models.pipelines import is_text_pipeline, load_skops
from temper.models.sentence import SentenceEncoder
from temper.models.windows import set_windows
from temper.settings import known_device

NamedPredictor = TypeVar("NamedPredictor", Int8Predictor, PipelinePredictor)
FOR_CHECKPOINTS = "a checkpoint defines its output and needs no trusted types"
"""Reason in errors about ``gives`` and ``trust`` for a checkpoint."""


def load_predictor(
    model: Checkpoint,
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
    precision: Precision = "fp32",
    settings: PredictorSettings | None = None,
) -> Predictor:
    """Load a model as a predictor.

    Args:
        model: A checkpoint, a scikit-learn pipeline in a skops file, or an object in memory or in
            a Python file, which is run: a function of texts, an estimator, a pipeline of
            Transformers or a predictor.
        max_length: Maximum number of tokens of a text, for a checkpoint; None uses that of the
            training, else 128.
        batch_size: Rows of a forward pass, >= 1.
        device: Device of a checkpoint; None uses that of ``settings``.
        precision: Precision of a checkpoint's forward passes, as in ``evaluate.precision``.
        settings: Further settings, such as the output type of a function.

    Raises:
        ModelError: The model cannot be loaded.
        SettingError: A setting is wrong, or has no effect on this kind of model.
    """
    settings = settings or PredictorSettings()
    device = device or settings.device
    _refuse_new_tokens(model, settings)
    if settings.given_windows and model.kind != "weights":
        refuse_windows(f"{model} is not a checkpoint")
    if model.kind == "weights":
        _refuse(model, FOR_CHECKPOINTS, settings, "gives", "trust")
        check_length(max_length)
        try:
            known_device(device or "auto")
        except ValueError as error:
            raise SettingError(f"`device` {error}, got {device!r}.") from error
        head = checkpoint_head(model.name)
        if issubclass(head, Completions):
            return load_generator(
                model, head, max_length=max_length, batch_size=batch_size, settings=settings
            )
        if head.name not in HEADED:
            network, tokenizer = load_classifier(
                model.name, device=device or "auto", given=settings.given_names
            )
        else:
            why = f"its head ({head.name}) has no names of classes"
            _refuse(model, why, settings, "label_names", "label_map")
            network, tokenizer = load_headed(model.name, head.name, device=device or "auto")
        length = length_of(model, max_length, network)
        read_in_windows(network, settings, max_length=length)
        predictor = ClassifierPredictor(
            network,
            tokenizer,
            max_length=length,
            batch_size=batch_size,
            precision=precision,
        )
        if predictor.gives == "values":
            _refuse(model, "a regression has no classes", settings, "label_names", "label_map")
        return predictor
    given = {"max_length": max_length, "device": device}
    given["evaluate.precision"] = None if precision == "fp32" else precision
    for name, value in given.items():
        if value is not None:
            raise SettingError(
                f"`{name}` applies to checkpoints, and {model} is not one. Leave it out."
            )
    if model.kind == "skops":
        assert model.skops is not None
        _refuse(model, "a scikit-learn pipeline defines its output", settings, "gives")
        estimator = load_skops(model.skops, trusted=settings.trust)
        return _mapped(EstimatorPredictor(estimator, label_names=settings.label_names), settings)
    _refuse(model, "only a skops file contains types to trust", settings, "trust")
    return _of_code(model, _named(model) if model.kind == "code" else model.in_memory, settings)


def load_int8_predictor(
    model: Checkpoint,
    *,
    max_length: int | None = None,
    settings: PredictorSettings | None = None,
) -> Int8Predictor:
    """Load the 8-bit copy of a checkpoint from the checkpoint's folder.

    Raises:
        SettingError: There is no copy, ONNX Runtime is not installed, or a setting is wrong.
        CheckpointError: The copy is damaged, or was made from other weights.
    """
    settings = settings or PredictorSettings()
    if settings.device not in (None, "auto", "cpu"):
        raise SettingError(
            f"The backend int8 runs on the CPU. Leave `device` ({settings.device}) out."
        )
    _refuse_new_tokens(model, settings)
    folder = model.folder / INT8
    make = f"temper calibrate {model} --data HELD_OUT --backend int8"
    if model.kind != "weights" or not (folder / RECORD).is_file():
        raise SettingError(
            f"{model} has no 8-bit copy. Make it from a checkpoint and held-out rows: {make}"
        )
    _refuse(model, FOR_CHECKPOINTS, settings, "gives", "trust")
    if read_json(folder / RECORD).get("model") != model_identity(model.name):
        raise CheckpointError(
            f"The 8-bit copy in {folder} was made from weights that differ from the model's. Make "
            f"it again: {make}"
        )
    if settings.given_windows:
        refuse_windows("an 8-bit copy reads each text as one sequence")
    check_length(max_length)
    predictor = Int8Predictor.load(folder, max_length=length_of(model, max_length))
    return _renamed(predictor, predictor.config, model, settings)


def _refuse_new_tokens(model: Checkpoint, settings: PredictorSettings) -> None:
    """Raise if `max_new_tokens` is set; call it if the model generates no text."""
    if settings.max_new_tokens is not None:
        raise SettingError(
            f"`predictor.max_new_tokens` applies to language models that generate text, and "
            f"{model} generates none here. Leave it out."
        )


def load_generator(
    model: Checkpoint,
    head: type[Completions],
    *,
    max_length: int | None,
    batch_size: int,
    settings: PredictorSettings,
) -> TextGenerator:
    """Load a language model that generates text; see `load_predictor`."""
    check_length(max_length)
    if settings.given_windows:
        check_windows(head.name, setting="predictor.stride")
    why = "a language model predicts no labels"
    _refuse(model, why, settings, "gives", "trust", "label_names", "label_map")
    network, tokenizer = load_headed(model.name, head.name, device=settings.device or "auto")
    return TextGenerator(
        network,
        tokenizer,
        max_length=length_of(model, max_length),
        batch_size=batch_size,
        max_new_tokens=settings.max_new_tokens or 256,
    )


def unknown_in(
    predictor: Predictor, model: object, sets: Mapping[str, Examples]
) -> tuple[str, ...]:
    """Return notices on sets with many tokens that the checkpoint's tokenizer does not know.

    Only the first 1,000 rows of each set are read. ``sets``: name of the rows in the notice -> set.
    """
    if not isinstance(predictor, TextPredictor):
        return ()
    notices: tuple[str, ...] = ()
    for rows, examples in sets.items():
        first, some = examples, rows
        if len(examples) > ENCODED_FIRST:
            first = examples.select(range(ENCODED_FIRST))
            some = f"first {ENCODED_FIRST:,} {rows}"
        from_scratch = getattr(predictor.config, "model_type", "") in ARCHITECTURES
        notices += unknown_notices(
            predictor.encoded(first),
            predictor.tokenizer,
            rows=some,
            model=str(model),
            own_vocabulary=from_scratch,
        )
    return notices


def predictor_identity(model: Checkpoint, settings: PredictorSettings | None = None) -> str:
    """Return a fingerprint of weights or code, and of the settings that affect predictions.

    For weights without such settings, it is `Checkpoint.content_hash`.
    """
    settings, content = settings or PredictorSettings(), model.content_hash()
    windows = settings.given_windows
    if model.kind == "object" or (
        model.kind == "weights" and not settings.given_names and not windows
    ):
        return content
    named: dict[str, Any] = {"label_names": settings.label_names, **windows}
    if settings.label_map:
        named["label_map"] = settings.label_map
    if model.kind == "weights":
        return digest({"content": content, **named})
    name = model.code[1] if model.kind == "code" else ""
    return digest({"content": content, "gives": settings.gives, "name": name, **named})


def check_kind(predictor: Predictor, model: object, kinds: Sequence[Kind], *, what: str) -> None:
    """Raise unless a model's labels are of one of ``kinds``; the message is about ``what``."""
    kind = KINDS[predictor.gives]
    if kind not in kinds:
        raise ModelError(
            f"{model} predicts {LABELS_OF[kind]}. {what} does not support them; `temper train` and "
            "`temper predict` do."
        )


def _of_code(model: Checkpoint, thing: Any, settings: PredictorSettings) -> Predictor:
    if isinstance(thing, type):
        raise ModelError(f"{model} is a class. Name a function, or an object of the class.")
    if isinstance(thing, Predictor):
        why = "a predictor defines its output and its names"
        _refuse(model, why, settings, "gives", "label_names", "label_map")
        return thing
    if is_text_pipeline(thing):
        _refuse(model, "its model's config defines the output", settings, "gives")
        return _renamed(PipelinePredictor(thing), thing.model.config, model, settings)
    if hasattr(thing, "predict_proba") or (hasattr(thing, "predict") and hasattr(thing, "fit")):
        _refuse(model, "a scikit-learn estimator defines its output", settings, "gives")
        return _mapped(EstimatorPredictor(thing, label_names=settings.label_names), settings)
    if isinstance(thing, Module):
        raise ModelError(
            f"{model} is a network, which takes token ids instead of texts. Pass its folder, or "
            "temper.evaluation.classifier.ClassifierPredictor(model, tokenizer)."
        )
    if not callable(thing):
        raise ModelError(
            f"{model} is {type(thing).__name__}, expected a function of texts, a scikit-learn "
            "estimator, a pipeline of Transformers or a predictor."
        )
    gives = _declared(model, "gives", settings.gives, getattr(thing, "gives", None))
    if gives is None:
        choices = " or ".join(repr(name) for name in OF_FUNCTIONS)
        raise SettingError(
            f"The output type of {model} is unknown. Pass --gives, or set its attribute `gives` to "
            f"{choices}."
        )
    class_names = getattr(thing, "label_names", None)
    names = _declared(
        model,
        "label_names",
        settings.label_names,
        None if class_names is None else tuple(class_names),
    )
    return _mapped(CallablePredictor(thing, gives=gives, label_names=names), settings)


def _renamed(
    predictor: NamedPredictor, config: Any, model: Checkpoint, settings: PredictorSettings
) -> NamedPredictor:
    if predictor.gives == "values":
        _refuse(model, "a regression has no classes", settings, "label_names", "label_map")
    elif settings.given_names:
        names = predictor.label_names or placeholders(config.num_labels)
        predictor.label_names = settings.given_names.applied(names)
    return predictor


def _mapped(predictor: CallablePredictor, settings: PredictorSettings) -> CallablePredictor:
    if settings.label_map:
        if predictor.label_names is None:
            raise SettingError(
                "--label-map renames the model's classes, and the model names none. Pass "
                "--label-names, one name per output."
            )
        renaming = GivenNames(label_map=settings.label_map)
        predictor.label_names = renaming.applied(predictor.label_names)
    return predictor


def _named(model: Checkpoint) -> Any:
    source, name = model.code
    try:
        target: Any = import_named(source, purpose="predictors")
    except SettingError as error:
        if not source.endswith(".py") and Path(f"{source}.py").is_file():
            raise SettingError(f"{error} Did you mean {source}.py:{name}?") from error
        raise
    for part in name.split("."):
        if not hasattr(target, part):
            known = [variable for variable in vars(target) if not variable.startswith("_")]
            raise ModelError(f"{unknown('name', part, known)} It must be defined in {source}.")
        target = getattr(target, part)
    return target


def _declared(model: object, what: str, option: Any, attribute: Any) -> Any:
    """Return a function's attribute ``what`` or the option; raise if they differ."""
    if option is not None and attribute is not None and option != attribute:
        raise SettingError(
            f"{model} defines its `{what}` as {attribute!r}, and the option is {option!r}. Leave "
            "one out."
        )
    return attribute if option is None else option


def _refuse(model: object, why: str, settings: PredictorSettings, *names: str) -> None:
    given = [name for name in names if getattr(settings, name)]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SettingError(f"{options} cannot be given for {model}: {why}. Leave it out.")


def named_models(settings: EvaluationSettings) -> dict[str, str]:
    """Return the auxiliary models of perspectives: setting -> model, if it is given."""
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
    """Check that the auxiliary models of perspectives can be loaded, before any work.

    ``reference``: whether to check the pre-trained model of ``representation`` too; False if it is
    loaded anyway.

    Raises:
        SettingError: Some models cannot be loaded; the message lists them with their settings.
    """
    attacks = "text_attack" in settings.perspectives and not regression
    faults = []
    for setting, model in named_models(settings).items():
        try:
            if setting == "representation.reference":
                if reference:
                    # Its head is random; the states are read below the head.
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
    """Load the pre-trained model for ``representation``, if measured, into ``sets.data.reference``.

    It gets the maximum length and the device of the fine-tuned model. If the pre-trained model is
    unknown, the sets get a notice instead.

    Raises:
        ModelError: The pre-trained model cannot be loaded.
        SettingError: The evaluated model has no hidden states to compare.
    """
    asked = settings.section("representation", RepresentationSettings).reference
    if "representation" not in settings.perspectives:
        return sets
    if not isinstance(predictor, ClassifierPredictor):
        if asked is not None:
            raise SettingError(
                f"`reference` names a model to compare hidden states with, and {model} has no "
                "hidden states, because it is not a checkpoint. Leave `reference` out."
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
    set_windows(network, predictor.windows, max_length=predictor.max_length)
    reference = ClassifierPredictor(
        network,
        tokenizer,
        max_length=predictor.max_length,
        batch_size=predictor.batch_size,
        precision=predictor.precision,
    )
    return replace(sets, data=replace(sets.data, reference=reference))
