"""The first stage of ``temper tune --models``: which model to fine-tune.

Every model is trained with plain fine-tuning on the validation folds: with the given learning rate,
then with half and twice that rate until half of the budget is used. The model with the highest
improvement of the goal over the first model wins. The recipes are searched only for it.
"""

from __future__ import annotations

import time
from dataclasses import replace
from statistics import fmean, median
from typing import Any, Final

from temper.checkpoints.checkpoint import Checkpoint
from temper.errors import NonFiniteError
from temper.evaluation.loading import load_predictor
from temper.evaluation.perspectives.cost import passes
from temper.methods.recipes import PLAIN
from temper.study.cluster import Job
from temper.study.goals import improvement, part_scores
from temper.study.search import FOLDS, Candidate, Search

RATES: Final = (1.0, 0.5, 2.0)
"""Factors of the given learning rate; every model is trained with the first."""
BUDGET: Final = 0.5
"""Fraction of the budget after which no further rate is tried."""
TIMED_ROWS: Final = 100
TIMINGS: Final = 3


def compare_models(search: Search) -> dict[str, Any]:
    """Fine-tune the models of a request on the validation folds.

    Returns:
        ``used``, the cost in units of the budget, and ``models``, an entry per model and rate, best
        first. Each has ``model``, ``learning_rate``, ``improvement``, the mean score of each
        measured part of a goal (1 is perfect), ``train_seconds`` of a fold, and ``predict_ms``,
        milliseconds per row (None if the weights are in an object store).
    """
    models, lines = search.request.models, list[dict[str, Any]]()
    spent, baseline = 0.0, list[dict[str, float]]()
    cost = dict[str, float]()
    for factor in RATES:
        for model in models:
            first = factor == RATES[0]
            limit = BUDGET * search.request.budget.amount
            if not first and spent + cost[model] > limit:
                continue
            model_search = replace(search, request=search.request.of_model(model))
            rate = float(f"{factor * model_search.plain_run.train.learning_rate:.3g}")
            settings = {"method": {}, "train": {} if first else {"learning_rate": rate}}
            candidate = Candidate(model_search.recipes[PLAIN], settings)
            jobs = [model_search.job(candidate, fold) for fold in range(FOLDS)]
            begun = time.monotonic()
            try:
                model_search.run(jobs)
            except NonFiniteError as error:
                if first:
                    raise
                search.progress.notice(f"{model} failed at learning rate {rate:g}: {error}")
                continue
            elapsed = time.monotonic() - begun
            seconds = [job.train_seconds() for job in jobs]
            in_runs = search.request.budget.unit == "runs"
            # For runs finished before a stop, only the training time is known.
            cost[model] = search.fold_rows if in_runs else max(elapsed, sum(seconds))
            spent += cost[model]
            scores = [
                part_scores(job.run.path / "evaluation", model_search.measured) for job in jobs
            ]
            baseline = baseline or scores
            line: dict[str, Any] = {
                "model": model,
                "learning_rate": rate,
                "improvement": fmean(
                    improvement(mine, other, search.weights)
                    for mine, other in zip(scores, baseline, strict=True)
                ),
                **{part: fmean(score[part] for score in scores) for part in scores[0]},
                "train_seconds": fmean(seconds),
                "predict_ms": _predict_ms(model_search, jobs[0]),
            }
            lines.append(line)
            search.progress.info(
                f"{model} at learning rate {rate:g}: {100 * line['improvement']:+.1f}% "
                f"of the error of {models[0]} removed, accuracy {100 * line['accuracy']:.1f}%."
            )
    return {"used": spent, "models": sorted(lines, key=lambda line: -line["improvement"])}


def _predict_ms(search: Search, job: Job) -> float | None:
    cluster = search.request.cluster
    if cluster is not None and cluster.store is not None:
        return None
    model = Checkpoint.of(job.run.path)
    predictor = load_predictor(model, device=search.plain_run.train.device)
    rows = search.folds[0].dev
    rows = rows.sample(min(TIMED_ROWS, len(rows)), seed=0)
    timed = passes({"predict": lambda: predictor.predict(rows)}, repetitions=TIMINGS)
    return 1000 * float(median(timed["predict"])) / len(rows)
