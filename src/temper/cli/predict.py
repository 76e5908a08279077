"""``temper predict``: label and probabilities for a file or for lines of stdin."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.cli import options
from temper.cli.screen import notice, print_json, say
from temper.errors import DataError, SettingError

if TYPE_CHECKING:
    from temper.data.examples import Examples
    from temper.evaluation.prediction import Prediction

FORMATS = (".jsonl", ".csv", ".json")


def predict(
    model: Annotated[str, typer.Argument(metavar="WHAT", help=options.MODEL_HELP)],
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data", help="File, folder or Hub id; `-` reads one text a line from stdin."
        ),
    ] = "-",
    out: Annotated[
        Path | None, typer.Option("--out", help="File to write: .jsonl, .json or .csv.")
    ] = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    max_length: options.MaxLength = None,
    batch_size: Annotated[
        int, typer.Option("--batch-size", min=1, help="Rows of a forward pass; changes no result.")
    ] = 32,
    device: options.Device = None,
    gives: options.Gives = None,
    label_names: options.LabelNames = None,
    trust: options.Trust = None,
    as_json: options.Json = False,
) -> None:
    """Write label, probabilities and a score of anomaly of every text as JSON lines.

    Where `temper calibrate` has stored a temperature, the probabilities are calibrated.
    With --json one JSON array is printed; with --out FILE.csv a table is written, one column a
    label.
    """
    if out is not None and out.suffix not in FORMATS:
        raise SettingError(f"--out must end in {', '.join(FORMATS)}, got {out.name!r}.")
    if out is not None and not out.parent.is_dir():
        raise SettingError(f"The folder {out.parent} of --out does not exist. Make it first.")
    if data == "-" and (text_column or text_pair_column or encoding or skip_bad_rows):
        raise SettingError(
            "Stdin has no columns, it is lines of UTF-8: leave --text-column, --text-pair-column, "
            "--encoding and --skip-bad-rows out, or give a file with --data."
        )
    from temper.data.columns import Columns
    from temper.data.content import check_encoding
    from temper.data.sources import load_examples
    from temper.data.table import TableOptions
    from temper.study.predictors import load_predictor, longest_row, trained_columns
    from temper.study.temperature import stored_temperature

    stored = stored_temperature(model)
    if data == "-":
        examples = read_lines(sys.stdin.buffer.read())
    else:
        examples = load_examples(
            data,
            columns=Columns(text_column, text_pair_column),
            labelled=False,
            reading=TableOptions(check_encoding(encoding), skip_bad_rows),
            known=trained_columns(model),
        )
        for text in examples.notices:
            notice(text)
    predictor = load_predictor(
        model,
        max_length=max_length,
        batch_size=batch_size,
        device=device,
        declared=options.declared(gives, label_names, trust),
    )
    prediction = predictor.predict(examples, batch_size=batch_size)
    if stored is not None:
        prediction = stored.applied(prediction)
        if longest_row(predictor) != stored.max_length:
            notice(
                f"The temperature of {model} was fitted on texts cut at {stored.max_length} "
                f"tokens, and these are cut at {longest_row(predictor)}."
            )
    if prediction.truncated:
        notice(
            f"{prediction.truncated:.1%} of the texts were cut at {longest_row(predictor)} tokens."
        )
    found = answers(examples, prediction, predictor.label_names)
    if out is None:
        if as_json:
            print_json(found)
        else:
            sys.stdout.write(lines(found))
        return
    from temper.training.checkpoint_folder import write_text

    write_text(out, {".jsonl": lines, ".json": array, ".csv": table}[out.suffix](found))
    if as_json:
        print_json({"out": str(out), "rows": len(found)})
    else:
        say(f"Wrote {len(found)} predictions: {out}", as_json=False)


def read_lines(content: bytes) -> Examples:
    """Read one text a line.

    Args:
        content: What came on stdin.

    Returns:
        The texts, as a set named ``stdin``.

    Raises:
        DataError: Where nothing came, or a line is not UTF-8.
    """
    from temper.data.examples import Examples

    texts = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"Line {number} of stdin is not UTF-8 text (byte {error.start} of it). Convert it."
            ) from error
    if not texts:
        raise DataError(
            "Stdin is empty, expected one text a line. Give texts, or a file with --data."
        )
    return Examples("stdin", texts)


def answers(
    examples: Examples, prediction: Prediction, names: tuple[str, ...] | None
) -> list[dict[str, Any]]:
    """Join texts and answers.

    Args:
        examples: The texts.
        prediction: What the model answered.
        names: Label names by index; None writes ``LABEL_0`` ...

    Returns:
        One object per text: ``text``, perhaps ``text_pair``, then ``label``, ``anomaly`` (1 less
        the largest probability) and ``probabilities``, or ``value`` of a regression.
    """
    found = []
    for place, text in enumerate(examples.text):
        row: dict[str, Any] = {"text": text}
        if examples.text_pair is not None:
            row["text_pair"] = examples.text_pair[place]
        if prediction.regression:
            row["value"] = float(prediction.prediction[place])
        else:
            shares = prediction.probabilities[place]
            labels = names or [f"LABEL_{index}" for index in range(len(shares))]
            row["label"] = labels[int(prediction.prediction[place])]
            row["anomaly"] = 1.0 - float(shares.max())
            row["probabilities"] = {
                label: float(share) for label, share in zip(labels, shares, strict=True)
            }
        found.append(row)
    return found


def lines(found: Iterable[dict[str, Any]]) -> str:
    """Write one JSON object a line."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found)


def array(found: Iterable[dict[str, Any]]) -> str:
    """Write one JSON array."""
    return json.dumps(list(found), ensure_ascii=False, indent=2) + "\n"


def table(found: Iterable[dict[str, Any]]) -> str:
    """Write CSV with a column ``probability:LABEL`` for every label."""
    flat = []
    for row in found:
        shares = row.get("probabilities", {})
        plain = {name: value for name, value in row.items() if name != "probabilities"}
        flat.append({**plain, **{f"probability:{label}": share for label, share in shares.items()}})
    text = io.StringIO()
    writer = csv.DictWriter(text, fieldnames=list(flat[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(flat)
    return text.getvalue()
