"""How near a changed text is to the unchanged one, by a sentence encoder."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from temper.functional.resampling import FloatArray
from temper.models.sentence import SentenceEncoder

# Unchanged texts come once for each change that is weighed, so theirs are worth keeping.
_HELD = 4096


@dataclass
class SentenceSimilarity:
    """The cosine of two texts' sentence embeddings.

    Args:
        encoder: The sentence encoder.
    """

    encoder: SentenceEncoder
    _held: dict[str, FloatArray] = field(default_factory=dict)

    def similarities(self, pairs: Sequence[tuple[str, str]]) -> list[float]:
        """Compare texts.

        Args:
            pairs: Unchanged and changed texts.

        Returns:
            Their cosines, in [-1, 1].
        """
        changed = self.encoder.embeddings([text for _, text in pairs])
        originals = self._originals([text for text, _ in pairs])
        found = [
            float(np.clip(originals[text] @ embedding, -1.0, 1.0))
            for (text, _), embedding in zip(pairs, changed, strict=True)
        ]
        return found

    def _originals(self, texts: Sequence[str]) -> dict[str, FloatArray]:
        """Return embeddings of unchanged texts, each worked out once."""
        wanted = dict.fromkeys(texts)
        new = [text for text in wanted if text not in self._held]
        if len(self._held) + len(new) > _HELD:
            self._held = {text: self._held[text] for text in wanted if text in self._held}
        self._held |= dict(zip(new, self.encoder.embeddings(new), strict=True))
        return self._held


def load_similarity(name: str, *, device: str = "cpu", batch_size: int = 64) -> SentenceSimilarity:
    """Load a sentence encoder.

    Args:
        name: A short name (``minilm``), a folder or a Hub id.
        device: Where to put it.
        batch_size: Texts of a forward pass; changes no result.

    Raises:
        ModelError: It cannot be loaded.
    """
    return SentenceSimilarity(SentenceEncoder.load(name, device=device, batch_size=batch_size))
