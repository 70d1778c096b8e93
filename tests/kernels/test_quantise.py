# SPDX-License-Identifier: Apache-2.0
"""Block-wise FP8 against torch: its float32 arithmetic and its cast to float8_e4m3fn."""

import os
import subprocess

import pytest
import torch

TOOL = os.path.join(os.environ["BERTH_BIN_DIR"], "berth-quantise")
DTYPES = {"BF16": torch.bfloat16, "F16": torch.float16, "F32": torch.float32}


def expected(weight):
    rows, columns = weight.shape
    down, across = -(-rows // 128), -(-columns // 128)
    padded = torch.zeros(down * 128, across * 128)
    padded[:rows, :columns] = weight.float()
    blocks = padded.view(down, 128, across, 128)
    amax = blocks.abs().amax(dim=(1, 3))
    clamped = amax.clamp(min=2.0**-117)
    one = torch.ones_like(amax)
    scales = torch.where(amax == 0, one, clamped / 448)
    inverse = torch.where(amax == 0, one, torch.full_like(amax, 448) / clamped)
    scaled = blocks * inverse[:, None, :, None]
    quantised = scaled.clamp(-448, 448).to(torch.float8_e4m3fn)
    whole = quantised.view(torch.uint8).view(down * 128, across * 128)
    return whole[:rows, :columns].contiguous(), scales


def quantised(name, weight):
    rows, columns = weight.shape
    done = subprocess.run([TOOL, name, str(rows), str(columns)],
                          input=weight.contiguous().view(torch.uint8).numpy().tobytes(),
                          stdout=subprocess.PIPE, check=True)
    fp8 = torch.frombuffer(bytearray(done.stdout[:rows * columns]), dtype=torch.uint8)
    scales = torch.frombuffer(bytearray(done.stdout[rows * columns:]), dtype=torch.float32)
    return fp8.view(rows, columns), scales.view(-(-rows // 128), -(-columns // 128))


@pytest.mark.parametrize("name", DTYPES)
@pytest.mark.parametrize("shape", [(1, 1), (128, 128), (300, 500), (1024, 384), (5, 2049)])
@pytest.mark.parametrize("size", [1e-38, 1e-5, 0.02, 3.0, 6e4])
def test_the_bits_are_torchs(name, shape, size):
    generator = torch.Generator().manual_seed(7)
    weight = (torch.randn(shape, generator=generator) * size).clamp(-6e4, 6e4).to(DTYPES[name])
    weight[0, ::3] = 0
    fp8, scales = quantised(name, weight)
    want_fp8, want_scales = expected(weight)
    assert torch.equal(scales.view(torch.int32), want_scales.view(torch.int32))
    assert torch.equal(fp8, want_fp8)


def test_a_checkpoints_readers_get_the_weights_back():
    generator = torch.Generator().manual_seed(8)
    weight = (torch.randn(512, 512, generator=generator) * 0.05).to(torch.bfloat16)
    fp8, scales = quantised("BF16", weight)
    wide = scales.repeat_interleave(128, 0).repeat_interleave(128, 1)
    back = fp8.view(torch.float8_e4m3fn).float() * wide
    error = (back - weight.float()).abs()
    assert (error <= torch.maximum(weight.float().abs() / 16, wide * 2.0**-10) * 1.00001).all()
