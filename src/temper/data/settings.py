"""What a training is told about its data, and about how its rows are changed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    field_validator,
    model_validator,
)

from temper.data.content import known_encoding
from temper.data.tasks.registry import TASKS, task_named
from temper.errors import Option

if TYPE_CHECKING:
    from temper.data.columns import Columns
    from temper.data.table import TableOptions

AUGMENT_SHARE = 0.5
"""Probability that a row is perturbed: clean and changed rows weigh alike, as in the adversarial
training of Goodfellow et al. (2015, section 6). A2T (Yoo and Qi, 2021) changes 20 % of the rows."""

MASKED = "masked"
"""The change that draws words from a masked language model."""


def source_name(given: Any) -> Any:
    """Return the name of a source; data in memory gets a name that is a hash of its content.

    Args:
        given: A path or another name, which is returned as a string, or data as
            `temper.data.in_memory.hold` takes it.

    Raises:
        DataError: It is neither.
    """
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    # Tables are read with numpy, and the options of commands are made without it.
    from temper.data.in_memory import hold

    return hold(given)


class AugmentationSettings(BaseModel):
    """Say how training rows are changed; labels and evaluated rows stay as they are.

    Args:
        augment: What is done to training rows, one of these a row and epoch: perturbations of
            `temper.data.perturbations`, for example ``typos`` and ``lowercase``, or ``masked``,
            words replaced by draws from ``augment_masked_model``. One stands for a list of one.
        augment_share: Probability that a training row is changed in an epoch, in (0, 1].
        augment_masked_model: Folder or Hub id of a masked language model, for ``masked``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    augment: tuple[str, ...] = ()
    augment_share: Annotated[float, Field(gt=0, le=1)] = AUGMENT_SHARE
    augment_masked_model: Annotated[str, Field(min_length=1)] | None = None

    @field_validator("augment", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("augment")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        # Importing the names takes numpy, and the options of commands are made without it.
        from temper.data.perturbations import known_names

        return known_names(names, (MASKED,))

    @model_validator(mode="after")
    def _augment_by_something(self) -> Self:
        """Refuse settings that would be ignored, and names that lack a model."""
        faults = []
        if self.augment_share != AUGMENT_SHARE and not self.augment:
            faults.append(
                f"augment_share is {self.augment_share}, but nothing is to be done to the rows; "
                "give augment too, or leave augment_share out"
            )
        if MASKED in self.augment and self.augment_masked_model is None:
            faults.append(
                f"augment names {MASKED}, which needs a masked language model; give "
                "augment_masked_model (--set data.augment_masked_model=FOLDER)"
            )
        if MASKED not in self.augment and self.augment_masked_model is not None:
            faults.append(
                f"augment_masked_model is {self.augment_masked_model!r}, but nothing asks it; add "
                f"{MASKED} to augment, or leave augment_masked_model out"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def augmentation(self, masked_model: str | None) -> dict[str, Any]:
        """Return the settings of the changes that are part of a run's key; empty where none is.

        Args:
            masked_model: Identity of the weights of ``augment_masked_model``.
        """
        if not self.augment:
            return {}
        # The order decides which of them a draw stands for.
        decides: dict[str, Any] = {"augment": [list(self.augment), self.augment_share]}
        if masked_model is not None:
            decides["augment_masked_model"] = masked_model
        return decides


AUGMENTATION = tuple(AugmentationSettings.model_fields)
"""Settings of what becomes of training rows; they decide nothing about what is evaluated."""


UNLABELLED = ("unlabeled", "unlabeled_rows")
"""Settings of text that only some methods read; they decide nothing about what is evaluated."""
TRAINING_ONLY = ("rows", "drop_overlap", *UNLABELLED, *AUGMENTATION)
"""Settings that say how to train, so that an evaluation would have to ignore them."""


class DataSettings(AugmentationSettings):
    """Say what to train and evaluate on; how training rows are changed stands in its base.

    Args:
        source: Path of a file, or of a folder with train and dev files; a Hub id (``glue:sst2``
            names a configuration); or ``demo``. In Python also a DataFrame, a Dataset or
            DatasetDict, or a dict of columns. Defaults to the task's Hub dataset if ``task`` is
            given.
        task: Task that the source is a copy of, which says its labels, splits and scores: a name of
            ``temper list tasks`` with sizes. Its data are looked for under ``data_root``, else on
            the Hub. None recognises the score by the source's name.
        config: Configuration of a Hub data set.
        train_split: Split to train on.
        eval_split: Split to evaluate on; None looks for dev, validation, validation_matched, test;
            ``carve`` takes rows from train, and reads no other split.
        text_column: Column of the text; None looks for the usual names, and a warning lists others
            that fit.
        text_pair_column: Column of the second text; looked for only where ``text_column`` is None
            too.
        label_column: Column of the label; None looks for the usual names, and a warning lists
            others that fit.
        group_column: Column of the group that a row belongs to; None looks for ``group``.
        encoding: Encoding of the text files that are not UTF-8; None refuses these.
        skip_bad_rows: Skip rows whose fields, text or label cannot be read, or whose label does not
            occur in the training data, and report how many; else the first of them is an error.
        kind: What the labels are: classes, which may be whole numbers such as 1 to 5, or numbers to
            predict. Guessed from the values by default, and reported.
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

    source: Annotated[
        str,
        BeforeValidator(source_name),
        Field(min_length=1),
        Option("--data SOURCE, or --task NAME"),
    ]
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
    unlabeled: Annotated[
        Annotated[str, Field(min_length=1)] | None, BeforeValidator(source_name)
    ] = None
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
    def _fits(self) -> Self:
        """Refuse settings that contradict each other."""
        faults = []
        task = None if self.task is None else TASKS[self.task]
        if task is not None and (self.source == "demo" or self.source.startswith("demo:")):
            faults.append(
                f"source {self.source!r} is generated and no copy of task {self.task!r}; leave one "
                "of them out"
            )
        if task is not None and self.kind not in (None, task.kind):
            faults.append(
                f"task {self.task!r} is a {task.kind}, but kind is {self.kind!r}; leave kind out"
            )
        if self.eval_split == self.train_split:
            faults.append(
                f"eval_split must differ from train_split, got {self.eval_split!r} for both; "
                "leave eval_split out to have rows carved from train"
            )
        if self.unlabeled_rows is not None and self.unlabeled is None:
            faults.append(
                f"unlabeled_rows is {self.unlabeled_rows}, but there is no unlabelled text to "
                "draw from; give unlabeled too, or leave unlabeled_rows out"
            )
        if faults:
            raise ValueError("; ".join(faults))
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
