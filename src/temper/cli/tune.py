"""``temper tune``: find the best recipe and settings for a dataset within a budget."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from temper.api.keywords import COMPARE
from temper.api.tune import BUDGET
from temper.api.tune import tune as tune_recipes
from temper.cli import options
from temper.cli.screen import print_json, print_table, say
from temper.cluster.store import is_url
from temper.errors import shown

SHOWN = 8
"""Rows of the table."""


@options.with_settings(COMPARE)
def tune(
    *,
    out: options.StudyOut,
    budget: Annotated[
        str,
        typer.Option(
            "--budget",
            metavar="TIME|N runs",
            help="Total budget: 30m, 2h, or 12runs (trainings on all rows with plain fine-tuning).",
        ),
    ] = BUDGET,
    goal: Annotated[
        str,
        typer.Option(
            "--goal",
            help="accuracy, robust, calibrated, balanced, or weights as in "
            "accuracy=2,calibration=1.",
        ),
    ] = "balanced",
    recipes: Annotated[
        str | None,
        typer.Option(
            "--recipes",
            metavar="A,B",
            help="Recipes to search; default: all of `temper list recipes`. Plain fine-tuning is "
            "always included.",
            autocompletion=options.complete_recipes,
        ),
    ] = None,
    seeds: Annotated[
        str, typer.Option("--seeds", help="Seeds of the final comparison, separated by commas.")
    ] = "0,1,2",
    cluster: options.Cluster = None,
    cluster_cpus: options.ClusterCpus = 1,
    cluster_gpus: options.ClusterGpus = 0.0,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Search recipes and their settings for your data, and evaluate the winner once.

    The search uses dev folds of the training rows. The test rows are used once, at the end. Run the
    same command again to resume a stopped search.
    """
    tree = COMPARE.tree(config, settings, assignments or ())
    numbers = options.split_seeds(seeds)
    from temper.cli.bars import progress

    with progress() as screen:
        tuned = tune_recipes(
            out,
            budget=budget,
            goal=goal,
            recipes=recipes or (),
            seeds=numbers,
            cluster=cluster,
            cluster_cpus=cluster_cpus,
            cluster_gpus=cluster_gpus,
            config=tree,
            progress=screen,
        )
    out, record = shown(out), tuned.record
    page = f"{out}/{tuned.page.relative_to(tuned.folder).as_posix()}"
    if as_json:
        print_json({"out": out, "report": page, **record})
        return
    rows = [
        {
            "recipe": line["recipe"],
            "trial": line["trial"],
            "improvement on dev folds": f"{100 * line['improvement']:+.1f}%",
            "cost": f"{line['cost']:.3g}x",
            "settings": ", ".join(
                f"{table}.{name}={value}"
                for table, values in line["settings"].items()
                for name, value in values.items()
            ),
        }
        for line in record["ranking"][:SHOWN]
    ]
    print_table(rows, list(rows[0]))
    say(tuned.summary)
    say(f"Report: {page}")
    winner = f"{out}/winner.toml"
    if is_url(out):
        say(f"Copy the settings of the winner: {winner}")
        winner = "winner.toml"
    say(f"Train it again: temper train --config {winner} --out RUN")
