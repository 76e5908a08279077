from __future__ import annotations

import logging
from typing import Literal

import pytest
import torch
from torch import nn

from temper import UEGR, Stepper
from temper.forward import StepContext, SubModels
from temper.models.network import Network
from temper.models.passes import Recording
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.contracts.architectures import batch_of, tiny
from tests.methods.tiny import recorded_drops, rows, tiny_llama, tiny_network


def rank_in_row(values: torch.Tensor) -> torch.Tensor:
    """Rank each row's channels by comparing all pairs, ties in the middle."""
    smaller = (values[:, None, :] < values[:, :, None]).sum(-1)
    equal = (values[:, None, :] == values[:, :, None]).sum(-1) - 1
    return (smaller + equal / 2).double() / (values.shape[1] - 1)


def test_adaptive_rates_follow_the_gradient_s_norm_over_real_tokens() -> None:
    """An independent clean pass by plain autograd gives the rates that the passes then show."""
    model, batch = tiny_network(width=16), rows(6, 4, 5)
    low, high = 0.1, 0.4
    stepper = Stepper(
        model, UEGR(passes=40, mask=False, adaptive={"low": low, "high": high}), seed=2
    )
    stepper.network.probe(Batch.of(batch))
    with recorded_drops(model) as drops:
        stepper.backward(batch)
    stepper.remove_hooks()
    # The clean pass again, its masks replayed on copies of the layers' outputs.
    reached: dict[str, torch.Tensor] = {}

    def replay(name: str):  # type: ignore[no-untyped-def]
        def hook(_m: nn.Module, args: tuple[torch.Tensor, ...], _y: torch.Tensor) -> torch.Tensor:
            reached[name] = args[0] * drops[name][0]
            return reached[name]

        return hook

    hooks = [model.get_submodule(name).register_forward_hook(replay(name)) for name in drops]
    logits = model(batch["input_ids"], batch["attention_mask"])
    for hook in hooks:
        hook.remove()
    loss = nn.functional.cross_entropy(logits, batch["labels"])
    gradients = torch.autograd.grad(loss, list(reached.values()))
    for name, gradient in zip(reached, gradients, strict=True):
        if gradient.dim() == 2:
            norms = gradient.abs()
        else:
            real = [gradient[row, : [6, 4, 5][row]] for row in range(3)]
            norms = torch.stack([each.square().sum(0).sqrt() for each in real])
        rate = low + (high - low) * rank_in_row(norms)
        multipliers = drops[name][1].view(40, 3, -1, norms.shape[1])
        kept = multipliers != 0
        factor = (1 / (1 - rate))[None, :, None, :].expand_as(multipliers)
        # Rates are rounded to 1/65536.
        torch.testing.assert_close(multipliers[kept], factor[kept], rtol=1e-4, atol=0)
        count = 40 * multipliers.shape[2]
        fraction = 1 - kept.double().mean((0, 2))
        assert ((fraction - rate).abs() <= 5 * (rate * (1 - rate) / count).sqrt()).all()


def test_rates_are_detached_and_none_without_a_gradient() -> None:
    submodels = SubModels(adaptive="gradient", low=0.1, high=0.3)
    recording = Recording()
    recording.norms[("seen", 0)] = torch.tensor([[3.0, 1.0, 2.0]])
    result = submodels.rate(recording, ("seen", 0))
    torch.testing.assert_close(result, torch.tensor([[0.3, 0.1, 0.2]]))
    assert submodels.rate(recording, ("unseen", 0)) is None


def test_gradient_rates_need_the_clean_pass() -> None:
    network, batch = Network(tiny_network()), Batch.of(rows(5, 3))
    submodels = SubModels(adaptive="gradient", low=0.1, high=0.3)
    with pytest.raises(ValueError, match="'gradient' needs the recording"):
        StepContext(network, batch, {}, Step(), Streams(0)).passes(submodels)


def test_adaptive_rates_of_a_network_without_dropout_apply_to_its_blocks() -> None:
    model = tiny_llama()
    stepper = Stepper(
        model, UEGR(divergence_weight=1.0, mask=False, adaptive={"low": 0.4, "high": 0.6}), seed=2
    )
    logs = stepper.backward(rows(5, 3))
    assert logs["loss/divergence"] > 0
    assert [name for name, _ in stepper.network.site_keys] == ["model.layers.0", "model.layers.1"]


