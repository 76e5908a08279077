"""Record a run while it trains: logs, times and scores of epochs; keep the best epoch's weights."""

from __future__ import annotations

import math
import re
import shutil
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn

from temper.checkpoints.folder import PARTIAL, RunFolder
from temper.data.encode import LazilyEncoded
from temper.data.examples import Examples, Kind
from temper.data.spans import answer_span, texts_at
from temper.data.tags import of_words
from temper.errors import CheckpointError, SettingError
from temper.functional import scores
from temper.functional.answers import SPAN_SCORES, answer_scores
from temper.functional.entities import COUNTS, tag_counts, tag_score
from temper.heads import Heads, best_spans
from temper.memory import MEBIBYTE, Gauge, gauge_of
from temper.models.kinds import head_inputs, head_of
from temper.models.modes import in_mode
from temper.progress import Progress
from temper.training.checkpoint_files import check_sums, put_in_place, read_state, write_state
from temper.types import Batch

DEV = "dev"
SELECTION = "selection"
BEST = re.compile(r"best-(\d+)")


class Listener:
    """A callback of Transformers' Trainer; subclasses define the events that they handle.

    It does not inherit from `TrainerCallback`, because this module must not import Transformers
    (the contract in pyproject.toml).
    """

    def __getattr__(self, name: str) -> Callable[..., None]:
        # Also events that later versions of Transformers add.
        if name.startswith("on_"):
            return lambda *_, **__: None
        raise AttributeError(name)


class Recorder(Listener):
    """Write the logs of a Trainer to ``metrics.jsonl``, time its steps, and report the progress.

    ``on_save`` is called when a checkpoint was written.
    """

    def __init__(
        self, folder: RunFolder, progress: Progress, *, on_save: Callable[[], None]
    ) -> None:
        self.done = 0
        self._folder, self._progress, self._on_save = folder, progress, on_save
        self._started = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        self._begun = time.perf_counter()
        self._earlier: Mapping[str, Any] = {}
        self._seconds: list[float] = []
        self._step_begun = 0.0
        self._loss: float | None = None
        self._gauge: Gauge | None = None

    def resume(self, step: int, times: Mapping[str, Any]) -> None:
        """Continue the timing of a run that stopped after ``step`` steps, from its ``times``."""
        self.done, self._earlier = step, times

    def times(self) -> dict[str, Any]:
        """Return the field ``times`` of ``run.json``."""
        earlier, steps = self._earlier, self._seconds
        seconds = earlier.get("train_seconds", 0.0) + time.perf_counter() - self._begun
        peak = 0 if self._gauge is None else self._gauge.peak()
        peak = max(peak, round(MEBIBYTE * earlier.get("memory_mib", 0.0)))
        return {
            "started": earlier.get("started", self._started),
            "train_seconds": round(seconds, 3),
            "step_seconds_median": median(steps) if steps else earlier.get("step_seconds_median"),
            "steps": self.done,
            **({"memory_mib": round(peak / MEBIBYTE, 1)} if peak else {}),
        }

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._begun = time.perf_counter()
        # The peak of a process would include earlier runs of the study.
        self._gauge = gauge_of(args.device) if args.device.type == "cuda" else None
        if self._gauge is not None:
            self._gauge.start()
        self._progress.steps(state.global_step, state.max_steps, loss=None)

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._step_begun = time.perf_counter()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._seconds.append(time.perf_counter() - self._step_begun)
        self.done = state.global_step
        if state.global_step >= state.max_steps:
            # A run that is shorter than `logging_steps` would leave no log at all.
            control.should_log = True
        self._progress.steps(state.global_step, state.max_steps, loss=self._loss)

    def on_log(
        self, args: Any, state: Any, control: Any, logs: Mapping[str, Any] | None = None, **_: Any
    ) -> None:
        """Write a training log; the summary at the end has no ``loss`` and goes to ``run.json``."""
        if not logs or "loss" not in logs:
            return
        self._loss = float(logs["loss"])
        entry = {
            "step": state.global_step,
            "epoch": state.epoch,
            **{name: value for name, value in logs.items() if name not in ("step", "epoch")},
        }
        self._folder.append_metrics(entry)
        self._progress.logged(entry)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        self._on_save()


