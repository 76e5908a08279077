"""Tokenize sets: texts become token ids, cut or split into windows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import Any

import numpy as np
from numpy.typing import NDArray

from temper.data.choices import choices_of
from temper.data.completions import encoded_completions
from temper.data.examples import Examples, Kind
from temper.data.spans import token_positions
from temper.data.stored import Stored, StoredBytes
from temper.data.tags import first_tokens
from temper.data.token_spans import Span, check_spans, trimmed
from temper.data.windows import check_stride, encoded_row, joined
from temper.errors import DataError, SettingError, brief
from temper.types import UNLABELED, Windows

# Rows per call of a tokenizer: limits the memory at the same speed.
_CHUNK = 1000
ENCODED_FIRST = 1000
"""Number of training rows that are encoded before the first step; others are encoded on access."""
WARNED = 0.05
"""Fraction of cut rows or unknown tokens from which a notice gives advice."""


class EncodedExamples:
    """The encoded rows of a set, without padding.

    Args:
        items: One mapping per row: ``input_ids``, ``attention_mask`` and, if the set has them,
            ``token_type_ids``, ``labels`` and ``row_index``.
        truncated: Fraction of the rows that were cut, in [0, 1].
        unknown: Fraction of the tokens that are the unknown token, without special tokens, in [0,
            1].
    """

    def __init__(
        self, items: list[dict[str, Any]], *, truncated: float = 0.0, unknown: float = 0.0
    ) -> None:
        self.items = items
        self.truncated = truncated
        self.unknown = unknown
        self.lengths = [len(item["input_ids"]) for item in items]

    def __len__(self) -> int:
        return len(self.items)

    def __getitem__(self, index: int) -> dict[str, Any]:
        return self.items[index]


def encode(
    examples: Examples,
    tokenizer: Any,
    *,
    max_length: int,
    kind: Kind | None = None,
    windows: Windows | None = None,
) -> EncodedExamples:
    """Encode a set; rows that are too long are cut or split into windows.

    Args:
        examples: The set; items of an unlabeled set have no ``labels``.
        tokenizer: A Transformers tokenizer, or an object with the same call.
        max_length: Maximum number of tokens of a row, including special tokens, >= 1.
        kind: Kind of labels to encode for, if the rows have none; None uses that of the rows. For
            ``tokens``, items also have ``words``: per token the index of the word that begins
            there, else -1. For ``spans``, they have ``starts`` and ``ends``: per token its
            characters in the second text, else -1. For ``choices``, the ids of all choices follow
            each other, and ``sizes`` has the number of tokens of each choice.
        windows: How to split rows that are too long; None cuts them. The ids of all windows follow
            each other, and ``sizes`` has the number of tokens of each window.

    Raises:
        SettingError: ``max_length`` is above the limit of the tokenizer's model.
        DataError: A text has no token.
    """
    kind = kind or examples.kind
    encoder = _Encoder(examples, tokenizer, kind, max_length, windows)
    items: list[dict[str, Any]] = []
    cut = 0
    for start in range(0, len(examples), _CHUNK):
        encoded, cut_here = encoder.encode(range(start, min(start + _CHUNK, len(examples))))
        items += encoded
        cut += cut_here
    if examples.labels is not None and kind not in _WRITTEN:
        for item, label in zip(items, examples.labels, strict=True):
            item |= _labeled(item, label, kind)
    unknown, tokens = encoder.count_unknown(items)
    return EncodedExamples(
        items,
        truncated=cut / max(len(items), 1),
        unknown=unknown / max(tokens, 1),
    )


class LazilyEncoded:
    """A training set whose rows are encoded on first access and then kept in compact storage.

    The rows are equal to those of `encode`. They take 12 bytes of memory each, plus a temporary
    file. The first `ENCODED_FIRST` rows are encoded at once. Without special tokens all rows are,
    because a text without tokens must raise an error before training.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Any,
        *,
        max_length: int,
        windows: Windows | None = None,
    ) -> None:
        self._encoder = _Encoder(examples, tokenizer, examples.kind, max_length, windows)
        self.examples = examples
        self.columns: dict[str, Sequence[Any]] = {}
        if examples.labels is not None and examples.kind not in _WRITTEN:
            self.columns["labels"] = examples.labels
        self.lengths = RowLengths(self)
        self._sizes = np.full(len(examples), -1, dtype=np.int32)
        self._starts = np.zeros(len(examples), dtype=np.int64)
        self._ids = StoredBytes()
        self._others: tuple[str, ...] = ()
        self._cut = self._unknown = self._tokens = 0
        self.lengths.at(range(min(len(self), ENCODED_FIRST) if self._encoder.added else len(self)))

    def __len__(self) -> int:
        return len(self.examples)

    @property
    def truncated(self) -> float:
        """Fraction of cut rows among those encoded so far, in [0, 1]."""
        return self._cut / max(int((self._sizes >= 0).sum()), 1)

    @property
    def unknown(self) -> float:
        """Fraction of unknown tokens in the rows encoded so far, in [0, 1]."""
        return self._unknown / max(self._tokens, 1)

    def __getitem__(self, index: int) -> dict[str, Any]:
        (size,) = self.lengths.at([index])
        start = int(self._starts[index])
        item = {"input_ids": self._read(start, size), "attention_mask": [1] * size}
        start += 4 * size
        # The columns may differ in length, so the length is stored before each.
        counts = self._read(start, len(self._others))
        start += 4 * len(counts)
        for name, count in zip(self._others, counts, strict=True):
            item[name] = self._read(start, count)
            start += 4 * count
        item |= {name: values[index] for name, values in self.columns.items()}
        if "labels" in self.columns:
            item |= _labeled(item, item.pop("labels"), self.examples.kind)
        return item

    def _read(self, start: int, count: int) -> list[int]:
        read = np.frombuffer(self._ids.read(start, start + 4 * count), dtype=np.int32)
        result: list[int] = read.tolist()
        return result

    def shortest(self, count: int) -> list[dict[str, Any]]:
        """Return the ``count`` shortest of the first `ENCODED_FIRST` rows."""
        lengths = self.lengths[:ENCODED_FIRST]
        return [
            self[index] for index in sorted(range(len(lengths)), key=lengths.__getitem__)[:count]
        ]

    def sizes(self, indices: Sequence[int] | NDArray[Any]) -> list[int]:
        """Return the number of tokens of each row in ``indices``, after encoding it if needed."""
        wanted = np.asarray(indices, dtype=np.int64)
        new = np.unique(wanted[self._sizes[wanted] < 0])
        for first in range(0, len(new), _CHUNK):
            self._encode(new[first : first + _CHUNK].tolist())
        result: list[int] = self._sizes[wanted].tolist()
        return result

    def _encode(self, rows: list[int]) -> None:
        items, cut = self._encoder.encode(rows)
        self._cut += cut
        unknown, tokens = self._encoder.count_unknown(items)
        self._unknown += unknown
        self._tokens += tokens
        self._others = tuple(name for name in _STORED if name in items[0])
        start, block = self._ids.size, bytearray()
        for row, item in zip(rows, items, strict=True):
            self._starts[row], self._sizes[row] = start + len(block), len(item["input_ids"])
            others = [item[name] for name in self._others]
            kept = [*item["input_ids"], *map(len, others), *chain.from_iterable(others)]
            block += np.array(kept, dtype=np.int32).tobytes()
        self._ids.append(block)


