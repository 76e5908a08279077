"""Choose a model, carry out a search, and compare its winner with plain fine-tuning on test rows.

``OUT/tune.json`` has the request and the result; ``journal.log`` is Optuna's, ``trials`` has the
runs, ``final`` the comparison with its report, and ``winner.toml`` settings for `temper train
--config`.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict, replace
from pathlib import Path
from statistics import fmean, median
from typing import Any, Final

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import RunFolder, difference_in_words, held_folder, read_json
from temper.checkpoints.identity import digest, model_identity
from temper.data.examples import Splits
from temper.errors import CheckpointError, ModelError, NonFiniteError, SettingError
from temper.evaluation.evaluate import evaluation_key, measure, stored_key
from temper.evaluation.loading import load_predictor
from temper.evaluation.perspectives.cost import passes
from temper.evaluation.sets import EvaluationSets
from temper.files import make_folder, write_json, write_text
from temper.methods.recipes import PLAIN, Recipe
from temper.progress import Progress
from temper.study.alternatives import Alternative, fit_alternative
from temper.study.cluster import Job
from temper.study.goals import ACCURACY, improvement, part_scores
from temper.study.plan import Column, StudyConfig
from temper.study.schedule import Study, checked_sets, reported, run_study
from temper.study.search import FOLDS, Candidate, Request, Search, dev_folds, run_search
from temper.study.work import evaluation_sets

RECORD, WINNER, FINAL = "tune.json", "winner.toml", "final"
GIVEN = "plain_given"
"""Name of plain fine-tuning with the given settings, the baseline if tuned `plain` wins."""
RATES: Final = (1.0, 0.5, 2.0)
"""Factors of the given learning rate; every model is trained with the first."""
BUDGET: Final = 0.5
"""Fraction of the budget after which no further rate is tried."""
TIMED_ROWS: Final = 100
TIMINGS: Final = 3


def carry_out(request: Request, splits: Splits, folder: Path, progress: Progress) -> dict[str, Any]:
    """Search, train the winner on all rows and evaluate it; return the content of ``tune.json``."""
    plan = request.comparison([Column(PLAIN, request.recipes[PLAIN].method)], request.seeds)
    recipes = _fitting(request, progress)
    checked_sets(plan, splits, progress)
    folds = dev_folds(splits, seed=plan.data.seed)
    search = Search(request, recipes, splits, folds, folder, progress)
    if splits.train.kind != "classification" and set(search.weights) != {ACCURACY}:
        raise SettingError(
            "This goal measures calibration or robustness, which need texts with exactly one "
            "class each. Pass --goal accuracy."
        )
    identity = _identity(search)
    before = read_json(folder / RECORD) if (folder / RECORD).exists() else {}
    if before and before["key"] != digest(identity):
        what = difference_in_words(before["request"], identity)
        raise CheckpointError(f"{folder} has another search: {what}. Choose another --out.")
    if before.get("status") == "finished":
        progress.notice(f"Up to date: {folder}")
        return before
    if request.budget.unit == "runs":
        # At least one training per model and fold.
        used = search.fold_rows * len(request.models)
        replace(search, request=replace(request, used=used)).allowed()
    record = {"key": digest(identity), "request": identity}
    kept: dict[str, Any] = {name: before[name] for name in ("models", "used") if name in before}
    cluster = request.cluster
    with held_folder(folder), nullcontext() if cluster is None else cluster.connection():
        write_json(folder / RECORD, {**record, **kept, "status": "searching"})
        if request.models:
            # Decided once: the stored trials belong to this model.
            kept = kept or compare_models(search)
            write_json(folder / RECORD, {**record, **kept, "status": "searching"})
            request = request.of_model(kept["models"][0]["model"], used=kept["used"])
            search = replace(search, request=request, recipes=_fitting(request, progress))
        return _finish(search, record | kept)


def compare_models(search: Search) -> dict[str, Any]:
    """Fine-tune the models of a request on the validation folds; one is then searched further.

    Every model is trained with plain fine-tuning: with the given learning rate, then with half and
    twice that rate until half of the budget is used. The model with the highest improvement of the
    goal over the first model wins.

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
            if not first and spent + cost[model] > BUDGET * search.request.budget.amount:
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
    device = search.plain_run.train.device
    predictor = load_predictor(Checkpoint.of(job.run.path), device=device)
    rows = search.folds[0].dev
    rows = rows.sample(min(TIMED_ROWS, len(rows)), seed=0)
    timed = passes({"predict": lambda: predictor.predict(rows)}, repetitions=TIMINGS)
    return 1000 * float(median(timed["predict"])) / len(rows)


