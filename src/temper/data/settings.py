"""Settings of the data for training and evaluation, and of augmentation."""

from __future__ import annotations

from dataclasses import astuple
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
from temper.types import Pool, Windows

if TYPE_CHECKING:
    from temper.data.columns import Columns
    from temper.data.table import TableOptions

AUGMENT_FRACTION = 0.5
"""Default probability that a row is perturbed: clean and perturbed rows have equal weight, as in
Goodfellow et al. (2015, section 6). A2T (Yoo and Qi, 2021) changes 20% of the rows.
"""


def source_name(given: Any) -> Any:
    """Return a source unchanged, or register data in memory and return its name."""
    if given is None or isinstance(given, str | Path):
        return None if given is None else str(given)
    # Imported late: reading tables needs numpy, which the command-line options do not.
    from temper.data.in_memory import hold

    return hold(given)


AUGMENTATION = ("augment", "augment_fraction")
"""Names of the augmentation settings."""
UNLABELED = ("unlabeled", "unlabeled_rows")
"""Names of the settings of unlabeled text, which only some methods read."""
WINDOWS = ("stride", "pool", "max_windows")
"""Names of the settings of windows over long texts, which are saved with a model."""
TRAINING_ONLY = ("rows", "drop_overlap", *WINDOWS, *UNLABELED, *AUGMENTATION)
"""Names of the settings that only training reads; an evaluation raises an error on them."""


