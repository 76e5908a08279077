"""``temper soup``: average finished runs greedily."""

from __future__ import annotations

from functools import partial
from typing import Annotated, Any

import typer

from temper.app.keywords import HELD_OUT
from temper.app.quick_checks import check_predictor, of_room, of_settings, refuse
from temper.cli import options
from temper.cli.screen import print_json, print_table, say

COLUMNS = ("run", "method", "seed", "score", "score_with_it", "kept")


@options.with_settings(HELD_OUT)
def soup(
    runs: Annotated[list[str], typer.Argument(help="Folders of two finished runs or more.")],
    *,
    data: Annotated[
        str,
        typer.Option(
            "--data",
            help="Held-out rows that choose the members: rows that no report uses, never the "
            "split that you report.",
        ),
    ],
    out: options.Out,
    assignments: options.Assignments = None,
    config: options.Config = None,
    as_json: options.Json = False,
    **settings: Any,
) -> None:
    """Average the weights of finished runs, each taken in if held-out rows do not object.

    Runs are sorted by their score on the held-out rows; each becomes a member if the average with
    it scores no lower than without. The average is written as a plain checkpoint.
    """
    tree = HELD_OUT.tree(config, {"data": data, **settings}, assignments or ())
    refuse(
        [
            *(partial(check_predictor, run) for run in runs),
            *of_settings(tree),
            of_room(out, "soup", "soup.json"),
        ]
    )
    from temper.app.evaluate import EvaluationRequest
    from temper.app.soup import make_soup
    from temper.cli.bars import progress

    request = EvaluationRequest.of(tree, model=runs[0])
    with progress() as shown:
        made = make_soup(runs, request, out, progress=shown)
    if as_json:
        print_json({"out": str(out), **made})
        return
    rows = [
        {
            name: round(value, 4) if isinstance(value, float) else value
            for name, value in run.items()
        }
        for run in made["runs"]
    ]
    print_table(rows, COLUMNS, title=f"{made['metric']} on the held-out rows")
    say(f"Soup of {len(made['members'])} runs, {made['metric']} {made['score']:.4f}: {out}")
