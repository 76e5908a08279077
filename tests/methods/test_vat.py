"""VAT and its perturbation against a loop written from its equation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from temper import Dropout, RDrop, Stepper
from temper.forward import Noise
from temper.methods import configure
from temper.methods.vat import VAT, alignment
from temper.models.network import Network
from temper.types import Batch
from tests.contracts.architectures import inputs_of, tiny
from tests.methods import reference
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import TinyBlock, recorded_drops, rows, tiny_bert, tiny_network
from tests.methods.weights import compare, leaves, two_batches

# Starting noise of an appreciable size, so that the loop must treat it right.
PLAIN = {"epsilon": 0.3, "relative": False, "init_noise": 0.05, "weight": 0.7}
SEVERAL = {"steps": 3, "step_size": 0.6}
CASES: dict[str, dict[str, Any]] = {
    "as_smart": PLAIN,
    "relative": {**PLAIN, "epsilon": 0.2, "relative": True},
    "word": {**PLAIN, "site": "word"},
    "l2": {**PLAIN, "norm": "l2", "attack_scope": "example"},
    "linf": {**PLAIN, "norm": "linf", "attack_scope": "example"},
    "relative_l2_batch": {
        **PLAIN,
        "epsilon": 0.1,
        "relative": True,
        "norm": "l2",
        "attack_scope": "batch",
    },
    "js": {**PLAIN, "divergence": "js"},
    "sum": {**PLAIN, "reduction": "sum"},
    "several": {**PLAIN, "ascent": SEVERAL},
    "several_l2": {
        **PLAIN,
        "norm": "l2",
        "attack_scope": "example",
        "ascent": SEVERAL,
    },
}


@contextmanager
def recorded_noise() -> Iterator[list[Tensor]]:
    """Note every draw of noise: what starts an ascent is given, not computed."""
    plain, noted = Noise.draw, []

    def draw(self: Noise, *args: Any, **keywords: Any) -> Tensor:
        noted.append(plain(self, *args, **keywords))
        return noted[-1].clone()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Noise, "draw", draw)
        yield noted


def vat_total(
    weights: reference.Weights,
    batches: Sequence[dict[str, Tensor]],
    drops: reference.Drops,
    noises: Sequence[Tensor],
    values: dict[str, Any],
    *,
    regression: bool = False,
    labeled: bool = True,
) -> Tensor:
    """Write ``CE(x) + w max_d D(f(x), f(x + d))`` as a loop over rows, steps and micro-batches."""
    ascent, site = values.get("ascent", {}), values.get("site", "output")
    steps, fraction = ascent.get("steps", 1), ascent.get("step_size", 1.0)
    whole = reference.geometry({"norm": "linf_scaled", "attack_scope": "token", **values})
    kind = "mse" if regression else values.get("divergence", "sym_kl")
    count = sum(len(batch["labels"]) for batch in batches)
    total = torch.zeros((), dtype=torch.float64)
    for index, (batch, noise) in enumerate(zip(batches, noises, strict=True)):
        # The clean pass drops as the ascents do, so any of the calls will do.
        call = index * (steps + 2)
        around = reference.surroundings(weights, batch, drops, call=call, site=site)
        clean = reference.forward(weights, batch, drops, call=call)
        delta = noise
        for _ in range(steps):
            point = delta.clone().requires_grad_()
            moved = reference.forward(weights, batch, drops, call=call, delta=point, site=site)
            divergence = sum(
                reference.divergence_of(kind, clean[row].detach(), moved[row])
                for row in range(len(clean))
            )
            delta = reference.climb(divergence, point, around, whole, fraction=fraction)
        moved = reference.forward(weights, batch, drops, call=call, delta=delta, site=site)
        smoothness = sum(
            reference.divergence_of(kind, clean[row], moved[row]) for row in range(len(clean))
        )
        divisor = count if values.get("reduction", "mean") == "mean" else 1
        total = total + values["weight"] * smoothness / divisor
        if labeled:
            losses = reference.row_losses(clean, batch["labels"], None)
            total = total + losses.sum() / count
    return total


def run(
    config: Any, batches: Sequence[dict[str, Tensor]], *, classes: int = 3
) -> tuple[dict[str, float], dict[str, Tensor], reference.Drops, list[Tensor], nn.Module]:
    network = tiny_network(classes=classes)
    stepper = Stepper(network, config, seed=11)
    stepper.network.probe(Batch.of(batches[0]))
    with recorded_drops(network) as drops, recorded_noise() as noises:
        logs = stepper.backward(*batches)
    return logs, stepper.params.gradients(), drops, noises, network


@pytest.mark.parametrize("case", CASES)
def test_vat_is_the_clean_loss_plus_the_divergence_at_the_point_that_is_climbed_to(
    case: str,
) -> None:
    batches = two_batches()
    logs, grads, drops, noises, network = run(configure("vat", CASES[case]), batches)
    weights = leaves(network)
    total = vat_total(weights, batches, drops, noises, CASES[case])
    compare(total, weights, logs["loss"], grads)


def test_vat_on_a_regression_climbs_on_the_squared_difference() -> None:
    batches = two_batches(regression=True)
    logs, grads, drops, noises, network = run(configure("vat", PLAIN), batches, classes=1)
    weights = leaves(network)
    total = vat_total(weights, batches, drops, noises, PLAIN, regression=True)
    compare(total, weights, logs["loss"], grads)


@pytest.mark.parametrize("regression", [False, True])
def test_rows_without_labels_train_on_the_divergence_alone(regression: bool) -> None:
    batches = two_batches(regression=regression)
    bare = [{key: each for key, each in batch.items() if key != "labels"} for batch in batches]
    config = configure("vat", PLAIN)
    logs, grads, drops, noises, network = run(config, bare, classes=1 if regression else 3)
    assert "loss/task" not in logs
    weights = leaves(network)
    total = vat_total(weights, batches, drops, noises, PLAIN, regression=regression, labeled=False)
    compare(total, weights, logs["loss"], grads)


@pytest.mark.parametrize("base", [None, RDrop(), Dropout(rate=0.4)])
def test_an_epsilon_of_0_makes_the_divergence_zero(base: Any) -> None:
    config = VAT(epsilon=0.0)
    logs = Stepper(tiny_network(), config if base is None else base + config).backward(rows(5, 3))
    assert logs["loss/smoothness"] == 0.0
    assert logs["attack/relative_size"] == 0.0


# What the perturbation is


def wide_bert() -> nn.Module:
    """Return a BERT in double precision in which chance directions are nearly orthogonal."""
    return tiny_bert(
        classes=2, dropout=0.0, attention=0.0, hidden_size=64, intermediate_size=64
    ).double()


def divergence_at(network: Network, batch: Batch, delta: Tensor) -> Tensor:
    clean = network.logits(batch).detach()
    moved = network.logits(batch, delta=delta, site="output")
    return torch.stack(
        [
            reference.divergence_of("sym_kl", first, second)
            for first, second in zip(clean, moved, strict=True)
        ]
    )


def gradient_at(network: Network, batch: Batch, point: Tensor) -> Tensor:
    point = point.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(divergence_at(network, batch, point).sum(), point)
    return gradient


def cosines(first: Tensor, second: Tensor, axes: tuple[int, ...]) -> Tensor:
    products = (first * second).sum(axes)
    return products / (first.square().sum(axes) * second.square().sum(axes)).sqrt()


def found_by(config: VAT, model: nn.Module, batch: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the noise that an ascent starts from, and the perturbation that it ends at."""
    stepper = Stepper(model, config, seed=4)
    with recorded_noise() as noises, recorded_deltas() as deltas:
        stepper.backward(batch)
    stepper.remove_hooks()
    return noises[0], deltas[-1]


