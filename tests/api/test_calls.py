"""`temper.train`, `temper.evaluate` and `temper.compare`, and the settings that they share."""

from __future__ import annotations

import inspect
import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas
import pytest
import torch
from datasets import Dataset
from typer.testing import CliRunner

import temper
import temper.errors
from temper.api import keywords
from temper.api.keywords import COMPARE, EVALUATE, TABLES, TRAIN
from temper.api.nested import default_folder, nested
from temper.cli.app import app
from temper.errors import CheckpointError, DataError, SettingError, TemperError
from temper.training.config import RunConfig
from temper.training.settings import ALIASES, LoraSettings, TrainSettings
from tests.cli.tiny_project import sentences, write_csv

# Settings whose names mean something else in front of a table, and nested ones.
NO_KEYWORD = {
    "data": {"source", "task", "config", "seed"},
    "train": {"lora", "peft", "evaluate"},
    "sets": {"data_root", "fit"},
    "predictor": set(),
}
KEYWORDS = {
    "data": (keywords.DataKeywords, keywords.RowsKeywords),
    "train": (keywords.LoopKeywords,),
    "sets": (keywords.SetKeywords,),
    "predictor": (keywords.PredictorKeywords,),
}


@pytest.mark.parametrize("table", KEYWORDS)
def test_every_setting_of_a_table_is_a_typed_keyword(table: str) -> None:
    typed = {name for each in KEYWORDS[table] for name in each.__annotations__}
    aliases = set(ALIASES) if table == "train" else set()
    assert typed == (set(TABLES[table].model_fields) - NO_KEYWORD[table]) | aliases


@pytest.mark.parametrize(
    ("call", "typed"),
    [
        (temper.train, keywords.TrainKeywords),
        (temper.compare, keywords.CompareKeywords),
        (temper.tune, keywords.CompareKeywords),
        (temper.evaluate, keywords.EvaluateKeywords),
    ],
)
def test_every_keyword_that_a_call_accepts_is_typed(call: Any, typed: type) -> None:
    paths = {temper.train: TRAIN, temper.evaluate: EVALUATE}.get(call, COMPARE)
    named = set(inspect.signature(call).parameters) - {"settings"}
    assert set(paths) == set(typed.__annotations__) | (named & set(paths))
    assert not set(typed.__annotations__) & named


@pytest.mark.parametrize("paths", [TRAIN, COMPARE, EVALUATE])
def test_keywords_that_are_not_given_leave_the_settings_to_a_file(paths: keywords.Paths) -> None:
    assert nested(paths, {}, dict.fromkeys(paths)) == {}


@pytest.mark.parametrize(
    ("given", "tree"),
    [
        ({"data": "a.csv", "eval_rows": 3}, {"data": {"source": "a.csv", "eval_rows": 3}}),
        ({"augment": "typos,lowercase"}, {"data": {"augment": ["typos", "lowercase"]}}),
        ({"augment": ["typos"]}, {"data": {"augment": ["typos"]}}),
        ({"class_weights": "1,2.5"}, {"train": {"class_weights": [1, 2.5]}}),
        ({"class_weights": ["balanced"]}, {"train": {"class_weights": "balanced"}}),
        ({"train": TrainSettings(epochs=1.0)}, {"train": {"epochs": 1.0}}),
        ({"epochs": 2.0, "train": {"max_steps": 3}}, {"train": {"epochs": 2.0, "max_steps": 3}}),
        ({"method": "at", "seed": 1}, {"method": {"name": "at"}, "seed": 1}),
        ({"lora": True}, {"train": {"lora": {}}}),
        ({"lora": LoraSettings(rank=4)}, {"train": {"lora": {"rank": 4}}}),
        ({"tasks": {"a": "a.csv"}}, {"tasks": {"a": {"source": "a.csv"}}}),
        (
            {"tasks": {"a": {"source": "a.csv", "rows": 3}}},
            {"tasks": {"a": {"source": "a.csv", "rows": 3}}},
        ),
        (
            {"task": ["a=a.csv", "b=b.csv"]},
            {"tasks": {"a": {"source": "a.csv"}, "b": {"source": "b.csv"}}},
        ),
        ({"task": ["rte"], "data": "a.csv"}, {"data": {"task": "rte", "source": "a.csv"}}),
        ({"num_train_epochs": 2.0, "bf16": True}, {"train": {"epochs": 2.0, "precision": "bf16"}}),
        ({"train": {"lr_scheduler_type": "cosine"}}, {"train": {"schedule": "cosine"}}),
        ({"peft": {"peft_type": "IA3"}}, {"train": {"peft": {"peft_type": "IA3"}}}),
        # No table: left for the settings' class to refuse under its own name.
        ({"train": 5}, {"train": 5}),
    ],
)
def test_keywords_are_nested_like_their_settings(
    given: dict[str, Any], tree: dict[str, Any]
) -> None:
    assert nested(TRAIN, None, given) == tree


