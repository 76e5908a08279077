"""Greedy soups: the average of finished runs, each taken in if held-out rows do not object.

Averages are made file by file and tensor by tensor in double precision, so that no more than two
models are in memory at a time: one that is written or scored, and what a framework loads.

References: Wortsman et al., ICML 2022, Recipe 1.
"""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor

from temper.app.evaluate import EvaluationRequest
from temper.app.measure import load_evaluated
from temper.app.predictors import DEFAULT_LENGTH, load_predictor
from temper.data.examples import Examples
from temper.data.labels import LabelKind
from temper.data.reading import read_as
from temper.data.settings import AUGMENTATION, UNLABELLED, DataSettings
from temper.data.tasks.registry import default_metric
from temper.errors import CheckpointError, DataError, ModelError, SettingError
from temper.evaluation.measurement import align, block_of, merge
from temper.evaluation.predictor import Predictor
from temper.evaluation.rows import Condition
from temper.evaluation.scoring import statistic_of
from temper.files import checksums, put_back, staged_folder, write_json
from temper.functional.scores import facts
from temper.models.folders import check_folder, read_object
from temper.training.checkpoint_folder import check_room, read_json
from temper.training.config import MODEL_FILES, RECORDS, digest, model_identity
from temper.training.progress import Progress
from temper.training.recorder import versions

# Of a run's data settings: what says how that run was trained, and nothing of what it is judged on.
LEFT_OUT = {*UNLABELLED, *AUGMENTATION}
WEIGHTS = {".safetensors", ".bin"}
NOT_COPIED = RECORDS | {"model.safetensors.index.json", "training_args.json", "trainer_state.json"}
# What a network computes is decided by more than shapes: heads, activations, positions.
MUST_AGREE = (
    "architectures", "model_type", "num_attention_heads", "num_key_value_heads", "hidden_act",
    "position_embedding_type", "tie_word_embeddings", "problem_type", "vocab_size",
)  # fmt: skip


def make_soup(
    runs: Sequence[str], request: EvaluationRequest, out: Path, *, progress: Progress | None = None
) -> dict[str, Any]:
    """Average finished runs greedily and write the average as a plain checkpoint.

    The runs are sorted by the metric on held-out rows. The best is the first member; each further
    run becomes one if the average with it scores no lower than the average without.

    Args:
        runs: Folders of two runs or more.
        request: The held-out rows, and how long texts are cut; its ``model`` is not read.
        out: The soup's folder; one that was made from the same runs and rows is kept.
        progress: Hears how far it is.

    Returns:
        The content of ``soup.json``.

    Raises:
        TemperError: Where runs, rows or settings do not fit, or the folder holds something else.
    """
    progress = progress or Progress()
    file = out / "soup.json"
    put_back(out)
    check_room(out, what="soup", held=file.exists)
    kept = read_json(file) if file.exists() else None
    places = [Path(run).resolve() for run in runs]
    twice = [run for place, run in enumerate(runs) if places.index(places[place]) < place]
    if twice:
        raise SettingError(f"The run {twice[0]} is given twice. Give each run once.")
    if len(runs) < 2:
        raise SettingError(f"A soup needs two runs or more, got {len(runs)}.")
    members = [read_ingredient(Path(run)) for run in runs]
    check_alike(members)
    length = request.max_length or max(
        int(member.data_settings.get("max_length", DEFAULT_LENGTH)) for member in members
    )
    first = members[0].folder
    predictor = _load(first, request, length)
    rows = load_evaluated(str(first), request.data, predictor=predictor)
    metric = _metric(members, rows, request.data)
    identities = [model_identity(str(member.folder)) for member in members]
    key = digest({"runs": identities, "rows": rows.hash, "metric": metric, "max_length": length})
    if kept is not None:
        if kept["key"] != key:
            raise CheckpointError(
                f"{out} holds a soup of other runs or other rows. Give another --out."
            )
        progress.notice(f"{out} holds this very soup already; it is kept.")
        return kept
    notices = _notices(members, rows)
    progress.info_all(filter(None, [read_as(rows)]))
    progress.notice_all(notices)
    scorer = _Scorer(request, length, metric, rows, progress, total=2 * len(members) - 1)
    alone = [scorer.alone(predictor, members[0])]
    # What is scored next must not lie beside what was.
    del predictor
    alone += [scorer.alone(scorer.load(m.folder), m) for m in members[1:]]
    with staged_folder(out) as staged:
        lines, score = scorer.choose(members, alone, staged)
        chosen = [line["run"] for line in lines if line["kept"]]
        if len(chosen) == 1:
            notices.append("No average was better: the soup is the best run alone, unchanged.")
            progress.notice(notices[-1])
        tables = [member.data_settings for member in members]
        settings = [{name: t[name] for name in t if name not in LEFT_OUT} for t in tables]
        data = settings[0] if all(each == settings[0] for each in settings) else {}
        record = {
            "metric": metric,
            "higher_is_better": facts(metric).higher_is_better,
            "members": chosen,
            "runs": lines,
            "held_out": {"rows": len(rows), "hash": rows.hash, "source": rows.source},
            "settings": {"data": {**data, "max_length": length}},
            "notices": notices,
            "versions": versions(),
            "key": key,
            "score": score,
            "files": checksums(staged),
        }
        return write_json(staged / "soup.json", record)


