"""Mistakes in a study's evaluation are found before the first run is trained."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertForMaskedLM, BertModel

from temper import files, memory
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.errors import DataError, MemoryLimitError, SettingError, TemperError, WriteError
from temper.evaluation.evaluate import check_size, evaluate_model
from temper.evaluation.loading import check_named_models
from temper.evaluation.request import EvaluationRequest
from temper.evaluation.run import EvaluationData, check_before_training
from temper.evaluation.settings import EvaluationSettings, SetSources
from temper.study import work
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import run_study
from temper.training.run import train
from tests.cli.tiny_project import sentences, study_tree, write_csv

ATTACKED = ["task", "text_attack"]


@pytest.fixture(scope="module")
def named(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return folders of models that settings may name: whole, of another kind, without weights."""
    root = tmp_path_factory.mktemp("named")
    config = BertConfig.from_pretrained(tiny_model)
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    torch.manual_seed(0)
    for name, kind in (("masked", BertForMaskedLM), ("encoder", BertModel)):
        kind(config).save_pretrained(root / name)
        tokenizer.save_pretrained(root / name)
    for name in ("masked", "encoder"):
        bare = shutil.copytree(root / name, root / f"{name}_bare")
        (bare / "model.safetensors").unlink()
    return {folder.name: folder for folder in root.iterdir()} | {
        "absent": root / "absent",
        "classifier": tiny_model,
    }


def refused(
    model: Path, source: Path, out: Path, *, error: type[TemperError], match: str, **tree: Any
) -> None:
    """Ask for a study and see that it is refused and that nothing was trained or written."""
    sets = tree.pop("sets", SetSources())
    config = StudyConfig.of(
        {**study_tree(model, source), "evaluate": {"bootstrap": 0, **tree}},
        columns=columns_of(["plain"], []),
        seeds=(0,),
        sets=sets,
    )

    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("a run was trained")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(work, "train", never)
        with pytest.raises(error, match=match):
            run_study(config, out)
    assert not out.exists()


@pytest.mark.parametrize(
    ("attack", "match"),
    [
        (
            {"recipes": "masked", "masked_model": "absent"},
            r"`masked_model`: No model .*absent",
        ),
        (
            {"recipes": "masked", "masked_model": "masked_bare"},
            r"`evaluate\.text_attack\.masked_model`: .*masked_bare",
        ),
        (
            {"similarity_model": "encoder_bare", "min_similarity": 0.5},
            r"`evaluate\.text_attack\.similarity_model`: .*encoder_bare",
        ),
        ({"goal": "targeted", "target": "neutral"}, "Unknown target 'neutral'.*negative, positive"),
        ({"field": "text_pair"}, "`field` is 'text_pair', but set 'dev' has no second text"),
    ],
)
def test_an_unavailable_text_attack_raises_an_error_before_training(
    attack: dict[str, Any],
    match: str,
    named: dict[str, Path],
    tiny_model: Path,
    tiny_data: Path,
    tmp_path: Path,
) -> None:
    for name in ("masked_model", "similarity_model"):
        if name in attack:
            attack = {**attack, name: str(named[attack[name]])}
    refused(
        tiny_model, tiny_data / "reviews", tmp_path / "out",
        error=SettingError, match=match, perspectives=ATTACKED, text_attack=attack,
    )  # fmt: skip


