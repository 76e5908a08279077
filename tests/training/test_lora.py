"""LoRA: an adapter and the head are trained, kept, resumed, read again, and merged on request."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForSequenceClassification

from temper.api.keywords import TRAIN
from temper.api.nested import nested
from temper.backward.rule import InitialWeightsRule, implements
from temper.data.sources import load_splits
from temper.errors import ModelError, SettingError
from temper.methods import build, names
from temper.models.hf import load_classifier
from temper.training.config import RunConfig
from temper.training.run import train
from tests.training.listeners import Heard, StopAt
from tests.training.tiny_training import (
    record,
    settings_of_run,
)

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
READS_THE_START = [name for name in names() if implements(build(name).rule, InitialWeightsRule)]


def tree(project: Path, *, method: str = "uegr", **train: Any) -> dict[str, Any]:
    lora = {"rank": 2, "target_modules": ["query", "value"]}
    train = {"max_steps": 6, "logging_steps": 2, "learning_rate": 1e-2, "lora": lora, **train}
    return {**settings_of_run(project, method=method, **train), "seed": 4}


def run(project: Path, name: str, **settings: Any) -> Path:
    return train(RunConfig.of(tree(project, **settings)), project / name)


def logits(folder: Path, project: Path) -> torch.Tensor:
    model, tokenizer = load_classifier(str(folder))
    dev = load_splits(RunConfig.of(tree(project)).data).dev
    inputs = tokenizer(list(dev.text), return_tensors="pt", padding=True)
    with torch.no_grad():
        result: torch.Tensor = model(**inputs).logits
    return result


@pytest.fixture(scope="module")
def whole(project: Path) -> Path:
    return run(project, "adapter")


def test_a_run_holds_adapter_head_labels_and_record(project: Path, whole: Path) -> None:
    files = {file.name for file in whole.iterdir()}
    assert {"adapter_model.safetensors", "adapter_config.json", "config.json"} <= files
    assert not {"model.safetensors", "README.md"} & files
    kept = load_file(whole / "adapter_model.safetensors")
    assert all("lora_" in name or "classifier" in name for name in kept)
    assert any("classifier" in name for name in kept)
    content = record(whole)
    assert content["parameters"]["trained"] == sum(tensor.numel() for tensor in kept.values())
    assert content["parameters"]["trained"] < content["parameters"]["all"] / 4
    settings = json.loads((whole / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == str((project / "model").resolve())


@pytest.mark.parametrize("settings", [{}, {"keep": "best", "keep_fraction": 0.2, "batch_size": 8}])
def test_a_stopped_run_resumes_to_the_same_adapter(project: Path, settings: dict[str, Any]) -> None:
    one = run(project, f"one-{len(settings)}", **settings)
    out = project / f"stopped-{len(settings)}"
    config = RunConfig.of(tree(project, **settings))
    with pytest.raises(KeyboardInterrupt):
        train(config, out, progress=StopAt(5))
    train(config, out)
    file = "adapter_model.safetensors"
    assert (out / file).read_bytes() == (one / file).read_bytes()
    assert (out / "metrics.jsonl").read_bytes() == (one / "metrics.jsonl").read_bytes()


def test_a_merged_run_is_a_plain_checkpoint_with_the_same_predictions(
    project: Path, whole: Path
) -> None:
    lora = {**tree(project)["train"]["lora"], "merge": True}
    out = run(project, "merged", lora=lora)
    assert not (out / "adapter_config.json").exists()
    model = AutoModelForSequenceClassification.from_pretrained(out)
    assert not any("lora" in name for name in model.state_dict())
    torch.testing.assert_close(logits(out, project), logits(whole, project), atol=1e-5, rtol=1e-4)


def test_training_an_adapter_folder_continues_its_adapter(project: Path, whole: Path) -> None:
    settings = tree(project, lora=None)
    out = train(RunConfig.of({**settings, "model": str(whole)}), project / "further")
    base = json.loads((out / "adapter_config.json").read_text())["base_model_name_or_path"]
    assert base == str((project / "model").resolve())
    with pytest.raises(ModelError, match=r"is already an adapter"):
        train(RunConfig.of({**tree(project), "model": str(whole)}), project / "twice")


def test_a_run_on_an_adapter_of_the_hub_is_saved_as_one(
    project: Path, whole: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = "a" * 40
    cached = tmp_path / "models--somebody--adapter"
    shutil.copytree(whole, cached / "snapshots" / commit)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text(commit, encoding="utf-8")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr("transformers.utils.hub.constants.HF_HUB_CACHE", str(tmp_path))
    named = {**tree(project, lora=None), "model": "somebody/adapter"}
    out = train(RunConfig.of(named), project / "of-the-hub")
    beside = train(RunConfig.of({**named, "model": str(whole)}), project / "of-a-folder")
    file = "adapter_model.safetensors"
    assert (out / file).read_bytes() == (beside / file).read_bytes()
    lora = {**tree(project)["train"]["lora"], "merge": True}
    with pytest.raises(ModelError, match=r"is already an adapter"):
        train(
            RunConfig.of({**tree(project, lora=lora), "model": "somebody/adapter"}), tmp_path / "x"
        )


def test_an_adapter_next_to_model_weights_raises_an_error(
    project: Path, whole: Path, tmp_path: Path
) -> None:
    both = Path(shutil.copytree(project / "model", tmp_path / "both"))
    shutil.copy(whole / "adapter_model.safetensors", both)
    settings = json.loads((whole / "adapter_config.json").read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = str(both)
    (both / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match=r"next to the weights .*Move the adapter"):
        load_classifier(str(both), labels=["negative", "positive"])


def test_an_adapter_without_a_base_model_raises_an_error(whole: Path, tmp_path: Path) -> None:
    lost = Path(shutil.copytree(whole, tmp_path / "lost"))
    settings = json.loads((lost / "adapter_config.json").read_text(encoding="utf-8"))
    settings["base_model_name_or_path"] = None
    (lost / "adapter_config.json").write_text(json.dumps(settings), encoding="utf-8")
    with pytest.raises(ModelError, match="base model of the adapter .* is unknown"):
        load_classifier(str(lost))


def test_a_pooler_that_no_checkpoint_holds_is_trained_and_saved(project: Path) -> None:
    from transformers import BertModel, BertTokenizer

    bare = project / "bare"
    BertModel.from_pretrained(project / "model", add_pooling_layer=False).save_pretrained(bare)
    BertTokenizer.from_pretrained(project / "model").save_pretrained(bare)
    out = train(RunConfig.of({**tree(project), "model": str(bare)}), project / "pooler")
    kept = load_file(out / "adapter_model.safetensors")
    assert any("pooler" in name for name in kept)
    dev = load_splits(RunConfig.of(tree(project)).data).dev
    predictions = logits(out, project).argmax(-1).tolist()
    right = sum(a == label for a, label in zip(predictions, dev.labels or [], strict=True))
    assert record(out)["epochs"]["kept"]["dev"] == pytest.approx(right / len(dev))


def test_trained_parameters_and_a_low_learning_rate_are_reported(project: Path) -> None:
    heard = Heard()
    config = RunConfig.of(tree(project, learning_rate=2e-5, max_steps=1))
    train(config, project / "told", progress=heard)
    assert any("parameters are trained." in t for t in heard.notices)
    assert any("The learning rate is 2e-05; adapters usually take" in t for t in heard.notices)


@pytest.mark.parametrize("name", READS_THE_START)
def test_methods_that_read_the_weights_before_training_raise_an_error(
    project: Path, name: str
) -> None:
    with pytest.raises(SettingError, match=f"'{name}'.*adapter's random"):
        RunConfig.of(tree(project, method=name))


def test_wrong_settings_are_named(project: Path) -> None:
    message = r"(?s)`train\.lora\.rank` must be >= 1, got 0.*Unknown setting 'train\.lora\.rnk'"
    with pytest.raises(SettingError, match=message):
        RunConfig.of(tree(project, lora={"rank": 0, "rnk": 4}))


def test_missing_target_modules_raise_an_error_with_the_existing_ones(project: Path) -> None:
    with pytest.raises(ModelError, match=r"target_modules.*dense, key, query, value"):
        run(project, "nowhere", lora={"target_modules": ["qkv"]})


def test_an_adapter_for_a_network_from_scratch_raises_an_error(project: Path) -> None:
    settings = {**tree(project), "model": "text_cnn", "train": {"lora": {}}}
    with pytest.raises(SettingError, match=r"'text_cnn' is trained from scratch. Leave it out"):
        RunConfig.of(settings)


IA3 = {"peft_type": "IA3", "target_modules": ["value"], "feedforward_modules": []}
DORA = {"peft_type": "LORA", "r": 2, "use_dora": True, "target_modules": ["query", "value"]}


@pytest.mark.parametrize("settings", [IA3, DORA], ids=["ia3", "dora"])
def test_adapters_of_any_type_are_trained_saved_and_loaded(
    project: Path, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    out = run(project, request.node.callspec.id, lora=None, peft=settings)
    kept = json.loads((out / "adapter_config.json").read_text(encoding="utf-8"))
    assert {name: kept[name] for name in settings if name != "target_modules"} == {
        name: value for name, value in settings.items() if name != "target_modules"
    }
    assert any("classifier" in name for name in load_file(out / "adapter_model.safetensors"))
    assert logits(out, project).isfinite().all()
    # A file that PEFT wrote gives the same adapter again.
    again = train(
        RunConfig.of(
            nested(TRAIN, tree(project, lora=None), {"peft": out / "adapter_config.json"})
        ),
        project / f"{out.name}-again",
    )
    file = "adapter_model.safetensors"
    assert (again / file).read_bytes() == (out / file).read_bytes()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 4}, "tokens before the text"),
        ({"peft_type": "LORA", "no_such_argument": 1}, "no_such_argument"),
        ({"peft_type": "NOTHING"}, "type of adapter"),
    ],
)
def test_adapters_that_cannot_be_made_raise_an_error(
    project: Path, settings: dict[str, Any], said: str
) -> None:
    with pytest.raises(ModelError, match=said):
        run(project, "refused", lora=None, peft=settings)


def test_two_adapters_or_one_without_a_type_raise_an_error(project: Path) -> None:
    with pytest.raises(SettingError, match="both name an adapter"):
        RunConfig.of(tree(project, peft=IA3))
    with pytest.raises(SettingError, match="peft_type"):
        RunConfig.of(tree(project, lora=None, peft={"r": 2}))


@pytest.mark.parametrize("head", ["of the base", "of nobody"])
def test_an_adapter_made_without_a_task_trains_its_head_and_keeps_it(
    project: Path, tmp_path: Path, head: str
) -> None:
    from peft import LoraConfig, get_peft_model
    from transformers import BertModel, BertTokenizer

    base = project / "model"
    if head == "of nobody":
        base = tmp_path / "base"
        BertModel.from_pretrained(project / "model").save_pretrained(base)
        BertTokenizer.from_pretrained(project / "model").save_pretrained(base)
    plain, _ = load_classifier(str(base), labels=["negative", "positive"])
    adapted = get_peft_model(plain, LoraConfig(target_modules=["query", "value"]))
    torch.nn.init.normal_(next(p for n, p in adapted.named_parameters() if "lora_B" in n))
    adapted.peft_config["default"].base_model_name_or_path = str(base)
    adapted.save_pretrained(tmp_path / "adapter")
    first = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert not any("classifier" in name for name in first)
    began, _ = load_classifier(str(tmp_path / "adapter"), labels=["negative", "positive"], seed=4)
    state = {n.replace(".default", ""): p for n, p in began.state_dict().items()}
    assert all(torch.equal(state[name], value) for name, value in first.items())
    settings = {**tree(project), "model": str(tmp_path / "adapter")}
    settings["train"].pop("lora")
    out = train(RunConfig.of(settings), tmp_path / "out")
    kept = load_file(out / "adapter_model.safetensors")
    moved = kept["base_model.model.classifier.weight"]
    before = state["base_model.model.classifier.modules_to_save.weight"]
    assert not torch.allclose(moved, before, atol=1e-4)
    again, _ = load_classifier(str(out))
    assert torch.equal(
        again.state_dict()["base_model.model.classifier.modules_to_save.default.weight"], moved
    )


@pytest.mark.parametrize("kind", ["trainer", "stepper"])
def test_a_frozen_head_of_a_given_adapter_is_a_warning(
    kind: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    from peft import LoraConfig, get_peft_model

    from temper import Stepper
    from tests.training.tiny_training import Rows, collate, make_trainer, tiny_model

    for task, words in ((None, "PEFT model is frozen"), ("SEQ_CLS", "")):
        config = LoraConfig(task_type=task, target_modules=["query", "value"])
        model = get_peft_model(tiny_model(), config)
        before = {name: p.detach().clone() for name, p in model.named_parameters()}
        caplog.clear()
        if kind == "trainer":
            make_trainer(tmp_path, model=model, max_steps=2).train()
        else:
            stepper = Stepper(model)
            stepper.backward(collate([Rows(4)[row] for row in range(4)]))
            stepper.step(torch.optim.SGD([p for p in model.parameters() if p.requires_grad], 0.1))
        messages = [record.getMessage() for record in caplog.records]
        assert any("task_type='SEQ_CLS'" in text for text in messages) is bool(words)
        assert any(words in text for text in messages) or not words
        head = [name for name, _ in model.named_parameters() if "classifier" in name]
        moved = any(not torch.equal(before[n], model.get_parameter(n)) for n in head)
        # The warning is right: the head moves with a task type only.
        assert moved is not bool(words)
