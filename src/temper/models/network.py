"""Run a classifier with perturbed embeddings and planned dropout.

The perturbation is added by a hook on the embedding module that is called with the encoder's input
ids. ``inputs_embeds`` would be shorter but wrong: it changes logits of right-padded decoders and
left-padded RoBERTa models, and T5 and BART do not support it. One probing forward finds the module.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.utils.hooks import RemovableHandle

from temper.errors import ModelError
from temper.functional.precision import at_least_single
from temper.heads import Heads
from temper.models.blocks import Parameters as Parameters
from temper.models.blocks import find_blocks, has_dropout, parameters_of, remove_hooks, unwrap
from temper.models.cuts import BlockCuts
from temper.models.kinds import head_of
from temper.models.passes import DropoutPlan, Recording, SiteKey
from temper.models.probing import Place, hidden_state, innermost, probe, with_state
from temper.models.shards import exchanged, sharded_modules, unshard_root
from temper.models.sites import SiteContext, SiteControl
from temper.models.states import StateTracer
from temper.seeding import seeded
from temper.types import Batch

Site = Literal["word", "output"]

logger = logging.getLogger(__name__)

# A perturbation whose largest entry is smaller is mostly lost: at 1e-5, only 4% of the entries
# survive in bf16 and 29% in fp16.
SMALLEST_IN_HALF = 1e-3


class Network:
    """Wraps a classifier so that methods can perturb its embeddings and set its dropout rates.

    Args:
        model: A Transformers model with a head of `temper.heads`, a PEFT model around one, or any
            module that takes ``input_ids`` and returns logits (or an output with ``logits``). The
            caller sets training or evaluation mode.
        special_ids: Ids of special tokens ([CLS], [SEP] ...), for methods that do not perturb them.
        heads: The heads; None finds the head by the model's class.

    Attributes:
        first_norms: Two scalars: mean l2 norm per row of the first perturbation, and of the
            embeddings that it was added to.

    Raises:
        ModelError: On the first forward, if not exactly one embedding module is called with the
            input ids; on any, if the logits do not have one row per text.

    Example:
        >>> network = Network(torch.nn.Sequential())
        >>> network.remove_hooks()
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        special_ids: Sequence[int] = (),
        heads: Heads | None = None,
    ) -> None:
        self.forward_module: nn.Module = model
        self.model = unwrap(model)
        self.special_ids = tuple(special_ids)
        self.heads = Heads(head_of(self.model)) if heads is None else heads
        self.blocks = find_blocks(self.model)
        self.without_dropout = False
        """Whether the model has no active dropout, so that its dropout sites are the outputs of its
        blocks; False before it was probed."""
        self._site_keys: tuple[SiteKey, ...] = ()
        self._control: SiteControl | None = None
        self._found: Place | None = None
        self._accepted = frozenset(inspect.signature(innermost(self.model).forward).parameters)
        self._extra = {"use_cache": False} if "use_cache" in self._accepted else {}
        self._delta: tuple[Tensor, Site] | None = None
        self._recording: Recording | None = None
        self._in_forward, self._word_calls, self._block_calls = False, 0, 0
        self._measured = False
        self._detached = False
        self._asked_for_dropout = False
        self._told: set[str] = set()
        self.first_norms: tuple[Tensor, Tensor] | None = None
        self._hooks: list[RemovableHandle] = []
        self._cuts: BlockCuts | None = None
        self._tracer: StateTracer | None = None

    def use(self, module: nn.Module) -> None:
        """Run further forwards through ``module``, a distributed wrapper of the model."""
        if unwrap(module) is not self.model:
            raise ModelError("The given module does not wrap the model of this network.")
        self.forward_module = module

    def parameters(self) -> Parameters:
        """Return the trainable parameters, and which of them are in blocks and head."""
        return parameters_of(self.model, self.blocks)

    def probe(self, batch: Batch) -> None:
        """Find the embedding module and the dropout sites by one forward of one row, only once."""
        if self._found is not None:
            return
        control = SiteControl(self.model, self.blocks)
        try:
            self._found, called, at_tokens = probe(
                self.model, batch, blocks=self.blocks, control=control, extra=self._inputs
            )
        except BaseException:
            control.remove_hooks()
            raise
        if not at_tokens:
            control.use_blocks()
            self.without_dropout = bool(self.blocks) and not has_dropout(self.model)
            called = [*((name, 0) for name, _ in self.blocks), *called]
        self._control, self._site_keys = control, tuple(called)
        self._hooks.append(self._place.module.register_forward_hook(self._add_at_words))
        if (block := self._place.first_block) is not None:
            hook = block.register_forward_pre_hook(self._add_at_first_block, with_kwargs=True)
            self._hooks.append(hook)

    def logits(
        self,
        batch: Batch,
        *,
        delta: Tensor | None = None,
        site: Site = "word",
        dropout: DropoutPlan | None = None,
        recording: Recording | None = None,
        seed: int | None = None,
        wrapped: bool = True,
        detached: bool = False,
        weights: Mapping[str, Tensor] | None = None,
    ) -> Tensor:
        """Compute the logits of a batch.

        Args:
            batch: B rows.
            delta: Perturbation that is added to the embeddings [B, T, D], in fp32; may require a
                gradient.
            site: Where: ``word`` is the word embeddings, ``output`` the input of the first block.
            dropout: Dropout rates, for a ``batch`` that is already repeated K times; None uses the
                model's own.
            recording: Is filled with embeddings and gradient norms.
            seed: Seed of the model's dropout; None uses torch's global state.
            wrapped: Whether to call the distributed wrapper; False for passes that are
                differentiated by ``torch.autograd.grad``.
            detached: Whether to detach the embeddings, but not ``delta``, from the graph.
            weights: Name -> other value of a parameter (for example an average of the weights),
                without the wrapper. For a sharded model it has this process's rows, and the logits
                have no gradient.

        Returns:
            [B, U, C] in at least fp32; U is 1 for classification and regression.

        Raises:
            ModelError: The embeddings cannot be found, or ``delta`` has a different shape.
        """
        self.probe(batch)
        control = self._control
        assert control is not None
        if recording is not None and delta is None:
            raise ModelError("A recording needs a delta; use zeros for no perturbation.")
        norms = recording is not None and recording.channel_norms
        if control.taken and (norms or dropout is not None):
            raise ModelError(
                "Another Network or Stepper controls the model's dropout layers. Call its "
                "remove_hooks() first, or share one Network or Stepper."
            )
        log, time_first = recording if norms else None, self._place.time_first
        control.begin(SiteContext(batch.sequences[1], dropout, log, time_first))
        self._delta = None if delta is None else (delta, site)
        self._recording, self._detached = recording, detached
        draws: AbstractContextManager[None] = nullcontext()
        if seed is not None:
            draws = seeded(seed, batch.device)
        module = self.forward_module if wrapped and weights is None else self.model
        self._in_forward, self._word_calls, self._block_calls = True, 0, 0
        try:
            with draws:
                if weights is None:
                    output = module(**batch.inputs, **self._inputs(batch))
                else:
                    output = self._with_weights(weights, batch)
        finally:
            control.end_of_forward()
            self._in_forward, self._recording = False, None
        head = self.heads.of(batch.labels)
        logits = head.logits(output, batch, model=type(self.model).__name__)
        if logits.requires_grad:
            self._follow(logits)
        return logits

    def _inputs(self, batch: Batch) -> dict[str, Any]:
        """Return further arguments of the forward that the head needs and the model accepts."""
        given = self.heads.of(batch.labels).inputs(batch, innermost(self.model))
        return self._extra | {name: given[name] for name in given if name in self._accepted}

    def _with_weights(self, weights: Mapping[str, Tensor], batch: Batch) -> Any:
        inputs = {**batch.inputs, **self._inputs(batch)}
        if not sharded_modules(self.model):
            return functional_call(self.model, dict(weights), kwargs=inputs)
        # `functional_call` does not work here: gathering would overwrite its values.
        with torch.no_grad(), exchanged(self.model, weights):
            return self.model(**inputs)

    def _follow(self, logits: Tensor) -> None:
        """Restore dropout plan and delta before a backward, which may recompute the blocks."""
        control, delta, detached = self._control, self._delta, self._detached
        assert control is not None
        context = control.context

        def resume(_: Tensor) -> None:
            if self._control is control and not self._in_forward:
                self._delta, self._detached = delta, detached
                control.begin(context)

        # Several forwards may share one backward, which processes each from its logits on.
        logits.register_hook(resume)  # type: ignore[no-untyped-call]

    def embeddings(self, batch: Batch, *, detached: bool = True) -> Tensor:
        """Return the unperturbed word embeddings [B, T, D]; by default without a graph."""
        self.probe(batch)
        held, self._delta = self._delta, None
        # Only a call of the whole model would gather the table.
        unshard_root(self.model)
        with torch.set_grad_enabled(not detached):
            values: Tensor = self._place.module(batch.ids)
        self._delta = held
        return values

    def tracer(self, batch: Batch) -> StateTracer:
        """Return the network's `StateTracer`, which records hidden states; created on first use."""
        self.probe(batch)
        if self._tracer is None:
            self._tracer = StateTracer(self.model, self.blocks, self._place)
        return self._tracer

    def cuts(self, batch: Batch) -> BlockCuts:
        """Return the network's `BlockCuts`, which cuts tokens; created on first use."""
        self.probe(batch)
        if self._cuts is None:
            self.reset()
            self._cuts = BlockCuts(
                self.model,
                self.blocks,
                batch,
                extra=self._extra,
                time_first=self._place.time_first,
            )
        return self._cuts

    @property
    def site_keys(self) -> tuple[SiteKey, ...]:
        """Keys of the dropout sites in the order of a forward."""
        if self._found is None:
            raise ModelError(
                "The network's dropout layers are unknown. Call `probe` with a batch first."
            )
        return self._site_keys

    @property
    def _place(self) -> Place:
        assert self._found is not None
        return self._found

    @property
    def vocabulary(self) -> int:
        return self._place.module.num_embeddings

    def width(self, batch: Batch, *, site: Site = "word") -> int:
        """Return D at a site: the width of the embeddings, or of the blocks."""
        self.probe(batch)
        if site == "word":
            return self._place.module.embedding_dim
        if not self._place.block_width:
            raise ModelError(
                "site='output' perturbs the input of the first block, and this model has no "
                "repeated blocks. Use site='word', with relative=True and an epsilon that fits the "
                "word embeddings (0.025, say)."
            )
        return self._place.block_width

    @property
    def delta_dtype(self) -> torch.dtype:
        """Dtype of perturbations: fp32, or fp64 if the model is in fp64."""
        return torch.promote_types(self._place.module.weight.dtype, torch.float32)

    def movable(
        self, batch: Batch, *, special_tokens: bool = True, targets: bool = False
    ) -> Tensor:
        """Return which tokens may be perturbed, [B, T], boolean; never padding.

        Args:
            batch: B rows.
            special_tokens: Whether special tokens may be perturbed.
            targets: Whether tokens that are labels (completions) may be perturbed, too.

        Raises:
            ModelError: ``special_tokens`` is False, but the special tokens are unknown.
        """
        mask = batch.mask if targets else self.heads.of(batch.labels).movable(batch)
        if special_tokens:
            return mask
        if not self.special_ids:
            raise ModelError(
                "special_tokens=False needs to know the special tokens, and none are known. Pass "
                "the tokenizer (processing_class, or special_ids=tokenizer.all_special_ids)."
            )
        special = torch.tensor(self.special_ids, device=batch.device)
        return mask & ~torch.isin(batch.ids, special)

    def expect_dropout(self) -> None:
        """Warn once that a method needs dropout if the model has none."""
        if self._asked_for_dropout:
            return
        self._asked_for_dropout = True
        if not has_dropout(self.model):
            self.warn_once(
                "Every dropout rate of the model is 0, so passes that differ by dropout alone are "
                "all the same and their divergence is 0: the method is inert. Use a model with "
                "dropout, or a method that sets rates (dropout, uegr with adaptive='fixed')."
            )

    def warn_once(self, text: str) -> None:
        if text not in self._told:
            self._told.add(text)
            logger.warning(text)

    def reset(self) -> None:
        """Make the model behave as without this wrapper until the next call; the hooks stay."""
        self._delta = None
        if self._control is not None:
            self._control.reset()
        for extra in (self._cuts, self._tracer):
            if extra is not None:
                extra.reset()

    def remove_hooks(self) -> None:
        """Remove all hooks and restore the dropout layers."""
        remove_hooks(self._hooks)
        if self._control is not None:
            self._control.remove_hooks()
        for extra in (self._cuts, self._tracer):
            if extra is not None:
                extra.remove_hooks()
        self._control, self._found, self._delta, self._cuts = None, None, None, None
        self.without_dropout = False
        self._tracer = None

    def _add(self, values: Tensor) -> Tensor:
        assert self._delta is not None
        delta = self._delta[0]
        ours = values.transpose(0, 1) if self._place.time_first else values
        shape = ours.shape
        if len(shape) == 3 and len(ours) > len(delta) and len(ours) % len(delta) == 0:
            # For the encoder, the choices of a row are separate sequences.
            ours = ours.reshape(len(delta), -1, shape[-1])
        if self._recording is not None:
            self._recording.embeddings = ours.detach()
        if ours.shape != delta.shape:
            raise ModelError(
                f"delta has shape {tuple(delta.shape)} but the embeddings have {tuple(ours.shape)} "
                f"(site {self._delta[1]!r})."
            )
        if not self._measured and values.dtype in (torch.bfloat16, torch.float16):
            largest = float(delta.detach().abs().max())
            self._measured = largest > 0
            if 0 < largest < SMALLEST_IN_HALF:
                logger.warning(
                    "The perturbation's largest entry is %.1e, and most of it is lost in %s. Keep "
                    "the weights in fp32 (precision='bf16' trains so), or raise epsilon.",
                    largest,
                    values.dtype,
                )
        ours = ours.detach() if self._detached else ours
        moved = (at_least_single(ours) + delta).to(values.dtype)
        moved = moved.view(shape)
        return moved.transpose(0, 1) if self._place.time_first else moved

    def _add_at_words(self, module: nn.Module, _: Any, output: Tensor) -> Tensor | None:
        if self._delta is None or self._delta[1] != "word":
            return None
        if self._in_forward:
            self._word_calls += 1
            # The decoder of T5 and BART calls the same table.
            if self._word_calls != self._place.call:
                return None
        return self._add(output)

    def _add_at_first_block(
        self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        if self._delta is None or self._delta[1] != "output":
            return None
        if self._in_forward:
            self._block_calls += 1
            if self._block_calls > 1:  # ALBERT calls one block for every layer.
                return None
        elif self._block_calls > 1:
            raise ModelError(
                "The first block is called several times a forward (shared blocks) and gradient "
                "checkpointing recomputes it in a different order, so delta cannot be added to the "
                "first call again. Switch gradient checkpointing off, or use site='word'."
            )
        return with_state(self._add(hidden_state(args, kwargs)), args, kwargs)
