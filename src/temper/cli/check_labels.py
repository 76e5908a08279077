"""``temper check-labels``: find rows whose label is probably wrong."""

from __future__ import annotations

from temper.api.check_labels import FOLDS, MODEL
from temper.api.check_labels import check_labels as check
from temper.api.keywords import TRAIN
from temper.api.nested import default_folder
from temper.cli import options
from temper.cli.predict import harmless
from temper.cli.screen import print_json, print_table, progress, say
from temper.errors import SettingError
from temper.files import write_text

SHOWN = 100
"""Maximum characters of a text in the printed table."""


def check_labels(
    data: options.LabeledData,
    *,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    rows: options.Rows = None,
    max_length: options.MaxLength = None,
    model: options.DefaultModel = None,
    embeddings: options.Embeddings = None,
    method: options.Method = None,
    epochs: options.CheckedEpochs = None,
    batch_size: options.BatchSize = None,
    learning_rate: options.LearningRate = None,
    seed: options.Seed = None,
    folds: options.Folds = FOLDS,
    device: options.Device = None,
    worst: options.Worst = 20,
    out: options.CheckedOut = None,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
) -> None:
    """Rank the rows of a file by how probable a wrong label is.

    Cross-validation: each row is predicted by models that were not trained on it. Its score is the
    cross-entropy of its label under this prediction, so the rows with the highest scores are the
    most suspicious. The suggested label is the most probable one. Takes about as long as --folds
    training runs.
    """
    tree = {"model": MODEL, **options.settings(TRAIN, locals())}
    if out is None:
        out = default_folder(tree, "check-labels", embeddings, folds).with_suffix(".csv")
    elif out.suffix != ".csv":
        raise SettingError(f"--out must be a .csv file, got {out}.")
    with progress() as screen:
        table = check(embeddings=embeddings, folds=folds, config=tree, progress=screen)
    out.parent.mkdir(parents=True, exist_ok=True)
    text = {name: table[name].map(harmless) for name in table if name != "score"}
    write_text(out, table.assign(**text).to_csv(index=False, lineterminator="\n"))
    first = table.head(worst).to_dict("records")
    if as_json:
        print_json({"out": str(out), "rows": len(table), "worst": first})
        return
    columns = ("row", "label", "suggested", "score", "text")
    shown = [{**row, "score": f"{row['score']:.2f}", "text": row["text"][:SHOWN]} for row in first]
    print_table(shown, columns)
    other = int((table["label"] != table["suggested"]).sum())
    say(f"Another label is more probable for {other:,} of {len(table):,} rows.")
    say(f"All rows, the highest score first: {out}")
