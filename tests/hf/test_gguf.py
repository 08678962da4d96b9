"""GGUF files: a small one with quantized weights becomes a model that can be saved; anything else is refused."""

import numpy as np
import pytest

from linnet.errors import InputError
from linnet.hf import load, patch
from linnet.hf.gguf import load_gguf

WIDTH, LAYERS, HEADS, HIDDEN = 64, 2, 2, 96


def write(path, type_name: str) -> dict[str, np.ndarray]:
    """A Llama with random weights, its matrices in the type; returns them."""
    gguf = pytest.importorskip("gguf", reason="needs gguf")
    writer = gguf.GGUFWriter(path, "llama")
    words = ["<unk>", "<s>", "</s>", "w", *(str(i) for i in range(60))]
    writer.add_block_count(LAYERS)
    writer.add_context_length(128)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(HIDDEN)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(words))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([1] * len(words))
    writer.add_token_merges(["1 0"])
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    random, weights = np.random.default_rng(0), {}
    shapes = {"token_embd.weight": (len(words), WIDTH), "output_norm.weight": (WIDTH,)}
    for i in range(LAYERS):
        kv = WIDTH // HEADS
        shapes |= {f"blk.{i}.attn_{n}.weight": (kv if n in "kv" else WIDTH, WIDTH) for n in ("q", "k", "v", "output")}
        shapes |= {f"blk.{i}.ffn_{n}.weight": (HIDDEN, WIDTH) for n in ("gate", "up")}
        shapes |= {f"blk.{i}.ffn_down.weight": (WIDTH, HIDDEN)}
        shapes |= {f"blk.{i}.{n}_norm.weight": (WIDTH,) for n in ("attn", "ffn")}
    for name, shape in shapes.items():
        weights[name] = random.normal(size=shape).astype(np.float32) * 0.1 + (len(shape) == 1)
        kind = gguf.GGMLQuantizationType[type_name] if len(shape) == 2 else gguf.GGMLQuantizationType.F32
        writer.add_tensor(name, gguf.quants.quantize(weights[name], kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights


@pytest.mark.parametrize("type_name", ["Q4_1", "Q8_0"])
def test_quantized_weights_become_a_model_that_is_patched_and_saved(type_name, tmp_path):
    weights = write(tmp_path / "small.gguf", type_name)
    model, tokenizer = load_gguf(tmp_path / "small.gguf")
    found = model.model.layers[1].mlp.up_proj.weight.detach().numpy()
    wanted = weights["blk.1.ffn_up.weight"]
    assert np.abs(found - wanted).max() < (0.03 if type_name == "Q4_1" else 0.003)
    assert tokenizer.convert_tokens_to_ids("59") == 63
    patch(model, "lln_diag").save_pretrained(tmp_path / "saved")
    ids = model.dummy_inputs["input_ids"] % 60
    assert load(tmp_path / "saved")(ids).logits.equal(model(ids).logits)


def test_what_is_no_gguf_file_is_one_line(tmp_path):
    with pytest.raises(InputError, match=r"none\.gguf is not a file"):
        load_gguf(tmp_path / "none.gguf")
    (tmp_path / "other.gguf").write_bytes(b"PK\x03\x04 and more")
    with pytest.raises(InputError, match=r"is not a GGUF file: it starts with b'PK"):
        load_gguf(tmp_path / "other.gguf")
    (tmp_path / "torn.gguf").write_bytes(b"GGUF\x03\x00\x00\x00")
    pytest.importorskip("gguf", reason="needs gguf")
    with pytest.raises(InputError, match=r"torn\.gguf: ") as error:
        load_gguf(tmp_path / "torn.gguf")
    assert "\n" not in str(error.value)
