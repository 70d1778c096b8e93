# SPDX-License-Identifier: Apache-2.0
"""What the checkpoint's Python tests share: the program that prints what a model needs."""

import json
import os
import pathlib
import subprocess

# Before torch is imported: other tests share the cores, and spinning threads starve each other.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def tool():
    folder = pathlib.Path(os.environ.get("BERTH_BIN_DIR", SOURCE / "build/release/bin"))
    program = folder / "berth-expected-tensors"
    assert program.exists(), f"no berth-expected-tensors in {folder}: set BERTH_BIN_DIR"

    def run(*arguments):
        return subprocess.run([program, *map(str, arguments)], capture_output=True, text=True,
                              timeout=300)

    return run


@pytest.fixture
def expected(tool, tmp_path):
    """{name: (shape, kind, is a projection)} of a configuration."""

    def of(config):
        path = tmp_path / "config.json"
        path.write_text(json.dumps(config))
        done = tool(path)
        assert done.returncode == 0, done.stderr
        rows = [line.split("\t") for line in done.stdout.splitlines()]
        tensors = {name: (tuple(int(axis) for axis in shape.split(",")), kind, role == "projection")
                   for name, shape, kind, role in rows}
        assert len(tensors) == len(rows), "a name twice"
        return tensors

    return of
