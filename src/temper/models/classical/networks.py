"""TextCNN, BiLSTM and TextHAN as Transformers models, registered with the auto classes.

Sources: TextCNN is Kim 2014 (arXiv 1408.5882), CNN-rand and, with pre-trained vectors,
CNN-non-static; BiLSTM is Conneau et al. 2017; TextHAN is Yang et al. 2016.

Differs: TextCNN pads both sides of a row with half a window of zeros, so that rows shorter than a
window have an output. All three also apply dropout to the embeddings, whose rate adaptive dropout
sets.
"""

from __future__ import annotations

import math
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput


class ClassicalConfig(PreTrainedConfig):
    """Settings of all classical networks.

    Args:
        vocab_size: Number of tokens, including special tokens.
        embedding_size: D, width of a word embedding.
        dropout: Rate of every dropout layer, in [0, 1).
        initializer_range: Embeddings are drawn from U(-range, range) (Kim 2014: 0.25).
        pad_token_id: Id of the padding token, whose embedding is 0.
    """

    vocab_size: int = 20_000
    embedding_size: int = 128
    dropout: float | int = 0.5
    initializer_range: float = 0.25
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False


class TextCNNConfig(ClassicalConfig):
    """Config of a `TextCNNForSequenceClassification`.

    Args:
        windows: Widths of the convolutions, in words (Kim 2014: 3, 4, 5).
        filters: Number of filters of each width (Kim 2014: 100).
    """

    model_type = "text_cnn"

    windows: list[int] | tuple[int, ...] = (3, 4, 5)
    filters: int = 100


class BiLSTMConfig(ClassicalConfig):
    """Config of a `BiLSTMForSequenceClassification`.

    Args:
        hidden_size: Width of the hidden state in one direction.
        num_hidden_layers: Number of stacked layers.
        pooling: ``max`` over the words, or ``attention``.
    """

    model_type = "bilstm"

    hidden_size: int = 128
    num_hidden_layers: int = 1
    pooling: str = "max"


class TextHANConfig(ClassicalConfig):
    """Config of a `TextHANForSequenceClassification`.

    Args:
        hidden_size: Width of the hidden state in one direction (Yang et al. 2016: 50).
        sentence_ends: Ids of the tokens that end a sentence.
        sentence_length: Maximum number of tokens of a sentence; longer ones are split.
    """

    model_type = "text_han"

    hidden_size: int = 50
    sentence_ends: list[int] | tuple[int, ...] = ()
    sentence_length: int = 50


class ClassicalModel(PreTrainedModel):
    """Initializes weights: embeddings as in Kim (2014), other layers as in PyTorch."""

    config_class = ClassicalConfig
    base_model_prefix = "body"
    main_input_name = "input_ids"
    _input_embed_layer = "embeddings"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        if isinstance(module, nn.Embedding):
            bound = self.config.initializer_range
            init.uniform_(module.weight, -bound, bound)
            loaded = getattr(module.weight, "_is_hf_initialized", False)
            if module.padding_idx is not None and not loaded:
                init.zeros_(module.weight[module.padding_idx])
            return
        if isinstance(module, nn.Linear):
            fan_in = module.in_features
        elif isinstance(module, nn.Conv1d):
            fan_in = module.in_channels * module.kernel_size[0]
        elif isinstance(module, nn.RNNBase):
            fan_in = module.hidden_size
        else:
            return
        bound = 1 / math.sqrt(fan_in)
        for weight in module.parameters(recurse=False):
            init.uniform_(weight, -bound, bound)


class ClassicalBody(ClassicalModel):
    """Base class of networks from token ids to one pooled vector per row, [B, ``width``].

    Attacks and adaptive dropout require that the embedding module is called once, with the input
    ids, and that every dropout layer acts on [B, T, D] or [B, D].
    """

    width: int

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(
            config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id
        )
        self.dropout = nn.Dropout(config.dropout)

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Return the output of every block [B, T, H], and the pooled vectors [B, ``width``].

        ``hidden`` has the word embeddings [B, T, D], 0 at padding; ``mask`` [B, T] is False there.
        """
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Encode a batch.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: 1 at tokens that are not padding [B, T]; by default found by the padding
                id.
            output_hidden_states: Whether to return the word embeddings and every block's output.
        """
        real = input_ids != self.config.pad_token_id if attention_mask is None else attention_mask
        mask = real.bool()
        words = self.dropout(self.embeddings(input_ids)) * mask.unsqueeze(-1)
        states, pooled = self.run(words, mask, input_ids)
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        return BaseModelOutputWithPooling(
            last_hidden_state=states[-1],
            pooler_output=pooled,
            hidden_states=(words, *states) if output_hidden_states else None,
        )


