"""`RobustTrainer` from a model's name and rows with a text column."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer, TrainingArguments

from temper import RobustTrainer
from temper.errors import SettingError
from tests.cli.tiny_project import make_model, sentences


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(make_model(tmp_path_factory.mktemp("by_name") / "model"))


def rows(count: int) -> Dataset:
    texts, labels = zip(*sentences(count), strict=True)
    return Dataset.from_dict({"text": list(texts), "label": list(labels)})


def arguments(folder: Path) -> TrainingArguments:
    return TrainingArguments(
        str(folder), num_train_epochs=1, use_cpu=True, report_to=[], disable_tqdm=True, seed=3
    )


def test_a_name_and_texts_train_as_a_loaded_model_and_encoded_rows_do(
    model: str, tmp_path: Path
) -> None:
    by_name = RobustTrainer(
        model, arguments(tmp_path / "a"), train_dataset=rows(48), eval_dataset=rows(16)
    )
    # The same head, and the encoding of the tokenizer.
    by_name.save_model(str(tmp_path / "start"))
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path / "start")
    tokenizer = AutoTokenizer.from_pretrained(model)
    encoded = rows(48).map(
        lambda row: {
            **tokenizer(row["text"]),
            "labels": by_name.model.config.label2id[row["label"]],
        },
        remove_columns=["text", "label"],
    )
    other = RobustTrainer(
        loaded, arguments(tmp_path / "b"), train_dataset=encoded, processing_class=tokenizer
    )
    by_name.train()
    other.train()
    assert set(by_name.model.config.id2label.values()) == {"negative", "positive"}
    for name, weight in other.model.state_dict().items():
        torch.testing.assert_close(by_name.model.state_dict()[name], weight, msg=name)
    assert by_name.evaluate()["eval_loss"] > 0


def test_a_method_by_its_name_and_default_arguments(
    model: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    trainer = RobustTrainer(model, train_dataset=rows(16), method="uegr")
    assert trainer.args.learning_rate == 2e-5
    assert len(trainer.get_train_dataloader().dataset) == 16


@pytest.mark.parametrize("missing", [True, False])
def test_a_name_without_texts_or_with_a_collator_raises_an_error(
    model: str, tmp_path: Path, missing: bool
) -> None:
    settings = {} if missing else {"train_dataset": rows(16), "data_collator": list}
    with pytest.raises(SettingError, match="train_dataset"):
        RobustTrainer(model, arguments(tmp_path), **settings)
