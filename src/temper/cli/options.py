"""The options of commands: those made from the settings' models, and others that they share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, TypeVar

import typer

from temper.api.keywords import Keyword, Keywords, split_list
from temper.errors import SettingError
from temper.importing import check_file_exists

Command = TypeVar("Command", bound=Callable[..., None])


def completing(names: Callable[[], Iterable[str]], sign: str = "") -> Callable[[str], list[str]]:
    """Return what the shell completes a value with; torch is not imported for it.

    Args:
        names: Returns what there is; where none fits, the shell completes a path.
        sign: What stands between several names, of which the last is completed.
    """

    def complete(incomplete: str) -> list[str]:
        before, between, last = incomplete.rpartition(sign) if sign else ("", "", incomplete)
        space = last[: len(last) - len(last.lstrip())]
        return [
            f"{before}{between}{space}{name}"
            for name in sorted(names())
            if name.startswith(last.lstrip())
        ]

    return complete


def _methods() -> Iterable[str]:
    from temper import methods

    return methods.names()


def _models() -> Iterable[str]:
    from temper.models.names import SHORT_NAMES

    return SHORT_NAMES


def _recipes() -> Iterable[str]:
    from temper.methods.recipes import recipes

    return recipes()


def _perspectives() -> Iterable[str]:
    from temper.evaluation import perspectives
    from temper.evaluation.perspectives.registry import ALIASES

    return (*perspectives.names(), *ALIASES)


def _suites() -> Iterable[str]:
    from temper.data.suites.suite import suite_names

    return suite_names()


def _tasks() -> Iterable[str]:
    from temper.data.tasks.registry import TASKS

    return TASKS


complete_method = completing(_methods, "+")
complete_methods = completing(_methods, ",")
complete_recipes = completing(_recipes, ",")
COMPLETED = {
    "model": completing(_models),
    "method": complete_method,
    "objective": complete_method,
    "recipe": completing(_recipes),
    "rule": complete_method,
    "perspectives": completing(_perspectives, ","),
    "suite": completing(_suites),
    "task": completing(_tasks),
}

Full = Annotated[bool, typer.Option("--full", help="Print the whole table of scores too.")]
Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON on stdout; progress stays on stderr."),
]
Card = Annotated[
    bool,
    typer.Option("--card", help="Write a model card for the Hub, the model folder's README.md."),
]
CardPath = Annotated[
    Path | None,
    typer.Option("--card-path", metavar="FILE", help="Write the model card to that file instead."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one value, for example train.epochs=3."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of settings; options and --set override it."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
StudyOut = Annotated[
    str,
    typer.Option(
        "--out",
        metavar="FOLDER|URL",
        help="Folder to write; with --cluster also an object store, such as s3://BUCKET/STUDY.",
    ),
]
Margin = Annotated[
    float,
    typer.Option(
        "--margin",
        min=0.0,
        metavar="POINTS",
        help="Difference that would matter: an interval that ends within it says equal, no worse "
        "or no better. 0 asks for none.",
    ),
]
Detect = Annotated[
    float | None,
    typer.Option(
        "--detect",
        metavar="POINTS",
        help="Also print the approximate number of seeds that detect a true difference of this "
        "size.",
    ),
]
Cluster = Annotated[
    str | None,
    typer.Option(
        "--cluster",
        metavar="ADDRESS",
        help="Ray cluster whose machines do the runs: auto, HOST:PORT or ray://HOST:PORT; they see "
        "--out, data and model under the same paths or URLs.",
    ),
]
ClusterCpus = Annotated[
    int, typer.Option("--cluster-cpus", metavar="N", help="Cores and threads of each there.")
]
ClusterGpus = Annotated[
    float,
    typer.Option("--cluster-gpus", metavar="N", help="GPUs of each there; 0.5 shares one."),
]
Coverage = Annotated[
    float | None,
    typer.Option(
        "--coverage",
        help="How often prediction sets, or intervals of a regression, shall hold the truth. "
        "The first one of `temper calibrate` if left out.",
    ),
]
Abstain = Annotated[
    str | None,
    typer.Option(
        "--abstain",
        metavar="anomaly,set>K",
        help="Say `abstain` and why on texts that are flagged as anomalies, or whose set is "
        "empty or larger than K.",
    ),
]
MaxRisk = Annotated[
    float | None,
    typer.Option(
        "--max-risk",
        help="Say `abstain` below the confidence from which on answers are wrong at this rate "
        "at most, as the held-out rows of `temper calibrate` show.",
    ),
]
Imports = Annotated[
    list[str] | None,
    typer.Option(
        "--import",
        metavar="FILE.py|MODULE",
        help="Import methods and perspectives of your own first; this runs that file's code.",
    ),
]
MODEL_HELP = (
    "Folder of a checkpoint or PEFT adapter, Hub id of a classifier, scikit-learn pipeline in a "
    ".skops file, or file.py:NAME or module:NAME of a function (this runs that file's code)."
)


WITHOUT_OPTION = {
    "augment_share", "augment_masked_model", "train_split", "group_column", "dev_share",
    "unlabeled_rows", "accumulation", "weight_decay", "warmup_ratio", "schedule", "max_grad_norm",
    "save_steps", "logging_steps", "group_by_length", "class_weights", "gradient_checkpointing",
    "keep_share", "on_oom", "fsdp", "reference",
}  # fmt: skip
"""Settings that are set by ``--set`` and TOML files alone, to keep ``--help`` short."""


def with_settings(keywords: Keywords) -> Callable[[Command], Command]:
    """Give a command an option for its usual settings, which come in its ``**settings``.

    Args:
        keywords: What the command can be told.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        listed = list(signature.parameters.values())[:-1]
        taken = {parameter.name for parameter in listed}
        offered = [name for name in keywords.settings if name not in WITHOUT_OPTION]
        names = sorted(offered, key=lambda name: name not in ("model", "data", "task"))
        options = [_option(name, keywords.settings[name]) for name in names if name not in taken]
        needed = [parameter for parameter in listed if parameter.default is parameter.empty]
        others = [parameter for parameter in listed if parameter not in needed]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*needed, *options, *others]
        )
        return command

    return decorate


