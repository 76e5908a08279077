"""Plain fine-tuning: the task's loss on the batch as it is, the network as configured."""

from __future__ import annotations

from temper.methods import Method, register


@register(
    "plain",
    summary="Plain fine-tuning",
    cost="3F",
    memory="none",
    paper="Devlin et al., NAACL 2019",
)
class Plain(Method):
    """Settings of plain fine-tuning: none."""
