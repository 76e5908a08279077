"""Known tasks: what they ask, what they are scored by, and how their published files are read."""

from temper.data.tasks.registry import TASKS, default_metric, task_named, task_of
from temper.data.tasks.task import Metric, Task

__all__ = ["TASKS", "Metric", "Task", "default_metric", "task_named", "task_of"]
