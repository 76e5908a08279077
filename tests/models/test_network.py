"""The network: perturbed embeddings, refusals, its head, and its dropout sites."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from temper import RDrop, Stepper
from temper.errors import ModelError
from temper.models.blocks import find_blocks, find_head, has_dropout
from temper.models.network import Network
from temper.models.passes import DropoutPlan, Recording
from temper.types import Batch
from tests.contracts.architectures import ARCHITECTURES, CLASSICAL, LORA, MEAN_POOLED, tiny
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
    (network.logits(batch, delta=delta)[:, 0] * weighing).sum().backward()
    torch.testing.assert_close(delta.grad, expected, rtol=1e-9, atol=1e-12)


def test_a_recording_contains_the_embeddings_before_the_delta() -> None:
    network, batch = Network(tiny_bert(dropout=0.0, attention=0.0)), batch_of(5, 3)
    recording = Recording()
    network.logits(batch, delta=torch.ones(2, 5, 8), recording=recording)
    assert torch.equal(recording.embeddings, network.embeddings(batch))


def test_probing_changes_no_random_state_mode_or_weight() -> None:
    model, batch = tiny_bert(), batch_of(5, 3)
    model.bert.encoder.layer[0].eval()
    modes = [module.training for module in model.modules()]
    before = {key: value.clone() for key, value in model.state_dict().items()}
    state = torch.get_rng_state()
    Network(model).probe(batch)
    assert torch.equal(torch.get_rng_state(), state)
    assert [module.training for module in model.modules()] == modes
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_seed_reproduces_dropout_without_changing_the_global_state() -> None:
    network, batch = Network(tiny_bert()), batch_of(5, 3)
    network.probe(batch)
    state = torch.get_rng_state()
    first, second, other = (network.logits(batch, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first, second)
    assert not torch.equal(first, other)
    assert torch.equal(torch.get_rng_state(), state)


def test_resetting_a_network_removes_the_delta() -> None:
    model, batch = tiny_bert().eval(), batch_of(5, 3)
    plain = model(**batch.inputs).logits
    network = Network(model)
    network.logits(batch, delta=torch.ones(2, 5, 8))
    network.reset()
    assert torch.equal(model(**batch.inputs).logits, plain)


def test_removing_hooks_leaves_none_and_the_network_is_reusable() -> None:
    model, batch = tiny_bert().eval(), batch_of(5, 3)
    network = Network(model)
    before = network.logits(batch, delta=torch.ones(2, 5, 8))
    network.remove_hooks()
    assert not any(module._forward_hooks for module in model.modules())
    assert not any(module._forward_pre_hooks for module in model.modules())
    assert torch.equal(network.logits(batch, delta=torch.ones(2, 5, 8)), before)


@pytest.mark.parametrize("name", ["bert", "xlnet"])
def test_ids_equal_to_positions_and_token_types_are_distinguished(name: str) -> None:
    network = Network(MODELS[name]())
    ids = torch.arange(5)[None]
    network.probe(Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    assert network.vocabulary == 23
    network = Network(MODELS[name]())
    ids = torch.zeros(2, 5, dtype=torch.int64)
    network.probe(Batch({"input_ids": ids, "attention_mask": torch.ones_like(ids)}))
    assert network.vocabulary == 23


def test_one_token_suffices_to_distinguish_rows_from_time() -> None:
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


def test_unsupported_requests_to_a_network_raise_an_error() -> None:
    network, batch = Network(tiny_bert()), batch_of(5, 3)
    with pytest.raises(ModelError, match="probe"):
        _ = network.site_keys
    with pytest.raises(ModelError, match="no 'input_ids' to perturb"):
        network.probe(Batch({"inputs_embeds": torch.zeros(1, 2, 8)}))
    with pytest.raises(ModelError, match=r"delta has shape \(2, 4, 8\) but the embeddings have"):
        network.logits(batch, delta=torch.zeros(2, 4, 8))
    with pytest.raises(ModelError, match="needs a delta"):
        network.logits(batch, recording=Recording())
    with pytest.raises(ModelError, match="does not wrap the model"):
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
    with pytest.raises(ModelError, match="Another Network or Stepper controls"):
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


HEADS = {
    "bert": {"classifier"},
    "roberta": {"classifier"},
    "albert": {"classifier"},
    "distilbert": {"pre_classifier", "classifier"},
    "electra": {"classifier"},
    "xlnet": {"sequence_summary", "logits_proj"},
    "deberta_v2": {"pooler", "classifier"},
    "mpnet": {"classifier"},
    "gpt2": {"score"},
    "opt": {"score"},
    "llama": {"score"},
    "qwen2": {"score"},
    "t5": {"classification_head"},
    "bart": {"classification_head"},
    **{name: {"classifier"} for name in (MEAN_POOLED, *CLASSICAL)},
}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_head_is_outside_the_pre_trained_model(name: str) -> None:
    params = Network(tiny(name)).parameters()
    assert {key.partition(".")[0] for key in params.head} == HEADS[name]
    assert not params.head & params.blocks


def test_the_head_is_the_copy_of_an_adapter_or_follows_the_last_block() -> None:
    params = Network(tiny(LORA)).parameters()
    assert params.head == {"base_model.model.score.modules_to_save.default.weight"}
    network = tiny_network()
    assert find_head(network, find_blocks(network)) == {"head.weight", "head.bias"}
    assert find_head(nn.Linear(2, 2), []) == frozenset()


def test_dropping_is_a_layer_s_rate_or_one_that_the_code_reads() -> None:
    assert has_dropout(tiny_bert())
    assert not has_dropout(tiny_bert(dropout=0.0, attention=0.0))
    # OPT calls a function with a rate of its own and has no dropout layer.
    assert has_dropout(tiny("opt", dropout=0.1))
    assert not has_dropout(tiny("opt", dropout=0.0))
    assert not has_dropout(tiny("llama"))


@pytest.mark.parametrize(("rate", "warned"), [(0.0, 1), (0.3, 0)])
def test_passes_that_differ_only_by_dropout_warn_once_without_dropout(
    rate: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(rate=rate), RDrop())
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(3):
            logs = stepper.backward(rows(5, 3))
            stepper.discard()
    assert caplog.text.count("the method is inert") == warned
    assert (logs["loss/divergence"] == 0) == bool(warned)


def test_a_forward_with_other_weights_keeps_the_hooks() -> None:
    model = tiny_network(rate=0.0)
    network, batch = Network(model), Batch.of(rows(5, 3))
    other = {name: value + 0.1 for name, value in model.named_parameters()}
    delta = torch.full((2, 5, 4), 0.1, dtype=torch.float64)
    own = network.logits(batch, delta=delta)
    result = network.logits(batch, delta=delta, weights=other)
    moved = tiny_network(rate=0.0)
    moved.load_state_dict({name: value.detach() for name, value in other.items()})
    torch.testing.assert_close(result, Network(moved).logits(batch, delta=delta))
    assert torch.equal(network.logits(batch, delta=delta), own)


@pytest.mark.parametrize("site", ["word", "output"])
def test_detached_embeddings_get_no_gradient_and_give_the_same_logits(site: str) -> None:
    def run(detached: bool) -> tuple[Tensor, dict[str, Tensor | None]]:
        model = tiny_bert(dropout=0.0, attention=0.0)
        network, batch = Network(model), Batch.of(rows(5, 3))
        network.probe(batch)
        delta = torch.full((2, 5, 8), 0.1)
        recording = Recording()
        logits = network.logits(
            batch, delta=delta, site=site, recording=recording, detached=detached
        )
        logits.sum().backward()
        return logits, {name: p.grad for name, p in model.named_parameters()}

    (plain, grads), (cut, without) = run(False), run(True)
    assert torch.equal(plain, cut)
    words = "bert.embeddings.word_embeddings.weight"
    assert grads[words] is not None
    assert without[words] is None
    inner = "bert.encoder.layer.0.attention.self.value.weight"
    assert torch.equal(grads[inner], without[inner])
