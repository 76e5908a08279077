from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from temper.errors import ModelError
from temper.models.network import Network
from temper.models.passes import DropoutPlan, Recording
from temper.models.sites import thinned
from temper.seeding import generator
from temper.types import Batch
from tests.contracts.architectures import batch_of as of_architecture
from tests.contracts.architectures import tiny
from tests.methods.tiny import (
    TinyNetwork,
    recorded_drops,
    rows,
    tiny_bert,
    tiny_network,
    tiny_xlnet,
)

FIXED = DropoutPlan(seed=4, copies=2, fixed=(0.25, 0.75))


def batch_of(*lengths: int) -> Batch:
    return Batch.of(rows(*lengths))


def test_dropping_is_unbiased_unit_by_unit() -> None:
    x = torch.tensor([1.0, -2.0, 0.5, 3.0]).repeat(40_000, 1)
    rate = torch.tensor([0.0, 0.1, 0.5, 0.9])
    result = thinned(x, rate, [generator(0)])
    p = (65536 * (1 - rate.double())).round() / 65536
    error = (x[0].double().square() * (1 - p) / p / 40_000).sqrt()
    assert ((result.double().mean(0) - x[0].double()).abs() <= 5 * error + 1e-6).all()
    for unit in range(4):
        kept = result[:, unit][result[:, unit] != 0].double()
        torch.testing.assert_close(kept, (x[0, unit] / p[unit]).expand_as(kept), rtol=1e-6, atol=0)


def test_the_gradient_passes_through_the_same_mask() -> None:
    x = torch.randn(6, 5, dtype=torch.float64, requires_grad=True)
    result = thinned(x, torch.full((6, 1), 0.4), [generator(0), generator(1)])
    (gradient,) = torch.autograd.grad(result.sum(), x)
    torch.testing.assert_close(gradient, (result / x).detach())


def test_every_pass_has_its_own_rate_and_mask() -> None:
    model, batch = tiny_network(), batch_of(6, 6, 6)
    network = Network(model)
    network.probe(batch)
    with recorded_drops(model) as drops:
        network.logits(batch.repeat(2), dropout=FIXED)
    assert set(drops) == {name for name, _ in network.site_keys}
    for (multipliers,) in drops.values():
        first, second = multipliers.chunk(2)
        assert set(first.unique().round(decimals=3).tolist()) <= {0.0, 1.333}
        assert set(second.unique().round(decimals=3).tolist()) <= {0.0, 4.0}
    # Wide enough for two equal masks to be out of the question.
    words = drops["after_words"][0] != 0
    assert not torch.equal(words[0], words[1])
    assert not torch.equal(words[:3], words[3:])


@pytest.mark.parametrize("fixed", [(0.2, 0.5, 0.7), None], ids=["fixed", "own"])
@pytest.mark.parametrize("make", [tiny_network, tiny_xlnet, lambda: tiny_bert(attention=0.0)])
def test_passes_run_as_one_forward_equal_single_ones_with_the_same_masks(
    make: object, fixed: tuple[float, ...] | None
) -> None:
    model, batch = make(), batch_of(5, 3, 4)
    if hasattr(model, "transformer"):
        for layer in model.transformer.layer:
            layer.rel_attn.dropout.eval()
    network = Network(model)
    network.probe(batch)
    sites = frozenset(network.site_keys)
    whole = network.logits(
        batch.repeat(3), dropout=DropoutPlan(9, 3, fixed=fixed, only=sites), seed=1
    )
    assert not torch.allclose(whole[:3], whole[3:6])
    for k, expected in enumerate(whole.chunk(3)):
        rate = None if fixed is None else (fixed[k],)
        plan = DropoutPlan(9, 1, first=k, fixed=rate, only=sites)
        result = network.logits(batch, dropout=plan, seed=1)
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6)


def test_without_rates_the_rates_of_the_model_apply() -> None:
    model, batch = tiny_network(rate=0.25, width=64), batch_of(6, 6)
    network = Network(model)
    network.probe(batch)
    with recorded_drops(model) as drops:
        network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2))
    for (multipliers,) in drops.values():
        assert set(multipliers.unique().round(decimals=3).tolist()) == {0.0, 1.333}
    dropped = (drops["after_words"][0] == 0).double()
    assert abs(dropped.mean() - 0.25) < 5 * (0.25 * 0.75 / dropped.numel()) ** 0.5


def test_agreeing_fixed_rates_reach_attention_and_are_put_back() -> None:
    model, batch = tiny_bert(dropout=0.1, attention=0.2), batch_of(5, 3)
    network = Network(model)
    network.probe(batch)
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    own = [layer.p for layer in layers]
    assert set(own) == {0.1, 0.2}
    seen: list[set[float]] = []
    hook = model.classifier.register_forward_hook(
        lambda *_: seen.append({layer.p for layer in layers})
    )
    network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2, fixed=(0.4, 0.4)))
    network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2, fixed=(0.4, 0.5)))
    network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2, fixed=(0.4, 0.4)))
    network.reset()
    last = frozenset(network.site_keys[-1:])
    network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2, fixed=(0.4, 0.4), only=last))
    hook.remove()
    assert seen == [{0.4}, {0.1, 0.2}, {0.4}, {0.1, 0.2}]
    assert [layer.p for layer in layers] == own


