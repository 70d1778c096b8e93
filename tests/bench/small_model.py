# SPDX-License-Identifier: Apache-2.0
"""A checkpoint of some hundred kilobytes that a real engine answers with: random weights, and a
tokenizer of bytes. Made without torch, in a moment."""

import array
import json
import pathlib
import random
import struct
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "configs"))
from make_model import write_byte_tokenizer  # noqa: E402

LAYERS, HIDDEN, INNER, HEADS, KV_HEADS, HEAD, BYTES = 2, 64, 128, 4, 2, 16, 257

CHAT_ML = ("{% for message in messages %}{{'<|im_start|>' + message['role'] + '\n' + "
           "message['content'] + '<|im_end|>' + '\n'}}{% endfor %}"
           "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}")


def _tensors(words, head):
    yield "model.embed_tokens.weight", (words, HIDDEN)
    for layer in range(LAYERS):
        name = f"model.layers.{layer}"
        yield f"{name}.input_layernorm.weight", (HIDDEN,)
        yield f"{name}.self_attn.q_proj.weight", (HEADS * head, HIDDEN)
        yield f"{name}.self_attn.k_proj.weight", (KV_HEADS * head, HIDDEN)
        yield f"{name}.self_attn.v_proj.weight", (KV_HEADS * head, HIDDEN)
        yield f"{name}.self_attn.o_proj.weight", (HIDDEN, HEADS * head)
        yield f"{name}.post_attention_layernorm.weight", (HIDDEN,)
        yield f"{name}.mlp.gate_proj.weight", (INNER, HIDDEN)
        yield f"{name}.mlp.up_proj.weight", (INNER, HIDDEN)
        yield f"{name}.mlp.down_proj.weight", (HIDDEN, INNER)
    yield "model.norm.weight", (HIDDEN,)
    yield "lm_head.weight", (words, HIDDEN)


def make_small_model(folder, seed=1, words=BYTES, chat_template=None, head=HEAD):
    """More `words` than bytes: most tokens of an answer are text that a stream shows at once. A token's
    KV takes 32 times `head` bytes."""
    folder.mkdir(parents=True)
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN,
        "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS, "head_dim": head, "vocab_size": words,
        "max_position_embeddings": 2048, "hidden_act": "silu", "rms_norm_eps": 1e-5,
        "tie_word_embeddings": False, "rope_theta": 10000.0, "torch_dtype": "float32",
        "bos_token_id": 0, "eos_token_id": 0}
    (folder / "config.json").write_text(json.dumps(config))
    write_byte_tokenizer(folder, words)
    if chat_template:
        (folder / "chat_template.jinja").write_text(chat_template)
    dice, header, data = random.Random(seed), {}, b""
    for name, shape in _tensors(words, head):
        count = 1
        for size in shape:
            count *= size
        is_norm = len(shape) == 1
        values = array.array("f", (1.0 if is_norm else dice.gauss(0, 0.1) for _ in range(count)))
        header[name] = {"dtype": "F32", "shape": shape,
                        "data_offsets": [len(data), len(data) + 4 * count]}
        data += values.tobytes()
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder
