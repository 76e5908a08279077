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

from pydantic import Field, model_validator

from temper.backward.anchoring import Recall
from temper.backward.rule import chain
from temper.forward.objective import Clean
from temper.methods.method import Method, MethodConfig
from temper.methods.published import Published
from temper.methods.registry import register


@register(
    "rec_adam",
    summary="Pull to the pre-trained weights, annealed into Adam's step",
    cost="3F",
    memory="one copy of the weights, another while the optimiser steps",
    paper="Chen et al., EMNLP 2020",
)
class RecAdam(MethodConfig):
    """Settings of RecAdam.

    Args:
        anneal: How the task's share lambda of the step grows: ``sigmoid`` (the paper), ``linear``
            (``min(1, t / t0)``, in the released code), ``constant`` (``share``; the released code's
            is 1, which is plain Adam), or ``off``: plain fine-tuning.
        k: Steepness of the sigmoid (searched: .05, .1, .2, .5, 1; the released code: .5).
        t0: Step, counted from 1, at which the sigmoid is 1/2 and the linear one reaches 1
            (searched: 100, 250, 500, 1000; the code: 250). Set it below the number of steps.
        gamma: Strength of the pull (the paper: 5000, at learning rates of 1e-5 and 2e-5). Its
            product with the learning rate is the share of the way back that a step goes at first.
        share: lambda of ``constant``, in (0, 1].
    """

    PUBLISHED: ClassVar[dict[str, Published]] = {
        "anneal": Published("sigmoid", "the paper"),
        "k": Published(".5; searched .05 to 1", "released code"),
        "t0": Published("250; searched 100 to 1000", "released code"),
        "gamma": Published("5000", "the paper"),
        "train.learning_rate": Published("1e-5 and 2e-5", "the paper"),
    }

    PRETRAINED = "pulls the weights to pre-trained ones"

    # README of the released code: ALBERT-xxlarge on CoLA, BERT-base on STS-B.
    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "albert_cola": {"k": 0.2, "t0": 1000},
        "bert_sts": {"k": 1.0, "t0": 1000},
    }

    anneal: Literal["sigmoid", "linear", "constant", "off"] = "sigmoid"
    k: float = Field(default=0.5, gt=0.0, allow_inf_nan=False)
    t0: int = Field(default=250, ge=1)
    gamma: float = Field(default=5000.0, ge=0.0, allow_inf_nan=False)
    share: float = Field(default=0.5, gt=0.0, le=1.0)

    @model_validator(mode="after")
    def _refuse_what_the_annealing_does_not_read(self) -> Self:
        if self.anneal == "off":
            return self
        readers = {"k": ("sigmoid",), "t0": ("sigmoid", "linear"), "share": ("constant",)}
        for name, read_by in readers.items():
            default = type(self).model_fields[name].default
            if self.anneal not in read_by and getattr(self, name) != default:
                raise ValueError(
                    f"{name} is read only with anneal={' or '.join(map(repr, read_by))}, got "
                    f"{name}={getattr(self, name)} with anneal={self.anneal!r}"
                )
        return self

    def off(self) -> Self:
        """Leave the optimiser's step as it is."""
        return self._with(anneal="off")

    def build(self) -> Method:
        """Return the method."""
        if self.anneal == "off":
            return Method("rec_adam", self, Clean(), chain())
        rule = Recall(self.anneal, self.k, self.t0, self.gamma, self.share)
        return Method("rec_adam", self, Clean(), chain(rule))
