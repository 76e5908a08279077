"""The options of all commands: name, help and group."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from temper import methods
from temper.api.keywords import Paths
from temper.api.nested import nested, split_list
from temper.data.suites.suite import suite_names
from temper.data.tasks.registry import TASKS
from temper.errors import SettingError, unknown
from temper.evaluation import perspectives
from temper.evaluation.perspectives.registry import ALIASES
from temper.importing import check_file_exists
from temper.methods.recipes import recipes
from temper.models.names import SHORT_NAMES
from temper.settings import Faults, Tree

DATA, MODEL, OPTIMIZATION, EVALUATION, HARDWARE, SERVICE, OUTPUT = GROUPS = (
    "Data", "Model and method", "Optimization", "Evaluation", "Hardware", "Service", "Output",
)  # fmt: skip
"""Groups of options in ``--help``, in this order."""


def completing(names: Callable[[], Iterable[str]], sign: str = "") -> Callable[[str], list[str]]:
    """Return a shell completion; if no name matches, the shell completes a path.

    ``sign`` separates several names; the last one is completed.
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


complete_method = completing(lambda: methods.names(), "+")


def option(group: str, usage: str, text: str, **more: Any) -> Any:
    """Return an option from its usage as in the help, such as ``--rows N`` or ``--json``."""
    name, _, metavar = usage.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=text, rich_help_panel=group, **more)


# fmt: off
# Arguments.
AnyModel = Annotated[str, typer.Argument(metavar="MODEL", help=
    "Folder of a checkpoint or PEFT adapter, Hub id of a classifier, scikit-learn pipeline in a "
    ".skops file, or file.py:NAME or module:NAME of a function (this runs the code of that file).",
)]
LabeledData = Annotated[str, typer.Argument(help="File, folder, Hub id or `demo` with labels.")]

# Data.
Data = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "File, folder, Hub id or `demo`; may be the first argument. Default: the dataset of --task.",
)]
Task = Annotated[str | None, option(
    DATA, "--task NAME",
    "Known task (see `temper list tasks`); sets labels, splits and metric.",
    autocompletion=completing(lambda: TASKS),
)]
Tasks = Annotated[list[str] | None, option(
    DATA, "--task NAME[=PATH]",
    "Known task (see `temper list tasks`); sets labels, splits and metric. Given more than "
    "once, or with a path: one encoder with a head per task (MT-DNN).",
    autocompletion=completing(lambda: TASKS),
)]
TextColumn = Annotated[str | None, option(
    DATA, "--text-column NAME", "Column of the text. Default: guessed from the column names.",
)]
TextPairColumn = Annotated[str | None, option(
    DATA, "--text-pair-column NAME", "Column of the second text of a pair. Default: guessed.",
)]
LabelColumn = Annotated[str | None, option(
    DATA, "--label-column NAME", "Column of the label. Default: guessed from the column names.",
)]
Rows = Annotated[int | None, option(
    DATA, "--rows N", "Training rows to draw, with classes in proportion. Default: all.",
)]
EvalRows = Annotated[int | None, option(
    DATA, "--eval-rows N", "Maximum rows of each evaluated set. Default: all.",
)]
MaxLength = Annotated[int | None, option(
    DATA, "--max-length TOKENS", "Longest row in tokens; longer rows are truncated. Default: 128.",
)]
Stride = Annotated[int | None, option(
    DATA, "--stride TOKENS",
    "Read longer texts in windows of --max-length that overlap by this many tokens. "
    "Default: truncate.",
)]
ModelLength = Annotated[int | None, option(
    DATA, "--max-length TOKENS",
    "Longest row in tokens; longer rows are truncated. Default: as in training.",
)]
EvaluatedData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "File, folder, Hub id or `demo`. Default: the validation set of the run.",
)]
HeldOutData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Held-out labeled rows. Rows the model was trained or validated on are skipped.",
)]
WithDev = Annotated[bool, option(
    DATA, "--with-dev",
    "Use rows of the validation set too; later scores on them are then too good.",
)]
NewData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "File, folder or Hub id; `-`, or neither --data nor --text, reads one text per line "
    "from stdin.",
)]
Text = Annotated[list[str] | None, option(
    DATA, "--text TEXT", "A text; may be given several times.",
)]
TextPair = Annotated[list[str] | None, option(
    DATA, "--text-pair TEXT", "The second text of each --text.",
)]
Columns = Annotated[str | None, option(
    DATA, "--columns all|none|A,B", "Other columns of --data to keep in the output. Default: all.",
)]
ComparedData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Labeled rows to compare the exported model on. Default: a few built-in texts.",
)]

