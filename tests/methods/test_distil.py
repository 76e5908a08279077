"""Distillation against a loop in float64, and how the predictions of teachers reach the loss."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import Dataset
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temper import RobustTrainer, Stepper
from temper.data.examples import Examples
from temper.data.sources import load_splits
from temper.errors import DataError, ModelError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.functional.losses import distillation
from temper.methods import configure
from temper.methods.distil import Distil
from temper.training.config import RunConfig, run_key
from temper.training.distilling import teacher_logits
from temper.training.run import train
from temper.types import Batch
from tests.cli.tiny_project import make_data, make_model
from tests.methods import reference
from tests.methods.tiny import recorded_drops, rows, tiny_network
from tests.methods.weights import compare, copies, leaves, same, two_batches
from tests.training.listeners import StopAt
from tests.training.tiny_training import arguments, record, settings_of_run, tiny_model

ENSEMBLE = {"folders": ("a", "b")}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    for seed in (1, 2):
        settings = settings_of_run(folder, max_steps=2)
        train(RunConfig.of({**settings, "seed": seed}), folder / f"teacher{seed}")
    return folder


def softened(scores: Tensor, temperature: float) -> Tensor:
    powers = torch.stack([torch.exp(score / temperature) for score in scores])
    return powers / powers.sum()


def apart(kind: str, ours: Tensor, theirs: Tensor, temperature: float) -> Tensor:
    """Return one row's distance from the teacher, as the papers write it."""
    if kind == "regression":
        return (ours[0] - theirs[0]) ** 2
    p, q = softened(theirs, temperature), softened(ours, temperature)
    return temperature**2 * reference.kullback_leibler(p, q)


@given(st.lists(st.floats(-9, 9), min_size=3, max_size=3), st.floats(0.2, 9.0))
def test_the_gradient_is_that_of_the_softened_cross_entropy(
    scores: list[float], temperature: float
) -> None:
    """Hinton et al., Eq. 2: T^2 * (q_i - p_i) / T."""
    student = torch.tensor([scores], dtype=torch.float64, requires_grad=True)
    teacher = torch.tensor([[1.0, -2.0, 0.5]], dtype=torch.float64)
    distillation(student, teacher, temperature=temperature).sum().backward()
    q, p = softened(student.detach()[0], temperature), softened(teacher[0], temperature)
    torch.testing.assert_close(student.grad, (temperature * (q - p)).unsqueeze(0))


@pytest.mark.parametrize("kind", ["classes", "regression"])
def test_distillation_adds_the_ensembles_predictions_to_the_labels(kind: str) -> None:
    regression = kind == "regression"
    classes = 1 if regression else 3
    batches = two_batches(regression=regression)
    draws = torch.Generator().manual_seed(4)
    for batch in batches:
        batch["teacher_logits"] = torch.randn(len(batch["labels"]), classes, generator=draws)
    model = tiny_network(classes=classes)
    config = Distil(teacher=ENSEMBLE, weight=0.7, temperature=3.0, clean_weight=0.4)
    stepper = Stepper(model, config, seed=11)
    stepper.network.probe(Batch.of(batches[0]))
    with recorded_drops(model) as drops:
        logs = stepper.backward(*batches)
    weights = leaves(model)
    total = torch.zeros((), dtype=torch.float64)
    for call, batch in enumerate(batches):
        ours = reference.forward(weights, batch, drops, call=call)
        total = total + 0.4 * reference.row_losses(ours, batch["labels"], None).sum() / 5
        for row, theirs in enumerate(batch["teacher_logits"].double()):
            total = total + 0.7 * apart(kind, ours[row], theirs, 3.0) / 5
    compare(total, weights, logs["loss"], stepper.params.gradients())


