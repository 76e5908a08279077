"""What the classical networks share: their configs, words in, a pooled row, one head."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers import initialization as init
from transformers.modeling_outputs import BaseModelOutputWithPooling, SequenceClassifierOutput


class ClassicalConfig(PreTrainedConfig):
    """What the configs of all classical networks say.

    Args:
        vocab_size: Words that are known, special tokens among them.
        embedding_size: D, width of a word's embedding.
        dropout: Rate of every dropout layer, in [0, 1).
        initializer_range: Words are drawn from U(-range, range) (Kim 2014: .25).
        pad_token_id: Id of the padding token, whose embedding is 0.
    """

    model_type = "temper_classical"

    vocab_size: int = 20_000
    embedding_size: int = 128
    dropout: float | int = 0.5
    initializer_range: float = 0.25
    pad_token_id: int | None = 0
    tie_word_embeddings: bool = False


class TextCNNConfig(ClassicalConfig):
    """Config of a `TextCNNForSequenceClassification`.

    Args:
        windows: Widths of the convolutions in words (Kim 2014: 3, 4, 5).
        filters: Filters of each width (Kim 2014: 100).
    """

    model_type = "text_cnn"

    windows: list[int] | tuple[int, ...] = (3, 4, 5)
    filters: int = 100


class BiLSTMConfig(ClassicalConfig):
    """Config of a `BiLSTMForSequenceClassification`.

    Args:
        hidden_size: Width of one direction's state.
        num_hidden_layers: Layers, one upon the other.
        pooling: ``max`` over the words, or ``attention``.
    """

    model_type = "bilstm"

    hidden_size: int = 128
    num_hidden_layers: int = 1
    pooling: str = "max"


class TextHANConfig(ClassicalConfig):
    """Config of a `TextHANForSequenceClassification`.

    Args:
        hidden_size: Width of one direction's state (Yang et al. 2016: 50).
        sentence_ends: Ids of the tokens that end a sentence.
        sentence_length: Most tokens of a sentence; longer ones are cut in pieces.
    """

    model_type = "text_han"

    hidden_size: int = 50
    sentence_ends: list[int] | tuple[int, ...] = ()
    sentence_length: int = 50


class ClassicalModel(PreTrainedModel):
    """Draw the weights of a classical network: words uniformly, the rest by their fan-in."""

    config_class = ClassicalConfig
    base_model_prefix = "body"
    main_input_name = "input_ids"

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Draw what a checkpoint lacks: each layer as PyTorch does, words as Kim (2014)."""
        if isinstance(module, nn.Embedding):
            bound = self.config.initializer_range
            init.uniform_(module.weight, -bound, bound)
            if module.padding_idx is not None and not getattr(
                module.weight, "_is_hf_initialized", False
            ):
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
    """A network from token ids to one pooled vector a row.

    The embedding module is called once, with the input ids, and every dropout layer stands on
    [B, T, D] or [B, D], so that attacks and adaptive dropout find their places.

    Args:
        config: Its config; ``layers`` and ``width`` are the subclass's.
    """

    def __init__(self, config: Any) -> None:
        super().__init__(config)
        self.embeddings = nn.Embedding(
            config.vocab_size, config.embedding_size, padding_idx=config.pad_token_id
        )
        self.dropout = nn.Dropout(config.dropout)

    def get_input_embeddings(self) -> nn.Module:
        """Return the table that words are looked up in."""
        return self.embeddings

    def set_input_embeddings(self, value: nn.Embedding) -> None:
        """Take another table.

        Args:
            value: The table.
        """
        self.embeddings = value

    def run(self, hidden: Tensor, mask: Tensor, input_ids: Tensor) -> tuple[list[Tensor], Tensor]:
        """Run the blocks.

        Args:
            hidden: Embedded words [B, T, D], 0 at padding.
            mask: Real tokens [B, T], boolean.
            input_ids: Token ids [B, T].

        Returns:
            The output of every block [B, T, H], and what is pooled from the last [B, P].
        """
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool | None = None,
    ) -> BaseModelOutputWithPooling:
        """Read a batch.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: Real tokens [B, T]; None takes all that are not padding.
            output_hidden_states: Whether the embedded words and every block's output are kept.

        Returns:
            Last hidden state [B, T, H], pooled rows [B, P], and the states where they are wanted.
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
    """A body, dropout and one linear layer; the subclass names its config and its body.

    Args:
        config: Its config, with ``num_labels`` and ``problem_type``.
    """

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
            attention_mask: Real tokens [B, T]; None takes all that are not padding.
            labels: Class indices [B], or targets [B] of a regression; the loss is left out without.
            output_hidden_states: Whether the embedded words and every block's output are kept.

        Returns:
            Logits [B, C], and the loss and the states where they are wanted.
        """
        read = self.body(input_ids, attention_mask, output_hidden_states=output_hidden_states)
        logits = self.classifier(self.dropout(read.pooler_output))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(loss=loss, logits=logits, hidden_states=read.hidden_states)


def greatest(hidden: Tensor, mask: Tensor) -> Tensor:
    """Pool the greatest value over the real tokens.

    Args:
        hidden: [B, T, H].
        mask: Real tokens [B, T], boolean.

    Returns:
        [B, H]; of equal values one place alone has the gradient.

    Example:
        >>> greatest(torch.tensor([[[1.0], [-3.0], [9.0]]]), torch.tensor([[True, True, False]]))
        tensor([[1.]])
    """
    lowest = torch.finfo(hidden.dtype).min
    pooled: Tensor = hidden.masked_fill(~mask.unsqueeze(-1), lowest).max(dim=1).values
    return pooled
