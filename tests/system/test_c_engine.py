# SPDX-License-Identifier: Apache-2.0
"""An engine in plain C lives its whole life under a real berthd by libberth's C interface alone:
connect, attach, map, a grant that grows and shrinks, pause, offload and restore, the gate, turns,
a socket that it inherits, standing by, serving as a generation, a stuck step, stop.

Method: whole_engine.c as a service with a standby and as a batch worker on one node; its answers tell
whether weights and KV are as they were, its log which commands it was given."""

import json
import os
import socket
import struct
import threading
import time

import pytest
from node_under_test import BIN, alive, free_port, kill, wait_until
from serving_pair import ServingPair
from tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")

ENGINE = BIN.parent / "tests/whole_engine"
LEAST, GRANT = 64 << 20, 80 << 20  # what an instance begins with, and may have
DOCUMENTS = """\
kind: ColocationPolicy
metadata: {{name: node}}
spec:
  priorityClasses:
    - {{name: online, value: 1000, preemptionPolicy: PreemptLowerPriority, preemptible: true}}
    - {{name: batch, value: 100, globalDefault: true, preemptionPolicy: Never}}
  preemption: {{reclaimDeadline: 60s, gracePeriod: 20s}}
  resume: {{after: {{onlineIdle: 0s}}}}
---
kind: Model
metadata: {{name: tiny}}
spec: {{path: {model}}}
---
kind: Instance
metadata: {{name: front}}
spec:
  model: tiny
  priorityClassName: online
  resources: {{requests: {{memory: 80Mi}}, limits: {{memory: 80Mi}}}}
  restart: Always
  slo: {{ttft: 2s, tpot: 1s, percentile: 99}}
  engine:
    command: ["{engine}"]
    workingDirectory: /
    listen: "127.0.0.1:{port}"
    stepDeadline: 3s
---
kind: Instance
metadata: {{name: behind}}
spec: {{standbyOf: front, standby: {{grant: TakeOver}}}}
---
kind: Instance
metadata: {{name: worker}}
spec:
  model: tiny
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: 80Mi}}}}
  engine: {{driver: berth, command: ["{engine}"], workingDirectory: /}}
"""
KINDS = ["PAUSE", "RESUME", "OFFLOAD", "RESTORE", "STOP", "SHRINK", "GROW", "SERVE"]  # as in berth.h


def sum_of_checkpoint(folder):
    """As the engine sums what it has mapped: FNV-1a of each tensor's bytes, ascending by name."""
    data = (folder / "model.safetensors").read_bytes()
    size, = struct.unpack("<Q", data[:8])
    header = json.loads(data[8:8 + size])
    total = 14695981039346656037
    for name in sorted(header):
        begin, end = header[name]["data_offsets"]
        for byte in data[8 + size + begin:8 + size + end]:
            total = (total ^ byte) * 1099511628211 % (1 << 64)
    return total


class CNode(ServingPair):
    serving = ("front", "behind")

    def __init__(self, folder):
        make_tiny_model(folder / "tiny")
        self.port = free_port()
        self.sum = sum_of_checkpoint(folder / "tiny")
        super().__init__(memory="1Gi", policy=DOCUMENTS.format(
            model=folder / "tiny", port=self.port, engine=ENGINE))
        self.wait_pair()

    def connect(self, line):
        client = socket.create_connection(("127.0.0.1", self.port), timeout=60)
        client.sendall(line.encode() + b"\n")
        return client

    def ask(self, line):
        with self.connect(line) as client:
            return client.makefile().readline().split()

    def check_answer(self, grant=None):
        """Weights and KV are what they were; as which generation it answers."""
        generation, total, size, kv = self.ask("sum")
        assert (int(total), kv) == (self.sum, "whole")
        assert grant is None or int(size) == grant
        return int(generation)

    def wait_grant(self, name, grant):
        wait_until(f"{name} has {grant} bytes",
                   lambda: self.instance(name)["grantBytes"] == grant, 30)

    def commands(self):
        """What its engines were told, in words of berth.h."""
        told = set()
        for log in self.root.glob("state/engines/*.log"):
            for line in log.read_text().splitlines():
                if line.startswith("command kind="):
                    assert line.endswith("error=-"), line
                    told.add(KINDS[int(line.split()[1].removeprefix("kind="))])
        return told


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with CNode(tmp_path_factory.mktemp("c-engine")) as made:
        yield made


