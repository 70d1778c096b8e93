# SPDX-License-Identifier: Apache-2.0
"""Weight sets below the devices: copies in host memory and as files, on a real node. What a load
read is told by its events and its metrics; a set's bytes are compared as an attacher gets them."""

import json
import os
import pathlib
import sqlite3
import subprocess
import time

import pytest
from node_under_test import BIN, Node, Refused, kill, wait_until
from test_long_life import Peer, close_all
from tiny_model import make_tiny_model

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")

POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {{name: tiers}}
spec:
  memory: {{{memory}}}
  attach: {{onChange: {on_change}}}
"""
MODEL = "---\napiVersion: berth/v1\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{path: {path}}}\n"
HOST = "hostTier: 64Mi"


@pytest.fixture(name="models")
def model_folders(tmp_path):
    return {name: make_tiny_model(tmp_path / name, seed)
            for seed, name in enumerate("abc", start=1)}


def policy_of(models, memory, on_change="Reload"):
    return (POLICY.format(memory=memory, on_change=on_change) +
            "".join(MODEL.format(name=name, path=path) for name, path in models.items()))


def open_node(models, memory="", on_change="Reload"):
    return Node(memory="1Gi", policy=policy_of(models, memory, on_change))


def images_in(folder):
    return f"imageDir: {folder}, imageLimit: 64Mi"


def load(node, model="a"):
    return node.finish(node.post("/v1/weights:load", {"model": model}))


def item(node, model="a", state=None):
    found = [w for w in node.weights() if w["model"] == model and state in (None, w["state"])]
    return found[0] if found else None


def tiers_of(node, model="a"):
    found = item(node, model)
    return found["tiers"] if found else []


def wait_tiers(node, *tiers, model="a"):
    wait_until(f"{model} lies in {tiers}", lambda: tiers_of(node, model) == list(tiers), 30)
    return item(node, model)


def evict(node, model="a", **more):
    return node.finish(node.post(f"/v1/weights/{item(node, model)['id']}:evict", more))


def loads(node):
    """source -> how many sets came from it."""
    found = {}
    for line in node.get("/metrics").splitlines():
        if line.startswith("berth_weight_loads_total{"):
            found[line.split('"')[1]] = int(line.split()[-1])
    return found


def events(node, reason):
    text = node.get("/v1/events?since=0")
    lines = text.splitlines() if isinstance(text, str) else [json.dumps(text)]
    found = [json.loads(line) for line in lines if line]
    return [e for e in found if e["reason"] == reason]


def bytes_of(node, model="a"):
    """All that an attacher gets: manifest and segments."""
    with Peer(node) as peer:
        reply, fds = peer.attach(model=model)
        content = [os.pread(fd, os.fstat(fd).st_size, 0) for fd in fds]
        close_all(fds)
    return reply["weight_set"], content


def berth(node, *words):
    done = subprocess.run([BIN / "berth", "--admin", node.root / "run/admin.sock", *words],
                          capture_output=True, text=True, check=False)
    return done.returncode, done.stdout + done.stderr


def change(model, seed=77):
    """Other bytes and another time under the same path."""
    fresh = make_tiny_model(model.parent / f"{model.name}-{seed}", seed)
    for file in fresh.iterdir():
        file.replace(model / file.name)


def test_without_a_policy_for_it_an_evicted_set_is_loaded_from_its_checkpoint(models):
    with open_node(models) as node:
        load(node)
        evict(node)
        assert node.weights() == []
        load(node)
        assert loads(node) == {"checkpoint": 2}


def test_an_evicted_set_comes_up_from_host_memory_as_it_was(models):
    with open_node(models, HOST) as node:
        load(node)
        before = bytes_of(node)
        wait_tiers(node, "host-0", "host-tier")
        free = node.device()["freeBytes"]
        evict(node)
        assert wait_tiers(node, "host-tier")["state"] == "HostTier"
        assert node.device()["freeBytes"] > free
        load(node)
        shown = wait_tiers(node, "host-0", "host-tier")
        assert shown["loadedFrom"] == "host-tier"
        assert loads(node) == {"checkpoint": 1, "host-tier": 1}
        assert bytes_of(node) == before


def test_an_evicted_set_comes_up_from_its_image_as_it_was(models, tmp_path):
    with open_node(models, images_in(tmp_path / "images")) as node:
        load(node)
        before = bytes_of(node)
        shown = wait_tiers(node, "host-0", "image")
        assert pathlib.Path(shown["image"]).stat().st_size >= shown["bytes"]
        evict(node)
        assert wait_tiers(node, "image")["state"] == "Image"
        load(node)
        assert item(node)["loadedFrom"] == "image"
        assert loads(node) == {"checkpoint": 1, "image": 1}
        assert bytes_of(node) == before


def test_a_broken_image_costs_a_warning_and_no_load(models, tmp_path):
    with open_node(models, images_in(tmp_path / "images")) as node:
        load(node)
        before = bytes_of(node)
        shown = wait_tiers(node, "host-0", "image")
        file = pathlib.Path(shown["image"])
        evict(node)
        content = bytearray(file.read_bytes())
        content[len(content) - shown["bytes"] + 5] ^= 0x40  # of the first tensor
        file.write_bytes(content)
        load(node)
        assert item(node)["loadedFrom"] == "checkpoint"
        assert bytes_of(node) == before
        warning = events(node, "TierFailed")[0]
        assert warning["kind"] == "Warning" and "image" in warning["message"]
        # The broken one goes, and a whole one is written.
        wait_until("the image is written anew", lambda: file.exists() and
                   bytes(content) != file.read_bytes() and "image" in tiers_of(node), 30)


def test_copies_outlive_the_daemon(models, tmp_path):
    images = tmp_path / "images"
    with open_node(models, f"{HOST}, {images_in(images)}") as node:
        for model in "ab":
            load(node, model)
            wait_tiers(node, "host-0", "host-tier", "image", model=model)
        before = {model: bytes_of(node, model) for model in "ab"}
        lost = pathlib.Path(item(node, "b")["image"])
        for model in "ab":
            evict(node, model)
        node.kill_daemon()
        lost.write_bytes(lost.read_bytes()[:-4096])  # no longer whole
        node.start_daemon()
        wait_tiers(node, "host-tier", "image", model="a")
        wait_tiers(node, "host-tier", model="b")
        assert lost.name in (node.root / "berthd.log").read_text()
        assert node.get("/v1/node")["tiers"][0]["copies"] == 2
        load(node, "a")
        assert item(node, "a")["loadedFrom"] == "host-tier"
        assert bytes_of(node, "a") == before["a"]
        # Without the host tier the image serves.
        evict(node, "a")
        node.put("/v1/policy", policy_of(models, images_in(images)))
        wait_tiers(node, "image", model="a")
        load(node, "a")
        assert item(node, "a")["loadedFrom"] == "image"
        assert bytes_of(node, "a") == before["a"]


def test_a_daemon_killed_while_it_copies_loses_no_set_and_leaves_no_half_copy(models, tmp_path):
    images = tmp_path / "images"
    with open_node(models, f"{HOST}, {images_in(images)}") as node:
        for round_ in range(8):
            for model in "abc":
                node.post("/v1/weights:load", {"model": model})
            time.sleep(0.002 * round_)
            node.kill_daemon()
            node.start_daemon()
            for model in "abc":
                load(node, model)
                wait_tiers(node, "host-0", "host-tier", "image", model=model)
                evict(node, model)
                load(node, model)
                assert item(node, model)["loadedFrom"] == "host-tier"
                evict(node, model, drop=True)
        assert node.weights() == [] and list(images.iterdir()) == []
        assert node.device()["freeBytes"] == node.device()["totalBytes"]


def test_a_loader_killed_while_it_brings_a_copy_up_costs_no_load(models):
    with open_node(models, HOST) as node:
        load(node)
        before = bytes_of(node)
        wait_tiers(node, "host-0", "host-tier")
        evict(node)
        operation = node.post("/v1/weights:load", {"model": "a"})
        for _ in range(200):
            if pid := node.loader():
                try:
                    kill(pid)
                except ProcessLookupError:
                    pass
                break
        node.finish(operation)
        assert bytes_of(node) == before
        assert sum(loads(node).values()) == 2


def test_the_least_recently_used_copy_leaves_first(models):
    with open_node(models) as node:
        load(node)
        size = item(node)["bytes"]
        evict(node)
        node.put("/v1/policy", policy_of(models, f"hostTier: {2 * size}"))
        for model in "ab":
            load(node, model)
            wait_tiers(node, "host-0", "host-tier", model=model)
        bytes_of(node, "a")  # used again
        load(node, "c")
        wait_tiers(node, "host-0", "host-tier", model="c")
        assert tiers_of(node, "a") == ["host-0", "host-tier"]
        assert tiers_of(node, "b") == ["host-0"]
        assert node.get("/v1/node")["tiers"][0]["usedBytes"] == 2 * size


def test_drop_removes_the_copies_and_the_file(models, tmp_path):
    with open_node(models, f"{HOST}, {images_in(tmp_path / 'images')}") as node:
        load(node)
        shown = wait_tiers(node, "host-0", "host-tier", "image")
        code, said = berth(node, "evict", "a", "--drop")
        assert code == 0, said
        assert node.weights() == [] and not pathlib.Path(shown["image"]).exists()
        assert node.get("/v1/node")["tiers"][0]["usedBytes"] == 0


def test_copies_alone_are_removed_by_drop_alone(models):
    with open_node(models, HOST) as node:
        load(node)
        wait_tiers(node, "host-0", "host-tier")
        evict(node)
        code, said = berth(node, "evict", "a")
        assert code != 0 and "--drop" in said
        code, said = berth(node, "evict", "a", "--drop")
        assert code == 0 and node.weights() == [], said


def test_a_changed_checkpoint_is_loaded_as_another_set_for_who_attaches(models):
    with open_node(models, HOST) as node:
        load(node)
        wait_tiers(node, "host-0", "host-tier")
        old, content = bytes_of(node)
        with Peer(node) as holder:
            close_all(holder.attach(model="a")[1])
            node.kill_daemon()  # what was looked at a moment ago is forgotten
            node.start_daemon()
            with Peer(node) as again:
                close_all(again.attach(weight_set=old)[1])
                change(models["a"])
                new, other = bytes_of(node)
                assert new != old and other != content
                warning = events(node, "CheckpointChanged")[0]
                assert "model.safetensors" in warning["message"]
                stale = [w for w in node.weights() if w["id"] == old]
                assert stale and stale[0]["state"] == "Stale"
            wait_until("the old set is gone",
                       lambda: [w["id"] for w in node.weights()] == [new], 20)
        assert loads(node) == {"checkpoint": 1}


def test_a_changed_checkpoint_is_loaded_by_a_load(models):
    with open_node(models, HOST) as node:
        load(node)
        old = wait_tiers(node, "host-0", "host-tier")["id"]
        change(models["a"])
        load(node)
        wait_until("the old set and its copy are gone",
                   lambda: [w["id"] for w in node.weights()].count(old) == 0, 20)
        wait_until("another set is there", lambda: item(node, state="Resident"), 20)
        assert loads(node) == {"checkpoint": 2}


def test_a_changed_checkpoint_is_not_taken_from_a_tier(models, tmp_path):
    with open_node(models, f"{HOST}, {images_in(tmp_path / 'images')}") as node:
        load(node)
        old = wait_tiers(node, "host-0", "host-tier", "image")["id"]
        evict(node)
        change(models["a"])
        load(node)
        assert item(node, state="Resident")["loadedFrom"] == "checkpoint"
        assert item(node, state="Resident")["id"] != old
        assert len(events(node, "TierFailed")) == 2
        wait_until("the copies of the old one are gone",
                   lambda: old not in [w["id"] for w in node.weights()], 20)


def test_a_policy_may_refuse_a_changed_checkpoint(models):
    with open_node(models, on_change="Refuse") as node:
        load(node)
        change(models["a"])
        node.kill_daemon()
        node.start_daemon()
        with Peer(node) as peer, pytest.raises(Exception) as refused:
            peer.attach(model="a")
        assert "model.safetensors" in refused.value.error["message"]


def test_deep_verification_compares_with_what_was_stored_at_the_load(models):
    with open_node(models) as node:
        load(node)
        shown = item(node)
        assert len(shown["deepHash"]) == 64
        code, said = berth(node, "verify", "a", "--deep")
        assert code == 0 and shown["deepHash"] in said and "as it was loaded" in said
        node.kill_daemon()
        node.start_daemon()
        assert item(node)["deepHash"] == shown["deepHash"]
        code, said = berth(node, "verify", "a", "--deep")
        assert code == 0 and "as it was loaded" in said


def test_another_deep_hash_than_the_stored_one_is_found(models):
    with open_node(models) as node:
        load(node)

        def on_record():
            with sqlite3.connect(node.root / "state/berth.db") as database:
                return database.execute("SELECT 1 FROM meta WHERE key LIKE 'deep/%'").fetchone()

        wait_until("the hash is on disk", on_record)  # written behind the answer
        node.kill_daemon()
        with sqlite3.connect(node.root / "state/berth.db") as database:
            changed = database.execute("UPDATE meta SET value = ? WHERE key LIKE 'deep/%'",
                                       ("0" * 64,)).rowcount
        assert changed == 1
        node.start_daemon()
        code, said = berth(node, "verify", "a", "--deep")
        assert code != 0 and "the one stored when it was loaded is 0000" in said
        code, said = berth(node, "verify", "a")
        assert code == 0, said


def test_what_does_not_fit_is_refused_with_the_arithmetic(models):
    with Node(memory="8Ki", policy=policy_of(models, "")) as node:
        with pytest.raises(AssertionError) as refused:
            load(node)
        for part in ("needs", "are free of 8.0 KiB", "reserve", "reclaimable: nothing"):
            assert part in str(refused.value), refused.value


def test_the_command_line_shows_tiers(models):
    with open_node(models, HOST) as node:
        load(node)
        wait_tiers(node, "host-0", "host-tier")
        code, said = berth(node, "get", "weights")
        assert code == 0 and "host-tier" in said and "checkpoint" in said
        code, said = berth(node, "status")
        assert code == 0 and "TIERS" in said
        with pytest.raises(Refused):
            node.post("/v1/weights/0000000000000000:evict")
