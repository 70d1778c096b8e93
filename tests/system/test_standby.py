# SPDX-License-Identifier: Apache-2.0
"""A socket that outlives its engine, another engine that stands by, and clients who notice nothing.

Method: a real node with real engines; clients stream over raw sockets, keep their connections, and
compare every answer with that of an undisturbed engine. What is killed is killed with SIGKILL.
BERTH_KILLS says how many deaths the last test makes.
"""

import json
import os
import random
import signal
import socket
import threading
import time

import pytest
from node_under_test import MODEL, PROMPTS, alive, free_port, kill, wait_until
from serving_pair import ServingPair

KILLS = int(os.environ.get("BERTH_KILLS", "12"))
CLIENTS = int(os.environ.get("BERTH_CLIENTS", "4"))
TOKENS = 24

CHAT = """\
kind: Model
metadata: {{name: smollm2}}
spec: {{path: {model}}}
---
kind: Instance
metadata: {{name: chat}}
spec:
  model: smollm2
  priorityClassName: online
  resources: {{requests: {{memory: 256Mi}}, limits: {{memory: 512Mi}}}}
  engine:
    command: [berth-engine, --served-model-name, smollm2, --batch-invariant]
    environment: {{MARK: "{mark}"}}
    listen: "127.0.0.1:{port}"
    stepDeadline: {deadline}
"""
SPARE = """\
---
kind: Instance
metadata: {name: spare}
spec: {standbyOf: chat}
"""


class Pair(ServingPair):
    """chat and, unless alone, spare, on one port."""

    def __init__(self, alone=False, memory="4Gi", deadline="10s"):
        self.port, self.deadline = free_port(), deadline
        self.rest = "" if alone else SPARE
        self.serving = ("chat",) if alone else ServingPair.serving
        super().__init__(memory=memory, policy=self.documents("first"))
        for name in self.serving:
            self.wait_state(name, "Running")
        wait_until("somebody answers", lambda: self.active() is not None)

    def documents(self, mark):
        return CHAT.format(model=MODEL, port=self.port, mark=mark,
                           deadline=self.deadline) + self.rest

    def stream(self, prompt, tokens=TOKENS):
        with Streaming(self.port) as client:
            return client.complete(prompt, tokens)


