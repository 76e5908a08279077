"""A set of texts with their labels: the common format of all data sources."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import chain, compress
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from temper.data.stored import RowHashes, StoredTexts, values_at
from temper.data.table import Table, read_rows, skipped_rows
from temper.errors import DataError, shortened, unknown
from temper.functional.label_names import are_indices, are_named, is_numeral, match_names
from temper.heads import HEADS
from temper.seeding import derive_seed

ScoredKind = Literal[
    "classification", "regression", "multi_label", "tokens", "choices", "spans", "completions"
]
"""Kinds of labels for which an evaluation computes metrics."""
Kind = ScoredKind | Literal["seq2seq", "unlabeled"]
NAMED = frozenset(name for name, head in HEADS.items() if head.named)
"""Kinds of labels that have names: classes, several labels per text, and tags."""
LABELS_OF = {name: head.labels for name, head in HEADS.items()} | {"unlabeled": "no labels"}
"""Kind -> how errors describe its labels."""

_COLUMNS = ("text", "text_pair", "labels", "rows", "group", "pair", "numbers")


@dataclass(frozen=True)
class Examples:
    """The rows of one set, in the order of their file.

    Args:
        name: Name of the set in messages and tables.
        text_pair: The second text of each row, for tasks on text pairs; else None.
        labels: One per row, by ``kind``: a class index, the target of a regression, zeros and ones
            for several labels, the tags of the words (`temper.data.tags`), the index of the right
            choice (`temper.data.choices`), the answers in a context (`temper.data.spans`), or the
            completion of a prompt (`temper.data.completions`). None for ``unlabeled``.
        label_names: The classes' names by index, if they are known.
        rows: Hash of each row's text; computed if left empty.
        source: Origin of the rows: path or Hub id, configuration, split, revision or sha256.
        group: Each row's group (a domain, a heuristic); None if there are none.
        pair: Name of each row's contrast pair; None if there are none.
        numbers: Number of each row in its file, from 1; by default a range, as no row was left out.
        others: Column name -> values of the file's other columns, if the reader asked for them.

    Raises:
        DataError: The lists differ in length, or labels and kind disagree.

    Example:
        >>> examples = Examples("toy", ["good", "bad"], labels=[1, 0], kind="classification")
        >>> len(examples), examples.classes
        (2, 2)
    """

    name: str
    text: Sequence[str]
    text_pair: Sequence[str] | None = None
    labels: list[Any] | None = None
    label_names: tuple[str, ...] | None = None
    kind: Kind = "unlabeled"
    rows: Sequence[str] = ()
    source: dict[str, Any] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    group: list[str | None] | None = None
    pair: list[str | None] | None = None
    numbers: Sequence[int] = ()
    others: Mapping[str, Sequence[object]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.labels is None) != (self.kind == "unlabeled"):
            have = "no labels" if self.labels is None else "labels"
            raise DataError(f"Set {self.name!r} has kind {self.kind!r}, but it has {have}.")
        if not self.rows:
            object.__setattr__(self, "rows", RowHashes.of(self.text, self.text_pair))
        if not self.numbers:
            object.__setattr__(self, "numbers", range(1, len(self.text) + 1))
        for column in _COLUMNS:
            values = getattr(self, column)
            if values is not None and len(values) != len(self.text):
                raise DataError(
                    f"Set {self.name!r} has {len(self.text)} texts but {len(values)} {column}."
                )

    def __len__(self) -> int:
        return len(self.text)

    @property
    def classes(self) -> int:
        """Number of classes or labels: that of the names, else the highest index plus one."""
        if self.kind not in NAMED:
            return 0
        if self.label_names is not None:
            return len(self.label_names)
        return int(max(self.labels or [-1])) + 1

    @property
    def strata(self) -> list[Any]:
        """Class of each row, for stratified draws; 0 for all rows without classes."""
        return self.labels if self.kind == "classification" and self.labels else [0] * len(self)

    @property
    def origin(self) -> str:
        """The file or Hub id of the rows, or else the name of the set."""
        return str(self.source.get("path") or self.source.get("id") or self.name)

    @cached_property
    def hash(self) -> str:
        """A hash of all rows and labels in their order, 16 hexadecimal digits."""
        digest = hashlib.blake2b(digest_size=8)
        labels: Sequence[object] = self.labels or [None] * len(self)
        for row, label in zip(self.rows, labels, strict=True):
            digest.update(f"{row} {label!r}\n".encode())
        return digest.hexdigest()

    def select(self, indices: Iterable[int] | NDArray[np.int64]) -> Examples:
        """Return a set of the rows at ``indices``, in that order."""
        chosen = indices if isinstance(indices, np.ndarray) else list(indices)
        columns: dict[str, Any] = {}
        for name in _COLUMNS:
            values = getattr(self, name)
            columns[name] = None if values is None else values_at(values, chosen)
        if self.others:
            columns["others"] = {
                name: [values[int(index)] for index in chosen]
                for name, values in self.others.items()
            }
        return replace(self, **columns)

    def sample(self, n: int, *, seed: int) -> Examples:
        """Draw ``n`` rows (all if there are fewer), stratified by class, in the order of the file.

        Each row is ranked by a hash of seed and text, so the order of the file does not matter.
        Equal texts are drawn together if ``n`` allows. Every class keeps at least one row if ``n``
        is large enough.

        Example:
            >>> labels = [0, 0, 0, 0, 1, 1]
            >>> toy = Examples("toy", list("abcdef"), labels=labels, kind="classification")
            >>> sorted(toy.sample(3, seed=0).labels)
            [0, 0, 1]
        """
        if n < 1:
            raise DataError(f"The number of rows must be >= 1, got {n} (set {self.name!r}).")
        if n >= len(self):
            return self
        return self.select(self.draw(n, seed=seed))

    def draw(self, n: int, *, seed: int) -> list[int]:
        """Return the indices of the rows that `sample` draws, ascending."""
        seeds = np.array([derive_seed(seed, "sample", row) for row in self.rows], np.int64)
        labels = self.strata
        counts = Counter(labels)
        # Indices of classes, because a label may not fit into an array's integers.
        codes = {label: code for code, label in enumerate(counts)}
        order = np.lexsort((seeds, np.fromiter(map(codes.__getitem__, labels), np.int64)))
        quotas, first, chosen = _stratified(counts, n), 0, [order[:0]]
        for label, count in counts.items():
            chosen.append(order[first : first + quotas[label]])
            first += count
        result: list[int] = np.sort(np.concatenate(chosen)).tolist()
        return result

    def overlap(self, other: Examples) -> list[int]:
        """Return the indices of the rows whose text is also in another set, ascending."""
        if isinstance(self.rows, RowHashes) and isinstance(other.rows, RowHashes):
            return self.rows.found_in(other.rows)
        theirs = set(other.rows)
        return [index for index, row in enumerate(self.rows) if row in theirs]

    def apart(self, others: Iterable[Examples]) -> list[int]:
        """Return the indices of the rows whose text is in none of the other sets, ascending."""
        theirs = {row for other in others for row in other.rows}
        return [index for index, row in enumerate(self.rows) if row not in theirs]

    def map_labels(self, label_names: Sequence[str]) -> Examples:
        """Renumber the labels so that their indices are those of ``label_names``.

        The names are those of a model or another set. Labels are matched by name: exactly, or else
        ignoring case, or else as whole numbers. Bare integers and placeholders such as ``LABEL_0``
        match names that are numerals by value. If one side has no names, labels are matched by
        index; a notice reports this if the other side has names.

        Raises:
            DataError: The set has no classes, or ``label_names`` lacks one of its labels.

        Example:
            >>> toy = Examples(
            ...     "toy", ["good"], labels=[0], label_names=("Positive",), kind="classification"
            ... )
            >>> toy.map_labels(["negative", "positive"]).labels
            [1]
        """
        if self.kind == "multi_label":
            return self._with_labels(tuple(label_names))
        if self.kind == "tokens":
            return self._with_tags(tuple(label_names))
        if self.kind != "classification" or self.labels is None:
            raise DataError(
                f"Set {self.name!r} must have class labels to be matched to {list(label_names)}; "
                f"it is of kind {self.kind!r}."
            )
        target, known = tuple(label_names), self.label_names or ()
        if are_named(known) and (are_named(target) or not are_indices(known)):
            return self._by_name({int(label): known[int(label)] for label in self.labels}, target)
        if not are_named(known) and any(map(is_numeral, target)):
            return self._by_name({int(label): str(int(label)) for label in self.labels}, target)
        for index, label in enumerate(self.labels):
            if not 0 <= label < len(target):
                raise DataError(
                    f"Label {label} of {self._where(index)} is out of range: the target has "
                    f"{len(target)} labels, {list(target)}. Give both sides label names, or use a "
                    "set with the same labels."
                )
        if not are_named(target):
            return replace(self, label_names=target)
        notice = (
            f"The labels of set {self.name!r} have no names and are matched by index: "
            f"{', '.join(f'{index} is {name!r}' for index, name in enumerate(target[:8]))}"
            f"{' ...' if len(target) > 8 else ''}. If that is wrong, name them in dataset.json "
            'next to the data: {"label_names": [...]}.'
        )
        return replace(self, label_names=target, notices=(*self.notices, notice))

    def _with_labels(self, target: tuple[str, ...]) -> Examples:
        """Reorder several labels per row; labels that only the target has are 0."""
        indices = self._matched(
            target, kind="label", used=lambda row: compress(range(len(row)), row)
        )
        labels = []
        for row in self.labels or []:
            applies = [0] * len(target)
            for index, value in zip(indices, row, strict=True):
                if index is not None:
                    applies[index] = value
            labels.append(tuple(applies))
        return replace(self, labels=labels, label_names=target)

    def _with_tags(self, target: tuple[str, ...]) -> Examples:
        indices = self._matched(target, kind="tag", used=iter)
        labels = [tuple(indices[tag] for tag in row) for row in self.labels or []]
        return replace(self, labels=labels, label_names=target)

    def _matched(
        self, target: tuple[str, ...], *, kind: str, used: Callable[[Any], Iterable[int]]
    ) -> list[int | None]:
        """Return the index in ``target`` of each label, None for those that occur in no row.

        ``used`` returns the indices of the labels of a row.
        """
        known = self.label_names or ()
        indices = match_names(known, target)
        for number, row in enumerate(self.labels or []):
            lost = next((label for label in used(row) if indices[label] is None), None)
            if lost is not None:
                raise DataError(
                    f"{unknown(kind, known[lost], target)} It occurs in {self._where(number)}."
                )
        return indices

    def _by_name(self, names: Mapping[int, str], target: tuple[str, ...]) -> Examples:
        occurring = sorted(names)
        indices = match_names([names[label] for label in occurring], target)
        if not are_named(target):
            # With placeholders only, the target has no names to match.
            indices = [None] * len(occurring)
        index_of: dict[int, int] = {}
        for label, index in zip(occurring, indices, strict=True):
            if index is None:
                first = (self.labels or []).index(label)
                all_names = shortened(", ".join(names[item] for item in occurring), longest=300)
                raise DataError(
                    f"{unknown('label', names[label], target)} It occurs in {self._where(first)}; "
                    f"set {self.name!r} has the labels {all_names}."
                )
            index_of[label] = index
        other = [
            f"{names[label]!r} is {target[index]!r}"
            for label, index in index_of.items()
            if names[label] != target[index] and not is_numeral(names[label])
        ]
        notices = self.notices
        if other:
            notices += (f"Labels of set {self.name!r} differ in case only: {', '.join(other)}.",)
        labels = [index_of[int(label)] for label in self.labels or []]
        return replace(self, labels=labels, label_names=target, notices=notices)

    def _where(self, index: int) -> str:
        """Return a row's file and number, or its set and index, for errors."""
        file = self.source.get("path") or self.source.get("id")
        return f"{file or f'set {self.name!r}'}, row {self.numbers[index]}"


