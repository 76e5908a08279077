"""Load models with a head, and their tokenizers, with Transformers and PEFT."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, Self

import torch
from huggingface_hub import snapshot_download
from torch import Tensor, nn
from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto import modeling_auto
from transformers.utils import find_adapter_config_file

import temper.models.registration  # noqa: F401  (so that saved networks of our own load)
from temper.errors import ModelError, TemperError
from temper.functional.label_names import GivenNames, placeholders
from temper.heads import HEADS, Completions, Head, Spans
from temper.models.adapters import add_adapter, is_adapted, with_trained_head
from temper.models.blocks import head_settings, names_setting
from temper.models.folders import (
    adapter_classes,
    check_config,
    check_folder,
    check_names,
    further_blocks,
)
from temper.models.heads import draw_head, order_of_head, reorder_head
from temper.models.kinds import saved_head
from temper.models.modes import quiet
from temper.models.names import MODELS, MULTI_TASK, not_loaded, resolve
from temper.models.windows import set_windows, windows_of
from temper.seeding import derive_seed, seeded

ADAPTER_FILES = ["*.json", "*.safetensors", "*.txt", "*.model"]
"""Files that are loaded from an adapter on the Hub: neither code nor pickles."""
HEADED = frozenset(name for name, head in HEADS.items() if head.has_classes and not head.named)
"""Names of the heads whose outputs have no class names, which `load_headed` loads."""


def load_classifier(
    name: str,
    *,
    labels: Sequence[str] | None = None,
    kind: str | None = None,
    device: str = "cpu",
    seed: int = 0,
    new_adapter: Mapping[str, Any] | None = None,
    given: GivenNames | None = None,
    new_head: bool = False,
) -> tuple[Any, Any]:
    """Load a sequence classifier and its tokenizer.

    Args:
        name: A short name, a Hub id, a folder with a checkpoint, or a folder with a PEFT adapter.
        labels: Class names, two or more. If the checkpoint's head has as many classes, it is kept
            and its outputs are reordered by name; else a new head is initialized. None requires the
            checkpoint's own head.
        kind: Name of a head (`temper.heads`): with ``labels`` ``classification``, ``multi_label``
            or ``tokens``; without them ``regression``. None uses that of the checkpoint, or else
            classification.
        device: Where to put the model; ``auto`` takes a GPU if there is one.
        seed: Seed of a new head: equal seeds give equal heads.
        new_adapter: Arguments of the PEFT configuration of an adapter to train (`add_adapter`).
        given: The user's names for the checkpoint's classes.
        new_head: Whether to initialize a new head even if the checkpoint's fits.

    Returns:
        (model, tokenizer), the model in evaluation mode.

    Raises:
        ModelError: The model is missing or incomplete, or its head does not fit.

    Example:
        >>> model, tokenizer = load_classifier("minilm", labels=["negative", "positive"])
        >>> model.config.id2label[1]
        'positive'
    """
    where = device_of(device)
    _check_labels(labels)
    source = resolve(name)
    with loading(name):
        source, adapter, base, config = configured(source, name)
        if adapter is not None and new_adapter is not None:
            raise ModelError(
                f"{name!r} is already an adapter; it can be trained further without --lora and "
                "--peft. Leave them out, or pass its base model."
            )
        if config.model_type == MULTI_TASK:
            folders = ", ".join(f"{source}/tasks/{task}" for task in config.task_names)
            raise ModelError(
                f"{source} has a head for each of several tasks. Pass the folder of one: {folders}."
            )
        tokenizer = load_tokenizer(source, name, base=base)
        auto, classes = _own_head(source, config, adapter, kind)
        wanted = labels is not None or kind == "regression"
        if classes is None and not wanted:
            raise ModelError(
                f"{name!r} has no classification head (architectures: {config.architectures}). "
                "Fine-tune it first with `temper train`, or pass a fine-tuned checkpoint."
            )
        # Another head may have weights of the same names and sizes.
        new_head = new_head or (wanted and classes is None and _has_other_head(config))
        class_names = None if new_head else _class_names(config, classes, source, given)
        order = None
        if wanted:
            if class_names is not None and labels is not None and len(class_names) == len(labels):
                order = order_of_head(class_names, labels, name)
            of_labels, saved = HEADS[kind or "classification"], saved_head(config, adapter)
            # Several heads have the same kind of output; the checkpoint's config identifies one.
            head = saved if saved.gives == of_labels.gives else of_labels
            config.update(head_settings(labels, kind=head.name))
        else:
            config.num_labels = classes
            if class_names is not None:
                config.update(names_setting(class_names))
        set_padding(tokenizer, config, name)
        with seeded(derive_seed(seed, "head")):
            is_new = wanted or adapter is not None
            model, drawn = load_weights(auto, base, config, new_head=is_new)
            if adapter is not None:
                new = wanted and not _brings_head(adapter)
                model = _add_adapter(model, source, classes=classes, new_head=new)
            if new_head:
                drawn = sorted({*drawn, *draw_head(model)})
        if order is not None:
            reorder_head(model, tokenizer, order, name)
    if new_adapter is not None:
        model = add_adapter(model, new_adapter, drawn=drawn, seed=seed)
    if (result := windows_of(model)) is not None:
        set_windows(model, result.windows, max_length=result.max_length)
    return model.eval().to(where), tokenizer


def load_headed(
    name: str,
    head: str,
    *,
    device: str = "cpu",
    seed: int = 0,
    new_adapter: Mapping[str, Any] | None = None,
    trained: bool = False,
) -> tuple[Any, Any]:
    """Load a language model, or a model for multiple choice or spans, and its tokenizer.

    Args:
        name: A short name, a Hub id, a folder with a checkpoint, or one with a PEFT adapter.
        head: A key of `HEADED`.
        device: Where to put the model; ``auto`` takes a GPU if there is one.
        seed: Seed of a new head or adapter.
        new_adapter: Arguments of the PEFT configuration of an adapter to train (`add_adapter`).
        trained: Whether a missing head is initialized for training; it must exist in a decoder-only
            language model.

    Returns:
        (model, tokenizer), the model in evaluation mode.
    """
    where = device_of(device)
    source = resolve(name)
    wanted = HEADS[head]
    with loading(name):
        source, adapter, base, config = configured(source, name)
        has_head = saved_head(config, adapter) is wanted
        writes = issubclass(wanted, Completions)
        # BART is published without its head, which is its embedding table.
        if not has_head and not (trained and (not writes or config.is_encoder_decoder)):
            kind = "causal language model" if writes else f"model with a head for {head}"
            raise ModelError(
                f"{name!r} is no {kind} (architectures: {config.architectures}). Prompts with "
                "completions need a language model, such as SmolLM2, or an encoder-decoder, such "
                "as T5. Other data needs an encoder."
            )
        tokenizer = load_tokenizer(source, name, base=base)
        set_padding(tokenizer, config, name)
        if wanted is Spans:
            config.num_labels = 2
        new_head = not writes and (not has_head or adapter is not None)
        with seeded(derive_seed(seed, "head")):
            model, drawn = load_weights(wanted.auto_class, base, config, new_head=new_head)
            if not has_head and not writes:
                # Another head may have weights of the same names and sizes.
                drawn = sorted({*drawn, *draw_head(model)})
        # Nothing else in the folder of an adapter identifies the head.
        model.config.architectures = [type(model).__name__]
        # The checkpoint may be a classifier with windows, of which only the encoder is used.
        set_windows(model, None)
        if adapter is not None:
            model = put_on(model, source)
    if new_adapter is not None:
        model = add_adapter(model, new_adapter, drawn=drawn, seed=seed)
    return model.eval().to(where), tokenizer


def checkpoint_head(name: str) -> type[Head]:
    """Return the head of a checkpoint by its config, without reading its weights."""
    with loading(name):
        _, adapter, _, config = configured(resolve(name), name)
    return saved_head(config, adapter)


def is_encoder_decoder(name: str) -> bool:
    """Return whether a checkpoint is an encoder-decoder, without reading its weights."""
    with loading(name):
        return bool(configured(resolve(name), name)[-1].is_encoder_decoder)


def head_names(
    name: str, given: GivenNames | None = None, *, kind: str | None = None
) -> tuple[str, ...] | None:
    """Return the class names of a checkpoint's head in output order, without loading weights.

    Unnamed classes get placeholders. The result is None without a head, for a regression, and for a
    head of another ``kind`` than given (see `load_classifier`).
    """
    with loading(name):
        source, adapter, _, config = configured(resolve(name), name)
        _, classes = _own_head(source, config, adapter, kind)
        return _class_names(config, classes, source, given)


class PretrainedReader:
    """Base class of pre-trained models that are only run, in batches of similar length.

    Subclasses set ``kind``, the auto class that loads the model, and ``spare``, a part of the names
    of weights that may be missing. Texts are cut at ``max_length`` tokens. A forward pass has
    ``batch_size`` rows.
    """

    kind: ClassVar[Any]
    spare: ClassVar[str] = ""

    def __init__(
        self, model: nn.Module, tokenizer: Any, *, max_length: int, batch_size: int
    ) -> None:
        self.check_kind(getattr(model, "config", None), tokenizer)
        self.model = model
        self.tokenizer = tokenizer
        self.max_length = min(max_length, tokenizer.model_max_length)
        self.batch_size = batch_size

    @classmethod
    def check_kind(cls, config: Any, tokenizer: Any) -> None:
        """Raise a `ModelError` unless the class supports a model with this config and tokenizer."""
        raise NotImplementedError

    @classmethod
    def check(cls, name: str) -> None:
        """Call `check_kind` for a named model, without loading its weights."""
        with loading(name):
            _, config, tokenizer = _whole_model(name)
        cls.check_kind(config, tokenizer)

    @classmethod
    def load(cls, name: str = "minilm", *, device: str = "cpu", **sizes: int) -> Self:
        """Load a model by its short name, its Hub id, or its folder.

        ``auto`` takes a GPU if there is one. ``sizes`` are ``max_length`` and ``batch_size``. A
        checkpoint without its pre-training head raises a `ModelError`.
        """
        where = device_of(device)
        with loading(name):
            source, config, tokenizer = _whole_model(name)
            model, report = _load_model(cls.kind, source, config)
        missing = [key for key in report["missing_keys"] if not cls.spare or cls.spare not in key]
        wrong = sorted({*missing, *(key for key, *_ in report["mismatched_keys"])})
        if wrong:
            raise ModelError(_lacking(source, wrong, f"A {type(model).__name__} needs them."))
        return cls(model.requires_grad_(False).eval().to(where), tokenizer, **sizes)

    def batches(self, ids: Sequence[list[int]]) -> Iterator[tuple[list[int], dict[str, Tensor]]]:
        """Yield batches, longest rows first: the rows' indices and their padded inputs."""
        device = next(self.model.parameters()).device
        order = sorted(range(len(ids)), key=lambda index: -len(ids[index]))
        for start in range(0, len(order), self.batch_size):
            indices = order[start : start + self.batch_size]
            batch = self.tokenizer.pad(
                [{"input_ids": ids[row], "attention_mask": [1] * len(ids[row])} for row in indices],
                return_tensors="pt",
                verbose=False,
            )
            yield indices, {name: value.to(device) for name, value in batch.items()}


