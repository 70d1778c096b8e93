# SPDX-License-Identifier: Apache-2.0
"""The whole main job on one node: load once, attach twice, preempt, resume, and nothing is lost."""

import concurrent.futures
import pathlib
import random
import subprocess
import threading
import time

import pytest
from node_under_test import BIN, MODEL, POLICY, PROMPTS, Node, Refused, wait_until

INVARIANT = ("--batch-invariant",)


@pytest.fixture(scope="module")
def undisturbed():
    """What each prompt is answered when nobody disturbs: the right values of every other run."""
    with Node(extra=INVARIANT) as node:
        engine = node.engine()
        return {prompt: engine.complete(prompt, 24) for prompt in PROMPTS}


def test_a_factual_question_gets_its_right_answer():
    with Node() as node:
        assert "Paris" in node.engine().chat("What is the capital of France?")


def test_a_set_that_was_quantised_on_the_way_in_still_knows_the_answer():
    policy = POLICY.format(model=MODEL, extra="")
    with Node(policy=policy.replace("{path:", "{quantization: fp8-block, path:")) as node:
        assert "Paris" in node.engine().chat("What is the capital of France?")
        size = node.weights()[0]["bytes"]
        stored = sum(file.stat().st_size for file in pathlib.Path(MODEL).glob("*.safetensors"))
        assert size < stored * 0.6, "matrices took a quarter of their float32 bytes"


def pss_of(pid):
    """Bytes of the weights' memfd that the kernel counts for one process: resident and Pss."""
    rss = pss = 0
    counting = False
    for line in pathlib.Path(f"/proc/{pid}/smaps").read_text().splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            counting = "berth-weights" in line
        elif counting and words[0] == "Rss:":
            rss += int(words[1]) * 1024
        elif counting and words[0] == "Pss:":
            pss += int(words[1]) * 1024
    return rss, pss


def test_three_engines_share_one_copy_of_the_weights():
    third = """\
---
apiVersion: berth/v1
kind: Instance
metadata: {name: second}
spec:
  model: smollm2
  priorityClassName: online
  resources: {requests: {memory: 128Mi}, limits: {memory: 256Mi}}
  engine: {driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, smollm2]}
"""
    with Node(batch_lines=400) as node:
        text = (node.root / "policies.yaml").read_text()
        node.put("/v1/policy", text + third)
        for name in ("chat", "second", "nightly"):
            node.wait_state(name, "Running")
        node.engine("chat").complete("Hello", 4)
        node.engine("second").complete("Hello", 4)
        weights = node.weights()
        assert len(weights) == 1 and weights[0]["state"] == "Resident"
        size = weights[0]["bytes"]
        pids = [node.instance(name)["pid"] for name in ("chat", "second", "nightly")]
        measured = [pss_of(pid) for pid in pids]
        assert all(rss > size * 0.9 for rss, _ in measured), "each engine has read its mapping"
        assert sum(pss for _, pss in measured) <= size * 1.01, "but the memory is there once"


@pytest.mark.parametrize("mode,state", [("Pause", "Paused"), ("Offload", "Suspended"),
                                        ("Evict", "Evicted")])
def test_each_mode_gives_back_what_it_says_and_resumes(mode, state):
    with Node(batch_lines=2000) as node:
        node.wait_state("nightly", "Running")
        wait_until("batch has begun",
                   lambda: node.instance("nightly")["counters"]["tokensDone"] > 0)
        before = node.device()
        grant = node.instance("nightly")["grantBytes"]
        assert grant > 0
        done = node.preempt("nightly", mode)
        shown = node.instance("nightly")
        assert shown["state"] == state
        held = node.device()
        if mode == "Pause":
            assert held["freeBytes"] == before["freeBytes"]
            tokens = node.instance("nightly")["counters"]["tokensDone"]
        else:
            assert done["bytesFreed"] >= grant * 0.9
            assert held["freeBytes"] >= before["freeBytes"] + grant * 0.9
        answered = len(node.answers())
        node.resume("nightly")
        assert node.instance("nightly")["state"] == "Running"
        wait_until("batch goes on", lambda: len(node.answers()) > answered, 120)
        if mode != "Evict":
            assert node.instance("nightly")["grantBytes"] == grant
        if mode == "Pause":
            assert node.instance("nightly")["counters"]["tokensDone"] >= tokens


def test_online_cannot_be_preempted_and_the_refusal_says_why():
    with Node() as node:
        node.engine()
        with pytest.raises((Refused, AssertionError)) as refused:
            node.preempt("chat", "Pause")
        assert "NotPreemptible" in str(refused.value)


def test_a_paused_batch_makes_no_token_and_online_answers():
    with Node(batch_lines=2000) as node:
        engine = node.engine()
        node.wait_state("nightly", "Running")
        node.preempt("nightly", "Pause")
        time.sleep(1.2)
        first = node.instance("nightly")["counters"]["tokensDone"]
        assert "Paris" in engine.chat("What is the capital of France?")
        time.sleep(1.2)
        assert node.instance("nightly")["counters"]["tokensDone"] == first
        node.resume("nightly")


def test_a_request_to_online_makes_batch_yield_without_anyone_asking():
    with Node(batch_lines=2000) as node:
        engine = node.engine()
        node.wait_state("nightly", "Running")
        wait_until("batch has begun",
                   lambda: node.instance("nightly")["counters"]["tokensDone"] > 0)
        before = node.instance("nightly")["counters"]["gatePauses"]
        engine.complete("Count to twenty:", 32)
        wait_until("batch has yielded",
                   lambda: node.instance("nightly")["counters"]["gatePauses"] > before, 10)
        assert node.instance("nightly")["state"] == "Running"


def test_preempt_resume_cycles_lose_nothing_and_change_no_answer(undisturbed):
    """Two hundred cycles, modes mixed, under requests: bytes, answers and batch lines all hold."""
    cycles, lines = 200, 150
    chance = random.Random(7)
    with Node(batch_lines=lines, extra=INVARIANT) as node, \
            concurrent.futures.ThreadPoolExecutor(1) as pool:
        engine = node.engine()
        node.wait_state("nightly", "Running")
        before = node.device()
        wrong, asked, stop = [], [0], threading.Event()

        def ask():
            while not stop.wait(0.1):
                prompt = chance.choice(PROMPTS)
                text = engine.complete(prompt, 24)
                asked[0] += 1
                if text != undisturbed[prompt]:
                    wrong.append((prompt, text))

        asking = pool.submit(ask)
        try:
            for number in range(cycles):
                mode = chance.choices(["Pause", "Offload", "Evict"], [76, 20, 4])[0]
                node.preempt("nightly", mode)
                node.resume("nightly")
                now = node.device()
                assert now["usedBytes"] == before["usedBytes"], f"cycle {number}, {mode}"
        finally:
            stop.set()
        asking.result(120)
        assert not wrong, f"{len(wrong)} of {asked[0]} answers changed: {wrong[:2]}"
        assert asked[0] > 0
        node.wait_state("nightly", "Succeeded", timeout=900)
        answers = node.answers()
        assert len(answers) == lines
        for number in range(lines):
            assert answers[f"line-{number}"] == undisturbed[PROMPTS[number % len(PROMPTS)]]


def test_a_write_through_the_mapping_kills_the_offender_alone():
    with Node() as node:
        engine = node.engine()
        script = BIN.parent / "tests" / "offender"
        done = subprocess.run([script, node.root / "run/berthd.sock"], capture_output=True,
                              text=True, timeout=60)
        assert done.returncode == -11, f"expected SIGSEGV: {done.returncode} {done.stderr}"
        assert "Paris" in engine.chat("What is the capital of France?")
