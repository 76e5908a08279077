"""Tables of reproductions: hand-worked differences, intervals, means, and missing numbers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from reproduction.layout import sections
from reproduction.lines import ABSENT, Interval
from reproduction.run import keep
from reproduction.specification import Printed, Specification, read_specification
from reproduction.table import reproduction_table
from temper.errors import CheckpointError
from tests.reproduction.kept_studies import line_of, write_study

PLAIN, UEGR = (0.80, 0.82, 0.84), (0.83, 0.83, 0.86)
# Their variances are .0004 and .0003, and t of 4 degrees of freedom at .975 is 2.776445: .0424.
REACH = 2.776445 * (0.0007 / 3) ** 0.5


def with_numbers(*numbers: tuple[str, str, str]) -> Specification:
    """Return Table IV with some printed numbers of TextCNN: task, column and digits."""
    read = read_specification("uegr-table-4")
    printed = tuple(
        Printed(model="text_cnn", task=task, column=column, score="accuracy", value=value)
        for task, column, value in numbers
    )
    return read.model_copy(update={"printed": printed})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Return two finished cases of Table IV."""
    write_study(tmp_path / "text_cnn-imdb", {"plain": PLAIN, "uegr": UEGR})
    write_study(tmp_path / "text_cnn-tnews", {"plain": (0.5, 0.5, 0.5), "uegr": (0.4, 0.4, 0.4)})
    return tmp_path


def test_our_score_is_next_to_the_papers_with_difference_and_interval(folder: Path) -> None:
    numbers = ("imdb", "uegr", "82.0"), ("imdb", "plain", "81.0")
    table = reproduction_table(with_numbers(*numbers), folder)
    line = line_of(table, "text_cnn-imdb", "uegr")
    assert line.printed == "82.0"
    assert line.to_reference.mean == pytest.approx(0.02)
    assert line.to_reference.low == pytest.approx(0.02 - REACH, abs=1e-7)
    assert line.to_reference.high == pytest.approx(0.02 + REACH, abs=1e-7)
    # .01, .01 and .04 above the printed .82: deviation .0173205, and t of 2 degrees, 4.302653.
    assert line.to_paper.mean == pytest.approx(0.02)
    assert line.to_paper.high == pytest.approx(0.02 + 4.302653 * 0.01, abs=1e-7)
    assert line.verdict == "not significant"
    # Our gain is 0.02, the paper's 0.01.
    assert line.printed_gain == pytest.approx(0.01)
    assert line.to_printed_gain.mean == pytest.approx(0.01)
    assert line.to_printed_gain.high == pytest.approx(0.01 + REACH, abs=1e-7)
    (shown,) = [row for row in sections(table)["All differences"] if row["paper"] == "82.0"]
    assert (shown["ours"], shown["ours − paper"]) == ("84.00 ± 1.73", "+2.00 [−2.30, +6.30]")
    assert shown["paper − plain"] == "+1.00"
    assert shown["gain: ours − paper"] == "+1.00 [−3.24, +5.24]"


def test_a_number_that_the_paper_lacks_is_reported_as_absent(folder: Path) -> None:
    table = reproduction_table(with_numbers(("imdb", "uegr", "82.0")), folder)
    shown = {(row["case"], row["method"]): row for row in sections(table)["All differences"]}
    assert shown["text_cnn-tnews", "uegr"]["paper"] == ABSENT
    # A gain needs the paper's reference too.
    assert shown["text_cnn-imdb", "uegr"]["paper − plain"] == ""
    without = reproduction_table(with_numbers(), folder)
    assert any("has no printed numbers" in note for note in without.notes)
    assert "paper" not in sections(without)["All differences"][0]


def test_the_mean_over_cases_is_that_of_every_seed(folder: Path) -> None:
    table = reproduction_table(read_specification("uegr-table-4"), folder)
    line = line_of(table, "text_cnn, mean of 2 cases", "uegr")
    assert line.seeds == pytest.approx({0: 0.615, 1: 0.615, 2: 0.63})
    # .03 and -.1, .01 and -.1, .02 and -.1; the second case is the same at every seed.
    assert line.to_reference.mean == pytest.approx(-0.04)
    assert line.to_reference.high == pytest.approx(-0.04 + REACH / 2, abs=1e-7)
    assert line.verdict == "worse"


