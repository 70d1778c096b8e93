# SPDX-License-Identifier: Apache-2.0
"""What every rank should hold, the plain way: whole tensors in torch, cut by their names, quantised
block by block as cache/weights/quantise.h says."""

import re

import torch

BLOCK = 128
SCALE = "_scale_inv"
# How layers are cut: by rows (their outputs) or by columns (their inputs).
ROWS = {"embed_tokens", "lm_head", "q_proj", "k_proj", "v_proj", "q_b_proj", "kv_b_proj",
        "gate_proj", "up_proj"}
COLUMNS = {"o_proj", "down_proj"}
LINEAR = (ROWS | COLUMNS | {"q_a_proj", "kv_a_proj_with_mqa"}) - {"embed_tokens", "lm_head"}


def module_of(name):
    return name.split(".")[-2]


def is_linear(name, tensor):
    return module_of(name) in LINEAR and name.endswith(".weight") and tensor.dim() == 2


def quantise(tensor):
    """FP8 and its factors, one block after the other in single precision."""
    values = tensor.float()
    rows, columns = values.shape
    fp8 = torch.empty(rows, columns, dtype=torch.float8_e4m3fn)
    scales = torch.empty(-(-rows // BLOCK), -(-columns // BLOCK))
    for row in range(0, rows, BLOCK):
        for column in range(0, columns, BLOCK):
            block = values[row:row + BLOCK, column:column + BLOCK]
            amax = block.abs().max()
            scale, factor = torch.tensor(1.0), torch.tensor(1.0)
            if amax > 0:
                amax = torch.maximum(amax, torch.tensor(2.0 ** -117))
                scale, factor = amax / 448, torch.tensor(448.0) / amax
            rounded = (block * factor).clamp(-448, 448).to(torch.float8_e4m3fn)
            fp8.view(torch.uint8)[row:row + BLOCK, column:column + BLOCK] = \
                rounded.view(torch.uint8)
            scales[row // BLOCK, column // BLOCK] = scale
    return fp8, scales


def quantised(tensors):
    """Every linear layer's matrix in FP8 with its factors beside it."""
    out = {}
    for name, tensor in tensors.items():
        if is_linear(name, tensor):
            out[name], out[name + SCALE] = quantise(tensor)
        else:
            out[name] = tensor
    return out


class Ranks:
    """Rank (stage * dp + replica) * tp + place; groups of experts follow each other in a stage."""

    def __init__(self, config, tp=1, pp=1, ep=1, dp=1):
        self.config, self.tp, self.pp, self.ep, self.dp = config, tp, pp, ep, dp
        self.world = tp * pp * dp

    def options(self):
        return [text for name in ("tp", "pp", "ep", "dp")
                for text in (f"--{name}", str(getattr(self, name)))]

    def __str__(self):
        return f"tp{self.tp} pp{self.pp} ep{self.ep} dp{self.dp}"

    def stage_of(self, layer):
        layers = self.config["num_hidden_layers"]
        # As numpy.array_split: the first stages have one more.
        sizes = [layers // self.pp + (stage < layers % self.pp) for stage in range(self.pp)]
        for stage, size in enumerate(sizes):
            if layer < size:
                return stage
            layer -= size
        raise AssertionError("a layer behind the last")

    def tensors(self, whole, rank):
        """{name: tensor} of one rank; a tied head is its embedding's tensor itself."""
        tied = self.config["tie_word_embeddings"]
        stage = rank // (self.tp * self.dp)
        is_last = stage == self.pp - 1
        mine = {}
        for name, tensor in whole.items():
            layer = re.match(r"model\.layers\.(\d+)\.", name)
            if layer:
                is_here = self.stage_of(int(layer[1])) == stage
            elif "embed_tokens" in name:
                is_here = stage == 0 or (is_last and tied)
            else:
                is_here = is_last
            part = self.cut(name, tensor, rank) if is_here else None
            if part is not None:
                mine[name] = part
        if tied and is_last:
            mine["lm_head.weight"] = mine["model.embed_tokens.weight"]
        return mine

    def cut(self, name, tensor, rank):
        ranks, place = self.tp, rank % self.tp
        expert = re.search(r"\.mlp\.experts\.(\d+)\.", name)
        if expert and self.ep > 1:
            in_stage = rank % (self.tp * self.dp)
            ranks = self.tp * self.dp // self.ep
            count = self.config.get("num_experts") or self.config["n_routed_experts"]
            if int(expert[1]) // (count // self.ep) != in_stage // ranks:
                return None
            place = in_stage % ranks
        module = module_of(name)
        if module in ("k_proj", "v_proj") and not expert:
            heads = self.config["num_key_value_heads"]
            if heads < ranks:  # neighbours share a head
                ranks, place = heads, place * heads // ranks
        if module in ROWS:
            return tensor.chunk(ranks, 0)[place]
        if module in COLUMNS and tensor.dim() == 2:
            return tensor.chunk(ranks, 1)[place]
        return tensor
