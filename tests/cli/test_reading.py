"""Files in practice: columns, delimiters, encodings and bad rows in every command."""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from tests.cli.calls import call, json_output, refused, succeed
from tests.cli.tiny_project import sentences, write_csv

HEADER = "Queue;Id;Description"
OWN = ("--text-column", "Description", "--label-column", "Queue")
READ = ("--set", "data.encoding=cp1252", "--set", "data.skip_bad_rows=true")


def write(path: Path, rows: list[tuple[str, str]], *, bad: str = "") -> Path:
    """Write rows as a German spreadsheet does."""
    lines = [f"{label};{row};{text}, café" for row, (text, label) in enumerate(rows)]
    path.write_bytes("\n".join([HEADER, *lines, bad]).encode("cp1252"))
    return path


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory, tiny_model: Path) -> Path:
    """Return a folder with a run that was trained on unusual columns, and with further files."""
    folder = tmp_path_factory.mktemp("project")
    write(folder / "train.csv", sentences(40), bad="\npositive;99\n;100;no label")
    for name, thing in (("held_out", "phone"), ("shift", "it")):
        write(folder / f"{name}.csv", sentences(12, thing=thing))
    write_csv(folder / "usual.csv", sentences(10, thing="why"))
    succeed(
        "train", "--model", tiny_model, "--data", folder / "train.csv", "--method", "plain",
        "--set", "train.max_steps=1", "--device", "cpu", "--out", folder / "run", *OWN, *READ,
    )  # fmt: skip
    return folder


def scores(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "scores.json").read_text(encoding="utf-8"))
    return result


def test_training_reports_how_it_read_its_file(project: Path) -> None:
    record = json.loads((project / "run" / "run.json").read_text(encoding="utf-8"))
    message = " ".join(record["notices"])
    assert "read with ';' between columns, encoding cp1252" in message
    assert "1 bad row is skipped: line 43 (2 fields)" in message
    assert "1 bad row is skipped: line 44 (no label)" in message
    assert record["settings"]["data"]["encoding"] == "cp1252"
    for name in ("train", "dev"):
        columns = record["data"][name]["source"]["columns"]
        assert columns == {"text": "Description", "label": "Queue"}


def test_the_columns_that_are_read_are_printed_and_saved(tmp_path: Path, tiny_model: Path) -> None:
    rows = [("text", "sentiment", "score"), *((t, label, 0.5) for t, label in sentences(20))]
    data, run = tmp_path / "rows.csv", tmp_path / "run"
    data.write_text("".join(f"{a},{b},{c}\n" for a, b, c in rows), encoding="utf-8")
    words = ("--data", data, "--device", "cpu")
    result = succeed(
        "train", "--model", tiny_model, *words, "--method", "plain", "--set", "train.max_steps=1",
        "--out", run, "--label-column", "sentiment", "--text-column", "text",
    )  # fmt: skip
    read = "text from 'text', label from 'sentiment' (classification, 2 classes: negative, pos"
    assert read in result.stderr
    assert "would fit too" not in result.stderr
    # Without the option another column is read, which is said with it.
    result = succeed(
        "train", "--model", tiny_model, *words, "--method", "plain", "--set", "train.max_steps=1",
        "--out", tmp_path / "other",
    )  # fmt: skip
    assert "label from 'score' (regression" in result.stderr
    assert "'sentiment' would fit too. Choose with --label-column" in result.stderr.replace(
        "\n", ""
    )
    source = json.loads((tmp_path / "other" / "run.json").read_text())["data"]["train"]["source"]
    assert source["columns"] == {"text": "text", "label": "score"}
    assert source["other_columns"] == {"label": ["sentiment"]}
    # What a run has read is read again.
    result = succeed("evaluate", run, "--perspectives", "task", *words, "--out", tmp_path / "e")
    assert read in result.stderr


def test_rows_with_unknown_labels_are_skipped_on_request(project: Path, tmp_path: Path) -> None:
    rows = [*sentences(12, thing="it"), ("it was fine and bad", "mixed")]
    write_csv(tmp_path / "held.csv", rows)
    write_csv(tmp_path / "shift.csv", [(f"why {text}", label) for text, label in rows])
    command = (
        "evaluate", project / "run", "--data", tmp_path / "held.csv", "--device", "cpu",
        "--shift", f"it={tmp_path / 'shift.csv'}", "--perspectives", "task,shift",
        "--out", tmp_path / "evaluation",
    )  # fmt: skip
    refused(call(*command), "'mixed'")
    result = succeed(*command, "--set", "data.skip_bad_rows=true")
    assert result.stderr.count("unknown label 'mixed'") == 2
    sizes = {row["set"]: row["n"] for row in scores(tmp_path / "evaluation")["scores"]}
    assert sizes == {"dev": 12, "it": 12}


