"""Laws: properties that every method must have, checked on a tiny BERT."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from temper.errors import CompositionError, SettingError, TemperError, unknown
from temper.heads import Regression
from temper.methods import Method, compose, configure, entry, name_of, names
from temper.methods.composition import Composed
from temper.methods.description import settings
from temper.models.network import Network
from temper.seeding import Streams
from temper.testing.tiny import rows, tiny_bert
from temper.training.config import wants_unlabeled
from temper.training.stepper import Stepper
from temper.types import Step

STEPS = 3
FAULT = "planted by check_method"


@dataclass(frozen=True)
class Subject:
    """The method that is checked; see `check_method`."""

    config: Method
    draws_by_row: bool = False

    def stepper(self, model: nn.Module, config: Method | str | None = None) -> Stepper:
        method = self.config if config is None else config
        return Stepper(model, method, seed=3, total=STEPS, special_ids=(1, 2))

    def prepared(self, model: nn.Module, config: Method | str | None = None) -> Stepper:
        stepper = self.stepper(model, config)
        stepper.prepare([rows(5, 3)])
        stepper.begin_epoch(0)
        return stepper

    def train(self, model: nn.Module, config: Method | str | None = None) -> dict[str, Tensor]:
        """Train for some steps of AdamW, each on two micro-batches, and return the weights."""
        stepper = self.prepared(model, config)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        for step in range(STEPS):
            self.step(stepper, optimizer, step)
        stepper.finish()
        stepper.remove_hooks()
        return weights_of(model)

    def step(
        self, stepper: Stepper, optimizer: torch.optim.Optimizer, step: int
    ) -> dict[str, float]:
        optimizer.zero_grad()
        logs = stepper.backward(*batches_of(stepper, step))
        nn.utils.clip_grad_norm_(stepper.network.model.parameters(), 1.0)
        stepper.step(optimizer)
        return logs


Law = Callable[[Subject], Iterator[str]]
LAWS: dict[str, Law] = {}
"""Name of a law -> its function, which yields the faults of a method."""


def check_method(
    method: Method | str, *, draws_by_row: bool = False, laws: Iterable[str] | None = None
) -> None:
    """Check that a method has the properties that users rely on (`LAWS`).

    Args:
        method: A registered name, or settings of a registered class; no composition.
        draws_by_row: Whether random draws (noise, spans, adaptive rates) depend on the other rows
            of the batch. Micro-batches then differ from one batch, which is not checked.
        laws: Names of `LAWS`; None checks all of them.

    Raises:
        TemperError: If the method breaks a law; the message lists every fault.
        SettingError: If there is no such method or law, or it is a composition.

    Example:
        >>> check_method("r_drop", laws=["declaration", "off"])
    """
    config = configure(method) if isinstance(method, str) else method
    if isinstance(config, Composed):
        raise SettingError("A composition is not checked as a whole. Check each of its methods.")
    chosen = list(LAWS if laws is None else laws)
    if wrong := [unknown("law", law, LAWS) for law in chosen if law not in LAWS]:
        raise SettingError("\n".join(wrong))
    subject = Subject(config, draws_by_row)
    result: list[str] = []
    cause: Exception | None = None
    for law in chosen:
        try:
            for fault in LAWS[law](subject):
                result.append(f"{law}: {fault}")
        except Exception as error:  # noqa: BLE001 - any exception is a fault of the method
            cause = cause or error
            result.append(f"{law}: {type(error).__name__}: {error}")
    if result:
        lines = "\n".join(f"- {fault}" for fault in result)
        raise TemperError(f"{type(config).__name__} breaks laws of methods:\n{lines}") from cause


def law(check: Law) -> Law:
    """Add a check to `LAWS` under its function's name."""
    LAWS[check.__name__] = check
    return check


