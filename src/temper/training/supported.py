"""What RobustTrainer makes of every argument and hook of Transformers' Trainer.

Each is in one of three lists: it works, it is refused before training, or it has no effect by
nature. A name that only some releases of Transformers have may stand here all the same.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from temper.errors import SettingError

Verdict = Literal["works", "refused", "no effect"]


@dataclass(frozen=True)
class Support:
    """What becomes of one argument or hook.

    Args:
        verdict: The list that it is in.
        note: What to do instead of what is refused, or why there is no effect.
        refuses: Which of its values are refused; of one that works, a few.
    """

    verdict: Verdict
    note: str = ""
    refuses: Callable[[Any], bool] = lambda value: False


def _works(*names: str) -> dict[str, Support]:
    return dict.fromkeys(names, Support("works"))


def _works_but(note: str, refuses: Callable[[Any], bool], *names: str) -> dict[str, Support]:
    return dict.fromkeys(names, Support("works", note, refuses))


def _refused(instead: str, *names: str) -> dict[str, Support]:
    return dict.fromkeys(names, Support("refused", instead, bool))


def _no_effect(reason: str, *names: str) -> dict[str, Support]:
    return dict.fromkeys(names, Support("no effect", reason))


def _inside_backward(optim: Any) -> bool:
    name = str(getattr(optim, "value", optim))
    return "lomo" in name or "layerwise" in name


def _reentrant(settings: Any) -> bool:
    return isinstance(settings, Mapping) and bool(settings.get("use_reentrant"))


def _other_labels(names: Any) -> bool:
    return names is not None and list(names) != ["labels"]


_SHARDED = (
    "Methods read and mask whole gradients, which this shards. Use distributed data parallel "
    "(torchrun)."
)
_REENTRANT = (
    "Attacks differentiate by the embeddings alone, which re-entrant checkpointing cannot. Leave "
    "`use_reentrant` out."
)

ARGUMENTS: dict[str, Support] = {
    # The run and its steps
    **_works(
        "output_dir",
        "per_device_train_batch_size",
        "gradient_accumulation_steps",
        "num_train_epochs",
        "max_steps",
        "seed",
        "data_seed",
        "full_determinism",
        "use_cpu",
        "accelerator_config",
    ),
    **_refused(
        "It would shrink the batch, and so the rows of a step. Set `per_device_train_batch_size` "
        "and raise `gradient_accumulation_steps`, which trains on the same rows.",
        "auto_find_batch_size",
    ),
    **_no_effect(
        "Every row of a step weighs the same, whatever its process.",
        "average_tokens_across_devices",
    ),
    **_no_effect("Transformers' Trainer does not read it.", "do_train", "do_eval", "do_predict"),
    **_no_effect(
        "Transformers' Trainer does not read it; give it to train().", "resume_from_checkpoint"
    ),
    **_no_effect("The launcher sets it.", "local_rank"),
    # The optimiser
    **_works(
        "learning_rate",
        "lr_scheduler_type",
        "lr_scheduler_kwargs",
        "warmup_steps",
        "warmup_ratio",
        "optim_args",
        "weight_decay",
        "adam_beta1",
        "adam_beta2",
        "adam_epsilon",
        "max_grad_norm",
    ),
    **_works_but(
        "LOMO and layer-wise optimisers move weights inside the backward, before a method has seen "
        "the gradient. Use another optimiser.",
        _inside_backward,
        "optim",
    ),
    **_refused(
        "Optimisers of chosen modules are not tested. Give one by optimizers=(optimizer, None).",
        "optim_target_modules",
    ),
    # The loss
    **_works("label_smoothing_factor"),
    **_refused(
        "Its noise would fall on attacked passes too. Use the method embedding_noise, which adds "
        "to others ('embedding_noise + r_drop').",
        "neftune_noise_alpha",
    ),
    **_refused(
        "Its fused kernels have no second derivative and compute losses of language models. Leave "
        "it out.",
        "use_liger_kernel",
        "liger_kernel_config",
    ),
    **_works_but(
        "Losses are made of 'labels'. Rename the column, or let the collator do so.",
        _other_labels,
        "label_names",
    ),
    # Precision and memory
    **_works(
        "bf16",
        "fp16",
        "bf16_full_eval",
        "fp16_full_eval",
        "tf32",
        "activation_checkpointing",
        "gradient_checkpointing",
        "torch_empty_cache_steps",
    ),
    **_refused(
        "A step runs the model in several ways, perturbed and not, which one compiled graph does "
        "not serve. Leave it out.",
        "torch_compile",
    ),
    **_no_effect("Only `torch_compile` reads it.", "torch_compile_backend", "torch_compile_mode"),
    **_works_but(
        _REENTRANT, _reentrant, "activation_checkpointing_kwargs", "gradient_checkpointing_kwargs"
    ),
    **_works("use_cache"),
    # Logs and trackers
    **_works(
        "logging_strategy",
        "logging_steps",
        "logging_first_step",
        "log_on_each_node",
        "include_num_input_tokens_seen",
        "log_level",
        "log_level_replica",
        "disable_tqdm",
        "report_to",
        "run_name",
        "logging_dir",
        "project",
        "trackio_space_id",
        "trackio_bucket_id",
        "trackio_static_space_id",
        "skip_memory_metrics",
        "debug",
    ),
    **_no_effect(
        "A loss that is not finite stops training before it is logged.", "logging_nan_inf_filter"
    ),
    # Evaluation
    **_works(
        "eval_strategy",
        "eval_steps",
        "eval_delay",
        "eval_on_start",
        "per_device_eval_batch_size",
        "prediction_loss_only",
        "eval_do_concat_batches",
        "eval_use_gather_object",
        "eval_accumulation_steps",
        "include_for_metrics",
        "batch_eval_metrics",
        "load_best_model_at_end",
        "metric_for_best_model",
        "greater_is_better",
    ),
    # Checkpoints
    **_works(
        "save_strategy",
        "save_steps",
        "save_total_limit",
        "save_only_model",
        "save_on_each_node",
        "ignore_data_skip",
        "restore_callback_states_from_checkpoint",
    ),
    **_refused(
        "Checkpoints are whole or absent here. Lower `save_steps`; a stopped run resumes from the "
        "last one.",
        "enable_jit_checkpoint",
    ),
    **_refused(
        "It pickles the arguments beside the weights. Call trainer.push_to_hub() after training.",
        "push_to_hub",
    ),
    **_works("hub_model_id", "hub_token", "hub_private_repo", "hub_revision"),
    **_no_effect("Only `push_to_hub` reads it.", "hub_strategy", "hub_always_push"),
    # Data
    **_works(
        "dataloader_drop_last",
        "dataloader_num_workers",
        "dataloader_pin_memory",
        "dataloader_persistent_workers",
        "dataloader_prefetch_factor",
        "dataloader_multiprocessing_context",
        "dataloader_in_order",
        "remove_unused_columns",
        "train_sampling_strategy",
        "length_column_name",
    ),
    # Several processes
    **_works(
        "ddp_find_unused_parameters",
        "ddp_bucket_cap_mb",
        "ddp_broadcast_buffers",
        "ddp_backend",
        "ddp_timeout",
    ),
    **_refused(
        "The passes of a step differ, so that its graph is not static. Leave it out.",
        "ddp_static_graph",
    ),
    **_refused(_SHARDED, "fsdp", "deepspeed", "parallelism_config"),
    **_no_effect("Only `fsdp` reads it.", "fsdp_config"),
}
"""Fields of ``TrainingArguments``."""

PARAMETERS: dict[str, Support] = _works(
    "model",
    "args",
    "data_collator",
    "train_dataset",
    "eval_dataset",
    "processing_class",
    "model_init",
    "compute_loss_func",
    "compute_metrics",
    "callbacks",
    "optimizers",
    "optimizer_cls_and_kwargs",
    "preprocess_logits_for_metrics",
)
"""Parameters of ``Trainer.__init__``."""

HOOKS: dict[str, Support] = {
    # Called in training
    **_works(
        "train",
        "training_step",
        "get_batch_samples",
        "get_train_dataloader",
        "create_optimizer",
        "create_scheduler",
        "compute_loss_context_manager",
        "autocast_smart_context_manager",
        "create_accelerator_and_postprocess",
        "call_model_init",
        "floating_point_ops",
        "store_flos",
        "get_decay_parameter_names",
        "get_optimizer_cls_and_kwargs",
        "get_total_train_batch_size",
        "set_initial_training_values",
        "num_examples",
        "log",
        "save_model",
        "is_local_process_zero",
        "is_world_process_zero",
    ),
    **_refused(
        "The passes of a method make losses of their own. Pass compute_loss_func, which every task "
        "loss then is, or write a method (docs/add-a-method.md).",
        "compute_loss",
    ),
    **_refused(
        "Transformers' loop calls create_optimizer and create_scheduler. Override these.",
        "create_optimizer_and_scheduler",
    ),
    **_no_effect(
        "Losses are divided by the rows of the whole step, so that nothing is left to scale.",
        "loss_is_scaled_for_ga",
    ),
    **_no_effect("Transformers calls its own function of that name.", "metrics_format"),
    **_no_effect(
        "Parallelism within a model is refused, so that it is 1.",
        "get_cp_size",
        "get_sp_size",
        "get_tp_size",
    ),
    # Called in evaluation
    **_works(
        "evaluate",
        "predict",
        "evaluation_loop",
        "prediction_step",
        "get_eval_dataloader",
        "get_test_dataloader",
    ),
    # Called by users
    **_works(
        "add_callback",
        "pop_callback",
        "remove_callback",
        "get_learning_rates",
        "get_num_trainable_parameters",
        "get_optimizer_group",
        "log_metrics",
        "save_metrics",
        "save_state",
        "hyperparameter_search",
        "create_model_card",
        "init_hf_repo",
        "push_to_hub",
        "end",
    ),
}
"""Methods and attributes of ``Trainer`` that a subclass may override."""


def check_arguments(args: Any) -> None:
    """Refuse arguments that training could not keep, all at once.

    Args:
        args: ``TrainingArguments``.

    Raises:
        SettingError: If there are some; it says of each what to do instead.
    """
    faults = [
        f"`{name}` is {getattr(args, name)!r}. {support.note}"
        for name, support in ARGUMENTS.items()
        if support.refuses(getattr(args, name, None))
    ]
    if faults:
        raise SettingError("\n".join(faults))


def check_hooks(trainer: Any, own: type) -> None:
    """Refuse hooks that were overridden and that training would not call.

    Args:
        trainer: A `RobustTrainer`, or an instance of a subclass.
        own: The class `RobustTrainer`.

    Raises:
        SettingError: If there are some; it says of each what to do instead.
    """
    find = inspect.getattr_static
    faults = [
        f"{type(trainer).__name__}.{name} is overridden, and training would not call it. "
        f"{support.note}"
        for name, support in HOOKS.items()
        if support.verdict == "refused" and find(trainer, name, None) is not find(own, name, None)
    ]
    if faults:
        raise SettingError("\n".join(faults))


KINDS: dict[str, Mapping[str, Support]] = {
    "Arguments of `Trainer`": PARAMETERS,
    "Fields of `TrainingArguments`": ARGUMENTS,
    "Methods and attributes of `Trainer` that a subclass may override": HOOKS,
}

INTRODUCTIONS: dict[Verdict, str] = {
    "works": "**Works**, as Transformers documents it:",
    "refused": "**Refused** before training:",
    "no effect": "**No effect**, by nature:",
}


def markdown() -> str:
    """Write the lists as they stand in docs/trainer.md."""
    parts: list[str] = []
    for title, kind in KINDS.items():
        parts.append(f"### {title}\n")
        for verdict, introduction in INTRODUCTIONS.items():
            named = {name: each for name, each in kind.items() if each.verdict == verdict}
            if not named:
                continue
            parts.append(f"{introduction}\n")
            if verdict == "works":
                parts.append(", ".join(f"`{name}`" for name in named) + ".\n")
                named = {name: each for name, each in named.items() if each.note}
            parts += [f"- `{name}`: {each.note}" for name, each in named.items()]
            if named:
                parts.append("")
    return "\n".join(parts).rstrip() + "\n"
