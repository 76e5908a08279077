"""Perturb texts without changing their labels: case, spaces, contractions, spelling, typos.

These are the perturbations of HELM's robustness set, and removed punctuation. Each is a pure
function of text and seed. In a set, the draws are keyed by seed, text and the perturbation's name,
so the order of rows does not matter. A text with nothing to change stays the same. To add a
perturbation, add a function and a line to `PERTURBATIONS`.

Edits of one character in a word, which readers hardly notice, are also here. Swapping two inner
letters, deleting or inserting one, and hitting a neighboring key are the typos of Pruthi et al.
(2019). The others are the edits of DeepWordBug (Gao et al., 2018). As there, the first letter
stays, and in swaps and deletions also the last one, because readers recognize words by their ends.
Digits stay, because they carry meaning. Combining marks stay with their letter.

References:
    Liang et al., "Holistic Evaluation of Language Models", 2022, section 4.6 and appendix D.
"""

from __future__ import annotations

import math
import re
import tomllib
import unicodedata
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

from temper.data.examples import Examples
from temper.data.words import Words
from temper.errors import SettingError, unknown
from temper.files import asset
from temper.seeding import derive_seed

Edit = Literal["swap", "delete", "insert", "keyboard", "homoglyph"]

EDITS: tuple[Edit, ...] = get_args(Edit)
"""All kinds of edits of a word, in the order in which they are proposed."""

_ROWS = ("qwertyuiop", "asdfghjkl", "zxcvbnm")


def _neighbors() -> dict[str, str]:
    """Return letter -> neighboring keys on a QWERTY keyboard, whose rows are half a key apart."""
    result: dict[str, str] = {}
    for number, row in enumerate(_ROWS):
        for index, key in enumerate(row):
            neighbors = [row[index - 1 : index], row[index + 1 : index + 2]]
            if number > 0:
                neighbors.append(_ROWS[number - 1][index : index + 2])
            if number + 1 < len(_ROWS):
                neighbors.append(_ROWS[number + 1][max(index - 1, 0) : index + 1])
            result[key] = "".join(neighbors)
    return result


KEYBOARD = _neighbors()
"""Letter -> neighboring letters on a QWERTY keyboard, lower case."""

# Homoglyphs: letters of other alphabets that look the same (Unicode's confusables).
HOMOGLYPHS = dict(
    zip(
        "acdeghijlnopqsuvwxyABCEHIJKMOPSTXY",
        "\u0430\u0441\u0501\u0435\u0261\u04bb\u0456\u0458\u04cf\u0578\u043e\u0440\u051b\u0455\u057d\u0475\u051d\u0445\u0443\u0410\u0412\u0421\u0415\u041d\u0406\u0408\u041a\u041c\u041e\u0420\u0405\u0422\u0425\u04ae",
        strict=True,
    )
)
"""Latin letter -> a letter of another script that looks the same."""


def letters(word: str) -> list[str]:
    """Split a word into characters, each with its combining marks.

    Example:
        >>> letters("cafés")
        ['c', 'a', 'f', 'é', 's']
    """
    result: list[str] = []
    for sign in word:
        if result and unicodedata.category(sign)[0] == "M":
            result[-1] += sign
        else:
            result.append(sign)
    return result


def edits(word: str, kind: Edit) -> list[str]:
    """List all edits of one kind, from the first letter to the last, without duplicates.

    Neighboring keys are inserted or substituted in the letter's case. If a letter has no known
    neighbors, it is doubled.

    Example:
        >>> edits("film", "delete"), edits("great", "swap")
        (['flm', 'fim'], ['gerat', 'graet'])
    """
    signs = letters(word)
    edited: list[str] = []
    for index, sign in enumerate(signs):
        if not sign[0].isalpha():
            continue
        before, behind = signs[:index], signs[index + 1 :]
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
    """Draw one edit of each kind that is possible for the word, by seed, word and kind.

    Example:
        >>> drawn_edits("film", seed=0, kinds=("swap",))
        ['flim']
    """
    result = []
    for kind in kinds:
        every = edits(word, kind)
        if every:
            result.append(every[derive_seed(seed, "edit", kind, word) % len(every)])
    return list(dict.fromkeys(result))


def _keys(sign: str) -> str:
    keys = KEYBOARD.get(sign.lower(), "")
    return keys.upper() if sign.isupper() else keys


MOST_SPACES = 3
"""Maximum number of spaces between words after `widen`, as in HELM."""
TYPO_FRACTION = 0.1
"""Fraction of a text's words that get a typo, as in HELM; rounded up."""
SHORTEST = 4
"""Minimum number of letters of a word that may get a typo (Pruthi et al., 2019)."""

