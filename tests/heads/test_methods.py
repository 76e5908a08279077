"""Methods run on a head with several units per row, and none of them reads labels."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import BertConfig, BertForTokenClassification

from temper import Stepper
from temper.heads import Head, Heads
from temper.methods import configure
from temper.testing.tiny import rows
from tests.heads.further_heads import IGNORED, Tokens


class Tagger(nn.Module):
    """A token classifier with another class name, which is not rejected."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        sizes = {"hidden_size": 8, "num_attention_heads": 2, "intermediate_size": 8}
        config = BertConfig(vocab_size=64, num_hidden_layers=2, num_labels=3, **sizes)
        self.bert = BertForTokenClassification(config).double()

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> object:
        return self.bert(input_ids=input_ids, attention_mask=attention_mask)


class OfTokens(Heads):
    def of(self, labels: Tensor | None, logits: Tensor | None = None) -> Head:
        return Tokens()


METHODS = ("vanilla", "r_drop", "at", "freelb", "uegr", "roast", "vat", "distil", "smart", "r3f")
TAGGED = rows(6, 3, 5, 4)
TAGGED["labels"] = torch.randint(
    3, TAGGED["input_ids"].shape, generator=torch.Generator().manual_seed(1)
)
TAGGED["labels"][TAGGED["attention_mask"] == 0] = IGNORED
TAGGED["labels"][:, 0] = IGNORED


def stepper_of(model: nn.Module, name: str) -> Stepper:
    stepper = Stepper(model, configure(name, {}), seed=4)
    stepper.network.heads = OfTokens()
    stepper.prepare([TAGGED])
    stepper.begin_epoch(0)
    return stepper


@pytest.mark.parametrize("name", [*METHODS, "jacobian", "cross_holder", "pgd"])
def test_a_method_trains_a_head_that_it_does_not_know(name: str) -> None:
    stepper = stepper_of(Tagger().train(), name)
    logs = stepper.backward(TAGGED)
    assert logs["loss"] > 0
    assert all(torch.tensor(value).isfinite() for value in logs.values())
    gradients = stepper.params.gradients()
    assert gradients["bert.classifier.weight"].abs().max() > 0
    assert all(each.isfinite().all() for each in gradients.values())


def test_the_loss_is_the_mean_over_all_labeled_tokens_of_the_step() -> None:
    model = Tagger().eval()
    whole = stepper_of(model, "vanilla")
    logs = whole.backward(TAGGED)
    expected = {name: each.clone() for name, each in whole.params.gradients().items()}
    with torch.no_grad():
        logits = model(TAGGED["input_ids"], TAGGED["attention_mask"]).logits
    counted = TAGGED["labels"] != IGNORED
    mean = cross_entropy(logits[counted], TAGGED["labels"][counted])
    assert logs["loss"] == pytest.approx(mean.item(), rel=1e-12)
    whole.release()
    model.zero_grad()
    # Micro-batches weigh by their labeled tokens: 2, 7 and 5.
    parts = [
        {name: each[a:b] for name, each in TAGGED.items()} for a, b in ((1, 2), (2, 4), (0, 1))
    ]
    split = stepper_of(model, "vanilla")
    assert split.backward(*parts)["loss"] == pytest.approx(mean.item(), rel=1e-12)
    for name, gradient in split.params.gradients().items():
        torch.testing.assert_close(gradient, expected[name], rtol=1e-9, atol=1e-12)
