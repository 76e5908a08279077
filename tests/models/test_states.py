"""The head's input position, traces, and attention that can be differentiated twice."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from torch import Tensor, nn

from temper import Stepper
from temper.errors import ModelError
from temper.methods import configure
from temper.models.network import Network
from temper.models.states import Trace, read_positions
from temper.types import Batch
from tests.contracts.architectures import (
    ARCHITECTURES,
    CASES,
    CLASSICAL,
    MEAN_POOLED,
    batch_of,
    marks,
    tiny,
)
from tests.methods.tiny import rows, tiny_bert, tiny_network

DECODERS = {"gpt2", "opt", "llama", "qwen2", "llama_lora"}
AT_END = {"t5", "bart"}
"""They read the decoder's state at the end token, which every row has last."""
LAYERED = {"strength": {"weight": 1.0}, "layers": "uniform"}
TWICE = configure("jachess", LAYERED)
"""Differentiates twice."""
# The others' heads pool over the tokens.
one_position = pytest.mark.parametrize(
    ("name", "side"), [case for case in CASES if case[0] not in (MEAN_POOLED, *CLASSICAL)]
)


def traced(model: nn.Module, batch: Batch, **how: Any) -> Trace:
    network = Network(model)
    with network.tracer(batch).tracing(**how) as trace:
        trace.logits = network.logits(batch)
    network.remove_hooks()
    return trace


def rule(name: str, batch: Batch) -> list[int]:
    """Return the position that the design says is read, row by row."""
    real = [row.nonzero().flatten().tolist() for row in batch.mask]
    if name == "xlnet":
        return [batch.mask.shape[1] - 1] * batch.size
    return [each[-1] if name in DECODERS | AT_END else each[0] for each in real]


# Where the head reads


@one_position
def test_the_position_is_that_of_the_rule(name: str, side: str) -> None:
    batch = batch_of(name, side=side)
    trace = traced(tiny(name), batch)
    fractions = read_positions(trace.logits, trace.states[-1], time_first=trace.time_first)
    expected = nn.functional.one_hot(torch.tensor(rule(name, batch)), batch.mask.shape[1])
    assert torch.equal(fractions, expected.to(fractions.dtype))
    for state, read in zip(trace.states, trace.at_head(), strict=True):
        ours = state.transpose(0, 1) if trace.time_first else state
        assert read.shape == (batch.size, ours.shape[-1])
        for row, position in enumerate(rule(name, batch)):
            assert torch.equal(read[row], ours[row, position])


@pytest.mark.parametrize(("name", "side"), CASES)
def test_no_padding_is_read_but_by_the_head_of_an_xlnet(name: str, side: str) -> None:
    """XLNet's own head reads the last position, also if it is padding."""
    batch = batch_of(name, side=side)
    trace = traced(tiny(name), batch)
    fractions = read_positions(trace.logits, trace.states[-1], time_first=trace.time_first)
    at_padding = (fractions > 0) & ~batch.mask
    short = batch.mask.sum(1) < batch.mask.shape[1]
    if name == "xlnet" and side == "right":
        assert torch.equal(at_padding.any(1), short)
    else:
        assert not at_padding.any()


@pytest.mark.parametrize(("name", "side"), CASES)
def test_reading_finds_the_states_and_logits_of_a_trace_without_its_graph(
    name: str, side: str
) -> None:
    batch, model = batch_of(name, side=side), tiny(name)
    expected, network = traced(model, batch), Network(model)
    with network.tracer(batch).reading() as result:
        result.logits = network.logits(batch)
    network.remove_hooks()
    assert torch.is_grad_enabled()
    torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-5)
    assert all(state.is_leaf for state in result.states)
    for ours, theirs in zip(result.at_head(), expected.at_head(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_failed_pass_restores_the_gradient_mode() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3))

    def fail() -> None:
        with network.tracer(batch).reading():
            network.logits(batch)
            raise ZeroDivisionError

    with torch.no_grad():
        with pytest.raises(ZeroDivisionError):
            fail()
        assert not torch.is_grad_enabled()
    assert network.logits(batch).requires_grad


