"""The calibration before training: its result, its rows, and what it leaves unchanged."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import Stepper
from temper.backward import layer_jacobians
from temper.backward.layer_jacobians import LayerJacobians, jacobian_norms
from temper.errors import ModelError
from temper.methods import configure
from temper.models.network import Network
from temper.seeding import Streams
from temper.types import Batch, Step
from tests.forward.estimates import copied
from tests.forward.exact_norms import exact, smooth_bert
from tests.methods.tiny import rows, tiny_bert, tiny_network

ROWS = rows(4, 3)


def calibrated(batch: dict[str, Tensor], **settings: Any) -> dict[str, Any]:
    """Return the state after the calibration of some rows."""
    stepper = Stepper(smooth_bert(), configure("jachess", settings))
    stepper.prepare([batch])
    return stepper.state["smoothness"]


def test_norms_equal_the_exact_norms_averaged_over_rows() -> None:
    truth = exact(smooth_bert(), ROWS).jacobian.mean(1)
    kept = calibrated(copied(ROWS, 1000), layers={"rows": 4000})
    torch.testing.assert_close(kept["norms"], truth, rtol=0.05, atol=0.0)
    # A softmax of minus the logarithm at temperature 1: fractions of 1/s.
    expected = (1 / kept["norms"]) / (1 / kept["norms"]).sum()
    torch.testing.assert_close(kept["weights"], expected)


def test_layer_jacobians_are_measured_in_evaluation_mode_and_modes_are_restored() -> None:
    model = tiny_bert(dropout=0.5, attention=0.5).double()
    model.bert.encoder.layer[0].eval()
    modes = {name: module.training for name, module in model.named_modules()}
    network = Network(model)

    def norms() -> Tensor:
        draws = torch.Generator().manual_seed(0)
        return jacobian_norms(network, [Batch.of(ROWS)], projections=2, draws=draws)

    first = norms()
    assert torch.equal(first, norms())
    assert {name: module.training for name, module in model.named_modules()} == modes
    assert any(modes.values())
    assert not all(modes.values())
    model.eval()
    assert torch.equal(first, norms())


def test_modes_are_restored_after_a_failure() -> None:
    model = tiny_network()
    model.head.weight.data.zero_()
    network, draws = Network(model), torch.Generator()
    with pytest.raises(ModelError, match="head is zero or dead"):
        jacobian_norms(network, [Batch.of(ROWS)], projections=1, draws=draws)
    assert all(module.training for module in model.modules())


def test_the_calibration_changes_no_weights_gradients_or_random_state() -> None:
    model = tiny_bert()
    before = {name: each.clone() for name, each in model.state_dict().items()}
    stepper = Stepper(model, "jachess")
    # The model is probed once, which is no part of the calibration.
    stepper.network.probe(Batch.of(ROWS))
    state = torch.get_rng_state()
    stepper.prepare([ROWS])
    assert torch.equal(torch.get_rng_state(), state)
    assert all(each.grad is None for each in model.parameters())
    assert all(each.requires_grad for each in model.parameters())
    assert all(torch.equal(each, before[name]) for name, each in model.state_dict().items())
    assert all(module.training for module in model.modules())


def test_the_calibration_reads_only_the_batches_that_its_rows_need() -> None:
    taken: list[int] = []

    def batches() -> Iterator[dict[str, Tensor]]:
        for number in range(20):
            taken.append(number)
            yield rows(4, 3, seed=number)

    model, forwards = tiny_bert(), []
    stepper = Stepper(model, configure("jachess", {"layers": {"rows": 5}}))
    stepper.network.probe(Batch.of(ROWS))
    hook = model.register_forward_hook(lambda *_: forwards.append(None))
    stepper.prepare(batches())
    hook.remove()
    # Three batches hold six rows; one more is taken to see that it is not needed.
    assert len(forwards) == 3
    assert len(taken) <= 4
    first = stepper.state["smoothness"]["norms"]
    again = Stepper(tiny_bert(), configure("jachess", {"layers": {"rows": 5}}))
    again.prepare(rows(4, 3, seed=number) for number in range(3))
    assert torch.equal(first, again.state["smoothness"]["norms"])


@pytest.mark.parametrize("settings", [{"layers": "uniform"}, {"layers": "logits"}])
def test_layers_without_weights_need_no_calibration(settings: dict[str, Any]) -> None:
    stepper = Stepper(tiny_bert(), configure("jachess", settings))
    assert not stepper.prepares
    stepper.prepare(iter(()))
    assert not len(stepper.state["smoothness"]["weights"])
    assert stepper.backward(ROWS)["loss/jacobian"] > 0


def test_weights_warn_if_one_layer_dominates(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        kept = calibrated(ROWS, layers={"kind": "printed", "rows": 2})
        # Two layers whose norms differ by a few are not saturated yet.
        assert not caplog.records
        assert float(kept["weights"].max()) < 0.99
        model = smooth_bert()
        with torch.no_grad():
            model.bert.encoder.layer[1].output.LayerNorm.weight.mul_(4)
        stepper = Stepper(model, configure("jachess", {"layers": "printed"}))
        stepper.prepare([ROWS])
    assert float(stepper.state["smoothness"]["weights"].max()) > 0.99
    (record,) = caplog.records
    text = record.getMessage()
    assert re.search(r"'printed' puts 100\.0% .* 2 layers \(number 0\)", text)
    assert "Use 'log' with a higher temperature, or 'uniform'" in text


class Blind(nn.Module):
    """A block whose output does not depend on its input."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.weight.expand_as(hidden_states) + hidden_states * 0

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.other = nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, 4))
        self.inner, self.outer = nn.Linear(4, 4), nn.Linear(4, 4)