@dataclass
class _Scorer:
    """Load, score and average models under the same settings."""

    request: EvaluationRequest
    length: int
    metric: str
    rows: Examples
    progress: Progress
    total: int
    done: int = 0

    def load(self, folder: Path) -> Predictor:
        """Load a model to score."""
        return _load(folder, self.request, self.length)

    def score(self, predictor: Predictor, *shown: Ingredient) -> float:
        """Score a model on the held-out rows; NaN where the metric has no value."""
        self.progress.evaluation(self.done, self.total, " + ".join(str(m.folder) for m in shown))
        aligned = align(self.rows, predictor.label_names)
        prediction = predictor.predict(aligned.examples)
        if aligned.entailment is not None:
            prediction = merge(prediction, aligned.entailment, how=self.request.evaluate.merge)
        block = block_of(Condition("task", "held_out"), aligned.examples, prediction)
        self.done += 1
        return float(statistic_of(self.metric, block)(np.ones((1, len(block))))[0])

    def alone(self, predictor: Predictor, member: Ingredient) -> float:
        """Score one run.

        Raises:
            DataError: If the metric has no value.
        """
        value = self.score(predictor, member)
        if not math.isfinite(value):
            raise DataError(
                f"{self.metric} of {member.folder} has no value on the held-out rows: "
                f"{facts(self.metric).undefined}. Give other or more rows with --data."
            )
        return value

    def choose(
        self, members: Sequence[Ingredient], alone: Sequence[float], staged: Path
    ) -> tuple[list[dict[str, Any]], float]:
        """Choose the members and leave their average in a folder.

        Returns:
            One line a run, the best first, and the score of the soup.
        """
        sign = 1.0 if facts(self.metric).higher_is_better else -1.0
        order = sorted(range(len(members)), key=lambda place: -sign * alone[place])
        kept = [members[order[0]]]
        best = alone[order[0]]
        lines = [_line(kept[0], best, together=None, kept=True)]
        written: list[Ingredient] = []
        for place in order[1:]:
            written = [*kept, members[place]]
            write_average(written, staged)
            together = self.score(self.load(staged), *written)
            # An average without a value compares as worse.
            taken = sign * together >= sign * best
            lines.append(_line(members[place], alone[place], together=together, kept=taken))
            if taken:
                kept, best = written, together
        if written != kept:
            write_average(kept, staged)
        return lines, best


def _load(folder: Path, request: EvaluationRequest, length: int) -> Predictor:
    return load_predictor(
        str(folder),
        max_length=length,
        batch_size=request.evaluate.batch_size,
        precision=request.evaluate.precision,
        device=request.predictor.device,
    )


def _metric(members: Sequence[Ingredient], rows: Examples, data: DataSettings) -> str:
    """Choose the runs' own metric where they agree, else the one of the held-out source."""
    metrics = {member.record.get("task", {}).get("metric") for member in members}
    if len(metrics) == 1 and None not in metrics:
        return str(metrics.pop())
    kind: LabelKind = "regression" if rows.kind == "regression" else "classification"
    return default_metric(data.source, kind, task=data.task)


def write_average(members: Sequence[Ingredient], folder: Path) -> None:
    """Write the average of models as a plain checkpoint.

    Args:
        members: At least one, alike in names, shapes and types; the first gives the configuration,
            the tokenizer and what is no floating point number.
        folder: Where to; made if need be, its weights are replaced.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for file in members[0].plain_files():
        shutil.copyfile(file, folder / file.name)
    target = folder / "model.safetensors"
    # A model that was loaded from the file may still have it mapped.
    target.unlink(missing_ok=True)
    tensors: dict[str, Tensor] = {}
    with ExitStack() as stack:
        opened = {
            file: stack.enter_context(safe_open(file, framework="pt"))
            for member in members
            for file in set(member.tensors.values())
        }
        for name in members[0].tensors:
            values = (opened[member.tensors[name]].get_tensor(name) for member in members)
            tensors[name] = _mean(next(values), values, count=len(members))
    save_file(tensors, target, metadata={"format": "pt"})
    # safetensors makes files that only their owner may read; a model is made to be shared.
    target.chmod((folder / "config.json").stat().st_mode)


def _mean(first: Tensor, others: Any, *, count: int) -> Tensor:
    """Average tensors, of which one at a time is read."""
    if not first.is_floating_point() or count == 1:
        return first
    total = first.to(torch.float64)
    for other in others:
        total += other
    return (total / count).to(first.dtype)


def _line(
    member: Ingredient, alone: float, *, together: float | None, kept: bool
) -> dict[str, Any]:
    """Describe a run's part in the soup."""
    return {
        "run": str(member.folder),
        "method": member.record.get("method"),
        "seed": member.record.get("seed"),
        "score": alone,
        "score_with_it": together if together is not None and math.isfinite(together) else None,
        "kept": kept,
    }


