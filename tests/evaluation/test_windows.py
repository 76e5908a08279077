"""A predictor with windows passes the tests of predictors; derivatives are those of whole texts."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.perspectives.smoothness import norms, states_of
from temper.evaluation.perspectives.token_corruption import lacking
from temper.evaluation.text_attack.swaps import lacks_swaps
from temper.models.windows import set_windows
from temper.testing import check_predictor
from temper.testing.tiny import WORDS, tiny_data, tiny_examples, tiny_model, tiny_tokenizer
from temper.types import Windows

LENGTH = 6


def windowed(*, pool: str = "mean", classes: int = 2) -> ClassifierPredictor:
    model = tiny_model(classes=classes)
    set_windows(model, Windows(1, pool), max_length=LENGTH)  # type: ignore[arg-type]
    return ClassifierPredictor(model, tiny_tokenizer(), max_length=LENGTH)


@pytest.mark.parametrize("classes", [2, 1])
@pytest.mark.parametrize("pool", ["mean", "max"])
def test_a_predictor_with_windows_passes_the_contract_checks(pool: str, classes: int) -> None:
    kind = "regression" if classes == 1 else "classification"
    predictor = windowed(pool=pool, classes=classes)
    check_predictor(predictor, tiny_examples(rows=9, kind=kind))


def test_states_are_the_mean_over_the_tokens_of_all_windows() -> None:
    predictor = windowed()
    examples = Examples("long", [" ".join(WORDS[:9]), "word3"])
    _, states = predictor.predict_with_states(examples)
    model = predictor.model.eval()
    pieces = [[2, *range(start + 5, min(start + 9, 14)), 3] for start in (0, 3, 6)]
    with torch.no_grad():
        layers = [
            model(input_ids=torch.tensor([piece]), output_hidden_states=True).hidden_states[1][0]
            for piece in pieces
        ]
    expected = torch.cat(layers).mean(0).numpy()
    np.testing.assert_allclose(states[0, 1], expected, atol=1e-6)


def test_derivatives_of_short_texts_are_those_without_windows() -> None:
    examples = tiny_examples(rows=8)
    short = replace(examples, text=[" ".join(text.split()[:4]) for text in examples.text], rows=())
    plain = ClassifierPredictor(tiny_model(), tiny_tokenizer(), max_length=LENGTH)
    result = []
    for predictor in (plain, windowed()):
        with predictor.session(single=True) as session:
            (part,) = session.parts(short)
            trace = session.traced(part)
            states, reason = states_of(trace)
            assert not reason
            by_layer = states.items()
            result.append([norms(part, trace, each, (0, n), projections=2) for n, each in by_layer])
    for one, other in zip(*result, strict=True):
        torch.testing.assert_close(one, other)


def test_a_text_in_windows_has_one_state_a_layer_and_one_gradient() -> None:
    predictor = windowed()
    examples = Examples("long", [" ".join(WORDS[:9]), "word3"])
    with predictor.session(single=True) as session:
        (part,) = session.parts(examples)
        trace = session.traced(part)
        states, _ = states_of(trace)
        assert {tuple(state.shape) for layer, state in states.items() if layer} == {(2, 16)}
        assert trace.root.shape[:2] == part.batch.mask.shape
        # The plain sum of a normalized state does not depend on the words.
        value = states[2][0] @ torch.linspace(0, 1, 16)
        (gradient,) = torch.autograd.grad(value, trace.root)
    reached = gradient.abs().amax(-1) > 0
    assert torch.equal(reached[0], part.batch.mask[0])
    assert not reached[1].any()


def test_perturbations_of_tokens_are_not_supported_with_windows() -> None:
    assert "windows" in lacking(windowed(), tiny_data())
    assert "windows" in lacks_swaps(windowed())
    plain = ClassifierPredictor(tiny_model(), tiny_tokenizer(), max_length=LENGTH)
    assert not lacking(plain, tiny_data())
