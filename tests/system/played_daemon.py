# SPDX-License-Identifier: Apache-2.0
"""berthd's side of an engine's connection, played by a test; the weights come from the real loader."""

import json
import os
import pathlib
import re
import socket
import subprocess

from node_under_test import BIN, MODEL

MESSAGE_MAX = 1 << 17


def mapped_grant(pid):
    """What a process has mapped as grant, by the kernel's word."""
    text = pathlib.Path(f"/proc/{pid}/maps").read_text()
    return sum(int(end, 16) - int(begin, 16) for begin, end in
               re.findall(r"^([0-9a-f]+)-([0-9a-f]+) .*memfd:berth-grant", text, re.M))


def _send(connection, message, fds=(), **fields):
    text = json.dumps({"v": 1, "type": message, **fields}).encode()
    socket.send_fds(connection, [text], list(fds))


def _receive(connection):
    """The next message and its descriptors; None when the other side is gone."""
    try:
        text, fds, _, _ = socket.recv_fds(connection, MESSAGE_MAX, 64)
    except ConnectionResetError:
        return None, []
    return (json.loads(text) if text else None), fds


def load_weights(environment, folder=MODEL, more=()):
    """Runs berth-loader as berthd does, with `more` arguments. The Attached fields, and the
    descriptors."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        with subprocess.Popen([BIN / "berth-loader", "--model", folder, "--device", "host-0",
                               "--environment", json.dumps(environment), "--control-fd",
                               str(theirs.fileno()), *more], pass_fds=[theirs.fileno()]) as loader:
            theirs.close()
            ours.settimeout(120)
            while True:
                message, fds = _receive(ours)
                assert message is not None and message["type"] != "failed", message
                if message["type"] == "planned":
                    _send(ours, "go")
                if message["type"] == "sealed":
                    _send(ours, "kept")
                    break
        assert loader.returncode == 0
    return {"weight_set": message["fingerprint"][:16], "fingerprint": message["fingerprint"],
            "model_path": str(folder), "segment_bytes": message["segment_bytes"]}, fds


class PlayedDaemon:
    """Listens as berthd does and starts one engine, which it gives up to `grant` bytes."""

    weights = None  # of all tests: loaded once

    def __init__(self, folder, grant, command, environment):
        self.path = folder / "berthd.sock"
        self.grant = grant
        self.said = None  # the grant that the engine named last
        self.next_id = 100
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.listener.bind(str(self.path))
        self.listener.listen(4)
        self.listener.settimeout(60)
        self.log = open(folder / "engine.log", "wb")
        self.engine = subprocess.Popen(
            [BIN / "berth-engine", *command], stdout=self.log, stderr=self.log,
            env={**os.environ, "BERTH_SOCKET": str(self.path), "BERTH_INSTANCE": "nightly",
                 "BERTH_TOKEN": "secret", "BERTH_MODE": "client", **environment})
        self.connection = None
        self.accept()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.hang_up()
        self.listener.close()
        if self.engine.poll() is None:
            self.engine.kill()
        self.engine.wait()
        self.log.close()

    def accept(self):
        """A connection, greeted; its hello."""
        self.connection, _ = self.listener.accept()
        self.connection.settimeout(60)
        hello, _ = _receive(self.connection)
        assert hello["type"] == "hello" and hello["token"] == "secret", hello
        self.said = hello["grant_bytes"]
        _send(self.connection, "welcome", self.gate_fds(), id=hello["id"], node="played", instance="nightly",
              model="smollm2", model_path=str(MODEL), device="host-0", device_kind="host",
              class_name="batch", class_value=100, grant_bytes=self.grant,
              grant_bytes_max=self.grant)
        return hello

    def gate_fds(self):
        """What the welcome carries of the gate; without it the gate is always open."""
        return ()

    def weights_for(self, environment):
        if PlayedDaemon.weights is None:
            PlayedDaemon.weights = load_weights(environment)
        return PlayedDaemon.weights

    def hang_up(self):
        if self.connection is not None:
            self.connection.close()
            self.connection = None

    def next(self):
        """The next message; attach is answered here. None when the engine has ended."""
        message, fds = _receive(self.connection)
        for fd in fds:
            os.close(fd)
        if message is None:
            return None
        if "grant_bytes" in message:
            self.said = message["grant_bytes"]
        if message["type"] == "attach":
            fields, segments = self.weights_for(message["environment"])
            _send(self.connection, "attached", fds=segments, id=message["id"], **fields)
        return message

    def await_message(self, kind, **fields):
        """The next of that kind with these fields; None when the engine has ended."""
        while True:
            message = self.next()
            if message is None:
                return None
            if message["type"] == kind and all(message.get(k) == v for k, v in fields.items()):
                return message

    def command(self, kind, grant_bytes=0, **more):
        """Its id."""
        self.next_id += 1
        try:
            _send(self.connection, "command", id=self.next_id, kind=kind,
                  grant_bytes=grant_bytes, **more)
        except (BrokenPipeError, ConnectionResetError):
            pass  # the end is to be read
        return self.next_id

    def order(self, kind, grant_bytes=0, **more):
        """Its answer; None when the engine has ended first."""
        return self.await_message("command_done", id=self.command(kind, grant_bytes, **more))
