"""Layer-wise learning rates against handwritten groups, and reinitialized top layers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from temper import Stepper
from temper.errors import ModelError, SettingError
from temper.methods import build, configure
from temper.methods.layer_decay import LayerDecayConfig
from temper.methods.reinit import Reinit
from temper.models.network import Network
from temper.training.config import RunConfig
from temper.training.cost import passes_of
from tests.contracts.architectures import tiny
from tests.methods.tiny import rows, tiny_bert, tiny_network
from tests.methods.weights import PlantedError, copies, same, stepper_of, two_batches

# TinyNetwork: words, two blocks, a head.
DEPTHS = {"words": 3, "layers.0": 2, "layers.1": 1, "head": 0}


def depth_of(name: str) -> int:
    return next(depth for start, depth in DEPTHS.items() if name.startswith(start))


def test_depths_are_counted_from_the_head() -> None:
    depths = Network(tiny("bert")).parameters().depths
    for name, depth in depths.items():
        expected = {
            "bert.embeddings": 3,
            "bert.encoder.layer.0": 2,
            "bert.encoder.layer.1": 1,
            "bert.pooler": 1,
            "classifier": 0,
        }
        assert depth == next(d for start, d in expected.items() if name.startswith(start)), name
    bart = Network(tiny("bart")).parameters()
    blocks = [(name, depth) for name, depth in bart.depths.items() if name in bart.blocks]
    # The decoder follows the encoder, so all of its blocks are nearer to the head.
    highest = max(depth for name, depth in blocks if ".decoder." in name)
    assert highest < min(depth for name, depth in blocks if ".encoder." in name)
    assert {bart.depths[name] for name in bart.embeddings} == {max(d for _, d in blocks) + 1}
    assert set(bart.depths) == set(bart.tensors)


@pytest.mark.parametrize("kind", ["adamw", "sgd"])
@pytest.mark.parametrize("method", ["layer_decay", "lp_ft + layer_decay"])
def test_layer_decay_equals_parameter_groups_with_their_own_rates(kind: str, method: str) -> None:
    def optimizer_of(groups: Any) -> torch.optim.Optimizer:
        if kind == "adamw":
            return torch.optim.AdamW(groups, lr=0.02, weight_decay=0.1)
        return torch.optim.SGD(groups, lr=0.2, momentum=0.9)

    # A phase of no step, whose factor on the rates multiplies those of the layers in others.
    phase = {"probe": {"steps": 1}, "head_learning_rate_scale": 0.5}
    settings: dict[str, Any] = {"decay": 0.7}
    if "+" in method:
        settings = {"layer_decay": settings, "lp_ft": phase}
    stepper = stepper_of(configure(method, settings), total=3)
    other = stepper_of(
        configure("lp_ft", {"probe": {"steps": 1}}) if "+" in method else "plain", total=3
    )
    mine = optimizer_of(stepper.network.model.parameters())
    groups = [
        {"params": [p], "depth": depth_of(name)}
        for name, p in other.network.model.named_parameters()
    ]
    theirs = optimizer_of(groups)
    schedule = torch.optim.lr_scheduler.LambdaLR(mine, lambda step: 1 / (step + 1))
    base = theirs.param_groups[0]["lr"]
    for step in range(3):
        for each, optimizer in ((stepper, mine), (other, theirs)):
            optimizer.zero_grad()
            each.backward(*two_batches())
        for group in theirs.param_groups:
            probing = 0.5 if "+" in method and step == 0 else 1.0
            group["lr"] = base / (step + 1) * 0.7 ** group["depth"] * probing
        stepper.step(mine)
        other.step(theirs)
        schedule.step()
        assert [len(group["params"]) for group in mine.param_groups] == [len(groups)]
        assert mine.param_groups[0]["lr"] == pytest.approx(base / (step + 2))
        for name, value in copies(other.network.model).items():
            result = stepper.params.tensors[name].detach()
            torch.testing.assert_close(result, value, rtol=1e-12, atol=1e-14, msg=name)


def test_a_failing_optimizer_keeps_its_parameter_groups() -> None:
    class Counting(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            for group in self.param_groups:
                group["counted"] = group.get("counted", 0) + 1
            if self.param_groups[0]["counted"] > 1:
                raise PlantedError

    stepper = stepper_of("layer_decay")
    optimizer = Counting(stepper.params.tensors.values(), lr=0.1)
    stepper.backward(rows(5, 3))
    stepper.step(optimizer)
    assert optimizer.param_groups[0]["counted"] == 1
    stepper.backward(rows(5, 3))
    with pytest.raises(PlantedError):
        stepper.step(optimizer)
    assert len(optimizer.param_groups) == 1
    assert len(optimizer.param_groups[0]["params"]) == len(stepper.params.tensors)


def test_the_top_block_and_later_modules_are_reinitialized() -> None:
    model = tiny_bert()
    before = copies(model)
    stepper = Stepper(model, Reinit(layers=1, std=0.3), seed=2)
    assert same(before, copies(model))
    stepper.backward(rows(5, 3))
    moved = {n for n, value in copies(model).items() if not torch.equal(value, before[n])}
    top = {n for n in before if n.startswith(("bert.encoder.layer.1.", "bert.pooler."))}
    assert moved <= top
    matrices = {n for n in top if before[n].dim() > 1}
    assert matrices <= moved
    drawn = torch.cat([model.get_parameter(n).detach().flatten() for n in matrices])
    # Some hundred draws: their spread is within four standard errors.
    assert float(drawn.std()) == pytest.approx(0.3, rel=4 / (2 * len(drawn)) ** 0.5)
    assert abs(float(drawn.mean())) < 4 * 0.3 / len(drawn) ** 0.5
    for name in top - matrices:
        norm = name.endswith("LayerNorm.weight")
        assert set(model.get_parameter(name).tolist()) == {1.0 if norm else 0.0}
    stepper.discard()
    once = copies(model)
    stepper.backward(rows(5, 3))
    assert same(once, copies(model))


def test_reinitialization_follows_the_seed_and_is_not_repeated_on_resume() -> None:
    def after(seed: int) -> dict[str, torch.Tensor]:
        model = tiny_bert()
        Stepper(model, "reinit", seed=seed).backward(rows(5, 3))
        return copies(model)

    assert same(after(1), after(1))
    assert not same(after(1), after(2))
    model = tiny_bert()
    first = Stepper(model, "reinit")
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first.backward(rows(5, 3))
    first.step(optimizer)
    kept = copies(model)
    second = Stepper(model, "reinit")
    second.load_state_dict(first.state_dict())
    second.begin_epoch(0)
    second.backward(rows(5, 3))
    assert same(kept, copies(model))


def test_initial_weights_of_other_rules_are_the_reinitialized_ones() -> None:
    stepper = Stepper(tiny_bert(), configure("reinit + wise_ft"))
    stepper.backward(rows(5, 3))
    assert same(stepper.params.start, copies(stepper.network.model))


def test_counting_passes_changes_no_weight() -> None:
    model = tiny_bert()
    before = copies(model)
    assert passes_of(model, build("reinit + child_tuning_d"), rows(5, 3)) == pytest.approx(3.0)
    assert same(before, copies(model))


def test_reinitializing_more_blocks_than_exist_raises_an_error() -> None:
    with pytest.raises(ModelError, match="3 blocks are to be re-initialized, but this model has 2"):
        Stepper(tiny_network(), Reinit(layers=3))
    with pytest.raises(ModelError, match="this model has none"):
        Stepper(nn.Sequential(nn.Embedding(5, 2)), Reinit())
    assert Stepper(tiny_network(), Reinit(layers=2))


def test_frozen_layers_of_an_adapter_cannot_be_reinitialized() -> None:
    tree = {"model": "minilm", "data": {"source": "demo"}, "train": {"lora": {}}}
    with pytest.raises(SettingError, match=r"'reinit' re-initializes layers, and .* an adapter"):
        RunConfig.of({**tree, "method": {"name": "reinit"}})
    assert RunConfig.of({**tree, "method": {"name": "layer_decay"}})


def test_a_network_without_blocks_has_two_depths() -> None:
    model = nn.Sequential(nn.Embedding(5, 2), nn.Linear(2, 2))
    depths = Network(model).parameters().depths
    assert depths == {"0.weight": 1, "1.weight": 0, "1.bias": 0}
    assert LayerDecayConfig(decay=1.0).rule.rules == ()
