# SPDX-License-Identifier: Apache-2.0
"""One that hands over leaves what its successor can go on with, and finishes the rest beside it.

Method: the engine's server over the fake engine, as in test_kills.py; answers are compared byte for
byte with those of one that nobody disturbed. Nothing waits for a time but where a limit is the matter.
"""

import resource
import select

import pytest
from streams import Connection, request, same_each_time
from test_kills import Served, byte_model, completion  # noqa: F401 (a fixture)

LONG = completion("abcdefg ", stream=True, max_tokens=200)
# More than a slot has room for: such a request is not kept.
LARGE = completion("large ", stream=True, max_tokens=200, ignored="x" * 600_000)


class Two(Served):
    """One that serves, and one after it, at once."""

    def __init__(self, model, log, **more):
        super().__init__(model, log, **more)
        self.before = None

    def serve_as(self, identity=""):
        words = ["--identity", identity] if identity else []
        self.command += words
        self.serve()
        del self.command[len(self.command) - len(words):]

    def leave(self, what, identity=""):
        """It hands over, and lives on."""
        self.before = self.engine
        self.tell(f"leave {what}".strip())
        self.serve_as(identity)

    def ended(self, engine):
        engine.stdin.close()
        return engine.wait(60)


@pytest.fixture
def two(byte_model, tmp_path):  # noqa: F811
    with Two(byte_model, tmp_path / "engine.log") as holder:
        holder.serve_as("one")
        yield holder


def begin(two, call):
    """A connection whose answer has begun."""
    client = Connection(two.address)
    client.send(request(*call))
    status, _ = client.header()
    assert status == 200
    client.first = client.chunk()
    return client


def rest(client):
    body = client.first
    while data := client.chunk():
        body += data
    return same_each_time(body)


def undisturbed(two, call):
    with Connection(two.address) as client:
        return same_each_time(client.ask(*call)[1])


def in_flight(engine, two):
    """How many requests that one is at work on."""
    now, two.engine = two.engine, engine
    try:
        return two.tell("counts")["inFlight"]
    finally:
        two.engine = now


def test_a_successor_of_another_identity_ends_what_was_begun_and_nothing_else(two):
    idle = Connection(two.address)
    assert idle.ask("/v1/models")[0] == 200
    client = begin(two, LONG)
    two.kill(two.engine)
    two.serve_as("two")
    with pytest.raises((EOFError, ConnectionError)):
        rest(client)
    assert idle.ask("/v1/models")[0] == 200
    found = two.metrics()
    assert found["berth_engine_requests_of_another_identity_total"] == 1
    assert found["berth_engine_connections_cut_total"] == 1
    again = begin(two, LONG)  # and its own are gone on with
    two.kill(two.engine)
    two.serve_as("two")
    whole = rest(again)
    assert whole == undisturbed(two, LONG)


def test_requests_are_finished_while_another_identity_answers_already(two):
    whole = undisturbed(two, LONG)
    idle = Connection(two.address)
    assert idle.ask("/v1/models")[0] == 200
    clients = [begin(two, LONG) for _ in range(5)]
    reading = Connection(two.address)
    half = request(*LONG)
    reading.send(half[:100])
    two.tell("freeze")
    two.leave("connections", "two")
    assert in_flight(two.before, two) == 5
    assert undisturbed(two, LONG) == whole, "the next one answers new ones"
    assert idle.ask("/v1/models")[0] == 200, "and those that had no request under way"
    reading.send(half[100:])
    assert same_each_time(reading.answer()[1]) == whole
    now, two.engine = two.engine, two.before
    two.tell("thaw")
    two.engine = now
    assert [rest(client) for client in clients] == [whole] * 5
    for client in clients:
        with pytest.raises((EOFError, ConnectionError)):
            client.ask("/v1/models")  # with its request the connection ended
    assert two.ended(two.before) == 0
    assert two.metrics()["berth_engine_requests_of_another_identity_total"] == 0


def test_what_is_not_kept_is_finished_by_the_one_before(two):
    kept, large = undisturbed(two, LONG), undisturbed(two, LARGE)
    clients = [begin(two, LONG), begin(two, LARGE), begin(two, LARGE)]
    two.tell("freeze")
    two.leave("", "one")
    assert rest(clients[0]) == kept, "the next one goes on with it, though the other still has work"
    now, two.engine = two.engine, two.before
    assert two.tell("thaw")["inFlight"] == 2
    two.engine = now
    assert [rest(client) for client in clients[1:]] == [large] * 2
    assert two.ended(two.before) == 0


def test_where_nothing_is_left_all_ends_here_and_nothing_stays_in_the_journal(two):
    whole = undisturbed(two, LONG)
    idle = Connection(two.address)
    assert idle.ask("/v1/models")[0] == 200
    client = begin(two, LONG)
    reading = Connection(two.address)
    half = request(*LONG)
    reading.send(half[:100])
    two.tell("counts")
    two.leave("nothing", "one")
    assert b"abcdefg" not in two.journal_bytes_used()
    with pytest.raises((EOFError, ConnectionError)):
        idle.ask("/v1/models")
    reading.send(half[100:])
    assert same_each_time(reading.answer()[1]) == whole
    assert rest(client) == whole
    assert two.metrics()["berth_engine_connections_taken_over_total"] == 0
    assert two.ended(two.before) == 0


def test_one_that_leaves_late_finishes_first_and_then_leaves_the_rest(two):
    whole = undisturbed(two, LONG)
    short = completion("xyz ", stream=True, max_tokens=3)
    answer = undisturbed(two, short)
    idle, first, second = Connection(two.address), begin(two, short), begin(two, LONG)
    assert rest(first) == answer
    two.tell("leave late")
    two.before = two.engine
    two.tell("freeze")
    two.tell("leave")
    two.serve_as("one")
    assert rest(second) == whole
    for client in (idle, first):
        assert client.ask("/v1/models")[0] == 200
    assert two.ended(two.before) == 0


MOST = 1024  # connections of a server


@pytest.fixture
def many_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < 4 * MOST:
        pytest.skip(f"this user may open {hard} descriptors")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("many_descriptors")
def test_whoever_finds_it_full_waits_and_idle_connections_make_room(two):
    two.kill(two.engine)
    two.serve_as("one")
    idle = [Connection(two.address) for _ in range(MOST)]
    for client in idle:
        client.send(request("/v1/models"))
    assert [client.answer()[0] for client in idle] == [200] * MOST
    late = [Connection(two.address) for _ in range(40)]
    for client in late:
        client.send(request("/v1/models"))
    assert [client.answer()[0] for client in late] == [200] * len(late), "none is refused"
    poll = select.poll()  # select() takes no descriptor beyond 1023
    for client in idle:
        poll.register(client.socket, select.POLLIN)
    gone = {fd for fd, _ in poll.poll(0)}
    assert len(gone) == len(late), "as many as had to made room"
    assert not any(client.socket.fileno() in gone for client in idle[MOST // 2:]), \
        "the longest idle first"


@pytest.mark.usefixtures("many_descriptors")
def test_those_that_wait_because_it_is_full_wait_for_the_next_one_too(two):
    two.kill(two.engine)
    two.listener.listen(2 * MOST)
    waiting = [Connection(two.address) for _ in range(MOST + 200)]
    for client in waiting:
        client.send(request("/v1/models", more="Connection: close\r\n"))
    two.serve_as("one")
    assert [client.answer()[0] for client in waiting] == [200] * len(waiting)