def _finish(search: Search, record: dict[str, Any]) -> dict[str, Any]:
    request, folder, progress = search.request, search.folder, search.progress
    ranking, allowed = run_search(search)
    winner = ranking[0]
    plain = next(item for item in ranking if item.recipe.name == PLAIN)
    columns = [plain.column] if winner is plain else [plain.column, winner.column]
    if winner is plain and winner.settings["train"]:
        # The report then shows the gain that is due only to tuning.
        columns = [Column(GIVEN, plain.recipe.method), *columns]
    progress.info(
        f"The search is over: {winner.recipe.name} is best on the validation folds. Final "
        f"comparison: training on all {len(search.splits.train):,} rows."
    )
    record |= {
        "recipes": allowed.recipes,
        "ranking": [_line(candidate) for candidate in ranking],
        "winner": _line(winner),
        "plain": _line(plain),
    }
    write_json(folder / RECORD, {**record, "status": "comparing"})
    final = request.comparison(columns, request.seeds[: allowed.seeds])
    study = run_study(
        final, folder / FINAL, cluster=request.cluster, splits=search.splits, progress=progress
    )
    beside = [item for item in search.alternatives if item.name in allowed.alternatives]
    study, names = _with_alternatives(study, final, beside, search)
    run = final.runs[winner.recipe.name, final.seeds[0]]
    write_text(folder / WINNER, toml_of({"model": run.model, "seed": run.seed, **run.settings()}))
    summary = _summary(request.goal, winner, plain, study)
    if request.models:
        summary = f"{run.model} is the best of {len(request.models)} models. {summary}"
    record |= {"alternatives": names, "summary": summary, "status": "finished"}
    write_json(folder / RECORD, record)
    return record


def _fitting(request: Request, progress: Progress) -> dict[str, Recipe]:
    """Return the recipes that support model and data; raise if one that the user named does not."""
    fitting = {}
    for name, recipe in request.recipes.items():
        try:
            request.comparison([Column(name, recipe.method, dict(recipe.settings))], [0])
        except SettingError as error:
            if request.named or name == PLAIN:
                raise
            progress.notice(f"Skipping {name}: {error}")
        else:
            fitting[name] = recipe
    return fitting


def _identity(search: Search) -> dict[str, Any]:
    """Return the inputs that must be equal to resume a search; the budget may differ."""
    request, run = search.request, search.plain_run
    return {
        "model": search.identity,
        **({"models": [model_identity(name) for name in request.models]} if request.models else {}),
        "goal": search.weights,
        "recipes": {
            name: [recipe.method, recipe.settings, recipe.search]
            for name, recipe in request.recipes.items()
        },
        "train": run.train.deciding(),
        "max_length": run.data.max_length,
        **({} if run.data.windows is None else {"windows": asdict(run.data.windows)}),
        "seeds": list(request.seeds),
        "rows": {"train": search.splits.train.hash, "reported": search.splits.dev.hash},
    }


def _line(candidate: Candidate) -> dict[str, Any]:
    return {
        "recipe": candidate.recipe.name,
        "method": candidate.recipe.method,
        "settings": candidate.settings,
        "trial": candidate.trial,
        "improvement": candidate.value,
        "cost": candidate.cost,
    }


