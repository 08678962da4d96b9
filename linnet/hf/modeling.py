"""linnet's models as Transformers models: language models, a masked one, a classifier, and the bare encoder.

Each holds a linnet model under `model`, so the names of the weights are those of a linnet checkpoint after `model.`.
"""

from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from transformers import (
    AutoConfig,
    AutoModel,
    AutoModelForCausalLM,
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    GenerationMixin,
    PreTrainedModel,
)
from transformers.cache_utils import Cache
from transformers.modeling_outputs import (
    BaseModelOutput,
    CausalLMOutputWithPast,
    MaskedLMOutput,
    SequenceClassifierOutput,
)
from transformers.utils.generic import ModelOutput

from linnet.errors import InputError, UnsupportedError
from linnet.hf.cache import LinnetCache, own_cache
from linnet.hf.config import LinnetConfig
from linnet.models.backbone import Model
from linnet.models.outputs import mean_output
from linnet.ops.masks import layout_of_masks


class Backbone(Model):
    """A linnet model that can recompute its blocks in the backward pass, and keep their outputs."""

    gradient_checkpointing = False  # Transformers sets this, and the function below

    def encode_blocks(self, x: Tensor, key_mask: Tensor | None, kept: list[Tensor] | None) -> Tensor:
        """Like `encode`; `kept` collects the input of every block."""
        x = self._place(x, layout_of_masks(x.shape[0], x.shape[1], key_mask, None, x.device).position)
        for block in self.blocks:
            if kept is not None:
                kept.append(x)
            if self.gradient_checkpointing and self.training:
                x = self._gradient_checkpointing_func(block.__call__, x, key_mask)  # type: ignore[operator]
            else:
                x = block(x, key_mask)
        return self.final_norm(x)


class LinnetPreTrainedModel(PreTrainedModel):
    """The base class of linnet's Transformers models."""

    config_class = LinnetConfig
    base_model_prefix = ""  # every class has the same names of weights
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012  as PreTrainedModel declares it
    _skip_keys_device_placement = ["past_key_values"]  # noqa: RUF012
    _output: ClassVar[str] = "masked_lm"
    config: LinnetConfig

    def __init__(self, config: LinnetConfig) -> None:
        super().__init__(config)
        self.model = Backbone(config.model_config(self._output))
        for tensor in (*self.model.parameters(), *self.model.buffers()):
            if not tensor.is_meta:
                tensor._is_hf_initialized = True
        self.post_init()

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize weights that a checkpoint lacks, such as a new head, like those of a linnet model."""
        own = {**dict(module.named_parameters(recurse=False)), **dict(module.named_buffers(recurse=False))}
        missing = [name for name, tensor in own.items() if not getattr(tensor, "_is_hf_initialized", False)]
        place = next((name for name, part in self.model.named_modules() if part is module), None)
        if place is None:  # a longer table that is about to replace one
            nn.init.normal_(own["weight"], std=self.config.width**-0.5 if self.config.init == "xavier" else 0.02)
        elif missing:
            fresh = Model(self.model.config).get_submodule(place)
            for name in missing:
                own[name].copy_(getattr(fresh, name))

    def get_input_embeddings(self) -> nn.Module:
        """The table of token vectors."""
        return self.model.embedding

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table of token vectors."""
        assert isinstance(value, nn.Embedding)
        self.model.embedding = value

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the vocabulary: embedding, output table and output bias."""
        table = super().resize_token_embeddings(*args, **kwargs)
        size = self.model.embedding.num_embeddings
        self.model.config = self.model.config.model_copy(update={"vocab_size": size})
        bias = getattr(self.model.output, "bias", None)
        if bias is not None and len(bias) != size:
            resized = torch.zeros(size, dtype=bias.dtype, device=bias.device)
            resized[: len(bias)] = bias.detach()[:size]
            self.model.output.bias = nn.Parameter(resized)
        return table

    def _hidden(
        self, input_ids: Tensor | None, inputs_embeds: Tensor | None, key_mask: Tensor | None, keep: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Hidden states (B,N,M), and with `keep` those before every layer and at the end."""
        kept: list[Tensor] | None = [] if keep else None
        if (input_ids is None) == (inputs_embeds is None):
            raise InputError("give either input_ids or inputs_embeds")
        if inputs_embeds is None:
            assert input_ids is not None
            x = self.model.embed(input_ids)
        else:
            x = inputs_embeds * self.config.width**0.5 if self.config.embedding_scale else inputs_embeds
        h = self.model.encode_blocks(x, key_mask, kept)
        return h, None if kept is None else (*kept, h)

    def _encoded(
        self, ids: Tensor | None, attention_mask: Tensor | None, embedded: Tensor | None, keep: bool | None
    ) -> tuple[Tensor, tuple[Tensor, ...] | None, Tensor | None]:
        """`_hidden` of the arguments of a call without a cache, and their key mask."""
        given = ids if embedded is None else embedded
        mask = None if given is None else _key_mask(attention_mask, given.shape)
        return *self._hidden(ids, embedded, mask, self._wants(keep, "output_hidden_states")), mask

    def _wants(self, value: bool | None, name: str) -> bool:
        """An option of the call, or of the configuration where the call leaves it open."""
        return bool(getattr(self.config, name) if value is None else value)

    def _answer(self, output: ModelOutput, return_dict: bool | None, output_attentions: bool | None) -> Any:
        if output_attentions:
            raise UnsupportedError(
                "output_attentions is True: linnet holds no N x N weights; `linnet analyze` reads them"
            )
        return output if self._wants(return_dict, "return_dict") else output.to_tuple()


