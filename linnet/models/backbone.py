"""The only model: embedding, positions, blocks and an output, all set by its configuration."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from linnet.config import parse_config_section, short_config_value
from linnet.errors import InputError, UnsupportedError
from linnet.models.block import Block, BlockState, create_block_norm
from linnet.models.config import ModelConfig
from linnet.models.dropout import Dropout
from linnet.models.generate import Sampling, generate_stream
from linnet.models.outputs import OUTPUTS, Classifier, mean_output
from linnet.models.patches import PatchEmbedding
from linnet.ops.cut import CutRanks
from linnet.ops.masks import check_mask, layout_of_masks
from linnet.ops.positions import learned_positions, sinusoidal_positions
from linnet.registry import ATTENTION

if TYPE_CHECKING:
    from linnet.data.tokenizer import Tokenizer


class ModelState(NamedTuple):
    """The state of a causal model after the tokens so far; the first axis of every tensor is B."""

    layers: tuple[BlockState, ...]
    length: Tensor  # (B,) int64: the position of the next token


class Model(nn.Module):
    """logits (B,N,V) = model(ids (B,N), key_mask=None, segments=None); those of a classifier are (B, classes)."""

    blocks: Sequence[Block]
    recompute = False  # compute each block again in the backward pass, instead of keeping what is inside
    tokenizer_file: Path | None = None  # of a model that was loaded from a folder
    _tokenizer: "Tokenizer | None" = None
    ranks: CutRanks | None = None  # the ranks that share the sequence, each of which has a slice of the tokens

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.config = config
        for name, options in config.options.items():
            parse_config_section(ATTENTION[name].Options, options, f"model.options.{name}")
        M = config.width
        words = config.patch is None
        self.embedding = nn.Embedding(config.vocab_size, M) if words else PatchEmbedding(config)
        table = config.positions == "learned"
        self.positions = nn.Embedding(config.max_length + config.first_position, M) if table else None
        self.embedding_norm = nn.LayerNorm(M) if config.embedding_norm else nn.Identity()
        self.dropout = Dropout(config.dropout)
        self.blocks = nn.ModuleList(Block(config, layer) for layer in config.layers)  # type: ignore[assignment]
        self.final_norm = create_block_norm(config.norm, M) if config.final_norm else nn.Identity()
        self.output = OUTPUTS[config.output](config)
        self._initialize()
        if isinstance(self.embedding, PatchEmbedding):
            self.embedding.place_patches(self.blocks)

    @torch.no_grad()
    def _initialize(self) -> None:
        """Embeddings N(0, 1/M) ("xavier") or N(0, 0.02^2) ("lra"); the other parts initialize themselves;
        "bert" uses N(0, 0.02^2) everywhere."""
        bert = self.config.init == "bert"
        for module in self.modules():
            if isinstance(module, nn.Embedding):
                nn.init.normal_(module.weight, std=self.config.width**-0.5 if self.config.init == "xavier" else 0.02)
            elif bert and isinstance(module, nn.Linear):
                nn.init.normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        if self.config.pad is not None and isinstance(self.embedding, nn.Embedding):
            self.embedding.weight[self.config.pad].zero_()

    def forward(
        self,
        ids: Tensor,
        key_mask: Tensor | None = None,
        segments: Tensor | None = None,
        select: Tensor | None = None,
    ) -> Tensor:
        """Logits (B,N,V) of ids (B,N); with `select`, only those of the selected tokens, (K,V).

        `key_mask` (B,N): True = a real token. `segments` (B,N): nothing crosses from one run of equal ids to the next.
        `select`: a boolean (B,N), or K indices into the B*N tokens, which torch.compile prefers. A classifier returns
        logits (B, classes) for ids (B,N), a two-tower model for pairs (B,2,N); neither takes `segments` or `select`.
        An image model takes pixels (B, channels, size, size) in place of ids: uint8, or numbers from 0 to 1.
        """
        if isinstance(self.output, Classifier):
            if segments is not None or select is not None:
                raise UnsupportedError(f"a {self.config.output} reads whole rows: it takes neither segments nor select")
            return self._classify(self.output, ids, key_mask)
        return self.logits(self.features(ids, key_mask, segments), select)

    def _classify(self, output: Classifier, ids: Tensor, key_mask: Tensor | None) -> Tensor:
        """Logits (B, classes) of sequences (B,N), or of pairs of them (B,2,N)."""
        pairs = output.sequences == 2 and isinstance(ids, Tensor)  # anything but a tensor is refused below
        if pairs and (ids.dim() != 3 or ids.shape[1] != 2):
            raise InputError(f"ids has shape {tuple(ids.shape)}: a two-tower model reads pairs, (batch, 2, tokens)")
        if pairs:
            if key_mask is not None and not isinstance(key_mask, Tensor):
                raise InputError(f"key_mask is a {type(key_mask).__name__}: it must be a tensor (batch, 2, tokens)")
            if key_mask is not None and key_mask.shape != ids.shape:
                raise InputError(f"key_mask has shape {tuple(key_mask.shape)}: it must be the shape of ids")
            ids, key_mask = ids.flatten(0, 1), None if key_mask is None else key_mask.flatten(0, 1)
        h = self.features(ids, key_mask)
        if self.config.patch is not None and self.config.pool == "class":
            return output(h[:, -1], self.embedding.weight)
        if self.config.output == "sentence":
            return output(h[:, 0], self.embedding.weight)
        real = None if key_mask is None else check_mask(key_mask, *h.shape[:2]).to(h.device)
        pooled = mean_output(h, real, None if self.config.mean_over == "length" else self.config.max_length)  # (B, M)
        return output(pooled.unflatten(0, (-1, 2)) if pairs else pooled, self.embedding.weight)

    def features(self, ids: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Hidden states (B,N,M) of ids (B,N), before the output."""
        return self.encode(self.embed(ids), key_mask, segments)

    def embed(self, ids: Tensor) -> Tensor:
        """Token vectors (B,N,M) of ids (B,N), or of pixels, without positions."""
        if isinstance(self.embedding, PatchEmbedding):
            return self.embedding(ids)
        self._check_ids(ids)
        x = self.embedding(ids)
        return x * self.config.width**0.5 if self.config.embedding_scale else x

    def encode(self, x: Tensor, key_mask: Tensor | None = None, segments: Tensor | None = None) -> Tensor:
        """Hidden states (B,N,M) of token vectors x (B,N,M); adds the positions first."""
        if self.ranks is not None:
            with self.ranks.sharing(x.shape[0], x.shape[1], key_mask, segments, x.device) as where:
                return self._encode(x, where.position, key_mask, segments)
        where = layout_of_masks(x.shape[0], x.shape[1], key_mask, segments, x.device)
        return self._encode(x, where.position, key_mask, segments)

    def _encode(self, x: Tensor, position: Tensor, key_mask: Tensor | None, segments: Tensor | None) -> Tensor:
        """`encode` of tokens at `position` (N,) or (B,N)."""
        x = self._place(x, position)
        for block in self.blocks:
            if self.recompute and torch.is_grad_enabled():
                x = checkpoint(block, x, key_mask, segments, use_reentrant=False)
            else:
                x = block(x, key_mask, segments)
        return self.final_norm(x)

    def logits(self, h: Tensor, select: Tensor | None = None) -> Tensor:
        """The output for hidden states h (B,N,M), or only for the tokens that `select` names."""
        if select is not None:
            self._check_select(select, h)
            h = h[select] if select.dtype == torch.bool else h.flatten(0, 1)[select]  # (K, M)
        return self.output(h, self.embedding.weight)

    def prefill(
        self,
        ids: Tensor,
        key_mask: Tensor | None = None,
        state: ModelState | None = None,
        select: Tensor | None = None,
    ) -> tuple[Tensor, ModelState]:
        """Like `forward`, but also returns the state after the last real token; `state` continues an earlier one."""
        self.check_recurrent()
        x = self.embed(ids)
        if state is not None:
            self._check_state(state, len(ids))
        where = layout_of_masks(ids.shape[0], ids.shape[1], key_mask, None, ids.device)
        position, length = where.position, torch.as_tensor(where.length, device=ids.device).expand(len(ids))
        if state is not None:
            position, length = position + state.length[:, None], length + state.length
        x, layers = self._place(x, position), []
        for i, block in enumerate(self.blocks):
            x, after = block.prefill(x, key_mask, None if state is None else state.layers[i])
            layers.append(after)
        return self.logits(self.final_norm(x), select), ModelState(tuple(layers), length)

    def step(self, ids_t: Tensor, state: ModelState) -> tuple[Tensor, ModelState]:
        """Logits (B,1,V) after the next token ids_t (B,1), and the state after it."""
        self._check_state(state, len(self._check_ids(ids_t)))
        x, layers = self._place(self.embed(ids_t), state.length[:, None]), []
        for block, before in zip(self.blocks, state.layers, strict=True):
            x, after = block.step(x, before)
            layers.append(after)
        return self.logits(self.final_norm(x)), ModelState(tuple(layers), state.length + 1)

    def generate(
        self,
        ids: Tensor,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int = 0,
        key_mask: Tensor | None = None,
    ) -> Tensor:
        """The prompts ids (B,N) followed by the generated tokens: (B, N + max_new_tokens).

        `temperature` 0 takes the most likely token. `top_k` keeps the k most likely tokens, `top_p` the fewest whose
        total probability reaches p. The same seed gives the same text. `key_mask` (B,N) marks the real tokens of
        prompts of different lengths.
        """
        new = self.stream(ids, max_new_tokens, Sampling(temperature, top_k, top_p, seed), key_mask)
        return torch.cat([ids, *(token[:, None].to(ids.dtype) for token in new)], dim=1)

    def stream(
        self, ids: Tensor, max_new_tokens: int = 64, sampling: Sampling | None = None, key_mask: Tensor | None = None
    ) -> Iterator[Tensor]:
        """Like `generate`, but an iterator over the new ids, (B,) each."""
        return generate_stream(self, ids, max_new_tokens, sampling or Sampling(), key_mask)

    @property
    def tokenizer(self) -> "Tokenizer":
        """The tokenizer of a text model that `load_model` read; it can be set."""
        if self._tokenizer is None:
            if self.tokenizer_file is None:
                raise InputError("this model has no tokenizer: only a text model that was loaded from a folder has one")
            from linnet.data.tokenizer import Tokenizer

            self._tokenizer = Tokenizer.load(self.tokenizer_file)
        return self._tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: "Tokenizer") -> None:
        self._tokenizer = tokenizer

    def write(
        self,
        text: str,
        max_new_tokens: int = 64,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        seed: int | None = None,
        stop: Sequence[str] = (),
        repetition_penalty: float = 1.0,
        ignore_end: bool = False,
    ) -> str:
        """`text` and its continuation; see `generate`.

        It ends at the end of a document, unless `ignore_end`, or before one of the `stop` texts. Without a seed, each
        call differs.
        """
        from linnet.models.write import Writing, draw_writing_seed

        seed = draw_writing_seed() if seed is None else seed
        sampling = Sampling(temperature, top_k, top_p, seed, repetition_penalty)
        return text + "".join(Writing(self, text, max_new_tokens, sampling, stop, ignore_end))

    def check_recurrent(self) -> None:
        """Raise if the model has no recurrent state; a mechanism without one raises its own error."""
        if isinstance(self.output, Classifier):
            raise UnsupportedError(f"this model is a {self.config.output}: it cannot prefill, step or generate")
        if not self.config.causal:
            raise UnsupportedError("this model is bidirectional (causal = false): it cannot prefill, step or generate")

    def _place(self, x: Tensor, position: Tensor) -> Tensor:
        """Add the positions (N,) or (B,N) to x (B,N,M), then apply norm and dropout."""
        if isinstance(self.embedding, PatchEmbedding):
            position = self.embedding.order[position]  # the table is in the order of the image's rows
        if self.positions is not None:
            x = x + learned_positions(position, self.positions.weight, self.config.first_position)
        elif self.config.positions == "sinusoidal":
            x = x + sinusoidal_positions(position + self.config.first_position, self.config.width, x.dtype).to(x.dtype)
        return self.dropout(self.embedding_norm(x))

    def _check_select(self, select: Tensor, h: Tensor) -> None:
        """Raise if `select` names tokens that do not exist."""
        B, N = h.shape[:2]
        if select.dtype == torch.bool and select.shape != (B, N):
            raise InputError(f"select has shape {tuple(select.shape)}: a boolean select must be ({B}, {N})")
        quick = select.device.type == "cpu" and not torch.compiler.is_compiling()
        if quick and select.dtype != torch.bool and select.numel():
            least, most = int(select.min()), int(select.max())
            if not -B * N <= least <= most < B * N:
                raise InputError(f"select holds numbers from {least} to {most}: there are {B * N} tokens")

    def _check_state(self, state: object, B: int) -> None:
        """Raise if `state` is not a state of this model for B rows."""
        if not isinstance(state, ModelState):
            raise InputError(f"state is {short_config_value(state)}: it must be what prefill or step returned")
        if len(state.layers) != len(self.blocks):
            raise InputError(f"state has {len(state.layers)} layers: this model has {len(self.blocks)}")
        if len(state.length) != B:
            raise InputError(f"state has {len(state.length)} rows: ids has {B}")

    def _check_ids(self, ids: Tensor) -> Tensor:
        """Return ids; raise unless they are (batch, tokens) integers of the vocabulary."""
        if not isinstance(ids, Tensor):
            raise InputError(f"ids is a {type(ids).__name__}: it must be a tensor (batch, tokens)")
        if ids.dim() != 2 or ids.shape[1] < 1:
            raise InputError(f"ids has shape {tuple(ids.shape)}: it must be (batch, tokens) with at least one token")
        if ids.dtype not in (torch.int64, torch.int32):
            raise InputError(f"ids has type {ids.dtype}: it must be int64 or int32")
        # On a GPU this check would synchronize at every call.
        if ids.device.type == "cpu" and ids.numel() and not torch.compiler.is_compiling():
            for worst in (int(ids.min()), int(ids.max())):
                if not 0 <= worst < self.config.vocab_size:
                    raise InputError(f"ids contains {worst}: an id is at least 0 and below {self.config.vocab_size}")
        return ids


def build_backbone_on_meta(config: ModelConfig) -> Model:
    """The model without memory for its parameters; raises where a mechanism refuses its options."""
    with torch.device("meta"), _NoNumbers():
        return Model(config)


def count_backbone_parameters(model: nn.Module) -> int:
    """Number of trainable parameters, shared ones counted once."""
    return sum(parameter.numel() for parameter in model.parameters())


class _NoNumbers(TorchFunctionMode):
    """Disables random initialization: on the meta device it would import torch's compiler, which takes a second."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in (torch.Tensor.normal_, torch.Tensor.uniform_):
            return args[0]
        return func(*args, **(kwargs or {}))