# Model and method.
Model = Annotated[str | None, option(
    MODEL, "--model NAME",
    "Hub id, folder, or short name (see `temper list models`).",
    autocompletion=completing(lambda: SHORT_NAMES),
)]
Models = Annotated[str | None, option(
    MODEL, "--models A,B", "Models to compare with plain fine-tuning first, in place of --model.",
)]
FitModels = Annotated[str, option(
    MODEL, "--models A,B",
    "Encoders to choose from: Hub ids, folders, or short names of `temper list models`.",
)]
Embeddings = Annotated[str | None, option(
    MODEL, "--embeddings MODEL",
    "Encoder whose frozen embeddings a linear model reads; a strong sentence encoder finds more "
    "wrong labels. Default: that of --model.",
)]
Folds = Annotated[int, option(
    OPTIMIZATION, "--folds N", "Folds; as many models are trained.", min=2,
)]
Method = Annotated[str | None, option(
    MODEL, "--method NAME",
    "Method (see `temper list methods`), or a composition such as `r_drop + at`. Default: "
    "that of the default recipe.",
    autocompletion=complete_method,
)]
Methods = Annotated[str | None, option(
    MODEL, "--methods A,B",
    "Methods separated by commas; the first is the baseline. Default: plain,uegr, or none "
    "with --recipes.",
    autocompletion=completing(lambda: methods.names(), ","),
)]
Recipe = Annotated[str | None, option(
    MODEL, "--recipe NAME",
    "Method with settings that go together (see `temper list recipes`).",
    autocompletion=completing(recipes),
)]
Recipes = Annotated[str | None, option(
    MODEL, "--recipes A,B",
    "Recipes separated by commas (see `temper list recipes`).",
    autocompletion=completing(recipes, ","),
)]
Lora = Annotated[bool | None, option(
    MODEL, "--lora/--no-lora", "Train a LoRA adapter and the head only.",
)]
Peft = Annotated[str | None, option(
    MODEL, "--peft FILE", "Train the PEFT adapter that an adapter_config.json describes.",
)]
Imports = Annotated[list[str] | None, option(
    MODEL, "--import FILE.py|MODULE",
    "Import your own methods and perspectives first; this runs the code of that file.",
)]
Gives = Annotated[str | None, option(
    MODEL, "--gives KIND",
    "Result of the function: probabilities, logits or values. Default: its attribute `gives`.",
)]
LabelNames = Annotated[list[str] | None, option(
    MODEL, "--label-names A,B",
    "Class names in the order of the model's outputs. Default: those of the model.",
)]
LabelMap = Annotated[list[str] | None, option(
    MODEL, "--label-map MODEL=DATA,...",
    "Map the model's class names to those of the data, for example POSITIVE=pos,NEGATIVE=neg.",
)]
Trust = Annotated[list[str] | None, option(
    MODEL, "--trust TYPE", "Load this type from a .skops file, although skops does not know it.",
)]
Variants = Annotated[list[str] | None, option(
    MODEL, "--variant NAME=METHOD,KEY=VALUE,...",
    "Add a method under other settings, for example plain_x3=plain,train.epochs=9.",
)]
EqualCompute = Annotated[bool, option(
    MODEL, "--equal-compute/--no-equal-compute",
    "Add plain fine-tuning with the compute of the most expensive method, as plain_xK.",
)]

