"""The card of a model that was trained and evaluated by commands, as the Hub's reader parses it."""

from __future__ import annotations

import json
import re
import runpy
from pathlib import Path

import pytest
from huggingface_hub import EvalResult, ModelCard

from tests.cli.calls import succeed


@pytest.fixture(scope="module")
def trained(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("card") / "run"
    succeed(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--method", "plain",
        "--set", "train.max_steps=2", "--max-length", "32", "--device", "cpu", "--out", out,
    )  # fmt: skip
    return out


@pytest.fixture(scope="module")
def measured(trained: Path, tiny_data: Path) -> Path:
    """Evaluate the run, rewrite its card, and return the evaluation."""
    out = trained.parent / "evaluation"
    succeed(
        "evaluate", trained, "--data", tiny_data / "reviews", "--shift",
        f"far={tiny_data / 'shift.csv'}", "--anomaly", f"odd={tiny_data / 'anomaly.csv'}",
        "--perspectives", "task,shift,calibration,anomaly", "--set", "evaluate.bootstrap=20",
        "--set", "evaluate.anomaly.rows=100", "--device", "cpu", "--card", "--out", out,
    )  # fmt: skip
    return out


def listed(card: Path) -> list[EvalResult]:
    """Return the results that the Hub's own library reads from a card."""
    return list(ModelCard.load(card / "README.md").data.eval_results or [])


def test_the_hub_reads_every_score_under_its_set(trained: Path, measured: Path) -> None:
    scores = json.loads((measured / "scores.json").read_text(encoding="utf-8"))["scores"]
    results = listed(trained)
    # Each entry is a score of the evaluation, or a mean of such over sets.
    known = [score["value"] for score in scores if score["value"] is not None]
    means = [result for result in results if "mean of" in str(result.metric_name)]
    assert len(results) - len(means) >= 12
    for result in results:
        if result not in means:
            assert any(result.metric_value == pytest.approx(value) for value in known), result
    sets = {str(result.dataset_name) for result in results}
    assert {"dev", "far", "odd"} <= sets
    leading = {
        (str(result.dataset_name), str(result.metric_type)): result.metric_value
        for result in results
        if str(result.metric_name).startswith(("In distribution", "Distribution shift"))
    }
    for score in scores:
        if score["perspective"] in ("task", "shift") and score["name"] == "accuracy":
            assert leading[score["set"], "accuracy"] == pytest.approx(score["value"])
    # Nothing in the front matter may name two values by one identity: the Hub keeps one of them.
    identities = [(result.unique_identifier, result.metric_name) for result in results]
    assert len(set(identities)) == len(identities)


def test_the_card_names_labels_training_limits_and_license(trained: Path, measured: Path) -> None:
    card = ModelCard.load(trained / "README.md")
    assert measured.is_dir()
    assert card.data.library_name == "transformers"
    assert card.data.pipeline_tag == "text-classification"
    for words in ("with the labels negative, positive", "## How it was trained", "## Known limits",
                  "No license is stated", "95% interval over examples"):  # fmt: skip
        assert words in card.text


def test_the_code_of_the_card_loads_the_model(
    trained: Path, measured: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert measured.is_dir()
    text = (trained / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"```python\n(.*?)```", text, flags=re.DOTALL)
    file = tmp_path / "load.py"
    file.write_text(code, encoding="utf-8")
    monkeypatch.chdir(trained.parent)
    loaded = runpy.run_path(str(file))
    assert loaded["model"].config.id2label == {0: "negative", 1: "positive"}
    assert len(loaded["tokenizer"]("the film was good")["input_ids"]) == 6
