"""Check that a predictor meets its contracts, before you trust its evaluation.

`check_predictor` checks what every perspective relies on: finite predictions of the declared kind,
one per row and in order, equal in any batch and on repetition, and an unchanged model. Token ids,
embeddings and hidden states are checked if the predictor has them.
"""

from __future__ import annotations

import copy
import logging
import random
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from functools import partial
from typing import Any, cast, get_args

import numpy as np
import torch
from torch import Tensor, nn

from temper.data.examples import Examples
from temper.errors import DataError, ModelError
from temper.evaluation.function import known_names
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import (
    Gives,
    PerturbablePredictor,
    Predictor,
    Session,
    StatePredictor,
    TokenPredictor,
)
from temper.functional.calibration import probabilities_of
from temper.functional.resampling import FloatArray
from temper.heads import Classification, Regression

_LOG = logging.getLogger(__name__)
LEAST_ROWS = 4
"""Minimum number of different texts; with fewer, a wrong order may go unnoticed."""
BATCH = 3
"""Rows of the smaller batches; fewer than `LEAST_ROWS`."""
CHECKED: tuple[Gives, ...] = ("logits", "probabilities", "values", "choices")
"""Kinds of output that are checked: those with one row of numbers per text."""
TOLERANCE = 1e-5
"""Allowed difference of probabilities, and of values relative to the largest."""


def check_predictor(predictor: object, examples: Examples) -> None:
    """Check a predictor on some examples.

    Args:
        predictor: Checked as a `Predictor`, and if it has their methods as a `TokenPredictor`,
            `PerturbablePredictor` and `StatePredictor`.
        examples: Four or more different texts with different predictions. If they have labels, it
            is also checked that predictions do not depend on them.

    Raises:
        ModelError: It breaks a contract (the message lists every fault), all its predictions are
            equal, or it gives labels, tags, spans or texts, which are not checked.
        DataError: There are fewer than four different texts.

    Example:
        >>> from temper.evaluation.function import CallablePredictor
        >>> examples = Examples("toy", ["a", "bb", "ccc", "dddd"])
        >>> lengths = CallablePredictor(lambda texts: [len(text) for text in texts], gives="values")
        >>> check_predictor(lengths, examples)
    """
    if len(set(examples.rows)) < LEAST_ROWS:
        raise DataError(
            f"A predictor is checked on {LEAST_ROWS} different texts or more, but set "
            f"{examples.name!r} has {len(set(examples.rows))}. Pass a set with more texts."
        )
    gives = getattr(predictor, "gives", None)
    if gives in get_args(Gives) and gives not in CHECKED:
        raise ModelError(
            f"A predictor that gives {gives} cannot be checked, only one that gives "
            f"{', '.join(CHECKED)}."
        )
    result = list(_of_form(predictor))
    if not result:
        assert isinstance(predictor, Predictor)
        result = _Check(predictor, examples).faults()
    if result:
        raise ModelError(
            f"{type(predictor).__name__} breaks the contract of predictors:\n"
            + "\n".join(f"- {fault}" for fault in result)
        )


def _of_form(predictor: object) -> Iterator[str]:
    lacking = [name for name in ("predict", "gives", "label_names") if not hasattr(predictor, name)]
    if lacking:
        yield f"It has no {', '.join(f'`{name}`' for name in lacking)}."
        return
    gives, names = predictor.gives, predictor.label_names  # type: ignore[attr-defined]
    if gives not in get_args(Gives):
        yield f"`gives` must be one of {', '.join(get_args(Gives))}, got {gives!r}."
        return
    if names is not None and not isinstance(names, tuple):
        yield f"`label_names` must be a tuple or None, got {type(names).__name__}."
    try:
        known_names(names, gives=gives)
    except ModelError as error:
        yield str(error)


