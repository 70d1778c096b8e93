# SPDX-License-Identifier: Apache-2.0
"""However often its engines are replaced, no client of a chat service is refused, fails, or reads
another byte than from an undisturbed engine.

Method: a real node with real engines and a tiny model of random weights, and a crowd of clients;
`berth rollout` as people call it, in each of its ways in turn: over a surge or the standby, in place,
and undone. Small in ctest; tests/failover/proof.sh makes it 20 rollouts under 10,000 requests.
"""

import json
import os
import time

import pytest
from crowd import CLIENTS, Crowd, counted, taken_over, undisturbed
from node_under_test import wait_until
from test_rollout import mark_of
from tiny_pair import TinyPair

ROLLOUTS = int(os.environ.get("BERTH_ROLLOUTS", "3"))
REQUESTS = int(os.environ.get("BERTH_REQUESTS", "100"))
SUMMARY = os.environ.get("BERTH_ROLLOUTS_SUMMARY")  # a file, for who wants to keep it


def roll(node, number):
    """Makes the rollout of that number; its way, and the mark that who answers must have then."""
    way = ("beside", "in place", "beside", "undo")[number % 4]
    if way == "undo":
        node.roll("undo", "chat")
        return way, str(number - 2)
    node.roll_to({"MARK": str(number)}, *(["--in-place"] if way == "in place" else []))
    return way, str(number)


@pytest.mark.parametrize("alone", [True, False], ids=["surge", "standby"])
def test_whichever_way_it_is_rolled_every_client_reads_every_byte_once(tiny_model, alone):
    began, ways = time.monotonic(), []
    with TinyPair(tiny_model, alone=alone, environment={"MARK": "-"}) as node:
        expected, told = undisturbed(node.port)
        with Crowd(node.port, expected, told) as crowd:
            crowd.goes_on(CLIENTS)
            for number in range(ROLLOUTS):
                way, mark = roll(node, number)
                ways.append(way)
                active = wait_until("one answers", node.active)
                assert mark_of(active["pid"]) == mark, (way, number)
                crowd.goes_on(max(CLIENTS, REQUESTS * (number + 1) // ROLLOUTS - crowd.done.total()))
                assert not crowd.wrong, (way, number, crowd.wrong[0])
        assert not crowd.wrong, "\n".join(crowd.wrong)
        assert counted(node, "berth_engine_connections_cut_total") == 0
        assert taken_over(node) > 0
        generation = node.active()["generation"]
    summary = {"rollouts": {way: ways.count(way) for way in sorted(set(ways))}, "clients": CLIENTS,
               "answers": dict(crowd.done), "wrong": len(crowd.wrong), "generation": generation,
               "seconds": round(time.monotonic() - began)}
    print(json.dumps(summary))
    if SUMMARY:
        with open(SUMMARY, "a", encoding="utf-8") as file:
            print(json.dumps({"beside": "surge" if alone else "standby"} | summary), file=file)
