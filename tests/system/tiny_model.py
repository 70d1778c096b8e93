# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of a few kilobytes that loads like a real one."""

import json
import struct

LAYERS, HIDDEN, INTERMEDIATE, HEADS, KV_HEADS, HEAD, WORDS = 2, 8, 16, 2, 1, 4, 32


def _tensors():
    yield "model.embed_tokens.weight", (WORDS, HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (HIDDEN,)
        yield f"{name}.self_attn.q_proj.weight", (HEADS * HEAD, HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", (KV_HEADS * HEAD, HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", (KV_HEADS * HEAD, HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", (HIDDEN, HEADS * HEAD)
        yield f"{name}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{name}.mlp.gate_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{name}.mlp.up_proj.weight", (INTERMEDIATE, HIDDEN)
        yield f"{name}.mlp.down_proj.weight", (HIDDEN, INTERMEDIATE)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (WORDS, HIDDEN)


def make_tiny_model(folder, seed=1):
    """Writes it; models of different seeds have different bytes."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE, "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD,
        "vocab_size": WORDS, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "rope_theta": 10000.0 + seed}
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for number, (name, shape) in enumerate(_tensors()):
        count = 1
        for size in shape:
            count *= size
        values = struct.pack(f"<{count}f", *(seed + number + i / 64 for i in range(count)))
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + len(values)]}
        data += values
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder
