# SPDX-License-Identifier: Apache-2.0
"""What could be left of copies below the devices, and is not: writers that outlive their berthd,
files that nobody knows of, evicts that were cut short. Nor is anything removed that is another's."""

import json
import os
import pathlib
import shutil
import signal
import sqlite3
import subprocess

import pytest
from node_under_test import BIN, Node, alive, kill, wait_until
from test_tiers import (HOST, bytes_of, events, evict, images_in, item, load, model_folders,
                        open_node, policy_of, tiers_of, wait_tiers)

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="host-0 is named")
__all__ = ["model_folders"]  # the fixture

DIGITS = "0123456789abcdef"


def begin_of(image):
    """What a writer leaves where the file system gives no nameless files."""
    return image.with_name(f"{image.name}.{DIGITS}.partial")


def with_loader(folder, text):
    """berthd's programs in a folder of their own, with another berth-loader; berthd's path."""
    folder.mkdir()
    for program in ("berthd", "berth-keeper"):
        shutil.copy2(BIN / program, folder / program)
    loader = folder / "berth-loader"
    loader.write_text(f"#!/bin/sh\nreal={BIN}/berth-loader\n{text}\nexec $real \"$@\"\n")
    loader.chmod(0o755)
    return folder / "berthd"


def starter(berthd=BIN / "berthd", **more):
    def start(command, **options):
        return subprocess.Popen([berthd, *command[1:]], **options, **more)
    return start


def node_of(models, memory, start):
    return Node(memory="1Gi", policy=policy_of(models, memory), start=start)


def test_a_writer_of_images_ends_with_its_berthd(models, tmp_path):
    images, started = tmp_path / "images", tmp_path / "started"
    berthd = with_loader(tmp_path / "bin", f"""case "$*" in *--write-image*)
    echo $$ > {started}.new; mv {started}.new {started}; exec sleep 600;; esac""")
    with node_of(models, images_in(images), starter(berthd)) as node:
        load(node)
        wait_until("the writer runs", started.exists)
        writer = int(started.read_text())
        kill(writer, signal.SIGSTOP)  # in whatever it is: it will not end by itself
        assert alive(writer)
        node.kill_daemon()
        try:
            wait_until("the writer has ended", lambda: not alive(writer), 20)
        finally:
            if alive(writer):
                kill(writer)
        node.start_daemon()


def test_a_copier_to_host_memory_ends_with_its_berthd(models, tmp_path):
    started = tmp_path / "started"
    berthd = with_loader(tmp_path / "bin", f"""case "$*" in *--source-fds*)
    echo $$ > {started}.new; mv {started}.new {started}; exec sleep 600;; esac""")
    with node_of(models, HOST, starter(berthd)) as node:
        load(node)
        wait_until("the copier runs", started.exists)
        copier = int(started.read_text())
        kill(copier, signal.SIGSTOP)
        node.kill_daemon()
        try:
            wait_until("the copier has ended", lambda: not alive(copier), 20)
        finally:
            if alive(copier):
                kill(copier)
        node.start_daemon()


def test_what_writers_left_is_removed_at_start_and_what_is_anothers_stays(models, tmp_path):
    images = tmp_path / "images"
    with open_node(models, images_in(images)) as node:
        load(node)
        image = pathlib.Path(wait_tiers(node, "host-0", "image")["image"])
        node.kill_daemon()
        whole = image.read_bytes()
        orphan = images / f"{DIGITS}.berth-image"
        orphan.write_bytes(whole)
        partial = begin_of(image.with_name(orphan.name))
        partial.write_bytes(bytes(100))
        others = {
            "notes.txt": b"mine",
            f"{DIGITS[::-1]}.berth-image": b"this is no image",
            "model.berth-image": whole,
            f"{DIGITS}.berth-image.old": whole,
            f"model.{DIGITS}.partial": b"",
            f"{DIGITS}.berth-image.partial": b"",
        }
        for name, content in others.items():
            (images / name).write_bytes(content)
        (images / f"{'f' * 16}.berth-image").mkdir()
        node.start_daemon()
        wait_until("the orphans are gone", lambda: not orphan.exists() and not partial.exists(), 20)
        assert sorted(e["message"].split(" ")[0] for e in events(node, "ImageRemoved")) == \
            sorted(map(str, (orphan, partial)))
        for name, content in others.items():
            assert (images / name).read_bytes() == content, name
        assert (images / f"{'f' * 16}.berth-image").is_dir()
        assert image.read_bytes() == whole
        evict(node)
        load(node)
        assert item(node)["loadedFrom"] == "image"


def test_a_folder_of_images_that_two_use_is_tidied_by_one(models, tmp_path):
    images = tmp_path / "images"
    with open_node(models, images_in(images)) as first:
        load(first, "a")
        image = pathlib.Path(wait_tiers(first, "host-0", "image")["image"])
        with open_node(models, images_in(images)) as second:
            load(second, "b")
            wait_tiers(second, "host-0", "image", model="b")
            assert image.exists()
            assert "another berthd uses it too" in (second.root / "berthd.log").read_text()
        evict(first)
        load(first)
        assert item(first)["loadedFrom"] == "image"


