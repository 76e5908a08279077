"""Bases of adapters in 4 or 8 bits: quantise one as it is loaded, and give a plain one back."""

from __future__ import annotations

import importlib.util
import logging
import warnings
from dataclasses import asdict, dataclass
from typing import Any, Literal, get_args

from temper.errors import ModelError, install_command

ComputeDtype = Literal["float32", "bfloat16", "float16"]
NAME = "base_quantization"
"""Where the config beside an adapter says what it was trained on. Under Transformers' own name,
``quantization_config``, it would say that the base's files hold quantised weights."""


def not_installed() -> str:
    """Say that what quantises is not installed, and how to; nothing where it is there."""
    if importlib.util.find_spec("bitsandbytes") is not None:
        return ""
    return f"needs bitsandbytes, which is not installed ({install_command('quantised')})"


@dataclass(frozen=True)
class Quantised:
    """How the base of an adapter is quantised: the linear layers inside its blocks, frozen.

    Args:
        bits: 4 are NF4 with double quantisation (QLoRA: Dettmers et al., NeurIPS 2023, arXiv
            2305.14314), 8 are LLM.int8 (Dettmers et al., NeurIPS 2022, arXiv 2208.07339).
        compute_dtype: What 4 bits are multiplied in. 8 bits are always multiplied as integers,
            by inputs rounded to 8 bits too; on a CPU in training as floats.

    Raises:
        ModelError: One is another, as in a config that was changed by hand.
    """

    bits: Literal[4, 8]
    compute_dtype: ComputeDtype = "float32"

    def __post_init__(self) -> None:
        if self.bits not in (4, 8) or self.compute_dtype not in get_args(ComputeDtype):
            raise ModelError(
                f"A quantised base has 4 or 8 bits and computes in one of "
                f"{', '.join(get_args(ComputeDtype))}; got {self.bits!r} and "
                f"{self.compute_dtype!r}."
            )

    @classmethod
    def of_adapter(cls, config: Any) -> Quantised | None:
        """Return what an adapter of ours was trained on, None for a base as it is.

        Args:
            config: Of Transformers, beside the adapter.
        """
        settings = getattr(config, NAME, None)
        if settings is None:
            return None
        try:
            return cls(**settings)
        except TypeError as error:
            raise ModelError(
                f"`{NAME}` of the adapter's config.json cannot be read: {error}."
            ) from error

    def loading(self, config: Any, device: Any) -> dict[str, Any]:
        """Return what ``from_pretrained`` takes to quantise the base where it will be used.

        Args:
            config: The base's, without the weights' own quantisation.
            device: Where it will be used.

        Raises:
            ModelError: bitsandbytes is not there, the base is quantised already, or has no blocks.
        """
        if missing := not_installed():
            raise ModelError(f"A base of {self.bits} bits {missing}.")
        if getattr(config, "quantization_config", None) is not None:
            raise ModelError(
                "The weights of this model are quantised already. Give the model in full "
                "precision, or leave train.lora.bits out."
            )
        import torch
        from transformers import AutoModelForSequenceClassification, BitsAndBytesConfig

        from temper.models.blocks import find_blocks, is_linear

        # It says at each layer of 8 bits that inputs are cast, as they are by design.
        logging.getLogger("bitsandbytes").setLevel(logging.ERROR)
        with torch.device("meta"):
            skeleton = AutoModelForSequenceClassification.from_config(config)
        within = tuple(f"{name}." for name, _ in find_blocks(skeleton))
        if not within:
            raise ModelError(
                f"{type(skeleton).__name__} has no repeated blocks to quantise. Leave "
                "train.lora.bits out."
            )
        # The head is trained, and so is a pooler that no checkpoint gave.
        whole = [
            name
            for name, module in skeleton.named_modules()
            if is_linear(module) and not name.startswith(within)
        ]
        quantising = BitsAndBytesConfig(
            load_in_4bit=self.bits == 4,
            load_in_8bit=self.bits == 8,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=self.compute_dtype,
            llm_int8_skip_modules=whole,
        )
        return {"quantization_config": quantising, "device_map": {"": device}}

    def prepare(self, model: Any) -> Any:
        """Freeze a quantised base for an adapter, its other weights in single precision.

        Args:
            model: What ``from_pretrained`` gave.
        """
        from peft import prepare_model_for_kbit_training

        setattr(model.config, NAME, asdict(self))
        for module in model.modules():
            # In evaluation on such CPUs it would repack weights for a kernel without a backward,
            # and training that goes on would find them so.
            if hasattr(module, "support_avx512bf16_for_cpu"):
                module.support_avx512bf16_for_cpu = False
        with warnings.catch_warnings():
            # PEFT asks Transformers for a name that is on its way out.
            warnings.simplefilter("ignore", FutureWarning)
            # Checkpointing is the Trainer's; it is not reentrant, and needs no gradient of inputs.
            return prepare_model_for_kbit_training(model, use_gradient_checkpointing=False)


def is_quantised(model: Any) -> bool:
    """Tell whether a model's weights, or those of an adapter's base, are quantised."""
    return bool(getattr(model, "is_quantized", False))


def dequantised(model: Any) -> Any:
    """Return a base with plain weights in single precision, which answer as the quantised ones.

    Args:
        model: A quantised model of Transformers without an adapter; it is used up.
    """
    import torch
    from torch import nn
    from transformers.pytorch_utils import Conv1D

    turned = [
        name for name, each in model.named_modules() if getattr(each, "source_cls", None) is Conv1D
    ]
    plain = model.dequantize(dtype=torch.float32)
    for name in turned:
        linear = plain.get_submodule(name)
        layer = Conv1D(linear.out_features, linear.in_features)
        layer.weight, layer.bias = nn.Parameter(linear.weight.T.contiguous()), linear.bias
        plain.set_submodule(name, layer)
    if hasattr(plain.config, NAME):
        delattr(plain.config, NAME)
    return plain
