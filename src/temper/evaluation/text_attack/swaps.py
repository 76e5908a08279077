"""The recipe ``swaps``: words of the model's own vocabulary, chosen by its gradient.

One backward pass estimates, for each word w of the vocabulary at each position, by how much it
would raise the margin of the wrong classes (HotFlip; Ebrahimi et al. 2018, equation 10)::

    score(w) = (E[w] - E[x_t]) . g_t,    g_t the gradient at the embedding of token t

Words are changed in the order of the norm of their gradient (A2T; Yoo & Qi 2021, section 3.1).

Candidates are the nearest neighbors by cosine in the model's embeddings. Without this restriction,
the best words would often change the true label of the text. Differs: A2T uses neighbors in
counter-fitted vectors, and HotFlip requires a cosine of 0.8, which
    few pairs reach in the embeddings of a language model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from temper.data.token_spans import Span
from temper.data.words import is_stop_word
from temper.errors import ModelError
from temper.evaluation.attack import ascent_loss, check_finite
from temper.evaluation.predictor import Predictor, RowBatch, Session, WordPredictor
from temper.evaluation.text_attack.contract import (
    IN_FLIGHT,
    Ask,
    Draft,
    Position,
    examples_of,
)
from temper.functional.precision import at_least_single
from temper.lazy import torch
from temper.models.pieces import in_case_of, script_of

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Reading:
    """Tokens, embeddings and gradient of one draft.

    Args:
        ids: Token ids, [T].
        spans: Position of each token in the text; None for special tokens.
        embeddings: Embeddings of the tokens, [T, D] in at least fp32.
        gradient: Gradient of the attack's loss with respect to the embeddings, [T, D].
    """

    ids: Tensor
    spans: list[Span | None]
    embeddings: Tensor
    gradient: Tensor

    def tokens(self, draft: Draft, position: Position) -> list[int]:
        """Return the indices of a word's tokens; empty if the text was truncated before it."""
        start, end = draft.sides[position.side].span(position.word)
        return [
            index
            for index, span in enumerate(self.spans)
            if span is not None
            and span.side == position.side
            and span.start < end
            and span.end > start
        ]

    def single(self, draft: Draft, position: Position) -> int | None:
        """Return the index of the word's only token; None unless it is exactly one token."""
        result = self.tokens(draft, position)
        word = Span(position.side, *draft.sides[position.side].span(position.word))
        return result[0] if len(result) == 1 and self.spans[result[0]] == word else None


@dataclass
class Gradients:
    """Computes `Reading`s of drafts, and caches the last `IN_FLIGHT` of them.

    The attack's loss is the margin of the other classes over the label
    (`temper.evaluation.attack.ascent_loss`), or of the target class over the others.

    Args:
        predictor: The predictor; its weights are not changed.
        batch_size: Drafts of a forward and backward pass; does not change the results.
    """

    predictor: WordPredictor
    batch_size: int | None = None
    _read: dict[Draft, Reading] = field(default_factory=dict)
    _words: dict[tuple[int, ...], tuple[Tensor, Tensor]] = field(default_factory=dict)

    def of(self, drafts: Sequence[Draft]) -> list[Reading]:
        """Return the readings of drafts; equal drafts are computed once.

        Raises:
            ModelError: A gradient is not finite.
        """
        wanted = dict.fromkeys(drafts)
        kept = {draft: self._read.pop(draft) for draft in wanted if draft in self._read}
        new = [draft for draft in wanted if draft not in kept]
        # A search requests the same draft until it changes, and other rows make requests in
        # between. So the least recently used drafts are deleted before new ones are added.
        for draft in list(self._read)[: max(0, len(self._read) + len(wanted) - IN_FLIGHT)]:
            del self._read[draft]
        if new:
            examples = examples_of(new)
            spans = self.predictor.spans(examples)
            with self.predictor.session(single=True) as session:
                for part in session.parts(examples, batch_size=self.batch_size):
                    read = _read(session, part, [new[index] for index in part.indices])
                    for row, index in enumerate(part.indices):
                        kept[new[index]] = _reading(part, row, spans[index], *read)
        self._read |= {draft: kept[draft] for draft in list(wanted)[-IN_FLIGHT:]}
        return [kept[draft] for draft in drafts]

    def words(self, ids: tuple[int, ...], draft: Draft) -> tuple[Tensor, Tensor]:
        """Return the embeddings of W token ids, also normalized to length 1, [W, D] each.

        They are in at least fp32, and cached. ``draft`` is any row for a forward pass.
        """
        if ids not in self._words:
            numbers = torch.tensor(ids, dtype=torch.int64)
            with self.predictor.session(single=True) as session:
                part = next(iter(session.parts(examples_of([draft]))))
                vectors = at_least_single(session.vectors(part, numbers)).cpu()
            self._words[ids] = vectors, torch.nn.functional.normalize(vectors, dim=1)
        return self._words[ids]


