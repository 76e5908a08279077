"""Answer texts with the classifier in this folder; torch, numpy and Transformers are all it needs.

    python pipeline.py "a text" "another text"

    from pipeline import Pipeline
    answers = Pipeline()(["a text", "another text"])

`temper export` wrote this file, which is free to be changed and passed on (Apache-2.0).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

INPUTS = ("input_ids", "attention_mask", "token_type_ids")


class Pipeline:
    """Answer texts as the model that was exported does, with its calibration.

    Args:
        folder: Where the model lies; None takes the folder of this file.
        onnx: Name of an ONNX file in it, which onnxruntime then runs; None takes PyTorch.
        batch_size: Rows of a forward pass.
        device: Where PyTorch runs it.
    """

    def __init__(
        self,
        folder: str | Path | None = None,
        *,
        onnx: str | None = None,
        batch_size: int = 32,
        device: str = "cpu",
    ) -> None:
        self.folder = Path(__file__).parent if folder is None else Path(folder)
        self.batch_size, self.device = batch_size, device
        self.record = _read(self.folder / "export.json")
        calibration = self.folder / "calibration.json"
        self.calibration = _read(calibration) if calibration.exists() else {}
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        self.session = self.model = None
        if onnx is not None:
            import onnxruntime

            self.session = onnxruntime.InferenceSession(
                self.folder / onnx, providers=["CPUExecutionProvider"]
            )
            return
        self.model = AutoModelForSequenceClassification.from_pretrained(
            self.folder, use_safetensors=True, trust_remote_code=False
        )
        self.model.eval().to(device)

    def __call__(
        self, texts: Sequence[str], text_pairs: Sequence[str] | None = None
    ) -> list[dict[str, Any]]:
        """Answer texts, in their order.

        Args:
            texts: The texts.
            text_pairs: The second text of each, for a task of pairs.

        Returns:
            One object a text: ``label``, ``anomaly`` and ``probabilities``, or ``value`` of a
            regression.
        """
        if not texts:
            return []
        outputs = self.outputs(texts, text_pairs)
        if self.record["gives"] == "values":
            return [{"value": float(value)} for value in outputs[:, 0]]
        scaled = outputs / self.calibration.get("temperature", 1.0)
        if (vector := self.calibration.get("vector")) is not None:
            outputs = scaled = outputs * vector["weights"] + vector["bias"]
        probabilities = _softmax(scaled)
        names = self.record["labels"]
        return [
            {
                "label": names[int(row.argmax())],
                "anomaly": 1.0 - float(shares.max()),
                "probabilities": dict(zip(names, shares.tolist(), strict=True)),
            }
            for row, shares in zip(outputs, probabilities, strict=True)
        ]

    def outputs(self, texts: Sequence[str], text_pairs: Sequence[str] | None = None) -> np.ndarray:
        """Return logits [n, C], or values [n, 1] of a regression, in double precision."""
        pairs = None if text_pairs is None else list(text_pairs)
        length = self.record["settings"]["data"]["max_length"]
        encoded = self.tokenizer(list(texts), pairs, truncation=True, max_length=length)
        names = [name for name in INPUTS if name in encoded]
        # Rows of like length share a batch, so that little is padded.
        order = sorted(range(len(texts)), key=lambda row: len(encoded["input_ids"][row]))
        found = []
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            batch = self.tokenizer.pad(
                {name: [encoded[name][row] for row in rows] for name in names},
                return_tensors="pt",
            )
            found.append(self._forward({name: batch[name] for name in names}))
        answers = np.concatenate(found)
        ordered = np.empty_like(answers)
        ordered[order] = answers
        if not np.isfinite(ordered).all():
            raise ValueError("An answer is not finite: the model is broken.")
        return ordered

    def _forward(self, batch: dict[str, torch.Tensor]) -> np.ndarray:
        if self.session is not None:
            taken = {one.name for one in self.session.get_inputs()}
            given = {name: value.numpy() for name, value in batch.items() if name in taken}
            return np.asarray(self.session.run(["logits"], given)[0], dtype=np.float64)
        assert self.model is not None
        with torch.inference_mode():
            logits = self.model(**{k: v.to(self.device) for k, v in batch.items()}).logits
        return np.asarray(logits.double().cpu().numpy())


def _softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(shares / shares.sum(axis=1, keepdims=True))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    if content["schema"] != 1:
        raise ValueError(f"{path} has schema {content['schema']!r}, and this file reads schema 1.")
    return content


if __name__ == "__main__":
    for answer in Pipeline()(sys.argv[1:]):
        sys.stdout.write(json.dumps(answer, ensure_ascii=False) + "\n")