def _key_mask(attention_mask: Tensor | None, shape: torch.Size) -> Tensor | None:
    """The mask of the last `shape[1]` columns as linnet reads it; None where every token is real."""
    if attention_mask is None:
        return None
    if attention_mask.dim() != 2:
        raise UnsupportedError(
            f"attention_mask has {attention_mask.dim()} axes: linnet reads (batch, tokens); a static cache makes "
            "four, so leave out cache_implementation"
        )
    mask = attention_mask[:, -shape[1] :].to(torch.bool)
    if mask.shape != shape[:2]:
        raise InputError(f"attention_mask has shape {tuple(attention_mask.shape)}: input_ids has {tuple(shape[:2])}")
    if not torch.compiler.is_compiling() and bool(mask.all()):
        return None
    return mask


class LinnetModel(LinnetPreTrainedModel):
    """The encoder without an output: hidden states (B,N,M)."""

    def __init__(self, config: LinnetConfig) -> None:
        super().__init__(config)
        self.model.output = nn.Identity()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
    ) -> Any:
        """Hidden states of ids (B,N); `attention_mask` (B,N): 1 = a real token."""
        h, kept, _ = self._encoded(input_ids, attention_mask, inputs_embeds, output_hidden_states)
        return self._answer(BaseModelOutput(last_hidden_state=h, hidden_states=kept), return_dict, output_attentions)


class _LanguageModel(LinnetPreTrainedModel):
    """A model with logits of tokens."""

    accepts_loss_kwargs = True  # `num_items_in_batch`, which the Trainer passes for accumulated gradients

    def get_output_embeddings(self) -> nn.Module | None:
        """The table of the output, or None where it is the embedding itself."""
        return self.model.output.table

    def set_output_embeddings(self, new_embeddings: nn.Module) -> None:
        """Replace the table of the output."""
        self.model.output.table = new_embeddings

    def _loss(self, logits: Tensor, labels: Tensor | None, num_items_in_batch: Any) -> Tensor | None:
        if labels is None:
            return None
        return self.loss_function(logits, labels, vocab_size=logits.shape[-1], num_items_in_batch=num_items_in_batch)


