# SPDX-License-Identifier: Apache-2.0
"""Sets that engines make themselves: whoever dies at whatever point, one set or none is there."""

import pytest
from node_under_test import MODEL, alive, call, wait_until
from publishing import PUBLISHER, bare_node, publisher

LARGE = 6_000_000  # bytes of the published set, at least


def published(node):
    return [w for w in node.weights() if w.get("published")]


def free(node):
    return node.device()["freeBytes"]


def metrics(node):
    return call(node.connection(), "GET", "/metrics")


def test_what_was_published_is_what_every_later_engine_sees_also_after_a_restart():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", fill=7) as first:
            first.await_step("go")
            first.await_step("sealed")
            first.await_step("checked")
            (one,) = published(node)
            assert one["tensors"] == 7 and one["model"] == "tiny" and one["leases"] == 1
            assert free(node) == before - one["bytes"] and one["bytes"] >= LARGE
            assert node.post(f"/v1/weights/{one['id']}:verify")["mismatchedCount"] == 0
            node.kill_daemon()
            node.start_daemon()
            with publisher(node, "publish", fill=7) as second:
                assert second.await_step("resident") == one["id"]
                second.await_step("checked")
                assert second.end() == 0
            assert first.end() == 0
        with publisher(node, "attach", fill=7, id=one["id"]) as third:
            third.await_step("attached")
            third.await_step("checked")
        wait_until("nobody holds it", lambda: published(node)[0]["leases"] == 0, 20)
        node.finish(node.post(f"/v1/weights/{one['id']}:evict"))
        assert free(node) == before
        assert "berth_sets_published_total 0" in metrics(node)  # by this berthd


@pytest.mark.parametrize("step", ["go", "half"])
def test_a_publisher_killed_before_it_sealed_leaves_nothing(step):
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", until=step) as one:
            one.await_step("go")
            if step == "half":
                one.await_step("half")
            assert free(node) <= before - LARGE, "its bytes are counted before they exist"
            one.kill()
        wait_until("the ledger is as before", lambda: free(node) == before, 20)
        assert not node.weights()
        events = call(node.connection(), "GET", "/v1/events?since=0")
        assert "PublisherDied" in str(events)


def test_a_publisher_killed_right_after_it_sealed_leaves_its_set():
    with bare_node() as node:
        with publisher(node, "publish") as one:
            one.await_step("go")
            identity = one.await_step("sealed")
            one.kill()
        with publisher(node, "attach", id=identity) as other:
            other.await_step("attached")
            other.await_step("checked")
            assert other.end() == 0


def test_of_publishers_of_one_fingerprint_one_wins_and_all_have_its_bytes():
    with bare_node() as node:
        started = [publisher(node, "publish", fill=3) for _ in range(6)]
        try:
            outcomes = [one.await_step("go", "resident") for one in started]
            winners = [one for one, said in zip(started, outcomes) if said[0] == "go"]
            assert len(winners) == 1
            assert len({said[1] for said in outcomes}) == 1
            winners[0].await_step("sealed")
            for one in started:
                one.await_step("checked")
            (shown,) = published(node)
            assert shown["leases"] == 6
            assert all(one.end() == 0 for one in started)
        finally:
            for one in started:
                one.__exit__()


def test_one_who_waits_for_a_publisher_that_dies_takes_over():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", until="half") as first:
            first.await_step("go")
            first.await_step("half")
            with publisher(node, "publish") as second:
                # It waits: nothing of it is heard while the first lives.
                wait_until("it waits", lambda: node.get("/v1/node")["sessions"] == 2, 20)
                first.kill()
                second.await_step("go")
                identity = second.await_step("sealed")
                second.await_step("checked")
                (one,) = published(node)
                assert one["id"] == identity and free(node) == before - one["bytes"]
                assert second.end() == 0


def test_one_who_seals_less_than_it_declared_is_refused_by_name_and_leaves_nothing():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "less") as one:
            one.await_step("go")
            message = one.await_step("less")
            assert "large" in message and "1 of 3" in message, message
            wait_until("the ledger is as before", lambda: free(node) == before, 20)
            assert alive(one.process.pid) and not published(node)
            assert one.end() == 0


def test_one_who_declares_other_tensors_for_the_same_inputs_is_told_which():
    with bare_node() as node:
        with publisher(node, "publish") as first:
            first.await_step("go")
            first.await_step("sealed")
            with publisher(node, "other") as second:
                message = second.await_step("refused")
                assert "'large'" in message and "F16" in message, message


