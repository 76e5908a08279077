"""What a training is told about its data."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from temper.data.augmentation_settings import AugmentationSettings
from temper.data.content import known_encoding
from temper.data.tasks import TASKS, task_named
from temper.errors import Option

if TYPE_CHECKING:
    from temper.data.columns import Columns
    from temper.data.table import TableOptions

UNLABELLED = ("unlabeled", "unlabeled_rows")
"""Settings of text that only some methods read; they decide nothing about what is evaluated."""


class DataSettings(AugmentationSettings):
    """Say what to train and evaluate on; how training rows are changed stands in its base.

    Args:
        source: Path of a file, or of a folder with train and dev files; a Hub id (``glue:sst2``
            names a configuration); or ``demo``. Of a task that is named, its id on the Hub where
            left out.
        task: Task that the source is a copy of, which says its labels, splits and scores: a name of
            ``temper list tasks`` with sizes. Commands look for its data under ``--data-root``, else
            on the Hub. None recognises the score by the source's name.
        config: Configuration of a Hub data set.
        train_split: Split to train on.
        eval_split: Split to evaluate on; None looks for dev, validation, validation_matched, test.
        text_column: Column of the text; None looks for the usual names.
        text_pair_column: Column of the second text; looked for only where ``text_column`` is None
            too.
        label_column: Column of the label; None looks for the usual names.
        group_column: Column of the group that a row belongs to; None looks for ``group``.
        encoding: Encoding of the text files that are not UTF-8; None refuses these.
        skip_bad_rows: Leave out the rows whose fields, text or label cannot be read, and say how
            many; else the first of them is an error.
        kind: What the labels are; None decides by the values (`temper.data.labels.read_labels`).
        rows: Rows to train on, drawn with ``seed``, each class in its share; None takes all.
        eval_rows: Rows of each set to evaluate on at most, drawn likewise; None takes all.
        drop_overlap: Remove train rows whose text is also in an evaluation split, and rows of
            further sets whose text is also in train.
        dev_share: Share of train that becomes the dev split where the source has none, in (0, 1).
        seed: Seed of every draw of rows; separate from the seed of training, so that runs share
            their data.
        unlabeled: Text to train on besides, by methods that learn without labels: written as
            ``source``, its train split unless another is named (``SOURCE@SPLIT``). Its labels are
            not looked at; its texts stand in the columns that ``source`` has.
        unlabeled_rows: Rows of ``unlabeled`` to train on, drawn with ``seed``; None takes all.
        max_length: Longest row in tokens, >= 4; longer ones are cut and their share is reported.

    Example:
        >>> DataSettings(source="glue:sst2", rows=2000).eval_split is None
        True
        >>> DataSettings(task="rte").source
        'nyu-mll/glue:rte'
    """

    source: Annotated[str, Field(min_length=1), Option("--data SOURCE, or --task NAME")]
    task: str | None = None
    config: str | None = None
    train_split: str = "train"
    eval_split: str | None = None
    text_column: str | None = None
    text_pair_column: str | None = None
    label_column: str | None = None
    group_column: str | None = None
    encoding: Annotated[str, AfterValidator(known_encoding)] | None = None
    skip_bad_rows: bool = False
    kind: Literal["classification", "regression"] | None = None
    rows: Annotated[int, Field(ge=1)] | None = None
    eval_rows: Annotated[int, Field(ge=1)] | None = None
    drop_overlap: bool = False
    dev_share: Annotated[float, Field(gt=0, lt=1)] = 0.1
    seed: int = 0
    unlabeled: Annotated[str, Field(min_length=1)] | None = None
    unlabeled_rows: Annotated[int, Field(ge=1)] | None = None
    max_length: Annotated[int, Field(ge=4)] = 128

    @model_validator(mode="before")
    @classmethod
    def _from_the_hub(cls, given: Any) -> Any:
        """Take a task's id on the Hub where no copy of it is named."""
        if not isinstance(given, dict) or given.get("source") is not None:
            return given
        name = given.get("task")
        # One that is not known is told by its own check, and is no reason to miss a source too.
        known = TASKS[name].hub if name in TASKS else name
        return given if name is None else {**given, "source": known}

    @field_validator("task")
    @classmethod
    def _known_task(cls, name: str | None) -> str | None:
        return None if name is None else task_named(name).name

    @model_validator(mode="after")
    def _of_one_kind(self) -> Self:
        if self.task is None:
            return self
        if self.source == "demo" or self.source.startswith("demo:"):
            raise ValueError(
                f"source {self.source!r} is generated and no copy of task {self.task!r}; leave one "
                "of them out"
            )
        kind = TASKS[self.task].kind
        if self.kind not in (None, kind):
            raise ValueError(
                f"task {self.task!r} is a {kind}, but kind is {self.kind!r}; leave kind out"
            )
        return self

    @model_validator(mode="after")
    def _evaluate_elsewhere(self) -> Self:
        if self.eval_split == self.train_split:
            raise ValueError(
                f"eval_split must differ from train_split, got {self.eval_split!r} for both; "
                "leave eval_split out to have rows carved from train"
            )
        return self

    @model_validator(mode="after")
    def _draw_from_something(self) -> Self:
        if self.unlabeled_rows is not None and self.unlabeled is None:
            raise ValueError(
                f"unlabeled_rows is {self.unlabeled_rows}, but there is no unlabelled text to "
                "draw from; give unlabeled too, or leave unlabeled_rows out"
            )
        return self

    @property
    def columns(self) -> Columns:
        """The columns that are named."""
        # Tables are read with numpy, and the options of commands are made without it.
        from temper.data.columns import Columns

        return Columns(
            self.text_column, self.text_pair_column, self.label_column, self.group_column
        )

    @property
    def reading(self) -> TableOptions:
        """How tables are read."""
        from temper.data.table import TableOptions

        return TableOptions(self.encoding, self.skip_bad_rows)