def _read(session: Session, part: RowBatch, drafts: Sequence[Draft]) -> tuple[Tensor, Tensor]:
    embeddings = at_least_single(session.embeddings(part))
    delta = torch.zeros_like(embeddings).requires_grad_(True)
    aims = [draft.label if draft.target is None else draft.target for draft in drafts]
    signs = [1.0 if draft.target is None else -1.0 for draft in drafts]
    with torch.enable_grad():
        logits = session.logits(part, delta=delta)
        climbed = ascent_loss(
            logits, torch.tensor(aims, device=logits.device), regression=False
        ) * torch.tensor(signs, dtype=torch.float64, device=logits.device)
        (gradient,) = torch.autograd.grad(climbed.sum(), delta)
    check_finite(gradient, [draft.row for draft in drafts], what="The gradient at the words")
    return embeddings.cpu(), gradient.cpu()


def _reading(
    part: RowBatch, row: int, spans: list[Span | None], embeddings: Tensor, gradient: Tensor
) -> Reading:
    real = part.batch.mask[row].cpu()
    ids = part.batch.inputs["input_ids"][row].cpu()[real]
    if len(ids) != len(spans):
        raise ModelError(
            f"Row {part.rows[row]} has {len(ids)} tokens, but {len(spans)} known positions in its "
            "text: words cannot be matched to tokens. Use another recipe."
        )
    return Reading(ids, spans, embeddings[row][real], gradient[row][real])


CANDIDATES = 20
"""Number of words proposed for a position, as in A2T."""

NEIGHBORS = 50
"""Number of nearest neighbors from which candidates are chosen, as in TextFooler."""


def gradient_norms(
    gradients: Gradients, drafts: Sequence[Draft], positions: Sequence[Sequence[Position]]
) -> list[list[float]]:
    """Rank words by the 1-norm of their tokens' mean gradient; 0 if they were truncated."""
    norms = []
    for reading, draft, some in zip(gradients.of(drafts), drafts, positions, strict=True):
        tokens_of = [reading.tokens(draft, position) for position in some]
        norms.append(
            [
                float(reading.gradient[tokens].double().mean(dim=0).abs().sum()) if tokens else 0.0
                for tokens in tokens_of
            ]
        )
    return norms


class _Choice:
    """The words that may be proposed, either after a space or in other positions."""

    def __init__(self, words: Mapping[int, str], *, cased: bool) -> None:
        kept = {number: word for number, word in words.items() if not is_stop_word(word)}
        self.ids = tuple(kept)
        self.words = tuple(kept.values())
        scripts = list(map(script_of, self.words))
        self._numbers = {script: number for number, script in enumerate(dict.fromkeys(scripts))}
        self._scripts = torch.tensor([self._numbers[script] for script in scripts])
        self._places: dict[str, list[int]] = {}
        for index, word in enumerate(self.words):
            self._places.setdefault(word.casefold(), []).append(index)
        # An uncased vocabulary accepts any case, so a word gets the case of the replaced one.
        self._like = {
            model: torch.tensor(
                [not cased or in_case_of(word, model) == word for word in self.words]
            )
            for model in ("AA", "Aa", "aa")
        }

    def allowed(self, old: str) -> Tensor:
        """Return which words may replace ``old``, [W]: other words of the same script and case."""
        model = "AA" if in_case_of("aa", old) == "AA" else in_case_of("aa", old)
        result = (self._scripts == self._numbers.get(script_of(old), -1)) & self._like[model]
        result[self._places.get(old.casefold(), [])] = False
        return result


