"""Speed, accuracy and calibration of the 8-bit copy of a model on one CPU thread.

Run ``python -m dev.benchmarks.int8 --data FOLDER --models minilm mpnet-base --work FOLDER``; the
first folder holds SST-2 and TREC, the second stores the runs. Each model is fine-tuned on 500 rows
of SST-2 and calibrated on 500 others, once in fp32 and once as an 8-bit copy. Both are tested on
1,000 further rows of SST-2; TREC's questions are the out-of-distribution texts.

Batches of the development set are timed: one text, or 32 in the file's order. The predictors are
interleaved batch by batch. A time is the median over batches.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import pipeline

import temper
from dev.benchmarks.record import write
from temper.calibration.calibrate import calibrate
from temper.calibration.classifier import Classifier
from temper.calibration.predictions import CalibratedPredictions
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.display.wording import pipe_table
from temper.evaluation.request import EvaluationRequest
from temper.functional.calibration import expected_calibration_error
from temper.functional.detectors import auroc

ROWS, TEST_ROWS, OOD_ROWS, LENGTH = 500, 1000, 300, 128
TRAINING = {"minilm": (5.0, 2e-4), "mpnet-base": (3.0, 3e-5)}
"""The last part of a model's name -> its epochs and learning rate."""
COVERAGE = 0.9
STOCK, FP32, INT8 = "Transformers' pipeline", "Classifier", "Classifier, int8"
Predict = Callable[[list[str]], Any]


def held_out(data: Path, run: Checkpoint, file: Path) -> Examples:
    """Write rows for calibration and return test rows; the run was not trained on either."""
    rows = load_examples(f"{data / 'sst2'}@train").map_labels(("negative", "positive"))
    rows = rows.select(rows.apart([run.training_rows()])).sample(ROWS + TEST_ROWS, seed=1)
    names = rows.label_names or ()
    with file.open("w", newline="", encoding="utf-8") as stream:
        lines = csv.writer(stream)
        lines.writerow(["text", "label"])
        for index in range(0, len(rows), 3):
            lines.writerow([rows.text[index], names[int((rows.labels or ())[index])]])
    return rows.select([index for index in range(len(rows)) if index % 3])


def prepare(name: str, data: Path, work: Path) -> tuple[Path, Examples]:
    """Fine-tune a model and calibrate it twice; return its run and the test rows."""
    folder = work / Path(name).name
    epochs, learning_rate = TRAINING.get(Path(name).name, (3.0, 5e-5))
    temper.train(
        f"{data / 'sst2'}",
        model=name,
        method="plain",
        out=folder,
        rows=ROWS,
        eval_rows=200,
        epochs=epochs,
        learning_rate=learning_rate,
        device="cpu",
    )
    run, file = Checkpoint.of(folder), work / f"{folder.name}-held-out.csv"
    rows = held_out(data, run, file)
    request = EvaluationRequest.of({"data": {"source": str(file)}}, model=run)
    calibrate(request)
    calibrate(request, backend="int8")
    return folder, rows


def speed(arms: dict[str, Predict], texts: list[str], size: int, most: int) -> dict[str, float]:
    """Return the milliseconds per text of each predictor.

    Args:
        arms: The predictors by name.
        texts: Texts.
        size: Texts of a batch.
        most: Maximum number of batches, without the warm-up.
    """
    seconds: dict[str, list[float]] = {name: [] for name in arms}
    names = list(arms)
    for number in range(most + 1):
        batch = texts[number * size : (number + 1) * size]
        for name in names[number % len(names) :] + names[: number % len(names)]:
            start = time.perf_counter()
            arms[name](batch)
            if number:
                seconds[name].append(time.perf_counter() - start)
    return {name: 1000 * statistics.median(each) / size for name, each in seconds.items()}


