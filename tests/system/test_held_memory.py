# SPDX-License-Identifier: Apache-2.0
"""What engines hold beside grants and leases is in the ledger once, for as long as it is there:
over lost connections, restarts of berthd, others' sets, loaders' ends and forked children."""

import hashlib
import json
import os
import signal

import pytest
from node_under_test import alive, kill, wait_until
from publishing import bare_node, publisher
from test_long_life import Peer, TurnedAway, encode

MIB = 1 << 20
PROCESS_MAX = 32


def free(node):
    return node.device()["freeBytes"]


class Engine(Peer):
    """Speaks by hand. All of them are this one process, whose end the node would see."""

    def ask(self, kind, **fields):
        """The answer to a request: its type, and the error's reason."""
        self.say(encode(kind, id=7, **fields))
        return self.answer()

    def answer(self):
        while True:
            reply, _ = self.receive()
            if reply is None:
                raise TurnedAway(reply)
            if reply["type"] in ("go", "failed"):
                return reply["type"], reply.get("error", {}).get("reason", "")

    def publish(self, name, mib=64, **more):
        document = json.dumps({"name": name}, separators=(",", ":"))
        return self.ask("publish", device="host-0", fingerprint_json=document,
                        fingerprint=fingerprint(name), segment_bytes=[mib * MIB], tensors=1, **more)

    def load(self, name, mib=64, overhead=0, **more):
        return self.ask("private_load", device="host-0", fingerprint=fingerprint(name),
                        segment_bytes=[mib * MIB] if mib else [], reason="Test",
                        device_overhead_bytes=overhead * MIB, **more)

    def release(self, name):
        self.say(encode("release", fingerprint=fingerprint(name)))


def fingerprint(name):
    return hashlib.sha256(json.dumps({"name": name}, separators=(",", ":")).encode()).hexdigest()


def counted(node, before, mib):
    wait_until(f"{mib} MiB are counted", lambda: free(node) == before - mib * MIB, 20)


@pytest.mark.parametrize("kind", ["publish", "load"])
def test_what_is_said_again_on_a_new_connection_counts_once(kind):
    with bare_node() as node:
        before = free(node)
        with Engine(node) as first:
            assert getattr(first, kind)("a") == ("go", "")
            counted(node, before, 64)
        wait_until("the node has seen its end", lambda: node.get("/v1/node")["sessions"] == 0, 20)
        counted(node, before, 64)
        with Engine(node) as again:
            assert getattr(again, kind)("a", held=True) == ("go", "")
            counted(node, before, 64)
            again.release("a")
            counted(node, before, 0)


def test_two_loads_of_the_same_weights_are_two_and_are_let_go_one_by_one():
    with bare_node() as node:
        before = free(node)
        with Engine(node) as first:
            assert first.load("a") == first.load("a") == ("go", "")
            counted(node, before, 128)
        wait_until("the node has seen its end", lambda: node.get("/v1/node")["sessions"] == 0, 20)
        with Engine(node) as again:
            assert again.load("a", held=True) == again.load("a", held=True) == ("go", "")
            counted(node, before, 128)
            again.release("a")
            counted(node, before, 64)
            again.release("a")
            counted(node, before, 0)


def test_one_who_looks_finds_no_publication_whose_connection_is_lost():
    with bare_node() as node:
        before = free(node)
        with Engine(node) as first:
            assert first.publish("a") == ("go", "")
            with Engine(node) as other:
                assert other.publish("a", find_only=True) == ("failed", "BeingPublished")
        with Engine(node) as other:
            wait_until("nobody publishes it",
                       lambda: other.publish("a", find_only=True) == ("failed", "NotResident"), 20)
            counted(node, before, 64)  # its process may still have the bytes
            other.release("a")
            counted(node, before, 0)


def test_held_bytes_count_though_another_publishes_that_set_by_now():
    with bare_node() as node:
        before = free(node)
        with Engine(node) as other, Engine(node) as back:
            assert other.publish("a") == ("go", "")
            assert back.publish("a", held=True) == ("failed", "BeingPublished")
            counted(node, before, 128)
            back.say(encode("sealed", id=8, fingerprint=fingerprint("a"),
                            segment_bytes=[64 * MIB]))
            assert back.answer() == ("failed", "NotPublishing")
            back.release("a")
            counted(node, before, 64)


