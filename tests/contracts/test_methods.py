"""Every method passes the public contract tests, trains adapters, and is equal in both loops."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from temper import RobustTrainer, Stepper
from temper.methods import Method, build, configure, entry, names
from temper.methods.soup import members_of
from temper.testing import check_method
from temper.testing.methods import switched_off
from temper.training.config import wants_unlabeled
from temper.types import Step
from tests.backward.test_rule import arguments, dataset
from tests.contracts.architectures import inputs_of, tiny
from tests.methods.tiny import of_each_kind
from tests.methods.weights import copies

EVERY = names()
each_method = pytest.mark.parametrize("name", EVERY)

# What differs between rows that came together and rows that came apart is a draw, by design: the
# spans that HiddenCut cuts, the noise of a pass, the noise that an ascent starts from.
DRAWN_BY_ROW = {
    "hidden_cut",
    "embedding_noise",
    "mixup",
    "r3f",
    "smart",
    "vat",
    "jacobian",
    "cross_holder",
    "jachess",
}
# Settings that leave the draws out, where a method has such.
WITHOUT_DRAWS: dict[str, dict[str, Any]] = {
    "uegr": {"adaptive": {"low": 0.0, "high": 0.0}},
    "dropout": {"rate": 0.0},
    "adv_embed": {"noise": 0.0},
    "roast": {"noise": 0.0},
}
# Settings that keep state or act on the weights where the defaults do not.
FURTHER: list[tuple[str, dict[str, Any]]] = [
    ("ema", {"begin": 0.5}),
    ("distil", {"teacher": {"kept": "teacher"}}),
    ("mixup", {"level": "pooled"}),
    ("pgd", {"random_start": True}),
    ("reinit", {"layers": 2}),
    ("uegr", {"site": "output"}),
    ("r_at_su", {"mask": {"refresh": "epoch"}}),
]
STEPS = 4


def presets() -> list[tuple[str, str]]:
    return [
        (name, preset) for name in EVERY for preset in getattr(entry(name).config, "PRESETS", {})
    ]


@each_method
def test_every_method_passes_every_law(name: str) -> None:
    check_method(name, draws_by_row=name in {*DRAWN_BY_ROW, *WITHOUT_DRAWS})


@pytest.mark.parametrize("name", WITHOUT_DRAWS)
def test_without_its_draws_micro_batches_are_one_batch(name: str) -> None:
    check_method(configure(name, WITHOUT_DRAWS[name]), laws=["micro_batches"])


@pytest.mark.parametrize(("name", "settings"), FURTHER)
def test_further_settings_pass_the_laws_of_a_run(name: str, settings: dict[str, Any]) -> None:
    laws = ["off", "on", "repetition", "log", "resumption", "failing_pass", "half_precision"]
    check_method(configure(name, settings), laws=laws)


@pytest.mark.parametrize(("name", "preset"), presets())
def test_every_preset_is_plain_when_off_and_logs_its_loss(name: str, preset: str) -> None:
    method = configure(name, {"preset": preset})
    check_method(method, laws=["log"])
    off, plain = switched_off(method), switched_off(configure(name))
    assert (off.plan(Step()), off.rule.rules) == (plain.plan(Step()), plain.rule.rules)


def stepper_of(model: nn.Module, method: Method | str) -> Stepper:
    return Stepper(model, method, seed=1, total=STEPS, special_ids=(1, 2))


def prepared(stepper: Stepper, inputs: dict[str, Tensor]) -> Stepper:
    """Run the pre-pass and begin the first epoch, which methods without them ignore."""
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    return stepper


@each_method
def test_an_adapted_decoder_trains_its_adapter_and_head_alone(name: str) -> None:
    model, inputs = tiny("llama_lora").train(), inputs_of("llama_lora")
    frozen = {key for key, p in model.named_parameters() if not p.requires_grad}
    before = copies(model)
    stepper = prepared(stepper_of(model, name), inputs)
    assert stepper.params.head == {"base_model.model.score.modules_to_save.default.weight"}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        stepper.backward(inputs)
        stepper.step(optimizer)
    stepper.finish()
    moved = {key for key, p in model.named_parameters() if not torch.equal(p, before[key])}
    assert not moved & frozen
    assert any("lora_" in key for key in moved)
    assert stepper.params.head <= moved
    assert {key for key, p in model.named_parameters() if not p.requires_grad} == frozen


@pytest.mark.parametrize("name", of_each_kind())
def test_the_trainer_equals_the_stepper(name: str, tmp_path: Path) -> None:
    seen: list[dict[str, Any]] = []
    model, rows = tiny("bert").train(), dataset()

    def collate(examples: list[dict[str, Any]]) -> dict[str, Any]:
        together = {key: torch.stack([each[key] for each in examples]) for key in examples[0]}
        seen.append(together)
        return dict(together)

    settings = arguments(tmp_path, max_steps=2, learning_rate=1e-2)
    trainer = RobustTrainer(
        model,
        settings,
        method=name,
        train_dataset=rows,
        data_collator=collate,
        bucket_by_length=False,
        unlabeled_dataset=dataset()[:4] if wants_unlabeled(build(name)) else None,
    )
    trainer.train()
    other = tiny("bert").train()
    steps = 2 * members_of(build(name).rule)
    stepper = Stepper(other, name, seed=3, total=steps)
    pre_pass, rest = (seen[:4], seen[4:]) if stepper.prepares else ([], seen)
    stepper.prepare(pre_pass)
    stepper.begin_epoch(0)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        stepper.backward(*rest[2 * step : 2 * step + 2])
        stepper.step(optimizer)
    stepper.finish()
    for (key, result), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(result, expected, rtol=1e-5, atol=1e-6, msg=key)