def _notices(members: Sequence[Ingredient], rows: Examples) -> list[str]:
    """Say what makes a soup fail, or its score worthless."""
    notices = list(rows.notices)
    seeds = {int(member.record["seed"]) for member in members if "seed" in member.record}
    if len(seeds) > 1:
        notices.append(
            f"The runs have the seeds {', '.join(map(str, sorted(seeds)))}, and so heads that were "
            "drawn apart (unless the model they began with had its head already). Averages of such "
            "runs often collapse; soup runs of one seed."
        )
    starts = {str(member.record["model"]) for member in members if "model" in member.record}
    if len(starts) > 1:
        notices.append(
            f"The runs began with different models ({', '.join(sorted(starts))}); their "
            "average has no reason to be better than chance."
        )
    reported = [
        str(member.folder)
        for member in members
        if member.record.get("data", {}).get("dev", {}).get("hash") == rows.hash
    ]
    if reported:
        notices.append(
            f"The held-out rows are the dev rows of {', '.join(reported)}. They choose the soup, "
            "so do not report a score on them; give rows that no report uses."
        )
    return notices


@dataclass(frozen=True)
class Ingredient:
    """A checkpoint that may become part of a soup.

    Args:
        folder: Where it lies.
        record: Its ``run.json``; empty for a checkpoint that Temper has not trained.
        config: Its ``config.json``.
        tensors: File of each tensor, by name.
        kinds: Type and shape of each tensor, by name.
    """

    folder: Path
    record: dict[str, Any] = field(repr=False)
    config: dict[str, Any] = field(repr=False)
    tensors: dict[str, Path] = field(repr=False)
    kinds: dict[str, str] = field(repr=False)

    @property
    def data_settings(self) -> dict[str, Any]:
        """How its run read its data; empty where nothing says it."""
        return self.record.get("settings", {}).get("data") or {}

    @property
    def labels(self) -> dict[str, str]:
        """Name of each class, by its number; empty where none are named."""
        return {str(key): str(value) for key, value in self.config.get("id2label", {}).items()}

    def plain_files(self) -> list[Path]:
        """Return configuration and tokenizer: what an average takes over as it is."""
        suffixes = (MODEL_FILES - WEIGHTS) | {".jinja"}
        return [
            file
            for file in sorted(self.folder.iterdir())
            if file.is_file() and file.suffix in suffixes and file.name not in NOT_COPIED
        ]


def read_ingredient(folder: Path) -> Ingredient:
    """Read all of a run but its weights.

    Args:
        folder: Of a finished run, or any folder with a whole Transformers checkpoint.

    Returns:
        What it holds.

    Raises:
        CheckpointError: If there is no checkpoint, or the run is not finished.
        ModelError: If a file is damaged, or it is an adapter.
    """
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder. A soup is made of folders of finished runs.")
    record = read_json(folder / "run.json") if (folder / "run.json").exists() else {}
    if record and record.get("status") != "finished":
        raise CheckpointError(
            f"The run in {folder} is {record.get('status')!r}, expected 'finished'. Run its "
            "`temper train` again to finish it."
        )
    if (folder / "adapter_config.json").exists():
        raise ModelError(
            f"{folder} holds a PEFT adapter, and an average of adapters' factors is not that of "
            "their models. Train with train.lora.merge=true, or merge each adapter into its model."
        )
    check_folder(folder)
    tensors: dict[str, Path] = {}
    kinds: dict[str, str] = {}
    for file in sorted(folder.glob("model*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 (it is no mapping)
                entry = opened.get_slice(name)
                tensors[name] = file
                kinds[name] = f"{entry.get_dtype()} {list(entry.get_shape())}"
    if not tensors or not (folder / "config.json").exists():
        raise CheckpointError(
            f"{folder} holds no config.json with a model.safetensors. Give folders of finished "
            "runs."
        )
    return Ingredient(folder, record, read_object(folder / "config.json"), tensors, kinds)


def check_alike(members: Sequence[Ingredient]) -> None:
    """Refuse to average models of different architectures, shapes or labels.

    Args:
        members: At least one.

    Raises:
        ModelError: Naming the first two that differ, and in what.
    """
    first = members[0]
    for other in members[1:]:
        if what := _difference(first, other):
            raise ModelError(
                f"{first.folder} and {other.folder} cannot be averaged: {what}. A soup needs runs "
                "of one model on one task."
            )


def _difference(first: Ingredient, other: Ingredient) -> str | None:
    """Say in what two checkpoints differ; None where they can be averaged."""
    for name in MUST_AGREE:
        one, two = first.config.get(name), other.config.get(name)
        if one != two:
            return f"`{name}` of their config.json is {one!r} and {two!r}"
    if first.labels != other.labels:
        return f"their labels are {first.labels} and {other.labels}"
    for name in dict.fromkeys([*first.kinds, *other.kinds]):
        one, two = first.kinds.get(name, "missing"), other.kinds.get(name, "missing")
        if one != two:
            return f"the tensor {name!r} is {one} and {two}"
    return None