def test_an_engine_that_comes_back_to_find_its_set_begun_by_another_is_counted_and_attaches():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", until="half", fill=4) as first:
            first.await_step("go")
            first.await_step("half")
            size = before - free(node)
            kill(first.process.pid, signal.SIGSTOP)
            node.kill_daemon()
            node.start_daemon()
            with publisher(node, "publish", until="half", fill=4) as second:
                second.await_step("go")
                second.await_step("half")
                kill(first.process.pid, signal.SIGCONT)
                wait_until("both are counted", lambda: free(node) == before - 2 * size, 20)
                first.go_on()
                second.go_on()
                assert second.await_step("sealed") == first.await_step("sealed")
                first.await_step("checked")
                second.await_step("checked")
                (one,) = node.weights()
                wait_until("one is counted", lambda: free(node) == before - one["bytes"], 20)
                assert one["leases"] == 2
                assert second.end() == 0 and first.end() == 0


def test_a_loaders_overhead_is_counted_until_its_engine_says_that_it_holds_the_weights():
    with bare_node() as node:
        before = free(node)
        with Engine(node) as engine:
            assert engine.load("a", overhead=256) == ("go", "")
            counted(node, before, 64 + 256)
            engine.say(encode("private_load", device="host-0", fingerprint=fingerprint("a"),
                              segment_bytes=[64 * MIB], held=True))
            counted(node, before, 64)
            engine.release("a")
            counted(node, before, 0)


def test_loads_and_publications_of_nothing_are_refused():
    with bare_node() as node, Engine(node) as engine:
        assert engine.load("a", mib=0) == ("failed", "Empty")
        assert engine.load("a", mib=0, overhead=1) == ("failed", "Empty")
        assert engine.publish("a", mib=0) == ("failed", "Empty")


def test_one_process_cannot_use_up_what_the_node_takes():
    with bare_node() as node:
        with Engine(node) as greedy, Engine(node) as more:
            for number in range(PROCESS_MAX):
                assert (greedy if number % 2 else more).publish(f"s{number}", 1) == ("go", "")
            greedy.say(encode("private_load", id=7, device="host-0", fingerprint=fingerprint("x"),
                              segment_bytes=[MIB]))
            reply, _ = greedy.receive()
            assert reply["error"]["reason"] == "TooManyPublications"
            assert f"has {PROCESS_MAX} " in reply["error"]["message"]
            with publisher(node, "publish") as other:
                other.await_step("go")
                other.await_step("sealed")
            greedy.release("s1")
            assert greedy.publish("again", 1) == ("go", "")


def child_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children", encoding="ascii") as file:
        return int(file.read().split()[0])


def test_a_forked_child_with_the_socket_does_not_keep_its_parents_publication():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", until="half", fork=1) as one:
            one.await_step("go")
            one.await_step("half")
            child = child_of(one.process.pid)
            one.kill()
            wait_until("the ledger is as before", lambda: free(node) == before, 20)
            wait_until("its session is closed",
                       lambda: node.get("/v1/node")["sessions"] == 0, 20)
            assert alive(child)
            os.kill(child, signal.SIGKILL)


def test_a_forked_child_with_the_socket_does_not_keep_its_parents_lease():
    with bare_node() as node:
        with publisher(node, "publish") as first:
            first.await_step("go")
            identity = first.await_step("sealed")
            first.await_step("checked")
            with publisher(node, "attach", id=identity, fork=1) as one:
                one.await_step("attached")
                one.await_step("checked")
                assert node.weights()[0]["leases"] == 2
                child = child_of(one.process.pid)
                one.kill()
                wait_until("its lease is over", lambda: node.weights()[0]["leases"] == 1, 20)
                assert alive(child)
                os.kill(child, signal.SIGKILL)
            assert first.end() == 0