def test_the_columns_of_a_run_are_used_for_its_evaluation(project: Path, tmp_path: Path) -> None:
    result = succeed(
        "evaluate", project / "run", "--data", project / "held_out.csv", *READ,
        "--shift", f"it={project / 'shift.csv'}", "--shift", f"usual={project / 'usual.csv'}",
        "--anomaly", f"odd={project / 'shift.csv'}", "--set", f"sets.fit={project / 'train.csv'}",
        "--perspectives", "task,shift,anomaly", "--device", "cpu", "--out", tmp_path / "evaluation",
    )  # fmt: skip
    assert "12 rows of" in result.stderr
    sizes = {row["set"]: row["n"] for row in scores(tmp_path / "evaluation")["scores"]}
    assert sizes["dev"] == 12
    assert sizes["it"] == 12
    assert sizes["usual"] == 10


def test_the_rows_of_a_run_are_read_with_its_settings(project: Path, tmp_path: Path) -> None:
    succeed(
        "evaluate", project / "run", "--perspectives", "task", "--device", "cpu",
        "--out", tmp_path / "evaluation",
    )  # fmt: skip
    assert scores(tmp_path / "evaluation")["scores"][0]["n"] == 4


def test_the_encoding_of_a_run_is_used_to_calibrate_and_to_predict(project: Path) -> None:
    result = succeed("predict", project / "run", "--data", project / "shift.csv", "--device", "cpu")
    assert len(result.stdout.splitlines()) == 12
    assert "café" in result.stdout
    result = succeed(
        "predict", project / "run", "--data", project / "shift.csv", "--device", "cpu",
        "--set", "data.encoding=cp1250", "--out", project / "other.csv",
    )  # fmt: skip
    assert "encoding cp1250" in result.stderr
    # Whether a temperature is best for so few rows depends on the random weights.
    arguments = ("calibrate", project / "run", "--data", project / "held_out.csv")
    output = call(*arguments).stderr
    assert "encoding cp1252" in output
    assert "is not UTF-8" not in output
    (project / "run" / "calibration.json").unlink(missing_ok=True)


@pytest.mark.parametrize(
    "skip",
    [
        (),
        (
            "--set",
            "data.skip_bad_rows=true",
        ),
    ],
)
@pytest.mark.parametrize("label", ["label", "Queue"])
def test_predicting_reads_no_labels(
    project: Path, tmp_path: Path, skip: tuple[str, ...], label: str
) -> None:
    # The last row ends before its label; the run's own label is called Queue.
    (tmp_path / "new.csv").write_text(f"text,{label}\ngood,odd\nbad,\nfine\n", encoding="utf-8")
    result = succeed(
        "predict", project / "run", "--data", tmp_path / "new.csv", "--device", "cpu", *skip
    )
    predictions = [json.loads(line) for line in result.stdout.splitlines()]
    assert [prediction["text"] for prediction in predictions] == ["good", "bad", "fine"]
    assert "row" not in predictions[0]


def test_predictions_keep_the_other_columns_of_their_file(project: Path, tmp_path: Path) -> None:
    file, out = tmp_path / "new.csv", tmp_path / "out.csv"
    file.write_text("id,label,text,note\n007,1,good,=1+1\n008,0,bad,\n", encoding="utf-8")
    arguments = ("predict", project / "run", "--data", file, "--device", "cpu")

    def predictions(*more: str) -> list[dict[str, Any]]:
        return [json.loads(line) for line in succeed(*arguments, *more).stdout.splitlines()]

    first, second = predictions()
    assert list(first)[:5] == ["text", "id", "input:label", "note", "label"]
    # Values are as they are in the file; what is predicted keeps its name.
    assert (first["id"], first["input:label"], first["note"]) == ("007", "1", "=1+1")
    assert first["label"] in {"negative", "positive"}
    assert (second["id"], second["note"]) == ("008", "")
    assert list(predictions("--columns", "none")[0])[:2] == ["text", "label"]
    assert list(predictions("--columns", "note,id")[0])[:4] == ["text", "note", "id", "label"]
    succeed(*arguments, "--out", out)
    header, row, _ = out.read_text(encoding="utf-8").splitlines()
    assert header.startswith("text,id,input:label,note,label,")
    assert row.startswith("good,007,1,'=1+1,")
    refused(call(*arguments, "--columns", "notes"), "Unknown column 'notes'", "note")
    text = ("predict", project / "run", "--text", "good", "--columns", "none")
    refused(call(*text), "`columns`")


