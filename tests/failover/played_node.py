# SPDX-License-Identifier: Apache-2.0
"""berthd and keeper of one instance, played: several engines on one socket, one of which serves."""

import json
import os
import pathlib
import queue
import socket
import threading

from node_under_test import BIN, MODEL
from played_daemon import _receive, _send, load_weights
from socket_holder import SocketHolder

PATIENCE = 120


class PlayedEngine:
    """One engine and what it has said."""

    def __init__(self, node, process, connection, generation):
        self.node, self.process, self.connection = node, process, connection
        self.said = queue.Queue()
        self.answers = {}
        self.state = None  # its last
        self.report = None
        self.changed = threading.Condition()
        self.next_id = 0
        self.hello, _ = _receive(connection)
        assert self.hello["type"] == "hello", self.hello
        _send(connection, "welcome", id=self.hello["id"], node="played", instance="chat",
              model="smollm2", model_path=str(MODEL), device="host-0", device_kind="host",
              class_name="online", class_value=1000, grant_bytes=node.grant,
              grant_bytes_max=node.grant, generation=generation)
        threading.Thread(target=self._listen, daemon=True).start()

    def _listen(self):
        while True:
            try:
                message, fds = _receive(self.connection)
            except OSError:
                message, fds = None, []
            for fd in fds:
                os.close(fd)
            if message is None:
                break
            if message["type"] == "attach":
                fields, segments = self.node.weights_for(message["environment"])
                _send(self.connection, "attached", fds=segments, id=message["id"], **fields)
            with self.changed:
                if message["type"] == "state":
                    self.state = message
                elif message["type"] == "report":
                    self.report = message
                elif message["type"] == "command_done":
                    self.answers[message["id"]] = message
                self.changed.notify_all()
        with self.changed:
            self.connection.close()
            self.changed.notify_all()

    def _await(self, found):
        with self.changed:
            assert self.changed.wait_for(found, PATIENCE), f"nothing came; {self.node.log_text()}"

    def await_state(self, state, held):
        self._await(lambda: self.state is not None and self.state["state"] == state
                    and self.state["held"] == held)
        return self.state

    def await_report(self, found):
        self._await(lambda: self.report is not None and found(self.report))

    def command(self, kind, **fields):
        """Its id."""
        self.next_id += 1
        _send(self.connection, "command", id=self.next_id, kind=kind, **fields)
        return self.next_id

    def answer_to(self, number):
        self._await(lambda: number in self.answers)
        return self.answers[number]

    def order(self, kind, **fields):
        return self.answer_to(self.command(kind, **fields))

    def kill(self):
        self.node.kill(self.process)


class PlayedNode(SocketHolder):
    weights = None  # of all tests: loaded once

    def __init__(self, folder, *flags, grant=256 << 20, **more):
        super().__init__(**more)
        self.folder, self.flags, self.grant = pathlib.Path(folder), flags, grant
        self.path = self.folder / "berthd.sock"
        self.daemon = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.daemon.bind(str(self.path))
        self.daemon.listen(4)
        self.daemon.settimeout(PATIENCE)
        self.log = open(self.folder / "engine.log", "ab")

    def weights_for(self, environment):
        if PlayedNode.weights is None:
            PlayedNode.weights = load_weights(environment)
        return PlayedNode.weights

    def log_text(self):
        return (self.folder / "engine.log").read_text()[-3000:]

    def engine(self, serves):
        """Starts one: it serves from the start, or stands by."""
        self.generation += 1 if serves else 0
        process = self.start(
            [BIN / "berth-engine", *self.flags], stdout=self.log, stderr=self.log,
            environment={"BERTH_SOCKET": str(self.path), "BERTH_INSTANCE": "chat",
                         "BERTH_TOKEN": "secret", "BERTH_MODE": "client"})
        connection, _ = self.daemon.accept()
        return PlayedEngine(self, process, connection, self.generation if serves else 0)

    def serving(self):
        engine = self.engine(serves=True)
        engine.await_state("Ready", "")
        return engine

    def standby(self):
        engine = self.engine(serves=False)
        engine.await_state("Ready", "Standby")
        return engine

    def promote(self, engine):
        self.generation += 1
        return engine.order("Serve", generation=self.generation)

    def close(self):
        super().close()
        self.daemon.close()
        self.log.close()
