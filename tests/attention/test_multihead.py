"""MultiheadAttention replaces torch's: same numbers with softmax, same shapes, masks and state_dict for all."""

import copy

import pytest
import torch
from torch import nn

import linnet
from linnet.errors import InputError, UnsupportedError
from linnet.testing import contract_difference
from tests.attention.cases import ABOUT, NAMES


def pair(batch_first: bool) -> tuple[nn.MultiheadAttention, linnet.MultiheadAttention]:
    theirs = nn.MultiheadAttention(16, 4, batch_first=batch_first).eval()
    ours = linnet.MultiheadAttention(16, 4, batch_first=batch_first, attention="softmax").eval()
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


@pytest.mark.parametrize("batch_first", [True, False])
@pytest.mark.parametrize("causal", [True, False])
def test_softmax_equals_torch(batch_first: bool, causal: bool) -> None:
    theirs, ours = pair(batch_first)
    q, k, v = (torch.randn(3, 7, 16) if batch_first else torch.randn(7, 3, 16) for _ in range(3))
    mask = nn.Transformer.generate_square_subsequent_mask(7) if causal else None
    ignore = torch.zeros(3, 7, dtype=torch.bool)
    ignore[1, 5:] = True
    for arguments in ({"key_padding_mask": ignore}, {}):
        y, A = theirs(q, k, v, attn_mask=mask, **_float_mask(arguments, mask))
        z, W = ours(q, k, v, attn_mask=mask, **arguments)
        assert torch.allclose(y, z, atol=1e-6) and torch.allclose(A, W, atol=1e-6)
    assert torch.allclose(ours(q, k, v, is_causal=causal)[0], z, atol=1e-6)


def _float_mask(arguments: dict, mask: torch.Tensor | None) -> dict:
    """torch wants both masks to have the same type."""
    if mask is None or not arguments:
        return arguments
    ignore = arguments["key_padding_mask"]
    return {"key_padding_mask": torch.zeros(ignore.shape).masked_fill(ignore, -torch.inf)}


def test_rows_without_a_batch_and_single_heads() -> None:
    theirs, ours = pair(True)
    x = torch.randn(7, 16)
    y, A = theirs(x, x, x, average_attn_weights=False)
    z, W = ours(x, x, x, average_attn_weights=False)
    assert torch.allclose(y, z, atol=1e-6) and torch.allclose(A, W, atol=1e-6) and W.shape == (4, 7, 7)


@pytest.mark.parametrize("name", NAMES)
def test_inside_a_transformer_encoder(name: str) -> None:
    """In training and in evaluation, where torch's own fused path must not be used."""
    if not ABOUT[name]["core"]:
        with pytest.raises(UnsupportedError, match=f"^{name} is a mixer only"):
            linnet.MultiheadAttention(16, 2, attention=name)
        return
    layer = nn.TransformerEncoderLayer(16, 2, dim_feedforward=32, dropout=0.0, batch_first=True)
    layer.self_attn = linnet.MultiheadAttention(16, 2, attention=name, batch_first=True)
    encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    x = torch.randn(2, 9, 16)
    ignore = torch.zeros(2, 9, dtype=torch.bool)
    ignore[0, 6:] = True
    trained = encoder(x, src_key_padding_mask=ignore)
    encoder.eval()
    with torch.no_grad():
        evaluated = encoder(x, src_key_padding_mask=ignore)
        alone = encoder(x[:1, :6])
    assert torch.allclose(trained, evaluated, atol=1e-5)
    assert torch.allclose(evaluated[:1, :6], alone, atol=1e-5)
    future = nn.Transformer.generate_square_subsequent_mask(9)
    if ABOUT[name]["causal"]:
        assert encoder(x, mask=future, is_causal=True).isfinite().all()
    else:
        with pytest.raises(UnsupportedError, match="no causal form"):
            encoder(x, mask=future, is_causal=True)


def twins(**arguments) -> tuple[nn.MultiheadAttention, linnet.MultiheadAttention]:
    """torch's module and ours with heads of width 8, which the compiled kernels take, and the same weights."""
    theirs = nn.MultiheadAttention(32, 4, batch_first=True, **arguments)
    ours = linnet.MultiheadAttention(32, 4, batch_first=True, attention="softmax", **arguments)
    ours.load_state_dict(theirs.state_dict())
    return theirs, ours


