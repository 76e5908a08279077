"""Jacobian and Hessian norms of a tiny BERT, entry by entry, with no code of ours.

Each row is run alone and without its padding, from its own word embeddings; Transformers says what
the states are.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import BertForSequenceClassification

from tests.methods.tiny import tiny_bert

LAYERS = [0.7, 0.3]
"""Different weights of the two layers."""


def smooth_bert(**settings: float) -> BertForSequenceClassification:
    """Return a BERT of two layers, four wide, without dropout, in double precision."""
    sizes = {"hidden_size": 4, "intermediate_size": 6, **settings}
    return tiny_bert(dropout=0.0, attention=0.0, **sizes).double()


@dataclass(frozen=True)
class Exact:
    """Exact norms of a batch.

    Args:
        jacobian: ``||J_l||_F^2`` [L, B].
        hessian: ``mean_i ||H_{l,i}||_F^2`` [L, B].
        crossed: ``<J_0, J_1>`` [B].
    """

    jacobian: Tensor
    hessian: Tensor
    crossed: Tensor


def states_of(
    model: BertForSequenceClassification, words: Tensor, *, layers: str = "all"
) -> Tensor:
    """Return [CLS] after every layer [L, D], or the logits [1, C], of one row of embeddings."""
    output = model(inputs_embeds=words.unsqueeze(0), output_hidden_states=True)
    if layers == "logits":
        return output.logits
    return torch.stack([state[0, 0] for state in output.hidden_states[1:]])


def exact(
    model: BertForSequenceClassification, batch: dict[str, Tensor], *, layers: str = "all"
) -> Exact:
    """Compute the norms with every first and second derivative written out.

    Args:
        model: In double precision; it is left with eager attention.
        batch: Rows padded on the right.
        layers: ``all`` or ``logits``.
    """
    model.set_attn_implementation("eager")
    jacobians, hessians, crossed = [], [], []
    for ids, mask in zip(batch["input_ids"], batch["attention_mask"], strict=True):
        words = model.bert.embeddings.word_embeddings(ids[mask.bool()]).detach().requires_grad_()
        states = states_of(model, words, layers=layers)
        first = [
            torch.autograd.grad(entry, words, create_graph=True)[0].flatten()
            for entry in states.flatten()
        ]
        rows = torch.stack(first).view(*states.shape, -1)
        jacobians.append(rows.square().sum((1, 2)).detach())
        crossed.append((rows[0] * rows[-1]).sum().detach())
        seconds = [
            sum(
                float(torch.autograd.grad(entry, words, retain_graph=True)[0].square().sum())
                for entry in each
            )
            for each in first
        ]
        hessians.append(torch.tensor(seconds, dtype=words.dtype).view(states.shape).mean(1))
    return Exact(torch.stack(jacobians, 1), torch.stack(hessians, 1), torch.stack(crossed))
