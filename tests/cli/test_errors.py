"""Bad input: one clear message, exit code 2, nothing left behind."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from typer.testing import Result

from tests.cli.calls import call, refused
from tests.cli.tiny_project import write_csv


def training(model: Path, data: Path, out: Path, *more: object) -> Result:
    return call(
        "train", "--model", model, "--data", data, "--method", "plain",
        "--set", "train.max_steps=2", "--device", "cpu", "--out", out, *more,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--set", "train.epoch=3"), ("Unknown setting 'train.epoch'", "'train.epochs'")),
        (("--set", "train.max_steps=3"), ("`train.max_steps` is given twice",)),
        (("--set", "seed=1", "--seed", "2"), ("`seed` is given twice",)),
        (("--text-column", "txt"), ("'txt'", "text")),
        (("--label-column", "labels"), ("'labels'", "label")),
        (("--set", "data.train_split=trian"), ("trian", "train")),
        (("--set", "data.eval_split=evil"), ("evil", "dev")),
        (("--set", "train.class_weights=[1, 2, 3]"), ("2 numbers", "[1.0, 2.0, 3.0]")),
        (("--set", "train.class_weights=heavy"), ("heavy",)),
        (("--max-length", "4000"), ("4000", "128")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_options_of_train_write_no_file(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    out = tmp_path / "runs" / "one"
    refused(training(tiny_model, tiny_data / "reviews", out, *more), *words)
    assert list(tmp_path.iterdir()) == []


def test_the_data_may_be_the_first_argument_once(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    data = tiny_data / "reviews"
    options = ("--model", tiny_model, "--set", "train.epoch=3", "--out", tmp_path / "run")
    refused(call("train", data, *options), "Unknown setting 'train.epoch'")
    for more in (("--data", data), (f"--data={data}",), (data,)):
        refused(call("train", data, *options, *more), "unexpected extra argument")


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("empty.csv", b"", ("empty.csv",)),
        ("ragged.csv", b"text,label\na,0\nb,1,2\n", ("ragged.csv", "3")),
        ("bytes.csv", b"text,label\n\xff\xfe,0\nb,1\n", ("bytes.csv",)),
        ("broken.jsonl", b'{"text": "a", "label": 0}\n{"text": \n', ("broken.jsonl", "2")),
    ],
    ids=lambda value: value if isinstance(value, str) else None,
)
def test_wrong_files_write_no_file(
    tiny_model: Path, tmp_path: Path, name: str, content: bytes, words: tuple[str, ...]
) -> None:
    (tmp_path / name).write_bytes(content)
    refused(training(tiny_model, tmp_path / name, tmp_path / "run"), *words)
    assert [entry.name for entry in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--methods", "plain,uerg"), ("'uerg'", "'uegr'")),
        (("--seeds", "0,a"), ("--seeds",)),
        (("--shift", "yelp"), ("--shift NAME=PATH",)),
        (("--shift", "yelp=missing.csv"), ("missing.csv",)),
        (("--perspectives", "tasks"), ("'tasks'", "task", "worst_case.")),
        (("--set", "evaluate.embedding_attack.radii=[-1]"), ("evaluate.embedding_attack.radii",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_wrong_options_of_compare_write_no_file(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    base = (
        "compare",
        "--model",
        tiny_model,
        "--data",
        tiny_data / "reviews",
        "--out",
        tmp_path / "study",
    )
    refused(call(*base, *more), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_shifted_set_with_other_labels_raises_an_error_before_training(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    path = write_csv(tmp_path / "other.csv", [("a film", "cats"), ("the film", "dogs")])
    result = call(
        "compare", "--model", tiny_model, "--data", tiny_data / "reviews",
        "--shift", f"other={path}", "--out", tmp_path / "study",
    )  # fmt: skip
    refused(result, "'cats'", "positive")
    assert not (tmp_path / "study").exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("predict", "model", "--out", "a.xlsx"), (".csv",)),
        (("predict", "model", "--out", "no/folder/a.csv"), ("no/folder",)),
        (("predict", "model", "--text-column", "x"), ("Stdin has no columns",)),
        (
            ("evaluate", "model", "--data", "d", "--set", "data.rows=3", "--out", "o"),
            ("data.rows",),
        ),
        (("evaluate", "model", "--out", "o"), ("data.source",)),
        (
            ("calibrate", "model", "--data", "d", "--coverage", "95"),
            ("`calibrate.coverage` must be < 1, got 95 (perhaps 0.95 was meant).\n",),
        ),
        (
            ("calibrate", "model", "--data", "d", "--set", "calibrate.fit_rows=2.5"),
            ("`calibrate.fit_rows` must be a valid integer, got 2.5.\n",),
        ),
        (
            ("calibrate", "model", "--data", "d", "--anomaly", "a.csv"),
            ("--anomaly NAME=PATH", "got ['a.csv']"),
        ),
        (("predict", "model", "--text", "a", "--coverage", "95"), ("(0, 1)", "perhaps 0.95 was")),
        (("evaluate", "model", "--data", "d", "--set", "train.epochs=3", "--out", "o"), ("train",)),
        (("train",), ("--model",)),
        (("trian",), ("trian",)),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_other_commands_raise_an_error_for_wrong_input(
    arguments: tuple[str, ...],
    words: tuple[str, ...],
    tmp_path: Path,
    tiny_model: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(call(*(tiny_model if word == "model" else word for word in arguments)), *words)
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_content_is_not_changed(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    (tmp_path / "notes.txt").write_text("mine", encoding="utf-8")
    refused(training(tiny_model, tiny_data / "reviews", tmp_path), "notes.txt", "--out")
    study = call(
        "compare", "--model", tiny_model, "--data", tiny_data / "reviews", "--out", tmp_path
    )
    refused(study, "notes.txt", "--out")
    assert [entry.name for entry in tmp_path.iterdir()] == ["notes.txt"]


def test_stdin_must_be_text(tiny_model: Path) -> None:
    refused(call("predict", tiny_model, text=b"good\n\xff\n"), "Line 2")
    refused(call("predict", tiny_model, text=b""), "Stdin is empty")


@pytest.mark.parametrize(
    "error",
    [
        MemoryError("Unable to allocate 1.5 TiB"),
        torch.OutOfMemoryError("CUDA out of memory: tried to allocate 9 GiB."),
        RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."),
    ],
    ids=["numpy", "GPU", "torch"],
)
def test_memory_that_is_not_enough_is_one_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def exhausted(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr("temper.cli.report.read", exhausted)
    refused(call("report", tmp_path), "Out of memory", "allocate", "--batch-size")


def test_other_errors_are_not_reported_as_out_of_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("shapes do not fit")

    monkeypatch.setattr("temper.cli.report.read", broken)
    assert "shapes do not fit" in str(call("report", tmp_path).exception)


def test_a_comparison_as_a_model_raises_an_error_with_the_folders_of_its_runs(
    tiny_data: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "study"
    folder.mkdir()
    (folder / "study.json").write_text("{}", encoding="utf-8")
    asked = ("--data", tiny_data / "reviews", "--out", tmp_path / "out", "--device", "cpu")
    refused(call("evaluate", folder, *asked), "it is a comparison", "runs/")
    refused(call("predict", folder, "--text", "a"), "it is a comparison", "runs/")


def test_the_error_of_a_missing_folder_suggests_a_similar_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs" / "reviews").mkdir(parents=True)
    (tmp_path / "runs" / "review.csv").write_text("text\n", encoding="utf-8")
    for asked in (("predict", "runs/review", "--text", "a"), ("report", "runs/review"),
                  ("verify", "runs/review"),
                  ("calibrate", "runs/review", "--data", "demo")):  # fmt: skip
        refused(call(*asked), "Did you mean 'runs/reviews'?")
    assert "Did you mean" not in call("report", "runs/something").stderr
