"""Precision of floating-point values: conversion to at least fp32, and half precision."""

from __future__ import annotations

from temper.lazy import Tensor, torch


def at_least_single(values: Tensor) -> Tensor:
    """Convert floating-point values to fp32; fp64 stays fp64.

    Small losses and perturbations are lost in half precision: of noise of size 1e-5, only 4% of the
    entries survive in bf16.
    """
    return values.to(torch.promote_types(values.dtype, torch.float32))


def in_half_precision(device: torch.device) -> bool:
    """Return whether autocast to half precision is active on a device."""
    if not torch.is_autocast_enabled(device.type):
        return False
    return torch.get_autocast_dtype(device.type) in (torch.bfloat16, torch.float16)


def bf16_notices(device: torch.device) -> tuple[str, ...]:
    """Return a warning if the processor has no bf16 arithmetic and must emulate it."""
    # On a CPU, oneDNN multiplies bf16 matrices only if it has kernels for the processor.
    there = torch.backends.mkldnn.is_available()  # type: ignore[no-untyped-call]
    known = there and torch.ops.mkldnn._is_mkldnn_bf16_supported()
    if device.type != "cpu" or known:
        return ()
    return (
        "This processor has no bf16 arithmetic, so matrix products take tens of times as long in "
        "bf16 as in fp32. Leave the precision at fp32.",
    )
