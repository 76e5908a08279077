"""``temper predict``: label and probabilities for a file or for lines of stdin."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from temper.api.keywords import PREDICT
from temper.api.nested import check_loadable, of_paths, refuse, split_list
from temper.calibration.settings import known_backend
from temper.checkpoints.checkpoint import Checkpoint
from temper.cli import options
from temper.cli.screen import notice, print_json, print_table, say
from temper.data.choices import choices_of
from temper.data.columns import Columns
from temper.data.content import check_encoding
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.data.table import TableOptions
from temper.errors import DataError, SettingError, unknown
from temper.evaluation.settings import PredictorSettings
from temper.files import write_json, write_text
from temper.settings import section

if TYPE_CHECKING:
    from temper.calibration.classifier import Classifier
    from temper.calibration.predictions import CalibratedPredictions

FORMATS = (".jsonl", ".csv", ".json")
TEXTS = ("text", "text_pair")
RESERVED = {
    "row", *TEXTS, "choices", "label", "labels", "entities", "choice", "span", "completion",
    "value", "set", "interval", "low", "high", "anomaly", "anomalous", "abstain", "probabilities",
}  # fmt: skip
"""Names of the output fields."""
FORMULAS = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")
"""First characters of cells that spreadsheets treat as formulas, full-width signs included."""


def predict(
    model: options.AnyModel,
    *,
    data: options.NewData = None,
    text: options.Text = None,
    text_pair: options.TextPair = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    columns: options.Columns = None,
    max_length: options.ModelLength = None,
    gives: options.Gives = None,
    label_names: options.LabelNames = None,
    label_map: options.LabelMap = None,
    trust: options.Trust = None,
    coverage: options.Coverage = None,
    abstain: options.Abstain = None,
    max_risk: options.MaxRisk = None,
    device: options.Device = None,
    backend: options.Backend = "torch",
    batch_size: options.BatchRows = 32,
    out: options.PredictionsOut = None,
    raw: options.Raw = False,
    summary: options.Summary = None,
    assignments: options.Assignments = None,
    as_json: options.Json = False,
) -> None:
    """Predict the label of each text, with probabilities and an OOD score.

    After `temper calibrate`, the probabilities are calibrated, each text gets a prediction set and
    may be flagged as OOD, and the texts together are tested for a distribution shift. Output: a
    table for --text, else JSON lines; --json prints one JSON array, and --out FILE.csv writes a
    table with a probability column per label.
    """
    if text and data is not None:
        raise SettingError("--text and --data both give the texts. Leave one out.")
    if text_pair and len(text_pair) != len(text or []):
        raise SettingError(
            f"Pass one --text-pair for each --text, got {len(text_pair)} --text-pair and "
            f"{len(text or [])} --text."
        )
    source = None if text or data == "-" else data
    _check_files(out, summary, source, raw=raw)
    tree = options.known_settings(PREDICT, locals())
    reading = {name: value for name, value in tree.get("data", {}).items() if name != "max_length"}
    unread = [*reading, *([] if columns is None else ["columns"])]
    if unread and source is None:
        what = "--text is" if text else "Stdin has no columns, it is"
        names = ", ".join(f"`{name}`" for name in unread)
        raise SettingError(f"{what} plain text: leave {names} out, or pass a file with --data.")
    checkpoint = Checkpoint(model)
    refuse(partial(check_loadable, checkpoint), *of_paths({"data": {"source": source}}))
    from temper.evaluation.request import check_pairs

    if text:
        examples = Examples("texts", text, text_pair or None)
    elif source is None:
        examples = read_lines(sys.stdin.buffer.read())
    else:
        examples = _read_table(checkpoint, source, reading, columns=columns or "all")
    source_name = "these texts" if source is None else f"the rows of {source}"
    check_pairs(model, checkpoint.paired, examples.text_pair is not None, rows=source_name)
    # After the rows, so that an error in a file is reported before torch is imported.
    classifier = load_classifier(checkpoint, tree, batch_size=batch_size, backend=backend)
    terms = classifier.terms(coverage=coverage, abstain=abstain, max_risk=max_risk)
    result = classifier.predict_examples(examples, terms)
    for message in result.notices:
        notice(message)
    if summary is not None:
        write_json(summary, result.summary())
    predictions = joined(examples, result)
    if out is not None:
        _write(predictions, out, raw=raw, as_json=as_json)
    elif as_json:
        print_json(predictions)
    elif text:
        print_table(_shown(predictions))
    else:
        sys.stdout.write(lines(predictions))


def _check_files(out: Path | None, summary: Path | None, source: str | None, *, raw: bool) -> None:
    if out is not None and out.suffix not in FORMATS:
        raise SettingError(f"--out must end in {', '.join(FORMATS)}, got {out.name!r}.")
    for option, file in (("--out", out), ("--summary", summary)):
        if file is not None and not file.parent.is_dir():
            raise SettingError(
                f"The folder {file.parent} of {option} does not exist. Create it first."
            )
    if raw and (out is None or out.suffix != ".csv"):
        raise SettingError("--raw has an effect only with --out FILE.csv. Leave it out.")
    if out is not None and out.exists() and source is not None:
        read = Path(source).expanduser()
        if read.exists() and out.samefile(read):
            raise SettingError(f"--out {out} is the file that --data reads. Choose another --out.")


def load_classifier(
    model: Checkpoint | str, tree: Mapping[str, Any], *, batch_size: int, backend: str
) -> Classifier:
    """Load a model with the settings ``data.max_length`` and ``predictor`` of ``tree``."""
    from temper.calibration.classifier import Classifier

    return Classifier.load(
        model,
        max_length=tree.get("data", {}).get("max_length"),
        batch_size=batch_size,
        backend=known_backend(backend),
        settings=section(PredictorSettings, "predictor", tree.get("predictor", {})),
    )


def _read_table(
    model: Checkpoint, data: str, reading: Mapping[str, Any], *, columns: str
) -> Examples:
    """Read texts; by default with the columns and encoding of the model's training run."""
    examples = load_examples(
        data,
        columns=Columns(reading.get("text_column"), reading.get("text_pair_column")),
        labeled=False,
        reading=TableOptions(
            check_encoding(reading.get("encoding")) or model.encoding,
            reading.get("skip_bad_rows", False),
            others=columns != "none",
        ),
        known=model.columns,
    )
    for text in examples.notices:
        notice(text)
    if columns in ("all", "none"):
        return examples
    kept = split_list(columns, "--columns")
    for name in kept:
        if name not in examples.others:
            raise DataError(f"--columns: {unknown('column', name, examples.others)}")
    return replace(examples, others={name: examples.others[name] for name in kept})


