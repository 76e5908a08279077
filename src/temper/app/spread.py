"""A predictor whose rows the machines of a Ray cluster answer, mapped over them by Ray Data."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

from temper.app import plugins
from temper.app.cluster import Cluster, load_ray
from temper.app.predictors import load_predictor, names_code, predictor_identity
from temper.app.settings import PredictorSettings
from temper.data.examples import Examples
from temper.errors import TemperError, one_line
from temper.evaluation.predictor import Precision, Prediction, Predictor
from temper.models.hf import lasting_name
from temper.training.progress import Progress

ROWS = 512
"""Rows that a machine answers at once."""


@dataclass(frozen=True)
class Loading:
    """How a machine loads a predictor; see `temper.app.predictors.load_predictor`.

    Args:
        model: Its name, under which every machine finds the same.
        max_length: Tokens a text is cut to, of a checkpoint.
        batch_size: Rows of a forward pass.
        precision: What a checkpoint answers in.
        settings: What the predictor does not say itself.
        imports: What this process has imported for a user.
    """

    model: str
    max_length: int | None
    batch_size: int
    precision: Precision
    settings: PredictorSettings
    imports: tuple[str, ...] = ()

    def load(self) -> Predictor:
        """Load it."""
        plugins.load_all(self.imports)
        return load_predictor(
            self.model,
            max_length=self.max_length,
            batch_size=self.batch_size,
            precision=self.precision,
            settings=self.settings,
        )

    def identity(self) -> str:
        """Return what the model is recognised by."""
        return predictor_identity(self.model, self.settings)


def whole_name(model: str) -> str:
    """Return what a model is called on other machines: files and folders by their whole path.

    Args:
        model: As a person names it.

    Example:
        >>> whole_name("minilm"), whole_name("package:function")
        ('minilm', 'package:function')
    """
    if names_code(model):
        file, _, function = model.rpartition(":")
        return f"{Path(file).resolve()}:{function}" if file.endswith(".py") else model
    place = Path(model).expanduser()
    return str(place.resolve()) if place.is_file() else lasting_name(model)


def spread(
    predictor: Predictor, loading: Loading, cluster: Cluster, *, identity: str, progress: Progress
) -> Predictor:
    """Return a predictor that has the machines of a cluster answer rows, if they are many.

    All else (embeddings, hidden states) is asked of the model in this process. Answers are those of
    one machine but for the order of sums. A machine that is lost takes nothing along: its rows are
    answered by another.

    Args:
        predictor: The model, loaded here.
        loading: How the machines load it.
        cluster: The cluster, to which this process is connected.
        identity: What the model is recognised by.
        progress: Hears of machines that are gone.

    Raises:
        TemperError: A machine finds no such model, or another one under its name.
    """
    cluster.ask(_look, loading, identity, progress=progress)
    kind = type(predictor)
    twin = copy.copy(predictor)
    # A class of its own, so that it still is what perspectives ask a predictor to be.
    object.__setattr__(twin, "__class__", type(f"Spread{kind.__name__}", (_Spread, kind), {}))
    object.__setattr__(twin, "_spread_over", (loading, cluster))
    return twin


class _Spread:
    """Give the rows of `predict` to a cluster."""

    _spread_over: tuple[Loading, Cluster]

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Answer examples, in their order."""
        if len(examples) <= ROWS:
            answers: Prediction = super().predict(examples, batch_size=batch_size)  # type: ignore[misc]
            return answers
        loading, cluster = self._spread_over
        return _prediction(_mapped(_table(examples), loading, cluster))


def _table(examples: Examples) -> pa.Table:
    columns: dict[str, Any] = {"place": range(len(examples)), "text": list(examples.text)}
    if examples.text_pair is not None:
        columns["text_pair"] = list(examples.text_pair)
    return pa.table(columns)


def _mapped(rows: pa.Table, loading: Loading, cluster: Cluster) -> pa.Table:
    """Have the machines answer rows; return their answers in the rows' order."""
    ray = load_ray()
    with _quiet():
        from ray.data import ActorPoolStrategy, from_arrow

        pieces = [rows.slice(start, ROWS) for start in range(0, len(rows), ROWS)]
        most = max(1, min(cluster.at_once, len(pieces)))
        answered = from_arrow(pieces).map_batches(
            _Answering,
            fn_constructor_args=(loading, cluster.cpus),
            batch_size=ROWS,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
        )
        try:
            found = list(answered.iter_batches(batch_size=None, batch_format="pyarrow"))
        except ray.exceptions.RayError as error:
            raise TemperError(f"The cluster could not answer the rows: {_reason(error)}") from error
    return pa.concat_tables(found).sort_by("place")


def _prediction(answers: pa.Table) -> Prediction:
    """Read the machines' answers."""

    def matrix(name: str) -> Any:
        return np.array(answers[name].to_pylist(), dtype=np.float64).reshape(len(answers), -1)

    cut = answers["cut"].to_numpy()
    return Prediction(
        matrix("probabilities"),
        answers["prediction"].to_numpy(),
        matrix("logits") if "logits" in answers.column_names else None,
        None if np.isnan(cut).any() else float(cut.mean()),
    )


def _reason(error: BaseException | None) -> str:
    """Return what was raised on the machine, which Ray wraps in errors of its own."""
    last = error
    while error is not None:
        if isinstance(error, TemperError):
            return str(error)
        last, error = error, getattr(error, "cause", None) or error.__cause__
    return one_line(str(last))


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep what Ray Data has to say, in bars, log lines and warnings of its own, off the screen."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.data import DataContext

        context = DataContext.get_current()
        older, context.enable_progress_bars = context.enable_progress_bars, False
        # It sets its loggers up anew with every map.
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)
            context.enable_progress_bars = older


# Below: what the cluster's processes do.


def _look(loading: Loading, identity: str) -> str:
    """Say why this machine cannot answer rows; empty where it can."""
    if loading.identity() != identity:
        return f"it has another model under {loading.model}. Give it where all see the same."
    return ""


class _Answering:
    """A machine's predictor."""

    def __init__(self, loading: Loading, threads: int) -> None:
        torch.set_num_threads(threads)
        self.predictor = loading.load()

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Answer rows."""
        pairs = rows["text_pair"].to_pylist() if "text_pair" in rows.column_names else None
        found = self.predictor.predict(
            Examples("rows", rows["text"].to_pylist(), text_pair=pairs, kind="unlabelled")
        )
        columns: dict[str, Any] = {
            "place": rows["place"],
            "prediction": found.prediction,
            "probabilities": found.probabilities.tolist(),
            "cut": np.full(len(found), np.nan if found.truncated is None else found.truncated),
        }
        if found.logits is not None:
            columns["logits"] = found.logits.tolist()
        return pa.table(columns)