def lasting_name(name: str) -> str:
    """Return a name of a model that is valid in any working directory: no relative path."""
    if MODELS.get(name, {}).get("source", "").startswith("package "):
        return name
    return str(Path(name).resolve()) if Path(name).is_dir() else resolve(name)


def device_of(name: str) -> torch.device:
    """Return the device with a name; ``auto`` is a GPU if there is one."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"Unknown device {name!r}. Use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"Device {name!r}: no CUDA device is available. Use auto or cpu.")
    return device


def _check_labels(labels: Sequence[str] | None) -> None:
    if labels is not None and (len(labels) < 2 or len(set(labels)) < len(labels)):
        raise ModelError(
            f"`labels` must be two or more different names, got {list(labels)}. "
            "For one number use kind='regression'."
        )


@contextmanager
def loading(name: str) -> Iterator[None]:
    """Raise a `ModelError` with the model's name for any exception while loading it."""
    try:
        yield
    except TemperError:
        raise
    except Exception as error:
        # A config may contain anything, so the libraries may raise any kind of exception.
        raise ModelError(not_loaded(name, error)) from error


def _located(source: str) -> tuple[str, Any | None]:
    """Return a model's folder or Hub id, and its PEFT config if it is an adapter."""
    path = Path(source)
    if path.is_file():
        raise ModelError(f"{source} is a file; a model is a folder with config.json, or a Hub id.")
    if not path.is_dir():
        if find_adapter_config_file(source) is None:
            return source, None
        # Not left to Transformers, which adds the adapter to its base but saves it differently.
        path = Path(snapshot_download(source, allow_patterns=ADAPTER_FILES))
    check_folder(path)
    if not (path / "adapter_config.json").is_file():
        return source, None
    from peft import PeftConfig

    return str(path), PeftConfig.from_pretrained(str(path))


