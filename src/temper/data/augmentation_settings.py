"""What a training is told about how its rows are changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Self

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from temper.errors import unknown

AUGMENT_SHARE = 0.5
"""Probability that a row is perturbed: clean and changed rows weigh alike, as in the adversarial
training of Goodfellow et al. (2015, section 6). A2T (Yoo and Qi, 2021) changes 20 % of the rows."""

MASKED = "masked"
"""The change that draws words from a masked language model."""

ATTACK = "attack:"
"""What the names of text attacks begin with; a recipe of ``evaluate.text_attack`` follows."""


class AugmentationSettings(BaseModel):
    """Say how training rows are changed; labels and evaluated rows stay as they are.

    Args:
        augment: What is done to training rows, one of these a row and epoch: perturbations of
            `temper.data.perturbations`, for example ``typos`` and ``lowercase``; ``masked``, words
            replaced by draws from ``augment_masked_model``; ``attack:RECIPE``, the text that an
            attack on ``augment_model`` found. One stands for a list of one.
        augment_share: Probability that a training row is changed in an epoch, in (0, 1].
        augment_model: Classifier that is attacked, before training and once a row: a folder or Hub
            id of a model with the task's labels.
        augment_masked_model: Folder or Hub id of a masked language model, for ``masked`` and
            ``attack:masked``.
        augment_rows: Rows that are attacked at most, drawn with the data's ``seed``; None attacks
            all. A row without an attacked text stays as it is.
        augment_attack: Settings of ``evaluate.text_attack`` that bound the attacks, such as
            ``max_changed`` or ``min_similarity``.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    augment: tuple[str, ...] = ()
    augment_share: Annotated[float, Field(gt=0, le=1)] = AUGMENT_SHARE
    augment_model: Annotated[str, Field(min_length=1)] | None = None
    augment_masked_model: Annotated[str, Field(min_length=1)] | None = None
    augment_rows: Annotated[int, Field(ge=1)] | None = None
    augment_attack: dict[str, Any] = Field(default_factory=dict)

    @field_validator("augment", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        return (value,) if isinstance(value, str) else value

    @field_validator("augment")
    @classmethod
    def _known(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        # Importing the names takes numpy, and the options of commands are made without it.
        from temper.data.perturbations import PERTURBATIONS

        for name in names:
            if name not in PERTURBATIONS and name != MASKED and not name[:-1].startswith(ATTACK):
                every = (*PERTURBATIONS, MASKED, f"{ATTACK}RECIPE")
                raise ValueError(unknown("perturbation", name, every))
        if len(set(names)) != len(names):
            raise ValueError(f"must not name one twice, got {list(names)}")
        return names

    @model_validator(mode="after")
    def _augment_by_something(self) -> Self:
        """Refuse settings that would be ignored, and names that lack a model."""
        faults = []
        if self.augment_share != AUGMENT_SHARE and not self.augment:
            faults.append(
                f"augment_share is {self.augment_share}, but nothing is to be done to the rows; "
                "give augment too, or leave augment_share out"
            )
        if self.attacks and self.augment_model is None:
            faults.append(
                f"augment names {ATTACK}{self.attacks[0]}, which needs the classifier that it is "
                "run against; give augment_model (--augment-model FOLDER)"
            )
        for name in ("augment_model", "augment_rows", "augment_attack"):
            if getattr(self, name) and not self.attacks:
                faults.append(
                    f"{name} is {getattr(self, name)!r}, but no attack is named; add "
                    f"{ATTACK}RECIPE to augment, or leave {name} out"
                )
        asked = [name for name in (MASKED, ATTACK + MASKED) if name in self.augment]
        if asked and self.augment_masked_model is None:
            faults.append(
                f"augment names {asked[0]}, which needs a masked language model; give "
                "augment_masked_model (--augment-masked-model FOLDER)"
            )
        if not asked and self.augment_masked_model is not None:
            faults.append(
                f"augment_masked_model is {self.augment_masked_model!r}, but nothing asks it; add "
                f"{MASKED} to augment, or leave augment_masked_model out"
            )
        if faults:
            raise ValueError("; ".join(faults))
        return self

    @property
    def attacks(self) -> tuple[str, ...]:
        """The recipes of the attacks that are named."""
        return tuple(name[len(ATTACK) :] for name in self.augment if name.startswith(ATTACK))

    @property
    def augment_models(self) -> dict[str, str]:
        """The models that are named, by setting."""
        named = {
            "augment_model": self.augment_model,
            "augment_masked_model": self.augment_masked_model,
        }
        return {setting: name for setting, name in named.items() if name is not None}

    def augmentation(self, identities: Mapping[str, str], *, seed: int) -> dict[str, Any]:
        """Return what of the changes decides a run's weights, for its key; empty where none is.

        Args:
            identities: What identifies the weights of each of `augment_models`.
            seed: Seed of the data, by which attacks draw.
        """
        if not self.augment:
            return {}
        # The order decides which of them a draw stands for.
        decides: dict[str, Any] = {"augment": [list(self.augment), self.augment_share]}
        if identities:
            decides["augment_models"] = dict(identities)
        if self.attacks:
            decides["augment_attack"] = [self.augment_attack, self.augment_rows, seed]
        return decides


AUGMENTATION = tuple(AugmentationSettings.model_fields)
"""Settings of what becomes of training rows; they decide nothing about what is evaluated."""
