"""``temper predict --text`` predicts as from a file."""

from __future__ import annotations

import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from temper import __version__
from temper.calibration.classifier import Classifier
from temper.checkpoints.identity import model_identity
from temper.errors import DataError
from tests.cli.calls import call, refused, succeed

TEXTS = ("the film was good", "it was awful")
GIVEN = [word for text in TEXTS for word in ("--text", text)]


@pytest.fixture
def calibrated(trained: Path, tmp_path: Path) -> Path:
    """Return the run with a temperature that makes it surer."""
    folder = Path(shutil.copytree(trained, tmp_path / "calibrated"))
    identity = model_identity(str(folder))
    kept = {"schema": 1, "temperature": 0.01, "max_length": 32, "model": identity}
    (folder / "calibration.json").write_text(json.dumps(kept), encoding="utf-8")
    return folder


def test_text_options_get_the_same_predictions_as_lines_of_stdin(
    trained: Path, calibrated: Path
) -> None:
    surest = []
    for model in (trained, calibrated):
        result = succeed("predict", model, *GIVEN, "--device", "cpu", "--json")
        rows = json.loads(result.stdout)
        lines = call("predict", model, "--device", "cpu", text="\n".join(TEXTS))
        assert rows == [json.loads(line) for line in lines.stdout.splitlines()]
        surest.append(max(rows[0]["probabilities"].values()))
    assert surest[0] < surest[1]


def test_texts_get_a_table_for_a_person(trained: Path) -> None:
    result = succeed("predict", trained, *GIVEN, "--device", "cpu")
    heading, *rows = result.stdout.splitlines()
    assert heading.split() == ["label", "probability", "anomaly", "text"]
    assert [row.endswith(text) for row, text in zip(map(str.rstrip, rows), TEXTS, strict=True)]


@pytest.mark.parametrize("trained_on_pairs", [True, None], ids=["pairs", "older record"])
def test_pairs_are_given_text_by_text(
    trained: Path, tmp_path: Path, trained_on_pairs: bool | None
) -> None:
    folder = Path(shutil.copytree(trained, tmp_path / "run"))
    record = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    assert record["data"]["train"].pop("text_pair") is False
    if trained_on_pairs:
        record["data"]["train"]["text_pair"] = True
    (folder / "run.json").write_text(json.dumps(record), encoding="utf-8")
    pairs = ("--text-pair", "why", "--text-pair", "how")
    result = call("predict", folder, *GIVEN, *pairs, "--device", "cpu", "--json")
    assert [row["text_pair"] for row in json.loads(result.stdout)] == ["why", "how"]
    refused(call("predict", trained, *GIVEN, *pairs), "trained on single texts", "--text-pair")
    single = call("predict", folder, *GIVEN, "--device", "cpu")
    if trained_on_pairs:
        refused(single, f"{folder} was trained on pairs", "`text_pair_column`")
        with pytest.raises(DataError, match="trained on pairs of texts, and these texts lack"):
            Classifier.load(folder)(["why"])
    else:
        assert single.exit_code == 0


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--text", "a", "--data", "b.csv"), "--text and --data both give"),
        (("--text", "a", "--text-pair", "b", "--text-pair", "c"), "got 2 --text-pair and 1 --text"),
        (("--text-pair", "b"), "got 1 --text-pair and 0 --text"),
        (("--text", "a", "--set", "data.encoding=cp1252"), "leave `encoding` out"),
        (("--text", "a", "--text-column", "b"), "leave `text_column` out"),
        (
            ("--set", "data.skip_bad_rows=true"),
            "Stdin has no columns, it is plain text: leave `skip_bad_rows` out",
        ),
    ],
)
def test_incompatible_options_raise_an_error(more: tuple[str, ...], words: str) -> None:
    result = call("predict", "model", *more)
    assert result.exit_code == 2
    assert words in result.stderr


def test_predictions_never_overwrite_their_input_file(trained: Path, tmp_path: Path) -> None:
    data = tmp_path / "texts.csv"
    data.write_text("text\na joy\n", encoding="utf-8")
    refused(
        call("predict", trained, "--data", data, "--out", data), "is the file that --data reads"
    )
    assert data.read_text(encoding="utf-8") == "text\na joy\n"


def test_missing_texts_with_an_existing_output_raise_one_error(
    trained: Path, tmp_path: Path
) -> None:
    out = tmp_path / "predictions.csv"
    out.write_text("label\n", encoding="utf-8")
    refused(
        call("predict", trained, "--data", tmp_path / "nowhere.csv", "--out", out), "nowhere.csv"
    )
    assert out.read_text(encoding="utf-8") == "label\n"


def test_the_command_runs_as_a_module() -> None:
    made = subprocess.run(
        [sys.executable, "-m", "temper", "--version"], capture_output=True, text=True, check=True
    )
    assert made.stdout == f"temper {__version__}\n"


def test_cells_that_a_spreadsheet_would_run_are_written_as_text(
    trained: Path, tmp_path: Path
) -> None:
    hostile = ["=HYPERLINK(0)", "+1", "-1", "@a", "\t=1", "plain = text"]
    texts = [part for text in hostile for part in ("--text", text)]
    written = {}
    for name, more in (("safe", ()), ("raw", ("--raw",))):
        out = tmp_path / f"{name}.csv"
        succeed("predict", trained, *texts, "--device", "cpu", "--out", out, *more)
        with out.open(encoding="utf-8", newline="") as file:
            written[name] = [row["text"] for row in csv.DictReader(file)]
    assert written["raw"] == hostile
    assert written["safe"] == [*(f"'{text}" for text in hostile[:-1]), hostile[-1]]
    refused(call("predict", trained, "--text", "a", "--raw"), "--raw has an effect only")
