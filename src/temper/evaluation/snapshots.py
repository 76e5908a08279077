"""Copies of what a predictor must leave as it was: its networks and the global generators."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def snapshot(predictor: object) -> dict[str, Any]:
    """Copy all that asking a predictor must leave alone.

    Args:
        predictor: Its attributes that are modules, and the `model` of its other attributes, are
            looked into.

    Returns:
        Copies, by what they are in words.
    """
    numpy_state = np.random.get_state()
    found: dict[str, Any] = {
        "random state of torch": torch.random.get_rng_state().tolist(),
        "random state of NumPy": [np.asarray(each).tolist() for each in numpy_state],
        "random state of Python": random.getstate(),
    }
    for name, model in _modules(predictor).items():
        modules = list(model.modules())
        weights = list(model.parameters())
        found |= {
            f"training flags of {name}": [module.training for module in modules],
            f"modules of {name}": [type(module) for module in modules],
            f"hooks of {name}": [
                (_hooks(module), list(module._forward_pre_hooks)) for module in modules
            ],
            f"what of {name} wants gradients": [weight.requires_grad for weight in weights],
            f"gradients of {name}": [
                None if each.grad is None else each.grad.clone() for each in weights
            ],
            f"weights of {name}": {key: each.clone() for key, each in model.state_dict().items()},
        }
    return found


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return what is not as it was, in words.

    Args:
        before: What `snapshot` gave then.
        after: What it gives now.
    """
    return [name for name, value in before.items() if not _equal(value, after.get(name))]


def _hooks(module: nn.Module) -> list[int]:
    """Return a module's forward hooks, without those of Transformers that stay and do nothing.

    Transformers installs them when a model is first asked for its hidden states.
    """
    own = "output_capturing_hook"
    hooks = module._forward_hooks.items()
    return [number for number, hook in hooks if getattr(hook, "__name__", "") != own]


def _modules(predictor: object) -> dict[str, nn.Module]:
    """Return the networks that a predictor holds, by the names of the attributes."""
    found = {}
    for name, value in getattr(predictor, "__dict__", {}).items():
        inner = value if isinstance(value, nn.Module) else getattr(value, "model", None)
        if isinstance(inner, nn.Module):
            found[name] = inner
    return found


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    return type(one) is type(two) and bool(one == two)
