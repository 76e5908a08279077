"""``temper train``: fine-tune one model with one method."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

from temper.api.keywords import TRAIN
from temper.api.train import train as train_run
from temper.checkpoints.folder import RunFolder
from temper.cli import options
from temper.cli.screen import print_headline, print_json, progress, say
from temper.display.bars import losses
from temper.display.wording import plural
from temper.training.processes import joined


def train(
    *,
    data: options.Data = None,
    task: options.Tasks = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    rows: options.Rows = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    stride: options.Stride = None,
    model: options.Model = None,
    method: options.Method = None,
    recipe: options.Recipe = None,
    lora: options.Lora = None,
    peft: options.Peft = None,
    imports: options.Imports = None,
    epochs: options.Epochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    precision: options.Precision = None,
    device: options.Device = None,
    out: options.Out = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    restart: options.Restart = False,
    as_json: options.Json = False,
) -> None:
    """Fine-tune a model on labeled data.

    The output folder can be loaded with Transformers. Its run.json has all settings and versions.
    Without --method and --recipe the default recipe is used. A stopped run is resumed.
    """
    options.import_methods(imports)
    processes = joined()
    with processes.together():
        tree = options.settings(TRAIN, locals())
    with progress() if processes.is_first else nullcontext() as shown:
        result = train_run(out=out, config=tree, resume=not restart, progress=shown)
    if not processes.is_first:
        return
    record, folder = result.record, result.folder
    if as_json:
        print_json({"out": str(folder), **record})
        return
    logged = [entry for entry in RunFolder(folder).logs() if "loss" in entry]
    last = f", last logged {', '.join(losses(logged[-1]))}" if logged else ""
    say(f"{plural(record['times']['steps'], 'step')}{last}.")
    for line in _kept(record):
        say(line)
    for item in record.get("tasks", {}).values():
        say(f"A checkpoint of one task: {folder / item['folder']}")
    print_headline(result.headline())
    say(f"Run: {folder}")


def _kept(record: Mapping[str, Any]) -> list[str]:
    """Return a line with the kept epoch if ``train.keep`` is ``best``; empty otherwise."""
    epochs = record.get("epochs", {})
    return [
        f"The weights after epoch {epoch['kept']['epoch']:g} are kept, the best on "
        f"{record['data']['selection']['rows']:,} rows taken out of the training rows."
        for epoch in (epochs.values() if "tasks" in record else [epochs])
        if epoch and epoch["kept"]["by"] == "best"
    ]