class _Check:
    """The checks of a predictor that has all methods of `Predictor`."""

    def __init__(self, predictor: Predictor, examples: Examples) -> None:
        self.predictor, self.examples = predictor, examples
        self.predictions = np.zeros((0, 0))

    def faults(self) -> list[str]:
        before = copy.deepcopy(self.examples)
        result = self._collect("predict", self._kind)
        if not len(self.predictions):
            return result
        result += self._collect("predict", self._values)
        result += self._collect("predict", self._without_labels)
        if isinstance(self.predictor, TokenPredictor):
            result += self._collect("outputs", partial(self._tokens, self.predictor))
        if isinstance(self.predictor, PerturbablePredictor):
            result += self._collect("session", partial(self._session, self.predictor))
        if isinstance(self.predictor, StatePredictor):
            result += self._collect("states", partial(self._states, self.predictor))
        changed = [
            field.name
            for field in fields(before)
            if getattr(before, field.name) != getattr(self.examples, field.name)
        ]
        if changed:
            result.append(f"It changes the examples that it is given ({', '.join(changed)}).")
        return list(dict.fromkeys(result))

    def _collect(self, name: str, step: Callable[[], Iterator[str]]) -> list[str]:
        """Run one check; an exception of the predictor counts as a fault."""
        result: list[str] = []
        before = snapshot(self.predictor)
        try:
            for fault in step():
                result.append(fault)
        except Exception as error:  # noqa: BLE001 - any exception is a fault of the predictor
            _LOG.info("`%s` failed in a check.", name, exc_info=True)
            result.append(f"`{name}` fails: {type(error).__name__}: {error}")
        left = differences(before, snapshot(self.predictor))
        if left:
            result.append(
                f"`{name}` leaves the model or the generators changed: {', '.join(left)}."
            )
        return result

    def _ask(self, examples: Examples, batch_size: int | None = None) -> FloatArray:
        return self.predictor.predict(examples, batch_size=batch_size).decoded

    def _kind(self) -> Iterator[str]:
        result = cast("object", self.predictor.predict(self.examples))
        n, gives, names = len(self.examples), self.predictor.gives, self.predictor.label_names
        if not isinstance(result, Prediction):
            yield f"`predict` must return a Prediction, got {type(result).__name__}."
            return
        if len(result.prediction) != n or len(result.probabilities) != n:
            yield (
                f"`predict` must predict every row once: {n} rows got {len(result.prediction)} "
                f"predictions and {len(result.probabilities)} rows of probabilities."
            )
            return
        if result.regression != (gives == "values"):
            came = "values" if result.regression else "classes"
            yield f"`gives` is {gives!r}, but `predict` returns {came}."
            return
        if result.regression:
            Prediction.of_values(result.prediction)
            self.predictions = result.decoded
            return
        Prediction.of_probabilities(result.probabilities)
        classes = result.probabilities.shape[1]
        if names is not None and len(names) != classes:
            yield (
                f"`label_names` has {len(names)} names, but the predictions have {classes} classes."
            )
        if gives == "logits" and result.logits is None:
            yield "`gives` is 'logits', but the prediction has none. Use Prediction.of_logits."
        if result.logits is not None:
            implied = probabilities_of(np.asarray(result.logits))
            if implied.shape != result.probabilities.shape or self._far(
                implied, result.probabilities
            ):
                yield "The softmax of the logits is not the probabilities."
        chosen = result.probabilities[np.arange(n), result.prediction.astype(np.int64)]
        if bool((result.probabilities.max(axis=1) - chosen > TOLERANCE).any()):
            yield "The predicted class is not the one of the highest probability."
        self.predictions = result.probabilities

    def _values(self) -> Iterator[str]:
        """Check that a row's prediction depends only on its text."""
        examples, expected = self.examples, self.predictions
        if not self._far(expected, expected[:1].repeat(len(expected), axis=0)):
            yield (
                "All predictions are equal, so their order cannot be checked. Use examples with "
                "different predictions."
            )
        if self._far(self._ask(examples), expected):
            yield "The same texts get different predictions in a second call."
            return
        order = list(range(len(examples)))[::-1]
        if self._far(self._ask(examples.select(order)), expected[order]):
            yield "Rows in a different order get different predictions: keep the order of the rows."
        for size in (1, BATCH):
            if self._far(self._ask(examples, size), expected):
                yield f"With batch_size={size} predictions differ by more than {TOLERANCE:g}."
        alone = np.concatenate([self._ask(examples.select([index])) for index in order[:3]])
        if self._far(alone, expected[order[:3]]):
            yield "A row alone gets a different prediction than in a batch."

    def _without_labels(self) -> Iterator[str]:
        bare = replace(self.examples, labels=None, label_names=None, kind="unlabeled")
        if self._far(self._ask(bare), self.predictions):
            yield "Without labels the predictions differ: a predictor must not look at labels."

    def _tokens(self, predictor: TokenPredictor) -> Iterator[str]:
        encoded = predictor.encoded(self.examples)
        if len(encoded) != len(self.examples):
            yield f"`encoded` gives {len(encoded)} rows for {len(self.examples)} examples."
            return
        items = copy.deepcopy(encoded.items)
        reports: list[tuple[int, int]] = []
        for size in (None, BATCH):
            result = predictor.predict_encoded(
                encoded, batch_size=size, tell=lambda *progress: reports.append(progress)
            )
            yield from self._same(result.decoded, "The predictions of `predict_encoded`")
        if not reports or reports[-1] != (len(items), len(items)):
            yield "`predict_encoded` does not report when all rows are done."
        if encoded.items != items:
            yield "`predict_encoded` changes the token ids that it is given."
        predictor.vocabulary()

    def _session(self, predictor: PerturbablePredictor) -> Iterator[str]:
        """Check a session: clean predictions, the effect of a perturbation, and its exit."""
        fraction = predictor.truncated(self.examples)
        if not 0 <= fraction <= 1:
            yield f"`truncated` must be in [0, 1], got {fraction}."
        if not isinstance(predictor.lacks_second_derivative(), str):
            yield "`lacks_second_derivative` must return a string, empty if there is a derivative."
        plain: FloatArray | None = None
        seen: list[int] = []
        with predictor.session() as session:
            for part in session.parts(self.examples, batch_size=BATCH):
                seen += part.indices
                if part.rows != [self.examples.rows[index] for index in part.indices]:
                    yield "`parts` gives rows under hashes of others."
                logits = session.logits(part).detach().double().cpu().numpy()
                if logits.ndim != 2:
                    yield f"`logits` of a session must be [B, C], got {list(logits.shape)}."
                    return
                if plain is None:
                    plain = np.full((len(self.examples), logits.shape[-1]), np.nan)
                plain[part.indices] = logits
                yield from self._perturbed(session, part)
        if sorted(seen) != list(range(len(self.examples))) or plain is None:
            yield "`parts` does not give every row once."
        else:
            head = Regression() if predictor.gives == "values" else Classification()
            yield from self._same(head.decode(plain), "`logits` of a session without delta")
        before = snapshot(predictor)
        try:
            with predictor.session():
                raise _Stopped
        except _Stopped:
            pass
        left = differences(before, snapshot(predictor))
        if left:
            yield f"A session that an error ends leaves changed: {', '.join(left)}."

    def _perturbed(self, session: Session, part: Any) -> Iterator[str]:
        """Check that a delta on one row moves that row's logits and no other's."""
        embeddings = session.embeddings(part)
        if embeddings.requires_grad or part.special.shape != embeddings.shape[:2]:
            yield "`embeddings` must be [B, T, D] as `special` [B, T] is, detached."
            return
        clean = session.logits(part).detach()
        delta = torch.zeros_like(embeddings)
        # Only the first row, by a fixed pattern that needs no random generator.
        delta[0] = embeddings.abs().mean() * torch.ones_like(delta[0]).cumsum(-1).cos()
        delta.requires_grad_(True)
        with torch.enable_grad():
            moved = session.logits(part, delta=delta)
            (slope,) = torch.autograd.grad(moved.sum(dim=0)[0], delta)
        if not bool(torch.isfinite(slope).all()) or not bool(slope[0].any()):
            yield "The gradient of the logits by `delta` is zero or not finite."
        change = (moved.detach() - clean).abs().amax(dim=1)
        if not float(change[0]) > 0:
            yield "A `delta` changes no logit."
        if bool((change[1:] > TOLERANCE).any()):
            yield "A `delta` on one row changes the logits of others."

    def _states(self, predictor: StatePredictor) -> Iterator[str]:
        """Check that every row has hidden states, of the same shape in any batch."""
        result: list[list[Tensor]] = []
        for size in (len(self.examples), BATCH):
            rows: dict[int, list[Tensor]] = {}
            for states in predictor.states(self.examples, batch_size=size):
                for layer in states.layers:
                    if layer.dim() != 2 or len(layer) != len(states.indices):
                        yield (
                            "Each layer of `states` must be [B, D], one line a row; "
                            f"{len(states.indices)} rows got {list(layer.shape)}."
                        )
                        return
                    if layer.dtype != torch.float32 or not bool(torch.isfinite(layer).all()):
                        yield "Hidden states must be finite and in fp32."
                for line, index in enumerate(states.indices):
                    if index in rows:
                        yield "`states` gives a row twice."
                    rows[index] = [layer[line] for layer in states.layers]
            if sorted(rows) != list(range(len(self.examples))):
                yield "`states` does not give every row once."
                return
            if len({len(layers) for layers in rows.values()}) > 1 or not rows[0]:
                yield "`states` must give every row the same layers, one or more."
                return
            ordered = [rows[index] for index in sorted(rows)]
            result.append([torch.stack(layer) for layer in zip(*ordered, strict=True)])
        for one, two in zip(*result, strict=True):
            if float((one - two).abs().max()) > TOLERANCE * max(1.0, float(one.abs().max())):
                yield "Hidden states depend on the batch size."
                return

    def _same(self, decoded: FloatArray, what: str) -> Iterator[str]:
        if decoded.shape != self.predictions.shape:
            shape = list(self.predictions.shape)
            yield f"{what} have shape {list(decoded.shape)}, expected {shape}."
        elif self._far(decoded, self.predictions):
            yield f"{what} differ from those of `predict` by more than {TOLERANCE:g}."

    def _far(self, one: FloatArray, two: FloatArray) -> bool:
        if one.shape != two.shape:
            return True
        scale = max(1.0, float(np.abs(two).max())) if self.predictor.gives == "values" else 1.0
        return not bool((np.abs(one - two) <= TOLERANCE * scale).all())