def _summary(goal: str, winner: Candidate, plain: Candidate, study: Study) -> str:
    if winner.recipe.name == PLAIN:
        rate = winner.settings["train"].get("learning_rate")
        if rate is None:
            return f"Keep plain fine-tuning with the given settings: no trial was better ({goal})."
        return (
            f"Keep plain fine-tuning, at learning rate {rate:g} with {winner.length:g}x the steps: "
            f"no recipe was better ({goal}). {study.comparison.headline}"
        )
    return (
        f"{study.comparison.headline} The search chose {winner.recipe.name} for {goal!r}. Its "
        f"training costs {winner.cost:.3g}x plain fine-tuning with the given settings; tuned plain "
        f"fine-tuning costs {plain.cost:.3g}x."
    )


def _with_alternatives(
    study: Study, plan: StudyConfig, beside: Sequence[Alternative], search: Search
) -> tuple[Study, list[str]]:
    """Evaluate the alternatives on the final sets and add them to the study and its report.

    Return the study and the names of the alternatives.
    """
    path, sets = study.folder, evaluation_sets(plan, search.splits)
    content = read_json(path / "study.json")
    plain = next(iter(content["runs"].values()))
    names: list[str] = []
    for alternative in beside:
        folders: dict[str, str] = {}
        first: Path | None = None
        for seed in plan.seeds:
            folder, begun = path / "runs" / f"{alternative.name}-s{seed}", time.monotonic()
            if alternative.seeded or first is None:
                try:
                    key = _evaluate(alternative, plan, seed, search, sets, folder)
                except ModelError as error:
                    search.progress.notice(f"Skipping {alternative.name}: {error}")
                    break
                first, seconds = folder, time.monotonic() - begun
            else:
                # Without random draws the result is the same for every seed.
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(first, folder)
            record = dict(Checkpoint.of(path / plain[str(seed)]).run or {})
            # An alternative has no model files.
            record.pop("files", None)
            record |= {"method": alternative.name, "seed": seed, "key": key, "passes": None}
            table = {"method": {"name": alternative.name}, "train": {}}
            record["settings"] = {**record["settings"], **table}
            record["times"] = {**record["times"], "train_seconds": seconds, "steps": 0}
            RunFolder(folder).write_record({**record, "notices": []})
            folders[str(seed)] = folder.relative_to(path).as_posix()
        else:
            content["columns"].append(
                {"name": alternative.name, "method": alternative.name, "settings": {}}
            )
            content["runs"][alternative.name] = folders
            names.append(alternative.name)
    if not names:
        return study, names
    write_json(path / "study.json", content)
    return reported(path), names


def _evaluate(
    alternative: Alternative,
    plan: StudyConfig,
    seed: int,
    search: Search,
    sets: EvaluationSets,
    folder: Path,
) -> str:
    """Fit and evaluate an alternative unless its folder has the result; return its key."""
    # Use the given settings, not the tuned ones.
    run, train, name = search.plain_run, search.splits.train, alternative.name
    evaluate, out = plan.evaluate, folder / "evaluation"
    cost = alternative.cost(run, len(train))
    identity = f"{name} {seed} {cost:g} {search.identity} {train.hash}"
    key = evaluation_key(identity, sets, evaluate, max_length=run.data.max_length)
    if stored_key(out) != key:
        predictor = fit_alternative(alternative, run, train, seed=seed)
        make_folder(folder)
        measure(
            predictor, sets, evaluate, out, model=name, key=key, run=key, progress=search.progress
        )
    return key


def toml_of(tree: Mapping[str, Any], *, above: tuple[str, ...] = ()) -> str:
    """Return tables of strings, numbers, booleans and lists as TOML; None is left out.

    Example:
        >>> print(toml_of({"model": "minilm", "train": {"epochs": 2.0}}), end="")
        model = "minilm"
        [train]
        epochs = 2.0
    """
    plain = {name: value for name, value in tree.items() if not isinstance(value, Mapping)}
    # JSON strings, numbers and lists are valid TOML, except for an unescaped DEL.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=True).replace(chr(127), chr(92) + 'u007f')}\n"
        for name, value in plain.items()
        if value is not None
    ]
    for name, table in tree.items():
        if isinstance(table, Mapping) and table:
            path = (*above, name)
            lines.append(f"[{'.'.join(path)}]\n{toml_of(table, above=path)}")
    return "".join(lines)
