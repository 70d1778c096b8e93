# SPDX-License-Identifier: Apache-2.0
"""Goal: what Berth expects of a checkpoint is what the model has. Method: the published sizes, and
small ones by the hundred at random, built by transformers on the meta device; every name and shape
compared. Its models keep a layer's experts in one tensor, published files keep them apart."""

import json
import random
import re
import struct

import pytest
import torch
import transformers

LLAMA = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 8192,
    "intermediate_size": 28672, "num_hidden_layers": 80, "num_attention_heads": 64,
    "num_key_value_heads": 8, "vocab_size": 128256, "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-5, "rope_theta": 500000.0, "tie_word_embeddings": False,
    "rope_scaling": {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
                     "original_max_position_embeddings": 8192, "rope_type": "llama3"},
}
QWEN3_30B = {
    "architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe", "hidden_size": 2048,
    "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
    "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "vocab_size": 151936,
    "num_experts": 128, "num_experts_per_tok": 8, "decoder_sparse_step": 1, "mlp_only_layers": [],
    "norm_topk_prob": True, "tie_word_embeddings": False, "attention_bias": False,
    "use_sliding_window": False, "sliding_window": None, "rope_theta": 1000000.0,
    "rope_scaling": None,
}
QWEN3_235B = QWEN3_30B | {
    "hidden_size": 4096, "intermediate_size": 12288, "moe_intermediate_size": 1536,
    "num_hidden_layers": 94, "num_attention_heads": 64,
}
DEEPSEEK_V3 = {
    "architectures": ["DeepseekV3ForCausalLM"], "model_type": "deepseek_v3", "hidden_size": 7168,
    "intermediate_size": 18432, "moe_intermediate_size": 2048, "num_hidden_layers": 61,
    "num_attention_heads": 128, "num_key_value_heads": 128, "vocab_size": 129280,
    "n_routed_experts": 256, "n_shared_experts": 1, "num_experts_per_tok": 8, "n_group": 8,
    "topk_group": 4, "topk_method": "noaux_tc", "scoring_func": "sigmoid",
    "routed_scaling_factor": 2.5, "norm_topk_prob": True, "first_k_dense_replace": 3,
    "moe_layer_freq": 1, "num_nextn_predict_layers": 1, "q_lora_rank": 1536, "kv_lora_rank": 512,
    "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128, "attention_bias": False,
    "tie_word_embeddings": False, "rope_theta": 10000,
    "rope_scaling": {"beta_fast": 32, "beta_slow": 1, "factor": 40, "mscale": 1.0,
                     "mscale_all_dim": 1.0, "original_max_position_embeddings": 4096,
                     "type": "yarn"},
}
DEEPSEEK_V2_LITE = {
    "architectures": ["DeepseekV2ForCausalLM"], "model_type": "deepseek_v2", "hidden_size": 2048,
    "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
    "num_attention_heads": 16, "num_key_value_heads": 16, "vocab_size": 102400,
    "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
    "topk_method": "greedy", "first_k_dense_replace": 1, "moe_layer_freq": 1, "q_lora_rank": None,
    "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "v_head_dim": 128,
    "attention_bias": False, "tie_word_embeddings": False,
}
QWEN2 = {
    "architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2", "hidden_size": 896,
    "intermediate_size": 4864, "num_hidden_layers": 24, "num_attention_heads": 14,
    "num_key_value_heads": 2, "vocab_size": 151936, "tie_word_embeddings": True,
}
QWEN3 = {
    "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": 1024,
    "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16,
    "num_key_value_heads": 8, "head_dim": 128, "vocab_size": 151936, "tie_word_embeddings": True,
}
PUBLISHED = {
    "Llama-3.1-70B": (LLAMA, 70_553_706_496),
    "Qwen3-30B-A3B": (QWEN3_30B, 30_532_122_624),
    "Qwen3-235B-A22B": (QWEN3_235B, 235_093_634_560),
    "DeepSeek-V3": (DEEPSEEK_V3, 671_026_419_200),
    "DeepSeek-V2-Lite": (DEEPSEEK_V2_LITE, 15_706_484_224),
    "Qwen2.5-0.5B": (QWEN2, 494_032_768),
    "Qwen3-0.6B": (QWEN3, 596_049_920),
}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
          "weight_block_size": [128, 128]}


def build(config):
    """The model of a configuration, without memory."""
    config = {name: value for name, value in config.items() if name != "quantization_config"}
    made = transformers.AutoConfig.for_model(**config)
    with torch.device("meta"):
        return transformers.AutoModelForCausalLM.from_config(made)


