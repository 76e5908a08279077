"""``temper evaluate``: measure any classifier, trained here or elsewhere."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from temper.api.evaluate import evaluate as evaluate_classifier
from temper.api.keywords import EVALUATE
from temper.api.quick_checks import check_predictor, refuse
from temper.cli import options
from temper.cli.screen import print_headline, print_json, print_table, say

COLUMNS = (
    "perspective",
    "set",
    "condition",
    "parameters",
    "name",
    "value",
    "low",
    "high",
    "n",
)


@options.with_settings(EVALUATE)
def evaluate(
    model: Annotated[str, typer.Argument(metavar="WHAT", help=options.MODEL_HELP)],
    *,
    out: Annotated[
        Path | None,
        typer.Option(
            "--out",
            help="Folder to write; of a run RUN-evaluation beside it if left out.",
        ),
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="Ray cluster whose machines answer the rows of large sets: auto, HOST:PORT or "
            "ray://HOST:PORT; they see the model under the same path.",
        ),
    ] = None,
    cluster_cpus: options.ClusterCpus = 1,
    cluster_gpus: options.ClusterGpus = 0.0,
    assignments: options.Assignments = None,
    config: options.Config = None,
    imports: options.Imports = None,
    card: options.Card = False,
    card_path: options.CardPath = None,
    full: options.Full = False,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Measure a classifier's accuracy, calibration, robustness and sense of anomalies.

    What cannot be measured on it, for instance attacks on the embeddings of a scikit-learn
    pipeline, is left out and told.
    """
    options.import_methods(imports)
    tree = EVALUATE.tree(config, settings, assignments or ())
    from temper.cli.bars import progress

    with progress() as shown:
        if card or card_path is not None:
            refuse([partial(check_predictor, model)])
            from temper.report.card import check_card

            card_file = check_card(model, card_path)
        result = evaluate_classifier(
            model,
            out=out,
            cluster=cluster,
            cluster_cpus=cluster_cpus,
            cluster_gpus=cluster_gpus,
            config=tree,
            progress=shown,
        )
    if card or card_path is not None:
        options.write_card(model, card_file, result.folder, result.sources)
    if as_json:
        print_json({"out": str(result.folder), **result.content})
        return
    if full:
        print_table([_row(score) for score in result.content["scores"]], COLUMNS, title=model)
    print_headline(result.headline())
    say(f"Rows and scores: {result.folder}")


def _row(score: dict[str, Any]) -> dict[str, Any]:
    """Return a score as a person reads it."""
    from temper.display.wording import described, unit

    # Norms of two layers may be orders of magnitude apart.
    digits = ".4f" if unit(score["name"], "").significant is None else ".4g"
    row = {
        name: float(format(value, digits)) if isinstance(value, float) else value
        for name, value in score.items()
    }
    return {**row, "parameters": described(score["parameters"])}
