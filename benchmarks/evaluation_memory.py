"""Memory of an evaluation against its number of rows: bytes that each further row costs.

Run ``python -m benchmarks.evaluation_memory``. A tiny random model answers generated rows, once few
and once many, each in a process of its own; the texts are there before the count begins. The figure
is the growth of the process's peak between the two, over the rows that ``rows.parquet`` has more:
what does not grow with the rows (the model, the libraries, a window of tokens, a block of bootstrap
resamples) falls out.
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import torch
from rich.console import Console
from transformers import AutoTokenizer, BertConfig, BertForSequenceClassification

from benchmarks.record import write
from benchmarks.workload import MODEL
from temper.data.examples import Examples
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import EvaluationData, EvaluationSettings, evaluate
from temper.evaluation.run import write as write_evaluation

TOKENS, BATCH, WORDS = 32, 64, 8
PROCESSES = 3
UNITS = ("rows", "grown")
VOCABULARY = ("film", "is", "good", "bad", "like", "you", "have", "seen", "again", "plot")
SETTINGS = EvaluationSettings(perspectives=("task", "calibration"), bootstrap=20)


def examples_of(rows: int) -> Examples:
    """Generate rows of two classes, all of them different."""
    draws = random.Random(0)
    texts = [f"{' '.join(draws.choices(VOCABULARY, k=WORDS))} {number}" for number in range(rows)]
    labels = [number % 2 for number in range(rows)]
    return Examples("dev", texts, labels=labels, kind="classification")


def predictor() -> ClassifierPredictor:
    """Return a random model so small that its activations weigh nothing."""
    tokenizer = AutoTokenizer.from_pretrained(MODEL)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
    )
    model = BertForSequenceClassification(config).eval()
    return ClassifierPredictor(model, tokenizer, max_length=TOKENS, batch_size=BATCH)


def peak() -> int:
    """Return the most memory that this process has held so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def measure(rows: int) -> dict[str, int]:
    """Evaluate so many rows and tell by how much the peak grew."""
    torch.set_num_threads(1)
    answering = predictor()
    evaluate(answering, EvaluationData(examples_of(500)), SETTINGS)
    data = EvaluationData(examples_of(rows))
    before = peak()
    with tempfile.TemporaryDirectory() as folder:
        found = evaluate(answering, data, SETTINGS)
        write_evaluation(found, Path(folder) / "evaluation")
    return {"rows": len(found.rows), "grown": peak() - before}


def _in_a_process(examples: int) -> dict[str, int]:
    """Measure in a process of its own, whose peak nothing before has raised."""
    command = [sys.executable, "-m", "benchmarks.evaluation_memory", "--measure", str(examples)]
    answer = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, int] = json.loads(answer.stdout)
    return found


def main() -> None:
    """Measure two numbers of rows, print bytes a row and write them down."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--few", type=int, default=20_000, help="examples of the first process")
    parser.add_argument("--many", type=int, default=100_000, help="examples of the second")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure is not None:
        sys.stdout.write(json.dumps(measure(arguments.measure)))
        return
    processes = [
        _in_a_process(examples)
        for _ in range(PROCESSES)
        for examples in (arguments.few, arguments.many)
    ]
    # Peaks of one and the same work differ by a fifth: the allocator keeps what it likes.
    few, many = (
        {name: statistics.median(each[name] for each in processes[start::2]) for name in UNITS}
        for start in (0, 1)
    )
    bytes_a_row = (many["grown"] - few["grown"]) / (many["rows"] - few["rows"])
    console = Console()
    console.print(f"{bytes_a_row:.0f} bytes a row of rows.parquet, beyond the texts")
    result = {"workload": {"perspectives": SETTINGS.perspectives}, "bytes_a_row": bytes_a_row}
    console.print(f"Written to {write('evaluation_memory', {**result, 'processes': processes})}")


if __name__ == "__main__":
    main()
