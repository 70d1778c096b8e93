# SPDX-License-Identifier: Apache-2.0
"""Clients of several kinds, the `openai` package among them, who ask a tiny pair for one answer after
the other, and compare every byte with what an undisturbed engine gave."""

import collections
import os
import random
import re
import threading
import time

import openai

from node_under_test import wait_until
from streams import Connection, request, same_each_time
from tiny_pair import chat, completion

CLIENTS = int(os.environ.get("BERTH_CLIENTS", "10"))
SEED = os.environ.get("BERTH_SEED", "1")

CALLS = [
    completion("Once upon a time", stream=True),
    completion("A long answer:", stream=True, max_tokens=150),
    completion("Sampled, with a seed", stream=True, temperature=0.8, seed=5),
    completion(["Two prompts", "in one request"], stream=True, max_tokens=20),
    completion("With counts", stream=True, stream_options={"include_usage": True}),
    completion("x" * 700, stream=True),
    chat("Tell me", stream=True),
    chat("Sampled chat", stream=True, temperature=1.2, seed=9),
    completion("Not streamed"),
    chat("Not streamed either", max_tokens=60),
]
STREAMED = [number for number, (_, body) in enumerate(CALLS) if body.get("stream")]


class Crowd:
    """Clients on threads of their own; the first thing that went wrong in each."""

    def __init__(self, port, expected, told):
        self.port, self.expected, self.told = port, expected, told
        self.stop, self.lock = threading.Event(), threading.Lock()
        self.wrong, self.done = [], collections.Counter()
        kinds = [self.keeps_its_connection, self.opens_one_for_each, self.keeps_its_connection,
                 self.uses_the_package, self.sends_two_at_once]
        self.threads = [threading.Thread(target=self.run, args=(kinds[n % len(kinds)], n))
                        for n in range(CLIENTS)]

    def run(self, work, number):
        dice = random.Random(f"{SEED} {number}")
        try:
            for _ in work(dice):
                with self.lock:
                    self.done[work.__name__] += 1
                if self.stop.is_set():
                    break
        except Exception as error:  # whatever it is, the test names it
            with self.lock:
                self.wrong.append(f"client {number} {work.__name__}: {error!r}")

    def check(self, number, answer):
        status, body = answer
        found = status, same_each_time(body)
        assert found == self.expected[number], (number, found, self.expected[number])

    def keeps_its_connection(self, dice):
        with Connection(("127.0.0.1", self.port)) as client:
            while True:
                number = dice.randrange(len(CALLS))
                self.check(number, client.ask(*CALLS[number]))
                yield

    def opens_one_for_each(self, dice):
        while True:
            number = dice.choice(STREAMED)
            with Connection(("127.0.0.1", self.port)) as client:
                self.check(number, client.ask(*CALLS[number]))
            yield

    def sends_two_at_once(self, dice):
        with Connection(("127.0.0.1", self.port)) as client:
            while True:
                numbers = dice.choices(range(len(CALLS)), k=2)
                client.send(b"".join(request(*CALLS[number]) for number in numbers))
                for number in numbers:
                    self.check(number, client.answer())
                    yield

    def uses_the_package(self, dice):
        with openai.OpenAI(base_url=f"http://127.0.0.1:{self.port}/v1", api_key="none",
                           max_retries=0, timeout=180) as client:
            while True:
                number = dice.choice([n for n in STREAMED if n in self.told])
                assert ask_by_package(client, number) == self.told[number], number
                yield

    def goes_on(self, answers):
        before = self.done.total()
        wait_until("clients are answered",
                   lambda: self.wrong or self.done.total() >= before + answers, 180 + answers)

    def __enter__(self):
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stop.set()
        end = time.monotonic() + 180
        for thread in self.threads:
            thread.join(max(0, end - time.monotonic()))
            if thread.is_alive():
                self.wrong.append("a client waits for ever")


def ask_by_package(client, number):
    """Pieces of text as the package hands them out."""
    path, body = CALLS[number]
    body = {key: value for key, value in body.items() if key not in ("stream", "ignore_eos")}
    extra = {"ignore_eos": True}
    if path.endswith("/chat/completions"):
        return [part.choices[0].delta.content or "" for part in client.chat.completions.create(
            **body, stream=True, extra_body=extra)]
    return [part.choices[0].text for part in client.completions.create(
        **body, stream=True, extra_body=extra) if part.choices]


def undisturbed(port):
    """What each call is answered with, and what the package makes of those that it is used for."""
    with Connection(("127.0.0.1", port)) as client:
        answers = [client.ask(*call) for call in CALLS]
        assert all(status == 200 for status, _ in answers), answers
        expected = [(status, same_each_time(body)) for status, body in answers]
        for call, known in zip(CALLS, expected):
            status, body = client.ask(*call)
            assert (status, same_each_time(body)) == known, "the same call gives the same answer"
    with openai.OpenAI(base_url=f"http://127.0.0.1:{port}/v1", api_key="none", max_retries=0,
                       timeout=180) as client:
        told = {number: ask_by_package(client, number) for number in STREAMED
                if not isinstance(CALLS[number][1].get("prompt"), list)}
    return expected, told


def taken_over(node):
    """Connections that a process went on with after another, by the engines' logs."""
    logs = "".join(log.read_text() for log in node.root.glob("state/engines/*.log"))
    return sum(map(int, re.findall(r"serves .* taken_over=(\d+)", logs)))


def counted(node, what):
    """A counter of the engine that answers; of its process alone."""
    with Connection(("127.0.0.1", node.port)) as client:
        text = client.ask("/metrics")[1].decode()
    return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines() if line.startswith(what))
