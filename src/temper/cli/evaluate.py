"""``temper evaluate``: measure any classifier, trained here or elsewhere."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from temper.cli import options
from temper.cli.screen import print_json, print_table, say

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
    model: Annotated[
        str, typer.Argument(help="Folder of a trained model, or a Hub id of a classifier.")
    ],
    *,
    out: options.Out,
    data: options.Data = None,
    shift: options.Shift = None,
    anomaly: options.Anomaly = None,
    perspectives: Annotated[
        str | None,
        typer.Option("--perspectives", help="What to measure; `temper list perspectives`."),
    ] = None,
    sets: options.Sets = None,
    config: options.Config = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    eval_split: options.EvalSplit = None,
    as_json: options.Json = False,
) -> None:
    """Measure a model's accuracy, calibration, robustness and sense of anomalies."""
    tree = options.nested(
        config,
        {
            "data.source": data,
            "data.eval_rows": eval_rows,
            "data.max_length": max_length,
            "data.text_column": text_column,
            "data.text_pair_column": text_pair_column,
            "data.label_column": label_column,
            "data.eval_split": eval_split,
            "evaluate.perspectives": (
                None if perspectives is None else options.split_list(perspectives, "--perspectives")
            ),
        },
        sets,
    )
    from temper.cli.bars import progress
    from temper.study.evaluation import Judging, judge_model
    from temper.study.plan import named_sources

    asked = Judging.of(
        tree,
        model=model,
        shift=named_sources(shift or [], "--shift"),
        anomaly=named_sources(anomaly or [], "--anomaly"),
        device=device,
    )
    with progress() as shown:
        scores = judge_model(asked, out, progress=shown)
    if as_json:
        print_json({"out": str(out), **scores})
        return
    rows = [_row(score) for score in scores["scores"]]
    # Most evaluations have no layers.
    columns = [name for name in COLUMNS if name != "layer" or any(row["layer"] for row in rows)]
    print_table(rows, columns, title=model)
    say(f"Rows and scores: {out}", as_json=False)


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
