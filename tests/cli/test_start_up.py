"""Commands that need no torch: lists, and errors of mistyped names and paths."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants, errors
from typer.testing import CliRunner

import temper
from temper import methods
from temper.cli.app import app
from temper.errors import ModelError
from temper.models.names import check_model

HEAVY = (
    "accelerate", "datasets", "pandas", "peft", "pyarrow", "scipy", "sklearn", "torch",
    "transformers",
)  # fmt: skip
# Commands one after the other in one process, each with what it leaves behind.
SCRIPT = f"""
import contextlib, io, json, os, sys
from temper.cli import main
results = []
for arguments, variables in json.load(sys.stdin):
    out, err, code = io.StringIO(), io.StringIO(), None
    os.environ.update(variables)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(arguments)
        except SystemExit as end:
            code = end.code
    for name in variables:
        del os.environ[name]
    heavy = [name for name in {HEAVY} if name in sys.modules]
    results.append([code, heavy, out.getvalue(), err.getvalue()])
print(json.dumps(results))
"""
OUT = ("--out", "out")
DEMO = ("--data", "demo")
TRAIN = ("train", "--method", "uegr", *OUT)
COMPARE = ("compare", "--model", "model", *DEMO, *OUT)


def outputs_of(
    calls: Sequence[tuple[Sequence[str], Mapping[str, str]]], folder: Path
) -> list[tuple[int, list[str], str, str]]:
    """Return of each call its exit code, what is imported by then, its output and its errors."""
    source = str(Path(temper.__file__).parents[1])
    made = subprocess.run(
        [sys.executable, "-c", SCRIPT],
        input=json.dumps(calls),
        capture_output=True,
        text=True,
        cwd=folder,
        env={**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": source},
        check=True,
    )
    return [tuple(each) for each in json.loads(made.stdout)]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return a working directory with data, a model's config and a folder of something else."""
    (tmp_path / "reviews.csv").write_text("text,label\na,0\nb,1\n", encoding="utf-8")
    (tmp_path / "empty.csv").write_text("text,label\n", encoding="utf-8")
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text("{}", encoding="utf-8")
    run = {"task": {"kind": "classification", "labels": ["bad", "good"]}}
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "config.json").write_text("{}", encoding="utf-8")
    (tmp_path / "run" / "run.json").write_text(json.dumps(run), encoding="utf-8")
    (tmp_path / "columns.csv").write_text("a,b\n1,2\n", encoding="utf-8")
    (tmp_path / "labels.csv").write_text("text,label\na,good\nb,odd\n", encoding="utf-8")
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "mine.txt").write_text("keep", encoding="utf-8")
    return tmp_path


