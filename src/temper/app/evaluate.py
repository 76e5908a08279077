"""Measure any classifier: what `temper.evaluate` and ``temper evaluate`` do.

torch is imported once all names and paths are known to be right.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel

from temper.app.keywords import EVALUATE, TRAINING_ONLY
from temper.app.quick_checks import check_predictor, of_room, of_settings, of_sources, refuse
from temper.app.results import EvaluationResult, TrainingResult
from temper.app.settings import PredictorSettings, SetSources
from temper.data.settings import DataSettings
from temper.errors import CheckpointError, SettingError, unknown
from temper.training.assignments import Faults, section
from temper.training.checkpoint_folder import check_room, read_json
from temper.training.progress import LoggedNotices, Progress

if TYPE_CHECKING:
    from temper.app.cluster import Cluster
    from temper.evaluation.predictor import Predictor
    from temper.evaluation.settings import EvaluationSettings

PLACES = ("data", "evaluate", "sets", "predictor")
OF_THE_RUN = (
    "source",
    "task",
    "config",
    "kind",
    "text_column",
    "text_pair_column",
    "label_column",
    "encoding",
    "skip_bad_rows",
)
"""Settings that say what a run's own data are and how any split of them is read."""


def evaluate(
    model: object,
    data: str | Path | Mapping[str, Any] | None = None,
    *,
    out: str | Path | None = None,
    cluster: str | None = None,
    cluster_cpus: int = 1,
    cluster_gpus: float = 0.0,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Any,
) -> EvaluationResult:
    """Measure a classifier, whether Temper trained it or not.

    What cannot be measured on it, for instance attacks on the embeddings of a scikit-learn
    pipeline, is left out and told.

    Args:
        model: What `temper.train` returned; the folder of a checkpoint or of a PEFT adapter, the
            Hub id of a classifier, a ``.skops`` file, or ``file.py:NAME`` or ``module:NAME`` of a
            function (its code is run). Or an object in memory: a function from texts to answers, a
            scikit-learn estimator, a pipeline of Transformers or a predictor.
        data: What to evaluate it on; a run's own dev rows if left out.
        out: Folder to write; of a run ``RUN-evaluation`` beside it if left out, and of an
            object ``runs/NAME-evaluation``. An evaluation that it holds under the same settings is
            kept; one of an object is made again, since nothing says whether the object changed.
        cluster: Address of a Ray cluster whose machines answer the rows of large sets, as
            `temper.compare` takes it; they see the model under the same name. Embeddings and hidden
            states are computed here.
        cluster_cpus: Cores, and threads, of a model there.
        cluster_gpus: GPUs of a model there.
        config: TOML file or nested settings, which the others override.
        progress: Hears how far it is; None logs the notices.
        settings: By the names of the options of ``temper evaluate`` (``eval_rows``, ``shift``,
            ``gives`` ...), or whole tables: ``evaluate``, ``sets``, ``predictor``.

    Returns:
        The scores and where they lie.

    Raises:
        TemperError: Where model, data or settings do not fit, or the folder holds something else.
    """
    progress = progress or LoggedNotices()
    named = model.folder if isinstance(model, TrainingResult) else model
    is_named = isinstance(named, str | Path)
    name = str(named) if is_named else _name_of_object(named)
    tree = EVALUATE.tree(config, {"data": data, **settings})
    sets = section(SetSources, "sets", tree.get("sets", {}))
    # Where `temper report` looks for the evaluation of a run.
    beside = (
        Path(name).expanduser().resolve() if is_named else Path("runs", name.removesuffix("()"))
    )
    folder = beside.with_name(f"{beside.name}-evaluation") if out is None else Path(out)
    refuse(
        [
            *([partial(check_predictor, name)] if is_named else []),
            *([partial(_check_beside, name)] if is_named and out is None else []),
            *of_settings(tree),
            *of_sources(sets.given()),
            of_room(folder, "evaluation", "scores.json"),
        ]
    )
    from temper.app.cluster import Cluster

    machines = Cluster.of(cluster, cluster_cpus, cluster_gpus)
    if machines is not None and not is_named:
        raise SettingError(
            "A cluster's machines load the model by its name, and it is an object in memory. Save "
            "it and give its folder, or name it as file.py:NAME."
        )
    request = EvaluationRequest.of(
        tree, model=name, held=None if is_named else named, cluster=machines
    )
    sources = {"dev": request.data.source, **sets.shift, **sets.adversarial, **sets.anomaly}
    notices: tuple[str, ...] = ()
    if out is None:
        notices = (f"--out is left out: the evaluation is written to {folder}.",)
    content = evaluate_model(request, folder, notices=notices, progress=progress)
    return EvaluationResult(folder, content, sources)


