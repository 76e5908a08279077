"""Named random streams: every draw is a function of (seed, name, place), so runs can resume.

Nothing here keeps a generator alive between two draws. A stream's seed is a hash of the run's
seed, the stream's name and where the draw stands (step, micro-batch, rank, pass ...). Stopping and
resuming therefore needs no generator state, and two passes see the same dropout when they use the
same name.

torch is imported only if a generator is made: modules that do without it derive seeds too.
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

    The key is the purpose and position of the draw: anything whose ``repr`` is stable.

    Example:
        >>> derive_seed(0, "mask", 1) == derive_seed(0, "mask", 1)
        True
    """
    digest = hashlib.blake2b(repr((seed, *key)).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "little") >> 1


@dataclass(frozen=True)
class Streams:
    """Seeds of the random draws at one place of a run.

    Step and micro-batch (within the step) count from 0. Only local streams depend on the rank.
    """

    seed: int
    step: int = 0
    micro: int = 0
    rank: int = 0

    def at(self, *, step: int, micro: int = 0) -> Streams:
        return replace(self, step=step, micro=micro)

    def local(self, name: str, *key: object) -> int:
        """Return the seed of a draw that differs by rank and micro-batch (dropout, noise)."""
        return derive_seed(self.seed, name, self.step, self.micro, self.rank, *key)

    def shared(self, name: str, *key: object) -> int:
        """Return the seed of a draw that must be the same on all ranks (gradient masks)."""
        return derive_seed(self.seed, name, self.step, *key)


def generator(seed: int, device: torch.device | str = "cpu") -> torch.Generator:
    import torch

    return torch.Generator(device=device).manual_seed(seed)


@contextmanager
def seeded(seed: int, device: torch.device | str = "cpu") -> Iterator[None]:
    """Seed torch's global generators for a block and put their states back after it.

    Dropout inside models draws from the global generator; this makes those draws a function of
    ``seed`` and leaves the caller's own randomness untouched.
    """
    import torch

    where = torch.device(device)
    cuda = [where.index if where.index is not None else 0] if where.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda, device_type="cuda"):
        torch.default_generator.manual_seed(seed)
        if cuda:
            torch.cuda.manual_seed(seed)
        yield
