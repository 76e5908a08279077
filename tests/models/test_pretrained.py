"""Proposals of masked models and similarity of sentence encoders, independent of the batch."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import T5Config, T5Model

from temper.errors import ModelError
from temper.models.masked import Blank, MaskedModel
from temper.models.pieces import whole_words
from temper.models.sentence import SentenceEncoder
from tests.models.tiny_text import (
    WORDS,
    byte_level,
    encoder_bert,
    masked_bert,
    masked_roberta,
    wordpiece,
)

BLANKS = [
    Blank("The ", " was good.", word="film"),
    Blank("", " film, but the story was dull and the cast was fine", word="Good"),
    Blank("a (", ") plot", word="fine"),
    Blank("the cast seemed ", "", word="poor"),
]


@pytest.fixture(scope="module", params=["wordpiece", "byte_level", "byte_level, padded left"])
def masked(request: pytest.FixtureRequest) -> MaskedModel:
    if request.param == "wordpiece":
        tokenizer = wordpiece()
        return MaskedModel(masked_bert(tokenizer), tokenizer)
    tokenizer = byte_level(side="left" if "left" in request.param else "right")
    return MaskedModel(masked_roberta(tokenizer), tokenizer)


# Which pieces are whole words


def test_wordpiece_words_exclude_continuation_pieces() -> None:
    tokenizer = wordpiece()
    words = whole_words(tokenizer)
    assert words.inside == words.leading
    # One letter, numbers, signs and continuations are no words; "un" is a piece that reads alone.
    assert set(words.inside.values()) == {*WORDS, "un"}
    assert not words.cased


def test_byte_level_words_differ_by_the_preceding_space() -> None:
    tokenizer = byte_level()
    words = whole_words(tokenizer)
    space = {word for word in words.inside.values() if word in WORDS}
    assert space == set(WORDS)
    assert {"Good", "Great", "good", "film", "movie"} <= set(words.leading.values())
    assert "dull" not in words.leading.values()
    assert not set(words.inside) & set(words.leading)
    assert words.cased


@pytest.mark.parametrize("make", [wordpiece, byte_level])
def test_every_word_is_read_as_its_id(make: Callable[[], Any]) -> None:
    tokenizer = make()
    words = whole_words(tokenizer)
    for number, word in words.inside.items():
        assert tokenizer(f"film {word}", add_special_tokens=False)["input_ids"][-1] == number
    for number, word in words.leading.items():
        assert tokenizer(f"{word} film", add_special_tokens=False)["input_ids"][0] == number


def test_ids_beyond_the_models_embeddings_are_no_words() -> None:
    tokenizer = wordpiece()
    assert set(whole_words(tokenizer, size=7).inside) == {5, 6}


def test_a_tokenizer_that_lists_no_vocabulary_has_no_words() -> None:
    assert whole_words(object()).inside == {}


# What is proposed


def direct(
    masked: MaskedModel, blank: Blank, ids: list[int], position: int
) -> list[tuple[str, float]]:
    """Return all words by one forward of one row, and a sort of our own."""
    with torch.no_grad():
        logits = masked.model(input_ids=torch.tensor([ids])).logits[0, position].double()
    chances = (logits.exp() / logits.exp().sum()).tolist()
    words = masked.words.inside if blank.before.endswith(" ") else masked.words.leading
    fitting = [
        (word, chances[number])
        for number, word in words.items()
        if word.lower() != blank.word.lower()
    ]
    return sorted(fitting, key=lambda each: -each[1])


@pytest.mark.parametrize("blank", BLANKS, ids=lambda blank: blank.word)
def test_proposals_are_those_of_a_direct_forward_with_the_word_masked(
    masked: MaskedModel, blank: Blank
) -> None:
    tokenizer = masked.tokenizer
    text = f"{blank.before}{tokenizer.mask_token}{blank.after}"
    ids = tokenizer(text)["input_ids"]
    assert ids.count(tokenizer.mask_token_id) == 1
    expected = direct(masked, blank, ids, ids.index(tokenizer.mask_token_id))
    (result,) = masked.propose([blank], count=5)
    assert result == [word for word, _ in expected[:5]]


def test_the_word_that_stood_there_is_not_proposed_in_any_case(masked: MaskedModel) -> None:
    for word in ("film", "Film", "FILM"):
        (result,) = masked.propose([Blank("the ", " was good", word=word)], count=100)
        assert "film" not in {each.lower() for each in result}
        assert len(result) == len(masked.words.inside) - 1


@pytest.mark.parametrize("size", [1, 2, 3, 50])
def test_no_proposal_depends_on_the_batch_or_the_order(masked: MaskedModel, size: int) -> None:
    alone = [masked.propose([blank], count=6)[0] for blank in BLANKS]
    masked.batch_size = size
    together = masked.propose([*BLANKS[::-1], BLANKS[0]], count=6)
    for one, other in zip([*alone[::-1], alone[0]], together, strict=True):
        assert one == other


def test_a_model_in_training_mode_proposes_the_same_and_stays_in_it(masked: MaskedModel) -> None:
    before = masked.propose(BLANKS, count=4)
    masked.model.train()
    try:
        assert masked.propose(BLANKS, count=4) == before
        assert masked.model.training
    finally:
        masked.model.eval()


def test_a_text_that_names_the_mask_token_does_not_mislead(masked: MaskedModel) -> None:
    mask = masked.tokenizer.mask_token
    blank = Blank(f"the {mask} was ", f" and {mask} too", word="good")
    ids = masked.tokenizer(f"{blank.before}{mask}{blank.after}")["input_ids"]
    positions = [index for index, each in enumerate(ids) if each == masked.tokenizer.mask_token_id]
    assert len(positions) == 3
    expected = direct(masked, blank, ids, positions[1])
    (result,) = masked.propose([blank], count=3)
    assert result == [word for word, _ in expected[:3]]


@given(before=st.integers(0, 60), after=st.integers(0, 60))
def test_a_long_text_is_cut_around_the_blank(before: int, after: int) -> None:
    tokenizer = wordpiece()
    masked = MaskedModel(masked_bert(tokenizer), tokenizer, max_length=12)
    ids, position = masked._read(Blank("film " * before, " film" * after))
    assert len(ids) <= 12
    assert ids[position] == tokenizer.mask_token_id
    if before + after + 3 <= 12:
        assert len(ids) == before + after + 3
    else:
        assert len(ids) >= 6
    # The nearest words are kept on both sides.
    film = tokenizer.convert_tokens_to_ids("film")
    assert ids[position - 1] == (film if before else tokenizer.cls_token_id)
    assert ids[position + 1] == (film if after else tokenizer.sep_token_id)


# What is refused


def test_a_model_that_cannot_propose_words_raises_an_error() -> None:
    tokenizer, without = wordpiece(), wordpiece()
    without.mask_token = None
    with pytest.raises(ModelError, match="needs a mask token, and .* has none"):
        MaskedModel(masked_bert(tokenizer), without)
    model = masked_bert(tokenizer)
    model.config.vocab_size = 5
    with pytest.raises(ModelError, match="No piece .* is a whole word"):
        MaskedModel(model, tokenizer)


def test_logits_that_are_not_finite_raise_an_error() -> None:
    tokenizer = wordpiece()
    model = masked_bert(tokenizer)
    with torch.no_grad():
        model.cls.predictions.bias[7] = float("nan")
    with pytest.raises(ModelError, match=r"logits are not finite\. Load it in fp32"):
        MaskedModel(model, tokenizer).propose(BLANKS, count=1)


def test_a_saved_model_loads_and_proposes_the_same(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    model = masked_bert(tokenizer)
    model.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = MaskedModel.load(str(tmp_path))
    assert not any(weight.requires_grad for weight in loaded.model.parameters())
    assert loaded.propose(BLANKS, count=5) == MaskedModel(model, tokenizer).propose(BLANKS, count=5)


def test_a_checkpoint_without_the_pre_training_head_raises_an_error(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    encoder_bert(tokenizer).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ModelError, match="A BertForMaskedLM needs them"):
        MaskedModel.load(str(tmp_path))


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


def test_embeddings_are_normalized_means_over_the_tokens(encoder: SentenceEncoder) -> None:
    result = encoder.embeddings(TEXTS)
    for text, embedding in zip(TEXTS, result, strict=True):
        np.testing.assert_allclose(embedding, by_hand(encoder, text), atol=1e-6)
    np.testing.assert_allclose(np.linalg.norm(result, axis=1), 1, atol=1e-12)


def test_similarity_is_the_cosine_of_the_embeddings(encoder: SentenceEncoder) -> None:
    result = encoder.similarity(["good film", "bad"], ["bad plot", "bad"])
    expected = by_hand(encoder, "good film") @ by_hand(encoder, "bad plot")
    assert result[0] == pytest.approx(expected, abs=1e-6)
    assert result[1] == pytest.approx(1, abs=1e-12)
    assert result[1] <= 1


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


def test_a_model_with_a_decoder_raises_an_error() -> None:
    config = T5Config(vocab_size=40, d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
    with pytest.raises(ModelError, match="a t5 model has a decoder"):
        SentenceEncoder(T5Model(config), wordpiece())


def test_an_embedding_that_is_not_finite_raises_an_error() -> None:
    tokenizer = wordpiece()
    model = encoder_bert(tokenizer)
    with torch.no_grad():
        model.embeddings.word_embeddings.weight[5] = float("inf")
    with pytest.raises(ModelError, match="is not finite, or is 0"):
        SentenceEncoder(model, tokenizer).embeddings(["good"])


def test_a_language_models_checkpoint_loads_without_a_pooler(tmp_path: Path) -> None:
    tokenizer = wordpiece()
    whole = masked_bert(tokenizer)
    whole.save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    loaded = SentenceEncoder.load(str(tmp_path))
    expected = SentenceEncoder(whole.bert, tokenizer).embeddings(TEXTS)
    np.testing.assert_array_equal(loaded.embeddings(TEXTS), expected)


def test_minilm_embeds_a_paraphrase_closer_than_another_subject(minilm: str) -> None:
    near, far = SentenceEncoder.load().similarity(
        ["a good film", "a good film"], ["a great movie", "the train was late"]
    )
    assert near > 0.8
    assert far < 0.3