@dataclass(frozen=True)
class EvaluationRequest:
    """What to evaluate, and on what.

    Args:
        model: Whatever `temper.app.predictors.load_predictor` takes.
        data: The evaluated source.
        evaluate: What is measured.
        sets: Where the other sets come from.
        predictor: What the model does not say itself, and where it runs.
        max_length: Tokens a text is cut to; None takes what the model was trained with.
        held: The model itself where it is an object in memory, of which ``model`` is the name.
        cluster: Machines that answer the rows of large sets; None for this process.
    """

    model: str
    data: DataSettings
    evaluate: EvaluationSettings
    sets: SetSources = field(default_factory=SetSources)
    predictor: PredictorSettings = field(default_factory=PredictorSettings)
    max_length: int | None = None
    held: object = None
    cluster: Cluster | None = None

    @classmethod
    def of(
        cls,
        tree: Mapping[str, Any],
        *,
        model: str,
        held: object = None,
        cluster: Cluster | None = None,
    ) -> EvaluationRequest:
        """Check nested settings: ``data``, ``evaluate``, ``sets`` and ``predictor``.

        Where no source is given, a run is evaluated on the data that it was trained with, read as
        it read them. Of another source it gives the encoding.

        Raises:
            SettingError: Where anything is wrong; it lists every fault.
        """
        from temper.evaluation.settings import EvaluationSettings

        faults = Faults(unknown("setting", name, PLACES) for name in tree if name not in PLACES)
        table = tree.get("data", {})
        if isinstance(table, Mapping):
            faults += [
                f"`data.{name}` says how to train and has no meaning here. Leave it out."
                for name in TRAINING_ONLY
                if name in table
            ]
        checked: dict[str, Any] = {"sets": section(SetSources, "sets", tree.get("sets", {}))}
        tree = _with_own_data(checked["sets"].completed(tree), model)
        classes: dict[str, type[BaseModel]] = {
            "data": DataSettings,
            "evaluate": EvaluationSettings,
            "predictor": PredictorSettings,
        }
        for name, settings in classes.items():
            with faults.caught():
                checked[name] = section(settings, name, tree.get(name, {}))
        if not faults:
            faults += checked["sets"].faults(checked["evaluate"])
        faults.refuse()
        length = checked["data"].max_length if "max_length" in table else None
        return cls(model=model, max_length=length, held=held, cluster=cluster, **checked)


