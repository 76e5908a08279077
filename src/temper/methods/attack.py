"""Settings that methods with an attack share, and how they become a perturbation."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from temper.forward.perturbations import Perturbation
from temper.functional.norms import Norm
from temper.functional.schedules import ScalarOrSchedule
from temper.methods.method import MethodConfig
from temper.methods.variants import Variant


class Single(Variant):
    """One step up, which has the whole budget."""

    kind: Literal["single"] = "single"


class Projected(Variant):
    """Several steps up, each projected to the budget (PGD).

    Args:
        steps: Ascent steps, at least 2.
        step_size: Size of a step as a share of epsilon, above 0.
    """

    kind: Literal["projected"] = "projected"
    steps: int = Field(default=2, ge=2)
    step_size: ScalarOrSchedule = Field(default=0.5, gt=0.0)


class AttackConfig(MethodConfig):
    """Settings of the attack on the embeddings.

    Args:
        epsilon: Budget, at least 0 (the paper: .01, .1 or .4 absolute). 0 leaves the embeddings
            where they are; the passes under attack still run, as UEGR's sub-models without the
            attack do. For no such pass set their weights to 0.
        relative: Whether epsilon is a share of the example's own embedding norm, which carries
            over between models; .025 is about .15 absolute on MiniLM.
        norm: ``l2``, ``linf`` (the sign of the gradient), or ``linf_scaled`` (the gradient over its
            largest entry, in the same ball).
        attack_scope: What shares the budget: ``example``, ``token``, or ``batch``.
        site: ``word`` embeddings or the ``output`` of the embeddings block.
        special_tokens: Whether [CLS], [SEP] and the like move too.
    """

    SIZE: ClassVar[str] = "epsilon"

    epsilon: ScalarOrSchedule = Field(default=0.025, ge=0.0)
    relative: bool = True
    norm: Norm = "l2"
    attack_scope: Literal["example", "token", "batch"] = "example"
    site: Literal["word", "output"] = "word"
    special_tokens: bool = True

    def perturbation(self, **ascent: float) -> Perturbation:
        """Return the perturbation that these settings describe.

        Args:
            ascent: ``steps`` and ``step_size`` of several ascent steps.
        """
        return Perturbation(
            epsilon=self.epsilon,
            relative=self.relative,
            norm=self.norm,
            scope=self.attack_scope,
            site=self.site,
            special_tokens=self.special_tokens,
            **ascent,  # type: ignore[arg-type]
        )
