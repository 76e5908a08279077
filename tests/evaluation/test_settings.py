"""A setting that nothing measured reads is refused, and each perspective names those it reads."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from pydantic import ValidationError

from temper.data.examples import Examples
from temper.evaluation import perspectives
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings

# What every evaluation reads, and what only decides how a set of two classes is answered.
COMMON = {"perspectives", "merge", "batch_size", "bootstrap", "seed"}
OTHERS: dict[str, Any] = {
    "attacks": ("pgd",),
    "norms": ("linf",),
    "radii": (0.1,),
    "radii_relative": True,
    "pgd_steps": 2,
    "pgd_step_size": 0.5,
    "restarts": 2,
    "special_tokens": False,
    "attack_rows": 5,
    "sigmas": (0.1,),
    "noise_relative": False,
    "corruptions": ("drop",),
    "corruption_rates": (0.3,),
    "perturbations": ("typos",),
    "text_attack": {"rows": 5},
    "smoothness_rows": 5,
    "smoothness_projections": 1,
    "detectors": ("knn",),
    "detector_rows": 20,
    "neighbours": 2,
    "reference": "minilm",
    "cka_batch": 8,
    "cost_rows": 5,
    "cost_batch": 4,
    "cost_repetitions": 1,
}
"""Every setting that not all perspectives read, with a value that is not its default."""


class Watched(EvaluationSettings):
    """Settings that note which of them are read."""

    def __getattribute__(self, name: str) -> Any:
        if name in EvaluationSettings.model_fields:
            _READ.add(name)
        return super().__getattribute__(name)


_READ: set[str] = set()


@pytest.fixture
def watched() -> Iterator[set[str]]:
    _READ.clear()
    yield _READ
    _READ.clear()


def test_every_setting_is_common_or_read_by_a_perspective() -> None:
    fields = set(EvaluationSettings.model_fields)
    declared = {name for entry in perspectives.PERSPECTIVES.values() for name in entry.reads}
    assert declared == set(OTHERS)
    assert fields == declared | COMMON
    assert not declared & COMMON


@pytest.mark.parametrize("name", perspectives.names())
def test_a_perspective_reads_the_settings_that_it_declares_and_no_others(
    name: str, predictor: ClassifierPredictor, data: EvaluationData, watched: set[str]
) -> None:
    fit = Examples("fit", ["word1 word2", "word3", "word4 word5 word6"] * 4)
    whole = EvaluationData(data.dev, data.shift, data.anomaly, fit=fit, reference=predictor)
    settings = Watched(perspectives=(name,), bootstrap=0)
    rows = perspectives.perspective(name).rows
    measured: set[str] = set()

    def counted(measurement: Any) -> Any:
        # All else that an evaluation reads is no business of the perspective.
        watched.clear()
        found = list(rows(measurement))
        measured.update(watched)
        return found

    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(
            perspectives.PERSPECTIVES, name, _with_rows(perspectives.perspective(name), counted)
        )
        evaluate(predictor, whole, settings)
    declared = set(perspectives.perspective(name).reads)
    # The predictor that is compared with stands in the data; the name of it is the loader's.
    assert measured - COMMON == declared - {"reference"}


def _with_rows(entry: perspectives.Perspective, rows: Any) -> perspectives.Perspective:
    return replace(entry, rows=rows)


@pytest.mark.parametrize("name", sorted(OTHERS))
def test_a_setting_that_nothing_measured_reads_is_refused(name: str) -> None:
    with pytest.raises(
        ValidationError, match=rf"reads: `{name}` \(only '.*`perspectives` are task"
    ):
        EvaluationSettings(perspectives=("task",), **{name: OTHERS[name]})
    for reader in perspectives.readers(name):
        EvaluationSettings(perspectives=("task", reader), **{name: OTHERS[name]})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"cost_rows": 5}, r"`cost_rows` \(only 'cost' does\)\. Have it measured"),
        ({"attacks": "fgm", "pgd_steps": 2}, r"`pgd_steps` \(only 'pgd' of `attacks` does\)"),
        ({"attacks": "fgm", "pgd_step_size": 0.1}, r"`pgd_step_size` \(only 'pgd' of `attacks`"),
        ({"attacks": "fgm", "restarts": 2}, r"`restarts` \(only 'pgd' of `attacks`"),
        ({"detectors": "energy", "neighbours": 2}, r"`neighbours` \(only 'knn' of `detectors`"),
        (
            {"detectors": "energy", "detector_rows": 9},
            r"`detector_rows` \(only 'mahalanobis' or 'knn' of `detectors` does\)",
        ),
    ],
)
def test_a_setting_of_something_left_out_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSettings(**settings)


def test_all_unread_settings_are_named_at_once() -> None:
    with pytest.raises(ValidationError, match=r"`sigmas` \(.*\), `cost_rows` \("):
        EvaluationSettings(perspectives=("task",), sigmas=0.1, cost_rows=5)


def test_defaults_are_never_refused_even_where_they_are_written_out() -> None:
    for name in perspectives.names():
        plain = EvaluationSettings(perspectives=(name,))
        assert EvaluationSettings.model_validate(plain.model_dump()) == plain
    assert EvaluationSettings(attacks=("fgm",), detectors=("energy",)).attacks == ("fgm",)


def test_a_perspective_that_is_left_out_takes_its_settings_with_it() -> None:
    # What a predictor cannot serve is left out with a notice: that is no fault of the settings.
    settings = EvaluationSettings(perspectives=("task", "cost"), cost_rows=5)
    assert settings.without(("cost",)).perspectives == ("task",)
