# SPDX-License-Identifier: Apache-2.0
"""A node is upgraded, and no client of its chat service notices: other files are put in the place of
all programs, berthd is restarted, and the engines are rolled out.

Method: a real node with real engines and a tiny model, run from a folder of its own, and a crowd that
compares every byte. A later version is the same program in another file, as a package manager leaves
it: the old file is gone from the folder, and processes that run it go on.
"""

import os
import shutil
import signal
import subprocess

import pytest
from crowd import CLIENTS, Crowd, counted, taken_over, undisturbed
from node_under_test import BIN, alive, wait_until
from tiny_pair import TinyPair

PROGRAMS = ("berthd", "berth-engine", "berth-keeper", "berth-loader", "berth-verify")


def install(folder):
    folder.mkdir(exist_ok=True)
    for name in PROGRAMS:
        shutil.copy2(BIN / name, folder / f"{name}.new")
        os.replace(folder / f"{name}.new", folder / name)


def runs(pid):
    """The file that a process runs, with " (deleted)" once another has taken its place."""
    return os.readlink(f"/proc/{pid}/exe")


@pytest.mark.parametrize("alone", [True, False], ids=["one", "pair"])
def test_clients_notice_nothing_of_an_upgrade_of_all_programs(tiny_model, tmp_path, alone):
    folder = tmp_path / "programs"
    install(folder)

    def start(words, **more):
        return subprocess.Popen([folder / "berthd", *words[1:]], **more)

    with TinyPair(tiny_model, alone=alone, environment={"RELEASE": "1"}, start=start) as node:
        expected, told = undisturbed(node.port)
        with Crowd(node.port, expected, told) as crowd:
            crowd.goes_on(CLIENTS)
            before = [one["pid"] for one in node.shown()]
            keeper = node.keeper()[0]
            install(folder)
            assert all(runs(pid).endswith("(deleted)") for pid in before)

            node.daemon.send_signal(signal.SIGTERM)  # as a service manager does
            assert node.daemon.wait(20) == 0
            crowd.goes_on(CLIENTS)  # nobody needs a berthd to be answered
            node.start_daemon()
            assert runs(node.daemon.pid) == str(folder / "berthd")
            wait_until("the engines are known again",
                       lambda: all(one["connected"] for one in node.shown()))
            assert [one["pid"] for one in node.shown()] == before, "no engine was restarted for it"
            assert node.keeper()[0] == keeper and alive(keeper)
            crowd.goes_on(CLIENTS)

            node.roll_to({"RELEASE": "2"})
            wait_until("one answers", node.active)
            now = [one["pid"] for one in node.shown()]
            assert [runs(pid) for pid in now] == [str(folder / "berth-engine")] * len(now)
            crowd.goes_on(CLIENTS)
        assert not crowd.wrong, "\n".join(crowd.wrong)
        assert taken_over(node) > 0
        assert counted(node, "berth_engine_connections_cut_total") == 0