class RowLengths(Stored[int]):
    """The number of tokens of each row of a `LazilyEncoded` set, as a lazy sequence."""

    def __init__(self, rows: LazilyEncoded) -> None:
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: Any) -> Any:
        rows = range(len(self))[index]
        return self.at([rows])[0] if isinstance(rows, int) else self.at(rows)

    def __iter__(self) -> Iterator[int]:
        return iter(self.at(range(len(self))))

    def at(self, indices: Sequence[int] | NDArray[Any]) -> list[int]:
        return self._rows.sizes(indices)


def cut_notices(
    encoded: Any,
    tokenizer: Any,
    *,
    max_length: int,
    windows: Windows | None = None,
    stride: str = "",
) -> tuple[str, ...]:
    """Return `cut_notice` for encoded training rows; empty if no row was cut."""
    if not encoded.truncated:
        return ()
    notice = cut_notice(
        encoded.truncated,
        rows=_first(encoded, "training rows"),
        max_length=max_length,
        longest=tokenizer.model_max_length,
        windows=windows,
        stride=stride,
    )
    return (notice,)


def cut_notice(
    fraction: float,
    *,
    rows: str,
    max_length: int,
    longest: int,
    windows: Windows | None = None,
    stride: str = "",
) -> str:
    """Return a notice on the fraction of cut rows, with advice from 5% on.

    ``rows`` is what the notice calls the rows. ``longest`` is the model's longest input in tokens.
    ``stride`` is the option that sets a stride, without its value, and empty if windows are not
    supported.

    Example:
        >>> cut_notice(0.02, rows="training rows", max_length=128, longest=512)
        '2.0% of the training rows are cut at 128 tokens.'
        >>> cut_notice(0.3, rows="texts", max_length=512, longest=512, stride="--stride ")
        '30.0% of the texts are cut at 512 tokens. This is the longest input of the model.
        --stride 128 reads whole texts, in windows.'
    """
    if windows is not None:
        many = f"{windows.max_windows} windows of {max_length} tokens"
        notice = f"{fraction:.1%} of the {rows} are cut behind {many}."
        return notice if fraction < WARNED else f"{notice} Raise `max_windows` to read more."
    notice = f"{fraction:.1%} of the {rows} are cut at {max_length} tokens."
    if fraction < WARNED:
        return notice
    whole = f" {stride}{max_length // 4} reads whole texts, in windows." if stride else ""
    if max_length >= longest:
        return f"{notice} This is the longest input of the model.{whole}"
    limit = f", at most {longest} for this model" if longest < _NO_LIMIT else ""
    return f"{notice} Raise --max-length (`max_length`{limit}) to read more of each text.{whole}"


