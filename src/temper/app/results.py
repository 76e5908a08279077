"""What `temper.train`, `temper.evaluate` and `temper.compare` return; notebooks show it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pandas

    from temper.evaluation.predictor import Predictor


class Result(ABC):
    """Something that lies in a folder and has scores."""

    folder: Path

    @property
    @abstractmethod
    def title(self) -> str:
        """What it is, in one line."""

    @property
    @abstractmethod
    def scores(self) -> pandas.DataFrame:
        """Its scores as a table."""

    def report(self) -> Path:
        """Write ``report.html`` into the folder, as ``temper report`` does, and return its path."""
        from temper.report import build

        return build(self.folder)

    def _repr_html_(self) -> str:
        """Show title, scores and folder in a notebook."""
        table = self.scores.to_html(index=False, border=0, na_rep="", escape=True)
        return f"<p><b>{escape(self.title)}</b></p>{table}<p>{escape(str(self.folder))}</p>"


@dataclass(frozen=True)
class TrainingResult(Result):
    """A finished run.

    Args:
        folder: Where it lies: a plain checkpoint with its record.
        record: The content of its ``run.json``.
    """

    folder: Path
    record: Mapping[str, Any]

    @property
    def title(self) -> str:
        """Model and method."""
        return f"{self.record['model']} trained with {self.record['method']}"

    @property
    def scores(self) -> pandas.DataFrame:
        """A line for each epoch: the task's metric on the dev rows."""
        import pandas

        told = self.record.get("epochs", {})
        tasks = told if "tasks" in self.record else {"": told}
        lines = [
            {**({"task": task} if task else {}), "metric": each["metric"], **scores}
            for task, each in tasks.items()
            for scores in each.get("scores", ())
        ]
        return pandas.DataFrame(lines)

    def load(self, *, device: str | None = None) -> Predictor:
        """Load the trained model.

        Args:
            device: Where it runs; None takes a GPU where there is one.

        Returns:
            A predictor: ``predict(examples)``, and its ``model`` and ``tokenizer``.
        """
        from temper.app.predictors import load_predictor

        return load_predictor(str(self.folder), device=device)


@dataclass(frozen=True)
class EvaluationResult(Result):
    """An evaluation.

    Args:
        folder: Where rows and scores lie.
        content: The content of its ``scores.json``.
        sources: Name of each set to its source.
    """

    folder: Path
    content: Mapping[str, Any]
    sources: Mapping[str, str]

    @property
    def title(self) -> str:
        """What was measured."""
        return f"Evaluation of {self.content['model']}"

    @property
    def scores(self) -> pandas.DataFrame:
        """A line for each score, with its 95 % interval and n."""
        import pandas

        return pandas.DataFrame(self.content["scores"])
