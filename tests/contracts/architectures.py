"""Tiny random classifiers of every supported architecture, and padded batches that fit them.

Token ids: 0 pads and 1 begins a row (swapped for RoBERTa and MPNet, whose code requires it), 2 ends
it, 3 is unknown, others are words. Every row ends with exactly one 2, because T5 and BART read the
classification position there and need the same number of them in each row.
"""

from __future__ import annotations

import copy
import warnings
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
import transformers
from peft import LoraConfig, get_peft_model
from torch import Tensor, nn

from temper.models import classical
from temper.models.mean_pooled import mean_pooled
from temper.types import Batch

END = 2
VOCABULARY = 60
LENGTHS = (7, 4, 6, 5)


@dataclass(frozen=True)
class Architecture:
    """How to build one architecture's tiny classifier.

    Args:
        name: Prefix of the classes, in Transformers or in Temper.
        settings: Arguments of the config, except the special tokens.
        dropout: Names of the config's dropout rates; none for those that call no dropout.
        left: Whether it is also tried with left-padded rows.
        pad: Id of the padding token; 0 or 1, and the other one begins a row.
        embedding: Name of the module that takes the encoder's input ids.
        blocks: Names of the lists of blocks.
        layers: How many blocks each list holds.
    """

    name: str
    settings: dict[str, Any]
    dropout: tuple[str, ...]
    embedding: str
    blocks: tuple[str, ...]
    left: bool = False
    pad: int = 0
    layers: int = 2


BERT_LIKE = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 24,
}
BERT_DROPOUT = ("hidden_dropout_prob", "attention_probs_dropout_prob")


def bert_like(
    name: str,
    prefix: str,
    *,
    dropout: tuple[str, ...] = BERT_DROPOUT,
    pad: int = 0,
    blocks: str = "encoder.layer",
    layers: int = 2,
    **settings: Any,
) -> Architecture:
    """Return an architecture whose settings and modules are named as BERT's are."""
    return Architecture(
        name,
        {**BERT_LIKE, **settings},
        dropout,
        f"{prefix}.embeddings.word_embeddings",
        (f"{prefix}.{blocks}",),
        pad=pad,
        layers=layers,
    )


def llama_like(name: str) -> Architecture:
    """Return a decoder without dropout, whose modules are named as LLaMA's are."""
    settings = {**BERT_LIKE, "num_key_value_heads": 1}
    return Architecture(name, settings, (), "model.embed_tokens", ("model.layers",), left=True)


def of_ours(name: str, *, layers: int = 2, **settings: Any) -> Architecture:
    """Return one of the networks that Temper brings itself."""
    sizes = {"embedding_size": 8, **settings}
    roles = ("body.embeddings", ("body.layers",))
    return Architecture(name, sizes, ("dropout",), *roles, left=True, layers=layers)