_SPELLING = tomllib.loads(asset("temper.data", "spelling.toml"))
NEGATED: dict[str, str] = _SPELLING["negated"]
"""Verb -> its contraction with "not"."""
LENGTHENED: dict[str, str] = _SPELLING["lengthened"]
"""Contracted ending -> the only word that it can mean."""
PRONOUNS: dict[str, list[str]] = _SPELLING["pronouns"]
"""Verb -> the pronouns that it is contracted with."""
MISSPELLINGS: dict[str, str] = _SPELLING["misspellings"]
"""Word -> a common misspelling, both in lower case."""

# Homoglyphs are not typos.
_TYPOS: tuple[Edit, ...] = ("swap", "delete", "insert", "keyboard")
_APOSTROPHE = "['\u2019]"
_NOT = re.compile(rf"\b(?:({'|'.join(NEGATED)})\s+not|cannot)\b", re.IGNORECASE)
_VERBS = re.compile(
    "|".join(
        # The last word of a clause is not contracted: "I am sure that they are."
        rf"\b(?P<{verb}>{'|'.join(pronouns)})\s+{verb}(?=\s+\w)"
        for verb, pronouns in PRONOUNS.items()
    ),
    re.IGNORECASE,
)
_ENDINGS = {word: ending for ending, word in LENGTHENED.items()}
_STEMS = {short.removesuffix("n't"): verb for verb, short in NEGATED.items()}
# Treebank tokens are separated by spaces: "do n't", "they 're".
_SHORT_NOT = re.compile(rf"\b({'|'.join(_STEMS)})\s?n{_APOSTROPHE}t\b", re.IGNORECASE)
_SHORT_VERB = re.compile(
    rf"(?<=[^\W\d_])\s?{_APOSTROPHE}({'|'.join(ending[1:] for ending in LENGTHENED)})(?![-\w])",
    re.IGNORECASE,
)
_MARKS = re.escape(
    '.,;:!?"()[]{}\u2026\u201c\u201d\u201e\u00ab\u00bb\u2013\u2014\u00bf\u00a1'
    "\u3002\u3001\uff0c\uff01\uff1f\uff1b\uff1a\u300c\u300d\uff08\uff09"
)
# Emoticons carry meaning, and a mark between digits belongs to a number.
_DROPPED = re.compile(rf"(?P<kept>[:;=]['-]?[)(\]\[DPpOo/\\|]|(?<=\d)[.,:](?=\d))|[{_MARKS}]+")


@dataclass(frozen=True)
class TextPerturbation:
    """A perturbation of a text that keeps its label: a function of text and seed.

    ``name`` is used in settings and reports, ``summary`` in lists.
    """

    name: str
    summary: str
    change: Callable[[str, int], str]


def known_names(chosen: tuple[str, ...]) -> tuple[str, ...]:
    """Return names of perturbations from the settings after checking them.

    Raises:
        ValueError: A name is unknown or given twice; pydantic reports it.

    Example:
        >>> known_names(("typos",))
        ('typos',)
    """
    for name in chosen:
        if name not in PERTURBATIONS:
            raise ValueError(unknown("perturbation", name, PERTURBATIONS))
    if len(set(chosen)) != len(chosen):
        raise ValueError(f"must not name one twice, got {list(chosen)}")
    return chosen


def perturb(text: str, name: str, *, row: str, seed: int = 0, index: int = 0) -> str:
    """Apply one of `PERTURBATIONS` to a text.

    The seed of the draws also depends on ``row``, the hash of the row, and on ``index``: 0, or 1
    for the second text of a pair.

    Raises:
        SettingError: The name is unknown.

    Example:
        >>> perturb("It is not good, you will see.", "contractions", row="a")
        "It isn't good, you'll see."
    """
    if name not in PERTURBATIONS:
        raise SettingError(unknown("perturbation", name, PERTURBATIONS))
    changed = PERTURBATIONS[name].change(text, derive_seed(seed, "perturbation", name, row, index))
    # A text of only punctuation would become empty, which no model can read.
    return changed if changed.strip() else text


def perturbed(examples: Examples, name: str, *, seed: int = 0) -> Examples:
    """Perturb every text of a set, in pairs both texts; the labels stay the same.

    Example:
        >>> perturbed(Examples("toy", ["Good!"]), "lowercase").text
        ['good!']
    """

    def changed(texts: Sequence[str], index: int) -> list[str]:
        return [
            perturb(text, name, row=row, seed=seed, index=index)
            for text, row in zip(texts, examples.rows, strict=True)
        ]

    pairs = None if examples.text_pair is None else changed(examples.text_pair, 1)
    return replace(examples, text=changed(examples.text, 0), text_pair=pairs, rows=[])


