"""Folders in the layout of the Hub: splits in shards, configurations, a README that names both.

Files are found by their names and by the metadata of README.md. No code in such a folder is run.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path
from typing import Any

from temper.data.formats import format_of, read_table, stem_of
from temper.data.table import Table, TableOptions
from temper.errors import DataError, brief, one_line, unknown

SHARD = re.compile(r"(?P<split>.+?)-\d{5}-of-\d{5}(-[0-9a-f]+)?")
DEFAULT = "default"
"""The configuration of files that are not in a folder of a configuration."""
_DEEPEST = 3
_MOST = 10_000
"""Data files of a folder, at most: one with more is hardly a dataset."""

Files = dict[str, dict[str, list[Path]]]


def read_tables(files: Sequence[Path], options: TableOptions, title: str) -> Table:
    """Read files and concatenate them to one table.

    Args:
        files: The files, at least one, in their order.
        options: How they are read.
        title: What messages call the table.

    Raises:
        DataError: A file cannot be read, or has other columns than the first.
    """
    tables = [read_table(file, options) for file in files]
    return tables[0] if len(tables) == 1 else Shards.of(tables, title)


@dataclass(frozen=True)
class Shards(Table):
    """Concatenated tables. Messages name the file of a row.

    Args:
        parts: The tables.
    """

    parts: tuple[Table, ...] = ()

    @classmethod
    def of(cls, tables: Sequence[Table], title: str) -> Shards:
        """Concatenate tables with the same columns.

        Args:
            tables: At least one.
            title: What messages call the whole.

        Raises:
            DataError: Columns or label names differ.
        """
        first = tables[0]
        for table in tables[1:]:
            if set(table.names) != set(first.names):
                raise DataError(
                    f"{table.title} has the columns {', '.join(table.names)}, and {first.title} of "
                    f"the same split has {', '.join(first.names)}. Make them agree."
                )
            if table.label_names != first.label_names:
                raise DataError(
                    f"{table.title} and {first.title} of the same split name their labels "
                    "differently. Make them agree."
                )
        numbers: list[int] = []
        for table in tables:
            before = numbers[-1] if numbers else 0
            numbers += [before + number for number in table.numbers or range(1, table.size + 1)]
        return cls(
            title,
            first.names,
            lambda name: chain.from_iterable(table.column(name) for table in tables),
            sum(table.size for table in tables),
            numbers=None if all(table.numbers is None for table in tables) else numbers,
            decimal_comma=first.decimal_comma,
            label_names=first.label_names,
            source={"path": title, "files": [dict(table.source) for table in tables]},
            notices=tuple(notice for table in tables for notice in table.notices),
            parts=tuple(tables),
        )

    def where(self, index: int) -> str:
        """Name a row by its file and its number there."""
        # If rows were left out, `lines` holds the numbers of the remaining ones.
        row = index if self.lines is None else self.lines[index] - 1
        for part in self.parts:
            if row < part.size:
                return part.where(row)
            row -= part.size
        return f"{self.title}, row {index + 1}"


def clone_files(folder: Path, config: str | None) -> dict[str, list[Path]] | None:
    """Find the files of each split of a folder that is laid out as on the Hub.

    Args:
        folder: The folder.
        config: Name of a configuration; None takes the only one, or the default.

    Returns:
        The files by split; None for a folder with one file a split and nothing else.

    Raises:
        DataError: There is no such configuration, or several and no default.
    """
    configs = _of_readme(folder) or _of_names(folder)
    if not configs:
        if config is not None:
            raise DataError(f"{folder} has no configurations; drop {config!r}.")
        return None
    if config is not None:
        if config not in configs:
            raise DataError(f"{folder}: {unknown('configuration', config, configs)}")
        return configs[config]
    if len(configs) > 1 and DEFAULT not in configs:
        raise DataError(
            f"{folder} holds the configurations {', '.join(sorted(configs))}. Name one: "
            f"{folder}:{sorted(configs)[0]}."
        )
    return configs.get(DEFAULT) or next(iter(configs.values()))


def _of_names(folder: Path) -> Files:
    """Find files by the names of their splits: in shards, in ``data/``, or in folders of them."""
    top = [path for path in sorted(folder.iterdir()) if _is_data(path)]
    if top and not any(SHARD.fullmatch(stem_of(path)) for path in top):
        return {}
    paths = top or list(islice(_below(folder, _DEEPEST), _MOST + 1))
    if len(paths) > _MOST:
        raise DataError(
            f"{folder} holds more than {_MOST:,} data files. Give the folder of one dataset, or of "
            "one of its configurations."
        )
    found: Files = {}
    for path in paths:
        parts = [part for part in path.relative_to(folder).parts[:-1] if part != "data"]
        stem = stem_of(path)
        shard = SHARD.fullmatch(stem)
        if shard is not None:
            stem = shard["split"]
        elif stem.isdigit() and parts:
            # As the Hub converts data sets: CONFIG/SPLIT/0000.parquet.
            stem = parts.pop()
        files = found.setdefault("/".join(parts) or DEFAULT, {}).setdefault(stem, [])
        if files and shard is None and not stem_of(path).isdigit():
            raise DataError(
                f"{folder} holds split {stem!r} twice: {files[0].name} and {path.name}. Remove one."
            )
        files.append(path)
    return found


def _below(folder: Path, depth: int) -> Iterator[Path]:
    """Yield the data files in the subfolders of a folder, but not its own."""
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith("."):
            continue
        if entry.is_dir() and depth:
            yield from _below(entry, depth - 1)
        elif _is_data(entry) and depth < _DEEPEST:
            yield entry


def _is_data(path: Path) -> bool:
    hidden = path.name.startswith(".") or path.name in DESCRIPTIONS
    return not hidden and format_of(path) is not None and path.is_file()


# Files that describe a folder and contain no rows.
DESCRIPTIONS = {"dataset.json", "dataset_info.json", "dataset_infos.json", "dataset_dict.json"}


def _of_readme(folder: Path) -> Files:
    """Find the files that the metadata of a README names."""
    readme = folder / "README.md"
    if not readme.is_file() or not readme.read_bytes().startswith(b"---"):
        return {}
    import yaml
    from huggingface_hub import metadata_load

    try:
        metadata = metadata_load(readme)
    except (yaml.YAMLError, ValueError) as error:
        raise DataError(
            f"{readme}: the metadata at the top cannot be read ({one_line(str(error))}). Fix or "
            "remove it."
        ) from error
    given = metadata.get("configs") if isinstance(metadata, dict) else None
    configs = given if isinstance(given, list) else []
    found: Files = {}
    for config in configs:
        if isinstance(config, dict) and "data_files" in config:
            name = str(config.get("config_name", DEFAULT))
            found[name] = {
                split: _matching(folder, patterns, readme)
                for split, patterns in _patterns(config["data_files"], readme)
            }
    return found


def _patterns(data_files: Any, readme: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield each split of ``data_files`` and its patterns."""
    entries = data_files if isinstance(data_files, list) else [data_files]
    if all(isinstance(entry, str) for entry in entries):
        yield "train", entries
        return
    for entry in entries:
        if not isinstance(entry, Mapping) or "path" not in entry:
            raise DataError(
                f"{readme}: each entry of data_files must have a `split` and a `path`, got "
                f"{brief(entry)}."
            )
        paths = entry["path"]
        yield (
            str(entry.get("split", "train")),
            [str(path) for path in (paths if isinstance(paths, list) else [paths])],
        )


def _matching(folder: Path, patterns: Iterable[str], readme: Path) -> list[Path]:
    found: list[Path] = []
    for pattern in patterns:
        # A README must not refer to files outside its folder.
        if Path(pattern).is_absolute() or ".." in Path(pattern).parts:
            raise DataError(f"{readme}: {pattern!r} is not a path inside the folder.")
        files = [path for path in sorted(folder.glob(pattern)) if _is_data(path)]
        if not files:
            raise DataError(
                f"{readme} names the data files {pattern!r}, but no readable file matches. "
                "Download the whole dataset."
            )
        found += [path for path in files if path not in found]
    return found
