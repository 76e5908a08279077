"""Run the cases of a reproduction one after the other; store the scores of finished cases."""

from __future__ import annotations

import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path

from reproduction.kept import keep_study
from reproduction.multi_task import MultiTaskStudyConfig, run_multi_task_study
from reproduction.plan import CasePlan, Request, chosen_plan, plan_cases
from reproduction.specification import Specification
from temper.checkpoints.folder import check_output_folder, read_json
from temper.display.folders import Source, read
from temper.errors import CheckpointError, DataError, ModelError, NonFiniteError
from temper.files import make_folder, write_json
from temper.progress import Progress
from temper.study.plan import check_workers
from temper.study.schedule import run_study

FILE = "reproduction.json"
CHOICES = "choices"
"""Folder of the studies that chose the settings, one per case."""


@dataclass(frozen=True)
class Record:
    """Content of ``reproduction.json`` of a folder.

    Args:
        family: Family of the models in the folder.
        scale: Scale of the runs; empty if it is not recorded.
        not_run: Why cases were not run, by name.
    """

    family: str
    scale: str = ""
    not_run: dict[str, str] = field(default_factory=dict)

    def write(self, folder: Path) -> None:
        """Write it into a folder."""
        write_json(folder / FILE, asdict(self))


def read_record(folder: Path) -> Record | None:
    """Read the record of a folder.

    Args:
        folder: Folder of a reproduction.

    Returns:
        The record; None if the folder has none, for example a folder of other studies.

    Raises:
        CheckpointError: The file is damaged.
    """
    file = folder / FILE
    if not file.exists():
        return None
    content = read_json(file)
    try:
        return Record(str(content["family"]), str(content["scale"]), dict(content["not_run"]))
    except (KeyError, TypeError, ValueError) as error:
        raise CheckpointError(
            f"{file} is not what docs/formats.md describes: {error!r}. Run the reproduction again."
        ) from error


def run_reproduction(
    request: Request, out: Path, *, workers: int = 1, progress: Progress | None = None
) -> None:
    """Train and evaluate what a table needs, case by case.

    Every case is a study in a folder with its name. It resumes like ``temper compare``: finished
    runs are kept. If the model or the data of a case are not available, or a loss is not finite,
    the case is skipped with its reason and the others are run.

    Args:
        request: What to run.
        out: The folder; it may hold an unfinished reproduction of the same family and scale.
        workers: Number of processes that run the runs of a case.
        progress: Receives cases, runs and steps.

    Raises:
        TemperError: Settings are wrong, or the folder has other content.
    """
    check_workers(workers)
    progress = progress or Progress()
    cases = plan_cases(request)
    empty = Record(request.specification.family, request.scale)
    stored = _record_of_same(out, empty, option="--out")
    check_output_folder(out, what=FILE, held=lambda: stored is not None)
    make_folder(out)
    # Written before any work, so that a stopped reproduction is recognized. A case that is not
    # requested now keeps its reason.
    record = stored or empty
    record.write(out)
    for number, each in enumerate(cases, start=1):
        progress.notice(f"Case {number} of {len(cases)}: {each.name}")
        reason = _run(each, request, out, workers, progress)
        if reason:
            progress.notice(f"{each.name} is not run: {reason}")
        for case in each.cases:
            record.not_run.pop(case.name, None)
            if reason:
                record.not_run[case.name] = reason
        record.write(out)


def finished_cases(
    specification: Specification, folder: Path
) -> tuple[dict[str, Source], dict[str, str]]:
    """Read the studies of a folder.

    Args:
        specification: The table or figure.
        folder: Folder with a study's folder for each case.

    Returns:
        The studies of the cases that have finished runs, and why others cannot be read, by case.
    """
    sources, reasons = {}, {}
    for case in specification.case:
        if (folder / case.name / "study.json").exists():
            try:
                sources[case.name] = read(folder / case.name)
            except CheckpointError as error:
                reasons[case.name] = str(error)
    return sources, reasons


