"""Sharded weights (FSDP2): each process has some rows, and the rules need values of all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from temper.errors import ModelError
from temper.lazy import torch

if TYPE_CHECKING:
    from torch import Tensor, nn


def sharded_modules(model: nn.Module) -> list[Any]:
    """Return the modules that ``fully_shard`` was called with, the model itself first."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    # FSDP takes a while to import, and one process never needs it.
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reshard(model: nn.Module) -> None:
    """Free the gathered weights, so each process keeps only its own shard."""
    for module in sharded_modules(model):
        module.reshard()


def unshard_root(model: nn.Module) -> None:
    """Gather the weights outside the blocks, for calls that do not go through the whole model."""
    for module in sharded_modules(model)[:1]:
        module.unshard()


def keep_whole(model: nn.Module) -> None:
    """Keep gathered weights from the first pass that needs them until ``reshard``."""
    # A graph that is differentiated twice reads weights after FSDP would have freed them.
    for module in sharded_modules(model)[:1]:
        module.set_reshard_after_forward(False)
        module.set_reshard_after_backward(False)


@dataclass(frozen=True)
class Shards:
    """The rows of the parameters that this process has; no parameters if it has all rows."""

    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> Shards:
        """Return the shards of a model with some trainable parameters."""
        if not sharded_modules(model):
            return cls()
        from torch.distributed.tensor import DTensor, Shard

        for name, parameter in trainable.items():
            if not isinstance(parameter, DTensor) or parameter.placements != (Shard(0),):
                raise ModelError(
                    f"The parameter {name} is not sharded by its rows over one group of processes, "
                    "as torch.distributed.fsdp.fully_shard does with a mesh of one dimension. "
                    "Shard the whole model so."
                )
        return cls(dict(trainable))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    @property
    def group(self) -> Any:
        return next(iter(self.parameters.values())).device_mesh.get_group()

    def parts(self) -> dict[str, Tensor]:
        """Return this process's rows of each parameter; they share its memory."""
        with torch.no_grad():
            return {name: each.to_local().detach() for name, each in self.parameters.items()}

    def rows(self, name: str) -> slice:
        """Return which rows of a parameter this process holds."""
        parameter = self.parameters[name]
        mesh = parameter.device_mesh
        # The same split as torch.chunk.
        size = -(-len(parameter) // mesh.size())
        first = min(mesh.get_local_rank() * size, len(parameter))
        return slice(first, min(first + size, len(parameter)))

    def as_shard(self, name: str, part: Tensor) -> Any:
        """Return a tensor of this process's rows as a tensor that is sharded like a parameter."""
        from torch.distributed.tensor import DTensor

        parameter = self.parameters[name]
        shape, stride = parameter.shape, parameter.stride()
        return DTensor.from_local(
            part,
            parameter.device_mesh,
            parameter.placements,
            run_check=False,
            shape=shape,
            stride=stride,
        )


def whole(value: Any, *, keep: bool) -> Any:
    """Gather the sharded tensors of nested dicts, lists and tuples; all processes call this.

    They are gathered one by one, and come on the CPU; processes that do not ``keep`` them have
    empty tensors. Other values are not changed.
    """
    if hasattr(value, "full_tensor"):
        gathered: Tensor = value.detach().full_tensor()
        return gathered.cpu() if keep else gathered.new_empty(0)
    if isinstance(value, dict):
        return {key: whole(each, keep=keep) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(each, keep=keep) for each in value)
    return value


@contextmanager
def exchanged(model: nn.Module, parts: Mapping[str, Tensor]) -> Iterator[None]:
    """Replace parameters of a sharded model, of which this process has rows, inside the block."""
    reshard(model)
    local_parts = Shards({name: model.get_parameter(name) for name in parts}).parts()
    saved = {name: tensor.clone() for name, tensor in local_parts.items()}
    try:
        for name, tensor in local_parts.items():
            tensor.copy_(parts[name])
        yield
    finally:
        reshard(model)
        for name, tensor in local_parts.items():
            tensor.copy_(saved[name])


def reduced(values: Tensor, group: Any, *, largest: bool = False) -> Tensor:
    """Return the sum, or the maximum, of tensors of one shape over processes."""
    total = values.clone()
    kind = torch.distributed.ReduceOp.MAX if largest else torch.distributed.ReduceOp.SUM
    torch.distributed.all_reduce(total, kind, group=group)
    return total
