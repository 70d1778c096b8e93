#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""An instance of several ranks on GPUs, under a real berthd: on one GPU they compute through Gloo, with a
GPU each through NCCL. In float32 its greedy tokens must be those of one rank; it is paused, offloaded,
evicted and brought back, and one rank is killed.

    ranks.py --model DIR [--bin DIR] [--ranks 2] [--devices 1] [--tokens 24] [--out FILE]

DIR is a checkpoint, e.g. made by: configs/make_model.py random DIR --shape qwen3-0.6b --words
Prints a JSON line a step; exit status: how many answers were wrong.
"""

import argparse
import json
import os
import pathlib
import random
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("system", "failover")]

MODEL = """\
kind: Model
metadata: {{name: {name}}}
spec: {{path: {path}, dtype: float32, tensorParallel: {ranks}}}
---
kind: Instance
metadata: {{name: {instance}}}
spec:
  model: {name}
  priorityClassName: {of_class}{devices}
  resources: {{requests: {{memory: 2Gi}}, limits: {{memory: 4Gi}}}}
  restart: Always
  engine:
    command: [berth-engine, --served-model-name, model, --batch-invariant]
    listen: "127.0.0.1:{port}"
"""


def answers(port, calls):
    from streams import Connection
    texts = []
    for call in calls:
        with Connection(("127.0.0.1", port)) as client:
            status, body = client.ask(*call)
            assert status == 200, body
            texts.append(json.loads(body)["choices"][0]["text"])
    return texts


class Steps:
    """What was done, how long it took, and whether the answers were right."""

    def __init__(self, node, port, calls, expected):
        self.node, self.port, self.calls, self.expected = node, port, calls, expected
        self.lines, self.wrong = [], 0

    def step(self, name, begun):
        took = 1e3 * (time.monotonic() - begun)
        same = sum(a == b for a, b in zip(answers(self.port, self.calls), self.expected))
        self.wrong += len(self.expected) - same
        shown = self.node.instance("pair")
        line = {"bench": "ranks", "step": name, "ms": round(took, 1), "equal": same,
                "of": len(self.expected), "ranks": shown.get("ranks", [])}
        self.lines.append(line)
        print(json.dumps(line), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True)
    add("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    add("--ranks", type=int, default=2)
    add("--devices", type=int, default=1, help="GPUs that they share")
    add("--tokens", type=int, default=24)
    add("--out", type=pathlib.Path, default=None)
    chosen = parser.parse_args()
    os.environ.update(BERTH_BIN_DIR=str(chosen.bin.resolve()), BERTH_TEST_DEVICE="cuda",
                      BERTH_MODEL_DIR=str(chosen.model.resolve()))
    from node_under_test import Node, free_port, kill, wait_until
    ports = [free_port(), free_port()]
    common = {"path": chosen.model.resolve(), "of_class": "batch"}
    documents = MODEL.format(name="whole", ranks=1, instance="one", devices="", port=ports[0],
                             **common) + "---\n" + MODEL.format(
        name="parts", ranks=chosen.ranks, instance="pair", port=ports[1],
        devices=f"\n  deviceCount: {chosen.devices}", **common)
    vocabulary = json.loads((chosen.model / "config.json").read_text())["vocab_size"]
    calls = [("/v1/completions", {
        "model": "model", "temperature": 0, "max_tokens": chosen.tokens, "ignore_eos": True,
        "prompt": random.Random(seed).choices(range(257, vocabulary), k=64 + 40 * seed)})
        for seed in range(4)]
    with Node(policy=documents) as node:
        begun = time.monotonic()
        for name in ("one", "pair"):
            node.wait_state(name, "Running", timeout=240)
        steps = Steps(node, ports[1], calls, answers(ports[0], calls))
        steps.step("start", begun)
        for mode in ("Pause", "Offload", "Evict"):
            begun = time.monotonic()
            node.preempt("pair", mode)
            node.resume("pair")
            node.wait_state("pair", "Running")
            steps.step(f"{mode} and resume", begun)
        def last():
            shown = node.instance("pair")
            return shown["state"] == "Running" and shown["ranks"][-1]["pid"]

        begun, killed = time.monotonic(), last()
        kill(killed)
        wait_until("all ranks are back", lambda: last() not in (False, killed), 120)
        steps.step("the last rank killed", begun)
        print(json.dumps(node.get("/v1/devices")["items"], indent=1))
        for path in sorted(node.root.glob("state/engines/pair*.log")):
            print(f"--- {path.name}\n{path.read_text(errors='replace')[-3000:]}")
    if chosen.out:
        chosen.out.write_text("".join(json.dumps(line) + "\n" for line in steps.lines))
    sys.exit(steps.wrong)


if __name__ == "__main__":
    main()
