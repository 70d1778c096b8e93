# SPDX-License-Identifier: Apache-2.0
"""An engine that does nothing but hold its grant: a mapping whose size the kernel can tell. It obeys
as engines do, reconnects when berthd is gone, and with a file FOLDER/WORD does so badly:

keeps    says that it has shrunk, and keeps its memory
refuses  cannot grow
silent   answers nothing
sized_engine.py FOLDER"""

import json
import mmap
import os
import pathlib
import socket
import sys
import time

folder = pathlib.Path(sys.argv[1])
memory, held, last_id = None, "", 10


def does(word):
    return (folder / word).exists()


def size():
    return len(memory) if memory is not None else 0


def resize(wanted):
    global memory
    if wanted == size():
        return
    if wanted == 0:
        memory.close()
        memory = None
    elif memory is None:
        fd = os.memfd_create(f"berth-grant:{os.getpid()}")
        os.ftruncate(fd, wanted)
        memory = mmap.mmap(fd, wanted)
        os.close(fd)
    else:
        memory.resize(wanted)


def send(peer, kind, **fields):
    global last_id
    last_id += 1
    peer.send(json.dumps({"v": 1, "type": kind, "id": last_id, **fields}).encode())


def connect():
    while True:
        peer = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            peer.connect(os.environ["BERTH_SOCKET"])
            send(peer, "hello", instance=os.environ["BERTH_INSTANCE"],
                 token=os.environ["BERTH_TOKEN"], program="sized_engine", pid=os.getpid(),
                 grant_bytes=size(), state="Ready" if memory is not None or held else "Starting",
                 held=held)
            return peer
        except OSError:
            peer.close()
            time.sleep(0.05)


def obey(kind, wanted):
    """What is wrong, or None."""
    global held
    if kind == "Pause":
        held = "Paused"
    elif kind == "Resume":
        held = ""
    elif kind == "Offload":
        resize(wanted)
        held = "Offloaded"
    elif kind == "Restore":
        resize(wanted)
        held = ""
    elif kind == "Shrink" and not does("keeps"):
        resize(wanted)
    elif kind == "Grow":
        if does("refuses"):
            return {"code": "ResourceExhausted", "reason": "OutOfMemory", "message": "no room"}
        resize(wanted)
    return None


def serve(peer):
    while data := peer.recv(1 << 17):
        message = json.loads(data)
        if message["type"] == "welcome" and memory is None and not held:
            resize(message["grant_bytes"])
            send(peer, "state", state="Ready", grant_bytes=size(), held="", weights="")
        elif message["type"] == "command":
            if message["kind"] == "Stop":
                sys.exit(0)
            if does("silent"):
                continue
            wrong = obey(message["kind"], message["grant_bytes"])
            said = message["grant_bytes"] if message["kind"] == "Shrink" else size()
            answer = {"v": 1, "type": "command_done", "id": message["id"], "grant_bytes": said,
                      "host_bytes": 0, "phases": {}}
            peer.send(json.dumps({**answer, "error": wrong} if wrong else answer).encode())


while True:
    try:
        serve(connect())
    except OSError:
        pass
    time.sleep(0.05)
