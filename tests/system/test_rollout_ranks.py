# SPDX-License-Identifier: Apache-2.0
"""Rollouts of an instance of several ranks, and to another number of them: clients notice nothing,
and no process ever runs beside one of another document.

Method: a real node with two host devices and a small random model in float32, `berth rollout` as
people call it, clients that stream all the time and compare with one undisturbed rank, and somebody
who looks into the environment of all ranks meanwhile.
"""

import threading

import pytest
from node_under_test import BIN, PROMPTS, Refused, kill, wait_until
from test_ranks import CHAT, MIB, SPARE, RankedNode, checkpoint # the fixture too
from test_rollout import berth, names, rollout
from test_standby import Crowd, Streaming

ASKED = PROMPTS[:4]
WHOLE = """\
---
kind: Model
metadata: {{name: whole}}
spec: {{path: {path}}}
"""
FILLER = """\
kind: Instance
metadata: {{name: {name}}}
spec:
  priorityClassName: online
  devices: [host-1]
  resources: {{requests: {{memory: {bytes}}}}}
  engine: {{driver: process, command: [/bin/sleep, "1000"]}}
"""


def mark_of(pid):
    """By which document it was started; empty: by the first one, or it is gone."""
    try:
        with open(f"/proc/{pid}/environ", "rb") as environment:
            words = environment.read().split(b"\0")
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((word[5:].decode() for word in words if word.startswith(b"MARK=")), "")


def pids(shown):
    return [one["pid"] for one in shown.get("ranks", [shown]) if one["pid"]]


class Looking:
    """Somebody who looks at the ranks of all instances again and again."""

    def __init__(self, node):
        self.node, self.stop, self.looks, self.mixed = node, threading.Event(), 0, []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.wait(0.05):
            for name in names(self.node):
                try:
                    shown = self.node.instance(name)
                except Refused:
                    continue # a surge that has just gone
                self.looks += 1
                marks = {mark_of(pid) for pid in pids(shown)} - {""}
                if len(marks) > 1:
                    self.mixed.append((name, marks))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(60)


