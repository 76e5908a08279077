"""Methods on every head: which train, how steps are split, and what padding changes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import DataCollatorForTokenClassification, Trainer, TrainingArguments

from temper import RobustTrainer, Stepper
from temper.errors import SettingError
from temper.heads import HEADS, UNLABELED
from temper.methods import configure
from temper.methods.registry import names
from temper.types import Batch
from tests.heads.models import MODELS, Inputs, model_of

OF_TEXTS = ("cross_holder", "hidden_cut", "jachess", "jachess_unlabeled", "jacobian", "mixup")
"""Methods that need labels of whole texts."""
DETERMINISTIC = {"uegr": {"mask": "off"}, "roast": {"mask": "off", "noise": 0.0}}
SPLIT = ("plain", "r_drop", "at", "freelb", "uegr", "roast")

by_model = pytest.mark.parametrize("model_name", MODELS)


def stepper_of(model_name: str, name: str, **settings: Any) -> tuple[Stepper, Inputs]:
    model, inputs = model_of(model_name)
    return Stepper(model, configure(name, settings), seed=4, total=4), inputs


def taken(inputs: Inputs, start: int, end: int) -> Inputs:
    return {name: each[start:end] for name, each in inputs.items()}


@by_model
@pytest.mark.parametrize("name", names())
def test_a_method_trains_every_head_or_raises_an_error(name: str, model_name: str) -> None:
    if name == "lp_ft" and model_name == "seq2seq-bart":
        pytest.skip("BART's head is its embedding table: no head can train first")
    if name in OF_TEXTS and "windows" in model_name:
        with pytest.raises(SettingError, match="windows"):
            stepper_of(model_name, name)
        return
    stepper, inputs = stepper_of(model_name, name)
    head = stepper.network.heads.of(None)
    if name in OF_TEXTS and head.not_in_windows:
        with pytest.raises(SettingError, match=head.name):
            stepper.backward(inputs)
        return
    stepper.prepare([inputs])
    stepper.begin_epoch(0)
    logs = stepper.backward(inputs)
    assert logs["loss"] > 0
    assert all(torch.tensor(value).isfinite() for value in logs.values())
    gradients = stepper.params.gradients()
    assert all(each.isfinite().all() for each in gradients.values())
    assert max(float(each.abs().max()) for each in gradients.values()) > 0


@by_model
@pytest.mark.parametrize("name", SPLIT)
def test_micro_batches_weigh_by_their_units(name: str, model_name: str) -> None:
    settings = DETERMINISTIC.get(name, {})
    whole, inputs = stepper_of(model_name, name, **settings)
    split, _ = stepper_of(model_name, name, **settings)
    rows = len(inputs["input_ids"])
    for stepper in (whole, split):
        stepper.network.model.eval()  # without dropout, whose draws depend on the micro-batch
        stepper.begin_epoch(0)
    expected = whole.backward(inputs)["loss"]
    result = split.backward(*(taken(inputs, row, row + 1) for row in range(rows)))["loss"]
    assert result == pytest.approx(expected, rel=1e-6)
    for name_, gradient in split.params.gradients().items():
        torch.testing.assert_close(
            gradient, whole.params.gradients()[name_], rtol=1e-5, atol=1e-8, msg=name_
        )


@by_model
@pytest.mark.parametrize("name", SPLIT)
def test_padding_does_not_change_the_loss_of_a_head(name: str, model_name: str) -> None:
    settings = DETERMINISTIC.get(name, {})
    short, inputs = stepper_of(model_name, name, **settings)
    long, _ = stepper_of(model_name, name, **settings)
    width = inputs["input_ids"].shape[-1]
    padded = {}
    for key, each in inputs.items():
        filler = UNLABELED if key == "labels" else 0
        of_tokens = each.dim() > 1 and each.shape[-1] == width
        wide = torch.nn.functional.pad(each, (0, 3), value=filler)
        padded[key] = wide if of_tokens else each
    if "end_positions" in padded:
        # A position outside the short text must not become one of the padding.
        outside = inputs["end_positions"] >= width
        padded["end_positions"] = inputs["end_positions"] + 3 * outside
    for stepper in (short, long):
        stepper.network.model.eval()
        stepper.begin_epoch(0)
    assert long.backward(padded)["loss"] == pytest.approx(short.backward(inputs)["loss"], rel=1e-5)


class Rows(torch.utils.data.Dataset[dict[str, Any]]):
    """The rows of a batch, without their padding."""

    def __init__(self, inputs: Inputs) -> None:
        self.inputs = inputs

    def __len__(self) -> int:
        return len(self.inputs["input_ids"])

    def __getitem__(self, row: int) -> dict[str, Any]:
        length = int(self.inputs["attention_mask"][row].sum())
        return {
            name: each[row, :length].tolist()
            for name, each in self.inputs.items()
            if name in ("input_ids", "attention_mask", "labels")
        }


class Padded:
    """A tokenizer as far as the collator asks."""

    padding_side, pad_token_id = "right", 0

    def pad(self, rows: list[dict[str, list[int]]], **_: Any) -> dict[str, Tensor]:
        width = max(len(row["input_ids"]) for row in rows)
        names = ("input_ids", "attention_mask")
        return {
            name: torch.tensor([row[name] + [0] * (width - len(row[name])) for row in rows])
            for name in names
        }


def first_gradient(
    kind: type[Trainer], folder: Any, *, at_once: int, **settings: Any
) -> dict[str, Tensor]:
    """Return the gradients of a step over four rows; by Transformers or by Temper."""
    model, inputs = model_of("tokens")
    model.eval()
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    args = TrainingArguments(
        str(folder),
        per_device_train_batch_size=at_once,
        gradient_accumulation_steps=4 // at_once,
        max_steps=1,
        learning_rate=1.0,
        lr_scheduler_type="constant",
        optim="sgd",
        max_grad_norm=0.0,
        save_strategy="no",
        report_to=[],
        use_cpu=True,
        average_tokens_across_devices=False,
    )
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    collator = DataCollatorForTokenClassification(Padded())  # type: ignore[arg-type]
    trainer = kind(model, args, train_dataset=Rows(inputs), data_collator=collator, **settings)
    trainer.train()
    return {name: before[name] - each.detach() for name, each in model.named_parameters()}


def test_transformers_weighs_micro_batches_of_tokens_alike_and_temper_by_tokens(
    tmp_path: Any,
) -> None:
    """A stock step over four micro-batches is another one than over the whole batch."""
    whole = first_gradient(RobustTrainer, tmp_path / "a", at_once=4)
    split = first_gradient(RobustTrainer, tmp_path / "b", at_once=1)
    stock = first_gradient(Trainer, tmp_path / "c", at_once=4)
    stock_split = first_gradient(Trainer, tmp_path / "d", at_once=1)
    for name, expected in whole.items():
        torch.testing.assert_close(split[name], expected, rtol=1e-6, atol=1e-10)
        torch.testing.assert_close(stock[name], expected, rtol=1e-6, atol=1e-10)
    apart = max(float((stock_split[name] - each).abs().max()) for name, each in stock.items())
    assert apart > 1e-3


def test_every_head_has_a_test_model() -> None:
    of_models = {name.partition("-")[0] for name in MODELS}
    assert of_models | {"classification", "regression"} == set(HEADS)


def test_attacks_perturb_prompts_only_and_embedding_noise_also_completions() -> None:
    model, inputs = model_of("completions")
    labels = inputs["labels"].clone()
    labels[1] = torch.where(inputs["attention_mask"][1] == 1, inputs["input_ids"][1], UNLABELED)
    inputs = inputs | {"labels": labels}  # the second row has no prompt
    batch, real = Batch.of(inputs), inputs["attention_mask"].bool()
    prompt = real & (labels == UNLABELED)
    prompt[1] = real[1]
    for name, settings, expected in (
        ("at", {}, prompt),
        ("freelb", {}, prompt),
        ("vat", {"site": "word"}, prompt),
        ("r3f", {}, prompt),
        ("embedding_noise", {}, real),
    ):
        stepper = Stepper(model, configure(name, settings), seed=4)
        stepper.network.probe(batch)
        words, seen = model.get_input_embeddings(), list[Tensor]()
        plain = words(batch.ids)
        # Registered after the stepper's own hook, so it sees what the model reads.
        hook = words.register_forward_hook(lambda _, __, output, to=seen: to.append(output))
        stepper.backward(inputs)
        hook.remove()
        stepper.remove_hooks()
        rows = torch.cat(seen).unflatten(0, (-1, len(labels)))
        moved = (rows != plain).any(-1).any(0)
        assert not (moved & ~expected).any(), name
        # What follows the last target has no gradient.
        assert moved[:, :-1][expected[:, 1:]].all(), name
