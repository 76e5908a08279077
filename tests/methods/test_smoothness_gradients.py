"""The penalty's gradient with respect to the weights, which its value does not check."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from temper import Stepper
from temper.methods import configure, smoothness
from tests.contracts.architectures import ARCHITECTURES, inputs_of, tiny
from tests.methods.perturbed import recorded_deltas
from tests.methods.tiny import rows, tiny_bert, tiny_llama, tiny_xlnet
from tests.methods.weight_gradients import farthest_from_differences
from tests.models.test_sites import checkpoint_blocks

SCHEMES = ["difference", "four_point"]
TERMS = {"jacobian": {"hessian_weight": 0.0}, "hessian": {"jacobian_weight": 0.0}}
RIGHT = 1e-4
"""What central differences of second derivatives are good for, of a gradient's size."""


def dropping_bert() -> nn.Module:
    return tiny_bert(dropout=0.2, attention=0.2).double()


def uniform(scheme: str, **more: Any) -> dict[str, Any]:
    return {"strength": {"weight": 0.5}, "layers": "uniform", "scheme": scheme, **more}


def stepper_of(
    model: nn.Module, settings: dict[str, Any], *, name: str = "jachess", seed: int = 1
) -> Stepper:
    return Stepper(model, configure(name, settings), seed=seed)


def gradients(
    model: nn.Module, name: str, settings: dict[str, Any], batch: dict[str, Tensor]
) -> dict[str, Tensor]:
    stepper = stepper_of(model, settings, name=name)
    stepper.backward(batch)
    return stepper.params.gradients()


def double_norm(self: LlamaRMSNorm, hidden_states: Tensor) -> Tensor:
    size = (hidden_states.square().mean(-1, keepdim=True) + self.variance_epsilon).sqrt()
    return self.weight * hidden_states / size


# (model, step of the difference, the table of words, how far it may be off)
MODELS: dict[str, tuple[Callable[[], nn.Module], float, str, float]] = {
    "bert": (dropping_bert, 1e-5, "word_embeddings", RIGHT),
    "xlnet": (lambda: tiny_xlnet().double(), 1e-5, "word_embedding", RIGHT),
    "llama": (lambda: tiny_llama().double(), 1e-6, "embed_tokens", 10 * RIGHT),
}


@pytest.mark.parametrize("term", TERMS)
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", MODELS)
def test_every_weight_has_the_gradient_of_the_total(
    monkeypatch: pytest.MonkeyPatch, name: str, scheme: str, term: str
) -> None:
    # LLaMA's own norm rounds to single precision, in which no such difference can be taken.
    monkeypatch.setattr(LlamaRMSNorm, "forward", double_norm)
    make, step, table, bound = MODELS[name]
    stepper = stepper_of(make(), uniform(scheme, **TERMS[term]))
    assert farthest_from_differences(stepper, rows(5, 3), step=step, spare=table) < bound


@pytest.mark.parametrize("name", ["jacobian", "cross_holder"])
def test_the_baselines_gradients_are_those_of_their_totals(name: str) -> None:
    stepper = stepper_of(dropping_bert(), {"strength": {"weight": 0.5}}, name=name)
    assert farthest_from_differences(stepper, rows(5, 3), step=1e-5) < RIGHT


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("make", [dropping_bert, lambda: tiny_xlnet().double()])
def test_the_embedding_table_has_the_gradient_of_the_task_alone(make: Any, scheme: str) -> None:
    plain = gradients(make(), "plain", {}, rows(5, 3))
    result = gradients(make(), "jachess", uniform(scheme), rows(5, 3))
    (table,) = (name for name in plain if "word_embedding" in name)
    assert set(result) == set(plain)
    # Other kernels of the attention, so not to the last bit.
    torch.testing.assert_close(result[table], plain[table], rtol=1e-9, atol=1e-12)
    for name in plain:
        if "attention" in name and "weight" in name:
            assert not torch.allclose(result[name], plain[name], rtol=1e-3)