@law
def declaration(subject: Subject) -> Iterator[str]:
    """Check that the registration is complete, settings documented, and presets valid."""
    config, name = type(subject.config), name_of(subject.config)
    about = entry(name)
    lacking = [item for item in ("summary", "cost", "memory", "paper") if not getattr(about, item)]
    if lacking:
        yield f"@register gives no {', '.join(lacking)}."
    undescribed = [setting["setting"] for setting in settings(name) if not setting["meaning"]]
    if undescribed:
        yield f"Settings without Field(description=...): {', '.join(undescribed)}."
    for preset in config.PRESETS:
        configure(name, {"preset": preset})
    if configure(name, subject.config.settings()) != subject.config:
        yield "settings() gives values that configure reads otherwise."


@law
def off(subject: Subject) -> Iterator[str]:
    """Check that a method with its ``OFF`` settings equals plain fine-tuning bit for bit."""
    plain = subject.train(tiny_bert(), "plain")
    model = tiny_bert()
    generator = torch.get_rng_state()
    with _noted_draws() as drawn:
        result = subject.train(model, switched_off(subject.config))
    yield from _with_names("With OFF it is not plain fine-tuning", differences(result, plain))
    yield from _with_names("With OFF it draws", sorted(drawn - {"dropout clean"}))
    if not torch.equal(torch.get_rng_state(), generator):
        yield "With OFF it draws from the global generator."


@law
def on(subject: Subject) -> Iterator[str]:
    """Check that a method with its default settings differs from plain fine-tuning."""
    plain = subject.train(tiny_bert(), "plain")
    is_plain = name_of(subject.config) == "plain"
    if not is_plain and not differences(subject.train(tiny_bert()), plain):
        yield "With these settings it is plain fine-tuning."


@law
def repetition(subject: Subject) -> Iterator[str]:
    """Check that equal seeds give equal weights, and that the model's modules do not change."""
    model = tiny_bert()
    before = _modules(model)
    first, second = subject.train(model), subject.train(tiny_bert())
    yield from _with_names("Two runs of one seed differ", differences(first, second))
    if _modules(model) != before:
        yield "Modules or dropout rates of the model are left changed."


@law
def log(subject: Subject) -> Iterator[str]:
    """Check that the logged parts of the loss add up to the loss."""
    stepper = subject.prepared(tiny_bert())
    optimizer = torch.optim.AdamW(stepper.network.model.parameters(), lr=1e-2)
    for step in range(STEPS):
        logs = subject.step(stepper, optimizer, step)
        parts = math.fsum(value for name, value in logs.items() if name.startswith("loss/"))
        if abs(parts - logs["loss"]) > 1e-7 + 1e-5 * abs(logs["loss"]):
            yield f"In step {step} the parts of the loss sum to {parts:g}, not {logs['loss']:g}."


@law
def resumption(subject: Subject) -> Iterator[str]:
    """Check that a run that stops and resumes equals an uninterrupted one."""
    whole = subject.train(tiny_bert())
    model = tiny_bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    stepper = subject.prepared(model)
    subject.step(stepper, optimizer, 0)
    saved, optimizer_state = stepper.state_dict(), optimizer.state_dict()
    stepper.remove_hooks()
    for kind in {type(leaf) for leaf in tree_leaves(saved)} - {Tensor, int, float, bool, str}:
        yield f"The state has a {kind.__name__}: only tensors and plain values can be saved."
    other = tiny_bert()
    other.load_state_dict(model.state_dict())
    optimizer = torch.optim.AdamW(other.parameters(), lr=1e-2)
    optimizer.load_state_dict(optimizer_state)
    stepper = subject.stepper(other)
    stepper.load_state_dict(saved)
    stepper.begin_epoch(0)
    for step in range(1, STEPS):
        subject.step(stepper, optimizer, step)
    stepper.finish()
    yield from _with_names(
        "A resumed run differs from a whole one", differences(weights_of(other), whole)
    )