WRONG: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    (("report", "nowhere"), ("nowhere is not a folder",)),
    (("report", "letters"), ("letters has no study.json",)),
    ((*TRAIN, "--model", "nowhere", *DEMO), ("could be loaded from 'nowhere'",)),
    ((*TRAIN, "--model", "letters", *DEMO), ("has no config.json",)),
    ((*TRAIN, "--model", "model", "--data", "no.csv"), ("No such file or folder: no.csv",)),
    ((*TRAIN, "--model", "minilm", "--data", "empty.csv"), ("empty.csv has a header",)),
    (("train", "--method", "ueg", "--model", "model", *DEMO, *OUT), ("'ueg'", "'uegr'")),
    (("train", "--method", "at + uegrr", "--model", "model", *DEMO, *OUT), ("'uegrr'",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "seed"), ("KEY=VALUE",)),
    ((*TRAIN, "--model", "model", *DEMO, "--config", "no.toml"), ("no.toml",)),
    ((*TRAIN[:-1], "letters", "--model", "model", *DEMO), ("'mine.txt'",)),
    ((*TRAIN, "--model", "model", *DEMO, "--nonsense"), ("--nonsense",)),
    (
        ("train", "--method", "ueg", "--model", "nowhere", "--data", "no.csv", *OUT),
        ("'ueg'", "'nowhere'", "no.csv"),
    ),
    (("compare", "--model", "minilm", "--data", "empty.csv", *OUT), ("empty.csv has a header",)),
    (("tune", "--model", "minilm", "--data", "empty.csv", *OUT), ("empty.csv has a header",)),
    (("compare", "--model", "model", *DEMO, "--methods", "nope", *OUT), ("'nope'",)),
    (("compare", "--model", "model", *DEMO, "--out", "letters"), ("'mine.txt'",)),
    (("compare", "--model", "model", *DEMO, "--shift", "a=no.csv", *OUT), ("no.csv",)),
    (("compare", "--model", "model", *DEMO, "--suite", "no", *OUT), ("Unknown suite 'no'",)),
    (("compare", "--model", "model", *DEMO, "--perspectives", "tsk", *OUT), ("'task'",)),
    (("evaluate", "no/run/here", *DEMO, *OUT), ("'no/run/here'",)),
    (("evaluate", "model", *DEMO, "--perspectives", "all,tsk", *OUT), ("'tsk'",)),
    (("evaluate", "model", *DEMO, "--set", "sets.fit=no.csv", *OUT), ("no.csv",)),
    (("evaluate", "model", *DEMO, "--out", "letters"), ("'mine.txt'",)),
    (("evaluate", "model", *DEMO, "--label-map", "POSITIVE", *OUT), ("predictor.label_map",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "train.label_map==pos"), ("train.label_map",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "train.dtype=bf16"), ("'train.dtype'",)),
    ((*TRAIN, "--model", "model", *DEMO, "--epochs", "-1"), ("train.epochs",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "train.lora.rank=0"), ("train.lora.rank",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "data.seed=x"), ("data.seed",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "method.epsilon=abc"), ("`method.epsilon`",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "method.epsilo=1"), ("'method.epsilon'",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "method.mask.alpha=2"), ("method.mask",)),
    ((*TRAIN, "--model", "model", *DEMO, "--set", "method.preset=papr"), ("'paper'",)),
    (
        ("train", "--method", "at + pgd", "--model", "model", *DEMO, *OUT),
        ("'at' and 'pgd' both use",),
    ),
    (
        (
            "train",
            "--method",
            "r_drop + ema",
            "--model",
            "model",
            *DEMO,
            *OUT,
            "--set",
            "method.r_drop.weight=-1",
        ),
        ("method.r_drop.weight",),
    ),
    (
        (*COMPARE, "--methods", "plain", "--variant", "x=uegr,method.passes=0"),
        ("method.passes",),
    ),
    (("compare", "--model", "model", *DEMO, "--set", "method.epsilon=1", *OUT), ("--variant",)),
    (
        (
            *TRAIN,
            "--model",
            "model",
            "--task",
            "a=a.csv",
            "--task",
            "b=b.csv",
            "--set",
            "train.epochs=x",
        ),
        ("train.epochs",),
    ),
    (
        ("compare", "--model", "model", *DEMO, "--set", "evaluate.attack_rows=x", *OUT),
        ("evaluate.attack_rows",),
    ),
    (("evaluate", "model", *DEMO, "--set", "evaluate.attack_rows=x", *OUT), ("attack_rows",)),
    (
        ("evaluate", "model", *DEMO, "--set", "evaluate.embedding_attack.radii=-1", *OUT),
        ("embedding_attack.radii",),
    ),
    (("evaluate", "model", *DEMO, "--set", "evaluate.nonsense.a=1", *OUT), ("nonsense",)),
    (
        ("tune", "--model", "model", *DEMO, "--set", "evaluate.attack_rows=x", *OUT),
        ("attack_rows",),
    ),
    (("tune", "--model", "model", *DEMO, "--recipes", "plai", *OUT), ("'plain'",)),
    (("tune", "--model", "model", *DEMO, "--set", "train.epochs=x", *OUT), ("train.epochs",)),
    (("calibrate", "no/run/here", "--data", "no.csv"), ("no/run/here", "no.csv")),
    (("predict", "no/run/here", "--text", "a"), ("'no/run/here'",)),
    (("predict", "model", "--data", "no.csv"), ("no.csv",)),
    (("predict", "run", "--data", "columns.csv"), ("no text column",)),
    (("evaluate", "run", "--data", "columns.csv", *OUT), ("no text column",)),
    (("evaluate", "run", "--data", "labels.csv", *OUT), ("Unknown label 'odd'",)),
    (("calibrate", "run", "--data", "labels.csv"), ("Unknown label 'odd'",)),
    (("export", "run", "--data", "labels.csv", *OUT), ("Unknown label 'odd'",)),
    (("check-labels", "columns.csv", "--model", "minilm", *OUT[:1], "a.csv"), ("no text column",)),
    (("list", "methods", "ueg"), ("'uegr'",)),
    ((*TRAIN, "--model", "model", *DEMO, "--import", "no.py"), ("There is no file no.py",)),
    (("reproduce", "nope"), ("Unknown reproduction 'nope'",)),
    (("new-method", "MyMethod"), ("'my_method'",)),
]
LISTS = [
    ("--help",),
    ("list",),
    *((command, "--help") for command in ("train", "compare", "evaluate", "predict")),
    ("list", "methods"),
    ("list", "methods", "uegr"),
    ("list", "settings"),
    ("list", "perspectives"),
    ("list", "models"),
]


