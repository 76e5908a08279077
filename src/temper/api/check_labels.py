"""`temper.check_labels` and ``temper check-labels``: find rows whose label is probably wrong."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Unpack

from temper.api.keywords import TRAIN, Source, TrainKeywords
from temper.api.nested import nested, of_paths, refuse
from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples, check_one_label
from temper.data.reading import read_as
from temper.data.settings import DataSettings
from temper.data.sources import is_taken_whole, load_examples, load_splits, with_configuration
from temper.display.bars import Bars
from temper.errors import SettingError
from temper.methods.recipes import with_recipe
from temper.progress import Progress

if TYPE_CHECKING:
    import pandas

MODEL, FOLDS = "minilm", 5
EPOCHS = 5.0
"""Default; chosen on MPQA with wrong labels (`dev.benchmarks.wrong_labels`)."""


def check_labels(
    data: Source | None = None,
    *,
    model: str | None = None,
    embeddings: str | None = None,
    method: str | Mapping[str, Any] | None = None,
    folds: int = FOLDS,
    config: Any = None,
    progress: Progress | None = None,
    **settings: Unpack[TrainKeywords],
) -> pandas.DataFrame:
    """Rank rows by how probable a wrong label is.

    Each row is predicted by two models that were not trained on it (cross-validation): a fine-tuned
    one, and a linear one on frozen embeddings. The score of a row is the cross-entropy of its label
    under the mean of both predictions (`temper.study.wrong_labels`). This takes about as long as
    ``folds`` training runs.

    Args:
        data: Labeled rows, as in `temper.train`. If the data have splits, these are the rows of
            the training split, unless ``SOURCE@SPLIT`` names another.
        model: Model to fine-tune: Hub id, folder, or short name of ``temper list models``; None is
            MiniLM.
        embeddings: Encoder whose frozen embeddings the linear model reads; None uses ``model``.
        method: A method of ``temper list methods``; None is plain fine-tuning.
        folds: Number of folds, >= 2.
        config: TOML file or nested settings, which the keywords override.
        progress: Receives steps and notices; None shows bars.
        settings: As in `temper.train`; ``epochs`` is 5 by default.

    Returns:
        One line per row, the highest score first: ``row`` (its number in the file, from 1),
        ``text`` (and ``text_pair``), ``label``, ``suggested`` (the most probable label) and
        ``score``.

    Raises:
        TemperError: If settings, data or model do not fit, the labels are not classes, or the model
            was trained on these rows before.
    """
    progress = progress or Bars()
    given = {"data": data, "model": model, "method": method, **settings}
    tree = with_recipe({"model": MODEL, **nested(TRAIN, config, given)})
    if isinstance(train := tree.get("train", {}), Mapping) and "max_steps" not in train:
        tree["train"] = {"epochs": EPOCHS, **train}
    encoder = {} if embeddings is None else {"model": embeddings}
    run, *_ = refuse(partial(_check, tree, folds), *of_paths(tree), *of_paths(encoder))
    progress.info(f"Loading {run.model} ...")

    rows = _rows(run.data)
    # After the rows, so that an error in a file is reported before torch is imported.
    from temper.evaluation.sets import seen_among
    from temper.study.wrong_labels import out_of_fold, rank_labels

    progress.info_all(filter(None, [read_as(rows)]))
    progress.notice_all(rows.notices)
    for name in dict.fromkeys((run.model, embeddings or run.model)):
        if trained := seen_among(Checkpoint.of(name), rows).trained:
            raise SettingError(
                f"{name} was trained on {len(trained)} of the {len(rows)} rows, so it has learned "
                "their labels, wrong ones too. Pass the pre-trained model that it started from."
            )
    result = out_of_fold(run, rows, embedder=embeddings, folds=folds, progress=progress)
    return rank_labels(result.rows, result.probabilities)


def _check(tree: Mapping[str, Any], folds: int) -> Any:
    from temper.training.config import RunConfig, is_scratch

    if folds < 2:
        raise SettingError(f"`folds` must be >= 2, got {folds}.")
    if "tasks" in tree:
        raise SettingError(
            "Labels are checked in one dataset, but `tasks` names several. Pass one as --data."
        )
    if is_scratch(tree["model"]):
        raise SettingError(
            f"{tree['model']!r} is trained from scratch, and labels are checked with embeddings of "
            "a pre-trained model. Choose another --model, for example minilm."
        )
    return RunConfig.of(tree)


def _rows(settings: DataSettings) -> Examples:
    if settings.task is not None:
        return load_splits(settings).train
    rows = load_examples(
        with_configuration(settings),
        split=settings.eval_split if is_taken_whole(settings) else settings.train_split,
        columns=settings.columns,
        kind=settings.kind,
        reading=settings.reading,
    )
    check_one_label(rows, what="A check of labels")
    return rows if settings.rows is None else rows.sample(settings.rows, seed=settings.seed)
