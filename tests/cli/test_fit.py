"""`temper fit`: from a file to a calibrated model with findings, without naming a method."""

from __future__ import annotations

import csv
import html
import json
import re
from pathlib import Path

import pandas
import pytest

import temper
from temper.display.folders import read
from temper.errors import CheckpointError, DataError, SettingError
from temper.report import error_analysis
from temper.report.headline import TITLE_WORDS
from temper.study import fit as module
from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import sentences, write_csv

ROWS = 600


@pytest.fixture(scope="module")
def reviews(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("fit")
    rows = sentences(ROWS)
    # One label is wrong.
    rows[10] = (rows[10][0], "positive")
    return write_csv(folder / "reviews.csv", rows)


@pytest.fixture(scope="module")
def fitted(tiny_model: Path, reviews: Path) -> Path:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "CANDIDATES", module.CANDIDATES[:3])
        # A tiny random encoder learns nothing at usual rates.
        result = json_output(
            "fit", reviews, "--models", tiny_model, "--out", reviews.parent / "out", "--budget",
            "30m", "--device", "cpu", "--max-length", 32,
        )  # fmt: skip
    assert Path(result["out"]) == reviews.parent / "out"
    return reviews.parent / "out"


def test_findings_are_about_these_rows(fitted: Path, reviews: Path) -> None:
    record = json.loads((fitted / "fit.json").read_text(encoding="utf-8"))
    chosen_model, accuracy, calibration, labels, uncertain, more, others = record["findings"]
    set_aside = round(0.2 * ROWS)
    best, evaluation = record["candidates"][0], fitted / "evaluation" / "scores.json"
    linear = best["candidate"] == "linear classifier"
    assert ("a linear classifier" in chosen_model) == linear
    assert f"{ROWS - set_aside} rows" in chosen_model
    assert f"{set_aside} rows" in accuracy
    assert "95% CI" in accuracy
    scores = {
        (each["perspective"], each["condition"], each["name"]): 100 * each["value"]
        for each in json.loads(evaluation.read_text(encoding="utf-8"))["scores"]
    }
    measured = [
        scores["calibration", "temperature", "ece_10"],
        scores["calibration", "clean", "ece_10"],
        scores["coverage", "lac", "coverage"],
    ]
    after, *_, before, _, covered = map(float, re.findall(r"\d+\.\d+|90", calibration))
    assert [after, before, covered] == pytest.approx(measured, abs=0.051)
    assert f"of {set_aside} set-aside texts" in uncertain
    assert "95% CI" in more
    assert "95% CI" in others
    # Differences are the new value minus the old one, with a true minus sign.
    changed = re.findall(r"from (\S+)% to (\S+)%", more)
    assert changed or "does not change accuracy" in more
    old, new = map(float, changed[0] if changed else (0.0, 0.0))
    gain = re.findall(r"\((\S+) points", more)[0].replace("\u2212", "-")
    assert float(gain) == pytest.approx(new - old, abs=0.11)
    simpler, chosen = map(float, re.findall(r"\d\.\d{3}", others)[:2])
    change = re.findall(r"\((\S+), 95% CI", others)[0].replace("\u2212", "-")
    assert float(change) == pytest.approx(chosen - simpler, abs=0.0011)
    assert not re.search(r"-\d", more + others)
    # Row numbers are those of the file.
    table = pandas.read_csv(fitted / "labels.csv")
    with reviews.open(encoding="utf-8", newline="") as file:
        lines = list(csv.DictReader(file))
    for line in table.itertuples():
        assert lines[line.row - 1]["text"] == line.text
        assert lines[line.row - 1]["label"] == line.label
    assert list(table["score"]) == sorted(table["score"], reverse=True)
    names = {line["candidate"] for line in record["candidates"]}
    assert {"default fine-tuning", "linear classifier"} < names
    assert "Labels: another" in labels or "none of" in labels