@pytest.mark.parametrize("architecture", ARCHITECTURES)
def test_no_architecture_s_table_of_words_has_a_gradient_of_the_penalty(architecture: str) -> None:
    """The decoder's words of T5 and BART come from the same table."""
    name = ARCHITECTURES[architecture].embedding + ".weight"
    model, inputs = tiny(architecture).train().double(), inputs_of(architecture)
    settings = uniform("four_point", hessian_weight=0.0)
    result = gradients(model, "jachess", settings, inputs)
    plain = gradients(tiny(architecture).train().double(), "plain", {}, inputs)
    shared = model.get_parameter(name)
    kept = {key: each.grad for key, each in model.named_parameters() if each is shared}
    plain_table = next(plain[key] for key in kept)
    torch.testing.assert_close(next(iter(kept.values())), plain_table, rtol=1e-5, atol=1e-8)
    assert any(not torch.allclose(result[key], plain[key], rtol=1e-2) for key in plain)
    model.zero_grad()
    del inputs["labels"]
    stepper_of(model, settings).backward(inputs)
    assert shared.grad is None or not shared.grad.any()


def test_a_batch_that_is_split_has_the_gradient_of_its_total() -> None:
    stepper = stepper_of(dropping_bert(), uniform("difference"))
    parts = (rows(5, 3), rows(4, 6, 2, seed=1))
    assert farthest_from_differences(stepper, *parts, step=1e-5) < RIGHT


def adapted_bert() -> nn.Module:
    adapter = LoraConfig(
        task_type="SEQ_CLS",
        r=2,
        target_modules=["query", "value"],
        init_lora_weights=False,
        lora_dropout=0.1,
    )
    with warnings.catch_warnings():
        # PEFT asks Transformers for a name that is on its way out.
        warnings.simplefilter("ignore", FutureWarning)
        torch.manual_seed(0)
        return get_peft_model(tiny_bert(), adapter).double()


@pytest.mark.parametrize("scheme", SCHEMES)
def test_adapters_around_a_frozen_table_have_the_gradient_of_the_total(scheme: str) -> None:
    model = adapted_bert()
    stepper = stepper_of(model, uniform(scheme))
    assert farthest_from_differences(stepper, rows(5, 3), step=1e-5) < RIGHT
    stepper.backward(rows(5, 3))
    reached = {name for name, each in model.named_parameters() if each.grad is not None}
    assert reached == {name for name, each in model.named_parameters() if each.requires_grad}
    assert all("lora" in name or "classifier" in name for name in reached)


@pytest.mark.parametrize("method", ["r_drop + jachess", "embedding_noise + jacobian"])
def test_composed_totals_have_their_own_gradient_under_dropout(method: str) -> None:
    """Where the clean pass is another, the penalty is of that pass."""
    own = uniform("difference") if "jachess" in method else {"strength": {"weight": 0.5}}
    settings = {method.split(" + ")[1]: own}
    stepper = stepper_of(dropping_bert(), settings, name=method)
    assert farthest_from_differences(stepper, rows(5, 3), step=1e-5) < RIGHT
    result = gradients(dropping_bert(), method, settings, rows(5, 3))
    alone = gradients(dropping_bert(), method.split(" + ")[0], {}, rows(5, 3))
    (table,) = (name for name in alone if "word_embeddings" in name)
    torch.testing.assert_close(result[table], alone[table], rtol=1e-9, atol=1e-12)


SUMS: dict[str, dict[str, dict[str, Any]]] = {
    # Equal passes, so that the divergence and the masks of the parts are those of each alone.
    "uegr + jachess": {"uegr": {"mask": False, "adaptive": {"low": 0.0, "high": 0.0}}},
    "at + jachess": {"at": {"epsilon": 0.1}},
    "smart + jachess": {},
    "vat + cross_holder": {},
    "roast + jacobian": {"roast": {"noise": 0.0, "mask": False}},
    "r3f + jachess": {},
}


@pytest.mark.parametrize("method", SUMS)
def test_the_gradient_of_a_sum_is_the_sum_of_gradients_less_the_clean_one(method: str) -> None:
    def quiet() -> nn.Module:
        return tiny_bert(dropout=0.0, attention=0.0).double()

    one, other = method.split(" + ")
    given = SUMS[method].get(one, {})
    own = uniform("difference") if other == "jachess" else {"strength": {"weight": 0.5}}
    batch = rows(5, 3, 6)
    both = gradients(quiet(), method, {one: given, other: own}, batch)
    left, right = gradients(quiet(), one, given, batch), gradients(quiet(), other, own, batch)
    plain = gradients(quiet(), "plain", {}, batch)
    assert set(both) == set(left) == set(right)
    for name, gradient in both.items():
        expected = left[name] + right[name] - plain[name]
        torch.testing.assert_close(gradient, expected, rtol=1e-6, atol=1e-9, msg=name)


