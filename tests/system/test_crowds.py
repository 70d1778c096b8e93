# SPDX-License-Identifier: Apache-2.0
"""What no crowd, sleeper or flood can take from the others: ten thousand connections, silent and slow
clients, half frames, descriptors by the thousand. Each test says how long berthd's decision thread
kept what was ready waiting; none fails on a time."""

import http.client
import json
import os
import re
import resource
import socket
import threading
import time

import pytest
from node_under_test import Refused, call, wait_until
from test_access import (GROUP, OPERATOR, acting, asking, encode, log_of, model_folders, needs_root,
                         open_node, receive)

__all__ = ["model_folders"]  # a fixture

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="nothing here depends on the device")
HARD = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
CROWD = int(os.environ.get("BERTH_CROWD", "10000"))


@pytest.fixture(autouse=True, scope="module")
def many_descriptors():
    """This process is the crowd."""
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (HARD, HARD))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, before)


# The loop's lag, by berthd's own measure

def lag_of(line):
    text = ask(line, "/metrics")[1].decode()
    bounds = [(float(b), int(n)) for b, n in
              re.findall(r'berth_loop_lag_seconds_bucket\{le="([\d.e-]+)"\} (\d+)', text)]
    count = int(re.search(r"berth_loop_lag_seconds_count (\d+)", text)[1])
    longest = float(re.search(r"berth_loop_lag_max_seconds ([\d.e+-]+)", text)[1])
    return bounds, count, longest


class Lag:
    """Over a stretch of a test: how many looks, and what share of them found the loop free."""

    def __init__(self, node, capsys, what):
        self.node, self.capsys, self.what = node, capsys, what

    def __enter__(self):
        self.line = connect(self.node)  # once the crowd is there, its user gets no other
        self.before = lag_of(self.line)
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            return
        try:
            ask(self.line)
        except (OSError, http.client.HTTPException):  # idle for too long
            self.line = connect(self.node)
        bounds, count, longest = lag_of(self.line)
        rss = json.loads(ask(self.line, "/v1/node")[1])["rssBytes"]
        self.line.close()
        looks = max(count - self.before[1], 1)
        shares = {b: (n - o) / looks for (b, n), (_, o) in zip(bounds, self.before[0])}
        p99 = next((b for b, share in shares.items() if share >= 0.99), float("inf"))
        with self.capsys.disabled():
            print(f"\n    loop lag, {self.what}: {looks} looks, p99 <= {p99 * 1e3:g} ms, "
                  f"{shares[0.005] * 100:.1f} % within 5 ms, longest since the start "
                  f"{longest * 1e3:.2f} ms; rss {rss >> 20} MiB")


def connect(node, name="admin.sock", kind=socket.SOCK_STREAM):
    one = socket.socket(socket.AF_UNIX, kind)
    one.connect(str(node.root / "run" / name))  # with a timeout a full queue would be an error
    one.settimeout(60)
    return one


def head_and_body(one):
    reply = http.client.HTTPResponse(one)
    reply.begin()
    return reply.status, reply.read()


