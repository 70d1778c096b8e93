# SPDX-License-Identifier: Apache-2.0
"""A request that ends each engine which goes on with it is not tried for ever: its client is told
by the end of its connection, and the service goes on for everybody else. Where engines end while
they compute that request, nobody else notices anything.

Method: a real node and engines with a preloaded fault (poison.cpp): an engine that computes such a
request aborts; or, harder to tell from outside, one that serves while such a request is there."""

import threading
import time

import pytest

from conftest import BIN
from node_under_test import kill, wait_until
from streams import Connection, request, same_each_time
from tiny_pair import TinyPair, completion

POISON = BIN.parent / "tests/libpoison.so"
GOOD = completion("Good morning", stream=True)
# So long that an engine ends of it before its first token.
BAD = completion("Take this: <<poison>> " + "once more, " * 120, stream=True, max_tokens=400)


class Victims(threading.Thread):
    """Asks good questions one after the other; one whose connection ends early is asked again, as a
    caller would. Each on a connection of its own, or all on one."""

    def __init__(self, port, call, expected, anew=True):
        super().__init__()
        self.port, self.call, self.expected, self.anew = port, call, expected, anew
        self.stop, self.wrong, self.answered, self.cut = threading.Event(), [], 0, 0
        self.start()

    def ask(self):
        with Connection(("127.0.0.1", self.port)) as client:
            while not self.stop.is_set():
                status, body = client.ask(*self.call)
                self.answered += 1
                if (status, same_each_time(body)) != self.expected:
                    self.wrong.append((status, body))
                if self.anew:
                    return

    def run(self):
        while not self.stop.is_set():
            try:
                self.ask()
            except (EOFError, ConnectionError):
                self.cut += 1
            except OSError as error:  # it waits for ever
                self.wrong.append(repr(error))
                return


def end(victims):
    for victim in victims:
        victim.stop.set()
    for victim in victims:
        victim.join(120)


def check_unharmed(victims):
    for victim in victims:
        assert not victim.wrong, victim.wrong[0]
        assert victim.cut == 0


def answer_of(node, call):
    with Connection(("127.0.0.1", node.port)) as client:
        status, body = client.ask(*call)
        return status, same_each_time(body)


def send_bad(node):
    """Until its connection is ended."""
    with Connection(("127.0.0.1", node.port)) as client:
        client.socket.settimeout(120)
        client.send(request(*BAD))
        with pytest.raises((EOFError, ConnectionError)):
            while True:
                client.more()


def engine_logs(node):
    return "".join(log.read_text() for log in node.root.glob("state/engines/*.log"))


def poisoned_pair(model, alone, how):
    assert POISON.exists(), "it is built with the tests"
    return TinyPair(model, alone=alone,
                    environment={"LD_PRELOAD": str(POISON), "POISON": how})


def check_end(node):
    """All is well again, and nothing of it is left that would end one more."""
    shown = node.shown()
    assert all(one["state"] != "Failed" for one in shown), shown
    starts = [one["starts"] for one in shown]
    assert 3 <= sum(starts) <= 12, starts
    time.sleep(3)
    assert [one["starts"] for one in node.shown()] == starts


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "a pair"])
def test_one_that_ends_whoever_computes_it_is_found_out_and_nobody_else_notices(tiny_model, alone):
    with poisoned_pair(tiny_model, alone, "work") as node:
        calls = [completion(f"Good morning, {name}", stream=True, max_tokens=300 + 50 * i)
                 for i, name in enumerate(("Ada", "Grace", "Edsger", "Barbara"))]
        victims = [Victims(node.port, call, answer_of(node, call), anew=False) for call in calls]
        wait_until("all are answered", lambda: all(v.answered > 1 for v in victims), 60)
        send_bad(node)
        before = [victim.answered for victim in victims]
        wait_until("all are answered again",
                   lambda: all(v.answered > n + 2 for v, n in zip(victims, before)), 60)
        end(victims)
        check_unharmed(victims)
        check_end(node)
        assert engine_logs(node).count("poisoned") == 3
        assert "it is not tried again" in engine_logs(node)
        assert "RequestsForgotten" not in node.told()
        print(f"{sum(victim.answered for victim in victims)} others were answered, none was cut")


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "a pair"])
def test_one_that_ends_whoever_sees_it_is_forgotten_and_the_service_goes_on(tiny_model, alone):
    with poisoned_pair(tiny_model, alone, "sight") as node:
        victims = Victims(node.port, GOOD, answer_of(node, GOOD))
        wait_until("good questions are answered", lambda: victims.answered > 3, 60)
        send_bad(node)
        before = victims.answered
        wait_until("good questions are answered again", lambda: victims.answered > before + 5, 60)
        victims.stop.set()
        victims.join(120)
        assert not victims.wrong, victims.wrong[0]
        check_end(node)
        logs = engine_logs(node)
        assert logs.count("poisoned") >= 3
        # All that was in flight; or, where it was at work on that one each time, that one.
        assert "RequestsForgotten" in node.told() or "it is not tried again" in logs
        print(f"{logs.count('poisoned')} engines ended of it, {victims.answered} others were "
              f"answered, {victims.cut} were cut")


def test_a_service_that_is_killed_again_and_again_loses_no_request_that_is_short(tiny_model):
    with TinyPair(tiny_model) as node:
        expected = answer_of(node, GOOD)
        victims = [Victims(node.port, GOOD, expected, anew) for anew in (True, False, False)]
        for _ in range(20):
            if "RequestsForgotten" in node.told():
                break
            active = node.active()
            kill(active["pid"])
            wait_until("another one answers", lambda pid=active["pid"]: all(node.both()[0])
                       and node.active()["pid"] != pid, 60)
            time.sleep(0.7)  # within what counts as the same row of ends
        else:
            end(victims)  # before their node goes
            pytest.skip("here nobody is ready soon enough to be killed within 2 s of answering")
        before = [victim.answered for victim in victims]
        wait_until("all are answered again", lambda: all(
            victim.answered > n + 2 for victim, n in zip(victims, before)), 60)
        end(victims)
        check_unharmed(victims)
