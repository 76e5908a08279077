"""A whole evaluation: rows, scores from rows alone, files, and what it refuses."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from pydantic import ValidationError
from sklearn import metrics

from temper.data.examples import Examples
from temper.errors import DataError, SettingError
from temper.evaluation import perspectives
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.function import CallablePredictor
from temper.evaluation.measurement import Measurement
from temper.evaluation.rows import Condition, to_blocks
from temper.evaluation.run import (
    Evaluation,
    EvaluationData,
    evaluate,
)
from temper.evaluation.settings import EvaluationSettings

QUICK = EvaluationSettings(
    embedding_attack={"radii": (0.3,), "pgd": {"steps": 2}},
    embedding_noise={"sigmas": (0.5, 1.0)},
    token_corruption={"rates": (0.2,)},
    bootstrap=50,
)
CLEAN = EvaluationSettings(perspectives=("task", "shift", "calibration", "anomaly"), bootstrap=50)
KEYS = {
    "perspective",
    "set",
    "condition",
    "parameters",
    "name",
    "value",
    "n",
    "fewest",
    "low",
    "high",
    "standard_error",
    "higher_is_better",
}


def by_name(result: Evaluation, perspective: str, name: str, **where: Any) -> dict[str, Any]:
    (entry,) = [
        entry
        for entry in result.scores
        if (entry["perspective"], entry["name"]) == (perspective, name)
        and all({**entry, **entry["parameters"]}.get(key) == value for key, value in where.items())
    ]
    return entry


def fixed(probabilities: list[list[float]], **more: Any) -> CallablePredictor:
    """Return a predictor that predicts for the texts "0", "1", ... with given rows."""
    return CallablePredictor(
        lambda texts: [probabilities[int(text)] for text in texts], gives="probabilities", **more
    )


def numbered(count: int, labels: Any, *, start: int = 0, **more: Any) -> Examples:
    kind = "unlabeled" if labels is None else "classification"
    return Examples("set", [str(start + n) for n in range(count)], labels=labels, kind=kind, **more)


def test_every_score_has_all_its_fields(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    heard: list[tuple[int, int, str]] = []
    result = evaluate(predictor, data, QUICK, progress=lambda *part: heard.append(part))
    for entry in result.scores:
        # The random model is no better than chance, so that no temperature is high enough.
        undefined = entry["condition"] == "temperature"
        assert set(entry) == (KEYS | {"reason"} if undefined else KEYS)
        assert entry["low"] is None or entry["low"] <= entry["high"]
        assert entry["name"] in perspectives.perspective(entry["perspective"]).score_names
    assert result.task == {"kind": "classification", "metric": "accuracy", "labels": ["0", "1"]}
    assert result.truncated == {"dev": 0.0, "far": 0.0, "odd": 0.0}
    assert all(0 <= done <= total for done, total, _ in heard)
    assert {name.replace("_", " ") for name in QUICK.perspectives} <= {what for *_, what in heard}
    assert heard[-1][0] == heard[-1][1]


def test_scores_equal_those_of_other_libraries_on_the_rows(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, QUICK)
    blocks = to_blocks(result.rows)
    (odd,) = [b for b in blocks if b.condition == Condition("anomaly", "odd")]
    task = blocks[0]
    assert by_name(result, "task", "accuracy")["value"] == metrics.accuracy_score(
        task.label, task.prediction
    )
    assert by_name(result, "task", "macro_f1")["value"] == pytest.approx(
        metrics.f1_score(task.label, task.prediction, average="macro", zero_division=0.0)
    )
    assert by_name(result, "calibration", "nll", set="dev", condition="clean")[
        "value"
    ] == pytest.approx(metrics.log_loss(task.label, task.probabilities))
    flags = [0] * 30 + [1] * 15
    values = -np.concatenate([task.probabilities.max(1), odd.probabilities.max(1)])
    entry = by_name(result, "anomaly", "auroc", condition="clean")
    assert entry["value"] == pytest.approx(metrics.roc_auc_score(flags, values))
    assert entry["n"] == 45
    pgd = by_name(result, "embedding_attack", "accuracy", condition="pgd")
    drop = by_name(result, "embedding_attack", "drop", condition="pgd")
    assert drop["value"] == pytest.approx(
        by_name(result, "task", "accuracy")["value"] - pgd["value"]
    )
    assert pgd["parameters"] == {"radius": 0.3, "norm": "l2", "steps": 2, "restarts": 1}


def test_the_area_under_the_noise_curve_is_scored(
    predictor: ClassifierPredictor, data: EvaluationData
) -> None:
    result = evaluate(predictor, data, QUICK)
    clean = by_name(result, "task", "accuracy")["value"]
    half, whole = (
        by_name(result, "embedding_noise", "accuracy", sigma_relative=sigma)["value"]
        for sigma in (0.5, 1.0)
    )
    area = by_name(result, "embedding_noise", "area")
    assert area["value"] == pytest.approx(((clean + half) / 2 + (half + whole) / 2) / 2)
    assert area["parameters"] == {}


def test_noise_depends_on_the_row_and_sigma_and_not_on_the_run(
    predictor: ClassifierPredictor, examples_of: Any
) -> None:
    dev = examples_of(rows=6)
    again = evaluate(predictor, EvaluationData(dev), QUICK)
    result = evaluate(predictor, EvaluationData(dev), QUICK)
    assert result.rows.equals(again.rows)
    other = evaluate(predictor, EvaluationData(dev), QUICK.model_copy(update={"seed": 1}))
    noise = [
        next(b for b in to_blocks(e.rows) if b.condition.name == "noise").probabilities
        for e in (result, other)
    ]
    assert (np.abs(noise[0] - noise[1]).max(axis=1) > 1e-6).all()


def test_the_noise_is_standard_normal_on_real_tokens(
    predictor: ClassifierPredictor, examples_of: Any
) -> None:
    from temper.evaluation.perspectives.embedding_noise import standard_noise

    with predictor.session() as session:
        part = next(session.parts(examples_of(rows=200), batch_size=200))
        noise = standard_noise(part, session.embeddings(part), seed=0, key=0)
    assert (noise[~part.batch.mask] == 0).all()
    drawn = noise[part.batch.mask]
    # About 1,700 tokens of 16 channels: the errors of mean and deviation are near .006 and .004.
    assert abs(float(drawn.mean())) < 0.03
    assert abs(float(drawn.std()) - 1) < 0.02


def test_a_regression_is_measured_and_has_no_calibration(
    model_of: Any, tokenizer: Any, examples_of: Any
) -> None:
    predictor = ClassifierPredictor(model_of(classes=1), tokenizer, max_length=64)
    data = EvaluationData(examples_of(kind="regression"), metric="pearson")
    result = evaluate(predictor, data, QUICK)
    assert result.task == {"kind": "regression", "metric": "pearson", "labels": []}
    assert by_name(result, "task", "mse")["higher_is_better"] is False
    assert (
        by_name(result, "embedding_attack", "mse", condition="pgd")["value"]
        > by_name(result, "task", "mse")["value"]
    )
    entry = by_name(result, "calibration", "ece_10")
    assert entry["value"] is None
    assert entry["reason"] == "a regression has no probabilities"


def test_undefined_scores_have_a_reason() -> None:
    data = EvaluationData(numbered(3, [0, 0, 0]), metric="mcc")
    result = evaluate(fixed([[1.0, 0.0], [0.2, 0.8], [0.0, 1.0]]), data, CLEAN)
    entry = by_name(result, "task", "mcc")
    assert (entry["value"], entry["low"]) == (None, None)
    assert "same class" in entry["reason"]
    # The last row's label has probability 0.
    entry = by_name(result, "calibration", "nll", condition="clean")
    assert entry["reason"] == "a label has probability 0"
    entry = by_name(result, "calibration", "nll", condition="temperature")
    assert entry["reason"] == "no temperature was fitted, see the notices"
    json.dumps(result.scores, allow_nan=False)


NLI = ("contradiction", "entailment", "neutral")


@pytest.mark.parametrize(("how", "right"), [("sum", 1.0), ("argmax", 0.5)])
def test_two_label_nli_sets_merge_neutral_and_contradiction(how: Any, right: float) -> None:
    outputs = [[0.3, 0.4, 0.3], [0.1, 0.8, 0.1]]
    two = numbered(2, [1, 0], label_names=("entailment", "non-entailment"))
    data = EvaluationData(numbered(2, [0, 1], label_names=NLI), shift={"hans": two})
    settings = CLEAN.model_copy(update={"merge": how})
    result = evaluate(fixed(outputs, label_names=NLI), data, settings)
    assert by_name(result, "shift", "accuracy")["value"] == right
    shift = to_blocks(result.rows)[1]
    assert shift.probabilities == pytest.approx(np.asarray([[0.4, 0.6], [0.8, 0.2]]))
    # ECE is of merged predictions: |1 - 0.6| and |1 - 0.8|, or of argmax |0 - 0.4| and |1 - 0.8|.
    entry = by_name(result, "calibration", "ece_10", set="hans", condition="clean")
    assert entry["value"] == pytest.approx(0.3)


def test_labels_are_matched_by_name() -> None:
    dev = numbered(2, [0, 1], label_names=("good", "bad"))
    result = evaluate(
        fixed([[0.1, 0.9], [0.8, 0.2]], label_names=("bad", "good")), EvaluationData(dev), CLEAN
    )
    assert by_name(result, "task", "accuracy")["value"] == 1.0
    assert result.task["labels"] == ["bad", "good"]


def test_a_shift_set_with_an_unknown_label_raises_an_error() -> None:
    dev = numbered(2, [0, 1], label_names=("bad", "good"))
    odd = numbered(2, [0, 1], label_names=("bad", "superb"))
    with pytest.raises(DataError, match="Shift set 'far': .*'superb'"):
        evaluate(
            fixed([[0.5, 0.5]] * 2, label_names=("bad", "good")),
            EvaluationData(dev, shift={"far": odd}),
            CLEAN,
        )


def test_a_label_beyond_the_models_classes_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"Set 'dev' has the label 2, but the model has 2 classes"):
        evaluate(fixed([[0.5, 0.5]] * 2), EvaluationData(numbered(2, [0, 2])), CLEAN)


def test_perspectives_that_a_function_does_not_support_are_reported() -> None:
    settings = EvaluationSettings(perspectives=("task", "embedding_attack", "embedding_noise"))
    result = evaluate(fixed([[0.5, 0.5]] * 2), EvaluationData(numbered(2, [0, 1])), settings)
    assert {entry["perspective"] for entry in result.scores} == {"task"}
    assert list(result.skipped) == ["embedding_attack", "embedding_noise"]
    for name, message in result.skipped.items():
        assert re.search(f"^{name} needs .*embeddings .*got CallablePredictor", message)
    assert result.notices == tuple(
        f"Not measured: {message}" for message in result.skipped.values()
    )


def test_an_evaluation_without_a_supported_perspective_raises_an_error() -> None:
    settings = EvaluationSettings(perspectives=("embedding_attack",))
    with pytest.raises(SettingError, match="embedding_attack needs .*embeddings"):
        evaluate(fixed([[0.5, 0.5]] * 2), EvaluationData(numbered(2, [0, 1])), settings)


def test_a_contrast_pair_is_correct_if_all_its_rows_are() -> None:
    rows = numbered(5, [0, 0, 0, 0, 0])
    pairs = replace(rows, name="contrast", pair=["a", "a", "b", "b", None])
    outputs = [[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.1, 0.9], [0.1, 0.9]]
    settings = EvaluationSettings(perspectives=("adversarial",), bootstrap=0)
    data = EvaluationData(rows, adversarial={"contrast": pairs})
    result = evaluate(fixed(outputs), data, settings)
    scores = {entry["name"]: (entry["value"], entry["n"]) for entry in result.scores}
    assert scores["accuracy"] == (0.6, 5)
    assert scores["consistency"] == (0.5, 2)


def test_all_faults_of_the_settings_are_named_at_once() -> None:
    dev = numbered(2, [0, 1])
    data = EvaluationData(dev, shift={"dev": dev}, anomaly={"x": dev}, metric="acuracy")
    with pytest.raises(SettingError) as caught:
        evaluate(fixed([[0.5, 0.5]] * 2), data)
    for part in ("Did you mean 'accuracy'", "['dev'] twice"):
        assert part in str(caught.value)


def test_all_unsuitable_sets_are_reported_at_once() -> None:
    data = EvaluationData(
        numbered(2, None), shift={"far": numbered(2, None)}, anomaly={"odd": numbered(0, None)}
    )
    with pytest.raises(DataError) as caught:
        evaluate(fixed([[0.5, 0.5]] * 2), data, CLEAN)
    assert "Set 'dev' must have labels for classification" in str(caught.value)
    assert "Set 'far' must have labels" in str(caught.value)
    assert "Set 'odd' has no rows" in str(caught.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"perspectives": ("taks",)}, "Unknown perspective 'taks'. Did you mean 'task'"),
        ({"embedding_attack": {"radii": (0.1, 0.1)}}, "must not repeat a value"),
        ({"embedding_attack": {"radii": (-0.1,)}}, "greater than 0"),
        ({"embedding_noise": {"sigmas": ()}}, "at least one value"),
        ({"text_attack": {"rows": 5}}, r"`text_attack` \(only 'text_attack' does\)"),
        ({"embedding_attack": {"pgd": {"steps": 0}}}, "greater than or equal to 1"),
        ({"embedding_attack": {"fgm": False, "pgd": None}}, "neither `fgm` nor `pgd`"),
        ({"radius": 0.1}, "Extra inputs are not permitted"),
        ({"embedding_noise": {"sigmas": (float("inf"),)}}, "finite"),
        ({"token_corruption": {"rates": (0.1, 1.1)}}, "less than or equal to 1"),
        ({"token_corruption": {"rates": (0.0,)}}, "greater than 0"),
        ({"token_corruption": {"kinds": ("swap",)}}, "'random', 'mask' or 'drop'"),
        ({"embedding_attack": {"radii": True}}, "valid tuple"),
    ],
)
def test_a_wrong_setting_raises_an_error(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSettings(**settings)


@pytest.mark.parametrize(
    ("name", "setting", "value"),
    [
        ("embedding_attack", "norms", "linf"),
        ("embedding_attack", "radii", 0.1),
        ("embedding_noise", "sigmas", 1),
        ("token_corruption", "kinds", "drop"),
        ("token_corruption", "rates", 0.3),
    ],
)
def test_a_single_value_is_a_list_of_one(name: str, setting: str, value: Any) -> None:
    settings = EvaluationSettings(perspectives=name, **{name: {setting: value}})
    assert settings.perspectives == (name,)
    assert settings.model_dump()[name][setting] == (value,)


def test_truncation_is_reported(model: Any, tokenizer: Any, examples_of: Any) -> None:
    predictor = ClassifierPredictor(model, tokenizer, max_length=4)
    dev = Examples("d", ["word1 word2 word3", "word4"], labels=[0, 1], kind="classification")
    result = evaluate(predictor, EvaluationData(dev), QUICK)
    assert result.truncated == {"dev": 0.5}
    (message,) = (
        message for message in result.notices if "50.0% of the rows of set 'dev'" in message
    )
    assert "--max-length" in message


def test_default_and_all_select_groups_of_perspectives() -> None:
    assert EvaluationSettings(perspectives=("all",)).perspectives == perspectives.names()
    more = EvaluationSettings(perspectives=("default", "cost")).perspectives
    assert more == (*perspectives.defaults(), "cost")
    with pytest.raises(ValidationError, match="must not repeat a value"):
        EvaluationSettings(perspectives=("default", "task"))


def test_the_list_of_perspectives_is_plain_data() -> None:
    listed = perspectives.listing()
    assert json.loads(json.dumps(listed)) == listed
    assert [entry["name"] for entry in listed] == list(perspectives.names())
    assert {entry["name"] for entry in listed if entry["needs"] == "embeddings"} == {
        "embedding_attack",
        "embedding_noise",
        "smoothness",
    }
    asked_for = {entry["name"] for entry in listed if not entry["by_default"]}
    of_certainty = {"coverage", "selective", "alarms"}
    assert asked_for == {"text_attack", "smoothness", "representation", "cost"} | of_certainty
    assert EvaluationSettings().perspectives == perspectives.defaults()
    with pytest.raises(SettingError, match="Unknown perspective 'noise'"):
        perspectives.perspective("noise")


def test_labels_of_anomaly_sets_are_ignored() -> None:
    data = EvaluationData(numbered(2, [0, 1]), anomaly={"odd": numbered(2, [5, 4])})
    result = evaluate(fixed([[0.5, 0.5]] * 2), data, CLEAN)
    assert by_name(result, "anomaly", "auroc", condition="clean")["n"] == 4


SECTIONS = EvaluationSettings.sections()


@pytest.mark.parametrize("name", perspectives.names())
def test_only_perspectives_that_declare_it_perturb_rows(
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
def test_settings_of_a_skipped_perspective_raise_an_error(name: str) -> None:
    with pytest.raises(
        ValidationError, match=rf"reads: `{name}` \(only '{name}' does.*`perspectives` are task"
    ):
        EvaluationSettings(perspectives=("task",), **{name: {}})
    settings = EvaluationSettings(perspectives=("task", name))
    assert settings.section(name, SECTIONS[name]) == SECTIONS[name]()


def test_all_unread_settings_are_reported_at_once() -> None:
    with pytest.raises(
        ValidationError, match=r"`anomaly` \(.*\), `attack_rows` \(only 'embedding_a"
    ):
        EvaluationSettings(perspectives=("task",), attack_rows=5, anomaly={"rows": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"detectors": "energy", "rows": 9}, "`rows` is read only by mahalanobis"),
    ],
)
def test_a_setting_of_a_detector_that_is_left_out_raises_an_error(
    settings: Any, message: str
) -> None:
    with pytest.raises(ValidationError, match=message):
        EvaluationSettings(anomaly=settings)


def test_all_faults_of_all_sections_are_named_at_once() -> None:
    with pytest.raises(ValidationError) as caught:
        EvaluationSettings(seed="x", embedding_noise={"sigmas": -1}, anomaly=5, noise={})
    settings = {fault["loc"] for fault in caught.value.errors()}
    assert settings == {("seed",), ("embedding_noise", "sigmas", 0), ("anomaly",), ("noise",)}


def test_evaluation_settings_round_trip() -> None:
    for name in perspectives.names():
        plain = EvaluationSettings(perspectives=(name,))
        assert EvaluationSettings.model_validate(plain.model_dump()) == plain
        assert EvaluationSettings.model_validate_json(plain.model_dump_json()) == plain


def test_removing_a_perspective_removes_its_settings() -> None:
    # What a predictor cannot serve is left out with a notice: that is no fault of the settings.
    settings = EvaluationSettings(perspectives=("task", "anomaly"), anomaly={"rows": 5})
    assert settings.without(("anomaly",)).perspectives == ("task",)
