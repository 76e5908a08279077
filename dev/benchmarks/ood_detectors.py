"""AUROC of OOD detectors: softmax, last layer or all layers, fine-tuned or pre-trained weights.

Run ``python -m dev.benchmarks.ood_detectors --data FOLDER --runs RUN ...``; the folder holds the
datasets, and each run was made by ``temper train --model minilm --data FOLDER/sst2 --rows 1000
--seed SEED --out RUN``. Detectors are fitted on the run's training rows, and score validation rows
of SST-2 against texts of TREC, AG News, 20 Newsgroups and CoLA. No OOD text is used to fit or
choose one. All detectors read the mean of the hidden states over the tokens. *Nearest class* is the
distance of Lee et al. (NeurIPS 2018). The last two detectors need a second forward pass, through
the pre-trained weights.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

from dev.benchmarks.record import write
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.sources import load_examples
from temper.display.wording import pipe_table
from temper.evaluation.blocks import labels_of
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.loading import load_predictor
from temper.functional.detectors import Mahalanobis, auroc, max_softmax, shrunk_covariance
from temper.functional.resampling import FloatArray, IntegerArray
from temper.models.hf import load_classifier

States = np.ndarray[Any, Any]
OOD = {
    "TREC": "trec@test",
    "AG News": "ag_news@test",
    "20 Newsgroups": "newsgroups20_mini@all",
    "CoLA": "cola@dev",
}


def measure(run: Path, data: Path, rows: int) -> dict[str, dict[str, float]]:
    """Return the AUROC of each detector on each set."""
    checkpoint = Checkpoint.of(run)
    tuned = load_predictor(checkpoint)
    assert isinstance(tuned, ClassifierPredictor)
    names = tuned.label_names
    network, tokenizer = load_classifier(str(checkpoint.pretrained), labels=names)
    start = ClassifierPredictor(network, tokenizer, max_length=tuned.max_length, batch_size=32)
    sets: dict[str, Examples] = {
        "": load_examples(f"{data}/sst2@dev", labeled=False),
        **{name: load_examples(f"{data}/{path}", labeled=False) for name, path in OOD.items()},
    }
    scored: dict[str, dict[str, FloatArray]] = {}
    train = checkpoint.training_rows()
    of_tuned, of_start = (states_of(model, train) for model in (tuned, start))
    labels = labels_of(train).astype(np.int64)
    detectors = {
        "last": Mahalanobis.of(of_tuned[:, -1:]),
        "all": Mahalanobis.of(of_tuned),
        "start": Mahalanobis.of(of_start),
    }
    for name, examples in sets.items():
        texts = examples.sample(min(rows, len(examples)), seed=0)
        predictions, states = tuned.predict_with_states(texts, batch_size=32)
        every = detectors["all"].score(states)
        other = detectors["start"].score(states_of(start, texts))
        scored[name] = {
            "softmax": max_softmax(predictions.probabilities),
            "last layer, nearest class": nearest_class(of_tuned[:, -1], labels, states[:, -1]),
            "last layer": detectors["last"].score(states[:, -1:]),
            "all layers": every,
            "all layers of the starting weights": other,
            "mean of both": (every + other) / 2,
        }
    ordinary = scored.pop("")
    return {
        detector: {
            name: float(
                auroc(
                    np.repeat([0.0, 1.0], [len(scores), len(each[detector])]),
                    np.concatenate([scores, each[detector]]),
                )
            )
            for name, each in scored.items()
        }
        for detector, scores in ordinary.items()
    }


def nearest_class(known: States, labels: IntegerArray, rows: States) -> FloatArray:
    """Return each row's squared Mahalanobis distance to the nearest class mean, [n].

    Args:
        known: States of labeled rows, [m, D].
        labels: Their class indices, [m].
        rows: States, [n, D].
    """
    means = np.stack([known[labels == label].mean(axis=0) for label in np.unique(labels)])
    inverse = np.linalg.inv(shrunk_covariance(known - means[labels]))
    apart = rows[:, None] - means
    return np.asarray(np.einsum("ncd,de,nce->nc", apart, inverse, apart).min(axis=1))


def states_of(model: ClassifierPredictor, rows: Examples) -> States:
    """Return the mean over the tokens of every layer, [n, L, D]."""
    return np.asarray(model.predict_with_states(rows, batch_size=32)[1])


def table_of(results: list[dict[str, dict[str, float]]]) -> str:
    """Return mean and standard deviation over the runs in percent, as Markdown."""
    lines = []
    for detector in results[0]:
        values = np.array([[run[detector][name] for name in OOD] for run in results])
        values = 100 * np.c_[values, values.mean(axis=1)]
        means, spreads = values.mean(axis=0), values.std(axis=0, ddof=min(1, len(values) - 1))
        pairs = zip(means, spreads, strict=True)
        lines.append([detector, *(f"{mean:.1f} ± {spread:.1f}" for mean, spread in pairs)])
    return pipe_table(["detector", *OOD, "mean"], lines)


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of the datasets.")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="Trained runs.")
    parser.add_argument("--rows", type=int, default=500, help="Rows of each set.")
    parser.add_argument("--out", default="ood_detectors", help="Name of the result.")
    arguments = parser.parse_args()
    results: list[dict[str, dict[str, float]]] = []
    for run in arguments.runs:
        results.append(measure(run, arguments.data, arguments.rows))
        print(table_of(results), flush=True)
    names = [run.name for run in arguments.runs]
    content = {"runs": names, "rows": arguments.rows, "auroc": results}
    print(f"Written to {write(arguments.out, content)}")


if __name__ == "__main__":
    main()
