# SPDX-License-Identifier: Apache-2.0
"""The ladder with real processes: what is stopped stands still, what is ended is gone with all that
it had started, and what cannot be ended is said. Drivers are plain processes (process_tree.py)."""

import contextlib
import ctypes
import json
import os
import pathlib
import signal
import subprocess
import sys
import time

import pytest
from node_under_test import Node, Refused, alive, call, kill, wait_until

HERE = pathlib.Path(__file__).parent
MEMBERS = ("leader", "group", "session", "nested", "orphan")
POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: ladder}}
spec: {{preemption: {{preemptMode: [Pause], reclaimDeadline: 5s, gracePeriod: {grace}}}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: job}}
spec:
  priorityClassName: batch
  resources: {{requests: {{memory: 64Mi}}}}
  engine:
    driver: process
    command: [{python}, {program}, {folder}{words}]
    environment: {environment}
"""


@contextlib.contextmanager
def tree(tmp_path, *words, grace="2s", environment=None, path=None):
    """A node with one plain process; yields it and the folder that the process writes to."""
    folder = tmp_path / "tree"
    folder.mkdir()
    policy = POLICY.format(grace=grace, python=sys.executable, program=HERE / "process_tree.py",
                           folder=folder, words="".join(f", {word}" for word in words),
                           environment=json.dumps(environment or {}))

    def start(*args, **more):
        return subprocess.Popen(*args, env={**os.environ, "PATH": path or os.environ["PATH"]},
                                **more)
    with Node(memory="1Gi", policy=policy, start=start) as node:
        node.wait_state("job", "Running")
        names = ("leader",) if "alone" in words else MEMBERS
        wait_until("all of the tree are there", lambda: len(pids(folder, names)) == len(names), 60)
        try:
            yield node, folder
        finally:
            for pid in pids(folder, names).values():
                if alive(pid):
                    kill(pid)


def pids(folder, names=MEMBERS):
    found = {}
    for name in names:
        with contextlib.suppress(FileNotFoundError, ValueError):
            found[name] = int((folder / f"{name}.pid").read_text())
    return found


def ticks(folder):
    return {path.stem: path.stat().st_size for path in folder.glob("*.ticks")}


def events(node, reason):
    text = call(node.connection(), "GET", "/v1/events?since=0")
    lines = text.splitlines() if isinstance(text, str) else [json.dumps(text)]
    return [e for e in map(json.loads, filter(None, lines)) if e["reason"] == reason]


def asked(node, mode, **more):
    """The operation as it ended, whatever came of it."""
    operation = node.post("/v1/instances/job:preempt", {"mode": mode, **more})
    return node.get(f"/v1/operations/{operation['id']}?wait=60s")


def grows(folder, before):
    now = ticks(folder)
    return all(now[name] > size for name, size in before.items())


def test_pause_stops_every_member_and_resume_lets_each_go_on(tmp_path):
    with tree(tmp_path) as (node, folder):
        node.preempt("job", "Pause")
        assert node.instance("job")["state"] == "Paused"
        before = ticks(folder)
        assert len(before) == len(MEMBERS)
        time.sleep(0.3)
        assert ticks(folder) == before, "all of it stood still when Paused was said"
        node.resume("job")
        assert node.instance("job")["state"] == "Running"
        wait_until("each goes on", lambda: grows(folder, before), 30)


def test_evict_tells_the_program_first_and_ends_all_of_it(tmp_path):
    with tree(tmp_path) as (node, folder):
        found = pids(folder)
        free = node.device()["freeBytes"]
        done = asked(node, "Evict")
        assert done["state"] == "Succeeded", done
        assert (folder / "term").exists(), "it was told by SIGTERM"
        assert not [name for name, pid in found.items() if alive(pid)], "nobody is left"
        assert node.device()["freeBytes"] == free + (64 << 20)


def test_what_ignores_sigterm_is_killed_after_its_grace(tmp_path):
    with tree(tmp_path, "ignore-term", grace="300ms") as (node, folder):
        found = pids(folder)
        done = asked(node, "Evict")
        assert done["state"] == "Succeeded" and events(node, "EvictMissed"), done
        took = {phase["name"]: phase["ms"] for phase in done["phases"]}
        assert took["total"] >= 300, "not before its grace was over"
        assert not [name for name, pid in found.items() if alive(pid)]


def test_what_stands_still_can_act_on_sigterm(tmp_path):
    with tree(tmp_path, grace="5s") as (node, folder):
        node.preempt("job", "Pause")
        assert asked(node, "Evict")["state"] == "Succeeded"
        assert (folder / "term").exists()
        assert not events(node, "EvictMissed")


def test_offload_and_shrink_of_a_plain_process_are_refused_in_words(tmp_path):
    with tree(tmp_path, "alone") as (node, _):
        for mode in ("Offload", "Shrink"):
            with contextlib.suppress(Refused):
                done = asked(node, mode)
                assert done["state"] == "Failed" and "use Pause or Evict" in done["message"], done
        assert node.instance("job")["state"] == "Running"


def test_a_leader_that_dies_takes_all_that_it_had_started_with_it(tmp_path):
    with tree(tmp_path) as (node, folder):
        found = pids(folder)
        kill(found["leader"])
        wait_until("another is started", lambda: node.instance("job")["pid"]
                   not in (0, found["leader"]), 60)
        assert not [name for name, pid in found.items() if alive(pid)], \
            "the last one was gone before the next was started"


def test_what_a_leader_left_while_berthd_was_away_is_ended_by_the_next_one(tmp_path):
    with tree(tmp_path) as (node, folder):
        found = pids(folder)
        node.kill_daemon()
        kill(found["leader"])
        wait_until("it is gone", lambda: not alive(found["leader"]), 20)
        assert alive(found["orphan"]) and alive(found["session"])
        node.start_daemon()
        wait_until("another is started", lambda: node.instance("job")["pid"]
                   not in (0, found["leader"]), 60)
        assert not [name for name, pid in found.items() if alive(pid)]


def test_a_paused_process_is_still_paused_for_the_next_berthd(tmp_path):
    with tree(tmp_path) as (node, folder):
        node.preempt("job", "Pause")
        node.kill_daemon()
        node.start_daemon()
        assert node.instance("job")["state"] == "Paused"
        before = ticks(folder)
        time.sleep(0.2)
        assert ticks(folder) == before
        node.resume("job")
        wait_until("each goes on", lambda: grows(folder, before), 30)


# A process that SIGKILL does not end. A debugger that asks to see its tracees' exit holds them there
# until it lets them go, which is what a driver that waits for a hung device does.

PTRACE_SEIZE, PTRACE_DETACH, PTRACE_O_TRACEEXIT = 0x4206, 17, 0x40


def ptrace(request, pid, data):
    libc = ctypes.CDLL(None, use_errno=True)
    libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
    if libc.ptrace(request, pid, None, data) != 0:
        pytest.skip(f"ptrace: {os.strerror(ctypes.get_errno())}")


@contextlib.contextmanager
def held_at_its_exit(pid):
    """Yields what lets it go."""
    ptrace(PTRACE_SEIZE, pid, PTRACE_O_TRACEEXIT)
    state = {"held": True}

    def let_go():
        if state["held"]:
            state["held"] = False
            os.waitpid(pid, 0x40000000)  # __WALL: it stands at its exit
            ptrace(PTRACE_DETACH, pid, 0)
    try:
        yield let_go
    finally:
        if state["held"]:
            with contextlib.suppress(ProcessLookupError):
                kill(pid)
            let_go()


def test_a_process_that_sigkill_does_not_end_is_said_and_waited_for(tmp_path):
    with tree(tmp_path, "alone", "ignore-term", grace="200ms") as (node, folder):
        pid = pids(folder, ("leader",))["leader"]
        free = node.device()["freeBytes"]
        with held_at_its_exit(pid) as let_go:
            done = asked(node, "Evict")
            assert done["state"] == "Failed" and done["error"]["reason"] == "ProcessWontEnd", done
            shown = node.instance("job")
            assert shown["state"] == "Unkillable" and shown["pid"] == pid, shown
            wait_until("the operator is told what it waits in",
                       lambda: "tracing stop" in node.instance("job")["message"], 20)
            assert f"process {pid}" in shown["message"]
            cordoned = events(node, "Cordoned")
            assert [e["object"] for e in cordoned] == ["device/host-0"], cordoned
            assert f"process {pid} of instance job" in cordoned[0]["message"]
            assert node.device()["freeBytes"] == free, "its bytes stay counted"
            done = asked(node, "Pause")
            assert done["state"] == "Failed" and "Unkillable" in done["message"], done

            node.kill_daemon()
            node.start_daemon()
            assert node.instance("job")["state"] == "Unkillable"
            assert node.device()["freeBytes"] == free
            let_go()
            node.wait_state("job", "Evicted", timeout=30)
        assert events(node, "EndedAfterAll")
        assert node.device()["freeBytes"] == free + (64 << 20)
        assert not events(node, "Uncordoned"), "its device waits for the operator"


def test_a_worker_that_does_not_end_keeps_the_bytes_of_its_dead_leader(tmp_path):
    with tree(tmp_path) as (node, folder):
        found = pids(folder)
        free = node.device()["freeBytes"]
        with held_at_its_exit(found["orphan"]) as let_go:
            kill(found["leader"])
            node.wait_state("job", "Unkillable", timeout=30)
            assert str(found["orphan"]) in events(node, "LeaderExited")[0]["message"]
            assert node.device()["freeBytes"] == free
            assert node.instance("job")["starts"] == 1, "and no other is started over it"
            let_go()
            wait_until("it has ended", lambda: node.instance("job")["state"] != "Unkillable", 30)
        assert not alive(found["orphan"])


# CUDA MPS: a client that is killed in the middle of its work stops all others for ever.

@contextlib.contextmanager
def mps(tmp_path):
    """Yields the pipe directory of a control daemon that lives, and a PATH with its program."""
    pipes, programs = tmp_path / "pipes", tmp_path / "bin"
    pipes.mkdir()
    programs.mkdir()
    program = programs / "nvidia-cuda-mps-control"
    program.symlink_to(HERE / "fake_mps_control.sh")
    (pipes / "clients.txt").write_text("")
    daemon = subprocess.Popen([program, "-f"],
                              env={**os.environ, "CUDA_MPS_PIPE_DIRECTORY": str(pipes)})
    try:
        wait_until("its daemon lives", (pipes / "nvidia-cuda-mps-control.pid").exists, 20)
        yield pipes, f"{programs}:{os.environ['PATH']}"
    finally:
        daemon.kill()
        daemon.wait()


@contextlib.contextmanager
def lone_client(tmp_path):
    """Yields a node with an instance of one process, that process, which is a client and ignores
    SIGTERM, and the pipe directory."""
    with mps(tmp_path) as (pipes, path), tree(
            tmp_path, "alone", "ignore-term", grace="200ms", path=path,
            environment={"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}) as (node, folder):
        pid = pids(folder, ("leader",))["leader"]
        (pipes / "clients.txt").write_text(f"{pid}\n")
        yield node, pid, pipes


def test_an_mps_client_is_killed_only_after_its_work_was_terminated(tmp_path):
    with mps(tmp_path) as (pipes, path), tree(
            tmp_path, "ignore-term", grace="200ms", path=path,
            environment={"CUDA_MPS_PIPE_DIRECTORY": str(pipes)}) as (node, folder):
        found = pids(folder)
        (pipes / "clients.txt").write_text(f"1\n{found['nested']}\n")
        done = asked(node, "Evict")
        assert done["state"] == "Succeeded", done
        told = (pipes / "asked.txt").read_text().splitlines()
        assert f"terminate_client 4242 {found['nested']}" in told
        assert "terminate_client 4242 1" not in told, "other clients are left alone"
        assert not [name for name, pid in found.items() if alive(pid)]


def test_a_stopped_mps_client_runs_until_its_work_is_terminated(tmp_path):
    with lone_client(tmp_path) as (node, pid, pipes):
        os.kill(pid, signal.SIGSTOP)
        done = asked(node, "Evict")
        assert done["state"] == "Succeeded", done
        assert f"terminate_client 4242 {pid}" in (pipes / "asked.txt").read_text()
        assert not alive(pid)


def test_an_mps_client_that_may_not_be_terminated_is_reported_and_not_killed(tmp_path):
    with lone_client(tmp_path) as (node, pid, pipes):
        (pipes / "refuse").touch()
        done = asked(node, "Evict")
        assert done["state"] == "Failed" and done["error"]["reason"] == "KillRefused", done
        assert alive(pid)
        shown = node.instance("job")
        assert shown["state"] == "Unkillable" and "exclusive work" in shown["message"], shown
        assert events(node, "Cordoned")
        (pipes / "refuse").unlink()
        assert asked(node, "Evict")["state"] == "Succeeded"
        assert not alive(pid) and node.instance("job")["state"] == "Evicted"


def as_pid(pid):
    """A process with that number, by the kernel's own counter; None where it cannot be had."""
    for _ in range(200):
        try:
            pathlib.Path("/proc/sys/kernel/ns_last_pid").write_text(str(pid - 1))
        except OSError:
            return None
        process = subprocess.Popen(["sleep", "600"], start_new_session=True)
        if process.pid == pid:
            return process
        process.kill()
        process.wait()
    return None


def test_a_process_that_has_got_an_ended_ones_pid_is_left_alone(tmp_path):
    with tree(tmp_path, "alone") as (node, folder):
        pid = pids(folder, ("leader",))["leader"]
        node.kill_daemon()
        kill(pid)
        wait_until("its pid is free", lambda: not pathlib.Path(f"/proc/{pid}").exists(), 20)
        namesake = as_pid(pid)
        if namesake is None:
            pytest.skip("no process can be given that pid here")
        try:
            node.start_daemon()
            wait_until("another is started", lambda: node.instance("job")["pid"]
                       not in (0, pid), 60)
            asked(node, "Evict")
            assert namesake.poll() is None, "the namesake is nobody's"
        finally:
            namesake.kill()
            namesake.wait()
