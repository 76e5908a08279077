"""The error analysis: confusions, the worst errors, each text once, and next steps."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from typer.testing import CliRunner

from temper.checkpoints.identity import CALIBRATION
from temper.cli.app import app
from temper.display.folders import read
from temper.evaluation.folder import write
from temper.evaluation.measurement import ERRORS_KEPT
from temper.evaluation.run import EvaluationData, evaluate
from temper.evaluation.settings import EvaluationSettings
from temper.report import ErrorAnalysis, Opening, build, error_analysis
from tests.evaluation.spoken import speaker, spoken
from tests.report.conftest import Plan, add_attacks, score, write_run

ONLY = EvaluationSettings(perspectives=("task", "shift"), bootstrap=0)


def analyzed(folder: Path) -> ErrorAnalysis:
    result = error_analysis(read(folder))
    assert result is not None
    return result


def written(folder: Path, rows: list[list[float]], labels: list[int], **more: Any) -> Path:
    """Evaluate a predictor that says these probabilities."""
    data = EvaluationData(spoken("dev", rows, labels), **more)
    return write(evaluate(speaker(), data, ONLY), folder)


def test_the_confusions_are_those_of_the_validation_set(tmp_path: Path) -> None:
    rows = [[0.9, 0.1]] * 3 + [[0.2, 0.8]] * 3
    far = {"far": spoken("far", [[0.9, 0.1]], [1])}
    result = analyzed(written(tmp_path / "out", rows, [0, 0, 1, 0, 1, 1], shift=far))
    assert result.labels == ("0", "1")
    assert result.confusion == ((2, 1), (1, 2))
    first, second = result.classes
    assert (first.precision, first.recall, first.f1) == pytest.approx((2 / 3, 2 / 3, 2 / 3))
    assert (first.texts, first.mistaken_for, first.mistaken) == (3, "1", 1)
    assert (second.texts, second.mistaken_for) == (3, "0")


def test_the_most_confident_errors_come_first_and_have_their_texts(tmp_path: Path) -> None:
    result = analyzed(written(tmp_path / "out", [[0.7, 0.3], [0.1, 0.9], [0.9, 0.1]], [1, 0, 0]))
    assert [each.confidence for each in result.confident] == [0.9, 0.7]
    first = result.confident[0]
    assert (first.label, first.prediction, first.set, first.index) == ("0", "1", "dev", 1)
    assert first.text.endswith("# dev 1")
    assert first.wrong_under == ("unperturbed",)


def test_only_the_worst_errors_keep_their_texts(tmp_path: Path) -> None:
    count = ERRORS_KEPT + 20
    rows = [[(index + 1) / (2 * count + 2), 0.0] for index in range(count)]
    rows = [[low, 1 - low] for low, _ in rows]
    folder = written(tmp_path / "out", rows, [0] * count)
    texts = pq.read_table(folder / "texts.parquet").to_pylist()
    # The label's probability climbs with the row, so the first rows have the highest losses.
    assert [row["index"] for row in texts] == list(range(ERRORS_KEPT))
    assert all(each.text for each in analyzed(folder).confident)


def test_a_text_with_several_harmful_perturbations_is_listed_once(run: Path) -> None:
    add_attacks(run / "evaluation")
    result = analyzed(run)
    assert result.fragile
    keys = [(each.set, each.index) for each in (*result.fragile, *result.confident)]
    assert len(keys) == len(set(keys))
    assert max(len(each.wrong_under) for each in result.fragile) > 1
    counts = [len(each.wrong_under) for each in result.fragile]
    assert counts == sorted(counts, reverse=True)


def test_the_analysis_of_an_overconfident_model_recommends_calibration(tmp_path: Path) -> None:
    def calibration(value: float) -> list[dict[str, Any]]:
        return [score("calibration", "dev", "ece_10", value, condition="temperature")]

    # `Plan` has a calibration error of about 6%.
    for value, recommended in ((0.01, True), (0.059, False)):
        folder = tmp_path / f"run{value}"
        write_run(folder, Plan(extra=lambda *_, value=value: calibration(value)), "uegr", 0)
        commands = [each.command for each in analyzed(folder).findings]
        wanted = f"temper calibrate {folder} --data sst2 --with-dev"
        assert (wanted in commands) is recommended
    calibrated = tmp_path / "run0.01"
    (calibrated / CALIBRATION).write_text("{}")
    assert not any("calibrate" in each.command for each in analyzed(calibrated).findings)


def test_a_class_with_a_low_recall_is_reported(tmp_path: Path) -> None:
    rows = [[0.9, 0.1]] * 100
    result = analyzed(written(tmp_path / "out", rows, [0] * 80 + [1] * 20))
    assert any("`1`" in each.text for each in result.findings)
    even = analyzed(written(tmp_path / "even", [*rows[:9], [0.2, 0.8]], [0] * 9 + [1]))
    assert not any("`1`" in each.text for each in even.findings)


def test_an_accuracy_of_the_majority_class_is_reported(tmp_path: Path) -> None:
    always = analyzed(written(tmp_path / "always", [[0.9, 0.1]] * 100, [0] * 80 + [1] * 20))
    assert any("always predicting `0` (80.0%)" in each.text for each in always.findings)
    rows = [[0.9, 0.1]] * 50 + [[0.1, 0.9]] * 50
    learned = analyzed(written(tmp_path / "learned", rows, [0] * 55 + [1] * 45))
    assert not any("always predicting" in each.text for each in learned.findings)


def test_studies_and_regressions_have_no_error_analysis(study: Path, run: Path) -> None:
    assert error_analysis(read(study)) is None
    path = run / "evaluation" / "scores.json"
    content = json.loads(path.read_text())
    content["task"] = {"kind": "regression", "metric": "mse", "labels": []}
    path.write_text(json.dumps(content))
    assert error_analysis(read(run)) is None


def test_an_evaluation_without_rows_has_no_error_analysis(run: Path) -> None:
    (run / "evaluation" / "rows.parquet").unlink()
    assert error_analysis(read(run)) is None


def test_the_page_has_the_analysis_escaped(tmp_path: Path) -> None:
    folder = written(tmp_path / "out", [[0.1, 0.9], [0.9, 0.1]], [0, 0])
    table = pq.read_table(folder / "texts.parquet").to_pandas()
    table["text"] = "<b>bold</b>"
    table.to_parquet(folder / "texts.parquet")
    page = build(folder).read_text(encoding="utf-8")
    section = re.search(r'<section id="errors".*?</section>', page, re.S)
    assert section is not None
    assert "&lt;b&gt;bold&lt;/b&gt;" in section[0]
    assert "<b>" not in section[0]


def test_an_opening_replaces_headline_and_next_steps(tmp_path: Path) -> None:
    folder = written(tmp_path / "out", [[0.9, 0.1]] * 100, [0] * 80 + [1] * 20)
    plain = build(folder).read_text(encoding="utf-8")
    assert "What to do next" in plain
    opening = Opening("A <title>", ["Found: `x`."], ["name", "score"], [["a|b", "0.5"]])
    page = build(folder, tmp_path / "other" / "page.html", opening=opening)
    text = page.read_text(encoding="utf-8")
    assert re.findall(r"<h1>(.*)</h1>", text) == ["A &lt;title&gt;"]
    assert "<li><strong>Found: </strong><code>x</code>.</li>" in text
    assert re.search(r"a\|b</th><td>0.5</td>", text)
    assert "What to do next" not in text
    assert "Most confident errors" in text
    markdown = page.with_suffix(".md").read_text(encoding="utf-8")
    assert r"a\|b" in markdown
    assert "- Found: " in markdown
    assert "<title>" not in markdown


def test_evaluate_prints_the_error_analysis_also_as_json(tmp_path: Path) -> None:
    code = tmp_path / "always_bad.py"
    code.write_text(
        "def wrong(texts):\n    return [[0.9, 0.1] for _ in texts]\n\n"
        "wrong.gives = 'probabilities'\nwrong.label_names = ('bad', 'good')\n"
    )
    (tmp_path / "dev.csv").write_text(
        "text,label\n" + "".join(f"text {n},{'good' if n % 2 else 'bad'}\n" for n in range(40))
    )
    words = ["evaluate", f"{code}:wrong", "--data", str(tmp_path / "dev.csv")]
    words += ["--perspectives", "task", "--out", str(tmp_path / "out")]
    shown = CliRunner().invoke(app, words)
    assert shown.exit_code == 0, shown.output
    assert "bad (20)" in shown.stdout
    assert re.search(r"text \d+", shown.stdout)
    result = json.loads(CliRunner().invoke(app, [*words, "--json"]).stdout)
    assert result["errors"]["confusion"] == [[20, 0], [20, 0]]
