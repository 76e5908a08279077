"""UEGR: adversarial passes under adaptive dropout, and a selective update.

Each step has four parts:

- A clean pass. Its backward yields the gradients of weights, embeddings and dropout layers.
- An attack: a step of size epsilon along the embeddings' gradient (Eq. 2).
- K adversarial passes with adaptive dropout, run as one forward. The loss is ``L = L_st + L_adv +
  lambda * L_div`` (Eq. 6): the clean loss, the mean adversarial loss (Eq. 3), and the
  Jensen-Shannon divergence over all pairs of passes (Eq. 4).
- A random mask over the gradient, which keeps salient entries more often (Eqs. 7 to 9).

Source: UEGR, arXiv 2503.16550. Where the paper contradicts itself: docs/methods/uegr.md.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from temper.forward import Losses, Plan, StepContext, SubModels, with_weight
from temper.functional.losses import Divergence
from temper.lazy import Tensor, torch
from temper.methods import register
from temper.methods.attack import AttackConfig, check_divergence
from temper.methods.bounds import Count, Nonnegative, Rate
from temper.methods.selection import SelectionConfig
from temper.methods.variants import Variant, variant
from temper.seeding import generator
from temper.types import Reduction, Step


class Gradient(Variant):
    """Dropout rates by example and channel that follow the clean pass's gradient (section V-A)."""

    kind: Literal["gradient"] = "gradient"
    low: Rate = Field(
        default=0.05,
        description="Smallest adaptive rate. The paper's best range for models trained from "
        "scratch, 0.3 to 0.5, is the default for those.",
    )
    high: Rate = Field(default=0.2, description="Largest adaptive rate.")

    @model_validator(mode="after")
    def _check_order(self) -> Self:
        if not self.low <= self.high:
            raise ValueError(f"low must be at most high, got low={self.low} and high={self.high}")
        return self


class Uniform(Variant):
    """The model's own rates; without dropout layers, a rate at the output of each block."""

    kind: Literal["uniform"] = "uniform"


class Fixed(Variant):
    """One fixed rate per pass (Figure 3)."""

    kind: Literal["fixed"] = "fixed"
    rates: tuple[Rate, ...] = Field(description="One rate in [0, 1) for each of the K passes.")


