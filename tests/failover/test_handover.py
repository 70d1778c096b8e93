# SPDX-License-Identifier: Apache-2.0
"""Who answers changes, or with it what a request means: every answer is whole and of one model.

Method: a real node, engines on tiny models of random weights, and clients who ask one question after
the other in streams and compare the answers with those that nobody disturbed.
"""

import subprocess
import threading

import pytest

from conftest import BIN
from node_under_test import free_port, kill, wait_until
from serving_pair import ServingPair
from small_model import CHAT_ML, make_small_model
from streams import Connection, same_each_time
from test_poison import Victims, answer_of, check_unharmed, end
from tiny_pair import SPARE, TinyPair, completion

PATIENCE = 300  # seconds, with any machine
LONG = completion("Once upon a time", stream=True, max_tokens=1500)
# More than a slot of the journal has room for: it is not kept.
LARGE = completion("A large one", stream=True, max_tokens=1500, ignored="x" * 600_000)

MODELS = """\
kind: Model
metadata: {{name: one}}
spec: {{path: {one}, pin: true}}
---
kind: Model
metadata: {{name: two}}
spec: {{path: {two}, pin: true}}
---
"""
CHAT = """\
kind: Instance
metadata: {{name: chat}}
spec:
  model: {model}
  priorityClassName: online
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 128Mi}}}}
  restart: Always
  engine:
    command: [berth-engine, --served-model-name, {name}, --batch-invariant, --threads, "1",
              --max-context, "{context}"]
    listen: "127.0.0.1:{port}"
    journal: {journal}
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    return {"one": make_small_model(folder / "one", words=2048, chat_template=CHAT_ML),
            "two": make_small_model(folder / "two", seed=2, words=600, chat_template=CHAT_ML)}


class Changing(ServingPair):
    """A node with two models, one of which its service has."""

    def __init__(self, models, alone):
        self.port = free_port()
        self.serving = ("chat", "chat~next") if alone else ServingPair.serving
        policy = MODELS.format(**models) + self.document() + ("" if alone else SPARE)
        super().__init__(memory="2Gi", policy=policy)
        if alone:
            wait_until("it answers", lambda: self.instance("chat")["state"] == "Running", 120)
        else:
            self.wait_pair()

    def shown(self):
        names = {one["name"] for one in self.get("/v1/instances")["items"]}
        return [self.instance(name) for name in self.serving if name in names]

    def document(self, model="one", name="tiny", context=2048, journal="true"):
        return CHAT.format(model=model, name=name, context=context, journal=journal, port=self.port)

    def berth(self, *words):
        return subprocess.run([BIN / "berth", "--admin", self.root / "run/admin.sock", *words],
                              capture_output=True, stdin=subprocess.DEVNULL, text=True,
                              timeout=PATIENCE, check=False)

    def rollout(self, *words, **changed):
        path = self.root / "new.yaml"
        path.write_text(self.document(**changed))
        done = self.berth("rollout", "chat", "-f", path, "--wait", *words)
        assert done.returncode == 0, done.stdout + done.stderr

    def ask(self, call=LONG):
        return answer_of(self, call)


class Askers:
    """Each question on a connection of its own, as long as this lasts; all answers are kept."""

    def __init__(self, node, count=5, call=LONG):
        self.node, self.call = node, call
        self.answers, self.failed = {}, []
        self.done, self.stop = 0, threading.Event()
        self.lock = threading.Lock()
        self.threads = [threading.Thread(target=self.run) for _ in range(count)]

    def run(self):
        while not self.stop.is_set():
            try:
                with Connection(("127.0.0.1", self.node.port)) as client:
                    client.socket.settimeout(PATIENCE)
                    status, body = client.ask(*self.call)
            except (EOFError, OSError) as error:
                self.failed.append(repr(error))
                return
            with self.lock:
                answer = status, same_each_time(body)
                self.answers[answer] = self.answers.get(answer, 0) + 1
                self.done += 1

    def goes_on(self, answers=5):
        goal = self.done + answers
        wait_until("clients are answered", lambda: self.failed or self.done >= goal, PATIENCE)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        self.goes_on()
        return self

    def __exit__(self, *_):
        self.stop.set()
        for thread in self.threads:
            thread.join(PATIENCE)


def check(askers, *references):
    """All answers are whole and one of these, and each of these was given."""
    assert not askers.failed, askers.failed[0]
    assert {status for status, _ in references} <= {200, 404}
    strange = [answer for answer in askers.answers if answer not in references]
    assert not strange, f"{len(strange)} answers are of no model: {strange[0]}"
    assert len(set(references)) == len(askers.answers), "not all of them were given"


@pytest.mark.parametrize("alone, changed", [
    (True, {"model": "two"}),
    (False, {"model": "two"}),
    (False, {"model": "two", "name": "other"}),
    (True, {"context": 1600}),
], ids=["surge-model", "standby-model", "standby-name", "surge-context"])
def test_a_rollout_that_changes_what_a_request_means_cuts_and_mixes_none(models, alone, changed):
    with Changing(models, alone) as node:
        before = node.ask()
        with Askers(node) as askers:
            node.rollout(**changed)
            after = node.ask()
            askers.goes_on()
            node.rollout()
            askers.goes_on()
        references = {before, after, node.ask()}
        assert before[0] == 200 and len(references) == (1 if "context" in changed else 2)
        check(askers, *references)


def test_in_place_requests_are_finished_first_and_new_ones_wait(models):
    with Changing(models, alone=True) as node:
        before = node.ask()
        with Askers(node) as askers:
            node.rollout("--in-place", model="two")
            askers.goes_on()
        check(askers, before, node.ask())


def test_what_is_not_kept_is_finished_whenever_another_is_promoted(models):
    with Changing(models, alone=False) as node:
        kept, large = node.ask(), node.ask(LARGE)
        with Askers(node, 2) as askers, Askers(node, 2, LARGE) as large_ones:
            for _ in range(4):
                _, standby = node.wait_pair()
                done = node.berth("promote", standby["name"], "--wait")
                assert done.returncode == 0, done.stderr
                large_ones.goes_on()
                askers.goes_on()
        check(askers, kept)
        check(large_ones, large)


def test_a_journal_that_is_switched_off_and_on_leaves_nobody_waiting(models):
    with Changing(models, alone=False) as node:
        kept = node.ask()
        idle = Connection(("127.0.0.1", node.port))
        assert idle.ask("/v1/models")[0] == 200
        with Askers(node) as askers:
            for journal, word in (("false", "no journal any more"), ("true", "journal=true")):
                seen = (node.root / "berthd.log").read_text().count(word)
                node.put("/v1/instances/chat", node.document(journal=journal))
                wait_until(f"berthd says: {word}",
                           lambda: (node.root / "berthd.log").read_text().count(word) > seen,
                           PATIENCE)
                node.wait_pair()
                askers.goes_on(20)
        check(askers, kept)
        with pytest.raises((EOFError, ConnectionError)):
            idle.ask("/v1/models")
        active, _ = node.wait_pair()
        kill(active["pid"])  # it is kept again
        assert node.ask() == kept


def test_streams_go_on_after_keeper_and_daemon_have_died_together(tiny_model):
    call = completion("Good morning", stream=True, max_tokens=400)
    with TinyPair(tiny_model) as node:
        node.wait_steady()
        victims = [Victims(node.port, call, answer_of(node, call), anew=False) for _ in range(6)]

        def answered():
            before = [one.answered for one in victims]
            wait_until("all are answered", lambda: all(
                one.wrong or one.answered > count + 2 for one, count in zip(victims, before)), 120)
        for _ in range(2):
            answered()
            active, standby = node.wait_steady()
            keeper, _ = node.keeper()
            for pid in (keeper, node.daemon.pid):
                kill(pid)
            node.daemon.wait()
            node.start_daemon()
            wait_until("both are back", lambda: all(node.both()[0]), 60)
            kill(standby["pid"])  # its next one is given the same socket
            node.wait_steady()
            answered()
            kill(active["pid"])
            node.wait_pair()
            answered()
        end(victims)
        check_unharmed(victims)
        log = (node.root / "berthd.log").read_text()
        assert log.count("given back by") >= 2
        assert "ListenFailed" not in node.told() and "CrashLoop" not in log
