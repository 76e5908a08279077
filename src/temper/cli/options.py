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
    """Return a function that completes a name in the shell; if none matches, it completes a path.

    With a ``sign``, an option takes several names separated by it, and the last one is completed.
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
    """Return a Typer option; ``usage`` is its form in the help, such as ``--rows N``."""
    name, _, metavar = usage.partition(" ")
    return typer.Option(name, metavar=metavar or None, help=text, rich_help_panel=group, **more)


# fmt: off
# Arguments.
AnyModel = Annotated[str, typer.Argument(metavar="MODEL", help=
    "Folder of a checkpoint or PEFT adapter; Hub id of a classifier; .skops file of a scikit-learn "
    "pipeline; or file.py:NAME or module:NAME of a Python function (that code is executed).",
)]
LabeledData = Annotated[str, typer.Argument(
    help="Labeled data: a file, folder, Hub id or `demo`.",
)]

# Data.
Data = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Labeled data: a file, folder, Hub id or `demo`. The option name may be left out if this is "
    "the first argument. Default: the dataset of --task.",
)]
Task = Annotated[str | None, option(
    DATA, "--task NAME",
    "Benchmark task (see `temper list tasks`); sets labels, splits and metric. Default: "
    "recognized by the name in --data.",
    autocompletion=completing(lambda: TASKS),
)]
Tasks = Annotated[list[str] | None, option(
    DATA, "--task NAME[=PATH]",
    "Benchmark task (see `temper list tasks`); sets labels, splits and metric. Default: "
    "recognized by the name in --data. Repeat the option, or add =PATH of the data, to train one "
    "encoder with a head per task (MT-DNN).",
    autocompletion=completing(lambda: TASKS),
)]
TextColumn = Annotated[str | None, option(
    DATA, "--text-column NAME", "Column with the text. Default: guessed from the column names.",
)]
TextPairColumn = Annotated[str | None, option(
    DATA, "--text-pair-column NAME",
    "Column with the second text of a pair. Default: guessed from the column names.",
)]
LabelColumn = Annotated[str | None, option(
    DATA, "--label-column NAME", "Column with the label. Default: guessed from the column names.",
)]
Rows = Annotated[int | None, option(
    DATA, "--rows N",
    "Number of training rows to draw at random, stratified by class. Default: all.",
)]
EvalRows = Annotated[int | None, option(
    DATA, "--eval-rows N", "Maximum number of rows of each evaluation set. Default: all.",
)]
MaxLength = Annotated[int | None, option(
    DATA, "--max-length TOKENS",
    "Maximum number of tokens of a row; longer rows are truncated. Default: 128.",
)]
Stride = Annotated[int | None, option(
    DATA, "--stride TOKENS",
    "Split longer texts into windows of --max-length tokens that overlap by this many tokens. "
    "Default: longer texts are truncated.",
)]
ModelLength = Annotated[int | None, option(
    DATA, "--max-length TOKENS",
    "Maximum number of tokens of a row; longer rows are truncated. Default: as in training.",
)]
EvaluatedData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Data to evaluate on: a file, folder, Hub id or `demo`. Default: the validation set of the "
    "run.",
)]
HeldOutRows = Annotated[int | None, option(
    DATA, "--eval-rows N", "Maximum number of rows of --data to use. Default: all.",
)]
HeldOutData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Held-out labeled rows to fit on (required, except with --remove). Rows that the model was "
    "trained or validated on are skipped.",
)]
WithDev = Annotated[bool, option(
    DATA, "--with-dev",
    "Also fit on rows of the validation set. Later scores on that set are then too optimistic.",
)]
NewData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Texts: a file, folder or Hub id. With `-`, or without --data and --text, one text per line "
    "is read from stdin.",
)]
Text = Annotated[list[str] | None, option(
    DATA, "--text TEXT", "Text to predict; may be repeated.",
)]
TextPair = Annotated[list[str] | None, option(
    DATA, "--text-pair TEXT", "Second text of a pair; pass one for each --text.",
)]
Columns = Annotated[str | None, option(
    DATA, "--columns all|none|A,B",
    "Which other columns of --data to copy to the output. Default: all.",
)]
ComparedData = Annotated[str | None, option(
    DATA, "--data SOURCE",
    "Labeled rows on which the exported model must give the same predictions. Default: a few "
    "built-in texts.",
)]

# Model and method.
Model = Annotated[str | None, option(
    MODEL, "--model NAME",
    "Model to train: Hub id, folder, or short name (see `temper list models`).",
    autocompletion=completing(lambda: SHORT_NAMES),
)]
DefaultModel = Annotated[str | None, option(
    MODEL, "--model NAME",
    "Model to train: Hub id, folder, or short name (see `temper list models`). Default: minilm.",
    autocompletion=completing(lambda: SHORT_NAMES),
)]
Models = Annotated[str | None, option(
    MODEL, "--models A,B",
    "Models to choose from, instead of --model. Each is trained with plain fine-tuning, and the "
    "best one is kept for the search.",
)]
FitModels = Annotated[str, option(
    MODEL, "--models A,B",
    "Encoders to choose from: Hub ids, folders, or short names (see `temper list models`).",
)]
Embeddings = Annotated[str | None, option(
    MODEL, "--embeddings MODEL",
    "Encoder on whose frozen embeddings a linear model is trained too. A strong sentence encoder "
    "finds more wrong labels. Default: the encoder of --model.",
)]
Folds = Annotated[int, option(
    OPTIMIZATION, "--folds N",
    "Number of cross-validation folds; one model is trained per fold.",
    min=2,
)]
Method = Annotated[str | None, option(
    MODEL, "--method NAME",
    "Training method (see `temper list methods`), or a composition such as `r_drop + at`. "
    "Default: the method of the default recipe (see `temper list recipes`).",
    autocompletion=complete_method,
)]
Methods = Annotated[str | None, option(
    MODEL, "--methods A,B",
    "Methods to compare, separated by commas; the first is the baseline. Default: plain,uegr; "
    "with --recipes, no methods.",
    autocompletion=completing(lambda: methods.names(), ","),
)]
Recipe = Annotated[str | None, option(
    MODEL, "--recipe NAME",
    "Method together with matching settings (see `temper list recipes`), instead of --method.",
    autocompletion=completing(recipes),
)]
Recipes = Annotated[str | None, option(
    MODEL, "--recipes A,B",
    "Recipes (methods with matching settings), separated by commas (see `temper list recipes`). "
    "Default: none in `compare`, all in `tune`.",
    autocompletion=completing(recipes, ","),
)]
Lora = Annotated[bool | None, option(
    MODEL, "--lora/--no-lora",
    "Train only a LoRA adapter and the head. Default: train all weights.",
)]
Peft = Annotated[str | None, option(
    MODEL, "--peft FILE",
    "Train the PEFT adapter that this adapter_config.json describes. Default: train all weights.",
)]
Imports = Annotated[list[str] | None, option(
    MODEL, "--import FILE.py|MODULE",
    "File or module to import first, with your own methods or perspectives; its code is executed. "
    "May be repeated.",
)]
Gives = Annotated[str | None, option(
    MODEL, "--gives KIND",
    "If MODEL is a function: what it returns, one of probabilities, logits or values. Default: "
    "the function's attribute `gives`.",
)]
LabelNames = Annotated[list[str] | None, option(
    MODEL, "--label-names A,B",
    "Class names in the order of the model's outputs. Default: the names in the model.",
)]
LabelMap = Annotated[list[str] | None, option(
    MODEL, "--label-map MODEL=DATA,...",
    "Map the model's class names to those of the data, for example POSITIVE=pos,NEGATIVE=neg. "
    "Default: the names are the same.",
)]
Trust = Annotated[list[str] | None, option(
    MODEL, "--trust TYPE",
    "If MODEL is a .skops file: accept this Python type in it, although skops does not trust it. "
    "May be repeated.",
)]
Variants = Annotated[list[str] | None, option(
    MODEL, "--variant NAME=METHOD,KEY=VALUE,...",
    "Also train METHOD with other settings, reported under NAME; for example "
    "plain_x3=plain,train.epochs=9. May be repeated.",
)]
EqualCompute = Annotated[bool, option(
    MODEL, "--equal-compute/--no-equal-compute",
    "Also train plain fine-tuning for K times the epochs, as plain_xK. K is the cost of the most "
    "expensive method relative to plain fine-tuning.",
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
    "Rows per micro-batch. Default: 16 (networks from scratch: 32).",
)]
LearningRate = Annotated[float | None, option(
    OPTIMIZATION, "--learning-rate RATE",
    "Peak learning rate. Default: the value in `temper list models` for a short name, else 2e-5.",
)]
Seed = Annotated[int | None, option(
    OPTIMIZATION, "--seed N", "Random seed of the training. Default: 0.",
)]
Seeds = Annotated[str, option(
    OPTIMIZATION, "--seeds A,B",
    "Random seeds, separated by commas; each method is trained once per seed.",
)]
Budget = Annotated[str, option(
    OPTIMIZATION, "--budget TIME|Nruns",
    "Total budget: a time such as 30m or 2h, or a cost such as 12runs (12 times plain fine-tuning "
    "on all rows).",
)]
FitBudget = Annotated[str, option(
    OPTIMIZATION, "--budget TIME",
    "Target for the total time, for example 10m or 1h. It is checked before each training, so the "
    "command can take a little longer.",
)]
Goal = Annotated[str, option(
    OPTIMIZATION, "--goal GOAL",
    "Goal of the search: accuracy, robust, calibrated, balanced, or weights such as "
    "accuracy=2,calibration=1.",
)]

# Evaluation.
Perspectives = Annotated[list[str] | None, option(
    EVALUATION, "--perspectives A,B",
    "Groups of metrics to compute, separated by commas (see `temper list perspectives`), or "
    "`all`. Default: those marked as default there.",
    autocompletion=completing(lambda: (*perspectives.names(), *ALIASES), ","),
)]
Shift = Annotated[list[str] | None, option(
    EVALUATION, "--shift NAME=PATH",
    "Labeled data from a distribution other than the training data, under a name for the report. "
    "May be repeated.",
)]
Adversarial = Annotated[list[str] | None, option(
    EVALUATION, "--adversarial NAME=PATH",
    "Labeled adversarial data, under a name for the report. May be repeated.",
)]
Anomaly = Annotated[list[str] | None, option(
    EVALUATION, "--anomaly NAME=PATH",
    "Out-of-distribution (OOD) texts, under a name for the report. May be repeated.",
)]
DetectedAnomaly = Annotated[list[str] | None, option(
    EVALUATION, "--anomaly NAME=PATH",
    "Out-of-distribution (OOD) texts, to choose the OOD detector with the highest AUROC. May be "
    "repeated. Default: Mahalanobis distance of the hidden states if available, else energy.",
)]
Suite = Annotated[str | None, option(
    EVALUATION, "--suite NAME",
    "Collection of shifted, adversarial and OOD sets (see `temper list suites`), or your own TOML "
    "file. The sets are read from the folder in the environment variable TEMPER_DATA.",
    autocompletion=completing(suite_names),
)]
Coverage = Annotated[float | None, option(
    EVALUATION, "--coverage P",
    "Probability with which a prediction set or interval contains the true label. Default: the "
    "first value of `temper calibrate --coverage`.",
)]
Abstain = Annotated[str | None, option(
    EVALUATION, "--abstain anomaly,set>K",
    "Rules for when to abstain, separated by commas. anomaly: the text is flagged as OOD. set>K: "
    "its prediction set is empty or has more than K labels. Default: never.",
)]
MaxRisk = Annotated[float | None, option(
    EVALUATION, "--max-risk P",
    "Abstain on the least confident texts, so that with probability 90% at most this fraction of "
    "the other predictions is wrong. Default: never abstain.",
)]
Margin = Annotated[float, option(
    EVALUATION, "--margin POINTS",
    "Largest difference that counts as negligible. The verdicts `equivalent` and `non-inferior` "
    "use it; 0 turns both off.",
    min=0.0,
)]
Detect = Annotated[float | None, option(
    EVALUATION, "--detect POINTS",
    "Also print about how many seeds are needed to detect a difference of this size.",
)]
Coverages = Annotated[list[str] | None, option(
    EVALUATION, "--coverage A,B",
    "Probabilities with which a prediction set or interval contains the true label. Default: "
    "0.9,0.95.",
)]
By = Annotated[str | None, option(
    EVALUATION, "--by all|class",
    "all: the coverage holds over all rows. class: it holds for the rows of each true class or "
    "label. Default: all.",
)]
Threshold = Annotated[str | None, option(
    EVALUATION, "--threshold RULE",
    "How to choose the probability above which a label is predicted, for several labels per text "
    "or for class 1 of two: f1 (highest F1), recall=R or precision=P (at least this value), or "
    "cost=FP:FN (costs of a false positive and a false negative). Default: predict above 0.5.",
)]
FalseAlarms = Annotated[float | None, option(
    EVALUATION, "--false-alarms P",
    "Fraction of in-distribution texts that may be flagged as OOD. Default: 0.05.",
)]

# Hardware.
Precision = Annotated[str | None, option(
    HARDWARE, "--precision TYPE",
    "Number format: fp32, or mixed precision in bf16 or fp16. Default: fp32.",
)]
Device = Annotated[str | None, option(
    HARDWARE, "--device NAME",
    "cpu, cuda, cuda:N (not for training) or mps. Default: a GPU if there is one, else the CPU.",
)]
Workers = Annotated[int, option(
    HARDWARE, "--workers N",
    "Number of processes that train and evaluate runs in parallel. They share the CPU cores and "
    "GPUs of this machine.",
)]
Cluster = Annotated[str | None, option(
    HARDWARE, "--cluster ADDRESS",
    "Ray cluster to run on: auto, HOST:PORT or ray://HOST:PORT. Its machines must find data and "
    "model under the same paths. Set the resources of each run by --set cluster.cpus=N and --set "
    "cluster.gpus=N. Default: this machine.",
)]
Backend = Annotated[str, option(
    HARDWARE, "--backend torch|int8",
    "torch runs the checkpoint; int8 runs its 8-bit copy on the CPU, several times as fast. "
    "`temper calibrate --backend int8` creates the copy.",
)]
BatchRows = Annotated[int, option(
    HARDWARE, "--batch-size N", "Rows per forward pass; does not change the results.", min=1,
)]
ServedRows = Annotated[int, option(
    HARDWARE, "--batch-size N",
    "Rows per forward pass; does not change the results. Small batches need little padding and "
    "are fastest on a CPU; on a GPU larger ones are faster.",
    min=1,
)]

# Service.
Host = Annotated[str | None, option(
    SERVICE, "--host ADDRESS",
    "Address to listen on. Default: 127.0.0.1, which only this machine can reach. Any other "
    "address requires the environment variable TEMPER_TOKEN.",
)]
Port = Annotated[int | None, option(
    SERVICE, "--port N", "Port to listen on; 0 selects a free one. Default: 8000.",
)]

# Output.
Assignments = Annotated[list[str] | None, option(
    OUTPUT, "--set KEY=VALUE",
    "Any setting of `temper list settings` that the command uses, for example "
    "data.max_length=256. May be repeated.",
)]
Config = Annotated[Path | None, option(
    OUTPUT, "--config FILE", "TOML file with settings; options and --set override it.",
)]
Out = Annotated[Path | None, option(
    OUTPUT, "--out FOLDER",
    "Output folder. Default: a folder in runs/ named after data, method and settings.",
)]
StudyOut = Annotated[str | None, option(
    OUTPUT, "--out FOLDER|URL",
    "Output folder; with --cluster also the URL of an object store, s3://BUCKET/STUDY. Default: a "
    "folder in runs/ named after the data and settings.",
)]
Full = Annotated[bool, option(OUTPUT, "--full", "Also print the table of all scores.")]
Json = Annotated[bool, option(
    OUTPUT, "--json", "Print the result as JSON on stdout; progress stays on stderr.",
)]
Card = Annotated[bool, option(
    OUTPUT, "--card", "Write a model card for the Hub to README.md in the folder of MODEL.",
)]
CardPath = Annotated[Path | None, option(
    OUTPUT, "--card-path FILE", "Write a model card to this file instead.",
)]
Restart = Annotated[bool, option(
    OUTPUT, "--restart", "Train from the start instead of resuming a stopped run.",
)]
EvaluationOut = Annotated[Path | None, option(
    OUTPUT, "--out FOLDER", "Output folder. Default: RUN-evaluation next to the run.",
)]
Remove = Annotated[bool, option(
    OUTPUT, "--remove",
    "Remove the calibration from the folder of the model; with --backend int8, the 8-bit copy.",
)]
PredictionsOut = Annotated[Path | None, option(
    OUTPUT, "--out FILE", "Output file: .jsonl, .json or .csv. Default: stdout.",
)]
CheckedOut = Annotated[Path | None, option(
    OUTPUT, "--out FILE",
    "Output CSV file: row, text, label, suggested label and score of every row, the highest score "
    "first. Default: a file in runs/ named after the data and settings.",
)]
Worst = Annotated[int, option(OUTPUT, "--worst N", "Number of rows to print.", min=1)]
Raw = Annotated[bool, option(
    OUTPUT, "--raw",
    "With --out FILE.csv: write texts unchanged. Default: texts that a spreadsheet would run as a "
    "formula get an apostrophe in front.",
)]
Summary = Annotated[Path | None, option(
    OUTPUT, "--summary FILE",
    "Also write a JSON file with the number of abstentions and of texts flagged as OOD, and the "
    "result of the shift test.",
)]
ExportOut = Annotated[Path, option(OUTPUT, "--out FOLDER", "Output folder.")]
Onnx = Annotated[bool, option(OUTPUT, "--onnx", "Also write the model as model.onnx.")]
Int8 = Annotated[bool, option(
    OUTPUT, "--int8",
    "Also write model-int8.onnx with 8-bit weights. It is smaller and faster on a CPU; its "
    "predictions differ slightly, and the command reports how much.",
)]
Markdown = Annotated[bool, option(
    OUTPUT, "--markdown",
    "Print a table of the most important scores as Markdown, instead of writing report.html. It "
    "has a row per score, or a row per method if there are more than six methods.",
)]
PrintedPerspectives = Annotated[str | None, option(
    OUTPUT, "--perspectives A,B",
    "With --markdown: print all scores of these perspectives instead, a row per score; `all` for "
    "every perspective.",
)]
Examples = Annotated[int, option(
    OUTPUT, "--examples N", "Maximum number of attacked texts to show in the report.", min=0,
)]
Figures = Annotated[bool, option(
    OUTPUT, "--figures", "Also write every figure as SVG to FOLDER/figures/.",
)]
Private = Annotated[bool, option(
    OUTPUT, "--private", "Create the repository as private: only your account can see it.",
)]
PushedEvaluation = Annotated[Path | None, option(
    OUTPUT, "--evaluation FOLDER",
    "Evaluation whose scores appear in the card and report. Default: RUN-evaluation, if it "
    "exists.",
)]
PushedTexts = Annotated[bool, option(
    OUTPUT, "--texts",
    "Also upload the texts of the evaluated rows, and show examples in the report. Default: no "
    "texts are uploaded.",
)]
Into = Annotated[Path, option(
    OUTPUT, "--into FOLDER",
    "Output folder. If it is the root of a clone of Temper, each file is written where it belongs "
    "there.",
)]
# fmt: on


def settings(paths: Paths, arguments: Mapping[str, Any]) -> Tree:
    """Join ``--config``, options and ``--set`` of a command to nested settings, not checked yet.

    ``arguments`` are the `locals()` of the command's function. ``config``, ``assignments`` and the
    keywords of ``paths`` are read, so no other local variable may have such a name.
    """
    given = {name: value for name, value in arguments.items() if name in paths}
    return nested(paths, arguments.get("config"), given, arguments["assignments"])


def known_settings(paths: Paths, arguments: Mapping[str, Any]) -> Tree:
    """Return `settings`; raise on a setting that ``paths`` lacks."""
    tree = settings(paths, arguments)
    read = [".".join(path) for path in paths.values()]
    names = [
        ".".join((table, name))
        for table, values in tree.items()
        for name in (values if isinstance(values, dict) else [""])
    ]
    Faults(unknown("setting", name, read) for name in names if name not in read).refuse()
    return tree


def import_methods(named: list[str] | None) -> None:
    """Import files and modules given by ``--import``, which register methods and perspectives."""
    # All are checked before the first one runs.
    for source in named or []:
        check_file_exists(source, purpose="methods and perspectives")
    if named:
        # Imported late: it loads all built-in methods.
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
