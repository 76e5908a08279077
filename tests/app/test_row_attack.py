"""Training rows attacked before a run: what is found, kept, recorded and refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer

from temper.app import row_attack as module
from temper.app.predictors import load_predictor
from temper.app.row_attack import RowAttacker, attack_settings, check_augmentation
from temper.data.attacked import AttackedTexts
from temper.data.examples import Examples
from temper.data.sources import load_splits
from temper.data.words import Words
from temper.errors import SettingError
from temper.evaluation.predictor import Predictor
from temper.study.plan import Column, StudyConfig
from temper.study.schedule import run_study
from temper.training.config import RunConfig, run_key
from temper.training.progress import Progress
from temper.training.run import train
from tests.cli.tiny_project import make_data, make_model
from tests.training.listeners import StopAt


def make_random(folder: Path, base: Path, *, labels: tuple[str, ...], seed: int = 0) -> Path:
    """Save a random classifier with some labels."""
    names = dict(enumerate(labels))
    config = AutoConfig.from_pretrained(
        base, num_labels=len(labels), id2label=names, label2id={v: k for k, v in names.items()}
    )
    torch.manual_seed(seed)
    AutoModelForSequenceClassification.from_config(config).save_pretrained(folder)
    AutoTokenizer.from_pretrained(base).save_pretrained(folder)
    return folder


def make_victim(folder: Path, project: Path) -> Path:
    """Train a classifier until it knows some of the rows, and number its labels the other way."""
    settings = {"epochs": 6, "batch_size": 10, "learning_rate": 5e-3, "device": "cpu"}
    run = train(
        RunConfig.of(
            {
                "model": str(project / "model"),
                "data": {"source": str(project / "data" / "reviews"), "max_length": 32},
                "method": {"name": "vanilla"},
                "train": settings,
            }
        ),
        project / "earlier",
    )
    model = AutoModelForSequenceClassification.from_pretrained(run)
    with torch.no_grad():
        for weight in model.classifier.parameters():
            weight.copy_(weight.flip(0))
    labels = [model.config.id2label[at] for at in (1, 0)]
    model.config.id2label = dict(enumerate(labels))
    model.config.label2id = {label: at for at, label in enumerate(labels)}
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(run).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("project")
    make_model(folder / "model")
    make_data(folder / "data")
    make_victim(folder / "victim", folder)
    return folder


def tree(project: Path, **data: Any) -> dict[str, Any]:
    return {
        "model": str(project / "model"),
        "data": {
            "source": str(project / "data" / "reviews"),
            "max_length": 32,
            "augment": ["attack:characters"],
            "augment_model": str(project / "victim"),
            "augment_attack": {"max_changed": 0.5},
            **data,
        },
        "train": {"epochs": 2, "batch_size": 10, "save_steps": 3, "device": "cpu",
                  "learning_rate": 1e-3},
    }  # fmt: skip


def config(project: Path, *, seed: int = 0, **data: Any) -> RunConfig:
    return RunConfig.of({**tree(project, **data), "method": {"name": "vanilla"}, "seed": seed})


def answers(predictor: Predictor, texts: list[str]) -> list[str]:
    names = predictor.label_names or ()
    found = predictor.predict(Examples("texts", texts)).prediction
    return [names[int(number)] for number in found]


def test_found_texts_mislead_the_attacked_model_and_keep_the_rest_of_the_row(
    project: Path,
) -> None:
    settings = config(project)
    rows = load_splits(settings.data).train
    found = RowAttacker()(settings, rows, Progress())
    victim = load_predictor(str(project / "victim"), device="cpu")
    names = rows.label_names or ()
    labels = {
        row: names[int(label)] for row, label in zip(rows.rows, rows.labels or [], strict=True)
    }
    right = [row for row, said in zip(rows.rows, answers(victim, list(rows.text)), strict=True)
             if said == labels[row]]  # fmt: skip
    counts = found.counts["characters"]
    assert counts["attacked"] == len(right)
    assert 0 < counts["changed"] == len(found.texts) < len(right) < len(rows)
    assert {each.row for each in found.texts} <= set(right)
    # By its names, though the model numbers them in another order.
    said = answers(victim, [each.text for each in found.texts])
    assert all(said[at] != labels[each.row] for at, each in enumerate(found.texts))
    for each in found.texts:
        before, after = Words.of(each.original), Words.of(each.text)
        moved = sum(one != two for one, two in zip(before.words, after.words, strict=True))
        assert before.gaps == after.gaps
        assert each.changed == pytest.approx(moved / len(before))
        assert 0 < each.changed <= 0.5
    assert f"{len(found.texts)} of {len(right)} attacked training rows of 40" in found.notices[0]


def test_that_replaced_words_may_turn_a_label_is_told(project: Path) -> None:
    rows = load_splits(config(project).data).train
    found = RowAttacker()(config(project, augment="attack:swaps"), rows, Progress())
    assert found.counts["swaps"]["changed"] > 0
    assert "attack:swaps replaces words by others" in found.notices[-1]
    edited = RowAttacker()(config(project), rows, Progress())
    assert not any("replaces words" in notice for notice in edited.notices)


def test_some_rows_are_attacked_where_so_many_are_asked_for(project: Path) -> None:
    settings = config(project, augment_rows=10)
    rows = load_splits(settings.data).train
    some = RowAttacker()(settings, rows, Progress())
    every = RowAttacker()(config(project), rows, Progress())
    drawn = set(rows.sample(10, seed=0).rows)
    assert some.texts == tuple(each for each in every.texts if each.row in drawn)
    assert some.texts


def test_runs_of_all_seeds_share_what_was_found(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    inner = module.load_predictor

    def counted(model: str, **more: Any) -> Predictor:
        loaded.append(model)
        return inner(model, **more)

    monkeypatch.setattr(module, "load_predictor", counted)
    attacker = RowAttacker()
    rows = load_splits(config(project).data).train
    first = attacker(config(project), rows, Progress())
    assert attacker(config(project, seed=1), rows, Progress()) is first
    assert len(loaded) == 1
    # Other bounds are another attack; this one has nothing left after ranking.
    other = attacker(config(project, augment_attack={"max_queries": 2}), rows, Progress())
    assert len(loaded) == 2
    assert other.texts == ()
    assert "(`max_queries` 2)" in other.notices[1]


def test_a_run_keeps_and_records_the_texts_and_a_stopped_one_attacks_no_second_time(
    project: Path,
) -> None:
    settings, attacker = config(project, augment_share=0.8), RowAttacker()
    whole = train(settings, project / "whole", attack=attacker)
    kept = AttackedTexts.read(whole / "attacked.parquet")
    assert kept == attacker(settings, load_splits(settings.data).train, Progress())
    record = json.loads((whole / "run.json").read_text())
    assert record["data"]["attacked"] == kept.counts
    assert kept.notices[0] in record["notices"]
    out = project / "stopped"
    with pytest.raises(KeyboardInterrupt):
        train(settings, out, attack=attacker, progress=StopAt(6))

    def never(*_: Any) -> AttackedTexts:
        raise AssertionError

    train(settings, out, attack=never)
    weights = (whole / "model.safetensors").read_bytes()
    assert (out / "model.safetensors").read_bytes() == weights
    clean = RunConfig.of(
        {**tree(project), "method": {"name": "vanilla"}}
        | {"data": {"source": str(project / "data" / "reviews"), "max_length": 32}}
    )
    assert (train(clean, project / "clean") / "model.safetensors").read_bytes() != weights


def test_what_was_found_survives_a_stop_at_the_first_step(project: Path) -> None:
    settings, out = config(project), project / "early"
    with pytest.raises(KeyboardInterrupt):
        train(settings, out, attack=RowAttacker(), progress=StopAt(0))
    assert (out / "attacked.parquet").exists()
    assert json.loads((out / "run.json").read_text())["status"] == "stopped"


def test_the_key_knows_the_attacked_weights_the_bounds_and_the_rows(
    project: Path, tmp_path: Path
) -> None:
    other = make_random(
        tmp_path / "other", project / "model", labels=("positive", "negative"), seed=1
    )
    splits = load_splits(config(project).data)
    settings: list[dict[str, Any]] = [
        {},
        {"augment_model": str(other)},
        {"augment_attack": {"max_changed": 0.4}},
        {"augment_rows": 10},
        {"augment": ["attack:swaps"]},
    ]
    keys = {run_key(config(project, **each), splits) for each in settings}
    assert len(keys) == len(settings)


def test_the_columns_of_a_study_may_train_on_attacked_rows(project: Path, tmp_path: Path) -> None:
    base = tree(project, augment=[], augment_model=None, augment_attack={})
    victim = project / "victim"
    column = Column.parse(
        f"hard=vanilla,data.augment=attack:characters,data.augment_model={victim}"
    )
    plan = StudyConfig.of(
        {**base, "evaluate": {"perspectives": ["task"], "bootstrap": 5}},
        columns=[Column.of("vanilla"), column],
        seeds=[0],
    )
    study = run_study(plan, tmp_path / "study")
    kept = sorted(path.parent.name for path in study.folder.glob("runs/*/attacked.parquet"))
    assert [name.split("-")[0] for name in kept] == ["hard"]


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (
            {"augment": "attack:character"},
            "Unknown attack 'attack:character'. Did you mean 'attack:",
        ),
        (
            {"augment_attack": {"rows": 5}},
            r"must not set `rows`: `data\.augment_rows` says how many",
        ),
        ({"augment_attack": {"goal": "targeted"}}, "must not set `goal`: any wrong answer"),
        ({"augment_attack": {"max_change": 0.1}}, r"max_change.*Did you mean .*max_changed"),
        ({"augment_attack": {"max_changed": 2.0}}, r"`data\.augment_attack\.max_changed` must be"),
        (
            {"augment_model": "some.py:predict"},
            "must be a checkpoint, whose weights say what it is",
        ),
    ],
)
def test_wrong_attacks_are_refused_in_the_settings(
    project: Path, data: dict[str, Any], said: str
) -> None:
    with pytest.raises(SettingError, match=said):
        attack_settings(config(project, **data).data)
    with pytest.raises(SettingError, match=said):
        StudyConfig.of(tree(project, **data), columns=[Column.of("vanilla")], seeds=[0])


def test_rows_and_models_that_do_not_fit_are_refused(project: Path, tmp_path: Path) -> None:
    settings = config(project)
    rows = load_splits(settings.data).train
    numbers = Examples("train", ["one"], labels=[0.5], kind="regression")
    with pytest.raises(SettingError, match="a regression's are never right"):
        check_augmentation(settings.data, numbers)
    paired = config(project, augment_attack={"field": "both"})
    with pytest.raises(SettingError, match="`field` is 'both'|field` is 'both'"):
        check_augmentation(paired.data, rows)
    check_augmentation(settings.data, rows)
    three = make_random(
        tmp_path / "three", project / "model", labels=("entailment", "neutral", "contradiction")
    )
    two = Examples(
        "train",
        ["one"],
        labels=[0],
        label_names=("entailment", "not_entailment"),
        kind="classification",
    )
    with pytest.raises(SettingError, match="must have the labels of the training rows"):
        RowAttacker()(config(project, augment_model=str(three)), two, Progress())
