# SPDX-License-Identifier: Apache-2.0
"""Months under a small limit of descriptors: nothing leaks, the full node says so, and no attacher
harms another. berthd and its children run with RLIMIT_NOFILE = 256; the attachers speak the
protocol by hand, byte for byte, or are libberth by its C interface."""

import array
import ctypes
import json
import mmap
import multiprocessing
import os
import pathlib
import re
import resource
import signal
import socket
import subprocess
import sys
import threading
import time

import pytest
from node_under_test import BIN, Node, Refused, call, kill, wait_until
from tiny_model import make_tiny_model

LIMIT = 256
ATTACH_ROUNDS = int(os.environ.get("BERTH_ATTACH_ROUNDS", "10000"))
LOAD_ROUNDS = int(os.environ.get("BERTH_LOAD_ROUNDS", "1000"))
LIBRARY = os.environ.get("BERTH_LIBRARY", "")
# What an allocator may keep of its own between two looks; a leak of 100 bytes a round passes it.
SLACK_KB = 1024

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="the descriptors of a host device are counted")


def limited(soft=LIMIT, hard=LIMIT):
    def start(command, **more):
        return subprocess.Popen(command, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, (soft, hard)), **more)
    return start


@pytest.fixture(name="model", scope="module")
def model_folder(tmp_path_factory):
    return make_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


def open_node(model, soft=LIMIT):
    policy = f"apiVersion: berth/v1\nkind: Model\nmetadata: {{name: tiny}}\nspec: {{path: {model}}}\n"
    return Node(memory="1Gi", policy=policy, start=limited(soft))


# What a process holds

def descriptors(pid):
    return len(os.listdir(f"/proc/{pid}/fd"))


def memory_kb(pid):
    """Private memory: what pages shared with others do not blur."""
    text = pathlib.Path(f"/proc/{pid}/smaps_rollup").read_text()
    return sum(int(n) for n in re.findall(r"^Private_(?:Clean|Dirty):\s+(\d+)", text, re.M))


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def keeper_pid(node):
    return node.get("/v1/node")["keeper"]["pid"]


def leases(node):
    return sum(w["leases"] for w in node.weights())


class Held:
    """What berthd, the keeper and others hold; unchanged() waits until it is that again."""

    def __init__(self, node, *pids):
        self.node = node
        self.pids = [node.daemon.pid, keeper_pid(node), *pids]
        self.descriptors = self.settled()
        self.leases = leases(node)
        self.memory = [memory_kb(p) for p in self.pids]

    def settled(self):
        """The counts once nothing is under way: a load's last acts, a connection's end."""
        while True:
            counts = [descriptors(p) for p in self.pids]
            time.sleep(0.3)
            if counts == [descriptors(p) for p in self.pids]:
                return counts

    def unchanged(self, memory=False):
        wait_until("descriptors are as before",
                   lambda: all(descriptors(p) <= n
                               for p, n in zip(self.pids, self.descriptors)), 10)
        wait_until("leases are as before", lambda: leases(self.node) == self.leases, 10)
        if memory:
            grown = [memory_kb(p) - m for p, m in zip(self.pids, self.memory)]
            assert max(grown) <= SLACK_KB, f"grown by {grown} KiB: berthd, keeper, others"


# The protocol by hand

def encode(kind, **fields):
    return json.dumps({"v": 1, "type": kind, **fields}).encode()


HELLO = encode("hello", id=1, program="test", pid=os.getpid())


def attach_message(number=2, **which):
    return encode("attach", id=number, **(which or {"model": "tiny"}))


