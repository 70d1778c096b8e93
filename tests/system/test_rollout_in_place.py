# SPDX-License-Identifier: Apache-2.0
"""Rollouts in place, over REST: a plain program has no socket to hand over, so it is stopped first.

Method: a real berthd with a program that sleeps; its command line in /proc says which document it runs by.
"""

import pathlib

import pytest
from node_under_test import Node, Refused, call, wait_until

DOCUMENT = """\
kind: Instance
metadata: {{name: job}}
spec:
  priorityClassName: batch
  restart: Always
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 64Mi}}}}
  engine: {{driver: process, command: [{program}, "{seconds}"]}}
"""


def document(seconds, program="/bin/sleep"):
    return DOCUMENT.format(seconds=seconds, program=program)


@pytest.fixture(name="node")
def running_node():
    with Node(policy=document(1000)) as node:
        node.wait_state("job", "Running")
        yield node


def roll_out(node, text, query="?inPlace=true"):
    return call(node.connection(), "POST", f"/v1/instances/job:rollout{query}", text,
                {"Content-Type": "application/yaml"})


def rollout(node):
    return node.get("/v1/instances/job/rollout")


def sleeps(node):
    pid = node.wait_state("job", "Running")["pid"]
    return pathlib.Path(f"/proc/{pid}/cmdline").read_text().split("\0")[1]


def test_without_a_socket_it_must_be_in_place_and_is_told_what_that_costs(node):
    begun = roll_out(node, document(1001), "")
    assert begun["error"]["reason"] == "NeedsInPlace"
    assert "nobody would serve for about" in begun["error"]["message"]
    dry = roll_out(node, document(1001), "?inPlace=true&dryRun=true")
    assert dry["state"] == "Succeeded" and sleeps(node) == "1000"
    with pytest.raises(Refused):
        rollout(node)
    with pytest.raises(Refused):
        roll_out(node, document(1001), "?inPlace=true&pause=true")


def test_what_it_has_come_to_is_kept_over_a_death_and_undone(node):
    assert roll_out(node, document(1001))["state"] == "Succeeded"
    done = wait_until("it is kept", lambda: (r := rollout(node)) and r["kept"] and r, 30)
    assert done["phase"] == "Complete" and done["gapMs"] > 0
    assert node.instance("job")["definedAt"].startswith("rollout/job")
    node.kill_daemon()
    node.start_daemon()
    assert sleeps(node) == "1001" and rollout(node)["phase"] == "Complete"
    assert node.post("/v1/instances/job:undoRollout", {"inPlace": True})["state"] == "Succeeded"
    wait_until("it is kept", lambda: (r := rollout(node))["kept"] and r["number"] == 2, 30)
    assert sleeps(node) == "1000"
    assert [one["instance"] for one in node.get("/v1/rollouts")["items"]] == ["job"]


def test_what_does_not_start_goes_back_to_the_document_before(node):
    roll_out(node, document(1001, "/bin/no-such-program"))
    wait_until("it has failed", lambda: rollout(node)["phase"] == "Failed", 30)
    assert rollout(node)["reason"] == "StartFailed"
    assert "no-such-program" in rollout(node)["message"]
    assert sleeps(node) == "1000"


def test_a_request_that_is_sent_again_begins_nothing_again(node):
    first = roll_out(node, document(1001), "?inPlace=true&requestId=once")
    assert roll_out(node, document(1001), "?inPlace=true&requestId=once")["id"] == first["id"]
    wait_until("it is kept", lambda: rollout(node)["kept"], 30)
    assert rollout(node)["number"] == 1
