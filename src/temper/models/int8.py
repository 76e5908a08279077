"""Write and run an 8-bit copy of a classifier for CPUs, with ONNX Runtime.

The weights of matrix products are stored in eight bits, and their inputs are rounded to eight bits
at run time. Products are of two kinds:

- *coarse*: one scale for all tokens of a text (``DynamicQuantizeLinear``) and one for each output
  of the weights. This is the fastest.
- *fine*: one scale for each token and each 128 inputs (``MatMulNBits``). It takes about twice as
  long, and its error is several times smaller.

A few products cause most of the error of an 8-bit model. `effects` finds them on sample rows, and
they become fine. Embeddings, products on one vector per text (pooler, classifier) and everything
else stay in fp32.

Texts are computed one at a time, without padding. On one thread that is as fast as a batch, and the
scales of a text do not depend on other texts.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import deepcopy
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoTokenizer

from temper.errors import CheckpointError, ModelError
from temper.files import sha256, write_json
from temper.models.adapters import is_adapted
from temper.models.blocks import remove_hooks
from temper.models.kinds import head_of, position_limit
from temper.models.modes import quiet
from temper.models.onnx_files import check_onnx_installed, write_onnx

FOLDER, MODEL, RECORD = "int8", "model.onnx", "int8.json"
"""Names of the folder of the 8-bit copy in a checkpoint, its network, and its record."""
BLOCK = 128
"""Number of inputs that share a scale in a fine matrix product."""
MOST_BYTES = 2 * 10**9
"""Maximum size of the weights in one ONNX file, in bytes."""
TOLERANCE = 0.1
"""Root mean square change of the log-odds that coarse products may cause.

