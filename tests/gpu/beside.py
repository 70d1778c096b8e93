#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Online latency with batch beside it, a first look: the same arrivals (a seed) against one online
engine, first alone, then with a batch engine on the same weights under each way of sharing.

    tests/gpu/beside.py MODEL_DIR [--bin DIR] [--out FILE] [--seconds 30] [--rate 2.5] [--device auto]

Every second request asks for one token: its time is that to the first token (ttft). The others ask
for 16 to 48: their time a token (per_token). One JSON object a phase: milliseconds at 50, 90 and
99 %, and batch's tokens per second.
"""

import argparse
import http.client
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse

POLICY = """\
apiVersion: berth/v1
kind: Model
metadata: {{name: model}}
spec: {{path: {model}, pin: true}}
---
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: beside}}
spec:
  sharing: {{compute: {compute}, batchShareWhenBusy: {share}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: chat}}
spec:
  model: model
  priorityClassName: online
  slo: {{ttft: {ttft}ms, tpot: {tpot}ms, percentile: 99}}
  resources: {{requests: {{memory: {memory}}}, limits: {{memory: {memory}}}}}
  engine: {{driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, model], workingDirectory: /}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: nightly}}
spec:
  model: model
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: {memory}}}}}
  engine: {{driver: berth, command: [berth-engine, --batch-input, {root}/in.jsonl, --batch-output, {root}/out.jsonl, --served-model-name, model], workingDirectory: /}}
