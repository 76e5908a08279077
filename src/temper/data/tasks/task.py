"""What is known of a task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field
from typing import Literal

from pydantic.dataclasses import dataclass

Metric = Literal["accuracy", "macro_f1", "mcc", "f1", "pearson", "spearman"]


@dataclass(frozen=True)
class Task:
    """A task that sources are recognised as, or that is asked for by name.

    Args:
        name: Short name, lower case, no signs but ``_``.
        hub: Id on the Hugging Face Hub, ``ID:CONFIG`` where it has configurations.
        metrics: Its scores; the first is the one that tables show.
        kind: What its labels are.
        pair: Whether a row has two texts.
        labels: Its classes by index; None of a regression, and where nothing is known of them.
        codes: What its published files call the same classes, by index, where that differs.
        rows: Published rows by split, named ``train``, ``dev`` (``dev_matched`` ...) and ``test``;
            empty where the task is known by name only and cannot be asked for.
        evaluated: Splits that are together its dev set.
        stand_ins: Split of a partial copy by the split that it may stand for.

    Example:
        >>> Task("toy", "me/toy", rows={"train": 9, "dev": 2}).metric
        'accuracy'
    """

    name: str
    hub: str
    metrics: tuple[Metric, ...] = ("accuracy",)
    kind: Literal["classification", "regression"] = "classification"
    pair: bool = False
    labels: tuple[str, ...] | None = None
    codes: tuple[str, ...] | None = None
    rows: Mapping[str, int] = field(default_factory=dict)
    evaluated: tuple[str, ...] = ("dev",)
    stand_ins: Mapping[str, str] = field(default_factory=dict)

    @property
    def metric(self) -> Metric:
        """The score that tables show."""
        return self.metrics[0]
