"""The cost of an encoder on texts longer than its positions."""

import pytest


def test_each_system_is_measured_on_stretched_positions(tmp_path):
    transformers = pytest.importorskip("transformers", reason="needs transformers, the extra `hf`")
    from linnet.bench.encoder import measure_encoder

    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    config = transformers.BertConfig(vocab_size=50, max_position_embeddings=64, **sizes)
    transformers.BertModel(config).save_pretrained(tmp_path)
    seen = []
    found = measure_encoder(tmp_path, ["softmax", "lln"], 256, 1, lambda done, total: seen.append((done, total)))
    assert found["tokens"] == 256 and seen[-1] == (4, 4)
    assert [row["attention"] for row in found["rows"]] == ["softmax", "lln"]
    assert all(row["seconds"] > 0 and 0 < row["memory"] < 2**28 for row in found["rows"])
