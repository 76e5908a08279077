"""Faults of torch and Transformers that Temper works around.

Each test shows the fault and, where possible, that Temper avoids it. If one fails after an upgrade,
check whether the workaround is still needed. The fault of ``no_sync`` needs two processes:
tests/distributed.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import BertForSequenceClassification, Trainer, TrainingArguments

from temper.forward import StepContext
from temper.forward.perturbations import zeros
from temper.methods.r_at import RAT
from temper.models.network import Network
from temper.seeding import Streams
from temper.testing.tiny import tiny_bert
from temper.types import Batch, Step
from tests.contracts.architectures import tiny
from tests.forward.nested import composite_layer_norm

IDS = torch.tensor([[4, 5, 6, 2], [7, 8, 9, 2], [4, 9, 3, 2]])


def bert(attention: str = "sdpa", dropout: float = 0.0) -> BertForSequenceClassification:
    """Return a tiny BERT classifier with fixed weights."""
    return tiny_bert(
        dropout=dropout,
        attention=dropout,
        attn_implementation=attention,
        vocab_size=2000,
        initializer_range=0.02,
    ).eval()


class Double(nn.Module):
    """Doubles its input in place of dropout, without being an ``nn.Dropout``."""

    def forward(self, values: Tensor) -> Tensor:
        return values * 2


class DoubleDropout(nn.Dropout):
    """The same as a subclass of ``nn.Dropout``."""

    def forward(self, values: Tensor) -> Tensor:
        return values * 2


def replace_attention_dropout(model: BertForSequenceClassification, module: nn.Module) -> None:
    for layer in model.bert.encoder.layer:
        layer.attention.self.dropout = module


def test_a_dropout_replacement_has_to_be_a_dropout_because_attention_reads_its_rate() -> None:
    model = bert().train()
    replace_attention_dropout(model, DoubleDropout(0.0))
    model(input_ids=IDS)
    replace_attention_dropout(model, Double())
    with pytest.raises(AttributeError, match="'Double' object has no attribute 'p'"):
        model(input_ids=IDS)


def test_a_checkpointed_backward_replays_the_dropout_of_its_forward() -> None:
    gradients = []
    for checkpointed in (False, True):
        model = bert(dropout=0.5).train()
        if checkpointed:
            # Older versions of Transformers know it by its other name alone.
            enable = getattr(model, "activation_checkpointing_enable", None)
            (enable or model.gradient_checkpointing_enable)({"use_reentrant": False})
        torch.manual_seed(3)
        model(input_ids=IDS).logits.square().sum().backward()
        gradients.append([p.grad for p in model.parameters() if p.grad is not None])
    for plain, replayed in zip(*gradients, strict=True):
        assert torch.equal(plain, replayed)


def second_derivative(model: BertForSequenceClassification) -> Tensor:
    embeddings = model.bert.embeddings.word_embeddings(IDS).detach().requires_grad_()
    logits = model(inputs_embeds=embeddings).logits
    (first,) = torch.autograd.grad(logits.sum(), embeddings, create_graph=True)
    (second,) = torch.autograd.grad(first.square().sum(), embeddings)
    return second


def test_only_plain_attention_has_a_second_derivative() -> None:
    with pytest.raises(RuntimeError, match="derivative for .*flash_attention.* not implemented"):
        second_derivative(bert("sdpa"))
    with sdpa_kernel(SDPBackend.MATH):
        plain = second_derivative(bert("sdpa"))
    torch.testing.assert_close(plain, second_derivative(bert("eager")), rtol=1e-4, atol=1e-7)


def weight_derivative_error(norm: Callable[..., Tensor]) -> float:
    """Return how far the weights' gradient of a squared second derivative is off, relatively."""
    draws = torch.Generator().manual_seed(2)
    x, way, probe = (torch.randn(3, 6, generator=draws, dtype=torch.float64) for _ in range(3))
    shift = torch.randn(6, 6, generator=draws, dtype=torch.float64)
    weights = torch.randn(6, 6, generator=draws, dtype=torch.float64).requires_grad_()

    def size(matrix: Tensor) -> Tensor:
        point = x.clone().requires_grad_()
        scalar = (norm(torch.tanh(point @ matrix), (6,)) * probe).sum()
        (first,) = torch.autograd.grad(scalar, point, create_graph=True)
        (second,) = torch.autograd.grad((first * way).sum(), point, create_graph=True)
        return second.square().sum()

    (gradient,) = torch.autograd.grad(size(weights), weights)
    ahead, behind = (size(weights.detach() + each * shift).detach() for each in (1e-6, -1e-6))
    expected = float(ahead - behind) / 2e-6
    return abs(float((gradient * shift).sum()) / expected - 1)


def test_the_fused_layer_norm_is_wrong_at_third_order_and_the_composed_one_right() -> None:
    """pytorch#175754, #176234, #196700: the values are right, so no other test detects it."""
    assert weight_derivative_error(composite_layer_norm) < 1e-5
    assert weight_derivative_error(nn.functional.layer_norm) > 0.05, (
        "F.layer_norm's third derivative is right now: tests/forward/nested.py may use the fused "
        "norm again, once the oldest supported torch has it"
    )


