"""Training rows that are perturbed anew each epoch, their labels kept.

A row is perturbed with a given probability, and by one of the chosen perturbations, each as likely.
Whether, how and where follow from seed, epoch and row alone: neither batches nor the order of the
rows matter, and a resumed run sees what the whole one saw.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from temper.data.encode import EncodedExamples, Tokenizer, encode
from temper.data.examples import Examples
from temper.data.perturbations import perturbed
from temper.data.settings import DataSettings
from temper.seeding import derive_seed


class AugmentedExamples(EncodedExamples):
    """Encoded training rows, some of which are perturbed before they are encoded.

    ``lengths`` and ``truncated`` are those of the rows as they are, so that batches are the same
    ones with and without augmentation. Rows are encoded when they are asked for; a loader whose
    workers outlive an epoch would not hear of the next.

    Args:
        examples: The training rows.
        clean: The same, encoded.
        tokenizer: The tokenizer that encoded them.
        max_length: Most tokens of a row, special tokens included.
        names: Perturbations of `temper.data.perturbations`, at least one.
        share: Probability that a row is perturbed, in (0, 1].
        seed: Seed of the draws.
    """

    def __init__(
        self,
        examples: Examples,
        clean: EncodedExamples,
        tokenizer: Tokenizer,
        *,
        max_length: int,
        names: Sequence[str],
        share: float,
        seed: int,
    ) -> None:
        super().__init__(clean.items, truncated=clean.truncated)
        # Only texts are encoded anew: the labels of the encoded rows stay.
        self.examples = replace(examples, labels=None, label_names=None, kind="unlabelled")
        self.tokenizer = tokenizer
        self.max_length = max_length
        self.names = tuple(names)
        self.share = share
        self.seed = seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch, from 0, whose rows are given from now on."""
        self.epoch = epoch

    def chosen(self, index: int) -> str | None:
        """Return the name of the perturbation of a row in this epoch, None where it stays.

        Args:
            index: The row's position.
        """
        draw = derive_seed(self.seed, "augmented", self.epoch, self.examples.rows[index])
        # A seed is uniform in [0, 2^63).
        if draw >= self.share * 2.0**63:
            return None
        place = derive_seed(self.seed, "augmentation", self.epoch, self.examples.rows[index])
        return self.names[place % len(self.names)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return one row's mapping, perturbed or as it is."""
        name = self.chosen(index)
        if name is None:
            return self.items[index]
        row = self.examples.select([index])
        changed = perturbed(row, name, seed=derive_seed(self.seed, "augmentation", self.epoch))
        if changed.rows == row.rows:
            return self.items[index]
        encoded = encode(changed, self.tokenizer, max_length=self.max_length)
        return {**self.items[index], **encoded[0]}


def augmented(
    rows: EncodedExamples,
    examples: Examples,
    tokenizer: Tokenizer,
    settings: DataSettings,
    *,
    seed: int,
) -> EncodedExamples:
    """Return training rows as settings want them: perturbed anew each epoch, or as they are.

    Args:
        rows: The encoded training rows.
        examples: The same rows as texts.
        tokenizer: The tokenizer that encoded them.
        settings: With ``augment``, ``augment_share`` and ``max_length``.
        seed: Seed of the draws.

    Returns:
        ``rows`` itself where ``augment`` names nothing.
    """
    if not settings.augment:
        return rows
    return AugmentedExamples(
        examples,
        rows,
        tokenizer,
        max_length=settings.max_length,
        names=settings.augment,
        share=settings.augment_share,
        seed=seed,
    )
