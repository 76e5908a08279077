"""``temper compare``: train and evaluate methods over seeds, and report the differences."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from temper.api.compare import compare as compare_methods
from temper.api.keywords import COMPARE
from temper.cli import options
from temper.cli.screen import (
    print_comparison,
    print_headline,
    print_json,
    print_overview,
    say,
)
from temper.errors import shown
from temper.functional.units import MARGIN


@options.with_settings(COMPARE)
def compare(
    *,
    out: options.StudyOut,
    methods: Annotated[
        str | None,
        typer.Option(
            "--methods",
            help="Methods, or compositions as `r_drop + at`, with commas between; the first is "
            "the reference. [default: vanilla,uegr; none beside --recipes]",
            autocompletion=options.complete_methods,
        ),
    ] = None,
    recipes: Annotated[
        str | None,
        typer.Option(
            "--recipes",
            metavar="A,B",
            help="Recipes of `temper list recipes`, with commas between.",
            autocompletion=options.complete_recipes,
        ),
    ] = None,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds with commas between.")] = "0,1,2",
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME=METHOD,KEY=VALUE,...",
            help="Add a column of its own, for example vanilla_x3=vanilla,train.epochs=9.",
        ),
    ] = None,
    imports: options.Imports = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    workers: Annotated[
        int,
        typer.Option(
            "--workers",
            metavar="N",
            help="Processes that train and judge runs side by side; they share the machine's "
            "threads and GPUs.",
        ),
    ] = 1,
    cluster: options.Cluster = None,
    cluster_cpus: options.ClusterCpus = 1,
    cluster_gpus: options.ClusterGpus = 0.0,
    margin: options.Margin = MARGIN,
    detect: options.Detect = None,
    full: options.Full = False,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Train and evaluate a grid of methods and seeds; resume it where it was stopped."""
    options.import_methods(imports)
    tree = COMPARE.tree(config, settings, assignments or ())
    numbers = options.split_seeds(seeds)
    from temper.cli.bars import progress

    with progress() as screen:
        study = compare_methods(
            out,
            methods=methods,
            recipes=recipes or (),
            seeds=numbers,
            variants=variants or (),
            workers=workers,
            cluster=cluster,
            cluster_cpus=cluster_cpus,
            cluster_gpus=cluster_gpus,
            margin=margin,
            detect=detect,
            config=tree,
            progress=screen,
        )
    out = shown(out)
    page = f"{out}/{study.page.name}"
    if as_json:
        print_json({"out": out, "report": page, **study.comparison.to_json()})
        return
    from temper.report import MANY, headline, overview
    from temper.report.trained import with_seen

    if full and len(study.comparison.columns) >= MANY:
        print_overview(overview(study.comparison), notes=study.comparison.rows_for_terminal().notes)
    elif full:
        print_comparison(study.comparison.rows_for_terminal())
    for name in () if full else study.comparison.missing:
        say(name)
    print_headline(with_seen(headline(study.comparison), study.comparison))
    say(f"Report: {page}")
