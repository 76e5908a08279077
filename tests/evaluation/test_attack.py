"""Attacks on toy models with known results, and on a tiny BERT."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation import attack as module
from temper.evaluation.attack import (
    EmbeddingAttackSettings,
    Outcome,
    PGDSettings,
    Target,
    attack,
)
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.rows import Block, to_blocks
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.functional.norms import Norm, size

BOTH = EmbeddingAttackSettings(norms=("l2", "linf"), radii=(0.5, 1.0))


def pgd(radius: float, *, norm: Norm = "l2", **settings: Any) -> EmbeddingAttackSettings:
    return EmbeddingAttackSettings(
        fgm=False, norms=(norm,), radii=(radius,), pgd=PGDSettings(**settings)
    )


def with_pgd(settings: EmbeddingAttackSettings, pgd: PGDSettings | None) -> EmbeddingAttackSettings:
    return settings.model_copy(update={"pgd": pgd})


def toy(forward: Callable[[Tensor], Tensor], *, rows: int = 3, regression: bool = False) -> Target:
    """Return a target of ``rows`` rows with 2, 3, ... real tokens of 2 channels."""
    movable = torch.arange(rows + 1)[None, :] <= torch.arange(1, rows + 1)[:, None]
    embeddings = torch.arange(rows * (rows + 1) * 2.0).reshape(rows, rows + 1, 2) / 10 + 0.1
    names = [f"row{number}" for number in range(rows)]

    def of_rows(delta: Tensor, _: Tensor) -> Tensor:
        return forward(delta)

    return Target(of_rows, torch.zeros(rows), embeddings, movable, names, regression)


def linear(delta: Tensor) -> Tensor:
    """Class 0 loses what the tokens' entries gain, with weights 3 and 4."""
    pull = (delta * torch.tensor([3.0, 4.0])).sum(dim=(1, 2))
    return torch.stack([-pull, torch.zeros_like(pull)], dim=1)


def bowl(delta: Tensor) -> Tensor:
    """A convex loss, as a regression: the gradient at 0 points off the ball's highest point."""
    weights, center = torch.tensor([1.0, 5.0]), torch.tensor([3.0, 0.3])
    return (((delta - center) * weights) ** 2).sum(dim=(1, 2))[:, None]


def outcomes(
    target: Target, settings: EmbeddingAttackSettings
) -> dict[tuple[str, str, float], Outcome]:
    return {
        (result.attack, result.norm, round(float(result.radius[0]), 6)): result
        for result in attack(target, settings)[1]
    }


def test_fgm_on_a_linear_model_moves_by_the_dual_norm() -> None:
    result = outcomes(toy(linear), BOTH)
    tokens = np.asarray([2, 3, 4])
    # l2: the gradient is (3, 4) on each of n tokens, of length 5 sqrt(n). linf: n (3 + 4).
    assert -result["fgm", "l2", 0.5].logits[:, 0].numpy() == pytest.approx(2.5 * tokens**0.5)
    assert -result["fgm", "linf", 0.5].logits[:, 0].numpy() == pytest.approx(3.5 * tokens)
    # A linear loss has no better point, so PGD stays there.
    assert -result["pgd", "l2", 1.0].logits[:, 0].numpy() == pytest.approx(5 * tokens**0.5)


@pytest.mark.parametrize("steps", [1, 2, 7])
@pytest.mark.parametrize("restarts", [1, 3])
def test_pgd_is_at_least_as_strong_as_fgm(steps: int, restarts: int) -> None:
    settings = with_pgd(BOTH, PGDSettings(steps=steps, restarts=restarts))
    result = outcomes(toy(bowl, regression=True), settings)
    for (name, norm, radius), outcome in result.items():
        if name == "pgd":
            assert (outcome.logits >= result["fgm", norm, radius].logits).all()
            assert (outcome.steps, outcome.restarts) == (steps, restarts)


