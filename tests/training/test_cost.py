"""The cost of a step is counted on the method, and equals the declared cost."""

from __future__ import annotations

import logging
import re
from pathlib import Path

import pytest
import torch
from transformers import (
    BertForSequenceClassification,
    LlamaConfig,
    LlamaForSequenceClassification,
)

from dev.benchmarks.account import counted_model
from temper.methods import build, configure, entry, names
from temper.models.adapters import add_adapter
from temper.training.config import RunConfig
from temper.training.cost import cost_in_words, passes_of
from temper.training.run import train
from tests.training.listeners import Heard
from tests.training.tiny_training import Rows, collate, tiny_model, unequal, weights

BATCH = collate([Rows(10)[0], Rows(10)[1]])
DECLARED = {
    name: int(found[1]) for name in names() if (found := re.match(r"(\d+)F", entry(name).cost))
}


@pytest.fixture(scope="module")
def model() -> BertForSequenceClassification:
    return counted_model()


@pytest.mark.parametrize("name", sorted(set(DECLARED) - {"uegr"}))
def test_the_count_is_what_the_method_declares(
    model: BertForSequenceClassification, name: str
) -> None:
    assert passes_of(model, build(name), BATCH) == pytest.approx(DECLARED[name], rel=0.03)


@pytest.mark.parametrize(
    ("name", "settings", "passes"),
    [
        ("uegr", {}, 9),
        ("uegr", {"passes": 1, "divergence_weight": 0.0}, 6),
        ("lp_ft", {}, 3),
        ("jachess", {"every": 4, "strength": {"weight": 0.01}}, 3 + 10 / 4),
        ("r_drop + at", {}, 11),
        ("uegr + w_cons", {"uegr": {"mask": "off"}}, 9),
    ],
)
def test_passes_of_settings_and_compositions_are_counted(
    model: BertForSequenceClassification, name: str, settings: dict[str, object], passes: float
) -> None:
    found = passes_of(model, build(configure(name, settings)), BATCH)
    assert found == pytest.approx(passes, rel=0.03)


@pytest.mark.parametrize("name", ["uegr", "adv_weight", "mixout", "jachess", "lp_ft"])
def test_counting_passes_changes_no_weight_and_no_random_state(name: str) -> None:
    model = tiny_model().eval()
    before, drawn = weights(model), torch.random.get_rng_state()
    passes_of(model, build(name), BATCH)
    assert not unequal(before, weights(model))
    assert torch.equal(drawn, torch.random.get_rng_state())
    assert not model.training
    for parameter in model.parameters():
        assert parameter.requires_grad
        assert parameter.grad is None
    assert not any(module._forward_hooks for module in model.modules())


def test_an_adapter_on_a_decoder_whose_words_are_frozen_is_counted() -> None:
    model = LlamaForSequenceClassification(
        LlamaConfig(
            vocab_size=32, hidden_size=8, intermediate_size=16, num_hidden_layers=2,
            num_attention_heads=2, pad_token_id=0,
        )
    )  # fmt: skip
    adapted = add_adapter(model, {"peft_type": "LORA", "r": 2}, drawn=[], seed=0)
    plain = passes_of(adapted, build("plain"), BATCH)
    penalized = passes_of(adapted, build("jacobian"), BATCH)
    assert plain is not None
    assert penalized is not None
    assert penalized > plain


def test_products_of_quantized_weights_are_not_counted() -> None:
    model = tiny_model()
    model.is_quantized = True
    assert passes_of(model, build("uegr"), BATCH) is None


def test_a_method_that_cannot_run_has_no_pass_count() -> None:
    unlabeled = {name: value for name, value in BATCH.items() if name != "labels"}
    assert passes_of(tiny_model(), build("uegr"), unlabeled) is None


def test_the_sentence_names_passes_and_mask_and_is_silent_for_plain_fine_tuning() -> None:
    (uegr,) = cost_in_words("uegr", build("uegr"), 9.0)
    assert re.search(r"3\.0x plain fine-tuning.*\b9 vs\. 3 .* mask", uegr)
    (soup,) = cost_in_words("soup", build("soup"), 3.0)
    assert re.search(r"3\.0x plain fine-tuning.* 3 members", soup)
    assert cost_in_words("plain", build("plain"), 3.0) == []


def test_a_run_reports_its_cost_before_the_first_step(project: Path) -> None:
    heard = Heard()
    config = RunConfig.of(
        {
            "model": str(project / "model"),
            "data": {"source": str(project / "data" / "reviews"), "max_length": 32},
            "method": {"name": "uegr"},
            "train": {"max_steps": 1, "device": "cpu"},
        }
    )
    train(config, project / "cost", progress=heard)
    assert any(text.startswith("uegr costs about") for text in heard.notices)


def test_counting_passes_restores_the_log_level(
    model: BertForSequenceClassification,
) -> None:
    logging.disable(logging.ERROR)
    try:
        passes_of(model, build("plain"), BATCH)
        assert logging.root.manager.disable == logging.ERROR
    finally:
        logging.disable(logging.NOTSET)
