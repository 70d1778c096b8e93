# SPDX-License-Identifier: Apache-2.0
"""What an operator asks of a real node: hold, drain, cordon, plan, explain, the watch of events.
Instances are plain processes (process_tree.py) or sleepers, so no engine is needed."""

import contextlib
import json
import os
import pathlib
import pty
import select
import signal
import subprocess
import sys
import threading

import pytest
from node_under_test import BIN, Node, Refused, alive, call, kill, wait_until

HERE = pathlib.Path(__file__).parent
# Two devices: the node's file takes the text between the braces as it is.
TWO_DEVICES = "1Gi}, {name: host-1, memory: 1Gi"
HEAD = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: asking}
spec: {preemption: {preemptMode: [Pause], gracePeriod: 300ms, preemptExemptTime: 0s}}
"""


def job(name, command, memory="64Mi", of_class="batch"):
    return f"""\
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: {name}}}
spec:
  priorityClassName: {of_class}
  resources: {{requests: {{memory: {memory}}}}}
  engine: {{driver: process, command: {json.dumps([str(word) for word in command])}}}
"""


def sleeper(name, memory="64Mi", of_class="batch"):
    return job(name, ["/bin/sleep", "3600"], memory, of_class)


@contextlib.contextmanager
def node_with(*documents, memory="1Gi"):
    with Node(memory=memory, policy=HEAD + "".join(documents)) as node:
        yield node


def berth(node, *words, stdin=None, code=0):
    ran = subprocess.run([BIN / "berth", "--admin", node.root / "run/admin.sock", *words],
                         input=stdin, capture_output=True, text=True, timeout=120, check=False)
    assert ran.returncode == code, (words, ran.returncode, ran.stdout, ran.stderr)
    return ran.stdout + ran.stderr


def ended(node, operation):
    return node.get(f"/v1/operations/{operation['id']}?wait=60s")


def events(node, since=0):
    text = call(node.connection(), "GET", f"/v1/events?since={since}")
    lines = text.splitlines() if isinstance(text, str) else [json.dumps(text)]
    return [json.loads(line) for line in lines if line]


# Hold and drain


def test_a_held_instance_is_not_started_again_until_it_is_released(tmp_path):
    with node_with(sleeper("job")) as node:
        pid = node.wait_state("job", "Running")["pid"]
        first = node.post("/v1/instances/job:hold", {"reason": "a test", "requestId": "r1"})
        again = node.post("/v1/instances/job:hold", {"reason": "a test", "requestId": "r1"})
        assert first["id"] == again["id"] and first["state"] == "Succeeded", (first, again)
        assert first["kind"] == "Hold" and first["reason"] == "a test"
        assert node.instance("job")["onHold"] and node.instance("job")["state"] == "Running"
        kill(pid)
        wait_until("it waits for its release",
                   lambda: node.instance("job")["reason"] == "OnHold", 30)
        node.kill_daemon()
        node.start_daemon()
        assert node.instance("job")["onHold"], "a hold outlives berthd"
        said = berth(node, "explain", "job")
        assert "on hold" in said and "`berth release job`" in said, said
        assert "OnHold" in berth(node, "status")
        assert "started and resumed again" in berth(node, "release", "job")
        node.wait_state("job", "Running")


def test_what_is_not_there_is_refused_with_the_nearest_name(tmp_path):
    with node_with(sleeper("nightly")) as node:
        for path, near in (("instances/nightyl:hold", "nightly"), ("instances/nightyl:drain",
                           "nightly"), ("devices/host-1:cordon", "host-0"),
                           ("devices/host-1:drain", "host-0")):
            with pytest.raises(Refused) as refused:
                node.post(f"/v1/{path}")
            assert refused.value.status == 404 and near in refused.value.body["message"]
        with pytest.raises(Refused) as refused:
            node.post("/v1/instances/nightly:drain", {"timeout": "soon"})
        assert refused.value.status == 400
        with pytest.raises(Refused) as refused:
            node.post("/v1/instances/nightly:hold", {"hodl": True})
        assert "hodl" in refused.value.body["message"]


def test_a_drained_instance_is_told_ends_and_stays_away(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    with node_with(job("job", [sys.executable, HERE / "process_tree.py", folder, "alone"])) as node:
        node.wait_state("job", "Running")
        wait_until("it is up", lambda: (folder / "leader.pid").exists(), 60)
        dry = node.post("/v1/instances/job:drain", {"dryRun": True})
        assert dry["dryRun"] and "would finish" in dry["message"], dry
        assert node.instance("job")["state"] == "Running"
        said = berth(node, "drain", "job", "--timeout", "20s", "--wait")
        assert "Drain Succeeded" in said and "64.0 MiB freed" in said, said
        assert (folder / "term").exists(), "it was told by SIGTERM"
        shown = node.instance("job")
        assert shown["state"] == "Evicted" and shown["heldBy"] == "Operator", shown
        assert "berth resume job" in berth(node, "explain", "job")
        operation = node.get("/v1/operations?kind=Drain")["items"][-1]
        phases = {phase["name"]: phase["ms"] for phase in operation["phases"]}
        assert phases["stopping"] > 0 and phases["total"] >= phases["stopping"], operation


def test_a_drain_that_is_not_heeded_is_over_after_its_time(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    with node_with(job("job", [sys.executable, HERE / "process_tree.py", folder, "alone",
                               "ignore-term"])) as node:
        pid = node.wait_state("job", "Running")["pid"]
        wait_until("it is up", lambda: (folder / "leader.pid").exists(), 60)
        done = ended(node, node.post("/v1/instances/job:drain", {"timeout": "500ms"}))
        assert done["state"] == "Succeeded" and not alive(pid), done
        assert [e for e in events(node) if e["reason"] == "EvictMissed"]


# Devices


def test_a_cordoned_device_takes_nothing_new_also_after_a_restart(tmp_path):
    with node_with(sleeper("first")) as node:
        node.wait_state("first", "Running")
        said = berth(node, "cordon", "host-0", "--reason", "fan replacement")
        assert "takes nothing new" in said
        assert "cordoned: fan replacement" in berth(node, "get", "devices")
        assert "cordoned: fan replacement" in berth(node, "status")
        node.put("/v1/policy", sleeper("second"))
        shown = node.wait_state("second", "Pending")
        assert shown["reason"] == "DeviceUnavailable", shown
        assert "fan replacement" in berth(node, "explain", "second")
        node.kill_daemon()
        node.start_daemon()
        device = node.device()
        assert device["cordoned"] and device["cordonReason"] == "fan replacement", device
        assert node.instance("first")["state"] == "Running", "what runs there goes on"
        berth(node, "uncordon", "host-0")
        node.wait_state("second", "Running")
        assert not node.device()["cordoned"]


def test_a_drained_device_empties_and_its_instances_come_back_on_the_other(tmp_path):
    with node_with(sleeper("one"), sleeper("two", of_class="online"),
                   memory=TWO_DEVICES) as node:
        for name in ("one", "two"):
            node.wait_state(name, "Running")
        where = {name: node.instance(name)["device"] for name in ("one", "two")}
        target = where["two"]
        other = {"host-0": "host-1", "host-1": "host-0"}[target]
        dry = node.post(f"/v1/devices/{target}:drain", {"dryRun": True})
        assert "two (Running)" in dry["message"], dry
        said = berth(node, "drain", f"device/{target}", "--reason", "maintenance", "--wait")
        assert "DrainDevice Succeeded" in said and "is empty" in said, said
        device = node.get(f"/v1/devices/{target}")
        assert device["cordoned"] and device["usedBytes"] == 0, device
        for name in ("one", "two"):
            wait_until(f"{name} is back", lambda n=name: node.instance(n)["state"] == "Running" and
                       node.instance(n)["device"] == other, 30)


def test_a_drain_of_a_device_ends_also_when_berthd_is_killed_meanwhile(tmp_path):
    folder = tmp_path / "tree"
    folder.mkdir()
    with node_with(job("stubborn", [sys.executable, HERE / "process_tree.py", folder, "alone",
                                    "ignore-term"])) as node:
        pid = node.wait_state("stubborn", "Running")["pid"]
        wait_until("it is up", lambda: (folder / "leader.pid").exists(), 60)
        operation = node.post("/v1/devices/host-0:drain", {"timeout": "10m", "requestId": "d"})
        assert operation["state"] == "Running" and node.device()["drainedBy"] == operation["id"]
        said = berth(node, "drain", "device/host-0", "--wait", code=1)
        assert "OperationInProgress" in said and operation["id"] in said, said
        node.kill_daemon()
        node.start_daemon()
        again = node.post("/v1/devices/host-0:drain", {"timeout": "10m", "requestId": "d"})
        assert again["id"] == operation["id"], "the same request"
        with contextlib.suppress(ProcessLookupError):
            kill(pid)
        done = ended(node, operation)
        assert done["state"] == "Succeeded" and "host-0 is empty" in done["message"], done
        assert node.instance("stubborn")["reason"] == "DeviceUnavailable"
        assert node.device()["cordoned"] and node.device()["usedBytes"] == 0


# Plan and explain


def test_a_plan_says_who_gives_way_and_changes_nothing(tmp_path):
    with node_with(sleeper("nightly", "600Mi")) as node:
        node.wait_state("nightly", "Running")
        revision = node.get("/v1/node")["revision"]
        answer = call(node.connection(), "POST", "/v1/plan",
                      sleeper("chat", "800Mi", "online"), {"Content-Type": "application/yaml"})
        assert [i["verdict"] for i in answer["instances"]] == ["Runs"], answer
        assert [(s["action"], s["object"]) for s in answer["steps"]] == [
            ("Evict", "instance/nightly"), ("Start", "instance/chat")], answer
        assert answer["steps"][0]["bytes"] == 600 << 20
        said = berth(node, "plan", "-f", "-", stdin=sleeper("chat", "800Mi", "online"))
        assert "chat (class online, priority 1000) would run on host-0" in said, said
        assert "Evict    instance/nightly, 600.0 MiB" in said and "Nothing was changed." in said
        said = berth(node, "plan", "--class", "batch", "--memory", "800Mi")
        assert "would wait: InsufficientMemory" in said, said
        said = berth(node, "plan", "--class", "online", "--memory", "800Mi", "--device", "host-0")
        assert "would run on host-0" in said, said
        refused = berth(node, "plan", "--class", "onlin", "--memory", "1Gi", code=1)
        assert "known: online, batch" in refused or "known: batch, online" in refused, refused
        assert "chat" not in node.get("/v1/policy")
        assert node.instance("nightly")["state"] == "Running"
        assert not events(node, revision), "a question changes nothing, so nothing is recorded"
        assert not node.get("/v1/decisions?object=instance/chat")["items"]


def test_explain_tells_from_decisions_and_from_the_state(tmp_path):
    with node_with(sleeper("nightly", "600Mi")) as node:
        node.wait_state("nightly", "Running")
        node.put("/v1/policy", sleeper("chat", "800Mi", "online"))
        node.wait_state("chat", "Running")
        node.wait_state("nightly", "Evicted")
        items = node.get("/v1/decisions?object=instance/chat")["items"]
        assert {d["kind"] for d in items} >= {"Preempt", "Place"}, items
        about = node.get("/v1/decisions?about=instance/nightly&kind=Preempt")["items"]
        assert about and all(any(c["name"] == "instance/nightly" for c in d["candidates"])
                             for d in about if d["object"] != "instance/nightly"), about
        said = berth(node, "explain", "nightly")
        assert "nightly is Evicted" in said and "taken     instance/nightly" in said, said
        assert "Place for instance/chat" in berth(node, "explain", "chat")
        of_chat = next(d["id"] for d in about if d["object"] == "instance/chat")
        said = berth(node, "explain", of_chat)
        assert "for instance/chat" in said and "outcome" in said, said
        shown = json.loads(berth(node, "explain", "chat", "-o", "json"))
        assert shown["instance"]["name"] == "chat" and shown["decisions"]
        berth(node, "explain", "nobody", code=1)
        node.kill_daemon()
        node.start_daemon()
        assert "taken     instance/nightly" in berth(node, "explain", "nightly"), \
            "decisions outlive berthd"


# The watch


def test_a_watch_goes_on_over_a_restart_without_gap_or_repetition(tmp_path):
    with node_with(sleeper("job")) as node:
        node.wait_state("job", "Running")
        seen = []
        watch = subprocess.Popen(
            [BIN / "berth", "--admin", node.root / "run/admin.sock", "events", "--follow", "-o",
             "json"], stdout=subprocess.PIPE, text=True)
        reader = threading.Thread(
            target=lambda: [seen.append(json.loads(line)) for line in watch.stdout])
        reader.start()
        try:
            wait_until("it has begun", lambda: seen, 30)
            for number in range(3):
                node.kill_daemon()
                node.start_daemon()
                berth(node, "hold", "job", "--reason", f"round {number}")
                berth(node, "release", "job")
                wait_until("it goes on", lambda n=number: any(
                    f"round {n}" in e["message"] for e in seen), 60)
            last = node.get("/v1/node")["revision"]
            wait_until("it has all", lambda: seen[-1]["revision"] >= last, 30)
        finally:
            watch.terminate()
            watch.wait(10)
            reader.join(10)
        revisions = [event["revision"] for event in seen]
        assert revisions == sorted(set(revisions)), "none twice, in order"
        wanted = [event["revision"] for event in events(node) if event["revision"] <= last]
        assert set(wanted) <= set(revisions), "no gap"


def test_events_that_are_not_kept_are_gone(tmp_path):
    with node_with(sleeper("job")) as node:
        node.wait_state("job", "Running")
        last = node.get("/v1/node")["revision"]
        with pytest.raises(Refused) as refused:
            events(node, last + 1_000_000)
        assert refused.value.status == 410 and refused.value.body["code"] == "Gone", \
            refused.value.body
        assert events(node, last) == [] or events(node, last)[0]["revision"] > last
        with pytest.raises(Refused) as refused:
            events(node, "x")
        assert refused.value.status == 400


def test_operations_are_listed_by_kind_state_and_object(tmp_path):
    with node_with(sleeper("job"), sleeper("other")) as node:
        for name in ("job", "other"):
            node.wait_state(name, "Running")
        node.preempt("job", "Pause")
        node.post("/v1/instances/other:hold")
        listed = node.get("/v1/operations?object=instance/job")["items"]
        assert [o["kind"] for o in listed] == ["Preempt"], listed
        phases = {phase["name"]: phase["ms"] for phase in listed[0]["phases"]}
        assert "draining" in phases and "total" in phases and listed[0]["endedAt"], listed
        assert [o["object"] for o in node.get("/v1/operations?kind=Hold")["items"]] == \
            ["instance/other"]
        assert node.get("/v1/operations?state=Running")["items"] == []
        with pytest.raises(Refused) as refused:
            node.get("/v1/operations?colour=red")
        assert refused.value.status == 400 and "colour" in refused.value.body["message"]


# The live view


def test_top_restores_the_terminal_however_it_ends(tmp_path):
    with node_with(sleeper("job")) as node:
        node.wait_state("job", "Running")
        assert "job" in berth(node, "top", "--once")
        for how in ("q", signal.SIGINT, signal.SIGTERM):
            pid, terminal = pty.fork()
            if pid == 0:
                os.environ.update(TERM="xterm", NO_COLOR="1")
                os.execv(BIN / "berth", ["berth", "--admin", str(node.root / "run/admin.sock"),
                                         "top"])
            text = b""

            def read():
                nonlocal text
                while select.select([terminal], [], [], 0)[0]:
                    try:
                        piece = os.read(terminal, 65536)
                    except OSError:
                        return True
                    if not piece:
                        return True
                    text += piece
                return b"q quits" in text

            wait_until("it is drawn", read, 60)
            if how == "q":
                os.write(terminal, b"q")
            else:
                os.kill(pid, how)
            status = wait_until("it has ended", lambda p=pid: os.waitpid(p, os.WNOHANG)[0] and "x",
                                30)
            assert status
            read()
            os.close(terminal)
            assert text.startswith(b"\x1b[?1049h") and b"job" in text
            assert b"\x1b[?25h" in text and text.rstrip().endswith(b"\x1b[?1049l"), text[-100:]
            assert b"\x1b[32m" not in text, "NO_COLOR"


def test_a_request_id_is_known_however_much_was_done_since():
    with node_with(sleeper("one")) as node:
        node.wait_state("one", "Running")
        first = ended(node, node.post("/v1/instances/one:hold", {"requestId": "once"}))
        for n in range(210):  # more than a new berthd reads of what was
            node.post("/v1/instances/one:" + ("release", "hold")[n % 2], {"requestId": f"more {n}"})
        node.kill_daemon()
        node.start_daemon()
        assert first["id"] not in [one["id"] for one in node.get("/v1/operations")["items"]]
        again = node.post("/v1/instances/one:hold", {"requestId": "once"})
        assert (again["id"], again["state"]) == (first["id"], "Succeeded")
