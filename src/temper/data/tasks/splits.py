"""Choose the train and dev splits of a known task in a copy of its data; report missing rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from temper.data.columns import OPTIONS
from temper.data.examples import Examples, Splits, joined, without_misfits
from temper.data.reading import (
    CARVE,
    SAME_SPLIT,
    Opened,
    check_texts,
    choose_split,
    evaluated_as_dev,
    first_split,
    read_split,
)
from temper.data.settings import DataSettings
from temper.data.tasks.registry import Task
from temper.errors import DataError

RECUT = ("resplit_train", "resplit_test")
"""Splits of a copy without train rows, which divides the task's evaluation set in two."""

_DEV = next(group for group in SAME_SPLIT if group[0] == "dev")


@dataclass(frozen=True)
class TaskCopy:
    """A copy of a task's data, with the settings to read it."""

    task: Task
    opened: Opened
    settings: DataSettings

    def splits(self) -> Splits | Examples:
        """Read train, dev and test; return only train if dev is to be held out from it.

        MNLI's dev is its two dev sets, which are the groups of the rows. Notices report missing
        rows.
        """
        train_split = self.train_split()
        train = self.read(train_split, "train")
        if train.labels is None:
            raise DataError(
                f"{self.opened.title}: split {train_split!r} of task {self.task.name!r} has no "
                f"labels to train on. Pass the label's column with {OPTIONS['label']}."
            )
        dev_splits = self.dev_splits(train_split)
        if not dev_splits:
            return train
        dev = self.joined(dev_splits)
        at_test = dev_splits == ["test"] and self.settings.eval_split is None
        if dev.labels is None and at_test:
            return train
        self.check_labels(dev, dev_splits)
        test = None
        if "test" in self.opened.splits and "test" not in (*dev_splits, train_split):
            # Only its texts are used, to find overlap with the training rows.
            test = self.read("test", "test", labeled=False)
        return Splits(train, dev, test, (evaluated_as_dev(self.opened),) if at_test else ())

    def dev(self) -> Examples:
        """Read the evaluation set; the copy needs no train rows."""
        splits = self.dev_splits(None)
        if not splits:
            raise DataError(
                f"{self.opened.title} has no split to evaluate task {self.task.name!r} on: "
                f"expected {' or '.join(self.task.evaluated)} or test, got "
                f"{', '.join(sorted(self.opened.splits))}."
            )
        dev = self.joined(splits)
        self.check_labels(dev, splits)
        if splits == ["test"] and self.settings.eval_split is None:
            dev = replace(dev, notices=(*dev.notices, evaluated_as_dev(self.opened)))
        return dev

    def train_split(self) -> str:
        splits = self.opened.splits
        if self.settings.train_split != "train":
            return choose_split(splits, self.settings.train_split, title=self.opened.title)
        result = first_split(splits, ("train",))
        if result is not None:
            return result
        if set(RECUT) <= splits.keys():
            return RECUT[0]
        raise DataError(
            f"{self.opened.title} has no rows to train task {self.task.name!r} on: expected a "
            f"split called train, got {', '.join(sorted(splits))}. Name one: "
            "--set data.train_split=NAME, or choose another copy."
        )

    def dev_splits(self, train_split: str | None) -> list[str]:
        """Return the splits that form the dev set; none if it is to be held out from train."""
        others = {name: read for name, read in self.opened.splits.items() if name != train_split}
        wanted = self.settings.eval_split
        if wanted == CARVE and train_split is not None:
            return []
        if wanted is not None and wanted not in _DEV:
            result = self._find(wanted, others)
            return [result or choose_split(others, wanted, title=self.opened.title)]
        # The rows of these splits are also in the evaluation set from which they were made.
        if train_split == RECUT[0] and RECUT[1] in others:
            return [RECUT[1]]
        evaluated = [self._find(name, others) for name in self.task.evaluated]
        kept = [name for name in evaluated if name is not None]
        if not kept:
            whole = first_split(others, ("dev",))
            kept = [] if whole is None else [whole]
        if kept or wanted is not None:
            return kept
        return next(([name] for name in (RECUT[1], "test") if name in others), [])

    def _find(self, name: str, splits: Mapping[str, Any]) -> str | None:
        """Return a published split, or its replacement in this copy; None if it has neither."""
        result = first_split(splits, (name,))
        stand_in = self.task.stand_ins.get(name)
        return stand_in if result is None and stand_in in splits else result

    def read(self, split: str, name: str, *, labeled: bool = True) -> Examples:
        """Read a split with the task's labels, and report a size other than published."""
        examples = read_split(
            self.opened,
            split,
            name=name,
            columns=self.settings.columns,
            kind=self.task.kind,
            labeled=labeled,
        )
        check_texts(
            examples,
            pair=self.task.pair,
            rows=f"{self.opened.title}: rows of split {split!r}",
            like=f"task {self.task.name!r}",
        )
        if examples.labels is not None and self.task.labels is not None:
            examples = self._with_labels(examples, split, self.task.labels)
        size = self._size(split, len(examples)) if labeled else ()
        return replace(examples, notices=(*examples.notices, *size))

    def _with_labels(self, examples: Examples, split: str, labels: tuple[str, ...]) -> Examples:
        named = examples.label_names
        if named is not None and named in (labels, self.task.codes):
            return replace(examples, label_names=labels)
        if self.settings.skip_bad_rows:
            examples = without_misfits(examples, lambda rows: rows.map_labels(labels))
        try:
            return examples.map_labels(labels)
        except DataError as error:
            raise DataError(
                f"{self.opened.title}, split {split!r}: the labels are not those of task "
                f"{self.task.name!r}. {error}"
            ) from error

    def _size(self, split: str, rows: int) -> tuple[str, ...]:
        task, published = self.task, self._published(split)
        expected = task.rows.get(published)
        if expected is None:
            return ()
        if split in RECUT:
            return (
                f"{task.name}: {split} ({rows:,} rows), a part of an evaluation set, replaces "
                f"{published} ({expected:,} rows are published). Scores are not comparable with "
                "published ones.",
            )
        if split in task.stand_ins.values():
            return (
                f"{task.name}: {split} ({rows:,} rows) replaces {published} ({expected:,} rows "
                "are published).",
            )
        if rows < expected:
            return (
                f"{task.name}: this copy is partial, {published} has {rows:,} of {expected:,} "
                "published rows.",
            )
        if rows == expected:
            return ()
        holds_dev = published == "train" and rows == expected + task.rows.get("dev", 0)
        among = " The rows of the dev split are among them." if holds_dev else ""
        return (
            f"{task.name}: {published} has {rows:,} rows, and {expected:,} are published.{among}",
        )

    def _published(self, split: str) -> str:
        """Return the published name of a split, or of the split that it replaces."""
        if split in RECUT:
            return "train" if split == RECUT[0] else self.task.evaluated[0]
        for published, stand_in in self.task.stand_ins.items():
            if split == stand_in:
                return published
        return next((group[0] for group in SAME_SPLIT if split in group), split)

    def joined(self, splits: Sequence[str]) -> Examples:
        """Read several dev splits as one set, whose groups are the splits."""
        parts = {self._published(split): self.read(split, "dev") for split in splits}
        lacking = [name for name in self.task.evaluated if name not in parts]
        first = next(iter(parts.values()))
        asked = self.settings.eval_split is not None and self.settings.eval_split not in _DEV
        if len(parts) == 1:
            if asked or len(self.task.evaluated) == 1 or next(iter(parts)) in ("dev", "test"):
                return first
            message = (
                f"{self.task.name}: {lacking[0]} is missing, so dev is only {next(iter(parts))}."
            )
            return replace(first, notices=(*first.notices, message))
        for split, part in zip(splits, parts.values(), strict=True):
            self.check_labels(part, [split])
        if self.settings.group_column is None:
            parts = {
                name: replace(part, group=[name.removeprefix("dev_")] * len(part))
                for name, part in parts.items()
            }
        sources = [dict(part.source) for part in parts.values()]
        split = " + ".join(str(source.get("split")) for source in sources)
        # Each file has its own path and hash, so all are kept.
        source = {"files": sources} if "path" in sources[0] else sources[0]
        return joined(list(parts.values()), pair=None, source={**source, "split": split})

    def check_labels(self, examples: Examples, splits: Sequence[str]) -> None:
        if examples.labels is None:
            raise DataError(
                f"{self.opened.title}: split {splits[0]!r} of task {self.task.name!r} has no "
                "labels, because the benchmark scores it on its own server. Evaluate on dev: leave "
                "`data.eval_split` out."
            )
