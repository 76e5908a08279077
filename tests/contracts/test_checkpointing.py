"""Recomputing the blocks in backward changes no gradient, however many passes share a backward."""

from __future__ import annotations

import pytest
import torch

from temper import Stepper
from temper.errors import ModelError
from temper.methods import build, names
from tests.methods.tiny import rows, tiny_bert
from tests.models.test_sites import checkpoint_blocks

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

# Two or more passes under different dropout plans, or at different deltas, in one backward.
TOGETHER = [
    "r_drop + smart",
    "r_drop + r3f",
    "r_drop + vat",
    "dropout + adv_embed",
    "dropout + r3f",
    "dropout + smart",
    "dropout + at",
    "mixout + uegr",
    "adv_weight + roast",
]


def gradients(method: str, *, recomputed: bool) -> dict[str, torch.Tensor]:
    model = tiny_bert()
    if recomputed:
        checkpoint_blocks(model)
    built = build(method)
    stepper = Stepper(model, built, seed=2, total=4)
    stepper.prepare([rows(5, 3)])
    stepper.begin_epoch(0)
    stepper.backward(rows(5, 3, 6), rows(4))
    return {name: gradient.clone() for name, gradient in stepper.params.gradients().items()}


@pytest.mark.parametrize("method", [*names(), *TOGETHER])
def test_recomputed_blocks_give_the_same_gradients(method: str) -> None:
    if "hidden_cut" in method:
        with pytest.raises(ModelError, match="checkpointing"):
            gradients(method, recomputed=True)
        return
    plain, saving = gradients(method, recomputed=False), gradients(method, recomputed=True)
    assert set(saving) == set(plain)
    for name, gradient in plain.items():
        torch.testing.assert_close(saving[name], gradient, rtol=1e-4, atol=1e-6)
