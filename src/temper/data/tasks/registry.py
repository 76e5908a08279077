"""The tasks by name, their published sizes, and how a source is recognised as one."""

from __future__ import annotations

import re
from typing import Literal

from temper.data.tasks.labels import IFLYTEK, TNEWS
from temper.data.tasks.task import Metric, Task
from temper.errors import unknown

_ACCEPTABLE = ("unacceptable", "acceptable")
_SENTIMENT = ("negative", "positive")
_ENTAILMENT = ("entailment", "not_entailment")
_NLI = ("entailment", "neutral", "contradiction")

# GLUE's scores are those of its paper (Wang et al. 2018, table 1), its labels and sizes those of
# the data card of nyu-mll/glue on the Hub; QNLI is the second version. Sizes of IMDB: Maas et al.
# 2011, of AG News: Zhang et al. 2015, of TNEWS and IFLYTEK: the data card of clue/clue on the Hub.
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task(
            "cola",
            "nyu-mll/glue:cola",
            ("mcc",),
            labels=_ACCEPTABLE,
            rows={"train": 8551, "dev": 1043, "test": 1063},
        ),
        Task(
            "sst2",
            "nyu-mll/glue:sst2",
            labels=_SENTIMENT,
            rows={"train": 67349, "dev": 872, "test": 1821},
        ),
        Task(
            "mrpc",
            "nyu-mll/glue:mrpc",
            ("f1", "accuracy"),
            pair=True,
            labels=("not_equivalent", "equivalent"),
            rows={"train": 3668, "dev": 408, "test": 1725},
        ),
        Task(
            "qqp",
            "nyu-mll/glue:qqp",
            ("f1", "accuracy"),
            pair=True,
            labels=("not_duplicate", "duplicate"),
            rows={"train": 363846, "dev": 40430, "test": 390965},
        ),
        Task(
            "stsb",
            "nyu-mll/glue:stsb",
            ("pearson", "spearman"),
            "regression",
            pair=True,
            rows={"train": 5749, "dev": 1500, "test": 1379},
        ),
        Task(
            "mnli",
            "nyu-mll/glue:mnli",
            pair=True,
            labels=_NLI,
            rows={
                "train": 392702,
                "dev_matched": 9815,
                "dev_mismatched": 9832,
                "test_matched": 9796,
                "test_mismatched": 9847,
            },
            evaluated=("dev_matched", "dev_mismatched"),
            stand_ins={"dev_mismatched": "dev_mismatched_tf1000"},
        ),
        Task(
            "qnli",
            "nyu-mll/glue:qnli",
            pair=True,
            labels=_ENTAILMENT,
            rows={"train": 104743, "dev": 5463, "test": 5463},
        ),
        Task(
            "rte",
            "nyu-mll/glue:rte",
            pair=True,
            labels=_ENTAILMENT,
            rows={"train": 2490, "dev": 277, "test": 3000},
        ),
        Task(
            "wnli",
            "nyu-mll/glue:wnli",
            pair=True,
            # The other way round than RTE and QNLI, in the files and on the Hub.
            labels=("not_entailment", "entailment"),
            rows={"train": 635, "dev": 71, "test": 146},
        ),
        Task(
            "imdb",
            "stanfordnlp/imdb",
            labels=_SENTIMENT,
            codes=("neg", "pos"),
            rows={"train": 25000, "test": 25000},
        ),
        Task(
            "ag_news",
            "fancyzhx/ag_news",
            labels=("World", "Sports", "Business", "Sci/Tech"),
            rows={"train": 120000, "test": 7600},
        ),
        Task(
            "tnews",
            "clue/clue:tnews",
            labels=tuple(TNEWS.values()),
            codes=tuple(TNEWS),
            rows={"train": 53360, "dev": 10000, "test": 10000},
        ),
        Task(
            "iflytek",
            "clue/clue:iflytek",
            labels=IFLYTEK,
            codes=tuple(map(str, range(len(IFLYTEK)))),
            rows={"train": 12133, "dev": 2599, "test": 2600},
        ),
        Task("trec", "CogComp/trec"),
        Task("snli", "stanfordnlp/snli", pair=True),
        Task("anli", "facebook/anli", pair=True),
        Task("hans", "jhu-cogsci/hans", pair=True),
        Task("paws", "google-research-datasets/paws:labeled_final", pair=True),
        Task("yelp_polarity", "fancyzhx/yelp_polarity"),
        Task("amazon_polarity", "fancyzhx/amazon_polarity"),
        Task("emotion", "dair-ai/emotion", ("accuracy", "macro_f1")),
        Task("demo", "demo"),
    )
}


def task_named(name: str) -> Task:
    """Return a task that can be asked for by name.

    Args:
        name: A name of ``temper list tasks`` with published sizes.

    Raises:
        ValueError: If there is none; it says which there are.

    Example:
        >>> task_named("mnli").evaluated
        ('dev_matched', 'dev_mismatched')
    """
    loadable = [known for known, task in TASKS.items() if task.rows]
    if name not in loadable:
        raise ValueError(unknown("task", name, loadable))
    return TASKS[name]


def plain(name: str) -> str:
    """Write a name without case and signs, as ``sst2`` for ``SST-2``."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def task_of(source: str) -> Task | None:
    """Recognise a task by the name of its source.

    Args:
        source: A task's name, a Hub id, or the path of a folder named like the task (or of a file
            in one).

    Returns:
        The task; None where no part of the name is one.

    Example:
        >>> task_of("data/SST-2/").name, task_of("glue:cola").metric, task_of("my_reviews")
        ('sst2', 'mcc', None)
    """
    known = {plain(name): task for name, task in TASKS.items()}
    parts = [part for part in re.split(r"[/\\:]", source.partition("@")[0]) if part]
    # A file's own name (train.csv) says nothing; the folder around it may. No further up: a home
    # directory may be called anything.
    for part in reversed(parts[-2:]):
        task = known.get(plain(part))
        if task is not None:
            return task
    return None


def default_metric(
    source: str, kind: Literal["classification", "regression"], *, task: str | None = None
) -> Metric:
    """Choose the score that stands for a task.

    Args:
        source: The source, as given by the user.
        kind: What the labels are.
        task: The task that was asked for by name, whatever the source is called.

    Returns:
        The task's score where it was named, or the source is recognised and its kind agrees; else
        accuracy for classes and Pearson's correlation for a regression.

    Example:
        >>> default_metric("glue:cola", "classification"), default_metric("my_scores", "regression")
        ('mcc', 'pearson')
        >>> default_metric("my_pairs.csv", "classification", task="mrpc")
        'f1'
    """
    known = task_of(source) if task is None else TASKS[task]
    if known is not None and known.kind == kind:
        return known.metric
    return "accuracy" if kind == "classification" else "pearson"
