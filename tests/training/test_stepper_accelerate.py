"""Stepper in Accelerate's own loop: micro-batches, clipping, mixed precision, the update rule."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState, GradientState
from torch import Tensor
from torch.utils.data import DataLoader

from temper import Stepper
from temper.errors import SettingError
from temper.methods import configure
from tests.methods.tiny import TinyNetwork, tiny_network

LENGTHS = [5, 3, 6, 4] * 4
CLIP = 0.05


@pytest.fixture(autouse=True)
def fresh_state() -> Iterator[None]:
    """Give each test an Accelerate without the settings of the one before."""
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    yield
    for state in (AcceleratorState, GradientState):
        state._reset_state()


def examples() -> list[dict[str, Tensor]]:
    draws = torch.Generator().manual_seed(4)
    result = []
    for length in LENGTHS:
        real = (torch.arange(6) < length).long()
        ids = torch.randint(1, 11, (6,), generator=draws) * real
        label = torch.randint(0, 3, (), generator=draws)
        result.append({"input_ids": ids, "attention_mask": real, "labels": label})
    return result


def accelerated(
    method: Any,
    *,
    size: int,
    precision: str = "no",
    dtype: torch.dtype = torch.float64,
    scaler: torch.amp.GradScaler | None = None,
    clips: bool = True,
) -> tuple[TinyNetwork, list[dict[str, float]]]:
    """Take two epochs of one step of 16 rows, in micro-batches of a size."""
    accelerator = Accelerator(
        gradient_accumulation_steps=16 // size, cpu=True, mixed_precision=precision
    )
    accelerator.scaler = scaler
    model = tiny_network(rate=0.0).to(dtype)
    model, optimizer, loader = accelerator.prepare(
        model,
        torch.optim.AdamW(model.parameters(), lr=0.01),
        DataLoader(examples(), batch_size=size),
    )
    if scaler is not None:
        # As under mixed_precision="fp16", which Accelerate has on a GPU alone.
        accelerator.native_amp, accelerator.state._mixed_precision = True, "fp16"
    stepper, logs = Stepper(model, method, seed=2, accelerator=accelerator), []
    for _ in range(2):
        for batch in loader:
            with accelerator.accumulate(model):
                logs.append(stepper.backward(batch))
                if accelerator.sync_gradients and clips:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                stepper.step(optimizer)
                optimizer.zero_grad()
    assert stepper.number == 2
    stepper.remove_hooks()
    return accelerator.unwrap_model(model), logs


def by_hand(method: Any, *, clips: bool = True) -> TinyNetwork:
    model = tiny_network(rate=0.0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    stepper = Stepper(model, method, seed=2)
    (batch,) = DataLoader(examples(), batch_size=16)
    for _ in range(2):
        optimizer.zero_grad()
        stepper.backward(batch)
        if clips:
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        stepper.step(optimizer)
    return model


# Attack, masks of the gradient, an ascent that asks for the gradient twice, an average.
@pytest.mark.parametrize("method", ["plain", "at", "child_tuning_f", "uegr", "adv_weight", "ema"])
@pytest.mark.parametrize("size", [4, 16])
def test_micro_batches_of_accelerate_take_the_step_of_all_their_rows(
    method: str, size: int
) -> None:
    # Adaptive rates would be drawn for each micro-batch.
    settings = {"adaptive": "uniform"} if method == "uegr" else {}
    config = configure(method, settings)
    result, _ = accelerated(config, size=size)
    for name, expected in by_hand(config).named_parameters():
        torch.testing.assert_close(result.get_parameter(name), expected, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("clips", [True, False])
def test_a_loss_scaler_changes_no_step(clips: bool) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    # The pull to the start is added to gradients that are still scaled.
    config = configure("w_cons + child_tuning_f")
    result, _ = accelerated(config, size=4, scaler=scaler, clips=clips)
    for name, expected in by_hand(config, clips=clips).named_parameters():
        torch.testing.assert_close(result.get_parameter(name), expected, rtol=1e-8, atol=1e-10)


def test_only_the_last_micro_batch_of_a_step_has_logs() -> None:
    _, logs = accelerated("plain", size=4)
    assert [bool(each) for each in logs] == [False, False, False, True] * 2


def test_bf16_takes_the_step_of_all_rows_within_its_precision() -> None:
    whole, _ = accelerated("at", size=16, precision="bf16", dtype=torch.float32)
    for state in (AcceleratorState, GradientState):
        state._reset_state()
    parts, _ = accelerated("at", size=4, precision="bf16", dtype=torch.float32)
    start = tiny_network(rate=0.0).float()
    moved = together(whole) - together(start)
    assert (together(parts) - together(whole)).norm() < 0.2 * moved.norm()


def together(model: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in model.parameters()])


def test_a_prepared_optimizer_without_its_accelerator_raises_an_error() -> None:
    accelerator = Accelerator(cpu=True)
    model = tiny_network()
    model, optimizer = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1))
    stepper = Stepper(model, "uegr")
    (batch,) = DataLoader(examples(), batch_size=16)
    stepper.backward(batch)
    before = together(model).clone()
    with pytest.raises(SettingError, match="accelerator=accelerator"):
        stepper.step(optimizer)
    assert torch.equal(together(model), before)


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA device")
def test_fp16_with_a_loss_scaler_takes_the_step_of_all_rows() -> None:
    steps = []
    for size in (16, 4):
        for state in (AcceleratorState, GradientState):
            state._reset_state()
        accelerator = Accelerator(gradient_accumulation_steps=16 // size, mixed_precision="fp16")
        model = tiny_network(rate=0.0).float()
        model, optimizer, loader = accelerator.prepare(
            model,
            torch.optim.SGD(model.parameters(), lr=0.1),
            DataLoader(examples(), batch_size=size),
        )
        stepper = Stepper(model, "at", seed=2, accelerator=accelerator)
        for batch in loader:
            with accelerator.accumulate(model):
                stepper.backward(batch)
                if accelerator.sync_gradients:
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                stepper.step(optimizer)
                optimizer.zero_grad()
        steps.append(together(accelerator.unwrap_model(model)).cpu())
    torch.testing.assert_close(steps[0], steps[1], rtol=1e-2, atol=1e-4)
