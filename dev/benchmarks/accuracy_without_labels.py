"""Error of the accuracy that Temper estimates without labels.

Run ``python -m dev.benchmarks.accuracy_without_labels --data FOLDER --runs RUN ...``; the folder
holds the datasets, and each run was made by ``temper train --model minilm --data FOLDER/sst2 --rows
1000 --seed SEED --out RUN``, or of ``FOLDER/ag_news`` or ``FOLDER/trec``.

The estimator, its interval and the tests that refuse an estimate were chosen on AG News and on
unchanged held-out rows of SST-2. They are evaluated on TREC, on held-out rows of SST-2 with small
changes, and on the shifted and attacked sets of the suite `sentiment`.

Each draw splits the validation rows into three parts. The first fits the temperature and the second
sets the thresholds, as in `temper calibrate`. The third part has new rows of the same distribution.
A batch has at most 200 rows of one set. Temper's estimate is compared with three others: the
accuracy of the held-out rows; the mean confidence after temperature scaling; and the fraction of
rows whose confidence exceeds a threshold, which is set so that this fraction equals the accuracy on
the held-out rows (Garg et al., arXiv 2201.04234).
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from dev.benchmarks.record import write
from temper import Classifier
from temper.calibration.calibration import Calibration, Detector, HeldOut, SetRule, middle
from temper.calibration.estimating import unlabeled_scores
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.data.perturbations import perturbed
from temper.data.sources import load_examples
from temper.data.suites.suite import find_sets, load_set, read_suite
from temper.display.wording import pipe_table
from temper.evaluation.blocks import labels_of
from temper.evaluation.loading import load_predictor
from temper.evaluation.prediction import Prediction
from temper.functional.calibration import fit_temperature
from temper.functional.detectors import Mahalanobis
from temper.functional.estimates import estimate_scores
from temper.functional.resampling import IntegerArray
from temper.functional.scores import macro_f1

VALIDATION = {"sst2": "sst2@dev", "ag_news": "ag_news@test", "trec": "trec@test"}
CHANGES = ("typos", "misspellings", "punctuation")
SAME, CHANGED, SHIFTED, ATTACKED = "same distribution", "small changes", "shifted", "attacked"
ATTACKS = ("textfooler", "pwws", "bae")
BATCH, READ, VALIDATION_ROWS = 200, 300, 1000
ESTIMATORS = ("held-out accuracy", "mean confidence", "thresholded confidence", "Temper")


@dataclass(frozen=True)
class Read:
    """The predictions of a model for the rows of one set.

    Args:
        kind: One of the four kinds of texts.
        labels: Class indices, [n].
        predictions: The uncalibrated predictions.
        states: Hidden states of the rows, [n, L, D].
    """

    kind: str
    labels: IntegerArray
    predictions: Prediction
    states: np.ndarray[Any, Any]


def sets_of(task: str, data: Path) -> Iterator[tuple[str, str, Examples]]:
    """Yield kind, name and rows of each set of a task, validation rows first."""
    rows = load_examples(f"{data / VALIDATION[task]}")
    rows = rows.sample(min(VALIDATION_ROWS, len(rows)), seed=0)
    yield SAME, SAME, rows
    for change in CHANGES:
        yield CHANGED, change, perturbed(rows, change)
    if task == "ag_news":
        yield SHIFTED, "description", load_examples(f"{data}/ag_news@train_desc_only")
        for attack in ATTACKS:
            source = f"{data}/adv_static_agnews@test_{attack}"
            yield ATTACKED, attack, load_examples(source)
    if task == "sst2":
        suite = read_suite("sentiment")
        result = find_sets(suite, data)
        for kind, sets in ((SHIFTED, result.shift), (ATTACKED, result.adversarial)):
            for name, each in sets.items():
                yield kind, name, load_set(each, suite.labels)


def measure(run: Path, data: Path, draws: int) -> list[dict[str, Any]]:
    """Return one record for each draw and set of one run."""
    checkpoint = Checkpoint.of(run)
    task = Path(checkpoint.data["source"]).name
    predictor: Any = load_predictor(checkpoint)
    detector = Detector(
        "mahalanobis",
        Mahalanobis.of(predictor.predict_with_states(checkpoint.training_rows(), batch_size=32)[1]),
    )
    sets: dict[str, Read] = {}
    for kind, name, rows in sets_of(task, data):
        if kind in (SHIFTED, ATTACKED):
            rows = rows.sample(min(READ, len(rows)), seed=0)
        rows = rows.map_labels(predictor.label_names)
        labels = labels_of(rows).astype(np.int64)
        sets[name] = Read(kind, labels, *predictor.predict_with_states(rows, batch_size=32))
    records = []
    for draw in range(draws):
        random = np.random.default_rng(draw)
        fit, kept, new = np.array_split(random.permutation(len(sets[SAME].labels)), 3)
        known = calibration(sets[SAME], fit, kept, detector)
        for name, whole in sets.items():
            # A changed row is new to the calibration only if the unchanged row is.
            among = new if whole.kind in (SAME, CHANGED) else np.arange(len(whole.labels))
            batch = random.choice(among, min(BATCH, len(among)), replace=False)
            classifier = Classifier(predictor, calibration=known)
            result = judge(classifier, whole, batch)
            records.append({"task": task, "texts": whole.kind, "set": name, "draw": draw, **result})
    return records


def calibration(
    rows: Read, fit: IntegerArray, held: IntegerArray, detector: Detector
) -> Calibration:
    """Return the calibration that `temper calibrate` makes from two parts of the rows."""
    logits = rows.predictions.logits
    assert logits is not None
    temperature = fit_temperature(rows.labels[fit], logits[fit]).value
    own, states = rows.predictions.take(held), rows.states[held]
    scores = detector.score(own, own, states)
    return Calibration(
        None,
        temperature,
        HeldOut(own, rows.labels[held].astype(np.float64), scores),
        SetRule("all", (0.9,)),
        detector,
        reference=middle(states[:BATCH]),
    )


def judge(classifier: Classifier, whole: Read, batch: IntegerArray) -> dict[str, Any]:
    """Return the true scores of a batch, every estimate, and whether Temper refuses it."""
    known = classifier.calibration
    assert known is not None
    assert known.held_out is not None
    assert known.detector is not None
    own, states, labels = whole.predictions.take(batch), whole.states[batch], whole.labels[batch]
    shift = classifier.shift(own, middle(states))
    assert shift is not None
    scores = unlabeled_scores(known, own, known.detector.score(own, own, states), shift)
    assert scores is not None
    held_out = known.held_out
    right = held_out.prediction.prediction == held_out.labels
    confidence = known.held_out_predictions.probabilities.max(axis=1)
    new = known.applied(own).probabilities.max(axis=1)
    threshold = np.sort(confidence)[int((~right).sum())]
    assert held_out.prediction.logits is not None
    assert own.logits is not None
    # Also for batches that Temper refuses, to measure the errors that the refusal avoids.
    ours = estimate_scores(held_out.labels, held_out.prediction.logits, own.logits)
    truth = {
        "accuracy": float((own.prediction == labels).mean()),
        "macro_f1": float(macro_f1(labels, own.prediction)),
    }
    estimates = (right.mean(), new.mean(), (new >= threshold).mean(), ours["accuracy"].value)
    errors = [100 * abs(each - truth["accuracy"]) for each in estimates]
    return {
        "accuracy": truth["accuracy"],
        "shifted": shift.shifted,
        "given": scores.accuracy is not None,
        **dict(zip(ESTIMATORS, map(float, errors), strict=True)),
        "macro-F1": 100 * abs(ours["macro_f1"].value - truth["macro_f1"]),
        **{f"{n} in": each.low <= truth[n] <= each.high for n, each in ours.items()},
    }


def table_of(records: list[dict[str, Any]]) -> str:
    """Return mean absolute errors by kind of texts, for batches with and without an estimate.

    If the tests of OOD scores and confidences refuse batches that the shift test accepts,
    another line has the errors with the shift test alone.
    """
    frame = pd.DataFrame(records)
    choices = {
        "given": frame["given"],
        "refused": ~frame["given"],
        "given by the shift test alone": ~frame["shifted"],
    }
    lines = []
    for (task, texts), group in frame.groupby(["task", "texts"], sort=False):
        for choice, chosen in choices.items():
            kept = group[chosen[group.index]]
            if kept.empty or (choice not in ("given", "refused") and kept["given"].all()):
                continue
            count = f"{len(kept)} of {len(group)}"
            errors = [f"{kept[name].mean():.1f}" for name in (*ESTIMATORS, "macro-F1")]
            inside = [f"{kept[f'{name} in'].mean():.0%}" for name in ("accuracy", "macro_f1")]
            lines.append([task, texts, choice, count, *errors, *inside])
    heads = ["task", "texts", "estimate", "batches", *ESTIMATORS, "macro-F1"]
    return pipe_table([*heads, "accuracy in interval", "macro-F1 in interval"], lines)


def main() -> None:
    """Measure, print the table and write the result."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--data", type=Path, required=True, help="Folder of the datasets.")
    parser.add_argument("--runs", type=Path, nargs="+", required=True, help="Trained runs.")
    parser.add_argument("--draws", type=int, default=10, help="Splits of the validation rows.")
    parser.add_argument("--out", default="accuracy_without_labels", help="Name of the result.")
    arguments = parser.parse_args()
    records: list[dict[str, Any]] = []
    for run in arguments.runs:
        result = measure(run, arguments.data, arguments.draws)
        records += [{"run": run.name, **each} for each in result]
        print(table_of(records), flush=True)
    frame = pd.DataFrame(records)
    by_set = frame.groupby(["task", "texts", "set", "given"], sort=False)
    means = by_set.mean(numeric_only=True).drop(columns="draw").round(4)
    batches = by_set.size().rename("batches")
    content = {
        "runs": [run.name for run in arguments.runs],
        "draws": arguments.draws,
        "means": pd.concat([batches, means], axis=1).reset_index().to_dict("records"),
    }
    print(f"Written to {write(arguments.out, content)}")


if __name__ == "__main__":
    main()