def question_rows(
    table: Table, columns: Sequence[str], read: Callable[..., Any], *, kind: Kind, skip: bool
) -> tuple[Examples, Table]:
    """Read rows of a question, a second text and, with three ``columns``, a label of a kind.

    ``read`` converts the values of a row. The table is returned without bad rows.
    """
    rows, table = read_rows(table, columns, read, skip=skip)
    labeled = len(columns) > 2
    examples = Examples(
        table.title,
        text=StoredTexts.of(question for question, _, _ in rows),
        text_pair=StoredTexts.of(second for _, second, _ in rows),
        labels=[label for _, _, label in rows] if labeled else None,
        kind=kind if labeled else "unlabeled",
        source={"columns": dict(zip(("text", "text_pair", "label"), columns, strict=False))},
    )
    return examples, table


def check_one_label(examples: Examples, *, what: str) -> None:
    """Raise a `DataError` unless each text has at most one label; ``what`` needs that."""
    if examples.kind not in ("classification", "regression", "unlabeled"):
        raise DataError(
            f"{examples.origin}: the labels are {LABELS_OF[examples.kind]}. {what} needs one label "
            "per text; `temper train` and `temper predict` support others."
        )


def with_codes(examples: Examples) -> Examples:
    """Name classes that are bare whole numbers by these numbers, in ascending order.

    Example:
        >>> toy = Examples("toy", ["bad", "good"], labels=[1, 5], kind="classification")
        >>> named = with_codes(toy)
        >>> named.labels, named.label_names
        ([0, 1], ('1', '5'))
    """
    if examples.label_names is not None or examples.kind != "classification":
        return examples
    codes = sorted({int(label) for label in examples.labels or []})
    index_of = {code: index for index, code in enumerate(codes)}
    labels = [index_of[int(label)] for label in examples.labels or []]
    return replace(examples, labels=labels, label_names=tuple(map(str, codes)))


