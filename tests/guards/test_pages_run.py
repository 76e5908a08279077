"""The commands in the docs run, page by page, with tiny models, few rows and few steps.

The blocks of a page run in order in a folder of their own. Options after those of the page make
sizes smaller, and a tiny model and its rows replace others. A service runs until the end of its
page, at its own port.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from urllib.request import Request, urlopen

import pytest
import typer
from transformers import AutoModel

from dev.drills.serving import serving
from temper import methods
from temper.cli.app import app
from temper.methods import registry
from temper.models.names import MODELS
from tests.cli.calls import succeed
from tests.cli.test_choices import write_choices
from tests.cli.test_several_labels import write_labeled
from tests.cli.test_spans import write_spans
from tests.cli.test_tags import write_tagged
from tests.cli.tiny_project import make_model, sentences, write_csv
from tests.guards.test_documents import DOCUMENTS, FENCE, ROOT, command_lines, lines_of, name_of

COMMANDS = typer.main.get_command(app).commands

SMALLER = {
    "--rows": "160",
    "--eval-rows": "50",
    "--workers": "1",
    "--learning-rate": "1e-2",
}
"""Options that are added to every command that has them."""

EXPORTED = "shipped/pipeline.py"
REPLACED = {
    **dict.fromkeys(MODELS, "tiny"),
    "minilm,distilbert-base-uncased": "tiny,my-model",
    "demo": "reviews.csv",
}
"""Models and data of the pages -> tiny replacements."""

MEASURED = {"bootstrap": 0, "attack_rows": 4}

OTHER_PROGRAMS = {
    "pip": "installs; tests/guards/test_dist.py installs the wheel",
    "make": "its targets are read, and their recipes are what these tests run in parts",
    "export": "holds a token of the reader's own",
    "ray": "starts a machine of a cluster; tests/drills starts two",
    "torchrun": "starts several processes; tests/distributed/test_runs.py starts two",
    "accelerate": "starts several processes, as torchrun does",
    "source": "belongs to the reader's shell",
    "python": "runs a part of these tests, or a drill or a benchmark that has tests of its own",
    "PYTHONPATH=src:.": "writes the recorded trajectories anew",
    "git": "shows what changed in the clone",
    "for": "a loop of the shell",
    "done": "a loop of the shell",
}
"""First word of a line that is not run -> why not."""

CLONE = "writes into the clone or needs what was written there; tests/cli/test_templates.py does so"
HOURS = "takes hours at any scale; tests/reproduction run its grids with tiny models"
NOT_RUN = {
    r"temper new-method small_logits$": CLONE,
    r"temper new-perspective fewer_words$": CLONE,
    r"temper train (?!--import).*small_logits": CLONE,
    r"temper (evaluate (?!.*--import).*fewer_words|report runs/mine-evaluation)": CLONE,
    r"temper .* --trust": "a reader's own type; tests/evaluation/test_predictors.py trusts one",
    r"temper export .*--(onnx|int8)": "needs the extra onnx; tests/cli/test_export.py writes it",
    r"temper .*--backend int8": "needs the extra onnx; tests/calibration/test_int8.py runs it",
    r"temper push": "asks the Hub; tests/export/test_push.py pushes to a stub of it",
    r"temper compare --cluster": "needs a cluster; tests/study/test_cluster.py has one",
    r"temper .*report_to": "needs a tracker's package; tests/study/test_trackers.py stubs it",
    r"temper reproduce .*--(data-root|keep)": HOURS,
    r"temper (train|predict) .*runs/sft": "needs a decoder; tests/cli/test_completions.py has one",
    r"temper (train|predict) .*runs/t5": "needs an encoder with a decoder, as test_seq2seq.py has",
    r"temper .*\$task": "stands in a loop of the shell",
}
"""A line that matches is not run -> why not."""
BUDGETED = re.compile(r"temper\.(fit|tune|check_labels)\(")
"""Calls that take minutes with any model; tests/study calls them."""


def reason_not_to_run(line: str) -> str | None:
    """Return why a line is not run, or None."""
    first, second = (*shlex.split(line, comments=True), "")[:2]
    if first == "curl" or (first == "python" and second == EXPORTED):
        return None
    if first != "temper":
        return OTHER_PROGRAMS[first]
    return next((why for pattern, why in NOT_RUN.items() if re.match(pattern, line)), None)


def shown() -> list[tuple[Path, list[tuple[str, str]]]]:
    """Return the pages with commands that run, each with its blocks in order."""
    pages = [(path, FENCE.findall(path.read_text(encoding="utf-8"))) for path in DOCUMENTS]
    return [
        (path, blocks)
        for path, blocks in pages
        if any(
            reason_not_to_run(line) is None
            for language, block in blocks
            if language == "bash"
            for line in lines_of(block)
        )
    ]


def smaller(line: str) -> list[str]:
    """Return a command's words, with its sizes made small."""
    words = [REPLACED.get(word, word) for word in shlex.split(line, comments=True)[1:]]
    taken = {name for parameter in COMMANDS[words[0]].params for name in parameter.opts}
    if words[0] == "calibrate":
        # The corpus has more rows than the training used; the file that replaces it does not.
        words = ["held_out.csv" if word == REPLACED["demo"] else word for word in words]
        # A guaranteed risk needs all rows.
        taken.remove("--eval-rows")
    if words[0] == "fit":
        words += ["--models", "tiny"]
    if words[0] == "fit" or re.search(r"--budget \d+[hm]", line):
        words += ["--budget", "20s"]
    sizes = [(option, (option, value)) for option, value in SMALLER.items() if option in taken]
    if {"--perspectives", "--set"} <= taken:
        # `attack_rows` is an error if no named perspective attacks.
        attacked = "--perspectives" not in line or "default" in line or "attack" in line
        sizes += [
            (f"-{key}", ("--set", f"evaluate.{key}={value}"))
            for key, value in MEASURED.items()
            if attacked or key != "attack_rows"
        ]
    for name, given in sizes:
        # No setting may be given twice.
        if f".{name.lstrip('-').replace('-', '_')}=" not in line:
            words += given
    return words