def test_a_table_of_other_commands_raises_an_error_with_their_names() -> None:
    for paths, table, command in ((EVALUATE, "train", "compare"), (TRAIN, "service", "serve")):
        with pytest.raises(SettingError, match=rf"^`{table}` .*\b{command}\b") as caught:
            nested(paths, {table: {}}, {})
        assert "evaluate" not in str(caught.value)


def test_names_of_training_arguments_override_a_file_and_are_given_once() -> None:
    config = {"train": {"num_train_epochs": 3.0, "fp16": False}}
    assert nested(TRAIN, config) == {"train": {"epochs": 3.0, "precision": "fp32"}}
    one = nested(TRAIN, config, {}, ["train.num_train_epochs=1"])
    assert one["train"]["epochs"] == 1
    with pytest.raises(SettingError, match=r"`train\.epochs` is given twice"):
        nested(TRAIN, None, {"epochs": 2.0, "num_train_epochs": 3.0})


def test_an_adapter_of_a_file_is_skipped_on_request() -> None:
    config = {"train": {"lora": {"rank": 4}, "epochs": 2.0}}
    assert nested(TRAIN, config, {"lora": False}) == {"train": {"epochs": 2.0}}
    assert nested(TRAIN, config, {}) == config


def test_a_method_object_passes_all_its_settings() -> None:
    result = nested(TRAIN, None, {"method": temper.RDrop(weight=2.0)})["method"]
    assert result == {"name": "r_drop", **temper.RDrop(weight=2.0).settings()}
    both = nested(TRAIN, None, {"method": temper.RDrop() + temper.AT()})["method"]
    assert both["name"] == "r_drop + at"
    tree = {"model": "m", "data": {"source": "demo"}, "method": both}
    assert nested(TRAIN, RunConfig.of(tree), {"rows": 5})["method"] == both


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"epoch": 1}, "Unknown setting 'epoch'. Did you mean 'epochs'"),
        ({"shift": {"a": "b"}}, "Unknown setting 'shift'"),
        ({"augment": "typos,,lowercase"}, "`augment` takes names with commas between"),
        ({"epochs": 1.0, "train": {"epochs": 2.0}}, "`train.epochs` is given twice"),
    ],
)
def test_wrong_keywords_raise_the_errors_of_wrong_options(
    given: dict[str, Any], message: str
) -> None:
    with pytest.raises(SettingError, match=message):
        nested(TRAIN, None, given)


def test_a_settings_file_may_contain_further_sets(tmp_path: Path) -> None:
    file = tmp_path / "s.toml"
    file.write_text('[sets.shift]\nfar = "far.csv"\n[data]\nsource = "demo"\n', encoding="utf-8")
    assert nested(EVALUATE, file, {"fit": "f.csv"})["sets"] == {
        "shift": {"far": "far.csv"},
        "fit": "f.csv",
    }


def test_assignments_accept_keywords_and_lists() -> None:
    given = ["seed=2", "data.augment=typos,lowercase", "epochs=1", "train.label_names=a,b"]
    assert nested(TRAIN, None, {}, given) == {
        "seed": 2,
        "data": {"augment": ["typos", "lowercase"]},
        "train": {"epochs": 1, "label_names": ["a", "b"]},
    }
    given = ["cluster.cpus=2"]
    assert nested(COMPARE, None, {"cluster": "auto"}, given) == {
        "cluster": {"address": "auto", "cpus": 2}
    }