It changes a probability by at most 0.025.
"""


def rounded_rows(weight: Tensor) -> Tensor:
    """Round weights [O, I] to signed eight bits, with one scale per output."""
    scale = weight.abs().amax(dim=1, keepdim=True).clamp(min=1e-12) / 127
    return (weight / scale).round() * scale


def rounded(values: Tensor) -> Tensor:
    """Round values to unsigned eight bits with one scale and zero point (as ONNX defines it)."""
    low, high = values.amin().clamp(max=0), values.amax().clamp(min=0)
    scale = ((high - low) / 255).clamp(min=1e-12)
    zero = (-low / scale).round()
    return (((values / scale).round() + zero).clamp(0, 255) - zero) * scale


def effects(model: nn.Module, rows: Iterable[Mapping[str, Tensor]]) -> dict[str, float]:
    """Estimate how much each product, if coarse, changes a classifier's output.

    To first order, an error ``e`` in a product changes the output by ``g . e``, where ``g`` is the
    gradient of the output with respect to that product. The output is the log-odds of the
    predicted class, so that texts with a probability near 1 count, too. For a regression it is
    the value, in units of the standard deviation of the values.

    Args:
        model: A Transformers sequence classifier in eval mode; ``requires_grad`` of its weights is
            switched off.
        rows: Inputs of single texts, each [1, T], without padding.

    Returns:
        Name of each `torch.nn.Linear` that reads one vector per token -> mean of ``(g . e)^2``.
    """
    model.requires_grad_(False)
    classes = head_of(model).has_classes
    total: dict[str, float] = {}
    outputs: list[float] = []

    def add(name: str, error: Tensor, gradient: Tensor) -> None:
        total[name] = total.get(name, 0.0) + float((gradient * error).sum()) ** 2

    def observe(name: str, module: nn.Linear, inputs: tuple[Tensor, ...], output: Tensor) -> None:
        # Products on one vector per text stay in fp32. Those on positions have no gradient.
        if inputs[0].dim() < 3 or not output.requires_grad:
            return
        with torch.no_grad():
            coarse = linear(rounded(inputs[0]), rounded_rows(module.weight), module.bias)
            error = coarse - output
        output.register_hook(partial(add, name, error))  # type: ignore[no-untyped-call]

    handles = [
        module.register_forward_hook(partial(observe, name))
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear)
    ]
    # Activations need gradients from the embeddings on, although no weight requires one.
    handles += [
        module.register_forward_hook(lambda _, __, output: output.detach().requires_grad_())
        for module in model.modules()
        if isinstance(module, nn.Embedding)
    ]
    try:
        for row in rows:
            logits = model(**row).logits
            output = _log_odds(logits) if classes else logits.sum()
            output.backward()
            outputs.append(output.item())
    finally:
        remove_hooks(handles)
    unit = 1.0 if classes else max(float(np.var(outputs)), 1e-12)
    return {name: value / (len(outputs) * unit) for name, value in total.items()}


def _log_odds(logits: Tensor) -> Tensor:
    values = logits.flatten()
    best = int(values.argmax())
    others = torch.cat([values[:best], values[best + 1 :]])
    return values[best] - others.logsumexp(dim=0)


def fine_products(
    effect: Mapping[str, float], sizes: Mapping[str, int], *, tolerance: float = TOLERANCE
) -> list[str]:
    """Choose the products to make fine, in the order of choice.

    The errors of products are nearly uncorrelated, so their squares add up. Products with the
    largest effect per weight come first, because time is proportional to the number of weights. It
    stops when the root of the remaining summed effects is at most ``tolerance``.

    Example:
        >>> fine_products({"a": 0.9, "b": 0.0, "c": 0.02}, {"a": 4, "b": 4, "c": 1})
        ['a', 'c']
    """
    order = sorted(effect, key=lambda name: -effect[name] / sizes[name])
    after = [math.fsum(effect[name] for name in order[index:]) for index in range(len(order))]
    return order[: sum(rest > tolerance**2 for rest in after)]


def write_int8(
    model: nn.Module,
    tokenizer: Any,
    rows: Sequence[Mapping[str, Tensor]],
    folder: Path,
    *,
    fields: Mapping[str, Any],
) -> dict[str, Any]:
    """Write an 8-bit copy of a classifier; return the content of its ``int8.json``.

    Args:
        model: A Transformers sequence classifier, or an adapter on one.
        tokenizer: Its tokenizer.
        rows: Sample inputs for choosing the matrix products that need finer scales (see above):
            single texts [1, T] with T > 1, without padding or mask.
        folder: An empty folder.
        fields: Further fields of ``int8.json``.
    """
    check_onnx_installed("--backend int8")
    if 4 * sum(weight.numel() for weight in model.parameters()) > MOST_BYTES:
        raise ModelError(
            "The model has more than 2 GB of weights in fp32, too many for an 8-bit copy. Leave "
            "--backend out."
        )
    network: Any = deepcopy(model).cpu().float().eval()
    if is_adapted(network):
        network = network.merge_and_unload()
    with quiet():
        # The graph of eager attention is simpler than that of fused attention.
        network.set_attn_implementation("eager")
    modules = {
        name: module for name, module in network.named_modules() if isinstance(module, nn.Linear)
    }
    sizes = {name: module.weight.numel() for name, module in modules.items()}
    effect = effects(network, rows)
    coarse = {*effect} - {*fine_products(effect, sizes)}
    names = {_content(module.weight.T): name for name, module in modules.items()}
    with TemporaryDirectory(dir=folder) as scratch:
        source = Path(scratch) / MODEL
        longest = max(rows, key=lambda row: row["input_ids"].shape[1])
        write_onnx(network, longest, source, states=True)
        _check_alike(network, source, rows[0])
        products = _quantize(source, folder / MODEL, names, coarse)
    network.config.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    record = {
        **fields,
        "positions": position_limit(network),
        "sha256": sha256(folder / MODEL),
        "coarse": len(products & coarse),
        "fine": sorted(products - coarse),
    }
    return write_json(folder / RECORD, record)


def _quantize(
    source: Path, path: Path, names: Mapping[str, str], coarse: Collection[str]
) -> set[str]:
    """Write an ONNX network with 8-bit products; return the names of the products."""
    import onnx
    from onnx.numpy_helper import to_array
    from onnxruntime.quantization import QuantType, quantize_dynamic
    from onnxruntime.quantization.matmul_nbits_quantizer import (
        DefaultWeightOnlyQuantConfig,
        MatMulNBitsQuantizer,
    )

    whole = onnx.load(source)
    weights = {item.name: item for item in whole.graph.initializer if len(item.dims) == 2}
    read = [
        node
        for node in whole.graph.node
        if node.op_type in ("MatMul", "Gemm") and node.input[1] in weights
    ]
    sizes = {node.name: math.prod(weights[node.input[1]].dims) for node in read}
    products = {
        node.name: names.get(
            _content(torch.from_numpy(to_array(weights[node.input[1]]).copy())), node.name
        )
        for node in read
        if node.op_type == "MatMul"
    }
    if 2 * sum(sizes[node] for node in products) <= sum(sizes.values()):
        raise ModelError(
            "Most matrix products of the network are not torch.nn.Linear over tokens, the only "
            "form that is rounded to eight bits, so the copy would not be faster. Leave --backend "
            "out."
        )
    # The effect of products without a name is unknown, so they are made fine.
    chosen = {node for node, name in products.items() if name not in coarse}
    with quiet():
        if chosen:
            others = [node.name for node in whole.graph.node if node.name not in chosen]
            settings = DefaultWeightOnlyQuantConfig(
                block_size=BLOCK, is_symmetric=True, accuracy_level=4, bits=8
            )
            made = MatMulNBitsQuantizer(whole, algo_config=settings, nodes_to_exclude=others)
            made.process()
            whole = made.model.model
        if rest := [node for node in products if node not in chosen]:
            quantize_dynamic(
                whole,
                path,
                nodes_to_quantize=rest,
                op_types_to_quantize=["MatMul"],
                per_channel=True,
                weight_type=QuantType.QInt8,
            )
        else:
            onnx.save(whole, path)
    return {*products.values()}


def _content(matrix: Tensor) -> str:
    """Hash weights, because ONNX does not keep their names."""
    array = np.ascontiguousarray(matrix.detach().numpy())
    return hashlib.sha256(repr(array.shape).encode() + array.tobytes()).hexdigest()


def _check_alike(network: nn.Module, file: Path, row: Mapping[str, Tensor]) -> None:
    """Raise if an fp32 ONNX file has different outputs from the network it was written from."""
    with torch.no_grad():
        wanted = network(**row).logits.numpy()
    result = session(file).run(["logits"], {name: value.numpy() for name, value in row.items()})[0]
    if not np.allclose(wanted, result, rtol=1e-3, atol=1e-3):
        raise ModelError(
            f"The ONNX file of {type(network).__name__} has different outputs from the model, so "
            "it cannot run in eight bits. Leave --backend out."
        )


def session(file: Path) -> Any:
    """Open an ONNX file with ONNX Runtime, on one CPU thread."""
    from onnxruntime import InferenceSession, SessionOptions

    options = SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    # On CPUs, a sum fused with a layer norm is slower than both apart.
    return InferenceSession(
        file,
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["SkipLayerNormFusion"],
    )


def load_int8(folder: Path) -> tuple[Any, Any, Any, Mapping[str, Any]]:
    """Load what `write_int8` wrote: session, tokenizer, config and record."""
    check_onnx_installed("--backend int8", ("onnxruntime",))
    try:
        record: dict[str, Any] = json.loads((folder / RECORD).read_text(encoding="utf-8"))
        if sha256(folder / MODEL) != record["sha256"]:
            raise ValueError(f"the SHA-256 of {folder / MODEL} is not the one in {RECORD}")
        config = AutoConfig.from_pretrained(folder, trust_remote_code=False)
        tokenizer = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
    except (OSError, ValueError, KeyError) as error:
        raise CheckpointError(
            f"The 8-bit model in {folder} is damaged: {error}. Make it again with `temper "
            "calibrate` and --backend int8."
        ) from error
    return session(folder / MODEL), tokenizer, config, record
