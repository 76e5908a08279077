"""The classical networks against references, their laws, and their folders."""

from __future__ import annotations

import math
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError
from torch import Tensor, nn

from temper.errors import ModelError
from temper.models.classical import ARCHITECTURES
from temper.models.classical.build import build_classifier
from temper.models.classical.networks import (
    AttentionPooling,
    BiRecurrence,
    ConvolutionBank,
    find_sentences,
    rows_of,
)
from temper.models.hf import load_classifier
from temper.models.network import Network
from temper.types import Batch

TEXTS = ["A good film. Not bad!", "bad film; very bad", "good, very good", "not a film..."]
each_name = pytest.mark.parametrize("name", list(ARCHITECTURES))
ATTENTIVE = {"architecture": {"pooling": "attention"}}
each_pooling = pytest.mark.parametrize(
    ("name", "how"), [*((name, {}) for name in ARCHITECTURES), ("bilstm", ATTENTIVE)]
)


def built(name: str, **how: Any) -> Any:
    sizes = {
        "text_cnn": {"embedding": 8, "filters": 5},
        "bilstm": {"embedding": 8, "hidden": 5, "layers": 2},
        "text_han": {"embedding": 8, "hidden": 5},
    }
    own = {"min_frequency": 1, **sizes[name], **how.pop("architecture", {})}
    labels = how.pop("labels", ["-", "+", "0"])
    made = ARCHITECTURES[name](**own)
    return build_classifier(name, TEXTS, labels=labels, settings=made, **how)


def logits(model: Any, ids: list[list[int]], *, width: int, left: bool = False) -> Tensor:
    """Return the logits of rows that are padded to a width."""
    batch, mask = torch.zeros(len(ids), width, dtype=torch.int64), torch.zeros(len(ids), width)
    for row, own in enumerate(ids):
        span = slice(width - len(own), width) if left else slice(0, len(own))
        batch[row, span], mask[row, span] = torch.tensor(own), 1
    result: Tensor = model(batch, mask.long()).logits
    return result.detach()


# Laws


@each_pooling
@settings(max_examples=25, deadline=None)
@given(
    rows=st.lists(st.lists(st.integers(1, 12), min_size=1, max_size=9), min_size=1, max_size=4),
    more=st.integers(0, 4),
    left=st.booleans(),
)
def test_padding_and_other_rows_do_not_change_logits(
    name: str, how: dict[str, Any], rows: list[list[int]], more: int, left: bool
) -> None:
    model = built(name, **how).model
    widest = max(map(len, rows)) + more
    together = logits(model, rows, width=widest, left=left)
    turned = logits(model, rows[::-1], width=widest, left=left)
    torch.testing.assert_close(turned.flip(0), together, rtol=0, atol=1e-6)
    for row, own in enumerate(rows):
        alone = logits(model, [own], width=len(own))
        torch.testing.assert_close(alone[0], together[row], rtol=0, atol=1e-6)


@each_pooling
def test_without_a_mask_all_but_padding_is_read(name: str, how: dict[str, Any]) -> None:
    model = built(name, **how).model
    ids = torch.tensor([[3, 4, 5, 0, 0]])
    mask = torch.tensor([[1, 1, 1, 0, 0]])
    assert torch.equal(model(ids).logits, model(ids, mask).logits)


@each_name
def test_equal_seeds_and_texts_make_equal_networks(name: str) -> None:
    first, same, other = (built(name, seed=seed).model.state_dict() for seed in (3, 3, 4))
    assert all(torch.equal(first[key], same[key]) for key in first)
    assert not torch.equal(first["classifier.weight"], other["classifier.weight"])


@each_name
def test_a_network_returns_hidden_states_and_a_loss(name: str) -> None:
    model = built(name).model
    ids, labels = torch.tensor([[3, 4, 5], [6, 7, 2]]), torch.tensor([2, 0])
    output = model(ids, labels=labels, output_hidden_states=True)
    blocks = len(model.body.layers)
    assert [tuple(state.shape[:2]) for state in output.hidden_states] == [(2, 3)] * (blocks + 1)
    assert model(ids).hidden_states is None
    expected = nn.functional.cross_entropy(output.logits, labels)
    torch.testing.assert_close(output.loss, expected)


@each_name
def test_a_regression_has_one_output_and_a_squared_error(name: str) -> None:
    model = built(name, labels=None).model
    targets = torch.tensor([0.5, -1.0])
    output = model(torch.tensor([[3, 4], [5, 2]]), labels=targets)
    assert output.logits.shape == (2, 1)
    torch.testing.assert_close(output.loss, (output.logits[:, 0] - targets).square().mean())


@each_name
def test_the_weights_of_a_layer_lie_within_its_bound(name: str) -> None:
    model = built(name).model
    table = model.get_input_embeddings().weight
    assert torch.equal(table[0], torch.zeros(8))
    assert 0.2 < table.abs().max() <= 0.25
    bound = 1 / math.sqrt(model.classifier.in_features)
    assert 0.5 * bound < model.classifier.weight.abs().max() <= bound


# References