def test_one_step_follows_the_gradient_unlike_the_published_loop() -> None:
    model, inputs = wide_bert(), rows(6, 6, 6, 6, classes=2)
    noise, delta = found_by(VAT(), model, inputs)
    network, batch = Network(model), Batch.of(inputs)
    result = cosines(delta, gradient_at(network, batch, noise), (2,))
    assert result.min() > 0.99

    # mt-dnn's loop: noise of 1e-5, a step of 1e-3 times the raw gradient, then each token divided
    # by its largest entry; its epsilon of 1e-6 only guards that division.
    published = torch.randn(noise.shape, generator=torch.Generator().manual_seed(0)).double() * 1e-5
    gradient = gradient_at(network, batch, published)
    moved = published + 1e-3 * gradient
    moved = moved / (moved.abs().amax(-1, keepdim=True) + 1e-6)
    assert cosines(moved, gradient, (1, 2)).abs().mean() < 0.1
    assert cosines(moved, published, (1, 2)).min() > 0.9


def test_the_logs_distinguish_a_step_from_noise() -> None:
    sure = Stepper(tiny_network(), VAT(epsilon=0.3)).backward(rows(5, 3))
    assert sure["attack/alignment"] > 0.99
    noisy = Stepper(tiny_network(), VAT(epsilon=0.3, init_noise=50.0)).backward(rows(5, 3))
    assert noisy["attack/alignment"] < 0.9
    assert 0 < sure["attack/relative_size"] <= 0.3 + 1e-6