def drop_punctuation(text: str) -> str:
    """Remove sentence punctuation, quotes and brackets.

    Apostrophes, hyphens, marks within numbers and emoticons stay. A mark directly between two words
    becomes a space.

    Example:
        >>> drop_punctuation("Well... it's 3.5 stars, great-ish (really!) :)")
        "Well it's 3.5 stars great-ish really :)"
    """

    def dropped(found: re.Match[str]) -> str:
        if found["kept"]:
            return found[0]
        before, after = text[: found.start()][-1:], text[found.end() :][:1]
        return " " if before.isalnum() and after.isalnum() else ""

    without = _DROPPED.sub(dropped, text)
    return without if without == text else " ".join(without.split())


def contract(text: str) -> str:
    """Contract English verbs with "not" and with pronouns.

    Example:
        >>> contract("I am sure they are here and you CANNOT leave.")
        "I'm sure they're here and you CAN'T leave."
    """

    def negated(found: re.Match[str]) -> str:
        verb = found[1] or "can"
        return _in_case_of(found[0], NEGATED[verb.lower()])

    def shortened(found: re.Match[str]) -> str:
        verb = str(found.lastgroup)
        upper = found[0].rstrip().endswith(verb.upper())
        return found[verb] + (_ENDINGS[verb].upper() if upper else _ENDINGS[verb])

    return _VERBS.sub(shortened, _NOT.sub(negated, text))


def expand(text: str) -> str:
    """Expand English contractions that have only one meaning.

    Example:
        >>> expand("I'm sure they 're here, it does n't matter and we can't leave.")
        'I am sure they are here, it does not matter and we cannot leave.'
    """

    def negation(found: re.Match[str]) -> str:
        verb = _STEMS[found[1].lower()]
        return _in_case_of(found[0], "cannot" if verb == "can" else f"{verb} not")

    def lengthened(found: re.Match[str]) -> str:
        word = LENGTHENED[f"'{found[1].lower()}"]
        return f" {word.upper() if found[1].isupper() else word}"

    return _SHORT_VERB.sub(lengthened, _SHORT_NOT.sub(negation, text))


def misspell(text: str) -> str:
    """Misspell every word in `MISSPELLINGS`.

    Example:
        >>> misspell("Definitely a friend, believe me.")
        'Definately a freind, beleive me.'
    """
    words = Words.of(text)
    changed = [
        _in_case_of(word, MISSPELLINGS[word.lower()]) if word.lower() in MISSPELLINGS else word
        for word in words.words
    ]
    return Words(tuple(changed), words.gaps).text


def mistype(text: str, seed: int) -> str:
    """Insert a typo in a tenth of the words, rounded up; only words of four letters or more.

    A typo swaps two letters, deletes or inserts one, or replaces one by a neighboring key.
    """
    words = Words.of(text)
    changed = list(words.words)
    long = [index for index, word in enumerate(changed) if len(letters(word)) >= SHORTEST]
    long.sort(key=lambda index: derive_seed(seed, "word", index))
    for index in long[: math.ceil(TYPO_FRACTION * len(words))]:
        key = derive_seed(seed, "typo", index)
        if errors := drawn_edits(changed[index], seed=key, kinds=_TYPOS):
            changed[index] = errors[key % len(errors)]
    return Words(tuple(changed), words.gaps).text


def widen(text: str, seed: int) -> str:
    """Replace each gap between words by one to three spaces; line breaks stay."""
    return re.sub(
        " +", lambda gap: " " * (1 + derive_seed(seed, "gap", gap.start()) % MOST_SPACES), text
    )


def _in_case_of(model: str, word: str) -> str:
    signs = [sign for sign in model if sign.isalpha()]
    if len(signs) > 1 and all(sign.isupper() for sign in signs):
        return word.upper()
    return word[:1].upper() + word[1:] if signs[:1] and signs[0].isupper() else word


PERTURBATIONS: dict[str, TextPerturbation] = {
    item.name: item
    for item in (
        TextPerturbation("lowercase", "All letters small", lambda text, seed: text.lower()),
        TextPerturbation("spaces", "One to three spaces in place of each gap", widen),
        TextPerturbation(
            "contractions",
            "Verbs contracted with `not` and with pronouns: isn't, they're",
            lambda text, seed: contract(text),
        ),
        TextPerturbation(
            "expansions",
            "Contractions written out: is not, they are",
            lambda text, seed: expand(text),
        ),
        TextPerturbation(
            "misspellings",
            "Common misspellings of the words that have one in a table",
            lambda text, seed: misspell(text),
        ),
        TextPerturbation("typos", "A typing error in a tenth of the words", mistype),
        TextPerturbation(
            "punctuation",
            "Marks of sentences, quotes and brackets left out",
            lambda text, seed: drop_punctuation(text),
        ),
    )
}
"""Name -> perturbation, in the order of reports."""
