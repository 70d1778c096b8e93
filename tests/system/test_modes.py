# SPDX-License-Identifier: Apache-2.0
"""The modes of an engine, and what each does where no shared set may be used."""

import os
import pathlib
import shutil
import tempfile

import pytest
from node_under_test import BIN, MODEL, call, kill, wait_until
from publishing import PUBLISHER, Publisher, bare_node


@pytest.fixture
def folder():
    path = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def checkpoint(folder):
    shutil.copytree(MODEL, folder / "model")
    return folder / "model"


def plain(socket, mode, path, program=PUBLISHER, **environment):
    """An engine that attaches as its environment says."""
    told = {name: str(value) for name, value in environment.items()}
    return Publisher("-", "plain", program, path=path, device="host-0",
                     environment={"BERTH_MODE": mode, "BERTH_SOCKET": str(socket),
                                  "BERTH_LOADER": str(BIN / "berth-loader"), **told})


# A changed checkpoint is another set; here it is a mismatch instead of a load.
REFUSE = "{attach: {onChange: Refuse}}"


def change(node, checkpoint):
    """Another time of change: the set that was loaded from it is another one's now. A new berthd
    looks at the files before it hands the set out; one that has just done so would not."""
    os.utime(checkpoint / "config.json", ns=(1, 1_000_000_007))
    node.kill_daemon()
    node.start_daemon()


def resident(node, checkpoint):
    """Has the node load the checkpoint; the set's id."""
    node.finish(node.post("/v1/weights:load", {"path": str(checkpoint)}), 120)
    return node.weights()[0]["id"]


def private_loads(node):
    text = call(node.connection(), "GET", "/metrics")
    return [line for line in text.splitlines() if line.startswith("berth_private_loads_total{")]


def test_off_loads_for_itself_and_needs_nobody(folder):
    with plain(folder / "nowhere.sock", "off", MODEL) as engine:
        engine.await_step("attached")
        assert engine.await_step("private") == "ModeOff"
        engine.await_step("checked")
        assert engine.end() == 0


def test_client_without_a_daemon_fails_or_loads_for_itself_as_it_was_told(folder):
    with plain(folder / "nowhere.sock", "client", MODEL) as engine:
        assert "no berthd listens" in engine.await_step("refused")
    with plain(folder / "nowhere.sock", "client", MODEL, BERTH_FALLBACK="disk") as engine:
        engine.await_step("attached")
        assert engine.await_step("private") == "DaemonAbsent"
    with plain(folder / "nowhere.sock", "client", MODEL, BERTH_FALLBACK="maybe") as engine:
        assert "BERTH_FALLBACK" in engine.await_step("refused")


def test_client_with_a_daemon_shares(checkpoint):
    with bare_node() as node:
        socket = node.root / "run/berthd.sock"
        with plain(socket, "client", checkpoint) as one, plain(socket, "client",
                                                               checkpoint) as other:
            assert one.await_step("attached") == other.await_step("attached")
            assert one.await_step("private") == other.await_step("private") == ""
            assert len(node.weights()) == 1 and not private_loads(node)


def test_daemon_brings_one_up_where_it_is_told_how():
    with bare_node() as node:
        node.daemon.terminate()
        node.daemon.wait(20)
        # An engine's berthd lies beside it.
        program = pathlib.Path(shutil.copy(PUBLISHER, node.root))
        (node.root / "berthd").symlink_to(BIN / "berthd")
        with plain(node.root / "run/berthd.sock", "daemon", MODEL, program=program,
                   BERTH_CONFIG=node.root / "node.yaml") as engine:
            engine.await_step("attached")
            assert engine.await_step("private") == ""
            assert len(node.weights()) == 1


def test_daemon_that_cannot_be_brought_up_is_done_without_unless_told_otherwise(folder):
    with plain(folder / "nowhere.sock", "daemon", MODEL, BERTH_CONFIG="") as engine:
        engine.await_step("attached")
        assert engine.await_step("private") == "DaemonAbsent"
    with plain(folder / "nowhere.sock", "daemon", MODEL, BERTH_CONFIG="",
               BERTH_FALLBACK="fail") as engine:
        assert "BERTH_CONFIG" in engine.await_step("refused")