def unknown_notices(
    encoded: Any,
    tokenizer: Any,
    *,
    rows: str,
    model: str,
    own_vocabulary: bool = False,
) -> tuple[str, ...]:
    """Return a notice on the fraction of unknown tokens, with advice from 5% on; empty if 0."""
    if not encoded.unknown:
        return ()
    notice = f"{encoded.unknown:.1%} of the tokens of the {_first(encoded, rows)} are unknown"
    if encoded.unknown >= WARNED and own_vocabulary:
        notice += (
            " because they occur too rarely in the training text. Lower "
            "architecture.min_frequency or pass more text"
        )
    elif encoded.unknown >= WARNED:
        notice += (
            f": the tokenizer of {model} does not cover this language or script. Use a model "
            "that was trained on it"
        )
    unknown = _unknown_token(tokenizer)
    looked_at = range(min(len(encoded), ENCODED_FIRST))
    row = next((row for row in looked_at if unknown in encoded[row]["input_ids"]), None)
    # The row's number instead of its text: run.json has this notice and is pushed to the Hub.
    example = "" if row is None else f" The first such row is row {row + 1}."
    return (f"{notice}.{example}",)


def _first(encoded: Any, rows: str) -> str:
    """Return the name of the counted rows: "first 1,000 ..." if not all rows are encoded yet."""
    counted = isinstance(encoded, EncodedExamples) or len(encoded) <= ENCODED_FIRST
    return rows if counted else f"first {ENCODED_FIRST:,} {rows}"


# Columns that are stored after the token ids of a row.
_STORED = ("token_type_ids", "words", "starts", "ends", "sizes", "labels")
# Kinds whose labels are encoded with the rows, because they are tokens themselves.
_WRITTEN = ("completions", "seq2seq")
# Tokenizers without a limit report a huge number.
_NO_LIMIT = 1_000_000


def _unknown_token(tokenizer: Any) -> int | None:
    """Return the id of the unknown token; None if no text produces it."""
    unknown: int | None = getattr(tokenizer, "unk_token_id", None)
    # GPT-2 declares its end-of-text token as the unknown one; byte-level tokens are never unknown.
    others = ("eos", "bos", "pad", "sep", "cls", "mask")
    taken = {getattr(tokenizer, f"{name}_token_id", None) for name in others}
    return None if unknown in taken else unknown