# Optimization.
Epochs = Annotated[float | None, option(
    OPTIMIZATION, "--epochs N",
    "Passes over the training rows; fractions are allowed. Default: 3 (networks from scratch: 5).",
)]
CheckedEpochs = Annotated[float | None, option(
    OPTIMIZATION, "--epochs N", "Passes over the training rows; fractions are allowed. Default: 5.",
)]
BatchSize = Annotated[int | None, option(
    OPTIMIZATION, "--batch-size N",
    "Rows of a micro-batch. Default: 16 (networks from scratch: 32).",
)]
LearningRate = Annotated[float | None, option(
    OPTIMIZATION, "--learning-rate RATE",
    "Peak learning rate. Default: that of the model in `temper list models`, else 2e-5.",
)]
Seed = Annotated[int | None, option(
    OPTIMIZATION, "--seed N", "Seed of every random draw. Default: 0.",
)]
Seeds = Annotated[str, option(OPTIMIZATION, "--seeds A,B", "Seeds separated by commas.")]
Budget = Annotated[str, option(
    OPTIMIZATION, "--budget TIME|N runs",
    "Total budget: a time such as 30m, or 12runs (the cost of 12 plain trainings on all rows).",
)]
FitBudget = Annotated[str, option(
    OPTIMIZATION, "--budget TIME",
    "Total time, for example 10m or 1h; checked before each training.",
)]
Goal = Annotated[str, option(
    OPTIMIZATION, "--goal GOAL",
    "accuracy, robust, calibrated, balanced, or weights as in accuracy=2,calibration=1.",
)]

# Evaluation.
Perspectives = Annotated[list[str] | None, option(
    EVALUATION, "--perspectives A,B",
    "What to measure (see `temper list perspectives`), separated by commas; or `default` or "
    "`all`.",
    autocompletion=completing(lambda: (*perspectives.names(), *ALIASES), ","),
)]
Shift = Annotated[list[str] | None, option(
    EVALUATION, "--shift NAME=PATH", "Labeled data under distribution shift.",
)]
Adversarial = Annotated[list[str] | None, option(
    EVALUATION, "--adversarial NAME=PATH", "Labeled adversarial data.",
)]
Anomaly = Annotated[list[str] | None, option(
    EVALUATION, "--anomaly NAME=PATH", "Out-of-distribution texts.",
)]
Suite = Annotated[str | None, option(
    EVALUATION, "--suite NAME",
    "All sets of a task at once (see `temper list suites`), or your own TOML file; found in "
    "the folder TEMPER_DATA.",
    autocompletion=completing(suite_names),
)]
Coverage = Annotated[float | None, option(
    EVALUATION, "--coverage P",
    "Probability that a prediction set or interval contains the true label. Default: the "
    "first of `temper calibrate`.",
)]
Abstain = Annotated[str | None, option(
    EVALUATION, "--abstain anomaly,set>K",
    "Abstain on OOD texts, and on texts whose prediction set is empty or larger than K.",
)]
MaxRisk = Annotated[float | None, option(
    EVALUATION, "--max-risk P",
    "Abstain below a confidence, so that with probability 90% at most this fraction of the "
    "other predictions is wrong.",
)]
Margin = Annotated[float, option(
    EVALUATION, "--margin POINTS",
    "Largest negligible difference, for the verdicts `equivalent` and `non-inferior`; 0 turns both "
    "off.",
    min=0.0,
)]
Detect = Annotated[float | None, option(
    EVALUATION, "--detect POINTS",
    "Also print about how many seeds detect a difference of this size.",
)]
Coverages = Annotated[list[str] | None, option(
    EVALUATION, "--coverage A,B",
    "Probabilities that a prediction set or interval contains the true label. Default: "
    "0.9,0.95.",
)]
By = Annotated[str | None, option(
    EVALUATION, "--by all|class",
    "Scope of the coverage: over all rows (default), or in each true class or label.",
)]
Threshold = Annotated[str | None, option(
    EVALUATION, "--threshold RULE",
    "Choose the probability above which each of several labels, or class 1 of two, is predicted: "
    "f1, recall=R, precision=P or cost=FP:FN. Default: 0.5.",
)]
FalseAlarms = Annotated[float | None, option(
    EVALUATION, "--false-alarms P",
    "Fraction of ordinary rows that may be flagged as OOD. Default: 0.05.",
)]

