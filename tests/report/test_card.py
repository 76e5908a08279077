"""Model cards: metadata that the Hub's own reader takes, honest text, and no file lost."""

from __future__ import annotations

from pathlib import Path

import pytest
from huggingface_hub import ModelCard

from temper.errors import CheckpointError
from temper.report.card import MARK, CardSources, card, check_card, write_card
from tests.report.conftest import Plan, write_evaluation, write_run

SCRIPT = "<script>alert(1)</script>"


def test_the_hubs_reader_finds_every_score_with_its_set(run: Path) -> None:
    text = card(CardSources(run, data={"imdb": "stanfordnlp/imdb@test"}))
    found = ModelCard(text)
    assert found.data.library_name == "transformers"
    assert found.data.base_model == "a/model"
    assert {"temper", "uegr"} <= set(found.data.tags)
    assert "license" not in found.data.to_dict()
    results = {(one.metric_name, one.dataset_name): one for one in found.data.eval_results}
    accuracy = results["In distribution: Accuracy, dev", "dev"]
    assert (accuracy.task_type, accuracy.metric_type) == ("text-classification", "accuracy")
    assert accuracy.metric_value == pytest.approx(0.83)
    shift = results["Distribution shift: Accuracy, imdb", "imdb"]
    assert (shift.dataset_type, shift.dataset_split) == ("stanfordnlp/imdb", "test")
    assert results["Anomaly detection: AUROC, trec", "trec"].metric_type == "roc_auc"


def test_the_card_says_how_it_was_trained_what_it_scores_and_what_it_cannot(run: Path) -> None:
    text = card(CardSources(run))
    for said in (
        "fine-tuned with uegr",
        "- seed: 0",
        "2000 rows, hash ab12",
        "- method.epsilon: 0.025",
        "83.00 [81.00, 85.00]",
        "1 seed, 500 examples",
        "12 train rows are also in dev",
        "1.0% of the training rows were cut",
        "AutoModelForSequenceClassification.from_pretrained(",
        "No license is stated",
    ):
        assert said in text


def test_a_run_without_an_evaluation_says_so(run: Path) -> None:
    for file in (run / "evaluation").iterdir():
        file.unlink()
    (run / "evaluation").rmdir()
    text = card(CardSources(run))
    assert "Not evaluated yet." in text
    assert ModelCard(text).data.eval_results is None


def test_a_foreign_checkpoint_has_a_card_from_its_evaluation(
    evaluation: Path, tmp_path: Path
) -> None:
    model = tmp_path / "foreign"
    model.mkdir()
    text = card(CardSources(model, evaluation, {"dev": "/data/reviews.csv"}))
    assert "how it was trained was not recorded" in text
    first = ModelCard(text).data.eval_results[0]
    # A path of this machine says nothing to others, its name does.
    assert first.dataset_type == "reviews"
    assert "/data/" not in text


def test_an_adapter_is_loaded_by_peft(run: Path) -> None:
    (run / "adapter_config.json").write_text("{}")
    text = card(CardSources(run))
    assert "AutoPeftModelForSequenceClassification" in text
    assert ModelCard(text).data.library_name == "peft"


def test_a_short_name_is_no_id_on_the_hub(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Plan(model="minilm"), "uegr", 0)
    text = card(CardSources(tmp_path / "run"))
    assert ModelCard(text).data.base_model is None
    assert "- base model: minilm" in text


def test_hostile_names_stay_text_and_the_metadata_stays_readable(tmp_path: Path) -> None:
    plan = Plan(labels=[SCRIPT, "a: b\n- c"], shifts=[f"x{SCRIPT}", "---"], notices=[SCRIPT])
    write_run(tmp_path / "run", plan, "uegr", 0)
    text = card(CardSources(tmp_path / "run"))
    assert SCRIPT not in text.split(MARK)[1]
    names = {one.dataset_name for one in ModelCard(text).data.eval_results}
    assert {f"x{SCRIPT}", "---"} <= names


def test_a_card_is_written_anew_and_a_strangers_is_kept(run: Path) -> None:
    target = write_card(CardSources(run))
    assert target == run / "README.md"
    assert write_card(CardSources(run)) == target
    target.write_text("# Mine\n")
    with pytest.raises(CheckpointError, match=r"not written by Temper and is kept.*--card-path"):
        write_card(CardSources(run))
    assert target.read_text() == "# Mine\n"
    other = write_card(CardSources(run), run / "cards" / "card.md")
    assert MARK in other.read_text()


def test_a_model_without_a_folder_needs_a_file_for_its_card(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is none. Name a file with --card-path"):
        check_card("owner/model")
    assert check_card("owner/model", tmp_path / "card.md") == tmp_path / "card.md"
    with pytest.raises(CheckpointError, match=r"got folder"):
        check_card("owner/model", tmp_path)


def test_what_was_skipped_or_missing_is_a_limit(tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    write_evaluation(folder, Plan(), "uegr", 0)
    scores = folder / "scores.json"
    added = '"skipped": {"text_attack": "text_attack needs words."}, "schema"'
    scores.write_text(scores.read_text().replace('"schema"', added, 1))
    assert "- text\\_attack needs words." in card(CardSources(tmp_path, folder))
