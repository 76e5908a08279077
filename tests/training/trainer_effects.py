"""What each argument of Trainer does to a RobustTrainer: a check, or the test that has one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback

from temper.training.trainer import RobustTrainer
from tests.training.test_trainer_data import as_table
from tests.training.tiny_training import (
    Rows,
    arguments,
    collate,
    farthest,
    make_trainer,
    quiet_model,
    stock_trainer,
    tiny_model,
    unbucketed_trainer,
    weights,
)


def as_stock(**changes: Any) -> Callable[[Path], None]:
    """Weights move as in stock training, and otherwise than by default."""

    def check(folder: Path) -> None:
        base = {"optim": "adamw_torch", "num_train_epochs": 2, "max_grad_norm": 0.0}
        others = {"lr_scheduler_kwargs": {"lr_scheduler_type": "polynomial"}}
        beside = others.get(next(iter(changes)), {})
        # One after the other: making a trainer seeds torch's generator.
        (ours := unbucketed_trainer(folder, **{**base, **beside, **changes})).train()
        (theirs := stock_trainer(folder, **{**base, **beside, **changes})).train()
        (usual := unbucketed_trainer(folder, **{**base, **beside})).train()
        moved = farthest(weights(ours.model), weights(usual.model))
        assert moved > 1e-7
        assert farthest(weights(ours.model), weights(theirs.model)) < 0.1 * moved

    return check


def loads(attribute: str, value: Any, **changes: Any) -> Callable[[Path], None]:
    """The loader of the training rows has a setting."""

    def check(folder: Path) -> None:
        loader = make_trainer(folder, **changes).get_train_dataloader()
        assert getattr(loader, attribute) == value

    return check


def inherits(*names: str) -> Callable[[Path], None]:
    """What reads it is Transformers' own code, untouched."""

    def check(folder: Path) -> None:
        for name in names:
            assert getattr(RobustTrainer, name) is getattr(Trainer, name)

    return check


