"""Write classifiers as ONNX files, in fp32 or with 8-bit weights."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from temper.errors import ModelError, SettingError, install_command, one_line
from temper.models.modes import quiet
from temper.models.states import layer_means

PACKAGES = ("onnx", "onnxruntime", "onnxscript")
ONNX, INT8 = "model.onnx", "model-int8.onnx"


def check_onnx_installed(option: str, packages: Sequence[str] = PACKAGES) -> None:
    """Raise a `SettingError` if packages that ``option`` needs are not installed."""
    missing = [name for name in packages if importlib.util.find_spec(name) is None]
    if missing:
        raise SettingError(
            f"{option} needs {', '.join(missing)}, not installed here. "
            f"Run: {install_command('onnx')}"
        )


def write_onnx(
    model: nn.Module, batch: Mapping[str, Tensor], path: Path, *, states: bool = False
) -> None:
    """Write a classifier as ONNX, for texts of any length.

    Args:
        model: A Transformers sequence classifier on the CPU, in eval mode and fp32.
        batch: Sample inputs by name, [B, T] with T above 1, for tracing. With ``attention_mask``, B
            is above 1 and the file accepts any batch size. Without it, B is 1, and the file accepts
            single texts without padding.
        path: The file. Weights above 2 GB are in a second file next to it, ``NAME.data``.
        states: Whether to output ``states`` (`layer_means`) in addition to ``logits``.
    """
    any_size = {1: torch.export.Dim.DYNAMIC}
    if "attention_mask" in batch:
        any_size[0] = torch.export.Dim.DYNAMIC
    with quiet():
        try:
            program = torch.onnx.export(
                _Outputs(model, tuple(batch), states=states).eval(),
                tuple(batch.values()),
                input_names=list(batch),
                output_names=["logits", "states"][: 1 + states],
                dynamic_shapes=((any_size,) * len(batch),),
                dynamo=True,
                verbose=False,
            )
            assert program is not None
            program.save(path)
        except Exception as error:
            # torch raises many types of exceptions; the first line of each has the reason.
            message = one_line(str(error).strip().partition("\n")[0])
            raise ModelError(
                f"{type(model).__name__} cannot be written as ONNX by torch {torch.__version__}: "
                f"{message}."
            ) from error


def quantize_onnx(source: Path, path: Path) -> None:
    """Write a copy of an ONNX file with 8-bit weights (dynamic quantization)."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    with quiet():
        quantize_dynamic(source, path, weight_type=QuantType.QInt8)


class _Outputs(nn.Module):
    """A classifier with positional inputs that returns logits, and then states if requested."""

    def __init__(self, model: nn.Module, names: tuple[str, ...], *, states: bool) -> None:
        super().__init__()
        self.model, self.names, self.states = model, names, states

    def forward(self, *inputs: Tensor) -> Any:
        given = dict(zip(self.names, inputs, strict=True))
        result = self.model(**given, output_hidden_states=self.states)
        if not self.states:
            return result.logits
        mask = given.get("attention_mask", torch.ones_like(given["input_ids"]))
        return result.logits, layer_means(result, mask)