@law
def micro_batches(subject: Subject) -> Iterator[str]:
    """Check that two micro-batches give the gradient of one batch, without dropout."""
    if subject.draws_by_row:
        return
    whole = rows(5, 3, 6, 4)
    parts = [{name: value[rows] for name, value in whole.items()} for rows in ([0], [1, 2], [3])]
    gradients = []
    for batches in ([whole], parts):
        stepper = subject.stepper(tiny_bert(dropout=0.0, attention=0.0).double())
        stepper.prepare([whole])
        stepper.begin_epoch(0)
        stepper.backward(*batches)
        gradients.append({name: g.clone() for name, g in stepper.params.gradients().items()})
    one, summed = gradients
    if set(one) != set(summed):
        yield "Micro-batches leave other parameters without a gradient than one batch does."
        return
    scale = max(float(gradient.abs().max()) for gradient in one.values())
    far = [name for name in one if float((one[name] - summed[name]).abs().max()) > 1e-6 * scale]
    advice = "If what is drawn depends on which rows come together, say draws_by_row=True"
    yield from _with_names(
        f"Micro-batches have a different gradient from one batch. {advice}. Of", far
    )


@law
def failing_pass(subject: Subject) -> Iterator[str]:
    """Check that a failed pass leaves weights and modules as they were."""
    model = tiny_bert()
    modules = _modules(model)
    stepper = subject.prepared(model)
    before, forward, left = weights_of(model), Network.logits, [1]

    def failing(self: Network, *arguments: Any, **keywords: Any) -> Tensor:
        if not left:
            raise ArithmeticError(FAULT)
        left.pop()
        return forward(self, *arguments, **keywords)

    Network.logits = failing  # type: ignore[method-assign]
    try:
        # Methods of one pass fail in the second micro-batch.
        stepper.backward(rows(5, 3), rows(5, 3))
        yield "The method's `after_backward` is not called after a failing pass."
    except ArithmeticError:
        pass
    finally:
        Network.logits = forward  # type: ignore[method-assign]
    yield from _with_names("A failing pass leaves moved", differences(weights_of(model), before))
    frozen = [name for name, parameter in model.named_parameters() if not parameter.requires_grad]
    yield from _with_names("A failing pass leaves frozen", frozen)
    stepper.remove_hooks()
    if _modules(model) != modules:
        yield "Modules or dropout rates of the model are left changed."


@law
def half_precision(subject: Subject) -> Iterator[str]:
    """Check mixed precision: losses are finite; weights and gradients stay in fp32."""
    model = tiny_bert()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        stepper = subject.prepared(model)
        for _ in range(2):
            optimizer.zero_grad()
            logs = stepper.backward(rows(5, 3))
            kinds = {g.dtype for g in stepper.params.gradients().values()}
            if kinds - {torch.float32}:
                yield f"Gradients are in {', '.join(map(str, kinds))}."
            stepper.step(optimizer)
    yield from _with_names(
        "Not finite is", [name for name in logs if not math.isfinite(logs[name])]
    )
    lost = [
        name
        for name, parameter in model.named_parameters()
        if parameter.dtype != torch.float32 or not bool(torch.isfinite(parameter).all())
    ]
    yield from _with_names("Not finite or not in single precision are", lost)


@law
def regression(subject: Subject) -> Iterator[str]:
    """Check that a method trains on float labels, or raises an error before and in a step."""
    stepper = subject.stepper(tiny_bert(classes=1))
    batch = rows(5, 3, regression=True)
    batch["labels"] = batch["labels"].float()
    refusal = ""
    try:
        stepper.method.check_head(Regression)
    except SettingError as error:
        refusal = str(error)
    try:
        if not refusal:
            stepper.prepare([batch])
            stepper.begin_epoch(0)
        loss = stepper.backward(batch)["loss"]
    except TemperError as error:
        if refusal != str(error):
            yield f"check_head refuses with {refusal!r}, and the step with: {error}"
        return
    if refusal:
        yield f"check_head refuses with {refusal!r}, and a regression is learned."
    if not math.isfinite(loss):
        yield "The loss of a regression is not finite."


