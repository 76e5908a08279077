"""Load the sets of an evaluation; leave out rows that were trained on or are used for fitting."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.identity import digest
from temper.data.columns import Columns
from temper.data.examples import Examples
from temper.data.labels import LabelKind, label_kind
from temper.data.settings import DataSettings
from temper.data.sources import load_examples
from temper.data.suites.suite import KINDS, FoundSuite, load_set
from temper.data.tasks.registry import default_metric
from temper.display.wording import listed
from temper.errors import CheckpointError, DataError, SettingError, shortened
from temper.evaluation.alignment import align, without_unknown
from temper.evaluation.folder import read
from temper.evaluation.perspectives.anomaly import AnomalySettings
from temper.evaluation.rows import to_blocks
from temper.evaluation.run import EvaluationData
from temper.evaluation.settings import EvaluationSettings, SetSources
from temper.functional.label_names import are_named
from temper.seeding import derive_seed

Trained = Callable[[Examples], tuple[Collection[str], Sequence[str]]]
"""Maps rows to the hashes of those a model was trained on, and notices of failed checks."""
ROWS_NAMED = 5
"""Maximum number of trained-on rows that a notice lists."""


@dataclass(frozen=True)
class EvaluationSets:
    """The loaded sets of an evaluation.

    Args:
        data: The sets.
        missing: Set of the suite that is missing -> reason.
        notices: Notices about the choice of sets.
        seen: A sentence for each set with rows that the model was trained on; shown before all
            other notices.
    """

    data: EvaluationData
    missing: dict[str, str] = field(default_factory=dict)
    notices: tuple[str, ...] = ()
    seen: tuple[str, ...] = ()

    def fingerprint(self) -> dict[str, Any]:
        data = self.data
        hashes: dict[str, Any] = {"dev": _hash(data.dev)}
        for kind in KINDS:
            sets: Mapping[str, Examples] = getattr(data, kind)
            hashes[kind] = {name: _hash(examples) for name, examples in sets.items()}
        for name, examples in (("fit", data.fit), ("held_out", data.held_out)):
            hashes[name] = None if examples is None else _hash(examples)
        return {**hashes, "missing": sorted(self.missing)}


def load_sets(
    sources: SetSources,
    *,
    settings: DataSettings,
    evaluate: EvaluationSettings,
    dev: Examples,
    train: Examples | None = None,
    trained: Trained | None = None,
    known: Sequence[Columns] = (),
    classes: Sequence[str] | None = None,
    notices: Iterable[str] = (),
) -> EvaluationSets:
    """Load the sets of an evaluation in addition to the validation rows.

    Labeled rows that the model was trained on are reported, and left out unless
    ``sources.seen_rows`` keeps them. Rows to fit on that are also evaluated are left out, with a
    notice. So are rows to fit a temperature on that the model was trained on.

    Args:
        sources: The sources of the sets.
        settings: Settings of the task's data; ``eval_rows`` limits every set.
        evaluate: Settings of the evaluation.
        dev: The validation rows, which define the labels.
        train: The model's training rows, if they are known.
        trained: Finds the rows of a set that the model was trained on, such as
            `trained_among`; None skips this check.
        known: Column names of the model's own data, tried in addition to those of ``settings``.
        classes: The model's classes; None uses those of ``dev``. With ``skip_bad_rows``, rows of
            other classes are skipped.
        notices: Notices to add to the result.
    """
    shown = "classification" if dev.kind == "unlabeled" else dev.kind
    messages = [*notices]
    if (suite := sources.found_suite) is not None:
        _check_labels(suite, dev)
        messages += [
            f"Set {name!r} of suite {suite.suite.name!r} is missing and not measured: {reason}."
            for name, reason in suite.missing.items()
        ]
    loader = _Loader(
        settings,
        label_kind(shown),
        # Only evaluated rows need groups.
        (replace(settings.columns, group=None), *known),
        dev.label_names if classes is None else classes,
        trained,
        drops=sources.seen_rows == "drop" or settings.drop_overlap,
    )
    dev = loader.unseen(dev, "dev")
    sets = {role: loader.sets(role, sources) for role in KINDS}
    scored = [dev, *(examples for item in sets.values() for examples in item.values())]
    fit = held_out = None
    learned = [] if train is None else [train]
    if sources.detects(evaluate):
        if sources.fit is not None:
            train = loader.load(sources.fit, labeled=None)
            messages += train.notices
        if train is not None:
            fit = _apart(train, scored, what="that detectors would learn from", notices=messages)
        if fit is not None:
            limit = evaluate.section("anomaly", AnomalySettings).rows
            fit = replace(fit.sample(limit, seed=evaluate.seed), name="fit")
    if sources.held_out is not None:
        rows = loader.load(sources.held_out, labeled=True)
        messages += rows.notices
        # A model is overconfident on its training rows.
        apart = [*scored, *learned]
        why = "are evaluated too or were trained on"
        held_out = _apart(rows, apart, what="held out for a temperature", notices=messages, why=why)
        if held_out is None:
            raise DataError(
                f"All {len(rows)} rows of `sets.held_out`, {sources.held_out}, {why}, so none is "
                "left to fit a temperature on. Choose other rows."
            )
        held_out = replace(held_out, name="held_out")
    tags = (loader.classes if dev.kind == "tokens" else None) or ()
    metric = default_metric(settings.source, shown, task=settings.task, names=tags)
    data = EvaluationData(
        dev=dev,
        shift=sets["shift"],
        adversarial=sets["adversarial"],
        anomaly=sets["anomaly"],
        metric=metric,
        fit=fit,
        held_out=held_out,
    )
    notices = dict.fromkeys((*loader.seen, *loader.unchecked, *messages))
    return EvaluationSets(data, dict(sources.missing), tuple(notices), tuple(loader.seen))


def _check_labels(suite: FoundSuite, dev: Examples) -> None:
    labels = suite.suite.labels
    if dev.kind == "classification" and not are_named(dev.label_names):
        # The rows have no class names, but the model may have some.
        return
    one_each = Examples(
        "suite",
        list(labels),
        labels=list(range(len(labels))),
        label_names=labels,
        kind="classification",
    )
    try:
        fits = dev.kind == "classification" and align(one_each, dev.label_names) is not None
    except DataError:
        fits = False
    if not fits:
        names = shortened(str(list(dev.label_names or ())))
        has = "targets of a regression" if dev.label_names is None else names
        raise SettingError(
            f"Suite {suite.suite.name!r} is for the labels {list(labels)}, but the task has {has}. "
            "Choose another suite, or pass sets with --shift, --adversarial and --anomaly."
        )


@dataclass
class _Loader:
    """Loads sets, finds the rows that a model was trained on, and leaves them out if ``drops``.

    The other arguments are those of `load_sets`. ``seen`` and ``unchecked`` collect sentences on
    rows found, and on checks that failed.
    """

    settings: DataSettings
    kind: LabelKind | None
    columns: Sequence[Columns]
    classes: Sequence[str] | None
    trained: Trained | None
    drops: bool
    seen: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)

    def load(self, source: str, *, labeled: bool | None) -> Examples:
        """Load a set; with ``skip_bad_rows``, skip rows of unknown classes.

        ``labeled`` is as in `load_examples`: None reads labels if there are any.
        """
        reading, kind = self.settings.reading, None if labeled is False else self.kind
        rows = load_examples(
            source, kind=kind, labeled=labeled, reading=reading, known=self.columns
        )
        return rows if labeled is False else self.of_known_classes(rows)

    def of_known_classes(self, rows: Examples) -> Examples:
        return without_unknown(rows, self.classes) if self.settings.skip_bad_rows else rows

    def sets(self, role: str, sources: SetSources) -> dict[str, Examples]:
        """Load the sets of one role: those given by options, then those of the suite."""
        labeled, most = role != "anomaly", self.settings.eval_rows
        given: dict[str, str] = getattr(sources, role)
        loaded = {name: (self.load(text, labeled=labeled), most) for name, text in given.items()}
        if (suite := sources.found_suite) is not None:
            labels = suite.suite.labels if labeled else None
            for name, suite_set in suite.sets[role].items():
                rows = load_set(suite_set, labels, self.settings.reading)
                bounds = filter(None, (suite_set.entry.rows, most))
                rows = self.of_known_classes(rows) if labeled else rows
                loaded[name] = rows, min(bounds, default=None)
        result = {}
        for name, (rows, limit) in loaded.items():
            unseen = self.unseen(rows, name) if labeled else rows
            result[name] = replace(_cut(unseen, limit, seed=self.settings.seed), name=name)
        return result

    def unseen(self, examples: Examples, name: str) -> Examples:
        """Return the rows of a set to score; raise a `DataError` if all were trained on."""
        if self.trained is None:
            return examples
        trained, unchecked = self.trained(examples)
        self.unchecked += unchecked
        kept = [index for index, row in enumerate(examples.rows) if row not in trained]
        count = len(examples) - len(kept)
        if not count:
            return examples
        sentence = f"{count:,} of {len(examples):,} rows of set {name!r} were trained on"
        whole = set(kept)
        which = [str(index + 1) for index in range(len(examples)) if index not in whole]
        if count > ROWS_NAMED:
            which = [*which[:ROWS_NAMED], f"{count - ROWS_NAMED:,} more"]
        indices = f"{'row' if count == 1 else 'rows'} {listed(which)}"
        if not self.drops:
            self.seen.append(
                f"{sentence}: scores on them overstate performance on new rows ({indices})."
            )
            return examples
        if examples.pair is not None:
            # A contrast pair is scored as a whole.
            torn = {examples.pair[row] for row in range(len(examples)) if row not in whole} - {None}
            kept = [row for row in kept if examples.pair[row] not in torn]
        if not kept:
            raise DataError(
                f"All {len(examples):,} rows of set {name!r} were trained on, so scores on them "
                "say nothing about new rows. Pass rows that the model has not seen, or score these "
                "with --set sets.seen_rows=keep."
            )
        self.seen.append(
            f"{sentence} and are left out of its scores ({indices}; --set sets.seen_rows=keep "
            "scores them too)."
        )
        return examples.select(kept)


def _cut(examples: Examples, limit: int | None, *, seed: int) -> Examples:
    """Draw at most ``limit`` rows; contrast pairs stay complete, because scores need both rows."""
    if limit is None or limit >= len(examples):
        return examples
    if examples.pair is None:
        return examples.sample(limit, seed=seed)
    units: dict[str, list[int]] = {}
    for index, pair in enumerate(examples.pair):
        units.setdefault(f"row {examples.rows[index]}" if pair is None else pair, []).append(index)
    chosen: list[int] = []
    for name in sorted(units, key=lambda name: (derive_seed(seed, "sample", name), name)):
        if len(chosen) + len(units[name]) <= limit:
            chosen += units[name]
    # A limit below the size of the smallest pair leaves no whole pair.
    return examples.select(sorted(chosen)) if chosen else examples.sample(limit, seed=seed)


def _apart(
    rows: Examples,
    others: Iterable[Examples],
    *,
    what: str,
    notices: list[str],
    why: str = "are evaluated too",
) -> Examples | None:
    """Leave out rows that ``others`` contain, with a notice; return None if no row is left."""
    kept = rows.apart(others)
    if len(kept) < len(rows):
        notices.append(
            f"{len(rows) - len(kept)} of {len(rows)} rows {what} {why}, so they are left out."
        )
    return rows.select(kept) if kept else None


def _hash(examples: Examples) -> str:
    """Return a hash of rows and labels, and of groups and pairs if there are any."""
    marks = {name: getattr(examples, name) for name in ("group", "pair")}
    given = {name: values for name, values in marks.items() if values is not None}
    return examples.hash if not given else digest({"rows": examples.hash, **given})


@dataclass(frozen=True)
class Seen:
    """Which of given rows a checkpoint was trained or validated on.

    Args:
        trained: Positions of the rows it was trained on, ascending.
        judged: Positions of validation rows of its run that it was not trained on, ascending.
        notices: Notices on checks that were not possible.
    """

    trained: tuple[int, ...] = ()
    judged: tuple[int, ...] = ()
    notices: tuple[str, ...] = ()


def seen_among(model: Checkpoint, rows: Examples) -> Seen:
    """Find the rows that a model has seen in training or validation.

    Only runs of Temper have records of this. If a run's data is missing or has changed, the rows
    are recognized by the hash of the whole set, or by an evaluation in the run's folder. If
    neither is possible, there is a notice.
    """
    trained, notices = trained_among(model, rows)
    judged: set[str] = set()
    if model.run is not None:
        dev = model.hashes("dev") or _evaluated(model.folder) or model.hashes("dev", rows)
        if dev is None:
            notices.append(
                _unknown(model, "was evaluated on some of these rows", "validation rows")
            )
        judged.update(dev or ())
    return Seen(
        tuple(index for index, row in enumerate(rows.rows) if row in trained),
        tuple(index for index, row in enumerate(rows.rows) if row in judged - trained),
        tuple(dict.fromkeys(notices)),
    )


def trained_among(model: Checkpoint, rows: Examples) -> tuple[set[str], list[str]]:
    """Return the hashes of the rows that a model was trained on, and notices of unchecked runs.

    If the run started from another run, the training rows of both count.
    """
    trained: set[str] = set()
    notices: list[str] = []
    for run in model.runs:
        hashes = run.hashes("train", rows)
        if hashes is None:
            notices.append(_unknown(run, "was trained on some of these rows", "training rows"))
        trained.update(hashes or ())
    return trained, notices


def trained_rows(model: Checkpoint) -> tuple[Examples | None, tuple[str, ...]]:
    """Return a run's training rows, to fit OOD detectors on, and notices.

    If they cannot be read, the rows are None and a notice has the reason. A model that is not a run
    has neither.
    """
    if model.run is None:
        return None, ()
    try:
        return model.training_rows(), ()
    except CheckpointError as error:
        advice = (
            "OOD detectors that are fitted on them are skipped. Pass rows: --set sets.fit=PATH."
        )
        return None, (f"{error} {advice}",)


def _evaluated(folder: Path) -> Sequence[str] | None:
    """Return the hashes of the validation rows in a run's evaluation, None without one."""
    try:
        table = read(folder / "evaluation").rows
    except CheckpointError:
        return None
    return [
        row
        for block in to_blocks(table)
        if (block.condition.perspective, block.condition.set) == ("task", "dev")
        for row in block.row
    ] or None


def _unknown(model: Checkpoint, what: str, which: str) -> str:
    return (
        f"Whether {model} {what} could not be checked: its {which} cannot be read, or have changed."
    )