class WordSwaps:
    """Proposes words of the model's vocabulary that raise the loss, by its gradient.

    Only words of one token are swapped, and only if no other token of the text changes. So the
    model reads exactly the swap that the gradient scored.

    Args:
        gradients: Gradients of the attacked predictor.
    """

    def __init__(self, gradients: Gradients) -> None:
        self._gradients = gradients
        whole = gradients.predictor.whole_words()
        self._inside = _Choice(whole.inside, cased=whole.cased)
        self._leading = _Choice(whole.leading, cased=whole.cased)

    def propose(self, asked: Sequence[Ask]) -> list[list[str]]:
        """Propose the words with a score above 0 for each request, by descending score."""
        readings = self._gradients.of([ask.draft for ask in asked])
        tried = [
            (number, *scored)
            for number, (ask, reading) in enumerate(zip(asked, readings, strict=True))
            for scored in self._scored(ask, reading)
        ]
        changed = [
            asked[number].draft.replaced(asked[number].position, word)
            for number, _, word, _ in tried
        ]
        kept: list[list[str]] = [[] for _ in asked]
        if not changed:
            return kept
        again = self._gradients.predictor.encoded(examples_of(changed)).items
        for (number, position, word, token), read in zip(tried, again, strict=True):
            meant = readings[number].ids.tolist()
            meant[position] = token
            # Skip words that are not a single token in the changed text.
            if list(read["input_ids"]) == meant and word not in kept[number]:
                kept[number].append(word)
        return kept

    def _scored(self, ask: Ask, reading: Reading) -> list[tuple[int, str, int]]:
        """Return (index of the replaced token, word, its token id) of the best candidates."""
        position = reading.single(ask.draft, ask.position)
        if position is None:
            return []
        side = ask.draft.sides[ask.position.side]
        start, _ = side.span(ask.position.word)
        choice = self._inside if side.text[:start][-1:].isspace() else self._leading
        old = ask.draft.word(ask.position)
        allowed = choice.allowed(old)
        if not bool(allowed.any()):
            return []
        vectors, directions = self._gradients.words(choice.ids, ask.draft)
        token = reading.embeddings[position]
        # The norm of the token's own embedding does not change the order.
        cosine = torch.where(allowed, directions @ token, -torch.inf)
        near = torch.zeros_like(allowed)
        near[cosine.argsort(descending=True, stable=True)[:NEIGHBORS]] = True
        gradient = reading.gradient[position]
        scores = vectors @ gradient - token @ gradient
        scores = torch.where(allowed & near & (scores > 0), scores, -torch.inf)
        order = scores.argsort(descending=True, stable=True)[:CANDIDATES]
        return [
            (position, in_case_of(choice.words[number], old), choice.ids[number])
            for number in order.tolist()
            if scores[number] > 0
        ]


def lacks_swaps(predictor: Predictor) -> str:
    """Return why the recipe ``swaps`` does not support a predictor; empty if it does."""
    if not isinstance(predictor, WordPredictor):
        return (
            "The recipe 'swaps' needs a model whose embeddings can be perturbed, got "
            f"{type(predictor).__name__}. Use 'characters' or 'masked'."
        )
    if reason := predictor.lacks_words():
        return f"The recipe 'swaps' cannot be run: {reason}. Use 'characters' or 'masked'."
    if not predictor.whole_words().inside:
        return (
            "The recipe 'swaps' finds no whole word in the model's vocabulary. "
            "Use 'characters' or 'masked'."
        )
    return ""
