"""The leaderboard is the page that its command prints, with means over seeds and t intervals."""

from __future__ import annotations

import statistics
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from reproduction.leaderboard import RESULTS, SCORES, rows, table

STUDY = RESULTS / "effect-confirm" / "minilm-sick"


@pytest.fixture(autouse=True)
def in_the_clone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).resolve().parents[2])


def test_the_page_is_what_the_command_prints() -> None:
    page = Path("docs/leaderboard.md").read_text(encoding="utf-8")
    assert table() in page, "run: python -m reproduction.leaderboard --write docs/leaderboard.md"


def test_a_score_is_the_mean_over_seeds_of_the_mean_over_sets() -> None:
    records = pq.read_table(STUDY / "scores.parquet").to_pylist()
    seeds = []
    for seed in range(5):
        values = [
            row["value"]
            for row in records
            if (row["column"], row["seed"], row["perspective"]) == ("plain", seed, "shift")
            and (row["name"], row["condition"]) == ("accuracy", "clean")
        ]
        assert len(values) == 6
        seeds.append(100 * statistics.fmean(values))
    # 2.7764 is the 97.5% quantile of t with 4 degrees of freedom.
    reach = 2.7764 * statistics.stdev(seeds) / 5**0.5
    (line,) = (line for line in rows(STUDY) if line[2] == "`plain`")
    index = 3 + list(SCORES).index("shift")
    assert line[index] == f"{statistics.fmean(seeds):.1f} ± {reach:.1f}"
    assert line[-1] == "5"