def without_misfits(examples: Examples, match: Callable[[Examples], object]) -> Examples:
    """Leave out the rows of classes for which ``match`` raises a `DataError`, with a notice."""
    if examples.kind != "classification" or examples.labels is None:
        return examples
    first: dict[float, int] = {}
    for index, label in enumerate(examples.labels):
        first.setdefault(label, index)
    names, unknown_labels = examples.label_names, dict[float, str]()
    for label, index in first.items():
        try:
            match(examples.select([index]))
        except DataError:
            unknown_labels[label] = str(label) if names is None else names[int(label)]
    # If no class matches, these are labels of another task, and an error follows.
    if not unknown_labels or len(unknown_labels) == len(first):
        return examples
    bad = {
        examples.numbers[index]: f"unknown label {unknown_labels[label]!r:.40}"
        for index, label in enumerate(examples.labels)
        if label in unknown_labels
    }
    kept = examples.select(
        index for index, label in enumerate(examples.labels) if label not in unknown_labels
    )
    return replace(kept, notices=(*kept.notices, skipped_rows(examples.origin, bad, unit="row")))


def joined(parts: Sequence[Examples], **changes: Any) -> Examples:
    """Concatenate sets of one kind, all of single texts or all of pairs; ``changes`` set fields."""

    def column(key: str) -> list[Any] | None:
        lists = [getattr(part, key) for part in parts]
        if all(values is None for values in lists):
            return None
        filled = (values or [None] * len(part) for part, values in zip(parts, lists, strict=True))
        return list(chain.from_iterable(filled))

    columns = {key: column(key) for key in _COLUMNS}
    notices = tuple(dict.fromkeys(notice for part in parts for notice in part.notices))
    # Numbers in several files do not identify a row, so all rows are numbered again.
    return replace(parts[0], **{**columns, "numbers": (), "notices": notices, **changes})


