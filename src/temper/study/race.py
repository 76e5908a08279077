"""Race recipes and their settings on dev folds carved from the training rows, within a budget.

Optuna proposes (TPE, Bergstra et al. 2011) and stops early what does not lead (successive halving,
Jamieson & Talwalkar 2016; asynchronous, Li et al. 2020); its journal lies in the out folder. A
trial is a run on each of three folds; a finished run is kept, a stopped one goes on, and each
trial's draws are a function of the seed and its number, so that a race that was killed is the race
that was not.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import Any, Final

from temper.app.alternatives import Alternative, fit_alternative
from temper.app.measure import measure
from temper.app.settings import SetSources
from temper.data.examples import Splits
from temper.errors import ModelError, NonFiniteError, SettingError
from temper.methods.recipes import PLAIN, Recipe
from temper.seeding import derive_seed
from temper.study.budget import IN_RUNS, Budget, Pace
from temper.study.cluster import Job, Machines
from temper.study.contenders import Contender, Field
from temper.study.dev_folds import FOLDS, FoldFolder, dev_folds
from temper.study.goals import fold_evaluation, improvement, part_scores
from temper.study.plan import Column, StudyConfig
from temper.study.work import Work, evaluation_sets
from temper.training.assignments import Tree, override
from temper.training.config import model_identity, run_key
from temper.training.passes import PLAIN as PASSES
from temper.training.progress import Progress

SPREAD: Final = 4.0
"""A trial's learning rate is at most so many times the given one, or a part of it."""
FULLER: Final = 10.0
"""How much longer it takes to judge a model in the final part than on a fold."""


