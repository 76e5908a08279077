"""Find the recipe and settings that suit one's data: what `temper.tune` and ``temper tune`` do.

A race on dev folds carved from the training rows (`temper.study.race`) chooses; then the winner and
plain fine-tuning, each at its best settings, are trained on all rows and judged on the reported
rows, once.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from temper.app.keywords import COMPARE, split_list
from temper.app.quick_checks import of_settings, of_sources, refuse
from temper.app.settings import SetSources
from temper.app.store import is_url
from temper.errors import SettingError, install_command
from temper.methods.recipes import PLAIN, Recipe, recipe_named
from temper.methods.recipes import recipes as known_recipes
from temper.study.budget import Budget
from temper.study.goals import goal_weights
from temper.training.assignments import section
from temper.training.checkpoint_folder import check_room
from temper.training.progress import LoggedNotices, Progress

RECORD = "tune.json"
MODEL = "minilm"
BUDGET = "30m"


@dataclass(frozen=True)
class Tuned:
    """What a race came to.

    Args:
        folder: The out folder; of an object store a copy without weights, gone with this process.
        record: The content of ``tune.json``.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def said(self) -> str:
        """What was gained and what it cost, in words."""
        return str(self.record["said"])

    @property
    def page(self) -> Path:
        """The report of the final comparison."""
        return self.folder / "final" / "report.html"


def tune(
    out: str | Path,
    *,
    budget: str = BUDGET,
    goal: str = "balanced",
    recipes: str | Iterable[str] = (),
    seeds: Iterable[int] = (0, 1, 2),
    cluster: str | None = None,
    cluster_cpus: int = 1,
    cluster_gpus: float = 0.0,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Tuned:
    """Race recipes and settings on one's data, and judge the winner once.

    Args:
        out: The folder, or with a cluster the URL of an object store; a race that was stopped there
            goes on.
        budget: What all of it may take: ``30m``, ``2h``, or ``12runs``, trainings on all rows by
            plain fine-tuning.
        goal: ``accuracy``, ``robust``, ``calibrated``, ``balanced``, or weights as in
            ``accuracy=2,calibration=1``.
        recipes: Those that are raced, of ``temper list recipes``; all if none is named. Plain
            fine-tuning is always among them.
        seeds: Seeds of the final trainings.
        cluster: Address of a Ray cluster whose machines do the runs, as `temper.compare` takes it.
        cluster_cpus: Cores, and threads, of a run there.
        cluster_gpus: GPUs of a run there; parts of one let runs share it.
        config: TOML file or nested settings, which the others override.
        progress: Hears of trials, runs and notices; None logs the notices.
        settings: As `temper.compare` takes them; ``model`` is MiniLM if left out.

    Returns:
        What was found.

    Raises:
        TemperError: Where data, a goal or a recipe does not fit, the budget is too small, the
            folder holds another race, or Optuna is not installed.
    """
    progress = progress or LoggedNotices()
    tree = {"model": MODEL, **COMPARE.tree(config, settings)}
    sets = section(SetSources, "sets", tree.pop("sets", {}))
    chosen = split_list(recipes, "--recipes") if isinstance(recipes, str) else list(recipes)
    refuse(
        [
            _check_optuna,
            partial(goal_weights, goal),
            *(partial(recipe_named, name) for name in chosen),
            *of_settings(tree),
            *of_sources(sets.given()),
            *([] if is_url(out) else [partial(_check_folder, Path(out))]),
        ]
    )
    from temper.app.cluster import Cluster
    from temper.study.cluster import opened
    from temper.study.final import Order, carry_out

    machines = Cluster.of(cluster, cluster_cpus, cluster_gpus)
    # A reported text that is trained on would be looked at by the race.
    data = {**tree.get("data", {}), "drop_overlap": True}
    order = Order(
        base={**tree, "data": data},
        sets=sets,
        recipes=_contenders(chosen),
        named=bool(chosen),
        goal=goal,
        budget=Budget.parse(budget),
        seeds=tuple(seeds),
    )
    with opened(out, machines) as (folder, machines):
        _check_folder(folder)
        record = carry_out(replace(order, cluster=machines), folder, progress)
    return Tuned(folder, record)


def _check_folder(folder: Path) -> None:
    check_room(folder, what=RECORD, held=(folder / RECORD).exists)


def _contenders(chosen: list[str]) -> dict[str, Recipe]:
    """Return the recipes that are raced, plain fine-tuning first."""
    names = dict.fromkeys((PLAIN, *(chosen or known_recipes())))
    if len(names) < 2:
        raise SettingError(
            "A race needs a recipe beside plain fine-tuning, which is always in it. Name one with "
            "--recipes, or leave it out for all."
        )
    return {name: recipe_named(name) for name in names}


def _check_optuna() -> None:
    if importlib.util.find_spec("optuna") is None:
        raise SettingError(
            "`temper tune` searches with Optuna, which is not installed. "
            f"Run: {install_command('tune')}"
        )
