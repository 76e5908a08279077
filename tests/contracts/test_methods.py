"""Every method on a tiny BERT keeps what users of any method count on, behaviour by behaviour.

Its gradient does not depend on how a batch is cut, nothing it moved stays moved, it trains in half
precision, on adapters and on numbers, it holds at most one more copy of the weights, and the
Trainer's loop does what the Stepper's does.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from temper import RobustTrainer, Stepper
from temper.errors import TemperError
from temper.methods import MethodConfig, build, configure, entry, names
from temper.models.network import Network
from temper.training.checks import wants_unlabelled
from tests.backward.test_rule import arguments, dataset
from tests.contracts.architectures import inputs_of, marks, tiny

EVERY = names()
each_method = pytest.mark.parametrize("name", EVERY)

# What differs between rows that came together and rows that came apart is a draw, by design: the
# spans that HiddenCut cuts, the noise of a pass, the noise that an ascent starts from.
DRAWN_BY_ROW = {
    "hidden_cut",
    "embedding_noise",
    "r3f",
    "smart",
    "vat",
    "jacobian",
    "cross_holder",
    "jachess",
}
# Settings that leave the draws out, where a method has such.
WITHOUT_DRAWS: dict[str, dict[str, Any]] = {
    "freelb": {"init": 0.0},
    "uegr": {"adaptive": {"low": 0.0, "high": 0.0}},
    "dropout": {"rate": 0.0},
}
# What reads no labels is trained on rows without them.
NORMS = {"loss/jacobian", "loss/hessian"}
WITHOUT_LABELS = {
    "vat": {"loss/smoothness"},
    "smart": {"loss/smoothness", "loss/proximal"},
    "jacobian": {"loss/jacobian"},
    "cross_holder": NORMS,
    "jachess": NORMS,
    "jachess_unlabeled": NORMS,
}
# A regression has no classes to smooth over, and no two logits that differ.
CLASSES_ONLY = {"label_smoothing", "cross_holder"}
STEPS = 4


def settings_of(name: str) -> MethodConfig:
    return configure(name, WITHOUT_DRAWS.get(name, {}))


def stepper_of(model: nn.Module, method: MethodConfig | str) -> Stepper:
    return Stepper(model, method, seed=1, total=STEPS, special_ids=(1, 2))


def prepared(stepper: Stepper, inputs: dict[str, Tensor]) -> Stepper:
    """Run the pre-pass and begin the first epoch, which methods without them ignore."""
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    return stepper


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.named_parameters()}


def differences(found: dict[str, Tensor], expected: dict[str, Tensor]) -> list[str]:
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


@pytest.mark.parametrize("name", [name for name in EVERY if name not in DRAWN_BY_ROW])
def test_micro_batches_give_the_gradient_of_one_batch(name: str) -> None:
    inputs = inputs_of("bert")
    parts = [{key: value[place] for key, value in inputs.items()} for place in ([0], [1, 2], [3])]
    gradients = []
    for micro_batches in ([inputs], parts):
        model = tiny("bert", dropout=0.0).train()
        stepper = prepared(stepper_of(model, settings_of(name)), inputs)
        stepper.backward(*micro_batches)
        gradients.append({key: g.clone() for key, g in stepper.params.gradients().items()})
        stepper.release()
    whole, summed = gradients
    assert set(summed) == set(whole)
    scale = max(float(g.abs().max()) for g in whole.values())
    for key, gradient in whole.items():
        torch.testing.assert_close(summed[key], gradient, rtol=5e-3, atol=2e-4 * scale)


@each_method
def test_a_failing_pass_leaves_weights_and_modules_as_they_were(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, inputs = tiny("bert").train(), inputs_of("bert")
    outside = marks(model)
    stepper = prepared(stepper_of(model, name), inputs)
    before = weights_of(model)
    plain, left = Network.logits, [1]

    def failing(self: Network, *args: Any, **settings: Any) -> Tensor:
        if not left:
            raise ArithmeticError("planted")
        left.pop()
        return plain(self, *args, **settings)

    monkeypatch.setattr(Network, "logits", failing)
    # Methods of one pass fail in the second micro-batch.
    with pytest.raises(ArithmeticError, match="planted"):
        stepper.backward(inputs, inputs)
    monkeypatch.undo()
    assert differences(weights_of(model), before) == []
    assert all(tensor.requires_grad for tensor in model.parameters())
    stepper.release()
    assert marks(model) == outside


@each_method
def test_half_precision_keeps_weights_and_gradients_in_single(name: str) -> None:
    model, inputs = tiny("bert").train(), inputs_of("bert")
    stepper = stepper_of(model, name)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        prepared(stepper, inputs)
        for _ in range(2):
            optimizer.zero_grad()
            logs = stepper.backward(inputs)
            assert all(g.dtype == torch.float32 for g in stepper.params.gradients().values())
            stepper.step(optimizer)
    assert all(torch.isfinite(torch.tensor(value)) for value in logs.values())
    assert all(torch.isfinite(p).all() and p.dtype == torch.float32 for p in model.parameters())


@each_method
def test_numbers_are_learned_or_refused_with_one_error(name: str) -> None:
    model = tiny("bert", labels=1).train()
    inputs = inputs_of("bert", regression=True)
    stepper = stepper_of(model, name)
    # What can be said before training is what the loss says.
    declared: tuple[str, ...] = getattr(stepper.method.objective, "needs_classes", ())
    if name in CLASSES_ONLY:
        with pytest.raises(TemperError, match="needs classes") as raised:
            stepper.backward(inputs)
        assert declared == (str(raised.value),)
        return
    assert declared == ()
    prepared(stepper, inputs)
    assert torch.isfinite(torch.tensor(stepper.backward(inputs)["loss"]))


@each_method
def test_an_adapted_decoder_trains_its_adapter_and_head_alone(name: str) -> None:
    model, inputs = tiny("llama_lora").train(), inputs_of("llama_lora")
    frozen = {key for key, p in model.named_parameters() if not p.requires_grad}
    before = weights_of(model)
    stepper = prepared(stepper_of(model, name), inputs)
    assert stepper.params.head == {"base_model.model.score.modules_to_save.default.weight"}
    optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
    for _ in range(STEPS):
        optimizer.zero_grad()
        stepper.backward(inputs)
        stepper.step(optimizer)
    stepper.finish()
    moved = set(differences(weights_of(model), before))
    assert not moved & frozen
    assert any("lora_" in key for key in moved)
    assert stepper.params.head <= moved
    assert {key for key, p in model.named_parameters() if not p.requires_grad} == frozen


@each_method
def test_a_method_holds_at_most_one_more_copy_of_the_weights(name: str) -> None:
    model, inputs = tiny("bert").train(), inputs_of("bert")
    stepper = prepared(stepper_of(model, name), inputs)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    optimizer.zero_grad()
    stepper.backward(inputs)
    stepper.step(optimizer)
    held = [leaf for leaf in tree_leaves(stepper.state_dict()) if isinstance(leaf, Tensor)]
    inside = sum(stepper.params.tensors[key].numel() for key in stepper.params.blocks)
    weights = sum(tensor.numel() * tensor.element_size() for tensor in model.parameters())
    # Beside the copy, a byte for each entry that a mask covers, and some scalars.
    assert sum(t.numel() * t.element_size() for t in held) <= weights + inside + 256
    says = entry(name).memory
    copies = any(t.numel() * t.element_size() > weights / 3 for t in held) or (
        sum(t.numel() * t.element_size() for t in held) > weights / 3
    )
    assert copies == ("copy" in says)


@each_method
def test_the_trainer_does_what_the_stepper_does(name: str, tmp_path: Path) -> None:
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
        unlabeled_dataset=dataset()[:4] if wants_unlabelled(build(name)) else None,
    )
    trainer.train()
    other = tiny("bert").train()
    stepper = Stepper(other, name, seed=3, total=2)
    pre_pass, rest = (seen[:4], seen[4:]) if stepper.prepares else ([], seen)
    stepper.prepare(pre_pass)
    stepper.begin_epoch(0)
    optimizer = torch.optim.SGD(other.parameters(), lr=1e-2)
    for step in range(2):
        optimizer.zero_grad()
        stepper.backward(*rest[2 * step : 2 * step + 2])
        stepper.step(optimizer)
    stepper.finish()
    for (key, found), expected in zip(model.named_parameters(), other.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-6, msg=key)


@each_method
def test_rows_without_labels_are_used_or_refused_with_one_error(name: str) -> None:
    model, inputs = tiny("bert").train(), inputs_of("bert")
    stepper = prepared(stepper_of(model, name), inputs)
    stepper.backward(inputs)
    stepper.discard()
    del inputs["labels"]
    terms = WITHOUT_LABELS.get(name)
    if terms:
        assert {key for key in stepper.backward(inputs) if key.startswith("loss/")} == terms
        return
    with pytest.raises(TemperError, match="The batch has no labels"):
        stepper.backward(inputs)
