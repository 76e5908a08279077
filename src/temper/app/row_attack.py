"""Attack training rows before a run, so that it trains on what misled an earlier model.

As TextFooler (Jin et al. 2020, section 5) and BERT-Attack (Li et al. 2020) do it: the texts that
fooled a trained model, with their rows' labels, are added to the training of the next. Differs: an
attacked text takes its row's place in some epochs, with the probability ``augment_share``, and not
a place beside it. A2T (Yoo and Qi 2021) attacks the model in training anew each epoch; here the
attacked model stays as it is, so that all runs of a study train on the same texts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from temper.app.predictors import load_predictor, names_code, skops_file
from temper.data.attacked import AttackedText, AttackedTexts
from temper.data.examples import Examples
from temper.data.settings import ATTACK, DataSettings
from temper.errors import SettingError, unknown
from temper.evaluation.measurement import align
from temper.evaluation.predictor import Predictor
from temper.evaluation.text_attack import recipes
from temper.evaluation.text_attack.contract import OUTSIDE, OWN, TextAttackSettings
from temper.evaluation.text_attack.search import Outcome, answers_of, attacked, drafts_of, starved
from temper.training.assignments import Faults, section
from temper.training.config import RunConfig, digest, model_identity
from temper.training.progress import Progress

BATCH = 32
"""Texts of a forward pass of the attacked model; changes no result."""

_REPLACING = ("swaps", "masked")
"""Recipes that put other words in words' places: of MiniLM on SST-2 ``swaps`` writes "good" for
"bad", so that some texts no longer have their label."""

# Settings of an attack that training rows have elsewhere, or must not have.
_ELSEWHERE = {
    "recipes": "`data.augment` names the attacks",
    "rows": "`data.augment_rows` says how many rows are attacked",
    "masked_model": "`data.augment_masked_model` names that model",
    "goal": "any wrong answer is the goal",
    "target": "any wrong answer is the goal",
}


@dataclass
class RowAttacker:
    """Attacks training rows, each set of them once: runs of one study share what was found."""

    _found: dict[str, AttackedTexts] = field(default_factory=dict)

    def __call__(self, config: RunConfig, train: Examples, progress: Progress) -> AttackedTexts:
        """Attack rows as a run's settings say.

        Args:
            config: The run.
            train: Its training rows.
            progress: Hears how far it is.

        Returns:
            The texts that the attacked model answers wrongly.

        Raises:
            SettingError: Rows, settings or the attacked model do not fit.
            DataError: The rows have a label that the attacked model does not know.
            ModelError: A model cannot be loaded.
        """
        settings = attack_settings(config.data)
        _check_rows(train, settings)
        named = {use: model_identity(name) for use, name in config.data.augment_models.items()}
        key = digest([config.data.augmentation(named, seed=config.data.seed), train.hash])
        if key not in self._found:
            predictor = _attacked_model(config)
            rows = train
            if config.data.augment_rows is not None:
                rows = train.sample(config.data.augment_rows, seed=config.data.seed)
            self._found[key] = _attack(predictor, rows, settings, config, progress, of=len(train))
        return self._found[key]


def attack_settings(data: DataSettings) -> TextAttackSettings:
    """Return how training rows are attacked; nothing is loaded.

    Args:
        data: With ``augment`` and what belongs to it.

    Raises:
        SettingError: A recipe or a setting is unknown or has its place elsewhere; all at once.

    Example:
        >>> data = DataSettings(source="demo", augment="attack:characters", augment_model="m")
        >>> attack_settings(data).recipes
        ('characters',)
    """
    known = [ATTACK + name for name in (*OWN, f"{OUTSIDE}NAME")]
    faults = [
        f"`data.augment`: {unknown('attack', ATTACK + name, known)}"
        for name in data.attacks
        if name not in OWN and not name.startswith(OUTSIDE)
    ]
    faults += [
        f"`data.augment_attack` must not set `{name}`: {why}. Leave it out."
        for name, why in _ELSEWHERE.items()
        if name in data.augment_attack
    ]
    model = data.augment_model or ""
    if names_code(model) or skops_file(model) is not None:
        faults.append(
            f"`data.augment_model` must be a checkpoint, whose weights say what it is, got {model}."
            " Give the folder of a trained model, or a Hub id."
        )
    Faults(faults).refuse()
    table = {**data.augment_attack, "recipes": data.attacks}
    if "masked" in data.attacks:
        table["masked_model"] = data.augment_masked_model
    return section(TextAttackSettings, "data.augment_attack", table)


def check_augmentation(data: DataSettings, train: Examples) -> None:
    """Check what changes training rows, as far as that needs no weights.

    Args:
        data: The settings.
        train: The training rows.

    Raises:
        SettingError: The settings do not fit the rows.
        ModelError: There is no masked language model where one is named.
    """
    if data.attacks:
        _check_rows(train, attack_settings(data))
    if data.augment_masked_model is not None:
        # Transformers takes seconds to import.
        from temper.models.masked import MaskedModel

        MaskedModel.check(data.augment_masked_model)


def _check_rows(train: Examples, settings: TextAttackSettings) -> None:
    if train.kind != "classification":
        raise SettingError(
            f"`data.augment` names {ATTACK}{settings.recipes[0]}, which makes answers wrong, and "
            "a regression's are never right. Leave it out; perturbations and 'masked' work."
        )
    if settings.field != "text" and train.text_pair is None:
        raise SettingError(
            f"`data.augment_attack.field` is {settings.field!r}, but set {train.name!r} has no "
            "second text. Use 'text'."
        )


def _attacked_model(config: RunConfig) -> Predictor:
    """Load the model that is attacked."""
    name = config.data.augment_model
    assert name is not None
    device = None if config.train.device == "auto" else config.train.device
    predictor = load_predictor(name, batch_size=BATCH, device=device)
    if predictor.gives == "values":
        raise SettingError(
            f"`data.augment_model` must be a classifier, and {name} is a regression. Give a model "
            "with the task's labels."
        )
    return predictor


def _attack(
    predictor: Predictor,
    rows: Examples,
    settings: TextAttackSettings,
    config: RunConfig,
    progress: Progress,
    *,
    of: int,
) -> AttackedTexts:
    """Attack rows by every recipe."""
    seed = config.data.seed
    aligned = align(rows, predictor.label_names)
    faults = recipes.faults(predictor, settings) + recipes.misfits(settings)
    if aligned.entailment is not None:
        faults.append(
            f"`data.augment_model` must have the labels of the training rows, "
            f"{list(rows.label_names or ())}, got {list(predictor.label_names or ())}."
        )
    Faults(faults).refuse()
    drafts = drafts_of(aligned.examples)
    before = answers_of(predictor.predict(rows, batch_size=BATCH), drafts)
    similarity = recipes.similarity(predictor, settings, batch_size=BATCH)
    texts: list[AttackedText] = []
    counts: dict[str, dict[str, int]] = {}
    notices: list[str] = []
    for name in settings.recipes:
        chosen = attacked(drafts, before, name, settings, seed)
        outcomes = recipes.run(
            name,
            list(chosen.values()),
            predictor,
            settings,
            similarity=similarity,
            batch_size=BATCH,
            tell=lambda done, total, name=name: progress.evaluation(  # type: ignore[misc]
                done, total, f"attack on training rows ({name})"
            ),
        )
        successes = [
            _text(name, rows, at, outcome)
            for at, outcome in zip(chosen, outcomes, strict=True)
            if outcome.answer.reached and outcome.changed
        ]
        texts += successes
        queries = sum(outcome.queries for outcome in outcomes)
        counts[name] = {"attacked": len(outcomes), "changed": len(successes), "queries": queries}
        notices.append(
            f"{ATTACK}{name} found texts that {config.data.augment_model} answers wrongly for "
            f"{len(successes)} of {len(outcomes)} attacked training rows of {of}; the others are "
            "trained on as they are."
        )
        if said := starved(outcomes, name, settings):
            notices.append(said)
        if name in _REPLACING and successes and settings.min_similarity is None:
            notices.append(
                f"{ATTACK}{name} replaces words by others and nothing bounds what they mean, so "
                "that some of its texts have another label than their row. Set "
                "data.augment_attack.min_similarity and similarity_model, and read "
                "attacked.parquet."
            )
    return AttackedTexts(tuple(texts), counts, tuple(notices))


def _text(name: str, rows: Examples, at: int, outcome: Outcome) -> AttackedText:
    return AttackedText(
        recipe=name,
        row=rows.rows[at],
        original=rows.text[at],
        original_pair=None if rows.text_pair is None else rows.text_pair[at],
        text=outcome.draft.text,
        text_pair=outcome.draft.text_pair,
        changed=outcome.share,
        queries=outcome.queries,
    )
