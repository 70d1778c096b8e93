# SPDX-License-Identifier: Apache-2.0
"""A node whose engines share a socket: who answers it, who stands by."""

import json
import os
import time

from node_under_test import Node, call, kill, wait_until


class Serving:
    """Of these instances of a node one answers, and the others stand by."""

    def __init__(self, node, names):
        self.node, self.serving = node, names

    def shown(self):
        return [self.node.instance(name) for name in self.serving]

    def _first(self, fits):
        for one in self.shown():
            if one["state"] == "Running" and one["connected"] and fits(one):
                return one
        return None

    def active(self):
        """Who answers, and has been told so."""
        return self._first(lambda one: one["role"] == "Active")

    def standby(self):
        return self._first(lambda one: one["substate"] == "Standby")

    def both(self):
        """The one that answers and one that stands by, None for who is not there; and, by pid, for
        how many seconds each has been seen as that."""
        found = self.active(), self.standby()
        seen = self.__dict__.setdefault("seen", {})
        now = time.monotonic()
        return found, {one["pid"]: now - seen.setdefault((one["pid"], one["substate"]), now)
                       for one in found if one}


class ServingPair(Serving, Node):
    """A node with such a pair."""

    serving = ("chat", "spare")

    def __init__(self, *words, **more):
        self.node = self
        Node.__init__(self, *words, **more)

    def wait_pair(self, timeout=120):
        """The two, as soon as one answers and one stands by."""
        def there():
            found, _ = self.both()
            return found if all(found) else None
        return wait_until("one answers and one stands by", there, timeout)

    def told(self):
        """The reasons of all events."""
        lines = call(self.connection(), "GET", "/v1/events?since=0")
        lines = lines.splitlines() if isinstance(lines, str) else [json.dumps(lines)]
        return [event["reason"] for event in map(json.loads, lines) if "reason" in event]

    def keeper(self):
        """Its pid, 0 while there is none, and how many descriptors it holds."""
        pid = self.get("/v1/node")["keeper"]["pid"] or 0
        try:
            return pid, len(os.listdir(f"/proc/{pid}/fd"))
        except OSError:
            return 0, 0

    def kill_keeper(self):
        """And waits until another one holds as much: till then berthd alone has it."""
        pid, held = self.keeper()
        kill(pid)

        def is_back():
            now, holds = self.keeper()
            return now not in (0, pid) and holds >= held
        wait_until(f"another keeper holds {held} descriptors", is_back, 30)
