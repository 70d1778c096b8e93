# SPDX-License-Identifier: Apache-2.0
"""Less usual ways of an engine and its standby: a grant of its own, rollouts where there is no room,
undone and undone again, a surge that is promoted.

Method: a real node with real engines on a tiny model; answers are compared with an undisturbed one's.
"""

import threading

import pytest
from node_under_test import kill, wait_until
from streams import Connection, request, same_each_time
from tiny_pair import TinyPair, completion

MIB = 1 << 20
LONG = completion("a b c", stream=True, max_tokens=400)
OWN = """\
---
kind: Instance
metadata: {name: spare}
spec: {standbyOf: chat, standby: {grant: Reserved}}
"""


def ask(node, call=LONG):
    with Connection(("127.0.0.1", node.port)) as client:
        status, text = client.ask(*call)
        assert status == 200, text
        return same_each_time(text)


def mark_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as environment:
        words = environment.read().split(b"MARK=")
        return words[1].split(b"\0")[0].decode() if len(words) > 1 else ""


class Client(threading.Thread):
    """One long answer; whatever happens meanwhile."""

    def __init__(self, node):
        super().__init__()
        self.node, self.said, self.wrong = node, None, None
        self.start()

    def run(self):
        try:
            self.said = ask(self.node)
        except Exception as error:  # the test names it
            self.wrong = repr(error)

    def whole(self):
        self.join(120)
        assert not self.is_alive(), "a client waits for ever"
        assert self.wrong is None, self.wrong
        return self.said


@pytest.mark.parametrize("reserved", [True, False], ids=["Reserved", "TakeOver"])
def test_a_standby_takes_over_on_the_grant_that_its_document_says(tiny_model, reserved):
    more = {"spare": OWN} if reserved else {}
    with TinyPair(tiny_model, grant=("256Mi", "256Mi"), **more) as node:
        expected = ask(node)
        (active, standby), _ = node.both()
        assert active["grantBytes"] == 256 * MIB
        assert (standby["grantBytes"] == 256 * MIB) == reserved
        with Connection(("127.0.0.1", node.port)) as client:
            client.send(request(*LONG))
            assert client.header()[0] == 200
            said = client.chunk()
            kill(active["pid"])
            said += b"".join(client.chunks())
        assert same_each_time(said) == expected
        now = wait_until("the other answers with its whole grant", lambda: (
            one := node.active()) and one["name"] == "spare" and
            one["grantBytes"] == 256 * MIB and one)
        assert now["generation"] == active["generation"] + 1
        if reserved:
            assert "Grown" not in node.told(), "it had all of it already"
        else:
            wait_until("it has grown", lambda: "Grown" in node.told())


def test_without_room_beside_it_it_is_replaced_in_place_if_it_may_be_away(tiny_model):
    with TinyPair(tiny_model, alone=True, memory="560Mi", grant=("512Mi", "512Mi")) as node:
        expected, pid = ask(node), node.active()["pid"]
        document = node.root / "chat.yaml"
        document.write_text(node.documents({"MARK": "second"}).split("---")[1])
        refused = node.berth("rollout", "chat", "-f", str(document))
        assert refused.returncode == 1
        assert "--max-unavailable 1" in refused.stderr, refused.stderr
        assert node.active()["pid"] == pid
        client = Client(node)
        done = node.roll_to({"MARK": "second"}, "--max-unavailable", "1")
        assert "nobody served for" in done.stdout
        assert client.whole() == expected == ask(node)
        assert mark_of(node.active()["pid"]) == "second"


def test_undone_and_undone_again_it_is_what_it_was(tiny_model):
    with TinyPair(tiny_model, alone=True, environment={"MARK": "first"}) as node:
        expected = ask(node)
        node.roll_to({"MARK": "second"})
        for mark in ("first", "second"):
            wait_until("the documents keep it", lambda: node.get("/v1/instances/chat/rollout")["kept"])
            node.roll("undo", "chat")
            assert mark_of(wait_until("it answers", node.active)["pid"]) == mark
            assert ask(node) == expected


def test_a_surge_that_is_ready_can_be_promoted_before_its_rollout_goes_on(tiny_model):
    with TinyPair(tiny_model, alone=True, environment={"MARK": "first"}) as node:
        expected = ask(node)
        node.roll_to({"MARK": "second"}, "--pause")
        client = Client(node)
        promoted = node.berth("promote", "chat~next")
        assert promoted.returncode == 0, promoted.stderr
        assert client.whole() == expected
        node.roll("resume", "chat")
        assert mark_of(wait_until("chat answers", lambda: (
            one := node.active()) and one["name"] == "chat" and one)["pid"]) == "second"
        assert ask(node) == expected
        assert [one["name"] for one in node.get("/v1/instances")["items"]] == ["chat"]
