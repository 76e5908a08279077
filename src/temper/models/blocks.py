"""Find a network's blocks (repeated layers), its head, and the parameters in them."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from temper.heads import HEADS, Regression
from temper.models.shards import Shards, reduced, reshard


@dataclass(frozen=True)
class Parameters:
    """The trainable parameters of a network, and where they belong.

    With sharded weights (FSDP2), tensors and gradients have only this process's rows. The methods
    then give values for whole parameters, for example sums over processes.

    Args:
        tensors: Name -> parameter, in the model's order; if sharded, this process's rows of it.
        blocks: Names of the parameters in the repeated blocks (encoder or decoder layers).
        head: Names of the parameters after the pre-trained part: the new classifier.
        embeddings: Names of the weights of `nn.Embedding` layers.
        depths: Name -> depth below the head: 0 in the head, 1 in the top block and after it, and so
            on. The embeddings are one deeper than the lowest block.
        start: Name -> copy of the parameter before the first step, if a rule needs it.
        has_running_statistics: Whether the network has running statistics of batch normalization.
        shards: Which rows this process has, if the model is sharded.
    """

    tensors: Mapping[str, Tensor]
    blocks: frozenset[str]
    head: frozenset[str] = frozenset()
    embeddings: frozenset[str] = frozenset()
    depths: dict[str, int] = field(default_factory=dict)
    start: dict[str, Tensor] = field(default_factory=dict)
    has_running_statistics: bool = False
    shards: Shards = field(default_factory=Shards)

    def refresh(self, model: nn.Module) -> None:
        """Update ``tensors`` to this process's rows, after freeing gathered weights."""
        if self.shards:
            reshard(model)
            assert isinstance(self.tensors, dict)
            self.tensors.update(self.shards.parts())

    @property
    def of_model(self) -> Mapping[str, Any]:
        """Name -> the model's own parameter, as the optimizer has it (a DTensor if sharded)."""
        return self.shards.parameters or self.tensors

    @torch.no_grad()
    def gradients(self) -> dict[str, Tensor]:
        """Return name -> gradient, without the parameters that have none."""
        result = {name: tensor.grad for name, tensor in self.of_model.items()}
        return {
            name: gradient.to_local() if self.shards else gradient
            for name, gradient in result.items()
            if gradient is not None
        }

    def set_gradients(self, grads: Mapping[str, Tensor]) -> None:
        """Set the gradients for the optimizer; those of parameters not in ``grads`` become None."""
        present = self.gradients()
        for name, tensor in self.of_model.items():
            gradient = grads.get(name)
            if present.get(name) is gradient:
                continue
            if gradient is not None and self.shards:
                gradient = self.shards.as_shard(name, gradient)
            tensor.grad = gradient

    def clear_gradients(self) -> None:
        self.set_gradients({})

    def keep_initial_weights(self) -> None:
        """Copy the weights to ``start``, unless another rule has done so."""
        if not self.start:
            self.start.update({n: t.detach().clone() for n, t in self.tensors.items()})

    @torch.no_grad()
    def restore_initial_weights(self) -> None:
        for name, tensor in self.start.items():
            self.tensors[name].copy_(tensor)

    def first_entry(self, name: str) -> int:
        """Return the position in the whole, flattened parameter of this process's first entry."""
        if not self.shards:
            return 0
        whole = self.shards.parameters[name]
        return int(self.shards.rows(name).start * whole.shape[1:].numel())

    def shape(self, name: str, part: Tensor) -> torch.Size:
        """Return the shape of the whole parameter; ``part`` has that of ``tensors[name]``."""
        whole: Tensor = self.shards.parameters[name] if self.shards else part
        return whole.shape

    def summed(self, values: Tensor) -> Tensor:
        """Sum values of equal shape over all processes; unchanged if the model is not sharded."""
        return reduced(values, self.shards.group) if self.shards else values

    def largest(self, values: Tensor) -> Tensor:
        """Return the maximum of ``values`` over all processes; they may be empty in some."""
        low = values.new_full((1,), -math.inf)
        result = torch.cat([values, low]).max()
        return reduced(result, self.shards.group, largest=True) if self.shards else result

    def norm(self, norms: Tensor) -> Tensor:
        """Combine l2 norms of each process's rows, of any shape, to those of whole parameters."""
        if not self.shards:
            return norms
        return reduced(norms.double().square(), self.shards.group).sqrt().to(norms.dtype)

    def counts_before(self, count: int) -> tuple[int, int]:
        """Sum ``count`` over the processes before this one, and over all processes."""
        if not self.shards:
            return 0, count
        group, device = self.shards.group, next(iter(self.tensors.values())).device
        rank, size = torch.distributed.get_rank(group), torch.distributed.get_world_size(group)
        counts = torch.zeros(size, dtype=torch.int64, device=device)
        counts[rank] = count
        result: list[int] = reduced(counts, group).tolist()
        return sum(result[:rank]), sum(result)

    def as_shard(self, name: str, part: Tensor) -> Tensor:
        """Return this process's rows as a DTensor like the parameter; other shapes stay as is."""
        same = bool(self.shards) and part.shape == self.tensors[name].shape
        return self.shards.as_shard(name, part) if same else part

    def gathered(self, name: str, part: Tensor) -> Tensor:
        """Gather the whole tensor from the rows of all processes; all of them must call this."""
        whole: Tensor = self.shards.as_shard(name, part).full_tensor() if self.shards else part
        return whole

    def part(self, name: str, whole: Tensor) -> Tensor:
        """Return this process's rows of a whole parameter; other shapes stay as is."""
        same = bool(self.shards) and whole.shape == self.of_model[name].shape
        return whole[self.shards.rows(name)].clone() if same else whole

    def by_parameter(self, state: Any, change: Callable[[str, Tensor], Tensor]) -> Any:
        """Apply ``change`` to all tensors in nested dicts whose key is a parameter's name."""
        if not isinstance(state, dict):
            return state
        return {
            key: change(key, value)
            if isinstance(value, Tensor) and key in self.tensors
            else self.by_parameter(value, change)
            for key, value in state.items()
        }