def evaluate_model(
    request: EvaluationRequest,
    out: Path,
    *,
    notices: Iterable[str] = (),
    progress: Progress | None = None,
) -> dict[str, Any]:
    """Evaluate one model into a folder of its own.

    Args:
        request: What to evaluate.
        out: The folder; an evaluation that was made under the same settings is kept.
        notices: Further notices, shown after those about rows that the model was trained on.
        progress: Hears how far it is.

    Returns:
        The content of ``scores.json``.

    Raises:
        TemperError: Where model, data or settings do not fit, or the folder holds something else.
    """
    from temper.app.measure import (
        changed_since,
        evaluation_key,
        load_evaluated,
        measure,
        stored_key,
        which_rows,
    )
    from temper.app.named_models import check_named_models, with_reference
    from temper.app.predictors import (
        check_pairs,
        load_predictor,
        longest_row,
        predictor_identity,
        run_key_of,
        trained_columns,
        trained_pairs,
        unknown_in,
    )
    from temper.app.seen import trained_among, trained_rows
    from temper.app.sets import load_sets
    from temper.app.sidecar import calibration_notices
    from temper.data.reading import read_as
    from temper.display.wording import folded
    from temper.evaluation.classifier import ClassifierPredictor
    from temper.files import put_back
    from temper.functional.precision import bf16_notices

    progress = progress or Progress()
    put_back(out)
    check_room(out, what="evaluation", held=lambda: stored_key(out) is not None)
    stored = stored_key(out)
    predictor = load_predictor(
        request.model,
        max_length=request.max_length,
        batch_size=request.evaluate.batch_size,
        precision=request.evaluate.precision,
        settings=request.predictor,
        held=request.held,
    )
    if isinstance(predictor, ClassifierPredictor) and predictor.precision == "bf16":
        progress.notice_all(bf16_notices(predictor.device))
    dev = load_evaluated(request.model, request.data, predictor=predictor)
    # Detectors learn from the rows that the model was trained on; a temperature must not.
    learns = request.sets.detects(request.evaluate) and request.sets.fit is None
    wanted = learns or request.sets.held_out is not None
    train, unread = trained_rows(request.model) if wanted else (None, ())
    sets = load_sets(
        request.sets,
        settings=request.data,
        evaluate=request.evaluate,
        dev=dev,
        train=train,
        trained=trained_among(request.model),
        known=trained_columns(request.model),
        classes=predictor.label_names,
        notices=(*unread, *calibration_notices(request.model)),
    )
    progress.notice_all(sets.seen)
    progress.notice_all(notices)
    progress.notice(which_rows(request.model, request.data, dev, scored=len(sets.data.dev)))
    progress.info_all(filter(None, [read_as(dev)]))
    pairs = trained_pairs(request.model)
    for name, rows in {**sets.data.shift, **sets.data.adversarial}.items():
        paired = rows.text_pair is not None
        check_pairs(request.model, pairs, paired, rows=f"the rows of set {name!r}")
    in_memory = request.held is not None
    identity = request.model if in_memory else predictor_identity(request.model, request.predictor)
    key = evaluation_key(identity, sets, request.evaluate, max_length=longest_row(predictor))
    data = request.data.model_copy(update={"max_length": longest_row(predictor)})
    asked = {
        "data": data.model_dump(mode="json", exclude={*TRAINING_ONLY, "train_split"}),
        "sets": request.sets.model_dump(mode="json"),
        "predictor": request.predictor.model_dump(
            mode="json", include={"gives", "label_names", "label_map"}
        ),
    }
    if stored is not None and stored != key:
        tables = {**asked, "evaluate": request.evaluate.model_dump(mode="json")}
        raise CheckpointError(
            f"{out} holds another evaluation: {changed_since(out, request.model, tables)}. Give "
            "another --out, or remove that folder."
        )
    if stored is None or in_memory:
        regression = predictor.gives == "values"
        check_named_models(request.evaluate, regression=regression, reference=False)
        scored = {"dev": sets.data.dev, **sets.data.shift, **sets.data.adversarial}
        rows_of = {f"rows of set {name!r}": rows for name, rows in scored.items()}
        uncovered = unknown_in(predictor, request.model, rows_of)
        sets = replace(sets, notices=(*sets.notices, *uncovered))
        sets = with_reference(sets, request.model, predictor, request.evaluate)
        with _answering(request, predictor) as answering:
            evaluation = measure(
                answering,
                sets,
                request.evaluate,
                out,
                model=request.model,
                key=key,
                run=run_key_of(request.model),
                asked=asked,
                progress=progress,
            )
        progress.notice_all(folded(each for each in evaluation.notices if each not in sets.seen))
    else:
        progress.notice(f"{out} holds this very evaluation already; it is kept.")
    return read_json(out / "scores.json")


@contextmanager
def _answering(request: EvaluationRequest, predictor: Predictor) -> Iterator[Predictor]:
    """Yield the predictor of the rows; with a cluster, its machines predict large sets."""
    if request.cluster is None:
        yield predictor
        return
    from temper.app.predictors import longest_row
    from temper.app.spread import spread
    from temper.evaluation.classifier import ClassifierPredictor

    is_checkpoint = type(predictor) is ClassifierPredictor
    with request.cluster.connection():
        yield spread(
            predictor,
            request.model,
            request.predictor,
            request.cluster,
            max_length=longest_row(predictor) if is_checkpoint else None,
            batch_size=request.evaluate.batch_size,
            precision=request.evaluate.precision,
        )


def _with_own_data(tree: Mapping[str, Any], model: str) -> Mapping[str, Any]:
    """Return settings with a run's own data, and how it read them, where no other are given.

    Other data may have the encoding of the run's, which is of files that are not UTF-8 alone.
    """
    from temper.app.predictors import trained_settings

    table, trained = tree.get("data", {}), trained_settings(model).get("data", {})
    if not isinstance(table, Mapping):
        return tree
    names = OF_THE_RUN if "source" in trained and "source" not in table else ("encoding",)
    known = {name: trained[name] for name in names if trained.get(name) is not None}
    return {**tree, "data": {**known, **table}} if known else tree


def _name_of_object(held: object) -> str:
    """Return what an object in memory is called in records; it is the name of no file."""
    return f"{getattr(held, '__name__', type(held).__name__).strip('<>')}()"


def _check_beside(model: str) -> None:
    folder = Path(model).expanduser()
    if not (folder / "run.json").is_file():
        raise SettingError(
            f"--out is needed: {model} is no folder of a run, beside which the evaluation "
            "could lie. Give --out FOLDER."
        )