def _option(name: str, keyword: Keyword) -> inspect.Parameter:
    """Return the parameter that stands for a setting in a command's signature."""
    flag, is_switch = f"--{name.replace('_', '-')}", keyword.kind is bool
    meaning = keyword.meaning.replace("``", "`")
    if keyword.default not in (None, False, (), {}):
        meaning += f" [default: {'on' if keyword.default is True else keyword.default}]"
    option = typer.Option(
        None,
        f"{flag}/--no{flag[1:]}" if is_switch else flag,
        help=meaning,
        metavar=None if is_switch else keyword.metavar or None,
        autocompletion=COMPLETED.get(name),
        show_default=False,
    )
    annotation = (list[str] if keyword.many else keyword.kind) | None
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=option, annotation=annotation
    )


def import_methods(named: list[str] | None) -> None:
    """Import what ``--import`` names, so that its methods and perspectives are known.

    Args:
        named: Files and modules; None and an empty list import nothing.

    Raises:
        SettingError: Where one is not there or its code fails.
    """
    for source in named or []:
        check_file_exists(source, purpose="methods and perspectives")
    if named:
        from temper.cluster.plugins import load

        for source in named:
            load(source)


def split_seeds(text: str) -> list[int]:
    """Read ``--seeds``.

    Raises:
        SettingError: Where a part is no whole number.

    Example:
        >>> split_seeds("0,1,2")
        [0, 1, 2]
    """
    try:
        return [int(part) for part in split_list(text, "--seeds")]
    except ValueError as error:
        raise SettingError(f"--seeds takes whole numbers as in 0,1,2, got {text!r}.") from error


def write_card(
    model: Path | str,
    path: Path,
    evaluation: Path | None = None,
    data: Mapping[str, str] | None = None,
) -> None:
    """Write a model card and say where.

    Args:
        model: Folder of the model.
        path: The file, as `temper.report.card.check_card` found it.
        evaluation: Folder of its evaluation; None takes the one in the model's folder or
            beside it, if any.
        data: Name of a set to its source.
    """
    from temper.cli.screen import say
    from temper.report.card import CardSources
    from temper.report.card import write_card as write

    written = write(CardSources(Path(model), evaluation, data or {}), path)
    # Where --json was asked for, stdout belongs to it.
    say(f"Model card: {written}", as_json=True)
