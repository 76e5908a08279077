"""The search of `temper fit`: no candidate is trained on held-out rows, and the best is first."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.linear_model import LogisticRegression

from temper.api.findings import skipped_candidates
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples, Splits
from temper.data.splitting import check_folds, fold_of_rows
from temper.display.wording import escaped
from temper.errors import DataError
from temper.evaluation.loading import load_predictor
from temper.models.folders import save_model
from temper.progress import Progress
from temper.report.card import CardSources, card
from temper.study import fit as module
from temper.study.alternatives import LinearModel, frozen_predictor
from temper.study.fit import CANDIDATES, SIMPLE, Search, Trial, epochs_for
from temper.training.config import RunConfig
from temper.training.prepared import label_names
from tests.cli.tiny_project import make_model, sentences

ROWS = 60


def examples(count: int = ROWS) -> Examples:
    texts, labels = zip(*sentences(count), strict=True)
    return Examples(
        "train",
        list(texts),
        labels=[int(label == "positive") for label in labels],
        label_names=("negative", "positive"),
        kind="classification",
    )


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("fit") / "model"))


def search(model: str, rows: Examples, *, seconds: float = 1e6) -> Search:
    base = {
        "data": {"source": "rows.csv", "max_length": 32},
        "train": {"device": "cpu", "learning_rate": 1e-3},
    }
    return Search(base, rows, models=[model], seconds=seconds, progress=Progress())


@given(st.integers(1, 10**6), st.integers(1, 10**6))
def test_fewer_rows_are_never_read_less_often(first: int, second: int) -> None:
    assert epochs_for(min(first, second)) >= epochs_for(max(first, second)) >= 1


def test_a_written_linear_model_is_the_regression_on_its_rows(model: str, tmp_path: Path) -> None:
    rows = examples()
    config = RunConfig.of(
        {"model": model, "data": {"source": "x.csv", "max_length": 32}, "train": {"device": "cpu"}}
    )
    of_row = np.asarray(fold_of_rows(rows, 5, seed=0))
    linear = LinearModel.choose(frozen_predictor(config, label_names(rows)), rows, of_row)
    index = np.flatnonzero(of_row != 0)
    fitted = linear.fit(index)
    save_model(fitted.model, fitted.tokenizer, tmp_path)
    ours = load_predictor(Checkpoint.of(tmp_path), max_length=32).predict(rows).probabilities
    # Two rows of weights, w/2 and -w/2, have half the penalty of scikit-learn's one row.
    theirs = LogisticRegression(C=2 * linear.strength, tol=1e-10, max_iter=5000)
    theirs.fit(linear.features[index], linear.labels[index])
    np.testing.assert_allclose(ours, theirs.predict_proba(linear.features), atol=1e-4)


def test_no_candidate_is_trained_on_the_rows_that_judge_it(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[tuple[Any, set[str], set[str]]] = []
    starts: list[set[int]] = []
    plain, fitted = module.held_out_probabilities, LinearModel.fit

    def noting(config: Any, train: Examples, held: Examples, progress: Progress) -> Any:
        calls.append((config, set(train.text), set(held.text)))
        return plain(config, train, held, progress)

    def noting_start(self: LinearModel, index: Any = None) -> Any:
        starts.append(set(index.tolist()))
        return fitted(self, index)

    monkeypatch.setattr(module, "held_out_probabilities", noting)
    monkeypatch.setattr(LinearModel, "fit", noting_start)
    monkeypatch.setattr(module, "CANDIDATES", CANDIDATES[:2])
    rows = examples()
    choice = search(model, rows).run()
    assert len(choice.folds) == module.PARTS  # few rows, so all folds are used
    assert len(calls) == 2 * len(choice.folds) + len(choice.half)
    for _, train, held in calls:
        assert not train & held
    held_out = [set(fold.tolist()) for fold in choice.folds]
    for start in starts:
        assert any(not start & held for held in held_out)
    for trial in choice.trials:
        assert [len(logs) for logs in trial.logs] == [len(fold) for fold in choice.folds]
    scores = [choice.brier(trial.logs).mean() for trial in choice.trials]
    assert scores == sorted(scores)
    # Half of the rows, from the same folds.
    sizes = [len(train) for _, train, _ in calls[-len(choice.half) :]]
    assert sizes == [(ROWS - len(fold)) // 2 for fold in choice.folds]


def test_the_card_names_the_requested_model(model: str, tmp_path: Path) -> None:
    rows = examples()
    own = search(model, rows)
    linear = next(each for each in CANDIDATES if each.start is not None)
    own.choice.trials.append(Trial(model, linear))
    own.train_best(tmp_path / "start", tmp_path / "out", Splits(rows, examples(20)))
    text = card(CardSources(tmp_path / "out"))
    assert f"base model: {escaped(model)}" in text
    assert str(tmp_path / "start") not in text


def test_a_training_longer_than_the_remaining_time_is_skipped(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANDIDATES", CANDIDATES[:3])
    own = search(model, examples(), seconds=600.0)
    # A forward pass of a row takes a second.
    own.longest[model] = float(ROWS), float(ROWS)
    choice = own.run()
    (trial,) = choice.trials
    assert trial.candidate is CANDIDATES[0]
    (finding,) = skipped_candidates(choice)
    assert "trained: 1 of 3" in finding


def test_without_time_one_candidate_is_trained_on_one_fold(model: str) -> None:
    choice = search(model, examples(), seconds=1e-6).run()
    (trial,) = choice.trials
    assert trial.candidate is CANDIDATES[0]
    assert len(trial.logs) == 1
    assert choice.half == []


def test_simple_candidates_are_compared_to_the_end(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANDIDATES", CANDIDATES[:6])
    choice = search(model, examples()).run()
    simple = [trial for trial in choice.trials if trial.candidate in SIMPLE]
    assert {trial.candidate for trial in simple} == set(SIMPLE)
    assert {len(trial.logs) for trial in simple} == {len(choice.folds)}
    assert min(len(trial.logs) for trial in choice.trials) < len(choice.folds)


def test_candidates_are_dropped_only_after_enough_held_out_rows(
    model: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CANDIDATES", CANDIDATES[:6])
    choice = search(model, examples()).run()
    assert min(len(trial.logs) for trial in choice.trials) == module.FOLDS
    monkeypatch.setattr(module, "ENOUGH", ROWS // module.PARTS)
    choice = search(model, examples()).run()
    assert min(len(trial.logs) for trial in choice.trials) == 1


def test_too_few_rows_raise_an_error(model: str) -> None:
    with pytest.raises(DataError, match="has 49 rows.*at least 50"):
        search(model, examples(49))


def test_folds_of_too_few_different_texts_raise_an_error() -> None:
    texts, labels = [f"text {number % 3}" for number in range(ROWS)], [0, 1] * (ROWS // 2)
    with pytest.raises(DataError, match="different texts"):
        check_folds(Examples("copies", texts, labels=labels, kind="classification"))