@pytest.mark.parametrize(("kind", "most"), [(torch.bfloat16, 0.06), (torch.float16, 0.4)])
def test_most_of_a_small_perturbation_dies_in_half_precision(
    kind: torch.dtype, most: float
) -> None:
    values = torch.randn(100_000) * 0.05
    noise = torch.randn(100_000) * 1e-5
    survives = (values.to(kind) + noise.to(kind) != values.to(kind)).float().mean()
    assert survives < most
    assert (values + noise != values).float().mean() > 0.99


@pytest.mark.parametrize("name", ["t5", "bart"])
def test_encoder_decoders_never_call_the_module_that_get_input_embeddings_returns(
    name: str,
) -> None:
    model = tiny(name).eval()
    calls: list[Tensor] = []
    model.get_input_embeddings().register_forward_hook(
        lambda module, inputs, output: calls.append(inputs[0])
    )
    model(input_ids=IDS)
    assert calls == []


@pytest.mark.parametrize(
    ("name", "ids"),
    [("llama", [[5, 6, 0, 0], [7, 8, 9, 2]]), ("roberta", [[1, 1, 5, 6], [7, 8, 9, 2]])],
    ids=["right-padded llama", "left-padded roberta"],
)
def test_embeddings_given_instead_of_ids_change_the_logits_of_padded_rows(
    name: str, ids: list[list[int]]
) -> None:
    model, rows = tiny(name).eval(), torch.tensor(ids)
    mask = (rows > 1).long()
    network = Network(model)
    with torch.no_grad():
        own = model(input_ids=rows, attention_mask=mask).logits
        values = model.get_input_embeddings()(rows)
        given = model(inputs_embeds=values, attention_mask=mask).logits
        hooked = network.logits(
            Batch({"input_ids": rows, "attention_mask": mask}), delta=torch.zeros_like(values)
        )
    assert (given - own)[0].abs().max() > 1e-3
    assert torch.equal(hooked[:, 0], own)


@pytest.mark.parametrize(
    ("name", "message"),
    [("t5", "input embeddings .*not supported"), ("bart", "not supported")],
)
def test_encoder_decoders_do_not_accept_embeddings_instead_of_ids(name: str, message: str) -> None:
    model = tiny(name).eval()
    with pytest.raises(NotImplementedError, match=message):
        model(inputs_embeds=torch.zeros(1, 4, 16))


@pytest.mark.parametrize(("scope", "least", "most"), [("matrix", 0.0, 0.3), ("example", 1.0, 1.0)])
def test_one_budget_for_the_embedding_matrix_shrinks_with_the_batch(
    scope, least: float, most: float
) -> None:
    """An example's fraction of an epsilon of 1, in a batch of 128 against one of 2."""
    network = Network(bert())
    draws = torch.Generator().manual_seed(1)
    sizes = []
    for rows in (2, 128):
        batch = Batch({"input_ids": torch.randint(1, 2000, (rows, 4), generator=draws)})
        attack = RAT(epsilon=1.0, relative=False, attack_scope=scope)
        delta = zeros(network, batch)
        step = StepContext(network, batch, {}, Step(), Streams(0))
        labels = torch.zeros(rows, dtype=torch.long)
        nn.functional.cross_entropy(network.logits(batch, delta=delta)[:, 0], labels).backward()
        moved = attack.delta(step, delta.grad, network.embeddings(batch))
        sizes.append(float(moved.flatten(1).norm(dim=1).mean()))
    assert least - 1e-5 <= sizes[1] / sizes[0] <= most + 1e-5


class StockRecorder(Trainer):
    """Transformers' own, keeping the gradient of its first optimizer step."""

    def create_optimizer(self, model: nn.Module | None = None) -> torch.optim.Optimizer:
        optimizer = super().create_optimizer()
        optimizer.register_step_pre_hook(self.keep)
        return optimizer

    def keep(self, *_: object) -> None:
        gradients = [p.grad.flatten() for p in self.model.parameters() if p.grad is not None]
        self.gradient = torch.cat(gradients)


def stock_trainer(folder: Path, **arguments: int | str) -> StockRecorder:
    """Return a Trainer that has taken one step, of four rows or some."""
    rows = [
        {"input_ids": row, "attention_mask": torch.ones_like(row), "labels": torch.tensor(label)}
        for row, label in zip(IDS[[0, 1, 2, 0]], (0, 1, 1, 0), strict=True)
    ]
    settings = TrainingArguments(
        output_dir=str(folder),
        max_steps=1,
        max_grad_norm=0.0,
        report_to=[],
        use_cpu=True,
        disable_tqdm=True,
        **arguments,
    )
    trainer = StockRecorder(bert(), settings, train_dataset=rows)
    trainer.train()
    return trainer


def test_the_stock_trainer_inflates_gradients_by_the_number_of_accumulation_steps(
    tmp_path: Path,
) -> None:
    """Temper's does not: tests/training/test_accumulation.py."""
    whole, parts = (
        stock_trainer(
            tmp_path,
            per_device_train_batch_size=4 // steps,
            gradient_accumulation_steps=steps,
            save_strategy="no",
        ).gradient
        for steps in (1, 2)
    )
    torch.testing.assert_close(parts, 2 * whole, rtol=1e-4, atol=1e-6)


def test_the_stock_trainer_pickles_its_checkpoint_files(tmp_path: Path) -> None:
    """Temper's does not: tests/training/test_resume.py."""
    stock_trainer(tmp_path, save_steps=1)
    written = {path.name for path in (tmp_path / "checkpoint-1").iterdir()}
    assert {"optimizer.pt", "scheduler.pt", "rng_state.pth", "training_args.bin"} <= written
