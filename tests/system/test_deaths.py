# SPDX-License-Identifier: Apache-2.0
"""SIGKILL of any one process at any time: the others do not notice, and nothing is lost."""

import json
import shutil
import signal
import subprocess
import threading
import time

import pytest
from node_under_test import BIN, MODEL, Node, alive, call, kill, wait_until


def bytes_read(node):
    return {w["id"]: w["bytesRead"] for w in node.weights()}


def events(node, reason):
    text = call(node.connection(), "GET", "/v1/events?since=0")
    lines = [json.loads(line) for line in text.splitlines()] if isinstance(text, str) else [text]
    return [e for e in lines if e["reason"] == reason]


class Asking:
    """Asks an engine again and again until it is told to stop; counts what failed."""

    def __init__(self, engine):
        self.engine, self.stop, self.asked, self.failed = engine, threading.Event(), 0, []
        self.thread = threading.Thread(target=self.run)

    def run(self):
        while not self.stop.is_set():
            try:
                self.engine.complete("The capital of France is", 8)
                self.asked += 1
            except Exception as error:
                self.failed.append(repr(error))

    def __enter__(self):
        self.thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        self.thread.join(120)


def test_daemon_killed_engines_go_on_and_a_new_daemon_takes_everything_back():
    with Node(batch_lines=2000) as node:
        engine = node.engine()
        node.wait_state("nightly", "Running")
        read_before, weights = bytes_read(node), node.weights()[0]["id"]
        pids = {name: node.instance(name)["pid"] for name in ("chat", "nightly")}
        grants = {name: node.instance(name)["grantBytes"] for name in pids}
        with Asking(engine) as asking:
            node.kill_daemon()
            asked = asking.asked
            wait_until("the engine answers without a daemon", lambda: asking.asked >= asked + 2, 30)
            node.start_daemon()
            for name in pids:
                wait_until(f"{name} is back",
                           lambda name=name: node.instance(name)["connected"], 30)
        assert not asking.failed
        for name, pid in pids.items():
            shown = node.instance(name)
            assert (shown["pid"], shown["state"]) == (pid, "Running")
            assert shown["grantBytes"] == grants[name] and shown["grantState"] == "Held"
        assert [w["id"] for w in node.weights()] == [weights]
        assert bytes_read(node) == read_before
        assert not events(node, "LoadStarted")[1:], "nothing was loaded a second time"


@pytest.mark.parametrize("mode,state", [("Pause", "Paused"), ("Offload", "Suspended"),
                                        ("Evict", "Evicted")])
def test_daemon_killed_while_batch_is_away_and_the_new_one_can_resume_it(mode, state):
    with Node(batch_lines=2000) as node:
        node.wait_state("nightly", "Running")
        node.preempt("nightly", mode)
        free = node.device()["freeBytes"]
        node.kill_daemon()
        node.start_daemon()
        shown = node.wait_state("nightly", state)
        if mode != "Evict":
            wait_until("it is connected", lambda: node.instance("nightly")["connected"], 30)
        wait_until("the ledger is as before", lambda: node.device()["freeBytes"] == free, 30)
        node.resume("nightly")
        before = len(node.answers())
        wait_until("batch goes on", lambda: len(node.answers()) > before, 120)
        assert shown["state"] == state


def test_daemon_killed_in_the_middle_of_an_operation_leaves_none_half_done():
    with Node(batch_lines=2000) as node:
        node.wait_state("nightly", "Running")
        for delay in (0.0, 0.005, 0.02, 0.05):
            operation = node.post("/v1/instances/nightly:preempt", {"mode": "Offload"})
            time.sleep(delay)
            node.kill_daemon()
            node.start_daemon()
            wait_until("the operation has ended",
                       lambda: node.get(f"/v1/operations/{operation['id']}")["state"] != "Running",
                       30)
            shown = node.wait_state("nightly", "Running", "Suspended", "Paused")
            if shown["state"] != "Running":
                wait_until("it is connected", lambda: node.instance("nightly")["connected"], 30)
                node.resume("nightly")
            node.wait_state("nightly", "Running")


def test_online_engine_killed_batch_does_not_notice_and_it_comes_back():
    with Node(batch_lines=2000) as node:
        engine = node.engine()
        node.wait_state("nightly", "Running")
        batch = node.instance("nightly")["pid"]
        first = node.instance("chat")["pid"]
        free = node.device()["freeBytes"]
        # It dies with a request in flight, so with the gate raised.
        asking = threading.Thread(target=lambda: _ignore(lambda: engine.complete("Hello", 200)))
        asking.start()
        time.sleep(0.3)
        kill(first)
        asking.join()
        tokens = node.instance("nightly")["counters"]["tokensDone"]
        wait_until("the dead raiser's gate has opened",
                   lambda: node.instance("nightly")["counters"]["tokensDone"] > tokens, 20)
        wait_until("another process serves", lambda: node.instance("chat")["pid"] not in (0, first)
                   and node.instance("chat")["state"] == "Running", 60)
        assert node.instance("nightly")["pid"] == batch
        assert "Paris" in node.engine().chat("What is the capital of France?")
        assert node.device()["freeBytes"] == free