@register(
    "uegr",
    summary="Adversarial passes with adaptive dropout, and a selective update",
    cost="3F + 3KF + mask (every k steps a fraction s of the rows: 3F + 3KF s/k)",
    memory="activations of K passes",
    paper="UEGR, arXiv 2503.16550",
)
class UEGR(AttackConfig, SelectionConfig):
    """Settings of UEGR, of its attack and of the selective update."""

    OFF: ClassVar = {"adversarial_weight": 0.0, "divergence_weight": 0.0, "mask": "off"}

    PRESETS: ClassVar[dict[str, dict[str, Any]]] = {
        "paper": {"epsilon": 0.1, "relative": False, "adaptive": {"low": 0.3, "high": 0.5}},
        "sentiment": {"mask": {"alpha": 0.9, "beta": 10.0}},
        "entailment": {"mask": {"alpha": 0.6, "beta": 1.0}},
        "fast": {"mask": "off", "every": 2, "fraction": 0.5},
        "one_pass": {"mask": "off", "passes": 1, "with_clean": True},
    }

    passes: int = Field(
        default=2, ge=1, le=64, description="Number K of adversarial passes (sub-models)."
    )
    adversarial_weight: Nonnegative = Field(
        default=1.0,
        description="Weight of the mean adversarial loss. If it is 0, set `divergence_weight` too: "
        "0 switches the attack off, above 0 keeps only the divergence.",
    )
    divergence_weight: Nonnegative = Field(
        default=0.01,
        description="Weight lambda of the divergence. A single pass has no pairs, so no "
        "divergence.",
    )
    divergence: Divergence = Field(
        default="js", description="Type of divergence: `js` (Eq. 4) or `sym_kl`."
    )
    reduction: Reduction = Field(
        default="sum",
        description="Reduction of the divergence over the rows: `sum` as in R-Drop's, R-AT's and "
        "RoAST's code, or `mean`.",
    )
    adaptive: Gradient | Uniform | Fixed = variant(
        Gradient(), "Dropout rates of the adversarial passes: `gradient`, `uniform` or `fixed`."
    )
    sites: Literal["all", "last"] = Field(
        default="all",
        description="Where these rates apply: `all` dropout layers, or only the `last` before "
        "the head.",
    )
    with_clean: bool = Field(
        default=False,
        description="Whether the divergence also compares the adversarial passes with the detached "
        "clean pass. With one adversarial pass there is no other divergence.",
    )
    every: Count = Field(
        default=1, description="Attack only in every n-th step, with n times the weight."
    )
    fraction: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Fraction of each batch's rows that are attacked, drawn at random. Their "
        "weight is multiplied by 1 / fraction.",
    )

    def check(self) -> None:
        super().check()
        if isinstance(self.adaptive, Fixed) and len(self.adaptive.rates) != self.passes:
            raise ValueError(
                f"adaptive='fixed' needs {self.passes} rates, one per pass, got "
                f"{list(self.adaptive.rates)}"
            )
        check_divergence(self, self.pair_weight)

    @property
    def pair_weight(self) -> float:
        """Weight of the divergence; 0 if there is only one pass to compare."""
        return self.divergence_weight if self.passes > 1 or self.with_clean else 0.0

    @property
    def attacks(self) -> bool:
        return bool(self.adversarial_weight or self.pair_weight)

    @classmethod
    def from_scratch(cls, given: Mapping[str, Any]) -> dict[str, Any]:
        """Mask all parameters, and use the paper's dropout rates; see `Method.from_scratch`."""
        rates = {"low": 0.3, "high": 0.5}
        adaptive = given.get("adaptive", {})
        free = not (isinstance(adaptive, Mapping) and rates.keys() & adaptive.keys())
        return {**super().from_scratch(given), **({"adaptive": rates} if free else {})}

    def submodels(self) -> SubModels:
        return SubModels(
            self.passes, adaptive=self.adaptive.kind, **self.adaptive.values, sites=self.sites
        )

    def plan(self, now: Step) -> Plan:
        if not self.attacks:
            return Plan()
        due = now.number % self.every == 0
        alone = self.submodels().single and not self.with_clean
        return Plan(
            clean=due,
            totals=int(due),
            task_weight=1.0,
            site=self.site,
            gradient=due,
            channel_norms=isinstance(self.adaptive, Gradient),
            conflicts=frozenset({"perturbation"} if alone else {"perturbation", "sub-models"}),
        )

    def losses(self, step: StepContext) -> Iterator[Losses]:
        """Yield ``L_st``, then ``L_adv + lambda * L_div`` (Algorithm 1, Eq. 6)."""
        clean = step.clean
        # L_st (Eq. 5). Its backward also leaves the gradients w.r.t. the embeddings and the sites.
        yield [clean.task]
        gradient, recording = clean.gradient, clean.recording  # gradient: [B, T, D]
        clean_logits = clean.detached  # 1 x [B, U, C]
        factor = float(self.every)
        if (rows := self._attacked_rows(step)) is not None:
            factor *= step.batch.size / len(rows)
            step, recording, gradient = step.take(rows), recording.take(rows), gradient[rows]
            clean_logits = tuple(logits[rows] for logits in clean_logits)
        embeddings = recording.embeddings
        assert embeddings is not None
        # Eq. 2: delta = epsilon * g / ||g||, [B, T, D].
        delta = self.attack_step(step, gradient, embeddings)
        step.note_size(delta, embeddings)
        # Algorithm 1, line 5: K passes at x + delta in one forward, K x [B, U, C]; one dropout rate
        # per example and channel, from the norms of the clean pass's gradient.
        attacked = step.passes(
            self.submodels(), delta=delta, site=self.site, clean_recording=recording
        )
        compared = (*clean_logits, *attacked) if self.with_clean else attacked
        weight, pair_weight = factor * self.adversarial_weight, factor * self.pair_weight
        yield with_weight(
            step.task(attacked, name="adversarial", weight=weight),  # L_adv (Eq. 3)
            # lambda * L_div (Eq. 4)
            step.divergence(compared, self.divergence, self.reduction, weight=pair_weight),
        )

    def _attacked_rows(self, step: StepContext) -> Tensor | None:
        """Draw the sorted indices [b] of the attacked rows; None attacks all rows."""
        size = step.batch.size
        count = max(1, round(self.fraction * size))
        if count >= size:
            return None
        draws = generator(step.streams.local("rows", "adversarial"))
        return torch.randperm(size, generator=draws)[:count].sort().values.to(step.batch.device)
