# SPDX-License-Identifier: Apache-2.0
"""`berth bench cycles` small, on host memory: preemptions of each kind under load with a fault of each
kind in between, and every byte is back and every answer what it is undisturbed. Method: the real
programs, a tiny model, answers that do not depend on what else is answered."""

import json
import os
import shutil
import subprocess

import pytest
from small_model import make_small_model
from test_colocate import BIN, left, short_folder  # noqa: F401  (the fixture `folder`)


def run(folder, *words, memory="128Mi", engine_args="--threads 1 --max-batch 32"):
    """Memory for 4096 tokens of the model that has large KV: a Shrink meets blocks in use."""
    return subprocess.run(
        [str(w) for w in [BIN / "berth", "bench", "cycles", "--json", "--device", "host", "--memory",
                          memory, "--model", folder / "model", "--engine-args", engine_args,
                          "--prompts", 40, "--tokens", 12, *words]],
        capture_output=True, text=True, timeout=280, check=False,
        env={**os.environ, "TMPDIR": str(folder / "tmp")})


@pytest.fixture(name="wide")
def wide_model(folder):
    shutil.rmtree(folder / "model")
    make_small_model(folder / "model", head=1024)
    return folder


def test_every_byte_is_back_and_every_answer_is_right_through_all_kinds_and_faults(wide):
    folder = wide
    done = run(folder, "--cycles", 50, "--seed", 3, "--work-ms", 400, "--out", folder / "out")
    assert done.returncode == 0, done.stderr
    figures = [json.loads(line) for line in done.stdout.splitlines()]
    rounds = {one["figure"]: one["rounds"] for one in figures[:-1]}
    kinds = {"Pause": 40, "Shrink": 6, "Offload": 3, "Evict": 1}
    assert rounds == {f"{what}, {kind}": count for kind, count in kinds.items()
                      for what in ("preempt", "resume")}
    outcome = figures[-1]
    assert outcome["cycles"] == outcome["of"] == 50
    for count in ("bytesNotBack", "grantsNotBack", "batchLinesTwice", "batchLinesFailed",
                  "batchLinesDifferent", "batchLinesLost", "onlineDifferent", "onlineFailed"):
        assert outcome[count] == 0, outcome
    assert outcome["batchLines"] > 5 and outcome["onlineAnswers"] > 5
    assert outcome["bytesFreed"] > 0
    assert outcome["shrinks"] == 6
    assert outcome["shrinksThatSaved"] > 0 and outcome["shrinksThatMoved"] > 0
    assert outcome["bytesSaved"] > 0 and outcome["bytesMoved"] > 0
    assert outcome["onlineAtOnceMax"] > 1
    back = {one["fault"]: one["backAfterMs"] for one in outcome["faults"]}
    assert len(back) == 5 and all(ms > 0 for ms in back.values())
    lines = (folder / "out/out.jsonl").read_text().splitlines()
    assert len(lines) >= outcome["batchLines"]
    assert (folder / "out/berthd.log").exists()
    assert not left(folder)


def test_as_the_fast_path_computes_every_answer_is_right_too(wide):
    done = run(wide, "--cycles", 20, "--seed", 5, "--fast", "--no-faults", "--work-ms", 60,
               engine_args="--threads 1")
    assert done.returncode == 0, done.stderr
    outcome = json.loads(done.stdout.splitlines()[-1])
    assert outcome["cycles"] == 20 and "fast" in outcome["computed"]
    assert outcome["batchLinesDifferent"] == outcome["onlineDifferent"] == 0


def test_shrinks_that_meet_no_block_in_use_are_told_of(folder):
    done = run(folder, "--cycles", 42, "--no-faults", "--work-ms", 60, memory="256Mi")
    assert done.returncode == 1 and "of 5 Shrinks 0 saved" in done.stderr


def test_a_model_that_is_not_there_is_refused_before_anything_starts(folder):
    done = run(folder, "--model", folder / "nothing")
    assert done.returncode == 2 and "nothing" in done.stderr
    assert not left(folder)
