"""Edits of a word by one character that a reader hardly notices.

Swapping two inner letters, leaving one out, adding one and hitting the key beside it are the typing
errors of Pruthi et al. (2019), look-alikes and the others the edits of DeepWordBug (Gao et al.,
2018). As there, the first letter stays where it is, and the last one too of a swap or a deletion:
people read words by their ends. Digits are left alone, as another number means something else, and
so are marks: they go with their letter.
"""

from __future__ import annotations

import unicodedata
from typing import Literal, get_args

from temper.seeding import derive_seed

Edit = Literal["swap", "delete", "insert", "keyboard", "homoglyph"]

EDITS: tuple[Edit, ...] = get_args(Edit)
"""All kinds of edits, in the order in which they are offered."""

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _neighbours() -> dict[str, str]:
    """Return the keys beside each letter on a QWERTY keyboard, whose rows are half a key apart."""
    found: dict[str, str] = {}
    for number, row in enumerate(_ROWS):
        for place, key in enumerate(row):
            beside = [row[place - 1 : place], row[place + 1 : place + 2]]
            if number > 0:
                beside.append(_ROWS[number - 1][place : place + 2])
            if number + 1 < len(_ROWS):
                beside.append(_ROWS[number + 1][max(place - 1, 0) : place + 1])
            found[key] = "".join(beside)
    return found


KEYBOARD = _neighbours()
"""The letters beside each letter of a QWERTY keyboard, lower case."""

# Letters of other alphabets that most typefaces draw alike (Unicode's confusables).
HOMOGLYPHS = dict(
    zip(
        "acdeghijlnopqsuvwxyABCEHIJKMOPSTXY",
        "\u0430\u0441\u0501\u0435\u0261\u04bb\u0456\u0458\u04cf\u0578\u043e\u0440\u051b\u0455\u057d\u0475\u051d\u0445\u0443\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u04ae",
        strict=True,
    )
)
"""A look-alike of each Latin letter that has one."""


def letters(word: str) -> list[str]:
    """Split a word into characters, each with the marks that stand on it.

    Args:
        word: Any string.

    Example:
        >>> letters("cafés")
        ['c', 'a', 'f', 'é', 's']
    """
    found: list[str] = []
    for sign in word:
        if found and unicodedata.category(sign)[0] == "M":
            found[-1] += sign
        else:
            found.append(sign)
    return found


def edits(word: str, kind: Edit) -> list[str]:
    """List every edit of one kind.

    Of letters with keys beside them one of these is added or hit, in the letter's case; where no
    key is known, the letter is doubled.

    Args:
        word: The word.
        kind: One of `EDITS`.

    Returns:
        Distinct words other than the word, from its first letter to its last; may be empty.

    Example:
        >>> edits("film", "delete"), edits("great", "swap")
        (['flm', 'fim'], ['gerat', 'graet'])
    """
    signs = letters(word)
    edited: list[str] = []
    for place, sign in enumerate(signs):
        if not sign[0].isalpha():
            continue
        before, behind = signs[:place], signs[place + 1 :]
        inner = bool(before and behind)
        endings: list[list[str]] = []
        if kind == "swap" and inner and len(behind) > 1 and behind[0][0].isalpha():
            endings = [[behind[0], sign, *behind[1:]]]
        elif kind == "delete" and inner:
            endings = [behind]
        elif kind == "insert":
            endings = [[sign, key, *behind] for key in _keys(sign) or [sign]]
        elif kind == "keyboard" and before:
            endings = [[key, *behind] for key in _keys(sign)]
        elif kind == "homoglyph" and sign in HOMOGLYPHS:
            endings = [[HOMOGLYPHS[sign], *behind]]
        edited += ["".join([*before, *ending]) for ending in endings]
    return [edit for edit in dict.fromkeys(edited) if edit != word]


def drawn_edits(word: str, *, seed: int, kinds: tuple[Edit, ...] = EDITS) -> list[str]:
    """Draw one edit of each kind.

    Args:
        word: The word.
        seed: What decides the draws, with the word and the kind.
        kinds: Of which kinds.

    Returns:
        Distinct words other than the word, in the order of the kinds; a kind that the word does not
        allow gives none.

    Example:
        >>> drawn_edits("film", seed=0, kinds=("swap",))
        ['flim']
    """
    found = []
    for kind in kinds:
        every = edits(word, kind)
        if every:
            found.append(every[derive_seed(seed, "edit", kind, word) % len(every)])
    return list(dict.fromkeys(found))


def _keys(sign: str) -> str:
    """Return the keys beside a letter, in its case; empty where none is known."""
    keys = KEYBOARD.get(sign.lower(), "")
    return keys.upper() if sign.isupper() else keys