def test_a_layer_with_norm_0_raises_an_error() -> None:
    model = tiny_network()
    model.layers = nn.ModuleList([Blind(), Blind()]).double()
    with pytest.raises(ModelError, match=r"must be above 0 and finite, got \[0.0, 0.0\]"):
        Stepper(model, "jachess").prepare([ROWS])


def test_no_rows_raise_an_error() -> None:
    with pytest.raises(ModelError, match="need at least one row, got none"):
        jacobian_norms(Network(tiny_bert()), [], projections=1, draws=torch.Generator())


@pytest.mark.parametrize(
    ("norms", "temperature", "weights", "warned"),
    [
        # Fractions of s ** (-1 / temperature).
        ([0.2, 0.3], 1.0, [0.6, 0.4], None),
        ([4.0, 9.0], 2.0, [0.6, 0.4], None),
        ([1.0, 199.0], 1.0, [0.995, 0.005], r"99\.5% .* 2 layers \(number 0\)"),
        ([3.0], 1.0, [1.0], None),
    ],
)
def test_norms_become_weights_and_a_dominating_layer_warns(
    norms: list[float],
    temperature: float,
    weights: list[float],
    warned: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    def measured(*_: Any, ranks: int, twice: bool, **__: Any) -> Tensor:
        assert (ranks, twice) == (2, True)
        return torch.tensor(norms, dtype=torch.float64)

    monkeypatch.setattr(layer_jacobians, "jacobian_norms", measured)
    rule, network = LayerJacobians(temperature=temperature), Network(tiny_network())
    state = rule.init(network.parameters())
    assert state == {}
    with caplog.at_level(logging.WARNING, logger="temper"):
        rule.calibrate(network, [], network.parameters(), state, Step(ranks=2), Streams(0))
    assert state["norms"].tolist() == norms
    assert state["weights"].tolist() == pytest.approx(weights)
    assert len(caplog.records) == bool(warned)
    assert re.search(warned or "", caplog.text)


def test_calibration_passes_bypass_a_distributed_wrapper(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # It would wait for a backward of all weights.
    plain = Network.logits

    def logits(self: Network, batch: Batch, *, wrapped: bool = True) -> Tensor:
        assert not wrapped
        return plain(self, batch, wrapped=wrapped)

    network = Network(smooth_bert())
    network.probe(Batch.of(ROWS))
    monkeypatch.setattr(Network, "logits", logits)
    jacobian_norms(network, [Batch.of(ROWS)], projections=1, draws=torch.Generator())


def test_norms_of_several_processes_are_averaged_over_all_rows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Here one row with a sum of 4, and in the other process three with a sum of 6.
    monkeypatch.setattr(layer_jacobians, "_of_batch", lambda *_, **__: torch.tensor([4.0]).double())
    other = torch.tensor([6.0, 3.0], dtype=torch.float64)
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda sums: sums.add_(other))
    network, draws = Network(tiny_bert()), torch.Generator()
    for ranks, expected in ((2, 2.5), (1, 4.0)):
        result = jacobian_norms(
            network, [Batch.of(rows(4))], projections=1, draws=draws, ranks=ranks
        )
        assert result.tolist() == [expected]


def test_the_average_is_over_rows_and_not_over_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    # Sums over the rows of each batch: 4 for one row, 6 for three.
    sums = {1: torch.tensor([4.0]), 3: torch.tensor([6.0])}
    monkeypatch.setattr(layer_jacobians, "_of_batch", lambda _, batch, *__, **___: sums[batch.size])
    batches = [Batch.of(rows(4)), Batch.of(rows(3, 5, 6))]
    result = jacobian_norms(Network(tiny_bert()), batches, projections=1, draws=torch.Generator())
    assert result.tolist() == [2.5]


def test_norms_are_measured_in_single_precision() -> None:
    network = Network(smooth_bert().float())

    def norms() -> Tensor:
        draws = torch.Generator().manual_seed(0)
        return jacobian_norms(network, [Batch.of(ROWS)], projections=2, draws=draws)

    plain = norms()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(norms(), plain)
    exactly = Network(smooth_bert().double())
    draws = torch.Generator().manual_seed(0)
    wanted = jacobian_norms(exactly, [Batch.of(ROWS)], projections=2, draws=draws)
    # bf16 would be off by a hundredth.
    torch.testing.assert_close(plain, wanted, rtol=1e-4, atol=0.0)