@pytest.mark.parametrize("reference", ["absent", "masked_bare"])
def test_a_reference_that_cannot_be_loaded_raises_an_error_before_training(
    reference: str, named: dict[str, Path], tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    refused(
        tiny_model, tiny_data / "reviews", tmp_path / "out",
        error=SettingError, match=rf"`evaluate\.representation\.reference`: .*{reference}",
        perspectives=["representation"], representation={"reference": str(named[reference])},
    )  # fmt: skip


@pytest.mark.parametrize("option", ["held_out", "shift", "adversarial"])
def test_labels_that_the_task_does_not_have_raise_an_error_before_training(
    option: str, tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    rows = [(text, "neutral") for text, _ in sentences(6, thing="it")]
    file = write_csv(tmp_path / "other.csv", rows)
    given = str(file) if option == "held_out" else {"other": str(file)}
    refused(
        tiny_model, tiny_data / "reviews", tmp_path / "out",
        error=DataError, match=r"[Ss]et '(held_out|other)': Unknown label 'neutral'",
        sets=SetSources(**{option: given}),
    )  # fmt: skip


def test_a_study_without_disk_space_raises_an_error_before_training(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    size = (tiny_model / "model.safetensors").stat().st_size
    # A model, and a checkpoint of weights and two moments of each.
    monkeypatch.setattr(files, "free_bytes", lambda _: 4 * size - 1)
    refused(
        tiny_model,
        tiny_data / "reviews",
        tmp_path / "study",
        error=WriteError,
        match=r"has room for .*, and all of 1 run of .* weights",
    )


def test_too_little_memory_for_predictions_raises_an_error_before_the_first_pass(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = Examples("rows", text=("a", "b", "c"), labels=[0, 1, 0], kind="classification")
    data = EvaluationData(dev=rows, shift={"films": rows})
    # Six texts of eight numbers each.
    monkeypatch.setattr(memory, "free_memory", lambda: 6 * 8 * 8)
    check_size(data, tmp_path / "out")
    monkeypatch.setattr(memory, "free_memory", lambda: 6 * 8 * 8 - 1)
    with pytest.raises(MemoryLimitError, match=r"predictions for 6 texts take at least 384 bytes"):
        check_size(data, tmp_path / "out")
    monkeypatch.setattr(memory, "free_memory", lambda: None)
    monkeypatch.setattr(files, "free_bytes", lambda _: 6 * 8 - 1)
    with pytest.raises(WriteError, match=r"rows of the evaluation .* 48 bytes"):
        check_size(data, tmp_path / "out")


def test_unnamed_classes_accept_targets_by_number_and_no_named_sets() -> None:
    train = Examples("train", ["a", "b"], labels=[0, 1], kind="classification")
    named_set = Examples(
        "far", ["c"], labels=[1], label_names=("bad", "good"), kind="classification"
    )
    data = EvaluationData(Examples("dev", ["d"], labels=[0], kind="classification"))
    settings = EvaluationSettings.model_validate(
        {"perspectives": ATTACKED, "text_attack": {"goal": "targeted", "target": 1}}
    )
    check_before_training(data, settings, train)
    far = EvaluationData(data.dev, shift={"far": named_set})
    with pytest.raises(DataError, match="'far': Unknown label 'good'.*Known: 0, 1.*--label-names"):
        check_before_training(far, EvaluationSettings(), train)
    named = replace(train, label_names=("bad", "good"))
    check_before_training(far, EvaluationSettings(), named)


def test_held_out_labels_of_two_classes_raise_an_error_for_three() -> None:
    three = ("entailment", "neutral", "contradiction")
    train = Examples("train", ["a"], labels=[0], label_names=three, kind="classification")
    dev = Examples("dev", ["b"], labels=[1], label_names=three, kind="classification")
    two = ("entailment", "not_entailment")
    held_out = Examples("held_out", ["c"], labels=[1], label_names=two, kind="classification")
    check_before_training(EvaluationData(dev, shift={"two": held_out}), EvaluationSettings(), train)
    with pytest.raises(DataError, match="Held-out set 'held_out' has two labels"):
        check_before_training(EvaluationData(dev, held_out=held_out), EvaluationSettings(), train)
    with pytest.raises(DataError, match="validation set has two labels"):
        check_before_training(EvaluationData(held_out), EvaluationSettings(), train)


def test_a_regression_needs_no_model_of_a_skipped_attack(tmp_path: Path) -> None:
    settings = EvaluationSettings.model_validate(
        {
            "perspectives": ATTACKED,
            "text_attack": {"recipes": "masked", "masked_model": str(tmp_path / "absent")},
        }
    )
    train = Examples("train", ["a", "b"], labels=[0.5, 1.5], kind="regression")
    dev = Examples("dev", ["c"], labels=[0.1], kind="regression")
    check_before_training(EvaluationData(dev, metric="pearson"), settings, train)
    check_named_models(settings, regression=True)
    classes = Examples("train", ["a"], labels=[0], kind="classification")
    with pytest.raises(DataError, match="Set 'dev' must have labels for classification"):
        check_before_training(EvaluationData(dev), EvaluationSettings(), classes)


def test_all_models_that_cannot_be_loaded_are_named_at_once(named: dict[str, Path]) -> None:
    bad = EvaluationSettings.model_validate(
        {
            "perspectives": ["text_attack", "representation"],
            "representation": {"reference": str(named["absent"])},
            "text_attack": {
                "recipes": "masked",
                "masked_model": str(named["masked_bare"]),
                "min_similarity": 0.5,
                "similarity_model": str(named["encoder_bare"]),
            },
        }
    )
    with pytest.raises(SettingError) as caught:
        check_named_models(bad, regression=False)
    settings = (
        "representation.reference",
        "text_attack.masked_model",
        "text_attack.similarity_model",
    )
    for line, setting in zip(str(caught.value).splitlines(), settings, strict=True):
        assert line.startswith(f"`evaluate.{setting}`: ")


def test_an_evaluation_loads_the_models_of_an_attack_before_it_measures(
    named: dict[str, Path], tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    attack = {"recipes": "masked", "masked_model": str(named["masked_bare"]), "rows": 2}
    asked = EvaluationRequest.of(
        {
            "data": {"source": str(tiny_data / "reviews" / "dev.csv")},
            "evaluate": {"perspectives": ATTACKED, "text_attack": attack},
            "predictor": {"device": "cpu"},
        },
        model=Checkpoint.of(tiny_model),
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(
            "temper.evaluation.evaluate.measure", lambda *_, **__: pytest.fail("measured")
        )
        with pytest.raises(SettingError, match=r"text_attack\.masked_model`: .*masked_bare"):
            evaluate_model(asked, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_method_that_needs_classes_raises_an_error_for_float_labels_first(
    tiny_model: Path, tmp_path: Path
) -> None:
    rows = "".join(f"text {number},{number / 4}\n" for number in range(12))
    for split in ("train", "dev"):
        (tmp_path / f"{split}.csv").write_text(f"text,label\n{rows}", encoding="utf-8")
    config = StudyConfig.of(
        study_tree(tiny_model, tmp_path),
        columns=columns_of(["plain", "label_smoothing"], []),
        seeds=(0,),
    )
    with pytest.raises(SettingError, match="Method 'label_smoothing': Label smoothing needs cla"):
        run_study(config, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    with pytest.raises(SettingError, match="Method 'label_smoothing': Label smoothing needs cla"):
        train(config.runs["label_smoothing", 0], tmp_path / "run")
    assert not (tmp_path / "run").exists()
