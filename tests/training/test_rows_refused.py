"""Rows and checkpoints that RobustTrainer refuses with one clear error before the first step."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from datasets import ClassLabel, Dataset
from transformers import OPTConfig, OPTModel, RobertaConfig, RobertaModel

from temper import Stepper
from temper.errors import CheckpointError, DataError, SettingError, TemperError
from temper.models.kinds import position_limit
from tests.training.tiny_training import Item, Rows, make_trainer, tiny_model, weights


def rows_of(*labels: Any, tokens: int = 4) -> list[Item]:
    return [
        {"input_ids": [5] * tokens, "attention_mask": [1] * tokens, "labels": label}
        for label in labels
    ]


ROWS = rows_of(0, 1, 0, 1)


@pytest.mark.parametrize(
    ("rows", "kind", "message"),
    [
        ([*ROWS, *rows_of(0, tokens=17)], DataError, "Row 4 .* 17 tokens, .* positions for 16"),
        ([*ROWS, *rows_of(0, tokens=0)], DataError, "Row 4 of train_dataset has no tokens"),
        (rows_of("pos", "neg"), DataError, "are strings: 'pos' in row 0"),
        ([*ROWS, *rows_of("pos")], DataError, "Row 4 .* the label 'pos'"),
        ([*ROWS, *rows_of(None)], DataError, "Row 4 .* the label None"),
        ([{"text": "good", "labels": 0}], DataError, "Row 0 .* has no input_ids; it has text"),
        ([], SettingError, "train_dataset has no rows"),
        (None, SettingError, "no train_dataset"),
    ],
    ids=["long", "no tokens", "texts", "a text", "none", "raw", "empty", "missing"],
)
def test_rows_that_cannot_be_trained_on_are_named(
    tmp_path: Path, rows: Any, kind: type[TemperError], message: str
) -> None:
    # A large batch, so that the collator meets every row in the first step.
    trainer = make_trainer(tmp_path, rows=rows, per_device_train_batch_size=8)
    with pytest.raises(kind, match=message):
        trainer.train()


def test_a_batch_of_unknown_lengths_is_checked_in_backward() -> None:
    stepper = Stepper(tiny_model())
    for width, message in ((17, "17 tokens, .*positions for 16"), (0, "no tokens")):
        ids = torch.full((2, width), 5)
        with pytest.raises(DataError, match=message):
            stepper.backward(
                {"input_ids": ids, "attention_mask": ids, "labels": torch.tensor([0, 1])}
            )
        stepper.discard()


def test_an_invalid_row_raises_an_error_before_any_step(tmp_path: Path) -> None:
    model = tiny_model()
    before = weights(model)
    trainer = make_trainer(tmp_path, model=model, rows=[*ROWS * 4, *rows_of(0, tokens=17)])
    with pytest.raises(DataError, match="Row 16"):
        trainer.train()
    assert all(torch.equal(value, before[name]) for name, value in weights(model).items())


def test_the_position_limit_follows_the_architecture() -> None:
    small = {"hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 2, "vocab_size": 9}
    assert position_limit(tiny_model(max_position_embeddings=16)) == 16
    # Counted from behind the padding token, and from an offset of 2.
    roberta = RobertaModel(RobertaConfig(max_position_embeddings=18, pad_token_id=1, **small))
    assert position_limit(roberta) == 16
    opt = OPTConfig(max_position_embeddings=16, ffn_dim=8, word_embed_proj_dim=8, **small)
    assert position_limit(OPTModel(opt)) == 16
    for model in (roberta, OPTModel(opt)):
        model(input_ids=torch.full((1, 16), 5), attention_mask=torch.ones(1, 16))
        with pytest.raises((IndexError, RuntimeError)):
            model(input_ids=torch.full((1, 17), 5), attention_mask=torch.ones(1, 17))
    assert position_limit(torch.nn.Linear(2, 2)) is None


def named_model(*names: str) -> Any:
    return tiny_model(
        id2label=dict(enumerate(names)),
        label2id={name: index for index, name in enumerate(names)},
        num_labels=len(names),
    )


def test_named_labels_must_be_numbered_as_the_models_outputs(tmp_path: Path) -> None:
    rows = Dataset.from_list(ROWS).cast_column("labels", ClassLabel(names=["neg", "pos"]))
    for names in (("pos", "neg"), ("toxic", "fine")):
        trainer = make_trainer(tmp_path, model=named_model(*names), rows=rows)
        with pytest.raises(DataError, match=f"neg, pos, .*id2label\\) {names[0]}, {names[1]}"):
            trainer.train()
    # The error says how to renumber them.
    model = named_model("pos", "neg")
    renumbered = rows.align_labels_with_mapping(model.config.label2id, "labels")
    assert renumbered["labels"] == [1, 0, 1, 0]
    make_trainer(tmp_path, model=model, rows=renumbered, max_steps=1).train()
    for names in (("NEG", "pos"), ("LABEL_0", "LABEL_1"), ("neg", "pos", "neutral")):
        make_trainer(tmp_path, model=named_model(*names), rows=rows, max_steps=1).train()


def test_a_checkpoint_of_other_classes_is_not_resumed_from(tmp_path: Path) -> None:
    make_trainer(tmp_path, max_steps=1, save_strategy="steps", save_steps=1).train()
    trainer = make_trainer(tmp_path, model=tiny_model(num_labels=3), rows=Rows(12), max_steps=2)
    with pytest.raises(
        CheckpointError, match=r"checkpoint-1 .*classifier.weight.*\[2, 8\].*\[3, 8\]"
    ):
        trainer.train(resume_from_checkpoint=True)
