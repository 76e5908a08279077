"""``temper evaluate``: measure any classifier, trained here or elsewhere."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.api.evaluate import evaluate as evaluate_classifier
from temper.api.keywords import EVALUATE
from temper.api.nested import check_loadable, refuse
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import notice, print_headline, print_json, print_table, progress, say
from temper.display.wording import described, unit
from temper.errors import UnlabeledError
from temper.files import write_json

if TYPE_CHECKING:
    from temper.report import ErrorAnalysis

WORST, WIDEST = 3, 120
"""Number of errors to print of each kind, and the maximum characters of a printed text."""
COLUMNS = ("perspective", "set", "condition", "parameters", "name", "value", "low", "high", "n")


def evaluate(
    model: options.AnyModel,
    *,
    data: options.EvaluatedData = None,
    task: options.Task = None,
    text_column: options.TextColumn = None,
    label_column: options.LabelColumn = None,
    eval_rows: options.EvalRows = None,
    max_length: options.ModelLength = None,
    imports: options.Imports = None,
    gives: options.Gives = None,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    trust: options.Trust = None,
    perspectives: options.Perspectives = None,
    shift: options.Shift = None,
    adversarial: options.Adversarial = None,
    anomaly: options.Anomaly = None,
    suite: options.Suite = None,
    device: options.Device = None,
    cluster: options.Cluster = None,
    out: options.EvaluationOut = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    card: options.Card = False,
    card_path: options.CardPath = None,
    full: options.Full = False,
    as_json: options.Json = False,
) -> None:
    """Evaluate a classifier: accuracy, calibration, robustness and OOD detection.

    Metrics that the model does not support are skipped and reported, for instance attacks on the
    embeddings of a scikit-learn pipeline. If --data has no labels, accuracy and macro-F1 are
    estimated from the predicted probabilities of a calibrated model.
    """
    options.import_methods(imports)
    tree = options.settings(EVALUATE, locals())
    with progress() as shown:
        if card or card_path is not None:
            refuse(partial(check_loadable, Checkpoint(model)))
            from temper.report.card import check_card

            card_file = check_card(model, card_path)
        try:
            result = evaluate_classifier(model, out=out, config=tree, progress=shown)
        except UnlabeledError:
            if any(
                (perspectives, shift, adversarial, anomaly, suite, cluster, card, card_path, full)
            ):
                raise
            result = None
    if result is None:
        _estimate(model, tree, out=out, as_json=as_json)
        return
    if card or card_path is not None:
        from temper.report.card import CardSources, write_card

        written = write_card(CardSources(Path(model), result.folder, result.sources), card_file)
        # With --json, stdout is reserved for the scores.
        say(f"Model card: {written}", as_json=True)
    errors = result.errors()
    if as_json:
        analysis = None if errors is None else errors.to_json()
        print_json({"out": str(result.folder), **result.content, "errors": analysis})
        return
    if full:
        print_table([_row(score) for score in result.content["scores"]], COLUMNS, title=model)
    if errors is not None:
        _print_errors(errors)
    print_headline(result.headline())
    for finding in () if errors is None else errors.findings:
        say(f"Next: {finding.text}")
        if finding.command:
            say(f"  {finding.command}")
    say(f"Rows and scores: {result.folder}")


def _print_errors(errors: ErrorAnalysis) -> None:
    _print_lines(
        ("class", "precision", "recall", "F1", "texts", "mistaken for"),
        [item.cells() for item in errors.classes],
    )
    _print_lines(
        ("label", "predicted", "wrong under", "worst errors"),
        [
            (
                item.label,
                f"{item.prediction} {item.confidence:.0%}",
                item.where,
                textwrap.shorten(item.shown, WIDEST, placeholder=" ..."),
            )
            for item in (*errors.confident[:WORST], *errors.fragile[:WORST])
        ],
    )


def _print_lines(header: Sequence[str], lines: Sequence[Sequence[str]]) -> None:
    if lines:
        print_table([dict(zip(header, line, strict=True)) for line in lines])
        say("")


def _estimate(model: str, tree: dict[str, Any], *, out: Path | None, as_json: bool) -> None:
    from temper.calibration.classifier import Classifier
    from temper.evaluation.request import EvaluationRequest

    request = EvaluationRequest.of(tree, model=Checkpoint(model))
    classifier = Classifier.load(
        request.model,
        max_length=request.max_length,
        batch_size=request.evaluate.batch_size,
        settings=request.predictor,
    )
    rows = request.rows(classifier.predictor, labeled=None)
    predictions = classifier.predict_examples(rows)
    if predictions.scores is None:
        raise UnlabeledError(
            f"{request.data.source!r} has no labels. Use a set with labels. Estimates without "
            "labels need a classifier (not a regression) that keeps held-out rows: temper "
            f"calibrate {model} --data LABELED"
        )
    for message in predictions.notices:
        if message != str(predictions.scores):
            notice(message)
    if out is not None:
        out.mkdir(parents=True, exist_ok=True)
        write_json(out / "estimate.json", predictions.summary())
    if as_json:
        print_json(predictions.summary())
    else:
        say(str(predictions.scores))


def _row(score: dict[str, Any]) -> dict[str, Any]:
    # Norms of layers may differ by orders of magnitude.
    digits = ".4f" if unit(score["name"], "").significant is None else ".4g"
    row = {
        name: float(format(value, digits)) if isinstance(value, float) else value
        for name, value in score.items()
    }
    return {**row, "parameters": described(score["parameters"])}
