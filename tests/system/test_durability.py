# SPDX-License-Identifier: Apache-2.0
"""A node cannot lose its mind. berthd is killed at every fault point (base/fault_point.h) that a
scripted life visits: between any two of its writes, and between a write and the action that it
announces. Each next berthd must find the same weight sets and the same engines, and leave no
operation half done. And its database may be full, read-only, locked, broken or gone: engines run
on, reads go on, what cannot be recorded is refused in words, and all goes on once it can be."""

import http.client
import os
import pathlib
import shutil
import sqlite3
import subprocess
import tempfile
import time

import node_under_test
import pytest
from node_under_test import BIN, Node, Refused, alive, call, wait_until
from publishing import PUBLISHER, publisher
from test_long_life import Peer, close_all
from tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")

ENGINE = BIN.parent / "tests/steady_engine"
FAULTY = BIN / "berthd-faulty"
POLICY = """\
apiVersion: berth/v1
kind: Model
metadata: {{name: a}}
spec: {{path: {a}}}
---
kind: Model
metadata: {{name: b}}
spec: {{path: {b}}}
---
kind: Instance
metadata: {{name: steady}}
spec:
  model: a
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: 1Mi}}}}
  engine: {{driver: berth, command: [{engine}]}}
---
kind: Instance
metadata: {{name: sleeper}}
spec:
  model: a
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: 1Mi}}}}
  engine: {{driver: process, command: [sleep, "{seconds}"]}}
"""
SECONDS = 86399
# Kinds of points that the life must visit: for each action that reaches outside, before and after
# it; for each kind of batch, around its transaction. A new action belongs here.
ACTIONS = ["StartLoad", "GoLoad", "KeepWeights", "LoadFinished", "DropWeights", "StartProcess",
           "TerminateProcess", "OperationDone", "SendCommand Pause", "SendCommand Resume",
           "SendCommand Offload", "SendCommand Restore", "SendCommand Stop", "StartCopy", "TidyImages",
           "PublicationAnswered", "TellRules"]
BATCHES = ["Event", "Instance", "Operation", "Placement", "Policy", "ForgetPlacement",
           "Meta"]
MOMENTS = ["begin", "commit", "committed", "mirrored", "told"]
KEEPER = ["keeper.put", "keeper.has", "keeper.drop", "keeper.dropped"]


@pytest.fixture(name="root")
def memory_root(monkeypatch):
    """Nodes in memory: what is tested is the order of writes, not how fast a disk syncs."""
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else "/tmp"
    made = tempfile.mkdtemp
    monkeypatch.setattr(node_under_test.tempfile, "mkdtemp",
                        lambda prefix, dir: made(prefix=prefix, dir=where))
    folder = pathlib.Path(made(prefix="berth-durable-", dir=where))
    yield folder
    shutil.rmtree(folder, ignore_errors=True)


def policy_of(root):
    for seed, name in enumerate("ab", start=1):
        if not (root / name).exists():
            make_tiny_model(root / name, seed)
    return POLICY.format(a=root / "a", b=root / "b", engine=ENGINE, seconds=SECONDS)


class Died(Exception):
    """berthd has ended, as it was to."""


