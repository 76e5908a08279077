"""Every argument and hook of Trainer works, is refused before training, or has no effect.

A new argument of Transformers fails here until it is in one of the lists.
"""

from __future__ import annotations

import dataclasses
import inspect
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainingArguments

from temper.errors import ModelError, SettingError
from temper.training import supported
from temper.training.sharding import shard
from temper.training.supported import ARGUMENTS, HOOKS, PARAMETERS
from temper.training.trainer import RobustTrainer
from tests.training.tiny_training import (
    Rows,
    arguments,
    collate,
    farthest,
    make_trainer,
    quiet_model,
    tiny_model,
    weights,
)
from tests.training.trainer_effects import EFFECTS, PARAMETER_EFFECTS, Counter

ROOT = Path(__file__).resolve().parents[2]
FIELDS = {field.name for field in dataclasses.fields(TrainingArguments)}
METHODS = {name for name in dir(Trainer) if not name.startswith("_")}
GIVEN = set(inspect.signature(Trainer.__init__).parameters) - {"self"}


# Nothing slips in


@pytest.mark.parametrize(
    ("there", "listed"), [(FIELDS, ARGUMENTS), (GIVEN, PARAMETERS), (METHODS, HOOKS)]
)
def test_every_name_of_transformers_is_listed(there: set[str], listed: Any) -> None:
    assert sorted(there - set(listed)) == []


def test_methods_that_are_documented_for_overriding_are_public() -> None:
    """Should one with an underscore be documented so, it must be listed too."""
    named = {
        name
        for name, method in inspect.getmembers(Trainer, inspect.isfunction)
        if "ubclass and override" in (inspect.getdoc(method) or "")
    }
    assert {"compute_loss", "training_step", "prediction_step"} <= named
    assert named - {"_validate_args"} <= set(HOOKS)


def test_unsupported_arguments_have_a_reason() -> None:
    for kind in supported.KINDS.values():
        assert all(each.note.endswith(".") for each in kind.values() if each.verdict != "works")


# What is refused

REFUSED: dict[str, Any] = {
    "auto_find_batch_size": True,
    "optim": "lomo",
    "optim_target_modules": "all-linear",
    "neftune_noise_alpha": 5.0,
    "use_liger_kernel": True,
    "liger_kernel_config": {"rope": True},
    "label_names": ["target"],
    "activation_checkpointing_kwargs": {"use_reentrant": True},
    "gradient_checkpointing_kwargs": {"use_reentrant": True},
    "enable_jit_checkpoint": True,
    "push_to_hub": True,
    "ddp_static_graph": True,
    "deepspeed": {"zero_optimization": {}},
    "torch_compile": True,
    "parallelism_config": object(),
}


def test_every_refused_argument_is_tested_with_a_value() -> None:
    refusing = {
        name for name, each in ARGUMENTS.items() if each.refuses not in ("works", "no effect")
    }
    assert set(REFUSED) == refusing


@pytest.mark.parametrize("name", sorted(set(REFUSED) & FIELDS))
def test_a_refused_argument_is_named_before_training(tmp_path: Path, name: str) -> None:
    args = arguments(tmp_path)
    # Set without checks, because some values need missing packages or processes.
    object.__setattr__(args, name, REFUSED[name])
    message = re.escape(f"`{name}` is {REFUSED[name]!r}. {ARGUMENTS[name].note}")
    with pytest.raises(SettingError, match=message):
        RobustTrainer(tiny_model(), args, train_dataset=Rows(4), data_collator=collate)
    trainer = make_trainer(tmp_path)
    before = weights(trainer.model)
    object.__setattr__(trainer.args, name, REFUSED[name])
    with pytest.raises(SettingError, match=message):
        trainer.train()
    assert farthest(before, weights(trainer.model)) == 0.0


def test_arguments_incompatible_with_sharding_are_reported_before_training(tmp_path: Path) -> None:
    args = arguments(tmp_path)
    for name, value in {
        "fsdp": True,
        "fsdp_config": {"version": 2, "cpu_offload": True},
        "fp16": True,
        "load_best_model_at_end": True,
    }.items():
        object.__setattr__(args, name, value)
    model = tiny_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with pytest.raises(SettingError) as refused:
        RobustTrainer(model, args, train_dataset=Rows(4), optimizers=(optimizer, None))
    message = str(refused.value)
    for name in ("`fsdp`", "'cpu_offload'", "`fp16`", "`load_best_model_at_end`", "`optimizers`"):
        assert name in message
    with pytest.raises(SettingError, match="init_process_group"):
        shard(model)