def test_the_folder_of_a_call_without_out_is_a_function_of_its_settings() -> None:
    tree = {"model": "minilm", "data": {"source": "a/my reviews.csv"}}
    folder = default_folder(tree, "r_drop + at")
    assert re.fullmatch(r"my-reviews-r_drop-at-[0-9a-f]{6}", folder.name)
    assert folder.parent == Path("runs")
    assert default_folder(dict(reversed(tree.items())), "r_drop + at") == folder
    assert default_folder({**tree, "seed": 1}, "r_drop + at") != folder
    one, same = ({**tree, "train": {"epochs": epochs}} for epochs in (2, 2.0))
    assert default_folder(one, "at") == default_folder(same, "at")


def test_a_run_without_out_is_reused_by_the_same_call_and_command(
    tiny_model: Path, tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data = str(tiny_data / "reviews")
    result = temper.train(
        data, model=str(tiny_model), method="plain", epochs=1, rows=8, max_length=16, device="cpu"
    )
    assert result.folder.parent == Path("runs")
    assert result.folder.name.startswith("reviews-plain-")
    again = CliRunner().invoke(
        app,
        ["train", "--model", str(tiny_model), "--data", data, "--method", "plain", "--epochs",
         "1", "--rows", "8", "--max-length", "16", "--device", "cpu"],
    )  # fmt: skip
    message = " ".join(again.stderr.split())
    assert f"No --out: the run is written to {result.folder}." in message
    assert f"Up to date: {result.folder}" in message
    assert f"Run: {result.folder}" in " ".join(again.output.split())


@pytest.fixture(scope="module")
def run(tiny_model: Path, tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    return temper.train(
        tiny_data / "reviews",
        model=str(tiny_model),
        method=temper.Plain(),
        max_steps=2,
        max_length=32,
        device="cpu",
        out=tmp_path_factory.mktemp("calls") / "run",
    )


def test_a_call_trains_the_run_that_the_command_trains(
    run: Any, tiny_model: Path, tiny_data: Path
) -> None:
    again = CliRunner().invoke(
        app,
        ["train", "--model", str(tiny_model), "--data", str(tiny_data / "reviews"), "--method",
         "plain", "--set", "train.max_steps=2", "--max-length", "32", "--device", "cpu",
         "--out", str(run.folder)],
    )  # fmt: skip
    assert again.exit_code == 0, again.stderr
    assert f"Up to date: {run.folder}" in " ".join(again.stderr.split())


def test_a_run_shows_its_scores_and_loads_its_model(run: Any) -> None:
    assert list(run.scores.columns) == ["metric", "epoch", "step", "dev"]
    assert run.load(device="cpu").label_names == ("negative", "positive")


def test_the_default_folder_of_an_evaluation_is_in_the_run(run: Any, tiny_data: Path) -> None:
    result = temper.evaluate(
        run,
        shift={"far": str(tiny_data / "shift.csv")},
        perspectives=["task", "shift"],
        evaluate={"bootstrap": 0},
        device="cpu",
    )
    assert result.folder == run.folder.with_name("run-evaluation")
    assert json.loads((result.folder / "scores.json").read_text()) == result.content
    assert set(result.scores["set"]) == {"dev", "far"}
    assert result.report().is_file()


def test_training_rows_are_excluded_and_that_is_reported_first(
    run: Any, tiny_data: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = write_csv(tmp_path / "mixed.csv", [*sentences(9), *sentences(21, thing="phone")])
    quick: dict[str, Any] = {"perspectives": "task", "evaluate": {"bootstrap": 0}}
    result = temper.evaluate(run, file, out=tmp_path / "out", **quick)
    message = "9 of 30 rows of set 'dev' were trained on"
    assert caplog.messages[0].startswith(message)
    assert result.content["notices"][0].startswith(message)
    assert {score["n"] for score in result.content["scores"]} == {21}
    # Above the result: on the terminal, in a notebook, on the page and in Markdown.
    assert result.headline().text.startswith(message)
    page = result.report().read_text(encoding="utf-8")
    assert page.index("9 of 30 rows of set") < page.index(" reaches ")
    assert "9 of 30 rows of set" in (tmp_path / "out" / "report.md").read_text().split("##")[0]
    kept = temper.evaluate(run, file, out=tmp_path / "kept", seen_rows="keep", **quick)
    assert {score["n"] for score in kept.content["scores"]} == {30}
    assert kept.headline().text.startswith("9 of 30 rows of set 'dev' were trained on")
    # A finished evaluation that is kept says it again.
    caplog.clear()
    temper.evaluate(run, file, out=tmp_path / "out", **quick)
    assert caplog.messages[0].startswith(message)
    with pytest.raises(DataError, match="All 40 rows.*sets.seen_rows=keep"):
        temper.evaluate(run, tiny_data / "reviews" / "train.csv", out=tmp_path / "all", **quick)


def test_a_run_on_data_in_memory_is_that_on_a_file_of_the_same_rows(
    tiny_model: Path, tmp_path: Path
) -> None:
    columns = dict(zip(("text", "label"), map(list, zip(*sentences(30), strict=True)), strict=True))
    frame = pandas.DataFrame(columns)
    short: dict[str, Any] = {
        "model": str(tiny_model), "method": "plain", "max_steps": 1, "max_length": 32,
        "device": "cpu",
    }  # fmt: skip
    file = write_csv(tmp_path / "rows.csv", sentences(30))
    of_file = temper.train(file, out=tmp_path / "file", **short)
    run = temper.train(frame, out=tmp_path / "frame", **short)
    assert run.record["key"] == of_file.record["key"]
    # The same data in another form are the same run, and other rows are not.
    again = temper.train(Dataset.from_dict(columns), out=tmp_path / "frame", **short)
    assert again.record == run.record
    with pytest.raises(CheckpointError, match="other settings or data"):
        temper.train(frame[:20], out=tmp_path / "frame", **short)
    quick: dict[str, Any] = {"perspectives": ["task", "shift"], "evaluate": {"bootstrap": 0}}
    shifted = pandas.DataFrame(sentences(8, thing="it"), columns=["text", "label"])
    result = temper.evaluate(run, shift={"far": shifted}, **quick)
    sizes = {score["set"]: score["n"] for score in result.content["scores"]}
    assert sizes == {"dev": run.record["data"]["dev"]["rows"], "far": 8}
    # A table without splits is taken whole, as a file is.
    other = temper.evaluate(
        run, {"text": list(shifted["text"]), "label": list(shifted["label"])},
        out=tmp_path / "other", **{**quick, "perspectives": "task"},
    )  # fmt: skip
    assert {score["n"] for score in other.content["scores"]} == {8}
    study = temper.compare(
        out=tmp_path / "study", methods="plain", seeds=[0], data={"train": frame, "dev": shifted},
        model=str(tiny_model), max_steps=1, max_length=32, device="cpu", perspectives="task",
        evaluate={"bootstrap": 0},
    )  # fmt: skip
    assert study.page.is_file()


def test_a_mistyped_model_without_a_folder_is_one_error() -> None:
    with pytest.raises(TemperError, match="from 'no/run'") as caught:
        temper.evaluate("no/run", data="demo")
    assert "--out" not in str(caught.value)


def test_a_comparison_returns_its_table(tiny_model: Path, tiny_data: Path, tmp_path: Path) -> None:
    study = temper.compare(
        out=tmp_path / "study",
        methods=["plain", temper.RDrop(weight=2.0)],
        variants={"longer": {"method": "plain", "train": {"max_steps": 2}}},
        seeds=[0],
        model=str(tiny_model),
        data=tiny_data / "reviews",
        max_steps=1,
        max_length=32,
        device="cpu",
        perspectives="task",
        evaluate={"bootstrap": 0},
    )
    plan = json.loads((study.folder / "study.json").read_text())
    assert [column["name"] for column in plan["columns"]] == ["plain", "r_drop", "longer"]
    assert plan["columns"][1]["settings"]["method"]["weight"] == 2.0
    assert set(study.scores["column"]) == {"plain", "r_drop", "longer"}
    assert study.page.is_file()
    assert str(study).endswith("\n".join([*study.headline().summary, str(study.folder)]))
    assert study.headline().title.replace("`", "") in re.sub("<[^>]*>", "", study._repr_html_())
    assert study.load("longer", 0, device="cpu").label_names == ("negative", "positive")
    with pytest.raises(temper.errors.CheckpointError, match="no run of method 'longer', seed 7"):
        study.load("longer", 7)


@pytest.mark.parametrize(
    ("variants", "message"),
    [
        ({"x": {"train": {"epochs": 1}}}, "names its `method`"),
        ({"x": {"method": "plain", "train": 3}}, "`train` of variant 'x' must be a table"),
        ({"x": {"method": "plain", "data": {"rows": 3}}}, "sets `data.rows`"),
        ({"x": {"method": "plian"}}, "'plain'"),
    ],
)
def test_a_wrong_variant_raises_an_error(
    variants: Any, message: str, tiny_model: Path, tmp_path: Path
) -> None:
    model = str(tiny_model)
    with pytest.raises(SettingError, match=message):
        temper.compare(
            out=tmp_path / "s", methods=["at"], variants=variants, model=model, data="demo"
        )


def good(texts: list[str]) -> list[list[float]]:
    return [[0.1, 0.9] if "good" in text else [0.9, 0.1] for text in texts]


MEASURED: dict[str, Any] = {
    "gives": "probabilities",
    "label_names": ["negative", "positive"],
    "perspectives": "task",
    "evaluate": {"bootstrap": 0},
}


def test_an_evaluation_of_a_function_in_memory_reads_no_run_of_the_same_name(
    tiny_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    # A run of that name must not lend the function its settings.
    (tmp_path / "good").mkdir()
    (tmp_path / "good" / "run.json").write_text("{}")
    result = temper.evaluate(good, tiny_data / "reviews" / "dev.csv", **MEASURED)
    assert result.folder == Path("runs/good-evaluation")
    assert result.content["model"] == "good()"


def test_an_object_in_memory_is_measured_each_time(tiny_data: Path, tmp_path: Path) -> None:
    dev = tiny_data / "reviews" / "dev.csv"
    asked: list[int] = []

    def model(texts: list[str]) -> list[list[float]]:
        asked.append(len(texts))
        return [[0.9, 0.1]] * len(texts)

    first = temper.evaluate(model, dev, out=tmp_path / "out", **MEASURED)
    before = len(asked)
    again = temper.evaluate(model, dev, out=tmp_path / "out", **MEASURED)
    assert len(asked) == 2 * before
    assert again.content == first.content
    with pytest.raises(temper.errors.CheckpointError, match="model: .* -> "):
        temper.evaluate(good, dev, out=tmp_path / "out", **MEASURED)


@pytest.mark.parametrize(
    ("model", "settings", "message"),
    [
        (torch.nn.Linear(2, 2), {}, r"Linear\(\) is a network, which takes token ids"),
        (good, {"gives": None}, r"output type of good\(\) is unknown"),
        (good, {"device": "cpu"}, r"`device` applies to checkpoints, and good\(\) is not one"),
        (3, {}, r"int\(\) is int, expected a function"),
    ],
)
def test_an_object_that_cannot_be_measured_raises_an_error(
    model: Any, settings: dict[str, Any], message: str, tiny_data: Path, tmp_path: Path
) -> None:
    dev = tiny_data / "reviews" / "dev.csv"
    with pytest.raises(temper.errors.TemperError, match=message):
        temper.evaluate(model, dev, out=tmp_path / "out", **{**MEASURED, **settings})
    assert not (tmp_path / "out").exists()


def test_a_result_reads_well_as_text_and_shows_its_first_screen(
    tiny_data: Path, tmp_path: Path
) -> None:
    dev = tiny_data / "reviews" / "dev.csv"
    result = temper.evaluate(good, dev, out=tmp_path / "<out>", **MEASURED)
    assert repr(result) == f"EvaluationResult({str(result.folder)!r})"
    assert str(result).splitlines()[0] == "Evaluation of good()"
    assert len(str(result).splitlines()) <= 10
    page = result.report().read_text(encoding="utf-8")
    header = re.search(r"<header>.*</header>", result._repr_html_(), re.S)
    assert header is not None
    assert header[0] in page
    assert "<out>" not in header[0]


def test_a_run_without_an_evaluation_reports_its_validation_scores(run: Any) -> None:
    alone = replace(run, folder=Path(shutil.copytree(run.folder, run.folder.with_name("alone"))))
    accuracy = 100 * run.record["epochs"]["kept"]["dev"]
    assert f"reaches {accuracy:.1f}% [" in alone.headline().sentence
    assert f"temper evaluate {alone.folder}" in str(alone)
    assert f"{accuracy:.1f}%" in alone._repr_html_()
