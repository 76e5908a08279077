"""The text of ``--help``: options and commands in groups, and examples at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import typer
from typer.core import TyperCommand

GROUPS: Mapping[str, tuple[str, ...]] = {
    "Data": (
        "data", "task", "data_root", "multi_task", "text", "text_pair", "text_column",
        "text_pair_column", "label_column", "kind", "rows", "eval_rows", "eval_split",
        "drop_overlap", "skip_bad_rows", "encoding", "max_length", "columns", "augment",
        "unlabeled", "with_dev",
    ),
    "Model and method": (
        "model", "method", "methods", "recipe", "recipes", "objective", "rule", "lora", "peft",
        "label_names", "label_map", "new_head", "gives", "trust", "imports", "variants",
    ),
    "Optimization": (
        "epochs", "max_steps", "batch_size", "learning_rate", "keep", "seed", "seeds", "budget",
        "goal",
    ),
    "Evaluation": (
        "perspectives", "shift", "adversarial", "anomaly", "suite", "fit", "held_out", "seen_rows",
        "coverage", "by", "false_alarms", "fit_rows", "abstain", "max_risk", "margin", "detect",
        "evaluation",
    ),
    "Hardware": ("device", "precision", "workers", "cluster", "cluster_cpus", "cluster_gpus"),
    "Service": (
        "host", "port", "window_ms", "batch_rows", "queue_rows", "request_rows", "text_characters",
        "body_bytes", "body_seconds", "connections", "shift_rows", "stop_seconds",
    ),
}  # fmt: skip
"""Names of options by group; any other option is of the last group, Output."""
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "Train": {
        "train": "Fine-tune a model",
        "compare": "Train recipes over seeds, evaluate and compare them",
        "tune": "Search recipes and settings within a budget",
    },
    "Evaluate": {
        "evaluate": "Measure any text classifier",
        "report": "Write the HTML report of a study or an evaluation",
        "verify": "Check a folder's files and scores again",
        "reproduce": "Run a table or figure of the papers",
    },
    "Use": {
        "calibrate": "Fit temperature, prediction sets and OOD threshold",
        "predict": "Label texts of a file or of the command line",
        "serve": "Answer texts over HTTP",
        "export": "Write a plain checkpoint, ONNX or a pipeline",
        "push": "Upload a checkpoint and its card to the Hub",
    },
    "Extend": {
        "list": "List methods, models, settings and more",
        "new-method": "Write a method with its test and card",
        "new-perspective": "Write a perspective with its test and page",
    },
}
"""What each command does, in at most 55 characters, by group."""
EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "train": (
        "temper train --model minilm --data reviews.csv --out runs/reviews",
        "temper train --model minilm --data demo --method uegr --epochs 3 --out runs/uegr",
    ),
    "compare": (
        "temper compare --model minilm --data demo --recipes plain,uegr_one_pass "
        "--seeds 0,1,2 --out runs/compare",
    ),
    "tune": ("temper tune --data reviews.csv --budget 30m --out runs/tune",),
    "evaluate": (
        "temper evaluate runs/reviews --data test.csv",
        "temper evaluate runs/reviews --shift tweets=tweets.csv --anomaly news=news.csv",
    ),
    "calibrate": ("temper calibrate runs/reviews --data held_out.csv",),
    "predict": (
        'temper predict runs/reviews --text "a film to remember"',
        "temper predict runs/reviews --data new.csv --out labeled.csv",
    ),
    "report": ("temper report runs/compare",),
    "export": ("temper export runs/reviews --to shipped/reviews",),
    "serve": ("temper serve runs/reviews --port 8000",),
    "push": ("temper push runs/reviews NAME/reviews --private",),
    "verify": ("temper verify runs/reviews",),
    "list": ("temper list methods uegr", "temper list settings learning"),
    "new-method": ("temper new-method my_method",),
    "new-perspective": ("temper new-perspective my_perspective",),
}


class Command(TyperCommand):
    """A command whose help has its options in groups and ends with examples."""

    def format_options(self, ctx: Any, formatter: Any) -> None:
        """Write arguments and options, a section for each group."""
        group_of = {name: group for group, names in GROUPS.items() for name in names}
        groups: dict[str, list[tuple[str, str]]] = {
            name: [] for name in ("Arguments", *GROUPS, "Output")
        }
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            is_option = parameter.param_type_name == "option"
            group = group_of.get(str(parameter.name), "Output") if is_option else "Arguments"
            groups[group].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples, and how to find the settings that are no options."""
        if examples := EXAMPLES.get(str(ctx.info_name)):
            with formatter.section("Examples"):
                for example in examples:
                    # Not wrapped, so that it can be copied.
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        if any(parameter.name == "assignments" for parameter in self.params):
            formatter.write_paragraph()
            formatter.write_text("More settings for --set: temper list settings [PATTERN]")


def add_commands(app: typer.Typer, functions: Mapping[str, Any]) -> None:
    """Add commands to an app, in the order of `COMMANDS`.

    Args:
        app: The app.
        functions: The function of each command, by its name.
    """
    for names in COMMANDS.values():
        for name, summary in names.items():
            # `reproduce` hands its arguments to another package, whose help it shows.
            context = (
                {"ignore_unknown_options": True, "help_option_names": []}
                if name == "reproduce"
                else None
            )
            app.command(name, cls=Command, short_help=summary, context_settings=context)(
                functions[name]
            )
