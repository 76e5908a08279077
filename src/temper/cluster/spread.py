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
from temper.checkpoints.checkpoint import Checkpoint
from temper.cluster import plugins
from temper.cluster.machines import Cluster, cause_of, check_version, load_ray
from temper.data.examples import Examples
from temper.errors import TemperError
from temper.evaluation.loading import load_predictor, predictor_identity
from temper.evaluation.predictor import Prediction, Predictor
from temper.evaluation.sources import PredictorSettings
from temper.models.hf import lasting_name

ROWS = 512
"""Rows of a batch; fewer rows are predicted in this process."""


def whole_name(model: Checkpoint) -> str:
    """Return the name of a model for other machines: absolute paths of files and folders.

    Args:
        model: The model.

    Example:
        >>> whole_name(Checkpoint("minilm")), whole_name(Checkpoint("package:function"))
        ('minilm', 'package:function')
    """
    if model.kind == "code":
        file, name = model.code
        return f"{Path(file).resolve()}:{name}" if file.endswith(".py") else model.name
    return str(model.folder.resolve()) if model.folder.is_file() else lasting_name(model.name)


def spread(
    predictor: Predictor,
    model: Checkpoint,
    settings: PredictorSettings,
    cluster: Cluster,
    **given: Any,
) -> Predictor:
    """Return a predictor whose `predict` is done by the machines of a cluster for many rows.

    All else (embeddings, hidden states) is computed by the model in this process. Predictions are
    those of one machine except for the order of sums. Ray repeats the rows of a lost machine.

    Args:
        predictor: The model, loaded here.
        model: The same model.
        settings: Settings that the predictor does not have itself.
        cluster: The connected cluster.
        given: Further arguments of `temper.evaluation.loading.load_predictor`.
    """
    loading = {
        "version": temper.__version__,
        "imports": plugins.loaded(),
        "identity": predictor_identity(model, settings),
        "threads": cluster.cpus,
        "model": whole_name(model),
        "settings": settings,
        **given,
    }
    twin = copy.copy(predictor)

    def predict(examples: Examples, *, batch_size: int | None = None) -> Prediction:
        if len(examples) <= ROWS:
            return predictor.predict(examples, batch_size=batch_size)
        return _on_machines(examples, cluster, loading)

    # The class stays, because perspectives ask for it; a frozen dataclass refuses setattr.
    object.__setattr__(twin, "predict", predict)
    return twin


def _on_machines(examples: Examples, cluster: Cluster, loading: dict[str, Any]) -> Prediction:
    """Return the predictions of the machines, in the order of the rows."""
    ray, columns = load_ray(), {"text": list(examples.text)}
    if examples.text_pair is not None:
        columns["text_pair"] = list(examples.text_pair)
    with _quiet():
        from ray.data import ActorPoolStrategy, from_arrow

        rows = pa.table({"index": range(len(examples)), **columns})
        pieces = [rows.slice(start, ROWS) for start in range(0, len(rows), ROWS)]
        most = max(1, min(cluster.at_once, len(pieces)))
        predicted = from_arrow(pieces).map_batches(
            _Predict,
            fn_constructor_kwargs=loading,
            batch_size=ROWS,
            compute=ActorPoolStrategy(min_size=1, max_size=most),
            num_cpus=cluster.cpus,
            num_gpus=cluster.gpus,
        )
        try:
            return joined(list(predicted.iter_batches(batch_size=None)))
        except ray.exceptions.RayError as error:
            raise cause_of(error) from error


def joined(batches: list[dict[str, Any]]) -> Prediction:
    """Return the predictions of batches, which arrive in any order, as one.

    Args:
        batches: As the machines return them.
    """
    found = {name: np.concatenate([each[name] for each in batches]) for name in batches[0]}
    order = np.argsort(found.pop("index"))
    found = {name: values[order] for name, values in found.items()}
    cut = found.pop("truncated")
    found.setdefault("probabilities", np.empty((len(order), 0)))
    return Prediction(**found, truncated=None if np.isnan(cut).any() else float(cut.mean()))


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the progress bars, log lines and warnings of Ray Data."""
    level = logging.root.manager.disable
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.data import DataContext

        DataContext.get_current().enable_progress_bars = False
        # It sets its loggers up anew with every map.
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(level)


class _Predict:
    """The predictor of a machine."""

    def __init__(
        self,
        version: str,
        imports: tuple[str, ...],
        identity: str,
        threads: int,
        model: str,
        settings: PredictorSettings,
        **given: Any,
    ) -> None:
        check_version(version)
        torch.set_num_threads(threads)
        plugins.load_all(imports)
        checkpoint = Checkpoint(model)
        if predictor_identity(checkpoint, settings) != identity:
            raise TemperError(
                f"Machine {socket.gethostname()} of the cluster has another model under "
                f"{model}. Give a path that means the same on all machines."
            )
        self.predictor = load_predictor(checkpoint, settings=settings, **given)

    def __call__(self, rows: dict[str, Any]) -> dict[str, Any]:
        """Predict rows."""
        pairs = rows["text_pair"].tolist() if "text_pair" in rows else None
        found = self.predictor.predict(
            Examples("rows", rows["text"].tolist(), text_pair=pairs, kind="unlabelled")
        )
        cut = np.nan if found.truncated is None else found.truncated
        matrices = {"probabilities": found.probabilities, "logits": found.logits}
        return {
            "index": rows["index"],
            "prediction": found.prediction,
            "truncated": np.full(len(found), cut),
            # A regression has no probabilities, and Arrow no matrices without columns.
            **{name: each for name, each in matrices.items() if each is not None and each.size},
        }
