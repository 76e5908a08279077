"""The options of commands: those made from the settings' models, and others that they share."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer

from temper.app.keywords import Keyword, Keywords, name_of, split_list
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
    from temper.methods.declared import known_names

    return known_names()


def _models() -> Iterable[str]:
    from temper.models.names import SHORT_NAMES

    return SHORT_NAMES


def _perspectives() -> Iterable[str]:
    from temper.evaluation.perspectives.declared import GROUPS, declared

    return (*declared(), *GROUPS)


def _suites() -> Iterable[str]:
    from temper.data.suites.suite import suite_names

    return suite_names()


def _tasks() -> Iterable[str]:
    from temper.data.tasks.registry import TASKS

    return TASKS


complete_method = completing(_methods, "+")
complete_methods = completing(_methods, ",")
COMPLETED = {"suite": completing(_suites), "task": completing(_tasks)}

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
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Folder with the folders of tasks, as GLUE, CLUE or Temper lay them out, and of the "
        "sets of a suite; the environment variable TEMPER_DATA if left out.",
    ),
]
Workers = Annotated[
    int,
    typer.Option(
        "--workers",
        metavar="N",
        help="Processes that train and judge runs side by side; they share the machine's threads "
        "and GPUs.",
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
# Options of settings that stand in no table, or whose class needs torch.
FURTHER: dict[str, Any] = {
    "model": Annotated[
        str | None,
        typer.Option(
            "--model",
            help="Hub id, folder, or short name of `temper list models`.",
            autocompletion=completing(_models),
        ),
    ],
    "method": Annotated[
        str | None,
        typer.Option(
            "--method",
            help="A method of `temper list methods`, or `ONE + OTHER`; uegr if left out.",
            autocompletion=complete_method,
        ),
    ],
    "objective": Annotated[
        str | None,
        typer.Option(
            "--objective",
            help="A method of which only the objective is taken.",
            autocompletion=complete_method,
        ),
    ],
    "rule": Annotated[
        str | None,
        typer.Option(
            "--rule",
            help="A method of which only the update rule is taken.",
            autocompletion=complete_method,
        ),
    ],
    "multi_task": Annotated[
        list[str] | None,
        typer.Option(
            "--multi-task",
            metavar="NAME[=PATH]",
            help="Train one encoder on several tasks, a head each (MT-DNN); once for every task. A "
            "name that --task takes is found as --task finds it, or lies in PATH; any other name "
            "is PATH's.",
        ),
    ],
    "data_root": DataRoot,
    "seed": Annotated[int | None, typer.Option("--seed", help="Seed of every random draw.")],
    "lora": Annotated[
        bool | None,
        typer.Option(
            "--lora", help="Train a LoRA adapter and the head alone; --set train.lora.rank=16 ..."
        ),
    ],
    "perspectives": Annotated[
        str | None,
        typer.Option(
            "--perspectives",
            help="What to measure, with commas between: names of `temper list perspectives`, "
            "`default`, `all`.",
            autocompletion=completing(_perspectives, ","),
        ),
    ],
    "reference": Annotated[
        str | None,
        typer.Option(
            "--reference",
            metavar="MODEL",
            help="The pre-trained model that `representation` compares with, where the model's own "
            "record does not name it.",
        ),
    ],
}


def with_settings(keywords: Keywords) -> Callable[[Command], Command]:
    """Give a command an option for each of its settings, which come in its ``**settings``.

    Args:
        keywords: What the command can be told.
    """

    def decorate(command: Command) -> Command:
        signature = inspect.signature(command, eval_str=True)
        listed = list(signature.parameters.values())[:-1]
        taken = {parameter.name for parameter in listed}
        names = sorted(keywords.names, key=lambda name: name not in ("model", "data", "task"))
        options = [_option(name, keywords) for name in names if name not in taken]
        needed = [parameter for parameter in listed if parameter.default is parameter.empty]
        others = [parameter for parameter in listed if parameter not in needed]
        command.__signature__ = signature.replace(  # type: ignore[attr-defined]
            parameters=[*needed, *options, *others]
        )
        return command

    return decorate


def _option(name: str, keywords: Keywords) -> inspect.Parameter:
    """Return the parameter that stands for a setting in a command's signature."""
    kind: Any = keywords.settings[name] if name in keywords.settings else FURTHER[name]
    if not isinstance(kind, Keyword):
        default: Any = None
        return _parameter(name, kind, default)
    flag = f"--{name_of(kind.path)}"
    told = kind.meaning.replace("``", "`")
    if kind.default not in (None, False, (), {}):
        told += f" [default: {'on' if kind.default is True else kind.default}]"
    default = typer.Option(
        None,
        f"{flag}/--no{flag[1:]}" if kind.kind is bool else flag,
        help=told,
        metavar=None if kind.kind is bool else kind.metavar or None,
        autocompletion=COMPLETED.get(name),
        show_default=False,
    )
    return _parameter(name, (list[str] if kind.many else kind.kind) | None, default)


def _parameter(name: str, annotation: Any, default: Any) -> inspect.Parameter:
    return inspect.Parameter(
        name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation
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
        from temper.app.plugins import load

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