class Peer:
    def __init__(self, node, greet=True):
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.socket.settimeout(30)
        self.socket.connect(str(node.root / "run/berthd.sock"))
        if greet:
            self.say(HELLO)
            reply, fds = self.receive()
            close_all(fds)
            if reply is None or reply["type"] != "welcome":
                self.socket.close()
                raise TurnedAway(reply)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.socket.close()

    def say(self, packet):
        """One who has been refused may find the door shut; what was said is still to be read."""
        try:
            self.socket.send(packet)
        except (BrokenPipeError, ConnectionResetError):
            pass

    def receive(self):
        """The next message and its descriptors; None at the end."""
        try:
            data, ancillary, _, _ = self.socket.recvmsg(1 << 17, socket.CMSG_SPACE(64 * 4))
        except ConnectionResetError:  # told before what is in the queue
            data, ancillary, _, _ = self.socket.recvmsg(1 << 17, socket.CMSG_SPACE(64 * 4))
        fds = array.array("i")
        for level, kind, content in ancillary:
            if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
                fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
        return (json.loads(data) if data else None), list(fds)

    def attach(self, number=2, **which):
        self.socket.send(attach_message(number, **which))
        while True:
            reply, fds = self.receive()
            if reply is None or reply["type"] == "failed":
                raise TurnedAway(reply)
            if reply["type"] == "attached":
                return reply, fds
            assert reply["type"] == "progress", reply


class TurnedAway(Exception):
    def __init__(self, reply):
        super().__init__(str(reply))
        self.error = reply["error"] if reply else None


def close_all(fds):
    for fd in fds:
        os.close(fd)


def attach_and_leave(node):
    with Peer(node) as peer:
        close_all(peer.attach()[1])


def load(node, model="tiny"):
    node.finish(node.post("/v1/weights:load", {"model": model}))
    return node.weights()[0]["id"]


# Rounds

def test_ten_thousand_attaches_leave_no_descriptor_and_no_memory_behind(model):
    with open_node(model) as node:
        load(node)
        for _ in range(ATTACH_ROUNDS // 10):
            attach_and_leave(node)
        held = Held(node)
        for _ in range(ATTACH_ROUNDS):
            attach_and_leave(node)
        held.unchanged(memory=True)


class ConnectOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [
        (name, ctypes.c_char_p) for name in
        ("mode", "socket", "instance", "token", "model_path", "device", "program")] + [
        ("timeout_ms", ctypes.c_uint64)]


class AttachOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("weight_set", ctypes.c_char_p), ("resident_only", ctypes.c_int)]