class ClassicalClassifier(ClassicalModel):
    """Base class of classifiers: a `ClassicalBody`, dropout and one linear layer."""

    body_class: type[ClassicalBody]

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.body = self.body_class(config)
        self.dropout = nn.Dropout(config.dropout)
        self.classifier = nn.Linear(self.body.width, config.num_labels)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> SequenceClassifierOutput:
        """Classify a batch.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: 1 at tokens that are not padding [B, T]; by default found by the padding
                id.
            labels: Class indices [B], or targets [B] of a regression; without them there is no
                loss.
            output_hidden_states: Whether to return the word embeddings and every block's output.
        """
        read = self.body(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        logits = self.classifier(self.dropout(read.pooler_output))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=read.hidden_states)


def max_pooling(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the maximum [B, H] over tokens that are not padding.

    If several values are equal to it, only one of them gets the gradient.

    Example:
        >>> max_pooling(torch.tensor([[[1.0], [-3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[1.]])
    """
    lowest = torch.finfo(hidden.dtype).min
    pooled: Tensor = hidden.masked_fill(~mask.unsqueeze(-1), lowest).max(dim=1).values
    return pooled


class AttentionPooling(nn.Module):
    """Weighted mean of states by ``softmax(u . tanh(W h + b))`` (Yang et al. 2016, Eqs. 5-7)."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.projection = nn.Linear(size, size)
        self.context = nn.Linear(size, 1, bias=False)

    def forward(self, states: Tensor, mask: Tensor) -> Tensor:
        """Pool states [R, L, H] to [R, H]; ``mask`` [R, L] is True at real states."""
        scores = self.context(torch.tanh(self.projection(states))).squeeze(-1)
        weights = scores.masked_fill(~mask, -torch.inf).softmax(dim=1)
        pooled: Tensor = (weights.unsqueeze(-1) * states).sum(dim=1)
        return pooled


class ConvolutionBank(nn.Module):
    """Parallel convolutions of several widths: ``relu(w * x[t-l : t+r] + b)`` (Kim 2014, Eq. 2)."""

    def __init__(self, size: int, windows: tuple[int, ...], filters: int) -> None:
        super().__init__()
        self.windows = windows
        self.convolutions = nn.ModuleList(nn.Conv1d(size, filters, window) for window in windows)

    def forward(self, hidden: Tensor, mask: Tensor) -> Tensor:
        """Convolve [B, T, D] to [B, T, len(windows) * filters], 0 at padding."""
        words, outputs = hidden.transpose(1, 2), []
        for convolution, window in zip(self.convolutions, self.windows, strict=True):
            before = (window - 1) // 2
            outputs.append(convolution(F.pad(words, (before, window - 1 - before))))
        return torch.cat(outputs, dim=1).relu().transpose(1, 2) * mask.unsqueeze(-1)


class TextCNNModel(ClassicalBody):
    """TextCNN without its head."""

    config_class = TextCNNConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = len(config.windows) * config.filters
        # A list of one: find_blocks searches lists for the blocks of a network.
        self.layers = nn.ModuleList(
            [ConvolutionBank(config.embedding_size, tuple(config.windows), config.filters)]
        )
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        outputs = self.layers[0](hidden, mask)
        return [outputs], max_pooling(outputs, mask)


class TextCNNForSequenceClassification(ClassicalClassifier):
    """TextCNN with its head."""

    config_class = TextCNNConfig
    body_class = TextCNNModel


class Sequences(NamedTuple):
    """R sequences of states to run a recurrence over, and how the result returns to the tokens.

    Args:
        take: Positions [B, T] of the N states of all sequences, in order; boolean.
        lengths: Number of states of each sequence [R].
        give: Per token, the index (0 to N - 1) of the resulting state that it receives [B, T]; any
            at padding.
    """

    take: Tensor
    lengths: Tensor
    give: Tensor


def rows_of(mask: Tensor) -> Sequences:
    """Return one sequence per row: its tokens without padding, which may be on either side."""
    give = (mask.flatten().cumsum(0) - 1).clamp(min=0)
    return Sequences(mask, mask.sum(dim=1), give.view(mask.shape))


def padded(values: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Split values [N, H] by lengths [R] into padded sequences [R, L, H]; also return the mask."""
    real = torch.arange(int(lengths.max()), device=lengths.device) < lengths.unsqueeze(1)
    return values.new_zeros(*real.shape, values.shape[-1]).index_put((real,), values), real


class BiRecurrence(nn.Module):
    """A bidirectional LSTM or GRU; the backward one starts at the end of each sequence.

    ``hidden`` is H, the width of the hidden state in one direction.
    """

    def __init__(self, size: int, hidden: int, cell: Literal["lstm", "gru"]) -> None:
        super().__init__()
        kind = nn.LSTM if cell == "lstm" else nn.GRU
        self.ahead = kind(size, hidden, batch_first=True)
        self.back = kind(size, hidden, batch_first=True)

    def forward(self, hidden: Tensor, sequences: Sequences, mask: Tensor) -> Tensor:
        """Return the states of both directions for each token [B, T, 2 H], 0 at padding."""
        # Padded, because PyTorch's packed sequences take up to 1.5 times as long on a CPU.
        inputs, real = padded(hidden[sequences.take], sequences.lengths)
        indices = torch.arange(real.shape[1], device=real.device).expand(real.shape)
        turned = torch.where(real, sequences.lengths.unsqueeze(1) - 1 - indices, indices)

        def turn(values: Tensor) -> Tensor:
            return values.gather(1, turned.unsqueeze(-1).expand_as(values))

        # cuDNN's layers have no backward in evaluation mode.
        without: AbstractContextManager[None] = nullcontext()
        if not self.training and torch.is_grad_enabled():
            without = torch.backends.cudnn.flags(enabled=False)
        with without:
            ahead, back = self.ahead(inputs)[0], turn(self.back(turn(inputs))[0])
        states = torch.cat([ahead, back], dim=-1)[real]
        return states[sequences.give] * mask.unsqueeze(-1)


class BiLSTMModel(ClassicalBody):
    """BiLSTM without its head."""

    config_class = BiLSTMConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        sizes = [config.embedding_size, *[self.width] * (config.num_hidden_layers - 1)]
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "lstm") for size in sizes
        )
        self.between = nn.ModuleList(nn.Dropout(config.dropout) for _ in sizes[1:])
        self.attention = AttentionPooling(self.width) if config.pooling == "attention" else None
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        rows = rows_of(mask)
        states = [self.layers[0](hidden, rows, mask)]
        for dropout, layer in zip(self.between, self.layers[1:], strict=True):
            states.append(layer(dropout(states[-1]), rows, mask))
        pool = max_pooling if self.attention is None else self.attention
        return states, pool(states[-1], mask)


class BiLSTMForSequenceClassification(ClassicalClassifier):
    """BiLSTM with its head."""

    config_class = BiLSTMConfig
    body_class = BiLSTMModel


def find_sentences(mask: Tensor, ends: Tensor, *, longest: int) -> tuple[Sequences, Sequences]:
    """Split the rows of a batch into sentences.

    Args:
        mask: True at tokens that are not padding [B, T].
        ends: True at tokens that end a sentence [B, T]; of adjacent ones only the last does. The
            last token of a row always ends a sentence.
        longest: Maximum number of tokens of a sentence, >= 1.

    Returns:
        Two `Sequences`: the words of each sentence; and the sentences of each row, which take the
            state at the sentence's last token and give the result to all its tokens.
    """
    row, ending = mask.nonzero()[:, 0], ends[mask]
    new_row = row[1:] != row[:-1]
    ending = ending[:-1] & ~(ending[1:] & ~new_row)
    starts = F.pad(ending | new_row, (1, 0), value=True)
    indices = torch.arange(len(row), device=row.device)
    within = indices - torch.where(starts, indices, 0).cummax(dim=0).values
    starts = starts | (within % longest == 0)
    number = starts.cumsum(0) - 1
    last = F.pad(starts[1:], (0, 1), value=True)
    give = number.new_zeros(mask.shape).index_put((mask,), number)
    return (
        rows_of(mask)._replace(lengths=number.bincount()),
        Sequences(
            torch.zeros_like(mask).index_put((mask,), last),
            row[starts].bincount(minlength=len(mask)),
            give,
        ),
    )


class TextHANModel(ClassicalBody):
    """TextHAN without its head; its two blocks are the recurrences over words and sentences."""

    config_class = TextHANConfig

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.width = 2 * config.hidden_size
        self.layers = nn.ModuleList(
            BiRecurrence(size, config.hidden_size, "gru")
            for size in (config.embedding_size, self.width)
        )
        self.between = nn.Dropout(config.dropout)
        self.word_attention = AttentionPooling(self.width)
        self.sentence_attention = AttentionPooling(self.width)
        self.post_init()

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        marks = torch.tensor(list(self.config.sentence_ends), device=input_ids.device)
        in_sentence, in_row = find_sentences(
            mask, torch.isin(input_ids, marks), longest=self.config.sentence_length
        )
        words = self.layers[0](hidden, in_sentence, mask)
        states = self.between(words)[in_sentence.take]
        sentences = self.word_attention(*padded(states, in_sentence.lengths))
        texts = self.layers[1](sentences[in_row.give], in_row, mask)
        pooled = self.sentence_attention(*padded(texts[in_row.take], in_row.lengths))
        return [words, texts], pooled


class TextHANForSequenceClassification(ClassicalClassifier):
    """TextHAN with its head."""

    config_class = TextHANConfig
    body_class = TextHANModel


# Importing this module registers the networks with the auto classes of Transformers.
for _classifier in (
    TextCNNForSequenceClassification,
    BiLSTMForSequenceClassification,
    TextHANForSequenceClassification,
):
    _config = _classifier.config_class
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _classifier.body_class, exist_ok=True)
    AutoModelForSequenceClassification.register(_config, _classifier, exist_ok=True)