class Life:
    """A node that is asked for one thing after the other, whoever dies in between."""

    def __init__(self, root):
        self.killed_at = root / "killed"
        self.policy = policy_of(root)
        self.asked = []  # operations that were accepted and not yet seen to end
        self.deaths = 0
        self.node = None
        self.root = root
        self.publisher = None

    def start(self, command, **more):
        environment = {**os.environ, "BERTH_FAULT_ONCE": str(self.killed_at)}
        return subprocess.Popen([FAULTY, *command[1:]], env=environment, **more)

    def points(self):
        return self.killed_at.read_text().splitlines() if self.killed_at.exists() else []

    def until(self, what, condition, timeout=60.0):
        end = time.monotonic() + timeout
        while True:
            try:
                if value := condition():
                    return value
            except (OSError, http.client.HTTPException):
                pass
            if self.node.daemon.poll() is not None:
                raise Died
            assert time.monotonic() < end, f"not within {timeout:.0f} s: {what}"
            time.sleep(0.005)

    def ready(self):
        try:
            return self.node.get("/readyz") is not None
        except Refused:
            return False

    def restart(self):
        """Until a berthd lives long enough to be ready: it may be killed on its way there."""
        while True:
            try:
                self.node.daemon.wait()
                assert self.node.daemon.returncode == -9, "berthd ended by itself"
                self.deaths += 1
                self.node.log.close()
                self.node.start_daemon(wait=False)
                self.until("berthd is ready", self.ready)
                return
            except Died:
                continue

    def ask(self, target, **body):
        """Accepted, or refused for now."""
        try:
            self.asked.append(self.node.post(target, body)["id"])
            return True
        except Refused as refused:
            assert refused.body["message"], refused
            return False

    def instance(self, name):
        return self.node.instance(name)

    def bring(self, name, *wanted):
        """To that state, from whatever it is in."""
        def there():
            shown = self.instance(name)
            if shown["state"] in wanted:
                return shown
            assert shown["state"] != "Failed", shown
            if shown["state"] in ("Paused", "Suspended", "Evicted"):
                self.ask(f"/v1/instances/{name}:resume")
            elif shown["state"] == "Running":
                mode = {"Paused": "Pause", "Suspended": "Offload", "Evicted": "Evict"}[wanted[0]]
                self.ask(f"/v1/instances/{name}:preempt", mode=mode)
            return None
        return self.until(f"{name} is {wanted[0]}", there)

    def sets(self):
        return {w["id"]: (w["model"], w.get("bytesRead")) for w in self.node.weights()
                if w["state"] == "Resident" and w["device"] == "host-0"}

    def set_of(self, model):
        return next((i for i, (m, _) in self.sets().items() if m == model), None)

    def load(self, model):
        self.until(f"{model} is resident", lambda: self.set_of(model) or
                   (self.ask("/v1/weights:load", model=model) and False))

    def evict(self, model):
        self.until(f"{model} is gone", lambda: not any(
            w["model"] == model for w in self.node.weights()) or self.drop(model))

    def drop(self, model):
        """With its copies; not done yet."""
        for one in {w["id"] for w in self.node.weights() if w["model"] == model}:
            self.ask(f"/v1/weights/{one}:evict", drop=True)
        return False

    def copied(self, model):
        def done():
            return any({"host-tier", "image"} <= set(w["tiers"]) for w in self.node.weights()
                       if w["model"] == model and w["device"] == "host-0")
        self.until(f"{model} is copied to all tiers", done)

    def publish(self, number):
        if self.publisher is None or self.publisher.process.poll() is not None:
            self.publisher = publisher(self.node, "publish", fill=number % 250)
        self.until("a set is published and held", lambda: any(
            w.get("published") and w["leases"] == 1 for w in self.node.weights()))

    def withdraw(self):
        if self.publisher.process.poll() is None:
            self.publisher.end()
        self.until("what was published is gone", lambda: not any(
            w.get("published") for w in self.node.weights()) or self.drop("tiny"))

    def pin(self, model, pinned):
        def done():
            shown = [w for w in self.node.weights()
                     if w["model"] == model and w["device"] == "host-0"]
            if shown and shown[0]["pinned"] == pinned:
                return True
            self.ask(f"/v1/weights/{self.set_of(model)}:{'pin' if pinned else 'unpin'}")
            return False
        self.until(f"{model} is {'pinned' if pinned else 'unpinned'}", done)

    def apply(self, grace):
        text = ("apiVersion: berth/v1\nkind: ColocationPolicy\nmetadata: {name: p}\n"
                f"spec: {{preemption: {{gracePeriod: {grace}ms}}, memory: {{hostTier: 64Mi, "
                f"imageDir: {self.root / f'images-{grace}'}, imageLimit: 64Mi}}}}\n")
        self.until("the policy holds", lambda: f"gracePeriod: {grace}ms" in
                   self.node.get("/v1/policy") or
                   (self.node.put("/v1/policy?file=p", text) and False))

    # What must hold after each death.

    def engines(self):
        """Pids of the engines that live, by instance."""
        found = {"steady": [], "sleeper": []}
        for pid in self.node.processes():
            words = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
            if words[0] == str(ENGINE).encode():
                found["steady"].append(pid)
            elif words[:2] == [b"sleep", str(SECONDS).encode()]:
                found["sleeper"].append(pid)
        return found

    def check(self):
        def settled():
            for name, pids in self.engines().items():
                shown = self.instance(name)
                if pids != ([shown["pid"]] if shown["pid"] else []):
                    return False
            return True
        self.until(f"each engine is known, and there is one of each: {self.engines()}", settled)
        for id_ in list(self.asked):
            ended = self.until(f"operation {id_} has ended", lambda id_=id_: (
                o := self.node.get(f"/v1/operations/{id_}"))["state"] != "Running" and o)
            assert ended["state"] == "Succeeded" or ended["error"]["message"], ended
            self.asked.remove(id_)
        for check in self.until("doctor", lambda: self.node.get("/v1/doctor")["checks"]):
            assert check["ok"] or check["name"] not in ("ledger", "database", "keeper"), check

    def look(self):
        """Copies are made on their own, so it may die then too."""
        while True:
            try:
                return self.until("a look", lambda: (self.sets(), self.engines()))
            except Died:
                self.restart()

    def step(self, name, action, *arguments, moves=()):
        """Does it, through as many deaths as there are; what it does not move stays."""
        before = None
        while True:
            try:
                if before is None:
                    before = self.until("a look", lambda: (self.sets(), self.engines()))
                action(*arguments)
                self.check()
                break
            except Died:
                self.restart()
        sets, engines = self.look()
        if "sets" not in moves:
            assert sets == before[0], f"{name}: weight sets changed"
        for instance, pids in before[1].items():
            if instance not in moves:
                assert engines[instance] == pids, f"{name}: {instance} was lost"

    def round(self, number):
        self.step("start", self.bring, "steady", "Running", moves=("sets", "steady", "sleeper"))
        self.step("start", self.bring, "sleeper", "Running", moves=("sleeper",))
        self.step("pause", self.bring, "steady", "Paused")
        self.step("go on", self.bring, "steady", "Running")
        self.step("offload", self.bring, "steady", "Suspended")
        self.step("restore", self.bring, "steady", "Running")
        self.step("apply", self.apply, 100 + number)
        shutil.rmtree(self.root / "b")
        make_tiny_model(self.root / "b", 10 + number)  # another set, which nobody knows yet
        self.step("load", self.load, "b", moves=("sets",))
        self.step("copy", self.copied, "b")
        self.step("pin", self.pin, "b", True)
        self.step("unpin", self.pin, "b", False)
        self.step("evict a set", self.evict, "b", moves=("sets",))
        self.step("publish", self.publish, number, moves=("sets",))
        self.step("withdraw", self.withdraw, moves=("sets",))
        self.step("evict", self.bring, "steady", "Evicted", moves=("steady",))
        self.step("evict", self.bring, "sleeper", "Evicted", moves=("sleeper",))
        self.step("empty", self.evict, "a", moves=("sets",))


