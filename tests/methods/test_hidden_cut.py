"""HiddenCut: the distribution of its spans, and a BERT written out token by token in float64."""

from __future__ import annotations

import math
from typing import Any

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given
from torch import Tensor

from temper import Stepper
from temper.errors import ModelError
from temper.methods import configure
from temper.methods.hidden_cut import spans
from temper.seeding import generator
from temper.types import Batch
from tests.contracts.test_hidden_cut import recorded_cuts
from tests.methods import reference
from tests.methods.tiny import recorded_drops, rows, tiny_bert, tiny_network
from tests.methods.weights import compare

SHARE = st.floats(0.01, 1.0)


def round_up(fraction: float, count: int) -> tuple[int, int]:
    """Return what ``max(1, round(share * count))`` may be, a half rounded either way."""
    exact = fraction * count
    return max(1, math.floor(exact + 0.4999)), max(1, math.floor(exact + 0.5001))


@given(
    st.lists(st.integers(1, 30), min_size=1, max_size=5),
    SHARE,
    SHARE,
    st.integers(0, 2**31),
    st.booleans(),
)
def test_a_span_has_its_length_begins_at_an_attended_token_and_stays_inside(
    lengths: list[int], ratio: float, candidates: float, seed: int, left: bool
) -> None:
    longest = max(lengths)
    free = torch.zeros(len(lengths), longest, dtype=torch.bool)
    for row, length in enumerate(lengths):
        free[row, longest - length if left else 0 :][:length] = True
    # Padding is attended to most: it must not matter.
    scores = torch.rand(free.shape, generator=generator(seed)) + 2 * ~free
    cut = spans(scores, free, ratio=ratio, candidates=candidates, draws=generator(seed + 1))
    for row, length in enumerate(lengths):
        indices = torch.nonzero(cut[row]).flatten().tolist()
        assert indices == list(range(indices[0], indices[-1] + 1))
        assert free[row, indices].all()
        assert len(indices) in round_up(ratio, length)
        first = longest - length if left else 0
        begins = range(first, first + length - len(indices) + 1)
        better = sum(bool(scores[row, other] > scores[row, indices[0]]) for other in begins)
        assert better < round_up(candidates, length)[1]


def test_spans_start_uniformly_at_the_top_scored_candidates() -> None:
    scores = torch.tensor([[0.9, 0.1, 0.8, 0.2, 0.7, 0.3, 0.6, 0.4, 0.5, 5.0]])
    free = torch.ones(1, 10, dtype=torch.bool)
    settings: dict[str, Any] = {"ratio": 0.2, "candidates": 0.4}
    counts = torch.zeros(10)
    for seed in range(800):
        cut = spans(scores, free, **settings, draws=generator(seed))
        counts[int(cut.int().argmax())] += 1
    # Two tokens do not fit at place 9, so that 0, 2, 4 and 6 are the four most attended to.
    assert set(torch.nonzero(counts).flatten().tolist()) == {0, 2, 4, 6}
    assert (counts[[0, 2, 4, 6]] - 200).abs().max() < 60


def test_spans_of_different_rows_are_independent() -> None:
    free, scores = torch.ones(400, 2, dtype=torch.bool), torch.tensor([[0.9, 0.1]] * 400)
    cut = spans(scores, free, ratio=0.5, candidates=1.0, draws=generator(3))
    assert (cut.sum(1) == 1).all()
    assert abs(float(cut[:, 0].double().mean()) - 0.5) < 5 * 0.5 / math.sqrt(400)


def test_excluded_tokens_are_never_cut() -> None:
    free = torch.tensor([[False, True, True, False, True, False], [False] * 6])
    scores = torch.tensor([[9.0, 0.1, 0.8, 9.0, 0.9, 9.0]] * 2)
    cut = spans(scores, free, ratio=0.67, candidates=0.1, draws=generator(0))
    # Two of three tokens; the fourth fits no span of two, so that the third is the best start.
    assert cut.tolist() == [[False, False, True, False, True, False], [False] * 6]


def normed(x: Tensor, weights: reference.Weights, name: str) -> Tensor:
    centered = x - x.mean()
    scaled = centered / torch.sqrt((centered**2).mean() + 1e-12)
    return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]


def linear(x: Tensor, weights: reference.Weights, name: str) -> Tensor:
    return weights[f"{name}.weight"] @ x + weights[f"{name}.bias"]