def test_pgd_climbs_higher_than_fgm_on_a_convex_loss() -> None:
    result = outcomes(toy(bowl, regression=True), with_pgd(BOTH, PGDSettings(steps=10)))
    better = result["pgd", "l2", 1.0].logits > result["fgm", "l2", 1.0].logits * 1.001
    assert better.all()


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_more_steps_or_restarts_never_weaken_the_attack(
    norm: Any, model: Any, tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    dev = examples_of(rows=24)
    right = {
        (steps, starts): attacked(
            predictor, dev, norms=(norm,), radii=(0.2,), pgd={"steps": steps, "restarts": starts}
        )["pgd", norm, 0.2].correct
        for steps in (1, 2, 3, 6, 12)
        for starts in (1, 2, 4)
    }
    for (steps, starts), weaker in right.items():
        for (more_steps, more_starts), stronger in right.items():
            if more_steps >= steps and more_starts >= starts:
                assert (stronger <= weaker).all()


def test_pgd_halves_steps_that_do_not_raise_the_loss() -> None:
    # The loss's maximum, (0.3, 0), is inside the ball: steps of one radius always jump over it.
    top = torch.tensor([0.3, 0.0])

    def hill(delta: Tensor) -> Tensor:
        return 10.0 - ((delta[:, :1] - top) ** 2).sum(dim=(1, 2))[:, None].sqrt()

    reached = []
    for steps in (2, 5, 30):
        target = replace(toy(hill, rows=1, regression=True), labels=torch.zeros(1))
        target = replace(target, movable=torch.tensor([[True, False]]))
        result = outcomes(target, pgd(1.0, steps=steps))
        reached.append(float(result["pgd", "l2", 1.0].logits))
    assert reached == sorted(reached)
    assert reached[-1] == pytest.approx(10.0, abs=1e-3)


def test_pgd_does_not_attack_rows_that_are_already_wrong() -> None:
    seen: list[int] = []

    def counted(delta: Tensor) -> Tensor:
        seen.append(len(delta))
        return linear(delta) + torch.tensor([100.0, 0.0])

    target = toy(counted, rows=2)
    hard = replace(target, labels=torch.tensor([0.0, 1.0]))
    list(attack(hard, pgd(1.0, steps=4, restarts=2))[1])
    # The second row is wrong as it is: it has the clean pass and FGM's.
    assert seen == [2, 2, 1, 1, 1, 1, 1, 1, 1, 1][: len(seen)]
    assert len(seen) == 1 + 4 + 5


@pytest.mark.parametrize("norm", ["l2", "linf"])
def test_every_delta_stays_within_its_radius_and_is_zero_on_padding(norm: Any) -> None:
    seen: list[Tensor] = []

    def watched(delta: Tensor) -> Tensor:
        seen.append(delta.detach())
        return bowl(delta)

    target = toy(watched, regression=True)
    settings = pgd(0.7, norm=norm, steps=4, step_size=0.6, restarts=3)
    list(attack(target, settings)[1])
    assert len(seen) == 1 + 4 + 2 * 5
    for delta in seen:
        assert (delta[~target.movable] == 0).all()
        assert (size(delta, norm=norm) <= 0.7 + 1e-6).all()
    # The steps are long, so the ball's edge is reached: a radius that binds nothing tests nothing.
    assert (size(seen[-1], norm=norm) > 0.69).all()


def test_a_relative_radius_is_a_fraction_of_the_rows_own_norm() -> None:
    target = toy(linear)
    settings = EmbeddingAttackSettings(pgd=None, norms=("l2", "linf"), radii=(0.1,), relative=True)
    first, second = attack(target, settings)[1]
    own = torch.where(target.movable[..., None], target.embeddings, 0.0).double()
    assert first.radius.numpy() == pytest.approx(0.1 * own.flatten(1).norm(dim=1).numpy())
    assert second.radius.numpy() == pytest.approx(0.1 * own.flatten(1).amax(dim=1).numpy())
    assert (first.radius_relative == 0.1).all()


def test_a_row_without_attackable_tokens_has_no_perturbation() -> None:
    target = toy(linear)
    target = replace(target, movable=target.movable & torch.tensor([False, True, True])[:, None])
    clean, result = attack(target, pgd(1.0, restarts=2))
    outcome = next(result)
    assert torch.equal(outcome.logits[0], clean[0])
    assert outcome.radius_relative.isnan().tolist() == [True, False, False]


def test_one_clean_gradient_is_used_for_every_norm_and_radius() -> None:
    passes = {"forward": 0, "gradient": 0}

    def counted(delta: Tensor) -> Tensor:
        passes["gradient" if torch.is_grad_enabled() else "forward"] += 1
        return bowl(delta)

    list(attack(toy(counted, regression=True), with_pgd(BOTH, None))[1])
    assert passes == {"forward": 4, "gradient": 1}
    passes.update(forward=0, gradient=0)
    list(attack(toy(counted, regression=True), with_pgd(BOTH, PGDSettings(steps=3)))[1])
    # Two norms by two radii, each two more gradients and one forward; FGM's output is among them.
    assert passes == {"forward": 4, "gradient": 1 + 4 * 2}


def test_a_saturated_softmax_does_not_stop_the_attack() -> None:
    # Its cross-entropy is 0 even in fp64, with a gradient of 0 at the label's logit.
    def sure(delta: Tensor) -> Tensor:
        return linear(delta) + torch.tensor([60.0, 0.0])

    result = outcomes(toy(sure), EmbeddingAttackSettings(pgd=None, norms=BOTH.norms, radii=(20.0,)))
    assert (result["fgm", "l2", 20.0].logits.argmax(dim=1) == 1).all()


def test_attacks_climb_along_the_gradient_of_the_cross_entropy() -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, requires_grad=True)
    labels = torch.tensor([0, 1, 2, 3, 1])
    (one,) = torch.autograd.grad(module.ascent_loss(logits, labels, regression=False).sum(), logits)
    entropy = torch.nn.functional.cross_entropy(logits, labels, reduction="sum")
    (two,) = torch.autograd.grad(entropy, logits)
    assert torch.cosine_similarity(one, two).detach().numpy() == pytest.approx(np.ones(5))


