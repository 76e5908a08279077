"""Swaps by gradient: first-order scores, whole words only, the same whatever the batch."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from temper.data.examples import Examples
from temper.data.words import is_stop_word
from temper.errors import ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.text_attack import swaps
from temper.evaluation.text_attack.contract import Ask, Draft, Position
from temper.evaluation.text_attack.search import draft_of
from temper.evaluation.text_attack.swaps import (
    Gradients,
    WordSwaps,
    gradient_norms,
    lacks_swaps,
)
from tests.models.tiny_text import (
    byte_level,
    classifier_bert,
    classifier_llama,
    classifier_roberta,
    wordpiece,
)

EVERY = 1000
"""More than the words of a vocabulary."""
TEXTS = [
    ("The film was good.", None),
    ("Good movie (great cast), but the plot seemed rather dull", None),
    ("a fine story was goodness", None),
    ("the cast was poor", "the story felt great"),
]


def drafts_of(*, pairs: bool = False, target: int | None = None) -> list[Draft]:
    return [
        draft_of(f"row{number}", number % 2, text, pair, target)
        for number, (text, pair) in enumerate(TEXTS)
        if (pair is not None) == pairs
    ]


def places_of(draft: Draft) -> list[Position]:
    return [
        Position(side, word) for side, words in enumerate(draft.sides) for word in range(len(words))
    ]


def asks_of(drafts: list[Draft]) -> list[Ask]:
    return [Ask(draft, position, 0) for draft in drafts for position in places_of(draft)]


def _bert() -> ClassifierPredictor:
    tokenizer = wordpiece()
    return ClassifierPredictor(classifier_bert(tokenizer).double(), tokenizer, max_length=40)


def _roberta() -> ClassifierPredictor:
    tokenizer = byte_level()
    return ClassifierPredictor(classifier_roberta(tokenizer).double(), tokenizer, max_length=40)


def _llama() -> ClassifierPredictor:
    tokenizer = byte_level(side="left")
    return ClassifierPredictor(classifier_llama(tokenizer).double(), tokenizer, max_length=40)


@pytest.fixture(scope="module", params=[_bert, _roberta, _llama], ids=["bert", "roberta", "llama"])
def predictor(request: pytest.FixtureRequest) -> ClassifierPredictor:
    """Return a classifier; Llama's rows are padded on the left."""
    made: ClassifierPredictor = request.param()
    return made


@pytest.fixture(scope="module", params=[_bert, _roberta], ids=["bert", "roberta"])
def exact(request: pytest.FixtureRequest) -> ClassifierPredictor:
    """Return a classifier in float64 throughout, which Llama's norms are not."""
    made: ClassifierPredictor = request.param()
    return made


def table_of(model: Any) -> torch.Tensor:
    weight: torch.Tensor = model.get_input_embeddings().weight
    return weight.detach()


def moved(
    predictor: ClassifierPredictor, draft: Draft, position: int, steps: torch.Tensor
) -> np.ndarray:
    """Return what is climbed with one token's embedding moved by each step [N, D], by a hook.

    That is the margin of the other of two classes, or of the target.
    """

    def add(module: Any, args: Any, output: torch.Tensor) -> torch.Tensor:
        changed = output.clone()
        changed[:, position] += steps
        return changed

    hook = predictor.model.get_input_embeddings().register_forward_hook(add)
    try:
        pair = None if draft.text_pair is None else [draft.text_pair]
        batch = predictor.tokenizer([draft.text], pair, return_tensors="pt")
        inputs = {name: value.repeat(len(steps), 1) for name, value in batch.items()}
        with torch.no_grad():
            logits = predictor.model(**inputs).logits.numpy()
    finally:
        hook.remove()
    wanted = 1 - draft.label if draft.target is None else draft.target
    return np.asarray(logits[:, wanted] - logits[:, 1 - wanted])


def slopes(
    predictor: ClassifierPredictor, draft: Draft, position: int, directions: torch.Tensor
) -> np.ndarray:
    """Return the slopes [N] of what is climbed along directions [N, D] from one token."""
    small = 1e-5
    ahead, behind = (
        moved(predictor, draft, position, sign * small * directions) for sign in (1, -1)
    )
    return (ahead - behind) / (2 * small)


# Scores


