"""RecAdam: recall the pre-trained weights first, learn the task later, beside Adam's moments.

``w <- w - lr * (lambda(t) * adam(g) + (1 - lambda(t)) * gamma * (w - w_start))`` with
``lambda(t) = 1 / (1 + exp(-k (t - t0)))``, for all but the classifier; weight decay is not damped.

Source: Chen et al., EMNLP 2020 (arXiv 2004.12651); released code Sanyuan-Chen/RecAdam@2f39a49.
Differs: it is a rule around any optimiser (the published one is Adam), and training starts from
the pre-trained weights, where the released script's default starts from random ones and lets the
pull bring them in.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, Self

from pydantic import Field, FiniteFloat

from temper.backward.recall import Recall
from temper.backward.rule import UpdateRule
from temper.methods import Method, Published, register
from temper.methods.variants import Off, Variant


class Sigmoid(Variant):
    """lambda(t) = 1 / (1 + exp(-k (t - t0))).

    Args:
        k: Steepness (searched: 0.05, 0.1, 0.2, 0.5, 1; the released code: 0.5).
        t0: Step, counted from 1, at which it is 1/2 (searched: 100, 250, 500, 1000; the code: 250).
            Set it below the number of steps.
    """

    kind: Literal["sigmoid"] = "sigmoid"
    k: float = Field(default=0.5, gt=0.0)
    t0: int = Field(default=250, ge=1)


class Rising(Variant):
    """lambda(t) = min(1, t / t0).

    Args:
        t0: Step, counted from 1, at which it reaches 1. Set it below the number of steps.
    """

    kind: Literal["linear"] = "linear"
    t0: int = Field(default=250, ge=1)


class Held(Variant):
    """lambda(t) is the same in every step.

    Args:
        share: lambda, in (0, 1].
    """

    kind: Literal["constant"] = "constant"
    share: float = Field(default=0.5, gt=0.0, le=1.0)


@register(
    "rec_adam",
    summary="Pull to the pre-trained weights, annealed into Adam's step",
    cost="3F",
    memory="one copy of the weights, another while the optimiser steps",
    paper="Chen et al., EMNLP 2020",
    claims="rule: settling",
)
class RecAdam(Method):
    """Settings of RecAdam.

    Args:
        anneal: How the task's share lambda of the step grows: ``sigmoid`` (the paper), ``linear``
            (in the released code), ``constant`` (the released code's share is 1, which is plain
            Adam), or ``off``: plain fine-tuning.
        gamma: Strength of the pull (the paper: 5000, at learning rates of 1e-5 and 2e-5). Its
            product with the learning rate is the share of the way back that a step goes at first.
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "anneal": Published("sigmoid", "the paper"),
        "anneal.k": Published("0.5; searched 0.05 to 1", "released code"),
        "anneal.t0": Published("250; searched 100 to 1000", "released code"),
        "gamma": Published("5000", "the paper"),
        "train.learning_rate": Published("1e-5 and 2e-5", "the paper"),
    }

    PRETRAINED = "pulls the weights to pre-trained ones"

    # README of the released code: ALBERT-xxlarge on CoLA, BERT-base on STS-B.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "albert_cola": {"anneal": {"k": 0.2, "t0": 1000}},
        "bert_sts": {"anneal": {"k": 1.0, "t0": 1000}},
    }

    anneal: Sigmoid | Rising | Held | Off = Field(default=Sigmoid(), discriminator="kind")
    gamma: FiniteFloat = Field(default=5000.0, ge=0.0)

    def off(self) -> Self:
        """Leave the optimiser's step as it is."""
        return self._with(anneal="off")

    def update(self) -> list[UpdateRule]:
        """Return the update rule."""
        if isinstance(self.anneal, Off):
            return []
        rule = Recall(self.anneal.kind, gamma=self.gamma, **self.anneal.values)
        return [rule]
