"""What plain fine-tuning of a small encoder reaches, for orientation on the page of one model.

Run ``python -m dev.benchmarks.usual``: from the kept study of every perspective
(reproduction/results/robustness) it writes, for each leading score, the part of the way from
guessing to a perfect score to ``src/temper/report/assets/usual.json``.
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
    """Return the fractions of the study's plain column, in per cent, by condition."""
    compared = comparison(STUDY)
    assert compared.reference is not None
    found = levels(compared, compared.reference)
    return {
        condition_of(each.row): round(each.fraction, 1)
        for each in found
        if each.fraction is not None
    }


if __name__ == "__main__":
    FILE.write_text(json.dumps(usual(), indent=1) + "\n", encoding="utf-8")
    print(FILE.read_text(encoding="utf-8"))