def library_rounds(path, rounds, fresh, go, done):
    """In a process of its own: rounds on one connection, or each on a fresh one."""
    library = ctypes.CDLL(LIBRARY)
    library.berth_error_message.restype = ctypes.c_char_p
    connect = ConnectOptions(ctypes.sizeof(ConnectOptions), b"client", path.encode(), None, None,
                             None, b"host-0", b"test", 0)
    attach = AttachOptions(ctypes.sizeof(AttachOptions), b"tiny", None, None, 0)

    def checked(status):
        assert status == 0, library.berth_error_message().decode()

    def connection():
        client = ctypes.c_void_p()
        checked(library.berth_connect(ctypes.byref(connect), ctypes.byref(client)))
        return client

    def play(count):
        client = None if fresh else connection()
        for _ in range(count):
            client = connection() if fresh else client
            weights = ctypes.c_void_p()
            checked(library.berth_attach(client, ctypes.byref(attach), None, None,
                                         ctypes.byref(weights)))
            library.berth_weights_close(weights)
            if fresh:
                library.berth_close(client)
        if not fresh:
            library.berth_close(client)

    play(rounds // 10)
    before = (descriptors(os.getpid()), memory_kb(os.getpid()))
    go.set()
    play(rounds)
    done.put((before, (descriptors(os.getpid()), memory_kb(os.getpid()))))


@pytest.mark.skipif(not LIBRARY, reason="BERTH_LIBRARY names no libberth.so")
@pytest.mark.parametrize("fresh", [False, True], ids=["one connection", "a connection each"])
def test_libberth_attaches_and_detaches_without_end(model, fresh):
    rounds = ATTACH_ROUNDS // 4 if fresh else ATTACH_ROUNDS
    with open_node(model) as node:
        load(node)
        spawn = multiprocessing.get_context("spawn")
        go, done = spawn.Event(), spawn.Queue()
        shim = spawn.Process(target=library_rounds, args=(
            str(node.root / "run/berthd.sock"), rounds, fresh, go, done))
        shim.start()
        before, after = done.get(timeout=300)
        shim.join()
        assert after[0] <= before[0], "descriptors of the shim"
        assert after[1] - before[1] <= SLACK_KB, f"the shim's memory: {before} {after}"
        wait_until("its leases are gone", lambda: leases(node) == 0, 10)


def test_a_thousand_loads_and_evictions_leave_nothing_behind(model):
    with open_node(model) as node:
        def rounds(count):
            for _ in range(count):
                found = load(node)
                node.finish(node.post(f"/v1/weights/{found}:evict"))
        # The histories that berthd keeps (events, operations) are full after that.
        rounds(max(LOAD_ROUNDS // 2, 1))
        held = Held(node)
        rounds(LOAD_ROUNDS)
        held.unchanged(memory=True)
        assert not node.weights()
        assert node.device()["freeBytes"] == node.device()["totalBytes"]


# At the limit

def fill(node, most=LIMIT + 64):
    """Peers until one is turned away; the peers, and what the last one was told."""
    peers = []
    while len(peers) < most:
        try:
            peers.append(Peer(node))
        except TurnedAway as refusal:
            return peers, refusal.error
    raise AssertionError(f"{most} peers under a limit of {LIMIT} descriptors")


def test_the_soft_limit_is_raised_and_a_full_node_says_no_in_words_and_recovers(model):
    with open_node(model, soft=128) as node:
        limits = pathlib.Path(f"/proc/{node.daemon.pid}/limits").read_text()
        assert re.search(rf"Max open files\s+{LIMIT}\s+{LIMIT}", limits)
        log = (node.root / "berthd.log").read_text()
        assert f"descriptors soft={LIMIT} hard={LIMIT} (soft was 128)" in log
        held = Held(node)
        peers, error = fill(node)
        assert len(peers) > LIMIT // 2
        assert (error["code"], error["reason"]) == ("ResourceExhausted", "TooManyDescriptors")
        assert str(LIMIT) in error["message"] and "LimitNOFILE" in error["message"]
        # Those who are in are served, and the node's own work goes on: a whole load from disk.
        reply, fds = peers[0].attach()
        close_all(fds)
        assert reply["weight_set"]
        close_all(peers[-1].attach()[1])
        assert node.get("/healthz") is not None
        # A crowd at the door is told, each of them, and costs no more than it must.
        before = cpu_seconds(node.daemon.pid)
        for _ in range(20):
            with pytest.raises(TurnedAway) as refused:
                Peer(node)
            assert refused.value.error["reason"] == "TooManyDescriptors"
        time.sleep(1)
        assert cpu_seconds(node.daemon.pid) - before < 0.5, "berthd spins at its limit"
        for peer in peers:
            peer.socket.close()
        found = wait_until("newcomers are let in again", lambda: try_peer(node), 10)
        close_all(found.attach()[1])
        found.socket.close()
        node.finish(node.post(f"/v1/weights/{node.weights()[0]['id']}:evict"))
        held.unchanged()


def try_peer(node):
    try:
        return Peer(node)
    except TurnedAway:
        return None


def test_admin_connections_beyond_the_limit_get_503_and_the_reason(model):
    with open_node(model) as node:
        held = Held(node)
        peers, _ = fill(node)
        operators, refused = [], None
        while refused is None and len(operators) < LIMIT:
            one = node.connection()
            try:
                one.request("GET", "/healthz")
                reply = one.getresponse()
                body = reply.read()
            except (ConnectionError, BrokenPipeError):
                raise AssertionError("dropped without a word") from None
            operators.append(one)
            if reply.status != 200:
                refused = reply.status, json.loads(body)
        assert refused and refused[0] == 503 and refused[1]["reason"] == "TooManyDescriptors"
        assert len(operators) > 4, "operators are let in after engines no longer are"
        for one in operators:
            one.close()
        for peer in peers:
            peer.socket.close()
        held.unchanged()


def test_without_any_descriptor_left_newcomers_are_still_told_and_nothing_spins(model):
    with open_node(model) as node:
        load(node)
        Held(node).settled()
        # No more than it has open: every open() and accept() of its own fails from here. Peers fill
        # the gaps first, so that what it keeps in hand for this lies below the limit.
        peers = [Peer(node)]
        peer = peers[0]
        for _ in range(16):
            numbers = {int(n) for n in os.listdir(f"/proc/{node.daemon.pid}/fd")}
            lowest_free = next(n for n in range(LIMIT) if n not in numbers)
            if lowest_free > 24:
                break
            peers.append(Peer(node))
        resource.prlimit(node.daemon.pid, resource.RLIMIT_NOFILE, (lowest_free, LIMIT))
        try:
            close_all(peer.attach()[1])
            before = cpu_seconds(node.daemon.pid)
            for _ in range(5):
                try:
                    Peer(node).socket.close()
                    raise AssertionError("let in without a descriptor")
                except TurnedAway as refusal:
                    assert refusal.error["reason"] == "TooManyDescriptors"
                except TimeoutError:
                    raise AssertionError("neither let in nor told") from None
            # Its operator is told as well.
            with pytest.raises((Refused, BrokenPipeError)) as refused:
                node.get("/v1/node")
            if refused.type is Refused:
                assert refused.value.body["reason"] == "TooManyDescriptors"
            time.sleep(1)
            assert cpu_seconds(node.daemon.pid) - before < 0.5
        finally:
            resource.prlimit(node.daemon.pid, resource.RLIMIT_NOFILE, (LIMIT, LIMIT))
        attach_and_leave(node)
        node.get("/v1/node")
        for one in peers:
            one.socket.close()


# Many at once

def test_64_attach_at_once_while_their_set_loads_one_load_64_leases_the_same_bytes(model):
    with open_node(model) as node:
        held = Held(node)
        gate, results, leave = threading.Barrier(64), [], threading.Event()

        def engine():
            with Peer(node) as peer:
                gate.wait()
                reply, fds = peer.attach()
                sizes = reply["segment_bytes"]
                views = [bytes(mmap.mmap(fd, size, prot=mmap.PROT_READ))
                         for fd, size in zip(fds[1:], sizes)]
                close_all(fds)
                results.append(views)
                leave.wait(60)

        engines = [threading.Thread(target=engine) for _ in range(64)]
        for one in engines:
            one.start()
        wait_until("all have it", lambda: len(results) == 64, 60)
        wait_until("64 leases", lambda: leases(node) == 64, 10)
        assert all(one == results[0] for one in results) and any(results[0][0])
        log = (node.root / "berthd.log").read_text()
        assert log.count("load started load=") == 1
        leave.set()
        for one in engines:
            one.join()
        wait_until("no lease is left", lambda: leases(node) == 0, 10)
        node.finish(node.post(f"/v1/weights/{node.weights()[0]['id']}:evict"))
        held.unchanged()


# Attachers that die, lie or sleep

def test_an_attacher_that_dies_at_any_byte_leaves_nothing(model):
    """A message is a packet: every prefix of each, as the last thing that is said."""
    with open_node(model) as node:
        load(node)
        attach_and_leave(node)
        held = Held(node)
        for conversation in ([HELLO], [HELLO, attach_message()],
                             [HELLO, attach_message(), encode("report", id=3)]):
            last = conversation[-1]
            for length in range(len(last) + 1):
                with Peer(node, greet=False) as peer:
                    for message in conversation[:-1]:
                        peer.socket.send(message)
                    peer.socket.send(last[:length])
        held.unchanged()
        attach_and_leave(node)


def test_an_engine_killed_between_any_two_messages_leaves_nothing(model):
    with open_node(model) as node:
        load(node)
        held = Held(node)
        script = (
            "import socket, sys\n"
            "s = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)\n"
            "s.connect(sys.argv[1])\n"
            "for word in sys.argv[2:]:\n"
            "    s.send(word.encode())\n"
            "    s.recv(1 << 17)\n"
            "print('here', flush=True)\n"
            "sys.stdin.read()\n")
        words = [HELLO.decode(), attach_message().decode(), attach_message(3).decode()]
        for count in range(len(words) + 1):
            engine = subprocess.Popen(
                [sys.executable, "-c", script, node.root / "run/berthd.sock", *words[:count]],
                stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            assert engine.stdout.readline() == b"here\n"
            kill(engine.pid, signal.SIGKILL)
            engine.wait()
            engine.stdin.close()
            engine.stdout.close()
        held.unchanged()
        attach_and_leave(node)


def told(node, *packets, greet=True):
    """What berthd says to the last of these packets, before it closes."""
    with Peer(node, greet=greet) as peer:
        for packet in packets:
            if isinstance(packet, tuple):
                socket.send_fds(peer.socket, [packet[0]], packet[1])
            else:
                peer.socket.send(packet)
        reply, fds = peer.receive()
        close_all(fds)
        return reply


def test_broken_wrong_and_oversized_packets_are_answered_in_words(model):
    with open_node(model) as node:
        load(node)
        held = Held(node)
        with open("/dev/null", "rb") as null:
            many = [null.fileno()] * 64
            for packet in (b"{", b"\xff\xfe", b"[]", b"{}", encode("nonsense", id=7),
                           json.dumps({"v": 99, "type": "hello", "id": 1}).encode(),
                           encode("attached", id=1), encode("hello", id="seven"),
                           b"[" * 100_000, b'{"v": 1, "type": "hello"' + b" " * 140_000,
                           (b"{", many)):
                reply = told(node, packet, greet=False)
                assert reply and reply["type"] == "failed", packet[:80]
                assert reply["error"]["message"]
            assert told(node, attach_message(), greet=False)["error"]["reason"] == "NoHello"
            assert told(node, HELLO)["error"]["reason"] == "TwoHellos"
            assert told(node, encode("planned", id=4))["type"] == "failed"
            assert told(node, b"x" * 140_000)["type"] == "failed"
            # Descriptors that nobody asked for are closed, and the message still counts.
            assert told(node, (attach_message(), many))["type"] == "attached"
            # Half a close is a close.
            with Peer(node) as peer:
                peer.socket.shutdown(socket.SHUT_WR)
                assert peer.receive()[0] is None
            with Peer(node) as peer:
                peer.socket.shutdown(socket.SHUT_RD)
                try:
                    peer.socket.send(attach_message())
                except BrokenPipeError:
                    pass
                held.unchanged()
        held.unchanged()
        attach_and_leave(node)


def test_peers_that_never_read_hold_neither_memory_nor_descriptors_nor_others(model):
    with open_node(model) as node:
        load(node)
        attach_and_leave(node)
        held = Held(node)
        sleepers = [Peer(node) for _ in range(8)]
        asked = 0
        for sleeper in sleepers:
            sleeper.socket.setblocking(False)
            try:
                for number in range(5000):
                    sleeper.socket.send(attach_message(number + 2))
                    asked += 1
            except (BlockingIOError, BrokenPipeError, ConnectionResetError):
                pass
        assert asked > 8 * 100, "they asked for more than a socket holds"
        attach_and_leave(node)
        # One session each, and a few descriptors that wait for all of them together.
        assert descriptors(node.daemon.pid) <= held.descriptors[0] + len(sleepers) + 32
        before = cpu_seconds(node.daemon.pid)
        time.sleep(1)
        assert cpu_seconds(node.daemon.pid) - before < 0.5, "berthd spins on a full socket"
        for sleeper in sleepers:
            sleeper.socket.close()
        held.unchanged(memory=True)
        attach_and_leave(node)


def test_a_peer_that_reads_late_gets_every_answer_in_order(model):
    with open_node(model) as node:
        load(node)
        attach_and_leave(node)
        with Peer(node) as peer:
            asking = threading.Thread(target=lambda: [
                peer.socket.send(attach_message(number)) for number in range(2, 1002)])
            asking.start()
            time.sleep(0.5)
            for number in range(2, 1002):
                reply, fds = peer.receive()
                close_all(fds)
                assert (reply["type"], reply["id"]) == ("attached", number)
            asking.join()
        wait_until("its lease is gone", lambda: leases(node) == 0, 10)
