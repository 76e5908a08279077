"""Training with weights, gradients and optimizer states sharded over processes (FSDP2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed
from torch import Tensor, nn

from temper.errors import SettingError
from temper.models.blocks import find_blocks
from temper.models.shards import Shards, reshard, sharded_modules
from temper.models.shards import whole as whole
from temper.settings import Faults

CONFIG = {
    "version": 2,
    "min_num_params": 0,
    "xla": False,
    "xla_fsdp_v2": False,
    "xla_fsdp_grad_ckpt": False,
}
"""Keys that Transformers adds to ``fsdp_config`` by itself."""


def check_arguments(args: Any, settings: Mapping[str, Any]) -> None:
    """Raise if settings are not supported with FSDP2, with all faults at once."""
    if not args.fsdp:
        return
    faults = [
        f"`fsdp_config` sets {name!r} to {value!r}, which is not supported: each block is one "
        "unit, and checkpoints have whole weights. Leave it out."
        for name, value in (args.fsdp_config or {}).items()
        if value != CONFIG.get(name)
    ]
    if args.world_size == 1:
        faults.append(
            "`fsdp` shards a model over processes, but there is only one. Start several "
            "(torchrun --nproc-per-node 2), or leave it out."
        )
    if args.fp16:
        faults.append("`fp16` scales losses, which is not supported with `fsdp`. Use bf16.")
    if args.load_best_model_at_end:
        faults.append("`load_best_model_at_end` is not supported with `fsdp`. Leave it out.")
    if settings.get("optimizers", (None,))[0] is not None:
        faults.append(
            "`optimizers` has an optimizer of the weights before they are sharded. Pass "
            "`optimizer_cls_and_kwargs` in its place."
        )
    Faults(faults).refuse()


@contextmanager
def without_plugin(args: Any) -> Iterator[None]:
    """Keep Accelerate from sharding inside the block; `shard` does it when training begins."""
    plugin = getattr(args, "fsdp_plugin_args", None)
    if plugin is None:
        yield
        return
    # Its plugin shards BERT's embeddings twice (accelerate 1.15), and does nothing on a CPU.
    args.fsdp_plugin_args = None
    try:
        yield
    finally:
        args.fsdp_plugin_args = plugin


def shard(model: nn.Module) -> nn.Module:
    """Shard the weights of a model on its device over all processes, in place, by FSDP2.

    Each block of the encoder is one FSDP unit, and the remaining weights are another. All processes
    start from the weights of the first. A sharded model is returned unchanged.

    Raises:
        SettingError: Outside a process group.

    Example:
        In a script that ``torchrun`` starts, before the optimizer is made::

            torch.distributed.init_process_group()
            model = shard(model)
            optimizer = torch.optim.AdamW(model.parameters())
            rank, ranks = torch.distributed.get_rank(), torch.distributed.get_world_size()
            stepper = Stepper(model, UEGR(), rank=rank, ranks=ranks)
    """
    if not torch.distributed.is_initialized():
        raise SettingError(
            "Sharding needs a torch.distributed process group, and there is none. Call "
            "torch.distributed.init_process_group() in a script that torchrun starts."
        )
    if sharded_modules(model):
        return model
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    tensors = [*model.parameters(), *model.buffers()]
    for tensor in tensors:
        torch.distributed.broadcast(tensor.detach(), 0)
    mesh = init_device_mesh(tensors[0].device.type, (torch.distributed.get_world_size(),))
    for _, block in find_blocks(model):
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def state_of(model: nn.Module, *, keep: bool) -> dict[str, Tensor]:
    """Gather the whole weights of a sharded model; processes without ``keep`` get an empty dict."""
    reshard(model)
    return dict(whole(dict(model.state_dict()), keep=keep))


class OptimizerState:
    """Wraps an optimizer whose parameters may be sharded, to load an unsharded state."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer

    def state_dict(self) -> dict[str, Any]:
        return dict(self.optimizer.state_dict())

    def load_state_dict(self, saved: dict[str, Any]) -> None:
        """Load a state; of tensors with the shape of a sharded parameter, this process's rows."""
        parameters = [p for group in self.optimizer.param_groups for p in group["params"]]
        shards = Shards({str(n): p for n, p in enumerate(parameters) if hasattr(p, "to_local")})
        if not shards:
            self.optimizer.load_state_dict(saved)
            return

        def part(number: Any, value: Any) -> Any:
            name = str(number)
            if name not in shards.parameters or not isinstance(value, Tensor):
                return value
            if value.shape != shards.parameters[name].shape:
                return value
            device = shards.parameters[name].device
            return shards.as_shard(name, value[shards.rows(name)].clone().to(device))

        state = {
            number: {key: part(number, value) for key, value in values.items()}
            for number, values in saved["state"].items()
        }
        self.optimizer.load_state_dict({**saved, "state": state})
