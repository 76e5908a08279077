"""The least work of a step of each method: forward passes, memory traffic and memory.

Run ``python -m dev.benchmarks.account --write docs/benchmarks.md``.
`temper.training.cost.passes_of` counts the passes; a test compares them with the costs that
methods declare. `MOVED` has the numbers that each update rule reads and writes. The memory is the
declared one. `limit` computes from passes and traffic the shortest possible time of a step,
relative to plain fine-tuning. `dev.benchmarks.step_cost` prints this limit next to the measured
ratio.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification

from dev.benchmarks.workload import METHODS, synthetic
from dev.tables import between
from temper.backward.averaging import FinalAverage, RunningAverage
from temper.backward.rule import UpdateRule, rules_of
from temper.display.wording import pipe_table
from temper.methods import Method, build, configure, entry
from temper.methods.adv_weight import SharpnessAware
from temper.methods.awp import RelativeAscent
from temper.methods.cautious import AgreeingUpdate
from temper.methods.child_tuning_d import ChosenMask
from temper.methods.child_tuning_f import RandomMask
from temper.methods.mixout import Mixing
from temper.methods.rec_adam import Recall
from temper.methods.selection import EpochSelectiveUpdate, SelectiveUpdate
from temper.methods.smart import WeightAverage
from temper.methods.w_cons import Anchor
from temper.models.blocks import Parameters
from temper.models.network import Network
from temper.training.cost import PLAIN, passes_of

OPENING, CLOSING = "<!-- account -->", "<!-- /account -->"
HEADINGS = ("method", "passes", "declared", "moved per weight", "memory")
VOCABULARY = 2000

MOVED: dict[type[UpdateRule], float] = {
    # Reads the weight, its initial value and the gradient; writes the gradient.
    Anchor: 4.0,
    # Reads the weight and the average; writes the average.
    WeightAverage: 3.0,
    RunningAverage: 3.0,
    FinalAverage: 3.0,
    # Reads the gradient for the ranks, then masks it.
    SelectiveUpdate: 3.0,
    # Reads the gradient and updates the importance; masking reads a byte per entry.
    EpochSelectiveUpdate: 5.25,
    # Reads and writes the gradient; ChosenMask also reads a byte of the mask.
    RandomMask: 2.0,
    ChosenMask: 2.25,
    # Reads the weight and its initial value, writes the copy and the mixture; reads and writes the
    # gradient; reads the copy and writes the weight. The mask, a byte per entry, is written once
    # and read twice.
    Mixing: 8.75,
    # Copies the weight; later reads weight, copy and initial value, and writes the weight.
    Recall: 6.0,
    # Copies the weights; then reads copy, gradient and weights, and writes the weights.
    AgreeingUpdate: 6.0,
    # Norm of the gradient; reads weight and gradient, writes copy and weight; restores the weight.
    SharpnessAware: 7.0,
    RelativeAscent: 7.0,
}
"""Numbers that a step reads or writes for each weight that the rule covers, in addition to
backward, clipping and the optimizer. They give the lower bound of the rule's time."""


def counted_model() -> BertForSequenceClassification:
    """Return a small model on which the matrix products of a step are counted."""
    torch.manual_seed(0)
    # Eager attention: torch does not count the products of the fused CPU kernel.
    config = BertConfig(
        vocab_size=VOCABULARY,
        hidden_size=32,
        num_hidden_layers=4,
        num_attention_heads=2,
        intermediate_size=128,
        attn_implementation="eager",
    )
    return BertForSequenceClassification(config)


def method_of(label: str) -> Method:
    """Return the method of a key of ``METHODS``."""
    name, settings = METHODS[label]
    return build(configure(name, settings))


def passes(label: str, model: BertForSequenceClassification) -> float:
    """Count the cost of a step in forward passes; a step of plain fine-tuning is 3."""
    counted = passes_of(model, method_of(label), synthetic(VOCABULARY, batch=2, tokens=8))
    assert counted is not None
    return counted


def covered(rule: UpdateRule, params: Parameters) -> list[str]:
    """Return the parameters that a rule changes."""
    names = getattr(rule, "names", None)
    return list(params.tensors) if names is None else list(names(params))


def moved(label: str, params: Parameters) -> dict[str, tuple[float, int]]:
    """Return for each rule the numbers moved per weight, and the number of weights it covers."""
    sizes = {name: tensor.numel() for name, tensor in params.tensors.items()}
    return {
        rule.name: (MOVED[type(rule)], sum(sizes[name] for name in covered(rule, params)))
        for rule in rules_of(method_of(label).rule)
        if type(rule) in MOVED
    }


def limit(
    counted: float,
    numbers: float,
    *,
    plain_passes: float,
    plain_update: float,
    seconds_a_number: float,
) -> float:
    """Return the shortest possible time of a step, relative to plain fine-tuning.

    ``(P F / 3 + U + n s) / (P + U)``: P and U are the times of the passes and of the update of a
    plain step, F the method's passes, n the numbers that its rule moves and s the time of one.

    Args:
        counted: F.
        numbers: n.
        plain_passes: P in seconds.
        plain_update: U in seconds, clipping and optimizer.
        seconds_a_number: s.

    Example:
        >>> limit(6, 0, plain_passes=0.3, plain_update=0.1, seconds_a_number=1e-9)
        1.75
    """
    floor = plain_passes * counted / PLAIN + plain_update + numbers * seconds_a_number
    return floor / (plain_passes + plain_update)


def markdown() -> str:
    """Return the table of all methods."""
    model = counted_model()
    params = Network(model).parameters()
    whole = sum(tensor.numel() for tensor in params.tensors.values())
    rows = []
    for label in METHODS:
        result = entry(METHODS[label][0])
        counts = [
            f"{each:g}{'' if size == whole else ' (of its part)'}"
            for each, size in moved(label, params).values()
        ]
        # About 1% of the products belong to the head and the attention.
        number = f"{round(passes(label, model), 1):g}F"
        rows.append([label, number, result.cost, " + ".join(counts) or "0", result.memory])
    return pipe_table(HEADINGS, rows) + "\n"


def main() -> None:
    """Print the table, or write it between the markers of a document."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--write", type=Path, help="the document")
    document = parser.parse_args().write
    if document is None:
        print(markdown())
        return
    text = document.read_text(encoding="utf-8")
    document.write_text(between(text, OPENING, CLOSING, lambda _: markdown()), encoding="utf-8")


if __name__ == "__main__":
    main()
