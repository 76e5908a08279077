"""Find the learning rate of a run: a range test gives candidates, short trainings choose one.

1. Range test (Smith 2017, section 3.3): the method trains from the start weights while the rate
   rises geometrically. Where the smoothed loss leaves its lowest value by more than its noise,
   training is no longer stable.
2. Five rates below that edge, half a decade apart, each train from the same start for a quarter of
   the run's steps (at least 100, or all of fewer), with the run's own schedule. The least loss on
   rows held back from training wins.

Neither part reads the dev rows. Every draw is a function of the data's seed, so that all seeds of
one comparison find the same rate: it is a setting of the column, and a rate a seed would let the
noise of a short training into the spread over the seeds.

Differs: Smith reads the rate off the curve of the accuracy. On the few steps that fine-tuning has,
the curve says where training breaks, and not which rate is best; the held-out rows say that.
"""

from __future__ import annotations

import math
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, Final

import torch
from torch.nn.functional import cross_entropy, mse_loss

from temper.data.examples import Examples, Splits
from temper.data.splitting import carve
from temper.errors import CheckpointError, NonFiniteError, SettingError
from temper.evaluation.classifier import ClassifierPredictor
from temper.files import make_folder, write_json
from temper.training.checkpoint_folder import RATE_FILE, read_json
from temper.training.config import RunConfig, run_key, with_rate
from temper.training.prepared import Prepared, prepare, with_head
from temper.training.progress import Progress
from temper.training.recorder import Listener
from temper.training.run import make_trainer
from temper.training.settings import AUTO

LOWEST: Final = 1e-6
HIGHEST: Final = 1e-1
RANGE_STEPS: Final = 50
SMOOTHING: Final = 0.8
CANDIDATES: Final = 5
SHARE: Final = 0.25
"""Share of the run's steps that each candidate trains for, and the least of them."""
LEAST_STEPS: Final = 100
HELD_BACK: Final = 0.2
MOST_HELD_BACK: Final = 1000