def configured(source: str, name: str) -> tuple[str, Any | None, str, Any]:
    """Return a model's folder or Hub id, PEFT config (or None), base model, and config."""
    source, adapter = _located(source)
    base = source
    if adapter is not None:
        if not adapter.base_model_name_or_path:
            raise ModelError(
                f"The base model of the adapter {name!r} is unknown. Set "
                "`base_model_name_or_path` in its adapter_config.json."
            )
        base = resolve(adapter.base_model_name_or_path)
    # The config in an adapter's run folder has the labels, which the base's config lacks.
    has_config = adapter is not None and Path(source, "config.json").is_file()
    return source, adapter, base, _load_config(source if has_config else base, weights=base)


def _load_config(source: str, *, weights: str) -> Any:
    config = AutoConfig.from_pretrained(source, trust_remote_code=False)
    attention = getattr(config, "_attn_implementation", None)
    check_config(config.to_dict(), attention, source, weights=weights)
    return config


def load_tokenizer(source: str, name: str, *, base: str | None = None) -> Any:
    """Load a tokenizer; ``name`` is the model's name in errors.

    Folders of PEFT adapters may lack one, so that of ``base``, the base model, is the fallback.
    """
    if base not in (None, source) and not Path(source, "tokenizer_config.json").is_file():
        source = base
    tokenizer = AutoTokenizer.from_pretrained(source, trust_remote_code=False)
    if len(tokenizer) <= len(set(tokenizer.all_special_tokens)):
        # Transformers creates an empty tokenizer if the files are missing.
        raise ModelError(
            f"{name!r} comes without a tokenizer, or its vocabulary is empty. Save the tokenizer "
            "next to the model (tokenizer.save_pretrained)."
        )
    return tokenizer