def test_the_teacher_of_averaged_weights_runs_without_dropout() -> None:
    model = tiny_network()
    config = Distil(teacher={"decay": 0.9, "warm_up": 1.0}, weight=0.7, temperature=1.5)
    stepper = Stepper(model, config, seed=11)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    after = []
    for step in range(2):
        optimizer.zero_grad()
        stepper.backward(*two_batches())
        stepper.step(optimizer)
        after.append(copies(model))
        assert step or stepper.state["teacher"]["counted"] == 1
    optimizer.zero_grad()
    batches = two_batches()
    with recorded_drops(model) as drops:
        logs = stepper.backward(*batches)
    # Each clean pass is followed by the teacher's, in which nothing is dropped.
    whole = {name: [torch.ones_like(call) for call in calls] for name, calls in drops.items()}
    drops = {name: calls[::2] for name, calls in drops.items()}
    mean = {name: (after[0][name] + after[1][name]) / 2 for name in after[0]}
    weights = leaves(model)
    total = torch.zeros((), dtype=torch.float64)
    for call, batch in enumerate(batches):
        ours = reference.forward(weights, batch, drops, call=call)
        theirs = reference.forward(mean, batch, whole, call=2 * call)
        total = total + reference.row_losses(ours, batch["labels"], None).sum() / 5
        for row in range(len(ours)):
            total = total + 0.7 * apart("classes", ours[row], theirs[row], 1.5) / 5
    assert logs["loss/distillation"] > 1e-6
    compare(total, weights, logs["loss"], stepper.params.gradients())
    assert model.training


@pytest.mark.parametrize("kept", ["student", "teacher"])
def test_the_requested_network_is_kept_at_the_end(kept: str) -> None:
    model = tiny_network()
    stepper = Stepper(model, Distil(teacher={"kept": kept}))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    for _ in range(3):
        optimizer.zero_grad()
        stepper.backward(*two_batches())
        stepper.step(optimizer)
    student, teacher = copies(model), dict(stepper.state["teacher"]["weights"])
    assert not same(student, teacher)
    stepper.finish()
    assert same(copies(model), {"student": student, "teacher": teacher}[kept])


@pytest.mark.parametrize("kind", ["regression", "two classes", "three classes"])
def test_distillation_trains_on_unlabeled_rows(kind: str) -> None:
    classes = {"regression": 1, "two classes": 2, "three classes": 3}[kind]
    # As many rows as classes once, and as many as a regression has outputs.
    for batch in (rows(5, 3), rows(4)):
        del batch["labels"]
        theirs = torch.linspace(-1, 2, len(batch["input_ids"]) * classes).view(-1, classes)
        model = tiny_network(classes=classes, rate=0.0)
        given = {**batch, "teacher_logits": theirs}
        logs = Stepper(model, Distil(teacher=ENSEMBLE, weight=1.0, temperature=2.0)).backward(given)
        assert {name for name in logs if name.startswith("loss/")} == {"loss/distillation"}
        ours = model(**batch).detach()
        pairs = zip(ours, theirs.double(), strict=True)
        expected = sum(float(apart(kind, one, other, 2.0)) for one, other in pairs) / len(ours)
        assert logs["loss/distillation"] == pytest.approx(expected)


def test_classes_of_teachers_are_matched_by_name(project: Path) -> None:
    examples = load_splits(RunConfig.of(settings_of_run(project)).data).train
    folders = [str(project / f"teacher{seed}") for seed in (1, 2)]
    result = teacher_logits(folders, examples, labels=["positive", "negative"], device="cpu")
    expected = []
    for text in examples.text:
        mean = torch.zeros(2, dtype=torch.float64)
        for folder in folders:
            model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
            tokenizer = AutoTokenizer.from_pretrained(folder)
            indices = {name: index for index, name in model.config.id2label.items()}
            scores = model(**tokenizer(text, return_tensors="pt")).logits[0].double().detach()
            fractions = reference.probabilities(scores)
            mean += (
                torch.stack([fractions[indices["positive"]], fractions[indices["negative"]]]) / 2
            )
        expected.append([math.log(fraction) for fraction in mean])
    torch.testing.assert_close(result.double(), torch.tensor(expected).double(), atol=1e-5, rtol=0)
    with pytest.raises(ModelError, match="has the classes negative, positive, and the training"):
        teacher_logits(folders, examples, labels=["good", "bad"], device="cpu")
    with pytest.raises(ModelError, match=r"`teacher.folders` .*No model could be loaded"):
        teacher_logits([str(project / "none")], examples, labels=None, device="cpu")
    with pytest.raises(ModelError, match=r"training data has no classes \(a regression\)"):
        teacher_logits(folders, examples, labels=None, device="cpu")


