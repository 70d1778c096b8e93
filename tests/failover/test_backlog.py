# SPDX-License-Identifier: Apache-2.0
"""While nobody serves, whoever connects waits in the socket's queue: none is refused or reset, also
where the queue is shorter than the crowd, and whether or not berthd lives.

Method: the whole node in a network namespace of its own, whose counters are then this test's alone:
the kernel itself says that it sent no reset. The active engine is killed while its standby is
stopped, so that the socket has nobody; a crowd connects and asks; the standby goes on.

    test_backlog.py MODEL SOMAXCONN CLIENTS KILL_BERTHD      is what runs within the namespace
"""

import fcntl
import os
import pathlib
import shutil
import signal
import socket
import struct
import subprocess
import sys
import threading

import pytest

import conftest  # noqa: F401 (folders of the helpers)

NOT_ALLOWED = 77


def namespace():
    """The words that begin a command in one; skips where there is none to be had."""
    words = ["unshare", "--net"] if os.geteuid() == 0 else ["unshare", "--map-root-user", "--net"]
    if shutil.which("unshare") is None:
        pytest.skip("there is no program unshare (util-linux)")
    tried = subprocess.run([*words, "true"], capture_output=True, text=True, check=False)
    if tried.returncode != 0:
        pytest.skip(f"a network namespace is not allowed here: {tried.stderr.strip()}")
    return words


@pytest.mark.parametrize("somaxconn, clients, kill_berthd", [
    (4096, 100, False), (4, 40, False), (4, 40, True)],
    ids=["a queue for all", "a short queue", "a short queue and no berthd"])
def test_none_is_refused_while_nobody_serves(tiny_model, somaxconn, clients, kill_berthd):
    done = subprocess.run(
        [*namespace(), sys.executable, __file__, tiny_model, str(somaxconn), str(clients),
         str(int(kill_berthd))], capture_output=True, text=True, timeout=280, check=False)
    if done.returncode == NOT_ALLOWED:
        pytest.skip(done.stdout.strip())
    assert done.returncode == 0, done.stdout[-8000:] + done.stderr[-4000:]
    print(done.stdout)


def raise_loopback():
    up_and_running = 0x1 | 0x40
    with socket.socket() as any_socket:
        fcntl.ioctl(any_socket, 0x8914, struct.pack("16sh14x", b"lo", up_and_running))


def counters():
    """The namespace's own, by name."""
    found = {}
    for file in ("/proc/net/snmp", "/proc/net/netstat"):
        lines = pathlib.Path(file).read_text().splitlines()
        for names, values in zip(lines[::2], lines[1::2]):
            kind = names.split(":")[0]
            if kind in ("Tcp", "TcpExt"):
                found.update(zip(names.split()[1:], map(int, values.split()[1:])))
    return found


class Client(threading.Thread):
    """Connects, asks once, and keeps what came of it."""

    def __init__(self, port, call):
        super().__init__()
        self.port, self.call = port, call
        self.connected, self.answer = threading.Event(), None
        self.start()

    def run(self):
        from streams import Connection, request, same_each_time
        try:
            with Connection(("127.0.0.1", self.port)) as client:
                self.connected.set()
                client.send(request(*self.call))
                status, body = client.answer()
                self.answer = status, same_each_time(body)
        except Exception as error:  # whatever it is, the test names it
            self.answer = repr(error)


def inside(model, somaxconn, clients, kill_berthd):
    raise_loopback()
    try:
        pathlib.Path("/proc/sys/net/core/somaxconn").write_text(str(somaxconn))
    except OSError as error:
        print(f"net.core.somaxconn of a namespace cannot be set here: {error}")
        return NOT_ALLOWED
    from node_under_test import alive, kill, wait_until
    from streams import Connection, same_each_time
    from tiny_pair import TinyPair, completion
    call = completion("Who is there", stream=True)
    with TinyPair(pathlib.Path(model)) as node:
        with Connection(("127.0.0.1", node.port)) as client:
            status, body = client.ask(*call)
            expected = status, same_each_time(body)
        active, standby = node.wait_steady()
        before = counters()
        kill(standby["pid"], signal.SIGSTOP)
        if kill_berthd:
            node.kill_daemon()
        kill(active["pid"])
        wait_until("the active is gone", lambda: not alive(active["pid"]), 20)
        crowd = [Client(node.port, call) for _ in range(clients)]
        if clients < somaxconn:
            assert all(one.connected.wait(30) for one in crowd), "they wait in the queue"
        else:
            wait_until("the queue is too short for all", lambda: counters()["ListenOverflows"]
                       > before["ListenOverflows"], 30)
        assert all(one.answer is None for one in crowd), "nobody serves yet"
        waited = sum(one.connected.is_set() for one in crowd)
        kill(standby["pid"], signal.SIGCONT)
        if kill_berthd:
            node.start_daemon()
        for one in crowd:
            one.join(200)
        wrong = [one.answer for one in crowd if one.answer != expected]
        assert not wrong, wrong[:3]
        after = counters()
        for name in ("OutRsts", "EstabResets", "AttemptFails", "EmbryonicRsts", "TCPAbortOnData",
                     "TCPAbortOnClose"):
            assert after[name] == before[name], (name, before[name], after[name])
        assert node.active()["generation"] > active["generation"]
        print(f"{waited} of {clients} connected while nobody served, "
              f"{after['ListenOverflows'] - before['ListenOverflows']} times the queue was full, "
              f"all were answered, no reset was sent")
    return 0


if __name__ == "__main__":
    sys.exit(inside(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1"))