def _has_other_head(config: Any) -> bool:
    return any(
        kind in architecture
        for architecture in config.architectures or ()
        for kind in ("ForSequenceClassification", "ForTokenClassification", "ForMultipleChoice")
    )


def _own_head(
    source: str, config: Any, adapter: Any | None, kind: str | None
) -> tuple[str, int | None]:
    """Return the auto class, and the number of outputs of the checkpoint's head (None without)."""
    head = saved_head(config, adapter) if kind is None else HEADS[kind]
    auto = head.auto_class if head.named else Head.auto_class
    if adapter is not None:
        count = adapter_classes(Path(source))
        # Without task_type, an adapter has the head and the config of its base.
        if count is not None or _brings_head(adapter) or Path(source, "config.json").is_file():
            return auto, count
    ending = auto.removeprefix("AutoModel")
    named = any(ending in architecture for architecture in config.architectures or ())
    return auto, int(config.num_labels) if named else None


def _brings_head(adapter: Any) -> bool:
    """Return whether a PEFT adapter was trained and saved with its head, by its config."""
    return bool(getattr(adapter, "modules_to_save", None)) or adapter.task_type in (
        "SEQ_CLS",
        "TOKEN_CLS",
    )


def _class_names(
    config: Any, classes: int | None, source: str, given: GivenNames | None
) -> tuple[str, ...] | None:
    if classes is None or classes == 1 or getattr(config, "problem_type", None) == "regression":
        return None
    names = placeholders(classes)
    if config.num_labels == classes:
        check_names(config.id2label.values(), source)
        names = tuple(str(config.id2label[index]) for index in sorted(config.id2label, key=int))
    return given.applied(names) if given else names


