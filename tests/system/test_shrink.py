# SPDX-License-Identifier: Apache-2.0
"""Shrink and Grow on a real node: what an engine says is checked against what the kernel says that
it has mapped. The engine is sized_engine.py, its model a few kilobytes."""

import contextlib
import json
import pathlib
import sys

from node_under_test import Node, call, wait_until
from tiny_model import make_tiny_model

HERE = pathlib.Path(__file__).parent
MIB = 1 << 20
POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: shrink}}
spec: {{preemption: {{preemptMode: {modes}, fallback: {fallback}, reclaimDeadline: {deadline}}}}}
---
apiVersion: berth/v1
kind: Model
metadata: {{name: tiny}}
spec: {{path: {model}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: nightly}}
spec:
  model: tiny
  priorityClassName: batch
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 256Mi}}}}
  engine: {{driver: berth, command: [{python}, {program}, {folder}]}}
"""


@contextlib.contextmanager
def sized(tmp_path, modes="[Pause, Shrink, Offload]", fallback="Evict", deadline="2s"):
    folder = tmp_path / "engine"
    folder.mkdir()
    policy = POLICY.format(model=make_tiny_model(tmp_path / "tiny"), python=sys.executable,
                           program=HERE / "sized_engine.py", folder=folder, modes=modes,
                           fallback=fallback, deadline=deadline)
    with Node(memory="1Gi", policy=policy) as node:
        node.wait_state("nightly", "Running")
        wait_until("it has its grant", lambda: mapped(node) == 256 * MIB, 30)
        yield node, folder


def mapped(node):
    """What the kernel says that it holds as grant."""
    total = 0
    pid = node.instance("nightly")["pid"]
    for line in pathlib.Path(f"/proc/{pid}/maps").read_text().splitlines():
        if "/memfd:berth-grant:" in line:
            first, last = line.split()[0].split("-")
            total += int(last, 16) - int(first, 16)
    return total


def grant(node):
    shown = node.instance("nightly")
    return shown["state"], shown["grantBytes"] // MIB, shown["grantState"]


def events(node, reason):
    text = call(node.connection(), "GET", "/v1/events?since=0")
    lines = text.splitlines() if isinstance(text, str) else [json.dumps(text)]
    return [e for e in map(json.loads, filter(None, lines)) if e["reason"] == reason]


def ended(node, action, body=None):
    operation = node.post(f"/v1/instances/nightly:{action}", body)
    return node.get(f"/v1/operations/{operation['id']}?wait=60s")


def test_shrink_frees_what_the_kernel_sees_and_resume_gives_it_back(tmp_path):
    with sized(tmp_path) as (node, _):
        free = node.device()["freeBytes"]
        done = node.preempt("nightly", "Shrink", grantBytes="128Mi")
        assert done["bytesFreed"] == 128 * MIB and mapped(node) == 128 * MIB
        assert grant(node) == ("Running", 128, "Held")
        assert node.device()["freeBytes"] == free + 128 * MIB
        done = node.preempt("nightly", "Shrink")
        assert grant(node) == ("Running", 64, "Held") and mapped(node) == 64 * MIB
        node.resume("nightly")
        assert grant(node) == ("Running", 256, "Held") and mapped(node) == 256 * MIB
        assert node.device()["freeBytes"] == free


def test_an_engine_that_says_it_has_shrunk_and_has_not_is_offloaded(tmp_path):
    with sized(tmp_path) as (node, folder):
        (folder / "keeps").touch()
        done = ended(node, "preempt", {"mode": "Shrink"})
        assert done["state"] == "Succeeded" and done["reached"] == "Offload", done
        assert events(node, "ShortReclaim")
        assert grant(node) == ("Suspended", 0, "Held") and mapped(node) == 0


def test_where_nothing_else_is_allowed_a_lie_is_a_failed_shrink(tmp_path):
    with sized(tmp_path, modes="[Shrink]", fallback="None", deadline="500ms") as (node, folder):
        (folder / "keeps").touch()
        free = node.device()["freeBytes"]
        done = ended(node, "preempt", {"mode": "Shrink"})
        assert done["state"] == "Failed" and done["error"]["reason"] == "ShortReclaim", done
        assert grant(node) == ("Running", 256, "Held")
        assert node.device()["freeBytes"] == free


def test_a_silent_engine_goes_down_the_ladder_to_its_end(tmp_path):
    with sized(tmp_path, deadline="300ms") as (node, folder):
        (folder / "silent").touch()
        done = ended(node, "preempt", {"mode": "Shrink"})
        assert done["state"] == "Succeeded" and done["reached"] == "Evict", done
        assert node.instance("nightly")["state"] == "Evicted"


def test_a_grow_that_is_refused_leaves_nothing_reserved(tmp_path):
    with sized(tmp_path) as (node, folder):
        node.preempt("nightly", "Shrink")
        free = node.device()["freeBytes"]
        (folder / "refuses").touch()
        done = ended(node, "resume")
        assert done["state"] == "Failed" and done["error"]["reason"] == "OutOfMemory", done
        wait_until("the driver has said what it holds",
                   lambda: grant(node) == ("Running", 64, "Held"), 20)
        assert node.device()["freeBytes"] == free


def test_what_is_shrunk_is_known_as_that_to_the_next_berthd(tmp_path):
    with sized(tmp_path) as (node, _):
        node.preempt("nightly", "Shrink", grantBytes="96Mi")
        node.kill_daemon()
        node.start_daemon()
        wait_until("it is back", lambda: grant(node) == ("Running", 96, "Held"), 30)
        node.resume("nightly")
        assert grant(node) == ("Running", 256, "Held") and mapped(node) == 256 * MIB


def test_berthd_killed_in_the_middle_of_a_shrink_leaves_none_half_done(tmp_path):
    with sized(tmp_path, deadline="5s") as (node, folder):
        (folder / "keeps").touch()
        operation = node.post("/v1/instances/nightly:preempt", {"mode": "Shrink"})
        wait_until("the driver is asked",
                   lambda: node.instance("nightly")["substate"] == "Reclaiming", 20, 0.005)
        node.kill_daemon()
        (folder / "keeps").unlink()
        node.start_daemon()
        done = node.get(f"/v1/operations/{operation['id']}?wait=30s")
        assert done["state"] == "Succeeded", done
        assert grant(node) == ("Running", 64, "Held") and mapped(node) == 64 * MIB
