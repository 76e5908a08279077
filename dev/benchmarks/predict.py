"""Throughput of `temper.Classifier`, with and without calibration, over Transformers' pipeline.

Run ``python -m dev.benchmarks.predict`` on an idle machine. It compares the stock pipeline of
Transformers, a `temper.Classifier` without calibration, and one with calibrated probabilities,
prediction sets, the Mahalanobis distance of hidden states, abstention and the test of shift. Texts
have one length or mixed lengths. Rounds are interleaved; the table has medians of clock and
processor time. The detector's fraction is the processor time for reading and scoring hidden states,
relative to the whole.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from transformers import pipeline

import temper
from dev.benchmarks.record import write
from temper.calibration.calibrate import calibrate
from temper.calibration.calibration import Detector
from temper.checkpoints.checkpoint import Checkpoint
from temper.display.wording import pipe_table
from temper.evaluation import session as reading
from temper.evaluation.request import EvaluationRequest
from temper.models.hf import load_classifier

BATCH, LENGTH = 32, 128
WORDS = "the a film was good bad and not very one of it that long plot cast story made for us"
LENGTHS: dict[str, tuple[int, int]] = {"one length": (24, 24), "mixed lengths": (3, 110)}
STOCK, PLAIN, WHOLE = "Transformers' pipeline", "temper.Classifier", "the same, calibrated"


def texts_of(kind: str, count: int, seed: int) -> list[str]:
    """Draw texts whose lengths are uniform in their logarithm."""
    draws, (least, most) = random.Random(f"{kind} {seed}"), LENGTHS[kind]
    sizes = (round(least * (most / least) ** draws.random()) for _ in range(count))
    return [" ".join(draws.choices(WORDS.split(), k=size)) for size in sizes]


def prepare(name: str, folder: Path) -> None:
    """Save a calibrated classifier whose labels make its accuracy about 80%."""
    torch.manual_seed(0)
    model, tokenizer = load_classifier(name, labels=("negative", "positive"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    texts = [text for kind in LENGTHS for text in texts_of(kind, 120, seed=1)]
    result = temper.Classifier.load(folder, max_length=LENGTH)(texts)
    draws = random.Random(0)
    with (folder / "held_out.csv").open("w", newline="", encoding="utf-8") as file:
        lines = csv.writer(file)
        lines.writerow(["text", "label"])
        for text, prediction in zip(texts, result, strict=True):
            other = next(name for name in prediction.probabilities if name != prediction.label)
            lines.writerow([text, other if draws.random() < 0.2 else prediction.label])
    tree = {"data": {"source": str(folder / "held_out.csv")}}
    calibrate(EvaluationRequest.of(tree, model=Checkpoint.of(folder)))


class Proportion:
    """Processor seconds of the detector: reading hidden states and scoring them."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def timed(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a function that adds up its time."""

        def called(*given: Any, **options: Any) -> Any:
            start = time.process_time()
            try:
                return function(*given, **options)
            finally:
                self.seconds += time.process_time() - start

        return called

    @contextmanager
    def counted(self) -> Iterator[None]:
        """Measure within the context."""
        score, states = Detector.score, reading.layer_means
        Detector.score, reading.layer_means = self.timed(score), self.timed(states)
        try:
            yield
        finally:
            Detector.score, reading.layer_means = score, states


def arms(folder: Path) -> dict[str, Callable[[list[str]], Any]]:
    """Return the predictors by name."""
    stock = pipeline(
        "text-classification", model=str(folder), device="cpu", batch_size=BATCH, top_k=None
    )
    whole = temper.Classifier.load(folder, max_length=LENGTH, batch_size=BATCH, device="cpu")
    plain = temper.Classifier(whole.predictor, batch_size=BATCH)
    return {
        STOCK: lambda texts: stock(texts, truncation=True, max_length=LENGTH),
        PLAIN: plain,
        WHOLE: lambda texts: whole(texts, coverage=0.9, abstain="anomaly,set>1"),
    }


def measure(folder: Path, rows: int, rounds: int) -> list[dict[str, Any]]:
    """Measure each kind of texts and each predictor, in rounds of random order."""
    predictors, fraction = arms(folder), Proportion()
    names = list(predictors)
    result = []
    for kind in LENGTHS:
        clock: dict[str, list[float]] = {name: [] for name in names}
        processor: dict[str, list[float]] = {name: [] for name in names}
        for number in range(rounds + 1):
            texts = texts_of(kind, rows, seed=2 + number)
            for name in names[number % 3 :] + names[: number % 3]:
                start, busy = time.perf_counter(), time.process_time()
                with fraction.counted():
                    predictors[name](texts)
                if not number:  # warm-up
                    fraction.seconds = 0.0
                    continue
                clock[name].append(time.perf_counter() - start)
                processor[name].append(time.process_time() - busy)
        middle = {name: statistics.median(clock[name]) for name in names}
        used = {name: statistics.median(processor[name]) for name in names}
        for name in names:
            result.append(
                {
                    "texts": kind,
                    "arm": name,
                    "texts_per_second": rows / middle[name],
                    "over_pipeline": middle[STOCK] / middle[name],
                    "processor_over_pipeline": used[STOCK] / used[name],
                    "detector_share": fraction.seconds / sum(processor[WHOLE]),
                    "seconds": clock[name],
                    "processor_seconds": processor[name],
                }
            )
        fraction.seconds = 0.0
    return result


def table_of(result: list[dict[str, Any]]) -> str:
    """Return the measurements as Markdown."""
    heads = ["texts", "classifier", "texts/s", "over pipeline", "by processor time", "detector"]
    lines = [
        [
            row["texts"],
            row["arm"],
            f"{row['texts_per_second']:.0f}",
            f"{row['over_pipeline']:.2f}",
            f"{row['processor_over_pipeline']:.2f}",
            f"{row['detector_share']:.1%}" if row["arm"] == WHOLE else "",
        ]
        for row in result
    ]
    return pipe_table(heads, lines)


def main() -> None:
    """Measure, print and save."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="minilm")
    parser.add_argument("--rows", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        prepare(given.model, Path(folder))
        result = measure(Path(folder), given.rows, given.rounds)
    print(table_of(result))
    content = {"model": given.model, "rows": given.rows, "batch": BATCH, "measured": result}
    print(f"Written to {write('predict', content)}")


if __name__ == "__main__":
    main()
