"""Patches of an image as tokens: the embedding, the order and the places of patches, and images of another size.

Tokens are ordered row by row or, with a `window` w, window by window: each w x w patches are then neighbors in the
sequence, so that blocks of w^2 tokens are windows of the image. A class token comes last, after all windows.
"""

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate

from linnet.attention.relative import RelativePositions
from linnet.errors import InputError, UnsupportedError
from linnet.models.config import ModelConfig, split_layer_config

BOUND = {"linformer"}  # has weights for each token


def patch_order(grid: int, window: int, device: str | None = None) -> Tensor:
    """(grid^2,): which patch, counted along the rows of the image, each token is."""
    side = grid // window
    rows = torch.arange(grid**2, device=device).view(side, window, side, window)
    return rows.transpose(1, 2).flatten()


def patch_places(config: ModelConfig) -> Tensor:
    """(N, 2) on the CPU: row and column of each token; a class token is at (0, 0), as the first patch."""
    order = patch_order(config.grid, config.window, "cpu")
    places = torch.stack((order // config.grid, order % config.grid), dim=1)
    return torch.cat([places, places.new_zeros(config.picture_tokens - len(order), 2)])


class PatchEmbedding(nn.Module):
    """Token vectors (B,N,M) of pixels (B, channels, size, size): one matrix on every standardized patch."""

    order: Tensor
    mean: Tensor
    std: Tensor

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        assert config.patch is not None  # the model reads images
        self.config, self.patch = config, config.patch
        self.project = nn.Linear(config.channels * self.patch**2, config.width)
        nn.init.xavier_uniform_(self.project.weight)
        nn.init.zeros_(self.project.bias)
        own = config.pool == "class"
        self.class_token = nn.Parameter(torch.randn(config.width) * 0.02) if own else None
        order = patch_order(config.grid, config.window)
        last = torch.arange(len(order), config.picture_tokens)
        self.register_buffer("order", torch.cat([order, last]), persistent=False)
        for name, values in (("mean", config.pixel_mean), ("std", config.pixel_std)):
            shaped = torch.tensor(values).expand(config.channels).clone()[:, None, None]
            self.register_buffer(name, shaped, persistent=False)

    @property
    def weight(self) -> Tensor:
        """The matrix; no output of such a model shares it."""
        return self.project.weight

    def place_patches(self, blocks: Iterable[nn.Module]) -> None:
        """Give the two-dimensional positions of all layers the place of each token."""
        places = patch_places(self.config)
        for block in blocks:
            for module in block.modules():
                if isinstance(module, RelativePositions):
                    module.place_grid(places)

    def forward(self, pixels: Tensor) -> Tensor:
        """pixels (B, channels, size, size), uint8 or from 0 to 1 -> (B,N,M)."""
        self._check(pixels)
        c, p, w = self.config, self.patch, self.config.window
        scale = 255.0 if pixels.dtype == torch.uint8 else 1.0
        dtype = self.project.weight.dtype
        x = (pixels.to(dtype) / scale - self.mean.to(dtype)) / self.std.to(dtype)
        side = c.grid // w
        x = x.view(-1, c.channels, side, w, p, side, w, p)
        x = x.permute(0, 2, 5, 3, 6, 1, 4, 7).reshape(len(x), c.grid**2, -1)  # (B, patches, channels * p * p)
        x = self.project(x)
        if self.class_token is None:
            return x
        return torch.cat([x, self.class_token.to(x.dtype).expand(len(x), 1, -1)], dim=1)

    def _check(self, pixels: Tensor) -> None:
        """Raise unless these are pixels of this model."""
        c = self.config
        wanted = f"it must be a tensor (batch, {c.channels}, {c.image_size}, {c.image_size})"
        if not isinstance(pixels, Tensor):
            raise InputError(f"pixels is a {type(pixels).__name__}: {wanted}")
        if tuple(pixels.shape[1:]) != (c.channels, c.image_size, c.image_size) or pixels.dim() != 4 or not len(pixels):
            raise InputError(f"pixels has shape {tuple(pixels.shape)}: {wanted}")
        if pixels.dtype != torch.uint8 and not pixels.is_floating_point():
            raise InputError(f"pixels has type {pixels.dtype}: it must be uint8, or numbers from 0 to 1")


def resize_patch_config(config: ModelConfig, image_size: int) -> ModelConfig:
    """The configuration for images of another size, with patches of the same size."""
    if config.patch is None:
        raise InputError(f"image_size is {image_size}: this model reads no images")
    if not isinstance(image_size, int) or image_size < 1 or image_size % config.patch:
        raise InputError(f"image_size is {image_size}: it must be a multiple of the patch, {config.patch}")
    if (image_size // config.patch) % config.window:
        raise InputError(f"image_size is {image_size}: the {config.window} patches of a window must divide its side")
    for name in {name for layer in config.layers for name in split_layer_config(layer)[1]} & BOUND:
        raise UnsupportedError(f"{name} has weights for each of {config.picture_tokens} tokens: it cannot be resized")
    length = (image_size // config.patch) ** 2 + (config.pool == "class")
    options = {
        name: {**own, "max_length": length} if "max_length" in own else own for name, own in config.options.items()
    }
    table = config.model_dump() | {"image_size": image_size, "max_length": length, "options": options}
    return ModelConfig(**table)


def resize_patch_positions(tensors: Mapping[str, Tensor], old: ModelConfig, new: ModelConfig) -> dict[str, Tensor]:
    """The weights of an image model, with its learned positions interpolated to another grid (bicubic)."""
    found = dict(tensors)
    table = found.get("positions.weight")
    if table is None or old.grid == new.grid:
        return found
    first, count = old.first_position, old.grid**2
    before, patches, after = table[:first], table[first : first + count], table[first + count :]
    square = patches.double().view(1, old.grid, old.grid, -1).permute(0, 3, 1, 2)
    square = interpolate(square, (new.grid, new.grid), mode="bicubic", antialias=new.grid < old.grid)
    patches = square.permute(0, 2, 3, 1).flatten(0, 2).to(table.dtype)
    found["positions.weight"] = torch.cat([before, patches, after])
    return found