def bert(
    weights: reference.Weights,
    batch: dict[str, Tensor],
    drops: reference.Drops,
    *,
    call: int,
    cuts: list[Tensor] | None = None,
) -> tuple[Tensor, list[list[list[float]]]]:
    """Write tiny_bert out, token by token: logits, and by layer and row what is attended to."""
    outputs, attended = [], [[], []]
    kept = {name: calls[call] for name, calls in drops.items()}
    for row, ids in enumerate(batch["input_ids"]):
        length = int(batch["attention_mask"][row].sum())
        table = "bert.embeddings."
        states = [
            normed(
                weights[f"{table}word_embeddings.weight"][ids[t]]
                + weights[f"{table}position_embeddings.weight"][t]
                + weights[f"{table}token_type_embeddings.weight"][0],
                weights,
                f"{table}LayerNorm",
            )
            * kept["bert.embeddings.dropout"][row, t]
            for t in range(length)
        ]
        for layer in range(2):
            name = f"bert.encoder.layer.{layer}."
            own = f"{name}attention.self."
            q, k, v = (
                [linear(state, weights, own + kind) for state in states]
                for kind in ("query", "key", "value")
            )
            scores, mixed = [0.0] * length, []
            for t in range(length):
                heads = []
                for head in (slice(0, 4), slice(4, 8)):
                    raw = torch.stack([q[t][head] @ k[s][head] / 2.0 for s in range(length)])
                    p = reference.probabilities(raw)
                    heads.append(sum(p[s] * v[s][head] for s in range(length)))
                    for s in range(length):
                        scores[s] += p[s].item() / 2
                mixed.append(torch.cat(heads))
            attended[layer].append(scores)
            after = []
            for t in range(length):
                out = linear(mixed[t], weights, f"{name}attention.output.dense")
                out = out * kept[f"{name}attention.output.dropout"][row, t]
                middle = normed(out + states[t], weights, f"{name}attention.output.LayerNorm")
                inner = linear(middle, weights, f"{name}intermediate.dense")
                inner = inner * 0.5 * (1 + torch.erf(inner / math.sqrt(2.0)))
                out = linear(inner, weights, f"{name}output.dense")
                if cuts is not None and cuts[layer][row, t]:
                    out = 0 * out
                out = out * kept[f"{name}output.dropout"][row, t]
                after.append(normed(out + middle, weights, f"{name}output.LayerNorm"))
            states = after
        pooled = torch.tanh(linear(states[0], weights, "bert.pooler.dense"))
        outputs.append(linear(pooled * kept["dropout"][row], weights, "classifier"))
    return torch.stack(outputs), attended


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("weights_of_terms", [(1.0, 1.0), (0.6, 0.0), (0.0, 0.3)])
def test_hidden_cut_is_the_clean_loss_the_cut_one_and_their_divergence(
    weights_of_terms: tuple[float, float], regression: bool
) -> None:
    cut_weight, divergence_weight = weights_of_terms
    batches = [rows(9, 4, seed=3, regression=regression), rows(6, seed=4, regression=regression)]
    # Attention probabilities are dropped by a function, which no hook sees.
    model = tiny_bert(attention=0.0, dropout=0.3, classes=1 if regression else 3).double()
    settings = {"ratio": 0.3, "cut_weight": cut_weight, "divergence_weight": divergence_weight}
    stepper = Stepper(model, configure("hidden_cut", settings), seed=5)
    # Step 0 measures, by a pass of its own.
    stepper.number = 1
    stepper.network.cuts(Batch.of(batches[0]))
    with recorded_drops(model) as drops, recorded_cuts() as cuts:
        logs = stepper.backward(*batches)
    # Where the span was, nothing is left to divide by: the multiplier there is of no account.
    drops = {name: [calls.nan_to_num(0.0) for calls in each] for name, each in drops.items()}
    leaves = {
        name: value.detach().clone().requires_grad_() for name, value in model.named_parameters()
    }
    total = torch.zeros((), dtype=torch.float64)
    for index, batch in enumerate(batches):
        clean, attended = bert(leaves, batch, drops, call=2 * index)
        cut, _ = bert(leaves, batch, drops, call=2 * index + 1, cuts=cuts[index])
        labels = batch["labels"]
        total = total + reference.row_losses(clean, labels, None).sum() / 3
        total = total + cut_weight * reference.row_losses(cut, labels, None).sum() / 3
        total = total + divergence_weight * reference.pairs(
            "mse" if regression else "js", [clean, cut], reduction="mean", rows_of_step=3
        )
        for layer in range(2):
            for row, scores in enumerate(attended[layer]):
                span = torch.nonzero(cuts[index][layer][row]).flatten().tolist()
                assert len(span) == max(1, round(0.3 * len(scores)))
                fits = sorted(scores[: len(scores) - len(span) + 1], reverse=True)
                assert scores[span[0]] >= fits[max(1, round(0.4 * len(scores))) - 1] - 1e-9
    compare(total, leaves, logs["loss"], stepper.params.gradients())


