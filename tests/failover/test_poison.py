# SPDX-License-Identifier: Apache-2.0
"""A request that ends each engine which goes on with it is not tried for ever: it is forgotten, its
client is told by the end of its connection, and the service goes on for everybody else.

Method: a real node and engines with a preloaded fault (poison.c): an engine that serves while such a
request is in flight aborts."""

import threading
import time

import pytest

from conftest import BIN
from node_under_test import wait_until
from streams import Connection, request, same_each_time
from tiny_pair import TinyPair, completion

POISON = BIN.parent / "tests/libpoison.so"
GOOD = completion("Good morning", stream=True)
BAD = completion("Take this: <<poison>>", stream=True, max_tokens=400)


class Victims(threading.Thread):
    """Asks good questions one after the other, each on a connection of its own; one that ends early
    is asked again, as a caller would."""

    def __init__(self, port, expected):
        super().__init__()
        self.port, self.expected = port, expected
        self.stop, self.wrong, self.answered, self.cut = threading.Event(), [], 0, 0
        self.start()

    def run(self):
        while not self.stop.is_set():
            try:
                with Connection(("127.0.0.1", self.port)) as client:
                    status, body = client.ask(*GOOD)
            except (EOFError, ConnectionError):
                self.cut += 1
                continue
            except OSError as error:  # it waits for ever
                self.wrong.append(repr(error))
                return
            self.answered += 1
            if (status, same_each_time(body)) != self.expected:
                self.wrong.append((status, body))


@pytest.mark.parametrize("alone", [True, False], ids=["alone", "a pair"])
def test_a_request_that_ends_its_engines_is_forgotten_and_the_others_go_on(tiny_model, alone):
    assert POISON.exists(), "it is built with the tests"
    with TinyPair(tiny_model, alone=alone, environment={"LD_PRELOAD": str(POISON)}) as node:
        with Connection(("127.0.0.1", node.port)) as client:
            status, body = client.ask(*GOOD)
            expected = status, same_each_time(body)
        victims = Victims(node.port, expected)
        wait_until("good questions are answered", lambda: victims.answered > 3, 60)
        with Connection(("127.0.0.1", node.port)) as client:
            client.socket.settimeout(120)
            client.send(request(*BAD))
            with pytest.raises((EOFError, ConnectionError)):
                while True:
                    client.more()
        before = victims.answered
        wait_until("good questions are answered again", lambda: victims.answered > before + 5, 60)
        victims.stop.set()
        victims.join(120)
        assert not victims.wrong, victims.wrong[0]
        shown = node.shown()
        assert all(one["state"] != "Failed" for one in shown), shown
        starts = [one["starts"] for one in shown]
        assert 3 <= sum(starts) <= 12, starts
        time.sleep(3)  # and nothing of it is left that would end one more
        assert [one["starts"] for one in node.shown()] == starts
        logs = "".join(log.read_text() for log in node.root.glob("state/engines/*.log"))
        assert logs.count("poisoned") >= 3
        # All that was in flight; or, where each engine lived for a while, that one request.
        assert "RequestsForgotten" in node.told() or "it is not tried again" in logs
        print(f"{logs.count('poisoned')} engines ended of it, {victims.answered} others were "
              f"answered, {victims.cut} were cut")
