"""One encoder with several heads: each task's predictions equal those of its own classifier."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModelForSequenceClassification,
    BartConfig,
    BertConfig,
    DistilBertConfig,
    LlamaConfig,
    PreTrainedConfig,
    RobertaConfig,
)

from temper.errors import ModelError
from temper.models.classical.networks import TextCNNConfig
from temper.models.hf import load_classifier
from temper.models.multi_task import (
    MTDNNConfig,
    MTDNNForSequenceClassification,
    check_task,
    share_encoder,
)
from temper.models.network import Network
from temper.types import Batch

TASKS = {"rte": ("entailment", "not_entailment"), "sts-b": (), "tnews": ("a", "b", "c")}
SMALL = {"vocab_size": 40, "hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2}
ENCODERS: dict[str, PreTrainedConfig] = {
    "bert": BertConfig(**SMALL, intermediate_size=8, initializer_range=0.3),
    "roberta": RobertaConfig(**SMALL, intermediate_size=8, initializer_range=0.3, pad_token_id=1),
    "distilbert": DistilBertConfig(vocab_size=40, dim=8, n_layers=2, n_heads=2, hidden_dim=8),
    "llama": LlamaConfig(**SMALL, intermediate_size=8, initializer_range=0.3, pad_token_id=0),
    "text_cnn": TextCNNConfig(vocab_size=40, embedding_size=8, filters=4),
}


def model_of(name: str, *, seed: int = 0) -> MTDNNForSequenceClassification:
    torch.manual_seed(seed)
    return MTDNNForSequenceClassification(MTDNNConfig.of(ENCODERS[name], TASKS)).eval()


def batch() -> dict[str, Tensor]:
    """Return rows of 3 to 6 tokens, padded on the right."""
    ids = torch.randint(5, 40, (3, 6), generator=torch.Generator().manual_seed(1))
    mask = torch.tensor([[1] * n + [0] * (6 - n) for n in (6, 3, 5)])
    return {"input_ids": ids * mask, "attention_mask": mask}


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
@pytest.mark.parametrize("task", TASKS)
def test_a_task_predicts_the_same_as_its_plain_classifier(
    tmp_path: Path, encoder: str, task: str
) -> None:
    model = model_of(encoder)
    plain = model.for_task(task)
    assert type(plain) is type(AutoModelForSequenceClassification.from_config(ENCODERS[encoder]))
    whole = model(**batch(), task=task).logits
    assert whole.shape == (3, plain.config.num_labels)
    torch.testing.assert_close(plain(**batch()).logits, whole)
    plain.save_pretrained(tmp_path)
    loaded = AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    # Where in memory weights lie may move the last bit of a product, and not the weights.
    for name, weight in plain.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    torch.testing.assert_close(loaded(**batch()).logits, whole)
    labels = dict(enumerate(TASKS[task] or ("LABEL_0",)))
    assert loaded.config.id2label == labels
    assert '"tasks"' not in (tmp_path / "config.json").read_text()


@pytest.mark.parametrize("encoder", sorted(ENCODERS))
def test_a_saved_multi_task_model_round_trips(tmp_path: Path, encoder: str) -> None:
    model = model_of(encoder)
    model.save_pretrained(tmp_path)
    assert AutoConfig.from_pretrained(tmp_path).tasks == model.config.tasks
    loaded, report = AutoModelForSequenceClassification.from_pretrained(
        tmp_path, output_loading_info=True
    )
    assert not any(report[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    loaded.eval()
    for name, weight in model.state_dict().items():
        assert torch.equal(loaded.state_dict()[name], weight), name
    for task in TASKS:
        torch.testing.assert_close(
            loaded(**batch(), task=task).logits, model(**batch(), task=task).logits
        )


def test_tasks_share_one_encoder_and_a_copy_has_another() -> None:
    model = model_of("bert")
    names = [name for name, _ in model.named_parameters()]
    assert sum("word_embeddings" in name for name in names) == 1
    assert sum(name.startswith("heads.") for name in names) == 2 * len(TASKS)
    other = copy.deepcopy(model)
    with torch.no_grad():
        other.get_input_embeddings().weight.zero_()
    assert other.heads["rte"].bert is other.encoder
    assert not torch.equal(other(**batch(), task="rte").logits, model(**batch(), task="rte").logits)


def test_a_step_on_one_task_gives_other_heads_no_gradient() -> None:
    model = model_of("bert")
    model(**batch(), task="rte", labels=torch.tensor([0, 1, 0])).loss.backward()
    moved = {name for name, weight in model.named_parameters() if weight.grad is not None}
    assert {name for name in moved if name.startswith("heads.")} == {
        "heads.rte.classifier.weight",
        "heads.rte.classifier.bias",
    }
    assert "encoder.embeddings.word_embeddings.weight" in moved


def test_a_batch_names_its_task_by_number_for_every_row() -> None:
    model = model_of("bert")
    numbered = model(**batch(), task=torch.tensor([2, 2, 2])).logits
    assert torch.equal(numbered, model(**batch(), task="tnews").logits)


@pytest.mark.parametrize(
    ("task", "said"),
    [
        (None, r"several tasks \(rte, sts-b, tnews\)"),
        ("cola", "Unknown task of this model 'cola'"),
        (torch.tensor([0, 1, 0]), r"rows of one task, got the numbers \[0, 1\]"),
        (torch.tensor([3, 3, 3]), "Task number 3 does not exist: there are 3"),
    ],
)
def test_a_batch_of_no_task_or_several_raises_an_error(task: Any, said: str) -> None:
    with pytest.raises(ModelError, match=said):
        model_of("bert")(**batch(), task=task)


def test_a_network_moves_words_and_has_the_same_dropout_sites_for_every_task() -> None:
    model = model_of("bert").train()
    network = Network(model)
    numbers = {name: torch.full((3,), index) for index, name in enumerate(("rte", "sts-b"))}
    batches = {name: Batch({**batch(), "task": number}) for name, number in numbers.items()}
    network.probe(batches["rte"])
    assert network.site_keys[-1][0] == "heads.rte.dropout"
    assert model.heads["sts-b"].dropout is model.heads["rte"].dropout
    model.eval()
    for name, each in batches.items():
        network.reset()
        still = torch.zeros(3, 6, 8)
        plain = model(**batch(), task=name).logits
        assert torch.equal(network.logits(each, delta=still)[:, 0], plain)
        still[1, 0] = 1.0
        moved = (network.logits(each, delta=still)[:, 0] != plain).any(1)
        assert moved.tolist() == [False, True, False]
    assert network.parameters().head == {
        name for name, _ in model.named_parameters() if name.startswith("heads.")
    }
    network.remove_hooks()


def test_the_encoder_comes_from_a_classifier_and_heads_from_the_seed() -> None:
    torch.manual_seed(3)
    source = AutoModelForSequenceClassification.from_config(ENCODERS["bert"])
    before = {name: weight.clone() for name, weight in source.state_dict().items()}
    first, again, other = (share_encoder(source, TASKS, seed=seed) for seed in (1, 1, 2))
    for name, weight in source.bert.state_dict().items():
        assert torch.equal(first.encoder.state_dict()[name], weight)
    heads = [each.heads.state_dict() for each in (first, again, other)]
    assert all(torch.equal(heads[0][name], heads[1][name]) for name in heads[0])
    assert not torch.equal(heads[0]["tnews.classifier.weight"], heads[2]["tnews.classifier.weight"])
    with torch.no_grad():
        first.get_input_embeddings().weight.zero_()
    assert all(torch.equal(weight, before[name]) for name, weight in source.state_dict().items())


@pytest.mark.parametrize("name", ["a.b", "", "../up", "keys", "-x", "training", "T_destination"])
def test_an_invalid_task_name_raises_an_error(name: str) -> None:
    with pytest.raises(ModelError, match="name of a task must .*letters, digits"):
        check_task(name)


def test_exactly_the_names_that_torch_rejects_raise_an_error() -> None:
    module = nn.ModuleDict()
    for name in (*vars(module), *dir(module), "rte", "train_2", "trainings"):
        taken = True
        try:
            nn.ModuleDict({name: nn.Identity()})
        except KeyError:
            taken = False
        if taken:
            check_task(name)
        else:
            with pytest.raises(ModelError, match=r"attribute of torch's ModuleDict, got"):
                check_task(name)


@pytest.mark.parametrize("labels", [("one",), ("a", "a")])
def test_labels_without_two_classes_raise_an_error(labels: tuple[str, ...]) -> None:
    with pytest.raises(ModelError, match="two or more different labels, or none"):
        MTDNNConfig.of(ENCODERS["bert"], {"rte": labels})


@pytest.mark.parametrize(
    "config", [BartConfig(), MTDNNConfig.of(ENCODERS["bert"], TASKS)], ids=["bart", "mt_dnn"]
)
def test_a_model_without_an_encoder_raises_an_error(config: Any) -> None:
    with pytest.raises(ModelError, match="MT-DNN shares one encoder"):
        MTDNNConfig.of(config, TASKS)


def test_the_multi_task_architecture_without_weights_raises_an_error() -> None:
    with pytest.raises(ModelError, match=r"'mt_dnn' is one encoder .* --model minilm --task"):
        load_classifier("mt_dnn", labels=["a", "b"])


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
def test_sharing_the_encoder_of_an_adapter_raises_an_error() -> None:
    from peft import LoraConfig, get_peft_model

    plain = AutoModelForSequenceClassification.from_config(ENCODERS["bert"])
    adapted = get_peft_model(plain, LoraConfig(task_type="SEQ_CLS", target_modules=["query"]))
    with pytest.raises(ModelError, match="An adapter .*several tasks"):
        share_encoder(adapted, TASKS)


def test_the_folder_of_all_tasks_is_no_classifier_of_one(tmp_path: Path) -> None:
    model_of("bert").save_pretrained(tmp_path)
    with pytest.raises(ModelError, match=r"Pass the folder of one: .*/tasks/rte, .*/tasks/sts-b"):
        load_classifier(str(tmp_path))
