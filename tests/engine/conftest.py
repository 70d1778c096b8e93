# SPDX-License-Identifier: Apache-2.0
"""What the engine's Python tests share: the programs, a model folder, random checkpoints."""

import os
import pathlib
import subprocess

# Before torch is imported: other tests share the cores, and spinning threads starve each other.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

import numpy
import pytest

SOURCE = pathlib.Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def bin_dir():
    folder = pathlib.Path(os.environ.get("BERTH_BIN_DIR", SOURCE / "build/release/bin"))
    assert (folder / "berth-logits").exists(), f"no berth-logits in {folder}: set BERTH_BIN_DIR"
    return folder


@pytest.fixture(scope="session")
def model_dir():
    folder = pathlib.Path(os.environ.get("BERTH_MODEL_DIR", SOURCE / "build/models/smollm2"))
    if not (folder / "config.json").exists():
        pytest.skip(f"no model in {folder}: run configs/quickstart.sh or set BERTH_MODEL_DIR")
    return folder


@pytest.fixture(scope="session")
def berth_logits(bin_dir):
    """Runs berth-logits: `logits` gives {position: row}, `greedy` a list of tokens."""

    class Tool:
        def run(self, model, tokens, *arguments):
            command = [bin_dir / "berth-logits", "--model", model, "--tokens",
                       ",".join(map(str, tokens)), *map(str, arguments)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=600)
            assert done.returncode == 0, done.stderr
            return done.stdout

        def logits(self, model, tokens, vocab, folder, *arguments):
            path = folder / "logits.bin"
            self.run(model, tokens, "--output", path, *arguments)
            record = numpy.dtype([("position", "<i8"), ("row", "<f4", (vocab,))])
            records = numpy.fromfile(path, dtype=record)
            return {int(entry["position"]): entry["row"] for entry in records}

        def greedy(self, model, tokens, count, *arguments):
            out = self.run(model, tokens, "--greedy", count, *arguments)
            return [int(token) for token in out.split(",")]

    return Tool()
