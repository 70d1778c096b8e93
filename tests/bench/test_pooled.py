# SPDX-License-Identifier: Apache-2.0
"""tests/gpu/pooled.py tells by how much a phase is slower than online alone, whatever else differs
between the runs. Method: runs that are made up, one as slow as another or slower by a fifth."""

import json
import lzma
import pathlib
import random
import subprocess
import sys

import pytest

SCRIPT = pathlib.Path(__file__).resolve().parents[1] / "gpu/pooled.py"


def line(phase, request, first, later, tokens=8, done=True):
    events = [first + later * n for n in range(tokens)]
    return json.dumps({"phase": phase, "request": request, "tokens": tokens, "done": done,
                       "error": "" if done else "reset", "eventsAfterDue": events if done else []})


def run_of(path, pace, slower, seed):
    dice, lines = random.Random(seed), []
    for request in range(200):
        first, later = pace * (1 + dice.random()), pace / 5 * (1 + dice.random())
        for phase, factor in (("online-alone", 1), ("gate", slower), ("online-alone-again", 1)):
            lines.append(line(phase, request, first * factor, later * factor))
    with (lzma.open if path.suffix == ".xz" else open)(path, "wt") as out:
        out.write("\n".join(lines) + "\n")
    return path


def pooled(*words):
    return subprocess.run([sys.executable, SCRIPT, "--resamples", "100", *map(str, words)],
                          capture_output=True, text=True, timeout=120)


@pytest.mark.parametrize("slower", [1.0, 1.2])
def test_it_tells_the_ratio_of_runs_of_different_pace(tmp_path, slower):
    runs = [run_of(tmp_path / name, pace, slower, seed) for seed, (name, pace) in
            enumerate((("one.jsonl", 0.01), ("two.jsonl.xz", 0.5)))]
    done = pooled(*runs)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert [one.split(":")[0] for one in lines] == [
        f"{figure} p{of}" for figure in ("TTFT", "TPOT") for of in (50, 90, 99)]
    for one in lines:
        assert f": {slower:.3f} ({slower:.3f} to {slower:.3f}) of alone" in one, one
        assert one.endswith(f"by run {slower:.3f}, {slower:.3f}")


def test_what_was_not_answered_and_phases_that_are_missing_are_refused_by_name(tmp_path):
    broken = tmp_path / "broken.jsonl"
    broken.write_text(line("gate", 7, 1, 1, done=False) + "\n")
    done = pooled(broken)
    assert done.returncode != 0 and f"{broken}:1: request 7 of gate" in done.stderr
    alone = tmp_path / "alone.jsonl"
    alone.write_text(line("online-alone", 7, 1, 1) + "\n")
    done = pooled(alone)
    assert done.returncode != 0 and "it has the phases online-alone; expected 'gate'" in done.stderr
