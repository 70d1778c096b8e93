# SPDX-License-Identifier: Apache-2.0
"""An online engine grows into what batch holds as soon as a burst does not fit into its grant, while
it goes on answering; batch gives way by a Shrink and goes on too, and no answer shows it.

Method: real engines on a model of random weights, whose answers do not depend on what else is
answered; what they are asked undisturbed is what they must answer in the burst."""

import http.client
import json
import os
import pathlib
import signal
import sys
import urllib.parse
from concurrent.futures import ThreadPoolExecutor

import pytest
from node_under_test import Node, call, kill, wait_until

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from small_model import make_small_model  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="the sizes are those of host memory")

MIB = 1 << 20
BURST, PROMPT_BYTES, TOKENS, HEAD = 16, 600, 40, 256  # 8 KiB of KV a token: 80 MiB
POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: growth}}
spec: {{preemption: {{preemptExemptTime: 0s}}}}
---
kind: Model
metadata: {{name: model}}
spec: {{path: {model}}}
---
kind: Instance
metadata: {{name: nightly}}
spec:
  model: model
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: 256Mi}}}}
  engine: {{driver: berth, command: {batch}}}
"""
CHAT = """---
kind: Instance
metadata: {{name: chat}}
spec:
  model: model
  priorityClassName: online
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: {limit}}}}}
  engine: {{driver: berth, command: {online}}}
"""


def prompt(number):
    return (f"Request {number}: " + "abcdefghij" * 100)[:PROMPT_BYTES]


class Grown:
    def __init__(self, folder, limit):
        make_small_model(folder / "model", head=HEAD)
        self.input, self.output = folder / "in.jsonl", folder / "out.jsonl"
        with open(self.input, "w", encoding="utf-8") as file:
            for line in range(20_000):
                file.write(json.dumps({
                    "custom_id": f"l{line}", "method": "POST", "url": "/v1/completions",
                    "body": self.body(line % BURST)}) + "\n")
        words = ["berth-engine", "--served-model-name", "model", "--batch-invariant", "--threads",
                 "1"]
        policy = POLICY.format(model=folder / "model", batch=json.dumps(
            [*words, "--batch-input", str(self.input), "--batch-output", str(self.output)]))
        self.node = Node(memory="192Mi", policy=policy)
        self.more = policy + CHAT.format(
            limit=limit, online=json.dumps([*words, "--listen", "127.0.0.1:0"]))

    def add_online(self):
        """Batch has all memory by now, and gives online's request."""
        (self.node.root / "policies.yaml").write_text(self.more)
        kill(self.node.daemon.pid, signal.SIGHUP)
        wait_until("its document is there",
                   lambda: len(self.node.get("/v1/instances")["items"]) == 2)
        self.node.wait_state("chat", "Running")

    @staticmethod
    def body(number):
        return {"model": "model", "prompt": prompt(number), "max_tokens": TOKENS,
                "temperature": 0, "ignore_eos": True}

    def ask(self, number):
        url = urllib.parse.urlparse(self.node.instance("chat")["endpoint"])
        reply = call(http.client.HTTPConnection(url.hostname, url.port, timeout=120), "POST",
                     "/v1/completions", self.body(number), {"Content-Type": "application/json"})
        return reply["choices"][0]["text"]

    def burst(self):
        with ThreadPoolExecutor(BURST) as pool:
            return list(pool.map(self.ask, range(BURST)))

    def lines(self):
        """Batch's answers by line; one that was answered twice is a failure."""
        found = {}
        for text in self.output.read_text(encoding="utf-8").splitlines(keepends=True):
            if not text.endswith("\n"):
                break
            entry = json.loads(text)
            line = int(entry["custom_id"][1:])
            assert line not in found, f"line {line} was answered twice"
            found[line] = entry["response"]["body"]["choices"][0]["text"]
        return found


@pytest.fixture(name="start")
def start_fixture(tmp_path):
    nodes = []

    def start(limit):
        made = Grown(tmp_path, limit)
        nodes.append(made.node)
        made.node.wait_state("nightly", "Running")
        made.add_online()
        return made

    yield start
    for node in nodes:
        node.close()


def test_a_burst_that_does_not_fit_takes_memory_from_batch_at_once(start):
    grown = start("112Mi")
    node = grown.node
    alone = [grown.ask(number) for number in range(BURST)]
    before = {name: node.instance(name) for name in ("chat", "nightly")}
    assert before["chat"]["grantBytes"] == 64 * MIB
    free = node.device()["freeBytes"]
    assert free < 16 * MIB, "batch holds what online will need"
    answered = len(grown.lines())

    def grows():
        assert grown.burst() == alone
        return node.instance("chat")["grantBytes"] == 112 * MIB
    wait_until("online has its limit", grows, 60)
    after = node.instance("nightly")
    assert after["preempted"]["bytesFreed"] > 0
    assert after["grantBytes"] < before["nightly"]["grantBytes"]
    assert after["pid"] == before["nightly"]["pid"] and after["state"] == "Running"
    assert node.instance("chat")["pid"] == before["chat"]["pid"]
    wait_until("batch goes on", lambda: len(grown.lines()) > answered + BURST, 60)
    assert all(text == alone[line % BURST] for line, text in grown.lines().items())
    assert grown.burst() == alone


def test_a_burst_takes_nothing_beyond_the_documents_limit(start):
    grown = start("64Mi")
    node = grown.node
    before = node.instance("nightly")["preempted"]["count"]  # it made room for online's request
    alone = [grown.ask(number) for number in range(BURST)]
    assert grown.burst() == alone
    assert node.instance("chat")["grantBytes"] == 64 * MIB
    assert node.instance("nightly")["preempted"]["count"] == before
