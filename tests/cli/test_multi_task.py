"""Training on several tasks with commands, and using one of them alone."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from temper.api.nested import tasks_settings
from temper.data.settings import DataSettings
from temper.data.tasks.registry import TASKS
from tests.cli.calls import call, json_output, refused, succeed
from tests.data.task_files import json_lines

STEP = ("--method", "plain", "--set", "train.max_steps=2", "--max-length", "16",
        "--device", "cpu")  # fmt: skip


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with a copy of RTE."""
    folder = tmp_path_factory.mktemp("root")
    for split, count in (("train", 8), ("dev", 4)):
        rows = [{"text": f"{split} {n}", "text_pair": "b", "label": n % 2} for n in range(count)]
        json_lines(folder / "RTE" / f"{split}.jsonl", rows)
    return folder


def test_tasks_are_trained_together_and_evaluated_on_their_own_sets(
    tiny_model: Path, tiny_data: Path, root: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    output = json_output(
        "train", "--model", tiny_model, "--task", "rte", "--set", f"data_root={root}",
        "--task", f"reviews={tiny_data / 'reviews'}", *STEP, "--rows", 6, "--out", out,
    )  # fmt: skip
    assert list(output["tasks"]) == ["rte", "reviews"]
    assert output["settings"]["tasks"]["rte"]["task"] == "rte"
    assert {each["train"]["rows"] for each in output["data"].values()} == {6}
    judged = ("--perspectives", "task", "--set", "evaluate.bootstrap=0", "--device", "cpu")
    for name, data, rows in (
        ("rte", ("--task", "rte", "--set", f"data_root={root}"), 4),
        ("reviews", ("--data", tiny_data / "reviews"), 12),
    ):
        folder = out / "tasks" / name
        result = json_output("evaluate", folder, *data, *judged, "--out", tmp_path / name)
        assert {score["n"] for score in result["scores"]} == {rows}
        assert result["task"]["labels"] == output["tasks"][name]["labels"]
    texts = tiny_data / "anomaly.csv"
    lines = json_output("predict", out / "tasks" / "reviews", "--data", texts, "--device", "cpu")
    assert [set(line["probabilities"]) for line in lines] == [{"negative", "positive"}] * 3
    succeed("report", out)
    assert "Trained on 2 tasks: rte (6 rows), reviews (6 rows)." in (out / "report.md").read_text()
    refused(call("predict", out, "--data", texts), "tasks/rte", "tasks/reviews")


def test_a_file_of_settings_may_name_the_tasks(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    source = json.dumps(str(tiny_data / "reviews"))
    file = tmp_path / "tasks.toml"
    file.write_text(f"[tasks.one]\nsource = {source}\n[tasks.two]\nsource = {source}\nrows = 4\n")
    output = json_output(
        "train", "--model", tiny_model, "--config", file, *STEP, "--out", tmp_path / "r"
    )
    assert output["data"]["two"]["train"]["rows"] == 4


@pytest.mark.parametrize("name", TASKS)
def test_several_tasks_accept_the_names_of_known_tasks(name: str) -> None:
    settings = tasks_settings([f"{name}=a.csv"])[name]
    try:
        one = DataSettings(source="a.csv", task=name).task
    except ValueError:
        one = None
    assert settings.get("task") == one
    assert settings["source"] == "a.csv"


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (("--task", "a=x.csv"), ("two or more tasks",)),
        (("--task", "a=x.csv", "--task", "a=y.csv"), ("'a' twice",)),
        (("--task", "rtee", "--task", "rte"), ("Unknown task 'rtee'", "'rte'", "rtee=PATH")),
        (("--task", "snli", "--task", "rte"), ("Unknown task 'snli'", "snli=PATH")),
        (("--task", "training=x.csv", "--task", "b=y.csv"),
         ("letters, digits", "'training'")),
        (("--task", "a="), ("must be NAME or NAME=PATH, got 'a='",)),
        (("--task", "a.b=x.csv", "--task", "b=y.csv"), ("letters, digits",)),
        (("--task", "a=x.csv", "--data", "y.csv"), ("`data` describes one dataset",)),
        (("--task", "a=x.csv", "--text-column", "t"), ("`text_column` describes one dataset",)),
        (("--task", "a=x.csv", "--set", "data_root=."), ("each `task` names its own",)),
        (("--task", "a=x.csv", "--task", "b=y.csv", "--set", "data.unlabeled=u.csv"),
         ("does not train on it",)),
        (("--task", "a=x.csv", "--task", "b=y.csv", "--set", "method=5"),
         ("`method` must be a table", "got 5")),
    ],
)  # fmt: skip
def test_wrong_options_write_no_file(
    tiny_model: Path, tmp_path: Path, more: tuple[str, ...], words: tuple[str, ...]
) -> None:
    result = call("train", "--model", tiny_model, *STEP, *more, "--out", tmp_path / "run")
    refused(result, *words)
    assert list(tmp_path.iterdir()) == []
