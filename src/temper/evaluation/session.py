"""A Transformers model that is open for perturbation, and reading of hidden states."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from temper.data.batches import ordered_batches
from temper.data.collator import Collator
from temper.data.encode import EncodedExamples
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.prediction import BROKEN, Prediction, joined
from temper.evaluation.predictor import RowBatch, Session
from temper.models.modes import in_mode, in_single
from temper.models.network import Network
from temper.models.probing import innermost
from temper.models.states import Trace, lacks_second_derivative, layer_means
from temper.types import Batch, Windows

# [UNK] and [MASK] replace words of the text, so they do not count as special here.
_SPECIAL = ("bos", "eos", "cls", "sep", "pad")


def special_ids(tokenizer: Any) -> Tensor:
    result = [getattr(tokenizer, f"{name}_token_id", None) for name in _SPECIAL]
    return torch.tensor(sorted({int(i) for i in result if i is not None}), dtype=torch.int64)


@dataclass(frozen=True)
class ModelSession:
    """The `Session` of a predictor with a PyTorch model, opened as ``network``.

    ``single``: whether to compute in fp32, whatever the precision of the predictor.
    """

    network: Network
    predictor: ModelPredictor
    single: bool

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        return self.predictor.parts(examples, batch_size=batch_size)

    def logits(self, part: RowBatch, *, delta: Tensor | None = None) -> Tensor:
        mixed = nullcontext() if self.single else self.predictor.mixed()
        # cuDNN's recurrent layers cannot run backward in eval mode.
        with torch.backends.cudnn.flags(enabled=False), mixed:
            return self.predictor.outputs(part, self.network.logits(part.batch, delta=delta))

    def embeddings(self, part: RowBatch) -> Tensor:
        return self.network.embeddings(part.batch)

    def vectors(self, part: RowBatch, ids: Tensor) -> Tensor:
        """Return the word embeddings [N, D] of token ids [N], detached."""
        self.network.probe(part.batch)
        rows = Batch({"input_ids": ids.to(part.batch.device).unsqueeze(0)})
        return self.network.embeddings(rows).squeeze(0)

    def traced(self, part: RowBatch) -> Trace:
        """Return hidden states and logits, twice differentiable by the word embeddings."""
        tracer = self.network.tracer(part.batch)
        texts = None if self.predictor.windows is None else part.batch.size
        with torch.enable_grad(), tracer.tracing(twice=True, texts=texts) as trace:
            trace.logits = self.logits(part)
        return trace

    def read(self, part: RowBatch) -> Trace:
        """Return hidden states and logits; only the head has an autograd graph."""
        with self.network.tracer(part.batch).reading() as trace:
            trace.logits = self.logits(part)
        return trace


class ModelPredictor:
    """Base of predictors with a PyTorch model: opens it for perturbation and reads its states."""

    model: nn.Module
    tokenizer: Any
    batch_size: int
    windows: Windows | None = None

    @property
    def device(self) -> torch.device:
        return next(self.model.parameters()).device

    def parts(self, examples: Examples, *, batch_size: int | None = None) -> Iterator[RowBatch]:
        """Split examples into batches of rows of similar length, on the model's device."""
        raise NotImplementedError

    def batches(
        self, encoded: EncodedExamples, batch_size: int | None
    ) -> Iterator[tuple[list[int], Batch]]:
        """Yield batches of rows of similar length, and their indices in ``encoded``."""
        collate = Collator(self.tokenizer)
        size = self.batch_size if batch_size is None else batch_size
        for indices in ordered_batches(encoded.lengths, batch_size=size):
            batch = Batch.of(collate([encoded[index] for index in indices]))
            yield list(indices), batch.to(self.device)

    def outputs(self, part: RowBatch, logits: Tensor) -> Tensor:
        """Return the output of `Session.logits` from the head's logits of a batch."""
        raise NotImplementedError

    def mixed(self) -> AbstractContextManager[Any]:
        """Return the context of a forward pass, for mixed precision."""
        return nullcontext()

    @contextmanager
    def session(self, *, single: bool = False) -> Iterator[Session]:
        """Open the model for perturbation; its state and hooks are restored on exit.

        ``single``: whether to compute in fp32, whatever the precision of the predictor.
        """
        with ExitStack() as stack:
            stack.enter_context(in_mode(self.model, training=False))
            if single:
                stack.enter_context(in_single(self.model))
            # Without this the backward pass would compute weight gradients that nothing reads.
            wanted = [weight for weight in self.model.parameters() if weight.requires_grad]
            network = Network(self.model)
            try:
                for weight in wanted:
                    weight.requires_grad_(False)
                yield ModelSession(network, self, single)
            finally:
                network.remove_hooks()
                for weight in wanted:
                    weight.requires_grad_(True)

    def _run(self, part: RowBatch, **asked: bool) -> tuple[Any, Prediction]:
        """Return a batch's output and predictions; ``asked`` are arguments of the forward pass."""
        raise NotImplementedError

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples and return their hidden states, in one forward pass per batch.

        A row's state at a layer is the mean of the layer's output over the row's tokens; of given
        completions, over the tokens of the prompt.

        Returns:
            The predictions, and the states of all layers, the embeddings first, [n, L, D] fp32.
            For an encoder-decoder model they are the encoder's states.

        Raises:
            ModelError: The model does not return its hidden states, there are no rows, or an
                output or a state is not finite.
        """
        taken = inspect.signature(innermost(self.model).forward).parameters
        if "output_hidden_states" not in taken and "kwargs" not in taken:
            raise ModelError(f"{type(self.model).__name__} does not return its hidden states.")
        indices: list[int] = []
        states, outputs = [], []
        with in_mode(self.model, training=False), torch.no_grad():
            for part in self.parts(examples, batch_size=batch_size):
                output, predictions = self._run(part, output_hidden_states=True)
                states.append(layer_means(output, part.movable).cpu().numpy())
                outputs.append(predictions)
                indices += part.indices
        if not indices:
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        # fp32 saves memory (L * D numbers per row), and the states were computed in fp32.
        read = np.concatenate(states)[np.argsort(indices)]
        if not bool(np.isfinite(read).all()):
            raise ModelError(f"A hidden state of set {examples.name!r} is not finite. {BROKEN}")
        return joined(indices, outputs), read

    def lacks_second_derivative(self) -> str:
        """Return why the model cannot be differentiated twice and what to do; empty if it can."""
        return lacks_second_derivative(self.model)
