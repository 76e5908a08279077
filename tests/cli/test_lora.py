"""LoRA on the command line: train, evaluate, predict."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.examples import Examples
from temper.evaluation.loading import load_predictor
from tests.cli.calls import succeed
from tests.cli.tiny_project import write_csv

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)


def test_an_adapter_is_trained_evaluated_and_used_for_predictions(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "lora"
    trained = succeed(
        "train", "--model", tiny_model, "--data", tiny_data / "reviews", "--lora", "--set",
        "train.lora.rank=4", "--set", "train.max_steps=3", "--max-length", "32", "--device", "cpu",
        "--out", out,
    )  # fmt: skip
    assert "Recipe plain (the default)" in trained.stderr
    assert "LoRA adapter" in trained.stderr
    assert json.loads((out / "adapter_config.json").read_text())["r"] == 4
    succeed(
        "evaluate", out, "--perspectives", "task", "--out", tmp_path / "judged", "--device", "cpu",
    )  # fmt: skip
    asked = succeed("predict", out, "--text", "the film was good", "--device", "cpu", "--json")
    assert "positive" in asked.stdout or "negative" in asked.stdout


@pytest.mark.parametrize("base", ["minilm", "folder"])
def test_the_code_on_the_card_of_an_adapter_loads_it_whole(
    base: str, minilm: str, tiny_model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, out = tmp_path / "three.csv", tmp_path / "lora"
    labels = ("bad", "good", "mixed")
    write_csv(data, [(f"film {n} was {labels[n % 3]}", labels[n % 3]) for n in range(30)])
    succeed(
        "train", "--model", base if base == "minilm" else tiny_model, "--data", data, "--method",
        "plain", "--lora", "--set", "train.max_steps=1", "--max-length", "16", "--device", "cpu",
        "--out", out,
    )  # fmt: skip
    succeed(
        "evaluate", out, "--perspectives", "task", "--set", "evaluate.bootstrap=0", "--device",
        "cpu", "--card", "--out", tmp_path / "judged",
    )  # fmt: skip
    _, _, after = (out / "README.md").read_text(encoding="utf-8").partition("```python\n")
    monkeypatch.chdir(tmp_path)
    result: dict[str, Any] = {}
    exec(after.partition("```")[0], result)
    texts = ["film 1 was good", "film 2 was mixed"]
    with torch.no_grad():
        logits = result["model"](**result["tokenizer"](texts, padding=True, return_tensors="pt"))[0]
    ours = load_predictor(Checkpoint.of(out), device="cpu").predict(Examples("rows", texts)).logits
    assert logits.shape == (2, 3)
    assert logits.numpy() == pytest.approx(ours, abs=1e-4)
    assert result["model"].config.id2label == dict(enumerate(labels))
