"""Precision of the rows that `temper check-labels` ranks first.

Run ``python -m dev.benchmarks.wrong_labels --data FOLDER --embeddings mpnet-base``; the folder
holds the datasets. In each dataset 5% of 1,000 training rows get a wrong label. The wrong class is
drawn in proportion to the confusions of a linear model on frozen embeddings. A user would review
the 50 rows with the highest loss. Precision is the fraction of these rows whose label was changed;
wrong labels of the original data count as false positives.

The last columns are the test accuracy of a linear model on frozen embeddings. It is trained on the
clean rows, on the rows with wrong labels, without the 50 rows, and after correcting the changed
labels among the 50 rows, as a user would.

The averaging of predictions and the number of epochs were chosen on MPQA (seed 0), which is not
reported by default.
"""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from dev.benchmarks.record import write
from temper.data.sources import load_examples
from temper.data.splitting import fold_of_rows
from temper.display.wording import pipe_table
from temper.functional.resampling import FloatArray, IntegerArray
from temper.study.alternatives import (
    choose_strength,
    embeddings,
    frozen_predictor,
    logistic_regression,
)
from temper.study.wrong_labels import label_losses, out_of_fold
from temper.training.config import RunConfig
from temper.training.prepared import label_names

SETS = {
    "sst2": ("sst2@train", "sst2@dev"),
    "trec": ("trec@train", "trec@test"),
    "ag_news": ("ag_news@train", "ag_news@test"),
    "mpqa": ("mpqa@all", None),
}
"""Dataset -> training and test rows."""
ROWS, FRACTION, WORST, TEST_ROWS, EPOCHS = 1000, 0.05, 50, 1000, 5.0


def with_wrong_labels(
    labels: IntegerArray, confusion: FloatArray, *, seed: int
) -> tuple[IntegerArray, IntegerArray]:
    """Change a fraction of the labels.

    Args:
        labels: True classes, [n].
        confusion: Weight of each wrong class (column) for each true class (row), [C, C].
        seed: Seed of the draw.

    Returns:
        The changed labels, and the indices of the changes.
    """
    draws = np.random.default_rng(seed)
    changed = draws.choice(len(labels), round(FRACTION * len(labels)), replace=False)
    wrong = labels.copy()
    for row in changed:
        weights = confusion[labels[row]] / confusion[labels[row]].sum()
        wrong[row] = draws.choice(len(weights), p=weights)
    return wrong, changed


def confusions(logs: FloatArray, labels: IntegerArray) -> FloatArray:
    """Count confusions of classes, [C, C], smoothed by 0.1."""
    result = np.full((logs.shape[1],) * 2, 0.1)
    np.add.at(result, (labels, logs.argmax(axis=1)), 1.0)
    np.fill_diagonal(result, 0.0)
    return result


def measure(name: str, arguments: argparse.Namespace, seed: int) -> dict[str, Any]:
    """Measure one dataset with one draw of wrong labels."""
    train, test = SETS[name]
    rows = load_examples(f"{arguments.data / train}").sample(ROWS, seed=0)
    labels, names = np.asarray(rows.labels, dtype=np.int64), tuple(label_names(rows))
    run = RunConfig.of(
        {
            "model": arguments.model,
            "seed": seed,
            "data": {"source": str(arguments.data / train)},
            "method": {"name": "plain"},
            "train": {"epochs": EPOCHS, "group_by_length": True},
        }
    )
    frozen = frozen_predictor(run.model_copy(update={"model": arguments.embeddings}), names)
    features = embeddings(frozen, rows)
    of_row = np.asarray(fold_of_rows(rows, 5, seed=seed))
    strength, logs = choose_strength(features, labels, of_row, classes=len(names))
    wrong, changed = with_wrong_labels(labels, confusions(logs, labels), seed=seed)
    given = replace(rows, labels=wrong.tolist(), label_names=names)
    results = out_of_fold(run, given, embedder=arguments.embeddings)
    worst: IntegerArray = np.argsort(-label_losses(results.probabilities, wrong))[:WORST]

    def precision(probabilities: FloatArray) -> float:
        first = np.argsort(-label_losses(probabilities, wrong))[:WORST]
        return float(np.isin(first, changed).mean())

    result: dict[str, Any] = {
        "set": name,
        "seed": seed,
        "linear": precision(results.linear),
        "fine-tuned": precision(results.fine_tuned),
        "both": precision(results.probabilities),
    }
    if test is None:
        return result
    tested = load_examples(f"{arguments.data / test}").map_labels(names)
    tested = tested.sample(min(TEST_ROWS, len(tested)), seed=0)
    test_features = embeddings(frozen, tested)
    fixed = wrong.copy()
    fixed[worst] = labels[worst]
    kept = np.setdiff1d(np.arange(ROWS), worst)
    everything = np.arange(ROWS)

    def accuracy(training: IntegerArray, given: IntegerArray) -> float:
        weight, bias = logistic_regression(
            features[training], given[training], classes=len(names), strength=strength
        )
        best = (test_features @ weight.T + bias).argmax(axis=1)
        return float((best == np.asarray(tested.labels)).mean())

    return result | {
        "clean": accuracy(everything, labels),
        "wrong": accuracy(everything, wrong),
        "removed": accuracy(kept, wrong),
        "fixed": accuracy(everything, fixed),
    }


def table_of(results: list[dict[str, Any]]) -> str:
    """Return the results as Markdown."""
    columns = list(dict.fromkeys(name for each in results for name in each))
    cells = [[each.get(column, "") for column in columns] for each in results]
    lines = [[f"{v:.3f}" if isinstance(v, float) else str(v) for v in line] for line in cells]
    return pipe_table(columns, lines)


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of the datasets.")
    parser.add_argument("--model", default="minilm", help="Model that is fine-tuned.")
    parser.add_argument("--embeddings", required=True, help="Encoder of the linear model.")
    parser.add_argument("--sets", nargs="+", default=["sst2", "trec", "ag_news"], choices=SETS)
    parser.add_argument("--seeds", nargs="+", type=int, default=[0])
    parser.add_argument("--out", default="wrong_labels", help="Name of the result.")
    arguments = parser.parse_args()
    results: list[dict[str, Any]] = []
    for name in arguments.sets:
        for seed in arguments.seeds:
            results.append(measure(name, arguments, seed))
            print(table_of(results), flush=True)
            models = {"model": arguments.model, "embeddings": Path(arguments.embeddings).name}
            write(arguments.out, {**models, "epochs": EPOCHS, "results": results})


if __name__ == "__main__":
    main()
