# SPDX-License-Identifier: Apache-2.0
"""How long a stream stands still when its engine is killed and a standby serves: from SIGKILL to
the next token on the same connection, and what of it is the Serve command.
latency.py [ROUNDS]; needs BERTH_BIN_DIR and BERTH_MODEL_DIR. Prints; asserts nothing."""

import pathlib
import statistics
import sys
import tempfile
import time

import conftest  # noqa: F401 (folders of the helpers)
from played_node import PlayedNode
from streams import Connection, request

WORDS = 450


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    served, stood = [], []
    with tempfile.TemporaryDirectory() as folder, \
            PlayedNode(pathlib.Path(folder), "--max-context", "2048") as node:
        active = node.serving()
        for _ in range(rounds):
            standby = node.standby()
            with Connection(node.address) as client:
                client.send(request("/v1/completions", {
                    "model": "smollm2", "prompt": "one " * WORDS, "temperature": 0,
                    "max_tokens": 200, "ignore_eos": True, "stream": True}))
                client.header()
                for _ in range(8):
                    client.chunk()
                begin = time.monotonic()
                active.kill()
                killed = time.monotonic()
                assert not node.promote(standby).get("error")
                served.append(1e3 * (time.monotonic() - killed))
                client.chunk()
                stood.append(1e3 * (time.monotonic() - begin))
            active = standby
    for name, values in (("Serve", served), ("SIGKILL to the next token", stood)):
        print(f"{name}: p50 {statistics.median(values):.1f} ms, worst {max(values):.1f} ms, "
              f"n {len(values)}")


if __name__ == "__main__":
    main()
