"""Augment training rows: perturb some of the texts in each epoch, with the same labels.

A row is perturbed with probability ``augment_fraction``, by one of the perturbations in
``augment``, all equally likely. The draws depend only on seed, epoch and text, so neither batching
nor resuming changes them.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch.utils.data import Dataset

from temper.data.encode import LazilyEncoded, encode
from temper.data.examples import LABELS_OF, Examples, Kind
from temper.data.perturbations import perturbed
from temper.data.settings import DataSettings
from temper.errors import SettingError
from temper.seeding import derive_seed

AUGMENTED: tuple[Kind, ...] = ("classification", "regression", "multi_label")
"""Kinds of labels for which texts may be perturbed."""


class AugmentedExamples(Dataset[dict[str, Any]]):
    """Encoded training rows, some of them with a perturbed text.

    Rows are encoded on access. ``lengths`` and ``truncated`` refer to the unperturbed rows, so that
    augmentation does not change the batches. Persistent workers of a data loader would miss
    `set_epoch`.
    """

    def __init__(
        self,
        examples: Examples,
        clean: LazilyEncoded,
        tokenizer: Any,
        settings: DataSettings,
        *,
        seed: int,
    ) -> None:
        self.clean = clean
        self.lengths, self.shortest = clean.lengths, clean.shortest
        # Only texts are encoded again in each epoch; the labels are those of the clean rows.
        self.examples = replace(examples, labels=None, label_names=None, kind="unlabeled")
        self.tokenizer = tokenizer
        self.settings = settings
        self.seed = seed
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.clean)

    @property
    def truncated(self) -> float:
        """Fraction of the unperturbed rows that were cut, in [0, 1]."""
        return self.clean.truncated

    @property
    def unknown(self) -> float:
        """Fraction of unknown tokens in the unperturbed rows, in [0, 1]."""
        return self.clean.unknown

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def chosen(self, index: int) -> str | None:
        """Return the name of the row's perturbation in this epoch; None if it is not perturbed."""
        draw = derive_seed(self.seed, "augmented", self.epoch, self.examples.rows[index])
        # A seed is uniform in [0, 2^63).
        if draw >= self.settings.augment_fraction * 2.0**63:
            return None
        position = derive_seed(self.seed, "augmentation", self.epoch, self.examples.rows[index])
        return self.settings.augment[position % len(self.settings.augment)]

    def __getitem__(self, index: int) -> dict[str, Any]:
        name = self.chosen(index)
        if name is None:
            return self.clean[index]
        seed = derive_seed(self.seed, "augmentation", self.epoch)
        changed = perturbed(self.examples.select([index]), name, seed=seed)
        if changed.rows[0] == self.examples.rows[index]:
            return self.clean[index]
        settings = self.settings
        encoded = encode(
            changed, self.tokenizer, max_length=settings.max_length, windows=settings.windows
        )
        return {**self.clean[index], **encoded[0]}


def augmented(
    rows: LazilyEncoded,
    examples: Examples,
    tokenizer: Any,
    settings: DataSettings,
    *,
    seed: int,
) -> LazilyEncoded | AugmentedExamples:
    """Return the training rows with augmentation, or ``rows`` itself if ``augment`` is empty."""
    if not settings.augment:
        return rows
    if examples.kind not in AUGMENTED:
        raise SettingError(
            "`data.augment` supports only labels that belong to a whole text, and the labels are "
            f"{LABELS_OF[examples.kind]}. Leave it out."
        )
    return AugmentedExamples(examples, rows, tokenizer, settings, seed=seed)
