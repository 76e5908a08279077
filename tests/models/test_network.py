from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from temper.errors import ModelError
from temper.models import DropoutPlan, Network, Recording
from temper.types import Batch
from tests.methods.tiny import rows, tiny_bert, tiny_network, tiny_xlnet


def batch_of(*lengths: int, seed: int = 0) -> Batch:
    return Batch.of(rows(*lengths, seed=seed))


MODELS = {"network": tiny_network, "bert": tiny_bert, "xlnet": tiny_xlnet}


def test_delta_s_gradient_equals_autograd_through_inputs_embeds() -> None:
    model, batch = tiny_bert(dropout=0.0, attention=0.0).double(), batch_of(5, 3)
    words = model.bert.embeddings.word_embeddings
    embeddings = words(batch.inputs["input_ids"]).detach().requires_grad_()
    mask = batch.inputs["attention_mask"]
    reference = model(inputs_embeds=embeddings, attention_mask=mask).logits
    weighing = torch.randn_like(reference)
    (expected,) = torch.autograd.grad((reference * weighing).sum(), embeddings)
    network = Network(model)
    delta = torch.zeros_like(expected, requires_grad=True)
    (network.logits(batch, delta=delta) * weighing).sum().backward()
    torch.testing.assert_close(delta.grad, expected, rtol=1e-9, atol=1e-12)


def test_a_recording_holds_the_embeddings_as_they_were_before_delta() -> None:
    network, batch = Network(tiny_bert(dropout=0.0, attention=0.0)), batch_of(5, 3)
    recording = Recording()
    network.logits(batch, delta=torch.ones(2, 5, 8), recording=recording)
    assert torch.equal(recording.embeddings, network.embeddings(batch))


def test_probing_leaves_randomness_modes_and_weights_alone() -> None:
    model, batch = tiny_bert(), batch_of(5, 3)
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    Network(model).probe(batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_seed_repeats_the_model_s_dropout_and_leaves_the_global_state_alone() -> None:
    network, batch = Network(tiny_bert()), batch_of(5, 3)
    network.probe(batch)
    state = torch.get_rng_state()
    first, second, other = (network.logits(batch, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_a_delta_is_gone_once_the_network_rests() -> None:
    model, batch = tiny_bert().eval(), batch_of(5, 3)
    plain = model(**batch.inputs).logits
    network = Network(model)
    network.logits(batch, delta=torch.ones(2, 5, 8))
    network.rest()
    assert torch.equal(model(**batch.inputs).logits, plain)


def test_releasing_leaves_no_hook_and_the_network_can_be_used_again() -> None:
    model, batch = tiny_bert().eval(), batch_of(5, 3)
    network = Network(model)
    before = network.logits(batch, delta=torch.ones(2, 5, 8))
    network.release()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(network.logits(batch, delta=torch.ones(2, 5, 8)), before)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_ids_that_look_like_positions_and_token_types_are_told_apart(name: str) -> None:
    network = Network(MODELS[name]())
    ids = torch.arange(5)[None]
    network.probe(Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    assert network.vocabulary == 23
    network = Network(MODELS[name]())
    ids = torch.zeros(2, 5, dtype=torch.int64)
    network.probe(Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    assert network.vocabulary == 23


def test_one_token_tells_rows_from_time_too() -> None:
    network = Network(tiny_xlnet().eval())
    one = torch.tensor([[7]])
    network.probe(Batch({"input_ids": one, "attention_mask": torch.ones_like(one)}))
    batch = batch_of(5, 5, 5)
    delta = torch.zeros(3, 5, 8)
    delta[1] = 0.5
    moved = network.logits(batch, delta=delta) - network.logits(batch)
    assert moved[[0, 2]].abs().max() < 1e-6
    assert moved[1].abs().max() > 1e-3


class Flat(nn.Module):
    """A classifier that repeats no block."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(23, 4)
        self.head = nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return self.head(self.words(input_ids).mean(1))


def test_what_a_network_cannot_do_is_refused() -> None:
    network, batch = Network(tiny_bert()), batch_of(5, 3)
    with pytest.raises(ModelError, match="has not been probed"):
        _ = network.site_keys
    with pytest.raises(ModelError, match="no 'input_ids' to perturb"):
        network.probe(Batch({"inputs_embeds": torch.zeros(1, 2, 8)}))
    with pytest.raises(ModelError, match=r"delta has shape \(2, 4, 8\) but the embeddings have"):
        network.logits(batch, delta=torch.zeros(2, 4, 8))
    with pytest.raises(ModelError, match="needs a delta"):
        network.logits(batch, recording=Recording())
    with pytest.raises(ModelError, match="not a wrapper of this network's model"):
        network.use(tiny_bert())
    flat = Network(Flat())
    assert flat.width(batch) == 4
    with pytest.raises(ModelError, match="no repeated blocks. Use site='word'"):
        flat.width(batch, site="output")


def test_sparing_special_tokens_needs_their_ids() -> None:
    batch = batch_of(5, 3)
    with pytest.raises(ModelError, match="special_ids=tokenizer.all_special_ids"):
        Network(tiny_bert()).movable(batch, special_tokens=False)
    movable = Network(tiny_bert(), special_ids=(1, 2)).movable(batch, special_tokens=False)
    assert movable.tolist() == [[False, True, True, True, False], [False, True] + [False] * 3]
    assert torch.equal(Network(tiny_bert()).movable(batch), batch.mask)


def test_two_networks_may_share_a_model_but_only_one_plans_its_dropout() -> None:
    model, batch = tiny_bert(), batch_of(5, 3)
    first, second = Network(model), Network(model)
    first.probe(batch)
    assert torch.equal(first.logits(batch, seed=1), second.logits(batch, seed=1))
    with pytest.raises(ModelError, match="planned by another Network or Stepper"):
        second.logits(batch, dropout=DropoutPlan(0, 1, fixed=(0.5,)))


def test_half_precision_weights_still_see_a_small_delta() -> None:
    model, batch = tiny_bert().eval().to(torch.bfloat16), batch_of(5, 3)
    network = Network(model)
    assert network.logits(batch).dtype == torch.float32
    assert network.width(batch) == 8
    assert network.delta_dtype == torch.float32


@pytest.mark.parametrize(
    ("precision", "size", "warnings"),
    [
        (torch.bfloat16, 1e-4, 1),
        (torch.float16, 1e-4, 1),
        (torch.bfloat16, 1e-2, 0),
        (torch.float32, 1e-4, 0),
    ],
)
def test_a_perturbation_that_half_precision_swallows_is_warned_of_once(
    precision: torch.dtype, size: float, warnings: int, caplog: pytest.LogCaptureFixture
) -> None:
    network, batch = Network(tiny_bert().eval().to(precision)), batch_of(5, 3)
    delta = torch.zeros(2, 5, network.width(batch))
    with caplog.at_level(logging.WARNING, logger="temper"):
        for each in (delta, delta + size, delta + size):
            network.logits(batch, delta=each)
    assert [record.message.count("most of it is lost") for record in caplog.records] == (
        [1] * warnings
    )