def set_padding(tokenizer: Any, config: Any, name: str) -> None:
    """Set the same padding token in tokenizer and config; decoders find the last token by it."""
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if tokenizer.pad_token is None:
        raise ModelError(
            f"The tokenizer of {name!r} has neither a padding token nor another to pad with. "
            "Set tokenizer.pad_token and save it next to the model."
        )
    words = getattr(config, "vocab_size", None)
    if words is not None and tokenizer.pad_token_id >= words:
        raise ModelError(
            f"The tokenizer of {name!r} pads with token {tokenizer.pad_token_id} "
            f"({tokenizer.pad_token!r}), and the model has {words} embeddings. Set another "
            "tokenizer.pad_token and save it, or enlarge the model's embeddings."
        )
    config.pad_token_id = tokenizer.pad_token_id


def _load_model(auto_class: Any, source: str, config: Any) -> Any:
    """Return a model and Transformers' report on its weights, which the caller must check."""
    # Transformers also prints the report, as a warning.
    with quiet():
        return auto_class.from_pretrained(
            source,
            config=config,
            use_safetensors=True,
            # Only heads may differ in size; other differences are in the report.
            ignore_mismatched_sizes=True,
            output_loading_info=True,
            trust_remote_code=False,
        )


def load_weights(auto: str, source: str, config: Any, *, new_head: bool) -> tuple[Any, list[str]]:
    """Load a model with an auto class; return it and the names of randomly initialized weights."""
    model, report = _load_model(getattr(modeling_auto, auto), source, config)
    if is_adapted(model):
        # Transformers silently adds an adapter that it finds next to the weights.
        raise ModelError(
            f"{source} has an adapter (adapter_config.json) next to the weights of a model. Move "
            "the adapter to a separate folder, and pass the folder that you mean."
        )
    missing, resized = report["missing_keys"], [name for name, *_ in report["mismatched_keys"]]
    body = f"{model.base_model_prefix}."
    # A new head is expected to be random.
    expected = {name for name in (*missing, *resized) if new_head and not name.startswith(body)}
    # Checkpoints of language models have no pooler.
    lacking = {name for name in missing if not (new_head and "pooler" in name)}
    if wrong := sorted({*lacking, *resized} - expected):
        raise ModelError(_lacking(source, wrong, "Training would start from random ones."))
    if spare := further_blocks(report["unexpected_keys"], model.state_dict()):
        raise ModelError(
            f"{source} has weights of more blocks than config.json sets, and these would be "
            f"ignored: {', '.join(spare[:3])}{' ...' if len(spare) > 3 else ''}. Fix config.json; "
            "or load the model with fewer blocks and save it to another folder (save_pretrained)."
        )
    return model, [*missing, *resized]


def _whole_model(name: str) -> tuple[str, Any, Any]:
    """Return folder or Hub id, config and tokenizer of a model that is not an adapter."""
    source = resolve(name)
    if _located(source)[1] is not None:
        raise ModelError(
            f"{name!r} is a PEFT adapter; a whole model is needed here. Merge it into its base "
            "(merge_and_unload) and save that."
        )
    return source, _load_config(source, weights=source), load_tokenizer(source, name)


def _lacking(source: str, wrong: Sequence[str], so: str) -> str:
    return (
        f"{source} lacks weights that config.json requires, or has them in other sizes: "
        f"{', '.join(wrong[:5])}{' ...' if len(wrong) > 5 else ''}. {so} Copy or download the "
        "model again, or choose another model."
    )


def _add_adapter(model: Any, source: str, *, classes: int | None, new_head: bool) -> Any:
    if classes not in (None, model.config.num_labels):
        raise ModelError(
            f"The adapter in {source} has a head for {classes} classes, but the data have "
            f"{model.config.num_labels}. Train an adapter for these classes."
        )
    return with_trained_head(model, source) if new_head else put_on(model, source)


def put_on(model: Any, source: str) -> Any:
    from peft import PeftModel

    with warnings.catch_warnings():
        # PEFT imports a deprecated name from Transformers.
        warnings.simplefilter("ignore", FutureWarning)
        return PeftModel.from_pretrained(model, source, is_trainable=True)