"""
NODE = """\
apiVersion: berth/v1
kind: Node
metadata: {{name: beside}}
spec: {{socket: {root}/run/berthd.sock, stateDir: {root}/state, devices: {devices}, policies: [policies.yaml]}}
"""


class Node:
    def __init__(self, words, root):
        self.words, self.root = words, root
        (root / "run").mkdir()
        self.rules = {"compute": "Gate", "share": "0%", "ttft": 10000, "tpot": 10000}
        (root / "policies.yaml").write_text(self.policy())
        (root / "node.yaml").write_text(NODE.format(root=root, devices=words.device))
        with open(root / "in.jsonl", "w", encoding="utf-8") as lines:
            for n in range(20000):
                body = {"model": "model", "prompt": f"line {n} of many, and then",
                        "max_tokens": 256, "temperature": 0, "ignore_eos": True}
                lines.write(json.dumps({"custom_id": f"l{n}", "method": "POST",
                                        "url": "/v1/completions", "body": body}) + "\n")
        self.environment = {**os.environ, "BERTH_ADMIN": str(root / "run/admin.sock"),
                            "PATH": f"{words.bin}:{os.environ['PATH']}"}
        with open(root / "berthd.log", "w", encoding="utf-8") as log:
            self.daemon = subprocess.Popen(["berthd", "--config", root / "node.yaml"],
                                           env=self.environment, stdout=log, stderr=log)

    def policy(self):
        return POLICY.format(model=self.words.model, root=self.root, memory=self.words.memory,
                             **self.rules)

    def berth(self, *words, stdin=None):
        done = subprocess.run(["berth", *words], env=self.environment, capture_output=True,
                              text=True, input=stdin, check=False)
        return done.stdout if done.returncode == 0 else ""

    def instance(self, name):
        text = self.berth("get", "instances", name, "-o", "json")
        return json.loads(text) if text else {"state": ""}

    def wait(self, name, state, seconds=300):
        until = time.monotonic() + seconds
        while self.instance(name)["state"] != state:
            if time.monotonic() > until:
                raise SystemExit(f"{name} is not {state}: {self.instance(name)}")
            time.sleep(0.2)

    def apply(self, **rules):
        self.rules.update(rules)
        self.berth("apply", "-f", "-", stdin=self.policy())

    def tokens(self):
        return self.instance("nightly")["counters"]["tokensDone"]


def ask(endpoint, prompt, tokens, found):
    begun = time.monotonic()
    connection = http.client.HTTPConnection(endpoint.hostname, endpoint.port, timeout=300)
    body = {"model": "model", "prompt": prompt, "max_tokens": tokens, "temperature": 0,
            "ignore_eos": True}
    connection.request("POST", "/v1/completions", json.dumps(body),
                       {"Content-Type": "application/json"})
    reply = connection.getresponse()
    reply.read()
    connection.close()
    if reply.status == 200:
        found.append((tokens, 1e3 * (time.monotonic() - begun)))


def arrivals(words):
    """The same for each phase: when, how long a prompt, how many tokens."""
    dice, at, count = random.Random(words.seed), 0.0, 0
    while (at := at + dice.expovariate(words.rate)) < words.seconds:
        count += 1
        length, tokens = dice.randint(64, 512), dice.randint(16, 48)
        yield at, "word " * length, tokens if count % 2 else 1


def quantiles(values):
    values = sorted(values)
    return {f"p{q}": round(values[min(len(values) - 1, int(len(values) * q / 100))], 2)
            for q in (50, 90, 99)}


def phase(name, words, node):
    endpoint = urllib.parse.urlparse(node.instance("chat")["endpoint"])
    found, threads = [], []
    ask(endpoint, "warm up " * 100, 16, [])
    time.sleep(2)
    before, begun = node.tokens(), time.monotonic()
    for at, prompt, tokens in arrivals(words):
        time.sleep(max(0.0, begun + at - time.monotonic()))
        threads.append(threading.Thread(target=ask, args=(endpoint, prompt, tokens, found)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    time.sleep(1.2)  # the last report
    tokens_per_second = (node.tokens() - before) / (time.monotonic() - begun)
    result = {"phase": name, "requests": len(found), "asked": len(threads),
              "ttft_ms": quantiles([ms for tokens, ms in found if tokens == 1]),
              "per_token_ms": quantiles([ms / tokens for tokens, ms in found if tokens > 1]),
              "batch_tokens_per_second": round(tokens_per_second, 1)}
    print(json.dumps(result), flush=True)
    if words.out:
        with open(words.out, "a", encoding="utf-8") as out:
            out.write(json.dumps(result) + "\n")
    return result


def batch_alone(node):
    before, begun = node.tokens(), time.monotonic()
    time.sleep(8)
    print(json.dumps({"phase": "batch alone", "batch_tokens_per_second":
                      round((node.tokens() - before) / (time.monotonic() - begun), 1)}), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--bin", default="build/release/bin", type=pathlib.Path)
    parser.add_argument("--out")
    parser.add_argument("--seconds", type=float, default=30)
    parser.add_argument("--rate", type=float, default=2.5)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--memory", default="16Gi")
    words = parser.parse_args()
    words.bin, words.model = words.bin.resolve(), pathlib.Path(words.model).resolve()
    with tempfile.TemporaryDirectory() as folder:
        node = Node(words, pathlib.Path(folder))
        try:
            node.wait("chat", "Running")
            node.wait("nightly", "Running")
            batch_alone(node)
            node.berth("preempt", "nightly", "--mode", "Pause", "--wait")
            alone = phase("alone", words, node)
            node.berth("resume", "nightly", "--wait")
            phase("gate", words, node)
            node.apply(compute="TimeSlice")
            phase("time slicing", words, node)
            node.apply(compute="Gate", share="20%")
            phase("gate, 20 %", words, node)
            node.apply(share="SLO", ttft=int(4 * alone["ttft_ms"]["p99"]) + 1,
                       tpot=int(4 * alone["per_token_ms"]["p99"]) + 1)
            phase("gate, by an slo of 4 x alone", words, node)
        finally:
            node.daemon.terminate()
            subprocess.run(["pkill", "-9", "berth-engine"], check=False)
            subprocess.run(["pkill", "berth-keeper"], check=False)
            node.daemon.wait()
            if words.out:
                pathlib.Path(words.out + ".log").write_text(
                    (node.root / "berthd.log").read_text()[-200000:])
    return 0


if __name__ == "__main__":
    sys.exit(main())
