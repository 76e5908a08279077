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
        "\u0430\u0441\u0501\u0435\u0261\u04bb\u0456\u0458\u04cf\u0578\u043e\u0440\u051b\u0455\u057d"
        "\u0475\u051d\u0445\u0443"
        "\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u04ae",
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


def swap(word: str, place: int) -> str | None:
    """Swap a letter with the next.

    Args:
        word: The word, of n letters.
        place: Of the first of the two, in [1, n - 3]: both are inner letters.

    Returns:
        The word, None where a sign is no letter, the two are the same or an end is touched.

    Example:
        >>> swap("great", 1)
        'gerat'
    """
    signs = letters(word)
    if not 1 <= place <= len(signs) - 3:
        return None
    first, second = signs[place : place + 2]
    if first == second or not (_is_letter(first) and _is_letter(second)):
        return None
    return "".join([*signs[:place], second, first, *signs[place + 2 :]])


def delete(word: str, place: int) -> str | None:
    """Leave a letter out.

    Args:
        word: The word, of n letters.
        place: Of the letter, in [1, n - 2].

    Returns:
        The word, None where the sign is no letter or an end.

    Example:
        >>> delete("great", 2)
        'grat'
    """
    signs = letters(word)
    if not (1 <= place <= len(signs) - 2 and _is_letter(signs[place])):
        return None
    return "".join([*signs[:place], *signs[place + 1 :]])


def insert(word: str, place: int, choice: int = 0) -> str | None:
    """Add a letter behind a letter: a key beside it, or the same again where no key is known.

    Args:
        word: The word, of n letters.
        place: Of the letter behind which it goes, in [0, n - 1].
        choice: Which of the keys beside it; taken modulo their number.

    Returns:
        The word, None where the sign is no letter.

    Example:
        >>> insert("great", 4)
        'greatr'
    """
    signs = letters(word)
    if not (0 <= place < len(signs) and _is_letter(signs[place])):
        return None
    keys = _keys(signs[place]) or signs[place]
    added = keys[choice % len(keys)] if _keys(signs[place]) else keys
    return "".join([*signs[: place + 1], added, *signs[place + 1 :]])


def keyboard(word: str, place: int, choice: int = 0) -> str | None:
    """Put a key beside it in the place of a letter, in the letter's case.

    Args:
        word: The word, of n letters.
        place: Of the letter, in [1, n - 1].
        choice: Which of the keys beside it; taken modulo their number.

    Returns:
        The word, None where no key is known or it is the first letter.

    Example:
        >>> keyboard("great", 4)
        'grear'
    """
    signs = letters(word)
    keys = _keys(signs[place]) if 1 <= place < len(signs) else ""
    if not keys:
        return None
    return "".join([*signs[:place], keys[choice % len(keys)], *signs[place + 1 :]])


def homoglyph(word: str, place: int) -> str | None:
    r"""Put a look-alike in the place of a letter.

    Args:
        word: The word, of n letters.
        place: Of the letter, in [0, n - 1].

    Returns:
        The word, None where the letter has no look-alike.

    Example:
        >>> ascii(homoglyph("great", 3))
        "'gre\\u0430t'"
    """
    signs = letters(word)
    if not (0 <= place < len(signs) and signs[place] in HOMOGLYPHS):
        return None
    return "".join([*signs[:place], HOMOGLYPHS[signs[place]], *signs[place + 1 :]])


def edits(word: str, kind: Edit) -> list[str]:
    """List every edit of one kind.

    Args:
        word: The word.
        kind: One of `EDITS`.

    Returns:
        Distinct words other than the word, from its first letter to its last; may be empty.

    Example:
        >>> edits("film", "delete")
        ['flm', 'fim']
    """
    found: list[str | None] = []
    for place, sign in enumerate(letters(word)):
        if kind == "swap":
            found.append(swap(word, place))
        elif kind == "delete":
            found.append(delete(word, place))
        elif kind == "insert":
            found += [insert(word, place, choice) for choice in range(len(_keys(sign)) or 1)]
        elif kind == "keyboard":
            found += [keyboard(word, place, choice) for choice in range(len(_keys(sign)))]
        else:
            found.append(homoglyph(word, place))
    return list(dict.fromkeys(each for each in found if each is not None and each != word))


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


def _is_letter(sign: str) -> bool:
    return sign[0].isalpha()


def _keys(sign: str) -> str:
    """Return the keys beside a letter, in its case; empty where none is known."""
    keys = KEYBOARD.get(sign.lower(), "")
    return keys.upper() if sign.isupper() else keys
