"""``temper train``: fine-tune one model with one method."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import options
from temper.cli.screen import print_json, say


def train(
    *,
    out: options.Out,
    model: options.Model = None,
    data: options.Data = None,
    method: Annotated[
        str | None, typer.Option("--method", help="A method of `temper list methods`.")
    ] = None,
    sets: options.Sets = None,
    config: options.Config = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")] = None,
    rows: options.Rows = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    train_split: options.TrainSplit = None,
    eval_split: options.EvalSplit = None,
    class_weights: options.ClassWeights = None,
    drop_overlap: options.DropOverlap = False,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not resume a stopped run: start it anew.")
    ] = False,
    as_json: options.Json = False,
) -> None:
    """Fine-tune a model and write a plain Transformers checkpoint with its record."""
    tree = options.nested(
        config,
        {
            "model": model,
            "seed": seed,
            "method.name": method,
            "data.source": data,
            "data.rows": rows,
            "data.eval_rows": eval_rows,
            "data.max_length": max_length,
            "data.text_column": text_column,
            "data.text_pair_column": text_pair_column,
            "data.label_column": label_column,
            "data.train_split": train_split,
            "data.eval_split": eval_split,
            "data.drop_overlap": drop_overlap,
            "train.device": device,
            "train.class_weights": options.class_weights(class_weights),
        },
        sets,
    )
    from temper.cli.bars import progress
    from temper.training.checkpoint_folder import RunFolder
    from temper.training.config import RunConfig
    from temper.training.run import train as run

    checked = RunConfig.of(tree)
    with progress() as shown:
        folder = run(checked, out, resume=not restart, progress=shown)
    record = RunFolder(folder).record() or {}
    if as_json:
        print_json({"out": str(folder), **record})
    else:
        say(f"Trained {record['model']} with {record['method']}: {folder}", as_json=False)
