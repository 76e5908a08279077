"""Load what a person names to be evaluated: a checkpoint, a skops file, a Python function."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, get_args

from torch.nn import Module

from temper.checkpoints.folder import read_json
from temper.checkpoints.identity import digest, model_identity
from temper.data.columns import Columns
from temper.data.encode import ENCODED_FIRST, cut_notice, unknown_notices
from temper.data.examples import Examples
from temper.errors import DataError, ModelError, SettingError, unknown
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import (
    CallablePredictor,
    EstimatorPredictor,
    PipelinePredictor,
    known_gives,
)
from temper.evaluation.predictor import Gives, Precision, Predictor
from temper.evaluation.sources import PredictorSettings
from temper.functional.label_names import GivenNames, placeholders
from temper.importing import import_named
from temper.models.classical.registry import ARCHITECTURES
from temper.models.hf import load_classifier
from temper.models.kinds import position_limit
from temper.models.pipelines import is_text_pipeline, load_skops
from temper.settings import known_device

DEFAULT_LENGTH = 128
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle")


def load_predictor(
    model: str,
    *,
    max_length: int | None = None,
    batch_size: int = 32,
    device: str | None = None,
    precision: Precision = "fp32",
    settings: PredictorSettings | None = None,
    held: object = None,
) -> Predictor:
    """Load a predictor by what a person names, or make one of an object that is there already.

    Args:
        model: Folder of a run, of any Transformers checkpoint or of a PEFT adapter, or a Hub id;
            a scikit-learn pipeline in a ``.skops`` file, or a folder with one; or
            ``file.py:name`` or ``module:name`` of a function from texts to answers, an estimator,
            a pipeline of Transformers or a predictor of one's own, whose code then runs.
        max_length: Tokens a text is cut to, of a checkpoint; None takes what the run was trained
            with, else 128.
        batch_size: Rows of a forward pass, >= 1.
        device: Where a checkpoint runs; None takes what ``settings`` say.
        precision: What a checkpoint answers in, as ``evaluate.precision`` says.
        settings: What the predictor does not say itself, and where a checkpoint runs.
        held: A function, an estimator, a pipeline or a predictor in memory, which ``model`` is
            then only the name of; None loads what ``model`` names.

    Returns:
        The predictor.

    Raises:
        ModelError: Where it cannot be loaded.
        SettingError: Where a setting is wrong, or has no meaning for such a predictor.
    """
    settings = settings or PredictorSettings()
    device = device or settings.device
    skops = skops_file(model) if held is None else None
    if skops is None and held is None and not names_code(model):
        why = "a checkpoint says what it gives, and nothing in it is loaded on trust"
        _refuse(model, why, settings, "gives", "trust")
        if max_length is None:
            max_length = trained_settings(model).get("data", {}).get("max_length", DEFAULT_LENGTH)
        if max_length < 4:
            raise SettingError(f"`max_length` must be >= 4, got {max_length}.")
        try:
            known_device(device or "auto")
        except ValueError as error:
            raise SettingError(f"`device` {error}, got {device!r}.") from error
        given = settings.given_names
        network, tokenizer = load_classifier(model, device=device or "auto", given=given)
        predictor = ClassifierPredictor(
            network,
            tokenizer,
            max_length=max_length,
            batch_size=batch_size,
            precision=precision,
        )
        if predictor.gives == "values":
            _refuse(model, "a regression has no classes", settings, "label_names", "label_map")
        return predictor
    if max_length is not None:
        raise SettingError(
            f"`max_length` cuts the tokens of a checkpoint, and {model} is none. Leave it out."
        )
    if device is not None:
        raise SettingError(f"`device` moves a checkpoint, and {model} is none. Leave it out.")
    if precision != "fp32":
        raise SettingError(
            f"`evaluate.precision` is that of a checkpoint's answers, and {model} is none. Leave "
            "it out."
        )
    if skops is not None:
        _refuse(model, "a scikit-learn pipeline says what it gives", settings, "gives")
        estimator = load_skops(skops, trusted=settings.trust)
        return _mapped(EstimatorPredictor(estimator, label_names=settings.label_names), settings)
    _refuse(model, "only a skops file holds types to trust", settings, "trust")
    return _of_code(model, _named(model) if held is None else held, settings)


def skops_file(model: str) -> Path | None:
    """Return the skops file that a name stands for, None where it stands for something else.

    Args:
        model: A ``.skops`` file, or a folder that holds one and no checkpoint.

    Raises:
        ModelError: It is a pickle, or a folder with several skops files.
    """
    path = Path(model).expanduser()
    if path.is_dir():
        held = sorted(path.glob("*.skops"))
        if not held or any(
            (path / name).exists() for name in ("config.json", "adapter_config.json")
        ):
            return None
        if len(held) > 1:
            raise ModelError(
                f"{model} holds {', '.join(file.name for file in held)}. Name one of them."
            )
        return held[0]
    if path.suffix in _PICKLES:
        raise ModelError(
            f"{model} is a pickle, and loading one runs whatever code it holds; Temper never does. "
            "Where you trust it, load it yourself and save it with "
            f"skops.io.dump(pipeline, {path.with_suffix('.skops').name!r}), or name a function "
            "that loads it: file.py:function."
        )
    return path if path.suffix == ".skops" else None


def names_code(model: str) -> bool:
    """Return whether a name is ``file.py:name`` or ``module:name``.

    Raises:
        SettingError: It is a Python file without a function's name.
    """
    if Path(model).expanduser().exists() and not model.endswith(".py"):
        return False
    if model.endswith(".py"):
        raise SettingError(
            f"{model} is a file of Python code. Name the function in it: {model}:FUNCTION."
        )
    return ":" in model


def longest_row(predictor: Predictor) -> int | None:
    """Return the tokens that a predictor cuts texts to, None where it does not say."""
    length = getattr(predictor, "max_length", None)
    return None if length is None else int(length)


def cut_in(predictor: Predictor, fraction: float | None, *, rows: str) -> tuple[str, ...]:
    """Report which fraction of some rows a checkpoint has cut at the length limit.

    Args:
        predictor: The loaded model; only a checkpoint has a tokenizer here.
        fraction: Fraction of the rows that was cut, as its `Prediction` has it.
        rows: What the rows are, for example ``held-out rows``.
    """
    if not fraction or not isinstance(predictor, ClassifierPredictor):
        return ()
    longest, positions = predictor.tokenizer.model_max_length, position_limit(predictor.model)
    longest = longest if positions is None else min(longest, positions)
    length = predictor.max_length
    return (cut_notice(fraction, rows=rows, max_length=length, longest=longest),)


def unknown_in(predictor: Predictor, model: str, sets: Mapping[str, Examples]) -> tuple[str, ...]:
    """Report which fraction of the tokens of some sets the model's tokenizer does not know.

    Args:
        predictor: The loaded model; only a checkpoint has a tokenizer here.
        model: Its name, for the message.
        sets: What the rows are, for example ``rows of set 'dev'``; the first 1,000 are looked at.
    """
    if not isinstance(predictor, ClassifierPredictor):
        return ()
    notices: tuple[str, ...] = ()
    for rows, examples in sets.items():
        first = examples.select(range(min(len(examples), ENCODED_FIRST)))
        some = rows if len(first) == len(examples) else f"first {len(first):,} {rows}"
        from_scratch = getattr(predictor.model.config, "model_type", "") in ARCHITECTURES
        notices += unknown_notices(
            predictor.encoded(first),
            predictor.tokenizer,
            rows=some,
            model=model,
            own_vocabulary=from_scratch,
        )
    return notices


def predictor_identity(model: str, settings: PredictorSettings | None = None) -> str:
    """Say which weights or code a name stands for, so that a key does not outlive them.

    Of code only the named file counts, not what it imports or reads.

    Args:
        model: As `load_predictor` takes it, and has loaded it.
        settings: What is known of it beside its files.

    Returns:
        A hash of the content, or the name itself of a model of the Hub.
    """
    settings = settings or PredictorSettings()
    file, name = skops_file(model), ""
    if file is None and names_code(model):
        source, name = _parts(model)
        file = Path(import_named(source, purpose="predictors").__file__ or source)
    named: dict[str, Any] = {"label_map": settings.label_map} if settings.label_map else {}
    if file is None:
        identity = model_identity(model)
        if not settings.given_names:
            return identity
        return digest({"content": identity, "label_names": settings.label_names, **named})
    named |= {"label_names": settings.label_names}
    described = {"gives": settings.gives, "name": name, **named}
    content = hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()
    return digest({"content": content, **described})


def trained_settings(model: str) -> Mapping[str, Any]:
    """Return the settings that a run was trained with, or those of an export."""
    for name in ("run.json", "export.json"):
        file = Path(model) / name
        if file.exists():
            settings: Mapping[str, Any] = read_json(file).get("settings", {})
            return settings
    return {}


def run_key_of(model: str) -> str | None:
    """Return the key of the run whose folder a model is; None for other models."""
    file = Path(model) / "run.json"
    return read_json(file).get("key") if file.exists() else None


def trained_pairs(model: str) -> bool | None:
    """Return whether the rows of a run had second texts; None where nothing says so."""
    file = Path(model) / "run.json"
    data = read_json(file).get("data", {}) if file.exists() else {}
    paired: bool | None = data.get("train", {}).get("text_pair")
    return paired


def check_pairs(model: str, trained: bool | None, given: bool, *, rows: str) -> None:
    """Refuse texts without a second one for a model of pairs, and the other way round.

    Args:
        model: The model.
        trained: What `trained_pairs` says of it.
        given: Whether the texts have a second one.
        rows: What they are, for the error.

    Raises:
        DataError: They are of the other form.
    """
    if trained is None or trained is given:
        return
    if trained:
        raise DataError(
            f"{model} was trained on pairs of texts, and {rows} lack a second one. Give it: "
            "`text_pairs`, --text-pair, or its column with --text-pair-column."
        )
    raise DataError(
        f"{model} was trained on single texts, and {rows} have a second one. Leave it out: "
        "`text_pairs`, --text-pair, or name the text's column alone with --text-column."
    )


def trained_columns(model: str) -> tuple[Columns, ...]:
    """Return the columns of a run's data: those that its settings name, else those it read.

    Further sources often have the same columns; groups are a matter of each source.

    Args:
        model: Folder of a run; anything else has none.
    """
    data = trained_settings(model).get("data", {})
    named = Columns(*(data.get(f"{role}_column") for role in ("text", "text_pair", "label")))
    file = Path(model) / "run.json"
    record = read_json(file).get("data", {}) if file.exists() else {}
    read = Columns.of(record.get("train", {}).get("source", {}))
    if named.text is None and named.text_pair is None:
        named = replace(named, text=read.text, text_pair=read.text_pair)
    columns = replace(named, label=named.label or read.label)
    return () if columns == Columns() else (columns,)


def trained_encoding(model: str) -> str | None:
    """Return the encoding of a run's data, None where nobody named one.

    It is taken for further files that are not UTF-8, which are errors otherwise.

    Args:
        model: Folder of a run; anything else has none.
    """
    encoding: str | None = trained_settings(model).get("data", {}).get("encoding")
    return encoding


def _of_code(model: str, thing: Any, settings: PredictorSettings) -> Predictor:
    """Make a predictor of an object."""
    if isinstance(thing, type):
        raise ModelError(f"{model} is a class. Name a function, or an object of the class.")
    if isinstance(thing, Predictor):
        why = "a predictor says what it gives and names"
        _refuse(model, why, settings, "gives", "label_names", "label_map")
        return thing
    if is_text_pipeline(thing):
        _refuse(model, "its model's config says what it gives", settings, "gives")
        pipeline = PipelinePredictor(thing)
        if pipeline.gives == "values":
            _refuse(model, "a regression has no classes", settings, "label_names", "label_map")
        elif settings.given_names:
            config = thing.model.config
            names = pipeline.label_names or placeholders(config.num_labels)
            pipeline.label_names = settings.given_names.applied(names)
        return pipeline
    if hasattr(thing, "predict_proba") or (hasattr(thing, "predict") and hasattr(thing, "fit")):
        _refuse(model, "a scikit-learn estimator says what it gives", settings, "gives")
        return _mapped(EstimatorPredictor(thing, label_names=settings.label_names), settings)
    if isinstance(thing, Module):
        raise ModelError(
            f"{model} is a network, which takes token ids and no texts. Give its folder, or "
            "temper.evaluation.classifier.ClassifierPredictor(model, tokenizer)."
        )
    if not callable(thing):
        raise ModelError(
            f"{model} is {type(thing).__name__}, expected a function from texts to answers, a "
            "scikit-learn estimator, a pipeline of Transformers or a predictor."
        )
    gives = _told(model, "gives", settings.gives, getattr(thing, "gives", None))
    if gives is None:
        choices = " or ".join(repr(name) for name in get_args(Gives))
        raise SettingError(
            f"{model} does not say what it returns. Give --gives, or set its attribute `gives` to "
            f"{choices}."
        )
    own = getattr(thing, "label_names", None)
    names = _told(model, "label_names", settings.label_names, None if own is None else tuple(own))
    made = CallablePredictor(thing, gives=known_gives(gives), label_names=names)
    return _mapped(made, settings)


def _mapped(predictor: CallablePredictor, settings: PredictorSettings) -> CallablePredictor:
    """Rename the classes of a function or an estimator by ``label_map``."""
    if settings.label_map:
        if predictor.label_names is None:
            raise SettingError(
                "--label-map renames the model's classes, and the model names none. Give "
                "--label-names, one name per output."
            )
        renaming = GivenNames(label_map=settings.label_map)
        predictor.label_names = renaming.applied(predictor.label_names)
    return predictor


def _named(model: str) -> Any:
    """Import what ``file.py:name`` or ``module:name`` stands for."""
    source, name = _parts(model)
    try:
        target: Any = import_named(source, purpose="predictors")
    except SettingError as error:
        if not source.endswith(".py") and Path(f"{source}.py").is_file():
            raise SettingError(f"{error} Did you mean {source}.py:{name}?") from error
        raise
    for part in name.split("."):
        if not hasattr(target, part):
            known = [each for each in vars(target) if not each.startswith("_")]
            raise ModelError(f"{unknown('name', part, known)} It is looked for in {source}.")
        target = getattr(target, part)
    return target


def _parts(model: str) -> tuple[str, str]:
    source, _, name = model.rpartition(":")
    if not source or not name:
        raise SettingError(f"Code is named file.py:NAME or module:NAME, got {model!r}.")
    return str(Path(source).expanduser()) if source.endswith(".py") else source, name


def _told(model: str, what: str, option: Any, attribute: Any) -> Any:
    """Return what a function's attribute or an option says of it."""
    if option is not None and attribute is not None and option != attribute:
        raise SettingError(
            f"{model} says itself that its `{what}` is {attribute!r}, and the option says "
            f"{option!r}. Leave one out."
        )
    return attribute if option is None else option


def _refuse(model: str, why: str, settings: PredictorSettings, *names: str) -> None:
    """Refuse settings that have no meaning for a predictor."""
    given = [name for name in names if getattr(settings, name)]
    if given:
        options = ", ".join(f"--{name.replace('_', '-')}" for name in given)
        raise SettingError(f"{options} cannot be given for {model}: {why}. Leave it out.")
