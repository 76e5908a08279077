"""Known tasks: what they ask and what they are scored by."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

Metric = Literal["accuracy", "macro_f1", "mcc", "f1", "pearson", "spearman"]


@dataclass(frozen=True)
class Task:
    """A task that sources are recognised as.

    Args:
        name: Short name, lower case, no signs.
        hub: Id on the Hugging Face Hub, ``ID:CONFIG`` where it has configurations.
        metrics: Its scores; the first is the one that tables show.
        kind: What its labels are.
        pair: Whether a row has two texts.
    """

    name: str
    hub: str
    metrics: tuple[Metric, ...] = ("accuracy",)
    kind: Literal["classification", "regression"] = "classification"
    pair: bool = False

    @property
    def metric(self) -> Metric:
        """The score that tables show."""
        return self.metrics[0]


# GLUE's scores are those of its paper (Wang et al. 2018, table 1).
TASKS: dict[str, Task] = {
    task.name: task
    for task in (
        Task("cola", "nyu-mll/glue:cola", ("mcc",)),
        Task("sst2", "nyu-mll/glue:sst2"),
        Task("mrpc", "nyu-mll/glue:mrpc", ("f1", "accuracy"), pair=True),
        Task("qqp", "nyu-mll/glue:qqp", ("f1", "accuracy"), pair=True),
        Task("stsb", "nyu-mll/glue:stsb", ("pearson", "spearman"), "regression", pair=True),
        Task("mnli", "nyu-mll/glue:mnli", pair=True),
        Task("qnli", "nyu-mll/glue:qnli", pair=True),
        Task("rte", "nyu-mll/glue:rte", pair=True),
        Task("wnli", "nyu-mll/glue:wnli", pair=True),
        Task("imdb", "stanfordnlp/imdb"),
        Task("ag_news", "fancyzhx/ag_news"),
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


def _plain(name: str) -> str:
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
    known = {_plain(name): task for name, task in TASKS.items()}
    parts = [part for part in re.split(r"[/\\:]", source.partition("@")[0]) if part]
    # A file's own name (train.csv) says nothing; the folder around it may. No further up: a home
    # directory may be called anything.
    for part in reversed(parts[-2:]):
        task = known.get(_plain(part))
        if task is not None:
            return task
    return None


def default_metric(source: str, kind: Literal["classification", "regression"]) -> Metric:
    """Choose the score that stands for a task.

    Args:
        source: The source, as given by the user.
        kind: What the labels are.

    Returns:
        The known task's score where the source is recognised and its kind agrees; else accuracy for
        classes and Pearson's correlation for a regression.

    Example:
        >>> default_metric("glue:cola", "classification"), default_metric("my_scores", "regression")
        ('mcc', 'pearson')
    """
    task = task_of(source)
    if task is not None and task.kind == kind:
        return task.metric
    return "accuracy" if kind == "classification" else "pearson"