def ask(one, target="/healthz"):
    try:
        one.sendall(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
    except (BrokenPipeError, ConnectionResetError):
        pass  # turned away before it spoke: the words are there to be read
    return head_and_body(one)


def told(one):
    """What berthd says unasked on a session's socket, before it closes."""
    reply = receive(one)
    return reply["error"] if reply and reply["type"] == "failed" else reply


# Ten thousand

@pytest.mark.skipif(HARD < CROWD + 600, reason=f"RLIMIT_NOFILE's hard limit is {HARD}")
def test_ten_thousand_connections_are_served_and_the_loop_stays_free(models, capsys):
    with open_node(models, limits=(HARD, HARD)) as node:
        crowd = []
        with Lag(node, capsys, f"{CROWD} connections come, ask once and stay"):
            for _ in range(CROWD):
                crowd.append(connect(node))
                assert ask(crowd[-1])[0] == 200
        with Lag(node, capsys, "they are there, and others look and change"):
            for number in range(300):
                assert node.get("/v1/node")["ready"]
                node.finish(node.post("/v1/weights:load", {"model": "tiny", "requestId": str(number)}))
        with Lag(node, capsys, "all ask at once"):
            for one in crowd:
                one.sendall(b"GET /v1/weights HTTP/1.1\r\nHost: x\r\n\r\n")
            assert all(head_and_body(one)[0] == 200 for one in crowd)
        for one in crowd:
            one.close()
        node.get("/v1/node")


@pytest.mark.skipif(HARD < 4000, reason=f"RLIMIT_NOFILE's hard limit is {HARD}")
def test_under_1024_descriptors_the_rest_are_refused_in_words(models, capsys):
    with open_node(models, limits=(1024, 1024)) as node:
        crowd, refused = [], []
        with Lag(node, capsys, "3,000 connections under ulimit -n 1024"):
            for _ in range(3000):
                one = connect(node)
                status, body = ask(one)
                if status == 200:
                    crowd.append(one)
                    continue
                refused.append(json.loads(body))
                assert status == 503
                one.close()
        assert 700 < len(crowd) < 1024 and len(crowd) + len(refused) == 3000
        assert {r["reason"] for r in refused} <= {"TooManyConnections", "TooManyDescriptors"}
        assert "limit" in refused[0]["message"]
        # Its engines still find the door open, and those who are in are served.
        with connect(node, "berthd.sock", socket.SOCK_SEQPACKET) as engine:
            engine.send(encode("hello", id=1))
            assert receive(engine)["type"] == "welcome"
        assert ask(crowd[0], "/v1/weights")[0] == 200
        # One line a second at most tells of them.
        assert 1 <= log_of(node).count("connections refused count=") < 200
        for one in crowd:
            one.close()
        wait_until("all are let in again", lambda: ask(connect(node))[0] == 200, 10)


@needs_root
def test_one_user_cannot_keep_another_out(models, capsys):
    with open_node(models, f'  group: "{GROUP}"\n', limits=(1024, 1024)) as node:
        crowd = []
        while ask(one := connect(node))[0] == 200:
            crowd.append(one)
        status, body = ask(connect(node))
        assert status == 503 and "of user 0" in json.loads(body)["message"], body
        assert acting(OPERATOR, asking(node, "GET", "/v1/node"))[0] == 200
        for one in crowd:
            one.close()


@pytest.mark.skipif(HARD < 5000, reason=f"RLIMIT_NOFILE's hard limit is {HARD}")
def test_a_crowd_at_the_engines_door_is_told_why_and_engines_come_through(models, capsys):
    with open_node(models, limits=(HARD, HARD)) as node:
        with Lag(node, capsys, "4,000 sessions and 1,000 that say nothing"):
            silent, reasons = [], set()
            for _ in range(1000):
                one = connect(node, "berthd.sock", socket.SOCK_SEQPACKET)
                silent.append(one)
            for one in silent[256:]:
                reasons.add(told(one)["reason"])
            assert reasons == {"TooManyHalfOpen"}
            for one in silent:
                one.close()

            def greeted():
                one = connect(node, "berthd.sock", socket.SOCK_SEQPACKET)
                try:
                    one.send(encode("hello", id=1))
                except (BrokenPipeError, ConnectionResetError):
                    pass
                return one, receive(one)
            wait_until("the silent are forgotten", lambda: greeted()[1]["type"] == "welcome", 10)
            engines, refusal = [], None
            while refusal is None and len(engines) < 4000:
                one, reply = greeted()
                engines.append(one)
                refusal = reply["error"] if reply["type"] == "failed" else None
            assert refusal["reason"] == "TooManySessions" and "user 0" in refusal["message"]
            assert len(engines) > 3000
        node.get("/v1/node")


# The slow, the silent and the half

def test_slow_and_silent_clients_and_half_requests_are_ended_in_words(models, capsys):
    with open_node(models) as node:
        slow = [connect(node) for _ in range(100)]
        half = [connect(node) for _ in range(100)]
        mute = [connect(node) for _ in range(100)]
        engines = [connect(node, "berthd.sock", socket.SOCK_SEQPACKET) for _ in range(100)]
        for one in half:
            one.sendall(b"POST /v1/weights:load HTTP/1.1\r\nHost: x\r\nContent-Length: 99\r\n\r\n{")
        with Lag(node, capsys, "300 slow and silent clients, 100 silent engines"):
            started = time.monotonic()
            while time.monotonic() - started < 9:  # a byte now and then does not help
                for one in slow:
                    one.send(b"G")
                time.sleep(0.5)
                node.get("/v1/node")
            for one in slow:
                assert head_and_body(one)[0] in (400, 408)
            for one in mute:
                assert one.recv(1) == b"", "one that never spoke is ended"
            for one in engines:
                assert told(one)["reason"] == "NoHello"
            for one in half:
                assert head_and_body(one)[0] == 408
        assert node.get("/v1/node")["sessions"] == 0


def test_headers_bodies_and_requests_have_their_limits(models):
    with open_node(models) as node:
        many = "".join(f"X-{n}: y\r\n" for n in range(150))
        for request, status, word in (
                (f"GET /healthz HTTP/1.1\r\nHost: x\r\n{many}\r\n", 431, "fields"),
                (f"GET /healthz HTTP/1.1\r\nX: {'y' * 20000}\r\n\r\n", 431, "bytes"),
                ("PUT /v1/policy HTTP/1.1\r\nHost: x\r\nContent-Length: 9000000\r\n\r\n", 413, "bytes"),
                ("one two three\r\n\r\n", 400, "HTTP/1.1")):
            with connect(node) as one:
                one.sendall(request.encode())
                got, body = head_and_body(one)
                assert got == status and word in json.loads(body)["message"], (got, body)
        with pytest.raises(Refused) as deep:
            call(node.connection(), "POST", "/v1/weights:load", "[" * 100_000)
        assert deep.value.status == 400
        node.get("/healthz")


# Floods

def descriptors(node):
    return len(os.listdir(f"/proc/{node.daemon.pid}/fd"))


def test_descriptors_by_the_thousand_are_closed_as_they_come(models, capsys):
    with open_node(models) as node, open("/dev/null", "rb") as null:
        before = descriptors(node)
        with Lag(node, capsys, "40,000 descriptors that nobody asked for"):
            with connect(node, "berthd.sock", socket.SOCK_SEQPACKET) as peer:
                peer.send(encode("hello", id=1))
                assert receive(peer)["type"] == "welcome"
                for number in range(625):
                    socket.send_fds(peer, [encode("report", id=number + 2)], [null.fileno()] * 64)
                wait_until("they are closed", lambda: descriptors(node) <= before + 2, 20)
            with connect(node, "berthd.sock", socket.SOCK_SEQPACKET) as peer:
                socket.send_fds(peer, [encode("hello", id=1)], [null.fileno()] * 200)
                assert "over the size limits" in told(peer)["message"]
        wait_until("all are closed", lambda: descriptors(node) <= before, 20)


def test_floods_of_messages_and_of_looks_keep_nobody_else_waiting(models, capsys):
    with open_node(models) as node:
        stop = threading.Event()

        def engine():
            with connect(node, "berthd.sock", socket.SOCK_SEQPACKET) as peer:
                peer.send(encode("hello", id=1))
                receive(peer)
                while not stop.is_set():
                    peer.send(encode("report", id=2))

        def operator():
            with connect(node) as one:
                while not stop.is_set():
                    assert ask(one, "/v1/weights")[0] == 200

        threads = [threading.Thread(target=work) for work in [engine] * 6 + [operator] * 6]
        for one in threads:
            one.start()
        try:
            with Lag(node, capsys, "6 engines and 6 operators without pause"):
                for _ in range(50):
                    assert node.get("/v1/node")["ready"]
                    time.sleep(0.05)
        finally:
            stop.set()
            for one in threads:
                one.join()
        assert node.get("/v1/node")["sessions"] == 0 or wait_until(
            "they are gone", lambda: node.get("/v1/node")["sessions"] == 0, 10)