def test_a_wrong_prediction_ranks_above_a_higher_loss() -> None:
    target = toy(linear, rows=1)
    right = torch.tensor([[0.34, 0.33, 0.33]]).log()
    wrong = torch.tensor([[0.40, 0.60, 0.00001]]).log()
    assert torch.equal(module._worse(target, right, wrong), wrong)
    assert torch.equal(module._worse(target, wrong, right), wrong)


def test_a_random_start_depends_on_the_row_and_not_on_its_position() -> None:
    target = toy(linear)
    swapped = replace(
        target,
        rows=target.rows[::-1],
        movable=target.movable.flip(0),
        embeddings=target.embeddings.flip(0),
    )
    radius = torch.full((3, 1, 1), 2.0)
    for norm in ("l2", "linf"):
        start = module.random_start(target, radius, norm=norm, seed=0, key=1)
        other = module.random_start(swapped, radius, norm=norm, seed=0, key=1)
        assert torch.equal(start.flip(0), other)
        assert not torch.equal(start, module.random_start(target, radius, norm=norm, seed=0, key=2))


def test_a_gradient_that_is_not_finite_raises_an_error_with_its_row() -> None:
    def broken(delta: Tensor) -> Tensor:
        # sqrt has an infinite slope at 0, and inf * 0 is NaN.
        return linear(delta) + (delta[:, :, :1].abs().sum(dim=1) * 0).sqrt() * torch.tensor(
            [1.0, 0]
        )

    with pytest.raises(ModelError, match=r"gradient .* of row row0 is not finite"):
        attack(toy(broken), BOTH)


def attacked(
    predictor: ClassifierPredictor, dev: Examples, **settings: Any
) -> dict[tuple[str, Any, Any], Block]:
    chosen: dict[str, Any] = {"bootstrap": 0}
    for name in ("batch_size", "seed", "attack_rows"):
        if name in settings:
            chosen[name] = settings.pop(name)
    chosen["embedding_attack"] = {"radii": (0.3, 1.0), "pgd": {"steps": 3}, **settings}
    result = evaluate(
        predictor,
        EvaluationData(dev),
        EvaluationSettings(perspectives=("embedding_attack",), **chosen),
    )
    blocks = to_blocks(result.rows)
    return {(block.condition.name, *_asked(block)): block for block in blocks}


def _asked(block: Block) -> tuple[Any, Any]:
    parameters = block.condition.parameters
    return parameters.get("norm"), parameters.get("radius", parameters.get("radius_relative"))


def test_special_tokens_can_be_excluded_from_the_attack(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    # An unknown word is a word of the text, [CLS] and [SEP] are not.
    dev = Examples("dev", ["nonsense"], labels=[0], kind="classification")
    with predictor.session() as session:
        part = next(session.parts(dev))
        assert part.special.tolist() == [[True, False, True]]
    spared = attacked(predictor, dev, special_tokens=False, radii=(1.0,))
    moved = attacked(predictor, dev, radii=(1.0,))
    assert spared["fgm", "l2", 1.0].loss[0] != moved["fgm", "l2", 1.0].loss[0]


def test_every_row_has_an_absolute_and_a_relative_radius(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    dev = examples_of(rows=5)
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    block = attacked(predictor, dev, radii=(0.3,))["fgm", "l2", 0.3]
    table = model.bert.embeddings.word_embeddings.weight.detach().double()
    norms = [table[tokenizer(text)["input_ids"]].norm().item() for text in dev.text]
    assert (block.measured["radius"] == 0.3).all()
    assert block.measured["radius_relative"] == pytest.approx(0.3 / np.asarray(norms))
    relative = attacked(predictor, dev, radii=(0.1,), relative=True)["fgm", "l2", 0.1]
    assert relative.condition.parameters["radius_relative"] == 0.1
    assert relative.measured["radius"] == pytest.approx(0.1 * np.asarray(norms))


def test_a_limit_of_attacked_rows_chooses_them_by_their_text(
    model: Any, tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=64)
    dev = examples_of(rows=12)
    order = list(range(11, -1, -1))
    some = attacked(predictor, dev, attack_rows=5)
    again = attacked(predictor, dev.select(order), attack_rows=5)
    assert len(some["clean", None, None]) == 12
    chosen = some["fgm", "l2", 0.3]
    assert len(chosen) == 5
    assert [dev.rows[index] for index in chosen.index] == chosen.row
    assert set(chosen.row) == set(again["fgm", "l2", 0.3].row)
