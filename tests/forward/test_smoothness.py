"""Estimates of Jacobian and Hessian norms against every derivative written out."""

from __future__ import annotations

import math
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.errors import ModelError, SettingError
from temper.methods import configure, smoothness
from tests.forward.estimates import copied, rows_of, weighted
from tests.forward.exact_norms import LAYERS, Exact, exact, smooth_bert
from tests.forward.nested import nested
from tests.methods.tiny import rows, tiny_bert

ROWS = rows(4, 3)
DRAWS = 1500
SCHEMES = ["difference", "four_point"]
TERMS = ["jacobian", "hessian"]


@cache
def exactly(layers: str = "all") -> Exact:
    return exact(smooth_bert(), ROWS, layers=layers)


def settings_of(scheme: Any, **more: Any) -> dict[str, Any]:
    return {"strength": {"weight": 1.0}, "scheme": scheme, **more}


def assert_mean(result: Tensor, expected: Tensor, *, bias: float = 0.0) -> None:
    """Check means of many draws for each of the two rows, to four standard errors."""
    for row, values in enumerate(result.view(len(expected), -1)):
        error = float(values.std()) / math.sqrt(len(values))
        truth = float(expected[row])
        assert abs(float(values.mean()) - truth) < 4 * error + bias * truth
        # Otherwise the test could not detect a factor of two.
        assert 4 * error < 0.2 * truth


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_estimates_the_exact_norms_of_every_layer(scheme: str) -> None:
    result = rows_of(smooth_bert(), copied(ROWS, DRAWS), settings_of(scheme), weights=LAYERS)
    fractions = torch.tensor(LAYERS, dtype=torch.float64)
    # What finite differences add at their default step is bounded below.
    assert_mean(result["jacobian"], fractions @ exactly().jacobian, bias=0.02)
    assert_mean(result["hessian"], fractions @ exactly().hessian, bias=0.02)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_every_scheme_estimates_the_exact_norms_of_the_logits(scheme: str) -> None:
    settings = settings_of(scheme, layers="logits")
    result = rows_of(smooth_bert(), copied(ROWS, DRAWS), settings)
    assert_mean(result["jacobian"], exactly("logits").jacobian[0], bias=0.02)
    assert_mean(result["hessian"], exactly("logits").hessian[0], bias=0.02)


def test_the_jacobian_baseline_has_half_of_the_logits_norm() -> None:
    logs = Stepper(smooth_bert(), configure("jacobian", {"strength": {"weight": 0.6}})).backward(
        copied(ROWS, DRAWS)
    )
    weighted = 0.3 * float(exactly("logits").jacobian.mean())
    assert logs["loss/jacobian"] == pytest.approx(weighted, rel=0.1)
    assert "loss/hessian" not in logs
    assert logs["loss"] == pytest.approx(logs["loss/task"] + logs["loss/jacobian"])


@pytest.mark.parametrize(
    ("name", "factor"), [("jacobian", 0.5), ("jachess", 1.0), ("cross_holder", 1.0)]
)
def test_the_weight_multiplies_the_norms_and_half_of_them_in_the_baseline(
    name: str, factor: float
) -> None:
    settings: dict[str, Any] = {"strength": {"weight": 0.6}}
    settings |= {"layers": "uniform"} if name == "jachess" else {}
    # Two classes are the fewest that have differences.
    stepper = Stepper(smooth_bert(classes=2), configure(name, settings))
    logs = stepper.backward(rows(4, 3, classes=2))
    own = [key.removeprefix("unweighted/") for key in logs if key.startswith("unweighted/")]
    assert own[0] == "jacobian"
    for term in own:
        assert logs[f"loss/{term}"] == pytest.approx(0.6 * factor * logs[f"unweighted/{term}"])


def test_uniform_weights_are_equal_for_all_layers() -> None:
    result = rows_of(smooth_bert(), ROWS, settings_of("difference", layers="uniform"))
    equal = rows_of(smooth_bert(), ROWS, settings_of("difference"), weights=[0.5, 0.5])
    torch.testing.assert_close(result, equal)


@cache
def differences() -> Exact:
    """Return ``sum_{i<j} ||J_i - J_j||^2`` and the same of the Hessians, row by row."""
    head, pairs = smooth_bert().classifier, []
    for one, other in ((0, 1), (0, 2), (1, 2)):
        model = smooth_bert()
        with torch.no_grad():
            # A head whose three outputs are all the difference of two logits.
            for name, each in model.classifier.named_parameters():
                own = head.get_parameter(name)
                each.copy_((own[one] - own[other]).expand_as(own))
        pairs.append(exact(model, ROWS, layers="logits"))
    # A Jacobian's norm sums over the three outputs, a Hessian's is their mean.
    jacobian = sum(each.jacobian for each in pairs) / 3
    return Exact(jacobian, sum(each.hessian for each in pairs), torch.zeros(2))


