"""Greedy soups: the average itself, who gets in, what is refused, and what is said."""

from __future__ import annotations

import json
import shutil
import weakref
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from temper.app import soup
from temper.app.evaluate import EvaluationRequest
from temper.app.predictors import load_predictor, trained_settings
from temper.app.soup import make_soup, read_ingredient, write_average
from temper.data.examples import Examples
from temper.data.settings import DataSettings
from temper.errors import CheckpointError, DataError, ModelError, SettingError, TemperError
from temper.training.config import model_identity
from tests.cli.tiny_project import make_model, sentences, write_csv
from tests.training.listeners import Heard

RECORD: dict[str, Any] = {
    "status": "finished",
    "method": "vanilla",
    "seed": 0,
    "model": "tiny",
    "task": {"metric": "accuracy"},
    "settings": {"data": {"source": "reviews", "max_length": 24}},
}
MakeRun = Callable[..., str]
NOISE = 1.5


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a model that knows its task: what is near it then differs in how well it does."""
    folder = make_model(tmp_path_factory.mktemp("base") / "tiny")
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, id2label={0: "negative", 1: "positive"}, label2id={"negative": 0, "positive": 1}
    )
    tokenizer = AutoTokenizer.from_pretrained(folder)
    pairs = sentences(36)
    inputs = tokenizer([text for text, _ in pairs], return_tensors="pt", padding=True)
    labels = torch.tensor([model.config.label2id[label] for _, label in pairs])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for _ in range(40):
        optimizer.zero_grad()
        model(**inputs, labels=labels).loss.backward()
        optimizer.step()
    model.save_pretrained(folder)
    return folder


@pytest.fixture
def make_run(base: Path, tmp_path: Path) -> MakeRun:
    def make(name: str, *, noise: int | None = None, **record: Any) -> str:
        folder = tmp_path / name
        shutil.copytree(base, folder)
        if noise is not None:
            draws = torch.Generator().manual_seed(noise)
            tensors = load_file(folder / "model.safetensors")
            changed = {
                key: value + NOISE * value.std() * torch.randn(value.shape, generator=draws)
                if value.dim() > 1
                else value
                for key, value in tensors.items()
            }
            save_file(changed, folder / "model.safetensors", metadata={"format": "pt"})
        (folder / "run.json").write_text(json.dumps({**RECORD, **record}))
        return str(folder)

    return make


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    return write_csv(tmp_path / "held_out.csv", sentences(36, thing="phone"))


def asked(rows: Path, **more: Any) -> EvaluationRequest:
    return EvaluationRequest.of(
        {"data": {"source": str(rows), **more}, "predictor": {"device": "cpu"}}, model=""
    )


def flip_head(run: str) -> str:
    """Turn a run's answers around."""
    tensors = load_file(Path(run) / "model.safetensors")
    flipped = {n: -3 * t if n.startswith("classifier") else t for n, t in tensors.items()}
    save_file(flipped, Path(run) / "model.safetensors", metadata={"format": "pt"})
    return run


def averaged(runs: Sequence[str]) -> dict[str, Tensor]:
    """Average weights by hand."""
    loaded = [load_file(Path(run) / "model.safetensors") for run in runs]
    return {
        name: (sum(each[name].double() for each in loaded) / len(loaded)).float()
        for name in loaded[0]
    }


def accuracy(weights: dict[str, Tensor], run: str, texts: list[tuple[str, str]]) -> float:
    """Score weights with Transformers alone, text by text."""
    model = AutoModelForSequenceClassification.from_pretrained(run).eval()
    tokenizer = AutoTokenizer.from_pretrained(run)
    model.load_state_dict(weights)
    right = 0
    with torch.no_grad():
        for text, label in texts:
            answer = int(model(**tokenizer(text, return_tensors="pt")).logits.argmax())
            right += model.config.id2label[answer] == label
    return right / len(texts)