@pytest.mark.parametrize("pairs", [False, True], ids=["single", "pairs"])
@pytest.mark.parametrize("target", [None, 0])
def test_words_are_those_whose_finite_swap_in_float64_raises_the_loss_most(
    exact: ClassifierPredictor,
    pairs: bool,
    target: int | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swaps, "CANDIDATES", 4)
    monkeypatch.setattr(swaps, "NEIGHBORS", EVERY)
    whole = exact.whole_words()
    proposer = WordSwaps(Gradients(exact))
    asked = asks_of(drafts_of(pairs=pairs, target=target))
    offered = proposer.propose(asked)
    seen = 0
    for ask, words in zip(asked, offered, strict=True):
        side = ask.draft.sides[ask.position.side]
        start, _ = side.span(ask.position.word)
        old = ask.draft.word(ask.position)
        ids = _ids(exact, ask.draft)
        known = whole.after(side.text[:start])
        # Which token is the word is found by swapping it for each word and reading the text again.
        fitting = []
        for number, word in known.items():
            if is_stop_word(word) or word.lower() == old.lower():
                continue
            written = word if whole.cased else _written(word, old)
            if whole.cased and old[0].isupper() and not word[0].isupper():
                continue
            changed = _ids(exact, ask.draft.replaced(ask.position, written))
            pieces = enumerate(zip(ids, changed, strict=False))
            differ = [at for at, (one, other) in pieces if one != other]
            if len(ids) == len(changed) and len(differ) == 1 and changed[differ[0]] == number:
                fitting.append((differ[0], number, written))
        if not fitting:
            assert words == []
            continue
        ((position,), numbers) = {at for at, _, _ in fitting}, [each for _, each, _ in fitting]
        table = table_of(exact.model)
        towards = table[numbers] - table[ids[position]]
        scores = slopes(exact, ask.draft, position, towards)
        best = [fitting[at][2] for at in np.argsort(-scores) if scores[at] > 0]
        assert words == best[:4], old
        seen += len(words)
    assert seen > 10


def _written(word: str, old: str) -> str:
    return word.capitalize() if old[0].isupper() else word


def _ids(predictor: ClassifierPredictor, draft: Draft) -> list[int]:
    pair = None if draft.text_pair is None else [draft.text_pair]
    return list(predictor.tokenizer([draft.text], pair)["input_ids"][0])


