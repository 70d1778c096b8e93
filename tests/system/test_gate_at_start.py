# SPDX-License-Identifier: Apache-2.0
"""A batch engine that starts, or comes back, computes nothing beside an online engine that works: it
waits at the gate, for a while that its deadlines bear.

Method: a busy engine without a model keeps the gate closed or leaves it open; the engine's phases
tell how long it has waited."""

import json
import os
import pathlib
import sys

import pytest
from node_under_test import BIN, Node
from test_policy import berth

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "bench"))
from small_model import make_small_model  # noqa: E402

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")

START_WAIT_MS, CANARY_WAIT_MS = 5000, 2000
POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: node}}
spec: {{resume: {{verify: {{canary: true}}}}}}
---
kind: Model
metadata: {{name: model}}
spec: {{path: {model}}}
---
kind: Instance
metadata: {{name: online}}
spec:
  model: model
  priorityClassName: online
  resources: {{requests: {{memory: 0}}, limits: {{memory: 2Mi}}}}
  engine: {{driver: berth, command: {online}}}
"""
BATCH = """\
---
kind: Instance
metadata: {{name: nightly}}
spec:
  model: model
  priorityClassName: batch
  resources: {{requests: {{memory: 4Mi}}, limits: {{memory: 4Mi}}}}
  engine: {{driver: berth, command: {batch}}}
"""


@pytest.fixture(name="node")
def node_with_a_busy_engine(tmp_path):
    make_small_model(tmp_path / "model")
    policy = POLICY.format(model=tmp_path / "model", online=json.dumps(
        [str(BIN.parent / "tests/busy_engine"), "online", str(tmp_path)]))
    with Node(memory="256Mi", policy=policy) as node:
        node.documents = policy + BATCH.format(batch=json.dumps(
            ["berth-engine", "--served-model-name", "model", "--threads", "1", "--listen",
             "127.0.0.1:0"]))
        node.idle = tmp_path / "idle"
        node.wait_state("online", "Running")
        yield node


def start(node):
    berth(node, "apply", "-f", "-", stdin=node.documents)
    return node.wait_state("nightly", "Running")["phases"]


def canary(node):
    node.preempt("nightly", "Offload")
    phases = {one["name"]: one["ms"] for one in node.resume("nightly")["phases"]}
    return phases["engine.canary"]


def test_it_waits_while_online_works_and_is_there_all_the_same(node):
    assert start(node)["gate"] >= START_WAIT_MS
    assert canary(node) >= CANARY_WAIT_MS


def test_it_waits_for_nobody_at_an_open_gate(node):
    node.idle.touch()
    assert "gate" not in start(node)
