"""Rounding to eight bits, and the choice of fine products, without ONNX Runtime."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear

from temper.models.int8 import effects, fine_products, rounded, rounded_rows
from temper.testing.tiny import tiny_model

numbers = st.floats(-50, 50, width=32)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5))
def test_weights_are_rounded_to_255_steps_for_each_output(rows: list[list[float]]) -> None:
    weight = torch.tensor(rows)
    found, largest = rounded_rows(weight), weight.abs().amax(dim=1, keepdim=True)
    assert ((found - weight).abs() <= largest / 127 * 0.5001 + 1e-6).all()
    assert all(len(np.unique(row)) <= 255 for row in found.numpy())
    assert (found.abs().amax(dim=1, keepdim=True) - largest).abs().max() <= 1e-4 * largest.max()


@given(st.lists(numbers, min_size=1, max_size=20))
def test_values_are_rounded_to_256_steps_of_which_one_is_zero(values: list[float]) -> None:
    given_ = torch.tensor(values)
    found = rounded(given_)
    span = float(given_.amax().clamp(min=0) - given_.amin().clamp(max=0))
    assert ((found - given_).abs() <= span / 255 * 1.001 + 1e-6).all()
    assert rounded(torch.cat([given_, torch.zeros(1)]))[-1] == 0


class Summed(nn.Module):
    """A regression that is linear in the output of its one product over tokens."""

    def __init__(self, seed: int) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.config = SimpleNamespace(num_labels=1, problem_type="regression", id2label=None)
        self.embeddings, self.product = nn.Embedding(30, 6), nn.Linear(6, 5)
        self.head = nn.Linear(5, 1)

    def get_input_embeddings(self) -> nn.Module:
        return self.embeddings

    def forward(self, input_ids: Tensor) -> Any:
        return SimpleNamespace(logits=self.head(self.product(self.embeddings(input_ids)).mean(1)))


@pytest.mark.parametrize("seed", range(3))
def test_the_effect_is_the_change_itself_where_the_answer_is_linear_in_the_product(
    seed: int,
) -> None:
    model = Summed(seed).eval()
    draws = torch.Generator().manual_seed(seed)
    rows = [
        {"input_ids": torch.randint(0, 30, (1, size), generator=draws)} for size in (2, 5, 9, 4)
    ]
    found = effects(model, rows)
    assert list(found) == ["product"]  # The head reads one vector a text.
    changes, answers = [], []
    with torch.no_grad():
        for row in rows:
            states = model.embeddings(row["input_ids"])
            product = model.product
            coarse = linear(rounded(states), rounded_rows(product.weight), product.bias)
            answers.append(float(model(**row).logits))
            changes.append(float(model.head(coarse.mean(1))) - answers[-1])
    wanted = np.mean(np.square(changes)) / np.var(answers)
    assert found["product"] == pytest.approx(wanted, rel=1e-3)


def test_all_products_over_tokens_of_a_classifier_have_an_effect() -> None:
    model = tiny_model(scale=1.0).eval()
    found = effects(model, [{"input_ids": torch.arange(5, 12)[None]}])
    assert len(found) == 2 * 6
    assert min(found.values()) > 0
    assert not any("pooler" in name or "classifier" in name for name in found)


@given(
    st.dictionaries(
        st.text(max_size=3), st.tuples(st.floats(0, 10), st.integers(1, 9)), max_size=9
    ),
    st.floats(0.01, 3),
)
def test_the_fewest_of_an_order_are_fine_so_that_the_rest_is_within_the_tolerance(
    products: dict[str, tuple[float, int]], tolerance: float
) -> None:
    effect = {name: value for name, (value, _) in products.items()}
    sizes = {name: size for name, (_, size) in products.items()}
    fine = fine_products(effect, sizes, tolerance=tolerance)

    def rest(chosen: list[str]) -> float:
        return sum(effect[name] for name in effect if name not in chosen)

    assert rest(fine) <= tolerance**2 * (1 + 1e-9)
    assert not fine or rest(fine[:-1]) >= tolerance**2 * (1 - 1e-9)
