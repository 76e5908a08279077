"""Edges that several methods share: skipped steps, embeddings, rates, settings that do nothing."""

from __future__ import annotations

import logging
import re
from typing import Any

import pytest
import torch

from temper import Stepper
from temper.methods import build, configure
from temper.models.network import Network
from temper.types import Batch
from tests.contracts.architectures import inputs_of, tiny
from tests.methods.tiny import MeanOfWords, recorded_drops, rows, tiny_bert, tiny_network


@pytest.mark.parametrize(
    ("name", "settings"), [("rec_adam", {"gamma": 10.0, "anneal": {"t0": 2}}), ("smart", {})]
)
def test_a_skipped_step_changes_no_weight_and_no_average(
    name: str, settings: dict[str, float]
) -> None:
    model = tiny_bert()
    stepper = Stepper(model, configure(name, settings), total=4)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.1)
    stepper.backward(rows(5, 3))
    stepper.step(optimizer)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    kept = {
        key: value.clone()
        for key, value in stepper.state.get("average", {}).get("weights", {}).items()
    }
    stepper.backward(rows(5, 3, seed=1))
    stepper.before_optimizer(optimizer)
    stepper.after_optimizer(skipped=True)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    for key, value in kept.items():
        assert torch.equal(stepper.state["average"]["weights"][key], value)
    assert "before" not in stepper.state.get("recall", {})


@pytest.mark.parametrize(
    ("name", "settings", "alike", "passes"),
    [
        ("freelb", {"passes": 4}, range(4), 4),
        # The clean pass, which is no part of the ascent, comes first.
        ("pgd", {"clean_weight": 0.5}, range(1, 5), 5),
        ("vat", {}, range(3), 3),
        ("vat", {"ascent": {"steps": 3}}, range(5), 5),
        ("adv_weight", {}, range(2), 2),
        ("awp", {}, range(2), 2),
        ("r3f", {"same_dropout": True, "epsilon": 0.3}, range(2), 2),
        ("adv_embed", {"same_dropout": True}, range(2), 2),
    ],
)
def test_compared_passes_share_dropout_masks(
    name: str, settings: dict[str, Any], alike: range, passes: int
) -> None:
    stepper, batch = Stepper(tiny_network(), configure(name, settings), seed=2), rows(5, 3, 6)
    stepper.network.probe(Batch.of(batch))
    with recorded_drops(stepper.network.model) as drops:
        stepper.backward(batch)
    for calls in drops.values():
        assert len(calls) == passes
        dropped = [multipliers == 0 for multipliers in calls]
        assert all(torch.equal(dropped[index], dropped[alike[0]]) for index in alike)
    words = [multipliers == 0 for multipliers in drops["after_words"]]
    assert words[alike[0]].any()
    others = set(range(passes)) - set(alike)
    assert not any(torch.equal(words[index], words[alike[0]]) for index in others)


@pytest.mark.parametrize("name", ["deberta_v2", "mpnet", "t5", "bert"])
def test_mixout_excludes_embeddings_and_the_head(name: str) -> None:
    network = Network(tiny(name))
    params = network.parameters()
    (rule,) = build("mixout").rule.rules
    mixed = set(rule.names(params))
    assert mixed
    assert not {key for key in mixed if "embed" in key or "relative_attention_bias" in key}
    assert not mixed & params.head


def test_mixout_warns_if_the_head_is_unknown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper = Stepper(MeanOfWords(), "mixout")
    assert "classifier cannot be identified" in caplog.text
    (rule,) = build("mixout").rule.rules
    assert rule.names(stepper.params) == ["head.weight"]


def test_noise_lost_in_half_precision_warns_once(caplog: pytest.LogCaptureFixture) -> None:
    stepper = Stepper(tiny_bert(), "vat")
    with caplog.at_level(logging.WARNING, logger="temper"):
        stepper.backward(rows(5, 3))
        assert caplog.text == ""
        with torch.autocast("cpu", torch.bfloat16):
            for _ in range(2):
                stepper.discard()
                stepper.backward(rows(5, 3))
    assert caplog.text.count("init_noise=0.001 is lost") == 1


def test_r_drop_on_a_decoder_without_dropout_drops_block_outputs_and_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stepper = Stepper(tiny("llama", dropout=0.0).train(), configure("r_drop"))
    with caplog.at_level(logging.WARNING, logger="temper"):
        for _ in range(2):
            terms = stepper.backward(inputs_of("llama"))
            stepper.discard()
    assert terms["loss/divergence"] > 0
    assert len(re.findall(r"drop 15\.00% .*2 blocks", caplog.text)) == 1


def test_r_drop_on_a_model_without_dropout_and_blocks_warns(
    caplog: pytest.LogCaptureFixture,
) -> None:
    stepper = Stepper(MeanOfWords().train(), configure("r_drop"))
    with caplog.at_level(logging.WARNING, logger="temper"):
        terms = stepper.backward(rows(5, 3))
    assert terms["loss/divergence"] == pytest.approx(0.0, abs=1e-7)
    assert caplog.text.count("Every dropout rate of") == 1
