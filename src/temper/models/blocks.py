"""Where the blocks and the head of a network are, and which parameters lie inside them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True)
class Parameters:
    """The trainable parameters of a network.

    Args:
        tensors: Parameter by name, in the model's order.
        blocks: Names of those inside the repeated blocks (encoder or decoder layers).
        head: Names of those behind the pre-trained part: the classifier, drawn anew.
        embeddings: Names of the tables that `nn.Embedding` layers look rows up in.
        depths: How far each lies below the head, by name: 0 in it, 1 in the top block and behind
            it, and so on down to the embeddings, one deeper than the lowest block.
        start: Copies of all of them before the first step, for rules that ask for them.
        has_running_statistics: Whether batch normalisation keeps statistics beside them.
    """

    tensors: dict[str, nn.Parameter]
    blocks: frozenset[str]
    head: frozenset[str] = frozenset()
    embeddings: frozenset[str] = frozenset()
    depths: dict[str, int] = field(default_factory=dict)
    start: dict[str, Tensor] = field(default_factory=dict)
    has_running_statistics: bool = False

    def gradients(self) -> dict[str, Tensor]:
        """Return the present gradients by name; parameters without one are left out."""
        return {
            name: tensor.grad for name, tensor in self.tensors.items() if tensor.grad is not None
        }


def remove_hooks(hooks: list[RemovableHandle]) -> None:
    """Remove every hook of a list, and empty it.

    Args:
        hooks: What registering them returned.
    """
    while hooks:
        hooks.pop().remove()


def unwrap(model: nn.Module) -> nn.Module:
    """Return the model inside a distributed wrapper."""
    inner = getattr(model, "module", None)
    wrappers = {"DistributedDataParallel", "FullyShardedDataParallel", "DataParallel"}
    if type(model).__name__ in wrappers and isinstance(inner, nn.Module):
        return inner
    return model


def find_blocks(model: nn.Module) -> list[tuple[str, nn.Module]]:
    """Find the repeated blocks of a network.

    They are the members of the outermost lists of like modules with matrices inside.

    Args:
        model: Any module.

    Returns:
        (name, block) in the model's order: encoder layers, and decoder layers where there are some.
        Empty for a network that repeats nothing.
    """
    found: list[tuple[str, nn.Module]] = []
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
        found.extend((f"{name}.{index}", member) for index, member in enumerate(members))
    return found


def parameters_of(model: nn.Module, blocks: list[tuple[str, nn.Module]]) -> Parameters:
    """Collect the trainable parameters and mark those of the blocks.

    Args:
        model: Any module.
        blocks: What `find_blocks` found in it.
    """
    trainable = {name: p for name, p in model.named_parameters() if p.requires_grad}
    within = {id(p) for _, block in blocks for p in block.parameters()}
    tables = {id(each.weight) for each in model.modules() if isinstance(each, nn.Embedding)}
    head = find_head(model, blocks) & frozenset(trainable)
    embeddings = frozenset(name for name, p in trainable.items() if id(p) in tables)
    return Parameters(
        trainable,
        blocks=frozenset(name for name, p in trainable.items() if id(p) in within),
        head=head,
        embeddings=embeddings,
        depths=_depths(model, blocks, head=head, embeddings=embeddings),
        has_running_statistics=any(
            getattr(each, "running_mean", None) is not None for each in model.modules()
        ),
    )


def _depths(
    model: nn.Module,
    blocks: list[tuple[str, nn.Module]],
    *,
    head: frozenset[str],
    embeddings: frozenset[str],
) -> dict[str, int]:
    """Return how far each trainable parameter lies below the head; see `Parameters.depths`."""
    inside = {id(p): place for place, (_, block) in enumerate(blocks) for p in block.parameters()}
    lowest, depth = len(blocks) + 1, len(blocks) + 1 if blocks else 0
    found = {}
    for name, parameter in model.named_parameters():
        # What stands between two blocks goes with the one before it.
        depth = len(blocks) - inside[id(parameter)] if id(parameter) in inside else depth
        if parameter.requires_grad:
            own = lowest if name in embeddings else depth
            found[name] = 0 if name in head else own
    return found


def find_head(model: nn.Module, blocks: list[tuple[str, nn.Module]]) -> frozenset[str]:
    """Find the parameters behind the pre-trained part.

    A Transformers classifier (also inside a PEFT wrapper) says which of its modules is the
    pre-trained one. In any other module they are what stands behind the last block.

    Args:
        model: Any module.
        blocks: What `find_blocks` found in it.

    Returns:
        Names; empty where it cannot be told.
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
    ends = [place for place, name in enumerate(order) if name.startswith(last)]
    return frozenset(order[ends[-1] + 1 :]) if ends else frozenset()


def head_settings(labels: Sequence[str] | None) -> dict[str, Any]:
    """Return what a config says of a head.

    Args:
        labels: Names of the classes; None is a regression.
    """
    if labels is None:
        return {"num_labels": 1, "problem_type": "regression"}
    return {
        "num_labels": len(labels),
        "id2label": dict(enumerate(labels)),
        "label2id": {label: place for place, label in enumerate(labels)},
        "problem_type": "single_label_classification",
    }


def of_encoder(
    model: nn.Module, blocks: Sequence[tuple[str, nn.Module]]
) -> tuple[list[tuple[str, nn.Module]], list[tuple[str, nn.Module]]]:
    """Tell an encoder's blocks from those of a decoder that stands behind it.

    Args:
        model: The classifier, out of any wrapper.
        blocks: What `find_blocks` found in it.

    Returns:
        The encoder's and the other's; all and none for a model that is not made of both.
    """
    if not getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return list(blocks), []
    inside = {id(module) for module in model.get_encoder().modules()}  # type: ignore[operator]
    encoder = [(name, block) for name, block in blocks if id(block) in inside]
    return encoder, [(name, block) for name, block in blocks if id(block) not in inside]


def recomputes(model: nn.Module) -> bool:
    """Tell whether a backward would compute blocks again (gradient checkpointing).

    Args:
        model: Any module.
    """
    return model.training and any(
        getattr(module, "gradient_checkpointing", False) for module in model.modules()
    )


def drops(model: nn.Module) -> bool:
    """Tell whether anything in a model drops units: a layer, or a rate that its code reads.

    Args:
        model: Any module.
    """
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            if module.p > 0:
                return True
            continue
        for name, value in vars(module).items():
            if "drop" in name and isinstance(value, float) and value > 0:
                return True
    return False