def test_members_are_those_that_a_greedy_loop_by_hand_takes(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    runs = [make_run(f"r{number}", noise=number) for number in range(5, 8)]
    runs.insert(1, flip_head(make_run("flipped", noise=6)))
    texts = sentences(36, thing="phone")
    alone = {run: accuracy(averaged([run]), run, texts) for run in runs}
    order = sorted(runs, key=lambda run: -alone[run])
    kept, best, tried = [order[0]], alone[order[0]], []
    for run in order[1:]:
        tried.append(accuracy(averaged([*kept, run]), run, texts))
        if tried[-1] >= best:
            kept, best = [*kept, run], tried[-1]
    # Otherwise this test would show nothing.
    assert 1 < len(kept) < len(runs)

    made = make_soup(runs, asked(rows), tmp_path / "soup")
    assert made["members"] == kept
    assert [line["run"] for line in made["runs"]] == order
    assert [line["score"] for line in made["runs"]] == pytest.approx([alone[r] for r in order])
    assert [line["score_with_it"] for line in made["runs"][1:]] == pytest.approx(tried)
    assert made["score"] == pytest.approx(best)
    found = load_file(tmp_path / "soup" / "model.safetensors")
    assert all(torch.equal(found[name], value) for name, value in averaged(kept).items())
    assert json.loads((tmp_path / "soup" / "soup.json").read_text()) == made


def test_the_soup_is_a_plain_checkpoint_and_judged_as_its_runs_are(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    runs = [make_run("a"), make_run("b")]
    for run in runs:
        (Path(run) / "metrics.jsonl").write_text("{}\n")
        (Path(run) / "evaluation").mkdir()
    out = tmp_path / "soup"
    made = make_soup(runs, asked(rows), out)
    # Equal runs: the average is no worse, so the second is taken.
    assert made["members"] == runs
    assert sorted(entry.name for entry in out.iterdir()) == sorted(
        ["config.json", "model.safetensors", "soup.json", "tokenizer.json", "tokenizer_config.json"]
    )
    readable = (out / "config.json").stat().st_mode
    assert (out / "model.safetensors").stat().st_mode == readable
    assert AutoModelForSequenceClassification.from_pretrained(out).config.id2label[1] == "positive"
    assert trained_settings(str(out))["data"]["max_length"] == 24
    assert load_predictor(str(out), device="cpu").max_length == 24
    before = model_identity(str(out))
    (out / "soup.json").unlink()
    assert model_identity(str(out)) == before


def test_unlabelled_text_of_one_run_does_not_hide_what_all_were_trained_on(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    data = {**RECORD["settings"]["data"], "unlabeled": "pool.csv", "unlabeled_rows": None}
    runs = [make_run("a"), make_run("b", settings={"data": data})]
    made = make_soup(runs, asked(rows), tmp_path / "soup")
    assert made["settings"]["data"] == {"source": "reviews", "max_length": 24}


def test_what_is_not_floating_point_is_taken_over_and_halves_are_averaged_exactly(
    make_run: MakeRun, tmp_path: Path
) -> None:
    runs = [make_run(name) for name in "abc"]
    values = ([1.0, 3.0], [2.0, 3.0], [4.0, 3.0])
    for run, given in zip(runs, values, strict=True):
        held = {"half": torch.tensor(given, dtype=torch.bfloat16), "places": torch.arange(3)}
        save_file(held, Path(run) / "model.safetensors")
    write_average([read_ingredient(Path(run)) for run in runs], tmp_path / "out")
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert torch.equal(found["places"], torch.arange(3))
    expected = torch.tensor([7 / 3, 3.0], dtype=torch.float64).to(torch.bfloat16)
    assert torch.equal(found["half"], expected)


def test_a_soup_that_is_there_is_kept_and_another_refused(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    runs, out, heard = [make_run("a"), make_run("b", noise=1)], tmp_path / "soup", Heard()
    made = make_soup(runs, asked(rows), out)
    stamp = (out / "model.safetensors").stat().st_mtime_ns
    assert make_soup(runs, asked(rows), out, progress=heard) == made
    assert "holds this very soup already" in heard.notices[0]
    assert (out / "model.safetensors").stat().st_mtime_ns == stamp
    with pytest.raises(CheckpointError, match="a soup of other runs or other rows"):
        make_soup(runs, asked(rows, eval_rows=10), out)
    with pytest.raises(CheckpointError, match="a soup of other runs or other rows"):
        make_soup([*runs, make_run("c")], asked(rows), out)


def test_what_spoils_a_soup_is_said(make_run: MakeRun, rows: Path, tmp_path: Path) -> None:
    same, heard = [make_run("a"), make_run("b")], Heard()
    make_soup(same, asked(rows), tmp_path / "first", progress=heard)
    assert heard.notices == []

    held_out = json.loads((tmp_path / "first" / "soup.json").read_text())["held_out"]["hash"]
    other = make_run("c", seed=3, model="other", data={"dev": {"hash": held_out}})
    heard = Heard()
    made = make_soup([same[0], other], asked(rows), tmp_path / "second", progress=heard)
    assert made["notices"] == heard.notices
    seeds, starts, reported = heard.notices
    assert "seeds 0, 3" in seeds
    assert "began with different models (other, tiny)" in starts
    assert f"the dev rows of {other}" in reported


def test_a_run_that_harms_is_left_out_and_the_best_stays_as_it_is(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    best, worst, heard = make_run("best"), flip_head(make_run("worst")), Heard()
    made = make_soup([worst, best], asked(rows), tmp_path / "soup", progress=heard)
    assert made["members"] == [best]
    assert [line["kept"] for line in made["runs"]] == [True, False]
    assert made["runs"][1]["score_with_it"] < made["score"]
    assert "the best run alone" in heard.notices[-1]
    found = load_file(tmp_path / "soup" / "model.safetensors")
    assert all(torch.equal(found[n], t) for n, t in averaged([best]).items())


def test_no_two_loaded_models_are_in_memory_and_none_while_an_average_is_made(
    make_run: MakeRun, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alive: weakref.WeakSet[Any] = weakref.WeakSet()
    counts: dict[str, list[int]] = {"load": [], "average": []}

    def loading(*args: Any, **settings: Any) -> Any:
        counts["load"].append(len(alive))
        predictor = load_predictor(*args, **settings)
        alive.add(predictor.model)
        return predictor

    def averaging(*args: Any) -> None:
        counts["average"].append(len(alive))
        write_average(*args)

    monkeypatch.setattr(soup, "load_predictor", loading)
    monkeypatch.setattr(soup, "write_average", averaging)
    make_soup([make_run(n, noise=ord(n)) for n in "abc"], asked(rows), tmp_path / "soup")
    assert len(counts["load"]) == 5
    assert set(counts["load"]) == set(counts["average"]) == {0}


def spoil(run: str, kind: str) -> None:
    """Make a run unlike the others."""
    config_file = Path(run) / "config.json"
    config = json.loads(config_file.read_text())
    tensors = load_file(Path(run) / "model.safetensors")
    if kind == "labels":
        config["id2label"] = {"0": "positive", "1": "negative"}
    elif kind == "shape":
        tensors["classifier.bias"] = torch.zeros(3)
    elif kind == "missing":
        del tensors["classifier.bias"]
    config_file.write_text(json.dumps(config))
    save_file(tensors, Path(run) / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("kind", "message"),
    [
        ("labels", "their labels are .*negative.*positive"),
        ("shape", r"the tensor 'classifier.bias' is F32 \[2\] and F32 \[3\]"),
        ("missing", r"the tensor 'classifier.bias' is F32 \[2\] and missing"),
    ],
)
def test_models_that_differ_are_refused_before_anything_is_loaded(
    kind: str,
    message: str,
    make_run: MakeRun,
    rows: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    runs = [make_run("a"), make_run("b")]
    spoil(runs[1], kind)
    monkeypatch.setattr(soup, "load_predictor", None)
    with pytest.raises(ModelError, match=f"a and .*b cannot be averaged: {message}"):
        make_soup(runs, asked(rows), tmp_path / "soup")
    assert not (tmp_path / "soup").exists()


def test_folders_that_are_no_finished_runs_are_refused(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    run, out = make_run("a"), tmp_path / "soup"
    stopped, adapter, empty = make_run("stopped", status="stopped"), make_run("x"), tmp_path / "e"
    (Path(adapter) / "adapter_config.json").write_text("{}")
    empty.mkdir()
    cases: list[tuple[list[str], type[TemperError], str]] = [
        ([run], SettingError, "two runs or more, got 1"),
        ([run, f"{run}/"], SettingError, "is given twice"),
        ([run, str(tmp_path / "nowhere")], CheckpointError, "nowhere is no folder"),
        ([run, stopped], CheckpointError, "is 'stopped', expected 'finished'"),
        ([run, adapter], ModelError, "holds a PEFT adapter"),
        ([run, str(empty)], CheckpointError, "holds no config.json with a model.safetensors"),
    ]
    for runs, error, message in cases:
        with pytest.raises(error, match=message):
            make_soup(runs, asked(rows), out)
    assert not out.exists()


def test_a_folder_with_something_else_is_left_as_it_is(
    make_run: MakeRun, rows: Path, tmp_path: Path
) -> None:
    runs, out = [make_run("a"), make_run("b")], tmp_path / "mine"
    out.mkdir()
    (out / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match=r"holds 'notes.txt' but no soup"):
        make_soup(runs, asked(rows), out)
    with pytest.raises(CheckpointError, match="is a file, expected a folder"):
        make_soup(runs, asked(rows), out / "notes.txt")
    (out / "notes.txt").unlink()
    make_soup(runs, asked(rows), out)
    assert (out / "soup.json").is_file()


def test_a_failure_leaves_nothing(
    make_run: MakeRun, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(*args: Any) -> None:
        write_average(*args)
        raise DataError("planted")

    runs = [make_run("a"), make_run("b")]
    before = sorted(entry.name for entry in tmp_path.iterdir())
    monkeypatch.setattr(soup, "write_average", failing)
    with pytest.raises(DataError, match="planted"):
        make_soup(runs, asked(rows), tmp_path / "soup")
    assert sorted(entry.name for entry in tmp_path.iterdir()) == before


def test_a_metric_without_a_value_is_named(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(soup._Scorer, "score", lambda *_: float("nan"))
    runs = [make_run("a"), make_run("b")]
    rows = write_csv(tmp_path / "rows.csv", sentences(4))
    with pytest.raises(DataError, match=r"accuracy of .*a has no value on the held-out rows"):
        make_soup(runs, asked(rows), tmp_path / "soup")


def test_the_runs_metric_is_taken_where_they_agree(make_run: MakeRun, tmp_path: Path) -> None:
    examples = Examples("held_out", ["a"], labels=[0], kind="classification")
    one = read_ingredient(Path(make_run("a", task={"metric": "macro_f1"})))
    other = read_ingredient(Path(make_run("b")))
    plain, cola = DataSettings(source="rows.csv"), DataSettings(source="glue:cola")
    assert soup._metric([one, one], examples, plain) == "macro_f1"
    assert soup._metric([one, other], examples, plain) == "accuracy"
    assert soup._metric([one, other], examples, cola) == "mcc"