def needs(*programs):
    return pytest.mark.skipif(not all(p.exists() for p in programs),
                              reason="the tests' own berthd and engine are not built")


@needs(FAULTY, ENGINE, PUBLISHER)
def test_berthd_killed_between_any_two_of_its_writes_and_actions_loses_nothing(root):
    life = Life(root)
    life.killed_at.write_text("off\n")  # the first start is a whole one
    with Node(memory="1Gi", policy=life.policy, start=life.start) as node:
        life.node = node
        life.until("the first engines run", lambda: all(
            life.instance(name)["state"] == "Running" for name in ("steady", "sleeper")))
        node.kill_daemon()
        life.killed_at.write_text("")
        life.restart()
        number, deaths = 0, -1
        while deaths != life.deaths:  # until a whole round finds no point where it was not killed
            deaths, number = life.deaths, number + 1
            life.round(number)
            assert number < 20
    points = life.points()
    assert len(points) == len(set(points)) == life.deaths - 1
    missing = [f"{moment} {action}" for action in ACTIONS for moment in ("before", "after")
               if f"{moment} {action}" not in points]
    missing += [f"store.{moment} ...{kind}..." for kind in BATCHES for moment in MOMENTS
                if not any(p.startswith(f"store.{moment} ") and kind in p.split() for p in points)]
    missing += [point for point in KEEPER + ["loop.decided"] if point not in points]
    assert not missing, f"points that were not visited: {missing}; visited: {points}"
    print(f"killed at {len(points)} points in {number} rounds")


# The database in trouble

def run(*command):
    return subprocess.run(command, capture_output=True, text=True, check=False)