class _Stopped(Exception):  # noqa: N818 - it reports nothing
    """Raised inside a session, to check that it ends cleanly."""


def snapshot(predictor: object) -> dict[str, Any]:
    """Return description -> copy of each state that a prediction must not change.

    These are states of the predictor's attributes that are modules, or have a module `model`.
    """
    numpy_state = np.random.get_state()
    result: dict[str, Any] = {
        "random state of torch": torch.random.get_rng_state().tolist(),
        "random state of NumPy": [np.asarray(item).tolist() for item in numpy_state],
        "random state of Python": random.getstate(),
    }
    for name, model in _modules(predictor).items():
        modules = list(model.modules())
        weights = list(model.parameters())
        result |= {
            f"training flags of {name}": [module.training for module in modules],
            f"modules of {name}": [type(module) for module in modules],
            f"hooks of {name}": [
                (_hooks(module), list(module._forward_pre_hooks)) for module in modules
            ],
            f"what of {name} wants gradients": [weight.requires_grad for weight in weights],
            f"gradients of {name}": [
                None if weight.grad is None else weight.grad.clone() for weight in weights
            ],
            f"weights of {name}": {key: item.clone() for key, item in model.state_dict().items()},
        }
    return result


def differences(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Return the names of the states that changed between two results of `snapshot`."""
    return [name for name, value in before.items() if not _equal(value, after.get(name))]


def _hooks(module: nn.Module) -> list[int]:
    """Return a module's forward hooks, without those of Transformers that have no effect."""
    # Installed when a model is first asked for its hidden states, and never removed.
    name = "output_capturing_hook"
    hooks = module._forward_hooks.items()
    return [number for number, hook in hooks if getattr(hook, "__name__", "") != name]


def _modules(predictor: object) -> dict[str, nn.Module]:
    result = {}
    for name, value in getattr(predictor, "__dict__", {}).items():
        inner = value if isinstance(value, nn.Module) else getattr(value, "model", None)
        if isinstance(inner, nn.Module):
            result[name] = inner
    return result


def _equal(one: Any, two: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(two, Tensor):
        return one.dtype == two.dtype and torch.equal(one, two)
    if isinstance(one, dict) and isinstance(two, dict):
        return one.keys() == two.keys() and all(_equal(one[key], two[key]) for key in one)
    if isinstance(one, list) and isinstance(two, list):
        return len(one) == len(two) and all(map(_equal, one, two))
    return type(one) is type(two) and bool(one == two)
