"""Weights sharded by FSDP2, of which each process has some rows: access, gather and reduce them."""

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
    """Return the modules to which ``fully_shard`` was applied, the model itself first."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return []
    # Imported late: FSDP is slow to import, and a single process does not need it.
    from torch.distributed.fsdp import FSDPModule

    return [module for module in model.modules() if isinstance(module, FSDPModule)]


def reshard(model: nn.Module) -> None:
    """Free gathered weights, so that each process has only its own rows."""
    for module in sharded_modules(model):
        module.reshard()


def unshard_root(model: nn.Module) -> None:
    """Gather the weights outside the blocks, for calls of single modules."""
    for module in sharded_modules(model)[:1]:
        module.unshard()


def keep_whole(model: nn.Module) -> None:
    """Make gathered weights stay until ``reshard``, instead of only during a pass."""
    # A graph that is differentiated twice reads weights after FSDP would have freed them.
    for module in sharded_modules(model)[:1]:
        module.set_reshard_after_forward(False)
        module.set_reshard_after_backward(False)


@dataclass(frozen=True)
class Shards:
    """The sharded parameters by name; empty if the model is not sharded."""

    parameters: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of(cls, model: nn.Module, trainable: Mapping[str, nn.Parameter]) -> Shards:
        """Return the shards of a model's trainable parameters."""
        if not sharded_modules(model):
            return cls()
        from torch.distributed.tensor import DTensor, Shard

        for name, parameter in trainable.items():
            if not isinstance(parameter, DTensor) or parameter.placements != (Shard(0),):
                raise ModelError(
                    f"The parameter {name} is not sharded by its rows over one group of processes. "
                    "Shard the whole model with torch.distributed.fsdp.fully_shard and a mesh of "
                    "one dimension."
                )
        return cls(dict(trainable))

    def __bool__(self) -> bool:
        return bool(self.parameters)

    @property
    def group(self) -> Any:
        return next(iter(self.parameters.values())).device_mesh.get_group()

    def parts(self) -> dict[str, Tensor]:
        """Return name -> this process's rows of the parameter, without a copy."""
        with torch.no_grad():
            return {
                name: parameter.to_local().detach() for name, parameter in self.parameters.items()
            }

    def rows(self, name: str) -> slice:
        """Return which rows of a parameter this process has."""
        parameter = self.parameters[name]
        mesh = parameter.device_mesh
        # FSDP splits rows as torch.chunk does.
        size = -(-len(parameter) // mesh.size())
        first = min(mesh.get_local_rank() * size, len(parameter))
        return slice(first, min(first + size, len(parameter)))

    def as_shard(self, name: str, part: Tensor) -> Any:
        """Return this process's rows as a DTensor that is sharded like the parameter."""
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
    """Gather the sharded tensors in nested dicts, lists and tuples; all processes must call this.

    They are gathered to the CPU one by one. Processes without ``keep`` get empty tensors. Other
    values are not changed.
    """
    if hasattr(value, "full_tensor"):
        gathered: Tensor = value.detach().full_tensor()
        return gathered.cpu() if keep else gathered.new_empty(0)
    if isinstance(value, dict):
        return {key: whole(item, keep=keep) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(whole(item, keep=keep) for item in value)
    return value


@contextmanager
def exchanged(model: nn.Module, parts: Mapping[str, Tensor]) -> Iterator[None]:
    """Use other values for parameters of a sharded model inside this context.

    ``parts`` maps name to this process's rows.
    """
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
    """Return the sum, or the maximum if ``largest``, of a tensor over the processes of a group."""
    total = values.clone()
    kind = torch.distributed.ReduceOp.MAX if largest else torch.distributed.ReduceOp.SUM
    torch.distributed.all_reduce(total, kind, group=group)
    return total
