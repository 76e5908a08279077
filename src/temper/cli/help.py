"""The text of ``--help``: options and commands in groups, and examples at the end."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from typer.core import TyperCommand

from temper.api.keywords import SETTINGS, TABLES
from temper.cli.options import GROUPS, OUTPUT
from temper.errors import SettingError

EXAMPLES: Mapping[str, tuple[str, ...]] = {
    "fit": ("temper fit reviews.csv --out runs/fit", "temper fit reviews.csv --budget 1h"),
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
    "check-labels": ("temper check-labels reviews.csv --model minilm --out checked.csv",),
    "calibrate": ("temper calibrate runs/reviews --data held_out.csv",),
    "predict": (
        'temper predict runs/reviews --text "a film to remember"',
        "temper predict runs/reviews --data new.csv --out labeled.csv",
    ),
    "report": ("temper report runs/compare",),
    "export": ("temper export runs/reviews --out shipped/reviews",),
    "serve": ("temper serve runs/reviews --port 8000",),
    "push": ("temper push runs/reviews NAME/reviews --private",),
    "verify": ("temper verify runs/reviews",),
    "list": ("temper list methods uegr", "temper list settings learning"),
    "new-method": ("temper new-method my_method",),
    "new-perspective": ("temper new-perspective my_perspective",),
}


def assignable(command: str, name: str) -> list[str]:
    """Return the keys of ``--set`` that a command accepts for a setting of this name.

    Example:
        >>> assignable("train", "max_steps"), assignable("train", "port")
        (['train.max_steps'], [])
    """
    paths = set(SETTINGS.get(command, {}).values())
    keys = {".".join(path) for path in paths if len(path) == 2 and path[-1] == name}
    # Of the other tables, commands read only the settings that are keywords.
    whole = {table: model for table, model in TABLES.items() if (table,) in paths}
    return sorted(
        keys | {f"{table}.{name}" for table in whole if name in whole[table].model_fields}
    )


class Command(TyperCommand):
    """A command whose help has its options in groups and ends with examples."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        """Parse the arguments; if an option is unknown, suggest its --set."""
        # As in Python, the first value is --data in commands with this option and no arguments.
        takes_data = any("--data" in parameter.opts for parameter in self.params)
        has_arguments = any(parameter.param_type_name == "argument" for parameter in self.params)
        is_given = any(word.partition("=")[0] == "--data" for word in args)
        if takes_data and not has_arguments and not is_given:
            begins_with_value = bool(args) and bool(args[0]) and not args[0].startswith("-")
            args = ["--data", *args] if begins_with_value else args
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            # Of click, or of Typer's own copy of click. An option without its value has a name too.
            if type(error).__name__ != "NoSuchOption":
                raise
            option = str(getattr(error, "option_name", ""))
            keys = assignable(str(ctx.info_name), option.strip("-").replace("-", "_"))
            if not keys:
                raise
            settings = " or ".join(f"--set {key}=VALUE" for key in keys)
            raise SettingError(f"No such option: {option}. Write {settings}.") from error

    def format_options(self, ctx: Any, formatter: Any) -> None:
        groups: dict[str, list[tuple[str, str]]] = {name: [] for name in ("Arguments", *GROUPS)}
        for parameter in self.get_params(ctx):
            if (record := parameter.get_help_record(ctx)) is None:
                continue
            is_option = parameter.param_type_name == "option"
            panel = getattr(parameter, "rich_help_panel", None) or OUTPUT
            groups[panel if is_option else "Arguments"].append(record)
        for name, records in groups.items():
            if records:
                with formatter.section(name):
                    formatter.write_dl(records)

    def format_epilog(self, ctx: Any, formatter: Any) -> None:
        """Write examples, and how to list the remaining settings."""
        if examples := EXAMPLES.get(str(ctx.info_name)):
            with formatter.section("Examples"):
                for example in examples:
                    # Not wrapped, so that it can be copied.
                    formatter.write(f"{'':>{formatter.current_indent}}{example}\n")
        if any(parameter.name == "assignments" for parameter in self.params):
            formatter.write_paragraph()
            formatter.write_text("More settings for --set: temper list settings [PATTERN]")