def test_it_maps_what_the_checkpoint_has_and_has_the_grant_that_berthd_counts(node):
    node.wait_grant(node.active()["name"], GRANT)
    assert node.check_answer(GRANT) == node.active()["generation"]
    assert node.instance("worker")["grantBytes"] == GRANT
    assert node.standby()["grantBytes"] == LEAST, "its floor"


def test_while_it_is_paused_callers_wait_and_are_answered_afterwards(node):
    name = node.active()["name"]
    node.preempt(name, "Pause")
    with node.connect("sum") as client:
        client.settimeout(1)
        with pytest.raises(TimeoutError):
            client.recv(1)
        node.resume(name)
        client.settimeout(60)
        assert client.makefile().readline().endswith("whole\n")


def test_offloaded_it_keeps_kv_in_host_memory_and_restored_it_has_all_of_it(node):
    name, freed = node.active()["name"], node.active()["grantBytes"]
    done = node.preempt(name, "Offload")
    assert done["bytesFreed"] > 0
    shown = node.instance(name)
    assert shown["state"] == "Suspended" and shown["grantBytes"] < freed
    assert shown["hostBytes"] == freed
    node.resume(name)
    node.wait_grant(name, freed)
    node.check_answer(freed)


def test_shrunk_it_goes_on_with_less_and_grows_back(node):
    node.wait_state("worker", "Running")
    node.preempt("worker", "Shrink", grantBytes="64Mi")
    assert node.instance("worker")["grantBytes"] == LEAST
    node.resume("worker")
    node.wait_grant("worker", GRANT)


def test_the_gate_stops_the_worker_at_its_next_look(node):
    def steps():
        return node.instance("worker")["counters"]["stepsDone"]

    def moves():
        before = steps()
        wait_until("the worker makes steps", lambda: steps() > before + 20, 30)

    moves()
    assert node.ask("hold") == ["done"]
    time.sleep(2.5)  # a report may be a second old
    before = steps()
    time.sleep(2.5)
    assert steps() == before
    assert node.ask("free") == ["done"]
    moves()


def test_killed_it_is_followed_by_the_one_that_stands_by(node):
    active, _ = node.wait_pair()
    kill(active["pid"])
    assert node.check_answer() == active["generation"] + 1
    node.wait_pair()


def test_promoted_the_other_answers_and_the_one_before_stops(node):
    active, standby = node.wait_pair()
    node.finish(node.post(f"/v1/instances/{standby['name']}:promote"))
    assert node.check_answer() == active["generation"] + 1
    wait_until("the one before has ended", lambda: not alive(active["pid"]), 30)
    node.wait_pair()


def test_a_step_that_does_not_end_ends_the_process_and_the_other_answers(node):
    active, _ = node.wait_pair()
    stuck = []

    def stick():
        with node.connect("stick") as client:
            stuck.append(client.recv(1))

    thread = threading.Thread(target=stick)
    thread.start()
    wait_until("the other answers", lambda: (one := node.active())
               and one["generation"] > active["generation"], 60)
    thread.join(60)
    assert stuck == [b""], "its connection ends with it: it keeps none"
    assert not alive(active["pid"])
    assert node.check_answer() == active["generation"] + 1
    assert "StepStuck" in node.told()


def test_drained_it_stops_in_order(node):
    pid = node.instance("worker")["pid"]
    node.finish(node.post("/v1/instances/worker:drain"))
    assert not alive(pid)
    assert node.instance("worker")["restarts"] == 0, "it was no death"


def test_it_was_told_everything_that_there_is_to_tell(node):
    assert node.commands() == set(KINDS)
