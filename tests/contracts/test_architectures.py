"""Every architecture, right- and left-padded: embeddings, attack, dropout sites, blocks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper.errors import ModelError
from temper.forward import StepContext
from temper.forward.perturbations import zeros
from temper.methods.at import AT
from temper.models.network import Network
from temper.models.passes import DropoutPlan
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.contracts.architectures import (
    CASES,
    CLASSICAL,
    LORA,
    LORA_PREFIX,
    batch_of,
    inputs_of,
    marks,
    of,
    plain_logits,
    tiny,
)

each_case = pytest.mark.parametrize(("name", "side"), CASES)
each_name = pytest.mark.parametrize("name", [name for name, side in CASES if side == "right"])


def full_name(name: str, module: str) -> str:
    """Return a module's name, which PEFT prefixes."""
    return LORA_PREFIX + module if name == LORA else module


@each_case
def test_the_input_embedding_is_found(name: str, side: str) -> None:
    model = tiny(name)
    network = Network(model)
    network.probe(batch_of(name, side=side))
    assert network._found is not None
    assert network._found.module is model.get_submodule(full_name(name, of(name).embedding))
    assert network._found.time_first == (name == "xlnet")


@each_case
@pytest.mark.parametrize("site", ["word", "output"])
def test_a_zero_delta_gives_the_logits_of_the_model_bit_for_bit(
    name: str, side: str, site: Any
) -> None:
    model = tiny(name)
    own = plain_logits(model, inputs_of(name, side=side))
    network = Network(model)
    batch = batch_of(name, side=side)
    zero = zeros(network, batch, site=site)
    assert torch.equal(network.logits(batch, delta=zero, site=site)[:, 0], own)


@each_case
@pytest.mark.parametrize("site", ["word", "output"])
def test_a_delta_on_one_example_changes_only_its_logits(name: str, side: str, site: Any) -> None:
    network = Network(tiny(name))
    batch = batch_of(name, side=side)
    zero = zeros(network, batch, site=site).detach()
    still = network.logits(batch, delta=zero, site=site)[:, 0].detach()
    for row in range(batch.size):
        delta = zero.clone()
        delta[row] = torch.randn(delta[row].shape, generator=torch.Generator().manual_seed(row))
        change = (
            (network.logits(batch, delta=delta, site=site)[:, 0].detach() - still).abs().amax(1)
        )
        assert change[row] > 1e-3
        assert torch.equal(change[torch.arange(batch.size) != row], torch.zeros(batch.size - 1))


@each_case
@pytest.mark.parametrize("site", ["word", "output"])
def test_a_delta_is_added_once_even_if_its_module_runs_repeatedly(
    name: str, side: str, site: Any
) -> None:
    """Against the same movement written into the module's own output, once in a forward."""
    model, batch = tiny(name), batch_of(name, side=side)
    network = Network(model)
    zero = zeros(network, batch, site=site)
    delta = torch.randn(zero.shape, generator=torch.Generator().manual_seed(3)) * 0.3
    ours = network.logits(batch, delta=delta, site=site)[:, 0].detach()
    time_first = network._found.time_first
    network.remove_hooks()
    moved = delta.transpose(0, 1) if time_first else delta
    lookup = model.get_submodule(full_name(name, of(name).embedding))
    block = model.get_submodule(full_name(name, of(name).blocks[0]) + ".0")
    calls: list[nn.Module] = []

    def at_words(module: nn.Module, args: Any, output: Tensor) -> Tensor:
        calls.append(module)
        return output + moved

    def at_blocks(module: nn.Module, args: Any, kwargs: Any) -> Any:
        calls.append(module)
        if len(calls) > 1:
            return None
        if args:
            return (args[0] + moved, *args[1:]), kwargs
        return args, {**kwargs, "hidden_states": kwargs["hidden_states"] + moved}

    if site == "word":
        lookup.register_forward_hook(at_words)
    else:
        block.register_forward_pre_hook(at_blocks, with_kwargs=True)
    expected = plain_logits(model, inputs_of(name, side=side))
    assert len(calls) == (2 if name == "albert" and site == "output" else 1)
    torch.testing.assert_close(ours, expected, rtol=1e-5, atol=1e-6)


@each_case
def test_the_gradient_reaches_every_real_token_and_the_attack_spares_padding(
    name: str, side: str
) -> None:
    network = Network(tiny(name))
    batch = batch_of(name, side=side)
    zero = zeros(network, batch)
    logits = network.logits(batch, delta=zero)[:, 0]
    nn.functional.cross_entropy(logits, batch.labels, reduction="sum").backward()
    assert zero.grad is not None
    size = zero.grad.norm(dim=-1)
    attack, words = AT(epsilon=0.5, relative=False), network.embeddings(batch)
    step = StepContext(network, batch, {}, Step(), Streams(0))
    delta = attack.attack_step(step, zero.grad, words)
    assert (size[batch.mask] > 0).all()
    assert (delta[~batch.mask] == 0).all()
    torch.testing.assert_close(delta.flatten(1).norm(dim=1), torch.full((batch.size,), 0.5))
    # XLNet's head reads the last place, which right-padding fills: its gradient there is real.
    if (name, side) != ("xlnet", "right"):
        assert (size[~batch.mask] == 0).all()