def _ignore(action):
    try:
        action()
    except Exception:
        pass


def test_batch_engine_killed_again_and_again_answers_every_line_once():
    with Node(batch_lines=24, max_tokens=12) as node:
        killed = 0
        while node.instance("nightly")["state"] != "Succeeded" and killed < 3:
            shown = node.wait_state("nightly", "Running", "Succeeded")
            answered = len(node.answers())
            wait_until("some more lines are answered", lambda: len(node.answers()) > answered or
                       node.instance("nightly")["state"] == "Succeeded", 60)
            if shown["pid"] and alive(shown["pid"]):
                kill(shown["pid"])
                killed += 1
                wait_until("the death was seen",
                           lambda: node.instance("nightly")["pid"] != shown["pid"], 20)
        assert killed >= 1
        node.wait_state("nightly", "Succeeded", timeout=120)
        assert len(node.answers()) == 24


def test_keeper_killed_is_started_again_and_refilled():
    with Node() as node:
        engine = node.engine()
        keeper = node.get("/v1/node")["keeper"]
        kill(keeper["pid"])
        new = wait_until("another keeper", lambda: (
            k := node.get("/v1/node")["keeper"])["pid"] not in (0, keeper["pid"]) and k, 20)
        assert new["entries"] == keeper["entries"]
        assert "Paris" in engine.chat("What is the capital of France?")
        # What it holds is enough: a daemon that dies now finds everything.
        read = bytes_read(node)
        time.sleep(0.5)
        node.kill_daemon()
        node.start_daemon()
        assert bytes_read(node) == read


def test_keeper_and_daemon_killed_together_engines_go_on_and_newcomers_load_anew():
    with Node() as node:
        engine = node.engine()
        (before,) = node.weights()
        pid, free = node.instance("chat")["pid"], node.device()["freeBytes"]
        with Asking(engine) as asking:
            keeper = node.get("/v1/node")["keeper"]["pid"]
            node.daemon.kill()  # before it could see its keeper's end
            kill(keeper)
            node.kill_daemon()
            node.start_daemon()
            wait_until("chat is back", lambda: node.instance("chat")["connected"], 30)
            asked = asking.asked
            wait_until("it answers as before", lambda: asking.asked >= asked + 2, 30)
        assert not asking.failed
        shown = node.instance("chat")
        assert (shown["pid"], shown["state"]) == (pid, "Running")
        (lost,) = node.weights()
        assert lost["id"] == before["id"] + ".lost" and lost["leases"] == 1
        assert node.device()["freeBytes"] == free, "what it has mapped counts"
        assert events(node, "WeightsLost")
        # A newcomer: the engine itself, when it is started again.
        kill(pid)
        node.wait_state("chat", "Running")
        wait_until("what was lost is gone",
                   lambda: [w["id"] for w in node.weights()] == [before["id"]], 60)
        assert node.instance("chat")["pid"] != pid
        assert "Paris" in node.engine().chat("What is the capital of France?")
        assert node.device()["freeBytes"] == free


def test_loader_killed_fails_the_load_with_its_cause_and_leaves_nothing():
    with Node() as node:
        node.engine()
        free = node.device()["freeBytes"]
        chat = node.instance("chat")["pid"]
        copy = node.root / "copy"
        # Other times of change, so another set: an equal one would be found resident.
        shutil.copytree(MODEL, copy, copy_function=shutil.copy)
        operation = node.post("/v1/weights:load", {"path": str(copy)})
        kill(wait_until("a loader runs", node.loader, 20, 0))
        done = node.get(f"/v1/operations/{operation['id']}?wait=30s")
        assert done["state"] == "Failed" and "SIGKILL" in done["error"]["message"], done
        wait_until("nothing is left", lambda: node.device()["freeBytes"] == free, 20)
        assert node.instance("chat")["pid"] == chat
        assert all(w["state"] == "Resident" for w in node.weights())


def test_a_stopped_engine_is_ended_within_its_deadline_and_its_work_is_kept():
    with Node(batch_lines=60, max_tokens=12) as node:
        node.wait_state("nightly", "Running")
        wait_until("a line is answered", lambda: node.answers(), 60)
        pid = node.instance("nightly")["pid"]
        kill(pid, signal.SIGSTOP)
        done = node.finish(node.post("/v1/instances/nightly:preempt", {"mode": "Offload"}))
        assert done["reached"] == "Evict"
        assert not alive(pid) and node.instance("nightly")["state"] == "Evicted"
        node.resume("nightly")
        node.wait_state("nightly", "Succeeded", timeout=180)
        assert len(node.answers()) == 60


def test_a_second_daemon_names_the_first_ones_pid():
    with Node() as node:
        done = subprocess.run([BIN / "berthd", "--config", node.root / "node.yaml"],
                              capture_output=True, text=True, timeout=20)
        assert done.returncode == 1 and str(node.daemon.pid) in done.stderr
