"""Evaluate any classifier (`temper.evaluate` and ``temper evaluate``).

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from temper.api.keywords import EVALUATE, EvaluateKeywords, Source
from temper.api.nested import (
    check_loadable,
    nested,
    of_output_folder,
    of_paths,
    of_tables,
    refuse,
)
from temper.checkpoints.checkpoint import Checkpoint
from temper.display.bars import Bars
from temper.errors import SettingError
from temper.evaluation.settings import SetSources
from temper.progress import Progress
from temper.results import EvaluationResult, TrainingResult
from temper.settings import section

if TYPE_CHECKING:
    from temper.cluster.machines import Cluster
    from temper.evaluation.predictor import Predictor
    from temper.evaluation.request import EvaluationRequest


def evaluate(
    model: object,
    data: Source | None = None,
    *,
    out: str | Path | None = None,
    cluster: str | Mapping[str, Any] | None = None,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Unpack[EvaluateKeywords],
) -> EvaluationResult:
    """Evaluate a classifier, whether Temper trained it or not.

    Metrics that it does not support are skipped and reported, for instance attacks on the
    embeddings of a scikit-learn pipeline.

    Args:
        model: The result of `temper.train`; the folder of a checkpoint or of a PEFT adapter, the
            Hub id of a classifier, a ``.skops`` file, or ``file.py:NAME`` or ``module:NAME`` of a
            function (its code is run). Or an object in memory: a function from a list of texts to
            predictions, a scikit-learn estimator, a pipeline of Transformers or a predictor.
        data: The data to evaluate on. Default: the validation rows of the run.
        out: Output folder. Default: ``RUN-evaluation`` next to a run, and
            ``runs/NAME-evaluation`` for an object. An evaluation there with the same settings is
            reused, except that of an object, because the object may have changed.
        cluster: A Ray cluster that predicts the rows of large sets, as in `temper.compare`; its
            machines must find the model under the same name. This process computes embeddings and
            hidden states.
        config: TOML file or nested settings, which the keywords override.
        progress: Receives the progress; None shows bars.
        settings: Any setting of ``data``, ``sets`` and the predictor by its name (``eval_rows``,
            ``shift``, ``gives`` ...), ``task``, ``perspectives``, and the table ``evaluate``.

    Returns:
        The scores and their folder.

    Raises:
        TemperError: If model, data or settings do not fit, or the folder has different content.
    """
    progress = progress or Bars()
    checkpoint = Checkpoint.of(model.folder if isinstance(model, TrainingResult) else model)
    is_named = checkpoint.in_memory is None
    tree = nested(EVALUATE, config, {"data": data, "cluster": cluster, **settings})
    machines_table = tree.pop("cluster", {})
    # Checked once: looking for the sets of a suite reads their folders.
    sets = tree["sets"] = section(SetSources, "sets", tree.get("sets", {}))
    # Where `temper report` looks for the evaluation of a run.
    path = checkpoint.folder.resolve() if is_named else Path("runs", checkpoint.name[:-2])
    folder = path.with_name(f"{path.name}-evaluation") if out is None else Path(out)
    refuse(
        partial(_check_model, checkpoint, needs_run=is_named and out is None),
        *of_tables(tree),
        *of_paths(tree, *sets.given()),
        of_output_folder(folder, "evaluation", "scores.json"),
    )
    progress.info(f"Loading {checkpoint.name} ...")
    from temper.evaluation.request import EvaluationRequest

    request = EvaluationRequest.of(tree, model=checkpoint)
    request.check_rows()
    from temper.calibration.files import read_calibration
    from temper.cluster.machines import Cluster
    from temper.evaluation.evaluate import evaluate_model

    machines = Cluster.of(machines_table)
    if machines is not None and not is_named:
        raise SettingError(
            "The machines of a cluster load the model by its name, but it is an object in memory. "
            "Save it and pass its folder, or name it as file.py:NAME."
        )
    kept = read_calibration(checkpoint)
    sources = {"dev": request.data.source, **sets.shift, **sets.adversarial, **sets.anomaly}
    if out is None:
        progress.info(f"No --out: the evaluation is written to {folder}.")
    content = evaluate_model(
        request,
        folder,
        thresholds=None if kept is None else kept.raw_thresholds,
        progress=progress,
        predictor_context=partial(_on_machines, request, machines),
    )
    return EvaluationResult(folder, content, sources)


@contextmanager
def _on_machines(
    request: EvaluationRequest, machines: Cluster | None, predictor: Predictor
) -> Iterator[Predictor]:
    """Yield a predictor that sends large sets to the machines of a cluster, if there is one."""
    if machines is None:
        yield predictor
        return
    from temper.cluster.machines import spread
    from temper.evaluation.classifier import ClassifierPredictor
    from temper.evaluation.lengths import longest_row

    is_checkpoint = type(predictor) is ClassifierPredictor
    with machines.connection():
        yield spread(
            predictor,
            request.model,
            request.predictor,
            machines,
            max_length=longest_row(predictor) if is_checkpoint else None,
            batch_size=request.evaluate.batch_size,
            precision=request.evaluate.precision,
        )


def _check_model(model: Checkpoint, *, needs_run: bool) -> None:
    check_loadable(model)
    if needs_run and model.run is None:
        raise SettingError(
            f"--out has a default only if the model is the folder of a run, and {model} is not. "
            "Pass --out FOLDER."
        )
