"""The files of docs/fit.md: their test rows have other texts, and the table counts wins."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

from reproduction import fit
from reproduction.fit import FILES, FIT, OTHERS


def labeled(folder: Path, split: str, texts: list[str]) -> None:
    lines = [json.dumps({"text": text, "label": index % 2}) for index, text in enumerate(texts)]
    (folder / f"{split}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@pytest.mark.parametrize("test_split", ["train", "test"])
def test_no_test_text_is_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, test_split: str
) -> None:
    folder = tmp_path / "toy"
    folder.mkdir()
    (folder / "dataset.json").write_text(json.dumps({"label_names": ["no", "yes"]}))
    labeled(folder, "train", [f"text {number}" for number in range(60)])
    labeled(folder, "test", [f"text {number}" for number in range(40, 80)])
    monkeypatch.setattr(fit, "FILES", {"toy": ("train", test_split, 20)})
    monkeypatch.setattr(fit, "TEST_ROWS", 30)
    file, test_file = fit.write_files(tmp_path, tmp_path / "out", "toy")
    rows, test = (
        list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
        for path in (file, test_file)
    )
    assert len(rows) == 20
    assert len(test) == 30
    assert not {row["text"] for row in rows} & {row["text"] for row in test}
    assert {row["label"] for row in rows} == {"no", "yes"}


def test_the_table_counts_the_best_and_the_significantly_worse(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "runs.jsonl"
    lines = []
    for name, brier, low in (("subj", 0.1, -0.2), ("mr", 0.5, 0.1)):
        scores = {FIT: brier, **dict.fromkeys(OTHERS, 0.3)}
        difference = {way: [low, low + 0.1] for way in OTHERS}
        lines.append({"file": name, "brier": scores, "difference": difference, "chosen": "plain"})
    file.write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    monkeypatch.setattr(fit, "FILE", file)
    text = fit.table()
    assert "lowest Brier score on 1 of 2 files" in text
    assert "| mean of 2 files | | 0.300 | 0.300 | 0.300 | 0.300 | |" in text
    assert "mr (linear), mr (setfit), mr (plain)" in text
    assert text.count("not run") == len(FILES) - 2