@dataclass(frozen=True)
class Splits:
    """The sets of a training run: it trains on ``train`` and evaluates on ``dev``.

    Args:
        test: The test split, if the source has one in addition to ``dev``.
        unlabeled: Rows without labels, for semi-supervised methods. The ``notices`` of the splits
            include theirs.
    """

    train: Examples
    dev: Examples
    test: Examples | None = None
    notices: tuple[str, ...] = ()
    unlabeled: Examples | None = None

    def labeled(self) -> Splits:
        """Return the sets without the unlabeled rows and their notices."""
        if self.unlabeled is None:
            return self
        theirs = set(self.unlabeled.notices)
        kept = tuple(notice for notice in self.notices if notice not in theirs)
        return replace(self, notices=kept, unlabeled=None)


def _stratified(sizes: Mapping[Any, int], n: int) -> dict[Any, int]:
    """Split ``n`` over classes in proportion, by largest remainder; at least one each if it can."""
    total = sum(sizes.values())
    keys = sorted(sizes, key=repr)
    quotas = {key: n * sizes[key] // total for key in keys}
    remainders = sorted(keys, key=lambda key: (-(n * sizes[key] % total), repr(key)))
    for key in remainders[: n - sum(quotas.values())]:
        quotas[key] += 1
    if n >= len(keys):
        for key in keys:
            if quotas[key] == 0:
                largest = max(keys, key=lambda other: (quotas[other], repr(other)))
                quotas[largest] -= 1
                quotas[key] = 1
    return quotas


def label_counts(examples: Examples) -> dict[int, int]:
    """Return class index -> number of rows, ascending."""
    counts = Counter(map(int, examples.labels or []))
    return dict(sorted(counts.items()))
