# SPDX-License-Identifier: Apache-2.0
"""The C program `publisher`, as an engine of a test's node."""

import os
import queue
import subprocess
import threading

from node_under_test import BIN, Node

STEPS = {"go", "half", "sealed", "resident", "checked", "attached", "private", "refused", "less",
         "ready", "canary", "line"}
PUBLISHER = BIN.parent / "tests" / "publisher"

# The least that a node may have: nothing but its classes.
BARE = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: p}
spec: {mode: Enforce}
"""


def bare_node(spec="{mode: Enforce}", **more):
    return Node(policy=BARE.replace("{mode: Enforce}", spec), **more)


class Publisher:
    """Steps are lines: said by it, read here by await_step(); go_on() lets it take the next."""

    def __init__(self, socket, action, program=PUBLISHER, environment=None, **words):
        self.lines = queue.Queue()
        self.process = subprocess.Popen(
            [program, str(socket), action, *(f"{k}={v}" for k, v in words.items())],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **(environment or {})})
        self.reader = threading.Thread(target=self._read, daemon=True)
        self.reader.start()

    def _read(self):
        said = True
        for line in self.process.stdout:
            if line.startswith("["):  # the library's log, and the rest of its message
                said = False
            said = said or line.split(" ", 1)[0].strip() in STEPS
            if said:
                self.lines.put(line.rstrip("\n"))
        self.lines.put(None)

    def await_step(self, *steps, timeout=60):
        """The rest of the line that begins with one of the steps; anything else is a failure."""
        line = self.lines.get(timeout=timeout)
        assert line is not None, f"it ended, code {self.process.wait()}"
        for step in steps:
            if line.split(" ", 1)[0] == step:
                text = line.split(" ", 1)[1] if " " in line else ""
                while step in ("refused", "less"):  # a message may have more lines
                    try:
                        more = self.lines.get(timeout=1)
                    except queue.Empty:
                        break
                    if more is None:
                        break
                    text += "\n" + more
                return text if len(steps) == 1 else (step, text)
        raise AssertionError(f"expected {steps}, it said: {line}")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self):
        self.process.kill()
        self.process.wait()

    def end(self):
        """Lets it end by itself; its exit code."""
        try:
            self.go_on()
        except (BrokenPipeError, OSError):
            pass
        return self.process.wait(30)

    def __enter__(self):
        return self

    def __exit__(self, *_):
        if self.process.poll() is None:
            self.kill()
        self.process.stdin.close()


def publisher(node, action, **words):
    return Publisher(node.root / "run/berthd.sock", action, **words)
