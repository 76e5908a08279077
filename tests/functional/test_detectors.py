"""Detectors of anomalies on hand-worked numbers and against scikit-learn."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.covariance import LedoitWolf, ledoit_wolf
from sklearn.neighbors import NearestNeighbors

from temper.functional.detectors import (
    Mahalanobis,
    Neighbours,
    energy,
    max_logit,
    max_softmax,
    shrunk_covariance,
)


def states(seed: int, rows: int, size: int) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=(rows, size)) @ np.diag(np.arange(1, size + 1))


@given(st.integers(0, 1000), st.floats(0.5, 4))
def test_energy_is_the_formula_of_its_authors_code(seed: int, temperature: float) -> None:
    logits = torch.randn(5, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    wanted = -(temperature * torch.logsumexp(logits / temperature, dim=1))
    assert energy(logits.numpy(), temperature=temperature) == pytest.approx(wanted.numpy())


def test_an_energy_needs_a_temperature_above_zero() -> None:
    with pytest.raises(ValueError, match="`temperature` must be > 0, got 0"):
        energy([[0.0, 1.0]], temperature=0.0)


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


@pytest.mark.parametrize(("rows", "size"), [(200, 5), (20, 30)])
def test_the_distance_to_classes_is_scikit_learns(rows: int, size: int) -> None:
    known, asked = states(0, rows, size), states(1, 15, size) + 2.0
    classes = np.arange(rows) % 3
    means = np.stack([known[classes == k].mean(0) for k in range(3)])
    spread = LedoitWolf(assume_centered=True).fit(known - means[classes])
    wanted = np.min([spread.mahalanobis(asked - mean) for mean in means], axis=0)
    assert Mahalanobis.of(known, classes).score(asked) == pytest.approx(wanted, rel=1e-8)


@given(st.integers(0, 1000), st.integers(1, 6), st.sampled_from([0, 12, 1500]))
def test_the_distance_to_neighbours_is_scikit_learns(seed: int, k: int, rows: int) -> None:
    # So many that finding the k-th does not sort them all, and so few that it is the last of all.
    known, asked = states(seed, rows or k, 4), states(seed + 1, 9, 4)

    def unit(rows: np.ndarray) -> np.ndarray:
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)

    distances, _ = NearestNeighbors(n_neighbors=k).fit(unit(known)).kneighbors(unit(asked))
    assert Neighbours.of(known, k=k).score(asked) == pytest.approx(distances[:, -1], abs=1e-7)


def test_a_row_of_zeros_is_as_far_from_all() -> None:
    known = [[0.0, 0.0], [3.0, 4.0], [0.0, -2.0]]
    # Twice less no cosine.
    assert Neighbours.of(known, k=3).score([[0.0, 0.0]]) == pytest.approx([2**0.5])
    assert Neighbours.of(known, k=2).score([[3.0, 4.0]]) == pytest.approx([2**0.5])


def test_blocks_of_distances_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    fitted = Neighbours.of(states(0, 30, 5), k=4)
    whole = fitted.score(states(1, 20, 5))
    monkeypatch.setattr("temper.functional.detectors._BLOCK", 90)
    assert fitted.score(states(1, 20, 5)) == pytest.approx(whole, abs=1e-12)


@pytest.mark.parametrize(
    ("fit", "words"),
    [
        (lambda: Neighbours.of([[1.0]], k=2), "there are 1 rows, and neighbour number 2"),
        (lambda: Neighbours.of([[1.0]], k=0), "and neighbour number 0"),
        (lambda: Neighbours.of([[np.nan]], k=1), "a state is not finite"),
        (lambda: Mahalanobis.of([[1.0], [1.0]], [0, 0]), "do not vary within their classes"),
        (lambda: Mahalanobis.of([[1.0], [2.0]], [0]), "one class a state, got 1 and 2"),
        (lambda: Mahalanobis.of(np.zeros((0, 3)), []), r"got shape \[0, 3\]"),
        (lambda: shrunk_covariance([1.0]), r"got shape \[1\]"),
    ],
)
def test_states_that_teach_nothing_are_refused(fit: object, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        fit()  # type: ignore[operator]


def test_the_least_sure_row_is_the_most_anomalous() -> None:
    # Two classes of the second row are as likely as each other; nothing may be read along an axis
    # of rows.
    probabilities = np.array([[0.1, 0.7, 0.2], [0.5, 0.5, 0.0]])
    assert max_softmax(probabilities).tolist() == [-0.7, -0.5]
    assert max_softmax(probabilities.tolist()).tolist() == [-0.7, -0.5]
    assert max_logit([[3, 1, 2], [-4, -2, -9]]).tolist() == [-3.0, 2.0]
    single = np.array([[0.1, 0.7]], dtype=np.float32)
    assert max_softmax(single).dtype == max_logit(single).dtype == np.float64
