"""``temper train``: fine-tune one model with one method."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.cli import completion, early, options
from temper.cli.multi_task import OF_ONE_DATASET, MultiTask, multi_task_settings, run_tasks
from temper.cli.screen import print_json, say
from temper.cli.tasks import DataRoot, Task, task_settings
from temper.errors import CheckpointError, SettingError

if TYPE_CHECKING:
    from temper.training.checkpoint_folder import RunFolder


def train(
    *,
    out: options.Out,
    model: options.Model = None,
    data: options.Data = None,
    task: Task = None,
    multi_task: MultiTask = None,
    data_root: DataRoot = None,
    method: Annotated[
        str | None,
        typer.Option(
            "--method",
            help="A method of `temper list methods`, or `ONE + OTHER`; uegr if left out.",
            autocompletion=completion.methods,
        ),
    ] = None,
    objective: Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="A method of which only the objective is taken.",
            autocompletion=completion.methods,
        ),
    ] = None,
    rule: Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="A method of which only the update rule is taken.",
            autocompletion=completion.methods,
        ),
    ] = None,
    imports: options.Imports = None,
    sets: options.Sets = None,
    config: options.Config = None,
    seed: Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")] = None,
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
    train_split: options.TrainSplit = None,
    eval_split: options.EvalSplit = None,
    class_weights: options.ClassWeights = None,
    drop_overlap: options.DropOverlap = False,
    lora: Annotated[
        bool,
        typer.Option(
            "--lora", help="Train a LoRA adapter and the head alone; --set train.lora.rank=16 ..."
        ),
    ] = False,
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
) -> None:
    """Fine-tune a model and write a plain Transformers checkpoint with its record."""
    options.import_methods(imports)
    if multi_task:
        of_one = (task, data, text_column, text_pair_column, label_column, train_split, eval_split)
        which = multi_task_settings(
            multi_task, data_root, given=dict(zip(OF_ONE_DATASET, of_one, strict=True))
        )
    else:
        which = task_settings(task, data, data_root)
    tree = options.nested(
        config,
        {
            "model": model,
            "seed": seed,
            "method.name": options.method_name(method, objective, rule),
            **which,
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
            "data.train_split": train_split,
            "data.eval_split": eval_split,
            "data.drop_overlap": drop_overlap,
            "train.device": device,
            "train.class_weights": options.class_weights(class_weights),
        },
        sets,
    )
    if lora and isinstance(tree.setdefault("train", {}), dict):
        tree["train"]["lora"] = tree["train"].get("lora") or {}
    judged = _checks_of_evaluation(evaluation, card=card or card_path is not None)
    early.refuse([*early.of_training(tree, out), *judged])
    from temper.cli.bars import progress
    from temper.methods import DEFAULT
    from temper.training.checkpoint_folder import RunFolder
    from temper.training.config import RunConfig
    from temper.training.run import train as run

    checked = None if "tasks" in tree else RunConfig.of(tree)
    attack = None
    if checked is None and (card or card_path):
        raise SettingError(
            "A card is of one classifier, and this run gives one for each task. Leave --card out; "
            "`temper evaluate OUT/tasks/NAME --card` writes one."
        )
    if checked is not None and checked.data.attacks:
        from temper.app.row_attack import RowAttacker, attack_settings

        attack_settings(checked.data)
        attack = RowAttacker()
    # The folder need not be there yet, so its card is named in full.
    if evaluation is not None:
        _check_evaluation(out, evaluation)
    where = options.card_file(out, card_path or out / "README.md") if card or card_path else None
    chosen = tree.get("method", {})
    if isinstance(chosen, dict) and "name" not in chosen:
        say(f"method: {DEFAULT} (default; --method changes it)", as_json=as_json)
    with progress() as shown:
        if checked is None:
            folder = run_tasks(tree, out, resume=not restart, progress=shown)
        else:
            folder = run(checked, out, resume=not restart, progress=shown, attack=attack)
    written = RunFolder(folder)
    record = written.record() or {}
    if where is not None:
        options.write_card(folder, where, evaluation)
    if as_json:
        print_json({"out": str(folder), **record})
    else:
        say(f"Trained {record['model']} with {record['method']}: {folder}", as_json=False)
        say(_ended(written, record), as_json=False)
        for line in _epochs(record):
            say(line, as_json=False)
        for each in record.get("tasks", {}).values():
            say(f"A checkpoint of one task: {folder / each['folder']}", as_json=False)
        if checked is not None:
            measure = f"temper evaluate {quote(str(folder))} --out {quote(f'{folder}-evaluation')}"
            if checked.data.eval_rows is not None:
                measure += f" --eval-rows {checked.data.eval_rows}"
            say(f"Measure it on its own dev rows: {measure}", as_json=False)


def _checks_of_evaluation(evaluation: Path | None, *, card: bool) -> list[early.Check]:
    """Return the checks of ``--evaluation``, which goes with ``--card`` alone."""
    if evaluation is None:
        return []
    if not card:
        raise SettingError("--evaluation names the scores of a card. Add --card, or leave it out.")
    return [partial(early.check_judged, evaluation)]


def _check_evaluation(out: Path, evaluation: Path) -> None:
    """Refuse, before any work, the evaluation of another run than the one in the folder."""
    from temper.report.folders import evaluation_fault
    from temper.report.records import RunRecord, parse

    record = parse(out / "run.json", RunRecord) if (out / "run.json").exists() else None
    if fault := evaluation_fault(evaluation, record):
        raise CheckpointError(fault)


def _ended(folder: RunFolder, record: Mapping[str, Any]) -> str:
    """Say how many steps a run took and the loss that it logged last."""
    from temper.cli.bars import loss_in_words

    logged = [entry for entry in folder.logs() if "loss" in entry]
    last = f", last logged {loss_in_words(logged[-1])}" if logged else ""
    return f"{record['times']['steps']} steps{last}."


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
