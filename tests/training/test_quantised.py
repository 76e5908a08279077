"""Adapters on bases of 4 and 8 bits: what is trained, kept, resumed, read again and merged."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForSequenceClassification, GPT2Config, GPT2Model

from temper.errors import ModelError, SettingError
from temper.models.adapters import Lora, merged
from temper.models.hf import load_classifier
from temper.models.quantised import Quantised
from temper.training import settings
from temper.training.config import RunConfig
from temper.training.passes import passes_of
from temper.training.run import train
from temper.training.settings import LoraSettings
from temper.training.stepper import Stepper
from tests.training.listeners import StopAt
from tests.training.tiny_training import record, settings_of_run

pytestmark = pytest.mark.filterwarnings(
    "ignore:`is_gradient_checkpointing` is deprecated:FutureWarning"
)
BITS = pytest.mark.parametrize("bits", [4, 8])
METHODS = ["vanilla", "at", "uegr", "jachess"]
BATCH = {
    "input_ids": torch.tensor([[5, 6, 7, 8], [9, 10, 11, 12]]),
    "attention_mask": torch.ones(2, 4, dtype=torch.long),
    "labels": torch.tensor([0, 1]),
}


@pytest.fixture
def installed() -> None:
    pytest.importorskip("bitsandbytes", reason="needs the extra quantised")


def tree(project: Path, bits: int | None = 4, *, method: str = "uegr", **more: Any) -> Any:
    """Return the settings of a short run; ``more`` is of the adapter or of the training loop."""
    own = {name: more.pop(name) for name in ("kind", "merge") if name in more}
    lora = {"target_modules": ["query", "value"], **own} if "kind" not in own else own
    more = {"max_steps": 4, "learning_rate": 1e-2, "lora": {**lora, "bits": bits}, **more}
    return {**settings_of_run(project, method=method, **more), "seed": 4}


def adapted(project: Path, bits: int, **changes: Any) -> Any:
    """Return a tiny model with an adapter on a quantised base, without dropout."""
    changes = changes or {"target_modules": "all-linear"}
    lora = Lora(base=Quantised(bits), **changes)  # type: ignore[arg-type]
    model, _ = load_classifier(str(project / "model"), labels=["negative", "positive"], lora=lora)
    for module in model.modules():
        if isinstance(module, torch.nn.Dropout):
            module.p = 0.0
    return model.train()


def answers(model: Any) -> Tensor:
    with torch.no_grad():
        logits: Tensor = model.eval()(**BATCH).logits
    return logits


# Without bitsandbytes too


def test_runs_on_quantised_bases_have_keys_of_their_own(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(settings, "not_installed", lambda: "")
    configs = [RunConfig.of(tree(project, bits)) for bits in (None, 4, 8)]
    keys = {config.key(model="m", train_hash="a", dev_hash="b") for config in configs}
    assert len(keys) == 3
    assert "bits" not in LoraSettings().model_dump()
    for kind in ("lora", "dora", "ia3"):
        written = RunConfig.of(tree(project, kind=kind)).train.model_dump(mode="json")["lora"]
        assert LoraSettings(**written).bits == 4
    with pytest.raises(SettingError, match=r"`train\.lora\.bits` must be 4 or 8, got 3"):
        RunConfig.of(tree(project, 3))


def test_without_bitsandbytes_the_extra_is_named(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name, package=None: None)
    said = r"bits.* needs bitsandbytes, which is not installed \(pip install 'bitsandbytes>="
    with pytest.raises(SettingError, match=said):
        RunConfig.of(tree(project))
    with pytest.raises(ModelError, match=said):
        load_classifier(
            str(project / "model"), labels=["negative", "positive"], lora=Lora(base=Quantised(8))
        )


@pytest.mark.parametrize("told", [{"bits": 3}, {"bits": 4, "compute_dtype": "int8"}])
def test_a_config_that_names_no_such_base_is_refused(told: dict[str, Any]) -> None:
    with pytest.raises(ModelError, match="A quantised base has 4 or 8 bits and computes in one of"):
        Quantised(**told)


# With it


@BITS
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("installed")
def test_a_stopped_run_goes_on_and_its_adapter_answers_as_it_was_trained(
    project: Path, method: str, bits: int
) -> None:
    name = f"{method}-{bits}"
    config = RunConfig.of(tree(project, bits, method=method))
    out, stopped = train(config, project / name), project / f"{name}-stopped"
    with pytest.raises(KeyboardInterrupt):
        train(config, stopped, progress=StopAt(3))
    train(config, stopped)
    file = "adapter_model.safetensors"
    assert (stopped / file).read_bytes() == (out / file).read_bytes()
    assert all("lora_" in name or "classifier" in name for name in load_file(out / file))
    assert record(out)["settings"]["train"]["lora"]["bits"] == bits
    model, _ = load_classifier(str(out))
    assert model.config.base_quantization == {"bits": bits, "compute_dtype": "float32"}
    plain = train(RunConfig.of(tree(project, bits, method=method, merge=True)), project / "plain")
    again = AutoModelForSequenceClassification.from_pretrained(plain)
    # What is merged does not round the inputs of its layers to 8 bits.
    close = 1e-6 if bits == 4 else 1e-3
    torch.testing.assert_close(answers(again), answers(model), atol=close, rtol=0)
    shutil.rmtree(plain)


@BITS
@pytest.mark.parametrize("kind", ["dora", "ia3"])
@pytest.mark.usefixtures("installed")
def test_other_kinds_are_merged_too(project: Path, kind: Any, bits: int) -> None:
    model = adapted(project, bits, kind=kind)
    for name, weight in model.named_parameters():
        if weight.requires_grad and ("lora_B" in name or "ia3_l" in name):
            torch.nn.init.normal_(weight, 1.0, 0.1)
    asked = answers(model)
    close = 1e-5 if bits == 4 else 5e-3
    torch.testing.assert_close(answers(merged(model)), asked, atol=close, rtol=0)


@BITS
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.usefixtures("installed")
def test_only_adapter_and_head_move(project: Path, method: str, bits: int) -> None:
    model = adapted(project, bits)
    before = {name: each.detach().clone() for name, each in model.named_parameters()}
    stepper = Stepper(model, method)
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.1)
    stepper.prepare([BATCH])
    stepper.begin_epoch(0)
    for _ in range(2):
        optimizer.zero_grad()
        stepper.backward(BATCH)
        stepper.step(optimizer)
    moved = {n for n, each in model.named_parameters() if not torch.equal(each, before[n])}
    assert any("lora_A" in name for name in moved)
    assert any("classifier" in name for name in moved)
    assert all("lora_" in name or "modules_to_save" in name for name in moved)
    assert passes_of(model, stepper.method, BATCH) is None


@BITS
@pytest.mark.usefixtures("installed")
def test_an_attack_reaches_the_embeddings_and_follows_the_gradient(
    project: Path, bits: int
) -> None:
    model, seen = adapted(project, bits), []
    norm = next(m for name, m in model.named_modules() if name.endswith("embeddings.LayerNorm"))
    norm.register_forward_pre_hook(lambda module, args: seen.append(args[0].detach()))
    stepper = Stepper(model, "at")
    seen.clear()
    logs = stepper.backward(BATCH)
    assert float((seen[-1] - seen[0]).norm()) > 0
    # An attack that follows the loss's gradient raises the loss.
    assert logs["loss/adversarial"] > logs["loss/task"]


@BITS
@pytest.mark.usefixtures("installed")
def test_an_evaluation_in_between_changes_no_gradient(project: Path, bits: int) -> None:
    model = adapted(project, bits)
    found = []
    for _ in range(2):
        model.train().zero_grad()
        model(**BATCH).loss.backward()
        found.append({n: p.grad.clone() for n, p in model.named_parameters() if p.requires_grad})
        answers(model)
    assert all(torch.equal(found[0][name], found[1][name]) for name in found[0])


@pytest.mark.usefixtures("installed")
def test_checkpointing_recomputes_the_same_step(project: Path) -> None:
    runs = [
        train(RunConfig.of(tree(project, gradient_checkpointing=on)), project / f"check-{on}")
        for on in (False, True)
    ]
    kept = [load_file(run / "adapter_model.safetensors") for run in runs]
    for name in kept[0]:
        torch.testing.assert_close(kept[0][name], kept[1][name], atol=1e-6, rtol=1e-4)


@BITS
@pytest.mark.usefixtures("installed")
def test_transposed_layers_are_merged_the_right_way_round(
    project: Path, tmp_path: Path, bits: int
) -> None:
    folder = tmp_path / "gpt2"
    shutil.copytree(project / "model", folder)
    words = AutoModelForSequenceClassification.from_pretrained(folder).config.vocab_size
    (folder / "model.safetensors").unlink()
    config = GPT2Config(vocab_size=words, n_embd=32, n_layer=2, n_head=2, n_positions=16)
    torch.manual_seed(0)
    GPT2Model(config).save_pretrained(folder)
    lora = Lora(base=Quantised(bits))  # type: ignore[arg-type]
    model, _ = load_classifier(str(folder), labels=["a", "b"], lora=lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    asked = answers(model)
    merged(model).save_pretrained(tmp_path / "plain")
    plain, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path / "plain", output_loading_info=True
    )
    assert not any(report.values())
    close = 1e-5 if bits == 4 else 5e-3
    torch.testing.assert_close(answers(plain), asked, atol=close, rtol=0)


@pytest.mark.usefixtures("installed")
def test_weights_that_are_quantised_already_are_refused(project: Path, tmp_path: Path) -> None:
    from transformers import BitsAndBytesConfig

    AutoModelForSequenceClassification.from_pretrained(
        project / "model", quantization_config=BitsAndBytesConfig(load_in_8bit=True)
    ).save_pretrained(tmp_path)
    for file in (project / "model").glob("*token*"):
        shutil.copy(file, tmp_path)
    with pytest.raises(ModelError, match=r"quantised already\. Give the model in full precision"):
        load_classifier(str(tmp_path), lora=Lora(base=Quantised(8)))