@law
def unlabeled_rows(subject: Subject) -> Iterator[str]:
    """Check that a method trains on rows without labels, or raises an error."""
    stepper = subject.prepared(tiny_bert())
    stepper.backward(rows(5, 3))
    stepper.discard()
    batch = rows(5, 3)
    del batch["labels"]
    needs_labels = stepper.method.plan(Step()).needs_labels
    try:
        logs = stepper.backward(batch)
    except TemperError as error:
        if not needs_labels or "The batch has no labels" not in str(error):
            yield f"A batch without labels is refused with: {error}"
        return
    terms = {name for name in logs if name.startswith("loss/")}
    if needs_labels or not terms or "loss/task" in terms:
        yield f"A batch without labels has the terms {sorted(terms)}."


@law
def memory(subject: Subject) -> Iterator[str]:
    """Check that a method stores at most as many copies of the weights as it declares."""
    model = tiny_bert()
    stepper = subject.prepared(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    subject.step(stepper, optimizer, 0)
    tensors = [leaf for leaf in tree_leaves(stepper.state_dict()) if isinstance(leaf, Tensor)]
    inside = sum(stepper.params.tensors[name].numel() for name in stepper.params.blocks)
    weights, kept = _bytes(model.parameters()), _bytes(tensors)
    memory = entry(name_of(subject.config)).memory
    copies = 2 if "two copies" in memory else 1
    # In addition to the copies, a byte for each entry that a mask covers, and some scalars.
    if kept > copies * weights + inside + 256:
        yield f"Its state has {kept} bytes, more than {copies} times the weights' {weights}."
    if (kept > weights / 3) != ("copy" in memory or copies == 2):
        yield f"@register's memory must state whether it keeps a copy; its state has {kept} bytes."


@law
def composition(subject: Subject) -> Iterator[str]:
    """Check that a method composes with every other one, or that an error names both."""
    name = name_of(subject.config)
    for other in names():
        if other == name:
            continue
        try:
            compose(subject.config, other)
        except CompositionError as error:
            if repr(name) not in str(error) or repr(other) not in str(error):
                yield f"It does not compose with {other}, and the error does not name both: {error}"


def switched_off(method: Method) -> Method:
    """Return a method with its ``OFF`` settings."""
    return type(method)(**{**method.model_dump(), **method.OFF})


def batches_of(stepper: Stepper, step: int) -> list[dict[str, Tensor]]:
    """Return two micro-batches; the second has no labels if the method supports that."""
    result = [rows(5, 3, seed=step), rows(4, seed=step + 10)]
    if wants_unlabeled(stepper.method):
        del result[1]["labels"]
    return result


def weights_of(model: nn.Module) -> dict[str, Tensor]:
    return {name: tensor.detach().clone() for name, tensor in model.state_dict().items()}


def differences(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> list[str]:
    """Return the names of the tensors that are not equal, bit for bit."""
    return [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]


def _with_names(fault: str, which: Sequence[str]) -> Iterator[str]:
    if which:
        more = f" and {len(which) - 3} more" if len(which) > 3 else ""
        yield f"{fault}: {', '.join(which[:3])}{more}."


def _modules(model: nn.Module) -> list[tuple[type[nn.Module], object]]:
    return [(type(module), getattr(module, "p", None)) for module in model.modules()]


def _bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


@contextmanager
def _noted_draws() -> Iterator[set[str]]:
    """Record the names of the random streams that are used inside the block."""
    drawn: set[str] = set()
    kinds: dict[str, Any] = {kind: getattr(Streams, kind) for kind in ("local", "shared")}

    def noting(plain: Any) -> Any:
        def noted(self: Streams, stream: str, *key: object) -> int:
            drawn.add(" ".join([stream, *map(str, key)]))
            return int(plain(self, stream, *key))

        return noted

    for kind, plain in kinds.items():
        setattr(Streams, kind, noting(plain))
    try:
        yield drawn
    finally:
        for kind, plain in kinds.items():
            setattr(Streams, kind, plain)
