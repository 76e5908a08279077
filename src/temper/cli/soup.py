"""``temper soup``: average finished runs greedily."""

from __future__ import annotations

from typing import Annotated

import typer

from temper.cli import early, options
from temper.cli.screen import print_json, print_table, say

COLUMNS = ("run", "method", "seed", "score", "score_with_it", "kept")


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
    sets: options.Sets = None,
    config: options.Config = None,
    eval_rows: options.EvalRows = None,
    max_length: options.MaxLength = None,
    device: options.Device = None,
    text_column: options.TextColumn = None,
    text_pair_column: options.TextPairColumn = None,
    label_column: options.LabelColumn = None,
    encoding: options.Encoding = None,
    skip_bad_rows: options.SkipBadRows = False,
    eval_split: options.EvalSplit = None,
    as_json: options.Json = False,
) -> None:
    """Average the weights of finished runs, each taken in if held-out rows do not object.

    Runs are sorted by their score on the held-out rows; each becomes a member if the average with
    it scores no lower than without. The average is written as a plain checkpoint.
    """
    tree = options.nested(
        config,
        {
            "data.source": data,
            "data.eval_rows": eval_rows,
            "data.max_length": max_length,
            "data.text_column": text_column,
            "data.text_pair_column": text_pair_column,
            "data.label_column": label_column,
            "data.encoding": encoding,
            "data.skip_bad_rows": skip_bad_rows,
            "data.eval_split": eval_split,
        },
        sets,
    )
    early.refuse(early.of_soup(tree, runs, out))
    from temper.app.evaluation import Judging
    from temper.app.soup import make_soup
    from temper.cli.bars import progress

    asked = Judging.of(tree, model=runs[0], device=device)
    with progress() as shown:
        made = make_soup(runs, asked, out, progress=shown)
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
    say(
        f"Soup of {len(made['members'])} runs, {made['metric']} {made['score']:.4f}: {out}",
        as_json=False,
    )
