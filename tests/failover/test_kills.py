# SPDX-License-Identifier: Apache-2.0
"""Requests in flight survive their engine: each client gets every byte of its answer once.

Method: the server over a fake engine (each byte of the prompt is a token, repeated), killed with
SIGKILL at random moments, or handing over, and started again on the same descriptors, under clients
of every kind;
what they read is compared with what an undisturbed engine gives.
"""

import json
import os
import pathlib
import random
import socket
import struct
import threading
import time

import openai
import pytest

from byte_model import make_byte_model
from conftest import BIN
from socket_holder import SocketHolder
from streams import Connection, request, same_each_time

KILLS = int(os.environ.get("BERTH_KILLS", "40"))
CLIENTS = int(os.environ.get("BERTH_CLIENTS", "40"))


@pytest.fixture(scope="module")
def byte_model(tmp_path_factory):
    return make_byte_model(tmp_path_factory.mktemp("model"))


class Served(SocketHolder):
    """A fake engine behind a socket that outlives it."""

    def __init__(self, model, log, step_us=3000, **more):
        super().__init__(**more)
        self.command = [BIN / "berth-fake-engine", model, "--step-us", str(step_us),
                        "--poison", "<|poison|>"]
        self.log = open(log, "ab")
        self.engine = None

    def serve(self, wait=True):
        self.generation += 1
        self.engine = self.start([*self.command, "--generation", str(self.generation)],
                                 stdin=-1, stdout=-1, stderr=self.log, text=True)
        if wait:
            where = self.engine.stdout.readline()
            assert where, "the engine ended at once"
        return self.engine

    def fail_over(self):
        self.kill(self.engine)
        self.serve()

    def hand_over(self, seconds):
        """As for a rolling update: the old one finishes what it can in that time."""
        self.tell("leave late")
        time.sleep(seconds)
        self.tell("leave")
        self.engine.stdin.close()
        self.serve()

    def tell(self, command):
        self.engine.stdin.write(command + "\n")
        self.engine.stdin.flush()
        return json.loads(self.engine.stdout.readline())

    def metrics(self):
        with Connection(self.address) as client:
            text = client.ask("/metrics")[1].decode()
        return {line.rsplit(" ", 1)[0]: float(line.rsplit(" ", 1)[1])
                for line in text.splitlines() if not line.startswith("#")}

    def close(self):
        super().close()
        self.log.close()
        said = pathlib.Path(self.log.name).read_text()
        assert "Sanitizer" not in said and "runtime error" not in said, said[-8000:]


@pytest.fixture
def served(byte_model, tmp_path):
    with Served(byte_model, tmp_path / "engine.log") as holder:
        holder.serve()
        yield holder


def chat(text, **more):
    return "/v1/chat/completions", {"model": "fake", "messages": [{"role": "user", "content": text}],
                                    "ignore_eos": True, "max_tokens": 60, **more}


def completion(prompt, **more):
    return "/v1/completions", {"model": "fake", "prompt": prompt, "max_tokens": 60,
                               "ignore_eos": True, **more}


KINDS = [
    chat("tell me", stream=True),
    chat("with counts", stream=True, stream_options={"include_usage": True}),
    completion("abcdefg ", stream=True),
    completion(["several ", "prompts at once ", "x"], stream=True),
    completion("stop here: END and on ", stream=True, stop=["END"], max_tokens=200),
    completion("äöü €uro ", stream=True, max_tokens=90),
    chat("not streamed"),
    completion(["a whole ", "answer "], max_tokens=80),
    completion("<|poison|>"),
    completion("<|poison|>", stream=True),
    ("/v1/models", None),
    ("/v1/nothing", None),
    ("/v1/completions", {"model": "another", "prompt": "x"}),
]


@pytest.fixture(scope="module")
def undisturbed(byte_model, tmp_path_factory):
    with Served(byte_model, tmp_path_factory.mktemp("whole") / "engine.log", step_us=100) as holder:
        holder.serve()
        with Connection(holder.address) as client:
            answers = []
            for path, body in KINDS:
                status, text = client.ask(path, body)
                answers.append((status, same_each_time(text)))
            return answers