@dataclass
class Race:
    """A race between its start and its winner.

    Args:
        base: Nested settings that all trials share: ``model``, ``data``, ``train`` ...
        splits: The rows.
        recipes: The contenders by name; ``plain`` is among them.
        weights: Weights of the goal's parts.
        budget: What it may take.
        seeds: How many seeds the final part has at most.
        out: The out folder.
        progress: Hears of trials.
        alternatives: What a user may pick in place of fine-tuning, judged too.
        machines: A cluster that does the runs, as many at once as it can; None does one here.
    """

    base: Tree
    splits: Splits
    recipes: Mapping[str, Recipe]
    weights: Mapping[str, float]
    budget: Budget
    seeds: int
    out: Path
    progress: Progress
    alternatives: Sequence[Alternative]
    machines: Machines | None = None
    study: Any = field(init=False)

    def __post_init__(self) -> None:
        """Cut the folds, and check what a budget in runs allows before any work."""
        self.plain_run = self._config(self.reference().column, 0).any_run
        # The seed of the data decides the race.
        seed = self.plain_run.data.seed
        self.seed, self.folds = seed % 2**32, dev_folds(self.splits, seed=seed)
        self.width = 1 if self.machines is None else max(1, self.machines.runs)
        self.identity = model_identity(self.plain_run.model)
        if self.budget.unit == "runs":
            self._allowed(IN_RUNS)

    def reference(self) -> Contender:
        """Return plain fine-tuning at the given settings, which every trial is held against."""
        return Contender(self.recipes[PLAIN], {"method": {}, "train": {}})

    def run(self) -> tuple[list[Contender], Field]:
        """Race until the budget is used up.

        Returns:
            What finished all folds, the best first; and what was in the race.

        Raises:
            SettingError: The budget is too small; it says the least.
            TemperError: A run cannot be done.
        """
        import optuna
        from optuna.storages import JournalStorage
        from optuna.storages.journal import JournalFileBackend

        optuna.logging.set_verbosity(optuna.logging.WARNING)
        self.out.mkdir(parents=True, exist_ok=True)
        self.study = optuna.create_study(
            study_name="race",
            storage=JournalStorage(JournalFileBackend(str(self.out / "journal.log"))),
            direction="maximize",
            pruner=optuna.pruners.SuccessiveHalvingPruner(
                min_resource=1, reduction_factor=FOLDS, min_early_stopping_rate=0
            ),
            load_if_exists=True,
        )
        if not self.study.trials:
            self.study.enqueue_trial({}, user_attrs={"recipe": PLAIN})
        self._race(optuna)
        return self._finished(optuna), self._field()

    def _race(self, optuna: Any) -> None:
        """Do trials, in rounds of as many runs as are done at once, until none fits the budget.

        A round is kept before it is begun, so that one that was stopped is done to its end.
        """
        while True:
            rounds = [
                tuple(run)
                for run in self.study.user_attrs.get("round", [])
                if self._is_due(*run, optuna=optuna)
            ]
            planned = rounds or self._plan(optuna)
            if not planned:
                return
            self.study.set_user_attr("round", planned)
            self._do(planned, optuna)

    def _is_due(self, number: int, fold: int, *, optuna: Any) -> bool:
        """Say whether a trial is under way and has not heard of a fold."""
        trial = self.study.trials[number]
        is_under_way = trial.state == optuna.trial.TrialState.RUNNING
        return bool(is_under_way) and fold >= len(self._done(trial))

    def _plan(self, optuna: Any) -> list[tuple[int, int]]:
        """Return the runs of the next round, trial and fold: as far as the budget allows.

        Trials under way come first; then others are begun until there are as many as runs are done
        at once. The reference is alone at first: without it nothing can be said.
        """
        states = optuna.trial.TrialState
        running = states.RUNNING
        for trial in self.study.trials:
            # A stop may come between what a trial hears and its end.
            done = self._done(trial)
            if trial.state == running and done and done[-1]["scores"] is None:
                self.study.tell(trial.number, state=states.FAIL)
            elif trial.state == running and len(done) == FOLDS:
                self.study.tell(trial.number, self._value(done))
        under_way = [trial.number for trial in self.study.trials if trial.state == running]
        planned: dict[tuple[int, int], float] = {}
        pending: defaultdict[str, float] = defaultdict(float)
        begun, goes_on = 0, True
        while begun < self.width:
            if under_way:
                number = under_way.pop(0)
            elif not goes_on or (begun and not self.study.trials[0].state.is_finished()):
                break
            else:
                number = self._begin(pending, optuna)
            begun += 1
            contender = self._contender(self._trial(number, optuna))
            heard = len(self._done(self.study.trials[number]))
            if not number and heard:
                # A budget that is too small is told as soon as it is known.
                self._allowed(self._pace(), told=False)
            own = {
                (number, fold): contender.cost * self._share(fold)
                for fold in self._next_folds(number, heard)
            }
            if number and not self._fits([*planned.values(), *own.values()]):
                self.study.tell(number, state=states.PRUNED)
                goes_on = False
                continue
            planned |= own
            pending[contender.recipe.name] += sum(own.values())
        return list(planned)

    def _next_folds(self, number: int, done: int) -> range:
        """Return the folds that a trial does next: the others wait for what the first came to."""
        if self.width == 1:
            return range(done, done + 1)
        return range(done, FOLDS if done or not number else 1)

    def _begin(self, pending: Mapping[str, float], optuna: Any) -> int:
        """Begin a trial, and return its number.

        Args:
            pending: What the runs of the round that is planned cost, by recipe.
            optuna: The library.
        """
        if self.study.trials[0].state.is_finished():
            for alternative in self._field().alternatives:
                self._judge(alternative)
            self._propose(pending, optuna)
        return int(self.study.ask().number)

    def _trial(self, number: int, optuna: Any) -> Any:
        """Return a trial under way as Optuna takes reports of it and asks for its settings."""
        self.study.sampler = optuna.samplers.TPESampler(
            seed=derive_seed(self.seed, "race", number) % 2**32,
            # Of trials whose end is not known.
            constant_liar=self.width > 1,
        )
        return optuna.trial.Trial(self.study, self.study.trials[number]._trial_id)

    def _judge(self, alternative: Alternative) -> None:
        """Judge on the folds what no search is needed for, as far as the budget allows."""
        done: list[dict[str, Any]] = self.study.user_attrs.get(alternative.name, [])
        for fold in range(len(done), FOLDS):
            splits, run = self.folds[fold], self.plain_run
            cost = self._share(fold) * self._cost_of(alternative)
            if not self._fits([cost]):
                return
            begun = time.monotonic()
            try:
                predictor = fit_alternative(alternative, run, splits.train, seed=self.seed + fold)
            except ModelError as error:
                self.progress.notice(f"{alternative.name} is not raced: {error}")
                entrants = replace(self._field(), alternatives=())
                self.study.set_user_attr("field", entrants.record())
                return
            config = self._config(self.reference().column, fold)
            out = self.out / "trials" / alternative.name / f"fold-{fold}"
            name = alternative.name
            sets = evaluation_sets(config, splits)
            measure(predictor, sets, config.evaluate, out, model=name, key=name)
            scores, seconds = part_scores(out, self.weights), time.monotonic() - begun
            done = [*done, {"cost": cost, "seconds": seconds, "scores": scores}]
            self.study.set_user_attr(name, done)
            if len(done) == FOLDS:
                self.progress.notice(f"{name}: {100 * self._value(done):+.1f} %")

    @property
    def judged(self) -> dict[str, float]:
        """Improvement of each alternative that was judged on all folds, by its name."""
        found = {each.name: self.study.user_attrs.get(each.name, []) for each in self.alternatives}
        return {name: self._value(done) for name, done in found.items() if len(done) == FOLDS}

    def _value(self, done: Sequence[Mapping[str, Any]]) -> float:
        """Return the mean improvement over the reference on the folds that are done."""
        reference = self._done(self.study.trials[0])
        return fmean(
            improvement(each["scores"], other["scores"], self.weights)
            for each, other in zip(done, reference, strict=False)
        )

    def _propose(self, pending: Mapping[str, float], optuna: Any) -> None:
        """Put the next trial's recipe into the queue, where a rule and not the search says it."""
        states, trials = optuna.trial.TrialState, self.study.trials
        if any(trial.state == states.WAITING for trial in trials):
            return
        entered = self._field().recipes
        begun = {self._recipe_of(trial) for trial in trials}
        fresh = [name for name in entered if name not in begun]
        if fresh:
            # Every recipe begins with the settings that it is written down with.
            name = fresh[0]
            first = {f"{name}.{key}": each[1] for key, each in self.recipes[name].search.items()}
            fixed = {"recipe": name, "rate": 1.0, f"{name}.length": 1, **first}
            self.study.enqueue_trial(fixed)
            return
        spent = dict.fromkeys(entered, 0.0)
        for trial in trials:
            name = self._recipe_of(trial)
            spent[name] = spent.get(name, 0.0) + sum(self._charge(f) for f in self._done(trial))
        pace = self._pace()
        for name, cost in pending.items():
            spent[name] += cost * pace.run
        # Plain fine-tuning is tuned at the same budget as any rival.
        if spent[PLAIN] < max(spent[name] for name in entered if name != PLAIN):
            self.study.enqueue_trial({"recipe": PLAIN})

    def _contender(self, trial: Any) -> Contender:
        """Return what a trial runs; Optuna is asked for its settings."""
        if trial.user_attrs.get("recipe") == PLAIN:
            return self.reference()
        entered = self._field().recipes
        recipe = self.recipes[trial.suggest_categorical("recipe", entered)]
        train, length = self.plain_run.train, 1.0
        factor = trial.suggest_float("rate", 1 / SPREAD, SPREAD, log=True)
        settings: Tree = override({}, [])
        for table, values in recipe.settings.items():
            settings[table] = dict(values)
        rate = float(f"{factor * train.learning_rate:.3g}")
        pairs: list[tuple[tuple[str, ...], Any]] = [(("train", "learning_rate"), rate)]
        for name, (low, _, high) in recipe.search.items():
            value = trial.suggest_float(f"{recipe.name}.{name}", low, high, log=True)
            pairs.append((tuple(name.split(".")), float(f"{value:.3g}")))
        # What is cheap may train as long as the dearest recipe computes.
        dearest = max(self.recipes[name].passes for name in entered)
        if (most := int(dearest / recipe.passes)) > 1:
            length = float(trial.suggest_int(f"{recipe.name}.length", 1, most))
            pairs += [] if length == 1 else self._longer(length)
        return Contender(recipe, override(settings, pairs), length, trial=trial.number)

    def _longer(self, length: float) -> list[tuple[tuple[str, ...], Any]]:
        train = self.plain_run.train
        if train.max_steps is not None:
            return [(("train", "max_steps"), round(train.max_steps * length))]
        return [(("train", "epochs"), train.epochs * length)]

    def _do(self, planned: Sequence[tuple[int, int]], optuna: Any) -> None:
        """Do a round's runs, and let its trials hear of them in their order."""
        contenders = {number: self._contender(self._trial(number, optuna)) for number, _ in planned}
        jobs = {run: self.job(contenders[run[0]], run[1]) for run in planned}
        begun = time.monotonic()
        # Two trials of the same settings are one run.
        errors = self._run(list({job.key: job for job in jobs.values()}.values()))
        seconds = time.monotonic() - begun
        for (number, _), job in jobs.items():
            error = errors.get(job.key)
            if error is not None and (not number or not isinstance(error, NonFiniteError)):
                raise error
        training = {
            job.key: self._train_seconds(job) for job in jobs.values() if job.key not in errors
        }
        longest = max(training.values(), default=seconds)
        # What was finished before is read at once.
        seconds = max(seconds, longest)
        for (number, fold), job in jobs.items():
            result: dict[str, Any] = {
                "cost": contenders[number].cost * self._share(fold),
                "seconds": seconds / len(jobs),
                "training": training.get(job.key, longest),
                "judging": seconds - longest,
                "scores": None,
            }
            if not self._is_due(number, fold, optuna=optuna):
                # Its trial has failed by then.
                dropped = self.study.user_attrs.get("dropped", 0.0) + self._charge(result)
                self.study.set_user_attr("dropped", dropped)
                continue
            if job.key in errors:
                name = contenders[number].recipe.name
                self.progress.notice(f"trial {number} ({name}) failed: {errors[job.key]}")
            else:
                evaluation = job.run.path / "evaluation"
                result["scores"] = part_scores(evaluation, self.weights)
            self._hear(self._trial(number, optuna), contenders[number], result, optuna)

    def _train_seconds(self, job: Job) -> float:
        """Return the seconds that a finished run was trained."""
        record = job.run.record() or {}
        return float(record["times"]["train_seconds"])

    def _run(self, jobs: Sequence[Job]) -> dict[str, BaseException]:
        """Train and judge, here or on the cluster; what is finished is left.

        Returns:
            The errors of the runs that were stopped by one, by the run's key.
        """
        errors: dict[str, BaseException] = {}
        if self.machines is not None:
            with closing(self.machines.do(jobs)) as done:
                for ended in done:
                    if ended.error is not None:
                        errors[ended.job.key] = ended.error
            return errors
        for job in jobs:
            splits = self.folds[job.cell[1]]
            work = Work(job.folder, splits, evaluation_sets(job.folder.config, splits))
            try:
                work.do(job.cell, progress=self.progress)
            except NonFiniteError as error:
                errors[job.key] = error
        return errors

    def _hear(
        self, trial: Any, contender: Contender, result: Mapping[str, Any], optuna: Any
    ) -> None:
        """Let a trial hear what its next fold came to, and end it where that is called for."""
        number, states = trial.number, optuna.trial.TrialState
        done = [*self._done(self.study.trials[number]), result]
        trial.set_user_attr("folds", done)
        if result["scores"] is None:
            self.study.tell(number, state=states.FAIL)
            return
        value = self._value(done)
        trial.report(value, len(done))
        self._tell(contender, number, len(done), value)
        if len(done) == FOLDS:
            self.study.tell(number, value)
        # Asked of the reference too: the others are held against what it is told then.
        elif trial.should_prune() and number:
            self.study.tell(number, state=states.PRUNED)

    def evaluations(self, contender: Contender) -> list[Path]:
        """Return the folders of a finished contender's evaluations, one a fold.

        Args:
            contender: It.
        """
        jobs = [self.job(contender, fold) for fold in range(FOLDS)]
        return [job.run.path / "evaluation" for job in jobs]

    def job(self, contender: Contender, fold: int) -> Job:
        """Return a contender's one run on a fold, and where it lies.

        Args:
            contender: It.
            fold: Number of the fold.
        """
        config = self._config(contender.column, fold)
        keys = {
            cell: run_key(run, self.folds[fold], identity=self.identity)
            for cell, run in config.runs.items()
        }
        (cell,) = config.runs
        return Job(FoldFolder(self.out / "trials", config, keys, fold), cell)

    def _config(self, column: Column, fold: int) -> StudyConfig:
        """Return the plan of one run: a fold has a seed of its own."""
        tree = {**self.base, "evaluate": fold_evaluation(self.weights)}
        return StudyConfig.of(tree, columns=[column], seeds=[fold], sets=SetSources())

    def _share(self, fold: int) -> float:
        return len(self.folds[fold].train) / len(self.splits.train)

    def _done(self, trial: Any) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = trial.user_attrs.get("folds", [])
        return found

    def _recipe_of(self, trial: Any) -> str:
        queued = trial.system_attrs.get("fixed_params", {}).get("recipe", PLAIN)
        return str(trial.params.get("recipe", queued))

    def _charge(self, done: Mapping[str, Any]) -> float:
        return float(done["cost"] if self.budget.unit == "runs" else done["seconds"])

    def _pace(self) -> Pace:
        """Return how long things take in the budget's unit, by the runs that are done."""
        done = [each for trial in self.study.trials for each in self._done(trial)]
        if self.budget.unit == "runs":
            return IN_RUNS
        training = sum(float(each["training"]) for each in done)
        # Races of older versions have no seconds of judging by themselves.
        judging = [each.get("judging", each["seconds"] - each["training"]) for each in done]
        return Pace(training / sum(float(each["cost"]) for each in done), fmean(judging))

    def _spent(self) -> float:
        done = [each for trial in self.study.trials for each in self._done(trial)]
        for alternative in self.alternatives:
            done += self.study.user_attrs.get(alternative.name, [])
        return sum(map(self._charge, done)) + float(self.study.user_attrs.get("dropped", 0.0))

    def _waves(self, runs: int) -> int:
        """Return how many runs one after the other take as long as some that are done at once."""
        return runs if self.budget.unit == "runs" else math.ceil(runs / self.width)

    def _reserve(self, field: Field, pace: Pace) -> float:
        """Return what the final part takes at most: both columns as dear as the dearest recipe."""
        dearest = max(1.0, *(self.recipes[name].passes / PASSES for name in field.recipes))
        beside = sum(self._final_of(each, field.seeds, pace) for each in field.alternatives)
        runs = self._waves(2 * field.seeds)
        return runs * (dearest * pace.run + FULLER * pace.judging) + beside

    def _cost_of(self, alternative: Alternative) -> float:
        return alternative.cost(self.plain_run, len(self.splits.train))

    def _final_of(self, alternative: Alternative, seeds: int, pace: Pace) -> float:
        """Return what an alternative takes in the final part."""
        cost = self._cost_of(alternative)
        return (seeds if alternative.seeded else 1) * (cost * pace.run + FULLER * pace.judging)

    def _fits(self, costs: Sequence[float]) -> bool:
        """Say whether the budget has room for runs of these costs."""
        pace, waves = self._pace(), self._waves(len(costs))
        trained = sum(costs) if self.budget.unit == "runs" else waves * max(costs)
        needed = trained * pace.run + waves * pace.judging
        needed += self._reserve(self._field(), pace)
        return self._spent() + needed <= self.budget.amount + 1e-9

    def _least(self, name: str, seeds: int, pace: Pace) -> float:
        """Return what plain fine-tuning, one rival and the final part take."""
        folds = sum(self._share(fold) for fold in range(FOLDS))
        both = folds * (1 + self.recipes[name].passes / PASSES) * pace.run
        both += 2 * FOLDS * pace.judging
        at_once = self._waves(FOLDS) / FOLDS
        return at_once * both + self._reserve(Field((name,), seeds), pace)

    def _allowed(self, pace: Pace, *, told: bool = True) -> Field:
        """Return what the budget allows, and say what is left out.

        Raises:
            SettingError: It allows none; it says the least.
        """
        rivals = sorted(
            (name for name in self.recipes if name != PLAIN),
            key=lambda name: self.recipes[name].passes,
        )
        for seeds in range(self.seeds, 0, -1):
            entered = [n for n in rivals if self._least(n, seeds, pace) <= self.budget.amount]
            if entered:
                left_out = [name for name in rivals if name not in entered]
                if left_out and told:
                    least = self.budget.text(self._least(left_out[0], seeds, pace))
                    self.progress.notice(
                        f"{', '.join(left_out)} cost too much for this budget and are not raced; "
                        f"{least} would do for {left_out[0]}."
                    )
                if seeds < self.seeds and told:
                    least = self.budget.text(self._least(rivals[0], self.seeds, pace))
                    self.progress.notice(
                        f"The final part has {seeds} of {self.seeds} seeds, which is all that the "
                        f"budget allows; {least} would do for all."
                    )
                field = Field((PLAIN, *entered), seeds)
                return replace(field, alternatives=self._beside(field, pace, told=told))
        raise SettingError(
            f"--budget {self.budget.text(self.budget.amount)} is too small for plain fine-tuning, "
            f"one rival ({rivals[0]}) and the final part at one seed: that takes "
            f"{self.budget.text(self._least(rivals[0], 1, pace))} at least. Give a larger budget, "
            "fewer rows or epochs."
        )

    def _beside(self, field: Field, pace: Pace, *, told: bool) -> tuple[Alternative, ...]:
        """Return the alternatives that the budget allows beside the cheapest rival."""
        rival = min(field.recipes[1:], key=lambda name: self.recipes[name].passes)
        needed, found = self._least(rival, field.seeds, pace), []
        folds = sum(self._share(fold) for fold in range(FOLDS))
        for each in self.alternatives:
            more = folds * self._cost_of(each) * pace.run + FOLDS * pace.judging
            more += self._final_of(each, field.seeds, pace)
            if needed + more <= self.budget.amount:
                needed += more
                found.append(each)
            elif told:
                self.progress.notice(
                    f"{each.name} costs too much for this budget and is not judged; "
                    f"{self.budget.text(needed + more)} would do."
                )
        return tuple(found)

    def _field(self) -> Field:
        """Return what is raced."""
        # The search knows one set of recipes, so that what was decided holds.
        if "field" not in self.study.user_attrs:
            self.study.set_user_attr("field", self._allowed(self._pace()).record())
        recipes, seeds, names = self.study.user_attrs["field"]
        found = tuple(each for each in self.alternatives if each.name in names)
        return Field(tuple(recipes), int(seeds), found)

    def _finished(self, optuna: Any) -> list[Contender]:
        """Return the contenders that finished all folds, the best first, of equals the first."""
        found = []
        for trial in self.study.trials:
            if trial.state == optuna.trial.TrialState.COMPLETE:
                again = optuna.trial.FixedTrial(trial.params, number=trial.number)
                if trial.user_attrs.get("recipe") is not None:
                    again.set_user_attr("recipe", trial.user_attrs["recipe"])
                contender = self._contender(again)
                found.append(replace(contender, value=trial.value, trial=trial.number))
        return sorted(found, key=lambda each: -(each.value or 0.0))

    def _tell(self, contender: Contender, number: int, folds_done: int, value: float) -> None:
        """Say how a trial stands, what leads and what is left."""
        complete = [t for t in self.study.trials if t.state.name == "COMPLETE"]
        best = max(complete, key=lambda t: t.value, default=None)
        lead = "" if best is None else f"; best {self._recipe_of(best)} {100 * best.value:+.1f} %"
        left = self.budget.amount - self._spent()
        self.progress.notice(
            f"trial {number}: {contender.recipe.name} {100 * value:+.1f} % after {folds_done} of "
            f"{FOLDS} folds{lead}; {self.budget.text(max(left, 0))} left, the final part included."
        )
