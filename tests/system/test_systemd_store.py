# SPDX-License-Identifier: Apache-2.0
"""`keeper: systemd`: the service manager, played here, keeps the descriptors and gives them back."""

import os
import pathlib
import socket
import subprocess
import sys
import threading

from node_under_test import BIN, MODEL, Node, alive, wait_until

# Puts the descriptors of argv[1] (comma list) at 3 and up, as a service manager does, and becomes
# the command after it, with this pid.
PLACE = """
import fcntl, os, sys
high = [fcntl.fcntl(int(fd), fcntl.F_DUPFD_CLOEXEC, 500) for fd in sys.argv[1].split(",") if fd]
for place, fd in enumerate(high, 3):
    os.dup2(fd, place, inheritable=True)
os.environ["LISTEN_PID"] = str(os.getpid())
os.execv(sys.argv[2], sys.argv[2:])
"""


class ServiceManager:
    """What systemd does for a unit with FileDescriptorStoreMax=256 and NotifyAccess=main."""

    def __init__(self):
        self.address = f"@berth-test-{os.getpid()}-{id(self)}"
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind("\0" + self.address[1:])
        self.store, self.told = [], []  # (name, fd); lines that are not about descriptors
        self.removed = []
        self.thread = threading.Thread(target=self._serve)
        self.thread.start()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as end:
            end.sendto(b"END", "\0" + self.address[1:])
        self.thread.join(10)
        for _, fd in self.store:
            os.close(fd)
        self.socket.close()

    def _serve(self):
        while True:
            data, fds, _, _ = socket.recv_fds(self.socket, 4096, 16)
            lines = data.decode().splitlines()
            if lines == ["END"]:
                return
            self._obey(lines, fds)

    def _obey(self, lines, fds):
        name = next((x[7:] for x in lines if x.startswith("FDNAME=")), "stored")
        assert 0 < len(name) <= 255 and ":" not in name and name.isascii() and name.isprintable()
        if lines == ["BARRIER=1"]:
            assert len(fds) == 1
        elif "FDSTOREREMOVE=1" in lines:
            for one in [one for one in self.store if one[0] == name]:
                self.store.remove(one)
                os.close(one[1])
            self.removed.append(name)  # last: tests wait for it
        elif "FDSTORE=1" in lines:
            assert "FDPOLL=0" in lines and len(fds) == 1
            self.store.append((name, fds.pop()))
        else:
            self.told += lines
        for fd in fds:
            os.close(fd)

    def expect_told(self, *lines):
        """The node may be asked before this side has read what it was told."""
        wait_until(f"the manager was told {lines}", lambda: len(self.told) >= len(lines), 10)
        assert self.told == list(lines)

    def names(self):
        return sorted(name for name, _ in self.store)

    def start(self, command, **more):
        """Starts the unit's process with all that is stored, in Popen's words."""
        kept = list(self.store)
        environment = {**os.environ, "NOTIFY_SOCKET": self.address}
        if kept:
            environment.update(LISTEN_FDS=str(len(kept)),
                               LISTEN_FDNAMES=":".join(name for name, _ in kept))
        return subprocess.Popen(
            [sys.executable, "-c", PLACE, ",".join(str(fd) for _, fd in kept), *command],
            env=environment, pass_fds=[fd for _, fd in kept], **more)


def keepers(node):
    return [pid for pid in node.processes()
            if b"berth-keeper" in pathlib.Path(f"/proc/{pid}/cmdline").read_bytes()]


def keeper_line(node):
    return next(c for c in node.get("/v1/doctor")["checks"] if c["name"] == "keeper")