class LinnetForCausalLM(_LanguageModel, GenerationMixin):
    """A causal language model; `generate` carries a state of constant size."""

    _output = "causal_lm"
    _is_stateful = True  # assisted decoding is refused: a state cannot be rolled back

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Logits (B,N,V) of ids (B,N).

        `attention_mask` covers all columns so far, (B, seen + N). With `use_cache`, or given `past_key_values`, the
        answer holds a LinnetCache to continue from. `logits_to_keep` limits the logits to the last tokens.
        """
        keep = self._wants(output_hidden_states, "output_hidden_states")
        if use_cache or past_key_values is not None:
            if inputs_embeds is not None or keep:
                raise UnsupportedError("a cache goes with input_ids only: no inputs_embeds, no output_hidden_states")
            if input_ids is None:
                raise InputError("input_ids is None: a cached call needs ids (batch, tokens)")
            logits, cache = self._cached(input_ids, attention_mask, past_key_values, logits_to_keep)
            kept = None
        else:
            given = input_ids if inputs_embeds is None else inputs_embeds
            mask = None if given is None else _key_mask(attention_mask, given.shape)
            h, kept = self._hidden(input_ids, inputs_embeds, mask, keep)
            h = h[:, slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep]
            logits, cache = self.model.logits(h), None
        loss = self._loss(logits, labels, num_items_in_batch)
        answer = CausalLMOutputWithPast(loss=loss, logits=logits, past_key_values=cache, hidden_states=kept)
        return self._answer(answer, return_dict, output_attentions)

    def _cached(
        self, ids: Tensor, attention_mask: Tensor | None, past: Cache | None, keep: int | Tensor
    ) -> tuple[Tensor, LinnetCache]:
        """Logits of new tokens, and the cache after them."""
        cache = own_cache(past, LinnetCache)
        B, N = ids.shape
        if attention_mask is not None and attention_mask.dim() == 2 and attention_mask.shape[1] != cache.seen + N:
            raise InputError(
                f"attention_mask has {attention_mask.shape[1]} columns: the cache has read {cache.seen}, and there are "
                f"{N} new tokens"
            )
        mask = _key_mask(attention_mask, ids.shape)
        if cache.state is not None and N == 1 and mask is None:
            logits, state = self.model.step(ids, cache.state)
        else:
            kept = torch.arange(N, device=ids.device)
            kept = kept[-keep:] if isinstance(keep, int) else kept[keep]
            rows = N * torch.arange(B, device=ids.device)[:, None]
            logits, state = self.model.prefill(ids, mask, cache.state, (rows + kept).flatten())
            logits = logits.unflatten(0, (B, -1))  # (B, K, V)
        cache.store(state, N)
        return logits, cache


class _Labeled(LinnetPreTrainedModel):
    """A model that reads whole inputs, without a cache, and returns logits and their loss."""

    _answers: ClassVar[type[MaskedLMOutput | SequenceClassifierOutput]]

    def _logits(self, h: Tensor, mask: Tensor | None) -> Tensor:
        raise NotImplementedError

    def _loss(self, logits: Tensor, labels: Tensor | None, num_items_in_batch: Any) -> Tensor | None:
        raise NotImplementedError

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        output_attentions: bool | None = None,
        output_hidden_states: bool | None = None,
        return_dict: bool | None = None,
        num_items_in_batch: Tensor | int | None = None,
    ) -> Any:
        """Logits of ids (B,N): (B,N,V) of a language model, (B, labels) of a classifier.

        `labels` are (B,N), with -100 where no token is to be predicted; or those of a classifier, (B,).
        """
        h, kept, mask = self._encoded(input_ids, attention_mask, inputs_embeds, output_hidden_states)
        logits = self._logits(h, mask)
        loss = self._loss(logits, labels, num_items_in_batch)
        answer = self._answers(loss=loss, logits=logits, hidden_states=kept)
        return self._answer(answer, return_dict, output_attentions)


class LinnetForMaskedLM(_LanguageModel, _Labeled):
    """A masked language model."""

    _output = "masked_lm"
    _answers = MaskedLMOutput

    def _logits(self, h: Tensor, mask: Tensor | None) -> Tensor:
        return self.model.logits(h)


class LinnetForSequenceClassification(_Labeled):
    """A classifier of whole sequences, from the mean of their hidden states."""

    _output = "classifier"
    _answers = SequenceClassifierOutput

    def _logits(self, h: Tensor, mask: Tensor | None) -> Tensor:
        length = None if self.config.mean_over == "length" else self.config.max_position_embeddings
        logits: Tensor = self.model.output(mean_output(h, mask, length), self.model.embedding.weight)  # (B, labels)
        return logits

    def _loss(self, logits: Tensor, labels: Tensor | None, num_items_in_batch: Any) -> Tensor | None:
        if labels is None:
            return None
        return self.loss_function(
            labels=labels, pooled_logits=logits, config=self.config, num_items_in_batch=num_items_in_batch
        )


def register_auto_classes() -> None:
    """Make `AutoModelForCausalLM.from_pretrained` and the like know the model type `linnet`."""
    AutoConfig.register("linnet", LinnetConfig, exist_ok=True)
    classes = {
        AutoModel: LinnetModel,
        AutoModelForCausalLM: LinnetForCausalLM,
        AutoModelForMaskedLM: LinnetForMaskedLM,
        AutoModelForSequenceClassification: LinnetForSequenceClassification,
    }
    for auto, own in classes.items():
        auto.register(LinnetConfig, own, exist_ok=True)
