"""Results of `temper.train`, `temper.evaluate` and `temper.compare`, also shown in notebooks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from temper.display.folders import Source
    from temper.evaluation.predictor import Predictor
    from temper.report import Comparison, ErrorAnalysis, Headline


class Result(ABC):
    """The result of a command: a folder, with its scores and its report."""

    folder: Path

    @property
    @abstractmethod
    def title(self) -> str:
        """A summary in one line."""

    @property
    @abstractmethod
    def scores(self) -> pandas.DataFrame: ...

    def report(self) -> Path:
        """Write ``report.html`` into the folder, as ``temper report`` does, and return its path."""
        from temper.report import build

        return build(self.folder)

    def headline(self) -> Headline:
        """Return the summary at the top of the report: recommendation, certainty and scores."""
        from temper.report import verdict

        return verdict(*self._read())

    def _read(self) -> tuple[Source, Comparison]:
        from temper.display.folders import read
        from temper.report.table import compare

        source = read(self.folder)
        return source, compare(source)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.folder)!r})"

    def __str__(self) -> str:
        shown = self.headline()
        lines = [" ".join(part for part in line if part) for line in shown.lines]
        return "\n".join([self.title, *lines, *shown.summary, str(self.folder)])

    def _repr_html_(self) -> str:
        from temper.report import first_screen

        return first_screen(*self._read())


@dataclass(frozen=True, repr=False)
class TrainingResult(Result):
    """A finished run: its folder, which has the checkpoint, and the content of ``run.json``."""

    folder: Path
    record: Mapping[str, Any]

    @property
    def title(self) -> str:
        return f"{self.record['model']} trained with {self.record['method']}"

    @property
    def scores(self) -> pandas.DataFrame:
        """The task's metric on the validation set, one row per epoch."""
        import pandas

        epochs = self.record.get("epochs", {})
        tasks = epochs if "tasks" in self.record else {"": epochs}
        lines = [
            {**({"task": task} if task else {}), "metric": item["metric"], **scores}
            for task, item in tasks.items()
            for scores in item.get("scores", ())
        ]
        return pandas.DataFrame(lines)

    def load(self, *, device: str | None = None) -> Predictor:
        """Load the trained model as a predictor with ``predict(examples)``.

        Args:
            device: Name of a device; None uses a GPU if there is one.
        """
        from temper.checkpoints.checkpoint import Checkpoint
        from temper.evaluation.loading import load_predictor

        return load_predictor(Checkpoint.of(self.folder), device=device)


@dataclass(frozen=True, repr=False)
class EvaluationResult(Result):
    """An evaluation: its folder, the content of ``scores.json``, and each set's data source."""

    folder: Path
    content: Mapping[str, Any]
    sources: Mapping[str, str]

    @property
    def title(self) -> str:
        return f"Evaluation of {self.content['model']}"

    @property
    def scores(self) -> pandas.DataFrame:
        """One row per metric, with its 95% interval and the number of examples n."""
        import pandas

        return pandas.DataFrame(self.content["scores"])

    def errors(self) -> ErrorAnalysis | None:
        """Return confusions, scores by class, worst errors and advice.

        None unless it is a classification with stored rows of the validation set.
        """
        from temper.display.folders import read
        from temper.report import error_analysis

        return error_analysis(read(self.folder))