class DataSettings(BaseModel):
    """Settings of the data for training and evaluation, including those of augmentation.

    Example:
        >>> DataSettings(source="glue:sst2", rows=2000).eval_split is None
        True
        >>> DataSettings(task="rte").source
        'nyu-mll/glue:rte'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    augment: tuple[str, ...] = Field(
        default=(),
        description="Perturbations of training texts, such as `typos` and `lowercase`; one is "
        "drawn per row and epoch.",
    )
    augment_fraction: Annotated[float, Field(gt=0, le=1)] = Field(
        default=AUGMENT_FRACTION,
        description="Probability that a training text is perturbed in an epoch.",
    )
    source: Annotated[
        str,
        BeforeValidator(source_name),
        Field(min_length=1),
        Option("--data SOURCE, or --task NAME"),
    ] = Field(
        description="Path of a file, or of a folder with train and dev files; a Hub id "
        "(`glue:sst2` selects a configuration); or `demo`. In Python also a "
        "DataFrame, a Dataset or DatasetDict, or a dict of columns. Default: the task's "
        "data, from `data_root` or the Hub."
    )
    task: str | None = Field(
        default=None,
        description="Benchmark task (`temper list tasks`): sets labels, splits and metrics. Its "
        "data are read from `data_root`, else from the Hub. Default: recognized by "
        "the name of the source.",
    )
    config: str | None = Field(default=None, description="Configuration of a Hub dataset.")
    train_split: str = Field(default="train", description="Split to train on.")
    eval_split: str | None = Field(
        default=None,
        description="Split to evaluate on; `carve` holds out training rows instead. Default: "
        "dev, validation, validation_matched or test, the first that exists.",
    )
    text_column: str | None = Field(
        default=None,
        description="Column of the text. Default: guessed from the column names, with a warning "
        "if several fit.",
    )
    text_pair_column: str | None = Field(
        default=None,
        description="Column of the second text. Default: guessed together with the text column.",
    )
    label_column: str | None = Field(
        default=None,
        description="Column of the label. Default: guessed from the column names, with a warning "
        "if several fit.",
    )
    group_column: str | None = Field(
        default=None, description="Column of each row's group. Default: `group`, if there is one."
    )
    encoding: Annotated[str, AfterValidator(known_encoding)] | None = Field(
        default=None,
        description="Encoding of text files that are not UTF-8. Default: such files raise an "
        "error.",
    )
    skip_bad_rows: bool = Field(
        default=False,
        description="Skip unreadable rows and rows with an unknown label, and report their "
        "number. Default: the first bad row raises an error.",
    )
    kind: Literal["classification", "regression", "multi_label"] | None = Field(
        default=None,
        description="Kind of labels: classes (also whole numbers such as 1 to 5), numbers to "
        "predict, or several labels per text. Default: guessed from the values, and reported.",
    )
    rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Training rows, drawn with `seed` and stratified by class. Default: all.",
    )
    eval_rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None,
        description="Maximum number of rows of each evaluation set, drawn like `rows`. "
        "Default: all.",
    )
    drop_overlap: bool = Field(
        default=False,
        description="Remove training rows whose text is in an evaluation split, and rows of "
        "additional sets whose text is in the training split.",
    )
    dev_fraction: Annotated[float, Field(gt=0, lt=1)] = Field(
        default=0.1,
        description="Fraction of the training split that becomes the dev split if the source has "
        "none.",
    )
    seed: int = Field(
        default=0,
        description="Seed for drawing rows. It is separate from the training seed, so that runs "
        "share their data.",
    )
    unlabeled: Annotated[
        Annotated[str, Field(min_length=1)] | None, BeforeValidator(source_name)
    ] = Field(
        default=None,
        description="Unlabeled text for methods that train on it, given like `source`. "
        "Its train split is read unless SOURCE@SPLIT names another. Labels are ignored; text "
        "columns are those of `source`.",
    )
    unlabeled_rows: Annotated[int, Field(ge=1)] | None = Field(
        default=None, description="Unlabeled rows, drawn with `seed`. Default: all."
    )
    max_length: Annotated[int, Field(ge=4)] = Field(
        default=128,
        description="Maximum number of tokens of a row; longer rows are truncated, and their "
        "fraction is reported.",
    )
    stride: Annotated[int, Field(ge=0)] | None = Field(
        default=None,
        description=(
            "Read texts longer than `max_length` in windows of that length that overlap by this "
            "many tokens. Default: such texts are truncated."
        ),
    )
    pool: Pool = Field(
        default="mean",
        description="How the logits of a text's windows are pooled: `mean` or `max`.",
    )
    max_windows: Annotated[int, Field(ge=1)] = Field(
        default=8, description="Maximum number of windows of a text; the rest is truncated."
    )

    @field_validator("augment", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("augment")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        # Imported late: the names need numpy, which the command-line options do not.
        from temper.data.perturbations import known_names

        return known_names(names)

    @model_validator(mode="before")
    @classmethod
    def _from_the_hub(cls, given: Any) -> Any:
        if not isinstance(given, dict) or given.get("source") is not None:
            return given
        name = given.get("task")
        # An unknown task is checked elsewhere; its error must not hide a missing source.
        known = TASKS[name].hub if name in TASKS else name
        return given if name is None else {**given, "source": known}

    @field_validator("task")
    @classmethod
    def _known_task(cls, name: str | None) -> str | None:
        return None if name is None else task_named(name).name

    @model_validator(mode="after")
    def _fits(self) -> Self:
        faults = []
        if self.augment_fraction != AUGMENT_FRACTION and not self.augment:
            faults.append(
                f"augment_fraction is {self.augment_fraction}, but augment is empty; pass augment "
                "too, or leave augment_fraction out"
            )
        task = None if self.task is None else TASKS[self.task]
        if task is not None and (self.source == "demo" or self.source.startswith("demo:")):
            faults.append(
                f"source {self.source!r} is generated and not a copy of task {self.task!r}; leave "
                "one of them out"
            )
        if task is not None and self.kind not in (None, task.kind):
            faults.append(
                f"task {self.task!r} is a {task.kind}, but kind is {self.kind!r}; leave kind out"
            )
        if self.eval_split == self.train_split:
            faults.append(
                f"eval_split must differ from train_split, got {self.eval_split!r} for both; "
                "leave eval_split out to hold out rows from train"
            )
        if self.unlabeled_rows is not None and self.unlabeled is None:
            faults.append(
                f"unlabeled_rows is {self.unlabeled_rows}, but there is no unlabeled text to "
                "draw from; pass unlabeled too, or leave unlabeled_rows out"
            )
        if self.stride is not None and self.stride >= self.max_length:
            faults.append(
                f"stride must be below max_length, got {self.stride} and {self.max_length}; use a "
                f"quarter of it ({self.max_length // 4})"
            )
        given = (self.pool, self.max_windows) != ("mean", 8)
        if self.stride is None and given:
            faults.append(
                "pool and max_windows apply to texts in windows, and there is no stride; pass "
                f"stride too ({self.max_length // 4}), or leave them out"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self

    def augmentation(self) -> dict[str, Any]:
        """Return the augmentation settings for a run's fingerprint; empty without augmentation."""
        # The order matters: a draw selects by index.
        return {"augment": [list(self.augment), self.augment_fraction]} if self.augment else {}

    @property
    def windows(self) -> Windows | None:
        """How long texts are split into windows; None if they are cut."""
        if self.stride is None:
            return None
        return Windows(self.stride, self.pool, self.max_windows)

    @property
    def columns(self) -> Columns:
        # Imported late: reading tables needs numpy, which the command-line options do not.
        from temper.data.columns import Columns

        return Columns(
            self.text_column, self.text_pair_column, self.label_column, self.group_column
        )

    @property
    def reading(self) -> TableOptions:
        from temper.data.table import TableOptions

        named = frozenset(filter(None, astuple(self.columns)))
        return TableOptions(self.encoding, self.skip_bad_rows, named=named)