@pytest.mark.parametrize(
    "name", sorted(name for name, each in HOOKS.items() if each.verdict == "refused")
)
def test_an_overridden_hook_that_is_not_called_raises_an_error(tmp_path: Path, name: str) -> None:
    if name not in METHODS:
        pytest.skip("this release of Transformers has no such hook")

    def own(self: Any, *args: Any, **settings: Any) -> Any:
        raise AssertionError("called")

    own_class = type("Own", (RobustTrainer,), {name: own})
    message = rf"Own\.{name} is overridden, and training would not"
    with pytest.raises(SettingError, match=message):
        own_class(tiny_model(), arguments(tmp_path), train_dataset=Rows(4), data_collator=collate)
    trainer = make_trainer(tmp_path)
    setattr(trainer, name, own)
    with pytest.raises(SettingError, match=f"{name} is overridden, and training would not"):
        trainer.train()


def test_overriding_the_row_count_raises_an_error(tmp_path: Path) -> None:
    class Own(RobustTrainer):
        def get_batch_samples(self, iterator: Any, num_batches: int, device: Any) -> Any:
            return [next(iterator) for _ in range(num_batches)], None

    trainer = make_trainer(tmp_path)
    trainer.__class__ = Own
    with pytest.raises(ModelError, match=r"Call it there"):
        trainer.train()


# What works


def test_every_supported_argument_has_a_test() -> None:
    works = {n for kind in (ARGUMENTS, PARAMETERS) for n, s in kind.items() if s.verdict == "works"}
    assert works - set(EFFECTS) == set(PARAMETER_EFFECTS)
    for effect in EFFECTS.values():
        if isinstance(effect, str) and "::" in effect:
            file, name = effect.split("::")
            assert f"def {name}(" in (ROOT / file).read_text(encoding="utf-8"), effect


@pytest.mark.parametrize(
    "name", sorted(n for n, e in EFFECTS.items() if callable(e) and n in FIELDS)
)
@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
def test_an_argument_has_its_effect(tmp_path: Path, name: str) -> None:
    effect = EFFECTS[name]
    assert callable(effect)
    effect(tmp_path)


@pytest.mark.parametrize("name", PARAMETER_EFFECTS)
def test_a_parameter_has_its_effect(tmp_path: Path, name: str) -> None:
    PARAMETER_EFFECTS[name](tmp_path)


# Hooks


def train(trainer: Any) -> None:
    trainer.train()


def evaluate(trainer: Any) -> None:
    trainer.evaluate(Rows(6))


def predict(trainer: Any) -> None:
    trainer.predict(Rows(6))


def save(trainer: Any) -> None:
    trainer.args.save_strategy = "steps"
    trainer.train()


def learning_rates(trainer: Any) -> None:
    trainer.train()
    assert len(trainer.get_learning_rates()) == 2
    assert trainer.get_num_trainable_parameters() > 0
    assert trainer.get_optimizer_group()


def files(trainer: Any) -> None:
    trainer.log_metrics("train", {"loss": 1.0})
    trainer.save_metrics("train", {"loss": 1.0})
    trainer.save_state()
    trainer.create_model_card()
    assert (Path(trainer.args.output_dir) / "trainer_state.json").is_file()


def callbacks(trainer: Any) -> None:
    trainer.add_callback(Counter)
    assert isinstance(trainer.pop_callback(Counter), Counter)
    trainer.add_callback(Counter)
    trainer.remove_callback(Counter)


def made(trainer: Any) -> None:
    """Called when the trainer was made."""


def end(trainer: Any) -> None:
    trainer.end()


ACTIONS: dict[str, Callable[[Any], None]] = {
    **dict.fromkeys(
        ("evaluate", "evaluation_loop", "prediction_step", "get_eval_dataloader"), evaluate
    ),
    **dict.fromkeys(("predict", "get_test_dataloader"), predict),
    **dict.fromkeys(
        ("get_learning_rates", "get_num_trainable_parameters", "get_optimizer_group"),
        learning_rates,
    ),
    **dict.fromkeys(("log_metrics", "save_metrics", "save_state", "create_model_card"), files),
    **dict.fromkeys(("add_callback", "pop_callback", "remove_callback"), callbacks),
    "create_accelerator_and_postprocess": made,
    "save_model": save,
    "store_flos": save,
    "end": end,
}
# Transformers' own code calls these, for what is not here: a hub, a package that searches.
NOT_SPIED = {"push_to_hub", "init_hf_repo", "hyperparameter_search", "call_model_init"}


@pytest.mark.parametrize(
    "name",
    sorted(n for n, s in HOOKS.items() if s.verdict == "works" and n in METHODS - NOT_SPIED),
)
@pytest.mark.filterwarnings("ignore::FutureWarning")
def test_an_overridden_hook_is_called(tmp_path: Path, name: str) -> None:
    called: list[str] = []
    theirs = inspect.getattr_static(RobustTrainer, name)
    bare = theirs.__func__ if isinstance(theirs, staticmethod) else theirs

    def own(*args: Any, **settings: Any) -> Any:
        called.append(name)
        return bare(*args, **settings)

    hook = staticmethod(own) if isinstance(theirs, staticmethod) else own
    kind = type("Own", (RobustTrainer,), {name: hook})
    trainer = kind(
        quiet_model(), arguments(tmp_path), train_dataset=Rows(12), data_collator=collate
    )
    ACTIONS.get(name, train)(trainer)
    assert called
