"""``temper evaluate``: measure any classifier, trained here or elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from temper.cli import early, options
from temper.cli.screen import notice, print_json, print_table, say
from temper.cli.tasks import Task, task_settings
from temper.errors import SettingError

COLUMNS = (
    "perspective",
    "set",
    "condition",
    "layer",
    "radius",
    "radius_relative",
    "norm",
    "name",
    "value",
    "low",
    "high",
    "n",
)


def evaluate(
    model: Annotated[str, typer.Argument(metavar="WHAT", help=options.MODEL_HELP)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder to write; of a run or a soup RUN-evaluation beside it if left out.",
        ),
    ] = None,
    data: options.Data = None,
    task: Task = None,
    shift: options.Shift = None,
    adversarial: options.Adversarial = None,
    anomaly: options.Anomaly = None,
    suite: options.Suite = None,
    data_root: options.DataRoot = None,
    fit: options.Fit = None,
    held_out: options.HeldOut = None,
    perspectives: options.Perspectives = None,
    reference: Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="The pre-trained model that `representation` compares with, where the model's own "
            "record does not name it.",
        ),
    ] = None,
    sets: options.Sets = None,
    config: options.Config = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    group_column: options.GroupColumn = None,
    eval_split: options.EvalSplit = None,
    gives: options.Gives = None,
    label_names: options.LabelNames = None,
    trust: options.Trust = None,
    card: options.Card = False,
    card_path: options.CardPath = None,
    as_json: options.Json = False,
) -> None:
    """Measure a classifier's accuracy, calibration, robustness and sense of anomalies.

    What cannot be measured on it, for instance attacks on the embeddings of a scikit-learn
    pipeline, is left out and told.
    """
    tree = options.nested(
        config,
        {
            **task_settings(task, data, data_root, suite=suite),
            "data.eval_rows": eval_rows,
            "data.max_length": max_length,
            "data.text_column": text_column,
            "data.text_pair_column": text_pair_column,
            "data.label_column": label_column,
            "data.encoding": encoding,
            "data.skip_bad_rows": skip_bad_rows,
            "data.group_column": group_column,
            "data.eval_split": eval_split,
            "evaluate.reference": reference,
            "evaluate.perspectives": (
                None if perspectives is None else options.split_list(perspectives, "--perspectives")
            ),
        },
        sets,
    )
    from temper.app.settings import SetSources

    out = out or _beside(model)
    named = SetSources.of(
        shift=shift,
        adversarial=adversarial,
        anomaly=anomaly,
        suite=suite,
        data_root=data_root if suite else None,
        fit=fit,
        held_out=held_out,
    )
    early.refuse([*early.of_evaluation(tree, model, out), *early.of_sources(named.given())])
    from temper.app.evaluation import Judging, judge_model
    from temper.cli.bars import progress

    asked = Judging.of(
        tree,
        model=model,
        sets=named,
        device=device,
        declared=options.declared(gives, label_names, trust),
    )
    where = options.card_file(model, card_path) if card or card_path else None
    with progress() as shown:
        scores = judge_model(asked, out, progress=shown)
    if where is not None:
        further = {**named.shift, **named.adversarial, **named.anomaly}
        options.write_card(model, where, out, {"dev": asked.data.source, **further})
    if as_json:
        print_json({"out": str(out), **scores})
        return
    rows = [_row(score) for score in scores["scores"]]
    # Most evaluations have no layers.
    columns = [name for name in COLUMNS if name != "layer" or any(row["layer"] for row in rows)]
    print_table(rows, columns, title=model)
    say(f"Rows and scores: {out}", as_json=False)


def _beside(model: str) -> Path:
    """Return the folder beside a run or a soup where `temper report` looks for its evaluation.

    Raises:
        SettingError: If the model is neither.
    """
    folder = Path(model).expanduser()
    if not any((folder / name).is_file() for name in ("run.json", "soup.json")):
        raise SettingError(
            f"--out is needed: {model} is no folder of a run or a soup, beside which the "
            "evaluation could lie. Give --out FOLDER."
        )
    whole = folder.resolve()
    out = whole.with_name(f"{whole.name}-evaluation")
    notice(f"--out is left out: the evaluation is written to {out}.")
    return out


def _row(score: dict[str, Any]) -> dict[str, Any]:
    """Return a score as a person reads it."""
    layered = score["perspective"] == "smoothness"
    # Norms of two layers may be orders of magnitude apart.
    digits = ".4g" if layered else ".4f"
    row = {
        name: float(format(value, digits)) if isinstance(value, float) else value
        for name, value in score.items()
    }
    layer = score.get("layer")
    return {**row, "layer": "logits" if layered and layer is None else layer}
