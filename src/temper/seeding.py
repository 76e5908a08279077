"""Named random streams: each draw depends only on the run's seed, a name and a position.

The seed of a draw is a hash of the run's seed, the name of the stream, and the position (step,
micro-batch, rank, pass ...). So a resumed run needs no generator state, and two passes with the
same name use the same dropout masks.

torch is imported only if a generator is created.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def derive_seed(seed: int, *key: object) -> int:
    """Hash a seed and a key to a new seed in [0, 2^63).

    The key is the name and position of the draw: any values whose ``repr`` is the same in each
    process.

    Example:
        >>> derive_seed(0, "mask", 1) == derive_seed(0, "mask", 1)
        True
    """
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Streams:
    """Seeds for the random draws of one micro-batch.

    ``step`` and ``micro``, the micro-batch in the step, count from 0.
    """

    seed: int
    step: int = 0
    micro: int = 0
    rank: int = 0

    def at(self, *, step: int, micro: int = 0) -> Streams:
        return replace(self, step=step, micro=micro)

    def local(self, name: str, *key: object) -> int:
        """Return the seed of a draw that differs by micro-batch and rank (dropout, noise)."""
        return derive_seed(self.seed, name, self.step, self.micro, self.rank, *key)

    def shared(self, name: str, *key: object) -> int:
        """Return the seed of a draw that is the same for all ranks and micro-batches (masks)."""
        return derive_seed(self.seed, name, self.step, *key)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    import torch

    return torch.Generator(device=device).manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators inside this context, then restore their states.

    Dropout modules draw from the global generators.
    """
    import torch

    where = torch.device(device)
    cuda = [where.index if where.index is not None else 0] if where.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda, device_type="cuda"):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
