#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""What a client notices when the engine that answers it is killed, and what the journal costs.

failover: a real berthd, an active engine and its standby. A client streams from a context of
--context tokens; somewhere in its answer the active is killed with SIGKILL; measured at the client
is how long it takes until the next token of the same stream on the same connection. Its whole text
is compared with that of an undisturbed run. Then the next kill, when another standby is ready.

Engines keep no prefixes (--no-prefix-cache): in bf16 a prompt of which a part is there already is
computed in other pieces, and its answer is as good but not the same.

journal: decode rate of two engines on one node, one with `engine.journal` and one without, in turns;
half-way the two change places, so that no process' own luck decides.

bench: the first of these by `berth bench failover`, on one pair, as operators run it on their nodes.

    failover.py --model DIR [--bin DIR] [--out DIR] [--device cuda|host] [--kills 100]
                [--parts failover,journal,bench] [--seconds 540] [--engine-args=--batch-invariant]

Prints a table; OUT/failover.jsonl has a line for each kill and each round, logs lie beside it. With
--batch-invariant every text must equal the undisturbed one; without, a continuation is as good but
need not be the same, so that what came before the kill must equal, and the number of tokens. Exit
status: 0 if all did.
"""

import argparse
import contextlib
import json
import os
import pathlib
import random
import selectors
import shutil
import socket
import statistics
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / name) for name in ("system", "failover")]

HEAD = """\
kind: Model
metadata: {{name: model}}
spec: {{path: {model}, pin: true}}
"""
ENGINE = """\
---
kind: Instance
metadata: {{name: {name}}}
spec:
  model: model
  priorityClassName: online
  resources: {{requests: {{memory: {grant}}}, limits: {{memory: {grant}}}}}
  restart: Always
  engine:
    command: [berth-engine, --no-prefix-cache, --served-model-name, model{words}]
    listen: "127.0.0.1:{port}"
    journal: {journal}
"""
STANDBY = """\
---
kind: Instance
metadata: {{name: spare{number}}}
spec: {{standbyOf: chat{number}, standby: {{grant: {standby}}}}}
"""


def quantile(values, share):
    """The smallest of them that is not less than this share of all."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * share // 100) - 1)]


class Bench:
    """One node, its documents, and the lines that are written."""

    def __init__(self, chosen, results):
        from node_under_test import Node, free_port  # its folders come from the environment
        self.chosen, self.results = chosen, results
        self.ports = [free_port() for _ in range(max(2, chosen.pairs))]
        self.vocabulary = json.loads(
            (chosen.model / "config.json").read_text())["vocab_size"]
        self.deadline = time.monotonic() + chosen.seconds
        self.Node = Node

    def engine(self, name, port, journal):
        words = "".join(f", {word}" for word in self.chosen.engine_args.split())
        return ENGINE.format(name=name, grant=self.chosen.grant, words=words, port=port,
                             journal=str(journal).lower())

    def head(self):
        return HEAD.format(model=self.chosen.model)

    @contextlib.contextmanager
    def node(self, documents, part):
        """One with these; its logs are kept, however it ends."""
        folder = self.chosen.out / part
        folder.mkdir(parents=True, exist_ok=True)
        with self.Node(memory=self.chosen.memory, policy=documents) as node:
            try:
                yield node
            finally:
                for path in [node.root / "berthd.log", *node.root.glob("state/**/*.log")]:
                    shutil.copy(path, folder)

    def write(self, **line):
        self.results.write(json.dumps(line) + "\n")
        self.results.flush()

    def left(self):
        return self.deadline - time.monotonic()

    def prompt(self, tokens, seed):
        """Ids that have a text of their own, where the tokenizer is of words."""
        least = 257 if self.vocabulary > 514 else 1
        return random.Random(seed).choices(range(least, self.vocabulary), k=tokens)

    def call(self, seed, tokens, context):
        return "/v1/completions", {
            "model": "model", "prompt": self.prompt(context, seed),
            "temperature": self.chosen.temperature,
            "max_tokens": tokens, "ignore_eos": True, "stream": True,
            "stream_options": {"include_usage": True}}


