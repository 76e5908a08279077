"""OOD detectors on hand-worked numbers and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf, ledoit_wolf

from temper.functional.detectors import (
    Mahalanobis,
    energy,
    max_logit,
    max_softmax,
    shrunk_covariance,
)


def states(seed: int, rows: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, size)) @ np.diag(np.arange(1, size + 1))


@given(st.integers(0, 1000))
def test_energy_is_the_formula_of_its_authors_code(seed: int) -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wanted = -torch.logsumexp(logits, dim=1)
    assert energy(logits.numpy()) == pytest.approx(wanted.numpy())


@given(
    st.integers(0, 1000),
    st.integers(2, 40),
    st.integers(1, 12),
    st.sampled_from([1e-2, 1.0, 1e2]),
    st.booleans(),
)
def test_the_shrunk_covariance_is_scikit_learns_in_any_unit(
    seed: int, rows: int, size: int, unit: float, alike: bool
) -> None:
    # Where all sizes vary alike, all of the covariance may be noise.
    residuals = unit * states(seed, rows, size) / (np.arange(1, size + 1) if alike else 1.0)
    wanted, _ = ledoit_wolf(residuals, assume_centered=True)
    assert shrunk_covariance(residuals) == pytest.approx(wanted, rel=1e-8, abs=1e-10 * unit**2)


@pytest.mark.parametrize(("rows", "size"), [(200, 5), (21, 30)])
def test_the_score_of_all_layers_is_its_equation_with_scikit_learns_distances(
    rows: int, size: int
) -> None:
    known = np.stack([states(layer, rows, size) * (layer + 1) for layer in range(3)], axis=1)
    asked = np.stack([states(9 + layer, 15, size) + layer for layer in range(3)], axis=1)

    def distance(fit: np.ndarray, rows: np.ndarray) -> np.ndarray:
        spread = LedoitWolf(assume_centered=True).fit(fit - fit.mean(0))
        return np.asarray(spread.mahalanobis(rows - fit.mean(0)))

    wanted = []
    for number, row in enumerate(asked):
        total = 0.0
        for layer in range(3):
            even, odd = known[::2, layer], known[1::2, layer]
            held_out = [*distance(even, odd), *distance(odd, even)]
            mean = sum(held_out) / rows
            deviation = (sum((each - mean) ** 2 for each in held_out) / rows) ** 0.5
            own = distance(known[:, layer], asked[:, layer])[number]
            total += (own - mean) / deviation
        wanted.append(total / 3)
        assert row.shape == (3, size)
    # The inverse factors are kept in single precision.
    assert Mahalanobis.of(known).score(asked) == pytest.approx(wanted, rel=1e-5, abs=1e-5)


@given(st.integers(0, 1000), st.sampled_from([1e-3, 1.0, 1e3]))
def test_detectors_do_not_depend_on_the_scale_of_a_layer(seed: int, unit: float) -> None:
    known, asked = states(seed, 60, 8).reshape(60, 2, 4), states(seed + 1, 9, 8).reshape(9, 2, 4)
    scaled = np.asarray([unit, 1.0])[:, None]
    wanted = Mahalanobis.of(known).score(asked)
    assert Mahalanobis.of(known * scaled).score(asked * scaled) == pytest.approx(
        wanted, rel=1e-4, abs=1e-4
    )


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda: Mahalanobis.of(np.full((4, 1, 2), np.nan)), "state is NaN or infinite"),
        (lambda: Mahalanobis.of(np.ones((6, 2, 3))), "the same for all rows"),
        (lambda: Mahalanobis.of(np.eye(3)[:, None]), "at least 4 in-distribution rows"),
        (lambda: Mahalanobis.of(np.zeros((0, 1, 3))), r"got shape \[0, 1, 3\]"),
        (lambda: Mahalanobis.of(np.zeros((5, 3))), r"got shape \[5, 3\]"),
        (lambda: shrunk_covariance([1.0]), r"got shape \[1\]"),
    ],
)
def test_unsuitable_states_raise_an_error(fit: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit()  # type: ignore[operator]


def test_the_row_of_lowest_confidence_is_the_most_anomalous() -> None:
    # Two classes of the second row are as likely as each other; nothing may be read along an axis
    # of rows.
    probabilities = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]])
    assert max_softmax(probabilities).tolist() == [-0.7, -0.5]
    assert max_softmax(probabilities.tolist()).tolist() == [-0.7, -0.5]
    assert max_logit([[3, 1, 2], [-4, -2, -9]]).tolist() == [-3.0, 2.0]
    single = np.array([[0.1, 0.7]], dtype=np.float32)
    assert max_softmax(single).dtype == max_logit(single).dtype == np.float64
