# SPDX-License-Identifier: Apache-2.0
"""Goal: whatever the model, its element type, its quantisation and the number of ranks, every rank
gets exactly the bytes that it should. Method: small models of every kind with random weights are
written with safetensors and loaded for all ranks by the real program, which writes images; a plain
reference in torch says what each must hold, and every tensor is compared bit for bit."""

import json
import os
import pathlib
import re
import subprocess
import zlib

# Before torch is imported: other tests share the cores, and spinning threads starve each other.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest
import torch
import transformers
from safetensors.torch import save_file

from image_file import read_image
from reference import Ranks, is_linear, quantised

BIN = pathlib.Path(os.environ.get(
    "BERTH_BIN_DIR", pathlib.Path(__file__).resolve().parents[2] / "build/release/bin"))

DENSE = {"hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 3, "vocab_size": 516,
         "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 128,
         "max_position_embeddings": 128, "tie_word_embeddings": False}
KINDS = {
    "llama": DENSE | {"architectures": ["LlamaForCausalLM"]},
    # A tied head, biases.
    "qwen2": DENSE | {"architectures": ["Qwen2ForCausalLM"], "hidden_size": 512,
                      "tie_word_embeddings": True},
    "qwen3": DENSE | {"architectures": ["Qwen3ForCausalLM"]},
    "qwen3_moe": DENSE | {
        "architectures": ["Qwen3MoeForCausalLM"], "num_hidden_layers": 2, "num_experts": 4,
        "num_experts_per_tok": 2, "moe_intermediate_size": 512, "decoder_sparse_step": 1,
        "mlp_only_layers": [], "norm_topk_prob": True},
    # Matrices whose last blocks are smaller: 96 and 224 rows or columns.
    "deepseek_v3": DENSE | {
        "architectures": ["DeepseekV3ForCausalLM"], "num_hidden_layers": 2,
        "num_key_value_heads": 4, "moe_intermediate_size": 512, "n_routed_experts": 4,
        "n_shared_experts": 1, "num_experts_per_tok": 2, "n_group": 2, "topk_group": 1,
        "topk_method": "noaux_tc", "scoring_func": "sigmoid", "first_k_dense_replace": 1,
        "moe_layer_freq": 1, "num_nextn_predict_layers": 0, "q_lora_rank": 160, "kv_lora_rank": 96,
        "qk_nope_head_dim": 128, "qk_rope_head_dim": 128, "v_head_dim": 128,
        "routed_scaling_factor": 2.5, "norm_topk_prob": True, "attention_bias": False},
}
for _kind, _config in KINDS.items():
    _config["model_type"] = _kind
del KINDS["deepseek_v3"]["head_dim"]
MIXTURES = ("qwen3_moe", "deepseek_v3")
DTYPES = {"bf16": torch.bfloat16, "f32": torch.float32, "f16": torch.float16}
NAMES = {torch.bfloat16: "BF16", torch.float32: "F32", torch.float16: "F16",
         torch.float8_e4m3fn: "F8_E4M3"}
BLOCKS = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic",
          "weight_block_size": [128, 128]}


def ranks_of(kind):
    config = KINDS[kind]
    yield from (Ranks(config), Ranks(config, tp=2), Ranks(config, tp=4), Ranks(config, pp=2),
                Ranks(config, tp=2, pp=2))
    if kind in MIXTURES:
        yield from (Ranks(config, tp=2, ep=2), Ranks(config, tp=4, ep=2), Ranks(config, dp=2, ep=2))


def apart(name, tensor):
    """Published files keep a layer's experts apart, transformers' models hold them in one."""
    stacked = re.fullmatch(r"(.*\.mlp\.experts)\.(gate_up_proj|down_proj)", name)
    if not stacked:
        yield name, tensor
        return
    module, projection = stacked.groups()
    halves = ("gate_proj", "up_proj") if projection == "gate_up_proj" else ("down_proj",)
    for expert, matrix in enumerate(tensor):
        for half, part in zip(halves, matrix.chunk(len(halves))):
            yield f"{module}.{expert}.{half}.weight", part


