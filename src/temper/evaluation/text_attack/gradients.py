"""The gradient of what an attack climbs by the word embeddings of texts, token by token."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from temper.data.encode import Span
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.attack import ascent_loss, check_finite
from temper.evaluation.predictor import RowBatch, Session, WordPredictor
from temper.evaluation.text_attack.contract import IN_FLIGHT, Draft, Place
from temper.functional.precision import at_least_single


@dataclass(frozen=True)
class Words:
    """The words of a vocabulary as the model sees them.

    Args:
        vectors: Their embeddings, [W, D] in at least fp32.
    """

    vectors: Tensor

    @cached_property
    def directions(self) -> Tensor:
        """Their embeddings, each of length 1."""
        return torch.nn.functional.normalize(self.vectors, dim=1)


@dataclass(frozen=True)
class Reading:
    """How a predictor reads one draft.

    Args:
        ids: Its tokens, [T].
        spans: Where each of them stands, None for added ones.
        embeddings: Their embeddings, [T, D] in at least fp32.
        gradient: Of what the attack climbs, by the embeddings, [T, D].
    """

    ids: Tensor
    spans: list[Span | None]
    embeddings: Tensor
    gradient: Tensor

    def tokens(self, draft: Draft, place: Place) -> list[int]:
        """Return the positions of a word's tokens; none where the text was cut before it."""
        start, end = draft.sides[place.side].span(place.word)
        return [
            position
            for position, span in enumerate(self.spans)
            if span is not None
            and span.side == place.side
            and span.start < end
            and span.end > start
        ]

    def single(self, draft: Draft, place: Place) -> int | None:
        """Return the position of a word's token, where it is one that is nothing but the word."""
        found = self.tokens(draft, place)
        word = Span(place.side, *draft.sides[place.side].span(place.word))
        return found[0] if len(found) == 1 and self.spans[found[0]] == word else None


@dataclass
class Gradients:
    """Reads drafts with a predictor, and keeps what it read of the last `IN_FLIGHT` of them.

    What is climbed is the margin of the other classes over the label
    (`temper.evaluation.attack.ascent_loss`), or of the target over the others.

    Args:
        predictor: Whose gradients; its weights are left as they are.
        batch_size: Drafts of a forward and backward pass; changes no result.
    """

    predictor: WordPredictor
    batch_size: int | None = None
    _read: dict[Draft, Reading] = field(default_factory=dict)
    _words: dict[tuple[int, ...], Words] = field(default_factory=dict)

    def of(self, drafts: Sequence[Draft]) -> list[Reading]:
        """Read drafts.

        Args:
            drafts: At least one; equal ones are read once.

        Raises:
            ModelError: A gradient is not finite.
        """
        wanted = dict.fromkeys(drafts)
        held = {draft: self._read.pop(draft) for draft in wanted if draft in self._read}
        new = [draft for draft in wanted if draft not in held]
        # A search asks for the same draft until it changes, and other rows may ask in between: the
        # drafts that were asked for longest ago go first, before there are new ones.
        for draft in list(self._read)[: max(0, len(self._read) + len(wanted) - IN_FLIGHT)]:
            del self._read[draft]
        if new:
            examples = _examples(new)
            spans = self.predictor.spans(examples)
            with self.predictor.session(single=True) as session:
                for part in session.parts(examples, batch_size=self.batch_size):
                    read = _read(session, part, [new[index] for index in part.indices])
                    for row, index in enumerate(part.indices):
                        held[new[index]] = _reading(part, row, spans[index], *read)
        self._read |= {draft: held[draft] for draft in list(wanted)[-IN_FLIGHT:]}
        return [held[draft] for draft in drafts]

    def read_again(self, drafts: Sequence[Draft]) -> list[list[int]]:
        """Return the token ids of each draft.

        Args:
            drafts: Any number of them.
        """
        if not drafts:
            return []
        encoded = self.predictor.encoded(_examples(drafts))
        return [list(item["input_ids"]) for item in encoded.items]

    def words(self, ids: Sequence[int], draft: Draft) -> Words:
        """Look words up in the model's own embeddings, once.

        Args:
            ids: Their token ids.
            draft: Any text, by which the embeddings are found.
        """
        key = tuple(ids)
        if key not in self._words:
            numbers = torch.tensor(ids, dtype=torch.int64)
            with self.predictor.session(single=True) as session:
                part = next(iter(session.parts(_examples([draft]))))
                self._words[key] = Words(at_least_single(session.vectors(part, numbers)).cpu())
        return self._words[key]


def _examples(drafts: Sequence[Draft]) -> Examples:
    pairs = [draft.text_pair for draft in drafts if draft.text_pair is not None]
    return Examples("text attack", [draft.text for draft in drafts], pairs or None)


def _read(session: Session, part: RowBatch, drafts: Sequence[Draft]) -> tuple[Tensor, Tensor]:
    """Return embeddings and gradients [B, T, D] of one batch."""
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
    """Cut one row out of a batch, without its padding."""
    real = part.batch.mask[row].cpu()
    ids = part.batch.inputs["input_ids"][row].cpu()[real]
    if len(ids) != len(spans):
        raise ModelError(
            f"Row {part.rows[row]} has {len(ids)} tokens, and {len(spans)} places in its text are "
            "known: words cannot be matched to tokens. Use another recipe."
        )
    return Reading(ids, spans, embeddings[row][real], gradient[row][real])