def test_a_teacher_predicts_a_row_once_and_again_after_its_weights_change(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    teacher = shutil.copytree(project / "teacher1", tmp_path / "teacher")
    (teacher / "teacher_predictions.parquet").unlink(missing_ok=True)
    examples = load_splits(RunConfig.of(settings_of_run(project)).data).train
    asked: list[int] = []
    plain = ClassifierPredictor.predict

    def noted(self: Any, rows: Examples, **options: Any) -> Any:
        asked.append(len(rows))
        return plain(self, rows, **options)

    monkeypatch.setattr(ClassifierPredictor, "predict", noted)

    def ask(rows: Examples, **options: Any) -> Tensor:
        names = ["negative", "positive"]
        return teacher_logits([str(teacher)], rows, labels=names, device="cpu", **options)

    first = ask(examples.select(range(10)))
    whole = ask(examples)
    assert torch.equal(whole[:10], first)
    assert torch.equal(ask(examples), whole)
    assert asked == [10, 30]
    ask(examples, max_length=8)
    ask(examples, max_length=8)
    assert asked == [10, 30, 40]
    shutil.copy(project / "teacher2" / "model.safetensors", teacher)
    assert not torch.equal(ask(examples), whole)
    (teacher / "teacher_predictions.parquet").write_bytes(b"damaged")
    ask(examples)
    assert asked == [10, 30, 40, 40, 40]


def test_other_teacher_weights_change_the_run_key(project: Path, tmp_path: Path) -> None:
    teacher = shutil.copytree(project / "teacher1", tmp_path / "teacher")
    tree = settings_of_run(project, max_steps=5)
    method = {"name": "distil", "teacher": {"folders": [str(teacher)]}}
    config = RunConfig.of({**tree, "method": method})
    splits = load_splits(config.data)
    before = run_key(config, splits)
    assert run_key(config, splits) == before
    shutil.copy(project / "teacher2" / "model.safetensors", teacher)
    assert run_key(config, splits) != before


def student(project: Path) -> RunConfig:
    folders = [str(project / f"teacher{seed}") for seed in (1, 2)]
    tree = settings_of_run(project, max_steps=5)
    return RunConfig.of({**tree, "method": {"name": "distil", "teacher": {"folders": folders}}})


def test_a_student_of_two_runs_is_trained_and_resumed(project: Path) -> None:
    whole = train(student(project), project / "student")
    notice = "2 trained models predicted the 40 training rows."
    assert notice in record(whole)["notices"]
    logs = [json.loads(line) for line in (whole / "metrics.jsonl").read_text().splitlines()]
    assert all(log["loss/distillation"] > 0 for log in logs if "loss" in log)
    stopped = project / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(student(project), stopped, progress=StopAt(3))
    train(student(project), stopped)
    assert (stopped / "model.safetensors").read_bytes() == (
        whole / "model.safetensors"
    ).read_bytes()


def test_the_trainer_passes_the_teacher_logits_to_the_loss(tmp_path: Path) -> None:
    rows: dict[str, list[Any]] = {
        "input_ids": [[5, 6, 7], [8, 9, 10]] * 4,
        "attention_mask": [[1, 1, 1]] * 8,
        "labels": [0, 1] * 4,
        "teacher_logits": [[4.0, -4.0], [-4.0, 4.0]] * 4,
    }
    trainer = RobustTrainer(
        tiny_model(),
        arguments(tmp_path),
        method=Distil(teacher=ENSEMBLE),
        train_dataset=Dataset.from_dict(rows),
    )
    trainer.train()
    assert any("loss/distillation" in log for log in trainer.state.log_history)


def test_a_batch_without_teacher_logits_raises_an_error() -> None:
    with pytest.raises(DataError, match=r"'teacher_logits' \[3, 3\], got none"):
        Stepper(tiny_network(), Distil(teacher=ENSEMBLE)).backward(two_batches()[0])
    wrong = {**two_batches()[0], "teacher_logits": torch.zeros(3, 2)}
    with pytest.raises(DataError, match=r"got shape \[3, 2\]"):
        Stepper(tiny_network(), Distil(teacher=ENSEMBLE)).backward(wrong)


def test_settings_that_leave_nothing_to_learn_from_raise_an_error() -> None:
    for settings in ({"clean_weight": 0.0}, {"clean_weight": 0.0, "weight": 0.0}):
        with pytest.raises(SettingError, match="clean_weight=0 leaves only the distillation loss"):
            configure("distil", settings)
    with pytest.raises(SettingError, match="at least 1 item"):
        configure("distil", {"teacher": {"folders": []}})
