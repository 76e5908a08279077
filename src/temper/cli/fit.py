"""``temper fit``: from a labeled file to a dependable classifier."""

from __future__ import annotations

from temper.api.fit import BUDGET, MODELS, candidate_lines
from temper.api.fit import fit as fit_data
from temper.api.keywords import TRAIN
from temper.cli import options
from temper.cli.screen import print_json, print_table, progress, say
from temper.errors import shown


def fit(
    data: options.LabeledData,
    *,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    rows: options.Rows = None,
    max_length: options.MaxLength = None,
    models: options.FitModels = MODELS,
    budget: options.FitBudget = BUDGET,
    seed: options.Seed = None,
    device: options.Device = None,
    out: options.Out = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Train the best classifier within a time budget, evaluate it and calibrate it.

    Several models, learning rates and numbers of epochs are compared on folds of the training rows,
    by the Brier score. The best combination is trained on all training rows. It is then evaluated
    and calibrated on the evaluation split; data without one have a fifth of the rows set aside for
    it.
    """
    tree = options.settings(TRAIN, locals())
    with progress() as screen:
        fitted = fit_data(models=models, budget=budget, out=out, config=tree, progress=screen)
    if as_json:
        print_json({"out": shown(fitted.folder), "model": shown(fitted.model), **fitted.record})
        return
    print_table(candidate_lines(fitted.record["candidates"]))
    for finding in fitted.findings:
        say(f"- {finding}")
    say(f"Suspicious labels: {shown(fitted.folder)}/labels.csv")
    say(f"Report: {shown(fitted.page)}")
    say(f'Try it: temper predict {shown(fitted.model)} --text "..."')
    say(f"Serve it: temper serve {shown(fitted.model)}")
