"""``temper compare``: train and evaluate methods over seeds, and report the differences."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import completion, early, options
from temper.cli.screen import print_comparison, print_json, print_overview, say
from temper.cli.tasks import Task, task_settings


def compare(
    *,
    out: options.Out,
    methods: Annotated[
        str,
        typer.Option(
            "--methods",
            help="Methods, or compositions as `r_drop + at`, with commas between; the first is "
            "the reference.",
            autocompletion=completion.method_list,
        ),
    ] = "vanilla,uegr",
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds with commas between.")] = "0,1,2",
    model: options.Model = None,
    data: options.Data = None,
    task: Task = None,
    variants: Annotated[
        list[str] | None,
        typer.Option(
            "--variant",
            metavar="NAME=METHOD,KEY=VALUE,...",
            help="Add a column of its own, for example vanilla_x3=vanilla,train.epochs=9.",
        ),
    ] = None,
    imports: options.Imports = None,
    shift: options.Shift = None,
    adversarial: options.Adversarial = None,
    anomaly: options.Anomaly = None,
    suite: options.Suite = None,
    data_root: options.DataRoot = None,
    held_out: options.HeldOut = None,
    sets: options.Sets = None,
    config: options.Config = None,
    unlabeled: options.Unlabeled = None,
    augment: options.Augment = None,
    augment_model: options.AugmentModel = None,
    augment_masked_model: options.AugmentMaskedModel = None,
    rows: options.Rows = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    group_column: options.GroupColumn = None,
    train_split: options.TrainSplit = None,
    eval_split: options.EvalSplit = None,
    class_weights: options.ClassWeights = None,
    drop_overlap: options.DropOverlap = False,
    perspectives: options.Perspectives = None,
    workers: options.Workers = 1,
    as_json: options.Json = False,
) -> None:
    """Train and evaluate a grid of methods and seeds; resume it where it was stopped."""
    options.import_methods(imports)
    tree = options.nested(
        config,
        {
            "model": model,
            **task_settings(task, data, data_root, suite=suite),
            "data.unlabeled": unlabeled,
            "data.augment": options.augmentation(augment),
            "data.augment_model": augment_model,
            "data.augment_masked_model": augment_masked_model,
            "data.rows": rows,
            "data.eval_rows": eval_rows,
            "data.max_length": max_length,
            "data.text_column": text_column,
            "data.text_pair_column": text_pair_column,
            "data.label_column": label_column,
            "data.encoding": encoding,
            "data.skip_bad_rows": skip_bad_rows,
            "data.group_column": group_column,
            "data.train_split": train_split,
            "data.eval_split": eval_split,
            "data.drop_overlap": drop_overlap,
            "train.device": device,
            "train.class_weights": options.class_weights(class_weights),
            "evaluate.perspectives": (
                None if perspectives is None else options.split_list(perspectives, "--perspectives")
            ),
        },
        sets,
    )
    names = options.split_list(methods, "--methods")
    numbers = options.split_seeds(seeds)
    # A variant is written NAME=METHOD and then settings, with commas between.
    its = [text.partition("=")[2].partition(",")[0] for text in variants or []]
    columns = [*names, *filter(None, its)]
    from temper.app.settings import SetSources

    named = SetSources.of(
        shift=shift,
        adversarial=adversarial,
        anomaly=anomaly,
        suite=suite,
        data_root=data_root if suite else None,
        held_out=held_out,
    )
    early.refuse([*early.of_comparison(tree, columns, out), *early.of_sources(named.given())])
    from temper.cli.bars import progress
    from temper.report import MANY, overview
    from temper.study.plan import StudyConfig, columns_of
    from temper.study.schedule import run_study

    plan = StudyConfig.of(
        tree,
        columns=columns_of(names, variants or []),
        seeds=numbers,
        sets=named,
    )
    with progress() as shown:
        study = run_study(plan, out, workers=workers, progress=shown)
    if as_json:
        print_json({"out": str(out), "report": str(study.page), **study.comparison.to_json()})
        return
    whole = study.comparison.rows_for_terminal()
    if len(study.comparison.columns) >= MANY:
        more = (
            "Every score and its interval, and which differences are more than noise: the report."
        )
        print_overview(overview(study.comparison), notes=(*whole.notes, more))
    else:
        print_comparison(whole)
    say(f"Report: {study.page}", as_json=False)
