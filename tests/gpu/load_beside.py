# SPDX-License-Identifier: Apache-2.0
"""Loads one checkpoint onto the GPU with safetensors and with fastsafetensors, for comparison.

    python3 tests/gpu/load_beside.py FOLDER [--rounds N] [--cold]

Prints one JSON object a line: tool, bytes, GB/s of each round from the first call until all tensors
are on the device and the device is idle. Python's start and the imports are not in it.
"""

import argparse
import glob
import json
import os
import time

import torch


def files_of(folder):
    return sorted(glob.glob(os.path.join(folder, "*.safetensors")))


def drop(files):
    for path in files:
        descriptor = os.open(path, os.O_RDONLY)
        os.fdatasync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        os.close(descriptor)


def warm(files):
    for path in files:
        with open(path, "rb", buffering=0) as source:
            while source.read(1 << 24):
                pass


def with_safetensors(files):
    from safetensors.torch import load_file

    return [load_file(path, device="cuda") for path in files]


def with_fastsafetensors(files):
    from fastsafetensors import SafeTensorsFileLoader, SingleGroup

    loader = SafeTensorsFileLoader(SingleGroup(), torch.device("cuda:0"), nogds=True)
    loader.add_filenames({0: files})
    buffers = loader.copy_files_to_device()
    tensors = {name: buffers.get_tensor(name) for name in buffers.key_to_rank_lidx}
    return loader, buffers, tensors


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--cold", action="store_true")
    chosen = parser.parse_args()
    files = files_of(chosen.folder)
    size = sum(os.path.getsize(path) for path in files)
    torch.cuda.init()
    torch.empty(1, device="cuda")
    for name, load in (("safetensors", with_safetensors), ("fastsafetensors", with_fastsafetensors)):
        rates = []
        try:
            for _ in range(chosen.rounds):
                (drop if chosen.cold else warm)(files)
                began = time.perf_counter()
                held = load(files)
                torch.cuda.synchronize()
                rates.append(size / 1e9 / (time.perf_counter() - began))
                del held
                torch.cuda.empty_cache()
        except Exception as problem:  # the others are still worth measuring
            print(json.dumps({"tool": name, "error": repr(problem)[:400]}))
            continue
        print(json.dumps({"tool": name, "cold": chosen.cold, "bytes": size,
                          "gb_per_s": [round(rate, 2) for rate in rates]}))


if __name__ == "__main__":
    main()
