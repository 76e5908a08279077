"""A study's folder: its plan in ``study.json``, and where each run and its evaluation lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper.data.suites.suite import KINDS
from temper.errors import CheckpointError
from temper.study.plan import StudyConfig
from temper.training.checkpoint_folder import (
    RunFolder,
    check_study_room,
    differences,
    read_json,
    write_json,
)

SCHEMA = 1


@dataclass(frozen=True)
class StudyFolder:
    """The folder of one study.

    Args:
        path: Where it lies, or shall lie.
    """

    path: Path

    def run(self, column: str, seed: int, key: str) -> RunFolder:
        """Return the folder of a run; its key is part of the name: other settings lie elsewhere."""
        return RunFolder(self.path / "runs" / f"{column}-s{seed}-{key}")

    def check(self, config: StudyConfig, keys: Mapping[tuple[str, int], str]) -> None:
        """Refuse a folder that holds something else than this study.

        Columns and seeds may be added to a study, or left out. A column that is in both must be the
        same, or one name would stand for two things in one folder.

        Args:
            config: The plan.
            keys: Key of every run, by column name and seed.

        Raises:
            CheckpointError: Where the folder is no study or has other settings; it names them.
        """
        file = self.path / "study.json"
        check_study_room(self.path)
        if not file.exists():
            return
        planned = read_json(file).get("runs", {})
        for (column, seed), key in keys.items():
            before = planned.get(column, {}).get(str(seed))
            if before is None or before == self._relative(column, seed, key):
                continue
            record = RunFolder(self.path / before).record()
            if record is None:
                # It was planned and never begun, so that its name stands for nothing yet.
                continue
            run = config.runs[column, seed]
            changed = differences(
                {"model": record.get("model"), **record.get("settings", {})},
                {"model": run.model, **run.settings()},
            )
            what = (
                "; ".join(changed)
                if changed
                else "the rows of the data or the model's weights changed"
            )
            raise CheckpointError(
                f"{self.path} holds a study in which column {column!r} had other settings: {what}. "
                "Give another --out, or give the changed column a name of its own with --variant."
            )

    def write(
        self,
        config: StudyConfig,
        keys: Mapping[tuple[str, int], str],
        *,
        cost: Mapping[str, Mapping[str, float]],
    ) -> None:
        """Write ``study.json`` in one go.

        Args:
            config: The plan.
            keys: Key of every run, by column name and seed.
            cost: What a step of each column costs, as far as it is known.
        """
        any_run, suite = next(iter(config.runs.values())), config.sets.found_suite
        runs: dict[str, dict[str, str]] = {}
        for (column, seed), key in keys.items():
            runs.setdefault(column, {})[str(seed)] = self._relative(column, seed, key)
        content: dict[str, Any] = {
            "schema": SCHEMA,
            "model": any_run.model,
            "data": config.data.model_dump(mode="json"),
            "train": config.base.get("train", {}),
            **{name: config.base[name] for name in ("architecture",) if name in config.base},
            "evaluate": config.evaluate.model_dump(mode="json"),
            **{kind: config.sets.named(kind) for kind in KINDS},
            "suite": None if suite is None else suite.suite.name,
            "missing": config.sets.missing,
            "held_out": config.sets.held_out,
            "seeds": list(config.seeds),
            "reference": config.reference,
            "columns": [
                {"name": column.name, "method": column.method, "settings": column.settings}
                for column in config.columns
            ],
            "runs": runs,
            "cost": {name: dict(values) for name, values in cost.items()},
        }
        write_json(self.path / "study.json", content)

    def _relative(self, column: str, seed: int, key: str) -> str:
        return self.run(column, seed, key).path.relative_to(self.path).as_posix()
