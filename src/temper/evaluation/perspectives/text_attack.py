"""Text attack: the task's metric on texts whose words a search changed until the model errs.

Rows that are wrong without an attack are not attacked (0 queries) and count as wrong. If an attack
fails, the row has the prediction of the changed text that came closest.

A targeted attack leaves out the rows whose label is the target. If it fails, the row has its
original text, so that an attacked row is wrong only if the target was predicted.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

import numpy as np

from temper.data.examples import Examples
from temper.display.cells import Comparison
from temper.display.charts import Figure, condition_bars
from temper.display.folders import Source
from temper.display.views import Heading
from temper.display.wording import title
from temper.errors import DataError, SettingError, unknown
from temper.evaluation.blocks import block_of
from temper.evaluation.common_settings import CommonSettings
from temper.evaluation.measurement import EvaluationData, Measurement
from temper.evaluation.perspectives.registry import Perspective
from temper.evaluation.prediction import joined
from temper.evaluation.predictor import Predictor
from temper.evaluation.rows import Block, Condition, rows_at
from temper.evaluation.scoring import ScoreEntry, Scoring, drop_of, metric_entries, ratio_of
from temper.evaluation.text_attack import recipes
from temper.evaluation.text_attack.contract import RecipeName, TextAttackSettings, examples_of
from temper.evaluation.text_attack.search import (
    Outcome,
    attack,
    attacked,
    drafts_of,
    outputs_of,
    starved,
)
from temper.evaluation.text_attack.swaps import lacks_swaps
from temper.functional.intervals import Statistic
from temper.functional.proportions import Proportion
from temper.functional.resampling import IntegerArray
from temper.functional.scores import ScoreFacts, metrics_of
from temper.functional.units import ANY_SIZE


def rows(measurement: Measurement) -> Iterable[Block]:
    """Attack the validation rows by every recipe.

    Raises:
        SettingError: The target class does not exist, and classes have no names to check it by
            earlier.
        DataError: All rows have the target as their label.
    """
    settings = measurement.settings.section("text_attack", TextAttackSettings)
    examples, index = measurement.attacked(at_most=settings.rows)
    clean = measurement.clean("dev", measurement.dev)
    target = None
    if settings.target is not None:
        names = measurement.predictor.label_names or measurement.dev.label_names
        target = _class_of(settings.target, names, clean.probabilities.shape[1])
        examples, index = _without(target, examples, index, measurement)
    drafts = drafts_of(examples, target)
    before = outputs_of(clean.take(index), drafts)
    predictor, size = measurement.predictor, measurement.settings.batch_size
    encoder = None
    if settings.similarity_model is not None:
        # Transformers takes seconds to import.
        from temper.models.sentence import SentenceEncoder

        device = str(getattr(predictor, "device", "cpu"))
        encoder = SentenceEncoder.load(settings.similarity_model, device=device, batch_size=size)
    for name in settings.recipes:
        chosen = attacked(drafts, before, name, settings, measurement.settings.seed)
        result = attack(
            list(chosen.values()),
            measurement.predict,
            recipes.recipe(name, predictor, settings, batch_size=size),
            settings,
            encoder=encoder,
            tell=measurement.teller(f"text attack ({name})"),
        )
        if message := starved(result, name, settings):
            measurement.notices.append(message)
        # Rows that are not attacked are not changed.
        outcomes = [Outcome(*both) for both in zip(drafts, before, strict=True)]
        for position, outcome in zip(chosen, result, strict=True):
            outcomes[position] = outcome
        yield _block(measurement, name, examples, index, outcomes)


def score(scoring: Scoring) -> list[ScoreEntry]:
    """Score each recipe: the metric, its drop, success rate, changed words and queries."""
    entries = []
    for block in scoring.of("text_attack"):
        entries += metric_entries(scoring, block)
        clean = rows_at(scoring.clean, block)
        right = clean.correct
        broken = right * (1 - block.correct)
        queries, changed = block.measured["queries"], block.measured["changed"]
        # All rows are resampled, also irrelevant ones, so that two models that are right on
        # different rows have the same resamples.
        statistics: dict[str, tuple[Statistic, int]] = {
            "drop": (drop_of(scoring.metric, clean, block), len(block)),
            "attack_success": (Proportion(1 - block.correct, right), int(right.sum())),
            "changed_words": (ratio_of(changed * broken, broken), int(broken.sum())),
            "queries": (ratio_of(queries * right, right), int(right.sum())),
        }
        of = {name: statistic for name, (statistic, _) in statistics.items()}
        made = scoring.entries_of(block.condition, of, rows=len(block))
        for entry, (_, n) in zip(made, statistics.values(), strict=True):
            entries.append(entry | {"n": n, "fewest": n})
    return entries


def misfits(
    data: EvaluationData, settings: CommonSettings, label_names: Sequence[str] | None
) -> list[str]:
    """Return errors about settings that do not fit the data or classes, or name unknown models."""
    chosen, dev = settings.section("text_attack", TextAttackSettings), data.dev
    result = recipes.misfits(chosen)
    if chosen.field != "text" and dev.text_pair is None:
        result.append(
            f"text_attack's `field` is {chosen.field!r}, but set {dev.name!r} has no second text. "
            "Use 'text'."
        )
    names = dev.label_names if label_names is None else label_names
    if chosen.target is not None and names is not None:
        try:
            _class_of(chosen.target, names, len(names))
        except SettingError as error:
            result.append(str(error))
    return result


def faults(predictor: Predictor, data: EvaluationData, settings: CommonSettings) -> list[str]:
    """Return why the requested recipes cannot run on a predictor."""
    chosen = settings.section("text_attack", TextAttackSettings)
    reason = lacks_swaps(predictor) if "swaps" in chosen.recipes else ""
    return [reason] if reason else []


def _block(
    measurement: Measurement,
    name: RecipeName,
    examples: Examples,
    index: IntegerArray,
    outcomes: Sequence[Outcome],
) -> Block:
    altered = [position for position, outcome in enumerate(outcomes) if outcome.changed]
    original = examples.select(altered)
    changed = examples_of([outcomes[position].draft for position in altered])
    measurement.texts.keep_changed("text_attack", "dev", name, original, index[altered], changed)
    alone = [outcome.output.source.take([outcome.output.index]) for outcome in outcomes]
    prediction = joined(range(len(alone)), alone)
    return replace(
        block_of(Condition("text_attack", "dev", name), examples, prediction, index=index),
        measured={
            "queries": np.array([outcome.queries for outcome in outcomes], dtype=np.float64),
            "changed": np.array([outcome.fraction for outcome in outcomes]),
        },
    )


def _class_of(target: int | str, names: Sequence[str] | None, classes: int) -> int:
    if isinstance(target, str) and names is not None and target in names:
        return list(names).index(target)
    number = int(target) if isinstance(target, int) or target.isdecimal() else -1
    if 0 <= number < classes:
        return number
    fault = f"text_attack's `target` must be a class in [0, {classes - 1}], got {target!r}."
    if isinstance(target, str) and names is not None:
        fault = f"{unknown('target', target, names)} Pass one of them as text_attack's `target`."
    raise SettingError(fault)


def _without(
    target: int, examples: Examples, index: IntegerArray, measurement: Measurement
) -> tuple[Examples, IntegerArray]:
    kept = [
        position for position, label in enumerate(examples.labels or []) if int(label) != target
    ]
    if not kept:
        raise DataError(
            f"`target` of text_attack is the label of all {len(examples)} rows to attack. Choose "
            "another `target`, or more `rows`."
        )
    if len(kept) < len(examples):
        measurement.notices.append(
            f"The targeted text attack leaves out {len(examples) - len(kept)} of {len(examples)} "
            "rows, because their label is the target."
        )
    return examples.select(kept), index[kept]


CONDITIONS = {
    "characters": "character edits",
    "swaps": "word swaps",
    "masked": "masked-model swaps",
}
NONE_RIGHT = "no row is right without an attack"


def figures(source: Source, comparison: Comparison) -> list[Figure]:
    """Draw the success rate of attacks, the changed words and the queries."""
    captions = {
        "attack_success": "Fraction of correct rows that an attack makes wrong; left is better.",
        "changed_words": "Mean fraction of words changed by successful attacks; right is better.",
        "queries": "Texts that an attack sent to the model per row.",
    }
    return [
        figure
        for name, caption in captions.items()
        for figure in condition_bars(
            comparison,
            comparison.of("text_attack", name),
            f"Text attacks: {title(name)}",
            caption,
            names=CONDITIONS,
        )
    ]


TEXT_ATTACK = Perspective(
    name="text_attack",
    title="Text attack",
    order=60,
    heading=Heading.ROBUSTNESS,
    explained="Words or letters are changed, keeping the meaning, until the prediction is wrong or "
    "the budget is spent.",
    gain="reaches {ours} under text attack ({compared})",
    short="Text attack",
    conditions=CONDITIONS,
    figures=figures,
    summary="the task's metric on texts that are edited until the prediction is wrong; attack "
    "success, fraction of changed words, queries",
    scores=(
        *metrics_of("classification"),
        "drop",
        ScoreFacts("attack_success", "Attack success", False, 0.0, NONE_RIGHT),
        ScoreFacts("changed_words", "Words that attacks change", True, 1.0, "no attack succeeded"),
        ScoreFacts("queries", "Queries of an attack", True, math.inf, NONE_RIGHT, ANY_SIZE),
    ),
    rows=rows,
    score=score,
    settings=TextAttackSettings,
    perturbs=True,
    misfits=misfits,
    faults=faults,
    # Values of a regression cannot be made wrong.
    kinds=("classification",),
    left_out="hundreds of predictions per row",
)
