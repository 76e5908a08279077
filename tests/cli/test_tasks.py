"""Known tasks in commands, with a tiny model and tiny copies."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.calls import call, json_output, refused
from tests.data.task_files import json_lines, mnli_folder

NLI = ("entailment", "neutral", "contradiction")
STEP = ("--set", "train.max_steps=1", "--max-length", "16", "--set", "train.device=cpu")


def pairs(folder: Path, **splits: int) -> Path:
    """Write splits of pairs with labels by turns."""
    for split, count in splits.items():
        rows = [{"text": f"{split} {n}", "text_pair": "b", "label": n % 2} for n in range(count)]
        json_lines(folder / f"{split}.jsonl", rows)
    return folder


def test_a_study_of_mnli_reports_both_dev_sets_and_their_mean(
    tiny_model: Path, tmp_path: Path
) -> None:
    root = tmp_path / "glue"
    mnli_folder(root, NLI * 4, splits=["train", "dev_matched", "dev_mismatched"])
    out = tmp_path / "study"
    json_output(
        "compare", "--model", tiny_model, "--task", "mnli", "--set", f"data_root={root}", *STEP,
        "--methods", "plain", "--seeds", "0", "--perspectives", "task,groups",
        "--set", "evaluate.bootstrap=0", "--out", out,
    )  # fmt: skip
    plan = json.loads((out / "study.json").read_text(encoding="utf-8"))
    assert plan["data"]["task"] == "mnli"
    assert plan["data"]["source"] == str(root / "MNLI")
    (run,) = plan["runs"]["plain"].values()
    record = json.loads((out / run / "run.json").read_text(encoding="utf-8"))
    assert record["task"] == {"kind": "classification", "metric": "accuracy", "labels": list(NLI)}
    partial = "mnli: this copy is partial, train has 12 of 392,702 published rows."
    assert partial in record["notices"]
    assert partial in (out / "report.md").read_text(encoding="utf-8")
    scores = json.loads((out / run / "evaluation" / "scores.json").read_text(encoding="utf-8"))
    assert any("dev_mismatched has 12 of 9,832 published rows" in n for n in scores["notices"])
    groups = {
        score["condition"]: (score["value"], score["n"])
        for score in scores["scores"]
        if score["perspective"] == "groups"
    }
    matched, mismatched = groups["matched"], groups["mismatched"]
    assert (matched[1], mismatched[1]) == (12, 12)
    assert groups["mean"] == (pytest.approx((matched[0] + mismatched[0]) / 2), 24)


def test_a_task_has_its_metric_whatever_the_path_of_its_data(
    tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs(tmp_path / "root" / "MRPC", train=8, dev=4)
    monkeypatch.setenv("TEMPER_DATA", str(tmp_path / "root"))
    run = tmp_path / "run"
    record = json_output(
        "train", "--model", tiny_model, "--task", "mrpc", "--set", "train.new_head=true", *STEP,
        "--method", "plain", "--out", run,
    )  # fmt: skip
    assert record["task"]["metric"] == "f1"
    assert record["task"]["labels"] == ["not_equivalent", "equivalent"]
    elsewhere = pairs(tmp_path / "elsewhere", dev=6)
    result = json_output(
        "evaluate", run, "--task", "mrpc", "--data", elsewhere, "--perspectives", "task",
        "--set", "evaluate.bootstrap=0", "--device", "cpu", "--out", tmp_path / "evaluation",
    )  # fmt: skip
    assert result["task"]["metric"] == "f1"
    assert {score["n"] for score in result["scores"]} == {6}
    assert {score["name"] for score in result["scores"]} >= {"f1", "accuracy"}
    assert "mrpc: this copy is partial, dev has 6 of 408 published rows." in result["notices"]


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--task", "rtee"), ("Unknown task 'rtee'", "'rte'")),
        (
            ("--task", "rte", "--set", "data_root={root}"),
            ("No folder of task 'rte' is under", "mine"),
        ),
        (("--set", "data_root={root}", "--data", "demo"), ("`task`", "there is neither")),
        (
            ("--task", "rte", "--data", "x.csv", "--set", "data_root={root}"),
            ("`data_root`", "are x.csv"),
        ),
        (("--task", "sst2", "--data", "demo"), ("`data`", "not a copy of task 'sst2'")),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
@pytest.mark.parametrize("command", ["train", "compare"])
def test_an_unreadable_task_raises_an_error_before_any_work(
    command: str, tiny_model: Path, tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    (tmp_path / "root" / "mine").mkdir(parents=True)
    given = [word.format(root=tmp_path / "root") for word in more]
    methods = ("--method", "plain") if command == "train" else ("--methods", "plain")
    out = tmp_path / "out"
    refused(call(command, "--model", tiny_model, *methods, *given, "--out", out), *words)
    assert not out.exists()


def test_the_list_of_tasks_has_published_sizes_and_labels() -> None:
    tasks = {row["name"]: row for row in json_output("list", "tasks")}
    assert tasks["mnli"]["rows"]["dev_mismatched"] == 9832
    assert tasks["wnli"]["labels"] == {"0": "not_entailment", "1": "entailment"}
    assert len(tasks["iflytek"]["labels"]) == 119
    shown = call("list", "tasks").stdout
    assert "train 8,551, dev 1,043" in shown
    assert "打车" not in shown