@pytest.mark.parametrize("scheme", SCHEMES)
def test_cross_hoelder_sums_over_pairs_of_logits_in_every_scheme(scheme: str) -> None:
    settings = settings_of(scheme)
    result = rows_of(smooth_bert(), copied(ROWS, DRAWS), settings, name="cross_holder")
    assert_mean(result["jacobian"], differences().jacobian[0] / 3, bias=0.02)
    assert_mean(result["hessian"], differences().hessian[0] / 9, bias=0.02)


def test_cross_hoelder_raises_an_error_for_a_single_output() -> None:
    regression = rows(4, 3, regression=True)
    with pytest.raises(ModelError, match=r"needs classes, .*one output"):
        rows_of(
            smooth_bert(classes=1), regression, {"strength": {"weight": 1.0}}, name="cross_holder"
        )


def test_differences_of_gradients_equal_the_second_derivative_on_equal_draws() -> None:
    batch = copied(ROWS, 100)
    with nested():
        exact_rows = rows_of(smooth_bert(), batch, settings_of("difference"), weights=LAYERS)
    result = rows_of(smooth_bert(), batch, settings_of("difference"), weights=LAYERS)
    torch.testing.assert_close(result["jacobian"], exact_rows["jacobian"])
    relative = (result["hessian"] / exact_rows["hessian"] - 1).abs()
    assert float(relative.median()) < 1e-2
    assert float((result["hessian"].sum() / exact_rows["hessian"].sum() - 1).abs()) < 2e-3
    # In single precision too.
    single = rows_of(smooth_bert().float(), batch, settings_of("difference"), weights=LAYERS)
    assert float((single["hessian"].sum() / exact_rows["hessian"].sum() - 1).abs()) < 2e-3


@pytest.mark.parametrize(
    ("scheme", "size"),
    [
        ("difference", 2e-3),
        ({"kind": "difference", "step_size": 0.01}, 0.01),
        ("four_point", 3e-2),
        ({"kind": "four_point", "step_size": 0.1}, 0.1),
    ],
)
def test_a_finite_difference_step_is_a_fraction_of_the_embedding_norm(
    scheme: Any, size: float
) -> None:
    model, seen = smooth_bert(), []
    # Inputs of the first norm: the words, and constants.
    hook = model.bert.embeddings.LayerNorm.register_forward_hook(
        lambda _, given, __: seen.append(given[0].detach())
    )
    rows_of(model, ROWS, settings_of(scheme), weights=LAYERS)
    hook.remove()
    kind = scheme if isinstance(scheme, str) else scheme["kind"]
    clean, first, *_ = seen[-PASSES[kind][1] :]
    words = model.bert.embeddings.word_embeddings.weight.detach()[ROWS["input_ids"]]
    for row, length in enumerate((4, 3)):
        expected = size * words[row, :length].square().mean().sqrt()
        moved = (first - clean)[row]
        torch.testing.assert_close(moved[:length].abs(), expected.expand(length, 4))
        assert not moved[length:].any()


@pytest.mark.parametrize("scheme", ["difference", "four_point"])
def test_the_passes_of_one_estimate_drop_the_same_units(scheme: str) -> None:
    """Else a difference over a small step would be that of two sub-models."""
    batch = copied(ROWS, 100)

    def dropping() -> torch.nn.Module:
        return tiny_bert(dropout=0.3, attention=0.3, hidden_size=4).double()

    with nested():
        exact_rows = rows_of(dropping(), batch, settings_of("difference"), weights=LAYERS)
    result = rows_of(dropping(), batch, settings_of(scheme), weights=LAYERS)
    # Four points have other draws; a row is no more than a few times its mean.
    most = 0.01 if scheme == "difference" else 0.5
    for term in TERMS:
        assert float((result[term].median() / exact_rows[term].median() - 1).abs()) < most


def test_four_points_at_the_default_step_are_close_to_a_tiny_step() -> None:
    batch = copied(ROWS, 100)
    limit = rows_of(
        smooth_bert(), batch, settings_of({"kind": "four_point", "step_size": 1e-4}), weights=LAYERS
    )
    for model in (smooth_bert(), smooth_bert().float()):
        result = rows_of(model, batch, settings_of("four_point"), weights=LAYERS)
        for term in TERMS:
            assert float((result[term].sum() / limit[term].sum() - 1).abs()) < 0.02
        assert float((result["jacobian"] / limit["jacobian"] - 1).abs().median()) < 0.05
        assert float((result["hessian"] / limit["hessian"] - 1).abs().median()) < 0.05


