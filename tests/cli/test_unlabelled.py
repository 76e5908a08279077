"""``--unlabeled`` of ``temper train`` and ``temper compare``."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from temper.cli.app import app
from tests.cli.calls import refused
from tests.cli.tiny_project import sentences, write_csv
from tests.training.alternating import NAME, alternating_registered


@pytest.fixture(autouse=True)
def _registered() -> Iterator[None]:
    with alternating_registered():
        yield


@pytest.fixture
def pool(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "data" / "pool.csv", sentences(12, thing="it"))


def call(command: str, model: Path, data: Path, *more: object) -> Result:
    words = [
        command, "--model", model, "--data", data / "reviews", "--set", "train.epochs=1",
        "--set", "train.batch_size=20", "--device", "cpu", *more,
    ]  # fmt: skip
    return CliRunner().invoke(app, [str(word) for word in words])


def test_a_training_reads_the_text_and_no_more_rows_than_asked_for(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, pool: Path
) -> None:
    result = call(
        "train", tiny_model, tiny_data, "--method", NAME, "--unlabeled", pool,
        "--set", "data.unlabeled_rows=5", "--out", tmp_path / "run", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert f"5 rows of unlabelled text from {pool}" in " ".join(result.stderr.split())
    told = json.loads(result.stdout)
    assert told["data"]["unlabeled"]["rows"] == 5
    assert told["data"]["unlabeled"]["source"]["path"] == str(pool)
    # 40 rows in twenties, then 5.
    assert told["times"]["steps"] == 3


def test_wrong_uses_of_a_training_leave_nothing(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, pool: Path
) -> None:
    out = ("--out", tmp_path / "run")
    missing = call("train", tiny_model, tiny_data, "--method", NAME, *out)
    refused(missing, "'alternating'", "--unlabeled PATH")
    useless = call("train", tiny_model, tiny_data, "--method", "vanilla", "--unlabeled", pool, *out)
    refused(useless, "'vanilla'", "--unlabeled PATH")
    nowhere = call(
        "train", tiny_model, tiny_data, "--method", NAME, "--unlabeled", "nowhere.csv", *out
    )
    refused(nowhere, "nowhere.csv")
    assert not (tmp_path / "run").exists()


def test_a_comparison_gives_the_text_to_the_columns_that_learn_from_it(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, pool: Path
) -> None:
    result = call(
        "compare", tiny_model, tiny_data, "--methods", f"vanilla,{NAME}", "--seeds", "0",
        "--unlabeled", pool, "--perspectives", "task", "--set", "evaluate.bootstrap=0",
        "--out", tmp_path / "study", "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    steps = {
        run.name.split("-")[0]: json.loads((run / "run.json").read_text())["times"]["steps"]
        for run in (tmp_path / "study" / "runs").iterdir()
    }
    assert steps == {"vanilla": 2, NAME: 3}


def test_wrong_uses_of_a_comparison_leave_nothing(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, pool: Path
) -> None:
    out = ("--out", tmp_path / "study")
    missing = call("compare", tiny_model, tiny_data, "--methods", f"vanilla,{NAME}", *out)
    refused(missing, "'alternating'", "--unlabeled PATH")
    useless = call(
        "compare", tiny_model, tiny_data, "--methods", "vanilla,at", "--unlabeled", pool, *out
    )
    refused(useless, "no column trains on it", "'at'")
    assert not (tmp_path / "study").exists()
