"""Search recipes and their settings with Optuna, on validation folds of the training rows.

TPE (Bergstra et al. 2011) proposes the settings of a trial, which trains on one fold after the
other; the median rule stops it early. Random draws depend only on the seed and on earlier trials,
so a stopped trial is repeated with the same settings and reuses its finished runs.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, Final

import optuna
from optuna.storages import JournalStorage
from optuna.storages.journal import JournalFileBackend
from optuna.trial import TrialState

from temper.checkpoints.identity import model_identity
from temper.cluster.machines import Cluster
from temper.data.examples import Splits
from temper.data.splitting import check_folds, folds
from temper.errors import DataError, NonFiniteError, SettingError
from temper.evaluation.settings import SetSources
from temper.methods.recipes import PLAIN, Recipe
from temper.progress import Progress
from temper.seeding import derive_seed
from temper.settings import Tree, override
from temper.study.alternatives import Alternative, alternatives
from temper.study.cluster import Job, do_runs
from temper.study.goals import (
    ACCURACY,
    ATTACKED,
    CALIBRATION,
    Budget,
    fold_evaluation,
    goal_weights,
    improvement,
    part_scores,
)
from temper.study.plan import Column, StudyConfig
from temper.study.work import StudyFolder, Work, evaluation_sets
from temper.training.config import RunConfig, run_key
from temper.training.cost import PLAIN as PASSES

PARTS: Final = 5
FOLDS: Final = 3
"""Number of folds of the training rows that trials are evaluated on."""
TRIAL_ROWS: Final = 1000
FOLD_ROWS: Final = 500
"""Maximum training and validation rows of a trial."""


def dev_folds(splits: Splits, *, seed: int) -> list[Splits]:
    """Split the training rows into folds; each has its validation rows as ``dev``.

    A fold that contains evaluation rows of the final comparison raises a `DataError`.
    """
    check_folds(splits.train)
    parts = folds(splits.train, PARTS, seed=seed)
    result = []
    for number in range(FOLDS):
        hashes = set(parts[number].rows)
        rest = splits.train.select(
            index for index, row in enumerate(splits.train.rows) if row not in hashes
        )
        judged = parts[number].sample(min(FOLD_ROWS, len(parts[number])), seed=seed)
        fold = Splits(
            rest.sample(min(TRIAL_ROWS, len(rest)), seed=seed),
            replace(judged, name="dev"),
            unlabeled=splits.unlabeled,
        )
        for name, rows in (("train", fold.train), ("dev", fold.dev)):
            reported = filter(None, (splits.dev, splits.test))
            if shared := sum(len(rows.overlap(other)) for other in reported):
                raise DataError(
                    f"{shared} {name} rows of a validation fold are also reported rows, so the "
                    "search would use test rows. Remove these texts from the training rows."
                )
        result.append(fold)
    return result


@dataclass(frozen=True)
class FoldFolder(StudyFolder):
    """A study folder of the search: its runs train and evaluate on validation fold ``fold``."""

    fold: int

    def splits(self) -> Splits:
        return dev_folds(super().splits(), seed=self.config.data.seed)[self.fold]


SPREAD: Final = 4.0
"""Maximum factor by which a trial multiplies or divides the given learning rate."""


@dataclass(frozen=True)
class Request:
    """The arguments of `temper.tune`.

    Args:
        base: Nested settings of all runs: ``model``, ``data``, ``train``, ``architecture``, and
            ``evaluate`` of the final comparison.
        recipes: Recipes by name, plain fine-tuning first.
        named: Whether the user named the recipes; then one that does not fit is an error.
        goal: The goal, unparsed.
        models: Models to compare on the validation folds first; empty for the model of ``base``.
        cluster: The Ray cluster; None for this process.
        used: Cost of comparing models, in units of the budget.
    """

    base: Tree
    sets: SetSources
    recipes: Mapping[str, Recipe]
    named: bool
    goal: str
    budget: Budget
    seeds: tuple[int, ...]
    models: tuple[str, ...] = ()
    cluster: Cluster | None = None
    used: float = 0.0

    @property
    def left(self) -> float:
        """Remaining budget for trials and the final comparison."""
        return self.budget.amount - self.used

    def of_model(self, model: str, *, used: float = 0.0) -> Request:
        return replace(self, base={**self.base, "model": model}, used=used)

    def comparison(self, columns: Sequence[Column], seeds: Sequence[int]) -> StudyConfig:
        evaluate = self.base.get("evaluate", {})
        if "perspectives" not in evaluate:
            attack = {"pgd": {"steps": 5}}
            evaluate = {"attack_rows": ATTACKED, "embedding_attack": attack, **evaluate}
        tree = {**self.base, "evaluate": evaluate}
        return StudyConfig.of(tree, columns=columns, seeds=seeds, sets=self.sets)


@dataclass(frozen=True)
class Candidate:
    """A recipe with the settings of one trial.

    Args:
        settings: Tables ``method`` and ``train``.
        length: Training steps, relative to the given settings.
        value: Mean improvement over the baseline on the validation folds.
        trial: Number of the trial.
    """

    recipe: Recipe
    settings: Tree = field(default_factory=lambda: {"method": {}, "train": {}})
    length: float = 1.0
    value: float = 0.0
    trial: int = 0

    @property
    def cost(self) -> float:
        """Cost of a training, relative to plain fine-tuning."""
        return self.recipe.passes / PASSES * self.length

    @property
    def column(self) -> Column:
        return Column(self.recipe.name, self.recipe.method, self.settings)


@dataclass(frozen=True)
class Allowed:
    """The parts of a search that fit into the budget.

    Args:
        recipes: Names of the recipes, plain fine-tuning first.
        seeds: Number of seeds of the final comparison.
        alternatives: Names of the alternatives in the final comparison.
        trial: Estimated cost of a trial of plain fine-tuning, in units of the budget.
        reserve: Estimated cost of the final comparison.
    """

    recipes: Sequence[str]
    seeds: int
    alternatives: Sequence[str]
    trial: float
    reserve: float


@dataclass(frozen=True)
class Search:
    """The state of a search that its trials share; model and data support its recipes."""

    request: Request
    recipes: Mapping[str, Recipe]
    splits: Splits
    folds: Sequence[Splits]
    folder: Path
    progress: Progress

    @cached_property
    def weights(self) -> dict[str, float]:
        return goal_weights(self.request.goal)

    @cached_property
    def measured(self) -> tuple[str, ...]:
        """Parts measured on each validation fold: accuracy, calibration and those of the goal."""
        always = [ACCURACY, CALIBRATION]
        if self.splits.train.kind != "classification":
            always.remove(CALIBRATION)
        return tuple(dict.fromkeys([*always, *self.weights]))

    @cached_property
    def plain_run(self) -> RunConfig:
        """Plain fine-tuning with the given settings."""
        return self._config(Candidate(self.recipes[PLAIN]), 0).any_run

    @cached_property
    def identity(self) -> str:
        return model_identity(self.plain_run.model)

    @cached_property
    def fold_rows(self) -> float:
        """Training rows of all folds, relative to all training rows."""
        return sum(len(fold.train) for fold in self.folds) / len(self.splits.train)

    @cached_property
    def alternatives(self) -> list[Alternative]:
        """Alternatives to the recipes (frozen embeddings, SetFit) that support model and rows."""
        return alternatives(self.plain_run, self.splits.train)

    def _config(self, candidate: Candidate, fold: int) -> StudyConfig:
        base = {name: table for name, table in self.request.base.items() if name != "evaluate"}
        tree = {**base, "evaluate": fold_evaluation(self.measured)}
        # The number of the fold is the seed of its run.
        return StudyConfig.of(tree, columns=[candidate.column], seeds=[fold], sets=SetSources())

    def job(self, candidate: Candidate, fold: int) -> Job:
        config = self._config(candidate, fold)
        ((cell, run),) = config.runs.items()
        key = run_key(run, self.folds[fold], identity=self.identity)
        return Job(FoldFolder(self.folder / "trials", config, {cell: key}, fold), cell)

    def run(self, jobs: Sequence[Job]) -> None:
        """Train and evaluate, reusing finished runs."""
        cluster = self.request.cluster
        if cluster is not None:
            with closing(do_runs(jobs, cluster, self.progress)) as done:
                list(done)
            return
        for job in jobs:
            splits = self.folds[job.cell[1]]
            work = Work(job.folder, splits, evaluation_sets(job.folder.config, splits))
            work.do(job.cell, progress=self.progress)

    def allowed(self, baseline: Any = None) -> Allowed:
        """Return the parts of the search that fit into the budget.

        A budget in runs counts rows. For one in seconds, ``baseline`` is a trial with at least one
        finished fold, whose time is the estimate.
        """
        budget, left, trial, run = self.request.budget, self.request.left, self.fold_rows, 1.0
        if budget.unit == "seconds":
            trial = FOLDS * _spent([baseline]) / len(baseline.user_attrs["scores"])
            # With few rows, evaluation takes most of the time, as in a final run.
            run = trial / min(1.0, self.fold_rows)
        costs = {name: Candidate(recipe).cost for name, recipe in self.recipes.items()}
        rivals = sorted((name for name in costs if name != PLAIN), key=costs.__getitem__)

        def least(name: str, seeds: int) -> float:
            return trial * (1 + costs[name]) + 2 * seeds * max(1.0, costs[name]) * run

        for seeds in range(len(self.request.seeds), 0, -1):
            names = [name for name in rivals if least(name, seeds) <= left]
            if names:
                break
        else:
            raise SettingError(
                f"--budget {budget.text(budget.amount)} is too small: plain fine-tuning, one other "
                f"recipe ({rivals[0]}) and the final comparison with one seed need at least "
                f"{budget.text(self.request.used + least(rivals[0], 1))}. Use a larger budget, "
                "fewer rows or epochs."
            )
        rows, beside = len(self.splits.train), {}
        for alternative in self.alternatives:
            cost = (
                (seeds if alternative.seeded else 1) * alternative.cost(self.plain_run, rows) * run
            )
            # Keep most of the budget for trials.
            if cost <= (left - least(names[0], seeds)) / 2:
                beside[alternative.name] = cost
        # Both sides of the comparison may be the most expensive recipe.
        reserve = 2 * seeds * max(1.0, costs[names[-1]]) * run + sum(beside.values())
        return Allowed([PLAIN, *names], seeds, list(beside), trial, reserve)


def run_search(search: Search) -> tuple[list[Candidate], Allowed]:
    """Run trials until the budget is used up.

    Returns:
        The candidates that finished all folds, best first, and the allowed parts of the search.
    """
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    study = optuna.create_study(
        study_name="tune",
        storage=JournalStorage(JournalFileBackend(str(search.folder / "journal.log"))),
        direction="maximize",
        pruner=optuna.pruners.MedianPruner(n_startup_trials=1),
        load_if_exists=True,
    )
    seed = search.plain_run.data.seed % 2**32
    while True:
        finished = _finished(study)
        study.sampler = optuna.samplers.TPESampler(
            seed=derive_seed(seed, "tune", len(finished)) % 2**32
        )
        # The first trial is the baseline: plain fine-tuning with the given settings.
        candidate = Candidate(search.recipes[PLAIN])
        if finished:
            allowed = _allowed(search, study)
            _enqueue(search, study, allowed)
        trial = study.ask()
        if finished:
            candidate = _suggest(search, trial, allowed)
            needed = candidate.cost * allowed.trial + allowed.reserve
            if _spent(finished) + needed > search.request.left + 1e-9:
                study.tell(trial, state=TrialState.FAIL)
                break
        value = _train(search, trial, candidate)
        study.tell(trial, value, state=TrialState.PRUNED if value is None else TrialState.COMPLETE)
        _report(search, _finished(study))
    candidates = [
        Candidate(
            search.recipes[trial.user_attrs["recipe"]],
            trial.user_attrs["settings"],
            trial.user_attrs["length"],
            trial.value,
            number,
        )
        for number, trial in enumerate(finished)
        if trial.state == TrialState.COMPLETE
    ]
    return sorted(candidates, key=lambda candidate: -candidate.value), allowed


def _finished(study: Any) -> list[Any]:
    states = (TrialState.COMPLETE, TrialState.PRUNED)
    return list(study.get_trials(deepcopy=False, states=states))


def _allowed(search: Search, study: Any) -> Allowed:
    """Return the allowed parts, fixed once, because Optuna needs a fixed set of recipes."""
    if "allowed" not in study.user_attrs:
        result = search.allowed(_finished(study)[0])
        study.set_user_attr("allowed", vars(result))
        wanted = [*search.recipes, *(alternative.name for alternative in search.alternatives)]
        skipped = [n for n in wanted if n not in (*result.recipes, *result.alternatives)]
        if skipped or result.seeds < len(search.request.seeds):
            search.progress.notice(
                f"The budget allows {result.seeds} of {len(search.request.seeds)} seeds in the "
                f"final comparison. Skipped: {', '.join(skipped) or 'nothing'}. For more, use a "
                "larger --budget."
            )
    return Allowed(**study.user_attrs["allowed"])


def _spent(trials: Iterable[Any]) -> float:
    return float(sum(trial.user_attrs["charge"] for trial in trials))


def _enqueue(search: Search, study: Any, allowed: Allowed) -> None:
    """Enqueue the recipe of the next trial, unless the sampler is to choose it."""
    if study.get_trials(states=(TrialState.WAITING,)):
        return
    spent = dict[str, float]()
    for trial in _finished(study):
        name = trial.user_attrs["recipe"]
        spent[name] = spent.get(name, 0.0) + _spent([trial])
    # Every recipe starts with its default settings.
    name = next((name for name in allowed.recipes if name not in spent), None)
    if name is not None:
        searched = search.recipes[name].search
        first = {f"{name}.{key}": initial for key, (_, initial, _) in searched.items()}
        study.enqueue_trial({"recipe": name, "rate": 1.0, f"{name}.length": 1, **first})
    # Plain fine-tuning gets the same budget as the others.
    elif spent[PLAIN] < max(spent.values()):
        study.enqueue_trial({"recipe": PLAIN})


def _report(search: Search, finished: Sequence[Any]) -> None:
    last, left = finished[-1].user_attrs, search.request.left - _spent(finished)
    folds = len(last["scores"])
    value = f"{100 * finished[-1].intermediate_values[folds]:+.1f}%" if folds else "failed"
    search.progress.info(
        f"Trial {len(finished) - 1}: {last['recipe']} {value} after {folds} of {FOLDS} folds; "
        f"{search.request.budget.text(max(left, 0))} left, including the final comparison."
    )


def _train(search: Search, trial: Any, candidate: Candidate) -> float | None:
    """Train on the folds; return the mean improvement, None if the trial failed or was pruned."""
    study, finished = trial.study, _finished(trial.study)
    scores = list[dict[str, float]]()
    trial.set_user_attr("recipe", candidate.recipe.name)
    trial.set_user_attr("settings", candidate.settings)
    trial.set_user_attr("length", candidate.length)
    baseline = finished[0].user_attrs["scores"] if finished else scores
    charge, value = 0.0, None
    # A cluster runs all folds at once.
    step = 1 if search.request.cluster is None else FOLDS
    for start in range(0, FOLDS, step):
        jobs = [search.job(candidate, fold) for fold in range(start, start + step)]
        begun = time.monotonic()
        try:
            search.run(jobs)
            scores += [part_scores(job.run.path / "evaluation", search.measured) for job in jobs]
        except NonFiniteError as error:
            if not finished:
                raise
            search.progress.notice(f"{candidate.recipe.name} failed: {error}")
            scores.clear()
        if search.request.budget.unit == "runs":
            rows = sum(len(search.folds[job.cell[1]].train) for job in jobs)
            charge += candidate.cost * rows / len(search.splits.train)
        else:
            name, elapsed = "+".join(job.key for job in jobs), time.monotonic() - begun
            # Runs that were finished before a stop have stored their seconds.
            if name not in study.user_attrs:
                study.set_user_attr(name, max(elapsed, *(job.train_seconds() for job in jobs)))
            charge += study.user_attrs[name]
        trial.set_user_attr("charge", charge)
        trial.set_user_attr("scores", scores)
        if not scores:
            return None
        if not finished:
            # A budget that is too small is reported as early as possible.
            search.allowed(trial)
        pairs = zip(scores, baseline, strict=False)
        value = fmean(improvement(mine, plain, search.weights) for mine, plain in pairs)
        trial.report(value, len(scores))
        if len(scores) < FOLDS and trial.should_prune():
            return None
    return value


def _suggest(search: Search, trial: Any, allowed: Allowed) -> Candidate:
    recipe = search.recipes[trial.suggest_categorical("recipe", list(allowed.recipes))]
    train = search.plain_run.train
    factor = trial.suggest_float("rate", 1 / SPREAD, SPREAD, log=True)
    values = {"train.learning_rate": factor * train.learning_rate}
    for name, (low, _, high) in recipe.search.items():
        values[name] = trial.suggest_float(f"{recipe.name}.{name}", low, high, log=True)
    pairs: list[tuple[tuple[str, ...], Any]] = [
        (tuple(name.split(".")), float(f"{value:.3g}")) for name, value in values.items()
    ]
    # A cheap recipe may train longer, up to the compute of the most expensive one.
    most = max(search.recipes[name].passes for name in allowed.recipes) / recipe.passes
    length = trial.suggest_int(f"{recipe.name}.length", 1, max(1, int(most)))
    if length > 1:
        steps = "epochs" if train.max_steps is None else "max_steps"
        pairs.append((("train", steps), getattr(train, steps) * length))
    return Candidate(recipe, override(recipe.settings, pairs), float(length))