def prepare(folder: Path, data: Path) -> None:
    """Create the files, models and data that the pages use."""
    make_model(folder / "my-model")
    # Like the models that it replaces, it has no head.
    model = AutoModel.from_pretrained(make_model(folder / "tiny"))
    model.config.id2label = model.config.label2id = None
    model.save_pretrained(folder / "tiny")
    write_csv(folder / "reviews.csv", sentences(160))
    # Some labels are wrong, so that a temperature can be fitted.
    held_out = [
        (text, "negative" if n % 30 == 1 else label)
        for n, (text, label) in enumerate(sentences(400, thing="phone"))
    ]
    write_csv(folder / "held_out.csv", held_out)
    write_csv(folder / "other_texts.csv", sentences(30, thing="it"))
    for name in ("sentences.jsonl", "news.jsonl"):
        write_tagged(folder / name)
    for name in ("questions.jsonl", "exam.jsonl"):
        write_choices(folder / name)
    write_labeled(folder / "emotions.jsonl", joined=False)
    write_labeled(folder / "held_out.jsonl", joined=False, thing="phone")
    for name in ("squad.jsonl", "articles.jsonl"):
        write_spans(folder / name)
    (folder / "new.csv").write_text("text\nthe film was good\nthe film was bad\n", "utf-8")
    (folder / "glove.6B.300d.txt").write_text(f"good {' '.join(['0.5'] * 300)}\n", "utf-8")
    (folder / "my_package").mkdir()
    (folder / "my_package" / "__init__.py").touch()
    (folder / "my_package" / "models.py").write_text(
        "def score(texts):\n    return [[0.0, float('good' in text)] for text in texts]\n", "utf-8"
    )
    for name in ("datasets", "glue_data"):
        (folder / name).symlink_to(data)
    (folder / "my").mkdir()
    (folder / "my" / "copy").symlink_to(data / "mrpc")
    kept = Path("reproduction", "results", "uegr-table-4")
    shutil.copytree(ROOT / kept, folder / kept)