def check_keep(to: Path, folder: Path, record: Record) -> Record | None:
    """Refuse a folder for scores that has other content; called before any training.

    Args:
        to: Folder for the scores.
        folder: Folder of the runs.
        record: Family and scale of the runs.

    Returns:
        The record of the scores that are stored there; None if there are none.

    Raises:
        CheckpointError: ``to`` is a file, is in or above ``folder``, or has another family or
            scale.
    """
    if to.exists() and not to.is_dir():
        raise CheckpointError(f"--keep {to} is a file, expected a folder. Choose another.")
    source, target = folder.resolve(), to.resolve()
    if source == target or source in target.parents or target in source.parents:
        raise CheckpointError(
            f"--keep {to} must be outside of {folder}, whose scores it will store. Choose another."
        )
    return _record_of_same(to, record, option="--keep")


def keep(specification: Specification, folder: Path, to: Path) -> list[str]:
    """Keep plans, records and scores (`temper.display.folders`), and neither weights nor rows.

    Args:
        specification: The table or figure.
        folder: Folder of the runs; unfinished runs have no scores.
        to: Folder for the scores; a case that is stored there is replaced.

    Returns:
        Names of the cases that were kept.

    Raises:
        CheckpointError: As in `check_keep`; the folder has no finished case; ``to`` has scores
            that the folder lacks.
    """
    record = read_record(folder) or Record(specification.family)
    stored = check_keep(to, folder, record)
    sources, _ = finished_cases(specification, folder)
    if not sources:
        raise CheckpointError(
            f"{folder} has no finished case of {specification.name} to keep. Run it first: "
            f"temper reproduce {specification.name} --out {folder}."
        )
    for name, source in sources.items():
        _check_nothing_is_lost(source, to / name)
    make_folder(to)
    for name, source in sources.items():
        staged = to / f".{name}.partial"
        shutil.rmtree(staged, ignore_errors=True)
        keep_study(source, staged)
        if (to / name).exists():
            shutil.rmtree(to / name)
        staged.rename(to / name)
    # Cases that were kept before from another folder stay, and why others were not run.
    reasons = {**({} if stored is None else stored.not_run), **record.not_run}
    not_run = {name: reason for name, reason in reasons.items() if name not in sources}
    Record(record.family, record.scale, not_run).write(to)
    return list(sources)


def _check_nothing_is_lost(source: Source, to: Path) -> None:
    """Refuse to replace a kept case by one that lacks some of its runs."""
    if not (to / "study.json").exists():
        return
    names = {run.name for run in source.runs}
    lost = [run.name for run in read(to).runs if run.name not in names]
    if lost:
        shown = ", ".join(lost[:3]) + (", ..." if len(lost) > 3 else "")
        raise CheckpointError(
            f"{to} has scores that {source.folder} lacks: {shown}. Finish these runs there, or "
            f"remove {to}."
        )


def _run(each: CasePlan, request: Request, out: Path, workers: int, progress: Progress) -> str:
    """Run a case and return why it was not run; empty if it was."""
    if each.plan is None:
        return each.reason
    try:
        if isinstance(each.plan, MultiTaskStudyConfig):
            run_multi_task_study(each.plan, out, progress=progress)
            return ""
        file = out / each.name / "study.json"
        further = set(read_json(file).get("seeds", [])) if file.exists() else set()
        if further := further - set(each.plan.seeds):
            progress.notice(
                f"{each.name} has runs of more seeds "
                f"({', '.join(map(str, sorted(further)))}), which the table excludes. --seeds "
                f"{max(further) + 1} includes them."
            )
        plan = each.plan
        if each.search is not None:
            progress.notice(f"{each.name} chooses its settings on held-out training rows.")
            chosen = run_study(
                each.search, out / CHOICES / each.name, workers=workers, progress=progress
            )
            plan = chosen_plan(each, chosen.comparison, request)
        run_study(plan, out / each.name, workers=workers, progress=progress)
    except (ModelError, DataError, NonFiniteError, CheckpointError) as error:
        return str(error).splitlines()[0]
    return ""


def _record_of_same(folder: Path, wanted: Record, *, option: str) -> Record | None:
    """Read a folder's record; raise an error if its family or scale differs."""
    stored = read_record(folder)
    if stored is not None and (stored.family, stored.scale) != (wanted.family, wanted.scale):
        raise CheckpointError(
            f"{folder} has {stored.family} at scale {stored.scale or 'unknown'!r}, and "
            f"{wanted.family} at {wanted.scale or 'unknown'!r} was requested. Choose another "
            f"{option}."
        )
    return stored
