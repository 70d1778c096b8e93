# SPDX-License-Identifier: Apache-2.0
"""What batch gets of the time while online works: nothing, a share, as much as online's targets
leave, or all of it by turns, as the policy says; and each change of it reaches engines that run.

Method: a real berthd and two busy engines without a model; batch's steps are counted."""

import json
import os
import time

import pytest
from node_under_test import BIN, Node, wait_until
from test_policy import berth
from tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")

ENGINE = BIN.parent / "tests/busy_engine"
POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: node}}
spec:
  mode: {mode}
  priorityClasses:
    - {{name: online, value: 1000, preemptionPolicy: {preempts}, preemptible: false}}
    - {{name: batch, value: {value}, globalDefault: true, preemptionPolicy: Never}}
  sharing: {{compute: {compute}, batchShareWhenBusy: {share}}}
---
kind: Model
metadata: {{name: tiny}}
spec: {{path: {model}}}
"""
ONE = """\
---
kind: Instance
metadata: {{name: {name}}}
spec:
  model: tiny
  priorityClassName: {name}
  resources: {{requests: {{memory: 0}}, limits: {{memory: 1Mi}}}}
  engine: {{driver: berth, command: {command}, workingDirectory: /}}
"""
SLO = "  slo: {ttft: 200ms, tpot: 40ms, percentile: 99}\n"


class Busy:
    def __init__(self, folder):
        self.model, self.folder = folder / "tiny", folder
        make_tiny_model(self.model, 1)
        self.node = Node(policy=self.policy())

    def policy(self, share="0%", compute="Gate", slo=False, mode="Enforce",
               preempts="PreemptLowerPriority", value=100):
        text = POLICY.format(model=self.model, share=share, compute=compute, mode=mode,
                             preempts=preempts, value=value)
        text += self.one("online", [str(ENGINE), "online", str(self.folder)])
        text += SLO if slo else ""
        return text + self.one("batch", [str(ENGINE), "batch"])

    def one(self, name, command):
        return ONE.format(name=name, command=json.dumps(command))

    def apply(self, **changes):
        berth(self.node, "apply", "-f", "-", stdin=self.policy(**changes))

    def pids(self):
        return [self.node.instance(name)["pid"] for name in ("online", "batch")]

    def steps(self):
        return self.node.instance("batch")["counters"]["stepsDone"]

    def answered(self, after=0.0):
        time.sleep(after)
        return self.node.instance("online")["counters"]["requestsDone"]

    def moves(self):
        before = self.steps()
        wait_until("batch makes steps", lambda: self.steps() > before + 20, 30)

    def stands(self):
        # A report may be a second old; a share that is halved again and again has turns yet.
        def no_step():
            before = self.steps()
            time.sleep(2.5)
            return self.steps() == before
        wait_until("batch stands", no_step, 60)


@pytest.fixture(name="busy")
def two_busy_engines(tmp_path):
    busy = Busy(tmp_path)
    with busy.node as node:
        for name in ("online", "batch"):
            node.wait_state(name, "Running")
        pids = busy.pids()
        yield busy
        assert busy.pids() == pids, "a change was to reach those who run"


def test_batch_stands_while_online_works_unless_it_has_a_share(busy):
    busy.stands()
    busy.apply(share="30%")
    busy.moves()
    busy.apply(share="0%")
    busy.stands()


def test_with_slo_batch_gets_what_the_targets_leave_and_nothing_without_targets(busy):
    busy.apply(share="SLO")
    busy.stands()
    busy.apply(share="SLO", slo=True)
    busy.moves()


@pytest.mark.parametrize("what", ["slow", "late"])
def test_a_target_that_is_missed_takes_the_share_before_any_answer_has_ended(busy, what):
    busy.apply(share="SLO", slo=True)
    busy.moves()
    assert busy.answered() > 0
    (busy.folder / what).touch()
    busy.stands()
    assert busy.answered() == busy.answered(1.2), "none ends meanwhile"
    (busy.folder / what).unlink()
    busy.moves()


@pytest.mark.parametrize("change", [{"compute": "TimeSlice"}, {"mode": "Observe"},
                                    {"preempts": "Never"}, {"value": 1000}],
                         ids=lambda one: next(iter(one)))
def test_a_change_that_takes_the_gate_away_reaches_engines_that_run(busy, change):
    busy.stands()
    busy.apply(**change)
    busy.moves()
    busy.apply()
    busy.stands()
