"""Which parameters are the pre-trained part's and which the head's, and what drops units."""

from __future__ import annotations

import logging

import pytest
import torch
from torch import Tensor, nn

from temper import RDrop, Stepper
from temper.models.blocks import drops, find_blocks, find_head
from temper.models.network import Network, Recording
from temper.types import Batch
from tests.contracts.architectures import ARCHITECTURES, CLASSICAL, LORA, tiny
from tests.methods.tiny import rows, tiny_bert, tiny_network

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
    **{name: {"classifier"} for name in CLASSICAL},
}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_the_head_is_what_stands_outside_the_pre_trained_model(name: str) -> None:
    params = Network(tiny(name)).parameters()
    assert {key.partition(".")[0] for key in params.head} == HEADS[name]
    assert not params.head & params.blocks


def test_the_head_of_other_models_is_the_trainable_copy_or_behind_the_last_block() -> None:
    params = Network(tiny(LORA)).parameters()
    assert params.head == {"base_model.model.score.modules_to_save.default.weight"}
    network = tiny_network()
    assert find_head(network, find_blocks(network)) == {"head.weight", "head.bias"}
    assert find_head(nn.Linear(2, 2), []) == frozenset()


def test_dropping_is_a_layer_s_rate_or_one_that_the_code_reads() -> None:
    assert drops(tiny_bert())
    assert not drops(tiny_bert(dropout=0.0, attention=0.0))
    # OPT calls a function with a rate of its own and has no dropout layer.
    assert drops(tiny("opt", dropout=0.1))
    assert not drops(tiny("opt", dropout=0.0))
    assert not drops(tiny("llama"))


@pytest.mark.parametrize(("rate", "warned"), [(0.0, 1), (0.3, 0)])
def test_passes_that_differ_by_dropout_alone_warn_once_where_there_is_none(
    rate: float, warned: int, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_network(rate=rate), RDrop())
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(3):
            logs = stepper.backward(rows(5, 3))
            stepper.discard()
    assert caplog.text.count("the method is inert") == warned
    assert (logs["loss/divergence"] == 0) == bool(warned)


def test_other_weights_stand_in_for_one_forward_and_hooks_stay() -> None:
    model = tiny_network(rate=0.0)
    network, batch = Network(model), Batch.of(rows(5, 3))
    other = {name: value + 0.1 for name, value in model.named_parameters()}
    delta = torch.full((2, 5, 4), 0.1, dtype=torch.float64)
    own = network.logits(batch, delta=delta)
    found = network.logits(batch, delta=delta, weights=other)
    moved = tiny_network(rate=0.0)
    moved.load_state_dict({name: value.detach() for name, value in other.items()})
    torch.testing.assert_close(found, Network(moved).logits(batch, delta=delta))
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
