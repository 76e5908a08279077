"""A section belongs to one perspective, and a setting that nothing measured reads is refused."""

from __future__ import annotations

from typing import Any

import pytest
from pydantic import ValidationError

from temper.data.examples import Examples
from temper.evaluation import perspectives
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.measurement import Measurement
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings

SECTIONS = EvaluationSettings.sections()


@pytest.mark.parametrize("name", perspectives.names())
def test_a_perspective_perturbs_the_rows_that_are_to_be_perturbed_where_it_says_so(
    name: str,
    predictor: ClassifierPredictor,
    data: EvaluationData,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []
    attacked = Measurement.attacked

    def counted(self: Measurement, **limit: Any) -> Any:
        asked.append(1)
        return attacked(self, **limit)

    monkeypatch.setattr(Measurement, "attacked", counted)
    fit = Examples("fit", ["word1 word2", "word3", "word4 word5 word6"] * 4)
    whole = EvaluationData(data.dev, data.shift, data.anomaly, fit=fit, reference=predictor)
    evaluate(predictor, whole, EvaluationSettings(perspectives=(name,), bootstrap=0))
    assert bool(asked) == perspectives.perspective(name).perturbs


@pytest.mark.parametrize("name", sorted(SECTIONS))
def test_a_section_of_what_is_not_measured_is_refused(name: str) -> None:
    with pytest.raises(
        ValidationError, match=rf"reads: `{name}` \(only '{name}' does.*`perspectives` are task"
    ):
        EvaluationSettings(perspectives=("task",), **{name: {}})
    settings = EvaluationSettings(perspectives=("task", name))
    assert settings.section(name, SECTIONS[name]) == SECTIONS[name]()


def test_rows_that_nothing_perturbs_are_refused_with_all_else_that_is_not_read() -> None:
    with pytest.raises(ValidationError, match=r"`cost` \(.*\), `attack_rows` \(only 'embedding_a"):
        EvaluationSettings(perspectives=("task",), attack_rows=5, cost={"rows": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detectors": "energy", "neighbours": 2}, "`neighbours` is read only by knn"),
        ({"detectors": "energy", "rows": 9}, "`rows` is read only by mahalanobis or knn"),
    ],
)
def test_a_setting_of_a_detector_that_is_left_out_is_refused(settings: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSettings(anomaly=settings)


def test_all_faults_of_all_sections_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluationSettings(seed="x", embedding_noise={"sigmas": -1}, cost=5, noise={})
    places = {fault["loc"] for fault in caught.value.errors()}
    assert places == {("seed",), ("embedding_noise", "sigmas", 0), ("cost",), ("noise",)}


def test_settings_come_back_as_they_were_written_out() -> None:
    for name in perspectives.names():
        plain = EvaluationSettings(perspectives=(name,))
        assert EvaluationSettings.model_validate(plain.model_dump()) == plain
        assert EvaluationSettings.model_validate_json(plain.model_dump_json()) == plain


def test_a_perspective_that_is_left_out_takes_its_settings_with_it() -> None:
    # What a predictor cannot serve is left out with a notice: that is no fault of the settings.
    settings = EvaluationSettings(perspectives=("task", "cost"), cost={"rows": 5})
    assert settings.without(("cost",)).perspectives == ("task",)
