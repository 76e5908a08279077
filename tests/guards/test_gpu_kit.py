"""What `make gpu` does without a GPU: take only what is missing, and write tables of a record."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import pytest

from benchmarks import gpu, gpu_kit

ROOT = Path(__file__).resolve().parents[2]
DOCUMENT = ROOT / "docs" / "benchmarks.md"


def test_only_what_cannot_be_imported_is_taken_and_its_group_with_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wheels").mkdir()
    for name in ("absent_one-1.0", "absent_two-2.0", "pytest-9.0"):
        file = tmp_path / "wheels" / f"{name}-py3-none-any.whl"
        with zipfile.ZipFile(file, "w") as archive:
            archive.writestr(f"{name.partition('-')[0]}.py", "")
    groups = ({"absent_one": "absent-one", "json": "absent_two"}, {"pytest": "pytest"})
    monkeypatch.setattr(gpu_kit, "WHEELS", groups)
    site = tmp_path / "site"
    assert gpu_kit.unpack(tmp_path, site) == ["absent-one", "absent_two"]
    assert sorted(file.name for file in site.iterdir()) == ["absent_one.py", "absent_two.py"]


def test_a_wheel_that_the_kit_lacks_says_how_to_fill_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(gpu_kit, "WHEELS", ({"absent_one": "absent-one"},))
    with pytest.raises(SystemExit, match=r"has no absent-one: fill the kit by `make gpu-kit`"):
        gpu_kit.unpack(tmp_path, tmp_path / "site")


def a_record() -> dict[str, Any]:
    times = {"shape": "BERT-base", "batch": 16, "rounds": 5, "plain_step": 0.02}
    return {
        "card": "NVIDIA Example",
        "machine": {
            "python": "3.12.3",
            "time": "2026-11-22T00:00:00+00:00",
            "versions": {"torch": "2.11.0", "transformers": "5.17.0"},
        },
        "tests": {"said": "70 passed in 20.00s"},
        "sst2": [
            {"method": "vanilla", "seed": 0, "rows": 67349, "seconds": 20.0, "accuracy": 0.91},
            {"method": "vanilla", "seed": 1, "rows": 67349, "seconds": 22.0, "accuracy": 0.92},
            {"method": "uegr", "seed": 0, "failed": "time was up"},
        ],
        "steps": [
            {**times, "method": "vanilla", "step": 0.02, "update": 0.004, "peak_bytes": 2e9},
            {**times, "method": "uegr", "step": 0.05, "update": 0.006, "peak_bytes": 3e9},
            {**times, "method": "jachess", "failed": "OutOfMemoryError: CUDA out of memory."},
        ],
        "trainers": [
            {"shape": "BERT-base", "batch": 16, "trainer": "Trainer", "step": 0.024},
        ],
        "left_out": [{"shape": "BERT-large", "batch": 64, "method": "uegr"}],
    }


def test_the_table_names_the_card_and_gives_ratios_memory_and_what_is_missing() -> None:
    table = gpu.table_of(a_record())
    assert "on NVIDIA Example, torch 2.11.0, Transformers 5.17.0" in table
    assert "| vanilla | 2 | 91.50 ± 0.71 | 91.00, 92.00 | 21 |" in table
    assert "Failed: uegr, seed 0: time was up" in table
    assert "| uegr | 2.50 (3.0) | 0.30 |" in table
    assert "| jachess | OutOfMemoryError: CUDA out of memory. |  |" in table
    assert "| `Trainer`, whole loop | 1.20 |  |" in table
    assert "A plain step took 20.0 ms (BERT-base, 16). Cells left out, for time was up: 1." in table


def test_the_document_holds_the_table_of_the_kept_result(tmp_path: Path) -> None:
    kept = ROOT / "benchmarks" / "results" / "gpu.json"
    copy = tmp_path / "benchmarks.md"
    copy.write_text(DOCUMENT.read_text(encoding="utf-8"), encoding="utf-8")
    record = json.loads(kept.read_text(encoding="utf-8")) if kept.exists() else a_record()
    gpu.write_document(record, copy)
    text = copy.read_text(encoding="utf-8")
    assert text.count(gpu.START) == text.count(gpu.END) == 1
    assert (text == DOCUMENT.read_text(encoding="utf-8")) == kept.exists()