def test_a_plan_for_the_last_site_does_not_change_other_sites() -> None:
    model, batch = tiny_network(rate=0.25, width=32), batch_of(6, 6)
    network = Network(model)
    network.probe(batch)
    last = frozenset(network.site_keys[-1:])
    assert last == {("before_head", 0)}
    with recorded_drops(model) as drops:
        network.logits(batch.repeat(2), dropout=DropoutPlan(0, 2, fixed=(0.75, 0.75), only=last))
    assert set(drops["before_head"][0].unique().round(decimals=3).tolist()) == {0.0, 4.0}
    for name in ("after_words", "layers.0.dropout", "layers.1.dropout"):
        assert set(drops[name][0].unique().round(decimals=3).tolist()) == {0.0, 1.333}


class Careless(TinyNetwork):
    """A network that averages over the padding too, so that gradients reach it."""

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        return super().forward(input_ids, torch.ones_like(attention_mask))


@pytest.mark.parametrize("make", [tiny_network, lambda: Careless().double().train()])
def test_recorded_norms_are_those_of_the_gradient_over_real_tokens(make: object) -> None:
    model, batch = make(), batch_of(6, 2, 4)
    network = Network(model)
    network.probe(batch)
    outputs: dict[str, Tensor] = {}
    hooks = [
        module.register_forward_hook(lambda _m, _a, y, n=name: outputs.update({n: y}))
        for name, module in model.named_modules()
        if isinstance(module, nn.Dropout)
    ]
    recording = Recording(channel_norms=True)
    zero = torch.zeros(3, 6, 4, dtype=torch.float64, requires_grad=True)
    logits = network.logits(batch, delta=zero, recording=recording, seed=3)
    loss = nn.functional.cross_entropy(logits[:, 0], batch.labels)
    gradients = torch.autograd.grad(loss, list(outputs.values()), retain_graph=True)
    loss.backward()
    for hook in hooks:
        hook.remove()
    assert [name for name, _ in recording.shapes] == list(outputs)
    for name, gradient in zip(outputs, gradients, strict=True):
        if gradient.dim() == 2:
            expected = gradient.abs()
        else:
            expected = torch.stack(
                [gradient[row, : [6, 2, 4][row]].square().sum(0).sqrt() for row in range(3)]
            )
        torch.testing.assert_close(recording.norms[(name, 0)], expected)


def test_xlnet_layers_are_sites_despite_the_time_first_layout() -> None:
    model, batch = tiny_xlnet(), batch_of(5, 3, 4)
    network = Network(model)
    network.probe(batch)
    assert len({name for name, _ in network.site_keys}) >= 5
    recording = Recording(channel_norms=True)
    zero = torch.zeros(3, 5, 8, requires_grad=True)
    network.logits(batch, delta=zero, recording=recording).sum().backward()
    shapes = {norms.shape[0] for norms in recording.norms.values()}
    assert shapes == {3}


def checkpoint_blocks(model: nn.Module) -> None:
    """Switch checkpointing on under the name that the installed Transformers has for it."""
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})


def gradients_under(model: nn.Module, batch: Batch, plan: DropoutPlan) -> dict[str, Tensor]:
    network = Network(model)
    delta = torch.full((*batch.mask.shape, network.width(batch)), 0.05, requires_grad=True)
    recording = Recording(channel_norms=True)
    logits = network.logits(batch, delta=delta, recording=recording, seed=1)
    logits.square().sum().backward()
    result = {f"norm {key}": norm for key, norm in recording.norms.items()}
    moved = delta.detach().repeat(plan.copies, 1, 1).requires_grad_()
    logits = network.logits(batch.repeat(plan.copies), delta=moved, dropout=plan, seed=2)
    logits.square().sum().backward()
    network.remove_hooks()
    result["delta"] = moved.grad
    result.update({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    return result


@pytest.mark.parametrize("name", ["bert", "gpt2", "llama"])
def test_checkpointing_replays_masks_with_the_same_gradients(name: str) -> None:
    batch = of_architecture(name)
    plain = gradients_under(tiny(name).train(), batch, FIXED)
    model = tiny(name).train()
    checkpoint_blocks(model)
    checkpointed = gradients_under(model, batch, FIXED)
    assert set(checkpointed) == set(plain)
    for key, gradient in plain.items():
        torch.testing.assert_close(checkpointed[key], gradient, rtol=1e-5, atol=1e-7)


def test_shared_blocks_under_checkpointing_raise_an_error_with_advice() -> None:
    model, batch = tiny("albert").train(), batch_of(5, 3)
    # Transformers has no checkpointing for ALBERT; a user's own looks like this.
    group = model.albert.encoder.albert_layer_groups[0]
    group.forward = partial(checkpoint, group.forward, use_reentrant=False)
    network = Network(model)
    logits = network.logits(batch.repeat(2), dropout=FIXED)
    with pytest.raises(ModelError, match="Switch gradient checkpointing off"):
        logits.sum().backward()


def test_a_site_without_a_rate_from_the_clean_pass_is_named() -> None:
    network, batch = Network(tiny_bert()), batch_of(5, 3)
    with pytest.raises(ModelError, match=r"not in the clean pass.*adaptive='uniform'"):
        network.logits(batch, dropout=DropoutPlan(0, 1, rates={}))
