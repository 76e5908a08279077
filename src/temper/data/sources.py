"""Load sets from a file, a folder, the Hugging Face Hub or the demo corpus."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.data.columns import LABEL_NAMES, Columns
from temper.data.corpus import anomaly_examples, review_corpus, shift_examples
from temper.data.examples import Examples, Splits
from temper.data.formats import format_of, read_table, stem_of
from temper.data.in_memory import dataset_table, names_memory, splits_of
from temper.data.labels import LabelKind
from temper.data.reading import (
    Opened,
    check_texts,
    choose_split,
    named_labels,
    read_set,
    read_splits,
    split_files,
)
from temper.data.settings import DataSettings
from temper.data.splitting import finish_splits
from temper.data.table import Table, TableOptions
from temper.data.tasks.registry import TASKS
from temper.data.tasks.splits import TaskCopy
from temper.errors import DataError, UnlabeledError, unknown

_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?")
_DEMO_SETS = ("shift", "anomaly")


def load_splits(settings: DataSettings, *, known: Sequence[Columns] = ()) -> Splits:
    """Load the sets of a training run.

    Without an evaluation split, validation rows are held out from train. Rows to train on that are
    also evaluation rows are counted, and dropped if ``drop_overlap``. Then ``rows`` of them are
    drawn.
    Notices report all of this. ``known`` are the columns of the task's other tables, used if the
    settings name none.

    Example:
        >>> splits = load_splits(DataSettings(source="demo", rows=100, eval_rows=50))
        >>> len(splits.train), len(splits.dev), splits.train.label_names
        (100, 50, ('negative', 'positive'))
    """
    base, config, split = _parse(settings.source, settings.config)
    if split is not None:
        raise DataError(
            f"The source of a training must not name a split, got {settings.source!r}. "
            f"Use {base!r} with train_split={split!r}."
        )
    if base == "demo":
        sets: Splits | Examples = _demo_splits(settings, config)
    else:
        opened = _open(base, config, settings.reading, known)
        if settings.task is None:
            sets = read_splits(settings, opened)
        else:
            sets = TaskCopy(TASKS[settings.task], opened, settings).splits()
    unlabeled = None
    if settings.unlabeled is not None:
        train = sets.train if isinstance(sets, Splits) else sets
        unlabeled = _read_unlabeled(settings, settings.unlabeled, train=train)
    return finish_splits(sets, settings, unlabeled=unlabeled)


def load_task_dev(settings: DataSettings, *, known: Sequence[Columns] = ()) -> Examples:
    """Load the whole evaluation set of a named task; the data needs no training rows."""
    assert settings.task is not None
    task = TASKS[settings.task]
    base, config, split = _parse(settings.source, settings.config)
    if split is not None:
        settings = settings.model_copy(update={"eval_split": split})
    opened = _open(base, config, settings.reading, known)
    return TaskCopy(task, opened, settings).dev()


def load_examples(
    source: str,
    *,
    split: str | None = None,
    columns: Columns | None = None,
    kind: LabelKind | None = None,
    labeled: bool | None = True,
    reading: TableOptions | None = None,
    known: Sequence[Columns] = (),
) -> Examples:
    """Load one set: a shift set, an OOD set, or rows to predict.

    Args:
        source: A file; a folder or Hub id, with ``@split`` if needed (by default the first of test,
            dev and train); a Hub id with ``:config``; the name of data in memory
            (`temper.data.in_memory.hold`); ``demo``, ``demo:shift`` or ``demo:anomaly``.
        split: The split, instead of ``@split``.
        columns: Names of the columns; None looks for the usual names.
        kind: Kind of the labels; None recognizes it by the values.
        labeled: Whether labels are required. None reads them if there are any; False never.
        reading: Options for reading its tables.
        known: Columns of the task's other tables, used if ``columns`` names none.

    Raises:
        UnlabeledError: Labels are required and there are none.
        DataError: Any other problem with the data.

    Example:
        >>> anomalies = load_examples("demo:anomaly", labeled=False)
        >>> anomalies.kind, anomalies.labels is None
        ('unlabeled', True)
    """
    columns = columns or Columns()
    if labeled is False and (columns.label, kind) != (None, None):
        raise DataError(
            f"The labels of {source!r} are not read. Leave `label_column` and `kind` out."
        )
    base, config, own_split = _parse(source, None)
    if split is not None and own_split is not None and split != own_split:
        raise DataError(
            f"{source!r} names split {own_split!r}, but split {split!r} was given too. Pass one."
        )
    split = split or own_split
    if base == "demo":
        if kind == "regression":
            raise DataError(
                f"The labels of {source!r} are classes, but `kind` is 'regression'. Leave `kind` "
                "out."
            )
        examples = _demo_set(config, split=split, columns=columns)
        if labeled is False:
            examples = replace(examples, labels=None, label_names=None, kind="unlabeled")
    else:
        named = frozenset(filter(None, astuple(columns)))
        reading = replace(reading or TableOptions(), named=named)
        if labeled is False:
            reading = _without_labels(reading, columns, *known)
        examples = read_set(
            _open(base, config, reading, known),
            split=split,
            columns=columns,
            kind=kind,
            labeled=labeled is not False,
        )
    if labeled and examples.labels is None:
        raise UnlabeledError(
            f"{source!r} has no labels. Use another split or a set with labels, or name the column "
            "of the labels (--label-column)."
        )
    return examples


def _without_labels(reading: TableOptions, *named: Columns) -> TableOptions:
    """Return options that allow rows to end before the label columns."""
    labels = {columns.label for columns in named if columns.label is not None}
    texts = {text for columns in named for text in (columns.text, columns.text_pair)}
    return replace(reading, unread=frozenset({*LABEL_NAMES, *labels} - texts))


def check_source(source: str) -> None:
    """Raise a `DataError` if a source is clearly a path and does not exist; it is not opened."""
    base, _, _ = _parse(source, None)
    if names_memory(base):
        splits_of(base)
    elif base != "demo" and not _exists(base):
        _check_hub_id(base)


def with_configuration(settings: DataSettings) -> str:
    """Return a source with its configuration as one string, for `load_examples`.

    Example:
        >>> with_configuration(DataSettings(source="nyu-mll/glue@validation", config="sst2"))
        'nyu-mll/glue:sst2@validation'
    """
    base, config, split = _parse(settings.source, settings.config)
    return f"{base}{f':{config}' if config else ''}{f'@{split}' if split else ''}"


def _parse(source: str, config: str | None) -> tuple[str, str | None, str | None]:
    base, own_config, split = source, None, None
    path = os.path.expanduser(source)
    if _exists(source) and not (os.path.isfile(path) or os.path.isdir(path)):
        raise DataError(
            f"{source} is neither a file nor a folder (pipes and devices are not supported). Write "
            "the rows to a file first."
        )
    if not _exists(source):
        base, _, after = source.partition("@")
        split = after or None
        if not _exists(base):
            base, _, after = base.partition(":")
            own_config = after or None
    if config is not None and own_config is not None and config != own_config:
        raise DataError(
            f"{source!r} names configuration {own_config!r}, but config={config!r} was given too."
        )
    return base, own_config or config, split


def _exists(source: str) -> bool:
    # "demo" is always the corpus, even if there is such a folder; "./demo" is the folder.
    return source != "demo" and os.path.exists(os.path.expanduser(source))


def _open(
    base: str, config: str | None, options: TableOptions, known: Sequence[Columns] = ()
) -> Opened:
    return replace(_found(base, config, options), options=options, known=tuple(known))


def _found(base: str, config: str | None, options: TableOptions) -> Opened:
    if names_memory(base):
        readers, single = splits_of(base)
        return Opened(base, base, readers, single=single)
    # os.path returns False if pathlib raises: an unknown home, a name too long, a NUL.
    path = Path(os.path.expanduser(base))
    if _exists(base):
        if config is not None:
            raise DataError(
                f"Only Hub datasets have configurations, and {base} is a path. Leave {config!r} "
                "out."
            )
        if path.is_dir():
            if any((path / name).is_file() for name in ("state.json", "dataset_dict.json")):
                return _open_saved(path)
            if (path / "tokenizer_config.json").is_file():
                raise DataError(
                    f"{base} is the folder of a model. Name a file or folder of rows; a model to "
                    "start from is given with --model."
                )
            files = split_files(path)
            splits = {split: partial(read_table, file, options) for split, file in files.items()}
            return Opened(str(path), path.resolve().name, splits, named_labels(path))
        splits = {"train": partial(read_table, path, options)}
        return Opened(base, stem_of(path), splits, named_labels(path.parent), single=True)
    _check_hub_id(base)
    return _open_hub(base, config)


def _check_hub_id(base: str) -> None:
    looks_like_path = base.startswith((".", "/", "~")) or format_of(Path(base)) is not None
    if looks_like_path or not _HUB_ID.fullmatch(base):
        raise DataError(
            f"No such file or folder: {base}. Check the path, or use a Hub id such as "
            "stanfordnlp/imdb, or demo."
        )


@contextmanager
def _datasets(fault: str, *, remedy: str) -> Iterator[Any]:
    """Import the library `datasets`; turn its errors into a `DataError` with a remedy."""
    # Imported late: both take seconds to import, and files need neither.
    import datasets
    import pyarrow

    try:
        yield datasets
    except (
        datasets.exceptions.DatasetsError,
        OSError,
        ValueError,
        KeyError,
        TypeError,
        RuntimeError,
        pyarrow.ArrowException,
    ) as error:
        reason = str(error).strip().splitlines() or [type(error).__name__]
        raise DataError(f"{fault}: {reason[0].rstrip('.')}. {remedy}") from error


def _open_hub(identifier: str, config: str | None) -> Opened:
    named = identifier if config is None else f"{identifier} (configuration {config})"
    with _datasets(
        f"{named} is not a file or folder here and could not be loaded from the Hub or its local "
        "cache",
        remedy="Check the name, the configuration (ID:CONFIG) and the network.",
    ) as datasets:
        loaded = datasets.load_dataset(identifier, config)
    title = identifier if config is None else f"{identifier}:{config}"
    splits = {
        str(split): partial(_hub_table, rows, f"{title}@{split}", identifier, config)
        for split, rows in loaded.items()
    }
    return Opened(title, config or identifier.split("/")[-1], splits)


def _hub_table(rows: Any, title: str, identifier: str, config: str | None) -> Table:
    # The cache is in .../CONFIG/VERSION/REVISION/; the revision identifies the content.
    files = [Path(entry["filename"]) for entry in rows.cache_files]
    source = {
        "id": identifier,
        "config": config or rows.config_name,
        "revision": files[0].parent.name if files else None,
    }
    return dataset_table(rows, title, source)


def _open_saved(folder: Path) -> Opened:
    """Open a folder that ``save_to_disk`` of `datasets` wrote; none of its code is run."""
    with _datasets(
        f"{folder} looks like a folder of save_to_disk but cannot be read",
        remedy="Save the data again.",
    ) as datasets:
        loaded = datasets.load_from_disk(str(folder))
    single = not isinstance(loaded, dict)
    splits: dict[str, Callable[[], Table]] = {}
    for split, rows in ({"train": loaded} if single else loaded).items():
        title = str(folder) if single else f"{folder}@{split}"
        source = {"path": str(folder), "fingerprint": rows._fingerprint}
        splits[str(split)] = partial(dataset_table, rows, title, source)
    return Opened(str(folder), folder.resolve().name, splits, single=single)


def is_taken_whole(settings: DataSettings) -> bool:
    """Return whether an evaluation uses all rows of a source instead of its dev split.

    This holds for a single table, a named split, and a source without a training split.
    """
    if settings.eval_split is not None or "@" in settings.source:
        return True
    base, config, _ = _parse(settings.source, settings.config)
    if not (_exists(base) or names_memory(base)):
        return False
    opened = _open(base, config, settings.reading)
    return opened.single or settings.train_split not in opened.splits


def _read_unlabeled(settings: DataSettings, source: str, *, train: Examples) -> Examples:
    """Read unlabeled text to train on; it must have single texts or pairs, as ``train`` has."""
    base, config, split = _parse(source, None)
    columns = Columns(settings.text_column, settings.text_pair_column)
    if base == "demo":
        examples = _demo_set(config, split=split if config else split or "train", columns=columns)
    else:
        reading = _without_labels(settings.reading, settings.columns)
        examples = read_set(
            _open(base, config, reading),
            split=split,
            columns=columns,
            kind=None,
            labeled=False,
            # Evaluation splits are not trained on unless they were named.
            order=("train",),
        )
    check_texts(
        examples,
        pair=train.text_pair is not None,
        rows=f"{source}: unlabeled rows",
        like=settings.source,
    )
    return replace(examples, name="unlabeled", labels=None, label_names=None, kind="unlabeled")


def _demo_splits(settings: DataSettings, config: str | None) -> Splits:
    if config is not None:
        raise DataError(
            f"demo:{config} is for evaluation only; train on demo, or use it as a shift or "
            "anomaly set."
        )
    given = (settings.columns, settings.train_split, settings.eval_split in (None, "dev"))
    if given != (Columns(), "train", True) or settings.kind == "regression":
        raise DataError(
            "The demo corpus has fixed columns, labels and splits (train, dev): text_column, "
            "text_pair_column, label_column, group_column, kind, train_split and eval_split "
            "cannot be changed. Leave them out."
        )
    return review_corpus()


def _demo_set(config: str | None, *, split: str | None, columns: Columns) -> Examples:
    if columns != Columns():
        raise DataError("The demo corpus has fixed columns. Leave the column options out.")
    if config is None:
        splits = review_corpus()
        sets = {"train": splits.train, "dev": splits.dev}
        return sets[choose_split(sets, split or "dev", title="demo")]
    if config not in _DEMO_SETS:
        raise DataError(unknown("demo set", config, _DEMO_SETS))
    if split is not None:
        raise DataError(f"demo:{config} has no splits. Leave split {split!r} out.")
    return shift_examples() if config == "shift" else anomaly_examples()
