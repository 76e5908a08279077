"""``temper push``: publish a run on the Hub."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from temper.cli import options
from temper.cli.screen import print_json, say


def push(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    repo: Annotated[
        str, typer.Argument(help="OWNER/NAME, or NAME in your account; created if missing.")
    ],
    *,
    private: options.Private = False,
    evaluation: options.PushedEvaluation = None,
    texts: options.PushedTexts = False,
    as_json: options.Json = False,
) -> None:
    """Upload a checkpoint with its model card, scores and report to the Hub, in one commit.

    The token is read from the environment variable HF_TOKEN. Optimizer states are not uploaded,
    and a folder with a pickle is an error. Texts of the data are uploaded only with --texts.
    """
    from temper.export.push import push as push_run

    pushed = push_run(run, repo, private=private, evaluation=evaluation, texts=texts)
    if as_json:
        print_json(vars(pushed))
        return
    say(f"{len(pushed.files)} files: {', '.join(pushed.files)}")
    if pushed.kept:
        say(f"Not uploaded: {', '.join(pushed.kept)}")
    say(f"Pushed: {pushed.url}")