def test_a_printed_average_is_compared_with_the_mean_over_the_same_tasks(tmp_path: Path) -> None:
    read = with_numbers(("average", "uegr", "70.0"))
    tasks = [case for case in read.case if case.model.name == "text_cnn"]
    for case in tasks[:2]:
        write_study(tmp_path / case.name, {"plain": PLAIN, "uegr": UEGR})
    partial = line_of(reproduction_table(read, tmp_path), "text_cnn, mean of 2 cases", "uegr")
    assert partial.printed is None
    for case in tasks[2:]:
        write_study(tmp_path / case.name, {"plain": PLAIN, "uegr": UEGR})
    whole = line_of(reproduction_table(read, tmp_path), "text_cnn, mean of 4 cases", "uegr")
    assert whole.printed == "70.0"
    assert whole.to_paper.mean == pytest.approx(0.14)


def test_a_table_whose_means_are_over_models_has_those(tmp_path: Path) -> None:
    """Table V has one task, and prints each K's mean over four networks."""
    read = read_specification("uegr-table-5")
    for case in read.case:
        write_study(tmp_path / case.name, {"k2": (0.80, 0.82, 0.84), "k3": (0.81, 0.83, 0.85)})
    line = line_of(reproduction_table(read, tmp_path), "imdb, mean of 4 cases", "k3")
    assert line.printed == "90.47"
    assert line.printed_gain == pytest.approx(0.0008)


def test_relative_improvements_use_the_baseline_of_the_table(tmp_path: Path) -> None:
    """UEGR's Table III: every row is over plain BERT-large."""
    parts = {
        ("shift", "accuracy", True): (0.8, 0.9, 0.95),
        ("adversarial", "accuracy", True): (0.5, 0.6, 0.7),
        ("calibration", "ece_10", False): (0.2, 0.1, 0.05),
        ("anomaly", "auroc", True): (0.6, 0.6, 0.8),
    }
    for name, base, uegr in (("bert-large", 0, 1), ("roberta-large", 1, 2)):
        scores = {"plain": (0.9, 0.9, 0.9), "uegr": (0.9, 0.9, 0.9)}
        folder = write_study(tmp_path / f"{name}-sentiment", scores)
        for file in folder.glob("runs/*/evaluation/scores.json"):
            content = json.loads(file.read_text(encoding="utf-8"))
            column = uegr if file.parts[-3].startswith("uegr") else base
            for (perspective, score, higher), values in parts.items():
                # Of calibration the rows in distribution count too.
                sets = ("dev", "a") if perspective == "calibration" else ("a", "b")
                named = {"perspective": perspective, "name": score, "higher_is_better": higher}
                content["scores"] += [
                    {**content["scores"][0], **named, "set": each, "value": values[column]}
                    for each in sets
                ]
            file.write_text(json.dumps(content), encoding="utf-8")
    table = reproduction_table(read_specification("uegr-table-3"), tmp_path)
    # Half, a fifth, half and nothing for BERT-large; then .75, .4, .75 and .5.
    for case, column, percent in (
        ("bert-large-sentiment", "plain", 0.0),
        ("bert-large-sentiment", "uegr", 30.0),
        ("roberta-large-sentiment", "plain", 30.0),
        ("roberta-large-sentiment", "uegr", 60.0),
    ):
        line = line_of(table, case, column, "relative_improvement")
        assert line.seeds[0] == pytest.approx(percent)
    assert line.to_reference.mean == pytest.approx(30.0)
    assert line.printed == "47.57"
    assert line.printed_gain == pytest.approx(47.57 - 37.53)


@pytest.mark.parametrize(
    ("macro_f1", "learned"),
    [((0.49, 0.50, 0.51), False), ((0.45, 0.60, 0.62), False), ((0.70, 0.71, 0.72), True)],
)
def test_a_case_that_plain_training_does_not_learn_is_in_no_mean_and_no_verdict(
    folder: Path, macro_f1: tuple[float, ...], learned: bool
) -> None:
    """One prediction for all rows of two classes has a macro F1 of at most 0.5."""
    write_study(folder / "text_cnn-ag_news", {"plain": PLAIN, "uegr": (0.9, 0.91, 0.92)})
    for seed, value in enumerate(macro_f1):
        for file in (folder / "text_cnn-ag_news").glob(f"runs/*-s{seed}-*/evaluation/scores.json"):
            content = json.loads(file.read_text(encoding="utf-8"))
            content["scores"].append({**content["scores"][0], "name": "macro_f1", "value": value})
            file.write_text(json.dumps(content), encoding="utf-8")
    table = reproduction_table(read_specification("uegr-table-4"), folder)
    line = line_of(table, "text_cnn-ag_news", "uegr")
    assert line.learned is learned
    assert (line.verdict == "not learned") is not learned
    assert any(line.case == f"text_cnn, mean of {2 + learned} cases" for line in table.lines)
    assert any("Not learned" in note for note in table.notes) is not learned


