"""``temper compare``: train and evaluate methods over seeds, and report the differences."""

from __future__ import annotations

from temper.api.compare import compare as compare_methods
from temper.api.keywords import COMPARE
from temper.cli import options
from temper.cli.screen import print_headline, print_json, progress, say
from temper.errors import shown


def compare(
    *,
    data: options.Data = None,
    task: options.Task = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    rows: options.Rows = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    model: options.Model = None,
    methods: options.Methods = None,
    recipes: options.Recipes = None,
    variants: options.Variants = None,
    equal_compute: options.EqualCompute = True,
    imports: options.Imports = None,
    epochs: options.Epochs = None,
    seeds: options.Seeds = "0,1,2",
    perspectives: options.Perspectives = None,
    shift: options.Shift = None,
    anomaly: options.Anomaly = None,
    suite: options.Suite = None,
    workers: options.Workers = 1,
    cluster: options.Cluster = None,
    out: options.StudyOut = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Train each method with each seed, evaluate the models and report the differences.

    Run the same command again to resume a stopped comparison. To add adversarial data, use `--set
    sets.adversarial=NAME=PATH`. To change the margin of equivalence, or to print how many seeds are
    needed to detect a difference, use `temper report OUT --margin POINTS --detect POINTS`.
    """
    options.import_methods(imports)
    tree = options.settings(COMPARE, locals())
    numbers = options.split_seeds(seeds)
    with progress() as screen:
        study = compare_methods(
            methods=methods,
            recipes=recipes or (),
            seeds=numbers,
            variants=variants or (),
            equal_compute=equal_compute,
            out=out,
            workers=workers,
            config=tree,
            progress=screen,
        )
    folder = shown(out or study.folder)
    page = f"{folder}/{study.page.name}"
    if as_json:
        print_json({"out": folder, "report": page, **study.comparison.to_json()})
        return
    from temper.report import headline

    for name in study.comparison.missing:
        say(name)
    print_headline(headline(study.comparison))
    say(f"Report: {page}")