class Streaming:
    """One connection; asks for streamed completions and reads every byte of them."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=120)
        self.pending = b""

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def until(self, mark):
        while mark not in self.pending:
            data = self.socket.recv(1 << 16)
            if not data:
                raise EOFError(f"the connection ended after {self.pending[-200:]!r}")
            self.pending += data
        head, self.pending = self.pending.split(mark, 1)
        return head

    def complete(self, prompt, tokens=TOKENS, on_event=None):
        body = json.dumps({"model": "smollm2", "prompt": prompt, "max_tokens": tokens,
                           "temperature": 0, "stream": True}).encode()
        self.socket.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: test\r\n"
                            b"Content-Type: application/json\r\nContent-Length: "
                            + str(len(body)).encode() + b"\r\n\r\n" + body)
        head = self.until(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        text, events = "", b""
        while True:
            size = int(self.until(b"\r\n"), 16)
            while len(self.pending) < size + 2:
                data = self.socket.recv(1 << 16)
                if not data:
                    raise EOFError("the connection ended within a chunk")
                self.pending += data
            chunk, self.pending = self.pending[:size], self.pending[size:]
            assert self.pending.startswith(b"\r\n")
            self.pending = self.pending[2:]
            events += chunk
            if size == 0:
                break
            if on_event is not None:
                on_event()
        lines = [line for line in events.decode().split("\n\n") if line]
        assert lines[-1] == "data: [DONE]", lines[-1]
        for line in lines[:-1]:
            text += json.loads(line.removeprefix("data: "))["choices"][0]["text"]
        return text


class Crowd:
    """Clients that stream one answer after the other, each on the connection that it keeps."""

    def __init__(self, node, references, clients=CLIENTS):
        self.node, self.references = node, references
        self.stop, self.wrong, self.done = threading.Event(), [], 0
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run, args=(n,)) for n in range(clients)]

    def run(self, number):
        try:
            self.ask_on(number)
        except Exception as error:
            self.wrong.append(repr(error))

    def ask_on(self, number):
        dice = random.Random(number)
        with Streaming(self.node.port) as client:
            while not self.stop.is_set():
                prompt = dice.choice(sorted(self.references))
                self.note(prompt, client.complete(prompt))

    def note(self, prompt, said):
        with self.lock:
            self.done += 1
            if said != self.references[prompt]:
                self.wrong.append((prompt, said, self.references[prompt]))

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(300)

    def goes_on(self, answers=2):
        before = self.done
        wait_until("clients are answered", lambda: self.wrong or self.done >= before + answers, 120)


@pytest.fixture(scope="module")
def references():
    with Pair(alone=True) as node:
        return {prompt: node.stream(prompt) for prompt in PROMPTS[:5]}


def test_while_nobody_serves_connections_wait_and_are_answered(references):
    with Pair(alone=True) as node:
        first = node.active()
        kill(first["pid"])
        prompt = PROMPTS[0]
        wait_until("it is gone", lambda: not alive(first["pid"]), 20)
        answers = [None] * 6 # all are asked before there is anybody to answer

        def ask(number):
            answers[number] = node.stream(prompt)

        threads = [threading.Thread(target=ask, args=(n,)) for n in range(len(answers))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(120)
        assert answers == [references[prompt]] * len(answers)
        second = node.active()
        assert second["pid"] != first["pid"] and second["generation"] > first["generation"]


def test_a_stream_goes_on_when_its_engine_is_killed_and_none_stands_by(references):
    with Pair(alone=True) as node:
        prompt, seen = PROMPTS[1], []

        def kill_once():
            seen.append(time.monotonic())
            if len(seen) == 6:
                kill(node.active()["pid"])

        with Streaming(node.port) as client:
            assert client.complete(prompt, on_event=kill_once) == references[prompt]
            assert client.complete(prompt) == references[prompt], "the connection is kept"


def test_a_standby_takes_over_streams_in_the_middle_and_the_killed_one_stands_by(references):
    with Pair() as node:
        active, standby = node.active(), node.standby()
        assert (active["name"], standby["name"]) == ("chat", "spare")
        assert standby["grantBytes"] < active["grantBytes"]
        prompt, seen = PROMPTS[2], []

        def kill_once():
            seen.append(time.monotonic())
            if len(seen) == 6:
                kill(active["pid"])

        with Streaming(node.port) as client:
            assert client.complete(prompt, on_event=kill_once) == references[prompt]
        gap = max(b - a for a, b in zip(seen, seen[1:]))
        print(f"longest pause of the stream: {gap * 1e3:.0f} ms")
        now = node.active()
        assert (now["name"], now["pid"]) == ("spare", standby["pid"])
        assert now["generation"] == active["generation"] + 1
        node.wait_pair()
        assert node.standby()["name"] == "chat"


class AtEvent:
    """What is done in the middle of a stream: at that event of it."""

    def __init__(self, deed, at=6):
        self.seen, self.deed, self.at = 0, deed, at

    def __call__(self):
        self.seen += 1
        if self.seen == self.at:
            self.deed()


def test_a_frozen_engine_is_noticed_and_its_standby_goes_on_in_the_same_stream(references):
    with Pair(deadline="5s") as node:
        active, standby = node.wait_pair()
        freeze = AtEvent(lambda: kill(active["pid"], signal.SIGSTOP))
        with Streaming(node.port) as client:
            assert client.complete(PROMPTS[3], on_event=freeze) == references[PROMPTS[3]]
        assert node.active()["pid"] == standby["pid"]
        assert "EngineSilent" in node.told()
        wait_until("the frozen one is gone", lambda: not alive(active["pid"]), 20)
        node.wait_pair()
        assert node.standby()["name"] == "chat"


def test_a_frozen_engine_that_nobody_stands_by_for_is_started_again(references):
    with Pair(alone=True, deadline="2s") as node:
        active = node.active()
        freeze = AtEvent(lambda: kill(active["pid"], signal.SIGSTOP))
        with Streaming(node.port) as client:
            assert client.complete(PROMPTS[4], on_event=freeze) == references[PROMPTS[4]]
        assert node.active()["pid"] != active["pid"]
        assert "EngineSilent" in node.told()


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "with a standby"])
def test_an_engine_that_somebody_asks_to_end_is_followed_by_another(references, alone):
    with Pair(alone=alone) as node:
        active = node.active()
        end = AtEvent(lambda: kill(active["pid"], signal.SIGTERM))
        with Streaming(node.port) as client:
            assert client.complete(PROMPTS[0], on_event=end) == references[PROMPTS[0]]
            wait_until("it has ended", lambda: not alive(active["pid"]), 60)
            assert client.complete(PROMPTS[1]) == references[PROMPTS[1]], "the connection is kept"
        assert node.active()["pid"] != active["pid"]
        if not alone:
            node.wait_pair()
            assert node.standby()["name"] == "chat"


def test_a_drained_engine_ends_what_it_has_begun_and_refuses_nobody(references):
    with Pair(alone=True) as node:
        begun, late = [], []

        def ask_late():
            late.append(node.stream(PROMPTS[2]))

        waiting = threading.Thread(target=ask_late)

        def drain():
            begun.append(node.post("/v1/instances/chat:drain", {"timeout": "120s"}))

        # The engine hears of it between two of these events.
        deeds = [AtEvent(drain, at=2), AtEvent(waiting.start, at=7)]

        with Streaming(node.port) as client:
            assert client.complete(PROMPTS[1], on_event=lambda: [deed() for deed in deeds]
                                   ) == references[PROMPTS[1]]
            node.finish(begun[0])
            assert node.instance("chat")["state"] == "Evicted"
            assert not late, "it waits"
            node.finish(node.post("/v1/instances/chat:resume"))
            waiting.join(120)
            assert late == [references[PROMPTS[2]]]
            assert client.complete(PROMPTS[0]) == references[PROMPTS[0]], "the connection is kept"


def test_promote_moves_the_socket_and_nobody_is_refused(references):
    with Pair() as node, Crowd(node, references) as crowd:
        crowd.goes_on()
        for name in ("spare", "chat", "spare"):
            node.wait_pair()
            done = node.finish(node.post(f"/v1/instances/{name}:promote"))
            assert "generation" in done["message"]
            assert node.active()["name"] == name
            crowd.goes_on()
        begun = node.post("/v1/instances/spare:promote")
        ended = node.get(f"/v1/operations/{begun['id']}?wait=10s")
        assert ended["error"]["reason"] == "NotStandby"
    assert not crowd.wrong, crowd.wrong[0]


def test_a_changed_document_is_rolled_out_and_nobody_is_refused(references):
    with Pair() as node, Crowd(node, references) as crowd:
        crowd.goes_on()
        pids = {one["name"]: one["pid"] for one in node.shown()}
        node.put("/v1/policy", node.documents("second"))

        def renewed():
            return all(one["pid"] not in (0, pids[one["name"]]) and one["state"] == "Running"
                       for one in node.shown())
        wait_until("both run with the new document", renewed, 120)
        for one in node.shown():
            with open(f"/proc/{one['pid']}/environ", "rb") as environment:
                assert b"MARK=second" in environment.read()
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def test_a_standby_that_cannot_start_leaves_the_other_as_it_is(references):
    with Pair() as node, Crowd(node, references) as crowd:
        active = node.active()
        broken = node.documents("first").replace("--batch-invariant", "--no-such-flag")
        node.put("/v1/policy", broken)
        node.wait_state("spare", "Failed", timeout=180)
        assert node.active()["pid"] == active["pid"]
        assert node.active()["reason"] == "RolloutWaits"
        crowd.goes_on()
        node.put("/v1/policy", node.documents("first"))
        node.wait_pair()
        assert node.active()["pid"] == active["pid"]
        assert node.active()["reason"] == ""
    assert not crowd.wrong, crowd.wrong[0]


def test_an_engine_that_dies_while_no_daemon_is_there_is_followed_by_its_standby(references):
    with Pair() as node, Crowd(node, references) as crowd:
        crowd.goes_on()
        active = node.active()
        node.kill_daemon()
        kill(active["pid"])
        time.sleep(0.3)
        node.start_daemon()
        crowd.goes_on()
        node.wait_pair()
        assert node.active()["name"] == "spare"
    assert not crowd.wrong, crowd.wrong[0]


def test_any_of_them_killed_in_turn_and_every_stream_is_whole(references):
    dice = random.Random(7)
    with Pair() as node, Crowd(node, references) as crowd:
        for number in range(KILLS):
            node.wait_pair()
            crowd.goes_on(1)
            time.sleep(dice.uniform(0, 0.3))
            whom = ("active", "standby", "berthd", "keeper")[number % 4]
            if whom == "active":
                kill(node.active()["pid"])
            elif whom == "standby":
                kill(node.standby()["pid"])
            elif whom == "keeper":
                node.kill_keeper()
            else:
                node.kill_daemon()
                time.sleep(dice.uniform(0, 0.5))
                node.start_daemon()
            assert not crowd.wrong, (number, whom, crowd.wrong[0])
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]
    print(f"{KILLS} deaths, {crowd.done} answers, all whole")
