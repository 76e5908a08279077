"""Predict texts with the classifier in this folder; needs only torch, numpy and Transformers.

    python pipeline.py "a text" "another text"

    from pipeline import Pipeline
    predictions = Pipeline()(["a text", "another text"])

`temper export` wrote this file. You may change and redistribute it (Apache-2.0).
"""

import importlib.util
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import compress
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForSequenceClassification, AutoTokenizer
from transformers.utils import logging

Array = np.ndarray[Any, Any]
Texts = Sequence[str]


@dataclass
class Pipeline:
    """Predicts texts like the exported model, with its calibration.

    ``onnx`` names an ONNX file in the folder to run with onnxruntime; None runs PyTorch on
    ``device``. A forward pass has ``batch_size`` rows.
    """

    folder: Path = Path(__file__).parent
    onnx: str | None = None
    batch_size: int = 32
    device: str = "cpu"

    def __post_init__(self) -> None:
        self.folder = Path(self.folder)
        self.record = _read(self.folder / "export.json")
        self.calibration = _read(self.folder / "calibration.json")
        kept = self.calibration.get("arrays")
        self.arrays = {} if kept is None else load_file(self.folder / kept["file"])
        spec = importlib.util.spec_from_file_location("mean_pooled", self.folder / "mean_pooled.py")
        if (self.folder / "mean_pooled.py").is_file() and spec and spec.loader:
            # The network is not part of Transformers; its file registers it.
            sys.modules[spec.name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[spec.name])
        self.tokenizer = AutoTokenizer.from_pretrained(self.folder, trust_remote_code=False)
        if self.onnx is not None:
            from onnxruntime import InferenceSession as Session

            self.session = Session(self.folder / self.onnx, providers=["CPUExecutionProvider"])
            return
        safe = {"use_safetensors": True, "trust_remote_code": False}
        shown = logging.is_progress_bar_enabled()
        logging.disable_progress_bar()
        try:
            self.model = AutoModelForSequenceClassification.from_pretrained(self.folder, **safe)
        finally:
            if shown:
                logging.enable_progress_bar()
        self.model.eval().to(self.device)

    def __call__(self, texts: Texts, text_pairs: Texts | None = None, **options: Any) -> list[Any]:
        """Predict texts, or pairs of texts, in order; `predictions` describes the options."""
        return self.predictions(*self.outputs(texts, text_pairs), **options) if texts else []

    def outputs(self, texts: Texts, text_pairs: Texts | None = None) -> tuple[Array, Array]:
        """Return logits [n, C] or values [n, 1], and states [n, L, D] if the detector uses them."""
        pairs = None if text_pairs is None else list(text_pairs)
        length = self.record["settings"]["data"]["max_length"]
        encoded = self.tokenizer(list(texts), pairs, truncation=True, max_length=length)
        # Rows of similar length share a batch, so that little is padded.
        order = sorted(range(len(texts)), key=lambda row: -len(encoded["input_ids"][row]))
        parts = []
        for start in range(0, len(order), self.batch_size):
            rows = order[start : start + self.batch_size]
            taken = {name: [item[row] for row in rows] for name, item in encoded.items()}
            parts.append(self._forward(self.tokenizer.pad(taken, return_tensors="pt")))
        both = [np.concatenate(part)[np.argsort(order)] for part in zip(*parts, strict=True)]
        if not all(np.isfinite(part).all() for part in both):
            raise ValueError(
                "An output is NaN or infinite, so the model is broken. Train it again."
            )
        return both[0], both[1]

    def _forward(self, batch: Any) -> tuple[Array, Array]:
        if self.onnx is not None:
            given = {one.name: batch[one.name].numpy() for one in self.session.get_inputs()}
            logits, *states = self.session.run(None, given)
            return logits.astype(float), (states or [logits])[0]
        with torch.inference_mode():
            result = self.model(**batch.to(self.device), output_hidden_states=self.record["states"])
            states = result.logits
            if self.record["states"]:
                layers = getattr(result, "hidden_states", None) or result.encoder_hidden_states
                mask = batch["attention_mask"].float()[..., None]
                means = [(layer.float() * mask).sum(dim=1) / mask.sum(dim=1) for layer in layers]
                states = torch.stack(means, dim=1)
            return result.logits.double().cpu().numpy(), states.float().cpu().numpy()

    def predictions(
        self,
        outputs: Array,
        states: Array,
        coverage: float | None = None,
        abstain: str = "",
        max_risk: float | None = None,
    ) -> list[dict[str, Any]]:
        """Return one dict per text, as `temper predict` does.

        ``outputs`` and ``states`` are those of `outputs`; ``coverage`` is a calibrated one.
        ``abstain`` has rules (``anomaly,set>K``), ``max_risk`` in (0, 1) limits the error rate.
        """
        names, sets = self.record["labels"], self.calibration.get("sets")
        limits = {} if sets is None else sets["thresholds"]
        if coverage is not None and f"{coverage:g}" not in limits:
            raise ValueError(f"`coverage` must be one of {list(limits)}, got {coverage}.")
        scaled, several = torch.from_numpy(self.scaled(outputs)), self.record["gives"] == "labels"
        probabilities = (scaled.sigmoid() if several else scaled.softmax(dim=1)).numpy()
        columns: dict[str, Any] = {"value": outputs[:, 0].tolist()}
        if names:
            thresholds = self.calibration.get("decision", {}).get("thresholds")
            if several:
                above = probabilities > np.asarray(thresholds or 0.5)
                columns = {"labels": [list(compress(names, row)) for row in above]}
            else:
                best = probabilities.argmax(axis=1)
                if thresholds is not None:
                    best = (probabilities[:, 1] > thresholds[0]).astype(int)
                columns = {"label": [names[index] for index in best]}
                columns["anomaly"] = (1.0 - probabilities.max(axis=1)).tolist()
            columns["probabilities"] = [
                dict(zip(names, row, strict=True)) for row in probabilities.tolist()
            ]
        if sets is not None:
            limit = np.asarray(limits[f"{coverage or sets['coverage'][0]:g}"]["threshold"])
            odd = self._ood_scores(outputs, probabilities, states)
            columns["anomaly"] = odd.tolist()
            columns["anomalous"] = (odd > self.calibration["anomaly"]["threshold"]).tolist()
            if names:
                included = 1.0 - probabilities <= limit + 1e-12
                columns["set"] = [list(compress(names, row)) for row in included]
            else:
                columns["interval"] = (outputs + limit * [-1.0, 1.0]).tolist()
        result = [
            dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)
        ]
        asked = abstain or max_risk is not None
        return self._abstaining(result, abstain, max_risk) if asked else result

    def _abstaining(self, found: Any, abstain: str, risk: float | None) -> list[dict[str, Any]]:
        largest = [int(size) for size in re.findall(r"set\s*>\s*(\d+)", abstain)]
        # Rules about sets and confidence need one class per text: a prediction with "label".
        wanted = {"anomalous", *(["set", "label"] if largest or risk is not None else [])}
        if re.sub(r"set\s*>\s*\d+|anomaly|[\s,]", "", abstain) or not wanted <= found[0].keys():
            raise ValueError("`abstain` must name calibrated rules: 'anomaly' or 'set>K'.")
        enough = np.zeros(1)
        if risk is not None:
            enough = self.arrays["risk.confidences"][self.arrays["risk.limits"] <= risk]
        if not len(enough):
            raise ValueError(f"No threshold keeps the risk at {risk:g}. Use a larger `max_risk`.")
        for row in found:
            size, sure = len(row.get("set", ())), max(row.get("probabilities", {"": 1.0}).values())
            messages = ["anomaly"] if "anomaly" in abstain and row["anomalous"] else []
            for most in largest:
                messages += ["empty set"] if not size else [f"set of {size}"] * (size > most)
            messages += [f"confidence below {enough[-1]:.4g}"] * bool(sure < enough[-1])
            row["abstain"] = ", ".join(messages)
        return list(found)

    def scaled(self, logits: Array) -> Array:
        """Return logits [n, C] divided by the calibrated temperature, which may differ by label."""
        return np.asarray(logits / np.asarray(self.calibration.get("temperature", 1.0)))

    def _ood_scores(self, outputs: Array, probabilities: Array, states: Array) -> Array:
        known, kept = self.arrays, self.calibration["anomaly"]
        if kept["detector"] == "mahalanobis":
            means, white, centers, scales = (
                known[f"mahalanobis.{name}"].astype(float)
                for name in ("means", "whitening", "centers", "scales")
            )
            far = [
                (((layer - mean) @ item.T) ** 2).sum(axis=1)
                for layer, mean, item in zip(states.swapaxes(0, 1), means, white, strict=True)
            ]
            return np.asarray(((np.stack(far, axis=1) - centers) / scales).mean(axis=1))
        if kept["detector"] == "energy":
            return np.asarray(-torch.logsumexp(torch.from_numpy(outputs), dim=1).numpy())
        return np.asarray(-probabilities.max(axis=1))


def _read(path: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads(path.read_bytes()) if path.exists() else {"schema": 1}
    if content["schema"] != 1:
        raise ValueError(f"{path} has schema {content['schema']!r}, and this file reads schema 1.")
    return content


if __name__ == "__main__":
    for prediction in Pipeline()(sys.argv[1:]):
        sys.stdout.write(json.dumps(prediction, ensure_ascii=False) + "\n")