class _Encoder:
    """Encodes rows of a set, without the labels of a head.

    ``added`` is the number of special tokens that are added to each row.
    """

    def __init__(
        self,
        examples: Examples,
        tokenizer: Any,
        kind: Kind,
        max_length: int,
        windows: Windows | None = None,
    ) -> None:
        limit = tokenizer.model_max_length
        if not 1 <= max_length <= limit:
            raise SettingError(
                f"`max_length` must be between 1 and {limit}, the longest input of this model, got "
                f"{max_length}. Use --max-length {limit} or less, and a stride for longer texts "
                "(--stride, --set predictor.stride)."
            )
        pairs = examples.text_pair is not None
        if (count := getattr(tokenizer, "num_special_tokens_to_add", None)) is not None:
            # Much faster than tokenizing, which matters for predictions of single texts.
            self.added = int(count(pair=pairs))
        else:
            self.added = len(tokenizer([""], [""] if pairs else None)["input_ids"][0])
        if windows is not None:
            check_stride(tokenizer, windows, max_length=max_length, added=self.added)
        self.examples, self.tokenizer, self.kind = examples, tokenizer, kind
        self.max_length, self.windows = max_length, windows

    def encode(self, rows: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
        """Return the encoded rows, and the number of them that were cut."""
        examples, kind, max_length = self.examples, self.kind, self.max_length
        if kind == "completions":
            return self._completions(rows)
        if kind == "choices":
            return self._choices(rows)
        if kind == "spans" and examples.text_pair is None:
            raise DataError("Questions need a context as second text. Pass columns for both.")
        if kind == "seq2seq" and examples.source.get("messages"):
            raise DataError(
                "An encoder-decoder reads no conversations, and the rows are lists of messages. "
                "Pass prompts as texts, or a decoder-only language model."
            )
        if kind in ("tokens", "spans"):
            check_spans(self.tokenizer)
        whole = self._tokens(rows, truncation=False)
        long = [index for index, item in enumerate(whole) if len(item["input_ids"]) > max_length]
        if long and self.windows is None:
            again = [rows[index] for index in long]
            short = self._tokens(again, truncation=True, max_length=max_length)
            for index, item in zip(long, short, strict=True):
                whole[index] = item
        for row, item in zip(rows, whole, strict=True):
            if not item["input_ids"]:
                raise DataError(
                    f"Row {row + 1} of set {examples.name!r} has no tokens with this tokenizer "
                    f"(text {brief(examples.text[row])}). Remove it."
                )
        if self.windows is not None:
            split, cut = self._in_windows([rows[index] for index in long], self.windows)
            of_long = dict(zip(long, split, strict=True))
            return [of_long.get(index) or joined([item]) for index, item in enumerate(whole)], cut
        if kind == "seq2seq" and examples.labels is not None:
            return whole, self._add_targets(rows, whole, long)
        return whole, len(long)

    def count_unknown(self, items: Sequence[Mapping[str, Any]]) -> tuple[int, int]:
        """Count the unknown tokens and all tokens of rows, without the added special ones."""
        tokens = sum(max(len(item["input_ids"]) - self.added, 0) for item in items)
        unknown = _unknown_token(self.tokenizer)
        if unknown is None:
            return 0, tokens
        return sum(item["input_ids"].count(unknown) for item in items), tokens

    def _texts(self, rows: Sequence[int]) -> tuple[list[str], list[str] | None]:
        pairs = self.examples.text_pair
        texts = [self.examples.text[row] for row in rows]
        return texts, None if pairs is None else [pairs[row] for row in rows]

    def _tokens(self, rows: Sequence[int], **options: Any) -> list[dict[str, Any]]:
        """Tokenize rows; tags and spans also need the positions of tokens."""
        texts, pairs = self._texts(rows)
        if self.kind in ("tokens", "spans"):
            options["return_offsets_mapping"] = True
        # verbose would warn of rows above the model's length before they are cut.
        encoded = self.tokenizer(texts, pairs, padding=False, verbose=False, **options)
        items: list[dict[str, Any]] = []
        for index in range(len(rows)):
            item = encoded_row(encoded, index)
            if "offset_mapping" in encoded and pairs is None:
                item["words"] = first_tokens(texts[index], encoded["offset_mapping"][index])
            elif "offset_mapping" in encoded:
                assert pairs is not None
                offsets, sides = encoded["offset_mapping"][index], encoded.sequence_ids(index)
                spans = [
                    trimmed(pairs[index], 1, *offset) if side == 1 else Span(0, -1, -1)
                    for side, offset in zip(sides, offsets, strict=True)
                ]
                item["starts"] = [span.start for span in spans]
                item["ends"] = [span.end for span in spans]
            items.append(item)
        return items

    def _in_windows(self, rows: list[int], windows: Windows) -> tuple[list[dict[str, Any]], int]:
        """Encode long rows as windows of ``max_length`` tokens, with ``sizes``.

        In a pair the second text is split, and each window begins with the whole first text. If
        that leaves no room, the pair is cut instead.
        """
        texts, pairs = self._texts(rows)
        fits = [True] * len(rows)
        if pairs is not None:
            first = self.tokenizer(texts, add_special_tokens=False, verbose=False)["input_ids"]
            fits = [self.max_length - self.added - len(ids) > windows.stride for ids in first]

        def encoded(indices: list[int], **options: Any) -> Any:
            inputs = self._texts([rows[index] for index in indices])
            options |= {"max_length": self.max_length, "padding": False, "verbose": False}
            return self.tokenizer(*inputs, **options)

        parts: list[list[dict[str, list[int]]]] = [[] for _ in rows]
        if split := [index for index, fit in enumerate(fits) if fit]:
            result = encoded(
                split,
                truncation=True if pairs is None else "only_second",
                stride=windows.stride,
                return_overflowing_tokens=True,
            )
            for number, index in enumerate(result["overflow_to_sample_mapping"]):
                parts[split[index]].append(encoded_row(result, number))
        cut = sum(len(part) > windows.max_windows for part in parts)
        if whole := [index for index, fit in enumerate(fits) if not fit]:
            result = encoded(whole, truncation=True)
            for number, index in enumerate(whole):
                parts[index].append(encoded_row(result, number))
            cut += len(whole)
        return [joined(part[: windows.max_windows]) for part in parts], cut

    def _add_targets(
        self, rows: Sequence[int], items: list[dict[str, Any]], long: list[int]
    ) -> int:
        """Add the target tokens of an encoder-decoder; return how many rows were cut."""
        labels, limit = self.examples.labels or [], self.max_length
        targets = [labels[row] for row in rows]
        written = self.tokenizer(text_target=targets, verbose=False)["input_ids"]
        either = {*long, *(index for index, ids in enumerate(written) if len(ids) > limit)}
        if len(either) > len(long):
            options = {"truncation": True, "max_length": limit, "verbose": False}
            written = self.tokenizer(text_target=targets, **options)["input_ids"]
        for item, ids in zip(items, written, strict=True):
            item["labels"] = list(ids)
        return len(either)

    def _completions(self, rows: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
        labels = self.examples.labels
        result = encoded_completions(
            self._texts(rows)[0],
            None if labels is None else [labels[row] for row in rows],
            self.tokenizer,
            chat=bool(self.examples.source.get("messages")),
            max_length=self.max_length,
        )
        items, cuts = zip(*result, strict=True)
        return list(items), sum(cuts)

    def _choices(self, rows: Sequence[int]) -> tuple[list[dict[str, Any]], int]:
        """Encode each choice as a pair with its question."""
        texts, pairs = self._texts(rows)
        choices = [choices_of(pair) for pair in pairs or [""] * len(rows)]
        if len(counts := {*map(len, choices)}) > 1:
            raise DataError(
                "All questions must have the same number of choices, got "
                f"{' and '.join(map(str, sorted(counts)))}."
            )
        questions = [text for text, options in zip(texts, choices, strict=True) for _ in options]
        flat = Examples("choices", questions, [*chain.from_iterable(choices)])
        encoder = _Encoder(flat, self.tokenizer, "unlabeled", self.max_length)
        result, _ = encoder.encode(range(len(flat)))
        items, cut, start = [], 0, 0
        for options in choices:
            item = joined(result[start : start + len(options)])
            start += len(options)
            # A choice that was not cut may happen to be as long as the limit.
            cut += max(item["sizes"]) >= self.max_length
            items.append(item)
        return items, cut


def _labeled(item: Mapping[str, Any], label: Any, kind: Kind) -> dict[str, Any]:
    """Return the label of an encoded row as items; tags and spans refer to tokens."""
    if kind == "tokens":
        words = item["words"]
        return {"labels": [UNLABELED if word < 0 else label[word] for word in words]}
    if kind == "spans":
        first, last = token_positions(label, item["starts"], item["ends"])
        return {"start_positions": first, "end_positions": last}
    return {"labels": label}