def quality(classifier: Classifier, rows: Examples, ood: Examples) -> dict[str, Any]:
    """Measure a calibrated model: accuracy, calibration, sets and OOD detection."""
    result, odd = classifier(rows.text, coverage=COVERAGE), classifier(ood.text)
    names, labels = rows.label_names or (), np.asarray(rows.labels)
    assert result.own is not None
    own, scaled = result.own.probabilities, probabilities(result, names)
    correct = own.argmax(axis=1) == labels
    strange = [[each.anomaly or 0.0 for each in predictions] for predictions in (result, odd)]
    flags = np.repeat([0, 1], [len(rows), len(ood)])
    inside = [names[int(y)] in (row.set or ()) for y, row in zip(labels, result, strict=True)]
    return {
        "accuracy": float(correct.mean()),
        "ece": float(expected_calibration_error(correct, own.max(axis=1), bins=15)),
        "ece_scaled": float(expected_calibration_error(correct, scaled.max(axis=1), bins=15)),
        "coverage": float(np.mean(inside)),
        "ood_auroc": float(auroc(flags, np.concatenate(strange))),
        "predicted": own.argmax(axis=1).tolist(),
    }


def probabilities(
    predictions: CalibratedPredictions, names: tuple[str, ...]
) -> np.ndarray[Any, Any]:
    """Return the calibrated probabilities, [n, C]."""
    return np.asarray([[each.probabilities[name] for name in names] for each in predictions])


def measure(name: str, data: Path, work: Path, batches: int) -> list[dict[str, Any]]:
    """Measure one model; return a row for each predictor."""
    folder, rows = prepare(name, data, work)
    texts = list(load_examples(f"{data / 'sst2'}@dev").text)
    ood = load_examples(f"{data / 'trec'}@test", labeled=False).sample(OOD_ROWS, seed=0)
    stock = pipeline("text-classification", model=str(folder), device="cpu", top_k=None)
    models = {
        FP32: Classifier.load(folder, device="cpu"),
        INT8: Classifier.load(folder, backend="int8"),
    }
    plain = Classifier(models[INT8].predictor)
    arms: dict[str, Predict] = {
        STOCK: lambda given: stock(
            given, batch_size=len(given), truncation=True, max_length=LENGTH
        ),
        FP32: models[FP32],
        INT8: models[INT8],
        f"{INT8}, uncalibrated": plain,
    }
    times = {
        size: speed(arms, texts, size, most) for size, most in ((1, 4 * batches), (32, batches))
    }
    result = {arm: quality(model, rows, ood) for arm, model in models.items()}
    same = np.mean(np.equal(result[FP32].pop("predicted"), result[INT8].pop("predicted")))
    result[INT8]["same_label"] = float(same)
    return [
        {
            "model": Path(name).name,
            "arm": arm,
            "ms_1": times[1][arm],
            "over_pipeline_1": times[1][STOCK] / times[1][arm],
            "ms_32": times[32][arm],
            "over_pipeline_32": times[32][STOCK] / times[32][arm],
            **result.get(arm, {}),
        }
        for arm in arms
    ]


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    heads = [
        "model", "", "one text", "32 texts", "accuracy", "same label", "ECE", "calibrated ECE",
        "coverage of 90% sets", "OOD AUROC",
    ]  # fmt: skip
    fractions = ("accuracy", "same_label", "ece", "ece_scaled", "coverage", "ood_auroc")
    lines = [
        [
            row["model"],
            row["arm"],
            *(f"{row[f'ms_{n}']:.1f} ms ({row[f'over_pipeline_{n}']:.1f}x)" for n in (1, 32)),
            *(f"{100 * row[name]:.1f}" if name in row else "" for name in fractions),
        ]
        for row in results
    ]
    return pipe_table(heads, lines)


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of the datasets.")
    parser.add_argument("--models", nargs="+", default=["minilm"], help="Models to fine-tune.")
    parser.add_argument("--work", type=Path, required=True, help="Folder that keeps the runs.")
    parser.add_argument("--batches", type=int, default=12, help="Batches of 32 texts.")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    arguments.work.mkdir(parents=True, exist_ok=True)
    results: list[dict[str, Any]] = []
    for name in arguments.models:
        results += measure(name, arguments.data, arguments.work, arguments.batches)
        print(table_of(results), flush=True)
        print(f"Written to {write('int8', {'rows': TEST_ROWS, 'results': results})}")


if __name__ == "__main__":
    main()