@dataclass(frozen=True)
class ScoredSet:
    """Labeled rows that the model is scored on while it trains.

    Args:
        name: ``dev``, or ``selection`` for the rows that choose the epoch.
        names: Names of the tags, if words have tags.
        task: Name of the task, if the model has several.
    """

    name: str
    metric: str
    rows: LazilyEncoded
    kind: Kind = "classification"
    names: Sequence[str] = ()
    task: str | None = None

    @property
    def label(self) -> str:
        """The score's name in ``metrics.jsonl``."""
        return "/".join(filter(None, (self.name, self.task, self.metric)))

    def score(
        self, model: nn.Module, collate: Callable[[Any], Mapping[str, Any]], *, batch_size: int
    ) -> float | None:
        """Score a model without changing it or drawing random numbers; None if it is undefined."""
        heads = Heads(head_of(model))
        result: list[Any] = [0.0] * len(self.rows)
        further = {} if self.task is None else {"task": self.task}
        with torch.no_grad(), in_mode(model, training=False):
            batches = self._batches(collate, batch_size, next(model.parameters()).device)
            if self.kind in ("completions", "seq2seq"):
                return _loss_per_token(model, heads, (batch for _, batch in batches))
            for indices, batch in batches:
                head = heads.of(batch.labels)
                logits = head.logits(model(**batch.inputs, **further), batch)
                predictions: list[Any]
                if self.kind == "spans":
                    predictions = self._spans(batch, indices, logits)
                elif self.kind == "tokens":
                    words = [self.rows[index]["words"] for index in indices]
                    tags = head.predictions(logits).cpu().numpy()
                    by_row = of_words(tags, batch.begins, words, missing=-1)
                    predictions = [row.tolist() for row in by_row]
                else:
                    predictions = head.by_row(head.predictions(logits)).tolist()
                for index, prediction in zip(indices, predictions, strict=True):
                    result[index] = prediction
        labels = self.rows.columns["labels"]
        if self.kind == "spans":
            right = [[text for _, text in answers] for answers in labels]
            value = float(answer_scores(result, right)[:, SPAN_SCORES.index(self.metric)].mean())
        elif self.kind == "tokens":
            counts = tag_counts(labels, result, self.names).sum(0)
            value = float(tag_score(self.metric, dict(zip(COUNTS, counts, strict=True))))
        else:
            value = float(scores.measure_of(self.metric)(labels, result))
        return value if math.isfinite(value) else None

    def _batches(
        self, collate: Callable[[Any], Mapping[str, Any]], size: int, device: torch.device
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of rows of similar length, with the rows' indices."""
        # A DataLoader would draw from the global generator, which training may use.
        order = sorted(range(len(self.rows)), key=list(self.rows.lengths).__getitem__)
        for start in range(0, len(order), size):
            indices = order[start : start + size]
            yield indices, Batch.of(collate([self.rows[i] for i in indices])).to(device)

    def _spans(self, batch: Batch, indices: Sequence[int], logits: Tensor) -> list[str]:
        contexts = self.rows.examples.text_pair
        assert contexts is not None
        ends = (best_spans(logits)[0] - batch.begins.unsqueeze(1)).tolist()
        rows = zip(indices, ends, strict=True)
        spans = [answer_span(self.rows[index], *pair) for index, pair in rows]
        return texts_at(spans, [contexts[index] for index in indices])


def _loss_per_token(model: nn.Module, heads: Heads, batches: Iterable[Batch]) -> float | None:
    """Return the mean negative log-likelihood of the completions' tokens."""
    total, tokens = 0.0, 0
    for batch in batches:
        assert batch.labels is not None
        head = heads.of(batch.labels)
        output = model(**batch.inputs, **head_inputs(head, batch, model))
        total += float(head.loss(head.logits(output, batch), batch.labels).sum())
        tokens += head.units(batch)
    return total / tokens if tokens else None


def carve(rows: Examples, fraction: float, *, seed: int) -> tuple[Examples, Examples]:
    """Hold out training rows that choose the best epoch; return the remaining rows first.

    A ``fraction`` in (0, 1) of each class is held out, by a hash of the seed and the text, so the
    order of the file does not matter. Equal texts stay together, and no class loses all its rows.

    Raises:
        SettingError: There are too few rows to hold any out.

    Example:
        >>> toy = Examples("toy", list("abcdef"), labels=[0, 1] * 3, kind="classification")
        >>> [len(part) for part in carve(toy, 0.34, seed=0)]
        [4, 2]
    """
    drawn = rows.draw(max(1, round(fraction * len(rows))), seed=seed)
    texts = {rows.rows[index] for index in drawn}
    if rows.kind == "classification" and rows.labels is not None:
        pairs = list(zip(rows.rows, rows.labels, strict=True))
        left = {label for text, label in pairs if text not in texts}
        texts -= {text for text, label in pairs if label not in left}
    chosen = [index for index, text in enumerate(rows.rows) if text in texts]
    rest = [index for index, text in enumerate(rows.rows) if text not in texts]
    if not chosen or not rest:
        raise SettingError(
            f"`train.keep` is 'best', which holds out {fraction:g} of the training rows to choose "
            f"the epoch, and {len(rows)} rows are too few for that. Pass more rows, raise "
            "train.keep_fraction, or use train.keep=last."
        )
    return rows.select(rest), rows.select(chosen)


@dataclass(eq=False)
class EpochScores(Listener):
    """Score sets after each epoch, write the scores to ``metrics.jsonl``, keep the best epoch.

    If a set is named ``selection``, it chooses the best epoch (the first of equals). The weights of
    that epoch are stored next to the checkpoints, and loaded at the end of training, before the
    method changes the final weights.

    ``send`` receives the scores (by name) and the step, for experiment trackers.
    """

    sets: Sequence[ScoredSet]
    collate: Callable[[Any], Mapping[str, Any]]
    batch_size: int
    folder: RunFolder
    progress: Progress
    send: Callable[[Mapping[str, float | None], int], None] | None = field(default=None, init=False)
    entries: list[dict[str, Any]] = field(default_factory=list, init=False)
    _finished: dict[str, float | None] = field(default_factory=dict, init=False)

    @property
    def best(self) -> dict[str, Any] | None:
        """Record of the epoch with the best score on the selection rows; None without such rows."""
        chooser = next((item for item in self.sets if item.name == SELECTION), None)
        if chooser is None:
            return None
        label = chooser.label
        sign = 1 if scores.facts(chooser.metric).higher_is_better else -1
        scored = (entry for entry in self.entries if entry[label] is not None)
        return max(scored, key=lambda entry: sign * entry[label], default=None)

    def resume(self, step: int) -> None:
        """Read the scores that a stopped run wrote up to ``step``."""
        labels = [item.label for item in self.sets]
        logs = self.folder.logs() if labels else []
        self.entries = [log for log in logs if all(label in log for label in labels)]
        self._drop(lambda number: number > step)
        if self.best is not None and not self._weights(self.best["step"]).is_dir():
            raise CheckpointError(
                f"{self._weights(self.best['step'])} is missing: it has the weights of the best "
                "epoch so far. Start over with --restart."
            )

    def record(self, task: str | None = None) -> dict[str, Any] | None:
        """Return the field ``epochs`` of ``run.json`` for a task; None if nothing is scored."""
        sets = [item for item in self.sets if item.task == task]
        if not sets or not self.entries:
            return None
        epochs = [
            {name: entry[name] for name in ("epoch", "step")}
            | {item.name: entry[item.label] for item in sets}
            for entry in self.entries
        ]
        best = self.best
        kept = epochs[-1 if best is None else self.entries.index(best)]
        # The scores of the final weights, if the method changed them after the epoch.
        finished = {e.name: self._finished[e.label] for e in sets if e.label in self._finished}
        by = "last" if best is None else "best"
        return {"metric": sets[0].metric, "scores": epochs, "kept": {"by": by, **kept, **finished}}

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Score the last finished epoch, if the run stopped between its checkpoint and score."""
        ended = state.epoch == round(state.epoch or 0) or state.global_step >= state.max_steps
        scored = self.entries and self.entries[-1]["step"] >= state.global_step
        if state.global_step and ended and not scored:
            self._score(kwargs["model"], state)

    def on_epoch_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._score(kwargs["model"], state)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Delete stored weights that a run resumed from this checkpoint would not need."""
        newest = max((step for step in self._kept() if step <= state.global_step), default=0)
        self._drop(lambda number: number < newest)

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Load the weights of the best epoch; afterwards the method may still change them."""
        best = self.best
        if best is None or best["step"] == state.global_step:
            return
        check_sums(self._weights(best["step"]))
        saved = read_state(self._weights(best["step"]), name="weights")
        with torch.no_grad():
            for name, tensor in _trained(kwargs["model"]).items():
                tensor.copy_(saved[name])

    def score_finished(self, model: nn.Module) -> None:
        """Score the final weights, if the method changed them after training."""
        self._finished = self._all(model)

    def _score(self, model: nn.Module, state: Any) -> None:
        if not self.sets:
            return
        result = self._all(model)
        entry = {"step": state.global_step, "epoch": state.epoch, **result}
        self.entries.append(entry)
        # The weights come first: a line without them would name an epoch that cannot be kept.
        if self.best is entry and self.folder.writes:
            partial = self.folder.checkpoints / f"{PARTIAL}best-{state.global_step}"
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            write_state(_trained(model), partial, name="weights")
            put_in_place(partial, self._weights(state.global_step))
        self.folder.append_metrics(entry)
        self.progress.logged(entry)
        if self.send is not None:
            self.send(result, state.global_step)

    def _all(self, model: nn.Module) -> dict[str, float | None]:
        return {
            item.label: item.score(model, self.collate, batch_size=self.batch_size)
            for item in self.sets
        }

    def _drop(self, is_unwanted: Callable[[int], bool]) -> None:
        for step in filter(is_unwanted, self._kept() if self.folder.writes else ()):
            shutil.rmtree(self._weights(step))

    def _weights(self, step: int) -> Path:
        return self.folder.checkpoints / f"best-{step}"

    def _kept(self) -> list[int]:
        names = (folder.name for folder in self.folder.checkpoints.glob("best-*"))
        return [int(match[1]) for name in names if (match := BEST.fullmatch(name))]


def _trained(model: nn.Module) -> dict[str, Tensor]:
    weights = {name: p for name, p in model.named_parameters() if p.requires_grad}
    return {**weights, **dict(model.named_buffers())}
