"""Scores of plain fine-tuning, which the report of a single model shows for comparison.

Run ``python -m dev.benchmarks.usual``: it reads the stored study of all perspectives
(reproduction/results/robustness). For each primary metric it writes the position between guessing
(0%) and a perfect score (100%) to ``src/temper/report/assets/usual.json``.
"""

from __future__ import annotations

import json
from pathlib import Path

from temper.report import comparison
from temper.report.levels import condition_of, levels

ROOT = Path(__file__).parents[2]
STUDY = ROOT / "reproduction/results/robustness/roberta-large-sentiment"
FILE = ROOT / "src/temper/report/assets/usual.json"


def usual() -> dict[str, float]:
    """Return the positions of the method ``plain`` in percent, by condition."""
    compared = comparison(STUDY)
    assert compared.reference is not None
    result = levels(compared, compared.reference)
    return {
        condition_of(each.row): round(each.fraction, 1)
        for each in result
        if each.fraction is not None
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(usual(), indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))
