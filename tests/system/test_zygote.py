# SPDX-License-Identifier: Apache-2.0
"""Engines that are forked from the zygote, on a real node: they answer like others, are in /proc what
an exec would have made of them, and neither they nor berthd need the zygote to live.

Method: real berth-engines that are evicted and started again; the zygote is killed, berthd is
killed, the engine's environment has what the zygote's libraries have read already.
"""

import json
import os
import pathlib
import re
import subprocess

import pytest
from node_under_test import MODEL, PROMPTS, Node, alive, kill, wait_until
from node_under_test import POLICY as ONLINE
from test_policy import berth

# A server that may be evicted, so that it is started again as often as one likes.
POLICY = ONLINE.replace("priorityClassName: online", "priorityClassName: batch").format(
    model=MODEL, extra="")


def zygote(node):
    return node.get("/v1/node")["zygote"]


def wait_zygote(node, other_than=0):
    return wait_until("the zygote is ready", lambda: (
        z := zygote(node))["state"] == "ready" and z["pid"] != other_than and z["pid"])


def start_again(node, name="chat"):
    """Evicts and resumes it; what it is then."""
    node.preempt(name, "Evict")
    node.resume(name)
    return node.wait_state(name, "Running")


def start_by_exec(node, name="chat"):
    """The same while there is no zygote: the one that dies has a successor only after a pause."""
    node.preempt(name, "Evict")
    pid = wait_zygote(node)
    kill(pid)
    wait_until("its end is seen", lambda: zygote(node)["pid"] != pid, every=0)
    node.resume(name)
    return node.wait_state(name, "Running")


def of_process(pid, file):
    """The words of a file in /proc, without what may follow the last one."""
    return pathlib.Path(f"/proc/{pid}/{file}").read_bytes().rstrip(b"\0").split(b"\0")


def facts(pid):
    """What a process is to others, but for its token, its numbers and its times."""
    fields = dict(line.split(":\t", 1)
                  for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines())
    stat = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return {
        "environ": sorted(word for word in of_process(pid, "environ")
                          if not word.startswith(b"BERTH_TOKEN=")),
        "cmdline": of_process(pid, "cmdline"),
        "cwd": os.readlink(f"/proc/{pid}/cwd"),
        "exe": os.readlink(f"/proc/{pid}/exe"),
        "log": [os.readlink(f"/proc/{pid}/fd/{fd}") for fd in (0, 1, 2)],
        "parent": stat[1],
        "leader": (int(stat[2]) == pid, int(stat[3]) == pid),
        "limits": pathlib.Path(f"/proc/{pid}/limits").read_text(),
        "oom": pathlib.Path(f"/proc/{pid}/oom_score_adj").read_text(),
        "priority": (stat[15], stat[16]),
        "status": {key: fields[key] for key in
                   ("Name", "Umask", "Uid", "Gid", "Groups", "SigBlk", "SigIgn", "SigCgt",
                    "CapEff", "NoNewPrivs", "Seccomp", "Cpus_allowed", "Threads")},
        "descriptors": sorted(re.sub(r"\d{2,}", "N", os.readlink(entry))
                              for entry in pathlib.Path(f"/proc/{pid}/fd").iterdir()),
    }


@pytest.fixture(name="node")
def running_node():
    with Node(policy=POLICY) as running:
        running.engine()
        yield running


def test_a_forked_engine_is_and_answers_what_an_executed_one_does(node):
    first = start_by_exec(node)
    assert first["startedBy"] == "exec" and "zygote" in first["execBecause"], first
    executed, answers = facts(first["pid"]), [node.engine().complete(p) for p in PROMPTS[:3]]
    wait_zygote(node)
    forked = start_again(node)
    assert forked["startedBy"] == "forked" and forked["execBecause"] == ""
    assert forked["pid"] != first["pid"]
    found = facts(forked["pid"])
    assert [node.engine().complete(p) for p in PROMPTS[:3]] == answers
    for name, value in executed.items():
        assert found[name] == value, name
    assert int(found["parent"]) == node.daemon.pid
    assert {"process", "attach", "ready"} <= set(forked["phases"])
    assert zygote(node)["forks"] >= 1


def test_nobody_needs_the_zygote_to_live(node):
    wait_zygote(node)
    forked = start_again(node)
    assert forked["startedBy"] == "forked"
    first = zygote(node)["pid"]
    kill(first)
    wait_until("its end is seen", lambda: zygote(node)["pid"] != first)
    assert node.instance("chat")["pid"] == forked["pid"] and node.engine().complete("Hi", 4)
    wait_zygote(node, other_than=first)
    executed = start_by_exec(node)
    assert executed["startedBy"] == "exec" and "SIGKILL" in executed["execBecause"]
    second = wait_zygote(node, other_than=first)
    assert zygote(node)["restarts"] == 2
    assert start_again(node)["startedBy"] == "forked"
    # How a forked engine ended is known: berthd is its parent.
    kill(node.instance("chat")["pid"])
    wait_until("its end is told", lambda: any(
        "SIGKILL" in line for line in berth(node, "events").splitlines() if "chat" in line))
    node.wait_state("chat", "Running")
    assert zygote(node)["pid"] == second