def test_a_lower_score_is_better_if_the_score_declares_it(tmp_path: Path) -> None:
    lower = {"plain": (0.3, 0.3, 0.3), "jachess": (0.2, 0.21, 0.2)}
    write_study(
        tmp_path / "bert-sst2",
        lower,
        name="brier",
        perspective="calibration",
        higher_is_better=False,
    )
    table = reproduction_table(read_specification("jachess-brier"), tmp_path)
    line = line_of(table, "bert-sst2", "jachess", "brier")
    assert line.verdict == "better"


def test_scores_of_another_scale_or_table_are_not_mixed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    to = tmp_path_factory.mktemp("results") / "kept"
    record = {"schema": 1, "family": "uegr-table-4", "scale": "small", "not_run": {"a": "gone"}}
    (folder / "reproduction.json").write_text(json.dumps(record), encoding="utf-8")
    keep(read, folder, to)
    other = tmp_path_factory.mktemp("other")
    write_study(other / "bilstm-imdb", {"plain": PLAIN})
    for wrong in ({"scale": "smoke"}, {"family": "uegr-table-1"}):
        (other / "reproduction.json").write_text(json.dumps({**record, **wrong}), encoding="utf-8")
        with pytest.raises(CheckpointError, match="has uegr-table-4 at scale 'small'"):
            keep(read, other, to)
    assert not (to / "bilstm-imdb").exists()
    (other / "reproduction.json").write_text(
        json.dumps({**record, "not_run": {"b": "no model"}}), encoding="utf-8"
    )
    keep(read, other, to)
    # What was kept before stays, and so do the reasons of both.
    assert {"text_cnn-imdb", "text_cnn-tnews", "bilstm-imdb"} <= {e.name for e in to.iterdir()}
    kept = json.loads((to / "reproduction.json").read_text(encoding="utf-8"))
    assert kept["not_run"] == {"a": "gone", "b": "no model"}


def test_two_seeds_give_a_difference_and_no_interval() -> None:
    assert Interval.of([0.1, 0.3]) == Interval(0.2)
    assert Interval.of([]) is None
    assert Interval(0.2).side is None


def test_differences_of_model_seeds_cases_and_methods_are_reported(tmp_path: Path) -> None:
    two = {"plain": (0.5, 0.5), "uegr": (0.5, 0.6)}
    write_study(tmp_path / "text_cnn-imdb", two, model="tiny")
    notes = " ".join(reproduction_table(read_specification("uegr-table-4"), tmp_path).notes)
    assert "Model: tiny instead of text_cnn (text_cnn-imdb)." in notes
    assert "Seeds: 2 (paper: 5)." in notes
    # A model without any finished case is named once.
    assert "Cases without results: text_cnn-ag_news, " in notes
    assert "text_cnn-iflytek, all of bilstm, all of text_han." in notes
    assert "Methods that were not run: dropout, at, r_drop, r_at, r_at_su." in notes


@pytest.mark.parametrize("scale", ["small", "smoke", ""])
def test_reported_differences_are_read_from_the_runs(folder: Path, scale: str) -> None:
    record = {"schema": 1, "family": "uegr-table-4", "scale": scale, "not_run": {}}
    (folder / "reproduction.json").write_text(json.dumps(record), encoding="utf-8")
    file = folder / "text_cnn-tnews" / "runs" / "plain-s0-key" / "run.json"
    run = json.loads(file.read_text(encoding="utf-8"))
    run["settings"]["data"]["rows"] = 7
    run["settings"]["train"]["batch_size"] = 8
    file.write_text(json.dumps(run), encoding="utf-8")
    notes = reproduction_table(read_specification("uegr-table-4"), folder).notes
    # Both cases' records: 2 epochs on data/imdb. The paper: 10 epochs, batches of 16.
    assert "train.epochs: 2 (paper: 10)." in notes
    assert "train.batch_size: 8 (paper: 16): text_cnn-tnews." in notes
    assert "data.rows: 7 (paper: all): text_cnn-tnews." in notes
    assert "Data: 'data/imdb' instead of tnews: text_cnn-tnews." in notes
    assert not any("demo" in note or "max_steps" in note for note in notes)


