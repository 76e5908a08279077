"""Settings of the text attacks."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, field_validator, model_validator

from temper.data.words import Words
from temper.errors import unknown
from temper.evaluation.text_attack.contract import OUTSIDE, OWN, RecipeName
from temper.evaluation.text_attack.contract import Field as AttackedField

Goal = Literal["untargeted", "targeted"]


class TextAttackSettings(BaseModel):
    """How texts are attacked.

    Args:
        recipes: ``characters`` (typing errors and look-alikes, any predictor), ``swaps`` (words of
            the model's own vocabulary, by its gradient), ``masked`` (words of a masked language
            model), ``textattack:NAME`` (a recipe class of TextAttack where that is installed, such
            as ``textattack:TextFoolerJin2019``, within its own bounds); each is measured.
        rows: At most so many of the dev rows, chosen by hash as ``attack_rows`` are, >= 1.
        goal: ``untargeted`` wants any wrong class, ``targeted`` the class ``target``.
        target: Index or name of that class; only with ``targeted``.
        max_changed: Largest share of a row's words that is changed, in (0, 1]; one word may always
            be changed.
        max_queries: Most texts that the predictor is asked about for a row, >= 1; None is no limit.
        stop_words: Whether English stop words are left alone.
        protected: Words that are never changed, in any case.
        min_similarity: Smallest cosine, in [-1, 1], between the embeddings of the changed and the
            unchanged text; None does not look. Needs ``similarity_model``.
        similarity_model: Folder, short name (``minilm``) or Hub id of a sentence encoder.
        masked_model: Folder or Hub id of a masked language model, for ``masked``.
        field: Which text of a pair is attacked: ``text``, ``text_pair`` or ``both``.

    Example:
        >>> TextAttackSettings(recipes="characters", max_changed=0.1).recipes
        ('characters',)
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    recipes: tuple[RecipeName, ...] = ("characters",)
    rows: int = Field(default=100, ge=1)
    goal: Goal = "untargeted"
    target: int | str | None = None
    max_changed: Annotated[float, Field(gt=0, le=1)] = 0.3
    max_queries: int | None = Field(default=None, ge=1)
    stop_words: bool = True
    protected: tuple[str, ...] = ()
    min_similarity: float | None = Field(default=None, ge=-1, le=1)
    similarity_model: str | None = None
    masked_model: str | None = None
    field: AttackedField = "text"

    @field_validator("recipes", "protected", mode="before")
    @classmethod
    def _listed(cls, value: Any) -> Any:
        """Take one name for a list of one."""
        return (value,) if isinstance(value, str) else value

    @field_validator("recipes")
    @classmethod
    def _distinct(cls, values: tuple[RecipeName, ...]) -> tuple[RecipeName, ...]:
        if not values:
            raise ValueError("must name at least one")
        if len(set(values)) != len(values):
            raise ValueError(f"must not name one twice, got {list(values)}")
        for name in values:
            if name not in OWN and not name.startswith(OUTSIDE):
                raise ValueError(unknown("recipe", name, (*OWN, f"{OUTSIDE}NAME")))
        return values

    @model_validator(mode="after")
    def _together(self) -> TextAttackSettings:
        """Refuse settings that would be ignored, and ones that lack another."""
        faults = [
            f"`protected` must hold single words, got {word!r}"
            for word in self.protected
            if Words.of(word).words != (word,)
        ]
        if (self.goal == "targeted") != (self.target is not None):
            faults.append("`target` must be given with goal 'targeted', and only then")
        if (self.min_similarity is None) != (self.similarity_model is None):
            faults.append("`min_similarity` and `similarity_model` must be given together")
        if ("masked" in self.recipes) != (self.masked_model is not None):
            faults.append("`masked_model` must be given with the recipe 'masked', and only then")
        if faults:
            raise ValueError("; ".join(faults))
        return self