def test_the_cut_pass_keeps_the_dropout_of_the_layers_that_it_cuts() -> None:
    model = tiny_bert(dropout=0.3)
    stepper = Stepper(model, configure("hidden_cut"), seed=5)
    batch = rows(9, 6)
    stepper.number = 1
    stepper.network.cuts(Batch.of(batch))
    with recorded_drops(model) as drops, recorded_cuts() as cuts:
        stepper.backward(batch)
    for layer in range(2):
        _, cut_pass = drops[f"bert.encoder.layer.{layer}.output.dropout"]
        outside = cut_pass[~cuts[0][layer]]
        assert 0.1 < float((outside == 0).float().mean()) < 0.5
        assert cut_pass[cuts[0][layer]].isnan().all()


def test_spans_differ_by_layer_step_and_micro_batch_and_repeat_with_the_seed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds: list[int] = []

    def noted(*args: Any, draws: torch.Generator, **settings: Any) -> Tensor:
        seeds.append(draws.initial_seed())
        return spans(*args, draws=draws, **settings)

    monkeypatch.setattr("temper.methods.hidden_cut.spans", noted)
    result = []
    for seed in (5, 5, 6):
        stepper = Stepper(tiny_bert(), configure("hidden_cut", {"candidates": 1.0}), seed=seed)
        with recorded_cuts() as cuts:
            for _ in range(3):
                stepper.backward(rows(9, 12, 7), rows(9, 12, 7))
                stepper.discard()
                stepper.number += 1
        result.append(torch.stack([torch.stack(each) for each in cuts]))
    assert torch.equal(result[0], result[1])
    assert not torch.equal(result[0], result[2])
    # Two layers, two micro-batches, three steps, two seeds.
    assert len(set(seeds)) == 2 * 12


@pytest.mark.parametrize("weight", [1.0, 0.0])
def test_the_fraction_of_the_divergence_due_to_dropout_is_logged(weight: float) -> None:
    with_dropout, without = (
        Stepper(
            tiny_bert(dropout=rate, attention=rate), configure("hidden_cut", {"cut_weight": weight})
        )
        for rate in (0.2, 0.0)
    )
    assert with_dropout.backward(rows(9, 6))["divergence/dropout_fraction"] > 0
    logs = without.backward(rows(9, 6))
    assert logs["divergence/dropout_fraction"] == pytest.approx(0.0, abs=1e-4)
    # One token of nine and one of six.
    assert logs["cut/fraction"] == pytest.approx(2 / 15)
    without.discard()
    without.number += 1
    assert "divergence/dropout_fraction" not in without.backward(rows(9, 6))


def test_without_cuttable_tokens_all_divergence_is_due_to_dropout() -> None:
    method = configure("hidden_cut", {"special_tokens": False})
    stepper = Stepper(tiny_bert(dropout=0.2), method, special_ids=(1, 2))
    logs = stepper.backward(rows(2, 2))
    assert logs["cut/fraction"] == 0
    assert logs["divergence/dropout_fraction"] == pytest.approx(1.0, abs=1e-5)


def test_special_tokens_can_be_excluded_from_the_cut() -> None:
    method = configure("hidden_cut", {"special_tokens": False, "ratio": 1.0})
    stepper = Stepper(tiny_bert(), method, special_ids=(1, 2))
    with recorded_cuts() as cuts:
        stepper.backward(rows(5, 3))
    inside = [[False, True, True, True, False], [False, True, False, False, False]]
    assert all(cut.tolist() == inside for cut in cuts[0])


def test_a_network_without_attention_raises_an_error() -> None:
    stepper = Stepper(tiny_network(), "hidden_cut")
    with pytest.raises(ModelError, match="needs a transformer .*attention probabilities"):
        stepper.backward(rows(5, 3))
