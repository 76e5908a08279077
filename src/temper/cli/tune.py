"""``temper tune``: find the best recipe and settings for a dataset within a budget."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from temper.api.keywords import COMPARE
from temper.api.tune import BUDGET
from temper.api.tune import tune as tune_recipes
from temper.cli import options
from temper.cli.screen import print_json, print_table, progress, say
from temper.cluster.store import is_url
from temper.errors import shown
from temper.study.goals import ACCURACY, CALIBRATION

SHOWN = 8
"""Maximum rows of the printed table."""


def tune(
    *,
    data: options.Data = None,
    task: options.Task = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    rows: options.Rows = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    model: options.DefaultModel = None,
    models: options.Models = None,
    recipes: options.Recipes = None,
    budget: options.Budget = BUDGET,
    goal: options.Goal = "balanced",
    seeds: options.Seeds = "0,1,2",
    perspectives: options.Perspectives = None,
    shift: options.Shift = None,
    adversarial: options.Adversarial = None,
    anomaly: options.Anomaly = None,
    suite: options.Suite = None,
    device: options.Device = None,
    cluster: options.Cluster = None,
    out: options.StudyOut = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Find the best recipe and settings for your data, then compare them with plain fine-tuning.

    The search tries --recipes (default: all) and plain fine-tuning on validation folds of the
    training rows. The winner and plain fine-tuning are then trained with each of --seeds and
    compared once on the evaluation rows. Run the same command again to resume a stopped search.
    """
    tree = options.settings(COMPARE, locals())
    numbers = options.split_seeds(seeds)
    with progress() as screen:
        tuned = tune_recipes(
            out=out,
            budget=budget,
            goal=goal,
            recipes=recipes or (),
            models=models or (),
            seeds=numbers,
            config=tree,
            progress=screen,
        )
    record, folder = tuned.record, shown(out or tuned.folder)
    page = f"{folder}/{tuned.page.relative_to(tuned.folder).as_posix()}"
    if as_json:
        print_json({"out": folder, "report": page, **record})
        return
    table = [
        {
            "recipe": line["recipe"],
            "trial": line["trial"],
            "improvement": f"{100 * line['improvement']:+.1f}%",
            "cost": f"{line['cost']:.3g}x",
            "settings": ", ".join(
                f"{name_of_table}.{name}={value}"
                for name_of_table, values in line["settings"].items()
                for name, value in values.items()
            ),
        }
        for line in record["ranking"][:SHOWN]
    ]
    if models := record.get("models", []):
        print_table([_model_line(line) for line in models])
    print_table(table)
    say(tuned.summary)
    say(f"Report: {page}")
    winner = f"{folder}/winner.toml"
    if out is not None and is_url(out):
        say(f"Copy the settings of the winner: {winner}")
        winner = "winner.toml"
    say(f"Train it again: temper train --config {winner} --out RUN")


def _model_line(line: Mapping[str, Any]) -> dict[str, str]:
    times = line["predict_ms"]
    brier = {"Brier score": f"{2 * (1 - line[CALIBRATION]):.3f}"} if CALIBRATION in line else {}
    return {
        "model": line["model"],
        "learning rate": f"{line['learning_rate']:g}",
        "improvement": f"{100 * line['improvement']:+.1f}%",
        "accuracy": f"{100 * line[ACCURACY]:.1f}%",
        **brier,
        "training": f"{line['train_seconds']:.3g} s",
        "per row": "" if times is None else f"{times:.3g} ms",
    }
