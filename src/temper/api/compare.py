"""Compare methods over seeds: what `temper.compare` and ``temper compare`` do.

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.api.keywords import COMPARE, split_list
from temper.api.quick_checks import of_paths, of_sources, refuse
from temper.checkpoints.folder import check_study_room
from temper.cluster.store import is_url
from temper.evaluation.sources import SetSources
from temper.functional.units import MARGIN, check_detect, check_margin
from temper.progress import LoggedNotices, Progress
from temper.settings import section

if TYPE_CHECKING:
    from temper.study.schedule import Study


DEFAULT = ("vanilla", "uegr")
"""Methods that are compared where nobody names methods or recipes."""


def compare(
    out: str | Path,
    *,
    methods: str | Iterable[Any] | None = None,
    recipes: str | Iterable[str] = (),
    seeds: Iterable[int] = (0, 1, 2),
    variants: Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
    workers: int = 1,
    cluster: str | None = None,
    cluster_cpus: int = 1,
    cluster_gpus: float = 0.0,
    margin: float = MARGIN,
    detect: float | None = None,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Any,
) -> Study:
    """Train and evaluate a grid of methods and seeds; go on where it was stopped.

    Args:
        out: The study's folder; with a cluster also the URL of an object store, as fsspec knows it.
        methods: Methods, or compositions as ``"r_drop + at"``; the first is the reference. A text
            has commas between them. None is ``vanilla,uegr``, and none at all beside recipes.
        recipes: Recipes of ``temper list recipes``, whose columns come after the methods'.
        seeds: Seeds of the runs.
        variants: Further columns: texts as ``--variant`` takes them, or name to settings, such as
            ``{"vanilla_x3": {"method": "vanilla", "train": {"epochs": 9}}}``.
        workers: Processes that train and judge runs side by side.
        cluster: Address of a Ray cluster whose machines do the runs, in place of workers: ``auto``,
            ``HOST:PORT`` or ``ray://HOST:PORT``. All of them see ``out``, data and model under the
            same paths.
        cluster_cpus: Cores, and threads, of a run there.
        cluster_gpus: GPUs of a run there; parts of one let runs share it.
        margin: Points that a difference must reach to matter; 0 asks for none.
        detect: Points that the study should detect: the answer then says how many seeds that takes.
        config: TOML file or nested settings, which the others override.
        progress: Hears of runs, steps and evaluations; None logs the notices.
        settings: By the names of the options of ``temper compare`` (``model``, ``data``, ``shift``
            ...), or whole tables: ``data``, ``train``, ``sets``, ``evaluate``, ``architecture``.

    Returns:
        The study: its folder, report and table.

    Raises:
        TemperError: Where data, model or a method does not fit, the folder holds something else, or
            a loss is not finite.
    """
    from temper.study.plan import StudyConfig, columns_of

    tree = COMPARE.tree(config, settings)
    wanted = split_list(recipes, "--recipes") if isinstance(recipes, str) else list(recipes)
    if methods is None:
        methods = () if wanted else DEFAULT
    names = split_list(methods, "--methods") if isinstance(methods, str) else list(methods)
    sets = section(SetSources, "sets", tree.pop("sets", {}))

    def planned() -> StudyConfig:
        columns = columns_of(names, variants, recipes=wanted)
        return StudyConfig.of(tree, columns=columns, seeds=tuple(seeds), sets=sets)

    plan, *_ = refuse(
        [
            planned,
            *of_paths(tree),
            *of_sources(sets.given()),
            *([] if is_url(out) else [partial(check_study_room, Path(out))]),
            partial(check_margin, margin),
            partial(check_detect, detect),
        ]
    )
    from temper.cluster.machines import Cluster

    machines = Cluster.of(cluster, cluster_cpus, cluster_gpus)
    from temper.study.cluster import opened
    from temper.study.schedule import run_study

    heard = progress or LoggedNotices()
    with opened(out, machines) as (folder, machines):
        return run_study(
            plan,
            folder,
            workers=workers,
            cluster=machines,
            margin=margin,
            detect=detect,
            progress=heard,
        )
