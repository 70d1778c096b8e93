# SPDX-License-Identifier: Apache-2.0
"""Weights that somebody has mapped are counted as that, whoever dies: berthd alone, or together with
the keeper, which takes its descriptors with it."""

import sqlite3

from node_under_test import kill, wait_until
from publishing import bare_node, publisher


def free(node):
    return node.device()["freeBytes"]


def of(node, identity):
    return next((w for w in node.weights() if w["id"] == identity), None)


def leases(node, identity):
    return (of(node, identity) or {}).get("leases")


def keeper_and_daemon_die(node):
    keeper = node.get("/v1/node")["keeper"]["pid"]
    node.daemon.kill()  # before it could see its keeper's end
    kill(keeper)
    node.kill_daemon()
    node.start_daemon()


def test_guests_leases_are_there_again_after_berthd_has_died():
    with bare_node() as node, publisher(node, "publish") as first:
        first.await_step("go")
        identity = first.await_step("sealed")
        first.await_step("checked")
        with publisher(node, "attach", id=identity) as second:
            second.await_step("attached")
            second.await_step("checked")
            assert leases(node, identity) == 2
            node.kill_daemon()
            node.start_daemon()
            wait_until("both have it again", lambda: leases(node, identity) == 2, 20)
            asked = node.post(f"/v1/weights/{identity}:evict")
            refused = node.get(f"/v1/operations/{asked['id']}?wait=20s")
            assert refused["error"]["reason"] == "WeightsInUse", refused
            second.kill()
            wait_until("one has it", lambda: leases(node, identity) == 1, 20)
            assert first.end() == 0


def test_weights_that_the_keeper_took_with_it_count_until_the_last_one_lets_go():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish", fill=7) as first:
            first.await_step("go")
            identity = first.await_step("sealed")
            first.await_step("checked")
            taken = before - free(node)
            keeper_and_daemon_die(node)
            lost = f"{identity}.lost"
            wait_until("its bytes are leased", lambda: leases(node, lost) == 1, 20)
            assert of(node, identity) is None, "nobody can be given it any more"
            assert free(node) == before - taken
            assert "reason=WeightsLost" in (node.root / "berthd.log").read_text()
            # The same inputs once more, beside what is still mapped; and both survive the next one.
            with publisher(node, "publish", fill=7) as second:
                second.await_step("go")
                assert second.await_step("sealed") == identity
                second.await_step("checked")
                assert free(node) == before - 2 * taken
                node.kill_daemon()
                node.start_daemon()
                wait_until("both are leased", lambda: leases(node, identity) and
                           leases(node, lost), 20)
                assert free(node) == before - 2 * taken
                assert first.end() == 0
                assert second.end() == 0
        wait_until("what was lost is free", lambda: of(node, lost) is None, 40)
        assert free(node) == before - taken


def test_what_was_mapped_before_a_reboot_is_not_waited_for():
    with bare_node() as node:
        before = free(node)
        with publisher(node, "publish") as one:
            one.await_step("go")
            one.await_step("sealed")
            one.await_step("checked")
            assert one.end() == 0
        assert free(node) < before
        keeper = node.get("/v1/node")["keeper"]["pid"]
        node.kill_daemon()
        kill(keeper)
        with sqlite3.connect(node.root / "state/berth.db") as database:
            changed = database.execute("UPDATE meta SET value = 'another' WHERE key = 'bootId'")
            assert changed.rowcount == 1
        node.start_daemon()
        assert not node.weights() and free(node) == before
        assert "reason=WeightsLost" not in (node.root / "berthd.log").read_text()
