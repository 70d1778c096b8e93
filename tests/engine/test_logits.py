# SPDX-License-Identifier: Apache-2.0
"""Goal: the engine's logits are those of transformers. Method: random small checkpoints of every
supported architecture, head, sharding and rotary scaling; float32 on the CPU; every position that
berth-logits computes, through prefill chunks and through single-token steps."""

import numpy
import pytest
import torch

from random_decoder import random_decoder

VOCAB = 199

BASE = dict(vocab_size=VOCAB, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=64,
            initializer_range=0.2)

LLAMA3 = dict(rope_type="llama3", factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0,
              original_max_position_embeddings=32, rope_theta=10000.0)
YARN = dict(rope_type="yarn", factor=4.0, original_max_position_embeddings=16, rope_theta=10000.0)
YARN_MSCALE = dict(YARN, mscale=0.7, mscale_all_dim=1.0, beta_fast=16, beta_slow=2, truncate=False)
YARN_ATTENTION = dict(YARN, attention_factor=1.3)
LINEAR = dict(rope_type="linear", factor=3.0, rope_theta=500.0)
DYNAMIC = dict(rope_type="dynamic", factor=2.0, rope_theta=10000.0)

CASES = {
    "llama": ("Llama", {}),
    "llama_tied": ("Llama", dict(tie_word_embeddings=True)),
    "llama_no_grouping": ("Llama", dict(num_key_value_heads=4)),
    "llama_biases": ("Llama", dict(attention_bias=True, mlp_bias=True)),
    "llama_head_dim": ("Llama", dict(head_dim=24)),
    "llama_llama3": ("Llama", dict(rope_parameters=LLAMA3)),
    "llama_yarn": ("Llama", dict(rope_parameters=YARN)),
    "llama_yarn_mscale": ("Llama", dict(rope_parameters=YARN_MSCALE)),
    "llama_yarn_attention": ("Llama", dict(rope_parameters=YARN_ATTENTION)),
    "llama_linear": ("Llama", dict(rope_parameters=LINEAR)),
    "llama_dynamic_short": ("Llama", dict(rope_parameters=DYNAMIC)),
    "qwen2": ("Qwen2", {}),
    "qwen2_tied": ("Qwen2", dict(tie_word_embeddings=True)),
    "qwen2_yarn": ("Qwen2", dict(rope_parameters=YARN)),
    "qwen3": ("Qwen3", dict(head_dim=32)),
    "qwen3_tied": ("Qwen3", dict(head_dim=32, tie_word_embeddings=True)),
    "qwen3_llama3": ("Qwen3", dict(head_dim=32, rope_parameters=LLAMA3)),
}


def make_checkpoint(folder, family, changes, shard=None):
    """A random model, saved as the Hub has it; returns the model itself."""
    model = random_decoder(family, {**BASE, **changes}, seed=7)
    model.save_pretrained(folder, max_shard_size=shard or "5GB")
    return model


def reference(model, tokens):
    with torch.no_grad():
        return model(torch.tensor([tokens])).logits[0].numpy()


def relative_error(ours, expected):
    assert ours, "berth-logits gave no rows"
    return max(numpy.abs(row - expected[position]).max() / numpy.abs(expected).max()
               for position, row in ours.items())


def random_tokens(count):
    return numpy.random.default_rng(3).integers(0, VOCAB, count).tolist()


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(case, tmp_path, berth_logits):
    family, changes = CASES[case]
    model = make_checkpoint(tmp_path, family, changes)
    tokens = random_tokens(47)
    ours = berth_logits.logits(tmp_path, tokens, VOCAB, tmp_path)
    assert len(ours) > 10 and len(tokens) - 1 in ours
    assert relative_error(ours, reference(model, tokens)) < 1e-4


@pytest.mark.parametrize("family", ["Llama", "Qwen2", "Qwen3"])
def test_logits_of_a_sharded_checkpoint_equal_transformers(family, tmp_path, berth_logits):
    model = make_checkpoint(tmp_path, family, {}, shard="100KB")
    assert len(list(tmp_path.glob("*.safetensors"))) > 2
    tokens = random_tokens(21)
    ours = berth_logits.logits(tmp_path, tokens, VOCAB, tmp_path)
    assert relative_error(ours, reference(model, tokens)) < 1e-4


LINEAR_LAYERS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