def test_differences_are_corrected_for_the_number_of_methods(tmp_path: Path) -> None:
    # Both deviations are .02: t = .07 / (.02 (2 / 3) ** .5) = 4.29, two-sided p = .0128.
    better = tuple(value + 0.07 for value in PLAIN)
    noise = dict.fromkeys(("at", "r_drop", "r_at"), (0.81, 0.79, 0.85))
    write_study(tmp_path / "text_cnn-imdb", {"plain": PLAIN, "uegr": better})
    write_study(tmp_path / "text_cnn-tnews", {"plain": PLAIN, **noise, "uegr": better})
    table = reproduction_table(read_specification("uegr-table-4"), tmp_path)
    alone = line_of(table, "text_cnn-imdb", "uegr")
    among = line_of(table, "text_cnn-tnews", "uegr")
    assert (alone.side, alone.verdict) == (1, "better")
    assert alone.corrected == pytest.approx(0.0128, abs=1e-4)
    assert (among.side, among.verdict) == (0, "better, not after correction")
    assert among.corrected == pytest.approx(4 * 0.0128, abs=4e-4)


def test_the_facts_compare_the_runs_with_the_publication(folder: Path) -> None:
    facts = reproduction_table(read_specification("uegr-table-4"), folder).facts[0]
    assert facts["trained on"] == "2,000 rows"
    assert facts["evaluated on"] == "1,000 rows"
    assert facts["rows in the full dataset (train and evaluation)"] == "25,000 and 25,000"
    assert facts["training"] == "2 epochs, batch 16, learning rate 0.001"
    assert facts["minutes"] == "6"


def test_a_saved_copy_makes_the_same_table_without_weights_or_rows(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    to = tmp_path_factory.mktemp("results") / "kept"
    assert keep(read, folder, to) == ["text_cnn-imdb", "text_cnn-tnews"]
    assert reproduction_table(read, to) == reproduction_table(read, folder)
    files = {path.name for path in (to / "text_cnn-imdb").rglob("*") if path.is_file()}
    assert files == {"study.json", "scores.parquet"}
    # Again, over the older copy.
    assert keep(read, folder, to) == ["text_cnn-imdb", "text_cnn-tnews"]


def test_a_saved_case_is_not_replaced_by_one_with_fewer_runs(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    to = tmp_path_factory.mktemp("results") / "kept"
    keep(read, folder, to)
    before = reproduction_table(read, to)
    fewer = tmp_path_factory.mktemp("fewer")
    write_study(fewer / "text_cnn-tnews", {"plain": PLAIN})
    with pytest.raises(CheckpointError, match="tnews lacks: uegr-s0-key, uegr-s1-key, u"):
        keep(read, fewer, to)
    assert reproduction_table(read, to) == before


def test_saving_into_the_same_or_from_an_empty_folder_raises_an_error(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    read = read_specification("uegr-table-4")
    with pytest.raises(CheckpointError, match="must be outside"):
        keep(read, folder, folder / "kept")
    with pytest.raises(CheckpointError, match="no finished case of uegr-table-4"):
        keep(read, tmp_path_factory.mktemp("empty"), folder.parent / "kept-elsewhere")


def test_a_folder_without_studies_raises_an_error(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="has none"):
        reproduction_table(read_specification("uegr-table-4"), tmp_path)


def test_a_folder_of_another_reproduction_raises_an_error(folder: Path) -> None:
    (folder / "reproduction.json").write_text(
        '{"family": "jachess", "scale": "small", "not_run": {}}', encoding="utf-8"
    )
    with pytest.raises(CheckpointError, match="has jachess"):
        reproduction_table(read_specification("uegr-table-4"), folder)
    (folder / "reproduction.json").write_text("{}", encoding="utf-8")
    with pytest.raises(CheckpointError, match="is not what docs/formats.md describes"):
        reproduction_table(read_specification("uegr-table-4"), folder)


def test_settings_that_differ_from_the_table_are_reported(tmp_path: Path) -> None:
    scores = {"plain": PLAIN, "uegr": UEGR, "r_drop": UEGR}
    # Of these only the low rate is not what the scale `full` sets.
    method = {
        "adaptive": {"kind": "gradient", "low": 0.1, "high": 0.5},
        "epsilon": 0.1,
        "relative": False,
        "mask": {"kind": "selective", "alpha": 0.6},
    }
    write_study(tmp_path / "text_cnn-imdb", scores, methods={"uegr": method})
    table = reproduction_table(read_specification("uegr-table-4"), tmp_path)
    messages = [note for note in table.notes if note.startswith("Settings ")]
    assert messages == ["Settings of uegr: adaptive.low 0.1 (scale full: 0.3) (text_cnn-imdb)."]