def test_one_who_only_looks_is_told_what_differs_from_the_nearest_set():
    with bare_node() as node:
        with publisher(node, "find") as early:
            assert "published" in early.await_step("refused")
        with publisher(node, "publish", version="1") as first:
            first.await_step("go")
            first.await_step("sealed")
            first.await_step("checked")
            with publisher(node, "find", version="2", inputs='{"seed": 8}') as second:
                message = second.await_step("refused")
                assert "producer.version" in message and "inputs.seed" in message, message
            with publisher(node, "find", version="1") as third:
                third.await_step("resident")


def test_what_does_not_fit_is_refused_with_the_arithmetic_before_it_exists():
    with bare_node(memory="4Mi") as node:
        with publisher(node, "publish") as one:
            message = one.await_step("refused")
            assert "4.0 MiB" in message and "needs" in message, message
        assert free(node) == node.device()["totalBytes"]


def test_a_daemon_killed_while_an_engine_fills_learns_of_its_bytes_and_takes_the_set():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", until="half") as one:
            one.await_step("go")
            one.await_step("half")
            node.kill_daemon()
            node.start_daemon()
            wait_until("its bytes are counted again", lambda: free(node) <= before - LARGE, 20)
            one.go_on()
            identity = one.await_step("sealed")
            one.await_step("checked")
            (shown,) = published(node)
            assert shown["id"] == identity
            assert free(node) == before - shown["bytes"]
            assert one.end() == 0


def test_a_published_set_is_not_given_to_one_who_asks_for_the_checkpoint():
    with bare_node() as node:
        with publisher(node, "publish", model="smollm2") as first:
            first.await_step("go")
            made = first.await_step("sealed")
            environment = {"BERTH_SOCKET": str(node.root / "run/berthd.sock")}
            with publisher(node, "plain", environment=environment, path=MODEL) as second:
                assert second.await_step("attached") != made
                assert second.await_step("private") == ""


CANARY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: p}}
spec: {{attach: {{verifyCanary: {verify}}}}}
---
apiVersion: berth/v1
kind: Model
metadata: {{name: smollm2}}
spec: {{path: {model}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: served}}
spec:
  model: smollm2
  restart: Always
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 64Mi}}}}
  engine: {{driver: berth, command: [{program}, "-", engine, "id={id}"{digest}]}}
"""


def serve(node, identity, digest="", verify="true"):
    words = f', "digest={digest}"' if digest else ""
    node.put("/v1/policy", CANARY.format(model=MODEL, program=PUBLISHER, id=identity,
                                         digest=words, verify=verify))


@pytest.fixture
def canary_node():
    with bare_node() as node:
        with publisher(node, "publish") as one:
            one.await_step("go")
            identity = one.await_step("sealed")
            one.await_step("checked")
            yield node, identity


def test_an_instance_that_reproduces_the_canary_is_ready(canary_node):
    node, identity = canary_node
    serve(node, identity)
    shown = node.wait_state("served", "Running")
    assert shown["reason"] == ""
    assert 'berth_canaries_total{outcome="met"} 1' in metrics(node)


def test_an_instance_whose_canary_differs_fails_with_both_digests_and_is_not_tried_again(
        canary_node):
    node, identity = canary_node
    wrong = "f" * 64
    serve(node, identity, wrong)
    shown = node.wait_state("served", "Failed")
    assert shown["reason"] == "CanaryMismatch" and shown["starts"] == 1
    assert wrong in shown["message"] and "00112233" in shown["message"]
    assert shown["pid"] == 0 and shown["grantBytes"] == 0


def test_an_instance_that_reports_no_canary_is_not_called_ready(canary_node):
    node, identity = canary_node
    serve(node, identity, "none")
    shown = wait_until("it is up and not ready", lambda: (
        i := node.instance("served"))["connected"] and i["pid"] and i, 60)
    wait_until("it holds the set", lambda: published(node)[0]["leases"] >= 2, 30)
    assert node.instance("served")["state"] == "Starting"
    assert alive(shown["pid"])


def test_without_the_policy_no_canary_is_wanted(canary_node):
    node, identity = canary_node
    serve(node, identity, "none", verify="false")
    node.wait_state("served", "Running")