class Trouble:
    """A node with one engine whose state folder is a small file system of its own."""

    def __init__(self, root, size="3m"):
        self.root, self.size, self.mounted = root, size, None
        self.node = Node(memory="1Gi", policy=policy_of(root), start=self.start)

    def start(self, command, **more):
        state = pathlib.Path(command[2]).parent / "state"
        if self.mounted is None:
            state.mkdir(parents=True, exist_ok=True)
            done = run("mount", "-t", "tmpfs", "-o", f"size={self.size}", "berth-test", str(state))
            if done.returncode != 0:
                pytest.skip(f"a small file system needs the right to mount: {done.stderr}")
            self.mounted = state
        return subprocess.Popen(command, **more)

    def __enter__(self):
        self.node.wait_state("steady", "Running")
        self.node.wait_state("sleeper", "Running")
        self.pids = {n: self.node.instance(n)["pid"] for n in ("steady", "sleeper")}
        self.set = self.node.weights()[0]["id"]
        return self

    def __exit__(self, *_):
        if self.mounted:
            run("mount", "-o", "remount,rw", str(self.mounted))
        if self.node.daemon.poll() is None:
            self.node.daemon.terminate()
            self.node.daemon.wait(20)
        for pid in self.node.processes():
            node_under_test.kill(pid)
        wait_until("all are gone", lambda: not self.node.processes(), 20)
        if self.mounted:
            run("umount", "-l", str(self.mounted))
        self.node.close()

    @property
    def database(self):
        return self.node.root / "state/berth.db"

    def readyz(self):
        try:
            return self.node.get("/readyz")
        except Refused as refused:
            return refused.body

    def provoke(self):
        """Something to write that is not refused before it is tried."""
        try:
            self.node.post("/v1/instances/steady:preempt", {"mode": "Pause"})
        except Refused:
            pass

    def in_trouble(self, reason):
        node = self.node
        wait_until(f"/readyz says {reason}", lambda: reason in str(self.readyz()), 20)
        shown = node.get("/v1/node")["database"]
        assert (shown["writable"], shown["reason"]) == (False, reason) and shown["message"], shown
        said = [c for c in node.get("/v1/doctor")["checks"] if c["name"] == "database"][0]
        assert not said["ok"] and str(self.database) in said["message"], said
        assert reason in call(node.connection(), "GET", "/v1/events?since=0")
        status = run(BIN / "berth", "--admin", node.root / "run/admin.sock", "status")
        assert reason in status.stdout, status
        with pytest.raises(Refused) as refused:
            node.post("/v1/instances/sleeper:preempt", {"mode": "Evict"})
        assert refused.value.body["reason"] == reason and refused.value.status == 503
        with pytest.raises(Refused) as refused:
            node.put("/v1/policy", "apiVersion: berth/v1\nkind: Model\n"
                     f"metadata: {{name: c}}\nspec: {{path: {self.root}/a}}\n")
        assert refused.value.body["reason"] == reason
        # Engines run, reads and attaches to what is there go on.
        assert node.instance("steady")["pid"] == self.pids["steady"]
        assert all(alive(pid) for pid in self.pids.values())
        with Peer(node) as peer:
            reply, fds = peer.attach(model="a")
            close_all(fds)
            assert reply["weight_set"] == self.set

    def well_again(self):
        node = self.node
        wait_until("it goes on by itself", lambda: self.readyz() == "ok\n", 30)
        for name, pid in self.pids.items():
            assert node.instance(name)["pid"] == pid and alive(pid)
        wait_until("its engine is back", lambda: node.instance("steady")["connected"], 20)
        wait_until("what waited is done", lambda: not [
            o for o in node.get("/v1/operations")["items"] if o["state"] == "Running"], 20)
        shown = node.instance("steady")
        assert shown["state"] in ("Running", "Paused"), shown
        if shown["state"] == "Paused":
            node.resume("steady")
        node.preempt("steady", "Offload")
        node.resume("steady")
        node.kill_daemon()
        node.start_daemon()
        for name, pid in self.pids.items():
            assert node.instance(name)["pid"] == pid and alive(pid)
        assert [w["id"] for w in node.weights()] == [self.set]


def fill(folder):
    with open(folder / "ballast", "wb", buffering=0) as file:
        try:
            while True:
                file.write(b"b" * 4096)
        except OSError:
            pass


