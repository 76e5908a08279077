"""Memory of an evaluation: bytes that each additional row needs.

Run ``python -m dev.benchmarks.evaluation_memory``. A tiny random model predicts a small and a large
number of generated rows, each in a separate process. A figure is the growth of the peak memory
divided by the growth of the rows in ``rows.parquet``. Memory that does not grow with the rows (the
model, the libraries, a window of tokens, a block of bootstrap resamples) cancels out. It needs
Linux's ``/proc``.

There are four figures. ``one prediction`` evaluates the task and its calibration without
temperature scaling, so a text has one row; its texts are in memory before the measurement. ``two
predictions`` has temperature scaling and two rows per text. ``from a file`` is ``one prediction``
with texts that are read from a CSV file during the measurement. ``from a file, long`` has texts
twelve times as long, which exceed the limit of texts in memory (`temper.data.stored`).
"""

from __future__ import annotations

import argparse
import csv
import ctypes
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import torch
from rich.console import Console
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from dev.benchmarks.record import resident, write
from dev.benchmarks.workload import minilm_folder
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate
from temper.evaluation.run import write as write_evaluation

TOKENS, BATCH, WORDS, LONG = 32, 64, 8, 96
FIGURES = ("one prediction", "two predictions", "from a file", "from a file, long")
VOCABULARY = ("film", "is", "good", "bad", "like", "you", "have", "seen", "again", "plot")
# Enough resamples to fill a block of the bootstrap in both processes, like the default 1,000.
SETTINGS = EvaluationSettings(perspectives=("task", "calibration"), bootstrap=50)


def texts_of(rows: int, *, words: int = WORDS) -> Iterator[str]:
    """Generate distinct texts."""
    draws = random.Random(0)
    return (f"{' '.join(draws.choices(VOCABULARY, k=words))} {number}" for number in range(rows))


def labeled(classifier: ClassifierPredictor, rows: int) -> list[int]:
    """Return labels; three in four equal the model's prediction, so a temperature can be fitted."""
    size, result = 1000, []
    texts = list(texts_of(rows))
    for start in range(0, rows, size):
        predictions = classifier.predict(Examples("part", texts[start : start + size])).prediction
        result += [
            int(prediction) ^ (index % 4 == 0) for index, prediction in enumerate(predictions)
        ]
    return result


def predictor() -> ClassifierPredictor:
    """Return a random model whose activations need almost no memory."""
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertForSequenceClassification(config).eval()
    with torch.no_grad():
        # Larger weights: with the initial ones, all texts get almost the same prediction.
        model.classifier.weight.mul_(50.0)
        model.classifier.bias.zero_()
    return ClassifierPredictor(model, tokenizer, max_length=TOKENS, batch_size=BATCH)


def begin() -> int:
    """Start to measure: release free memory, reset the peak, and return the memory in use."""
    # Memory that the allocator keeps would be reused and hide an equal amount of growth.
    ctypes.CDLL(None).malloc_trim(0)
    pa.default_memory_pool().release_unused()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    return resident("VmRSS")


def measure(rows: int, figure: str, folder: Path) -> dict[str, int]:
    """Evaluate some texts and return the growth of the peak memory.

    Args:
        rows: Number of texts.
        figure: One of `FIGURES`.
        folder: Folder with the files of `prepare`.
    """
    torch.set_num_threads(1)
    classifier = predictor()
    few = Examples("dev", list(texts_of(500)), labels=[0, 1] * 250, kind="classification")
    evaluate(classifier, EvaluationData(few), SETTINGS)
    source = folder / f"{figure}-{rows}.csv"
    if figure.startswith("from"):
        load_examples(str(folder / "warm.csv"))
        before = begin()
        dev = load_examples(str(source))
    else:
        labels = [number % 2 for number in range(rows)]
        if figure == "two predictions":
            labels = [int(digit) for digit in source.with_suffix(".txt").read_text("ascii")]
        dev = Examples("dev", list(texts_of(rows)), labels=labels, kind="classification")
        before = begin()
    with tempfile.TemporaryDirectory() as target:
        result = evaluate(classifier, EvaluationData(dev), SETTINGS)
        write_evaluation(result, Path(target) / "evaluation")
    return {"rows": len(result.rows), "grown": resident("VmHWM") - before}


def prepare(rows: int, figure: str, folder: Path) -> None:
    """Write the input of a process: labels for the temperature, or texts in a file."""
    source = folder / f"{figure}-{rows}.csv"
    if figure == "two predictions":
        torch.set_num_threads(1)
        labels = labeled(predictor(), rows)
        source.with_suffix(".txt").write_text("".join(map(str, labels)), encoding="ascii")
    if figure.startswith("from"):
        words = LONG if figure.endswith("long") else WORDS
        for path, size in ((source, rows), (folder / "warm.csv", 500)):
            with path.open("w", newline="", encoding="utf-8") as file:
                lines = csv.writer(file)
                lines.writerow(["text", "label"])
                texts = texts_of(size, words=words)
                lines.writerows((text, number % 2) for number, text in enumerate(texts))


def _in_a_process(rows: int, figure: str, folder: Path, *, ask: str = "measure") -> dict[str, int]:
    """Run a function of this module in a new process, whose peak has not been raised yet."""
    command = [sys.executable, "-m", "dev.benchmarks.evaluation_memory", f"--{ask}", str(rows)]
    command += ["--figure", figure, "--folder", str(folder)]
    process = subprocess.run(command, check=True, capture_output=True, text=True)
    result: dict[str, int] = json.loads(process.stdout or "{}")
    return result


def compare(figure: str, sizes: tuple[int, int], processes: int) -> dict[str, object]:
    """Measure two numbers of rows; return the bytes per row and the numbers of every process."""
    few, many = sizes
    with tempfile.TemporaryDirectory() as folder:
        for rows in sizes:
            _in_a_process(rows, figure, Path(folder), ask="prepare")
        result = {
            rows: [_in_a_process(rows, figure, Path(folder)) for _ in range(processes)]
            for rows in sizes
        }
    # The median, because the peaks of identical work differ by what the allocator keeps.
    grown = {rows: statistics.median(each["grown"] for each in result[rows]) for rows in sizes}
    more = result[many][0]["rows"] - result[few][0]["rows"]
    a_row = (grown[many] - grown[few]) / more
    return {"bytes_a_row": a_row, "processes": [each for rows in sizes for each in result[rows]]}


def main() -> None:
    """Measure two numbers of rows for each figure; print and save the bytes per row."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--few", type=int, default=50_000, help="texts of the first process")
    parser.add_argument("--many", type=int, default=200_000, help="texts of the second")
    parser.add_argument("--processes", type=int, default=3, help="of each size; the median is used")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--prepare", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--figure", choices=FIGURES, help="measure only this figure")
    parser.add_argument("--folder", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        result = measure(arguments.measure, arguments.figure, arguments.folder)
        sys.stdout.write(json.dumps(result))
        return
    if arguments.prepare is not None:
        prepare(arguments.prepare, arguments.figure, arguments.folder)
        return
    sizes = (arguments.few, arguments.many)
    console, figures = Console(), {}
    for figure in FIGURES if arguments.figure is None else (arguments.figure,):
        figures[figure] = compare(figure, sizes, arguments.processes)
        console.print(f"{figure}: {figures[figure]['bytes_a_row']:.0f} bytes per row")
    if arguments.figure is None:
        content = {"workload": {"perspectives": SETTINGS.perspectives}, "figures": figures}
        console.print(f"Written to {write('evaluation_memory', content)}")


if __name__ == "__main__":
    main()
