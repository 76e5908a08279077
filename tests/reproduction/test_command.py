"""``temper reproduce``: running, resuming, keeping, rebuilding and refusals."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from reproduction.specification import THEOREM, specification_names
from temper.cli.app import app

ROOT = Path(__file__).resolve().parents[2]


def call(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["reproduce", *map(str, arguments)])


def test_without_a_name_all_tables_are_listed() -> None:
    result = call("--json")
    assert result.exit_code == 0, result.stderr
    assert {row["name"] for row in json.loads(result.stdout)} == {*specification_names(), THEOREM}
    assert "Table IV" in call().stdout


def test_the_help_contains_the_options_of_reproduce() -> None:
    assert "--check-arithmetic" in call("--help").stdout


def test_without_the_repository_reproduce_prints_one_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.cli.reproduce.CLONE", tmp_path)
    monkeypatch.setattr(
        sys, "path", [path for path in sys.path if Path(path or ".").resolve() != ROOT]
    )
    for name in [name for name in sys.modules if name.partition(".")[0] == "reproduction"]:
        monkeypatch.delitem(sys.modules, name)
    result = call("uegr-table-4")
    assert result.exit_code == 2
    assert "not in the installed package" in result.stderr


@pytest.fixture(scope="module")
def smoke(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of JacHess's tables at scale smoke, with a tiny model."""
    out = tmp_path_factory.mktemp("smoke") / "jachess"
    result = call(
        "jachess-scores", "--scale", "smoke", "--model", tiny_model, "--device", "cpu", "--out", out
    )
    assert result.exit_code == 0, result.stderr
    assert "sst2" in result.stdout
    return out


def test_a_smoke_run_writes_a_study_a_report_and_the_table(smoke: Path) -> None:
    assert (smoke / "bert-sst2" / "report.html").exists()
    assert "JacHess" in (smoke / "jachess-scores-table.md").read_text(encoding="utf-8")
    record = json.loads((smoke / "reproduction.json").read_text(encoding="utf-8"))
    assert record["family"] == "jachess"
    assert record["scale"] == "smoke"
    assert record["not_run"] == {}