def test_a_guest_whose_set_differs_gets_its_own_and_the_node_counts_it(checkpoint):
    with bare_node(REFUSE) as node:
        shared = resident(node, checkpoint)
        free = node.device()["freeBytes"]
        change(node, checkpoint)
        socket = node.root / "run/berthd.sock"
        with plain(socket, "client", checkpoint) as engine:
            assert "config.json.mtimeNs" in engine.await_step("refused")
        with plain(socket, "client", checkpoint, BERTH_FALLBACK="disk") as engine:
            assert len(engine.await_step("attached")) == len(shared)
            assert engine.await_step("private") == "FingerprintMismatch"
            engine.await_step("checked")
            assert private_loads(node) == [
                'berth_private_loads_total{reason="FingerprintMismatch"} 1']
            taken = free - node.device()["freeBytes"]
            assert taken >= node.weights()[0]["bytes"]
            assert any("publisher" in o["name"] for o in node.device()["owners"])
            # A new berthd is told of it.
            node.kill_daemon()
            node.start_daemon()
            wait_until("its bytes are counted again",
                       lambda: node.device()["freeBytes"] <= free - node.weights()[0]["bytes"], 20)
            assert engine.end() == 0
        wait_until("its bytes are free", lambda: node.device()["freeBytes"] == free, 20)
        assert "config.json.mtimeNs" in (node.root / "berthd.log").read_text()


def test_a_private_load_that_does_not_fit_is_refused_with_both_reasons(checkpoint):
    size = sum(f.stat().st_size for f in checkpoint.glob("*.safetensors"))
    with bare_node(REFUSE, memory=f"{size * 3 // 2 // 2**20}Mi") as node:
        shared = resident(node, checkpoint)
        node.finish(node.post(f"/v1/weights/{shared}:pin"))
        change(node, checkpoint)
        with plain(node.root / "run/berthd.sock", "client", checkpoint,
                   BERTH_FALLBACK="disk") as engine:
            message = engine.await_step("refused")
            assert "needs" in message and "config.json.mtimeNs" in message, message


INSTANCE = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: p}}
spec: {{attach: {{onChange: Refuse, onMismatch: {on_mismatch}}}}}
---
apiVersion: berth/v1
kind: Model
metadata: {{name: m}}
spec: {{path: {path}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: served}}
spec:
  model: m
  restart: Never
  resources: {{requests: {{memory: 64Mi}}, limits: {{memory: 64Mi}}}}
  engine: {{driver: berth, command: [{program}, "-", engine]}}
"""


def serve(node, checkpoint, on_mismatch):
    node.put("/v1/policy", INSTANCE.format(path=checkpoint, program=PUBLISHER,
                                           on_mismatch=on_mismatch))


def test_an_instance_says_which_set_it_shares(checkpoint):
    with bare_node() as node:
        serve(node, checkpoint, "Fail")
        node.wait_state("served", "Running")
        assert node.instance("served")["weights"] == f"shared {node.weights()[0]['id']}"


def test_an_instance_whose_set_differs_gets_its_own_where_the_policy_says_disk(checkpoint):
    with bare_node(REFUSE) as node:
        resident(node, checkpoint)
        free = node.device()["freeBytes"]
        change(node, checkpoint)
        serve(node, checkpoint, "Disk")
        shown = node.wait_state("served", "Running")
        assert shown["weights"] == "private (FingerprintMismatch)"
        assert node.device()["freeBytes"] <= free - node.weights()[0]["bytes"]
        assert private_loads(node) == ['berth_private_loads_total{reason="FingerprintMismatch"} 1']
        kill(shown["pid"])
        wait_until("its own weights went with it", lambda: node.device()["freeBytes"] == free, 20)


def test_an_instance_whose_set_differs_fails_where_the_policy_says_so(checkpoint):
    with bare_node(REFUSE) as node:
        resident(node, checkpoint)
        change(node, checkpoint)
        serve(node, checkpoint, "Fail")
        node.wait_state("served", "Failed")
        assert not private_loads(node)
        log = next(node.root.glob("state/engines/served*")).read_text()
        assert "config.json.mtimeNs" in log
