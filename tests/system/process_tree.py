# SPDX-License-Identifier: Apache-2.0
"""A program that is several processes, as engines with workers are: a leader, a child in its group,
one in a session of its own with a child in turn, and one whose parent has ended. Each writes its pid
to FOLDER/NAME.pid and a byte to FOLDER/NAME.ticks every 10 ms.

process_tree.py FOLDER [ignore-term] [alone]"""

import os
import pathlib
import signal
import sys
import time

folder, words = pathlib.Path(sys.argv[1]), sys.argv[2:]


def tick(name):
    with open(folder / f"{name}.ticks", "ab", buffering=0) as ticks:
        (folder / f"{name}.pid").write_text(str(os.getpid()))
        while True:
            ticks.write(b".")
            time.sleep(0.01)


def child(then):
    if os.fork() == 0:
        try:
            then()
        finally:
            os._exit(1)


def in_a_session():
    os.setsid()
    child(lambda: tick("nested"))
    tick("session")


def adopted():
    os.setsid()
    child(lambda: tick("orphan"))
    os._exit(0)


def on_term(*_):
    (folder / "term").write_text("told")
    os._exit(3)


if "alone" not in words:
    child(lambda: tick("group"))
    child(in_a_session)
    child(adopted)
if "ignore-term" in words:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
else:
    signal.signal(signal.SIGTERM, on_term)
tick("leader")
