"""A choice uses only the deciding score, and the table also has the reported one."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from reproduction.choice import choose_columns
from reproduction.lines import Line
from reproduction.plan import Request, plan_cases
from reproduction.run import run_reproduction
from reproduction.specification import read_specification
from temper.checkpoints.folder import read_json
from temper.display.folders import read as read_study
from temper.report.table import compare
from tests.reproduction.kept_studies import make_line

AMONG = ("uegr", "uegr_10_30", "uegr_unmasked", "uegr_sharper", "uegr_stronger")
WHOLE = read_specification("uegr-margin")
READ = WHOLE.model_copy(update={"choice": WHOLE.choice.model_copy(update={"among": AMONG})})
CASE = "text_cnn-imdb"
DEV, TEST = (score.label for score in READ.score)


def lines(dev: dict[str, float], *, higher: bool = True) -> list[Line]:
    """Return dev scores as given at two seeds; test scores by which all but the last lose to .5."""
    result = []
    for column, value in dev.items():
        test = 0.55 if column == "uegr_stronger" else 0.5 if column == "plain" else 0.45
        result.append(make_line("dev", column, (value, value), case=CASE, higher=higher))
        result.append(make_line("test", column, (test, test), case=CASE))
    return result


def chosen(of: list[Line]) -> list[dict[str, str]]:
    return [choice.row for choice in choose_columns(READ, of)]


def scores(*values: float, plain: float = 0.55, dropout: float = 0.5) -> dict[str, float]:
    assert READ.choice.against == ("plain", "dropout")
    named = dict(zip(AMONG, values, strict=True))
    return {"plain": plain, "dropout": dropout, **named}


def test_the_method_chosen_on_dev_is_reported_on_test() -> None:
    (result,) = chosen(lines(scores(0.6, 0.7, 0.65, 0.6, 0.6)))
    assert result == {
        "case": CASE,
        f"chosen by {DEV}": "uegr_10_30, plain",
        DEV: "70.0 ± 0.0, 55.0 ± 0.0",
        TEST: "45.0 ± 0.0, 50.0 ± 0.0",
        "margin": "−5.0",
        "verdict": "",
    }


def test_the_baseline_is_chosen_on_dev_too() -> None:
    (result,) = [
        each.row
        for each in choose_columns(READ, lines(scores(0.6, 0.7, 0.65, 0.6, 0.6, dropout=0.56)))
    ]
    assert result[f"chosen by {DEV}"] == "uegr_10_30, dropout"
    assert result["margin"] == "+0.0"


def test_of_equal_ones_the_first_is_chosen() -> None:
    (result,) = chosen(lines(scores(0.6, 0.6, 0.5, 0.6, 0.6)))
    assert result[f"chosen by {DEV}"] == "uegr, plain"


def test_of_a_score_that_should_be_low_the_least_is_chosen() -> None:
    (result,) = [
        each.row
        for each in choose_columns(READ, lines(scores(0.6, 0.5, 0.7, 0.6, 0.6), higher=False))
    ]
    assert result[f"chosen by {DEV}"] == "uegr_10_30, dropout"


def test_missing_seeds_prevent_a_choice() -> None:
    whole = lines(scores(0.6, 0.7, 0.65, 0.6, 0.6))
    lacking = [
        replace(each, seeds={0: each.seeds[0]}) if each.column == "uegr_sharper" else each
        for each in whole
    ]
    assert choose_columns(READ, lacking) == []


@pytest.mark.parametrize("score", ["dev", "test"])
def test_a_missing_column_or_score_prevents_a_choice(score: str) -> None:
    whole = lines(scores(0.6, 0.7, 0.65, 0.6, 0.6))
    lacking = [each for each in whole if (each.score, each.column) != (score, "uegr_10_30")]
    assert choose_columns(READ, whole)
    assert choose_columns(READ, lacking) == []


def test_rows_come_from_the_named_files_of_the_tasks_folder(tmp_path: Path) -> None:
    (tmp_path / "imdb").mkdir()
    (result,) = plan_cases(Request(READ, "small", cases=(CASE,), data_root=tmp_path))
    folder = tmp_path / "imdb"
    assert result.plan.data.source == str(folder / "train.jsonl.gz")
    assert result.plan.sets.shift == {"test": str(folder / "test.jsonl.gz")}
    (without,) = plan_cases(Request(READ, "small", cases=(CASE,)))
    assert without.plan is None
    assert re.search("imdb .*pass --data-root DIR", without.reason)
    # Data that replace every task's have no such files.
    (smoke,) = plan_cases(Request(READ, "smoke"))
    assert (smoke.plan.data.source, smoke.plan.sets.shift) == ("demo", {})


def test_settings_are_chosen_on_rows_carved_from_train_before_the_table_is_run(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Two strengths of the attack; the study of the choice never sees the dev rows."""
    data = tmp_path / "sst2"
    data.mkdir()
    for split, size in (("train", 40), ("dev", 12)):
        rows = "".join(
            json.dumps({"text": f"{'good' if n % 2 else 'bad'} {split} {n}", "label": n % 2}) + "\n"
            for n in range(size)
        )
        (data / f"{split}.jsonl").write_text(rows, encoding="utf-8")
    read = read_specification("uegr-table-1")
    smoke = read.scales["smoke"].model_copy(
        update={
            "source": None,
            "data": {"max_length": 16, "dev_fraction": 0.25},
            "search": {"uegr": {"epsilon": (0.0, 0.03)}},
        }
    )
    request = Request(
        read.model_copy(update={"scales": {**read.scales, "smoke": smoke}}),
        "smoke",
        model=str(tiny_model),
        data_root=tmp_path,
        device="cpu",
    )
    run_reproduction(request, tmp_path / "out")
    choice = read_json(tmp_path / "out" / "choices" / "bert-base-sst2" / "study.json")
    assert [column["name"] for column in choice["columns"]] == ["uegr-0", "uegr-0.03"]
    assert choice["data"]["eval_split"] == "carve"
    scores = compare(read_study(tmp_path / "out" / "choices" / "bert-base-sst2"))
    (row,) = [r for r in scores.rows if r.key.name == "accuracy" and r.key.perspective == "task"]
    means = {name: row.cells[name].mean for name in ("uegr-0", "uegr-0.03")}
    best = max(means, key=lambda name: means[name])
    final = read_json(tmp_path / "out" / "bert-base-sst2" / "study.json")
    settings = {column["name"]: column["settings"] for column in final["columns"]}
    assert settings["uegr"]["method"]["epsilon"] == float(best.rpartition("-")[2])
    assert final["data"]["eval_split"] is None
