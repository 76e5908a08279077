"""Runs of networks from scratch: their settings, their key, their folder, and refusals."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temper.checkpoints.checkpoint import Checkpoint
from temper.data.sources import load_splits
from temper.errors import DataError, SettingError
from temper.evaluation.loading import load_predictor, with_reference
from temper.evaluation.run import EvaluationData
from temper.evaluation.sets import EvaluationSets
from temper.evaluation.settings import EvaluationSettings
from temper.methods import names
from temper.report.card import CardSources, card
from temper.study.plan import StudyConfig, columns_of
from temper.study.schedule import run_study
from temper.training.config import RunConfig, run_key
from temper.training.run import train
from tests.cli.tiny_project import make_data, study_tree
from tests.training.listeners import Heard, StopAt

SMALL = {"embedding": 6, "min_frequency": 1, "vectors": None}
PRETRAINED = ("layer_decay", "lp_ft", "mixout", "rec_adam", "reinit", "soup", "w_cons", "wise_ft")


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_data(tmp_path_factory.mktemp("scratch")) / "reviews"


def config(
    data: Path | str = "demo", method: Any = "plain", model: str = "text_cnn", **tables: Any
) -> RunConfig:
    method = {"name": method} if isinstance(method, str) else method
    short = {"max_steps": 4, "save_steps": 2, "logging_steps": 1, "device": "cpu"}
    return RunConfig.of(
        {
            "model": model,
            "data": {"source": str(data), "max_length": 32},
            "method": method,
            "train": {**short, **tables.pop("train", {})},
            **tables,
        }
    )


# Settings


def test_the_training_loop_uses_the_defaults_of_the_network() -> None:
    settings = config(train={"batch_size": 7})
    assert settings.train.learning_rate == 2e-3
    assert settings.train.weight_decay == 0
    assert settings.train.batch_size == 7
    assert config(model="minilm").train.learning_rate == 1e-4
    assert config(model="minilm").architecture is None


@pytest.mark.parametrize(
    ("method", "given", "rate"),
    [
        ("plain", {}, 0.0),
        ("dropout", {}, 0.5),
        ("uegr", {}, 0.5),
        ("r_drop + at", {}, 0.5),
        ("plain", {"dropout": 0.3}, 0.3),
        ("r_drop", {"dropout": 0.0}, 0.0),
    ],
)
def test_from_scratch_only_plain_has_no_dropout_by_default(
    method: str, given: dict[str, Any], rate: float
) -> None:
    result = config(method=method, architecture=given).settings()["architecture"]
    assert result["dropout"] == rate


@pytest.mark.parametrize(
    ("method", "expected"),
    [
        ({"name": "uegr"}, {"mask.scope": "all", "adaptive.low": 0.3, "adaptive.high": 0.5}),
        (
            {"name": "uegr", "mask": {"scope": "blocks"}},
            {"mask.scope": "blocks", "adaptive.low": 0.3},
        ),
        (
            {"name": "uegr", "adaptive": {"high": 0.1}},
            {"mask.scope": "all", "adaptive.low": 0.05, "adaptive.high": 0.1},
        ),
        (
            {"name": "uegr", "adaptive": "uniform"},
            {"mask.scope": "all", "adaptive.kind": "uniform"},
        ),
        ({"name": "roast", "mask": {"alpha": 0.9}}, {"mask.scope": "all", "mask.alpha": 0.9}),
        ({"name": "roast", "mask": False}, {"mask.kind": "off"}),
    ],
)
def test_a_selective_update_covers_all_parameters_of_a_network_from_scratch(
    method: dict[str, Any], expected: dict[str, Any]
) -> None:
    result = config(method=method).method
    for name, value in expected.items():
        setting, key = name.split(".")
        assert result[setting][key] == value
    plain = config(model="minilm", method=method["name"]).method
    assert plain["mask"]["scope"] == "blocks"


def test_methods_of_a_composition_have_their_defaults_from_scratch() -> None:
    uegr = config(method="ema + uegr").method["uegr"]
    assert (uegr["mask"]["scope"], uegr["adaptive"]["low"]) == ("all", 0.3)


def test_settings_of_another_network_and_wrong_ones_are_all_named() -> None:
    with pytest.raises(SettingError, match=r"`architecture` describes .* 'minilm' is pre-trained"):
        config(model="minilm", architecture={"dropout": 0.1})
    with pytest.raises(SettingError) as caught:
        config(architecture={"dropout": 2.0, "widows": [3]}, train={"batch_size": 0})
    text = str(caught.value)
    assert "`architecture.dropout` must be < 1, got 2.0" in text
    assert "Did you mean 'architecture.windows'" in text
    assert "`train.batch_size` must be >= 1" in text


@pytest.mark.parametrize("method", PRETRAINED)
def test_methods_that_need_pretrained_weights_raise_an_error_from_scratch(method: str) -> None:
    with pytest.raises(SettingError, match=rf"'{method}' .* 'text_cnn' is trained from scratch"):
        config(method=method)
    with pytest.raises(SettingError, match=rf"'{method}' .* 'bilstm' is trained from scratch"):
        config(method=f"r_drop + {method}", model="bilstm")


@pytest.mark.parametrize("method", sorted(set(names()) - {*PRETRAINED, "jachess_unlabeled"}))
def test_all_other_methods_train_from_scratch(method: str) -> None:
    assert config(method=method).method_name == method


# Runs


@pytest.mark.parametrize("model", ["text_cnn", "bilstm", "text_han"])
def test_a_run_from_scratch_writes_a_complete_checkpoint(
    model: str, data: Path, tmp_path: Path
) -> None:
    out = train(config(data, "uegr", model, architecture=SMALL), tmp_path / "run")
    record = json.loads((out / "run.json").read_text())
    assert record["status"] == "finished"
    assert record["settings"]["architecture"]["embedding"] == 6
    network = AutoModelForSequenceClassification.from_pretrained(out)
    tokenizer = AutoTokenizer.from_pretrained(out)
    # The words of the training text; only dev has "phone".
    assert "awful" in tokenizer.get_vocab()
    assert "phone" not in tokenizer.get_vocab()
    assert network.config.id2label == {0: "negative", 1: "positive"}
    predictor = load_predictor(Checkpoint.of(out), device="cpu")
    predictions = predictor.predict(load_splits(config(data).data).dev)
    assert predictions.logits is not None
    assert predictions.logits.shape == (12, 2)


def test_a_stopped_run_resumes_to_the_same_weights(data: Path, tmp_path: Path) -> None:
    settings = config(data, "uegr", "bilstm", architecture=SMALL)
    whole = train(settings, tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        train(settings, tmp_path / "stopped", progress=StopAt(3))
    stopped = train(settings, tmp_path / "stopped")
    weights = [
        AutoModelForSequenceClassification.from_pretrained(each).state_dict()
        for each in (whole, stopped)
    ]
    assert all(torch.equal(weights[0][key], weights[1][key]) for key in weights[0])


def test_the_key_depends_on_the_architecture_and_the_content_of_the_vectors(
    data: Path, tmp_path: Path
) -> None:
    splits = load_splits(config(data).data)

    def key(**architecture: Any) -> str:
        return run_key(config(data, architecture={**SMALL, **architecture}), splits)

    first, second = tmp_path / "first.txt", tmp_path / "second.txt"
    first.write_text("good 1 2 3 4 5 6\n")
    second.write_text("good 1 2 3 4 5 6\n")
    assert key() != key(filters=7)
    assert key(vectors=str(first)) != key()
    assert key(vectors=str(first)) == key(vectors=str(second))
    second.write_text("good 1 2 3 4 5 66\n")
    assert key(vectors=str(first)) != key(vectors=str(second))
    with pytest.raises(DataError, match="cannot be read"):
        key(vectors=str(tmp_path / "none.txt"))


def test_a_run_reports_how_many_words_have_vectors(data: Path, tmp_path: Path) -> None:
    vectors = tmp_path / "vectors.txt"
    vectors.write_text("good 1 2 3 4 5 6\n")
    settings = config(data, architecture={**SMALL, "vectors": str(vectors)})
    out = train(settings, tmp_path / "run")
    (notice,) = json.loads((out / "run.json").read_text())["notices"]
    assert notice.startswith("1 of ")


def test_a_run_reports_the_size_and_settings_of_its_network(data: Path, tmp_path: Path) -> None:
    heard = Heard()
    train(config(data, "dropout", architecture=SMALL), tmp_path / "run", progress=heard)
    known = "text_cnn is trained from scratch: 13 words .* dropout 0.5, learning rate 0.002"
    assert re.match(known, heard.notices[-1])


def test_the_card_of_a_run_imports_the_module_of_the_network(data: Path, tmp_path: Path) -> None:
    text = card(CardSources(train(config(data, architecture=SMALL), tmp_path / "run")))
    assert "trained from scratch with plain" in text
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    assert code.startswith("import temper")


# Comparisons


def test_one_comparison_chooses_the_rates_of_every_column(data: Path, tmp_path: Path) -> None:
    settings = StudyConfig.of(
        {**study_tree("text_cnn", data), "architecture": SMALL},
        columns=columns_of(["plain", "dropout", "uegr"], ["wet=plain,architecture.dropout=0.2"]),
        seeds=[0],
    )
    rates = {name: run.architecture["dropout"] for (name, _), run in settings.runs.items()}
    assert rates == {"plain": 0.0, "dropout": 0.5, "uegr": 0.5, "wet": 0.2}
    study = run_study(settings, tmp_path / "study")
    assert study.comparison.columns == ("plain", "dropout", "uegr", "wet")
    written = json.loads((tmp_path / "study" / "study.json").read_text())
    assert written["architecture"] == SMALL


def test_representation_of_a_network_from_scratch_has_no_reference(
    data: Path, tmp_path: Path
) -> None:
    out = train(config(data, architecture=SMALL), tmp_path / "run")
    predictor = load_predictor(Checkpoint.of(out), device="cpu")
    dev = load_splits(config(data).data).dev
    sets = EvaluationSets(EvaluationData(dev))
    settings = EvaluationSettings(perspectives=("representation",))
    result = with_reference(sets, Checkpoint.of(out), predictor, settings)
    assert result.data.reference is None
    assert "was trained from scratch" in result.notices[-1]