def first_block_under(
    name: str, submodels: SubModels, *, dropout: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the first block's output [K*B, T, D] without sub-models and with them."""
    model, batch = tiny(name, dropout=dropout).train(), batch_of(name)
    network = Network(model)
    network.probe(batch)
    seen: list[torch.Tensor] = []

    def record_output(*arguments: object) -> None:
        output = arguments[-1]
        seen.append(output[0] if isinstance(output, tuple) else output)

    network.blocks[0][1].register_forward_hook(record_output)
    for plan in (None, submodels.plan(network, None, seed=4)):
        network.logits(batch.repeat(submodels.passes), dropout=plan, seed=1)
    plain, planned = seen
    return plain, planned


@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_without_dropout_layers_sub_models_drop_30_percent_over_the_block_outputs(
    name: str,
) -> None:
    plain, planned = first_block_under(name, SubModels(passes=2), dropout=0.0)
    kept = planned != 0
    # Two blocks; rates are rounded to 1/65536.
    torch.testing.assert_close(planned[kept], plain[kept] / 0.85, rtol=1e-4, atol=1e-6)
    fraction, n = (~kept).double().mean(), kept.numel()
    assert abs(fraction - 0.15) < 5 * (0.15 * 0.85 / n) ** 0.5
    assert not torch.equal(*kept.chunk(2))


@pytest.mark.parametrize(
    ("name", "passes", "dropout"), [("opt", 2, 0.1), ("bert", 2, 0.0), ("llama", 1, 0.0)]
)
def test_sub_models_drop_no_block_output_if_the_model_has_dropout_layers(
    name: str, passes: int, dropout: float
) -> None:
    """OPT drops by a function that its configuration sets, a BERT of rate 0 as it was told."""
    plain, planned = first_block_under(name, SubModels(passes=passes), dropout=dropout)
    torch.testing.assert_close(planned, plain, rtol=1e-5, atol=1e-6)


def test_sub_models_drop_only_at_the_last_site_on_request() -> None:
    network = Network(tiny_network())
    network.probe(Batch.of(rows(5, 3)))
    plan = SubModels(adaptive="fixed", rates=(0.1, 0.3), sites="last").plan(network, None, seed=0)
    assert plan.only == {("before_head", 0)}
    assert SubModels().plan(network, None, seed=0).only is None
    network = Network(tiny("llama", dropout=0.0))
    network.probe(batch_of("llama"))
    plan = SubModels(sites="last").plan(network, None, seed=0)
    assert plan.only == {(network.blocks[-1][0], 0)}


@pytest.mark.parametrize(
    ("sites", "where"), [("all", "each of its 3 blocks"), ("last", "its last")]
)
def test_dropout_at_the_blocks_is_reported_with_its_rate(
    sites: Literal["all", "last"], where: str, caplog: pytest.LogCaptureFixture
) -> None:
    network = Network(tiny_llama(layers=3))
    network.probe(Batch.of(rows(5, 3)))
    with caplog.at_level(logging.WARNING, logger="temper"):
        plan = SubModels(passes=2, sites=sites).plan(network, None, seed=0)
    names = [name for name, _ in network.blocks]
    assert plan.only == frozenset((n, 0) for n in (names if sites == "all" else names[-1:]))
    assert plan.fixed == pytest.approx((0.1, 0.1))
    assert f"sub-models drop 10.00% of the output of {where}" in caplog.text


def test_dropout_at_the_blocks_changes_no_other_rate() -> None:
    """BART has dropout layers in its head, at rate 0 here."""
    model, batch = tiny("bart", dropout=0.0).train(), batch_of("bart")
    network, rates = Network(model), []
    network.probe(batch)
    layers = [module for module in model.modules() if isinstance(module, nn.Dropout)]
    assert layers
    network.blocks[-1][1].register_forward_hook(lambda *_: rates.extend(each.p for each in layers))
    network.logits(batch.repeat(2), dropout=SubModels().plan(network, None, seed=0))
    assert set(rates) == {0.0}
