"""What is measured, and how: the settings of an evaluation."""

from __future__ import annotations

from collections.abc import Container
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from temper.data.corruptions import Corruption
from temper.data.perturbations import known_names
from temper.data.perturbations import names as perturbation_names
from temper.errors import unknown
from temper.evaluation import perspectives
from temper.evaluation.text_attack.settings import TextAttackSettings

Attack = Literal["fgm", "pgd"]
AttackNorm = Literal["l2", "linf"]
Detector = Literal["max_softmax", "max_logit", "energy", "mahalanobis", "knn"]
Merge = Literal["sum", "argmax"]
PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Share = Annotated[float, Field(gt=0, le=1)]

# Settings that take several values.
_LISTS = (
    "perspectives",
    "attacks",
    "norms",
    "radii",
    "sigmas",
    "corruptions",
    "corruption_rates",
    "perturbations",
    "detectors",
)
# Settings that belong to members of such a list, and these members.
_OF_MEMBERS = {
    "pgd_steps": ("attacks", ("pgd",)),
    "pgd_step_size": ("attacks", ("pgd",)),
    "restarts": ("attacks", ("pgd",)),
    "detector_rows": ("detectors", ("mahalanobis", "knn")),
    "neighbours": ("detectors", ("knn",)),
}


class EvaluationSettings(BaseModel):
    """Settings of an evaluation, checked all at once.

    Where several values may be given, one stands for a list of one. A setting other than its
    default that nothing measured reads is refused.

    Args:
        perspectives: What is measured; names of `temper.evaluation.perspectives`, ``default`` for
            those that do not cost many passes, ``all`` for every one.
        attacks: Attacks on the embeddings: ``fgm`` (one step), ``pgd`` (several).
        norms: ``l2`` bounds the whole example, ``linf`` every entry.
        radii: Budgets, > 0, each measured; absolute unless ``radii_relative``.
        radii_relative: Whether radii are fractions of the example's own embedding norm.
        pgd_steps: Gradients of a PGD run, >= 1.
        pgd_step_size: Length of a PGD run's first step as a fraction of the radius, > 0; a row's
            steps are halved from where its loss stops rising.
        restarts: PGD runs from different starts, >= 1; the worst of them counts. Only rows that are
            still right are attacked again.
        special_tokens: Whether an attack may move special tokens such as [CLS] and [SEP].
        attack_rows: Rows of dev that are attacked, noised, corrupted, perturbed and measured for
            smoothness, chosen by hash; None is all.
        sigmas: Standard deviations of the noise, > 0.
        noise_relative: Whether sigmas are fractions of the RMS of the example's embeddings, which
            carries over between models.
        corruptions: Kinds of token corruption: ``random`` (another token of the vocabulary),
            ``mask`` ([MASK]; left out with a notice where the tokenizer has none), ``drop``.
        corruption_rates: Probabilities that a token is corrupted, in (0, 1], each measured.
        perturbations: Changes that keep a text's label, each measured and all of them together:
            names of `temper.data.perturbations`. ``contractions``, ``expansions`` and
            ``misspellings`` know English words only.
        text_attack: How texts are attacked (`TextAttackSettings`).
        smoothness_rows: At most so many of these rows have their smoothness measured, >= 1.
        smoothness_projections: Random projections of a row and layer, >= 1; each is a backward pass
            and one through it.
        detectors: Scores of anomaly: ``max_softmax``, ``max_logit``, ``energy`` of the answers,
            ``mahalanobis`` and ``knn`` of the last hidden states; those that the predictor or the
            data do not allow are left out with a notice.
        detector_rows: At most so many ordinary rows teach the detectors of hidden states, >= 1,
            drawn by hash and class.
        neighbours: Which nearest ordinary row ``knn`` measures the distance to, >= 1.
        reference: The pre-trained model that ``representation`` compares with, a folder, a Hub id
            or a short name; None is what the model's own record names. Who loads the model loads
            it (`temper evaluate`); `evaluate` is given it as ``EvaluationData.reference``.
        cka_batch: Rows of a batch of the estimator behind CKA, >= 4; the states of one batch are
            held at a time.
        cost_rows: At most so many dev rows, chosen by hash, are answered to measure the cost, >= 1.
        cost_batch: Rows of a forward pass whose cost is measured, >= 1.
        cost_repetitions: Passes of which the cost is the median, >= 1; one more warms up.
        merge: How three NLI classes answer a set with two (evaluation.md): ``sum`` adds the
            probabilities of neutral and contradiction first, ``argmax`` decides among three
            (RoAST).
        batch_size: Rows of a forward pass, >= 1; changes no result.
        bootstrap: Resamples behind each interval without a closed form, >= 0; 0 gives no
            intervals at all.
        seed: Seed of every draw.

    Example:
        >>> EvaluationSettings(radii=(0.1,), pgd_steps=3).perspectives[0]
        'task'
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    perspectives: tuple[str, ...] = perspectives.defaults()
    attacks: tuple[Attack, ...] = ("fgm", "pgd")
    norms: tuple[AttackNorm, ...] = ("l2",)
    radii: tuple[PositiveFloat, ...] = Field(default=(0.01, 0.25, 0.5), min_length=1)
    radii_relative: bool = False
    pgd_steps: int = Field(default=10, ge=1)
    pgd_step_size: PositiveFloat = 1.0
    restarts: int = Field(default=1, ge=1)
    special_tokens: bool = True
    attack_rows: int | None = Field(default=None, ge=1)
    sigmas: tuple[PositiveFloat, ...] = Field(default=(0.25, 0.5, 1.0), min_length=1)
    noise_relative: bool = True
    corruptions: tuple[Corruption, ...] = ("random", "mask", "drop")
    corruption_rates: tuple[Share, ...] = Field(default=(0.05, 0.1, 0.2), min_length=1)
    perturbations: tuple[str, ...] = perturbation_names()
    text_attack: TextAttackSettings = Field(default_factory=TextAttackSettings)
    smoothness_rows: int = Field(default=64, ge=1)
    smoothness_projections: int = Field(default=4, ge=1)
    detectors: tuple[Detector, ...] = ("max_softmax", "max_logit", "energy", "mahalanobis", "knn")
    detector_rows: int = Field(default=2000, ge=1)
    neighbours: int = Field(default=10, ge=1)
    reference: str | None = Field(default=None, min_length=1)
    cka_batch: int = Field(default=64, ge=4)
    cost_rows: int = Field(default=128, ge=1)
    cost_batch: int = Field(default=32, ge=1)
    cost_repetitions: int = Field(default=5, ge=1)
    merge: Merge = "sum"
    batch_size: int = Field(default=32, ge=1)
    bootstrap: int = Field(default=1000, ge=0)
    seed: int = 0

    @field_validator(*_LISTS, mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Take ``--set evaluate.radii=0.1`` for a list of one."""
        alone = isinstance(value, str | int | float) and not isinstance(value, bool)
        return (value,) if alone else value

    @field_validator("perspectives")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        groups = {"all": perspectives.names(), "default": perspectives.defaults()}
        names = tuple(each for name in names for each in groups.get(name, (name,)))
        for name in names:
            if name not in perspectives.names():
                raise ValueError(unknown("perspective", name, perspectives.names()))
        return names

    @field_validator("perturbations")
    @classmethod
    def _known_perturbations(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        return known_names(names)

    @field_validator(*_LISTS)
    @classmethod
    def _distinct(cls, values: tuple[object, ...]) -> tuple[object, ...]:
        if not values:
            raise ValueError("must name at least one")
        if len(set(values)) != len(values):
            raise ValueError(f"must not name one twice, got {list(values)}")
        return values

    @model_validator(mode="after")
    def _read(self) -> EvaluationSettings:
        """Refuse what would be ignored: who sets it believes that it is measured."""
        unread = {name: self._reader(name) for name in self._changed()}
        said = [f"`{name}` (only {reader} does)" for name, reader in unread.items() if reader]
        if said:
            raise ValueError(
                f"sets what nothing measured reads: {', '.join(said)}. Have it measured "
                f"(`perspectives` are {', '.join(self.perspectives)}), or leave the setting out"
            )
        return self

    def _changed(self) -> list[str]:
        """Return the settings that are not as by default."""
        fields = type(self).model_fields
        return [
            name
            for name, field in fields.items()
            if getattr(self, name) != field.get_default(call_default_factory=True)
        ]

    def _reader(self, name: str) -> str:
        """Say what would read a setting; empty where something does."""
        readers = perspectives.readers(name)
        if readers and not set(readers) & set(self.perspectives):
            return " or ".join(map(repr, readers))
        group, members = _OF_MEMBERS.get(name, ("", ()))
        if members and not set(members) & set(getattr(self, group)):
            return f"{' or '.join(map(repr, members))} of `{group}`"
        return ""

    def without(self, names: Container[str]) -> EvaluationSettings:
        """Return the same settings without some perspectives."""
        kept = tuple(name for name in self.perspectives if name not in names)
        return self.model_copy(update={"perspectives": kept})