def test_a_bilstm_is_the_packed_one_of_pytorch() -> None:
    torch.manual_seed(0)
    ours, theirs = BiRecurrence(3, 4, "lstm"), nn.LSTM(3, 4, batch_first=True, bidirectional=True)
    for layer, suffix in ((ours.ahead, ""), (ours.back, "_reverse")):
        for key, weight in layer.named_parameters():
            getattr(theirs, key + suffix).data.copy_(weight)
    hidden, lengths = torch.randn(3, 6, 3), torch.tensor([6, 2, 4])
    mask = torch.arange(6) < lengths.unsqueeze(1)
    packed = nn.utils.rnn.pack_padded_sequence(
        hidden, lengths, batch_first=True, enforce_sorted=False
    )
    expected, _ = nn.utils.rnn.pad_packed_sequence(theirs(packed)[0], batch_first=True)
    result = ours(hidden, rows_of(mask), mask)
    torch.testing.assert_close(result, expected)


def test_convolutions_are_sums_over_their_windows() -> None:
    torch.manual_seed(0)
    bank, hidden = ConvolutionBank(3, (2, 3), 2), torch.randn(1, 4, 3)
    result = bank(hidden, torch.ones(1, 4, dtype=torch.bool))[0]
    for first, window, before in ((0, 2, 0), (2, 3, 1)):
        layer = bank.convolutions[0 if window == 2 else 1]
        for index in range(4):
            total = layer.bias.clone()
            for step in range(window):
                at = index - before + step
                if 0 <= at < 4:
                    total = total + layer.weight[:, :, step] @ hidden[0, at]
            torch.testing.assert_close(result[index, first : first + 2], total.relu())


def test_attention_weighs_by_the_softmax_of_its_scores() -> None:
    pooling = AttentionPooling(1)
    with torch.no_grad():
        pooling.projection.weight.fill_(1.0)
        pooling.projection.bias.zero_()
        pooling.context.weight.fill_(2.0)
    states = torch.tensor([[[0.5], [-1.0], [3.0]]])
    result = pooling(states, torch.tensor([[True, True, False]]))
    first, second = (math.exp(2 * math.tanh(value)) for value in (0.5, -1.0))
    expected = (0.5 * first - second) / (first + second)
    assert result.item() == pytest.approx(expected, rel=1e-6)


def test_max_and_attention_pooling_differ_and_others_raise_an_error() -> None:
    most, attentive = built("bilstm").model, built("bilstm", **ATTENTIVE).model
    # The same weights but for the attention's own, so that the pooling alone can differ.
    missing = attentive.load_state_dict(most.state_dict(), strict=False).missing_keys
    assert {key.split(".")[1] for key in missing} == {"attention"}
    ids = torch.tensor([[3, 4, 5, 6], [7, 8, 0, 0]])
    kept = [[0, 1, 2, 3], [0, 1]]
    states = most(ids, output_hidden_states=True).hidden_states[-1]
    greatest = [states[row, positions].max(dim=0).values for row, positions in enumerate(kept)]
    weigh = attentive.body.attention
    mean = []
    for row, positions in enumerate(kept):
        own = [states[row, index] for index in positions]
        scores = [weigh.context(weigh.projection(state).tanh()).exp() for state in own]
        total = sum(score * state for score, state in zip(scores, own, strict=True))
        mean.append(total / sum(scores))
    for model, pooled in ((most, greatest), (attentive, mean)):
        expected = model.classifier(torch.stack(pooled))
        torch.testing.assert_close(model(ids).logits, expected, rtol=0, atol=1e-6)
    assert (most(ids).logits - attentive(ids).logits).abs().max() > 1e-3
    for other in ("mean", "Max", "", None):
        with pytest.raises(ValidationError, match="pooling"):
            built("bilstm", architecture={"pooling": other})


# Sentences


def test_sentences_end_at_the_last_of_several_signs_and_at_the_row_s_end() -> None:
    mask = torch.tensor([[1, 1, 1, 1, 1, 1, 0], [1, 1, 1, 0, 0, 0, 0]]).bool()
    ends = torch.tensor([[0, 1, 0, 0, 1, 1, 0], [0, 0, 0, 0, 0, 0, 0]]).bool()
    words, texts = find_sentences(mask, ends, longest=50)
    assert torch.equal(words.take, mask)
    assert words.lengths.tolist() == [2, 4, 3]
    assert texts.take.nonzero().tolist() == [[0, 1], [0, 5], [1, 2]]
    assert texts.lengths.tolist() == [2, 1]
    assert texts.give[mask].tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]


def test_long_sentences_are_split_whichever_side_is_padded() -> None:
    mask = torch.tensor([[0, 1, 1, 1, 1, 1]]).bool()
    ends = torch.tensor([[0, 0, 1, 0, 0, 0]]).bool()
    words, texts = find_sentences(mask, ends, longest=2)
    assert words.lengths.tolist() == [2, 2, 1]
    assert texts.take.nonzero()[:, 1].tolist() == [2, 4, 5]