class Crowd:
    """Clients on threads of their own, until told to stop; what went wrong in any of them."""

    def __init__(self):
        self.stop = threading.Event()
        self.wrong = []
        self.done = 0
        self.threads = []

    def add(self, work, *arguments):
        def run():
            try:
                while not self.stop.is_set():
                    work(*arguments)
                    self.done += 1
            except Exception as error:  # whatever it is, the test names it
                self.wrong.append(f"{work.__name__}{arguments[1:]}: {error!r}")

        self.threads.append(threading.Thread(target=run))
        self.threads[-1].start()

    def join(self):
        self.stop.set()
        for thread in self.threads:
            thread.join(120)
            assert not thread.is_alive(), "a client waits for ever"


def test_every_answer_is_whole_while_engines_are_killed_and_replaced_at_random(served, undisturbed):
    chance = random.Random(os.environ.get("BERTH_SEED", "1"))
    print("seed", os.environ.get("BERTH_SEED", "1"))
    crowd = Crowd()
    open_client = openai.OpenAI(base_url=f"http://127.0.0.1:{served.address[1]}/v1", api_key="none",
                                max_retries=0, timeout=60)

    def keeps_its_connection(client, number):
        path, body = KINDS[number]
        status, text = client.ask(path, body)
        assert (status, same_each_time(text)) == undisturbed[number]

    def sends_in_pieces(client, number):
        path, body = KINDS[number]
        data = request(path, body)
        cuts = sorted(random.sample(range(1, len(data)), 4))
        for begin, end in zip([0, *cuts], [*cuts, len(data)]):
            client.send(data[begin:end])
            time.sleep(random.random() * 0.03)
        status, text = client.answer()
        assert (status, same_each_time(text)) == undisturbed[number]

    def sends_two_at_once(client, first, second):
        client.send(request(*KINDS[first]) + request(*KINDS[second]))
        for number in (first, second):
            status, text = client.answer()
            assert (status, same_each_time(text)) == undisturbed[number]

    def waits_to_be_told(client, number):
        path, body = KINDS[number]
        data = request(path, body, "Expect: 100-continue\r\n")
        head, text = data.split(b"\r\n\r\n", 1)
        client.send(head + b"\r\n\r\n")
        assert client.header()[0] == 100
        client.send(text)
        status, text = client.answer()
        assert (status, same_each_time(text)) == undisturbed[number]

    def uses_the_package(_):
        stream = open_client.chat.completions.create(
            model="fake", messages=[{"role": "user", "content": "tell me"}], stream=True,
            max_tokens=60, extra_body={"ignore_eos": True})
        text = "".join(part.choices[0].delta.content or "" for part in stream)
        assert text == told

    with Connection(served.address) as client:
        whole = json.loads(client.ask(*chat("tell me"))[1])
        told = whole["choices"][0]["message"]["content"]
    clients = [Connection(served.address) for _ in range(CLIENTS)]
    for number, client in enumerate(clients):
        kind = number % len(KINDS)
        if number < 2 * len(KINDS):
            crowd.add(keeps_its_connection, client, kind)
        elif number % 4 == 0:
            crowd.add(sends_two_at_once, client, kind, (kind + 5) % len(KINDS))
        elif number % 4 == 1:
            crowd.add(waits_to_be_told, client, chance.choice([0, 2, 6]))
        elif number % 4 == 2:
            crowd.add(sends_in_pieces, client, kind)
        else:
            crowd.add(uses_the_package, None)
    for number in range(KILLS):
        time.sleep(chance.random() * 0.2)
        if number % 5 == 4:
            served.fail_over()
            served.hand_over(chance.random() * 0.2)
        else:
            served.kill(served.engine)
            served.serve(wait=chance.random() < 0.7)  # the next may die before it serves
        if crowd.wrong:
            break
    crowd.join()
    for client in clients:
        client.close()
    assert not crowd.wrong, "\n".join(crowd.wrong)
    assert crowd.done > len(clients)


def killed_now_and_then(served, chance, kills, pause=0.15):
    for _ in range(kills):
        time.sleep(chance.random() * pause)
        served.kill(served.engine)
        served.serve(wait=chance.random() < 0.7)


