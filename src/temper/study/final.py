"""Carry a race out and judge its winner once: tuned plain fine-tuning beside it, on reported rows.

``OUT/tune.json`` says what was raced and what came out; ``journal.log`` is the search, ``trials``
its runs, ``final`` the comparison with its report, and ``winner.toml`` what `temper train --config`
repeats.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from temper import report
from temper.app.alternatives import Alternative, alternatives, fit_alternative
from temper.app.cluster import Cluster
from temper.app.measure import evaluation_key, measure, stored_key
from temper.app.sets import EvaluationSets
from temper.app.settings import SetSources
from temper.data.examples import Splits
from temper.errors import CheckpointError, SettingError
from temper.files import make_folder, write_json, write_text
from temper.methods.recipes import PLAIN, Recipe
from temper.study.budget import Budget
from temper.study.cluster import Machines, connected
from temper.study.contenders import Contender
from temper.study.goals import ACCURACY, goal_weights
from temper.study.plan import Column, StudyConfig
from temper.study.race import Race
from temper.study.schedule import Study, load_study, run_study
from temper.study.work import evaluation_sets
from temper.training.assignments import Tree
from temper.training.checkpoint_folder import difference_in_words, held_folder, read_json
from temper.training.config import RunConfig, digest, model_identity
from temper.training.progress import Progress

RECORD, WINNER, FINAL = "tune.json", "winner.toml", "final"
GIVEN = "plain_given"
"""The column of plain fine-tuning at the given settings, where tuned plain fine-tuning won."""
ATTACKED = 100
"""Rows that are attacked in the final part where nobody says what is measured."""


@dataclass(frozen=True)
class Order:
    """What a race is asked for.

    Args:
        base: Nested settings of all runs: ``model``, ``data``, ``train``, ``architecture``, and
            ``evaluate`` of the final part.
        sets: Where the sets come from that the final part is judged on.
        recipes: The contenders by name, plain fine-tuning among them.
        named: Whether a person named them, so that one that does not fit is an error.
        goal: As a person wrote it.
        budget: What it may take.
        seeds: Seeds of the final trainings.
        cluster: Machines that do the runs; None for this process.
    """

    base: Tree
    sets: SetSources
    recipes: Mapping[str, Recipe]
    named: bool
    goal: str
    budget: Budget
    seeds: tuple[int, ...]
    cluster: Cluster | None = None

    def plan(self, columns: Sequence[Column], seeds: Sequence[int]) -> StudyConfig:
        """Return the plan of the final comparison.

        Args:
            columns: Its columns.
            seeds: Its seeds.

        Raises:
            SettingError: A setting is wrong.
        """
        evaluate = self.base.get("evaluate", {})
        if "perspectives" not in evaluate:
            attack = {"pgd": {"steps": 5}}
            evaluate = {"attack_rows": ATTACKED, "embedding_attack": attack, **evaluate}
        tree = {**self.base, "evaluate": evaluate}
        return StudyConfig.of(tree, columns=columns, seeds=seeds, sets=self.sets)


def carry_out(order: Order, folder: Path, progress: Progress) -> dict[str, Any]:
    """Race, train the winner on all rows, and judge it.

    Args:
        order: What is asked for.
        folder: The out folder.
        progress: Hears of it.

    Returns:
        The content of ``tune.json``.

    Raises:
        TemperError: See `temper.tune`.
    """
    weights = goal_weights(order.goal)
    plain = Column(PLAIN, order.recipes[PLAIN].method)
    plan = order.plan([plain], order.seeds)
    contenders = _fitting(order, progress)
    splits, _ = load_study(plan, progress)
    if splits.train.kind == "regression" and set(weights) != {ACCURACY}:
        raise SettingError(
            "The labels are numbers, which have no calibration, and robustness is counted in "
            "accuracy. Give --goal accuracy."
        )
    said = _identity(order, plan.any_run, splits)
    key = digest(said)
    before = read_json(folder / RECORD) if (folder / RECORD).exists() else {}
    if before and before["key"] != key:
        what = difference_in_words(before["order"], said)
        raise CheckpointError(f"{folder} holds another race: {what}. Give another --out.")
    if before.get("status") == "finished":
        progress.notice(f"{folder} holds this race to its end; it is kept.")
        return before
    base = {name: table for name, table in order.base.items() if name != "evaluate"}
    with held_folder(folder), _machines(order, progress) as machines:
        race = Race(
            base,
            splits,
            contenders,
            weights,
            order.budget,
            len(order.seeds),
            folder,
            progress,
            alternatives(plan.any_run, splits.train),
            machines,
        )
        return _race(order, race, {"key": key, "order": said})


@contextmanager
def _machines(order: Order, progress: Progress) -> Iterator[Machines | None]:
    """Connect to the machines that do the runs; None where this process does them."""
    if order.cluster is None:
        yield None
        return
    with connected(order.cluster, progress) as machines:
        yield machines


def _race(order: Order, race: Race, record: dict[str, Any]) -> dict[str, Any]:
    """Race, judge the winner, and return the whole record."""
    folder, splits, progress = race.out, race.splits, race.progress
    write_json(folder / RECORD, {**record, "status": "racing"})
    ranking, field = race.run()
    winner = ranking[0]
    best_plain = next(each for each in ranking if each.recipe.name == PLAIN)
    judged = [best_plain] if winner is best_plain else [best_plain, winner]
    columns = [each.column for each in judged]
    if winner is best_plain and winner.settings.get("train"):
        # What tuning itself gained is told then.
        columns = [Column(GIVEN, best_plain.recipe.method), *columns]
    progress.notice(
        f"The race is over: {winner.recipe.name} leads on the dev folds. It is trained on all "
        f"{len(splits.train):,} rows, and judged once."
    )
    record |= {
        "raced": field.recipes,
        "ranking": [_line(contender) for contender in ranking],
        "winner": _line(winner),
        "plain": _line(best_plain),
        "alternatives": race.judged,
    }
    write_json(folder / RECORD, {**record, "status": "judging"})
    final = order.plan(columns, order.seeds[: field.seeds])
    study = run_study(final, folder / FINAL, cluster=order.cluster, progress=progress)
    beside = [each for each in field.alternatives if each.name in race.judged]
    if beside:
        study = _with_alternatives(study, final, beside, race)
    run = final.runs[winner.recipe.name, order.seeds[0]]
    write_text(folder / WINNER, toml_of({"model": run.model, "seed": run.seed, **run.settings()}))
    said_of = _said(order.goal, winner, best_plain, study, beside, race.judged)
    record |= {"said": said_of, "status": "finished"}
    write_json(folder / RECORD, record)
    return record


def _fitting(order: Order, progress: Progress) -> dict[str, Recipe]:
    """Return the recipes that fit the model and the data; one that was named must."""
    fitting = {}
    for name, recipe in order.recipes.items():
        try:
            order.plan([Column(name, recipe.method, dict(recipe.settings))], [0])
        except SettingError as error:
            if order.named or name == PLAIN:
                raise
            progress.notice(f"{name} is not raced: {error}")
        else:
            fitting[name] = recipe
    return fitting


def _identity(order: Order, run: RunConfig, splits: Splits) -> dict[str, Any]:
    """Return what decides a race; the budget may grow until it is finished."""
    return {
        "model": model_identity(run.model),
        "goal": goal_weights(order.goal),
        "recipes": {
            name: [recipe.method, recipe.settings, recipe.search]
            for name, recipe in order.recipes.items()
        },
        "train": run.train.deciding(),
        "max_length": run.data.max_length,
        "seeds": list(order.seeds),
        "rows": {"train": splits.train.hash, "reported": splits.dev.hash},
    }


def _line(contender: Contender) -> dict[str, Any]:
    return {
        "recipe": contender.recipe.name,
        "method": contender.recipe.method,
        "settings": contender.settings,
        "trial": contender.trial,
        "improvement": contender.value,
        "cost": contender.cost,
    }


def _said(
    goal: str,
    winner: Contender,
    plain: Contender,
    study: Study,
    beside: Sequence[Alternative],
    judged: Mapping[str, float],
) -> str:
    """Say in words what was gained and what it cost."""
    text = _gained(goal, winner, plain, study)
    best = max(beside, key=lambda each: judged[each.name], default=None)
    if best is not None and judged[best.name] > (winner.value or 0.0):
        text += (
            f" On the dev folds {best.title} was ahead of every recipe "
            f"({100 * judged[best.name]:+.1f} %): it is in the report"
            f"{'' if best.seeded else ', and takes no fine-tuning at all'}."
        )
    return text


def _gained(goal: str, winner: Contender, plain: Contender, study: Study) -> str:
    if winner.recipe.name == PLAIN:
        rate = winner.settings.get("train", {}).get("learning_rate")
        if rate is None:
            return f"Nothing was better than plain fine-tuning as it was given ({goal}): keep it."
        return (
            f"No recipe was better than tuned plain fine-tuning ({goal}): keep it, at learning "
            f"rate {rate:g} and {winner.length:g} times the steps. {study.comparison.answer}"
        )
    return (
        f"{study.comparison.answer} The race chose {winner.recipe.name} for {goal!r}; its training "
        f"costs {winner.cost:.3g} times plain fine-tuning at the given epochs, and the tuned plain "
        f"fine-tuning beside it {plain.cost:.3g} times."
    )


def _with_alternatives(
    study: Study,
    plan: StudyConfig,
    beside: Sequence[Alternative],
    race: Race,
) -> Study:
    """Add to the final comparison what a user may pick in place of fine-tuning, as columns."""
    path, sets = study.folder, evaluation_sets(plan, race.splits)
    content = read_json(path / "study.json")
    plain = next(iter(content["runs"].values()))
    for each in beside:
        places: dict[str, str] = {}
        first: Path | None = None
        for seed in plan.seeds:
            folder = path / "runs" / f"{each.name}-s{seed}"
            if each.seeded or first is None:
                first, begun = folder, time.monotonic()
                key = _judge(each, plan, seed, race, sets, folder)
                seconds = time.monotonic() - begun
            else:
                # It has no seed: every seed's line is the same.
                shutil.rmtree(folder, ignore_errors=True)
                shutil.copytree(first, folder)
            record = read_json(path / plain[str(seed)] / "run.json")
            # It has no files of a model.
            record.pop("files", None)
            record |= {"method": each.name, "seed": seed, "key": key, "passes": None}
            table = {"method": {"name": each.name}, "train": {}}
            record["settings"] = {**record["settings"], **table}
            record["times"] = {**record["times"], "train_seconds": seconds, "steps": 0}
            write_json(folder / "run.json", {**record, "notices": []})
            places[str(seed)] = folder.relative_to(path).as_posix()
        content["columns"].append({"name": each.name, "method": each.name, "settings": {}})
        content["runs"][each.name] = places
    write_json(path / "study.json", content)
    return Study(path, report.build(path), report.comparison(path))


def _judge(
    alternative: Alternative,
    plan: StudyConfig,
    seed: int,
    race: Race,
    sets: EvaluationSets,
    folder: Path,
) -> str:
    """Fit and judge an alternative where its folder does not hold it yet; return its key."""
    # At the settings that were given, not those that plain fine-tuning was tuned to.
    run, train, name = race.plain_run, race.splits.train, alternative.name
    evaluate, out = plan.evaluate, folder / "evaluation"
    cost = alternative.cost(run, len(train))
    identity = f"{name} {seed} {cost:g} {race.identity} {train.hash}"
    key = evaluation_key(identity, sets, evaluate, max_length=run.data.max_length)
    if stored_key(out) != key:
        predictor = fit_alternative(alternative, run, train, seed=seed)
        make_folder(folder)
        measure(
            predictor, sets, evaluate, out, model=name, key=key, run=key, progress=race.progress
        )
    return key


def toml_of(tree: Mapping[str, Any], *, above: tuple[str, ...] = ()) -> str:
    """Write nested settings as TOML; what is None is left out.

    Args:
        tree: Tables of texts, numbers, booleans and lists of these.
        above: Names of the tables that this one stands in.

    Example:
        >>> print(toml_of({"model": "minilm", "train": {"epochs": 2.0}}), end="")
        model = "minilm"
        [train]
        epochs = 2.0
    """
    plain = {name: value for name, value in tree.items() if not isinstance(value, Mapping)}
    # JSON's texts, numbers and lists are TOML's too; a DEL may stand in JSON alone.
    lines = [
        f"{name} = {json.dumps(value, ensure_ascii=True).replace(chr(127), chr(92) + 'u007f')}\n"
        for name, value in plain.items()
        if value is not None
    ]
    for name, table in tree.items():
        if isinstance(table, Mapping) and table:
            place = (*above, name)
            lines.append(f"[{'.'.join(place)}]\n{toml_of(table, above=place)}")
    return "".join(lines)