def test_forked_engines_outlive_berthd_whose_zygote_ends_with_it(node):
    first = wait_zygote(node)
    forked = start_again(node)
    node.kill_daemon()
    wait_until("the zygote ends", lambda: not alive(first))
    assert alive(forked["pid"])
    node.start_daemon()
    shown = node.wait_state("chat", "Running")
    assert shown["pid"] == forked["pid"] and shown["startedBy"] == ""
    assert node.engine().complete("The sea is", 4)
    assert wait_zygote(node) != first
    assert start_again(node)["startedBy"] == "forked"


def test_what_the_libraries_have_read_already_forces_exec():
    text = POLICY.replace(
        "engine: {driver: berth,", "engine: {driver: berth, environment: {OMP_NUM_THREADS: '1'},")
    with Node(policy=text) as node:
        node.engine()
        shown = node.instance("chat")
        assert shown["startedBy"] == "exec" and "OMP_NUM_THREADS" in shown["execBecause"]
        wait_zygote(node)
        again = start_again(node)
        assert again["startedBy"] == "exec" and "OMP_NUM_THREADS" in again["execBecause"]
        assert b"OMP_NUM_THREADS=1" in of_process(again["pid"], "environ")
        described = berth(node, "describe", "instance", "chat")
        assert "OMP_NUM_THREADS" in described


def test_without_a_zygote_everything_is_as_it_was():
    def start(command, **more):
        return subprocess.Popen([*command, "--zygote", "off"], **more)
    with Node(policy=POLICY, start=start) as node:
        node.engine()
        assert zygote(node)["state"] == "off"
        shown = start_again(node)
        assert shown["startedBy"] == "exec" and "--zygote off" in shown["execBecause"]
        assert not node.root.joinpath("state/berth-zygote.log").exists()


def test_a_start_that_berthd_did_not_live_to_write_down_is_found_by_its_token():
    """berthd stands still while the forked engine is let go, and is killed before its record."""
    with Node(policy=POLICY) as node:
        node.engine()
        wait_zygote(node)
        node.preempt("chat", "Evict")
        known = set(node.processes())
        node.post("/v1/instances/chat:resume")
        def born():
            new = [pid for pid in node.processes() if pid not in known]
            return new and new[0]
        engine = wait_until("the engine is there", born, every=0)
        node.kill_daemon() # before or after its records: neither may cost it or double it
        node.start_daemon()
        shown = node.wait_state("chat", "Running")
        engines = [pid for pid in node.processes()
                   if b"berth-engine" in of_process(pid, "cmdline")[0]
                   and b"--zygote" not in of_process(pid, "cmdline")]
        assert engines == [shown["pid"]], "there is one, and it is known"
        assert shown["pid"] == engine or not alive(engine)
        assert node.engine().complete("Hello", 4)


def test_the_bench_starts_a_server_both_ways_in_turn(node):
    figures = {line["figure"]: line for line in map(json.loads, berth(
        node, "bench", "start", "--instance", "chat", "--rounds", "2", "--json").splitlines())}
    assert set(figures) == {"evict", "exec-running", "exec-token", "forked-running",
                            "forked-token"}, figures
    for how in ("exec", "forked"):
        running, token = figures[f"{how}-running"], figures[f"{how}-token"]
        assert running["rounds"] == token["rounds"] == 2
        assert running["min"] < token["min"], "a token comes after Running"
        assert {"process", "ready", "tensors", "warmup"} <= set(running["phasesMs"])
    assert "notForked" not in figures["evict"]


def test_a_batch_that_is_evicted_and_forked_again_answers_every_line_once():
    with Node(batch_lines=40) as node:
        wait_zygote(node)
        for _ in range(3):
            wait_until("it has answered some", lambda: len(node.answers()) > 0)
            if len(node.answers()) >= 35:
                break
            node.wait_state("nightly", "Running")
            node.preempt("nightly", "Evict")
            node.resume("nightly")
            shown = node.wait_state("nightly", "Running", "Succeeded")
            assert shown["startedBy"] == "forked"
        node.wait_state("nightly", "Succeeded", timeout=300)
        assert len(node.answers()) == 40


def test_an_engine_that_ends_in_words_is_not_taken_for_one_that_crashed():
    with Node(policy=POLICY) as node:
        wait_zygote(node)
        document = node.root / "wrong.yaml"
        document.write_text("""\
kind: Instance
metadata: {name: wrong}
spec:
  model: smollm2
  priorityClassName: batch
  resources: {limits: {memory: 64Mi}}
  restart: Never
  engine: {command: [berth-engine, --no-such-flag]}
""")
        berth(node, "apply", "-f", document)
        message = node.wait_state("wrong", "Failed")["message"]
        assert "exit code" in message and "SIG" not in message, message
        started = re.search(r"started instance=wrong .* how=(\w+)",
                            (node.root / "berthd.log").read_text())
        assert started[1] == "forked"