def quantise_by_blocks(weight):
    """FP8 with a factor for each 128 x 128 block, and what it stands for."""
    rows, columns = weight.shape
    scales = torch.empty((rows + 127) // 128, (columns + 127) // 128)
    fp8 = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    back = torch.empty_like(weight)
    for row in range(scales.shape[0]):
        for column in range(scales.shape[1]):
            place = (slice(128 * row, 128 * row + 128), slice(128 * column, 128 * column + 128))
            scales[row, column] = weight[place].abs().max() / 448
            fp8[place] = (weight[place] / scales[row, column]).to(torch.float8_e4m3fn)
            back[place] = fp8[place].float() * scales[row, column]
    return fp8, scales, back


def test_logits_of_a_checkpoint_in_fp8_blocks_equal_its_dequantised_twin(tmp_path, berth_logits):
    import json

    from safetensors.torch import load_file, save_file

    model = make_checkpoint(tmp_path, "Qwen3", dict(hidden_size=192, intermediate_size=320,
                                                    head_dim=64))
    stored = load_file(tmp_path / "model.safetensors")
    for name in list(stored):
        if name.endswith(tuple(f"{layer}.weight" for layer in LINEAR_LAYERS)):
            fp8, scales, back = quantise_by_blocks(stored[name])
            stored[name], stored[name + "_scale_inv"] = fp8, scales
            with torch.no_grad():
                model.get_parameter(name).copy_(back)
    save_file(stored, tmp_path / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((tmp_path / "config.json").read_text())
    config["quantization_config"] = {"quant_method": "fp8", "fmt": "e4m3",
                                     "activation_scheme": "dynamic", "weight_block_size": [128, 128]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    tokens = random_tokens(29)
    ours = berth_logits.logits(tmp_path, tokens, VOCAB, tmp_path)
    assert relative_error(ours, reference(model, tokens)) < 1e-4


def test_dynamic_rope_stretches_beyond_the_trained_length(tmp_path, berth_logits):
    model = make_checkpoint(tmp_path, "Llama", dict(rope_parameters=DYNAMIC))
    tokens = random_tokens(150)
    ours = berth_logits.logits(tmp_path, tokens, VOCAB, tmp_path)
    assert relative_error(ours, reference(model, tokens)) < 1e-4
    plain = make_checkpoint(tmp_path / "plain", "Llama", {})
    assert relative_error(ours, reference(plain, tokens)) > 1e-2


@pytest.mark.parametrize("case", ["llama_yarn", "llama_llama3", "llama_linear", "llama_biases"])
def test_the_comparison_notices_what_a_case_is_about(case, tmp_path, berth_logits):
    family, changes = CASES[case]
    make_checkpoint(tmp_path, family, changes)
    other = make_checkpoint(tmp_path / "plain", family, {})
    tokens = random_tokens(47)
    ours = berth_logits.logits(tmp_path, tokens, VOCAB, tmp_path)
    assert relative_error(ours, reference(other, tokens)) > 1e-3


def test_batch_invariant_shapes_give_the_same_tokens(tmp_path, berth_logits):
    model = make_checkpoint(tmp_path, "Qwen3", dict(head_dim=32))
    tokens = random_tokens(40)
    expected = model.generate(torch.tensor([tokens]), max_new_tokens=20, do_sample=False,
                              eos_token_id=VOCAB)[0][40:].tolist()
    assert berth_logits.greedy(tmp_path, tokens, 20) == expected
    assert berth_logits.greedy(tmp_path, tokens, 20, "--batch-invariant", "--chunk", 16) == expected


@pytest.mark.parametrize("field, value, named", [
    ("rope_parameters", {"rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0}, "longrope"),
    ("hidden_act", "gelu", "gelu"),
    ("model_type", "mixtral", "mixtral"),
    ("partial_rotary_factor", 0.5, "partial_rotary_factor"),
])
def test_what_is_not_computed_is_refused_by_name(field, value, named, tmp_path, bin_dir):
    import json
    import subprocess

    make_checkpoint(tmp_path, "Llama", {})
    config = json.loads((tmp_path / "config.json").read_text())
    if field == "partial_rotary_factor":
        config["rope_parameters"][field] = value
    else:
        config[field] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    done = subprocess.run([bin_dir / "berth-logits", "--model", tmp_path, "--tokens", "1",
                           "--output", tmp_path / "out"], capture_output=True, text=True)
    assert done.returncode == 1
    assert named in done.stderr