def test_another_table_of_the_same_models_trains_no_run_again(
    smoke: Path, tiny_model: Path
) -> None:
    runs = sorted((smoke / "bert-sst2" / "runs").glob("*/model.safetensors"))
    times = [path.stat().st_mtime_ns for path in runs]
    result = call(
        "jachess-brier", "--scale", "smoke", "--model", tiny_model, "--device", "cpu", "--out",
        smoke, "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert [path.stat().st_mtime_ns for path in runs] == times
    lines = json.loads(result.stdout)["lines"]
    assert [line["column"] for line in lines] == ["plain", "jachess"]
    assert all(0 <= value <= 2 for line in lines for value in line["seeds"].values())


def test_a_table_is_reproduced_from_saved_scores(smoke: Path, tmp_path: Path) -> None:
    kept = tmp_path / "kept"
    first = call("jachess-scores", "--from", smoke, "--keep", kept, "--markdown")
    again = call("jachess-scores", "--from", kept, "--markdown")
    assert first.exit_code == again.exit_code == 0, again.stderr
    assert first.stdout == again.stdout


def test_table_four_runs_at_scale_smoke_with_its_network(tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call("uegr-table-4", "--scale", "smoke", "--device", "cpu", "--out", out, "--json")
    assert result.exit_code == 0, result.stderr
    table = json.loads(result.stdout)
    assert {line["column"] for line in table["lines"]} == {"plain", "uegr"}
    assert table["facts"][0]["model"] == "text_cnn"
    settings = {
        record["method"]: record["settings"]
        for path in out.glob("*/runs/*/run.json")
        for record in [json.loads(path.read_text(encoding="utf-8"))]
    }
    # What the table calls without dropout, and the rate that its other rows share.
    assert settings["plain"]["architecture"]["dropout"] == 0.0
    assert settings["uegr"]["architecture"]["dropout"] == 0.5
    assert settings["uegr"]["method"]["mask"]["scope"] == "all"


def test_without_a_runnable_case_the_command_fails_with_the_reason(tmp_path: Path) -> None:
    result = call(
        "uegr-table-1", "--scale", "smoke", "--model", tmp_path / "none", "--out", tmp_path / "out"
    )
    assert result.exit_code == 2
    assert "No case of uegr-table-1 has numbers" in result.stderr
    assert "Not run: bert-base-sst2" in result.stderr
    assert not list((tmp_path / "out").glob("*-table.md"))
    record = json.loads((tmp_path / "out" / "reproduction.json").read_text(encoding="utf-8"))
    assert "none" in record["not_run"]["bert-base-sst2"]


def test_the_arithmetic_check_lists_errors_of_one_table_or_all() -> None:
    output = call("uegr-table-2", "--check-arithmetic").stdout
    assert "88.2778, the mean of 9" in output
    assert output.splitlines()[-1].startswith("100 printed numbers; ")
    checked = json.loads(call("--check-arithmetic", "--json").stdout)
    assert checked["printed"] == 389
    assert any(each["right"] for each in checked["checked"])


def test_the_printed_numbers_are_shown_by_table() -> None:
    output = call("uegr-table-5", "--printed").stdout
    assert "UEGR, Table V" in output
    assert "90.42" in output
    assert len(json.loads(call("--printed", "--json").stdout)) == 389
    nothing = call("jachess-scores", "--printed")
    assert nothing.exit_code == 2
    assert "jachess-scores has no printed numbers" in nothing.stderr


def test_the_claims_are_printed_with_a_verdict_each() -> None:
    rows = json.loads(call("--claims", "--json").stdout)
    assert {row["paper"] for row in rows} == {"UEGR", "RoAST", "JacHess"}
    assert all(row["verdict"] and (row["ours"] or row["command"]) for row in rows)


def test_scores_that_were_damaged_are_made_again_without_training(
    smoke: Path, tiny_model: Path
) -> None:
    scores = next((smoke / "bert-sst2" / "runs").glob("jachess-*/evaluation/scores.json"))
    before, weights = json.loads(scores.read_text(encoding="utf-8")), scores.parents[1]
    trained = (weights / "model.safetensors").stat().st_mtime_ns
    scores.write_text("{", encoding="utf-8")
    result = call(
        "jachess-scores", "--scale", "smoke", "--model", tiny_model, "--device", "cpu", "--out",
        smoke,
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    assert json.loads(scores.read_text(encoding="utf-8"))["scores"] == before["scores"]
    assert (weights / "model.safetensors").stat().st_mtime_ns == trained


def test_fewer_seeds_than_were_run_are_reported(tiny_model: Path, tmp_path: Path) -> None:
    def run(seeds: int) -> Result:
        return call(
            "uegr-figure-3", "--scale", "smoke", "--model", tiny_model, "--device", "cpu", "--out",
            tmp_path / "out", "--seeds", seeds, "--json",
        )  # fmt: skip

    assert run(2).exit_code == 0
    fewer = run(1)
    assert fewer.exit_code == 0
    assert "has runs of more seeds (1)" in fewer.stderr
    assert {len(line["seeds"]) for line in json.loads(fewer.stdout)["lines"]} == {1}


def test_an_unwritable_folder_for_scores_raises_an_error_before_training(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine", encoding="utf-8")
    out, kept = tmp_path / "out", tmp_path / "file" / "kept"
    result = call("uegr-table-4", "--scale", "smoke", "--out", out, "--keep", kept)
    assert result.exit_code == 2
    assert "Choose another --keep" in result.stderr
    assert not out.exists()


def test_a_folder_with_scores_of_another_table_raises_an_error_before_training(
    tmp_path: Path,
) -> None:
    kept = tmp_path / "kept"
    kept.mkdir()
    record = {"schema": 1, "family": "uegr-table-1", "scale": "small", "not_run": {}}
    (kept / "reproduction.json").write_text(json.dumps(record), encoding="utf-8")
    result = call("uegr-table-4", "--scale", "smoke", "--out", tmp_path / "out", "--keep", kept)
    assert result.exit_code == 2
    assert "has uegr-table-1 at scale 'small'" in result.stderr
    assert not (tmp_path / "out").exists()


def test_a_failed_command_leaves_no_folder(tmp_path: Path) -> None:
    kept = tmp_path / "reproduction" / "results" / "kept"
    out = tmp_path / "out"
    result = call("uegr-table-4", "--out", out, "--keep", kept, "--cases", "no-such-case")
    assert result.exit_code == 2
    assert "no-such-case" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--scale", "small"), "the list of all tables"),
        (("uegr-tabel-4",), "Did you mean 'uegr-table-4'"),
        (("uegr-table-4", "--scale", "tiny"), "Unknown scale 'tiny'"),
        (
            ("uegr-table-4", "--from", "somewhere", "--seeds", "3"),
            "--from only reads finished runs",
        ),
        (("uegr-table-4", "--figure", "f.svg"), "leave --figure out"),
        (("uegr-table-4", "--write"), "so the name of a"),
        (("--claims", "--seeds", "3"), "so --seeds has no effect"),
        (("--check-arithmetic", "--scale", "full"), "trains nothing, so --scale has no effect"),
        (("uegr-table-4", "--from", "somewhere", "--scale", "full"), "so --scale has no effect"),
        (("uegr-theorem-1", "--seeds", "3", "--out", "x"), "so --seeds, --out have no effect"),
        (("uegr-table-4", "--out", "x", "--keep", "x/kept"), "must be outside of x"),
        (("uegr-table-4", "--markdown", "--json"), "not allowed with argument"),
        (("uegr-table-4", "--workers", "0"), "at least 1, got 0"),
        (("uegr-table-4", "--from", "somewhere", "--workers", "2"), "so --workers has no effect"),
    ],
)
def test_contradicting_options_raise_an_error_before_any_work(
    arguments: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = call(*arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_folder_with_other_content_raises_an_error(smoke: Path, tmp_path: Path) -> None:
    (tmp_path / "other.txt").write_text("mine", encoding="utf-8")
    foreign = call("jachess-scores", "--scale", "smoke", "--out", tmp_path)
    assert foreign.exit_code == 2
    assert "has 'other.txt' but no reproduction.json" in foreign.stderr
    other = call("uegr-table-1", "--scale", "smoke", "--out", smoke)
    assert other.exit_code == 2
    assert "has jachess at scale 'smoke'" in other.stderr


def test_the_package_is_run_as_a_module_too() -> None:
    command = [sys.executable, "-m", "reproduction", "nope"]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    result = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert result.returncode == 2
    assert "Unknown reproduction 'nope'" in result.stderr
