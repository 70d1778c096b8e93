# SPDX-License-Identifier: Apache-2.0
"""berth-engine stands by, takes over, hands over, and its successors' answers equal an undisturbed
engine's.

Method: the test plays berthd and keeper of one instance, with a real (small) model; answers are
compared byte for byte, greedy and sampled.
"""

import os
import threading
import time

import openai
import pytest

from played_node import PlayedNode
from streams import Connection, request, same_each_time

TOKENS = 32
CALLS = [
    ("/v1/completions", {"model": "smollm2", "prompt": "The capital of France is", "temperature": 0,
                         "max_tokens": TOKENS, "ignore_eos": True, "stream": True}),
    ("/v1/completions", {"model": "smollm2", "prompt": "Once upon a time", "temperature": 0.9,
                         "seed": 7, "max_tokens": TOKENS, "ignore_eos": True, "stream": True}),
    ("/v1/chat/completions", {"model": "smollm2", "temperature": 0.7, "seed": 11,
                              "messages": [{"role": "user", "content": "Name three colours."}],
                              "max_tokens": TOKENS, "ignore_eos": True}),
    ("/v1/completions", {"model": "smollm2", "prompt": ["One, two,", "A, B, C,"], "temperature": 0,
                         "max_tokens": TOKENS // 2, "stream": True,
                         "stream_options": {"include_usage": True}}),
]
FLAGS = ("--batch-invariant", "--max-context", "512", "--max-batch", "4")


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    with PlayedNode(tmp_path_factory.mktemp("whole"), *FLAGS) as node:
        node.serving()
        answers = []
        with Connection(node.address) as client:
            for path, body in CALLS:
                status, text = client.ask(path, body)
                assert status == 200, text
                answers.append(same_each_time(text))
        return answers


@pytest.fixture
def node(tmp_path):
    with PlayedNode(tmp_path, *FLAGS) as played:
        yield played


class Asked:
    """All calls at once, each on a connection of its own."""

    def __init__(self, node):
        self.answers = [None] * len(CALLS)
        self.threads = []
        for number in range(len(CALLS)):
            self.threads.append(threading.Thread(target=self._ask, args=(node.address, number)))
            self.threads[-1].start()

    def _ask(self, address, number):
        try:
            with Connection(address) as client:
                self.answers[number] = same_each_time(client.ask(*CALLS[number])[1])
        except Exception as error:
            self.answers[number] = repr(error)

    def wait(self):
        for thread in self.threads:
            thread.join(240)
        return self.answers


def tokens_done(engine, count):
    engine.await_report(lambda report: report["tokens_done"] >= count)


def test_a_standby_accepts_nothing_until_it_is_told_to_serve(node, undisturbed):
    standby = node.standby()
    assert standby.hello["generation"] == 0
    assert standby.state["endpoint"] == f"http://127.0.0.1:{node.address[1]}"
    with Connection(node.address) as client:  # into the backlog
        client.send(request(*CALLS[0]))
        client.socket.settimeout(0.5)
        with pytest.raises(TimeoutError):
            client.more()
        client.socket.settimeout(60)
        done = node.promote(standby)
        assert "error" not in done or done["error"] is None, done
        assert standby.await_state("Ready", "")
        assert same_each_time(client.answer()[1]) == undisturbed[0]


def test_only_one_serves_and_only_later_generations(node):
    first = node.serving()
    second = node.standby()
    refused = node.promote(second)
    assert refused["error"]["reason"] == "Fenced", refused
    assert str(first.process.pid) in refused["error"]["message"]
    first.kill()
    stale = second.order("Serve", generation=1)
    assert stale["error"]["reason"] == "StaleGeneration", stale
    assert not second.order("Serve", generation=5).get("error")
    with Connection(node.address) as client:
        assert client.ask("/v1/models")[0] == 200


def test_a_standby_goes_on_in_the_streams_of_one_that_was_killed(node, undisturbed):
    active, standby = node.serving(), node.standby()
    asked = Asked(node)
    for goal in (12, 30):
        tokens_done(active, goal)
        active.kill()
        assert not node.promote(standby).get("error")
        active, standby = standby, node.standby()
    assert asked.wait() == undisturbed
    with Connection(node.address) as client:
        text = client.ask("/metrics")[1].decode()
    assert "berth_engine_connections_cut_total 0" in text


def test_one_that_is_started_anew_goes_on_too(node, undisturbed):
    active = node.serving()
    asked = Asked(node)
    tokens_done(active, 20)
    active.kill()
    node.serving()
    assert asked.wait() == undisturbed


@pytest.mark.parametrize("grace_ms", [0, 300, 60000])
def test_a_hand_over_leaves_what_has_not_ended_to_the_successor(node, undisturbed, grace_ms):
    active, standby = node.serving(), node.standby()
    idle = Connection(node.address)
    assert idle.ask("/v1/models")[0] == 200
    asked = Asked(node)
    tokens_done(active, 10)
    done = active.order("Stop", grace_ms=grace_ms, hand_over=True)
    assert not done.get("error")
    assert not node.promote(standby).get("error"), "the fence is open before the process has ended"
    assert asked.wait() == undisturbed
    assert active.process.wait(60) == 0
    assert idle.ask("/v1/models")[0] == 200
    idle.close()


