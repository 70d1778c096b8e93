# SPDX-License-Identifier: Apache-2.0
"""`berth bench failover`, and `tests/gpu/failover.py` small, on host memory: every stream goes on and
is whole, both ways of the journal are measured, and nothing is left. No figure is judged.

Method: both as they are run on a GPU, with the real programs and a tiny model whose answers do not
depend on what else is answered."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile

import pytest

from conftest import BIN, ROOT
from small_model import make_small_model
from tiny_pair import TinyPair

KILLS = 3


@pytest.fixture
def folder():
    """Sockets lie below it: their paths must be short."""
    path = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
    make_small_model(path / "model", words=2048)
    yield path
    for pid in left(path):
        os.kill(pid, signal.SIGKILL)
    shutil.rmtree(path, ignore_errors=True)


def left(folder):
    found = []
    for entry in pathlib.Path("/proc").glob("[0-9]*"):
        try:
            if str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            pass
    return found


def run(folder, *words):
    return subprocess.run(
        [sys.executable, ROOT / "tests/gpu/failover.py", "--device", "host", "--model",
         folder / "model", "--bin", BIN, "--out", folder / "out", "--memory", "768Mi", "--grant",
         "64Mi", "--kills", str(KILLS), "--pairs", "2", "--tokens", "48", "--rounds", "1", "--rate-tokens", "40",
         "--streams", "1", "3", *words], capture_output=True, text=True, timeout=280, check=False)


def test_each_kill_is_measured_and_each_text_is_the_undisturbed_one(folder):
    done = run(folder, "--engine-args", "--batch-invariant --threads 1")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]
    lines = [json.loads(line) for line in (folder / "out/failover.jsonl").read_text().splitlines()]
    kills = [line for line in lines if line["part"] == "kill"]
    assert len(kills) == KILLS
    assert all(line["equal"] and line["tokens"] == 48 and line["ms"] > 0 for line in kills)
    assert [line["killed"] for line in kills] == ["chat0", "chat1", "spare0"]
    assert all("serveMs" in line for line in kills), "the engines' logs say since when they serve"
    summary = next(line for line in lines if line["part"] == "summary")
    assert (summary["kills"], summary["equal"], summary["wrong"]) == (KILLS, KILLS, 0)
    rates = [line for line in lines if line["part"] == "journal"]
    assert sorted((line["streams"], line["half"], line["journal"]) for line in rates) == [
        (streams, half, keeps) for streams in (1, 3) for half in (0, 1) for keeps in (False, True)]
    assert all(line["tokensPerSecond"] > 0 for line in rates)
    assert list((folder / "out/failover").glob("*.log")), "logs are kept"
    assert not left(folder)


def test_an_answer_that_is_not_the_undisturbed_one_is_told(folder):
    """Sampled without a seed: what follows a kill is another text, each time."""
    done = run(folder, "--parts", "failover", "--temperature", "1.5", "--engine-args",
               "--batch-invariant --threads 1")
    assert done.returncode == 1, done.stdout
    assert "wrong: " in done.stdout


def bench(node, *words, context=64):
    return subprocess.run(
        [BIN / "berth", "--admin", node.root / "run/admin.sock", "bench", "failover", "--json",
         "--context", str(context), "--tokens", "200", *words],
        capture_output=True, text=True, timeout=280, check=False)


def test_the_bench_kills_who_answers_and_times_the_next_token(tiny_model):
    with TinyPair(tiny_model) as node:
        generation = node.active()["generation"]
        done = bench(node, "--instance", "spare", "--rounds", "2", "--exact")
        assert done.returncode == 0, done.stderr
        line, = [json.loads(text) for text in done.stdout.splitlines()]
        told = {key: line[key] for key in ("instance", "standbys", "contextTokens", "answerTokens",
                                           "kills", "answersWhole", "textsEqual", "rounds")}
        assert told == {"instance": "chat", "standbys": 1, "contextTokens": 64, "answerTokens": 200,
                        "kills": 2, "answersWhole": 2, "textsEqual": 2, "rounds": 2}
        assert line["p50"] > 0 and line["floor"]["p50"] > 0
        assert node.active()["generation"] == generation + 2


def test_the_bench_says_why_it_kills_nobody(tiny_model):
    with TinyPair(tiny_model, alone=True) as node:
        pid = node.active()["pid"]
        done = bench(node, "--instance", "nobody")
        assert done.returncode == 1 and "nobody" in done.stderr
        done = bench(node, "--instance", "chat", context=100_000)
        assert done.returncode == 1 and "before any kill" in done.stderr, done.stderr
        assert node.active()["pid"] == pid