@each_name
def test_the_blocks_are_found_and_only_theirs_lie_in_the_masks_scope(name: str) -> None:
    model = tiny(name)
    network = Network(model)
    lists = [full_name(name, each) for each in of(name).blocks]
    result = [block for block, _ in network.blocks]
    # ALBERT's two layers share one block.
    assert result == [f"{each}.{n}" for each in lists for n in range(of(name).layers)]
    params = network.parameters()
    inside = {key for key in params.tensors if key.startswith(tuple(f"{each}." for each in lists))}
    assert params.blocks == inside
    outside = set(params.tensors) - inside
    assert inside
    assert outside
    if name == LORA:
        assert all("lora_" in key for key in inside)
        assert all("score" in key for key in outside)
    else:
        assert any("embed" in key or ".w" in key or "shared" in key for key in outside)


class Calls:
    """Note, with hooks of its own, every dropout call of a forward and the shape it saw."""

    def __init__(self, model: nn.Module) -> None:
        self.shapes: dict[tuple[str, int], tuple[int, ...]] = {}
        for name, module in model.named_modules():
            if type(module) is nn.Dropout:
                module.register_forward_hook(self._see(name))

    def _see(self, name: str) -> Any:
        def hook(module: nn.Module, args: Any, output: Tensor) -> None:
            call = sum(key[0] == name for key in self.shapes)
            self.shapes[(name, call)] = tuple(output.shape)

        return hook


@each_name
def test_dropout_sites_are_the_dropout_calls_on_hidden_states_or_else_the_blocks(name: str) -> None:
    inputs = inputs_of(name)
    B, T = inputs["input_ids"].shape
    tokens = (T, B) if name == "xlnet" else (B, T)
    counted = tiny(name)
    calls = Calls(counted)
    plain_logits(counted.train(), inputs)
    at_tokens = [key for key, shape in calls.shapes.items() if shape[:2] == tokens]
    at_rows = [key for key, s in calls.shapes.items() if len(s) == 2 and s[0] == B]
    if name == "xlnet":  # the relative positions, twice as long as the text
        at_tokens = [key for key, s in calls.shapes.items() if len(s) == 3 and s[1] == B]
    network = Network(tiny(name))
    network.probe(batch_of(name))
    if name in ("opt", "llama", "qwen2", "bart"):
        assert at_tokens == []
        assert list(network.site_keys) == [*((each, 0) for each, _ in network.blocks), *at_rows]
    else:
        # The words, and between the blocks, of the small classical networks.
        assert len(at_tokens) == of(name).layers if name in CLASSICAL else len(at_tokens) >= 3
        wanted = {*at_tokens, *at_rows}
        assert list(network.site_keys) == [key for key in calls.shapes if key in wanted]


def plan_at(network: Network, batch: Batch, rate: float, **more: Any) -> DropoutPlan:
    """Return a plan with one rate for every example and channel of every site."""
    rates: dict[Any, Tensor | None] = dict.fromkeys(
        network.site_keys, torch.full((batch.size, 1), rate)
    )
    return DropoutPlan(rates=rates, only=frozenset(network.site_keys), **more)


@each_name
def test_a_dropout_plan_applies_to_the_sites_and_not_to_evaluation(name: str) -> None:
    model = tiny(name, dropout=0.0)
    network = Network(model)
    batch = batch_of(name)
    own = network.logits(batch)[:, 0]
    plan = plan_at(network, batch, 0.5, seed=3, copies=1)
    assert torch.equal(network.logits(batch, dropout=plan)[:, 0], own)
    model.train()
    plain = network.logits(batch)[:, 0]
    thinned = network.logits(batch, dropout=plan)[:, 0]
    assert ((thinned - plain).abs().amax(1) > 1e-3).all()
    assert torch.equal(network.logits(batch, dropout=plan)[:, 0], thinned)
    assert torch.equal(network.logits(batch)[:, 0], plain)


@each_name
def test_k_passes_in_one_forward_equal_k_forwards_with_the_same_masks(name: str) -> None:
    network = Network(tiny(name, dropout=0.0).train())
    batch = batch_of(name)
    network.probe(batch)
    together = network.logits(
        batch.repeat(2), dropout=plan_at(network, batch, 0.3, seed=7, copies=2)
    )[:, 0].chunk(2)
    for index in range(2):
        plan = plan_at(network, batch, 0.3, seed=7, copies=1, first=index)
        alone = network.logits(batch, dropout=plan)[:, 0]
        torch.testing.assert_close(together[index], alone, rtol=1e-4, atol=1e-5)
    assert ((together[0] - together[1]).abs().amax(1) > 1e-3).all()


def test_a_model_that_does_not_embed_the_input_ids_raises_an_error() -> None:
    class Hot(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.words = nn.Linear(60, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.words(nn.functional.one_hot(input_ids, 60).float()).mean(1)

    with pytest.raises(ModelError, match=r"exactly one embedding module .* found 0 \(none\)"):
        Network(Hot()).probe(batch_of("bert"))


def test_a_model_that_embeds_ids_twice_raises_an_error_and_is_unchanged() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.left, self.right = nn.Embedding(60, 4), nn.Embedding(60, 4)
            self.dropout, self.head = nn.Dropout(0.1), nn.Linear(4, 2)

        def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
            return self.head(self.dropout(self.left(input_ids) + self.right(input_ids)).mean(1))

    model = Twice().eval()
    before = marks(model)
    with pytest.raises(ModelError, match=r"found 2 \(left, right\)"):
        Network(model).probe(batch_of("bert"))
    assert marks(model) == before
    assert not model.training
