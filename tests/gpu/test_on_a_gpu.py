"""On a GPU as on a CPU: gradients, masks, perturbations in bf16, resuming."""

from __future__ import annotations

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import TrainingArguments

from temper import RobustTrainer, Stepper
from temper.functional.masks import (
    FINE_LEVELS,
    LEVELS,
    bucket_counts,
    bucket_factors,
    bucket_ranks,
    keyed_levels,
    quantize,
    thin_by_bucket,
)
from temper.methods import configure, names
from temper.methods.at import AT
from temper.methods.uegr import UEGR
from temper.training.config import wants_unlabeled
from tests.methods.tiny import rows, tiny_bert

pytestmark = pytest.mark.gpu

LENGTHS = (6, 4, 5, 3)


def on(device: torch.device, batch: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: values.to(device) for name, values in batch.items()}


def gradients(device: torch.device, method: Any) -> dict[str, torch.Tensor]:
    """Return the first step's gradients without dropout, by which devices would differ."""
    model = tiny_bert(dropout=0.0, attention=0.0).to(device)
    Stepper(model, method, seed=1, total=4).backward(on(device, rows(*LENGTHS)))
    return {
        name: weight.grad.cpu()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


@pytest.mark.parametrize("name", ["plain", "at", "adv_embed", "pgd", "adv_weight", "awp"])
def test_a_gpu_computes_the_gradients_of_the_cpu(name: str, gpu: torch.device) -> None:
    expected = gradients(torch.device("cpu"), configure(name))
    result = gradients(gpu, configure(name))
    assert set(result) == set(expected)
    for key, gradient in expected.items():
        torch.testing.assert_close(result[key], gradient, rtol=5e-3, atol=1e-4)


@pytest.mark.parametrize("bf16", [False, True], ids=["fp32", "bf16"])
@pytest.mark.parametrize("name", names())
def test_every_method_trains_on_a_gpu(name: str, bf16: bool, gpu: torch.device) -> None:
    model = tiny_bert().to(gpu)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    stepper = Stepper(model, configure(name), seed=1, total=4)
    stepper.prepare([on(gpu, rows(*LENGTHS))])
    stepper.begin_epoch(0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    for step in range(4):
        batch = on(gpu, rows(*LENGTHS, seed=step))
        if step % 2 and wants_unlabeled(stepper.method):
            del batch["labels"]
        optimizer.zero_grad()
        with torch.autocast(gpu.type, torch.bfloat16, enabled=bf16):
            logs = stepper.backward(batch)
        assert math.isfinite(logs["loss"])
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        stepper.step(optimizer)
    stepper.finish()
    stepper.remove_hooks()
    moved = [not torch.equal(value, before[key]) for key, value in model.state_dict().items()]
    assert any(moved)
    assert all(value.isfinite().all() for value in model.state_dict().values())


def test_a_mask_on_a_gpu_keeps_the_mean_of_the_gradient(gpu: torch.device) -> None:
    draws = torch.Generator(device=gpu).manual_seed(0)
    gradient = torch.randn(2**20, generator=draws, device=gpu)
    ranks = bucket_ranks(bucket_counts([gradient]))
    p = 0.2 + 0.6 * ranks
    factors = bucket_factors(quantize(p, p_min=0.01))
    masked, on_a_cpu = gradient.clone(), gradient.cpu().clone()
    thin_by_bucket([masked], factors, [1], scale=True)
    kept = masked != 0
    thin_by_bucket([on_a_cpu], factors.cpu(), [1], scale=True)
    assert torch.equal(masked.cpu(), on_a_cpu)
    assert torch.equal(
        keyed_levels(1001, 5, start=3, device=gpu).cpu(), keyed_levels(1001, 5, start=3)
    )
    # Kept with probability p: the fraction kept is the mean of p, to 6 standard deviations of n
    # draws.
    counts = bucket_counts([gradient])
    expected = float((counts * p).sum() / counts.sum())
    assert abs(float(kept.double().mean()) - expected) < 6 * 0.5 / 2**10
    # Unbiased: the sum of m*g/p is the sum of g, to 6 standard deviations.
    noise = float((masked - gradient).double().square().sum().sqrt())
    assert abs(float((masked - gradient).double().sum())) < 6 * noise


@pytest.mark.parametrize("levels", [LEVELS, FINE_LEVELS])
def test_a_group_of_tensors_is_masked_on_a_gpu_as_on_a_cpu(gpu: torch.device, levels: int) -> None:
    shapes = [(2**17 + 1,), (768,), (1,), (0,), (333, 3), (2**24 + 5,), (1536, 384)]
    here = [torch.randn(shape) for shape in shapes]
    there = [gradient.to(gpu) for gradient in here]
    counts = bucket_counts(here)
    assert torch.equal(bucket_counts(there).cpu(), counts)
    factors = bucket_factors(quantize(bucket_ranks(counts), p_min=0.01, levels=levels))
    keys, starts = [2**62 - 5 * number for number in range(7)], [0, 1, 3, 0, 2, 7, 1]
    thin_by_bucket(here, factors, keys, starts=starts, scale=True)
    thin_by_bucket(there, factors.to(gpu), keys, starts=starts, scale=True)
    for gradient, on_a_gpu in zip(here, there, strict=True):
        assert torch.equal(on_a_gpu.cpu(), gradient)


def test_a_perturbation_survives_bf16_on_a_gpu(gpu: torch.device) -> None:
    losses = {}
    for size in (0.0, 0.02):
        model = tiny_bert(dropout=0.0, attention=0.0).to(gpu)
        stepper = Stepper(model, AT(epsilon=size), seed=1)
        with torch.autocast(gpu.type, torch.bfloat16):
            losses[size] = stepper.backward(on(gpu, rows(*LENGTHS)))["loss"]
    assert losses[0.02] > losses[0.0]


def test_the_same_seed_gives_the_same_mask_on_a_gpu(gpu: torch.device) -> None:
    kept = []
    for _ in range(2):
        model = tiny_bert(dropout=0.0, attention=0.0).to(gpu)
        stepper = Stepper(model, UEGR(adaptive={"kind": "fixed", "rates": (0.0, 0.0)}), seed=3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        stepper.backward(on(gpu, rows(*LENGTHS)))
        stepper.step(optimizer)
        kept.append({name: weight.grad != 0 for name, weight in model.named_parameters()})
    differing = sum(int((kept[0][name] != kept[1][name]).sum()) for name in kept[0])
    entries = sum(mask.numel() for mask in kept[0].values())
    # A GPU may add up in another order, by which a few ranks change places.
    assert differing <= 0.01 * entries


class Rows(torch.utils.data.Dataset[dict[str, torch.Tensor]]):
    """Rows of one length, as a Trainer's dataset."""

    def __init__(self, count: int) -> None:
        self.batch = rows(*[6] * count)

    def __len__(self) -> int:
        return len(self.batch["labels"])

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {name: values[index] for name, values in self.batch.items()}


def trained(folder: Path, gpu: torch.device, *, stop: int | None, resume: bool = False) -> Any:
    arguments = TrainingArguments(
        str(folder),
        per_device_train_batch_size=4,
        max_steps=stop or 8,
        lr_scheduler_type="constant",
        save_strategy="steps",
        save_steps=4,
        report_to=[],
        disable_tqdm=True,
        use_cpu=gpu.type == "cpu",
        dataloader_pin_memory=False,
    )
    trainer = RobustTrainer(tiny_bert(), arguments, method="uegr", train_dataset=Rows(16))
    trainer.train(resume_from_checkpoint=True if resume else None)
    return copy.deepcopy(trainer.model).cpu().state_dict()


def test_a_resumed_run_on_a_gpu_reaches_the_weights_of_the_whole_one(
    tmp_path: Path, gpu: torch.device
) -> None:
    whole = trained(tmp_path / "whole", gpu, stop=None)
    trained(tmp_path / "parts", gpu, stop=4)
    resumed = trained(tmp_path / "parts", gpu, stop=None, resume=True)
    for name, value in whole.items():
        torch.testing.assert_close(resumed[name], value, rtol=1e-4, atol=1e-5)