MEAN_POOLED = "mean_pooled"
ARCHITECTURES: dict[str, Architecture] = {
    "bert": bert_like("Bert", "bert"),
    "roberta": bert_like("Roberta", "roberta", pad=1),
    "albert": bert_like(
        "Albert",
        "albert",
        dropout=(*BERT_DROPOUT, "classifier_dropout_prob"),
        blocks="encoder.albert_layer_groups",
        layers=1,
        embedding_size=8,
        num_hidden_groups=1,
    ),
    "distilbert": Architecture(
        "DistilBert",
        {"dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 24, "max_position_embeddings": 24},
        ("dropout", "attention_dropout", "seq_classif_dropout"),
        "distilbert.embeddings.word_embeddings",
        ("distilbert.transformer.layer",),
    ),
    "electra": bert_like("Electra", "electra", embedding_size=8),
    "xlnet": Architecture(
        "XLNet",
        {"d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 24},
        ("dropout", "summary_last_dropout"),
        "transformer.word_embedding",
        ("transformer.layer",),
        left=True,
    ),
    "deberta_v2": bert_like(
        "DebertaV2",
        "deberta",
        dropout=(*BERT_DROPOUT, "pooler_dropout"),
        relative_attention=True,
        position_buckets=4,
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        pos_att_type=["p2c", "c2p"],
        type_vocab_size=0,
        position_biased_input=False,
    ),
    "mpnet": bert_like("MPNet", "mpnet", pad=1),
    "gpt2": Architecture(
        "GPT2",
        {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 24},
        ("resid_pdrop", "embd_pdrop", "attn_pdrop"),
        "transformer.wte",
        ("transformer.h",),
        left=True,
    ),
    "opt": Architecture(
        "OPT",
        {
            "hidden_size": 16,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "ffn_dim": 24,
            "word_embed_proj_dim": 8,
            "max_position_embeddings": 24,
        },
        ("dropout", "attention_dropout"),
        "model.decoder.embed_tokens",
        ("model.decoder.layers",),
        left=True,
    ),
    "llama": llama_like("Llama"),
    "qwen2": llama_like("Qwen2"),
    "t5": Architecture(
        "T5",
        {
            "d_model": 16,
            "d_kv": 8,
            "d_ff": 24,
            "num_layers": 2,
            "num_heads": 2,
            "decoder_start_token_id": 0,
        },
        ("dropout_rate", "classifier_dropout"),
        "transformer.encoder.embed_tokens",
        ("transformer.encoder.block", "transformer.decoder.block"),
    ),
    "bart": Architecture(
        "Bart",
        {
            "d_model": 16,
            "encoder_layers": 2,
            "decoder_layers": 2,
            "encoder_attention_heads": 2,
            "decoder_attention_heads": 2,
            "encoder_ffn_dim": 24,
            "decoder_ffn_dim": 24,
            "max_position_embeddings": 24,
            "decoder_start_token_id": END,
            "forced_eos_token_id": END,
        },
        ("dropout", "attention_dropout", "classifier_dropout"),
        "model.encoder.embed_tokens",
        ("model.encoder.layers", "model.decoder.layers"),
    ),
    MEAN_POOLED: bert_like("Bert", "encoder"),
    "text_cnn": of_ours("TextCNN", layers=1, filters=6),
    "bilstm": of_ours("BiLSTM", hidden_size=6, num_hidden_layers=2),
    "text_han": of_ours("TextHAN", hidden_size=6, sentence_ends=list(range(30, 45))),
}
LORA = "llama_lora"
LORA_PREFIX = "base_model.model."

CASES: list[tuple[str, str]] = [
    *((name, "right") for name in [*ARCHITECTURES, LORA]),
    *((name, "left") for name, each in ARCHITECTURES.items() if each.left),
    (LORA, "left"),
]
"""(architecture, padding side), every pair that is tried."""
CLASSICAL = tuple(classical.ARCHITECTURES)
"""Those that Temper brings itself: no attention, and heads that pool over the tokens."""


def of(name: str) -> Architecture:
    """Return an architecture; the adapted LLaMA is a LLaMA inside."""
    return ARCHITECTURES["llama" if name == LORA else name]


@cache
def _original(name: str, dropout: float, labels: int) -> nn.Module:
    architecture = of(name)
    # Wide weights, so that words matter: at the usual .02 a tiny model gives nearly one logit.
    spread = {
        "t5": {"initializer_factor": 1.0},
        "bart": {"init_std": 0.4},
        "opt": {"init_std": 0.4},
    }
    kind = (
        classical.ARCHITECTURES[name].classifier()
        if name in CLASSICAL
        else getattr(transformers, f"{architecture.name}ForSequenceClassification")
    )
    config = kind.config_class(
        vocab_size=VOCABULARY,
        pad_token_id=architecture.pad,
        bos_token_id=1 - architecture.pad,
        eos_token_id=END,
        num_labels=labels,
        **architecture.settings,
        **spread.get(name, {"initializer_range": 0.4}),
        **dict.fromkeys(architecture.dropout, dropout),
    )
    torch.manual_seed(1)
    model = kind(config)
    if name == MEAN_POOLED:
        model = mean_pooled(model, None if labels == 1 else [f"class {i}" for i in range(labels)])
        nn.init.normal_(model.classifier.weight)
    if name == LORA:
        # init_lora_weights=False: at its usual start B is zero and A has no gradient at all.
        adapter = LoraConfig(
            task_type="SEQ_CLS", r=2, lora_dropout=dropout, init_lora_weights=False
        )
        with warnings.catch_warnings():
            # PEFT asks Transformers for a name that is on its way out.
            warnings.simplefilter("ignore", FutureWarning)
            model = get_peft_model(model, adapter)
    return model.eval()


def tiny(name: str, *, dropout: float = 0.1, labels: int = 3) -> nn.Module:
    """Return a new copy of an architecture's tiny classifier, in evaluation mode.

    Args:
        name: A key of ``ARCHITECTURES`` or ``LORA``.
        dropout: Every rate of the config.
        labels: Classes; 1 is a regression.
    """
    return copy.deepcopy(_original(name, dropout, labels))


def inputs_of(
    name: str, *, side: str = "right", regression: bool = False
) -> dict[str, torch.Tensor]:
    """Return four padded rows of different lengths as a collator gives them."""
    draws = torch.Generator().manual_seed(5)
    longest, pad = max(LENGTHS), of(name).pad
    ids = torch.full((len(LENGTHS), longest), pad)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(LENGTHS):
        words = torch.randint(4, VOCABULARY, (length - 2,), generator=draws)
        tokens = torch.tensor([1 - pad, *words.tolist(), END])
        part = slice(0, length) if side == "right" else slice(longest - length, longest)
        ids[row, part], mask[row, part] = tokens, 1
    labels = torch.tensor([0.5, -1.0, 2.0, 0.0]) if regression else torch.tensor([0, 2, 1, 0])
    return {"input_ids": ids, "attention_mask": mask, "labels": labels}


def batch_of(name: str, *, side: str = "right", regression: bool = False) -> Batch:
    """Return the rows of ``inputs_of`` as a batch."""
    return Batch.of(inputs_of(name, side=side, regression=regression))


def plain_logits(model: nn.Module, inputs: dict[str, Tensor]) -> Tensor:
    """Return the logits that a model gives with Temper out of the way."""
    # With gradients on, as Temper runs it: T5's attention takes another kernel without them.
    output = model(**{key: value for key, value in inputs.items() if key != "labels"})
    return output.logits.detach()


def marks(model: nn.Module) -> dict[str, tuple[Any, ...]]:
    """Return everything about a model's modules that a network may touch.

    Hooks of Transformers are left out: they stay on a model that once returned its attention.
    """
    own = "output_capturing_hook"
    return {
        name: (
            type(module),
            sum(getattr(hook, "__name__", "") != own for hook in module._forward_hooks.values()),
            len(module._forward_pre_hooks),
            getattr(module, "p", None),
            sorted(set(vars(module)) - {"_output_capturing_hooks_installed"}),
        )
        for name, module in model.named_modules()
    }
