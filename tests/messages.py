"""Compare messages by their key facts instead of whole sentences."""

from __future__ import annotations

import re
from collections.abc import Sequence


def assert_messages(messages: Sequence[str], *patterns: str) -> None:
    """Assert that there is one message per pattern, in this order, and that each one matches."""
    assert len(messages) == len(patterns), messages
    for message, pattern in zip(messages, patterns, strict=True):
        assert re.search(pattern, message), f"{pattern!r} is not in {message!r}"
