"""Time of the text attack's search, batched in three ways.

Run ``python -m dev.benchmarks.text_attack``. MiniLM is fine-tuned briefly on SST-2, then the
correctly predicted dev rows are attacked by typing errors and look-alikes in three ways: one query
per forward pass; one example at a time with its queries batched; and all examples of a round
together. The order of the ways is random in every round, and each ratio is between sums over the
rounds. All three must find the same texts with the same queries; rows for which they differ are
counted.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from dev.benchmarks.record import write
from dev.benchmarks.workload import minilm_folder
from temper import Stepper
from temper.data.collator import Collator
from temper.data.encode import encode
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.data.sources import load_splits
from temper.evaluation.classifier import ClassifierPredictor
from temper.evaluation.prediction import Prediction
from temper.evaluation.text_attack.contract import TextAttackSettings
from temper.evaluation.text_attack.recipes import CHARACTERS
from temper.evaluation.text_attack.search import (
    Outcome,
    Row,
    attack,
    draft_of,
    free_positions,
    outputs_of,
)
from temper.methods import configure
from temper.seeding import derive_seed

THREADS = 2
TOKENS, BATCH = 64, 32
TRAIN_BATCH, LEARNING_RATE = 32, 5e-5
BUDGETS = (10, 20, 40, 80, 160)
ONE_QUERY, ONE_EXAMPLE, ACROSS = "one query a forward", "one example at a time", "across examples"
WAYS = (ONE_QUERY, ONE_EXAMPLE, ACROSS)
# Required speedup of searching across examples over each other way.
TARGETS = {ONE_QUERY: 2.0, ONE_EXAMPLE: 1.0}


def trained(
    train: Examples,
    *,
    console: Console,
    batch: int = TRAIN_BATCH,
    rate: float = LEARNING_RATE,
) -> ClassifierPredictor:
    """Fine-tune MiniLM for one epoch.

    Args:
        train: The rows.
        console: Receives progress.
        batch: Rows of a step.
        rate: Learning rate of AdamW.
    """
    torch.manual_seed(0)
    tokenizer = AutoTokenizer.from_pretrained(minilm_folder())
    model = AutoModelForSequenceClassification.from_pretrained(
        minilm_folder(), num_labels=train.classes
    )
    stepper = Stepper(model.train(), configure("plain"), seed=0)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    items, collate = encode(train, tokenizer, max_length=TOKENS).items, Collator(tokenizer)
    order = random.Random(0).sample(items, len(items))
    starts = range(0, len(order), batch)
    for start in track(starts, "fine-tuning", console=console, transient=True):
        optimizer.zero_grad(set_to_none=True)
        stepper.backward(collate(order[start : start + batch]))
        stepper.step(optimizer)
    stepper.remove_hooks()
    return ClassifierPredictor(model.eval(), tokenizer, max_length=TOKENS, batch_size=BATCH)


def rows_of(
    predictor: ClassifierPredictor, dev: Examples, settings: TextAttackSettings
) -> list[Row]:
    """Return the correctly predicted dev rows as targets of the attack."""
    result = predictor.predict(dev)
    assert result.logits is not None
    assert dev.labels is not None
    rows = []
    for at, (row, label, text) in enumerate(zip(dev.rows, dev.labels, dev.text, strict=True)):
        draft = draft_of(row, int(label), text, None)
        own = Prediction.of_logits(result.logits[[at]])
        output = outputs_of(own, [draft])[0]
        if not output.reached:
            positions, words = free_positions(draft, settings)
            rows.append(Row(draft, output, positions, words, derive_seed(0, row)))
    return rows


def ways_of(
    predictor: ClassifierPredictor, settings: TextAttackSettings
) -> dict[str, Callable[[list[Row]], list[Outcome]]]:
    """Return the three ways to attack rows, by name."""
    single, batched = (partial(predictor.predict, batch_size=size) for size in (1, BATCH))
    return {
        ONE_QUERY: lambda rows: [attack([row], single, CHARACTERS, settings)[0] for row in rows],
        ONE_EXAMPLE: lambda rows: [attack([row], batched, CHARACTERS, settings)[0] for row in rows],
        ACROSS: lambda rows: attack(rows, batched, CHARACTERS, settings),
    }


def measure(
    rows: list[Row],
    ways: dict[str, Callable[[list[Row]], list[Outcome]]],
    *,
    together: int,
    console: Console,
) -> tuple[dict[str, list[float]], dict[str, list[Outcome]]]:
    """Attack the rows in rounds, in every way.

    Args:
        rows: Targets.
        ways: Functions by name.
        together: Rows per round.
        console: Where progress goes.

    Returns:
        Seconds of each round and the outcomes, by way.
    """
    seconds: dict[str, list[float]] = {name: [] for name in ways}
    outcomes: dict[str, list[Outcome]] = {name: [] for name in ways}
    order = random.Random(0)
    for way in ways.values():
        way(rows[:2])  # warm-up of threads and allocators
    rounds = range(0, len(rows), together)
    for start in track(rounds, "rounds", console=console, transient=True):
        for name in order.sample(list(ways), len(ways)):
            begun = time.perf_counter()
            outcomes[name] += ways[name](rows[start : start + together])
            seconds[name].append(time.perf_counter() - begun)
    return seconds, outcomes


def speed(seconds: dict[str, list[float]]) -> dict[str, dict[str, Any]]:
    """Compute the time of each way, relative to searching across examples.

    Args:
        seconds: Seconds of each round, by way.

    Returns:
        For each way the total ``seconds``, ``over_across`` (the ratio of sums), ``middle_half``
        (quartiles of the ratio by round) and ``at_least`` (the required ratio).
    """
    result = {}
    for name, own in seconds.items():
        ratios = [one / other for one, other in zip(own, seconds[ACROSS], strict=True)]
        quartiles = statistics.quantiles(ratios, n=4) if len(ratios) > 1 else ratios * 3
        result[name] = {
            "seconds": sum(own),
            "over_across": sum(own) / sum(seconds[ACROSS]),
            "middle_half": [quartiles[0], quartiles[2]],
            "at_least": TARGETS.get(name),
        }
    return result


def successes(outcomes: list[Outcome]) -> dict[str, float]:
    """Return the fraction of successful attacks within each budget of queries, and in total.

    Args:
        outcomes: Outcomes of an attack without a limit.
    """
    spent = [outcome.queries for outcome in outcomes if outcome.output.reached]
    within = {str(budget): sum(q <= budget for q in spent) / len(outcomes) for budget in BUDGETS}
    return {**within, "any": len(spent) / len(outcomes)}


def differing(outcomes: dict[str, list[Outcome]]) -> int:
    """Count the rows for which the ways differ in the text or in the number of queries."""
    ends = [[(each.draft.text, each.queries) for each in own] for own in outcomes.values()]
    return sum(len(set(row)) > 1 for row in zip(*ends, strict=True))


def table_of(result: dict[str, dict[str, Any]], *, title: str) -> Table:
    """Return the printed table.

    Args:
        result: Output of `speed`.
        title: Title of the table.
    """
    table = Table(title=title)
    for column in ("way", "seconds", "over across examples", "middle half", "at least"):
        table.add_column(column, justify="left" if column == "way" else "right")
    for name, row in result.items():
        low, high = row["middle_half"]
        table.add_row(
            name,
            f"{row['seconds']:.1f}",
            f"{row['over_across']:.2f}",
            f"{low:.2f} to {high:.2f}",
            f"{row['at_least']:.1f}" if row["at_least"] else "",
        )
    return table


def main() -> None:
    """Time the three ways, print the table and write ``results/NAME.json``."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("--data", default="../shared/data/sst2", help="folder, file or Hub id")
    parser.add_argument("--train-rows", type=int, default=4000, help="rows to fine-tune on")
    parser.add_argument("--rows", type=int, default=200, help="dev rows, right or wrong")
    parser.add_argument("--together", type=int, default=32, help="rows per round")
    parser.add_argument("--name", default="text_attack", help="name of the file in results/")
    arguments = parser.parse_args()
    torch.set_num_threads(THREADS)
    console = Console()
    asked = {"rows": arguments.train_rows, "eval_rows": arguments.rows}
    splits = load_splits(DataSettings.model_validate({"source": arguments.data, **asked}))
    predictor = trained(splits.train, console=console)
    settings = TextAttackSettings()
    rows = rows_of(predictor, splits.dev, settings)
    ways = ways_of(predictor, settings)
    seconds, outcomes = measure(rows, ways, together=arguments.together, console=console)
    result = {
        "workload": {
            "model": "sentence-transformers/all-MiniLM-L6-v2",
            "data": arguments.data.rstrip("/").rpartition("/")[2],
            "train_rows": len(splits.train),
            "dev_rows": len(splits.dev),
            "right": len(rows),
            "together": arguments.together,
            "batch": BATCH,
            "tokens": TOKENS,
            "recipe": "characters",
            "settings": settings.model_dump(mode="json"),
        },
        "ways": speed(seconds),
        "samples": seconds,
        "queries": sum(outcome.queries for outcome in outcomes[ACROSS]) / len(rows),
        "made_wrong_within_queries": successes(outcomes[ACROSS]),
        "rows_that_differ": differing(outcomes),
    }
    title = f"Attacks on {len(rows)} rows, {arguments.together} per round"
    console.print(table_of(speed(seconds), title=title))
    console.print(f"successful within queries: {result['made_wrong_within_queries']}")
    console.print(f"rows that differ between the ways: {result['rows_that_differ']}")
    console.print(f"Written to {write(arguments.name, result)}")


if __name__ == "__main__":
    main()