def test_weights_outlive_the_daemon_in_the_service_managers_store():
    with ServiceManager() as manager, \
            Node(batch_lines=2000, keeper="systemd", start=manager.start) as node:
        manager.expect_told("READY=1")
        node.engine()
        node.wait_state("nightly", "Running")
        before = {w["id"]: w["bytesRead"] for w in node.weights()}
        pids = {name: node.instance(name)["pid"] for name in ("chat", "nightly")}
        stored = manager.names()
        assert len(before) == 1 and any(".set/" in name for name in stored)
        assert any(".gate/" in name for name in stored)
        node.kill_daemon()
        assert all(alive(pid) for pid in pids.values())
        node.start_daemon()
        for name, pid in pids.items():
            wait_until(f"{name} is back", lambda name=name: node.instance(name)["connected"], 30)
            shown = node.instance(name)
            assert (shown["pid"], shown["state"]) == (pid, "Running")
            assert shown["grantState"] == "Held"
            environment = pathlib.Path(f"/proc/{pid}/environ").read_bytes()
            assert b"NOTIFY_SOCKET" not in environment and b"LISTEN_" not in environment
        assert {w["id"]: w["bytesRead"] for w in node.weights()} == before
        assert manager.names() == stored and not manager.removed
        assert not keepers(node) and node.get("/v1/node")["keeper"]["pid"] == 0
        assert keeper_line(node)["message"] == "descriptors are kept by systemd"
        manager.expect_told("READY=1", "READY=1")
        node.daemon.terminate()
        node.daemon.wait(10)
        wait_until("the manager knows", lambda: manager.told[-1] == "STOPPING=1", 10)


def test_weights_that_are_evicted_leave_the_store_and_a_pin_replaces_their_entry():
    model = f"apiVersion: berth/v1\nkind: Model\nmetadata: {{name: smollm2}}\nspec: {{path: {MODEL}}}\n"
    with ServiceManager() as manager, Node(keeper="systemd", start=manager.start,
                                           policy=model) as node:
        node.finish(node.post("/v1/weights:load", {"model": "smollm2"}))
        weights, stored = node.weights()[0]["id"], manager.names()
        node.finish(node.post(f"/v1/weights/{weights}:pin"))
        wait_until("it is stored anew", lambda: manager.removed and manager.names() == stored, 20)
        node.kill_daemon()
        node.start_daemon()
        assert [(w["id"], w["pinned"]) for w in node.weights()] == [(weights, True)]
        node.finish(node.post(f"/v1/weights/{weights}:unpin"))
        node.finish(node.post(f"/v1/weights/{weights}:evict"))
        wait_until("it is gone", lambda: not any(".set/" in n for n in manager.names()), 20)


def test_an_entry_that_is_not_whole_is_dropped_at_start():
    with ServiceManager() as manager:
        for name in ("1-of-3.set/0123@host-0", "another"):
            manager.store.append((name, os.memfd_create("part")))
        with Node(keeper="systemd", start=manager.start) as node:
            node.engine()
            assert manager.removed == ["1-of-3.set/0123@host-0"]
            assert "another" in manager.names() and len(node.weights()) == 1
            log = (node.root / "berthd.log").read_text()
            assert "is not whole" in log and "none of ours" in log


def test_keeper_systemd_without_a_service_manager_is_refused_with_what_to_do(tmp_path):
    (tmp_path / "node.yaml").write_text(
        "apiVersion: berth/v1\nkind: Node\nmetadata: {name: test}\nspec:\n"
        f"  socket: {tmp_path}/run/berthd.sock\n  stateDir: {tmp_path}/state\n"
        "  devices: {host: [{name: host-0, memory: 1Gi}]}\n  keeper: systemd\n")
    environment = {k: v for k, v in os.environ.items() if k != "NOTIFY_SOCKET"}
    ended = subprocess.run([BIN / "berthd", "--config", tmp_path / "node.yaml"],
                           capture_output=True, text=True, timeout=30, env=environment)
    assert ended.returncode == 1
    for words in ("NOTIFY_SOCKET", "FileDescriptorStoreMax=256", "NotifyAccess=main"):
        assert words in ended.stderr


def test_the_service_manager_hears_of_a_node_with_a_keeper_process_too():
    with ServiceManager() as manager, Node(start=manager.start) as node:
        manager.expect_told("READY=1")
        assert len(keepers(node)) == 1 and not manager.store
        node.daemon.terminate()
        node.daemon.wait(10)
        wait_until("the manager knows", lambda: manager.told[-1] == "STOPPING=1", 10)
