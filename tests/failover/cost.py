# SPDX-License-Identifier: Apache-2.0
"""What keeping requests costs a server: processor time per streamed token with and without a
journal, in turns, over a fake engine whose tokens cost nothing.
cost.py [ROUNDS]; needs BERTH_BIN_DIR. Prints medians; asserts nothing."""

import os
import pathlib
import statistics
import sys
import tempfile
import threading

import conftest  # noqa: F401 (folders of the helpers)
from byte_model import make_byte_model
from streams import Connection, request
from test_kills import Served, completion

STREAMS, TOKENS = 8, 400


def processor_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def microseconds_per_token(model, log, keeps, calls):
    with Served(model, log, step_us=200, keeps=keeps) as served:
        served.serve()
        path, body = completion("x", stream=True, max_tokens=TOKENS)

        def client():
            with Connection(served.address) as connection:
                for _ in range(calls):
                    connection.send(request(path, body))
                    assert connection.answer()[0] == 200

        before = processor_seconds(served.engine.pid)
        threads = [threading.Thread(target=client) for _ in range(STREAMS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        spent = processor_seconds(served.engine.pid) - before
    return spent / (STREAMS * TOKENS * calls) * 1e6


def main():
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        model = make_byte_model(folder / "model")
        found = {True: [], False: []}
        for _ in range(rounds):
            for keeps in (False, True):
                found[keeps].append(microseconds_per_token(model, folder / "log", keeps, 10))
        for keeps, values in found.items():
            print(f"{'with' if keeps else 'without'} a journal: {statistics.median(values):.2f} us of "
                  f"processor time a token ({min(values):.2f} to {max(values):.2f})")
        print(f"more: {statistics.median(found[True]) - statistics.median(found[False]):.2f} us")


if __name__ == "__main__":
    main()
