"""Patches as tokens: their order and places, the embedding, positions of two dimensions, and other resolutions."""

import json

import pytest
import torch
from torch import nn

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.models.backbone import Model
from linnet.models.config import PICTURE
from linnet.models.patches import patch_order, patch_places
from linnet.models.presets import list_models, preset

SMALL = {"image_size": 16, "patch": 4, "classes": 3}


def pixels(size=16, channels=3, count=2):
    return torch.randint(0, 256, (count, channels, size, size), dtype=torch.uint8)


def test_windows_are_contiguous():
    assert patch_order(4, 1).tolist() == list(range(16))
    assert patch_order(4, 4).tolist() == list(range(16))
    assert patch_order(4, 2).tolist() == [0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15]


@pytest.mark.parametrize("window", [1, 2])
def test_the_embedding_is_a_strided_convolution(window):
    model = linnet.create_model("vanilla_vit_small", window=window, **SMALL).double()
    embedding, x = model.embedding, pixels()
    weight = embedding.project.weight.view(-1, 3, 4, 4)
    standard = (x.double() / 255 - 0.5) / 0.5
    expected = nn.functional.conv2d(standard, weight, embedding.project.bias, stride=4).flatten(2).mT  # row by row
    torch.testing.assert_close(embedding(x), expected[:, patch_order(4, window)], rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(embedding(x.double() / 255), embedding(x), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("name", [name for name in list_models() if name.endswith("_vit_small")])
@pytest.mark.parametrize("pool", ["mean", "class"])
def test_every_mechanism_classifies_pictures_and_learns(name, pool):
    pool = "mean" if name == "diag_vit_small" else pool  # a class token is in a block of its own
    model = linnet.create_model(name, pool=pool, **SMALL)
    logits = model(pixels())
    assert logits.shape == (2, 3)
    nn.functional.cross_entropy(logits, torch.tensor([0, 2])).backward()
    gradients = [p.grad for p in model.parameters() if p.grad is not None]
    assert all(bool(g.isfinite().all()) for g in gradients)
    assert float(model.embedding.project.weight.grad.abs().max()) > 0


@pytest.mark.parametrize("name", ["vanilla", "elu", "norm", "lln", "performer"])
def test_the_order_of_tokens_does_not_matter_without_blocks(name):
    """Positions belong to patches, not to tokens: windows and rows give the same logits."""
    torch.manual_seed(0)
    rows = linnet.create_model(f"{name}_vit_small", window=1, **SMALL).double().eval()
    windows = linnet.create_model(f"{name}_vit_small", window=2, **SMALL).double().eval()
    windows.load_state_dict(rows.state_dict())
    x = pixels()
    torch.testing.assert_close(rows(x), windows(x), rtol=1e-9, atol=1e-9)


def test_blocks_of_diag_are_windows_of_the_picture():
    model = linnet.create_model("diag_vit_small").eval()
    assert (model.config.window, model.config.options["diag"]["block"]) == (4, 16)
    places = patch_places(model.config)
    A = model.blocks[0].mixers[0].weights(torch.randn(1, 64, 64))[0, 0]
    same = (places[:, None] // 4 == places[None] // 4).all(dim=-1)
    assert bool(((A > 0) == same).all())
    rows = linnet.create_model("diag_vit_small", window=1).eval()  # one-dimensional blocks of the same size
    A = rows.blocks[0].mixers[0].weights(torch.randn(1, 64, 64))[0, 0]
    index = torch.arange(64)
    assert bool(((A > 0) == (index[:, None] // 16 == index[None] // 16)).all())


@pytest.mark.parametrize("name", ["softmax", "norm", "elu", "lln", "diag"])
def test_two_dimensional_positions_depend_on_differences_of_rows_and_columns(name):
    """With equal content everywhere, a score depends on where a key stands from its query; lln turns before exp."""
    torch.manual_seed(0)
    options = {"positions": "rope2d", **({"block": 16} if name == "diag" else {})}
    core = linnet.create_attention(name, heads=1, head_dim=8, causal=False, **options).double()
    q, k = (torch.randn(1, 1, 1, 8, dtype=torch.float64).expand(1, 1, 16, 8) for _ in range(2))
    A = core.weights(q, k)[0, 0]
    if name in ("softmax", "diag"):
        A = A.log()
        A = A - A.diagonal()[:, None]  # the normalizer of a row
    if name == "lln":
        assert float((A[0] - A[0, 0]).abs().max()) > 1e-3  # positions do something
        return
    places = torch.stack((torch.arange(16) // 4, torch.arange(16) % 4), dim=1)
    seen = {}
    for t in range(16):
        for s in range(16):
            seen.setdefault(tuple((places[s] - places[t]).tolist()), []).append(float(A[t, s]))
    assert len(seen) == 49
    assert max(max(values) - min(values) for values in seen.values()) < 1e-9
    assert len({round(values[0], 9) for values in seen.values()}) > 40


def test_two_dimensional_positions_refuse_what_they_cannot_do():
    with pytest.raises(InputError, match=r"needs a head width divisible by 4, not 6$"):
        linnet.create_attention("softmax", heads=1, head_dim=6, causal=False, positions="rope2d")
    with pytest.raises(UnsupportedError, match=r"softmax: positions='rope2d' has no causal form"):
        linnet.create_attention("softmax", heads=1, head_dim=8, causal=True, positions="rope2d")
    core = linnet.create_attention("softmax", heads=1, head_dim=8, causal=False, positions="rope2d")
    x = torch.randn(1, 1, 10, 8)
    with pytest.raises(InputError, match=r"reads tokens as a square: 10 is not a square number$"):
        core(x, x, x)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"patch": 5}, "model: patch is 5: it must divide image_size = 32"),
        ({"window": 3}, "model: window is 3: it must divide the 8 patches of a side"),
        ({"causal": True}, "model: a model with a patch is a classifier with causal = false"),
        ({"max_length": 10}, "model: max_length is 10: an image has 64 tokens"),
        ({"pixel_mean": [0.1, 0.2]}, "model: pixel_mean has 2 entries: it needs 1 or 3"),
        ({"pixel_std": [0.0]}, "model: pixel_std has a 0"),
        ({"patch": 0}, "model.patch is 0: "),
        ({"pool": "class", "layers": ["diag", "diag"]}, "model: pool is 'class': with diag alone a class token reads "),
    ],
)
def test_bad_fields_are_one_line(fields, message):
    with pytest.raises(InputError) as error:
        preset("vanilla_vit_small", **fields)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_bad_pixels_are_one_line():
    model = linnet.create_model("vanilla_vit_small", **SMALL)
    for wrong, message in (
        ([1], "pixels is a list: it must be a tensor (batch, 3, 16, 16)"),
        (pixels(32), "pixels has shape (2, 3, 32, 32): it must be a tensor (batch, 3, 16, 16)"),
        (pixels(channels=1), "pixels has shape (2, 1, 16, 16): "),
        (pixels().long(), "pixels has type torch.int64: it must be uint8, or numbers from 0 to 1"),
    ):
        with pytest.raises(InputError) as error:
            model(wrong)
        assert str(error.value).startswith(message)
    with pytest.raises(UnsupportedError, match="cannot prefill, step or generate"):
        model.generate(torch.zeros(1, 3, dtype=torch.int64))


def test_a_model_without_patches_is_written_as_before():
    """The fields of images appear in no table, file or hash of another model."""
    for name in ("vanilla_lm_small", "transnormer_t2_lra"):
        config = preset(name)
        for found in (config.model_dump(), config.model_dump(mode="json"), json.loads(config.model_dump_json())):
            assert not PICTURE & set(found)
    assert set(preset("vanilla_vit_small").model_dump()) > PICTURE
    with pytest.raises(InputError, match="model: window belongs to an image model, which has a `patch`"):
        preset("vanilla_lm_small", window=2)


@pytest.mark.parametrize("pool", ["mean", "class"])
def test_another_resolution_interpolates_positions(tmp_path, pool):
    torch.manual_seed(0)
    model = linnet.create_model("transnormer_t2_vit_small", pool=pool, **SMALL)
    ramp = torch.arange(4.0)
    with torch.no_grad():  # a table that grows with the row, one that grows with the column, and constants
        table = model.positions.weight
        table.fill_(5.0)
        table[:16, 0], table[:16, 1] = ramp.repeat_interleave(4), ramp.repeat(4)
        if pool == "class":
            table[16] = 7.0
    from linnet.models.loading import export_model, load_model

    export_model(model, tmp_path / "model")
    large = load_model(tmp_path / "model", image_size=32)
    found = large.positions.weight.detach()
    assert (large.config.image_size, large.config.grid, len(found)) == (32, 8, 64 + (pool == "class"))
    square = found[:64].view(8, 8, -1)
    torch.testing.assert_close(square[..., 2:], torch.full((8, 8, 62), 5.0))
    for ramp in (square[..., 0], square[..., 1].T):  # the rows of both are constant
        torch.testing.assert_close(ramp, ramp[:, :1].expand(8, 8))
        torch.testing.assert_close(ramp + ramp.flip(0), torch.full((8, 8), 3.0))  # symmetric about its middle
        assert bool((ramp[1:, 0] > ramp[:-1, 0]).all())
        torch.testing.assert_close(ramp[3:5, 0], torch.tensor([1.25, 1.75]), rtol=0, atol=0.05)
    if pool == "class":
        assert found[64].tolist() == [7.0] * 64
    assert large(pixels(32)).shape == (2, 3)
    same = load_model(tmp_path / "model", image_size=16)
    x = pixels()
    assert torch.equal(same(x), load_model(tmp_path / "model")(x))
    assert load_model(tmp_path / "model", image_size=8)(pixels(8)).shape == (2, 3)


def test_a_resolution_that_does_not_fit_is_one_line(tmp_path):
    from linnet.models.loading import export_model, load_model

    for name, size, message in (
        ("vanilla_vit_small", 30, "image_size is 30: it must be a multiple of the patch, 4"),
        ("vanilla_vit_small", 20, "image_size is 20: the 2 patches of a window must divide its side"),
        ("linformer_vit_small", 32, "linformer has weights for each of 16 tokens: it cannot be resized"),
    ):
        if not (tmp_path / name).exists():
            export_model(linnet.create_model(name, **SMALL), tmp_path / name)
        with pytest.raises((InputError, UnsupportedError)) as error:
            load_model(tmp_path / name, image_size=size)
        assert str(error.value) == message
    export_model(linnet.create_model("vanilla_lra_small"), tmp_path / "text")
    with pytest.raises(InputError, match="image_size is 32: this model reads no images"):
        load_model(tmp_path / "text", image_size=32)


def test_cosformer_spans_the_tokens_of_the_new_resolution(tmp_path):
    from linnet.models.loading import export_model, load_model

    export_model(linnet.create_model("cosformer_vit_small", **SMALL), tmp_path / "model")
    large = load_model(tmp_path / "model", image_size=32)
    assert large.config.options["cosformer"]["max_length"] == 64
    assert large(pixels(32)).shape == (2, 3)


def test_the_grid_is_known_to_a_copied_and_half_model():
    model = linnet.create_model("transnormer_t2_vit_small", **SMALL).to(torch.bfloat16).eval()
    assert model(pixels()).dtype == torch.bfloat16
    assert isinstance(model, Model)