def weights_of(kind, dtype):
    """Random, of many magnitudes from block to block, with blocks of zeros and of tiny values."""
    config = transformers.AutoConfig.for_model(**KINDS[kind])
    with torch.device("meta"):
        state = transformers.AutoModelForCausalLM.from_config(config).state_dict()
    generator = torch.Generator().manual_seed(zlib.crc32(kind.encode()))
    tensors = {}
    for name, made in (pair for item in state.items() for pair in apart(*item)):
        if KINDS[kind]["tie_word_embeddings"] and name == "lm_head.weight":
            continue
        values = torch.randn(made.shape, generator=generator)
        if values.dim() == 2:
            values *= 2.0 ** torch.randint(-9, 3, (values.shape[0], 1), generator=generator)
        if is_linear(name, values):
            values[:128, :128] = 0
            values[-1, -128:] *= 2.0 ** -12
        tensors[name] = values.to(DTYPES[dtype])
    return tensors


def write_checkpoint(folder, kind, tensors, more=None):
    (folder / "config.json").write_text(json.dumps(KINDS[kind] | (more or {})))
    names = sorted(tensors)
    index = {"metadata": {}, "weight_map": {}}
    for number, part in enumerate((names[0::2], names[1::2]), 1):
        file = f"model-{number:05}-of-00002.safetensors"
        save_file({name: tensors[name].contiguous() for name in part}, folder / file)
        index["weight_map"] |= {name: file for name in part}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))


def bytes_of(tensor):
    return tensor.contiguous().view(torch.uint8).numpy().tobytes()


def load(model, image, *options):
    done = subprocess.run(
        [BIN / "berth-loader", "--model", model, "--device", "host-0", "--ranks", "all",
         "--write-image", image, *options], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def check(model, whole, kind, folder, *options):
    """Loads for every division among ranks and compares all of it."""
    for ranks in ranks_of(kind):
        image = folder / "image"
        load(model, image, *ranks.options(), *options)
        for rank in range(ranks.world):
            path = image if ranks.world == 1 else folder / f"image.rank{rank}"
            found, manifest = read_image(path)
            path.unlink()
            where = f"{kind} {ranks} rank {rank}"
            document = json.loads(manifest.document)
            assert document["slicing"] == {"tp": ranks.tp, "pp": ranks.pp, "dp": ranks.dp,
                                           "ep": ranks.ep, "rank": rank}, where
            wanted = ranks.tensors(whole, rank)
            assert set(found) == set(wanted), where
            for name, tensor in wanted.items():
                got = found[name]
                assert got.shape == tuple(tensor.shape), f"{where}: {name}"
                assert got.dtype == NAMES[tensor.dtype], f"{where}: {name}"
                assert got.data == bytes_of(tensor), f"{where}: {name}"
            tied = {name for name, tensor in found.items() if tensor.alias_of}
            assert tied == ({"lm_head.weight"} if KINDS[kind]["tie_word_embeddings"] and
                            "lm_head.weight" in wanted else set()), where
            assert manifest.weight_bytes == sum(len(tensor.data) for name, tensor in found.items()
                                                if name not in tied), where


@pytest.fixture(scope="session")
def checkpoints(tmp_path_factory):
    """(folder, tensors) of a kind and an element type, written once."""
    made = {}

    def of(kind, dtype):
        if (kind, dtype) not in made:
            folder = tmp_path_factory.mktemp(f"{kind}-{dtype}")
            tensors = weights_of(kind, dtype)
            write_checkpoint(folder, kind, tensors)
            made[kind, dtype] = folder, tensors
        return made[kind, dtype]

    return of


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_gets_its_part_of_the_files(checkpoints, tmp_path, kind, dtype):
    folder, tensors = checkpoints(kind, dtype)
    check(folder, tensors, kind, tmp_path)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_every_rank_gets_its_part_of_the_quantised_whole(checkpoints, tmp_path, kind, dtype):
    folder, tensors = checkpoints(kind, dtype)
    check(folder, quantised(tensors), kind, tmp_path, "--quantization", "fp8-block")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", KINDS)
def test_a_checkpoint_in_block_fp8_passes_through_with_its_scales(tmp_path, kind, dtype):
    tensors = quantised(weights_of(kind, dtype))
    write_checkpoint(tmp_path, kind, tensors, {"quantization_config": BLOCKS})
    check(tmp_path, tensors, kind, tmp_path)