def in_crowd(served, works, kills=KILLS // 2):
    """Each work again and again on a thread of its own, under kills; none may go wrong."""
    chance = random.Random(3)
    crowd = Crowd()
    for work in works:
        crowd.add(work)
    killed_now_and_then(served, chance, kills)
    crowd.join()
    assert not crowd.wrong, "\n".join(crowd.wrong)
    assert crowd.done >= len(works)


def test_a_client_that_reads_slowly_gets_every_byte(served):
    """Its window is small: the kernel takes parts of what is written."""
    path, body = completion("x" * 100, stream=True, max_tokens=400)
    with Connection(served.address) as client:
        expected = same_each_time(client.ask(path, body)[1])

    def reads_slowly():
        client = socket.socket()
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
        client.settimeout(60)
        client.connect(served.address)
        with client:
            client.sendall(request(path, body))
            connection = Connection.__new__(Connection)
            connection.socket, connection.pending = client, b""

            def slowly():
                time.sleep(random.random() * 0.01)
                connection.pending += client.recv(700)
            connection.more = slowly
            status, text = connection.answer()
            assert status == 200
            assert same_each_time(text) == expected
            assert text.count(b'"text":"x"') == 400

    in_crowd(served, [reads_slowly] * 4)


def test_large_answers_that_the_kernel_takes_in_parts_are_whole(served):
    """Not read until many are under way: the socket's buffer is full when the engine dies."""
    path, body = completion("y" * 300, max_tokens=200)
    with Connection(served.address) as client:
        expected = same_each_time(client.ask(path, body)[1])

    def sends_many_then_reads():
        with Connection(served.address) as client:
            count = 12
            client.socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            client.send(request(path, body) * count)
            time.sleep(0.3)
            for _ in range(count):
                status, text = client.answer()
                assert (status, same_each_time(text)) == (200, expected)

    in_crowd(served, [sends_many_then_reads] * 3)


def test_ends_of_every_kind_are_as_they_would_be(served):
    path, body = completion("abcd", stream=True, max_tokens=40)
    with Connection(served.address) as client:
        expected = same_each_time(client.ask(path, body)[1])

    def until_its_end(data):
        with Connection(served.address) as client:
            client.send(data)
            try:
                while True:
                    client.more()
            except EOFError:
                return client.pending

    def wants_it_closed():
        answer = until_its_end(request(path, body, "Connection: close\r\n"))
        head, chunks = answer.split(b"\r\n\r\n", 1)
        assert b"Connection: close" in head
        text, chunks = b"", chunks
        while True:
            size, chunks = chunks.split(b"\r\n", 1)
            if int(size, 16) == 0:
                break
            text, chunks = text + chunks[:int(size, 16)], chunks[int(size, 16) + 2:]
        assert same_each_time(text) == expected
        time.sleep(0.1)

    def speaks_http_1_0():
        data = request(path, body).replace(b"HTTP/1.1", b"HTTP/1.0", 1)
        text = until_its_end(data).split(b"\r\n\r\n", 1)[1]
        assert same_each_time(text) == expected
        time.sleep(0.1)

    def talks_nonsense():
        answer = until_its_end(b"NONSENSE\r\n\r\n")
        assert answer.startswith(b"HTTP/1.1 400 "), answer
        time.sleep(0.1)

    in_crowd(served, [wants_it_closed, speaks_http_1_0, talks_nonsense, wants_it_closed])


def chunked(data, cut):
    """The same request, its body in two chunks."""
    head, body = data.split(b"\r\n\r\n", 1)
    fields = [b"Transfer-Encoding: chunked" if line.lower().startswith(b"content-length") else line
              for line in head.split(b"\r\n")]
    pieces = b"".join(b"%x\r\n%s\r\n" % (len(piece), piece) for piece in (body[:cut], body[cut:]))
    return b"\r\n".join(fields) + b"\r\n\r\n" + pieces + b"0\r\n\r\n"


def test_idle_and_half_sent_connections_live_on(served):
    """Half of a head, of a body, of a chunk's size, of a chunk, of the end of all chunks; each engine
    gets a few bytes of it."""
    whole = request(*completion("later "))
    parts = chunked(whole, 20)
    body = parts.index(b"\r\n\r\n") + 4
    cases = [(whole, 70), (whole, len(whole) - 9), (parts, body + 1), (parts, body + 9),
             (parts, len(parts) - 6), (parts, len(parts) - 3)]
    with Connection(served.address) as idle, Connection(served.address) as other:
        expected = same_each_time(other.ask(*completion("later "))[1])
        clients = [Connection(served.address) for _ in cases]
        for (data, cut), client in zip(cases, clients):
            client.send(data[:cut])
        assert idle.ask("/v1/models")[0] == 200
        for number in range(3):
            time.sleep(0.1)
            served.fail_over()
            if number < 2:
                for (data, cut), client in zip(cases, clients):
                    client.send(data[cut + number:cut + number + 1])
        for (data, cut), client in zip(cases, clients):
            client.send(data[cut + 2:])
            status, text = client.answer()
            assert (status, same_each_time(text)) == (200, expected)
            client.close()
        assert idle.ask("/v1/models")[0] == 200


def test_many_connections_outlive_their_engine(served):
    clients = [Connection(served.address) for _ in range(400)]
    for client in clients:
        client.send(request("/v1/models"))
    for client in clients:
        assert client.answer()[0] == 200
    for client in clients[100:]:
        client.close()
    for _ in range(3):
        served.fail_over()
        more = [Connection(served.address) for _ in range(60)]
        for client in clients[:100] + more:
            client.send(request("/v1/models"))
        for client in clients[:100] + more:
            assert client.answer()[0] == 200
        for client in more:
            client.close()
    found = served.metrics()
    assert found["berth_engine_connections_cut_total"] == 0
    assert found["berth_engine_connections_taken_over_total"] >= 100
    for client in clients[:100]:
        client.close()


def test_a_client_that_left_while_nobody_served_costs_nothing(served):
    client = Connection(served.address)
    client.send(request(*completion("gone ", stream=True, max_tokens=400)))
    client.header()
    client.chunk()
    served.kill(served.engine)
    client.close()
    served.serve()
    for _ in range(400):
        if b"gone " not in served.journal_bytes_used() and served.tell("counts")["inFlight"] == 0:
            break
        time.sleep(0.05)
    else:
        pytest.fail("its request is still there")


def test_what_does_not_fit_is_served_and_counted(served):
    """256 KiB a slot: half of it for the request."""
    with Connection(served.address) as client:
        data = request("/v1/completions", {"model": "fake", "prompt": "z", "max_tokens": 5,
                                           "user": "u" * 200_000})
        client.send(data[:150_000])
        time.sleep(0.2)
        client.send(data[150_000:])
        status, text = client.answer()
        assert status == 200 and b"zzzzz" in text
        client.send(data + request(*completion("q", max_tokens=3)))
        assert client.answer()[0] == 200
        assert b"qqq" in client.answer()[1]
        assert client.ask("/v1/models")[0] == 200
    assert served.metrics()['berth_engine_connections_not_kept_total{cause="TooLarge"}'] == 2
    assert b"uuuuuuuu" not in served.journal_bytes_used()


def test_unix_sockets_outlive_their_engine_and_requests_do_not(byte_model, tmp_path):
    path = str(tmp_path / "chat.sock")
    with Served(byte_model, tmp_path / "engine.log", address=path) as served:
        served.serve()
        with Connection(path) as client:
            assert client.ask("/v1/models")[0] == 200
            client.send(request(*completion("u ", stream=True, max_tokens=400)))
            client.header()
            served.fail_over()
            with pytest.raises((EOFError, ConnectionError)):
                while True:
                    client.more()
        with Connection(path) as client:
            assert client.ask("/v1/models")[0] == 200
            text = client.ask("/metrics")[1].decode()
        assert 'not_kept_total{cause="NotOffered"} 0' not in text
    assert "this socket is not TCP's" in pathlib.Path(tmp_path / "engine.log").read_text()


def test_a_journal_of_any_content_does_not_stop_a_successor(served):
    chance = random.Random(5)
    path, body = completion("h", stream=True, max_tokens=400)
    for round_number in range(20):
        clients = [Connection(served.address) for _ in range(5)]
        for client in clients:
            client.send(request(path, body))
            client.header()
            client.chunk()
        served.kill(served.engine)
        size = os.fstat(served.journal).st_size
        slots = 1024 if size >= 4096 + 1024 * 65536 else (size - 4096) // 65536
        slot_bytes = (size - 4096) // slots // 4096 * 4096
        for _ in range(200):
            slot = chance.randrange(8)
            at = 4096 + slot * slot_bytes + chance.choice([chance.randrange(8, 400),
                                                           chance.randrange(slot_bytes)])
            os.pwrite(served.journal, struct.pack("<Q", chance.getrandbits(64)), at)
        served.serve()
        with Connection(served.address) as client:
            status, text = client.ask(*completion("fine ", max_tokens=5))
            assert status == 200 and b"fine " in text, round_number
        for client in clients:
            client.close()
