"""`temper push` against a local hub: uploaded, excluded and refused files."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas
import pytest
from huggingface_hub import ModelCard, constants
from typer.testing import CliRunner

import temper
from temper.cli.app import app
from temper.errors import CheckpointError, HubError, SettingError, TemperError
from tests.cli.tiny_project import make_model, sentences, write_csv
from tests.export.hub import OWNER, TOKEN, Hub, running

REPO = f"{OWNER}/reviews"
MARK = "xyzzy"
"""In every text of a row, and nowhere else."""


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("pushed")
    make_model(folder / "model")
    write_csv(folder / "reviews" / "train.csv", sentences(24, thing=MARK))
    write_csv(folder / "reviews" / "dev.csv", sentences(12, thing=f"very {MARK}"))
    run = temper.train(
        out=folder / "run",
        model=str(folder / "model"),
        data=folder / "reviews",
        method="plain",
        max_steps=2,
        max_length=32,
        device="cpu",
    )
    temper.evaluate(run, perspectives=["task", "embedding_attack"], evaluate={"bootstrap": 0})
    return folder


@pytest.fixture
def run(project: Path, tmp_path: Path) -> Path:
    """Return a copy of the run and its evaluation that a test may spoil."""
    shutil.copytree(project / "run-evaluation", tmp_path / "run-evaluation")
    return Path(shutil.copytree(project / "run", tmp_path / "run"))


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with running() as served:
        monkeypatch.setenv("HF_ENDPOINT", served.url)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        # Its protocol has a server of its own; what is uploaded is the same.
        monkeypatch.setattr(constants, "HF_HUB_DISABLE_XET", True)
        yield served


def test_checkpoint_card_and_page_arrive_in_one_commit(run: Path, hub: Hub) -> None:
    pushed = temper.push(run, REPO, private=True)
    kept = hub.files[REPO]
    assert set(kept) == set(pushed.files)
    assert {"README.md", "report.html", "config.json", "model.safetensors"} <= set(kept)
    assert hub.commits == 1
    assert hub.private[REPO]
    for name in set(kept) - {"README.md", "report.html"}:
        assert kept[name] == (run / name).read_bytes()
    assert pushed.url == f"{hub.url}/{REPO}"


def test_the_card_contains_the_scores_in_the_hubs_metadata(run: Path, hub: Hub) -> None:
    temper.push(run, REPO)
    card = ModelCard(hub.files[REPO]["README.md"].decode())
    assert card.data.model_name == "reviews"
    assert f'from_pretrained("{REPO}")' in card.text
    (accuracy,) = (
        score
        for score in json.loads(
            (run.with_name("run-evaluation") / "scores.json").read_text(encoding="utf-8")
        )["scores"]
        if score["perspective"] == "task" and score["name"] == "accuracy"
    )
    (metric,) = (
        one
        for one in card.data.eval_results
        if one.metric_type == "accuracy" and one.metric_name.startswith("In distribution")
    )
    assert (metric.metric_value, metric.dataset_name) == (accuracy["value"], "dev")
    assert metric.task_type == "text-classification"


def test_no_text_of_a_row_is_uploaded_by_default(run: Path, hub: Hub) -> None:
    pushed = temper.push(run, REPO)
    assert not [name for name, kept in hub.files[REPO].items() if MARK.encode() in kept]
    assert {"run.json", "metrics.jsonl"} <= set(pushed.kept)
    temper.push(run, REPO, texts=True)
    rows, texts = (hub.files[REPO][f"evaluation/{name}.parquet"] for name in ("rows", "texts"))
    assert len(pandas.read_parquet(io.BytesIO(rows)))
    assert MARK in pandas.read_parquet(io.BytesIO(texts)).to_string()
    assert MARK in hub.files[REPO]["report.html"].decode()


def spoil_nothing(run: Path) -> None:
    pass


def unfinished(run: Path) -> None:
    record = json.loads((run / "run.json").read_text())
    (run / "run.json").write_text(json.dumps({**record, "status": "stopped"}))


def pickled(run: Path) -> None:
    (run / "optimizer.pt").write_bytes(b"")


def damaged(run: Path) -> None:
    (run / "config.json").write_text("{}")


def unrecorded(run: Path) -> None:
    (run / "run.json").unlink()


@pytest.mark.parametrize(
    ("spoil", "settings", "message"),
    [
        (unfinished, {}, "is not finished .status 'stopped'., so it has no"),
        (pickled, {}, r"has optimizer\.pt: a pickle runs code"),
        (damaged, {}, r"config\.json is damaged"),
        (unrecorded, {}, "is not the folder of"),
        (spoil_nothing, {"repo": "a/b/c"}, "'a/b/c' is not a repository name"),
        (spoil_nothing, {"evaluation": "nowhere"}, r"nowhere has no scores\.json"),
    ],
)
def test_private_content_raises_an_error_before_any_request_to_the_hub(
    spoil: Any, settings: dict[str, Any], message: str, run: Path, hub: Hub
) -> None:
    spoil(run)
    with pytest.raises(TemperError, match=message):
        temper.push(run, **{"repo": REPO, **settings})
    assert hub.asked == []


def test_without_a_token_the_error_names_the_environment_variable(
    run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("HF_TOKEN")
    with pytest.raises(SettingError, match=r"HF_TOKEN is not set.*export HF_TOKEN="):
        temper.push(run, REPO)
    assert hub.asked == []


def test_a_public_repository_with_private_raises_an_error(run: Path, hub: Hub) -> None:
    hub.private[REPO], hub.files[REPO] = False, {}
    with pytest.raises(HubError, match="already exists and is public"):
        temper.push(run, REPO, private=True)
    assert hub.files[REPO] == {}


def test_an_error_of_the_hub_is_one_message_without_the_token(
    run: Path, hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(HubError, match="Nothing was uploaded to .*: .*401") as raised:
        temper.push(run, REPO)
    assert "hf_wrong" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_card_of_the_user_is_uploaded_unchanged(run: Path, hub: Hub) -> None:
    (run / "README.md").write_text("---\nlicense: mit\n---\nMine.\n", encoding="utf-8")
    temper.push(run, REPO)
    assert hub.files[REPO]["README.md"].decode().endswith("Mine.\n")


def test_a_run_of_several_tasks_names_those_that_can_be_pushed(run: Path, hub: Hub) -> None:
    record = json.loads((run / "run.json").read_text())
    record["tasks"] = {"rte": {"folder": "tasks/rte"}}
    (run / "run.json").write_text(json.dumps(record))
    with pytest.raises(CheckpointError, match="Push one: .*tasks/rte"):
        temper.push(run, REPO)


def test_the_command_prints_the_url_and_the_skipped_files(run: Path, hub: Hub) -> None:
    done = CliRunner().invoke(app, ["push", str(run), REPO])
    assert done.exit_code == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    assert last == f"Pushed: {hub.url}/{REPO}"
    assert "Not uploaded: " in done.stdout
    assert TOKEN not in done.stdout + done.stderr
