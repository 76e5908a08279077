"""Model cards: metadata that the Hub's reader parses, correct text, and no lost file."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import (
    eval_results_to_model_index,
    model_index_to_eval_results,
)

from temper.errors import CheckpointError, LockedError
from temper.heads import HEADS
from temper.locks import locked
from temper.models.names import MODELS
from temper.report.card import MARK, PACKAGED, CardSources, card, check_card, origin, write_card
from tests.report.conftest import Plan, score, write_evaluation, write_run

SCRIPT = "<script>alert(1)</script>"


def test_the_hub_library_reads_every_score_with_its_set(run: Path) -> None:
    text = card(CardSources(run, data={"imdb": "stanfordnlp/imdb@test"}))
    result = ModelCard(text)
    assert result.data.library_name == "transformers"
    assert result.data.base_model == "a/model"
    assert {"temper", "uegr"} <= set(result.data.tags)
    assert "license" not in result.data.to_dict()
    results = {(one.metric_name, one.dataset_name): one for one in result.data.eval_results}
    accuracy = results["In distribution: Accuracy, dev", "dev"]
    assert (accuracy.task_type, accuracy.metric_type) == ("text-classification", "accuracy")
    assert accuracy.metric_value == pytest.approx(0.83)
    shift = results["Distribution shift: Accuracy, imdb", "imdb"]
    assert (shift.dataset_type, shift.dataset_split) == ("stanfordnlp/imdb", "test")
    assert results["OOD detection: AUROC, by max softmax, trec", "trec"].metric_type == "roc_auc"


def test_the_card_describes_training_scores_limits_and_usage(run: Path) -> None:
    text = card(CardSources(run))
    for message in (
        "fine-tuned with uegr",
        "- seed: 0",
        "2000 rows, hash ab12",
        "- method.epsilon: 0.025",
        "83.0 [81.0, 85.0]",
        "1 seed, 500 examples",
        "12 train rows are also in dev",
        "1.0% of the training rows were truncated",
        "AutoModelForSequenceClassification.from_pretrained(",
        "No license is stated",
    ):
        assert message in text


@pytest.mark.parametrize("kind", HEADS)
def test_the_card_names_the_task_and_the_class_of_every_head(run: Path, kind: str) -> None:
    record = json.loads((run / "run.json").read_text())
    record["task"]["kind"] = kind
    (run / "run.json").write_text(json.dumps(record))
    text = card(CardSources(run))
    assert f"{HEADS[kind].auto_class}.from_pretrained(" in text
    data = ModelCard(text).data
    of_texts = "SequenceClassification" in HEADS[kind].auto_class
    assert (data.pipeline_tag == "text-classification") == of_texts
    assert {each.task_type for each in data.eval_results} == {data.pipeline_tag}


def test_a_card_without_an_evaluation_states_it(run: Path) -> None:
    for file in (run / "evaluation").iterdir():
        file.unlink()
    (run / "evaluation").rmdir()
    text = card(CardSources(run))
    assert "Not evaluated yet." in text
    assert ModelCard(text).data.eval_results is None


def test_an_external_checkpoint_has_a_card_from_its_evaluation(
    evaluation: Path, tmp_path: Path
) -> None:
    model = tmp_path / "foreign"
    model.mkdir()
    text = card(CardSources(model, evaluation, {"dev": "/data/reviews.csv"}))
    assert "trained was not recorded" in text
    first = ModelCard(text).data.eval_results[0]
    # A path of this machine says nothing to others, its name does.
    assert first.dataset_type == "reviews"
    assert "/data/" not in text


def test_an_adapter_is_loaded_by_peft(run: Path) -> None:
    (run / "adapter_config.json").write_text("{}")
    text = card(CardSources(run))
    assert "AutoPeftModelForSequenceClassification" in text
    assert ModelCard(text).data.library_name == "peft"


def test_packages_of_short_model_names_agree_with_the_model_table() -> None:
    packages = {
        name: model["source"].removeprefix("package ").replace("-", "_")
        for name, model in MODELS.items()
        if model["source"].startswith("package ")
    }
    assert packages == PACKAGED


def test_a_short_model_name_is_not_a_base_model_in_the_metadata(tmp_path: Path) -> None:
    write_run(tmp_path / "run", Plan(model="minilm"), "uegr", 0)
    text = card(CardSources(tmp_path / "run"))
    assert ModelCard(text).data.base_model is None
    assert "- base model: minilm" in text


def test_hostile_names_are_escaped_and_the_metadata_is_readable(tmp_path: Path) -> None:
    plan = Plan(labels=[SCRIPT, "a: b\n- c"], shifts=[f"x{SCRIPT}", "---"], notices=[SCRIPT])
    write_run(tmp_path / "run", plan, "uegr", 0)
    text = card(CardSources(tmp_path / "run"))
    assert SCRIPT not in text.split(MARK)[1]
    names = {one.dataset_name for one in ModelCard(text).data.eval_results}
    assert {f"x{SCRIPT}", "---"} <= names


def test_writing_a_card_into_a_locked_folder_raises_an_error(run: Path) -> None:
    with locked(run), pytest.raises(LockedError, match=r"README\.md is being written"):
        write_card(CardSources(run))
    with locked(run):
        (run / ".lock-owner").write_text("process 1 on elsewhere, since then")
        with pytest.raises(LockedError, match=r"README\.md .*process 1 on elsewhere"):
            check_card(run)
    write_card(CardSources(run))
    assert not list(run.glob(".lock*"))


def test_a_card_is_rewritten_and_a_user_written_one_is_kept(run: Path) -> None:
    target = write_card(CardSources(run))
    assert target == run / "README.md"
    assert write_card(CardSources(run)) == target
    target.write_text("# Mine\n")
    with pytest.raises(CheckpointError, match=r"not written by Temper.*--card-path"):
        write_card(CardSources(run))
    assert target.read_text() == "# Mine\n"
    other = write_card(CardSources(run), run / "cards" / "card.md")
    assert MARK in other.read_text()


def test_a_model_without_a_folder_needs_a_file_for_its_card(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"is not a folder. Name a file with --card-path"):
        check_card("owner/model")
    assert check_card("owner/model", tmp_path / "card.md") == tmp_path / "card.md"
    with pytest.raises(CheckpointError, match=r"is a folder"):
        check_card("owner/model", tmp_path)


@pytest.mark.parametrize(
    "sources",
    [
        {"dev": "a/dev.jsonl", "imdb": "b/dev.jsonl", "yelp": "c/dev.csv", "trec": "d/dev.txt"},
        {"dev": "owner/films@test", "imdb": "owner/films@test", "yelp": "owner/films:uk@test"},
        {"dev": "nyu-mll/glue:rte", "imdb": "nyu-mll/glue:mrpc", "yelp": "x/imdb.csv"},
        {},
    ],
)
def test_every_set_has_its_own_entry_in_the_hub_metadata(
    run: Path, sources: dict[str, str]
) -> None:
    result = ModelCard(card(CardSources(run, data=sources))).data.eval_results
    assert result is not None
    index = eval_results_to_model_index("run", result)
    # Each set is one entry, and reading gives back what was written.
    entries = [entry["dataset"]["name"] for entry in index[0]["results"]]
    assert {"dev", "imdb", "yelp", "trec"} <= set(entries)
    assert len(set(entries)) == len(entries)
    assert model_index_to_eval_results(index)[1] == sorted(
        result, key=lambda one: entries.index(one.dataset_name)
    )
    for name in entries:
        assert len({one.unique_identifier for one in result if one.dataset_name == name}) == 1
    read_again = {one.metric_name: one.dataset_name for one in result}
    assert read_again["In distribution: Accuracy, dev"] == "dev"
    assert read_again["Calibration: ECE (10 bins), imdb"] == "imdb"
    assert len(read_again) == len(result)


def test_means_of_two_perspectives_have_different_dataset_names(tmp_path: Path) -> None:
    def adversarial(column: str, seed: int) -> list[dict[str, object]]:
        return [score("adversarial", name, "accuracy", 0.5) for name in ("one", "two")]

    write_run(tmp_path / "run", Plan(extra=adversarial), "uegr", 0)
    result = ModelCard(card(CardSources(tmp_path / "run"))).data.eval_results
    means = {one.dataset_name: one.metric_value for one in result if "mean of" in one.metric_name}
    assert means["Distribution shift, mean of 2 sets"] == pytest.approx(0.65)
    assert means["Adversarial sets, mean of 2 sets"] == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("source", "wanted"),
    [
        ("owner/films:uk@test", ("owner/films", "uk", "test")),
        ("owner/films", ("owner/films", None, None)),
        ("owner/films.csv", ("films", None, None)),
        ("demo:shift", ("demo:shift", None, None)),
        ("/home/a@b/films.jsonl.gz", ("films", None, None)),
        ("folder/of/films@test", ("films", None, "test")),
        ("/data/contrast@old + /data/contrast@new", ("contrast", None, "old + new")),
        ("data/one.csv + data/two.csv", ("name", None, None)),
        ("", ("name", None, None)),
    ],
)
def test_a_source_says_type_configuration_and_split(
    source: str, wanted: tuple[str, str | None, str | None]
) -> None:
    assert origin(source, "name") == wanted


def test_skipped_perspectives_are_listed_as_limits(tmp_path: Path) -> None:
    folder = tmp_path / "evaluation"
    write_evaluation(folder, Plan(), "uegr", 0)
    scores = folder / "scores.json"
    added = '"skipped": {"text_attack": "text_attack needs words."}, "schema"'
    scores.write_text(scores.read_text().replace('"schema"', added, 1))
    assert "- text\\_attack needs words." in card(CardSources(tmp_path, folder))
