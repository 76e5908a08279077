"""``--augment`` of ``temper train`` and ``temper compare``, where a model changes the rows."""

from __future__ import annotations

import json
from pathlib import Path

from tests.cli.calls import refused
from tests.cli.test_unlabelled import call

ATTACKED = ("--augment", "attack:characters,typos")


def test_a_training_attacks_a_model_that_is_named_and_its_card_says_so(
    tiny_model: Path, tiny_data: Path, tmp_path: Path
) -> None:
    out = tmp_path / "run"
    result = call(
        "train", tiny_model, tiny_data, "--method", "vanilla", *ATTACKED,
        "--augment-model", tiny_model, "--set", "data.augment_rows=12", "--out", out, "--card",
        "--json",
    )  # fmt: skip
    assert result.exit_code == 0, result.stderr
    told = json.loads(result.stdout)
    counts = told["data"]["attacked"]["characters"]
    # The tiny model is right on some of twelve rows.
    assert 0 < counts["attacked"] < 12
    assert (out / "attacked.parquet").exists()
    said = f"of {counts['attacked']} attacked training rows of 40"
    assert said in " ".join(result.stderr.split())
    card = (out / "README.md").read_text(encoding="utf-8")
    assert said in card
    assert "augment_model" in card.replace("\\", "")


def test_wrong_uses_leave_nothing(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    out = ("--method", "vanilla", "--out", tmp_path / "run")
    refused(call("train", tiny_model, tiny_data, *ATTACKED, *out), "--augment-model FOLDER")
    unknown = ("--augment", "attack:typos", "--augment-model", tiny_model)
    refused(call("train", tiny_model, tiny_data, *unknown, *out), "Unknown attack 'attack:typos'")
    lacking = call("train", tiny_model, tiny_data, "--augment", "masked", *out)
    refused(lacking, "--augment-masked-model FOLDER")
    compared = ("--methods", "vanilla", "--seeds", "0", "--out", tmp_path / "study")
    refused(call("compare", tiny_model, tiny_data, *unknown, *compared), "Unknown attack")
    assert not (tmp_path / "study").exists()