class Stream:
    """One streamed answer: its events, when each came, and what was done in its middle."""

    def __init__(self, port, call, at=None, then=None):
        from streams import Connection, request
        self.texts, self.times, self.usage, self.done = [], [], None, None
        with Connection(("127.0.0.1", port)) as client:
            client.send(request(*call))
            status, _ = client.header()
            assert status == 200, client.pending
            while chunk := client.chunk():
                for event in chunk.decode().split("\n\n"):
                    self.take(event.removeprefix("data: "))
                if then is not None and len(self.texts) >= at:
                    self.done = time.monotonic()
                    self.before = len(self.texts)
                    then()
                    then = None

    def take(self, event):
        if not event or event == "[DONE]":
            return
        event = json.loads(event)
        self.usage = event.get("usage") or self.usage
        if event["choices"] and event["choices"][0]["text"]:
            self.texts.append(event["choices"][0]["text"])
            self.times.append(time.monotonic())

    def text(self):
        return "".join(self.texts)

    def stood_ms(self):
        """From what was done to the end of the longest pause after it: what the dead one had sent
        already may arrive later than its death was ordered, and is not the next token."""
        times = [self.done, *(at for at in self.times[self.before:])]
        pauses = [(after - before, after) for before, after in zip(times, times[1:])]
        return 1e3 * (max(pauses)[1] - self.done)


STEADY = 2.5  # seconds; one that ends within 2 of its start, or of answering, is suspected


def is_whole(pair, grant):
    (active, standby), seconds = pair.both()
    return (active and standby and active["grantBytes"] >= grant
            and seconds[active["pid"]] > STEADY and active)


def whole_pair(pairs, number, grant):
    """Who answers in this pair, once one stands by there and it has its whole grant. All are looked
    at: how long each has been so counts."""
    from node_under_test import wait_until
    return wait_until("one answers with its whole grant, and one stands by",
                      lambda: [is_whole(pair, grant) for pair in pairs][number], 120)


def serving_since(log, generation):
    """When it said so, as seconds of the wall clock; None: it did not."""
    for line in log.read_text(errors="replace").splitlines():
        if f"generation={generation} taken_over=" in line:
            stamp = line.split(" ", 1)[0]
            return time.mktime(time.strptime(stamp[:19], "%Y-%m-%dT%H:%M:%S")) + float(stamp[19:23])
    return None


def failover(bench):
    chosen = bench.chosen
    documents = bench.head() + "".join(
        bench.engine(f"chat{number}", bench.ports[number], True) +
        STANDBY.format(number=number, standby=chosen.standby) for number in range(chosen.pairs))
    dice, lines, wrong = random.Random(chosen.seed), [], 0
    exact = "--batch-invariant" in chosen.engine_args
    calls = [bench.call(seed, chosen.tokens, chosen.context) for seed in range(chosen.prompts)]
    with bench.node(documents, "failover") as node:
        from node_under_test import kill, wait_until
        from serving_pair import Serving
        pairs = [Serving(node, (f"chat{number}", f"spare{number}"))
                 for number in range(chosen.pairs)]
        for name in (name for pair in pairs for name in pair.serving):
            node.wait_state(name, "Running", timeout=300)
        for pair in pairs:
            wait_until("somebody answers", pair.active)
        grant = pairs[0].active()["grantBytes"]
        whole_pair(pairs, 0, grant)
        whole = [Stream(bench.ports[0], call) for call in calls]
        again = [Stream(bench.ports[0], call) for call in calls]
        steady = sum(a.text() == b.text() for a, b in zip(whole, again))
        steps = [b - a for one in again for a, b in zip(one.times, one.times[1:])]
        print(f"undisturbed: {steady} of {len(calls)} prompts give the same text twice; a token "
              f"each {1e3 * statistics.median(steps):.2f} ms; {whole[0].usage}", flush=True)
        for number in range(chosen.kills):
            if bench.left() < 30:
                print(f"the time is over after {number} of {chosen.kills} kills")
                break
            turn, which = number % len(pairs), number % len(calls)
            pair, port = pairs[turn], bench.ports[turn]
            active = whole_pair(pairs, turn, grant)
            at = dice.randint(*chosen.after)
            wall = []
            stream = Stream(port, calls[which], at,
                            lambda: (wall.append(time.time()), kill(active["pid"])))
            now = wait_until("somebody else answers", lambda: (one := pair.active())
                             and one["pid"] != active["pid"] and one)
            expected, said = whole[which], stream.text()
            line = {"bench": "failover", "part": "kill", "number": number, "killed": active["name"],
                    "generation": now["generation"], "afterTokens": stream.before,
                    "ms": round(stream.stood_ms(), 3), "equal": said == expected.text(),
                    "prefixEqual": said.startswith("".join(expected.texts[:stream.before])),
                    "tokens": stream.usage["completion_tokens"],
                    "standby": chosen.standby, "exact": exact}
            served = serving_since(node.root / f"state/engines/{now['name']}.log",
                                   now["generation"])
            if served is not None:  # its log has milliseconds
                line["serveMs"] = round(1e3 * (served - wall[0]))
            right = (line["equal"] if exact else line["prefixEqual"]) and \
                line["tokens"] == chosen.tokens and stream.usage == expected.usage
            wrong += not right
            lines.append(line)
            bench.write(**line)
            if not right:
                print(f"wrong: {line}\n  said {said!r}\n  not  {expected.text()!r}", flush=True)
    report_kills(bench, lines, wrong)
    return wrong + (not lines)


