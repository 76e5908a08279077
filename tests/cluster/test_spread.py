"""Predictions of a cluster equal those of one machine."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import temper
from dev.drills.cluster import two_machines
from temper.checkpoints.checkpoint import Checkpoint
from temper.cluster.machines import Cluster, _predict, cause_of, run_there, spread, whole_name
from temper.data.examples import Examples
from temper.errors import ModelError, SettingError, TemperError
from temper.evaluation.loading import load_predictor, predictor_identity
from temper.evaluation.prediction import Prediction
from temper.evaluation.predictor import Predictor
from temper.evaluation.settings import PredictorSettings
from temper.export.verify import verify

pytest.importorskip("ray", reason="Ray is not installed (extra cluster)")
ROWS = 700
CODE = """
import numpy as np

def predict(texts):
    odd = np.array([len(text) % 7 / 8 + 0.05 for text in texts])
    return np.stack([1 - odd, odd], axis=1)
"""


@pytest.fixture(scope="module")
def machines() -> Iterator[tuple[str, Callable[[str], None]]]:
    with two_machines() as result:
        yield result


def scores(folder: Path) -> Any:
    return json.loads((folder / "scores.json").read_text(encoding="utf-8"))["scores"]


def on_machine(model: Path, *, identity: str | None = None, version: str = "") -> Prediction:
    settings, name = PredictorSettings(), str(model)
    identity = identity or predictor_identity(Checkpoint(name), settings)
    given = {"model": name, "settings": settings, "max_length": 16, "batch_size": 8}
    version = version or temper.__version__
    return run_there(_predict, version, (), 1, ["good"], None, identity=identity, **given)


def local(model: Path) -> Predictor:
    return load_predictor(
        Checkpoint.of(model), settings=PredictorSettings(), max_length=16, batch_size=8
    )


def test_a_cluster_predicts_the_same_as_one_machine(
    tmp_path: Path,
    machines: tuple[str, Callable[[str], None]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    (tmp_path / "odd_lengths.py").write_text(CODE, encoding="utf-8")
    rows = [{"text": "a" * (row % 90 + 1), "label": row % 2} for row in range(ROWS)]
    (tmp_path / "rows.jsonl").write_text("\n".join(map(json.dumps, rows)), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    given: dict[str, Any] = {
        "data": "rows.jsonl",
        "gives": "probabilities",
        "perspectives": "task,calibration",
        "evaluate": {"bootstrap": 20},
    }
    here = temper.evaluate("odd_lengths.py:predict", out=tmp_path / "here", **given)
    there = temper.evaluate(
        "odd_lengths.py:predict", out=tmp_path / "there", cluster=machines[0], **given
    )
    assert scores(there.folder) == scores(here.folder)
    assert all(not result.faults for result in verify(there.folder))


@pytest.mark.parametrize("pairs", [False, True])
def test_machines_return_predictions_in_order_and_report_truncation(
    tiny_model: Path, pairs: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    texts = [f"word{row} " * (row % 30 + 1) for row in range(20)]
    examples = Examples("dev", texts, text_pair=texts[::-1] if pairs else None)
    predictor = local(tiny_model)
    whole, sizes = predictor.predict(examples), list[int]()

    def remote(rows: list[str], text_pairs: list[str] | None, **loading: Any) -> Prediction:
        sizes.append(len(rows))
        return _predict(rows, text_pairs, **loading)

    monkeypatch.setattr("temper.cluster.machines.ROWS", 8)
    monkeypatch.setattr(Cluster, "at_once", 5)
    monkeypatch.setattr(Cluster, "task", lambda *_: remote)
    monkeypatch.setattr("ray.get", list)
    twin = spread(
        predictor,
        Checkpoint.of(tiny_model),
        PredictorSettings(),
        Cluster("nowhere"),
        max_length=16,
        batch_size=8,
    )
    result = twin.predict(examples)
    assert sizes == [7, 7, 6]
    np.testing.assert_allclose(result.probabilities, whole.probabilities, rtol=0, atol=1e-6)
    assert result.logits is not None
    assert result.prediction.tolist() == whole.prediction.tolist()
    assert result.truncated == pytest.approx(whole.truncated)


def test_a_machine_raises_an_error_for_another_model_or_version(tiny_model: Path) -> None:
    with pytest.raises(TemperError, match="has another model under"):
        on_machine(tiny_model, identity="another")
    with pytest.raises(TemperError, match="has Temper"):
        on_machine(tiny_model, version="0.0.1")


def test_a_spread_predictor_keeps_its_class_and_predicts_small_sets_locally(
    tiny_model: Path,
) -> None:
    predictor = local(tiny_model)
    twin = spread(predictor, Checkpoint.of(tiny_model), PredictorSettings(), Cluster("nowhere"))
    assert type(twin) is type(predictor)
    examples = Examples("dev", ["good", "bad"])
    expected = predictor.predict(examples).probabilities
    np.testing.assert_array_equal(twin.predict(examples).probabilities, expected)


def test_other_machines_get_the_absolute_path_of_a_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A folder with the name of a packaged model or module is not that model or module.
    for name in ("minilm", "package", "run"):
        (tmp_path / name).mkdir()
    assert whole_name(Checkpoint("minilm")) == "minilm"
    assert whole_name(Checkpoint("package:predict")) == "package:predict"
    assert whole_name(Checkpoint("code.py:predict")) == f"{tmp_path / 'code.py'}:predict"
    assert whole_name(Checkpoint("run")) == str(tmp_path / "run")


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"cpus": 4}, "its address as --cluster"),
        ({"address": "auto", "gpus": 1.5}, r"cluster\.gpus.*whole number or a fraction"),
        ({"address": "auto", "cpus": 0}, r"cluster\.cpus"),
        ({"adress": "auto"}, "Did you mean 'cluster.address'"),
    ],
)
def test_unsupported_cluster_requests_raise_an_error(given: dict[str, Any], message: str) -> None:
    with pytest.raises(SettingError, match=message):
        Cluster.of(given)


def test_the_error_of_a_machine_is_unwrapped() -> None:
    outer = RuntimeError("wrapped")
    outer.__cause__ = ModelError("The model is broken.")
    assert cause_of(outer) is outer.__cause__
    assert "RuntimeError: of Ray itself" in str(cause_of(RuntimeError("of Ray\nitself")))


def test_an_object_in_memory_cannot_be_spread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.cluster.machines.Cluster.check", lambda _: None)
    with pytest.raises(SettingError, match="cluster .*object in memory"):
        temper.evaluate(lambda texts: texts, "demo", out=tmp_path / "out", cluster="auto")
    assert not (tmp_path / "out").exists()
