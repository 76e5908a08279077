"""What a step of each method must spend, from what the methods themselves declare.

Run ``python -m dev.benchmarks.account --write docs/benchmarks.md``. Passes are counted by
`temper.training.passes.passes_of`, which a test holds to the costs that methods declare; numbers
that an update rule moves are listed in `MOVED`; memory is as declared. `limit` turns both into the
time of a step over plain fine-tuning's, which `dev.benchmarks.step_cost` prints its measured ratio
against.
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
from temper.backward.selective import EpochSelectiveUpdate, SelectiveUpdate
from temper.display.wording import pipe_table
from temper.methods import Method, build, configure, entry
from temper.methods.adv_weight import SharpnessAware
from temper.methods.awp import RelativeAscent
from temper.methods.cautious import AgreeingUpdate
from temper.methods.child_tuning_d import ChosenMask
from temper.methods.child_tuning_f import RandomMask
from temper.methods.mixout import Mixing
from temper.methods.rec_adam import Recall
from temper.methods.smart import WeightAverage
from temper.methods.w_cons import Anchor
from temper.models.blocks import Parameters
from temper.models.network import Network
from temper.training.passes import PLAIN, passes_of

OPENING, CLOSING = "<!-- account -->", "<!-- /account -->"
HEADINGS = ("method", "passes", "declared", "moved per weight", "memory")
VOCABULARY = 2000

MOVED: dict[type[UpdateRule], float] = {
    # Weight, start and gradient are read, the gradient is written.
    Anchor: 4.0,
    # Weight and average are read, the average is written.
    WeightAverage: 3.0,
    RunningAverage: 3.0,
    FinalAverage: 3.0,
    # The gradient is read for its ranks, then masked.
    SelectiveUpdate: 3.0,
    # The gradient is read and the importance rewritten; masking reads a byte per entry.
    EpochSelectiveUpdate: 5.25,
    # The gradient is read and written, and ChosenMask reads a byte of the mask.
    RandomMask: 2.0,
    ChosenMask: 2.25,
    # Weight and start are read, copy and mixture written; the gradient is read and written, and the
    # copy read and the weight written. A mask of a byte is written once and read twice.
    Mixing: 8.75,
    # The weight is copied; later weight, copy and start are read and the weight is written.
    Recall: 6.0,
    # The weights are copied; then copy, gradient and weights are read and the weights written.
    AgreeingUpdate: 6.0,
    # The gradient's norm; weight and gradient read, copy and weight written; the weight put back.
    SharpnessAware: 7.0,
    RelativeAscent: 7.0,
}
"""Memory traffic of a step in numbers (reads and writes) per weight that a rule covers, in addition
to backward, clipping and the optimizer. It is the lower bound for the measured time of the rule."""


def counted_model() -> BertForSequenceClassification:
    """Return a small model whose products are counted as a larger one's would be."""
    torch.manual_seed(0)
    # Eager attention: of the fused kernel of a CPU nobody counts the products.
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
    """Return the method of a row of the tables."""
    name, settings = METHODS[label]
    return build(configure(name, settings))


def passes(label: str, model: BertForSequenceClassification) -> float:
    """Count the forward passes that a step of a method is worth; plain fine-tuning's is 3."""
    counted = passes_of(model, method_of(label), synthetic(VOCABULARY, batch=2, tokens=8))
    assert counted is not None
    return counted


def covered(rule: UpdateRule, params: Parameters) -> list[str]:
    """Return the parameters that a rule works on."""
    names = getattr(rule, "names", None)
    return list(params.tensors) if names is None else list(names(params))


def moved(label: str, params: Parameters) -> dict[str, tuple[float, int]]:
    """Return for each rule the numbers that it moves per weight, and how many weights it covers."""
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
    """Return the least time of a step over plain fine-tuning's.

    ``(P F / 3 + U + n s) / (P + U)``: P and U are what the passes and the update of a plain step
    take, F the method's passes, n the numbers that its rule moves and s what one takes.

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
    """Write the table of all methods."""
    model = counted_model()
    params = Network(model).parameters()
    whole = sum(tensor.numel() for tensor in params.tensors.values())
    rows = []
    for label in METHODS:
        found = entry(METHODS[label][0])
        told = [
            f"{each:g}{'' if size == whole else ' (of its part)'}"
            for each, size in moved(label, params).values()
        ]
        # A per cent of the products is the head's and the attention's.
        number = f"{round(passes(label, model), 1):g}F"
        rows.append([label, number, found.cost, " + ".join(told) or "0", found.memory])
    return pipe_table(HEADINGS, rows) + "\n"


def main() -> None:
    """Print the table, or write it into a document between its marks."""
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