def report_kills(bench, lines, wrong):
    if not lines:
        return print("no kill was made")
    print(f"\n{'FAILOVER':<34}{'P50':>9}{'P90':>9}{'P99':>9}{'WORST':>9}  N")
    for name, key in (("SIGKILL to the next token, ms", "ms"), ("of it until it serves, ms", "serveMs")):
        values = [line[key] for line in lines if key in line]
        if values:
            print(f"{name:<34}" + "".join(f"{quantile(values, share):>9.1f}"
                                          for share in (50, 90, 99, 100)) + f"  {len(values)}")
    equal = sum(line["equal"] for line in lines)
    print(f"texts equal to the undisturbed: {equal} of {len(lines)}; wrong: {wrong}", flush=True)
    values = [line["ms"] for line in lines]
    bench.write(bench="failover", part="summary", kills=len(lines), wrong=wrong, equal=equal,
                p50Ms=quantile(values, 50), p90Ms=quantile(values, 90), p99Ms=quantile(values, 99),
                worstMs=max(values), goalMs=200, context=bench.chosen.context,
                standby=bench.chosen.standby, engineArgs=bench.chosen.engine_args)


def decode_rate(port, calls):
    """Tokens a second of streams that run together, from when each has begun (or, where one ends
    before, the first has) to the first one's end. One thread reads all; an event is a token, or the
    words' usage at the end."""
    from streams import request
    waiting = selectors.DefaultSelector()
    try:
        for call in calls:
            client = socket.create_connection(("127.0.0.1", port), timeout=120)
            client.sendall(request(*call))
            waiting.register(client, selectors.EVENT_READ, {"events": 0, "tail": b""})
        begun = events_before = first = None
        while True:
            for key, _ in waiting.select(120):
                data = key.fileobj.recv(1 << 16)
                assert data, "a stream ended too early"
                state, text = key.data, key.data["tail"] + data
                state["events"] += text.count(b"data: ") - key.data["tail"].count(b"data: ")
                state["tail"] = text[-5:]
                first = first or (time.monotonic(), state["events"])
                if b"[DONE]" in text:
                    since, before = (begun, events_before) if begun else first
                    events = sum(one.data["events"] for one in waiting.get_map().values())
                    return max(events - before - 2, 1) / max(time.monotonic() - since, 1e-6)
            if begun is None and all(one.data["events"] for one in waiting.get_map().values()):
                begun = time.monotonic()
                events_before = sum(one.data["events"] for one in waiting.get_map().values())
    finally:
        for key in list(waiting.get_map().values()):
            key.fileobj.close()
        waiting.close()


