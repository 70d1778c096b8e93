# SPDX-License-Identifier: Apache-2.0
"""The promise as a whole: whichever process of a node is killed, no client of its chat service is
refused, fails, or reads another byte than from an undisturbed engine.

Method: a real node with real engines and a tiny model of random weights, and a crowd of clients. In
turn, in an order and at moments that the seed decides, the active engine, its standby, berthd and the
keeper are killed with SIGKILL, now and then both engines at once. Small in ctest;
tests/failover/proof.sh makes it 200 kills under 100 clients.

An engine is killed when it has been up for STEADY seconds: a service whose engines die sooner than
that five times in a row is given up, as it should be. berthd is killed when a keeper has everything.
"""

import collections
import json
import os
import pathlib
import random
import time

from crowd import CLIENTS, SEED, Crowd, counted, taken_over, undisturbed
from node_under_test import alive, kill, wait_until
from tiny_pair import TinyPair

KILLS = int(os.environ.get("BERTH_KILLS", "8"))
SUMMARY = os.environ.get("BERTH_PROOF_SUMMARY")  # a file, for who wants to keep it


class Reaper:
    """Kills one after the other; counts whom."""

    def __init__(self, node, dice):
        self.node, self.dice, self.killed = node, dice, collections.Counter()
        self.due = []

    def next(self):
        if not self.due:
            self.due = ["active", "standby", "berthd", "keeper"]
            self.dice.shuffle(self.due)
        whom = self.due.pop()
        active, standby = self.node.wait_steady()
        time.sleep(self.dice.uniform(0, 0.5))
        if whom in ("active", "standby"):
            both = self.dice.random() < 0.15
            first, second = (active, standby) if whom == "active" else (standby, active)
            self.kill(first["pid"])
            if both:
                time.sleep(self.dice.choice([0, 0.01, 0.1]))
                self.kill(second["pid"])
                self.killed["both"] += 1
        elif whom == "keeper":
            self.node.kill_keeper()
        else:
            self.node.kill_daemon()
            if self.dice.random() < 0.3:  # and an engine, while no berthd is there
                self.kill(active["pid"])
                self.killed["active without berthd"] += 1
            time.sleep(self.dice.uniform(0, 0.5))
            self.node.start_daemon()
        self.killed[whom] += 1
        return whom

    def kill(self, pid):
        kill(pid)
        wait_until(f"{pid} is gone", lambda: not alive(pid), 20, 0.002)


def test_whatever_is_killed_every_client_reads_every_byte_once(tiny_model):
    dice = random.Random(SEED)
    began = time.monotonic()
    with TinyPair(tiny_model) as node:
        expected, told = undisturbed(node.port)
        reaper = Reaper(node, dice)
        with Crowd(node.port, expected, told) as crowd:
            crowd.goes_on(CLIENTS)
            while sum(reaper.killed[whom] for whom in
                      ("active", "standby", "berthd", "keeper")) < KILLS:
                whom = reaper.next()
                crowd.goes_on(1)
                assert not crowd.wrong, (dict(reaper.killed), whom, crowd.wrong[0])
            crowd.goes_on(CLIENTS)
        assert not crowd.wrong, "\n".join(crowd.wrong)
        assert set(crowd.done) >= {"keeps_its_connection", "uses_the_package"}
        generation, went_on = node.active()["generation"], taken_over(node)
        assert went_on > 0
        assert counted(node, "berth_engine_connections_cut_total") == 0
    summary = {"seed": SEED, "kills": dict(reaper.killed), "clients": CLIENTS,
               "answers": dict(crowd.done), "wrong": len(crowd.wrong), "generation": generation, "connectionsTakenOver": went_on,
               "seconds": round(time.monotonic() - began)}
    print(json.dumps(summary))
    if SUMMARY:
        pathlib.Path(SUMMARY).write_text(json.dumps(summary, indent=1) + "\n")
