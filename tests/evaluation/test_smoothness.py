"""Smoothness: norms against exact derivatives and by hand, stored rows, and refusals."""

from __future__ import annotations

import copy
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from temper.data.examples import Examples
from temper.errors import SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.perspectives.smoothness import NORMS, norms, states_of
from temper.evaluation.predictor import RowBatch
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate, read, score, write
from temper.models.modes import in_single
from temper.models.network import Network
from temper.types import Batch
from tests.contracts.architectures import LORA, batch_of, tiny
from tests.evaluation.conftest import assert_same_scores, make_model
from tests.evaluation.test_token_corruption import left_padded, tiny_decoder
from tests.messages import assert_messages


class Layer(nn.Module):
    """A function of the words [B, T, 2] whose value is the same at every position.

    ``quadratic`` is ``(2 sum_t x_t0^2, 3 sum_t x_t1^2)``, ``linear`` is ``sum_t x_t``, ``mixed`` is
    ``(s, 2 s)`` with s the sum of all squares, ``constant`` is 1, ``steep`` has no slope at all.
    """

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        # Two matrices make it a block as any other.
        self.first, self.second = nn.Linear(1, 1), nn.Linear(1, 1)

    def forward(self, words: Tensor) -> Tensor:
        squares = words.square().sum(1, keepdim=True)
        made = {
            "quadratic": squares * torch.tensor([2.0, 3.0]),
            "linear": words.sum(1, keepdim=True),
            "mixed": squares.sum(2, keepdim=True) * torch.tensor([1.0, 2.0]),
            "constant": torch.ones(len(words), 1, 2),
            "steep": (words - words.detach()).square().sum((1, 2), keepdim=True).sqrt(),
        }
        return made[self.kind].to(words.dtype).expand_as(words)