# Hardware.
Precision = Annotated[str | None, option(
    HARDWARE, "--precision TYPE", "fp32, or mixed precision in bf16 or fp16. Default: fp32.",
)]
Device = Annotated[str | None, option(
    HARDWARE, "--device NAME", "cpu, cuda, cuda:N or mps. Default: a GPU if there is one.",
)]
Workers = Annotated[int, option(
    HARDWARE, "--workers N",
    "Processes that train and evaluate runs side by side; they share threads and GPUs.",
)]
Cluster = Annotated[str | None, option(
    HARDWARE, "--cluster ADDRESS",
    "Ray cluster: auto, HOST:PORT or ray://HOST:PORT. Its machines read data and model under "
    "the same paths. --set cluster.cpus=N and cluster.gpus=N for each run.",
)]
Backend = Annotated[str, option(
    HARDWARE, "--backend torch|int8",
    "int8 runs the 8-bit copy of a checkpoint on the CPU, several times as fast. `temper "
    "calibrate` with --backend int8 makes it.",
)]
BatchRows = Annotated[int, option(
    HARDWARE, "--batch-size N", "Rows of a forward pass; changes no result.", min=1,
)]
ServedRows = Annotated[int, option(
    HARDWARE, "--batch-size N",
    "Rows of a forward pass; changes no result. Small batches waste little on padding, which "
    "is fastest on a CPU; a GPU is faster with larger ones.",
    min=1,
)]

# Service.
Host = Annotated[str | None, option(
    SERVICE, "--host ADDRESS",
    "Address to listen on. Default: this machine only; any other address needs the "
    "environment variable TEMPER_TOKEN.",
)]
Port = Annotated[int | None, option(
    SERVICE, "--port N", "Port to listen on; 0 takes a free one. Default: 8000.",
)]