class RolledNode(RankedNode):
    def __init__(self, path, rest=""):
        super().__init__(path, 2, 2, rest=WHOLE.format(path=path) + rest)

    def document(self, mark, model="smollm2", program="berth-engine", limit="128Mi"):
        text = CHAT.format(port=self.port, more="", of_class="online").removeprefix("---\n")
        for before, after in [("model: smollm2", f"model: {model}"),
                              ("    listen:", f"    environment: {{MARK: {mark}}}\n    listen:"),
                              ("[berth-engine", f"[{program}"),
                              ("limits: {memory: 128Mi}", f"limits: {{memory: {limit}}}")]:
            assert before in text
            text = text.replace(before, after, 1)
        return text

    def roll_out(self, mark, *words, **changed):
        path = self.root / f"{mark}.yaml"
        path.write_text(self.document(mark, **changed))
        return berth(self, "rollout", "chat", "-f", path, *words)

    def fill(self, name):
        """Leaves 32 MiB of the second device, less than an engine needs at the least."""
        free = self.get("/v1/devices")["items"][1]["freeBytes"]
        self.put(f"/v1/instances/{name}",
                 FILLER.format(name=name, bytes=free // MIB * MIB - 32 * MIB))
        self.wait_state(name, "Running")

    def serving(self):
        """Who answers; all of its ranks are of one document, which is told too."""
        def answers():
            for name in names(self):
                try:
                    shown = self.instance(name)
                except Refused:
                    continue # a surge that has just gone
                if shown["role"] == "Active" and shown["connected"]:
                    return shown
            return None
        shown = wait_until("somebody answers", answers)
        marks = {mark_of(pid) for pid in pids(shown)}
        assert len(marks) == 1, marks
        return shown["name"], len(pids(shown)), marks.pop()


@pytest.fixture(scope="module")
def references(checkpoint):
    with RankedNode(checkpoint, 1, 1) as node:
        found = {}
        for prompt in ASKED:
            with Streaming(node.port) as client:
                found[prompt] = client.complete(prompt)
        return found


def is_whole(crowd, look):
    assert not crowd.wrong, crowd.wrong[0]
    assert crowd.done > 4 and look.looks > 4 and not look.mixed, look.mixed


def test_a_surge_of_two_ranks_then_of_one_and_back_again(checkpoint, references):
    with RolledNode(checkpoint) as node:
        with Crowd(node, references, 2) as crowd, Looking(node) as look:
            crowd.goes_on()
            done = node.roll_out("m1", "--wait")
            assert done.returncode == 0 and "Complete" in done.stdout, done.stderr
            assert node.serving() == ("chat", 2, "m1")
            done = node.roll_out("m2", "--wait", model="whole")
            assert done.returncode == 0 and "Complete" in done.stdout, done.stderr
            assert node.serving() == ("chat", 1, "m2")
            undone = berth(node, "rollout", "undo", "chat", "--wait")
            assert undone.returncode == 0 and "Complete" in undone.stdout, undone.stderr
            assert node.serving() == ("chat", 2, "m1") and names(node) == ["chat"]
            crowd.goes_on()
        is_whole(crowd, look)


def test_in_place_requests_wait_for_another_number_of_ranks(checkpoint, references):
    with RolledNode(checkpoint) as node:
        with Crowd(node, references, 2) as crowd, Looking(node) as look:
            for mark, model, ranks in [("m1", "whole", 1), ("m2", "smollm2", 2), ("m3", "smollm2", 2)]:
                done = node.roll_out(mark, "--in-place", "--wait", model=model)
                assert done.returncode == 0 and "nobody served for" in done.stdout, done.stderr
                assert node.serving() == ("chat", ranks, mark)
                crowd.goes_on()
        is_whole(crowd, look)


def test_a_standby_of_two_ranks_takes_the_new_document_first(checkpoint, references):
    with RolledNode(checkpoint, SPARE) as node:
        wait_until("it stands by", lambda: node.instance("spare")["substate"] == "Standby", 60)
        with Crowd(node, references, 2) as crowd, Looking(node) as look:
            done = node.roll_out("m1", "--wait")
            assert done.returncode == 0 and "Complete" in done.stdout, done.stderr
            assert node.serving() == ("spare", 2, "m1")
            assert len(node.pids()) == 2 and {mark_of(pid) for pid in node.pids()} == {"m1"}
            assert names(node) == ["chat", "spare"]
            crowd.goes_on()
        is_whole(crowd, look)


def test_what_one_rank_or_one_device_cannot_bear_leaves_the_old_ranks_serving(checkpoint, references):
    with RolledNode(checkpoint) as node:
        old = node.pids()
        broken = node.root / "one-fails.sh"
        broken.write_text(f'#!/bin/sh\n[ "$BERTH_RANK" = 1 ] && exit 5\nexec {BIN}/berth-engine "$@"\n')
        broken.chmod(0o755)
        with Crowd(node, references, 2) as crowd, Looking(node) as look:
            done = node.roll_out("broken", "--wait", program=broken)
            assert done.returncode == 1 and "rank 1" in done.stderr, done.stderr
            shown = wait_until("it is over", lambda: (r := rollout(node)) and not r["underWay"] and r)
            assert (shown["phase"], shown["reason"]) == ("Failed", "StartFailed")
            assert "exit code 5" in shown["message"]

            begun = node.roll_out("m1", "--pause", "--wait")
            assert begun.returncode == 0 and "Ready (paused)" in begun.stdout, begun.stderr
            new = node.pids("chat~next")
            assert len(new) == 2 and node.pids() == old
            kill(new[1])
            wait_until("it has failed", lambda: rollout(node)["phase"] == "Failed")
            assert f"rank 1 (pid {new[1]})" in rollout(node)["message"]

            assert node.pids() == old and names(node) == ["chat"]
            assert node.serving() == ("chat", 2, "")
            crowd.goes_on()

            node.fill("filler")
            done = node.roll_out("m2", "--wait")
            assert done.returncode == 0 and "Complete" in done.stdout, done.stderr
            assert "beyond its request, of each of its 2 ranks" in node.told()
            assert node.serving() == ("chat", 2, "m2")

            wait_until("it is kept", lambda: rollout(node)["kept"])
            node.put("/v1/instances/chat", node.document("m2", limit="64Mi"))
            wait_until("it has its request alone", lambda: node.instance("chat")["grantBytes"] == 64 * MIB)
            node.fill("other")
            old = node.pids()
            done = node.roll_out("m3", "--wait")
            assert done.returncode == 1 and "; on host-1 3" in done.stderr, done.stderr
            assert node.pids() == old and names(node) == ["chat", "filler", "other"]
            assert node.serving() == ("chat", 2, "m2")
            crowd.goes_on()
        is_whole(crowd, look)
