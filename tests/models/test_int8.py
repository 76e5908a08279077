"""Rounding to eight bits, the choice of fine products, and small networks as 8-bit copies."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn.functional import linear
from transformers import AutoConfig, AutoModelForSequenceClassification

from temper.errors import ModelError
from temper.models.int8 import (
    effects,
    fine_products,
    load_int8,
    rounded,
    rounded_rows,
    write_int8,
)
from temper.testing.tiny import tiny_model, tiny_tokenizer

numbers = st.floats(-50, 50, width=32)


@given(st.lists(st.lists(numbers, min_size=3, max_size=3), min_size=1, max_size=5))
def test_weights_are_rounded_to_255_steps_for_each_output(rows: list[list[float]]) -> None:
    weight = torch.tensor(rows)
    result, largest = rounded_rows(weight), weight.abs().amax(dim=1, keepdim=True)
    assert ((result - weight).abs() <= largest / 127 * 0.5001 + 1e-6).all()
    assert all(len(np.unique(row)) <= 255 for row in result.numpy())
    assert (result.abs().amax(dim=1, keepdim=True) - largest).abs().max() <= 1e-4 * largest.max()


@given(st.lists(numbers, min_size=1, max_size=20))
def test_values_are_rounded_to_256_steps_of_which_one_is_zero(values: list[float]) -> None:
    given_ = torch.tensor(values)
    result = rounded(given_)
    span = float(given_.amax().clamp(min=0) - given_.amin().clamp(max=0))
    assert ((result - given_).abs() <= span / 255 * 1.001 + 1e-6).all()
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
def test_for_a_linear_output_the_effect_of_quantization_is_exact(seed: int) -> None:
    model = Summed(seed).eval()
    draws = torch.Generator().manual_seed(seed)
    rows = [
        {"input_ids": torch.randint(0, 30, (1, size), generator=draws)} for size in (2, 5, 9, 4)
    ]
    result = effects(model, rows)
    assert list(result) == ["product"]  # The head reads one vector a text.
    changes, outputs = [], []
    with torch.no_grad():
        for row in rows:
            states = model.embeddings(row["input_ids"])
            product = model.product
            coarse = linear(rounded(states), rounded_rows(product.weight), product.bias)
            outputs.append(float(model(**row).logits))
            changes.append(float(model.head(coarse.mean(1))) - outputs[-1])
    wanted = np.mean(np.square(changes)) / np.var(outputs)
    assert result["product"] == pytest.approx(wanted, rel=1e-3)


def test_all_products_over_tokens_of_a_classifier_have_an_effect() -> None:
    model = tiny_model().eval()
    result = effects(model, [{"input_ids": torch.arange(5, 12)[None]}])
    assert len(result) == 2 * 6
    assert min(result.values()) > 0
    assert not any("pooler" in name or "classifier" in name for name in result)


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


ARCHITECTURES: dict[str, dict[str, Any]] = {
    "roberta": {"hidden_size": 32, "intermediate_size": 64, "pad_token_id": 1},
    "deberta-v2": {
        "hidden_size": 32,
        "intermediate_size": 64,
        "relative_attention": True,
        "pos_att_type": ["p2c", "c2p"],
        "max_relative_positions": 16,
    },
    "bart": {
        "d_model": 32,
        "encoder_ffn_dim": 64,
        "decoder_ffn_dim": 64,
        "encoder_layers": 2,
        "decoder_layers": 2,
        "encoder_attention_heads": 2,
        "decoder_attention_heads": 2,
        "eos_token_id": 2,
    },
    "qwen2": {"hidden_size": 32, "intermediate_size": 64, "num_key_value_heads": 2},
    "gpt2": {"n_embd": 32, "n_layer": 2, "n_head": 2, "pad_token_id": 0},
}
"""Settings of small networks, by their type."""


@pytest.mark.slow
@pytest.mark.parametrize("name", ARCHITECTURES)
def test_int8_copies_of_many_networks_have_close_predictions(name: str, tmp_path: Path) -> None:
    for package in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(package, reason="needs the extra onnx")
    layers = {} if name in ("bart", "gpt2") else {"num_hidden_layers": 2, "num_attention_heads": 2}
    config = AutoConfig.for_model(
        name, **{"pad_token_id": 0, **layers, **ARCHITECTURES[name]}, vocab_size=60, num_labels=3
    )
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_config(config).eval()
    with torch.no_grad():
        for key, weight in model.named_parameters():
            if weight.dim() > 1 and "norm" not in key.lower():
                weight.normal_(0, 0.3)
    end = torch.tensor([[2]])
    rows = [
        {"input_ids": torch.cat([torch.randint(5, 60, (1, size)), end], dim=1)}
        for size in (5, 9, 12, 7, 6, 14)
    ]
    if name == "gpt2":
        with pytest.raises(ModelError, match="not be faster"):
            write_int8(model, tiny_tokenizer(), rows, tmp_path, fields={})
        return
    record = write_int8(model, tiny_tokenizer(), rows, tmp_path, fields={})
    network, *_, kept = load_int8(tmp_path)
    assert kept == record
    assert record["coarse"]
    with torch.no_grad():
        wanted = torch.cat([model(**row).logits for row in rows]).numpy()
    result = np.concatenate(
        [network.run(["logits"], {"input_ids": row["input_ids"].numpy()})[0] for row in rows]
    )
    assert np.sqrt(np.mean((result - wanted) ** 2)) < 0.15 * wanted.std()