def journal(bench):
    chosen, rates = bench.chosen, {}

    def documents(first):
        return bench.head() + bench.engine("one", bench.ports[0], first) + bench.engine(
            "two", bench.ports[1], not first)

    with bench.node(documents(True), "journal") as node:
        from node_under_test import wait_until
        for half in range(2):
            journals = (True, False) if half == 0 else (False, True)
            if half == 1:
                pids = [node.instance(name)["pid"] for name in ("one", "two")]
                node.put("/v1/policy", documents(False))
                wait_until("both are started anew", lambda: all(
                    node.instance(name)["pid"] not in (0, pid)
                    for name, pid in zip(("one", "two"), pids)), 120)
            for name in ("one", "two"):
                node.wait_state(name, "Running", timeout=300)
            for streams in chosen.streams:
                calls = [bench.call(seed, chosen.rate_tokens, 64) for seed in range(streams)]
                for port in bench.ports[:2]:
                    decode_rate(port, calls)  # graphs and blocks are there
                for number in range(chosen.rounds):
                    if bench.left() < 20:
                        break
                    turns = list(zip(bench.ports, journals))
                    for port, keeps in turns if number % 2 == 0 else turns[::-1]:
                        rate = decode_rate(port, calls)
                        rates.setdefault((streams, keeps), []).append(rate)
                        bench.write(bench="failover", part="journal", streams=streams, half=half,
                                    round=number, journal=keeps, tokensPerSecond=round(rate, 2))
    print(f"\n{'JOURNAL, TOKENS/S':<20}{'WITHOUT':>12}{'WITH':>12}{'COST %':>9}  N")
    for streams in chosen.streams:
        without, kept = rates.get((streams, False), []), rates.get((streams, True), [])
        if without and kept:
            cost = 100 * (1 - statistics.median(kept) / statistics.median(without))
            print(f"{streams:>3} streams         {statistics.median(without):>12.1f}"
                  f"{statistics.median(kept):>12.1f}{cost:>9.2f}  {len(kept)}", flush=True)
            bench.write(bench="failover", part="journalSummary", streams=streams, rounds=len(kept),
                        tokensPerSecondWithout=round(statistics.median(without), 2),
                        tokensPerSecondWith=round(statistics.median(kept), 2),
                        costPercent=round(cost, 3), goalPercent=1)
    return 0 if rates else 1


def own_bench(bench):
    chosen = bench.chosen
    documents = bench.head() + bench.engine("chat0", bench.ports[0], True) + STANDBY.format(
        number=0, standby=chosen.standby)
    exact = ["--exact"] if "--batch-invariant" in chosen.engine_args else []
    kills = max(min(chosen.kills, int(bench.left() / 5) - 6), 1)  # they take some 4 s each
    with bench.node(documents, "bench") as node:
        for name in ("chat0", "spare0"):
            node.wait_state(name, "Running", timeout=300)
        done = subprocess.run(
            [chosen.bin / "berth", "--admin", node.root / "run/admin.sock", "bench", "failover",
             "--json", "--instance", "chat0", "--rounds", str(kills), "--context",
             str(chosen.context), "--tokens", str(chosen.tokens), *exact],
            stdout=subprocess.PIPE, text=True, timeout=max(bench.left(), 30), check=False)
    print(done.stdout, flush=True)
    bench.results.write(done.stdout)
    return done.returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--model", type=pathlib.Path, required=True)
    add("--bin", type=pathlib.Path, default=ROOT / "build/release/bin")
    add("--out", type=pathlib.Path, default=pathlib.Path("/tmp/berth-failover"))
    add("--device", choices=["cuda", "host"], default="cuda")
    add("--memory", default="4Gi", help="of a host device")
    add("--grant", default="8Gi", help="of the one that answers")
    add("--standby", choices=["TakeOver", "Reserved"], default="TakeOver")
    add("--engine-args", default="", help="more words for berth-engine")
    add("--parts", default="failover,journal")
    add("--seconds", type=float, default=540, help="of all together; fewer kills where it ends")
    add("--seed", type=int, default=1)
    add("--kills", type=int, default=100)
    add("--pairs", type=int, default=1, help="killed in turn: one recovers while others are killed")
    add("--context", type=int, default=500, help="tokens of the prompt")
    add("--tokens", type=int, default=96, help="of each answer")
    add("--after", type=int, nargs=2, default=(4, 32), help="tokens that have come at the kill")
    add("--temperature", type=float, default=0, help="others make texts that differ each time")
    add("--prompts", type=int, default=4)
    add("--rounds", type=int, default=4, help="of the journal's cost, each half")
    add("--rate-tokens", type=int, default=400)
    add("--streams", type=int, nargs="+", default=(1, 16))
    chosen = parser.parse_args()
    chosen.model, chosen.out = chosen.model.resolve(), chosen.out.resolve()
    os.environ.update(BERTH_BIN_DIR=str(chosen.bin.resolve()), BERTH_MODEL_DIR=str(chosen.model),
                      BERTH_TEST_DEVICE=chosen.device)
    chosen.out.mkdir(parents=True, exist_ok=True)
    known = {"failover": failover, "journal": journal, "bench": own_bench}
    wrong = 0
    with open(chosen.out / "failover.jsonl", "w", encoding="utf-8") as results:
        bench = Bench(chosen, results)
        for name in chosen.parts.split(","):
            wrong += known[name](bench)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
