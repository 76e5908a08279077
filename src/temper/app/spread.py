"""Predict many rows on the machines of a Ray cluster, through Ray Data."""

from __future__ import annotations

import copy
import logging
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import temper
from temper.app import plugins
from temper.app.cluster import Cluster, check_version, load_ray
from temper.app.predictors import load_predictor, names_code, predictor_identity
from temper.app.settings import PredictorSettings
from temper.data.examples import Examples
from temper.errors import TemperError, one_line
from temper.evaluation.predictor import Prediction, Predictor
from temper.models.hf import lasting_name

ROWS = 512
"""Rows of a batch; fewer rows are predicted in this process."""


def whole_name(model: str) -> str:
    """Return the name of a model for other machines: absolute paths of files and folders.

    Args:
        model: The name that a user gave.

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
    predictor: Predictor, model: str, settings: PredictorSettings, cluster: Cluster, **given: Any
) -> Predictor:
    """Return a predictor whose `predict` is done by the machines of a cluster for many rows.

    All else (embeddings, hidden states) is computed by the model in this process. Predictions are
    those of one machine except for the order of sums. Ray repeats the rows of a lost machine.

    Args:
        predictor: The model, loaded here.
        model: Its name.
        settings: Settings that the predictor does not have itself.
        cluster: The connected cluster.
        given: Further arguments of `temper.app.predictors.load_predictor`.
    """
    identity = predictor_identity(model, settings)
    name, imports = whole_name(model), plugins.loaded()
    loading = (cluster.cpus, name, settings, given, identity, imports, temper.__version__)
    twin = copy.copy(predictor)

    def predict(examples: Examples, *, batch_size: int | None = None) -> Prediction:
        if len(examples) <= ROWS:
            return predictor.predict(examples, batch_size=batch_size)
        return _prediction(_mapped(_table(examples), cluster, loading))

    # The class stays, because perspectives ask for it; a frozen dataclass refuses setattr.
    object.__setattr__(twin, "predict", predict)
    return twin


def _table(examples: Examples) -> pa.Table:
    columns: dict[str, Any] = {"place": range(len(examples)), "text": list(examples.text)}
    if examples.text_pair is not None:
        columns["text_pair"] = list(examples.text_pair)
    return pa.table(columns)


def _mapped(rows: pa.Table, cluster: Cluster, loading: tuple[Any, ...]) -> pa.Table:
    """Return the predictions of the machines in the order of the rows."""
    ray = load_ray()
    with _quiet():
        from ray.data import ActorPoolStrategy, from_arrow

        pieces = [rows.slice(start, ROWS) for start in range(0, len(rows), ROWS)]
        answered = from_arrow(pieces).map_batches(
            _Predict,
            fn_constructor_args=loading,
            batch_size=ROWS,
            batch_format="pyarrow",
            compute=ActorPoolStrategy(
                min_size=1, max_size=max(1, min(cluster.at_once, len(pieces)))
            ),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
        )
        try:
            results = list(answered.iter_batches(batch_size=None, batch_format="pyarrow"))
        except ray.exceptions.RayError as error:
            raise TemperError(f"The cluster could not predict: {_reason(error)}") from error
    return pa.concat_tables(results).sort_by("place")


def _prediction(answers: pa.Table) -> Prediction:
    """Return the predictions of the machines as one."""

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
    """Return the error of the machine, which Ray wraps in errors of its own."""
    last = error
    while error is not None:
        if isinstance(error, TemperError):
            return str(error)
        last, error = error, getattr(error, "cause", None) or error.__cause__
    return one_line(str(last))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars, log lines and warnings of Ray Data."""
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


# Below: the class that runs on the machines.


class _Predict:
    """The predictor of a machine, loaded with its first rows."""

    def __init__(
        self,
        threads: int,
        model: str,
        settings: PredictorSettings,
        given: dict[str, Any],
        identity: str,
        imports: tuple[str, ...],
        version: str,
    ) -> None:
        check_version(version)
        torch.set_num_threads(threads)
        plugins.load_all(imports)
        if predictor_identity(model, settings) != identity:
            raise TemperError(
                f"Machine {socket.gethostname()} of the cluster has another model under {model}. "
                "Give a path that means the same on all machines."
            )
        self.predictor = load_predictor(model, settings=settings, **given)

    def __call__(self, rows: pa.Table) -> pa.Table:
        """Predict rows."""
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
