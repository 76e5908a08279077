"""Reading attention and cutting spans: numbers by hand, and required features of a model."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from temper.errors import ModelError
from temper.models.cuts import attended
from temper.models.network import Network
from temper.types import Batch
from tests.contracts.architectures import inputs_of, marks, tiny
from tests.methods.tiny import rows, tiny_bert, tiny_network


def test_attention_is_the_mean_over_heads_summed_over_real_queries() -> None:
    # Two heads of three tokens, the last of them padding: its own query does not count.
    first = [[0.8, 0.2, 0.0], [0.4, 0.6, 0.0], [0.0, 1.0, 0.0]]
    second = [[0.2, 0.8, 0.0], [0.5, 0.5, 0.0], [1.0, 0.0, 0.0]]
    probabilities = torch.tensor([[first, second]])
    scores = attended(probabilities, torch.tensor([[1, 1, 0]]))
    torch.testing.assert_close(scores, torch.tensor([[0.5 + 0.45, 0.5 + 0.55, 0.0]]))


def watched(model: nn.Module, inputs: dict[str, Tensor]) -> tuple[Network, Batch]:
    network, batch = Network(model), Batch.of(inputs)
    network.cuts(batch).watch(batch.mask)
    return network, batch


def test_the_observed_attention_equals_the_output_of_the_model() -> None:
    inputs = inputs_of("bert")
    network, batch = watched(tiny("bert"), inputs)
    logits = network.logits(batch)[:, 0]
    model = tiny("bert")
    model.set_attn_implementation("eager")
    own = model(**batch.inputs, output_attentions=True)
    torch.testing.assert_close(logits, own.logits)
    assert len(network.cuts(batch).scores) == 2
    for result, layer in zip(network.cuts(batch).scores, own.attentions, strict=True):
        assert not result.requires_grad
        for row, length in enumerate(batch.mask.sum(1).tolist()):
            for token in range(length):
                by_hand = sum(layer[row, h, q, token] for h in range(2) for q in range(length)) / 2
                assert result[row, token].item() == pytest.approx(by_hand.item(), rel=1e-5)
    # Nothing but the next forward is watched.
    network.logits(batch)
    assert network.cuts(batch)._watched is None


def test_cutting_ends_with_its_block_and_with_rest() -> None:
    network, batch = watched(tiny("bert"), inputs_of("bert"))
    whole = network.logits(batch)
    cuts = [batch.mask] * 2
    with network.cuts(batch).cutting(cuts):
        assert not torch.allclose(network.logits(batch), whole)
    assert torch.equal(network.logits(batch), whole)
    network.cuts(batch).watch(batch.mask)
    network.reset()
    assert network.cuts(batch).scores == ()
    network.logits(batch)
    assert network.cuts(batch).scores == ()


def test_remove_hooks_restores_attention() -> None:
    model = tiny("bert")
    before, own = marks(model), model.config._attn_implementation
    network, batch = watched(model, inputs_of("bert"))
    network.logits(batch)
    assert model.config._attn_implementation == "eager" != own
    assert marks(model) != before
    network.remove_hooks()
    assert model.config._attn_implementation == own
    assert marks(model) == before
    # Attention can still be read without Temper.
    model.set_attn_implementation("eager")
    again = model(**batch.inputs, output_attentions=True)
    assert len(again.attentions) == 2


class Plain(nn.Module):
    """Blocks, and given attentions."""

    def __init__(self, attentions: Any) -> None:
        super().__init__()
        self.inner, self.attentions = tiny_network(), attentions

    def forward(
        self, input_ids: Tensor, attention_mask: Tensor, output_attentions: bool = False
    ) -> Any:
        output = nn.Module()
        output.logits = self.inner(input_ids, attention_mask)
        output.attentions = self.attentions
        return output


SQUARE = torch.full((2, 1, 5, 5), 0.2)


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (tiny_network(), "does not take output_attentions"),
        (Plain(None), "attention probabilities from each of 2 calls of blocks, got 0"),
        (Plain((SQUARE,)), "attention probabilities from each of 2 calls of blocks, got 1"),
        (Plain((SQUARE, None)), r"shape \(2, heads, 5, 5\), got None"),
        (Plain((SQUARE, SQUARE[..., :3])), r"shape \(2, heads, 5, 5\), got \(2, 1, 5, 3\)"),
    ],
    ids=["no argument", "none", "too few", "left out", "windows"],
)
def test_a_model_without_attention_probabilities_raises_an_error(
    model: nn.Module, message: str
) -> None:
    def attend() -> None:
        network, batch = watched(model, rows(5, 3))
        network.logits(batch)

    with pytest.raises(ModelError, match=message):
        attend()


def test_gradient_checkpointing_raises_an_error_in_training() -> None:
    model = tiny("bert").train()
    enable = getattr(model, "activation_checkpointing_enable", None)
    (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
    with pytest.raises(ModelError, match="Cuts .*gradient checkpointing"):
        watched(model, inputs_of("bert"))


def test_a_block_skipped_in_the_cut_pass_raises_an_error() -> None:
    network, batch = watched(tiny("bert"), inputs_of("bert"))
    network.logits(batch)
    with (
        pytest.raises(ModelError, match=r"each of 2 calls of blocks, got 3.*layerdrop"),
        network.cuts(batch).cutting([batch.mask] * 3),
    ):
        network.logits(batch)


def test_an_adapted_matrix_is_cut_as_a_whole() -> None:
    adapter = LoraConfig(
        task_type="SEQ_CLS", r=2, target_modules=["output.dense"], init_lora_weights=False
    )
    with warnings.catch_warnings():
        # PEFT asks Transformers for a name that is on its way out.
        warnings.simplefilter("ignore", FutureWarning)
        model = get_peft_model(tiny_bert(dropout=0.0, attention=0.0), adapter)
    network, batch = watched(model, rows(4, 3))
    outputs: list[Tensor] = []
    for module in network.cuts(batch).modules.values():
        assert hasattr(module, "base_layer")
        module.register_forward_hook(lambda _m, _a, output: outputs.append(output))
    with network.cuts(batch).cutting([batch.mask] * 2):
        network.logits(batch)
    assert all(not output[batch.mask].any() for output in outputs)