def test_a_broken_image_on_record_is_removed_at_start(models, tmp_path):
    with open_node(models, images_in(tmp_path / "images")) as node:
        load(node)
        image = pathlib.Path(wait_tiers(node, "host-0", "image")["image"])
        evict(node)
        node.kill_daemon()
        image.write_bytes(image.read_bytes()[:-4096])
        node.start_daemon()
        wait_until("it is gone", lambda: not image.exists(), 20)
        assert node.weights() == []


def test_an_image_that_cannot_be_removed_stays_counted_and_is_said_so(models, tmp_path):
    with open_node(models, images_in(tmp_path / "images")) as node:
        load(node)
        shown = wait_tiers(node, "host-0", "image")
        image = pathlib.Path(shown["image"])
        image.unlink()
        (image / "in the way").mkdir(parents=True)  # nobody unlinks a folder, root neither
        used = node.get("/v1/node")["tiers"][1]["usedBytes"]
        assert used == shown["bytes"]
        with pytest.raises(AssertionError) as failed:
            evict(node, drop=True)
        assert "DropFailed" in str(failed.value) and str(image) in str(failed.value)
        assert node.get("/v1/node")["tiers"][1]["usedBytes"] == used
        assert events(node, "DropFailed")[0]["kind"] == "Warning"
        assert [w["state"] for w in node.weights()] == ["Dropping"]
        shutil.rmtree(image)
        wait_until("it is tried again",
                   lambda: node.get("/v1/node")["tiers"][1]["usedBytes"] == 0, 30)
        assert node.weights() == []


def test_an_evict_with_drop_that_was_cut_short_is_taken_up_again(models, tmp_path):
    """Cut short by hand: the record says that it runs, and all copies are there still."""
    with open_node(models, f"{HOST}, {images_in(tmp_path / 'images')}") as node:
        load(node, "b")
        wait_tiers(node, "host-0", "host-tier", "image", model="b")
        dropped = evict(node, "b", drop=True)
        load(node, "a")
        shown = wait_tiers(node, "host-0", "host-tier", "image")
        kept = evict(node, "a")
        node.kill_daemon()
        with sqlite3.connect(node.root / "state/berth.db") as database:
            extra = {}
            for operation in (dropped, kept):
                row = database.execute("SELECT extra FROM operations WHERE id = ?",
                                       (operation["id"],)).fetchone()
                extra[operation["id"]] = json.loads(row[0])
            assert extra[dropped["id"]]["drop"] is True
            assert extra[kept["id"]]["drop"] is False
            changed = {**extra[dropped["id"]], "object": f"weights/{shown['id']}"}
            database.execute("UPDATE operations SET state = 'Running', ended_ms = 0, extra = ? "
                             "WHERE id = ?", (json.dumps(changed), dropped["id"]))
        node.start_daemon()
        node.finish(dropped)
        assert node.weights() == [] and not pathlib.Path(shown["image"]).exists()
        assert node.get("/v1/node")["tiers"][0]["usedBytes"] == 0


def test_a_checkpoint_that_is_away_costs_no_copy(models, tmp_path):
    with open_node(models, f"{HOST}, {images_in(tmp_path / 'images')}") as node:
        load(node)
        before = bytes_of(node)
        image = pathlib.Path(wait_tiers(node, "host-0", "host-tier", "image")["image"])
        evict(node)
        away = models["a"].rename(tmp_path / "away")
        with pytest.raises(AssertionError):
            load(node)
        assert len(events(node, "TierFailed")) == 2
        assert tiers_of(node) == ["host-tier", "image"] and image.exists()
        away.rename(models["a"])
        load(node)
        assert item(node)["loadedFrom"] == "host-tier"
        assert bytes_of(node) == before
        # A part of it is away: the image serves as before, too.
        evict(node)
        node.put("/v1/policy", policy_of(models, images_in(tmp_path / "images")))
        wait_tiers(node, "image")
        weights = models["a"] / "model.safetensors"
        weights.rename(tmp_path / "weights")
        with pytest.raises(AssertionError):
            load(node)
        assert tiers_of(node) == ["image"]
        (tmp_path / "weights").rename(weights)
        load(node)
        assert item(node)["loadedFrom"] == "image"
        assert bytes_of(node) == before


def test_a_writer_whose_end_is_not_known_has_written_no_image(models, tmp_path):
    """With SIGCHLD ignored the kernel reaps children itself and tells nobody how they ended."""
    images = tmp_path / "images"
    ignore = starter(preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN))
    with node_of(models, images_in(images), ignore) as node:
        load(node)
        failed = wait_until("the copy has ended", lambda: events(node, "CopyFailed"), 30)
        assert "it is not known how" in failed[0]["message"]
        assert tiers_of(node) == ["host-0"]
        wait_until("what it wrote is gone", lambda: list(images.iterdir()) == [], 20)
