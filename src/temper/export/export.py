"""Export a classifier to a folder that does not need Temper (``temper export``).

The folder has a plain Transformers checkpoint, its calibration, and ``pipeline.py`` and
``shift.py``, copies of `temper.models.standalone`. They must give the predictions of
`temper.Classifier`, which is checked on some rows before the folder gets its final name.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass
from itertools import compress
from operator import eq
from pathlib import Path
from typing import Any, Self

from torch import Tensor

from temper.calibration.classifier import Classifier
from temper.calibration.files import copy_calibration
from temper.calibration.held_out import align_all
from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import check_output_folder, read_json
from temper.checkpoints.identity import CALIBRATION, digest, versions
from temper.data.collator import Collator
from temper.data.examples import Examples
from temper.display.wording import plural
from temper.errors import CheckpointError, ModelError
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.loading import check_kind, predictor_identity
from temper.evaluation.perspectives.registry import ONE_LABEL
from temper.evaluation.request import EvaluationRequest
from temper.evaluation.settings import PredictorSettings
from temper.files import checksums, put_back, staged_folder, write_json, write_text
from temper.functional.label_names import placeholders
from temper.models.adapters import is_adapted
from temper.models.classical import ARCHITECTURES
from temper.models.folders import save_model
from temper.models.onnx_files import INT8, ONNX, check_onnx_installed, quantize_onnx, write_onnx
from temper.models.standalone import pipeline
from temper.models.standalone.mean_pooled import MeanPooledConfig
from temper.progress import Progress
from temper.report.card import CARD, MARK, CardSources, card

FILE, PIPELINE, SHIFT, MEAN_POOLED = "export.json", "pipeline.py", "shift.py", "mean_pooled.py"
HOOKS = ("auto_map", "custom_pipelines")
"""Fields of config.json that refer to Python code; they are removed from an export."""
TOLERANCE, HALF_TOLERANCE = 1e-4, 1e-2
"""Allowed rounding difference of a number in a prediction, relative if it is above 1: of weights in
single precision and in half precision."""
_SENTENCE = "The plot was thin, and the cast made up for it."
SAMPLES = (
    *(" ".join([_SENTENCE] * times) for times in (1, 3, 60)),
    "a",
    "Good!",
    "It is 2026: 4 of 5 stars \u2605",
    "why not",
)
"""Texts that are compared by default: short, long and truncated ones, special characters."""


_ABSENT = object()


@dataclass(frozen=True)
class Likeness:
    """How well an export agrees with the model on the same rows.

    Args:
        alike: Number of rows with equal labels, prediction sets and flags.
        largest_difference: Largest difference of two numbers, relative if they are above 1.
        accuracy: Fraction of the labeled rows that the export predicts correctly; None without
            labels, and for a regression.
    """

    rows: int
    alike: int
    largest_difference: float
    accuracy: float | None = None

    @classmethod
    def of(
        cls,
        predictions: Sequence[Mapping[str, Any]],
        others: Sequence[Mapping[str, Any]],
        labels: Sequence[object] | None = None,
    ) -> Self:
        """Compare predictions by field; a field that only one has is an infinite difference."""
        parts = [list(_parts(*pair)) for pair in zip(predictions, others, strict=True)]
        numbers = [part for row in parts for part in row if isinstance(part, float)]
        right = None
        if labels is not None:
            predicted = [item.get("label", item.get("labels")) for item in others]
            right = sum(map(eq, predicted, labels)) / len(labels)
        alike = sum(all(part is not False for part in row) for row in parts)
        return cls(len(parts), alike, max(numbers, default=0.0), right)


def _parts(one: Any, other: Any) -> Iterator[float | bool]:
    """Yield the difference of each number in two predictions, and equality of each other value."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        for name in {**one, **other}:
            yield from _parts(one.get(name, _ABSENT), other.get(name, _ABSENT))
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for pair in zip(one, other, strict=True):
            yield from _parts(*pair)
    elif isinstance(one, float) and isinstance(other, float):
        yield abs(one - other) / max(1.0, abs(one))
    elif one is _ABSENT or other is _ABSENT:
        yield math.inf
    else:
        yield bool(one == other)