def _write(predictions: list[dict[str, Any]], out: Path, *, raw: bool, as_json: bool) -> None:
    made = {".jsonl": lines, ".json": array}.get(out.suffix)
    write_text(out, table(predictions, raw=raw) if made is None else made(predictions))
    if as_json:
        print_json({"out": str(out), "rows": len(predictions)})
    else:
        say(f"Wrote {len(predictions)} predictions: {out}")


def _shown(predictions: list[dict[str, Any]]) -> list[dict[str, Any]]:
    rows = []
    for prediction in predictions:
        row: dict[str, Any] = {}
        if "value" in prediction:
            row["value"] = f"{prediction['value']:.4f}"
        elif "labels" in prediction:
            row["labels"] = ", ".join(prediction["labels"])
        elif "span" in prediction:
            row["answer"] = prediction["span"]["text"]
            row["probability"] = f"{prediction['span']['probability']:.4f}"
        elif "completion" in prediction:
            row["completion"] = prediction["completion"]
        elif "entities" in prediction:
            row["entities"] = ", ".join(
                f"{entity['text']} ({entity['label']} {entity['probability']:.2f})"
                for entity in prediction["entities"]
            )
        else:
            row["label"] = prediction["label"]
            picked = str(prediction.get("choice", prediction["label"]))
            row["probability"] = f"{prediction['probabilities'][picked]:.4f}"
        if "set" in prediction:
            row["set"] = ", ".join(prediction["set"])
        if "interval" in prediction:
            row["interval"] = " to ".join(f"{end:.4f}" for end in prediction["interval"])
        if "anomaly" in prediction:
            row["anomaly"] = (
                f"{prediction['anomaly']:.4f}{' !' if prediction.get('anomalous') else ''}"
            )
        if "abstain" in prediction:
            row["abstain"] = prediction["abstain"]
        rows.append({**row, **{name: prediction[name] for name in TEXTS if name in prediction}})
    return rows


