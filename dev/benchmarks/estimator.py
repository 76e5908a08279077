"""Estimators of the smoothness penalty: mean, spread over draws, and bias.

Run ``python -m dev.benchmarks.estimator``. One batch of reviews is passed through MiniLM before
training; every draw has new probes and directions. The reference is ``nested``
(tests/forward/nested.py), whose derivatives are exact: a difference from it beyond the standard
errors is bias. *Shared probes* is ``difference`` with the same probe for all layers, a mistake that
adds cross terms of the layers as bias. *Spread* is the standard deviation of one draw divided by
the mean. *Cosine* is between the gradient of one draw, with respect to the weights of the blocks,
and the mean gradient of the other draws.
"""

from __future__ import annotations

import argparse
import itertools
import statistics
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor
from transformers import AutoTokenizer

import temper.methods.smoothness as penalty
from dev.benchmarks.record import write
from dev.benchmarks.workload import BATCH, TOKENS, Workload, minilm_folder
from temper.data.corpus import review_corpus
from temper.forward import StepContext
from temper.forward.totals import step_totals
from temper.methods import configure
from temper.seeding import Streams
from temper.types import Batch, Step, Term
from tests.forward.nested import nested

THREADS = 2
SHARED = "difference, shared probes"
LABELS: dict[str, tuple[str, Callable[[], AbstractContextManager[None]]]] = {
    "nested": ("difference", nested),
    "difference": ("difference", nullcontext),
    "four_point": ("four_point", nullcontext),
    SHARED: ("difference", nullcontext),
}


def reviews(tokenizer: Any) -> Batch:
    """Return one batch of the embedded corpus."""
    examples = review_corpus(rows=BATCH * 4).train
    inputs = tokenizer(
        examples.text[:BATCH],
        padding="max_length",
        truncation=True,
        max_length=TOKENS,
        return_tensors="pt",
    )
    return Batch.of({**inputs, "labels": torch.tensor(examples.labels[:BATCH])})


@contextmanager
def sharing(wanted: bool) -> Iterator[None]:
    """Use the same probe for every layer within the context, if ``wanted``."""
    plain = penalty.probes

    def alike(*args: Any, **settings: Any) -> Tensor:
        shape, law, _ = args
        draws = torch.Generator().manual_seed(alike.seed)  # type: ignore[attr-defined]
        return plain(shape, law, draws, **settings)

    alike.seed = 0  # type: ignore[attr-defined]
    penalty.probes = alike if wanted else plain  # type: ignore[assignment]
    try:
        yield
    finally:
        penalty.probes = plain


def draw(workload: Workload, batch: Batch, label: str, number: int) -> tuple[list[Term], Tensor]:
    """Estimate the penalty once.

    Args:
        workload: Provides network and state.
        batch: The rows.
        label: A key of ``LABELS``.
        number: Number of the draw.

    Returns:
        The terms, and their gradient in the blocks' weights as one vector.
    """
    scheme, context = LABELS[label]
    shared = label == SHARED
    method = configure("jachess", {"scheme": scheme, "strength": {"weight": 1.0}})
    stepper = workload.stepper
    step = Step(number, units=batch.size)
    streams = Streams(0, step=number)
    with sharing(shared), context():
        if shared:
            penalty.probes.seed = number  # type: ignore[attr-defined]
        context = StepContext(stepper.network, batch, stepper.state, step, streams)
        result = next(step_totals(method.composed(), context))
    terms = [term for term in result if term.name != "task"]
    total = sum((term.value(step) for term in terms), torch.zeros(()))
    weights = [stepper.params.tensors[name] for name in sorted(stepper.params.blocks)]
    grads = torch.autograd.grad(total, weights, allow_unused=True)
    return terms, torch.cat([g.flatten() for g in grads if g is not None])


def spread(values: list[float]) -> dict[str, float]:
    """Return the mean, its standard error, and the standard deviation relative to the mean."""
    mean, deviation = statistics.fmean(values), statistics.stdev(values)
    return {"mean": mean, "error": deviation / len(values) ** 0.5, "relative": deviation / mean}


def measure(label: str, *, training: bool, draws: int, console: Console) -> dict[str, Any]:
    """Draw one estimator many times.

    Args:
        label: A key of ``LABELS``.
        training: Whether dropout is on, with the same masks in all passes of a draw.
        draws: Number of draws, at least 3.
        console: Receives progress.
    """
    workload = Workload("jachess")
    batch = reviews(AutoTokenizer.from_pretrained(minilm_folder()))
    workload.stepper.prepare([{**batch.inputs, "labels": batch.labels}])
    workload.model.train(training)
    values: dict[str, list[float]] = {"jacobian": [], "hessian": []}
    vectors = []
    for number in track(range(draws), label, console=console, transient=True):
        terms, gradient = draw(workload, batch, label, number)
        for term in terms:
            values[term.name].append(float(term.rows.detach().double().mean()))
        vectors.append(gradient)
    whole = torch.stack(vectors).sum(0)
    cosines = [float(torch.cosine_similarity(v, whole - v, dim=0)) for v in vectors]
    return {
        **{name: spread(each) for name, each in values.items()},
        "cosine": statistics.median(cosines),
    }


def main() -> None:
    """Measure every estimator, print the table and write ``results/estimator.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--draws", type=int, default=32, help="draws of each estimator")
    draws = parser.parse_args().draws
    torch.set_num_threads(THREADS)
    console = Console()
    table = Table(title=f"JacHess on one batch of MiniLM, {draws} draws")
    for column in ("dropout", "estimator", "Jacobian", "spread", "Hessian", "spread", "cosine"):
        table.add_column(column, justify="left" if column == "estimator" else "right")
    results: dict[str, dict[str, Any]] = {}
    for training, label in itertools.product((False, True), LABELS):
        result = measure(label, training=training, draws=draws, console=console)
        mode = "on" if training else "off"
        results.setdefault(mode, {})[label] = result
        cells = [mode, label]
        for name in ("jacobian", "hessian"):
            each = result[name]
            cells += [f"{each['mean']:.4g} ± {each['error']:.2g}", f"{each['relative']:.0%}"]
        table.add_row(*cells, f"{result['cosine']:.2f}")
    console.print(table)
    workload = {**Workload.describe(), "text": "embedded reviews", "optimizer": None, "clip": None}
    console.print(f"Written to {write('estimator', {'workload': workload, 'dropout': results})}")


if __name__ == "__main__":
    main()
