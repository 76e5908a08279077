"""Training on several tasks: every method, the gradient of one batch, and stop and resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from temper import methods
from temper.errors import SettingError
from temper.methods.soup import members_of
from temper.models.multi_task import MTDNNForSequenceClassification, share_encoder
from temper.training.config import wants_unlabeled
from temper.training.loading import TaskRows
from tests.methods.tiny import of_each_kind
from tests.training.tiny_training import (
    Item,
    Rows,
    Unlabeled,
    make_trainer,
    tiny_model,
    training_logs,
    unequal,
    weights,
)

# These read classes, and say so of the batch whose labels are numbers.
OF_CLASSES = ("cross_holder", "label_smoothing")
WANTED = [name for name in of_each_kind() if not wants_unlabeled(methods.build(name))]


class Three(Rows):
    """Rows of three classes."""

    def __getitem__(self, index: int) -> Item:
        return {**super().__getitem__(index), "labels": index % 3}


class Scores(Rows):
    """Rows of a regression."""

    def __getitem__(self, index: int) -> Item:
        return {**super().__getitem__(index), "labels": index / 4}


def shared(*, regression: bool = True) -> MTDNNForSequenceClassification:
    three = ("a", "b", "c")
    tasks = {"two": ("no", "yes"), "three": three, "last": () if regression else three}
    return share_encoder(tiny_model(), tasks)


def rows_of(*, regression: bool = True) -> TaskRows:
    last = Scores(5) if regression else Three(5)
    return TaskRows({"two": Rows(9), "three": Three(7), "last": last})


@pytest.mark.parametrize("name", [*OF_CLASSES, *WANTED])
def test_a_method_trains_every_head_in_batches_of_one_task(tmp_path: Path, name: str) -> None:
    regression = name not in OF_CLASSES
    model = shared(regression=regression)
    before = weights(model)
    # The rates of published settings leave the weights where they are for longer than this.
    method = {"name": name, **({"anneal": {"t0": 1}} if name == "rec_adam" else {})}
    trainer = make_trainer(
        tmp_path,
        model=model,
        rows=rows_of(regression=regression),
        more={"method": methods.configure(method.pop("name"), method)},
    )
    trainer.train()
    assert trainer.state.global_step == (3 + 2 + 2) * members_of(trainer.method.rule)
    after = weights(model)
    still = set(before) - set(unequal(before, after))
    assert not {each for each in still if each.endswith("classifier.weight")}
    assert "encoder.embeddings.word_embeddings.weight" not in still
    assert all(torch.isfinite(tensor).all() for tensor in after.values())


def test_a_batch_has_the_gradient_of_a_plain_classifier_of_its_task(tmp_path: Path) -> None:
    """One epoch at a rate of 0 logs the losses of the plain classifiers on the same rows."""
    model = shared()
    trainer = make_trainer(
        tmp_path, model=model, rows=rows_of(), more={"method": "plain"}, learning_rate=0.0
    )
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    seen: list[tuple[str, float, float]] = []
    loader = trainer.get_train_dataloader()
    names = model.config.task_names
    for batch in loader:
        name = names[int(batch["task"][0])]
        inputs = {each: batch[each] for each in ("input_ids", "attention_mask")}
        with torch.no_grad():
            logits = model.for_task(name).eval()(**inputs).logits
        labels = batch["labels"]
        if labels.is_floating_point():
            loss = ((logits[:, 0] - labels) ** 2).mean()
        else:
            chosen = logits.log_softmax(1).gather(1, labels[:, None])
            loss = -chosen.mean()
        seen.append((name, float(loss), len(labels)))
    trainer.train()
    assert {name for name, *_ in seen} == set(names)
    logged = [log["loss"] for log in training_logs(trainer)]
    assert logged == pytest.approx([loss for _, loss, _ in seen], rel=1e-4)


@pytest.mark.parametrize("method", ["uegr", "roast"])
def test_a_run_stopped_and_resumed_ends_at_the_same_weights(tmp_path: Path, method: str) -> None:
    def trainer(folder: Path, **changes: Any) -> Any:
        return make_trainer(
            folder,
            model=shared(),
            rows=rows_of(),
            more={"method": method},
            num_train_epochs=2,
            save_strategy="steps",
            save_steps=5,
            **changes,
        )

    whole = trainer(tmp_path / "whole")
    whole.train()
    # Step 5 is in the first epoch of seven steps, step 10 in the second.
    for step in (5, 10):
        resumed = trainer(tmp_path / f"resumed-{step}")
        resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / f"checkpoint-{step}"))
        assert unequal(weights(whole.model), weights(resumed.model)) == []


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"class_weights": [1.0, 2.0]}, "class_weights .*only with one task"),
        (
            {"unlabeled_dataset": Unlabeled(4), "method": "jachess_unlabeled"},
            "unlabeled_dataset .*only with one task",
        ),
    ],
)
def test_settings_of_one_task_raise_an_error(
    tmp_path: Path, given: dict[str, Any], said: str
) -> None:
    trainer = make_trainer(tmp_path, model=shared(), rows=rows_of(), more=given)
    with pytest.raises(SettingError, match=said):
        trainer.train()


def test_rows_of_other_tasks_than_the_models_raise_an_error(tmp_path: Path) -> None:
    rows = TaskRows({"three": Three(7), "two": Rows(9)})
    for model, own in ((shared(), "has two, three, last"), (tiny_model(), "has none")):
        trainer = make_trainer(tmp_path, model=model, rows=rows)
        with pytest.raises(SettingError, match=f"tasks three, two, in this order, .* {own}"):
            trainer.train()