def save_pipeline(path: Path) -> None:
    """Save the scikit-learn pipeline of the page on predictors."""
    io = pytest.importorskip("skops.io", reason="needs the extra sklearn")
    from sklearn.feature_extraction.text import CountVectorizer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline

    texts, labels = zip(*sentences(60), strict=True)
    io.dump(make_pipeline(CountVectorizer(), LogisticRegression()).fit(texts, labels), path)


def train_what_is_read(words: list[str]) -> None:
    """Train the runs that a command reads and no earlier line of its page made."""
    made = words[words.index("--out") + 1] if "--out" in words else None
    read = [name for word in words if word != made for name in re.findall(r"runs/[\w-]+", word)]
    for name in read:
        if not Path(name).exists() and name != made:
            line = f"temper train --model minilm --data demo --method plain --out {name}"
            succeed(*smaller(line))


class Page:
    """Run the lines of a page.

    Args:
        data: Replaces ``../shared/data``.
        services: Stops the services that the page starts.
    """

    def __init__(self, data: Path, services: ExitStack) -> None:
        self.data, self.services = data, services
        self.port = 0

    def run(self, line: str) -> None:
        """Run a line."""
        words = shlex.split(line, comments=True)
        if words[0] == "curl":
            self.ask(words[1], words[words.index("--data") + 1].encode())
        elif words[0] == "python":
            subprocess.run([sys.executable, *words[1:]], check=True, stdout=subprocess.DEVNULL)
        else:
            words = smaller(line.replace("../shared/data", str(self.data)))
            train_what_is_read(words)
            if words[0] == "serve":
                self.port = self.services.enter_context(serving(*words[1:])).port
            else:
                succeed(*words)

    def ask(self, address: str, body: bytes) -> None:
        """Ask the page's service, as curl would."""
        address = address.replace(":8000", f":{self.port}")
        request = Request(address, body, {"Content-Type": "application/json"})
        with urlopen(request, timeout=60) as reply:
            assert len(json.load(reply)["predictions"]) == len(json.loads(body)["texts"])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "blocks"), [pytest.param(*page, id=name_of(page[0])) for page in shown()]
)
def test_the_commands_of_a_page_run(
    path: Path,
    blocks: list[tuple[str, str]],
    tmp_path: Path,
    data_dir: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    prepare(tmp_path, data_dir)
    if "model.skops" in str(blocks):
        save_pipeline(tmp_path / "model.skops")
    if "temper serve" in str(blocks):
        pytest.importorskip("uvicorn", reason="needs the extra serve")
    names: dict[str, object] = {"__name__": "__main__"}
    methods.names()
    before = registry.registered()
    services = ExitStack()
    page = Page(data_dir, services)
    try:
        for number, (language, block) in enumerate(blocks, start=1):
            if language == "python" or (language == "py" and not BUDGETED.search(block)):
                for name, other in REPLACED.items():
                    if name in MODELS:
                        block = block.replace(f'"{name}"', f'"{other}"')
                exec(
                    compile(block, f"{name_of(path)}, block {number}", "exec", dont_inherit=True),
                    names,
                )
            for line in lines_of(block) if language == "bash" else ():
                if reason_not_to_run(line) is None:
                    page.run(line)
    finally:
        services.close()
        registry.forget_since(before)


def test_every_line_that_is_not_run_has_a_reason_and_every_reason_a_line() -> None:
    lines = [line for path in DOCUMENTS for line in command_lines(path)]
    firsts = {shlex.split(line, comments=True)[0] for line in lines}
    assert firsts - {"temper", "curl"} == OTHER_PROGRAMS.keys()
    for pattern in NOT_RUN:
        assert any(re.match(pattern, line) for line in lines), pattern