def apart(name, shape):
    """A layer's experts, one by one, as published files name them."""
    stacked = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)(_scale_inv)?", name)
    if not stacked:
        yield name, shape
        return
    module, projection, scale = stacked.groups()
    count, rows, columns = shape
    for expert in range(count):
        halves = ("gate_proj", "up_proj") if projection == "gate_up_proj" else ("down_proj",)
        for half in halves:
            yield (f"{module}.{expert}.{half}.weight{scale or ''}", (rows // len(halves), columns))


def tensors_of(model):
    state = model.state_dict(keep_vars=True)
    return dict(pair for name, tensor in state.items() for pair in apart(name, tuple(tensor.shape)))


def shapes(expected):
    return {name: shape for name, (shape, _, _) in expected.items()}


def product(shape):
    count = 1
    for axis in shape:
        count *= axis
    return count


@pytest.mark.parametrize("name", PUBLISHED)
def test_a_published_model_has_what_is_expected(expected, name):
    config, parameters = PUBLISHED[name]
    needed = shapes(expected(config))
    assert needed == tensors_of(build(config))
    tied = config["tie_word_embeddings"]
    counted = sum(product(shape) for tensor, shape in needed.items()
                  if not (tied and tensor == "lm_head.weight"))
    assert counted == parameters


def any_dense(pick):
    heads = pick.choice([1, 2, 4, 6])
    config = {
        "hidden_size": heads * pick.choice([4, 8, 10]), "intermediate_size": pick.randint(1, 40),
        "num_hidden_layers": pick.randint(1, 4), "num_attention_heads": heads,
        "num_key_value_heads": pick.choice([n for n in range(1, heads + 1) if heads % n == 0]),
        "vocab_size": pick.randint(1, 50), "attention_bias": pick.random() < 0.5,
        "mlp_bias": pick.random() < 0.5, "tie_word_embeddings": pick.random() < 0.5,
    }
    if pick.random() < 0.5:
        config["head_dim"] = pick.choice([2, 6, 16])
    return config


def any_config(kind, pick):
    config = {"architectures": [kind], "model_type": {
        "LlamaForCausalLM": "llama", "Qwen2ForCausalLM": "qwen2", "Qwen3ForCausalLM": "qwen3",
        "Qwen3MoeForCausalLM": "qwen3_moe", "DeepseekV2ForCausalLM": "deepseek_v2",
        "DeepseekV3ForCausalLM": "deepseek_v3"}[kind]} | any_dense(pick)
    experts = pick.randint(1, 5)
    moe = {"num_experts_per_tok": pick.randint(1, experts),
           "moe_intermediate_size": pick.randint(1, 20)}
    layers = config["num_hidden_layers"]
    if kind == "Qwen3MoeForCausalLM":
        config |= moe | {"num_experts": experts, "decoder_sparse_step": pick.randint(1, 3),
                         "mlp_only_layers": pick.sample(range(layers), pick.randint(0, layers))}
    if kind.startswith("Deepseek"):
        config.pop("head_dim", None)
        config["num_key_value_heads"] = config["num_attention_heads"]
        config |= moe | {
            "n_routed_experts": experts, "n_shared_experts": pick.randint(1, 3),
            "first_k_dense_replace": pick.randint(0, layers), "kv_lora_rank": pick.randint(1, 20),
            "q_lora_rank": pick.choice([None, 3, 12]), "qk_nope_head_dim": pick.choice([2, 6]),
            "qk_rope_head_dim": pick.choice([2, 4]), "v_head_dim": pick.randint(1, 9),
            "n_group": 1, "topk_group": 1}
    return config


KINDS = ["LlamaForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM", "Qwen3MoeForCausalLM",
         "DeepseekV2ForCausalLM", "DeepseekV3ForCausalLM"]


@pytest.mark.parametrize("kind", KINDS)
def test_a_small_model_of_any_sizes_has_what_is_expected(expected, kind):
    for seed in range(40):
        config = any_config(kind, random.Random(f"{kind} {seed}"))
        assert shapes(expected(config)) == tensors_of(build(config)), (seed, config)


@pytest.mark.parametrize("kind", KINDS)
def test_block_wise_fp8_quantises_the_matrices_that_transformers_quantises(expected, kind):
    from transformers.integrations.finegrained_fp8 import replace_with_fp8_linear
    for seed in range(10):
        pick = random.Random(f"fp8 {kind} {seed}")
        config = any_config(kind, pick)
        # Halves of a stacked tensor are blocks of their own only where they divide.
        config |= {"hidden_size": 128 * config["num_attention_heads"],
                   "intermediate_size": pick.choice([128, 200]), "moe_intermediate_size": 256}
        kept = pick.choice([[], ["model.layers.0.self_attn"], ["down_proj"]])
        kept = kept if "DeepseekV" not in kind and "Moe" not in kind else []
        model = replace_with_fp8_linear(
            build(config), modules_to_not_convert=["lm_head", *kept],
            quantization_config=transformers.FineGrainedFP8Config(weight_block_size=(128, 128)))
        needed = expected(config | {
            "quantization_config": BLOCKS | {"modules_to_not_convert": ["lm_head", *kept]}})
        assert shapes(needed) == tensors_of(model), (seed, config)
        assert any(kind_of == "scales" for _, kind_of, _ in needed.values())
        for name, (_, kind_of, is_projection) in needed.items():
            assert (kind_of == "scales") == name.endswith("_scale_inv"), name
            assert kind_of != "blocks" or is_projection, name


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shard", ["10GB", "4KB"])
def test_what_transformers_writes_is_opened_whole(tool, tmp_path, kind, shard):
    config = any_config(kind, random.Random(f"written {kind}"))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path, max_shard_size=shard)
    done = tool(tmp_path, "--open")
    assert done.returncode == 0, done.stderr
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    aliased = {name for what, name, _ in rows if what == "alias"}
    assert aliased == ({"lm_head.weight"} if config["tie_word_embeddings"] else set())
    assert {name for what, name, _ in rows if what == "loaded"} == set(tensors_of(model)) - aliased


WIDTH = {"F8_E4M3": 1, "BF16": 2, "F32": 4}


def write_hollow(folder, config, tensors, shards):
    """A checkpoint of real size whose data is a hole: headers, index and lengths are true."""
    (folder / "config.json").write_text(json.dumps(config))
    weight_map = {}
    for shard in range(shards):
        name = f"model-{shard + 1:05}-of-{shards:06}.safetensors"
        header, at = {}, 0
        for tensor, (shape, dtype) in tensors[shard::shards]:
            end = at + product(shape) * WIDTH[dtype]
            header[tensor] = {"dtype": dtype, "shape": shape, "data_offsets": [at, end]}
            weight_map[tensor] = name
            at = end
        text = json.dumps(header).encode()
        with open(folder / name, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            file.truncate(8 + len(text) + at)
    (folder / "model.safetensors.index.json").write_text(
        json.dumps({"metadata": {}, "weight_map": weight_map}))


def test_the_whole_of_deepseek_v3_is_checked_and_its_last_factor_missed(expected, tool, tmp_path):
    config = DEEPSEEK_V3 | {"quantization_config": BLOCKS}
    stored = {"float": "BF16", "blocks": "F8_E4M3", "scales": "F32"}
    tensors = [(name, (shape, stored[kind]))
               for name, (shape, kind, _) in expected(config).items()]
    # The layer that guesses further tokens: as one with experts, and what only it has.
    further = [(name.replace(".layers.60.", ".layers.61."), what) for name, what in tensors
               if ".layers.60." in name]
    further += [(f"model.layers.61.{name}", (shape, "BF16")) for name, shape in {
        "embed_tokens.weight": (129280, 7168), "enorm.weight": (7168,), "hnorm.weight": (7168,),
        "eh_proj.weight": (7168, 14336), "shared_head.norm.weight": (7168,),
        "shared_head.head.weight": (129280, 7168)}.items()]
    assert len(tensors) + len(further) == 91_991
    write_hollow(tmp_path, config, tensors + further, 163)
    done = tool(tmp_path, "--open")
    assert done.returncode == 0, done.stderr
    what = [line.split("\t")[0] for line in done.stdout.splitlines()]
    assert what.count("loaded") == len(tensors) and what.count("ignored") == len(further)
    absent = "model.layers.60.mlp.experts.255.down_proj.weight_scale_inv"
    write_hollow(tmp_path, config, [pair for pair in tensors + further if pair[0] != absent], 163)
    done = tool(tmp_path, "--open")
    assert done.returncode == 1
    assert f"tensor '{absent}': found nothing" in done.stderr


def test_what_transformers_does_not_load_is_refused(tool, tmp_path):
    config = any_config("Qwen3MoeForCausalLM", random.Random(1))
    model = transformers.AutoModelForCausalLM.from_config(
        transformers.AutoConfig.for_model(**config), dtype=torch.bfloat16)
    model.save_pretrained(tmp_path)
    import safetensors.torch
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    absent = sorted(tensors)[3]
    del tensors[absent]
    safetensors.torch.save_file(tensors, path)
    done = tool(tmp_path, "--open")
    assert done.returncode == 1
    assert absent in done.stderr