@settings(max_examples=15, deadline=None)
@given(st.lists(st.integers(1, 6), min_size=1, max_size=3))
def test_a_pooling_head_weights_real_tokens_equally(lengths: list[int]) -> None:
    batch = Batch.of(rows(*[max(2, each) for each in lengths]))
    trace = traced(tiny_network(), batch)
    fractions = read_positions(trace.logits, trace.states[-1])
    real = batch.mask.double()
    torch.testing.assert_close(fractions, real / real.sum(1, keepdim=True))
    for state, read in zip(trace.states, trace.at_head(), strict=True):
        for row, length in enumerate(batch.mask.sum(1).tolist()):
            torch.testing.assert_close(read[row], state[row, :length].mean(0))


def head(logits_of: Callable[[Tensor], Tensor]) -> Tensor:
    """Return the positions that a head reads of three rows of four tokens."""
    draws = torch.Generator().manual_seed(0)
    last = torch.randn(3, 4, 5, generator=draws).requires_grad_()
    return read_positions(logits_of(last), last)


def test_the_head_is_found_despite_canceling_logits_or_a_dead_row() -> None:
    # Two classes of a softmax cancel in a plain sum of the logits.
    fractions = head(lambda last: last[:, 1, :2].softmax(-1))
    assert fractions.tolist() == [[0.0, 1.0, 0.0, 0.0]] * 3
    alive = torch.tensor([1.0, 0.0, 1.0])[:, None]
    fractions = head(lambda last: last[:, 2, :2] * alive)
    assert fractions.tolist() == [[0.0, 0.0, 1.0, 0.0]] * 3


def test_a_zero_head_or_one_not_after_the_last_block_raises_an_error() -> None:
    with pytest.raises(ModelError, match="head is zero or dead"):
        head(lambda last: last[:, 0, :2] * 0)
    other = torch.randn(3, 2, requires_grad=True)
    with pytest.raises(ModelError, match=r"do not depend on .*last block.*jacobian"):
        head(lambda last: other * 2)


# What a trace is


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_tracing_changes_no_logit_and_removes_its_hooks(name: str) -> None:
    model, batch = tiny(name), batch_of(name)
    before = marks(model)
    network = Network(model)
    plain = network.logits(batch)
    with network.tracer(batch).tracing() as trace:
        result = network.logits(batch)
    assert torch.equal(result, plain)
    assert torch.equal(network.logits(batch), plain)
    network.remove_hooks()
    assert marks(model) == before
    assert trace.root.shape[:2] == batch.mask.shape
    decoder = 2 if name in AT_END else len(network.blocks)
    expected = model.config.num_hidden_layers if name == "albert" else decoder
    assert len(trace.states) == expected


@pytest.mark.parametrize("name", ["bert", "xlnet", "llama", "t5", "bart"])
def test_a_shift_of_the_root_is_a_shift_of_the_embeddings(name: str) -> None:
    batch = batch_of(name)
    network = Network(tiny(name))
    words = network.embeddings(batch)
    shift = torch.randn(words.shape, generator=torch.Generator().manual_seed(1)) * 0.1
    with network.tracer(batch).tracing(shift=shift) as trace:
        result = network.logits(batch)
    torch.testing.assert_close(trace.root, words + shift)
    torch.testing.assert_close(result, network.logits(batch, delta=shift))


def test_a_trace_is_detached_from_the_embedding_table() -> None:
    model, batch = tiny("bert"), batch_of("bert")
    trace = traced(model, batch)
    (result,) = torch.autograd.grad(sum(s.square().sum() for s in trace.at_head()), trace.root)
    assert result.abs().sum(-1)[batch.mask].min() > 0
    # What is only padding has no say.
    assert not result[~batch.mask].any()
    trace = traced(model, batch)
    trace.logits.sum().backward()
    table = model.bert.embeddings.word_embeddings.weight.grad
    assert table is None or not table.any()
    assert model.bert.embeddings.position_embeddings.weight.grad.any()


# What cannot be differentiated twice


@pytest.mark.parametrize("attention", ["flash_attention_2", "flex_attention"])
def test_attention_without_a_second_derivative_is_put_on_eager_until_release(
    attention: str,
) -> None:
    model = tiny_bert()
    stepper = Stepper(model, TWICE)
    stepper.network.probe(Batch.of(rows(5, 3)))
    model.config._attn_implementation = attention
    used: list[str] = []
    model.register_forward_pre_hook(lambda *_: used.append(model.config._attn_implementation))
    with pytest.MonkeyPatch.context() as patch:
        # The kernels themselves are not on this machine, so the way back is only noted.
        plain = type(model).set_attn_implementation
        asked: list[str] = []

        def switch(self: Any, name: str) -> None:
            asked.append(name)
            if name == "eager":
                plain(self, name)

        patch.setattr(type(model), "set_attn_implementation", switch)
        stepper.backward(rows(5, 3))
        stepper.remove_hooks()
    assert set(used) == {"eager"}
    assert asked == ["eager", attention]


def test_attention_without_an_eager_kernel_raises_an_error_with_advice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model = tiny_bert()
    stepper = Stepper(model, TWICE)
    stepper.network.probe(Batch.of(rows(5, 3)))
    model.config._attn_implementation = "paged|sdpa"
    called: list[None] = []
    model.register_forward_pre_hook(lambda *_: called.append(None))

    def refuse(self: Any, name: str) -> None:
        raise ValueError("no")

    monkeypatch.setattr(type(model), "set_attn_implementation", refuse)
    with pytest.raises(ModelError, match=r"cannot be switched.*scheme='four_point'"):
        stepper.backward(rows(5, 3))
    assert not called


def test_four_point_scheme_needs_no_second_derivative() -> None:
    """The default kernels, which have none, will do; see the platform's traps."""
    method = configure("jachess", {**LAYERED, "scheme": "four_point"})
    stepper = Stepper(tiny_bert(attention=0.0), method)
    kernels: list[str] = []
    plain = nn.functional.scaled_dot_product_attention

    def noted(*arguments: Any, **keywords: Any) -> Tensor:
        result = plain(*arguments, **keywords)
        if result.grad_fn is not None:
            kernels.append(result.grad_fn.name())
        return result

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nn.functional, "scaled_dot_product_attention", noted)
        stepper.backward(rows(5, 3))
    assert any("Flash" in name for name in kernels), kernels


def test_a_compiled_model_raises_an_error_before_it_compiles() -> None:
    model = tiny_bert()
    stepper = Stepper(model, TWICE)
    model._orig_mod = nn.Identity()
    with pytest.raises(ModelError, match=r"compiled model has no second.*scheme='four_point'"):
        stepper.backward(rows(5, 3))


class Flat(nn.Module):
    """Words, their mean and a head: nothing is repeated."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.words, self.inner, self.head = nn.Embedding(23, 4), nn.Linear(4, 4), nn.Linear(4, 3)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        real = attention_mask.unsqueeze(-1)
        mean = (self.words(input_ids) * real).sum(1) / real.sum(1)
        return self.head(torch.tanh(self.inner(mean)))


def test_a_model_without_blocks_trains_on_logits_only() -> None:
    message = r"no repeated blocks\. .*\(jacobian\)"
    with pytest.raises(ModelError, match=message):
        Stepper(Flat(), "jachess").prepare([rows(5, 3)])
    with pytest.raises(ModelError, match=message):
        Stepper(Flat(), configure("jachess", {"layers": "uniform"})).backward(rows(5, 3))
    for name in ("jacobian", "cross_holder"):
        stepper = Stepper(Flat(), name)
        logs = stepper.backward(rows(5, 3))
        assert logs["loss/jacobian"] > 0
