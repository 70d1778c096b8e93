# SPDX-License-Identifier: Apache-2.0
"""Goal: an instance of several ranks lives under berthd as one of one rank does: placed, started,
preempted, resumed and ended as one, its greedy tokens those of one rank. Method: a real node with
two or four host devices and a small random model in float32; what is killed is killed with
SIGKILL."""

import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import threading

import pytest

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "ranks"))

from node_under_test import BIN, PROMPTS, Node, alive, free_port, kill, wait_until
from test_standby import Crowd, Streaming
from tiny_checkpoint import make_checkpoint

MIB = 1 << 20
TOKENS = 40
ASKED = PROMPTS[:4]

MODEL = """\
kind: Model
metadata: {{name: smollm2}}
spec: {{path: {path}, tensorParallel: {ranks}}}
"""
CHAT = """\
---
kind: Instance
metadata: {{name: chat}}
spec:
  model: smollm2
  priorityClassName: {of_class}
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 128Mi}}}}
  restart: Always{more}
  engine:
    command: [berth-engine, --served-model-name, smollm2, --batch-invariant, --threads, "1", --max-context, "192"]
    listen: "127.0.0.1:{port}"
"""
# On the device of rank 1, with weights of its own.
NIGHTLY = """\
---
kind: Model
metadata: {{name: whole}}
spec: {{path: {path}}}
---
kind: Instance
metadata: {{name: nightly}}
spec:
  model: whole
  priorityClassName: batch
  devices: [host-1]
  resources: {{limits: {{memory: 64Mi}}}}
  engine: {{command: [berth-engine, --served-model-name, smollm2, --listen, "127.0.0.1:0", --threads, "1", --max-context, "192"]}}
"""
SPARE = """\
---
kind: Instance
metadata: {name: spare}
spec: {standbyOf: chat}
"""


@pytest.fixture(scope="module")
def checkpoint():
    folder = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
    yield make_checkpoint(folder / "model", "Llama")
    shutil.rmtree(folder, ignore_errors=True)


class RankedNode(Node):
    def __init__(self, path, ranks, devices, more="", rest="", of_class="online"):
        self.port = free_port()
        memory = "}, {".join(f"{'' if n == 0 else f'name: host-{n}, memory: '}768Mi"
                             for n in range(devices))
        policy = (MODEL.format(path=path, ranks=ranks) +
                  CHAT.format(port=self.port, more=more, of_class=of_class) + rest)
        super().__init__(memory=memory, policy=policy)
        try:
            self.wait_state("chat", "Running")
        except BaseException:
            self.print_logs()
            self.close()
            raise

    def ask(self, prompt, on_event=None):
        with Streaming(self.port) as client:
            return client.complete(prompt, TOKENS, on_event)

    def pids(self, name="chat"):
        return [one["pid"] for one in self.instance(name).get("ranks", [{"pid": 0}])]

    def grants(self):
        """Bytes that are granted on each device, by the ledger."""
        return [one["grantBytes"] for one in self.get("/v1/devices")["items"]]

    def told(self):
        return self.get("/v1/events?since=0")


@pytest.fixture(scope="module")
def references(checkpoint):
    with RankedNode(checkpoint, 1, 1) as node:
        return {prompt: node.ask(prompt) for prompt in ASKED}


class Asking(Crowd):
    """A client that asks again and again, each time on a connection of its own."""

    def __init__(self, node, references):
        super().__init__(node, references, clients=1)

    def ask_on(self, number):
        while not self.stop.is_set():
            prompt = ASKED[self.done % len(ASKED)]
            self.note(prompt, self.node.ask(prompt))

    def goes_on(self, answers=2):
        super().goes_on(answers)
        assert not self.wrong, self.wrong[0]


def test_two_ranks_on_two_devices_are_one_instance_through_all_rungs(checkpoint, references):
    with RankedNode(checkpoint, 2, 2, of_class="batch") as node:
        shown = node.instance("chat")
        assert shown["devices"] == ["host-0", "host-1"]
        assert [one["device"] for one in shown["ranks"]] == ["host-0", "host-1"]
        sets = [one["weightSet"] for one in shown["ranks"]]
        assert len(set(sets)) == 2 and len(node.weights()) == 2
        assert all(alive(pid) for pid in node.pids()) and len(set(node.pids())) == 2
        for one in shown["ranks"]:
            assert {"attach", "rendezvous"} <= one["phases"].keys()
        described = subprocess.run([BIN / "berth", "--admin", node.root / "run/admin.sock",
                                    "describe", "instance", "chat"], capture_output=True,
                                   text=True, check=True).stdout
        for one in shown["ranks"]: # a line each
            assert any(f"{one['device']}  {one['pid']}" in line and "rendezvous" in line
                       for line in described.splitlines()), described
        assert node.grants() == [128 * MIB] * 2
        with Asking(node, references) as client:
            client.goes_on()
            node.preempt("chat", "Pause")
            node.resume("chat")
            client.goes_on()
            node.preempt("chat", "Shrink")
            assert node.grants() == [64 * MIB] * 2
            client.goes_on()
            node.preempt("chat", "Offload")
            assert node.instance("chat")["state"] == "Suspended" and node.grants() == [0, 0]
            node.resume("chat")
            client.goes_on()
            wait_until("it has grown back", lambda: node.grants() == [128 * MIB] * 2)
        before = node.pids()
        node.preempt("chat", "Evict")
        assert not any(alive(pid) for pid in before) and node.grants() == [0, 0]
        node.resume("chat")
        assert node.ask(ASKED[0]) == references[ASKED[0]]