def test_errors_in_names_and_paths_are_reported_before_heavy_imports(folder: Path) -> None:
    result = outputs_of([(arguments, {}) for arguments, _ in WRONG], folder)
    for (arguments, words), (code, heavy, out, message) in zip(WRONG, result, strict=True):
        assert heavy == [], arguments
        assert (code, out) == (2, ""), arguments
        assert message.count("Error") == 1, arguments
        for word in words:
            assert word in message, arguments
    assert not (folder / "out").exists()


def test_list_imports_no_heavy_library(folder: Path) -> None:
    for code, heavy, out, _ in outputs_of([(arguments, {}) for arguments in LISTS], folder):
        assert (code, heavy) == (0, [])
        assert out


def test_a_method_of_a_plug_in_is_listed() -> None:
    from temper.methods import registry

    # All methods are loaded first: those that are loaded later would be forgotten too.
    methods.names()
    before = registry.registered()

    class Mine(type(methods.configure("plain"))):  # type: ignore[misc]
        """Settings."""

    try:
        methods.register("mine", summary="", cost="3F", memory="", paper="")(Mine)
        assert methods.name_faults("mine + at") == []
        assert "mine" in methods.names()
    finally:
        registry.forget_since(before)


def test_a_hub_id_that_is_not_cached_raises_an_error_offline(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ModelError, match="HF_HUB_OFFLINE is set"):
        check_model("somebody/something")
    monkeypatch.setattr(huggingface_hub, "try_to_load_from_cache", lambda *_: "config.json")
    check_model("somebody/something")


class NoResponseError(Exception):
    """What an HTTP library raises."""


NoResponseError.__module__ = "httpx"
RESPONSE: Any = SimpleNamespace(headers={}, request=None)


@pytest.mark.parametrize(
    ("raised", "message"),
    [
        (None, None),
        (errors.RemoteEntryNotFoundError("no config.json", response=RESPONSE), None),
        (errors.RepositoryNotFoundError("no such model", response=RESPONSE), "no such model"),
        (NoResponseError("no route"), "the Hub cannot be asked: no route"),
        (OSError("no socket"), "the Hub cannot be asked: no socket"),
    ],
)
def test_a_model_missing_on_the_hub_raises_an_error(
    monkeypatch: pytest.MonkeyPatch, raised: Exception | None, message: str | None
) -> None:
    def ask(_: str) -> None:
        if raised is not None:
            raise raised

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "get_hf_file_metadata", ask)
    if message is None:
        check_model("somebody/something")
    else:
        with pytest.raises(ModelError, match=message):
            check_model("somebody/something")


COMPLETED = [
    ("temper train --method ueg", ["uegr"]),
    ("temper compare --methods plain,r_at", ["plain,r_at", "plain,r_at_su"]),
    ("temper train --model mini", ["minilm"]),
    ("temper evaluate --perspectives task,cal", ["task,calibration"]),
    ("temper evaluate --suite sent", ["sentiment"]),
    ("temper train --task mrp", ["mrpc"]),
    ("temper list mod", ["models"]),
    ("temper cali", ["calibrate"]),
]


def test_the_shell_completes_commands_and_values_without_anything_heavy(folder: Path) -> None:
    asked = [
        {
            "_TEMPER_COMPLETE": "complete_bash",
            "COMP_WORDS": words,
            "COMP_CWORD": str(len(words.split()) - 1),
        }
        for words, _ in COMPLETED
    ]
    result = outputs_of([((), variables) for variables in asked], folder)
    for (words, expected), (_, heavy, out, _) in zip(COMPLETED, result, strict=True):
        assert out.splitlines() == expected, words
        assert heavy == []


def test_the_completion_script_has_the_name_of_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shellingham.detect_shell", lambda *_: ("bash", "/bin/bash"))
    result = CliRunner().invoke(app, ["--show-completion"], prog_name="temper")
    assert "_TEMPER_COMPLETE=complete_bash" in result.stdout, result.output
