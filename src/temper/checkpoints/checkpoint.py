"""Find out what a model's name refers to, and read the records in its folder."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, Self

from temper.checkpoints.folder import RUN, read_json
from temper.checkpoints.identity import CALIBRATION, model_identity
from temper.data.columns import Columns
from temper.data.examples import Examples, Splits
from temper.data.settings import UNLABELED, DataSettings
from temper.data.sources import load_splits
from temper.errors import CheckpointError, DataError, ModelError, SettingError
from temper.importing import import_named

EXPORT = "export.json"
_PICKLES = (".pkl", ".pickle", ".joblib", ".dill", ".cloudpickle")

Kind = Literal["object", "skops", "code", "weights"]


@dataclass(frozen=True)
class Checkpoint:
    """A model by its name or as an object, with what is known about its training.

    Each file is read once, when a property first needs it.

    Args:
        name: The name that the user gave: the folder of a run or of another checkpoint, a Hub id, a
            short name, a ``.skops`` file or a folder with one, ``file.py:NAME`` or ``module:NAME``.
            An object in memory gets a name for messages.
        in_memory: A function, an estimator, a pipeline or a predictor; None if the model is named.
    """

    name: str
    in_memory: object = None

    @classmethod
    def of(cls, model: object) -> Self:
        """Wrap a name, a path or an object in memory; return a `Checkpoint` as it is."""
        if isinstance(model, cls):
            return model
        if isinstance(model, str | Path):
            return cls(str(model))
        # The parentheses mark an object in memory: files have no such names.
        return cls(f"{getattr(model, '__name__', type(model).__name__).strip('<>')}()", model)

    def __str__(self) -> str:
        return self.name

    @property
    def folder(self) -> Path:
        """The name as a path, which need not exist."""
        return Path(self.name).expanduser()

    @cached_property
    def skops(self) -> Path | None:
        """The skops file that is named, or the only one in a folder without weights; else None."""
        path = self.folder
        if path.is_dir():
            files = sorted(path.glob("*.skops"))
            configs = ("config.json", "adapter_config.json")
            if not files or any((path / name).exists() for name in configs):
                return None
            if len(files) > 1:
                names = ", ".join(file.name for file in files)
                raise ModelError(f"{self} has several skops files: {names}. Pass one.")
            return files[0]
        if path.suffix in _PICKLES:
            raise ModelError(
                f"{self} is a pickle. Temper loads none, because that runs any code in the file. "
                "If you trust it, load it in Python and save it with "
                f"skops.io.dump(pipeline, {path.with_suffix('.skops').name!r}), or name a function "
                "that loads it: file.py:function."
            )
        return path if path.suffix == ".skops" else None

    @cached_property
    def kind(self) -> Kind:
        """How to load the model; ``weights`` is everything that Transformers loads."""
        if self.in_memory is not None:
            return "object"
        if self.skops is not None:
            return "skops"
        if self.name.endswith(".py"):
            raise SettingError(
                f"{self} is a Python file. Name the function in it that predicts: {self}:FUNCTION."
            )
        return "code" if ":" in self.name and not self.folder.exists() else "weights"

    @cached_property
    def code(self) -> tuple[str, str]:
        """Split ``file.py:NAME`` or ``module:NAME`` into file or module, and name."""
        source, _, name = self.name.rpartition(":")
        if not source or not name:
            raise SettingError(
                f"A model in Python code must be given as file.py:NAME or module:NAME, "
                f"got {self.name!r}."
            )
        return str(Path(source).expanduser()) if source.endswith(".py") else source, name

    @cached_property
    def run(self) -> Mapping[str, Any] | None:
        """The content of ``run.json`` if Temper trained the model; else None."""
        file = self.folder / RUN
        return read_json(file) if self.in_memory is None and file.is_file() else None

    @cached_property
    def settings(self) -> Mapping[str, Any]:
        """The settings of the run or the export; empty for other models."""
        record = self.run
        if record is None and self.in_memory is None and (self.folder / EXPORT).is_file():
            record = read_json(self.folder / EXPORT)
        return dict((record or {}).get("settings", {}))

    @property
    def data(self) -> Mapping[str, Any]:
        return dict(self.settings.get("data", {}))

    @property
    def _trained(self) -> Mapping[str, Any]:
        return dict((self.run or {}).get("data", {}).get("train", {}))

    @property
    def key(self) -> str | None:
        return (self.run or {}).get("key")

    @property
    def paired(self) -> bool | None:
        """Whether the training rows were pairs of texts; None if unknown."""
        return self._trained.get("text_pair")

    @property
    def encoding(self) -> str | None:
        """The encoding that the user gave for the training files; the default for further files."""
        return self.data.get("encoding")

    @property
    def columns(self) -> tuple[Columns, ...]:
        """The text and label columns of the training data; empty if unknown.

        Names in the settings take precedence over detected ones.
        """
        # Without the group column, which further sources often lack.
        named = Columns(
            *(self.data.get(f"{role}_column") for role in ("text", "text_pair", "label"))
        )
        read = Columns.of(self._trained.get("source", {}))
        if named.text is None and named.text_pair is None:
            named = replace(named, text=read.text, text_pair=read.text_pair)
        columns = replace(named, label=named.label or read.label)
        return () if columns == Columns() else (columns,)

    @cached_property
    def pretrained(self) -> str | None:
        """The model that this one was fine-tuned from, by its record or config; None if unknown."""
        folder = self.folder
        if self.run is not None:
            return _text(self.run.get("model"))
        if (folder / "adapter_config.json").is_file():
            return _text(read_json(folder / "adapter_config.json").get("base_model_name_or_path"))
        if not (folder / "config.json").is_file():
            return None
        named = _text(read_json(folder / "config.json").get("_name_or_path"))
        # A config often names the very folder that it was loaded from, or one on another machine.
        if named is None or not Path(named).is_dir() or Path(named).resolve() == folder.resolve():
            return None
        return named

    @property
    def runs(self) -> list[Checkpoint]:
        """This run, the run whose model it was fine-tuned from, and so on."""
        runs: list[Checkpoint] = []
        model: Checkpoint | None = self
        while model is not None and model.run is not None and model not in runs:
            runs.append(model)
            model = None if model.pretrained is None else Checkpoint(model.pretrained)
        return runs

    @cached_property
    def _splits(self) -> tuple[Splits | None, str]:
        """The data of the run, read again; or None and the reason why it cannot be read."""
        data = {**self.data, **dict.fromkeys(UNLABELED)}
        try:
            return load_splits(DataSettings.model_validate(data)), ""
        except (DataError, ValueError) as error:
            return None, str(error).splitlines()[0]

    def hashes(self, split: str, rows: Examples | None = None) -> Sequence[str] | None:
        """Return the row hashes of the run's ``train`` or ``dev`` split; None if gone or changed.

        ``rows`` may be that split, in case the data cannot be read again.
        """
        recorded = (self.run or {}).get("data", {}).get(split, {}).get("hash")
        splits, _ = self._splits
        candidates: list[Examples | None] = [getattr(splits, split, None), rows]
        for candidate in candidates:
            if candidate is not None and candidate.hash == recorded:
                return candidate.rows
        return None

    def training_rows(self) -> Examples:
        """Read the rows that the model was trained on.

        Raises:
            CheckpointError: Temper did not train the model, or its data is gone or has changed.
        """
        if self.run is None:
            raise CheckpointError(
                f"{self} has no {RUN}, so its training data is unknown. Pass the folder of a run."
            )
        splits, fault = self._splits
        if splits is None:
            raise CheckpointError(f"The rows that {self} was trained on cannot be read ({fault}).")
        if self.hashes("train") is None:
            raise CheckpointError(
                f"The data that {self} was trained on has changed since: {self.data['source']} "
                "has other rows. Restore the data, or train again."
            )
        return splits.train

    @property
    def is_calibrated(self) -> bool:
        return self.in_memory is None and (self.folder / CALIBRATION).is_file()

    def content_hash(self) -> str:
        """Hash the weights or the code, so that cached results are not used for a changed model.

        For code only the named file counts, not its imports or the files that it reads. For a model
        on the Hub and an object in memory the name is returned.
        """
        if self.kind == "object":
            return self.name
        if self.kind == "weights":
            return model_identity(self.name)
        file = self.skops
        if file is None:
            source, _ = self.code
            file = Path(import_named(source, purpose="predictors").__file__ or source)
        return hashlib.blake2b(file.read_bytes(), digest_size=16).hexdigest()


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
