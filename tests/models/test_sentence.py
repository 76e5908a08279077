"""Sentence embeddings: the mean over real tokens, whatever the batch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import T5Config, T5Model

from temper.errors import ModelError
from temper.models.sentence import SentenceEncoder
from tests.models.tiny_text import WORDS, encoder_bert, masked_bert, wordpiece

TEXTS = ["good film", "", "the plot was dull, but the cast seemed rather fine", "bad", "good film"]


@pytest.fixture(scope="module")
def encoder() -> SentenceEncoder:
    tokenizer = wordpiece()
    return SentenceEncoder(encoder_bert(tokenizer), tokenizer)


def by_hand(encoder: SentenceEncoder, text: str) -> np.ndarray:
    """Return a text's embedding by one forward in float64 and a loop over its tokens."""
    ids = encoder.tokenizer(text)["input_ids"]
    model = encoder.model.double()
    with torch.no_grad():
        hidden = model(input_ids=torch.tensor([ids])).last_hidden_state[0].numpy()
    model.float()
    total = np.zeros(hidden.shape[1])
    for state in hidden:
        total = total + state
    mean = total / len(ids)
    return np.asarray(mean / np.sqrt(sum(each * each for each in mean)))


def test_embeddings_are_normalised_means_over_the_tokens(encoder: SentenceEncoder) -> None:
    found = encoder.embeddings(TEXTS)
    for text, embedding in zip(TEXTS, found, strict=True):
        np.testing.assert_allclose(embedding, by_hand(encoder, text), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(found, axis=1), 1, atol=1e-12)


def test_similarity_is_the_cosine_of_the_embeddings(encoder: SentenceEncoder) -> None:
    found = encoder.similarity(["good film", "bad"], ["bad plot", "bad"])
    expected = by_hand(encoder, "good film") @ by_hand(encoder, "bad plot")
    assert found[0] == pytest.approx(expected, abs=1e-6)
    assert found[1] == pytest.approx(1, abs=1e-12)
    assert found[1] <= 1


@given(
    texts=st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=6),
    size=st.integers(1, 4),
)
def test_no_embedding_depends_on_its_batch(
    encoder: SentenceEncoder, texts: list[str], size: int
) -> None:
    encoder.batch_size = size
    together = encoder.embeddings(texts)
    assert len(together) == len(texts)
    for text, embedding in zip(texts, together, strict=True):
        np.testing.assert_allclose(embedding, encoder.embeddings([text])[0], atol=1e-6)


def test_long_texts_are_cut() -> None:
    tokenizer = wordpiece()
    encoder = SentenceEncoder(encoder_bert(tokenizer), tokenizer, max_length=6)
    long, short = "good film was dull and bad", "good film was dull"
    np.testing.assert_array_equal(encoder.embeddings([long]), encoder.embeddings([short]))


def test_the_mode_of_the_model_stays(encoder: SentenceEncoder) -> None:
    before = encoder.embeddings(TEXTS)
    encoder.model.train()
    try:
        np.testing.assert_array_equal(encoder.embeddings(TEXTS), before)
        assert encoder.model.training
    finally:
        encoder.model.eval()


def test_what_cannot_be_compared_is_refused(encoder: SentenceEncoder) -> None:
    with pytest.raises(ModelError, match="2 texts cannot be compared with 1 others"):
        encoder.similarity(["a", "b"], ["a"])
    config = T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ModelError, match="a t5 model has a decoder"):
        SentenceEncoder(T5Model(config), wordpiece())


def test_an_embedding_that_is_not_finite_is_refused() -> None:
    tokenizer = wordpiece()
    model = encoder_bert(tokenizer)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5] = float("inf")
    with pytest.raises(ModelError, match="is not finite, or 0"):
        SentenceEncoder(model, tokenizer).embeddings(["good"])


def test_a_language_models_checkpoint_loads_without_a_pooler(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    whole = masked_bert(tokenizer)
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(str(tmp_path))
    expected = SentenceEncoder(whole.bert, tokenizer).embeddings(TEXTS)
    np.testing.assert_array_equal(loaded.embeddings(TEXTS), expected)


def test_minilm_finds_a_paraphrase_nearer_than_another_subject(minilm: str) -> None:
    near, far = SentenceEncoder.load().similarity(
        ["a good film", "a good film"], ["a great movie", "the train was late"]
    )
    assert near > 0.8
    assert far < 0.3
