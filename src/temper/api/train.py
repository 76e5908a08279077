"""Fine-tune one model: what `temper.train` and ``temper train`` do.

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from temper.api.keywords import TRAIN, Source, TrainKeywords
from temper.api.nested import default_folder, nested, of_paths, of_tables, refuse
from temper.data.reading import splits_read_as
from temper.data.sources import load_splits
from temper.display.bars import Bars
from temper.errors import SettingError
from temper.methods.recipes import default_recipe, with_recipe
from temper.progress import Progress
from temper.results import TrainingResult
from temper.training.processes import check_run, joined

if TYPE_CHECKING:
    from temper.methods import Method


def train(
    data: Source | None = None,
    *,
    model: str | None = None,
    method: str | Method | Mapping[str, Any] | None = None,
    recipe: str | None = None,
    out: str | Path | None = None,
    config: Any = None,
    resume: bool = True,
    progress: Progress | None = None,
    **settings: Unpack[TrainKeywords],
) -> TrainingResult:
    """Fine-tune one model and write a Transformers checkpoint with ``run.json``, its record.

    A finished run with the same settings is reused, and a stopped one is resumed.

    Args:
        data: Data to train on: a path, a Hub id, ``demo``, a DataFrame, a Dataset or a dict of
            columns. None uses the data of ``task``, ``tasks`` or ``config``.
        model: Hub id, folder, or short name of ``temper list models``.
        method: A method of ``temper list methods``, a composition such as ``"r_drop + at"``, or the
            method's own settings, ``UEGR(epsilon=0.1)``.
        recipe: A recipe of ``temper list recipes``: a method with matching settings.
        out: Output folder. Default: ``runs/DATA-METHOD-HASH``, the same for the same settings.
        config: TOML file, nested settings or a checked `RunConfig`, which the keywords override.
        resume: Whether a stopped run is resumed; otherwise it starts again.
        progress: Receives steps and notices; None shows bars.
        settings: Any setting of ``data`` and ``train`` by its name (``epochs``, ``rows`` ...; see
            ``temper list settings``), ``task``, ``tasks``, ``seed``, ``lora``, ``peft``, and the
            tables ``train`` and ``architecture``.

    Returns:
        The run.

    Raises:
        TemperError: If settings, data, labels, model or method do not fit, the folder has another
            run, or a loss is not finite.
    """
    from temper.training.config import RunConfig

    processes = joined()
    progress = (progress or Bars()) if processes.is_first else Progress()
    given = {"data": data, "model": model, "method": method, "recipe": recipe, **settings}
    with processes.together():
        chosen = nested(TRAIN, config, given)
        tree = with_recipe(chosen)
        method = chosen.get("method")
        named = method.get("name") if isinstance(method, Mapping) else None
        named = chosen.get("recipe") or named or default_recipe().name
        target = default_folder(tree, named) if out is None else out
    folder = processes.folder(Path(target))
    with processes.together():
        of_run = of_tables(tree) if "tasks" in tree else [partial(RunConfig.of, tree)]
        run, *_ = refuse(*of_run, *of_paths(tree), folder.record)
        if "tasks" in tree and processes.count > 1:
            raise SettingError(
                f"A run on several tasks trains in one process, and there are {processes.count}. "
                "Start the command without torchrun."
            )
    if out is None:
        progress.info(f"No --out: the run is written to {target}.")
    # Before torch is imported, which takes seconds.
    progress.info(f"Loading {tree.get('model', 'models')} ...")
    if "tasks" in tree:
        from temper.training.multi_task import MultiTaskConfig, train_tasks

        tasks = MultiTaskConfig.of(tree)
        _tell_default(chosen, progress)
        train_tasks(tasks, folder.path, resume=resume, progress=progress)
    else:
        with processes.together():
            check_run(run, processes)
            _tell_default(chosen, progress)
            splits = load_splits(run.data)
            progress.info_all(splits_read_as(splits))
            progress.notice_all(splits.notices)
        # After the data, so that an error in a file is reported before torch is imported.
        from temper.training.run import train as train_run

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
        progress.info(f"Recipe {name} (the default). Choose another with --recipe or --method.")