def test_a_class_in_a_kept_column_is_written_by_name(project: Path, tmp_path: Path) -> None:
    from datasets import ClassLabel, Dataset

    rows = Dataset.from_dict({"text": ["good", "bad"], "label": [1, 0]})
    rows.cast_column("label", ClassLabel(names=["neg", "pos"])).save_to_disk(tmp_path / "rows")
    result = json_output("predict", project / "run", "--data", tmp_path / "rows", "--device", "cpu")
    assert [row["input:label"] for row in result] == ["pos", "neg"]


def test_values_that_json_lacks_are_written_as_text(project: Path, tmp_path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = {"text": ["good", "bad"], "day": [date(2024, 2, 3), None], "x": [float("nan"), 1.5]}
    pq.write_table(pa.table(table), tmp_path / "new.parquet")
    result = json_output(
        "predict", project / "run", "--data", tmp_path / "new.parquet", "--device", "cpu"
    )
    assert [(row["day"], row["x"]) for row in result] == [("2024-02-03", None), (None, 1.5)]


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("new.csv", "text,label\ngood,1\n\nbad,0,more\nfine\n"),
        ("new.jsonl", '{"text": "good"}\n\n{"text": null}\n{"text": "fine"}\n'),
        ("broken.jsonl", '{"text": "good"}\n\n{"text": \n{"text": "fine"}\n'),
        ("new.json", '[{"text": "good"}, {"text": null}, {"text": "fine"}]'),
    ],
)
def test_predictions_have_row_numbers_if_rows_were_skipped(
    project: Path, tmp_path: Path, name: str, content: str
) -> None:
    (tmp_path / name).write_text(content, encoding="utf-8")
    arguments = ("predict", project / "run", "--data", tmp_path / name, "--device", "cpu")
    result = succeed(*arguments, "--set", "data.skip_bad_rows=true")
    results = [json.loads(line) for line in result.stdout.splitlines()]
    assert [(prediction["row"], prediction["text"]) for prediction in results] == [
        (1, "good"),
        (3, "fine"),
    ]
    succeed(*arguments, "--set", "data.skip_bad_rows=true", "--out", tmp_path / "out.csv")
    lines = (tmp_path / "out.csv").read_text(encoding="utf-8").splitlines()
    assert lines[0].startswith("row,text,")
    assert [line.split(",")[0] for line in lines[1:]] == ["1", "3"]


def test_the_columns_of_a_comparison_are_used_for_its_further_sets(
    project: Path, tiny_model: Path, tmp_path: Path
) -> None:
    succeed(
        "compare", "--model", tiny_model, "--data", project / "train.csv", *OWN, *READ,
        "--shift", f"it={project / 'shift.csv'}",
        "--set", f"sets.held_out={project / 'held_out.csv'}",
        "--perspectives", "task,shift,calibration", "--methods", "plain", "--seeds", "0",
        "--set", "train.max_steps=1", "--set", "train.device=cpu", "--out", tmp_path / "study",
    )  # fmt: skip
    (result,) = (tmp_path / "study").glob("runs/*/evaluation")
    assert {"it", "dev"} <= {row["set"] for row in scores(result)["scores"]}


def test_an_unknown_encoding_is_one_error(project: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.csv"
    words = ("--data", project / "train.csv", "--set", "data.encoding=nope", "--out", out)
    refused(call("predict", project / "run", *words), "an encoding that Python knows")
    assert not out.exists()


def test_a_label_that_the_model_does_not_know_is_named_with_file_and_row(
    project: Path, tmp_path: Path
) -> None:
    rows = sentences(12, thing="why")
    rows[7:] = [(text, "cats") for text, _ in rows[7:]]
    data = write_csv(tmp_path / "other.csv", rows)
    asked, message = ("--data", data, "--device", "cpu"), f"{data}, row {{}}; set"
    evaluated = ("evaluate", project / "run", *asked, "--out", tmp_path / "out")
    refused(call(*evaluated), "Unknown label 'cats'", message.format(8))
    refused(call("calibrate", project / "run", *asked, "--coverage", ".5"), message.format(8))
    # The rows that are drawn keep the numbers that they have in their file.
    refused(call(*evaluated, "--eval-rows", 2), f"{data}, row ")
    assert message.format(2) not in call(*evaluated, "--eval-rows", 2).stderr


def test_pairs_raise_an_error_for_a_model_of_single_texts(project: Path, tmp_path: Path) -> None:
    data = tmp_path / "pairs.csv"
    data.write_text("text,text_pair,label\na film,why,negative\n", encoding="utf-8")
    asked = ("evaluate", project / "run", "--device", "cpu", "--out", tmp_path / "out")
    message = "trained on single texts, and {} have a second text"
    refused(call(*asked, "--data", data), message.format(f"the rows of {data}"))
    shifted = ("--perspectives", "task,shift", "--shift", f"odd={data}")
    refused(call(*asked, *shifted), message.format("the rows of set 'odd'"))
    assert not (tmp_path / "out").exists()
