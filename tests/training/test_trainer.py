"""RobustTrainer behaves like Trainer: steps, logs, callbacks, evaluation, checkpoints."""

from __future__ import annotations

import math
import os
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import TrainerCallback, TrainingArguments
from transformers.integrations import integration_utils

from temper import UEGR
from temper.errors import ModelError
from temper.training.recorder import Listener
from tests.methods.tiny import of_each_kind
from tests.training.tiny_training import (
    Rows,
    collate,
    farthest,
    make_trainer,
    quiet_model,
    stock_trainer,
    tiny_model,
    training_logs,
    unbucketed_trainer,
    unequal,
    weights,
)

EVENTS = {
    "on_train_begin": "train begins",
    "on_epoch_begin": "epoch begins",
    "on_step_begin": "step begins",
    "on_substep_end": "substep ends",
    "on_pre_optimizer_step": "gradient",
    "on_step_end": "step ends",
    "on_log": "log",
    "on_evaluate": "evaluate",
    "on_save": "save",
    "on_train_end": "train ends",
}


class Diary(Listener):
    """Note the events in order, the gradient before clipping's step, and the weights after it."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.seen: list[dict[str, Tensor]] = []
        self.gradients: list[dict[str, Tensor]] = []

    def __getattribute__(self, name: str) -> Any:
        if name in EVENTS:
            return partial(self.note, EVENTS[name])
        return super().__getattribute__(name)

    def note(self, event: str, *_: Any, model: Any = None, **__: Any) -> None:
        self.events.append(event)
        if event == "gradient":
            grads = ((n, p.grad) for n, p in model.named_parameters() if p.grad is not None)
            self.gradients.append({name: grad.clone() for name, grad in grads})
        if event == "step ends":
            self.seen.append(weights(model))


def norm_of(gradients: dict[str, Tensor]) -> float:
    return float(torch.linalg.vector_norm(torch.cat([g.flatten() for g in gradients.values()])))


def accuracy(prediction: Any) -> dict[str, float]:
    return {"accuracy": float((prediction.predictions.argmax(-1) == prediction.label_ids).mean())}


def test_plain_training_equals_transformers_own_trainer(tmp_path: Path) -> None:
    ours = unbucketed_trainer(tmp_path)
    theirs = stock_trainer(tmp_path)
    ours.train()
    theirs.train()
    assert farthest(weights(ours.model), weights(theirs.model)) < 1e-5
    assert [entry["loss"] for entry in training_logs(ours)] == pytest.approx(
        [entry["loss"] for entry in theirs.state.log_history if "loss" in entry], rel=1e-5
    )


def test_the_gradient_is_clipped_to_the_requested_norm(tmp_path: Path) -> None:
    diary = Diary()
    trainer = make_trainer(tmp_path, more={"callbacks": [diary]}, max_grad_norm=0.01)
    trainer.train()
    assert [norm_of(each) for each in diary.gradients] == pytest.approx([0.01] * 3, rel=1e-4)
    assert min(entry["grad_norm"] for entry in training_logs(trainer)) > 0.01


def test_the_logged_gradient_norm_is_that_before_masking(tmp_path: Path) -> None:
    diary = Diary()
    method = UEGR(mask={"alpha": 0.9, "beta": 10.0})
    trainer = make_trainer(
        tmp_path, more={"callbacks": [diary], "method": method}, max_grad_norm=0.0
    )
    trainer.train()
    logged = [entry["grad_norm"] for entry in training_logs(trainer)]
    # The diary runs before the method's callback, which masks.
    assert [norm_of(each) for each in diary.gradients] == pytest.approx(logged, rel=1e-5)
    masked = Diary()
    trainer = make_trainer(tmp_path, more={"method": method}, max_grad_norm=0.0)
    trainer.add_callback(masked)
    trainer.train()
    zeros = [
        float((each["bert.encoder.layer.0.output.dense.weight"] == 0).float().mean())
        for each in masked.gradients
    ]
    assert min(zeros) > 0.5


@pytest.mark.parametrize("method", ["plain", "uegr", "r_drop"])
def test_bf16_runs_the_forward_in_bf16_and_keeps_weights_in_fp32(
    tmp_path: Path, method: str
) -> None:
    kinds = set()
    model = tiny_model()
    model.bert.encoder.layer[0].output.dense.register_forward_hook(
        lambda module, given, output: kinds.add((module.training, output.dtype))
    )
    trainer = make_trainer(tmp_path, model=model, more={"method": method}, bf16=True)
    before = weights(model)
    trainer.train()
    assert (True, torch.bfloat16) in kinds
    assert {tensor.dtype for tensor in weights(model).values()} <= {torch.float32, torch.int64}
    assert farthest(before, weights(model)) > 1e-3
    assert all(math.isfinite(entry["loss"]) for entry in training_logs(trainer))


@pytest.mark.parametrize("method", ["hidden_cut", *of_each_kind()])
def test_gradient_checkpointing_changes_no_weight(tmp_path: Path, method: str) -> None:
    plain = make_trainer(tmp_path, more={"method": method}, max_steps=2)
    plain.train()
    # Transformers calls it so from 5.23 on, and gradient checkpointing before.
    fields = TrainingArguments.__dataclass_fields__
    kind = "activation" if "activation_checkpointing" in fields else "gradient"
    asked: dict[str, Any] = {
        f"{kind}_checkpointing": True,
        f"{kind}_checkpointing_kwargs": {"use_reentrant": False},
    }
    saving = make_trainer(tmp_path, more={"method": method}, max_steps=2, **asked)
    if method == "hidden_cut":
        with pytest.raises(ModelError, match="checkpointing"):
            saving.train()
        return
    saving.train()
    assert getattr(saving.model, f"is_{kind}_checkpointing")
    assert farthest(weights(plain.model), weights(saving.model)) < 1e-5


def test_callbacks_come_in_the_order_that_transformers_documents(tmp_path: Path) -> None:
    diary = Diary()
    trainer = make_trainer(
        tmp_path, rows=8, more={"callbacks": [diary]}, gradient_accumulation_steps=2
    )
    trainer.train()
    assert diary.events == [
        "train begins",
        "epoch begins",
        "step begins",
        "substep ends",
        "gradient",
        "step ends",
        "log",
        "log",
        "train ends",
    ]


@pytest.mark.parametrize("method", ["uegr", "r_drop + w_cons", "jachess_unlabeled"])
def test_logged_terms_sum_to_the_loss_over_steps_and_micro_batches(
    tmp_path: Path, method: str
) -> None:
    trainer = make_trainer(
        tmp_path, more={"method": method}, logging_steps=2, gradient_accumulation_steps=2, rows=16
    )
    trainer.train()
    for entry in training_logs(trainer):
        parts = [value for name, value in entry.items() if name.startswith("loss/")]
        assert sum(parts) == pytest.approx(entry["loss"], rel=1e-5)


def test_logs_hold_terms_diagnostics_and_what_transformers_logs(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, more={"method": UEGR()})
    trainer.train()
    for entry in training_logs(trainer):
        assert set(entry) == {
            "loss",
            "loss/task",
            "loss/adversarial",
            "loss/divergence",
            "unweighted/divergence",
            "gradient/task",
            "gradient/adversarial",
            "gradient/divergence",
            "grad_norm",
            "learning_rate",
            "attack/relative_size",
            "mask/kept",
            "epoch",
            "step",
        }
        assert entry["attack/relative_size"] == pytest.approx(0.025, rel=1e-3)
        assert 0 < entry["mask/kept"] < 1
    assert [entry["epoch"] for entry in training_logs(trainer)] == pytest.approx([1 / 3, 2 / 3, 1])


def test_a_logged_term_is_the_mean_over_the_rows_since_the_last_log(tmp_path: Path) -> None:
    often = make_trainer(tmp_path, more={"method": "r_drop"})
    seldom = make_trainer(tmp_path, more={"method": "r_drop"}, logging_steps=3)
    often.train()
    seldom.train()
    (one,) = training_logs(seldom)
    three = training_logs(often)
    for name in ("loss", "loss/task", "loss/divergence"):
        assert one[name] == pytest.approx(sum(entry[name] for entry in three) / 3, rel=1e-5)


def test_report_to_sends_every_log_to_the_tracker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    logged: list[dict[str, float]] = []

    class Tracker(TrainerCallback):
        def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
            logged.append(dict(logs))

    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Tracker)
    trainer = make_trainer(tmp_path, more={"method": "at"}, report_to=["wandb"])
    trainer.train()
    assert len(logged) == 4
    assert {"loss", "loss/task", "loss/adversarial"} <= set(logged[0])
    assert "train_loss" in logged[-1]


def test_evaluation_during_and_after_training_sees_the_plain_model(tmp_path: Path) -> None:
    trainer = make_trainer(
        tmp_path,
        more={"method": UEGR(), "eval_dataset": Rows(6), "compute_metrics": accuracy},
        eval_strategy="steps",
        eval_steps=1,
    )
    trainer.train()
    during = [entry for entry in trainer.state.log_history if "eval_loss" in entry]
    assert len(during) == 3
    again = trainer.evaluate()
    assert again["eval_loss"] == during[-1]["eval_loss"]
    assert again["eval_accuracy"] == during[-1]["eval_accuracy"]
    predicted = trainer.predict(Rows(6))
    trainer.model.eval()
    batch = collate([Rows(6)[index] for index in range(6)])
    with torch.no_grad():
        output = trainer.model(**batch)
    assert torch.allclose(torch.tensor(predicted.predictions), output.logits, atol=1e-6)
    assert again["eval_loss"] == pytest.approx(float(output.loss), rel=1e-5)


def test_evaluation_within_training_does_not_change_what_is_trained(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path, more={"method": "uegr"})
    watched = make_trainer(
        tmp_path,
        more={"method": "uegr", "eval_dataset": Rows(6)},
        eval_strategy="steps",
        eval_steps=1,
    )
    plain.train()
    watched.train()
    assert not unequal(weights(plain.model), weights(watched.model))


def test_the_best_model_is_loaded_at_the_end(tmp_path: Path) -> None:
    diary = Diary()
    trainer = make_trainer(
        tmp_path,
        more={"eval_dataset": Rows(6), "callbacks": [diary]},
        eval_strategy="steps",
        eval_steps=1,
        save_strategy="steps",
        save_steps=1,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="eval_loss",
        num_train_epochs=2,
        learning_rate=0.1,
    )
    trainer.train()
    losses = [entry["eval_loss"] for entry in trainer.state.log_history if "eval_loss" in entry]
    best = losses.index(min(losses))
    assert best != len(losses) - 1, "the last step is the best, so nothing had to be loaded"
    assert trainer.state.best_model_checkpoint == str(tmp_path / f"checkpoint-{best + 1}")
    assert not unequal(diary.seen[best], weights(trainer.model))
    left = {folder.name for folder in tmp_path.iterdir()}
    assert left == {f"checkpoint-{best + 1}", "checkpoint-6"}


def test_only_the_newest_checkpoints_are_kept(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, save_strategy="steps", save_steps=1, save_total_limit=2)
    trainer.train()
    assert sorted(folder.name for folder in tmp_path.iterdir()) == ["checkpoint-2", "checkpoint-3"]


def test_a_clock_set_back_keeps_the_newest_checkpoint(tmp_path: Path) -> None:
    class SetBack(TrainerCallback):
        def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
            for folder in tmp_path.iterdir():
                ahead = folder.stat().st_mtime + 10**6
                os.utime(folder, (ahead, ahead))

    trainer = make_trainer(
        tmp_path,
        more={"callbacks": [SetBack()]},
        save_strategy="steps",
        save_steps=1,
        save_total_limit=1,
    )
    trainer.train()
    assert [folder.name for folder in tmp_path.iterdir()] == ["checkpoint-3"]


def test_max_steps_ends_training_within_an_epoch(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, rows=40, max_steps=7)
    trainer.train()
    assert trainer.state.global_step == 7
    assert training_logs(trainer)[-1]["epoch"] == pytest.approx(0.7)


def test_model_init_creates_the_trained_model(tmp_path: Path) -> None:
    made: list[nn.Module] = []

    def model_init() -> nn.Module:
        made.append(tiny_model())
        return made[-1]

    trainer = make_trainer(tmp_path, more={"model_init": model_init, "method": "uegr"})
    trainer.train()
    given = make_trainer(tmp_path, more={"method": "uegr"})
    given.train()
    assert trainer.model is made[-1]
    assert not unequal(weights(trainer.model), weights(given.model))


def test_training_again_starts_a_new_schedule(tmp_path: Path) -> None:
    trainer = make_trainer(tmp_path, more={"method": UEGR(mask={"refresh": "epoch"})})
    trainer.train()
    first = weights(trainer.model)
    trainer.train()
    assert trainer.state.global_step == 3
    assert len(training_logs(trainer)) == 3
    assert unequal(first, weights(trainer.model))


def test_class_weights_scale_the_training_loss(tmp_path: Path) -> None:
    plain = make_trainer(tmp_path, model=quiet_model(), rows=4)
    doubled = make_trainer(tmp_path, model=quiet_model(), rows=4, more={"class_weights": [2, 2]})
    plain.train()
    doubled.train()
    assert training_logs(doubled)[0]["loss"] == pytest.approx(
        2 * training_logs(plain)[0]["loss"], rel=1e-5
    )
