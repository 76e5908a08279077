"""Compare methods over seeds (`temper.compare` and ``temper compare``).

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from temper.api.keywords import COMPARE, CompareKeywords, Many, Source
from temper.api.nested import default_folder, nested, of_paths, refuse, split_list
from temper.checkpoints.folder import check_study_folder
from temper.cluster.store import is_url
from temper.data.sources import load_splits
from temper.display.bars import Bars
from temper.evaluation.settings import SetSources
from temper.functional.intervals import LEAST_ROWS
from temper.functional.units import MARGIN, check_detect, check_margin
from temper.progress import Progress
from temper.settings import section

if TYPE_CHECKING:
    from temper.methods import Method
    from temper.study.schedule import Study


DEFAULT = ("plain", "uegr")
"""Methods that are compared by default."""


def compare(
    data: Source | None = None,
    *,
    model: str | None = None,
    methods: Many | Iterable[str | Method] | None = None,
    recipes: Many = (),
    seeds: Iterable[int] = (0, 1, 2),
    variants: Iterable[str] | Mapping[str, Mapping[str, Any]] = (),
    equal_compute: bool = True,
    out: str | Path | None = None,
    workers: int = 1,
    cluster: str | Mapping[str, Any] | None = None,
    margin: float = MARGIN,
    detect: float | None = None,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Unpack[CompareKeywords],
) -> Study:
    """Train each method with each seed, evaluate the models and report the differences.

    Finished runs are reused, and a stopped comparison is resumed.

    Args:
        data: The data to train and evaluate on, as in `temper.train`.
        model: Hub id, folder, or short name of ``temper list models``.
        methods: Methods, or compositions such as ``"r_drop + at"``; the first is the baseline. A
            string is split at commas. The default is ``plain,uegr``, or no method with ``recipes``.
        recipes: Recipes of ``temper list recipes``, added after the methods.
        seeds: Seeds; each method is trained once per seed.
        variants: Methods with other settings: strings as for ``--variant``, or a dict from a name
            to settings, such as
            ``{"plain_x3": {"method": "plain", "train": {"epochs": 9}}}`` and
            ``{"one_pass": {"method": {"name": "uegr", "preset": "one_pass"}}}``.
        equal_compute: Whether to add ``plain_xK``: plain fine-tuning for K times the epochs, where
            K is the rounded cost of the most expensive method relative to plain fine-tuning. It is
            added if plain fine-tuning is the baseline, K > 1, and no method is the same.
        out: Output folder; with a cluster also the URL of an object store that fsspec opens.
            Default: ``runs/DATA-compare-HASH``, the same for any methods and seeds.
        workers: Processes that train and evaluate runs in parallel.
        cluster: Address of a Ray cluster that does the runs instead of local workers: ``auto``,
            ``HOST:PORT`` or ``ray://HOST:PORT``; or a dict with the resources of a run too,
            ``{"address": "auto", "cpus": 4, "gpus": 0.5}``. All machines must find ``out``, data
            and model under the same paths.
        margin: Largest difference in points that counts as negligible; 0 turns the verdicts
            `equivalent` and `non-inferior` off.
        detect: Difference in points; the report then states how many seeds detect it.
        config: TOML file or nested settings, which the keywords override.
        progress: Receives runs, steps and evaluations; None shows bars.
        settings: Any setting of ``data``, ``train`` and ``sets`` by its name (``epochs``, ``rows``,
            ``shift`` ...), ``task``, ``perspectives``, and the tables ``train``, ``evaluate`` and
            ``architecture``.

    Returns:
        The study: its folder, report and table.

    Raises:
        TemperError: If data, model or a method do not fit, the folder has different content, or a
            loss is not finite.
    """
    from temper.study.plan import StudyConfig, check_workers, columns_of

    heard = progress or Bars()
    tree = nested(COMPARE, config, {"data": data, "model": model, "cluster": cluster, **settings})
    machines_table = tree.pop("cluster", {})
    target = default_folder(tree, "compare") if out is None else out
    wanted = split_list(recipes, "--recipes")
    if methods is None:
        methods = () if wanted else DEFAULT
    names = split_list(methods, "--methods")
    sets = section(SetSources, "sets", tree.pop("sets", {}))

    def planned() -> StudyConfig:
        columns = columns_of(names, variants, recipes=wanted)
        return StudyConfig.of(tree, columns=columns, seeds=tuple(seeds), sets=sets)

    plan, *_ = refuse(
        planned,
        *of_paths(tree, *sets.given()),
        *([] if is_url(target) else [partial(check_study_folder, Path(target))]),
        partial(check_workers, workers),
        partial(check_margin, margin),
        partial(check_detect, detect),
    )
    if out is None:
        heard.info(f"No --out: the study is written to {target}.")
    heard.info(f"Loading {tree.get('model', 'models')} ...")
    splits = load_splits(plan.data)
    if len(splits.dev) < LEAST_ROWS:
        from temper.report.headline import MORE_ROWS

        heard.notice(
            f"A comparison needs at least {LEAST_ROWS} evaluation rows, and there are "
            f"{len(splits.dev)}. {MORE_ROWS}"
        )
    # After the data, so that an error in a file is reported before torch is imported.
    from temper.cluster.machines import Cluster
    from temper.study.cluster import opened
    from temper.study.schedule import run_study

    with opened(target, Cluster.of(machines_table)) as (folder, machines):
        return run_study(
            plan,
            folder,
            workers=workers,
            cluster=machines,
            equal_compute=equal_compute,
            margin=margin,
            detect=detect,
            splits=splits,
            progress=heard,
        )