def test_its_parts_are_loaded_ahead_of_its_start(checkpoint):
    def load(*words):
        return subprocess.run([BIN / "berth", "--admin", node.root / "run/admin.sock", "load",
                               "smollm2", "--wait", *words], capture_output=True, text=True,
                              check=False)
    documents = MODEL.format(path=checkpoint, ranks=2)
    with Node(memory="768Mi}, {name: host-1, memory: 768Mi", policy=documents) as node:
        for words, reason in [((), "SeveralRanks"), (("--device", "host-0"), "RanksDiffer"),
                              (("--device", "host-0,host-1,host-0"), "RanksDiffer")]:
            refused = load(*words)
            assert refused.returncode == 1 and reason in refused.stderr, refused.stderr
        done = load("--device", "host-1,host-0")
        assert done.returncode == 0, done.stderr
        assert "smollm2, rank 0: " in done.stdout and "smollm2, rank 1: " in done.stdout
        loaded = {(one["id"], one["device"]) for one in node.weights()}
        assert {device for _, device in loaded} == {"host-0", "host-1"} and len(loaded) == 2
        port = free_port()
        (node.root / "policies.yaml").write_text(
            documents + CHAT.format(port=port, more="", of_class="online"))
        kill(node.daemon.pid, signal.SIGHUP)
        wait_until("its document is there", lambda: [one["name"] for one in
                                                     node.get("/v1/instances")["items"]] == ["chat"])
        node.wait_state("chat", "Running")
        ranks = node.instance("chat")["ranks"]
        assert {(one["weightSet"], one["device"]) for one in ranks} == loaded, "where they lay"
        assert [one["device"] for one in ranks] == ["host-1", "host-0"]


def test_four_ranks_on_four_devices_answer_as_one(checkpoint, references):
    with RankedNode(checkpoint, 4, 4) as node:
        assert node.instance("chat")["devices"] == [f"host-{n}" for n in range(4)]
        assert {prompt: node.ask(prompt) for prompt in ASKED} == references


def test_ranks_share_a_device_where_the_document_says_so(checkpoint, references):
    with RankedNode(checkpoint, 2, 2, more="\n  deviceCount: 1") as node:
        place = node.instance("chat")["devices"]
        assert place[0] == place[1] and sorted(node.grants()) == [0, 256 * MIB]
        assert node.ask(ASKED[0]) == references[ASKED[0]]


def test_a_request_closes_the_gates_of_all_devices(checkpoint, references):
    with RankedNode(checkpoint, 2, 2, rest=NIGHTLY.format(path=checkpoint)) as node:
        batch = node.engine("nightly")
        stop = threading.Event()

        def work():
            while not stop.is_set():
                batch.complete(ASKED[0], 100, ignore_eos=True)

        worker = threading.Thread(target=work)
        worker.start()
        try:
            def pauses():
                return node.instance("nightly")["counters"]["gatePauses"]

            def asked_again():
                assert node.ask(ASKED[1]) == references[ASKED[1]]
                return pauses() > before
            before = pauses()
            wait_until("batch beside rank 1 has yielded", asked_again)
        finally:
            stop.set()
            worker.join(120)


def test_the_death_of_one_rank_ends_all_and_its_requests_are_answered_by_the_next(checkpoint,
                                                                                 references):
    with RankedNode(checkpoint, 2, 2) as node:
        for dead in (1, 0):
            before = node.pids()
            seen = []

            def kill_once():
                seen.append(1)
                if len(seen) == 8:
                    kill(before[dead])

            assert node.ask(ASKED[1], kill_once) == references[ASKED[1]]
            assert not any(alive(pid) for pid in before)
            assert set(node.pids()).isdisjoint(before)
            cause = f"rank {dead} (pid {before[dead]}): killed by SIGKILL"
            assert cause in node.told()


def test_all_ranks_outlive_berthd_and_end_together_where_one_did_not(checkpoint, references):
    with RankedNode(checkpoint, 2, 2) as node:
        before = node.pids()
        meeting = list((node.root / "run/ranks").iterdir())
        assert len(meeting) == 1
        node.kill_daemon()
        node.start_daemon()
        wait_until("they are back", lambda: node.instance("chat")["connected"])
        assert node.pids() == before and node.instance("chat")["state"] == "Running"
        assert list((node.root / "run/ranks").iterdir()) == meeting
        assert node.ask(ASKED[2]) == references[ASKED[2]]
        node.kill_daemon()
        kill(before[1])
        node.start_daemon()
        wait_until("others are there", lambda: not set(node.pids()) & {0, *before})
        assert node.ask(ASKED[2]) == references[ASKED[2]]
        assert not any(alive(pid) for pid in before)
        assert list((node.root / "run/ranks").iterdir()) != meeting


def test_a_standby_of_two_ranks_takes_over_in_the_middle_of_a_stream(checkpoint, references):
    with RankedNode(checkpoint, 2, 2, rest=SPARE) as node:
        wait_until("it stands by", lambda: node.instance("spare")["substate"] == "Standby", 60)
        before, spare = node.pids(), node.pids("spare")
        seen = []

        def kill_once():
            seen.append(1)
            if len(seen) == 8:
                kill(before[1])

        assert node.ask(ASKED[3], kill_once) == references[ASKED[3]]
        now = node.instance("spare")
        assert now["role"] == "Active" and node.pids("spare") == spare
        wait_until("the other stands by", lambda: node.instance("chat")["substate"] == "Standby", 60)
