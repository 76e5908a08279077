"""Generate texts with a causal language model or an encoder-decoder model."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from temper.data.batches import ordered_batches
from temper.data.completions import encoded_completions
from temper.data.encode import EncodedExamples, encode
from temper.data.examples import Examples, Kind
from temper.errors import ModelError
from temper.evaluation.binned import gaps_by_bin
from temper.evaluation.prediction import Prediction, joined
from temper.evaluation.predictor import Gives, RowBatch
from temper.evaluation.session import ModelPredictor, special_ids
from temper.functional.precision import at_least_single
from temper.heads import Completions, Seq2Seq, per_row
from temper.heads.completions import in_chunks
from temper.models.kinds import head_inputs, head_of
from temper.models.modes import in_mode
from temper.types import UNLABELED


@dataclass(eq=False, repr=False)
class TextGenerator(ModelPredictor):
    """A language model that completes prompts: a causal or an encoder-decoder model.

    Args:
        model: The model.
        tokenizer: The model's tokenizer, with a padding token.
        max_length: Maximum number of tokens of a prompt. A longer one loses its beginning in a
            causal model, its end in an encoder-decoder model.
        batch_size: Prompts per batch, >= 1.
        max_new_tokens: Maximum number of tokens of a completion, >= 1.
    """

    model: nn.Module
    tokenizer: Any
    _: KW_ONLY
    max_length: int = 128
    batch_size: int = 32
    max_new_tokens: int = 256
    gives: Gives = field(default="texts", init=False)
    label_names: tuple[str, ...] | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        self.reads_apart = head_of(self.model) is Seq2Seq
        self.head = Seq2Seq() if self.reads_apart else Completions()

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Return the losses of a set's given completions, as `Prediction.targets`."""
        if examples.labels is None:
            raise ModelError(
                f"Set {examples.name!r} has no completions. A language model is evaluated by their "
                "loss. Pass completions, or use `temper predict`."
            )
        indices: list[int] = []
        predictions = []
        with torch.no_grad(), in_mode(self.model, training=False):
            for part in self.parts(examples, batch_size=batch_size):
                predictions.append(self._run(part)[1])
                indices += part.indices
        return joined(indices, predictions)

    def _run(self, part: RowBatch, **asked: bool) -> tuple[Any, Prediction]:
        further = head_inputs(self.head, part.batch, self.model)
        output = self.model(**part.batch.inputs, **further, **asked)
        values = self._targets(part, self.head.logits(output, part.batch)).cpu().numpy()
        return output, Prediction.of_targets(values, truncated=part.truncated)

    def _targets(self, part: RowBatch, logits: Tensor) -> Tensor:
        labels, mask = _labels(part), self.head.unit_mask(part.batch, logits)
        right = logits.argmax(-1) == self.head.unit_labels(logits, labels)
        sure = in_chunks(lambda scores: at_least_single(scores).softmax(-1).amax(-1), logits)
        owners, hits, chances = (
            values.cpu().numpy() for values in (mask.nonzero()[:, 0], right[mask], sure[mask])
        )
        # A probability in fp32 may round to a little above 1.
        gaps = gaps_by_bin(owners, hits, np.minimum(chances, 1.0), rows=len(mask))
        return torch.cat([self.outputs(part, logits), torch.tensor(gaps, device=mask.device)], 1)

    def outputs(self, part: RowBatch, logits: Tensor) -> Tensor:
        """Return the first two columns of `Prediction.targets`, for attacks and noise.

        The losses have an autograd graph. Bins of confidence are left out, because an attack would
        compute them at every step.
        """
        mask = self.head.unit_mask(part.batch, logits)
        losses = per_row(self.head.loss(logits, _labels(part)), mask)
        return torch.stack([losses, mask.sum(1)], 1).double()

    def truncated(self, examples: Examples) -> float:
        return self._prepared(examples).truncated

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Split examples into batches of rows of similar length, on the model's device.

        The examples may lack completions; then no token has a label.
        """
        encoded = self._prepared(examples)
        special = special_ids(self.tokenizer).to(self.device)
        for indices, batch in self.batches(encoded, batch_size):
            if batch.labels is None:
                # The decoder of an encoder-decoder model reads at least its first token.
                shape = batch.ids[:, :1] if self.reads_apart else batch.ids
                batch = replace(batch, labels=torch.full_like(shape, UNLABELED))
            yield RowBatch(
                batch,
                indices,
                [examples.rows[index] for index in indices],
                torch.isin(batch.ids, special) & batch.mask,
                encoded.truncated,
                [encoded[index] for index in indices],
                self.head.movable(batch),
            )

    def _prepared(self, examples: Examples) -> EncodedExamples:
        kind: Kind = "seq2seq" if self.reads_apart else "completions"
        return encode(examples, self.tokenizer, max_length=self.max_length, kind=kind)

    def complete(self, examples: Examples) -> list[str]:
        """Complete prompts by greedy decoding, in their order.

        Raises:
            DataError: The prompts are messages, and the tokenizer has no chat template.
        """
        ids = self._encoded(examples)
        result = [""] * len(ids)
        with torch.no_grad(), in_mode(self.model, training=False):
            for indices in ordered_batches(list(map(len, ids)), batch_size=self.batch_size):
                # A decoder appends tokens to the end of a row, so padding goes to the left.
                batch = self.tokenizer.pad(
                    [{"input_ids": ids[index]} for index in indices],
                    padding_side="right" if self.reads_apart else "left",
                    return_tensors="pt",
                ).to(self.device)
                made = self.model.generate(  # type: ignore[operator]
                    **batch,
                    max_new_tokens=self.max_new_tokens,
                    do_sample=False,
                    pad_token_id=self.tokenizer.pad_token_id,
                )
                # A decoder's output begins with the prompt; that of an encoder-decoder does not.
                read = 0 if self.reads_apart else batch["input_ids"].shape[1]
                texts = self.tokenizer.batch_decode(made[:, read:], skip_special_tokens=True)
                for index, text in zip(indices, texts, strict=True):
                    result[index] = text
        return result

    def _encoded(self, examples: Examples) -> list[list[int]]:
        if self.reads_apart:
            bare = replace(examples, labels=None, label_names=None, kind="unlabeled")
            encoded = encode(bare, self.tokenizer, max_length=self.max_length, kind="seq2seq")
            return [item["input_ids"] for item in encoded.items]
        rows = encoded_completions(
            examples.text,
            None,
            self.tokenizer,
            chat=bool(examples.source.get("messages")),
            max_length=self.max_length,
        )
        return [item["input_ids"] for item, _ in rows]


def _labels(part: RowBatch) -> Tensor:
    # Rows without completions have no target tokens; see `TextGenerator.parts`.
    assert part.batch.labels is not None
    return part.batch.labels