def remove_hooks(hooks: list[RemovableHandle]) -> None:
    """Remove the hooks in a list, and empty the list."""
    while hooks:
        hooks.pop().remove()


def unwrap(model: nn.Module) -> nn.Module:
    inner = getattr(model, "module", None)
    wrappers = {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}
    if type(model).__name__ in wrappers and isinstance(inner, nn.Module):
        return inner
    return model


def is_linear(module: nn.Module) -> bool:
    """Return whether a module is a linear layer, including GPT-2's `Conv1D`."""
    return isinstance(module, nn.Linear) or type(module).__name__ == "Conv1D"


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Return (name, block) for each repeated block of a network, in the model's order.

    The blocks are the members of the outermost module lists whose members have the same structure
    and contain matrices: encoder layers, and decoder layers if there are any.
    """
    result: list[tuple[str, nn.Module]] = []
    inside: list[str] = []
    for name, module in model.named_modules():
        if any(name.startswith(prefix) for prefix in inside) or not isinstance(
            module, nn.ModuleList
        ):
            continue
        members = list(module)
        alike = len({type(member) for member in members}) == 1
        if not alike or sum(p.dim() >= 2 for p in members[0].parameters()) < 2:
            continue
        inside.append(name + ".")
        result.extend((f"{name}.{index}", member) for index, member in enumerate(members))
    return result


def parameters_of(model: nn.Module, blocks: list[tuple[str, nn.Module]]) -> Parameters:
    """Collect the trainable parameters, and which of them are in blocks, head and embeddings."""
    reshard(model)
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    shards = Shards.of(model, trainable)
    inside = {id(p): index for index, (_, block) in enumerate(blocks) for p in block.parameters()}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    head = find_head(model, blocks) & frozenset(trainable)
    embeddings = frozenset(name for name, p in trainable.items() if id(p) in tables)
    depths = {}
    lowest, depth = len(blocks) + 1, len(blocks) + 1 if blocks else 0
    for name, parameter in model.named_parameters():
        # A module between two blocks belongs to the block before it.
        depth = len(blocks) - inside[id(parameter)] if id(parameter) in inside else depth
        if parameter.requires_grad:
            layer = lowest if name in embeddings else depth
            depths[name] = 0 if name in head else layer
    return Parameters(
        shards.parts() if shards else trainable,
        blocks=frozenset(name for name, p in trainable.items() if id(p) in inside),
        head=head,
        embeddings=embeddings,
        depths=depths,
        has_running_statistics=any(
            getattr(module, "running_mean", None) is not None for module in model.modules()
        ),
        shards=shards,
    )


def find_head(model: nn.Module, blocks: list[tuple[str, nn.Module]]) -> frozenset[str]:
    """Return the names of the parameters after the pre-trained part; empty if unknown.

    Transformers classifiers (also in a PEFT wrapper) define their pre-trained module. In other
    modules the head is everything after the last block.
    """
    named = dict(model.named_parameters())
    for inner in model.modules():
        # On the class: a PEFT wrapper passes unknown attributes on to what it wraps.
        prefix = getattr(type(inner), "base_model_prefix", "")
        body = getattr(inner, prefix, None) if prefix else None
        if isinstance(body, nn.Module) and body is not inner:
            inside = {id(p) for p in body.parameters()}
            return frozenset(name for name, p in named.items() if id(p) not in inside)
    if not blocks:
        return frozenset()
    last = blocks[-1][0] + "."
    order = list(named)
    ends = [index for index, name in enumerate(order) if name.startswith(last)]
    return frozenset(order[ends[-1] + 1 :]) if ends else frozenset()


def head_settings(labels: Sequence[str] | None, *, kind: str = "classification") -> dict[str, Any]:
    """Return the config entries of a head for ``labels``; None means a regression."""
    if labels is None:
        return {"num_labels": 1, "problem_type": Regression.problem_type}
    return {
        "num_labels": len(labels),
        **names_setting(labels),
        "problem_type": HEADS[kind].problem_type,
    }


def names_setting(labels: Sequence[str]) -> dict[str, Any]:
    """Return the config entries ``id2label`` and ``label2id`` for class names in output order."""
    return {
        "id2label": dict(enumerate(labels)),
        "label2id": {label: index for index, label in enumerate(labels)},
    }


def encoder_and_decoder(
    model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]
) -> tuple[list[tuple[str, nn.Module]], list[tuple[str, nn.Module]]]:
    """Split blocks into those of the encoder and those of the decoder.

    For a model that is not an encoder-decoder, all blocks are in the first list.
    """
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return list(blocks), []
    inside = {id(module) for module in model.get_encoder().modules()}  # type: ignore[operator]
    encoder = [(name, block) for name, block in blocks if id(block) in inside]
    return encoder, [(name, block) for name, block in blocks if id(block) not in inside]


def recomputes(model: nn.Module) -> bool:
    """Return whether gradient checkpointing is on, so that a backward runs blocks again."""
    return model.training and any(
        getattr(module, "gradient_checkpointing", False) for module in model.modules()
    )


def has_dropout(model: nn.Module) -> bool:
    """Return whether a model has dropout: an active layer, or a rate above 0 as an attribute."""
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            if module.p > 0:
                return True
            continue
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float) and value > 0:
                return True
    return False