def test_only_a_probe_shared_by_layers_adds_their_cross_terms(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """``E ||sum sqrt(l) J^T v||^2`` with one v for all has ``2 sqrt(l m) <J_l, J_m>`` beside it."""
    plain, batch = smoothness.probes, copied(ROWS, DRAWS)
    settings = settings_of("difference", hessian_weight=0.0)
    fractions = torch.tensor(LAYERS, dtype=torch.float64)
    truth = fractions @ exactly().jacobian
    crossed = 2 * math.sqrt(LAYERS[0] * LAYERS[1]) * exactly().crossed
    # Far beyond what the test below allows.
    assert (crossed > 0.5 * truth).all()
    assert_mean(rows_of(smooth_bert(), batch, settings, weights=LAYERS)["jacobian"], truth)

    def shared(shape: Any, law: Any, draws: torch.Generator, *, like: Tensor) -> Tensor:
        return plain(shape, law, torch.Generator().manual_seed(4), like=like)

    monkeypatch.setattr(smoothness, "probes", shared)
    biased = rows_of(smooth_bert(), batch, settings, weights=LAYERS)["jacobian"]
    assert_mean(biased, truth + crossed)


# Passes


def forwards(
    settings: dict[str, Any], *, number: int = 0, labels: bool = True, half: bool = False
) -> int:
    """Count how often the model is called in one step."""
    model, batch = smooth_bert().float(), dict(ROWS)
    stepper = Stepper(model, configure("jachess", {"strength": {"weight": 1.0}, **settings}))
    weighted(stepper, LAYERS)
    stepper.backward(batch)
    stepper.discard()
    stepper.number = number
    calls: list[None] = []
    hook = model.register_forward_hook(lambda *_: calls.append(None))
    if not labels:
        del batch["labels"]
    with torch.autocast("cpu", torch.bfloat16, enabled=half):
        stepper.backward(batch)
    hook.remove()
    return len(calls)


PASSES = {"difference": (1, 2), "four_point": (2, 4)}


@pytest.mark.parametrize("scheme", SCHEMES)
def test_each_scheme_runs_its_declared_forwards_and_shares_the_clean_one(scheme: str) -> None:
    both = settings_of(scheme)
    alone = {**both, "hessian_weight": 0.0}
    assert (forwards(alone), forwards(both)) == PASSES[scheme]
    assert forwards({**both, "jacobian_weight": 0.0}) == PASSES[scheme][1]
    # Without labels there is no clean loss, and the same passes are needed.
    assert forwards(both, labels=False) == PASSES[scheme][1]


def test_under_autocast_states_come_from_a_separate_pass() -> None:
    assert forwards({"scheme": "difference"}, half=True) == 3
    assert forwards({"scheme": "difference", "hessian_weight": 0.0}, half=True) == 2


def test_steps_without_the_penalty_run_only_the_clean_forward() -> None:
    assert [forwards({"every": 3}, number=number) for number in range(5)] == [2, 1, 1, 2, 1]
    # The penalty alone is what rows without labels are for.
    assert forwards({"every": 3}, number=1, labels=False) == 2


# What is refused


def test_unmeasured_layers_raise_an_error() -> None:
    with pytest.raises(SettingError, match=r"have not been measured yet. Call prepare\(batches\)"):
        rows_of(smooth_bert(), ROWS, {"strength": {"weight": 1.0}})


def test_a_changed_number_of_layers_raises_an_error() -> None:
    with pytest.raises(ModelError, match=r"3 layers were measured .* but 2 ran in this step"):
        rows_of(smooth_bert(), ROWS, {"strength": {"weight": 1.0}}, weights=[0.2, 0.3, 0.5])


@pytest.mark.parametrize("kind", [torch.bfloat16, torch.float16])
def test_half_precision_weights_raise_an_error_for_the_hessian(kind: torch.dtype) -> None:
    model = smooth_bert().to(kind)
    with pytest.raises(ModelError, match=rf"The weights are {kind}.*hessian_weight=0"):
        rows_of(model, ROWS, {"strength": {"weight": 1.0}}, weights=LAYERS)


def test_a_ratio_raises_an_error_before_the_first_labeled_batch() -> None:
    stepper = Stepper(smooth_bert(), configure("jachess", {"layers": "uniform"}))
    unlabeled = {key: tensor for key, tensor in ROWS.items() if key != "labels"}
    with pytest.raises(SettingError, match="gradient_ratio needs .*with labels .* Set strength="):
        stepper.backward(unlabeled)
