"""The Typer app: its commands and its error handling."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from temper import __version__
from temper.cli.calibrate import calibrate
from temper.cli.check_labels import check_labels
from temper.cli.compare import compare
from temper.cli.evaluate import evaluate
from temper.cli.export import export
from temper.cli.fit import fit
from temper.cli.help import Command
from temper.cli.listing import show
from temper.cli.predict import predict
from temper.cli.push import push
from temper.cli.report import report
from temper.cli.reproduce import reproduce
from temper.cli.screen import fail, quiet
from temper.cli.serve import serve
from temper.cli.templates import new_method, new_perspective
from temper.cli.train import train
from temper.cli.tune import tune
from temper.cli.verify import verify
from temper.errors import OtherProcessError, TemperError, Terminated, one_line
from temper.memory import is_exhausted
from temper.stopping import terminating

INTERRUPTED, TERMINATED = 130, 143


COMMANDS: Mapping[str, Mapping[str, tuple[Callable[..., None], str]]] = {
    "Train": {
        "fit": (fit, "Train, evaluate and calibrate a classifier in one call"),
        "train": (train, "Fine-tune a model"),
        "compare": (compare, "Compare methods over several seeds"),
        "tune": (tune, "Find the best recipe and settings within a budget"),
    },
    "Evaluate": {
        "evaluate": (evaluate, "Evaluate any text classifier"),
        "check-labels": (check_labels, "Find rows whose label is probably wrong"),
        "report": (report, "Write the HTML report of a study or an evaluation"),
        "verify": (verify, "Check that a folder's files and scores are unchanged"),
        "reproduce": (reproduce, "Reproduce a table or figure of the papers"),
    },
    "Use": {
        "calibrate": (calibrate, "Fit temperature, prediction sets and OOD threshold"),
        "predict": (predict, "Predict the labels of texts"),
        "serve": (serve, "Serve predictions over HTTP"),
        "export": (export, "Export a model as files that do not need Temper"),
        "push": (push, "Upload a checkpoint and its model card to the Hub"),
    },
    "Extend": {
        "list": (show, "List methods, models, settings and more"),
        "new-method": (new_method, "Create a method from a template"),
        "new-perspective": (new_perspective, "Create a perspective from a template"),
    },
}
"""Group -> command -> its function and a summary of at most 55 characters."""


class Commands(TyperGroup):
    """Run a command; turn Temper's errors into one message and an exit code."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        for group, commands in COMMANDS.items():
            with formatter.section(group):
                formatter.write_dl([(name, text) for name, (_, text) in commands.items()])

    def invoke(self, ctx: Any) -> Any:
        try:
            with quiet(), terminating():
                return super().invoke(ctx)
        except TemperError as error:
            # With several processes, the one that failed first reports the error.
            if not isinstance(error, OtherProcessError):
                fail(str(error))
            raise typer.Exit(error.exit_code) from error
        except (KeyboardInterrupt, Terminated) as error:
            if ctx.invoked_subcommand != "serve" and os.environ.get("RANK", "0") == "0":
                fail("Stopped. Run the same command again to resume from the last checkpoint.")
            code = TERMINATED if isinstance(error, Terminated) else INTERRUPTED
            raise typer.Exit(code) from None
        except typer.Exit:
            # typer.Exit is a RuntimeError too.
            raise
        except (MemoryError, RuntimeError) as error:
            if not is_exhausted(error):
                raise
            fail(
                f"Out of memory: {one_line(str(error))} Reduce the batch size (--batch-size or "
                "--set evaluate.batch_size=N), or pass fewer rows."
            )
            raise typer.Exit(TemperError.exit_code) from error


def _show_version(asked: bool) -> None:
    if asked:
        typer.echo(f"temper {__version__}")
        raise typer.Exit


app = typer.Typer(
    name="temper",
    cls=Commands,
    help="Fine-tune text models for robustness and calibration, and evaluate both.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    # Boxes hard-wrap messages, which then cannot be searched for.
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)


@app.callback()
def before_any_command(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Print the version and exit."
        ),
    ] = False,
) -> None:
    """Fine-tune text models for robustness and calibration, and evaluate both."""


for commands in COMMANDS.values():
    for name, (function, summary) in commands.items():
        # `reproduce` passes its arguments to another package, whose help it shows.
        passes_on = {"ignore_unknown_options": True, "help_option_names": []}
        app.command(
            name,
            cls=Command,
            short_help=summary,
            context_settings=passes_on if name == "reproduce" else None,
        )(function)


def main(arguments: list[str] | None = None) -> None:
    """Run the ``temper`` command and exit.

    Args:
        arguments: The words after ``temper``; None reads them from `sys.argv`.

    Raises:
        SystemExit: Always. The code is 0, 2 for wrong input, 130 for Ctrl-C, 143 for SIGTERM.
    """
    app(args=sys.argv[1:] if arguments is None else arguments, prog_name="temper")


def process() -> None:
    try:
        main()
    except SystemExit as ended:
        # Only a training command can have joined a process group.
        if processes := sys.modules.get("temper.training.processes"):
            processes.end(int(ended.code or 0))
        raise