# Output.
Assignments = Annotated[list[str] | None, option(
    OUTPUT, "--set KEY=VALUE",
    "Set any setting that the command reads (see `temper list settings`), for example "
    "data.max_length=256.",
)]
Config = Annotated[Path | None, option(
    OUTPUT, "--config FILE", "TOML file of settings; options and --set override it.",
)]
Out = Annotated[Path | None, option(
    OUTPUT, "--out FOLDER",
    "Folder to write. Default: a folder of runs/ named after data, method and settings.",
)]
StudyOut = Annotated[str | None, option(
    OUTPUT, "--out FOLDER|URL",
    "Folder to write; with --cluster also an object store, s3://BUCKET/STUDY. Default: a "
    "folder of runs/ named after the data and settings.",
)]
Full = Annotated[bool, option(OUTPUT, "--full", "Print the whole table of scores too.")]
Json = Annotated[bool, option(
    OUTPUT, "--json", "Print the result as JSON on stdout; progress stays on stderr.",
)]
Card = Annotated[bool, option(
    OUTPUT, "--card", "Write a model card for the Hub, the README.md of the model's folder.",
)]
CardPath = Annotated[Path | None, option(
    OUTPUT, "--card-path FILE", "Write the model card to this file instead.",
)]
Restart = Annotated[bool, option(
    OUTPUT, "--restart", "Start over instead of resuming a stopped run.",
)]
EvaluationOut = Annotated[Path | None, option(
    OUTPUT, "--out FOLDER", "Folder to write. Default: RUN-evaluation next to the run.",
)]
Remove = Annotated[bool, option(
    OUTPUT, "--remove", "Remove the calibration of the folder; with --backend int8 the 8-bit copy.",
)]
AnswersOut = Annotated[Path | None, option(
    OUTPUT, "--out FILE", "File to write: .jsonl, .json or .csv. Default: stdout.",
)]
CheckedOut = Annotated[Path | None, option(
    OUTPUT, "--out FILE",
    "CSV file to write: row, text, label, suggested label and score of every row, the highest "
    "score first. Default: a file of runs/ named after the data and settings.",
)]
Worst = Annotated[int, option(OUTPUT, "--worst N", "Rows to print.", min=1)]
Raw = Annotated[bool, option(
    OUTPUT, "--raw",
    "With --out FILE.csv: do not escape texts that a spreadsheet would run as formulas.",
)]
Summary = Annotated[Path | None, option(
    OUTPUT, "--summary FILE",
    "JSON file for the summary: how many texts were abstained from or flagged, and whether "
    "they have shifted.",
)]
ExportOut = Annotated[Path, option(OUTPUT, "--out FOLDER", "Folder to write.")]
Onnx = Annotated[bool, option(OUTPUT, "--onnx", "Also write model.onnx.")]
Int8 = Annotated[bool, option(
    OUTPUT, "--int8",
    "Also write model-int8.onnx with 8-bit weights: smaller, faster on a CPU, and slightly "
    "different; the difference is reported.",
)]
Markdown = Annotated[bool, option(
    OUTPUT, "--markdown",
    "Print the overview as Markdown, and write no page: one line per score, or, with more than six "
    "columns, one line per column.",
)]
PrintedPerspectives = Annotated[str | None, option(
    OUTPUT, "--perspectives A,B",
    "With --markdown: print all scores of these instead, one line per score; `all` for every "
    "perspective.",
)]
Examples = Annotated[int, option(
    OUTPUT, "--examples N", "Maximum number of examples under attack on the page.", min=0,
)]
Figures = Annotated[bool, option(
    OUTPUT, "--figures", "Write every figure to FOLDER/figures/ as SVG too.",
)]
Private = Annotated[bool, option(OUTPUT, "--private", "Only you may see it.")]
PushedEvaluation = Annotated[Path | None, option(
    OUTPUT, "--evaluation FOLDER",
    "Evaluation whose scores are in card and page. Default: RUN-evaluation, if it exists.",
)]
PushedTexts = Annotated[bool, option(
    OUTPUT, "--texts",
    "Upload the evaluated rows with their texts too, and show examples on the page.",
)]
Into = Annotated[Path, option(
    OUTPUT, "--into FOLDER",
    "Folder to write into. In the root of a clone of Temper, each file goes where it belongs.",
)]
# fmt: on


def given(paths: Paths, arguments: Mapping[str, object]) -> dict[str, object]:
    """Return those arguments of a command that are settings, by keyword.

    ``arguments`` are the `locals()` of the command at its start, so an option is declared once.
    """
    return {name: value for name, value in arguments.items() if name in paths}


def read_settings(
    paths: Paths, keywords: Mapping[str, object], assignments: Iterable[str] | None
) -> Tree:
    """Return the nested settings of a command that accepts only the settings of its keywords."""
    tree = nested(paths, None, keywords, assignments)
    read = [".".join(path) for path in paths.values()]
    names = [
        ".".join((table, name))
        for table, settings in tree.items()
        for name in (settings if isinstance(settings, dict) else [""])
    ]
    Faults(unknown("setting", name, read) for name in names if name not in read).refuse()
    return tree


def import_methods(named: list[str] | None) -> None:
    """Import files and modules given by ``--import``, which register methods and perspectives."""
    # All are checked before the first one runs.
    for source in named or []:
        check_file_exists(source, purpose="methods and perspectives")
    if named:
        # The registry of methods imports all of them.
        from temper.cluster.plugins import load

        for source in named:
            load(source)


def split_seeds(text: str) -> list[int]:
    """Parse ``--seeds``.

    Example:
        >>> split_seeds("0,1,2")
        [0, 1, 2]
    """
    try:
        return [int(part) for part in split_list(text, "--seeds")]
    except ValueError as error:
        raise SettingError(f"--seeds takes whole numbers as in 0,1,2, got {text!r}.") from error
