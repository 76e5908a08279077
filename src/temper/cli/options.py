"""The options that several commands share, and the nested settings that they stand for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from temper.cli import completion
from temper.errors import SettingError
from temper.importing import check_file_exists

if TYPE_CHECKING:
    from temper.app.predictors import Declared
    from temper.training.assignments import Tree

Json = Annotated[
    bool,
    typer.Option("--json", help="Print the result as JSON on stdout; progress stays on stderr."),
]
Model = Annotated[
    str | None,
    typer.Option(
        "--model",
        help="Hub id, folder, or short name of `temper list models`.",
        autocompletion=completion.models,
    ),
]
Data = Annotated[
    str | None,
    typer.Option("--data", help="Hub id[:config], file, folder with train/dev files, or `demo`."),
]
Card = Annotated[
    bool,
    typer.Option("--card", help="Write a model card for the Hub, the model folder's README.md."),
]
CardPath = Annotated[
    Path | None,
    typer.Option("--card-path", metavar="FILE", help="Write the model card to that file instead."),
]
Sets = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Set one value, for example train.epochs=3."),
]
Config = Annotated[
    Path | None,
    typer.Option("--config", help="TOML file of settings; options and --set override it."),
]
Out = Annotated[Path, typer.Option("--out", help="Folder to write.")]
Unlabeled = Annotated[
    str | None,
    typer.Option(
        "--unlabeled",
        metavar="PATH",
        help="Text without labels, written as --data, for methods that learn from it.",
    ),
]
Augment = Annotated[
    str | None,
    typer.Option(
        "--augment",
        metavar="NAME,NAME",
        help="Change half of the training rows anew each epoch, for example typos,lowercase; "
        "`masked` asks --augment-masked-model, `attack:characters` misleads --augment-model.",
    ),
]
AugmentModel = Annotated[
    str | None,
    typer.Option(
        "--augment-model",
        metavar="MODEL",
        help="Classifier that --augment attack:RECIPE attacks, before training and once a row.",
    ),
]
AugmentMaskedModel = Annotated[
    str | None,
    typer.Option(
        "--augment-masked-model",
        metavar="MODEL",
        help="Masked language model of --augment masked and attack:masked.",
    ),
]
Rows = Annotated[
    int | None,
    typer.Option("--rows", help="Train on that many rows, drawn by label with data.seed."),
]
EvalRows = Annotated[
    int | None, typer.Option("--eval-rows", help="Evaluate on that many rows of each set at most.")
]
MaxLength = Annotated[
    int | None, typer.Option("--max-length", help="Cut texts behind that many tokens.")
]
Device = Annotated[str | None, typer.Option("--device", help="auto, cpu, cuda, cuda:N or mps.")]
TextColumn = Annotated[
    str | None, typer.Option("--text-column", help="Column of the text, where its name is unusual.")
]
TextPairColumn = Annotated[
    str | None, typer.Option("--text-pair-column", help="Column of the second text of pairs.")
]
LabelColumn = Annotated[str | None, typer.Option("--label-column", help="Column of the label.")]
GroupColumn = Annotated[
    str | None,
    typer.Option(
        "--group-column", help="Column of the groups of --data; of other sets it is `group`."
    ),
]
Encoding = Annotated[
    str | None,
    typer.Option(
        "--encoding",
        metavar="NAME",
        help="Encoding of text files that are not UTF-8, for example cp1252.",
    ),
]
SkipBadRows = Annotated[
    bool,
    typer.Option(
        "--skip-bad-rows",
        help="Leave out rows whose fields, text or label cannot be read, and say how many.",
    ),
]
TrainSplit = Annotated[str | None, typer.Option("--train-split", help="Split to train on.")]
EvalSplit = Annotated[str | None, typer.Option("--eval-split", help="Split to evaluate on.")]
ClassWeights = Annotated[
    str | None,
    typer.Option("--class-weights", help="`balanced`, or one number per label: 1.0,2.5."),
]
DropOverlap = Annotated[
    bool,
    typer.Option(
        "--drop-overlap",
        help="Drop train rows that are also in dev or test, and rows of further sets that are in "
        "train.",
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
        help="Import methods of your own first; this runs that file's code.",
    ),
]
Perspectives = Annotated[
    str | None,
    typer.Option(
        "--perspectives",
        help="What to measure, with commas between: names of `temper list perspectives`, "
        "`default`, `all`.",
        autocompletion=completion.perspectives,
    ),
]
Shift = Annotated[
    list[str] | None,
    typer.Option("--shift", metavar="NAME=PATH", help="Labelled data under distribution shift."),
]
Adversarial = Annotated[
    list[str] | None,
    typer.Option(
        "--adversarial", metavar="NAME=PATH", help="Labelled data that were made to mislead."
    ),
]
Anomaly = Annotated[
    list[str] | None,
    typer.Option("--anomaly", metavar="NAME=PATH", help="Texts that do not belong to the task."),
]
Suite = Annotated[
    str | None,
    typer.Option(
        "--suite",
        metavar="NAME|FILE.toml",
        help="All sets of a task at once: sentiment, entailment, or a file of your own.",
        autocompletion=completion.suites,
    ),
]
DataRoot = Annotated[
    Path | None,
    typer.Option(
        "--data-root",
        metavar="DIR",
        help="Folder with the data of --task and the sets of --suite; the environment variable "
        "TEMPER_DATA if left out.",
    ),
]
Fit = Annotated[
    str | None,
    typer.Option(
        "--fit",
        metavar="PATH",
        help="Ordinary rows that detectors of anomalies learn from; a run's training rows if left "
        "out.",
    ),
]
HeldOut = Annotated[
    str | None,
    typer.Option(
        "--held-out",
        metavar="PATH",
        help="Labelled rows, neither trained on nor evaluated, to fit a temperature on.",
    ),
]


Gives = Annotated[
    str | None,
    typer.Option(
        "--gives", help="What a function returns: probabilities, logits or values of a regression."
    ),
]
LabelNames = Annotated[
    str | None,
    typer.Option(
        "--label-names", metavar="A,B", help="The classes of a function's or pipeline's columns."
    ),
]
Trust = Annotated[
    list[str] | None,
    typer.Option("--trust", metavar="TYPE", help="Load that type of a skops file all the same."),
]
MODEL_HELP = (
    "Folder of a checkpoint or PEFT adapter, Hub id of a classifier, scikit-learn pipeline in a "
    ".skops file, or file.py:NAME or module:NAME of a function (this runs that file's code)."
)


def declared(gives: str | None, label_names: str | None, trust: list[str] | None) -> Declared:
    """Join what is said of a predictor that does not say it itself."""
    from temper.app.predictors import Declared

    names = None if label_names is None else tuple(split_list(label_names, "--label-names"))
    return Declared(gives, names, tuple(trust or ()))


def import_methods(named: list[str] | None) -> None:
    """Import what ``--import`` names, so that its methods are known to all that follows.

    Args:
        named: Files and modules; None and an empty list import nothing.

    Raises:
        SettingError: Where one is not there or its code fails.
    """
    for each in named or []:
        check_file_exists(each, purpose="methods")
    if named:
        from temper.methods.plugins import load

        for each in named:
            load(each)


def method_name(method: str | None, objective: str | None, rule: str | None) -> str | None:
    """Join ``--method``, ``--objective`` and ``--rule`` to one name.

    Args:
        method: A whole method, or several with ``+`` between.
        objective: Methods of which only the objective is taken; the update rule is plain then.
        rule: Methods of which only the update rule is taken; the objective is plain then.

    Returns:
        What ``method.name`` is set to; None where no option was given.

    Raises:
        SettingError: Where the options contradict each other.

    Example:
        >>> method_name(None, "uegr", "child_tuning_d")
        'uegr.objective + child_tuning_d.rule'
    """
    halves = {"objective": objective, "rule": rule}
    if method is not None:
        given = [f"--{half}" for half, name in halves.items() if name is not None]
        if given:
            raise SettingError(
                f"--method names a whole method and {given[0]} half of one: give either. A "
                f"mixture is written --method 'NAME + OTHER.{given[0][2:]}'."
            )
        return method
    if objective is not None and objective == rule:
        raise SettingError(
            f"--objective and --rule both name {rule!r}, and that is --method {rule}."
        )
    labels = [
        f"{label.strip()}.{half}"
        for half, name in halves.items()
        if name is not None
        for label in name.split("+")
    ]
    return " + ".join(labels) or None


def nested(config: Path | None, given: Mapping[str, Any], sets: list[str] | None) -> Tree:
    """Join a settings file, options and ``--set`` to nested settings.

    Args:
        config: The file, which options and ``--set`` override.
        given: Dotted setting to the value of its option; None and False mean that it was not given.
        sets: Texts of ``--set``.

    Returns:
        Nested settings, not checked yet.

    Raises:
        SettingError: Where a text has another form, or an option and ``--set`` disagree.
    """
    from temper.training.assignments import override, parse_assignment, read_toml

    assignments: list[tuple[tuple[str, ...], Any]] = [
        (tuple(name.split(".")), value)
        for name, value in given.items()
        if value is not None and value is not False
    ]
    found = []
    for text in sets or []:
        try:
            assignments.append(parse_assignment(text))
        except SettingError as error:
            found.append(str(error))
    if found:
        raise SettingError("\n".join(found))
    return override(read_toml(config) if config else {}, assignments)


def class_weights(text: str | None) -> str | list[float] | None:
    """Read ``--class-weights``.

    Raises:
        SettingError: Where it is neither ``balanced`` nor numbers.

    Example:
        >>> class_weights("1,2.5")
        [1.0, 2.5]
    """
    if text is None or text == "balanced":
        return text
    try:
        return [float(part) for part in text.split(",")]
    except ValueError as error:
        raise SettingError(
            f"--class-weights must be `balanced` or a number per label as in 1.0,2.5, got {text!r}."
        ) from error


def augmentation(text: str | None) -> list[str] | None:
    """Read ``--augment``.

    Raises:
        SettingError: Where nothing stands between two commas.
    """
    return None if text is None else split_list(text, "--augment")


def split_list(text: str, option: str) -> list[str]:
    """Split ``a,b,c``.

    Raises:
        SettingError: Where nothing stands between two commas.

    Example:
        >>> split_list("vanilla,uegr", "--methods")
        ['vanilla', 'uegr']
    """
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise SettingError(f"{option} takes names with commas between them, got {text!r}.")
    return names


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


def card_file(model: Path | str, path: Path | None) -> Path:
    """Find where a model card goes, before any work.

    Args:
        model: Folder of the model.
        path: What ``--card-path`` names; None takes the folder's README.md.

    Raises:
        CheckpointError: Where a file that is not ours is in the way, or there is no folder.
    """
    from temper.report.card import check_card

    return check_card(model, path)


def write_card(
    model: Path | str,
    path: Path,
    evaluation: Path | None = None,
    data: Mapping[str, str] | None = None,
) -> None:
    """Write a model card and say where.

    Args:
        model: Folder of the model.
        path: The file, as `card_file` found it.
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