def stable_edge(rates: Sequence[float], losses: Sequence[float]) -> float:
    """Return the highest rate before the loss of a range test leaves its valley.

    ``s_t`` is the exponential mean of the losses, corrected for its start. Training is stable until
    ``s_t > min s + m``; ``m`` is four standard deviations of ``s``, estimated from the first
    quarter of the losses, where the rate is too low to matter, and at least 10 % of their mean:
    batches differ more once the model begins to learn.

    Args:
        rates: The rate of each step, rising; four or more.
        losses: The loss of each step; fewer than rates where training broke off.

    Returns:
        One of the rates.

    Example:
        >>> stable_edge([1e-4, 1e-3, 1e-2, 1e-1], [1.0, 0.5, 0.4, 9.0])
        0.01
    """
    calm = losses[: max(2, len(rates) // 4)]
    spread = stdev(calm) if len(calm) > 1 and len(rates) >= 8 else 0.0
    noise = spread * math.sqrt((1 - SMOOTHING) / (1 + SMOOTHING))
    margin = max(4 * noise, 0.1 * abs(fmean(calm)))
    mean, lowest = 0.0, math.inf
    for step, loss in enumerate(losses):
        mean = SMOOTHING * mean + (1 - SMOOTHING) * loss
        smooth = mean / (1 - SMOOTHING ** (step + 1))
        if smooth > lowest + margin and step >= len(calm):
            return rates[step - 1]
        lowest = min(lowest, smooth)
    return rates[max(0, min(len(losses), len(rates)) - 1)]


def candidates(edge: float) -> list[float]:
    """Return the rates that are tried, highest first: half a decade apart, below the edge.

    Example:
        >>> candidates(1e-3)
        [0.00032, 0.0001, 3.2e-05, 1e-05, 3.2e-06]
    """
    # Two digits, so that a report shows the very rate that was trained with.
    return [float(f"{edge * 10 ** (-0.5 * place):.1e}") for place in range(1, CANDIDATES + 1)]


@dataclass
class _Rising(Listener):
    """Let the rate of every parameter group rise by one factor a step, and keep the losses."""

    losses: list[float] = field(default_factory=list)

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Set the rate of this step."""
        factor = (HIGHEST / LOWEST) ** (state.global_step / (RANGE_STEPS - 1))
        for group in kwargs["optimizer"].param_groups:
            group["lr"] = group["initial_lr"] * factor

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Keep the loss of a step."""
        if logs and "loss" in logs:
            self.losses.append(float(logs["loss"]))


@dataclass(frozen=True)
class RateSearch:
    """The search for one run's rate.

    Args:
        config: The run's settings; its learning rate is ``auto``.
        splits: The run's rows, of which those to train on are read.
        file: Where what is found is kept, part by part.
        progress: Hears how far it is.
    """

    config: RunConfig
    splits: Splits
    file: Path
    progress: Progress

    def run(self) -> float:
        """Find the rate; parts that the file holds are not done again.

        Raises:
            CheckpointError: The file holds the search of other settings or rows.
            SettingError: There are too few rows, or no rate trains without breaking.
        """
        key = run_key(self.config, self.splits)
        found = read_json(self.file) if self.file.exists() else {}
        if found and found.get("key") != key:
            raise CheckpointError(
                f"{self.file} holds the search for the rate of other settings or rows. Give "
                "another --out, or remove that file."
            )
        if "chosen" in found:
            return float(found["chosen"])
        # Draws are the same for all seeds of a comparison.
        seed = self.config.data.seed % 2**32
        parts = carve(
            self.splits.train,
            min(HELD_BACK, MOST_HELD_BACK / len(self.splits.train)),
            seed=seed,
        )
        length = steps_of(self.config, len(self.splits.train))
        short = min(length, max(LEAST_STEPS, round(SHARE * length)))
        self.progress.notice(
            f"learning rate: a range test of {RANGE_STEPS} steps and {CANDIDATES} trainings of "
            f"{short} steps find it first, {(RANGE_STEPS + CANDIDATES * short) / length:.1f} times "
            f"the {length} steps of the run."
        )
        if not found:
            rising = _Rising()
            self._tell(0, "a range test")
            self._train(parts.train, LOWEST, RANGE_STEPS, seed, rising, schedule="constant")
            rates = [
                LOWEST * (HIGHEST / LOWEST) ** (step / (RANGE_STEPS - 1))
                for step in range(RANGE_STEPS)
            ]
            found = {
                "key": key,
                "held_back": {"rows": len(parts.dev), "hash": parts.dev.hash},
                "range": {"rates": rates[: len(rising.losses)], "losses": rising.losses},
                "edge": stable_edge(rates, rising.losses),
                "tried": [],
            }
            self._keep(found)
        for place, rate in enumerate(candidates(found["edge"])):
            if place < len(found["tried"]):
                continue
            self._tell(place + 1, f"{rate:g}")
            prepared = self._train(parts.train, rate, short, seed)
            loss = None if prepared is None else self._held_back_loss(prepared, parts.dev)
            found["tried"].append({"rate": rate, "steps": short, "loss": loss})
            self._keep(found)
        finite = [each for each in found["tried"] if each["loss"] is not None]
        if not finite:
            tried = ", ".join(f"{each['rate']:g}" for each in found["tried"])
            raise SettingError(
                f"`train.learning_rate` is '{AUTO}', but the loss of no rate that was tried "
                f"({tried}) stayed finite. Give a rate."
            )
        found["chosen"] = min(finite, key=lambda each: each["loss"])["rate"]
        self._keep(found)
        return float(found["chosen"])

    def _train(
        self, rows: Examples, rate: float, steps: int, seed: int, *listeners: Any, **changes: Any
    ) -> Prepared | None:
        """Train from the start weights; None where a loss is not finite."""
        train = {"learning_rate": rate, "max_steps": steps, "logging_steps": 1, "evaluate": "off"}
        config = self.config.model_copy(
            update={
                "seed": seed,
                "data": self.config.data.model_copy(update={"augment": ()}),
                "train": self.config.train.model_copy(
                    update={**train, "keep": "last", "report_to": (), **changes}
                ),
            }
        )
        prepared = prepare(config, with_head(config, replace(self.splits, train=rows)))
        with tempfile.TemporaryDirectory() as folder:
            trainer = make_trainer(prepared, config, folder, listeners, save_strategy="no")
            try:
                trainer.train()
            except NonFiniteError:
                return None
        return replace(prepared, model=trainer.accelerator.unwrap_model(trainer.model))

    def _held_back_loss(self, prepared: Prepared, rows: Examples) -> float | None:
        """Return the mean task loss on rows that were not trained on; None if it is not finite."""
        predictor = ClassifierPredictor(
            prepared.model,
            prepared.tokenizer,
            max_length=self.config.data.max_length,
            batch_size=self.config.train.batch_size,
        )
        answers = torch.from_numpy(predictor.outputs(predictor.encoded(rows)))
        labels = torch.tensor(rows.labels)
        if rows.kind == "regression":
            loss = float(mse_loss(answers[:, 0], labels.to(answers.dtype)))
        else:
            loss = float(cross_entropy(answers, labels.long()))
        return loss if math.isfinite(loss) else None

    def _tell(self, done: int, what: str) -> None:
        self.progress.evaluation(done, CANDIDATES + 1, f"the learning rate: {what}")

    def _keep(self, found: Mapping[str, Any]) -> None:
        make_folder(self.file.parent)
        write_json(self.file, found)


def steps_of(config: RunConfig, rows: int) -> int:
    """Return the optimiser steps of a run, those on unlabelled rows left out.

    Args:
        config: Its settings.
        rows: Rows that it trains on.
    """
    train = config.train
    if train.max_steps is not None:
        return train.max_steps
    return math.ceil(train.epochs * math.ceil(rows / (train.batch_size * train.accumulation)))


def passes_over_rows(config: RunConfig, rows: int) -> float:
    """Return how often a run sees a row.

    Args:
        config: Its settings.
        rows: Rows that it trains on.
    """
    seen = steps_of(config, rows) * config.train.batch_size * config.train.accumulation
    return seen / rows


def found_rate(
    config: RunConfig, splits: Splits, folder: Path, progress: Progress
) -> tuple[RunConfig, Splits]:
    """Find the rate of a single run, and keep the search in its folder.

    Args:
        config: The run's settings; those with a rate of their own are returned as they are.
        splits: Its rows.
        folder: The run's folder.
        progress: Hears of it.

    Returns:
        The settings with the rate, and the rows with a notice of it, which the record keeps.

    Raises:
        TemperError: Where the folder holds a run with a given rate, or the search fails.
    """
    if config.train.learning_rate != AUTO:
        return config, splits
    if (folder / "run.json").exists() and not (folder / RATE_FILE).exists():
        raise CheckpointError(
            f"{folder} holds a run whose learning rate was given, and it is '{AUTO}' now. Give "
            "another --out, or remove that folder."
        )
    rows = splits if config.data.unlabeled is not None else splits.labelled()
    rate = RateSearch(config, rows, folder / RATE_FILE, progress).run()
    notice = f"The learning rate {rate:g} was found on rows held back from training ({RATE_FILE})."
    progress.notice(notice)
    return with_rate(config, rate), replace(splits, notices=(*splits.notices, notice))
