"""Fine-tune one model: what `temper.train` and ``temper train`` do.

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

from temper.api.keywords import TRAIN
from temper.api.quick_checks import of_paths, of_tables, refuse
from temper.errors import SettingError
from temper.methods.recipes import default_recipe, with_recipe
from temper.progress import LoggedNotices, Progress
from temper.results import TrainingResult
from temper.training.processes import check_run, joined


def train(
    out: str | Path,
    *,
    config: Any = None,
    resume: bool = True,
    progress: Progress | None = None,
    **settings: Any,
) -> TrainingResult:
    """Fine-tune one model and write a plain Transformers checkpoint with its record.

    A finished run with the same settings is kept, and a stopped one goes on.

    Args:
        out: The run's folder.
        config: TOML file, nested settings or a checked `RunConfig`, which the others override.
        resume: Whether a stopped run goes on; where False it starts anew.
        progress: Hears of steps and notices; None logs the notices.
        settings: By the names of the options of ``temper train`` (``model``, ``data``, ``method``,
            ``recipe``, ``epochs``, ``learning_rate``, ``rows``, ``seed`` ...), or whole tables:
            ``data``, ``method``, ``train``, ``architecture``, ``tasks``, ``mixing``. ``method`` may
            be the method's own settings, ``UEGR(epsilon=0.1)``.

    Returns:
        The run.

    Raises:
        TemperError: Where settings, data, labels, model or method do not fit, the folder holds
            another run, or a loss is not finite.
    """
    from temper.training.config import RunConfig

    processes = joined()
    progress = (progress or LoggedNotices()) if processes.is_first else Progress()
    folder = processes.folder(Path(out))
    with processes.together():
        given = TRAIN.tree(config, settings)
        tree = with_recipe(given)
        of_run = of_tables(tree) if "tasks" in tree else [partial(RunConfig.of, tree)]
        run, *_ = refuse([*of_run, *of_paths(tree), folder.record])
        if "tasks" in tree and processes.count > 1:
            raise SettingError(
                f"A run on several tasks trains in one process, and there are {processes.count}. "
                "Start the command without torchrun."
            )
    if "tasks" in tree:
        from temper.training.multi_task import MultiTaskConfig, train_tasks

        tasks = MultiTaskConfig.of(tree)
        _tell_default(given, progress)
        train_tasks(tasks, folder.path, resume=resume, progress=progress)
    else:
        from temper.data.reading import splits_read_as
        from temper.data.sources import load_splits
        from temper.training.run import train as train_run

        with processes.together():
            check_run(run, processes)
            _tell_default(given, progress)
            splits = load_splits(run.data)
            progress.info_all(splits_read_as(splits))
            progress.notice_all(splits.notices)
        train_run(
            run,
            folder.path,
            resume=resume,
            splits=splits,
            progress=progress,
            processes=processes,
        )
    return TrainingResult(folder.path, folder.record() or {})


def _tell_default(tree: Mapping[str, Any], progress: Progress) -> None:
    if "recipe" not in tree and "name" not in tree.get("method", {}):
        name = default_recipe().name
        progress.notice(f"recipe: {name} (default; --recipe or --method changes it)")
