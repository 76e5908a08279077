"""`temper.tune` and ``temper tune``: find the best recipe and settings for a dataset.

The best recipe and settings are chosen on validation folds of the training rows
(`temper.study.search`). Then the winner and plain fine-tuning, each with its best settings, are
trained on all training rows and compared once on the evaluation rows (`temper.study.final`).
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Unpack

from temper.api.keywords import COMPARE, CompareKeywords, Many, Source
from temper.api.nested import (
    default_folder,
    nested,
    of_output_folder,
    of_paths,
    of_tables,
    refuse,
    split_list,
)
from temper.cluster.store import is_url
from temper.data.sources import load_splits
from temper.display.bars import Bars
from temper.errors import SettingError, install_command
from temper.evaluation.settings import SetSources
from temper.methods.recipes import PLAIN, Recipe, recipe_named
from temper.methods.recipes import recipes as known_recipes
from temper.progress import Progress
from temper.settings import section
from temper.study.goals import Budget, goal_weights

RECORD = "tune.json"
MODEL = "minilm"
BUDGET = "30m"


@dataclass(frozen=True)
class Tuned:
    """The result of a search: the out folder and the content of its ``tune.json``.

    For an object store the folder is a temporary copy without weights.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def summary(self) -> str:
        """The gain of the winner over plain fine-tuning and its cost, in a sentence."""
        return str(self.record["summary"])

    @property
    def page(self) -> Path:
        """The report of the final comparison."""
        return self.folder / "final" / "report.html"


def tune(
    data: Source | None = None,
    *,
    model: str | None = None,
    budget: str = BUDGET,
    goal: str = "balanced",
    recipes: Many = (),
    models: Many = (),
    seeds: Iterable[int] = (0, 1, 2),
    out: str | Path | None = None,
    cluster: str | Mapping[str, Any] | None = None,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Unpack[CompareKeywords],
) -> Tuned:
    """Find the best recipe and settings for a dataset, then compare them with plain fine-tuning.

    Args:
        data: The data to train and evaluate on, as in `temper.train`.
        model: Hub id, folder, or short name of ``temper list models``; None is MiniLM.
        budget: Total budget: a time such as ``30m``, or ``12runs``, the cost of 12 plain
            fine-tunings on all rows.
        goal: Goal of the search: ``accuracy``, ``robust``, ``calibrated``, ``balanced``, or weights
            such as ``accuracy=2,calibration=1``.
        recipes: Recipes of ``temper list recipes``; default: all. Plain fine-tuning is always
            included.
        models: Models to choose from, instead of ``model``. Each is trained with plain
            fine-tuning on the validation folds; the recipes are searched for the best one only.
        seeds: Seeds of the final comparison.
        out: Output folder, or with a cluster the URL of an object store. A stopped search in it is
            resumed. Default: ``runs/DATA-tune-HASH``, the same for the same settings.
        cluster: A Ray cluster that does the runs, as in `temper.compare`.
        config: TOML file or nested settings; the keywords override it.
        progress: Receives trials, runs and notices; None shows bars.
        settings: As in `temper.compare`.

    Returns:
        The winner, its settings and the final comparison.

    Raises:
        TemperError: If data, goal or a recipe do not fit, the budget is too small, the folder has
            another search, or Optuna is not installed.
    """
    from temper.study.plan import StudyConfig, columns_of

    progress = progress or Bars()
    tree = nested(COMPARE, config, {"data": data, "model": model, "cluster": cluster, **settings})
    candidates = _models(tree.get("model"), models)
    tree = {**tree, "model": candidates[0] if candidates else tree.get("model", MODEL)}
    machines_table = tree.pop("cluster", {})
    default = default_folder(tree, "tune", budget, goal, recipes, candidates)
    target = default if out is None else out
    sets = section(SetSources, "sets", tree.pop("sets", {}))
    chosen = split_list(recipes, "--recipes")

    def planned(name: str) -> StudyConfig:
        columns = columns_of((), (), recipes=dict.fromkeys((PLAIN, *chosen)))
        return StudyConfig.of(
            {**tree, "model": name}, columns=columns, seeds=tuple(seeds), sets=sets
        )

    # Training rows whose text is reported would leak into the search.
    tree = {**tree, "data": {**tree.get("data", {}), "drop_overlap": True}}
    plan, *_ = refuse(
        *(partial(planned, name) for name in candidates or (tree["model"],)),
        _check_optuna,
        partial(goal_weights, goal),
        *of_tables(tree),
        *of_paths(tree, *sets.given()),
        *([] if is_url(target) else [of_output_folder(Path(target), RECORD, RECORD)]),
    )
    if out is None:
        progress.info(f"No --out: the search is written to {target}.")
    progress.info(f"Loading {tree['model']} ...")
    splits = load_splits(plan.data)
    # After the data, so that an error in a file is reported before torch is imported.
    from temper.cluster.machines import Cluster
    from temper.study.cluster import opened
    from temper.study.final import carry_out
    from temper.study.search import Request

    request = Request(
        base=tree,
        sets=sets,
        recipes=_recipes(chosen),
        named=bool(chosen),
        goal=goal,
        budget=Budget.parse(budget),
        seeds=tuple(seeds),
        models=candidates,
    )
    with opened(target, Cluster.of(machines_table)) as (folder, machines):
        of_output_folder(folder, RECORD, RECORD)()
        record = carry_out(replace(request, cluster=machines), splits, folder, progress)
    return Tuned(folder, record)


def _models(model: object, models: Many) -> tuple[str, ...]:
    chosen = split_list(models, "--models")
    if not chosen:
        return ()
    if model is not None:
        raise SettingError("--model and --models exclude each other. Name every model in --models.")
    if len(chosen) != len(set(chosen)) or len(chosen) < 2:
        raise SettingError(
            f"--models takes two or more different models, got {', '.join(chosen)}. Pass a single "
            "model as --model."
        )
    return tuple(chosen)


def _recipes(chosen: list[str]) -> dict[str, Recipe]:
    names = dict.fromkeys((PLAIN, *(chosen or known_recipes())))
    if len(names) < 2:
        raise SettingError(
            "Plain fine-tuning is always included. Name another recipe in --recipes, or leave it "
            "out for all."
        )
    return {name: recipe_named(name) for name in names}


def _check_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise SettingError(
            "`temper tune` searches with Optuna, which is not installed. "
            f"Run: {install_command('tune')}"
        )
