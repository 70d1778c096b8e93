#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""When others hear of a killed process that has a GPU open: how long after SIGKILL its lock is free,
its connections close (one that has the number at which it was opened, before CUDA was, and one that
was moved to a high number: base/descriptors.h), and it is gone. Needs torch and a GPU; by hand:

    python3 tests/gpu/endings.py [--kills 4] [--gib 1 44] [--pinned-gib 0 0.5] [--out FILE]

A line of JSON per case, all in milliseconds, each kill's value.
"""
import argparse
import fcntl
import json
import os
import pathlib
import select
import signal
import socket
import subprocess
import sys
import tempfile
import time

HIGH = 1000
VICTIM = """
import fcntl, os, sys, threading, time
low, high, lock = (int(word) for word in sys.argv[3:])
os.dup2(high, {high}); os.close(high)
fcntl.lockf(lock, fcntl.LOCK_EX)
import torch
here = torch.empty(int(float(sys.argv[1]) * 2**30), dtype=torch.uint8, device="cuda").fill_(1)
pinned = torch.empty(max(int(float(sys.argv[2]) * 2**30), 1), dtype=torch.uint8, pin_memory=True).fill_(1)
a = torch.randn(4096, 4096, device="cuda", dtype=torch.bfloat16)
torch.matmul(a, a); torch.cuda.synchronize()
def spin():
    while True:
        torch.matmul(a, a); torch.cuda.synchronize()
threading.Thread(target=spin, daemon=True).start()
time.sleep(0.3)
os.write({high}, b"x")
time.sleep(1000)
""".replace("{high}", str(HIGH))


def is_free(lock):
    try:
        fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    fcntl.lockf(lock, fcntl.LOCK_UN)
    return True


def one_kill(gib, pinned):
    low, their_low = socket.socketpair()
    high, their_high = socket.socketpair()
    with tempfile.TemporaryFile() as lock:
        theirs = [their_low.fileno(), their_high.fileno(), lock.fileno()]
        victim = subprocess.Popen([sys.executable, "-c", VICTIM, str(gib), str(pinned),
                                   *map(str, theirs)], pass_fds=theirs)
        their_low.close()
        their_high.close()
        if high.recv(1) != b"x":
            sys.exit("the process ended before it was killed: see what it printed above")
        process = os.pidfd_open(victim.pid)
        waiting = {low.fileno(): "low", high.fileno(): "high", process: "gone"}
        poll = select.poll()
        for number in waiting:
            poll.register(number, select.POLLIN)
        seen = {}
        begin = time.monotonic()
        os.kill(victim.pid, signal.SIGKILL)
        while waiting:
            for number, _ in poll.poll(0):
                seen[waiting.pop(number)] = time.monotonic() - begin
                poll.unregister(number)
            if "lock" not in seen and is_free(lock):
                seen["lock"] = time.monotonic() - begin
        victim.wait()
        os.close(process)
    low.close()
    high.close()
    return {name: round(1e3 * at, 2) for name, at in seen.items()}


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=4)
    parser.add_argument("--gib", type=float, nargs="+", default=[1, 44], help="allocated on the GPU")
    parser.add_argument("--pinned-gib", type=float, nargs="+", default=[0, 0.5],
                        help="pinned host memory beside it")
    parser.add_argument("--out", type=pathlib.Path)
    chosen = parser.parse_args()
    for gib in chosen.gib:
        for pinned in chosen.pinned_gib:
            kills = [one_kill(gib, pinned) for _ in range(chosen.kills)]
            line = json.dumps({"bench": "endings", "gib": gib, "pinnedGib": pinned} | {
                name + "Ms": [kill[name] for kill in kills]
                for name in ("lock", "high", "low", "gone")})
            print(line, flush=True)
            if chosen.out:
                with chosen.out.open("a") as out:
                    out.write(line + "\n")


if __name__ == "__main__":
    main()
