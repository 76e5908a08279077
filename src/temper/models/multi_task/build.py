"""Put an encoder under the heads of several tasks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from temper.errors import ModelError
from temper.models.multi_task.classifier import MTDNNForSequenceClassification
from temper.models.multi_task.configuration import MTDNNConfig, TaskHead
from temper.seeding import derive_seed, seeded


def share_encoder(
    classifier: Any, tasks: Sequence[TaskHead], *, seed: int = 0
) -> MTDNNForSequenceClassification:
    """Take a classifier's encoder, and draw a head for each task.

    Args:
        classifier: Of Transformers, or a network of `temper.models.classical`; its own head is not
            taken, and it stays as it is.
        tasks: The tasks, in the order of their numbers.
        seed: Seed of the heads: equal seeds give equal heads.

    Returns:
        The model, in evaluation mode.

    Raises:
        ModelError: If the model is no encoder or a PEFT adapter, or the tasks' names do not fit.
    """
    if hasattr(classifier, "peft_config"):
        raise ModelError(
            "An adapter stands on one classifier, and its encoder cannot be shared by several "
            "tasks. Merge it into its base (merge_and_unload), save that, and give its folder."
        )
    config = MTDNNConfig.of(classifier.config, tasks)
    with seeded(derive_seed(seed, "head")):
        model = MTDNNForSequenceClassification(config)
    body = getattr(classifier, classifier.base_model_prefix)
    model.to(classifier.dtype)
    model.encoder.load_state_dict(body.state_dict())
    model.eval()
    return model
