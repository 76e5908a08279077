"""Predict many rows on the machines of a Ray cluster, as Ray tasks."""

from __future__ import annotations

import copy
import math
import socket
from pathlib import Path
from typing import Any

import numpy as np
import torch

import temper
from temper.checkpoints.checkpoint import Checkpoint
from temper.cluster import plugins
from temper.cluster.machines import Cluster, cause_of, check_version, load_ray
from temper.data.examples import Examples
from temper.errors import TemperError
from temper.evaluation.loading import load_predictor, predictor_identity
from temper.evaluation.predictor import Prediction, Predictor, joined
from temper.evaluation.settings import PredictorSettings
from temper.models.hf import lasting_name

ROWS = 512
"""Least rows for a machine; so many are predicted in this process."""


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
    ray, task, count = load_ray(), cluster.task(_predict), len(examples)
    # A machine loads the model for each task.
    tasks = min(max(1, cluster.at_once), math.ceil(count / ROWS))
    parts = [examples.select(part) for part in np.array_split(np.arange(count), tasks)]
    pairs = [None if part.text_pair is None else list(part.text_pair) for part in parts]
    try:
        predictions = ray.get(
            [
                task.remote(list(part.text), pair, **loading)
                for part, pair in zip(parts, pairs, strict=True)
            ]
        )
    except ray.exceptions.RayError as error:
        raise cause_of(error) from error
    return joined(range(count), predictions)


def _predict(
    texts: list[str],
    text_pairs: list[str] | None,
    version: str,
    imports: tuple[str, ...],
    identity: str,
    threads: int,
    model: str,
    settings: PredictorSettings,
    **given: Any,
) -> Prediction:
    """Load the model on a machine, and predict rows."""
    check_version(version)
    torch.set_num_threads(threads)
    plugins.load_all(imports)
    checkpoint = Checkpoint(model)
    if predictor_identity(checkpoint, settings) != identity:
        raise TemperError(
            f"Machine {socket.gethostname()} of the cluster has another model under {model}. Give "
            "a path that means the same on all machines."
        )
    examples = Examples("rows", texts, text_pair=text_pairs, kind="unlabelled")
    return load_predictor(checkpoint, settings=settings, **given).predict(examples)
