"""HiddenCut on every architecture: the right matrix is cut, inside the spans and nowhere else."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

from temper import Stepper
from temper.methods import configure
from temper.models.cuts import BlockCuts
from temper.models.probing import innermost
from temper.types import Batch
from tests.contracts.architectures import (
    CASES,
    CLASSICAL,
    LORA,
    LORA_PREFIX,
    MEAN_POOLED,
    inputs_of,
    marks,
    tiny,
)

LAST: dict[str, str] = {
    **{
        name: f"{prefix}.encoder.layer.{{}}.output.dense"
        for name, prefix in {
            "bert": "bert",
            "roberta": "roberta",
            "electra": "electra",
            "deberta_v2": "deberta",
            "mpnet": "mpnet",
            MEAN_POOLED: "encoder",
        }.items()
    },
    "albert": "albert.encoder.albert_layer_groups.0.albert_layers.0.ffn_output",
    "distilbert": "distilbert.transformer.layer.{}.ffn.lin2",
    "xlnet": "transformer.layer.{}.ff.layer_2",
    "gpt2": "transformer.h.{}.mlp.c_proj",
    "opt": "model.decoder.layers.{}.fc2",
    "llama": "model.layers.{}.mlp.down_proj",
    "qwen2": "model.layers.{}.mlp.down_proj",
    "t5": "transformer.encoder.block.{}.layer.1.DenseReluDense.wo",
    "bart": "model.encoder.layers.{}.fc2",
    LORA: LORA_PREFIX + "model.layers.{}.mlp.down_proj",
}
"""The last matrix of each architecture's feed-forward part, by the number of its block."""


@contextmanager
def recorded_cuts() -> Iterator[list[list[Tensor]]]:
    """Note the spans of every cut pass, block call after block call."""
    result: list[list[Tensor]] = []
    plain = BlockCuts.cutting

    def noting(self: BlockCuts, cuts: Sequence[Tensor]) -> Any:
        result.append(list(cuts))
        return plain(self, cuts)

    BlockCuts.cutting = noting  # type: ignore[method-assign]
    try:
        yield result
    finally:
        BlockCuts.cutting = plain  # type: ignore[method-assign]


@pytest.mark.parametrize(("name", "side"), [case for case in CASES if case[0] not in CLASSICAL])
def test_the_feed_forward_output_is_zero_inside_the_spans_and_nowhere_else(
    name: str, side: str
) -> None:
    model, inputs = tiny(name).train(), inputs_of(name, side=side)
    before, own = marks(model), innermost(model).config._attn_implementation
    batch = Batch.of(inputs)
    stepper = Stepper(model, configure("hidden_cut", {"ratio": 0.4}), seed=4)
    blocks = stepper.network.cuts(batch)
    expected = [LAST[name].format(index) for index in range(2)]
    result = {id(module): key for key, module in model.named_modules()}
    assert [result[id(module)] for module in blocks.modules.values()] == list(
        dict.fromkeys(expected)
    )
    outputs: list[Tensor] = []
    hooks = [
        module.register_forward_hook(lambda _m, _a, output: outputs.append(output.detach()))
        for module in blocks.modules.values()
    ]
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with recorded_cuts() as cuts:
        for _ in range(2):
            optimizer.zero_grad()
            logs = stepper.backward(inputs)
            stepper.step(optimizer)
            assert all(torch.isfinite(torch.tensor(value)) for value in logs.values())
    # A clean and a cut pass a step, and in the first one more, to measure: two blocks each.
    assert len(outputs) == 2 * 5
    for index, output in enumerate(outputs):
        which = {2: cuts[0][0], 3: cuts[0][1], 8: cuts[1][0], 9: cuts[1][1]}.get(index)
        if name == "xlnet":
            output = output.transpose(0, 1)
        zero = (output == 0).all(-1).view(batch.mask.shape)
        expected_zero = torch.zeros_like(batch.mask) if which is None else which
        assert torch.equal(zero, expected_zero)
    lengths = batch.mask.sum(1)
    for cut in (*cuts[0], *cuts[1]):
        assert not cut[~batch.mask].any()
        assert torch.equal(cut.sum(1), (0.4 * lengths).round().long())
    for hook in hooks:
        hook.remove()
    stepper.remove_hooks()
    assert marks(model) == before
    assert innermost(model).config._attn_implementation == own
