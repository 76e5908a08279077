"""UEGR, R-AT and AT on a BERT in double precision, through ``inputs_embeds`` and single passes."""

from __future__ import annotations

import pytest
import torch

from temper import Stepper
from temper.methods import configure
from tests.methods import reference
from tests.methods.tiny import rows, tiny_bert

SETTINGS = {
    "at": {"epsilon": 0.1},
    "r_at": {"epsilon": 0.4, "relative": False},
    "uegr": {"epsilon": 0.1, "adaptive": "uniform", "divergence_weight": 0.2, "mask": False},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_bert_s_gradients_equal_those_of_the_equation(name: str) -> None:
    batches = [rows(5, 3, 6), rows(4, 2, seed=1)]
    model = tiny_bert(dropout=0.0, attention=0.0).double()
    stepper = Stepper(model, configure(name, SETTINGS[name]))
    loss = stepper.backward(*batches)["loss"]
    stepper.release()
    grads = {key: p.grad.clone() for key, p in model.named_parameters()}
    model.zero_grad()
    words = model.bert.embeddings.word_embeddings
    passes, weight, divergence, kind = {
        "at": (1, 1.0, 0.0, "js"),
        "r_at": (2, 1.0, 0.5, "sym_kl"),
        "uegr": (2, 1.0, 0.2, "js"),
    }[name]
    total = torch.zeros((), dtype=torch.float64)
    for batch in batches:
        mask, labels = batch["attention_mask"], batch["labels"]
        embeddings = words(batch["input_ids"])
        clean = reference.row_losses(
            model(inputs_embeds=embeddings, attention_mask=mask).logits, labels, None
        ).sum()
        (gradient,) = torch.autograd.grad(clean, embeddings, retain_graph=True)
        delta = reference.attack(
            gradient,
            embeddings.detach(),
            mask.bool(),
            epsilon=SETTINGS[name]["epsilon"],
            relative=SETTINGS[name].get("relative", True),
        )
        total = total + clean / 5
        outputs = [
            model(inputs_embeds=words(batch["input_ids"]) + delta, attention_mask=mask).logits
            for _ in range(passes)
        ]
        for output in outputs:
            losses = reference.row_losses(output, labels, None)
            total = total + weight * losses.sum() / (5 * passes)
        total = total + divergence * reference.pairs(kind, outputs, reduction="sum", rows_of_step=5)
    assert loss == pytest.approx(total.item(), rel=1e-9)
    total.backward()
    for key, p in model.named_parameters():
        torch.testing.assert_close(
            grads[key], p.grad, rtol=1e-8, atol=1e-11, msg=lambda m, n=key: f"{n}: {m}"
        )