def test_alignment_is_the_mean_cosine_and_0_for_unmoved_examples() -> None:
    delta = torch.tensor([[[3.0, 4.0]], [[1.0, 0.0]], [[0.0, 0.0]]])
    step = torch.tensor([[[3.0, 4.0]], [[0.0, 2.0]], [[1.0, 1.0]]])
    assert alignment(delta, step).item() == pytest.approx(1 / 3)


# Gradient checkpointing


class RecomputedBlock(TinyBlock):
    """A block that runs its hooks again when backward recomputes it, as Transformers 5.17's do."""

    gradient_checkpointing = False

    def __call__(self, hidden_states: Tensor) -> Tensor:
        if not self.gradient_checkpointing:
            return super().__call__(hidden_states)
        return checkpoint(partial(super().__call__), hidden_states, use_reentrant=False)


def test_blocks_that_are_recomputed_get_the_delta_of_their_own_pass() -> None:
    result = []
    for recomputed in (False, True):
        model = tiny_network()
        for block in model.layers:
            block.__class__ = RecomputedBlock
            block.gradient_checkpointing = recomputed
        stepper = Stepper(model, VAT(epsilon=0.5), seed=2)
        logs = stepper.backward(rows(5, 3, 6))
        result.append((logs, stepper.params.gradients()))
    (plain, grads), (saving, others) = result
    assert plain["loss/smoothness"] > 1e-3
    assert saving["loss"] == pytest.approx(plain["loss"])
    for name, gradient in grads.items():
        torch.testing.assert_close(others[name], gradient)


def test_the_climb_starts_from_normal_noise_of_the_set_deviation() -> None:
    stepper = Stepper(tiny_network(width=256), configure("vat", {"init_noise": 0.05}))
    with recorded_noise() as noises:
        stepper.backward(rows(9, 9))
    noise = noises[0].flatten() / 0.05
    assert noise.std().item() == pytest.approx(1.0, rel=0.05)
    # A third of a normal distribution is beyond one deviation, one in twenty beyond two.
    assert (noise.abs() > 1).double().mean().item() == pytest.approx(0.317, abs=0.04)
    assert (noise.abs() > 2).double().mean().item() == pytest.approx(0.0455, abs=0.02)


@pytest.mark.parametrize(
    ("noise", "half", "warned"),
    [(9e-3, True, True), (1e-2, True, False), (9e-3, False, False), (1e-1, True, False)],
)
def test_noise_that_half_precision_rounds_away_is_warned_of(
    noise: float, half: bool, warned: bool, caplog: pytest.LogCaptureFixture
) -> None:
    stepper = Stepper(tiny_bert(), VAT(init_noise=noise))
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        stepper.backward(rows(5, 3))
    text = f"init_noise={noise:g} is lost"
    assert [text in each.getMessage() for each in caplog.records] == [True] * warned


def test_half_precision_loses_nothing_of_the_direction() -> None:
    result = []
    for half in (False, True):
        stepper = Stepper(tiny_bert(dropout=0.0, attention=0.0), VAT(init_noise=1e-2), seed=1)
        with torch.autocast("cpu", torch.float16, enabled=half), recorded_deltas() as deltas:
            stepper.backward(rows(5, 3))
        result.append(deltas[-1].flatten())
    # Gradients as small as these would be rounded to multiples of 6e-8.
    single, half_precise = result
    assert float(cosines(single, half_precise, (0,))) > 0.99


@pytest.mark.parametrize("site", ["word", "output"])
def test_the_noise_has_the_width_of_the_embeddings_at_its_site(site: Any) -> None:
    # Of an ALBERT the words are narrower than the blocks.
    logs = Stepper(tiny("albert").train(), VAT(site=site)).backward(inputs_of("albert"))
    assert logs["attack/relative_size"] > 0
