"""``temper train``: fine-tune one model with one method."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.api.keywords import TRAIN
from temper.api.quick_checks import check_evaluation, refuse
from temper.api.train import train as train_run
from temper.checkpoints.folder import RunFolder
from temper.cli import options
from temper.cli.screen import print_headline, print_json, say
from temper.errors import CheckpointError, SettingError
from temper.training.processes import joined


@options.with_settings(TRAIN)
def train(
    *,
    out: options.Out,
    imports: options.Imports = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    restart: Annotated[
        bool, typer.Option("--restart", help="Do not resume a stopped run: start it anew.")
    ] = False,
    card: options.Card = False,
    card_path: options.CardPath = None,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            "--evaluation",
            metavar="DIR",
            help="With --card: the evaluation whose scores the card holds; OUT-evaluation if left "
            "out and there.",
        ),
    ] = None,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Fine-tune a model and write a plain Transformers checkpoint with its record."""
    options.import_methods(imports)
    processes = joined()
    with processes.together():
        tree = TRAIN.tree(config, settings, assignments or ())
        card_file = None
        if card or card_path is not None:
            # The folder need not be there yet, so its card is named in full.
            card_file = _card_file(out, card_path or out / "README.md", evaluation, tree)
        elif evaluation is not None:
            raise SettingError(
                "--evaluation names the scores of a card. Add --card, or leave it out."
            )
    from temper.cli.bars import loss_in_words, progress

    with progress() if processes.is_first else nullcontext() as shown:
        result = train_run(out, config=tree, resume=not restart, progress=shown)
    if not processes.is_first:
        return
    record = result.record
    if card_file is not None:
        options.write_card(out, card_file, evaluation)
    if as_json:
        print_json({"out": str(out), **record})
        return
    logged = [entry for entry in RunFolder(out).logs() if "loss" in entry]
    last = f", last logged {loss_in_words(logged[-1])}" if logged else ""
    say(f"{record['times']['steps']} steps{last}.")
    for line in _epochs(record):
        say(line)
    for task in record.get("tasks", {}).values():
        say(f"A checkpoint of one task: {out / task['folder']}")
    print_headline(result.headline())
    say(f"Run: {out}")


def _card_file(out: Path, path: Path, evaluation: Path | None, tree: Mapping[str, Any]) -> Path:
    """Return the file of the model card, before any work."""
    if "tasks" in tree:
        raise SettingError(
            "A card is of one classifier, and this run gives one for each task. Leave --card out; "
            "`temper evaluate OUT/tasks/NAME --card` writes one."
        )
    if evaluation is not None:
        refuse([partial(check_evaluation, evaluation)])
        from temper.checkpoints.checkpoint import Checkpoint
        from temper.display.folders import evaluation_fault

        if fault := evaluation_fault(evaluation, Checkpoint.of(out)):
            raise CheckpointError(fault)
    from temper.report.card import check_card

    return check_card(out, path)


def _epochs(record: Mapping[str, Any]) -> list[str]:
    """Say what the dev rows scored after each epoch, and which epoch's weights are kept."""
    from temper.cli.bars import score_in_words

    told = record.get("epochs", {})
    lines = []
    for task, each in told.items() if "tasks" in record else [("", told)] if told else []:
        of = f" of {task}" if task else ""
        if "dev" in each["kept"]:
            scores = ", ".join(score_in_words(entry["dev"]) for entry in each["scores"])
            lines.append(f"{each['metric']} on the dev rows{of} after each epoch: {scores}.")
        if each["kept"]["by"] == "best":
            rows = record["data"]["selection"]["rows"]
            lines.append(
                f"The weights after epoch {each['kept']['epoch']:g} are kept, the best on {rows:,} "
                "rows taken out of the training rows."
            )
    return lines