@needs(ENGINE)
def test_a_full_disk_stops_decisions_in_words_and_nothing_else(root):
    with Trouble(root) as trouble:
        fill(trouble.mounted)
        for _ in range(40):
            trouble.provoke()
            if "DiskFull" in str(trouble.readyz()):
                break
            time.sleep(0.05)
        trouble.in_trouble("DiskFull")
        # A berthd that starts now finds everything, and waits as well.
        trouble.node.kill_daemon()
        trouble.node.start_daemon(wait=False)
        wait_until("it answers", lambda: _answers(trouble.node), 20)
        assert trouble.node.instance("steady")["pid"] == trouble.pids["steady"]
        (trouble.mounted / "ballast").unlink()
        trouble.well_again()


def _answers(node):
    try:
        return node.get("/v1/instances/steady")["connected"] is not None
    except (OSError, http.client.HTTPException, Refused):
        return False


@needs(ENGINE)
def test_a_read_only_disk_stops_decisions_in_words_and_nothing_else(root):
    with Trouble(root) as trouble:
        done = run("mount", "-o", "remount,ro", str(trouble.mounted))
        if done.returncode != 0:  # open files keep it writable: a bind mount does not ask
            assert run("mount", "--bind", str(trouble.mounted), str(trouble.mounted)).returncode == 0
            assert run("mount", "-o", "remount,bind,ro", str(trouble.mounted)).returncode == 0
            trouble.node.kill_daemon()
            trouble.node.start_daemon(wait=False)
            wait_until("it answers", lambda: _answers(trouble.node), 20)
        trouble.provoke()
        trouble.in_trouble("StoreReadOnly")
        if done.returncode == 0:
            run("mount", "-o", "remount,rw", str(trouble.mounted))
        else:
            run("umount", "-l", str(trouble.mounted))
        trouble.well_again()


@needs(ENGINE)
def test_a_database_that_another_process_locks_stops_decisions_in_words_and_nothing_else(root):
    with Trouble(root) as trouble:
        other = sqlite3.connect(trouble.database, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        trouble.provoke()
        trouble.in_trouble("StoreLocked")
        other.execute("ROLLBACK")
        other.close()
        trouble.well_again()


@needs(ENGINE)
@pytest.mark.parametrize("stopped", [False, True], ids=["while it runs", "while it is away"])
@pytest.mark.parametrize("harm", ["removed", "corrupt"])
def test_a_database_that_is_lost_costs_history_and_no_engine(root, stopped, harm):
    with Trouble(root) as trouble:
        node = trouble.node
        node.preempt("steady", "Pause")
        if stopped:
            node.kill_daemon()
        if harm == "removed":
            for file in trouble.mounted.glob("berth.db*"):
                file.unlink()
        else:
            for file in trouble.mounted.glob("berth.db*"):
                if not file.name.endswith("-shm"):
                    file.write_bytes(b"x" * 50_000)
        if stopped:
            node.start_daemon()
        else:
            node.preempt("steady", "Offload")
            if harm == "corrupt":  # what berthd has in its memory may hide it until then
                node.kill_daemon()
                node.start_daemon()
                wait_until("it is connected", lambda: node.instance("steady")["connected"], 20)
        wait_until("it is said", lambda: "DatabaseReplaced" in call(
            node.connection(), "GET", "/v1/events?since=0"), 10)
        if stopped:
            assert node.wait_state("steady", "Paused")["pid"] == trouble.pids["steady"]
            wait_until("it is connected", lambda: node.instance("steady")["connected"], 20)
        node.resume("steady")
        trouble.well_again()


@needs(ENGINE)
def test_a_database_of_a_newer_berthd_is_refused_with_both_versions_and_not_touched(root):
    with Trouble(root) as trouble:
        node = trouble.node
        node.daemon.terminate()
        node.daemon.wait(20)
        with sqlite3.connect(trouble.database) as newer:
            known = newer.execute("PRAGMA user_version").fetchone()[0]
            newer.execute("PRAGMA user_version = 999")
        newer.close()
        before = trouble.database.read_bytes()
        done = subprocess.run([BIN / "berthd", "--config", node.root / "node.yaml"],
                              capture_output=True, text=True, timeout=20, check=False)
        assert done.returncode == 1, done
        assert "version 999" in done.stderr and f"up to {known}" in done.stderr
        assert "stateDir" in done.stderr
        assert trouble.database.read_bytes() == before
        assert all(alive(pid) for pid in trouble.pids.values())
        with sqlite3.connect(trouble.database) as newer:
            newer.execute(f"PRAGMA user_version = {known}")
        newer.close()
        node.start_daemon()
        trouble.well_again()
