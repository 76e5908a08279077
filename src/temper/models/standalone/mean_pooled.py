"""A Transformers model: a linear classifier on the mean of an encoder's last hidden states.

Importing this file registers it with the auto classes. Exported folders contain a copy, so it needs
only torch and Transformers.

Source: Reimers & Gurevych 2019, Sentence-BERT, section 3 (MEAN pooling).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModel,
    AutoModelForSequenceClassification,
    PreTrainedConfig,
    PreTrainedModel,
)
from transformers.modeling_outputs import SequenceClassifierOutput


class MeanPooledConfig(PreTrainedConfig):
    """Config of a `MeanPooledForSequenceClassification`.

    Args:
        encoder: Config of the encoder as a dictionary, with its ``model_type``.
        pad_token_id: Id of the encoder's padding token.
    """

    model_type = "mean_pooled"

    encoder: dict[str, Any] | None = None
    pad_token_id: int | None = None

    @property
    def encoder_config(self) -> Any:
        """The encoder's config as an object."""
        settings = dict(self.encoder or {})
        return AutoConfig.for_model(settings.pop("model_type"), **settings)

    @property
    def hidden_size(self) -> int:
        """D, the width of an embedding."""
        return int((self.encoder or {})["hidden_size"])

    @property
    def vocab_size(self) -> int:
        """Number of embeddings of the encoder."""
        return int((self.encoder or {})["vocab_size"])


def mean_embedding(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of each row's hidden states, scaled to length 1, [B, D].

    Args:
        hidden: Hidden states [B, T, D].
        mask: 1 at tokens, 0 at padding [B, T].
    """
    real = mask.unsqueeze(-1).to(hidden.dtype)
    # Multiplying by 0 would keep the NaN of a padded state.
    return normalize(torch.where(real > 0, hidden, 0.0).sum(1) / real.sum(1))


class MeanPooledForSequenceClassification(PreTrainedModel):
    """A linear layer on the mean of an encoder's last hidden states, scaled to length 1.

    Args:
        config: The config, with that of the encoder.
        encoder: A loaded encoder; by default a new one with random weights.
    """

    config_class = MeanPooledConfig
    base_model_prefix = "encoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    # Whether the encoder supports them is checked by the encoder itself.
    _supports_sdpa = True
    _supports_flash_attn = True

    def __init__(self, config: Any, encoder: Any = None) -> None:
        super().__init__(config)
        self.num_labels = config.num_labels
        self.encoder = AutoModel.from_config(config.encoder_config) if encoder is None else encoder
        if hasattr(self.encoder, "pooler"):
            # The unused pooler would get no gradient, which distributed training does not allow.
            self.encoder.pooler = None
        self.dropout = nn.Dropout(getattr(config.encoder_config, "hidden_dropout_prob", 0.1))
        self.classifier = nn.Linear(config.hidden_size, config.num_labels)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        if module is self.classifier:
            super()._init_weights(module)

    def get_input_embeddings(self) -> nn.Module:
        """Return the encoder's embedding module."""
        table: nn.Module = self.encoder.get_input_embeddings()
        return table

    @torch.no_grad()
    def set_head(self, weight: Any, bias: Any) -> None:
        """Set the weights of the linear layer, for example to a fitted logistic regression.

        Args:
            weight: Array [C, D].
            bias: Array [C].
        """
        self.classifier.weight.copy_(torch.from_numpy(weight))
        self.classifier.bias.copy_(torch.from_numpy(bias))

    def embed(self, input_ids: Tensor, attention_mask: Tensor, **inputs: Any) -> tuple[Tensor, Any]:
        """Return the embedding of each row, scaled to length 1 [B, D], and the encoder's output."""
        output = self.encoder(input_ids=input_ids, attention_mask=attention_mask, **inputs)
        return mean_embedding(output.last_hidden_state, attention_mask), output

    def forward(
        self,
        input_ids: Tensor,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        labels: Tensor | None = None,
        output_hidden_states: bool | None = None,
        **inputs: Any,
    ) -> SequenceClassifierOutput:
        """Classify a batch.

        Args:
            input_ids: Token ids [B, T].
            attention_mask: 1 at tokens that are not padding [B, T]; by default found by the padding
                id.
            token_type_ids: The text (0 or 1) that a token belongs to [B, T]; None for encoders
                without types.
            labels: Class indices [B], or targets [B] of a regression; without them there is no
                loss.
            output_hidden_states: Whether to return the encoder's hidden states.
            inputs: Further arguments of the encoder.
        """
        if attention_mask is None:
            attention_mask = (input_ids != self.config.pad_token_id).long()
        if token_type_ids is not None:
            inputs["token_type_ids"] = token_type_ids
        if output_hidden_states is not None:
            inputs["output_hidden_states"] = output_hidden_states
        embedding, output = self.embed(input_ids, attention_mask, **inputs)
        logits = self.classifier(self.dropout(embedding))
        loss = None
        if labels is not None:
            loss = self.loss_function(labels=labels, pooled_logits=logits, config=self.config)
        return SequenceClassifierOutput(
            loss=loss,
            logits=logits,
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )


if MeanPooledConfig.model_type not in CONFIG_MAPPING:
    AutoConfig.register(MeanPooledConfig.model_type, MeanPooledConfig)
    AutoModelForSequenceClassification.register(
        MeanPooledConfig, MeanPooledForSequenceClassification
    )
