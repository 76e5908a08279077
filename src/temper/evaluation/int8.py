"""Predict with the 8-bit copy of a checkpoint (`temper.models.int8`) on the CPU."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from temper.data.encode import EncodedExamples
from temper.data.examples import Examples
from temper.errors import ModelError
from temper.evaluation.classifier import TextPredictor
from temper.evaluation.prediction import BROKEN, Prediction
from temper.evaluation.predictor import predictions_of_texts
from temper.lazy import torch
from temper.models.int8 import load_int8
from temper.types import Batch


class Int8Predictor(TextPredictor):
    """Predict with an 8-bit model, one text per forward pass.

    Each thread of torch predicts another text. No prediction depends on other texts.
    """

    def __init__(
        self,
        session: Any,
        config: Any,
        tokenizer: Any,
        *,
        max_length: int,
        positions: int | None = None,
    ) -> None:
        super().__init__(config, tokenizer, max_length=max_length, positions=positions)
        self._session = session
        self._inputs = [item.name for item in session.get_inputs()]
        self._last: tuple[Examples, EncodedExamples] | None = None

    @classmethod
    def load(cls, folder: Path, *, max_length: int) -> Self:
        """Load a folder that `temper.models.int8.write_int8` has written.

        Raises:
            SettingError: ONNX Runtime is not installed.
            CheckpointError: A file is damaged.
        """
        session, tokenizer, config, record = load_int8(folder)
        positions = record["positions"]
        return cls(session, config, tokenizer, max_length=max_length, positions=positions)

    def predict(self, examples: Examples, *, batch_size: int | None = None) -> Prediction:
        """Predict examples in their order; ``batch_size`` is ignored."""
        return self._predict(examples, ["logits"])[0]

    def predict_with_states(
        self, examples: Examples, *, batch_size: int | None = None
    ) -> tuple[Prediction, NDArray[np.float32]]:
        """Predict examples with their states, as `ClassifierPredictor.predict_with_states` does."""
        predictions, states = self._predict(examples, ["logits", "states"])
        if not bool(np.isfinite(states).all()):
            raise ModelError(f"A hidden state of set {examples.name!r} is not finite. {BROKEN}")
        return predictions, states

    def encoded(self, examples: Examples) -> EncodedExamples:
        """Tokenize a set; the last one is cached, because predictions and notices need it."""
        if self._last is None or self._last[0] is not examples:
            self._last = examples, super().encoded(examples)
        return self._last[1]

    def _predict(self, examples: Examples, wanted: list[str]) -> tuple[Prediction, Any]:
        """Return the predictions, and the last of the ONNX model's ``wanted`` outputs."""
        if not len(examples):
            raise ModelError(f"Set {examples.name!r} has no rows to predict.")
        result: list[list[Any]] = []
        cut = 0.0

        def run(item: Mapping[str, Any]) -> list[Any]:
            inputs = {name: np.array([item[name]], dtype=np.int64) for name in self._inputs}
            outputs: list[Any] = self._session.run(wanted, inputs)
            return outputs

        for chunk in self._chunks(examples):
            encoded = self.encoded(chunk)
            threads = min(torch.get_num_threads(), len(encoded))
            if threads == 1:
                result += map(run, encoded.items)
            else:
                with ThreadPoolExecutor(threads) as pool:
                    result += pool.map(run, encoded.items)
            cut += encoded.truncated * len(encoded)
        outputs = [np.concatenate(item) for item in zip(*result, strict=True)]
        output, truncated = torch.from_numpy(outputs[0]).double(), cut / len(examples)
        # Of the batch, only the number of rows is read.
        units = self.head.logits(output, Batch({"input_ids": output}))
        values = self.head.by_row(units).numpy()
        predictions = predictions_of_texts(values, gives=self.gives, truncated=truncated)
        return predictions, outputs[-1]