class ByHand(nn.Module):
    """A network of such layers that also reads its padding; its logits are the last state."""

    def __init__(self, *kinds: str) -> None:
        super().__init__()
        self.words = nn.Embedding(100, 2)
        self.alone = Layer("quadratic")
        if kinds:
            self.layers = nn.ModuleList([Layer(kind) for kind in kinds])

    def forward(self, input_ids: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        words = self.words(input_ids)
        states = [layer(words) for layer in getattr(self, "layers", [self.alone])]
        logits: Tensor = states[-1][:, 0]
        return logits


ONLY = EvaluationSettings(perspectives=("smoothness",), bootstrap=20)
COPIES = 200


def measured(result: Any) -> dict[tuple[str, int | None], Block]:
    """Return the blocks of norms by what was measured and layer."""
    return {
        (block.condition.name, block.condition.parameters.get("layer")): block
        for block in to_blocks(result.rows)
        if block.condition.perspective == "smoothness"
    }


def entries(result: Any) -> dict[tuple[str, int | None], dict[str, Any]]:
    """Return the scores by name and layer."""
    return {
        (entry["name"], entry["parameters"].get("layer")): entry
        for entry in result.scores
        if entry["perspective"] == "smoothness"
    }


def copies(ids: list[int], *, pads: int, left: bool = False, count: int = COPIES) -> RowBatch:
    """Return one row many times, with separate draws and some padding."""
    padded = [0] * pads + ids if left else ids + [0] * pads
    mask = [0] * pads + [1] * len(ids) if left else [1] * len(ids) + [0] * pads
    inputs = {"input_ids": torch.tensor([padded] * count)}
    inputs["attention_mask"] = torch.tensor([mask] * count)
    rows = [f"row {number}" for number in range(count)]
    return RowBatch(Batch(inputs), list(range(count)), rows, torch.zeros(count, len(padded)))


def estimates(
    model: nn.Module, part: RowBatch, *, seed: int = 0, projections: int = 1
) -> dict[int | None, Any]:
    """Return the norms [2, B] of every layer."""
    with ClassifierPredictor(model, left_padded()).session() as session:
        trace = session.traced(part)
        states, lacking = states_of(trace)
        assert not lacking
        return {
            layer: norms(part, trace, state, (seed, layer), projections=projections).T.numpy()
            for layer, state in states.items()
        }


def assert_means(result: Any, wanted: tuple[float, float]) -> None:
    """Say that means of independent draws are the exact values, within 4 standard errors."""
    for values, exact in zip(result, wanted, strict=True):
        error = values.std(ddof=1) / len(values) ** 0.5
        assert error < 0.2 * exact
        assert abs(values.mean() - exact) < 4 * error


def exact_norms(function: Any, words: Tensor) -> tuple[float, float]:
    """Return both norms of a function of the words [T, E] by all its derivatives."""
    jacobian = torch.func.jacrev(function)(words)
    hessian = torch.func.jacrev(torch.func.jacrev(function))(words)
    return float(jacobian.square().sum()), float(hessian.square().flatten(1).sum(1).mean())


@pytest.mark.parametrize("kind", ["encoder", "decoder"])
def test_the_estimates_are_the_exact_norms_on_average(kind: str) -> None:
    ids = [5, 17, 42]
    if kind == "encoder":
        model, body, position, left = make_model().double().eval(), "bert", 0, False
    else:
        model, body, position, left = tiny_decoder().double().eval(), "model", -1, True
    result = estimates(model, copies(ids, pads=2, left=left))
    # Transformers' own way in, without the padding.
    own = copy.deepcopy(model)
    own.set_attn_implementation("eager")
    own.requires_grad_(False)
    words = own.get_input_embeddings()(torch.tensor(ids))

    def state(layer: int) -> Any:
        def of(x: Tensor) -> Tensor:
            inner = getattr(own, body)(inputs_embeds=x[None], output_hidden_states=True)
            # The last of the decoder's is taken after its final norm, so it is not the block's.
            return inner.hidden_states[layer][0, position]

        return of

    assert list(result) == [1, 2, None]
    assert_means(result[1], exact_norms(state(1), words))
    if kind == "encoder":
        assert_means(result[2], exact_norms(state(2), words))
    assert_means(result[None], exact_norms(lambda x: own(inputs_embeds=x[None]).logits[0], words))


@pytest.mark.parametrize("name", ["xlnet", "t5", "bart", "albert", LORA])
def test_the_logits_norm_is_the_exact_one_in_every_kind_of_architecture(name: str) -> None:
    model = tiny(name).double()
    batch = Batch(batch_of(name).inputs)
    network = Network(model)
    width = network.width(batch)
    delta = torch.zeros(*batch.mask.shape, width, dtype=torch.float64, requires_grad=True)
    logits = network.logits(batch, delta=delta)[:, 0]
    wanted = 0.0
    for column in range(logits.shape[1]):
        (gradient,) = torch.autograd.grad(logits[:, column].sum(), delta, retain_graph=True)
        wanted = wanted + gradient[1][batch.mask[1]].square().sum()
    network.remove_hooks()
    row = {key: value[[1] * 100] for key, value in batch.inputs.items()}
    part = RowBatch(Batch(row), list(range(100)), [str(n) for n in range(100)], torch.zeros(100, 7))
    result = estimates(model, part)
    assert list(result) == [1, 2, None]
    assert all(np.isfinite(values).all() and (values > 0).all() for values in result.values())
    values = result[None][0]
    assert abs(values.mean() - float(wanted)) < 4 * values.std(ddof=1) / 10


def test_norms_of_known_functions_are_those_worked_out_by_hand(tokenizer: Any) -> None:
    model = ByHand("quadratic", "linear", "constant", "quadratic")
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    dev = Examples("dev", ["word1 word2 word3", "word4"], labels=[0, 1], kind="classification")
    result = evaluate(predictor, EvaluationData(dev), ONLY)
    blocks = measured(result)
    layers = [1, 2, 3, 4, None]
    assert list(blocks) == [(name, layer) for name in ("jacobian", "hessian") for layer in layers]
    for row, text in enumerate(dev.text):
        # The shorter row is padded, and the network reads the padding: it must not count.
        words = predictor.model.words.weight.detach()[tokenizer(text)["input_ids"]].double()
        count = len(words)
        # dh_0 / dx_t0 = 4 x_t0 and dh_1 / dx_t1 = 6 x_t1.
        jacobian = float((16 * words[:, 0] ** 2 + 36 * words[:, 1] ** 2).sum())
        # Of each token one second derivative of 4 and one of 6; the mean over two dimensions.
        wanted = {1: (jacobian, 26.0 * count), 2: (2.0 * count, 0.0), 3: (0.0, 0.0)}
        wanted |= {4: wanted[1], None: wanted[1]}
        for layer in layers:
            values = [blocks[name, layer].value[row] for name in ("jacobian", "hessian")]  # type: ignore[index]
            assert values == pytest.approx(wanted[layer], rel=1e-5)


def test_a_score_is_the_mean_over_rows_with_its_standard_error(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    data = EvaluationData(examples_of(rows=12))
    result = evaluate(ClassifierPredictor(model, tokenizer, max_length=64), data, ONLY)
    blocks, scores = measured(result), entries(result)
    assert list(scores) == [(NORMS[name], layer) for name, layer in blocks]
    for (name, layer), block in blocks.items():
        entry = scores[NORMS[name], layer]
        values = [float(value) for value in block.value]  # type: ignore[union-attr]
        assert entry["value"] == pytest.approx(statistics.fmean(values))
        assert entry["standard_error"] == pytest.approx(statistics.stdev(values) / 12**0.5)
        assert entry["low"] < entry["value"] < entry["high"]
        assert (entry["n"], entry["higher_is_better"], entry["condition"]) == (12, False, name)
    assert {e["standard_error"] for e in result.scores if e["perspective"] == "task"} == set()


def test_every_row_layer_and_projection_has_draws_of_its_own() -> None:
    part = copies([5, 17, 3], pads=0)
    one = estimates(make_model().double(), part)
    four = estimates(make_model().double(), part, projections=4)
    for layer in (1, 2):
        for single, several in zip(one[layer], four[layer], strict=True):
            # Equal draws of rows would leave no variance, equal draws of projections all of it.
            ratio = single.var() / several.var()
            assert 2.5 < ratio < 6
    again = estimates(make_model().double(), part)
    other = estimates(make_model().double(), part, seed=1)
    assert (again[1] == one[1]).all()
    assert (other[1] != one[1]).mean() > 0.9


def test_the_layers_draws_are_independent() -> None:
    result = estimates(ByHand("mixed", "mixed", "mixed").double(), copies([5, 17, 3], pads=0))
    for one, two in ((1, 2), (2, 3), (3, None)):
        # The same function: shared draws would give equal values, row by row.
        assert abs(np.corrcoef(result[one][0], result[two][0])[0, 1]) < 5 / COPIES**0.5


def test_padding_on_either_side_changes_nothing() -> None:
    model = tiny_decoder().double()
    right, left = (copies([5, 17, 3], pads=3, left=side, count=4) for side in (False, True))
    result = [estimates(model, part) for part in (right, left, copies([5, 17, 3], pads=0, count=4))]
    for layer, values in result[0].items():
        assert result[1][layer] == pytest.approx(values, rel=1e-4)
        assert result[2][layer] == pytest.approx(values, rel=1e-4)


def test_a_norm_that_is_not_finite_leaves_its_score_undefined(
    tokenizer: Any, examples_of: Any, tmp_path: Path
) -> None:
    predictor = ClassifierPredictor(ByHand("steep"), tokenizer, max_length=64)
    result = evaluate(predictor, EvaluationData(examples_of(rows=4)), ONLY)
    entry = entries(result)["jacobian_norm", None]
    assert (entry["value"], entry["standard_error"]) == (None, None)
    assert "norm is not a finite" in entry["reason"]
    back = read(write(result, tmp_path / "evaluation"))
    assert_same_scores(score(back.rows, "accuracy", settings=ONLY), result.scores)


def test_a_model_without_blocks_has_its_logits_measured_and_a_notice(
    tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(ByHand(), tokenizer, max_length=64)
    result = evaluate(predictor, EvaluationData(examples_of(rows=4)), ONLY)
    assert list(measured(result)) == [("jacobian", None), ("hessian", None)]
    assert_messages(result.notices, "only at the logits: .*no repeated blocks")


@pytest.mark.parametrize("how", ["zero head", "constant"])
def test_logits_that_depend_on_no_word_are_perfectly_smooth(
    tokenizer: Any, examples_of: Any, how: str
) -> None:
    model: Any = ByHand("quadratic", "constant")
    if how == "zero head":
        model = make_model()
        nn.init.zeros_(model.classifier.weight)
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    result = evaluate(predictor, EvaluationData(examples_of(rows=3)), ONLY)
    assert [entry["value"] for entry in entries(result).values()] == [0.0, 0.0]
    assert_messages(result.notices, "only at the logits: .*the last layer")


def test_half_precision_models_are_measured_in_single_precision(
    tokenizer: Any, examples_of: Any
) -> None:
    data = EvaluationData(examples_of(rows=4))
    half = make_model().bfloat16()
    wide = copy.deepcopy(half).float()
    pointers = {name: value.data_ptr() for name, value in half.state_dict().items()}
    result, wanted = (
        measured(evaluate(ClassifierPredictor(each, tokenizer, max_length=64), data, ONLY))
        for each in (half, wide)
    )
    for key, block in wanted.items():
        assert result[key].value == pytest.approx(block.value, rel=1e-5)
    assert {value.dtype for value in half.parameters()} == {torch.bfloat16}
    assert {name: value.data_ptr() for name, value in half.state_dict().items()} == pointers


def test_weights_are_half_again_after_an_error(model: Any) -> None:
    half = model.half()

    def failing() -> None:
        with in_single(half):
            assert half.classifier.weight.dtype == torch.float32
            raise KeyError("inside")

    with pytest.raises(KeyError, match="inside"):
        failing()
    assert half.classifier.weight.dtype == torch.float16


def test_attention_without_a_second_derivative_raises_an_error_before_any_work(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    class Fixed(nn.Module):
        """A classifier whose attention is what it is."""

        def __init__(self) -> None:
            super().__init__()
            self.inner, self.config = model, copy.copy(model.config)
            self.config._attn_implementation = "flash_attention_2"

        def forward(self, **inputs: Any) -> Any:
            pytest.fail("the model was run")

    predictor = ClassifierPredictor(Fixed(), tokenizer, max_length=64)
    message = "smoothness: The attention 'flash_attention_2' of .* has no second derivative. Load"
    with pytest.raises(SettingError, match=message) as caught:
        evaluate(predictor, EvaluationData(examples_of()), ONLY)
    assert "scheme" not in str(caught.value)