@pytest.mark.parametrize("name", ["jachess", "jacobian"])
def test_passes_that_share_their_draws_average_to_the_penalty_of_one(
    monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """Without dropout R-Drop's two passes are equal, but have separate probes."""

    def alike(draw: Any) -> Any:
        def drawn(shape: Any, *rest: Any, **more: Any) -> Tensor:
            first = shape[:3] if isinstance(shape, Tensor) else (3, *shape[1:])
            result = draw(first, *rest, **more)
            length = len(shape) if isinstance(shape, Tensor) else shape[0]
            return result.repeat(length // 3, *[1] * (result.dim() - 1))

        return drawn

    def quiet() -> nn.Module:
        return tiny_bert(dropout=0.0, attention=0.0).double()

    batch, own = rows(5, 3, 6), {"strength": {"weight": 0.5}}
    own |= uniform("difference") if name == "jachess" else {}
    free = gradients(quiet(), f"r_drop + {name}", {name: own}, batch)
    monkeypatch.setattr(smoothness, "probes", alike(smoothness.probes))
    monkeypatch.setattr(smoothness, "directions", alike(smoothness.directions))
    both = gradients(quiet(), f"r_drop + {name}", {name: own}, batch)
    one = gradients(quiet(), name, own, batch)
    for weight, gradient in both.items():
        torch.testing.assert_close(gradient, one[weight], rtol=1e-6, atol=1e-9, msg=weight)
    assert any(not torch.allclose(free[weight], one[weight], rtol=1e-2) for weight in one)


@pytest.mark.parametrize("other", ["at", "uegr", "vat", "smart", "roast"])
def test_under_dropout_too_the_table_has_the_gradient_of_the_others_alone(other: str) -> None:
    """The gradients of attacks, recordings and divergences reach the table despite the detach."""
    both = f"{other} + jachess"
    result = gradients(dropping_bert(), both, {"jachess": uniform("difference")}, rows(5, 3, 6))
    alone = gradients(dropping_bert(), f"{other} + plain", {}, rows(5, 3, 6))
    (table,) = (name for name in alone if "word_embeddings" in name)
    torch.testing.assert_close(result[table], alone[table], rtol=1e-6, atol=1e-9)
    assert alone[table].any()
    weight = "bert.encoder.layer.0.output.dense.weight"
    assert not torch.allclose(result[weight], alone[weight], rtol=0.01)


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
@pytest.mark.parametrize("scheme", ["difference", "four_point"])
@pytest.mark.parametrize("attention", [0.0, 0.2])
def test_recomputed_blocks_give_the_same_gradient(scheme: str, attention: float) -> None:
    """Without attention dropout a fused kernel would be chosen again, and not for the first."""

    def model() -> Any:
        return tiny_bert(dropout=0.2, attention=attention).double()

    saving = model()
    checkpoint_blocks(saving)
    result = gradients(saving, "jachess", uniform(scheme), rows(5, 3))
    for name, gradient in gradients(model(), "jachess", uniform(scheme), rows(5, 3)).items():
        torch.testing.assert_close(result[name], gradient, rtol=1e-7, atol=1e-10)


@pytest.mark.parametrize(
    "settings",
    [
        {"at": {"site": "output"}, "plain": {}},
        {"at": {}, "mixup": {"level": "pooled", "clean_weight": 1.0}},
    ],
)
def test_an_attack_ignores_other_terms_of_the_clean_pass(
    settings: dict[str, Any],
) -> None:
    result = []
    for together in (settings, {**settings, "jachess": uniform("difference")}):
        with recorded_deltas() as deltas:
            gradients(dropping_bert(), " + ".join(together), together, rows(5, 3, 6))
        result.append(next(each for each in deltas if each.any()))
    torch.testing.assert_close(*result)