def test_a_plain_stop_ends_what_is_in_flight_and_leaves_all_others_to_the_next(node, undisturbed):
    active = node.serving()
    idle = Connection(node.address)
    assert idle.ask("/v1/models")[0] == 200
    path, body = CALLS[0]
    body = {**body, "max_tokens": 150}  # for long enough to be in flight all the while
    with Connection(node.address) as begun, Connection(node.address) as late:
        begun.send(request(path, body))
        assert begun.header()[0] == 200
        stop = active.command("Stop", grace_ms=240_000)
        assert active.order("Serve", generation=9)["error"]["reason"] == "Stopping"
        late.send(request(*CALLS[1]))  # into the backlog: nobody refuses it
        ended = b"".join(begun.chunks())
        assert not active.answer_to(stop).get("error")
        assert active.process.wait(60) == 0
        node.serving()
        status, answer = late.answer()
        assert status == 200 and same_each_time(answer) == undisturbed[1]
    assert same_each_time(idle.ask(path, body)[1]) == same_each_time(ended)
    idle.close()


def test_a_signal_leaves_what_is_in_flight_to_the_next_process(node):
    active = node.serving()
    path, body = CALLS[0]
    body = {**body, "max_tokens": 150}
    clients = [Connection(node.address) for _ in range(4)]
    for client in clients:
        client.send(request(path, body))
    tokens_done(active, 20)
    active.process.terminate()
    assert active.process.wait(60) == 0
    node.serving()
    answers = [client.answer() for client in clients]
    assert {status for status, _ in answers} == {200}
    assert len({same_each_time(text) for _, text in answers}) == 1
    assert clients[0].ask(path, body)[1].count(b"data: ") == answers[0][1].count(b"data: ")
    assert same_each_time(clients[1].ask(path, body)[1]) == same_each_time(answers[0][1])
    for client in clients:
        client.close()


def test_a_plain_stop_answers_with_errors_and_wipes_the_journal(node):
    active = node.serving()
    with Connection(node.address) as client:
        client.send(request("/v1/completions", {
            "model": "smollm2", "prompt": "a most secret prompt", "max_tokens": 400,
            "ignore_eos": True, "stream": True, "temperature": 0}))
        client.header()
        client.chunk()
        assert b"most secret" in node.journal_bytes_used()
        active.order("Stop", grace_ms=100)
        assert b"the engine stopped before the answer was whole" in b"".join(client.chunks())
    active.process.wait(60)
    assert b"most secret" not in node.journal_bytes_used()


def test_prompts_do_not_stay_in_the_journal(node):
    node.serving()
    with Connection(node.address) as client:
        for path, body in CALLS:
            assert client.ask(path, body)[0] == 200
        assert client.ask("/v1/models")[0] == 200  # the one before is over for certain
        found = node.journal_bytes_used()
    for words in (b"capital of France", b"upon a time", b"three colours", b"One, two"):
        assert words not in found


def test_without_a_journal_the_socket_alone_outlives_the_engine(tmp_path, undisturbed):
    with PlayedNode(tmp_path, *FLAGS, keeps=False) as node:
        active = node.serving()
        with Connection(node.address) as client:
            client.send(request(*CALLS[0]))
            client.header()
            active.kill()
            with pytest.raises((EOFError, ConnectionError)):
                while True:
                    client.more()
        with Connection(node.address) as client:  # waits in the backlog
            client.send(request(*CALLS[0]))
            node.serving()
            assert same_each_time(client.answer()[1]) == undisturbed[0]


def test_the_openai_client_sees_nothing_of_it(node):
    active, standby = node.serving(), node.standby()
    client = openai.OpenAI(base_url=f"http://127.0.0.1:{node.address[1]}/v1", api_key="none",
                           max_retries=0, timeout=120)
    def text():
        stream = client.completions.create(model="smollm2", prompt="The sea is", temperature=0,
                                           max_tokens=TOKENS, stream=True,
                                           extra_body={"ignore_eos": True})
        parts = []
        for part in stream:
            parts.append(part.choices[0].text)
            if len(parts) == 5 and not killed:
                killed.append(True)
                active.kill()
                assert not node.promote(standby).get("error")
        return "".join(parts)

    killed = []
    first = text()
    assert killed
    assert text() == first


def test_reports_tell_how_long_the_step_under_way_has_taken(node):
    active = node.serving()
    with Connection(node.address) as client:
        client.send(request("/v1/completions", {
            "model": "smollm2", "prompt": "x", "max_tokens": 300, "ignore_eos": True,
            "stream": True, "temperature": 0}))
        client.header()
        active.await_report(lambda report: report["step_ms"] > 0)
    active.await_report(lambda report: report["requests_running"] == 0)
    active.await_report(lambda report: report["step_ms"] == 0)