def test_neighbors_are_the_words_of_the_largest_cosine(
    predictor: ClassifierPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    proposer = WordSwaps(Gradients(predictor))
    monkeypatch.setattr(swaps, "CANDIDATES", EVERY)
    asked = [ask for ask in asks_of(drafts_of()) if ask.draft.word(ask.position) == "film"]
    monkeypatch.setattr(swaps, "NEIGHBORS", EVERY)
    (all_words,) = proposer.propose(asked)
    monkeypatch.setattr(swaps, "NEIGHBORS", 6)
    (some,) = proposer.propose(asked)
    table = table_of(predictor.model).numpy()
    words = {word: number for number, word in predictor.whole_words().inside.items()}
    film = table[words["film"]]
    cosines = {
        word: float(film @ table[number]) / np.linalg.norm(film) / np.linalg.norm(table[number])
        for word, number in words.items()
        if not is_stop_word(word) and word != "film"
    }
    nearest = sorted(cosines, key=lambda word: -cosines[word])[:6]
    assert some == [word for word in all_words if word in nearest]
    assert 0 < len(some) < len(all_words)


# Which words


def test_words_beyond_the_cut_are_neither_ranked_nor_offered(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(swaps, "NEIGHBORS", EVERY)
    tokenizer = wordpiece()
    predictor = ClassifierPredictor(classifier_bert(tokenizer), tokenizer, max_length=4)
    draft = draft_of("row", 0, "good film bad plot", None)
    gradients = Gradients(predictor)
    (norms,) = gradient_norms(gradients, [draft], [places_of(draft)])
    assert [norm > 0 for norm in norms] == [True, True, False, False]
    behind = [Ask(draft, Position(0, at), 0) for at in (2, 3)]
    assert WordSwaps(gradients).propose(behind) == [[], []]


# Ranks


def test_words_are_ranked_by_the_1_norm_of_their_mean_gradient(
    exact: ClassifierPredictor,
) -> None:
    draft = drafts_of()[2]
    (result,) = gradient_norms(Gradients(exact), [draft], [places_of(draft)])
    pieces = exact.tokenizer(draft.text)["input_ids"]
    encoding = exact.tokenizer(draft.text, return_offsets_mapping=True)["offset_mapping"]
    table = table_of(exact.model)
    channels = torch.eye(table.shape[1], dtype=torch.float64)
    gradient = np.stack(
        [slopes(exact, draft, position, channels) for position in range(len(pieces))]
    )
    for at, norm in enumerate(result):
        start, end = draft.sides[0].span(at)
        tokens = [
            position
            for position, (first, last) in enumerate(encoding)
            if last > first and first < end and last > start and first >= start - 1
        ]
        assert norm == pytest.approx(np.abs(gradient[tokens].mean(axis=0)).sum(), rel=1e-5), at


# Whatever the batch


@pytest.mark.parametrize("size", [1, 2, 7])
def test_no_result_depends_on_the_batch_or_on_the_other_requests(
    predictor: ClassifierPredictor, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(swaps, "NEIGHBORS", 9)
    asked = asks_of(drafts_of())
    alone = [WordSwaps(Gradients(predictor)).propose([ask])[0] for ask in asked[::3]]
    together = WordSwaps(Gradients(predictor, size)).propose(asked)
    assert together[::3] == alone
    assert WordSwaps(Gradients(predictor)).propose(asked[::-1])[::-1] == together


def counted_reads(predictor: ClassifierPredictor, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that grows by how many drafts are read at a time."""
    read: list[int] = []
    spans = predictor.spans

    def counted(examples: Examples) -> Any:
        read.append(len(examples))
        return spans(examples)

    monkeypatch.setattr(predictor, "spans", counted)
    return read


def test_gradients_of_unchanged_drafts_are_cached(
    predictor: ClassifierPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = counted_reads(predictor, monkeypatch)
    gradients = Gradients(predictor)
    first, second = drafts_of()[:2]
    gradients.of([first, second, first])
    # Other rows may ask while one waits.
    gradients.of([second])
    gradients.of([second, first])
    assert read == [2]
    gradients.of([first.replaced(Position(0, 0), "film")])
    assert read == [2, 1]


def test_the_gradient_cache_is_limited_to_rows_in_flight(
    predictor: ClassifierPredictor, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = counted_reads(predictor, monkeypatch)
    monkeypatch.setattr("temper.evaluation.text_attack.swaps.IN_FLIGHT", 2)
    gradients = Gradients(predictor)
    first, second, third = drafts_of()[:3]
    # All three get a reply; the two that were asked for last are kept.
    assert len(gradients.of([first, second, third])) == 3
    assert list(gradients._read) == [second, third]
    gradients.of([second])
    gradients.of([first])
    assert list(gradients._read) == [second, first]
    assert read == [3, 1]


# What is refused


def test_a_bare_function_cannot_be_attacked_by_gradient() -> None:
    predictor = CallablePredictor(lambda texts: [[0.5, 0.5]] * len(texts), gives="probabilities")
    assert "embeddings can be perturbed, got CallablePredictor" in lacks_swaps(predictor)


def test_a_tokenizer_without_offsets_cannot_be_attacked() -> None:
    tokenizer = wordpiece()

    class Slow:
        is_fast = False
        model_max_length = 40

    predictor = ClassifierPredictor(classifier_bert(tokenizer), Slow(), max_length=8)
    reason = lacks_swaps(predictor)
    assert "tokenizer (Slow) does not return" in reason
    assert "Use 'characters' or 'masked'" in reason


def test_a_vocabulary_without_words_cannot_be_attacked() -> None:
    tokenizer = wordpiece()
    model = classifier_bert(tokenizer)
    model.config.vocab_size = 5
    assert "finds no whole word" in lacks_swaps(ClassifierPredictor(model, tokenizer, max_length=8))


def test_a_gradient_that_is_not_finite_names_the_row() -> None:
    tokenizer = wordpiece()
    model = classifier_bert(tokenizer)
    with torch.no_grad():
        model.bert.embeddings.word_embeddings.weight[5] = float("inf")
    draft = draft_of("row7", 0, "good film", None)
    with pytest.raises(ModelError, match="gradient .*row row7 is not finite"):
        Gradients(ClassifierPredictor(model, tokenizer, max_length=8)).of([draft])
