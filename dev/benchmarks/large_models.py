"""Memory of a large decoder with LoRA, by a formula that is fitted to small models.

Run ``python -m dev.benchmarks.large_models``. LLaMAs with random weights take a step in bf16 with a
LoRA adapter, and the live bytes of their passes are counted (`dev.benchmarks.ledger`). Per token
they are

    activations = a L H + b H

with L blocks of width H at LLaMA's proportions (heads of 128, an MLP of 2.6875 H), since fused
attention stores nothing per pair of tokens. With gradient checkpointing a block stores only its
input. ``a`` and ``b`` are fitted to four models and checked on a fifth, larger one. Then they
predict the memory of a model of 7 billion weights:

    memory = weights + adapter (weights, gradients, Adam's two states) + rows * tokens * activations
"""

from __future__ import annotations

import argparse
import warnings
from functools import partial
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.utils._pytree import tree_leaves
from transformers import AutoModelForSequenceClassification, LlamaConfig

from dev.benchmarks.ledger import Ledger
from dev.benchmarks.record import write
from dev.benchmarks.workload import CLASSES, METHODS, synthetic
from temper import Stepper
from temper.methods import configure
from temper.models.adapters import add_adapter

FITTED, HELD_TO = ((256, 2), (256, 6), (512, 2), (512, 6)), (768, 8)
"""Width and blocks of the models that the formula is fitted to, and of the one that checks it."""
LARGE = (4096, 32)
ROWS, TOKENS, VOCABULARY = 2, 64, 2000
LARGE_ROWS, LARGE_TOKENS, LARGE_VOCABULARY = 16, 256, 32_000
AT_MOST = 0.05
"""Relative error that the formula may have on the larger model."""


def config_of(width: int, blocks: int, *, vocabulary: int = VOCABULARY) -> LlamaConfig:
    """Return the configuration of a LLaMA with the proportions of the 7B model."""
    return LlamaConfig(
        hidden_size=width,
        num_hidden_layers=blocks,
        num_attention_heads=width // 128,
        intermediate_size=width * 43 // 16,
        vocab_size=vocabulary,
        num_labels=CLASSES,
        pad_token_id=0,
    )


def adapted(config: LlamaConfig) -> Any:
    """Return a classifier in bf16 with a LoRA adapter of rank 8 on queries and values."""
    model = AutoModelForSequenceClassification.from_config(config, dtype=torch.bfloat16)
    return add_adapter(model, {"peft_type": "LORA", "lora_alpha": 16.0}, drawn=(), seed=0)


def counted(label: str, width: int, blocks: int, *, checkpointing: bool) -> float:
    """Return the peak live bytes per token in a step's passes, without weights and gradients.

    Args:
        label: A key of ``METHODS``.
        width: Width of the model.
        blocks: Number of blocks of the model.
        checkpointing: Whether activations are recomputed in the backward pass.
    """
    torch.manual_seed(0)
    model = adapted(config_of(width, blocks)).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
        model.enable_input_require_grads()
    name, settings = METHODS[label]
    stepper = Stepper(model, configure(name, settings), seed=0)
    inputs = synthetic(VOCABULARY, batch=ROWS, tokens=TOKENS)
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    known = [*model.parameters(), *model.buffers(), *inputs.values()]
    known += [leaf for leaf in tree_leaves(stepper.state) if isinstance(leaf, torch.Tensor)]
    with Ledger(known) as ledger:
        stepper.backward(inputs)
    gradients = [weight.grad for weight in model.parameters() if weight.grad is not None]
    return ledger.peak(without=gradients) / (ROWS * TOKENS)


def terms(width: int, blocks: int) -> list[float]:
    """Return the factors of ``a`` and ``b``."""
    return [float(blocks * width), float(width)]


def planned(config: LlamaConfig) -> tuple[int, int]:
    """Return the bytes of the weights, and of the adapter with its gradients and Adam's states.

    The model is built on the meta device, without memory for its weights.
    """
    with torch.device("meta"):
        model = adapted(config)
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    # Gradients and Adam's states have the type of the weights.
    return sum(weight.nbytes for weight in model.parameters()), 3 * sum(w.nbytes for w in trained)


def main() -> None:
    """Fit the formula, check it, and predict; write ``results/large_models.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--methods", nargs="+", default=["plain", "uegr", "uegr one pass"])
    labels = parser.parse_args().methods
    # Transformers warns about a renamed argument of checkpointing.
    warnings.simplefilter("ignore", FutureWarning)
    weights, adapter = planned(config_of(*LARGE, vocabulary=LARGE_VOCABULARY))
    table = Table(title=f"A LLaMA of {weights / 2e9:.1f} billion weights in bf16 with LoRA")
    table.add_column("method")
    columns = ("a, bytes", "b, bytes", "formula over counted", "KB per token", "GB in total")
    for name in columns:
        table.add_column(name, justify="right")
    results: dict[str, Any] = {}
    for label in labels:
        for checkpointing in (False, True):
            count = partial(counted, label, checkpointing=checkpointing)
            sizes = [count(*size) for size in FITTED]
            fit, *_ = np.linalg.lstsq(
                np.array([terms(*size) for size in FITTED]), np.array(sizes), rcond=None
            )
            off = float(terms(*HELD_TO) @ fit) / count(*HELD_TO)
            token = float(terms(*LARGE) @ fit)
            in_all = weights + adapter + LARGE_ROWS * LARGE_TOKENS * token
            name = f"{label}, checkpointed" if checkpointing else label
            results[name] = {
                "a": fit[0],
                "b": fit[1],
                "formula_over_counted": off,
                "bytes_a_token": token,
                "bytes": in_all,
            }
            table.add_row(
                name,
                f"{fit[0]:.1f}",
                f"{fit[1]:.1f}",
                f"{off:.3f}",
                f"{token / 1e3:,.0f}",
                f"{in_all / 1e9:.1f}",
            )
    console = Console()
    console.print(table)
    console.print(
        f"Weights {weights / 1e9:.2f} GB; the adapter with gradients and Adam {adapter / 1e9:.3f} "
        f"GB; {LARGE_ROWS} rows of {LARGE_TOKENS} tokens."
    )
    result = {
        "fitted": FITTED,
        "held_to": HELD_TO,
        "at_most": AT_MOST,
        "large": {
            "width": LARGE[0],
            "blocks": LARGE[1],
            "rows": LARGE_ROWS,
            "tokens": LARGE_TOKENS,
            "weights": weights,
            "adapter": adapter,
        },
        "found": results,
    }
    console.print(f"Written to {write('large_models', result)}")


if __name__ == "__main__":
    main()