def test_the_model_is_calibrated_and_was_not_trained_on_the_rows_set_aside(fitted: Path) -> None:
    calibration = json.loads((fitted / "model" / "calibration.json").read_text(encoding="utf-8"))
    assert calibration["held_out"]["rows"] == round(0.2 * ROWS)
    assert calibration["held_out"]["left_out"]["trained"] == 0
    result = json_output(
        "predict", fitted / "model", "--text", "the film was good", "--device", "cpu"
    )
    assert sum(result[0]["probabilities"].values()) == pytest.approx(1)
    assert result[0]["set"]
    succeed("verify", fitted / "evaluation")
    assert (fitted / "report.html").exists()
    exported = json.loads((fitted / "export" / "export.json").read_text(encoding="utf-8"))
    assert exported["likeness"]["pipeline.py"]["alike"] == exported["compared"]["rows"]
    refused(call("report", fitted), str(fitted / "report.html"))


def test_the_page_begins_with_findings_and_candidates(fitted: Path) -> None:
    record = json.loads((fitted / "fit.json").read_text(encoding="utf-8"))
    page = (fitted / "report.html").read_text(encoding="utf-8")
    header = html.unescape(page.partition("</header>")[0].partition("<header>")[2])
    assert f"<h1>{record['title']}</h1>" in header
    assert len(record["title"].split()) <= TITLE_WORDS
    for finding in record["findings"]:
        subject, colon, rest = finding.partition(": ")
        assert f"<li><strong>{subject}{colon}</strong>{rest}</li>" in header
    for line in record["candidates"]:
        assert line["candidate"] in header


def test_errors_are_shown_with_their_texts_and_rows_of_the_file(
    fitted: Path, reviews: Path
) -> None:
    result = error_analysis(read(fitted / "evaluation"))
    assert result is not None
    assert result.fragile
    with reviews.open(encoding="utf-8", newline="") as file:
        texts = [line["text"] for line in csv.DictReader(file)]
    for mistake in (*result.confident, *result.fragile):
        assert mistake.number is not None
        assert texts[mistake.number - 1] == mistake.text


def test_a_finished_result_is_reused_and_other_settings_raise_an_error(
    fitted: Path, reviews: Path, tiny_model: Path
) -> None:
    words = {"models": [str(tiny_model)], "out": fitted, "device": "cpu", "max_length": 32}
    before = (fitted / "fit.json").read_text(encoding="utf-8")
    again = temper.fit(str(reviews), budget="30m", **words)
    assert (fitted / "fit.json").read_text(encoding="utf-8") == before
    assert again.load()(["a"])[0].label in ("negative", "positive")
    with pytest.raises(CheckpointError, match=r"another result: budget: '30m' -> '3m'"):
        temper.fit(str(reviews), budget="3m", **words)


def test_settings_that_fit_chooses_raise_an_error(reviews: Path) -> None:
    refused(call("fit", reviews, "--set", "train.epochs=2"), "epochs", "temper train")
    refused(call("fit", reviews, "--budget", "5runs"), "--budget", "10m")
    with pytest.raises(SettingError, match="scratch"):
        temper.fit(str(reviews), models="bilstm")


def test_numbers_as_labels_raise_an_error(tiny_model: Path, tmp_path: Path) -> None:
    lines = ["text,label", *(f"text {i},{i / 7:.3f}" for i in range(100))]
    (tmp_path / "numbers.csv").write_text("\n".join(lines), encoding="utf-8")
    with pytest.raises(DataError, match="temper train"):
        temper.fit(str(tmp_path / "numbers.csv"), models=str(tiny_model), out=tmp_path / "out")


def test_rows_with_answer_spans_raise_an_error_without_a_wrong_hint(
    tiny_model: Path, tmp_path: Path
) -> None:
    answers = '"answers": {"text": ["Ada"], "answer_start": [0]}'
    line = '{"question": "Who?", "context": "Ada %d.", ' + answers + "}"
    (tmp_path / "qa.jsonl").write_text("\n".join(line % i for i in range(20)), encoding="utf-8")
    with pytest.raises(DataError, match=r"are answers in a context. Use `temper train`.$"):
        temper.fit(str(tmp_path / "qa.jsonl"), models=str(tiny_model), out=tmp_path / "out")