def test_a_row_that_ends_with_a_sign_does_not_lose_it_to_the_next_row() -> None:
    mask = torch.ones(2, 2, dtype=torch.bool)
    words, texts = find_sentences(mask, torch.tensor([[0, 1], [1, 0]]).bool(), longest=50)
    assert words.lengths.tolist() == [2, 1, 1]
    assert texts.lengths.tolist() == [1, 2]


def test_the_signs_that_end_a_sentence_are_those_of_the_vocabulary() -> None:
    made = built("text_han")
    tokens = made.tokenizer.convert_ids_to_tokens(list(made.model.config.sentence_ends))
    assert sorted(tokens) == ["!", ".", "[SEP]"]


def test_the_output_of_a_han_depends_on_sentence_ends() -> None:
    made = built("text_han")
    known = made.tokenizer.get_vocab()
    words = [known[word] for word in ("good", "film", "very", "bad")]
    model = made.model
    apart = logits(model, [[*words[:2], known["."], *words[2:]]], width=5)
    model.config.sentence_ends = []
    assert (logits(model, [[*words[:2], known["."], *words[2:]]], width=5) - apart).abs().max() > 0


# Folders


@each_name
def test_a_saved_network_is_whole_and_loads_by_name(name: str, tmp_path: Path) -> None:
    made = built(name)
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    assert {file.suffix for file in tmp_path.iterdir()} == {".json", ".safetensors"}
    model, tokenizer = load_classifier(str(tmp_path))
    batch = tokenizer(["a bad film.", "good"], padding=True, return_tensors="pt")
    expected = made.tokenizer(["a bad film.", "good"], padding=True, return_tensors="pt")
    assert torch.equal(batch["input_ids"], expected["input_ids"])
    assert torch.equal(model(**batch).logits, made.model(**expected).logits)
    assert model.config.id2label == {0: "-", 1: "+", 2: "0"}


def test_a_trained_body_takes_a_new_head(tmp_path: Path) -> None:
    made = built("bilstm")
    made.model.save_pretrained(tmp_path)
    made.tokenizer.save_pretrained(tmp_path)
    model, _ = load_classifier(str(tmp_path), labels=["no", "yes"], seed=1)
    assert tuple(model.classifier.weight.shape) == (2, 10)
    bound = 1 / math.sqrt(10)
    assert 0.5 * bound < model.classifier.weight.abs().max() <= bound
    own, body = made.model.body.state_dict(), model.body.state_dict()
    assert all(torch.equal(own[key], body[key]) for key in own)


@each_name
def test_a_short_name_of_a_network_from_scratch_has_no_weights(name: str) -> None:
    with pytest.raises(ModelError, match=f"'{name}' .*no pre-trained weights"):
        load_classifier(name, labels=["no", "yes"])


def test_an_unknown_network_lists_near_names() -> None:
    with pytest.raises(ModelError, match="Did you mean 'text_cnn'"):
        build_classifier("textcnn", TEXTS, labels=["no", "yes"])


def test_the_registration_is_enough_for_the_auto_classes(tmp_path: Path) -> None:
    built("text_cnn").model.save_pretrained(tmp_path)
    code = (
        "import temper.models.registration\n"
        "from transformers import AutoModelForSequenceClassification\nmodel = "
        f"AutoModelForSequenceClassification.from_pretrained({str(tmp_path)!r})\nassert "
        "type(model).__name__ == 'TextCNNForSequenceClassification'\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


# Derivatives


@pytest.mark.parametrize("name", ["bilstm", "text_han"])
def test_evaluation_mode_has_a_backward_and_tracing_a_second_one(name: str) -> None:
    """cuDNN's layers have neither; what is switched off there is seen on any machine."""
    model = built(name).model.eval()
    seen: list[bool] = []
    model.body.layers[0].ahead.register_forward_pre_hook(
        lambda *_: seen.append(torch.backends.cudnn.enabled)
    )
    batch = Batch({"input_ids": torch.tensor([[3, 4, 5]])})
    network = Network(model)
    with torch.no_grad():
        network.logits(batch)
    network.logits(batch).sum().backward()
    model.train()
    network.logits(batch)
    with network.tracer(batch).tracing(twice=True) as trace:
        logits = network.logits(batch)
    (first,) = torch.autograd.grad(logits.square().sum(), trace.root, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), trace.root)
    assert second.abs().max() > 0
    # Probing, without gradients, in evaluation mode with them, training, and tracing twice.
    assert seen == [True, True, False, True, False]
    assert torch.backends.cudnn.enabled
    network.remove_hooks()


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_a_gpu_computes_the_gradients_of_the_cpu_in_both_modes(name: str) -> None:
    ids = torch.tensor([[3, 4, 5, 2], [6, 2, 0, 0]])
    gradients = []
    for device in ("cpu", "cuda"):
        for training in (False, True):
            model = built(name, architecture={"dropout": 0.0}).model.to(device).train(training)
            model(ids.to(device)).logits[:, 0].sum().backward()
            gradients.append(model.get_input_embeddings().weight.grad.cpu())
    for other in gradients[1:]:
        torch.testing.assert_close(other, gradients[0], rtol=1e-3, atol=1e-5)