class Counter(TrainerCallback):
    """Count events, and keep the arguments that callbacks see."""

    def __init__(self) -> None:
        self.logs: list[dict[str, Any]] = []
        self.steps: list[int] = []
        self.evaluated: list[int] = []
        self.saved: list[int] = []
        self.args: Any = None

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.args = args
        self.steps.append(state.global_step)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any, **_: Any) -> None:
        self.logs.append({**logs, "step": state.global_step})

    def on_evaluate(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.evaluated.append(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self.saved.append(state.global_step)


def counted(folder: Path, **changes: Any) -> tuple[Counter, RobustTrainer]:
    counter = Counter()
    more = {"callbacks": [counter], "eval_dataset": Rows(6)}
    trainer = make_trainer(folder, more=more, **changes)
    trainer.train()
    return counter, trainer


def events(attribute: str, expected: list[int], **changes: Any) -> Callable[[Path], None]:
    """Something happens at these steps of three."""

    def check(folder: Path) -> None:
        counter, _ = counted(folder, **changes)
        assert getattr(counter, attribute) == expected

    return check


def logged(expected: list[int], **changes: Any) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        counter, _ = counted(folder, **changes)
        assert [log["step"] for log in counter.logs if "loss" in log] == expected

    return check


def handed(name: str, value: Any) -> Callable[[Path], None]:
    """Trackers and launchers read it from the arguments that they are handed."""

    def check(folder: Path) -> None:
        args = arguments(folder)
        setattr(args, name, value)
        counter = Counter()
        trainer = RobustTrainer(
            tiny_model(), args, train_dataset=Rows(4), data_collator=collate, callbacks=[counter]
        )
        trainer.train()
        assert getattr(counter.args, name) == value

    return check


def in_ddp(name: str, value: Any) -> Callable[[Path], None]:
    def check(folder: Path) -> None:
        trainer = make_trainer(folder, **{f"ddp_{name}": value})
        assert getattr(trainer.accelerator.ddp_handler, name) == value

    return check


def calls(target: str, **changes: Any) -> Callable[[Path], None]:
    """Transformers calls a function of its own for it."""

    def check(folder: Path) -> None:
        import transformers.trainer as module

        called: list[Any] = []
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(module, target, lambda *args, **_: called.append(args))
            make_trainer(folder, **changes).train()
        assert called

    return check


def rows_of(trainer: Any) -> list[list[int]]:
    return [batch["row_index"].tolist() for batch in trainer.get_train_dataloader()]


def data_seed(folder: Path) -> None:
    orders = [rows_of(make_trainer(folder, data_seed=seed)) for seed in (1, 1, 2)]
    assert orders[0] == orders[1] != orders[2]


def length_column(folder: Path) -> None:
    table = as_table(24).add_column("width", [index // 4 for index in range(24)])
    trainer = make_trainer(
        folder,
        rows=table,
        more={"data_collator": collate},
        train_sampling_strategy="group_by_length",
        length_column_name="width",
        remove_unused_columns=False,
    )
    result = sorted(sorted(batch) for batch in rows_of(trainer))
    assert result == [list(range(4 * part, 4 * part + 4)) for part in range(6)]


def split_batches(folder: Path) -> None:
    steps = {"gradient_accumulation_kwargs": {"num_steps": 3}}
    trainer = make_trainer(folder, accelerator_config=steps)
    trainer.train()
    assert trainer.state.global_step == 1


def empty_cache(folder: Path) -> None:
    emptied: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        trainer = make_trainer(folder, torch_empty_cache_steps=2, max_steps=3)
        patch.setattr(
            "temper.training.trainer.clear_device_cache",
            lambda: emptied.append(trainer.state.global_step),
        )
        trainer.train()
    assert emptied == [0, 2]


def cache_setting(folder: Path) -> None:
    model = tiny_model()
    make_trainer(folder, model=model, use_cache=True)
    assert model.config.use_cache


def tokens_seen(folder: Path) -> None:
    _, trainer = counted(folder, include_num_input_tokens_seen="non_padding")
    assert trainer.state.num_input_tokens_seen == sum(
        len(Rows(12)[index]["input_ids"]) for index in range(12)
    )


def progress_bar(folder: Path) -> None:
    def kinds(off: bool) -> set[str]:
        handler = make_trainer(folder, disable_tqdm=off).callback_handler
        return {type(each).__name__ for each in handler.callbacks}

    assert "PrinterCallback" in kinds(True) - kinds(False)


def memory_metrics(folder: Path) -> None:
    result = make_trainer(folder, skip_memory_metrics=False).train().metrics
    assert any("mem_cpu" in name for name in result)
    assert not any("mem_cpu" in name for name in make_trainer(folder).train().metrics)


def restored_callbacks(folder: Path) -> None:
    from transformers import EarlyStoppingCallback

    def make(patience: int, **changes: Any) -> Any:
        callback = EarlyStoppingCallback(early_stopping_patience=patience)
        return make_trainer(
            folder,
            more={"callbacks": [callback], "eval_dataset": Rows(6)},
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            metric_for_best_model="eval_loss",
            load_best_model_at_end=True,
            **changes,
        )

    make(5).train()
    resumed = make(9, restore_callback_states_from_checkpoint=True)
    resumed.train(resume_from_checkpoint=str(folder / "checkpoint-2"))
    (kept,) = (
        each
        for each in resumed.callback_handler.callbacks
        if isinstance(each, EarlyStoppingCallback)
    )
    assert kept.early_stopping_patience == 5


def skipped_data(folder: Path) -> None:
    def make(name: str, **changes: Any) -> Any:
        return make_trainer(folder / name, save_strategy="steps", save_steps=1, **changes)

    make("whole").train()
    checkpoint = str(folder / "whole" / "checkpoint-1")
    result = []
    for ignore in (False, True):
        trainer = make(f"again-{ignore}", ignore_data_skip=ignore)
        trainer.train(resume_from_checkpoint=checkpoint)
        result.append(weights(trainer.model))
    assert farthest(*result) > 1e-5


def weights_alone(folder: Path) -> None:
    counted(folder, save_only_model=True, save_strategy="steps", save_steps=3)
    there = {path.name for path in (folder / "checkpoint-3").iterdir()}
    assert "model.safetensors" in there
    assert not any("optimizer" in name for name in there)


# Evaluation is Transformers' own, in every way.
evaluation = inherits("evaluate", "predict", "evaluation_loop", "prediction_step")
TRAINER, DATA = "tests/training/test_trainer.py::", "tests/training/test_trainer_data.py::"
SAVED = "tests/distributed/test_saved.py::"
SUPPORTED = "tests/training/test_supported.py::"
Effect = Callable[[Path], None] | str

EFFECTS: dict[str, Effect] = {
    "output_dir": TRAINER + "test_only_the_newest_checkpoints_are_kept",
    "per_device_train_batch_size": as_stock(per_device_train_batch_size=3),
    "gradient_accumulation_steps": "tests/training/test_accumulation.py::"
    "test_a_smaller_batch_trains_on_the_same_rows_to_the_same_weights",
    "num_train_epochs": as_stock(num_train_epochs=3),
    "max_steps": TRAINER + "test_max_steps_ends_training_within_an_epoch",
    "seed": as_stock(seed=8),
    "data_seed": data_seed,
    "full_determinism": calls("enable_full_determinism", full_determinism=True),
    "use_cpu": "tests/training/test_arguments.py::test_a_cpu_trains_in_both_of_its_precisions",
    "accelerator_config": split_batches,
    "learning_rate": as_stock(learning_rate=1e-3),
    "lr_scheduler_type": as_stock(lr_scheduler_type="cosine"),
    "lr_scheduler_kwargs": as_stock(lr_scheduler_kwargs={"power": 3.0}),
    "warmup_steps": as_stock(warmup_steps=2),
    "warmup_ratio": as_stock(warmup_ratio=0.5),
    "optim": as_stock(optim="adagrad"),
    "optim_args": inherits("get_optimizer_cls_and_kwargs", "create_optimizer"),
    "weight_decay": as_stock(weight_decay=0.5),
    "adam_beta1": as_stock(adam_beta1=0.5),
    "adam_beta2": as_stock(adam_beta2=0.5),
    "adam_epsilon": as_stock(adam_epsilon=0.1),
    "max_grad_norm": as_stock(max_grad_norm=0.01, optim="sgd"),
    "label_smoothing_factor": "tests/training/test_given_loss.py::"
    "test_label_smoothing_trains_as_transformers_own_trainer",
    "label_names": evaluation,
    "bf16": TRAINER + "test_bf16_runs_the_forward_in_bf16_and_keeps_weights_in_fp32",
    "fp16": inherits("create_accelerator_and_postprocess"),
    "bf16_full_eval": evaluation,
    "fp16_full_eval": evaluation,
    "tf32": handed("tf32", False),
    "activation_checkpointing": TRAINER + "test_gradient_checkpointing_changes_no_weight",
    "gradient_checkpointing": TRAINER + "test_gradient_checkpointing_changes_no_weight",
    "activation_checkpointing_kwargs": TRAINER + "test_gradient_checkpointing_changes_no_weight",
    "gradient_checkpointing_kwargs": TRAINER + "test_gradient_checkpointing_changes_no_weight",
    "torch_empty_cache_steps": empty_cache,
    "use_cache": cache_setting,
    "logging_strategy": logged([3], logging_strategy="epoch"),
    "logging_steps": logged([2], logging_steps=2),
    "logging_first_step": logged([1, 2], logging_steps=2, logging_first_step=True),
    "log_on_each_node": handed("log_on_each_node", False),
    "include_num_input_tokens_seen": tokens_seen,
    "log_level": inherits("_validate_args"),
    "log_level_replica": handed("log_level_replica", "error"),
    "disable_tqdm": progress_bar,
    "report_to": TRAINER + "test_report_to_sends_every_log_to_the_tracker",
    "run_name": handed("run_name", "mine"),
    "logging_dir": handed("logging_dir", "logs"),
    "project": handed("project", "mine"),
    "trackio_space_id": handed("trackio_space_id", "mine"),
    "trackio_bucket_id": handed("trackio_bucket_id", "mine"),
    "trackio_static_space_id": handed("trackio_static_space_id", "mine"),
    "skip_memory_metrics": memory_metrics,
    "debug": calls("DebugUnderflowOverflow", debug="underflow_overflow"),
    "eval_strategy": events("evaluated", [3], eval_strategy="epoch"),
    "eval_steps": events("evaluated", [2, 3], eval_strategy="steps", eval_steps=2),
    "eval_delay": events("evaluated", [2, 3], eval_strategy="steps", eval_steps=1, eval_delay=2),
    "eval_on_start": events("evaluated", [0, 3], eval_strategy="epoch", eval_on_start=True),
    "per_device_eval_batch_size": evaluation,
    "prediction_loss_only": evaluation,
    "eval_do_concat_batches": evaluation,
    "eval_use_gather_object": evaluation,
    "eval_accumulation_steps": evaluation,
    "include_for_metrics": evaluation,
    "batch_eval_metrics": evaluation,
    "load_best_model_at_end": TRAINER + "test_the_best_model_is_loaded_at_the_end",
    "metric_for_best_model": TRAINER + "test_the_best_model_is_loaded_at_the_end",
    "greater_is_better": TRAINER + "test_the_best_model_is_loaded_at_the_end",
    "save_strategy": events("saved", [3], save_strategy="epoch"),
    "save_steps": events("saved", [2, 3], save_strategy="steps", save_steps=2),
    "save_total_limit": TRAINER + "test_only_the_newest_checkpoints_are_kept",
    "save_only_model": weights_alone,
    "save_on_each_node": inherits("is_world_process_zero"),
    "ignore_data_skip": skipped_data,
    "restore_callback_states_from_checkpoint": restored_callbacks,
    **dict.fromkeys(
        ("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"),
        inherits("push_to_hub", "init_hf_repo"),
    ),
    "dataloader_drop_last": "tests/training/test_accumulation.py::"
    "test_dropping_the_last_step_drops_the_same_rows_under_accumulation",
    "dataloader_num_workers": loads("num_workers", 2, dataloader_num_workers=2),
    "dataloader_pin_memory": handed("dataloader_pin_memory", False),
    "dataloader_persistent_workers": loads(
        "persistent_workers", True, dataloader_num_workers=1, dataloader_persistent_workers=True
    ),
    "dataloader_prefetch_factor": loads(
        "prefetch_factor", 3, dataloader_num_workers=1, dataloader_prefetch_factor=3
    ),
    "dataloader_multiprocessing_context": handed("dataloader_multiprocessing_context", None),
    "dataloader_in_order": loads("in_order", False, dataloader_in_order=False),
    "remove_unused_columns": DATA
    + "test_columns_that_the_model_does_not_accept_are_dropped_by_default",
    "train_sampling_strategy": DATA + "test_every_epoch_sees_every_row_once",
    "length_column_name": length_column,
    "ddp_find_unused_parameters": in_ddp("find_unused_parameters", True),
    "ddp_bucket_cap_mb": in_ddp("bucket_cap_mb", 7),
    "ddp_broadcast_buffers": in_ddp("broadcast_buffers", False),
    "ddp_backend": handed("ddp_backend", "gloo"),
    "ddp_timeout": handed("ddp_timeout", 7),
    "fsdp": SAVED + "test_sharded_processes_train_to_the_weights_of_one_process",
    "fsdp_config": SUPPORTED
    + "test_arguments_incompatible_with_sharding_are_reported_before_training",
    # Parameters
    "model": TRAINER + "test_plain_training_equals_transformers_own_trainer",
    "args": TRAINER + "test_plain_training_equals_transformers_own_trainer",
    "data_collator": DATA + "test_columns_that_the_model_does_not_accept_are_dropped_by_default",
    "train_dataset": DATA + "test_every_epoch_sees_every_row_once",
    "eval_dataset": TRAINER + "test_evaluation_during_and_after_training_sees_the_plain_model",
    "processing_class": "tests/training/test_hooks.py",
    "model_init": TRAINER + "test_model_init_creates_the_trained_model",
    "compute_loss_func": "tests/training/test_given_loss.py::"
    "test_a_loss_function_trains_as_in_transformers_own_trainer",
    "compute_metrics": TRAINER + "test_evaluation_during_and_after_training_sees_the_plain_model",
    "callbacks": TRAINER + "test_callbacks_come_in_the_order_that_transformers_documents",
}


def stays(**more: Any) -> Callable[[Path], None]:
    """Weights stay where an optimizer has no rate."""

    def check(folder: Path) -> None:
        model = quiet_model()
        before = weights(model)
        given = {name: value(model) for name, value in more.items()}
        make_trainer(folder, model=model, more=given).train()
        assert farthest(before, weights(model)) == 0.0

    return check


PARAMETER_EFFECTS: dict[str, Callable[[Path], None]] = {
    "optimizers": stays(
        optimizers=lambda model: (torch.optim.SGD(model.parameters(), lr=0.0), None)
    ),
    "optimizer_cls_and_kwargs": stays(
        optimizer_cls_and_kwargs=lambda _: (torch.optim.SGD, {"lr": 0.0})
    ),
    "preprocess_logits_for_metrics": evaluation,
}