def hide(kind: str, B: int, N: int) -> torch.Tensor:
    """A key_padding_mask whose first row hides keys on the left, on the right or inside."""
    ignore = torch.zeros(B, N, dtype=torch.bool)
    ignore[0, {"left": slice(0, 3), "right": slice(N - 3, N), "inner": slice(N // 2, N // 2 + 2)}[kind]] = True
    return ignore


@pytest.mark.parametrize("hidden", [None, "left", "right", "inner"])
@pytest.mark.parametrize("T,N", [(9, 9), (5, 12), (12, 5)])
@pytest.mark.parametrize("widths", [{}, {"kdim": 12, "vdim": 20}, {"vdim": 8, "bias": False}])
def test_cross_attention_equals_torch(T: int, N: int, hidden: str | None, widths: dict) -> None:
    """Values, returned weights and all gradients, at every query: a key mask hides keys only."""
    both = twins(**widths)
    query = torch.randn(3, T, 32)
    key, value = (torch.randn(3, N, widths.get(name, 32)) for name in ("kdim", "vdim"))
    ignore = None if hidden is None else hide(hidden, 3, N)
    g, results = torch.randn(3, T, 32), []
    for module in both:
        leaves = [x.clone().requires_grad_() for x in (query, key, value)]
        y, A = module(*leaves, key_padding_mask=ignore)
        results.append([y, A, *torch.autograd.grad((y * g).sum(), [*leaves, *module.parameters()])])
    assert [n for n, _ in both[0].named_parameters()] == [n for n, _ in both[1].named_parameters()]
    for theirs, ours in zip(*results, strict=True):
        assert torch.allclose(theirs, ours, atol=1e-5), float((theirs - ours).abs().max())


@pytest.mark.parametrize("hidden", ["right", "inner"])
def test_a_causal_query_that_is_not_the_key_equals_torch(hidden: str) -> None:
    theirs, ours = twins()
    query, key, ignore = torch.randn(2, 9, 32), torch.randn(2, 9, 32), hide(hidden, 2, 9)
    future = torch.ones(9, 9, dtype=torch.bool).triu(1)
    y, A = theirs(query, key, key, key_padding_mask=ignore, attn_mask=future)
    z, W = ours(query, key, key, key_padding_mask=ignore, attn_mask=future)
    assert torch.allclose(y, z, atol=1e-5) and torch.allclose(A, W, atol=1e-5)
    with pytest.raises(UnsupportedError, match="same length"):
        ours(query[:, :5], key, key, is_causal=True)


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
@pytest.mark.parametrize("batch_first", [True, False])
def test_an_encoder_and_decoder_equal_torch(batch_first: bool) -> None:
    """nn.Transformer whose three kinds of attention are ours, with all its masks."""
    sizes = {"d_model": 32, "nhead": 4, "num_encoder_layers": 1, "num_decoder_layers": 2, "dim_feedforward": 48}
    theirs = nn.Transformer(**sizes, dropout=0.0, batch_first=batch_first)
    ours = nn.Transformer(**sizes, dropout=0.0, batch_first=batch_first)
    for layer in ours.encoder.layers:
        layer.self_attn = linnet.MultiheadAttention(32, 4, batch_first=batch_first)
    for layer in ours.decoder.layers:
        layer.self_attn = linnet.MultiheadAttention(32, 4, batch_first=batch_first)
        layer.multihead_attn = linnet.MultiheadAttention(32, 4, batch_first=batch_first)
    ours.load_state_dict(theirs.state_dict())
    source, target = torch.randn(2, 11, 32), torch.randn(2, 7, 32)
    if not batch_first:
        source, target = source.transpose(0, 1), target.transpose(0, 1)
    for hidden in ("right", "left", "inner"):
        ignore = hide(hidden, 2, 11)
        masks = {
            "src_key_padding_mask": ignore,
            "memory_key_padding_mask": ignore,
            "tgt_mask": torch.ones(7, 7, dtype=torch.bool).triu(1),
        }
        y, z = theirs(source, target, **masks), ours(source, target, **masks)
        assert torch.allclose(y, z, atol=1e-5), (hidden, float((y - z).abs().max()))
        g = torch.randn_like(y)
        gradients = [torch.autograd.grad((o * g).sum(), m.parameters()) for o, m in ((y, theirs), (z, ours))]
        for (name, _), a, b in zip(theirs.named_parameters(), *gradients, strict=True):
            assert torch.allclose(a, b, atol=1e-4), name


CROSS = [name for name in NAMES if ABOUT[name]["cross"]]


@pytest.mark.parametrize("name", [name for name in NAMES if ABOUT[name]["core"]])
def test_queries_of_another_sequence(name: str) -> None:
    """With every mechanism, a module either supports cross-attention or refuses it in one line."""
    build = lambda **more: linnet.MultiheadAttention(16, 2, attention=name, batch_first=True, **more)  # noqa: E731
    x, memory = torch.randn(2, 5, 16), torch.randn(2, 8, 16)
    if name not in CROSS:
        with pytest.raises(UnsupportedError, match=f"kdim=12, vdim=None: {name} has no cross-attention"):
            build(kdim=12)
        with pytest.raises(UnsupportedError, match=f"^{name} has no cross-attention"):
            build()(x, memory, memory)
        with pytest.raises(UnsupportedError, match=f"^{name} has no cross-attention"):
            build()(x, memory[:, :5], memory[:, :5], key_padding_mask=hide("inner", 2, 5))
        return
    options = {"positions": "none"} if "positions" in type(build().core.options).model_fields else {}
    module = build(options=options, kdim=12).eval()
    memory, value = torch.randn(2, 8, 12), torch.randn(2, 8, 16)
    y, A = module(x, memory, value, key_padding_mask=hide("right", 2, 8))
    alone, W = module(x[:1], memory[:1, :5], value[:1, :5])
    assert y.shape == (2, 5, 16) and A.shape == (2, 5, 8) and not A[0, :, 5:].any()
    assert torch.allclose(y[:1], alone, atol=1e-5) and torch.allclose(A[:1, :, :5], W, atol=1e-5)


def test_positions_of_one_sequence_do_not_cross() -> None:
    for name, positions in (("norm", "lrpe"), ("softmax", "rope")):
        options = {"positions": positions}
        with pytest.raises(UnsupportedError, match=f"kdim=8, .*{name}: positions='{positions}'"):
            linnet.MultiheadAttention(16, 2, kdim=8, attention=name, options=options)
        module = linnet.MultiheadAttention(16, 2, attention=name, options=options, batch_first=True)
        with pytest.raises(UnsupportedError, match=f"^{name}: positions='{positions}'"):
            module(torch.randn(1, 4, 16), torch.randn(1, 5, 16), torch.randn(1, 5, 16))


FUTURE = torch.ones(9, 9, dtype=torch.bool).triu(1)
AS_WRITTEN = {
    "bool": FUTURE,
    "-inf": torch.zeros(9, 9).masked_fill(FUTURE, -torch.inf),
    "-1e9": torch.zeros(9, 9).masked_fill(FUTURE, -1e9),
    "lowest": torch.zeros(9, 9).masked_fill(FUTURE, torch.finfo(torch.float32).min),
    "float16": torch.zeros(9, 9).half().masked_fill(FUTURE, torch.finfo(torch.float16).min),
    "3-D": FUTURE.expand(8, 9, 9),
    "3-D, -1e9": torch.zeros(8, 9, 9).masked_fill(FUTURE, -1e9),
}


@pytest.mark.parametrize("name", ["softmax", "lln"])
@pytest.mark.parametrize("written", AS_WRITTEN)
def test_a_causal_mask_is_recognized_as_people_write_it(written: str, name: str) -> None:
    module = linnet.MultiheadAttention(32, 4, attention=name, batch_first=True)
    x = torch.randn(2, 9, 32)
    expected = module(x, x, x, is_causal=True)[0]
    assert torch.equal(module(x, x, x, attn_mask=AS_WRITTEN[written])[0], expected)


@pytest.mark.parametrize("written", ["bool", "3-D, -1e9"])
def test_a_causal_mask_compiles_and_no_other_mask_passes_for_one(written: str) -> None:
    module = linnet.MultiheadAttention(32, 4, attention="lln", batch_first=True)
    x, mask = torch.randn(2, 9, 32), AS_WRITTEN[written]
    torch._dynamo.reset()
    compiled = torch.compile(lambda x, mask: module(x, x, x, attn_mask=mask)[0], fullgraph=True, backend="aot_eager")
    assert torch.allclose(compiled(x, mask), module(x, x, x, is_causal=True)[0], atol=1e-5)
    for other in (torch.zeros_like(mask), mask.mT.contiguous()):
        with pytest.raises(RuntimeError, match="attn_mask is not the causal mask"):
            compiled(x, other)


def test_a_mask_that_hides_nothing_and_one_that_hides_something_else() -> None:
    module = linnet.MultiheadAttention(32, 4, attention="linformer", batch_first=True)  # which has no causal form
    x = torch.randn(2, 9, 32)
    expected = module(x, x, x)[0]
    for nothing in (torch.zeros(9, 9), torch.zeros(8, 9, 9), FUTURE & False):
        assert torch.equal(module(x, x, x, attn_mask=nothing)[0], expected)
    band = FUTURE | FUTURE.mT
    for other in (band, torch.zeros(9, 9).masked_fill(band, -1e9), torch.rand(9, 9)):
        with pytest.raises(UnsupportedError, match="attn_mask is not the causal mask: pass None"):
            module(x, x, x, attn_mask=other)
    with pytest.raises(UnsupportedError, match="its opposite is: in torch's modules True hides a key"):
        module(x, x, x, attn_mask=~FUTURE)
    for shape in ((9,), (2, 9, 9), (9, 8)):
        with pytest.raises(InputError, match="attn_mask has shape"):
            module(x, x, x, attn_mask=torch.zeros(shape))
    with pytest.raises(InputError, match=r"attn_mask is torch\.int64"):
        module(x, x, x, attn_mask=FUTURE.long())


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore:torch.quantize_per_tensor")  # of torch, about itself
def test_its_output_projection_may_be_wrapped_or_quantized() -> None:
    module = linnet.MultiheadAttention(32, 4, attention="lln", batch_first=True).eval()
    x = torch.randn(2, 9, 32)
    y = module(x, x, x)[0]
    small = torch.ao.quantization.quantize_dynamic(copy.deepcopy(module), {nn.Linear}, dtype=torch.qint8)
    assert type(small.out_proj) is not nn.Linear and contract_difference(small(x, x, x)[0], y) < 0.05
    wrapped = nn.ModuleList([module])
    module.out_proj = nn.Sequential(module.out_proj)
    assert torch.equal(module(x, x, x)[0], y)
    linnet.replace_attention(wrapped, "elu")
    assert wrapped[0](x, x, x)[0].shape == x.shape


def test_a_key_mask_of_other_numbers_is_refused_under_a_compiler_too() -> None:
    module = linnet.MultiheadAttention(32, 4, attention="lln", batch_first=True).eval()
    x, ignore = torch.randn(2, 9, 32), hide("right", 2, 9)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    expected = module(x, x, x, key_padding_mask=ignore, need_weights=False)[0]
    assert torch.allclose(compiled(x, x, x, key_padding_mask=ignore * -1e9, need_weights=False)[0], expected, atol=1e-6)
    for call, error in ((module, UnsupportedError), (compiled, RuntimeError)):
        with pytest.raises(error, match="key_padding_mask holds other values than 0 and -inf"):
            call(x, x, x, key_padding_mask=ignore * -5.0, need_weights=False)


def test_dropout_of_a_mechanism_without_dropout_is_on_the_output() -> None:
    module = linnet.MultiheadAttention(32, 4, dropout=0.25, attention="lln", batch_first=True)
    x = torch.randn(4, 50, 32)
    y = module.eval()(x, x, x)[0]
    z = module.train()(x, x, x)[0]
    dropped = z == 0
    assert 0.2 < dropped.float().mean() < 0.3
    assert torch.allclose(z[~dropped], y[~dropped] / 0.75, atol=1e-6)
    assert linnet.MultiheadAttention(32, 4, dropout=0.25, attention="softmax").core.options.dropout == 0.25
    for bad in (1.0, -0.1, "0.1", True):
        with pytest.raises(InputError, match="dropout"):
            linnet.MultiheadAttention(32, 4, dropout=bad, attention="lln")


def test_place_and_type_are_torch_s() -> None:
    with torch.device("meta"):
        theirs = nn.MultiheadAttention(32, 4, kdim=8, bias=False, dtype=torch.float64)
    ours = linnet.MultiheadAttention(32, 4, kdim=8, bias=False, dtype=torch.float64, device="meta")
    described = [{k: (v.shape, v.dtype, v.device) for k, v in m.state_dict().items()} for m in (theirs, ours)]
    assert described[0] == described[1]
    x, mask = torch.empty(2, 5, 32, device="meta"), torch.empty(5, 5, device="meta")
    ours = linnet.MultiheadAttention(32, 4, batch_first=True, device="meta", attention="lln")
    y, A = ours(x, x, x, attn_mask=mask, key_padding_mask=torch.empty(2, 5, device="meta"))  # shapes alone
    assert y.shape == x.shape and A.shape == (2, 5, 5)


def test_what_it_refuses() -> None:
    with pytest.raises(UnsupportedError, match="add_bias_kv"):
        linnet.MultiheadAttention(16, 4, add_bias_kv=True)
    with pytest.raises(InputError, match="kdim is 0"):
        linnet.MultiheadAttention(16, 4, kdim=0)
    with pytest.raises(InputError, match="options is 'elu': it must be a dictionary"):
        linnet.MultiheadAttention(16, 4, attention="norm", options="elu")
    with pytest.raises(InputError, match="num_heads must divide"):
        linnet.MultiheadAttention(16, 3)
    ours = linnet.MultiheadAttention(16, 4, attention="elu", batch_first=True)
    x = torch.randn(1, 5, 16)
    with pytest.raises(UnsupportedError, match="attn_mask"):
        ours(x, x, x, attn_mask=torch.ones(5, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="must be the same"):
        ours(x, x, x[:, :4])
    with pytest.raises(InputError, match="key_padding_mask has shape"):
        ours(x, torch.randn(1, 7, 16), torch.randn(1, 7, 16), key_padding_mask=torch.zeros(1, 5, dtype=torch.bool))
    with pytest.raises(InputError, match="key has shape"):
        ours(x, torch.randn(1, 7, 12), torch.randn(1, 7, 16))


@pytest.mark.parametrize("name", ["softmax", "elu", "lln", "performer", "linformer", "kernelized"])
def test_cross_attention_compiles_to_one_graph(name: str) -> None:
    module = linnet.MultiheadAttention(32, 4, attention=name, batch_first=True).eval()
    x, memory, ignore = torch.randn(2, 5, 32, requires_grad=True), torch.randn(2, 12, 32), hide("inner", 2, 12)
    torch._dynamo.reset()
    compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
    results = []
    for call in (module, compiled):
        y, _ = call(x, memory, memory, key_padding_mask=ignore, need_weights=False)
        results.append([y, *torch.autograd.grad(y.square().sum(), x)])
    assert all(torch.allclose(a, b, atol=1e-5) for a, b in zip(*results, strict=True))


@pytest.mark.parametrize("name", ["reformer", "informer"])
def test_discrete_choices_are_those_of_float32(name: str) -> None:
    half = linnet.MultiheadAttention(32, 4, attention=name, batch_first=True).eval().bfloat16()
    x = torch.randn(2, 257, 32).bfloat16()
    y = half(x, x, x, need_weights=False)[0].float()
    exact = half.float()(x.float(), x.float(), x.float(), need_weights=False)[0]
    assert contract_difference(y, exact) < 0.02


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensor_of_an_encoder_is_one_line() -> None:
    """An encoder that was built around torch's module nests padded batches in evaluation."""
    encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), 1).eval()
    encoder.layers[0].self_attn = linnet.MultiheadAttention(16, 2, batch_first=True)
    x, ignore = torch.randn(2, 9, 16), torch.zeros(2, 9, dtype=torch.bool)
    ignore[0, 6:] = True
    with torch.no_grad():
        with pytest.raises(UnsupportedError, match=r"^query is a nested tensor: set use_nested_tensor=False in"):
            encoder(x, src_key_padding_mask=ignore)
        encoder.use_nested_tensor = False
        y, alone = encoder(x, src_key_padding_mask=ignore), encoder(x[:1, :6])
    assert torch.allclose(y[:1, :6], alone, atol=1e-5)