def export(
    model: Checkpoint,
    to: Path,
    *,
    onnx: bool = False,
    int8: bool = False,
    request: EvaluationRequest | None = None,
    max_length: int | None = None,
    settings: PredictorSettings | None = None,
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Export a classifier to a folder that runs without Temper.

    An adapter is merged into its base. The folder is written only if ``pipeline.py`` and
    ``model.onnx`` give the model's predictions, up to rounding and ties; it is never incomplete.
    The differences of ``model-int8.onnx`` are only recorded.

    Args:
        model: A run, a checkpoint or an adapter.
        to: Output folder; if it has the same export, nothing is done.
        onnx: Whether to write ``model.onnx`` too, for onnxruntime.
        int8: Whether to write ``model.onnx`` and ``model-int8.onnx``, a copy with 8-bit weights.
        request: Labeled rows to compare the predictions on; None uses a few fixed texts.
        max_length: Maximum tokens of a text; None uses that of the training.
        settings: Class names of the export, if they differ from the model's.
        progress: Receives notices.

    Returns:
        The content of ``export.json`` (docs/formats.md).

    Raises:
        CheckpointError: If the folder has different content.
        ModelError: If the model is not a plain Transformers classifier, or the predictions differ.
        SettingError: If the extra ``onnx`` is not installed.
    """
    progress = progress or Progress()
    put_back(to)
    check_output_folder(to, what=FILE, held=(to / FILE).exists, option="--out")
    if onnx or int8:
        check_onnx_installed("--onnx" if onnx else "--int8")
    classifier, predictor = _load(model, max_length, settings)
    rows = _rows(model, classifier, request)
    is_pooled = predictor.config.model_type == MeanPooledConfig.model_type
    files = (PIPELINE, SHIFT, *([MEAN_POOLED] if is_pooled else []))
    key = digest(
        {
            "model": predictor_identity(model, settings),
            "calibration": read_json(model.folder / CALIBRATION) if model.is_calibrated else None,
            "rows": None if request is None else rows.hash,
            "onnx": [onnx or int8, int8],
            "max_length": predictor.max_length,
            "pipeline": [_standalone(name) for name in files],
        }
    )
    if (to / FILE).exists():
        kept = read_json(to / FILE)
        if kept.get("key") != key:
            raise CheckpointError(
                f"{to} has another export: of another model, other rows or other options. Choose "
                "another --out, or remove that folder."
            )
        progress.notice(f"Up to date: {to}")
        return kept
    known = classifier.calibration
    labels = None if rows.labels is None or predictor.gives == "values" else _named(rows)
    expected = [prediction.record() for prediction in classifier.predict_examples(rows)]
    half = any(weight.dtype.itemsize < 4 for weight in predictor.model.parameters())
    with staged_folder(to) as staged:

        def compared(network: str | None) -> Likeness:
            predictions = pipeline.Pipeline(staged, network)(rows.text, rows.text_pair)
            return Likeness.of(expected, predictions, labels)

        _write_checkpoint(predictor, staged)
        copy_calibration(model, staged)
        for name in files:
            write_text(staged / name, _standalone(name))
        record: dict[str, Any] = {
            "key": key,
            "gives": predictor.gives,
            "labels": _labels(predictor),
            "states": known is not None and known.wants_states,
            "settings": {"data": {"max_length": predictor.max_length}},
            "compared": {"rows": len(rows), "hash": rows.hash, "source": rows.source},
        }
        # The files that the pipeline reads; checks and hashes follow.
        write_json(staged / FILE, record)
        likeness = {
            "model": Likeness.of(expected, expected, labels),
            PIPELINE: compared(None),
        }
        _refuse_unlike(model, PIPELINE, likeness[PIPELINE], half=half)
        if onnx or int8:
            progress.info("The network is written as ONNX; that takes a minute or two.")
            write_onnx(
                deepcopy(predictor.model).float(),
                _sample_batch(predictor),
                staged / ONNX,
                states=record["states"],
            )
            likeness[ONNX] = compared(ONNX)
            _refuse_unlike(model, ONNX, likeness[ONNX], half=half)
        if int8:
            quantize_onnx(staged / ONNX, staged / INT8)
            likeness[INT8] = compared(INT8)
        record["likeness"] = {name: asdict(item) for name, item in likeness.items()}
        write_text(staged / CARD, _card(model, staged, record))
        sums = {name: sum_ for name, sum_ in checksums(staged).items() if name != FILE}
        return write_json(staged / FILE, {**record, "versions": versions(), "files": sums})


def _load(
    model: Checkpoint, max_length: int | None, settings: PredictorSettings | None
) -> tuple[Classifier, ClassifierPredictor]:
    if model.kind != "weights":
        raise ModelError(
            f"{model} is code or a pipeline of another library. Export a classifier of "
            "Transformers: a run, a checkpoint or an adapter."
        )
    classifier = Classifier.load(model, max_length=max_length, device="cpu", settings=settings)
    predictor = classifier.predictor
    check_kind(predictor, model, (*ONE_LABEL, "multi_label"), what="An export")
    assert isinstance(predictor, ClassifierPredictor)
    kind = predictor.config.model_type
    if kind in ARCHITECTURES:
        raise ModelError(
            f"{model} is a {kind!r}, whose network is Temper's own: Transformers alone cannot load "
            "it. Export a fine-tuned Transformers model, or predict with `temper predict`."
        )
    if predictor.windows is not None:
        raise ModelError(
            f"{model} reads long texts in windows, and an export reads each text as one sequence. "
            "Predict with `temper predict` or `temper serve`, publish it with `temper push`, or "
            "pass --set predictor.max_windows=1 to export a model that truncates texts."
        )
    return classifier, predictor


def _rows(model: Checkpoint, classifier: Classifier, request: EvaluationRequest | None) -> Examples:
    """Return the rows to compare on, with labels in the class order of the model."""
    predictor = classifier.predictor
    if request is None:
        return Examples("samples", list(SAMPLES))
    rows = request.rows(predictor)
    return align_all(rows, predictor.label_names, source=request.data.source)


def _refuse_unlike(model: Checkpoint, name: str, found: Likeness, *, half: bool) -> None:
    allowed = HALF_TOLERANCE if half else TOLERANCE
    # With numbers that close, another label is a tie: thresholds are scores of held-out rows, and
    # those may be among the compared ones.
    ties = max(2, 0.01 * found.rows)
    if found.largest_difference > allowed or found.rows - found.alike > ties:
        raise ModelError(
            f"Nothing was written: the outputs of {name} differ from those of {model}. Numbers "
            f"differ by up to {found.largest_difference:.2g} (allowed for rounding: {allowed:g}), "
            f"and {found.rows - found.alike} of {found.rows} rows differ in label, prediction set "
            "or OOD flag."
        )


def _labels(predictor: ClassifierPredictor) -> list[str]:
    if predictor.gives == "values":
        return []
    return list(predictor.label_names or placeholders(predictor.config.num_labels))


def _sample_batch(predictor: ClassifierPredictor) -> dict[str, Tensor]:
    encoded = predictor.encoded(Examples("samples", list(SAMPLES[:2])))
    return Collator(predictor.tokenizer)([encoded[0], encoded[1]])


def _standalone(name: str) -> str:
    return (Path(pipeline.__file__).parent / name).read_text(encoding="utf-8")


def _write_checkpoint(predictor: ClassifierPredictor, folder: Path) -> None:
    network: Any = predictor.model
    if is_adapted(network):
        network = predictor.model = network.merge_and_unload()
    save_model(network, predictor.tokenizer, folder)
    for file in folder.glob("*.json"):
        content = json.loads(file.read_text(encoding="utf-8"))
        if isinstance(content, dict) and content.keys() & HOOKS:
            kept = {name: value for name, value in content.items() if name not in HOOKS}
            write_text(file, json.dumps(kept, indent=2) + "\n")
    for file in folder.glob("*.safetensors"):
        # safetensors makes files that only their owner may read.
        file.chmod((folder / "config.json").stat().st_mode)


def _card(model: Checkpoint, folder: Path, record: Mapping[str, Any]) -> str:
    """Return the text of the model card, with a section on how to run the export."""
    source = model.folder
    card_file = source / CARD
    if card_file.is_file() and MARK not in (text := card_file.read_text(encoding="utf-8")):
        return f"{text.rstrip()}\n\n## How to run it\n\n{_usage(record)}\n"
    name = source.resolve().name if source.is_dir() else model.name
    described = source if source.is_dir() else folder
    return card(CardSources(described, name=name, usage=_usage(record)))


def _usage(record: Mapping[str, Any]) -> str:
    files = [name for name in (ONNX, INT8) if name in record["likeness"]]
    lines = [
        "```python",
        "from pipeline import Pipeline  # pipeline.py of this folder: torch, numpy, Transformers",
        "",
        'predictions = Pipeline()(["a text", "another text"])',
        *(f'predictions = Pipeline(onnx="{name}")(["a text"])  # onnxruntime' for name in files),
        "```",
        "",
        f"Texts are cut at {record['settings']['data']['max_length']} tokens. Compared on "
        f"{plural(record['compared']['rows'], 'row')} with the model that was exported:",
        "",
        "| | accuracy | same label | largest difference |",
        "|---|---|---|---|",
    ]
    for name, item in record["likeness"].items():
        right = "" if item["accuracy"] is None else f"{item['accuracy']:.4f}"
        lines.append(
            f"| `{name}` | {right} | {item['alike'] / item['rows']:.2%} | "
            f"{item['largest_difference']:.1e} |"
        )
    return "\n".join(lines)


def _named(rows: Examples) -> list[Any]:
    names, labels = rows.label_names or (), rows.labels or ()
    if rows.kind == "multi_label":
        return [list(compress(names, label)) for label in labels]
    return [names[int(label)] for label in labels]
