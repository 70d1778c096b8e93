# SPDX-License-Identifier: Apache-2.0
"""Goal: the names under which the engine looks NCCL's process group up are those of this torch.
Method: the names in the source, against what the library exports; no GPU is needed."""

import importlib.util
import pathlib
import re
import subprocess

import pytest

SOURCE = (pathlib.Path(__file__).resolve().parents[2] /
          "engine_shim/reference/ranks/nccl_group.cpp")


def test_torch_exports_the_constructors_that_the_engine_looks_up():
    library = pathlib.Path(importlib.util.find_spec("torch").origin).parent / "lib/libtorch_cuda.so"
    if not library.exists():
        pytest.skip("this torch has no CUDA half")
    # Adjacent literals are one.
    text = re.sub(r'"\s*\n\s*"', "", SOURCE.read_text())
    names = re.findall(r'"(_ZN4c10d16ProcessGroupNCCL\w+)"', text)
    assert len(names) == 2
    listed = subprocess.run(["nm", "-D", "--defined-only", library], capture_output=True,
                            text=True, check=True).stdout
    exported = {line.split()[-1] for line in listed.splitlines() if line}
    assert set(names) <= exported