def read_lines(content: bytes) -> Examples:
    """Read one text per line of stdin; `DataError` if it is empty or a line is not UTF-8."""
    texts = []
    for number, line in enumerate(content.splitlines(), start=1):
        try:
            texts.append(line.decode("utf-8"))
        except UnicodeDecodeError as error:
            raise DataError(
                f"Line {number} of stdin is not UTF-8 text (byte {error.start} of the line). "
                "Convert the input to UTF-8."
            ) from error
    if not texts:
        raise DataError(
            "Stdin is empty, expected one text per line. Pass --text, or a file with --data."
        )
    return Examples("stdin", texts)


def joined(examples: Examples, predictions: CalibratedPredictions) -> list[dict[str, Any]]:
    """Return one object per text, with the prediction.

    It has ``row`` (the number in the file, if rows were left out), ``text``, ``text_pair`` or
    ``choices`` if given, and the file's other columns. A column with the name of one of these
    fields gets the prefix ``input:``.
    """
    rows = []
    others = {}
    for name, values in examples.others.items():
        while name in others or name in RESERVED or name.startswith(("set:", "probability:")):
            name = f"input:{name}"
        others[name] = values
    for index, prediction in enumerate(predictions):
        row: dict[str, Any] = {}
        if not isinstance(examples.numbers, range):
            row["row"] = examples.numbers[index]
        row["text"] = examples.text[index]
        if examples.text_pair is not None and prediction.choice is not None:
            row["choices"] = choices_of(examples.text_pair[index])
        elif examples.text_pair is not None:
            row["text_pair"] = examples.text_pair[index]
        row |= {name: _as_json(values[index]) for name, values in others.items()}
        rows.append({**row, **prediction.record()})
    return rows


def _as_json(value: object) -> object:
    """Convert a value of a column to JSON: dates and bytes to text, NaN to null."""
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError):
        return None if isinstance(value, float) else str(value)
    return value


def lines(predictions: Iterable[dict[str, Any]]) -> str:
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in predictions)


def array(predictions: Iterable[dict[str, Any]]) -> str:
    return json.dumps(list(predictions), ensure_ascii=False, indent=2) + "\n"


def table(predictions: Iterable[dict[str, Any]], *, raw: bool = False) -> str:
    """Return CSV with a column ``probability:LABEL`` for every label.

    A prediction set has a column ``set:LABEL`` per label, 1 if the label is in it. An interval has
    ``low`` and ``high``. If ``raw``, texts that a spreadsheet would run are not escaped.
    """
    import pandas

    flat = []
    for row in predictions:
        probabilities = row.get("probabilities", {})
        nested = ("probabilities", "set", "interval", "labels", "entities", "choices", "span")
        plain = {name: value for name, value in row.items() if name not in nested}
        if not raw:
            plain = {name: harmless(value) for name, value in plain.items()}
        if "interval" in row:
            plain |= dict(zip(("low", "high"), row["interval"], strict=True))
        if "set" in row:
            plain |= {f"set:{label}": int(label in row["set"]) for label in probabilities}
        if "labels" in row:
            plain |= {"labels": "|".join(row["labels"])}
        if "choices" in row:
            plain |= {"choices": json.dumps(row["choices"], ensure_ascii=False)}
        if "span" in row:
            span = dict(row["span"]) if raw else {k: harmless(v) for k, v in row["span"].items()}
            plain |= {f"span:{name}": value for name, value in span.items()}
        if "entities" in row:
            plain |= {"entities": json.dumps(row["entities"], ensure_ascii=False)}
        flat.append(
            {**plain, **{f"probability:{label}": value for label, value in probabilities.items()}}
        )
    content: str = pandas.DataFrame(flat).to_csv(index=False, lineterminator="\n")
    return content


def harmless(value: Any) -> Any:
    """Put an apostrophe before a text that a spreadsheet would run, as OWASP recommends.

    Example:
        >>> harmless("=HYPERLINK(A1)"), harmless("a = b"), harmless(-1.5)
        ("'=HYPERLINK(A1)", 'a = b', -1.5)
    """
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
