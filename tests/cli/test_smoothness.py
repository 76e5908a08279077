"""``temper evaluate --perspectives task,smoothness`` on a plain checkpoint and on an adapter."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from peft import LoraConfig, get_peft_model

from tests.cli.calls import call
from tests.evaluation.conftest import make_model, make_tokenizer


def saved(folder: Path, *, adapted: bool) -> Path:
    """Write a tiny classifier, or an adapter beside it."""
    model = make_model()
    model.config.label2id = {"bad": 0, "good": 1}
    model.config.id2label = {0: "bad", 1: "good"}
    base = folder / "base"
    model.save_pretrained(base)
    make_tokenizer().save_pretrained(base)
    if not adapted:
        return base
    model.name_or_path = str(base)
    with warnings.catch_warnings():
        # PEFT asks Transformers for a name that is on its way out.
        warnings.simplefilter("ignore", FutureWarning)
        adapter = get_peft_model(model, LoraConfig(task_type="SEQ_CLS", r=2))
        adapter.save_pretrained(folder / "adapter")
    return folder / "adapter"


@pytest.mark.parametrize("adapted", [False, True], ids=["plain", "adapter"])
def test_a_checkpoint_is_measured_layer_by_layer(tmp_path: Path, adapted: bool) -> None:
    model = saved(tmp_path, adapted=adapted)
    data = tmp_path / "reviews.csv"
    lines = [f"word{n} word{n + 1} word{2 * n},{('bad', 'good')[n % 2]}" for n in range(8)]
    data.write_text("\n".join(["text,label", *lines]) + "\n", encoding="utf-8")
    command = [
        "evaluate", model, "--data", data, "--perspectives", "task,smoothness",
        "--set", "evaluate.smoothness.rows=6", "--set", "evaluate.bootstrap=0",
        "--max-length", 32, "--device", "cpu", "--out", tmp_path / "e",
    ]  # fmt: skip
    result = call(*command)
    assert result.exit_code == 0, result.stderr
    shown = [line.split() for line in result.stdout.splitlines() if line.startswith("smoothness")]
    named = [line[2 : line.index(f"{line[2]}_norm")] for line in shown]
    places = (["layer", "1"], ["layer", "2"], [])
    assert named == [[norm, *place] for norm in ("jacobian", "hessian") for place in places]
    scores = json.loads((tmp_path / "e" / "scores.json").read_text())["scores"]
    found = [entry for entry in scores if entry["perspective"] == "smoothness"]
    assert [entry["parameters"].get("layer") for entry in found] == [1, 2, None] * 2
    assert all(entry["value"] > 0 < entry["standard_error"] for entry in found)
    assert {entry["n"] for entry in found} == {6}
