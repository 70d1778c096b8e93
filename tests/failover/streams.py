# SPDX-License-Identifier: Apache-2.0
"""Clients that see every byte: requests over raw sockets, and their answers."""

import json
import re
import socket

TIMEOUT = 60


class Connection:
    """One connection, kept open from request to request."""

    def __init__(self, address):
        if isinstance(address, str):
            self.socket = socket.socket(socket.AF_UNIX)
            self.socket.settimeout(TIMEOUT)
            self.socket.connect(address)
        else:
            self.socket = socket.create_connection(address, timeout=TIMEOUT)
        self.pending = b""

    def close(self):
        self.socket.close()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def send(self, data):
        self.socket.sendall(data)

    def more(self):
        data = self.socket.recv(1 << 16)
        if not data:
            raise EOFError(f"the connection ended after {self.pending[-200:]!r}")
        self.pending += data

    def until(self, mark):
        while mark not in self.pending:
            self.more()
        head, self.pending = self.pending.split(mark, 1)
        return head

    def exactly(self, count):
        while len(self.pending) < count:
            self.more()
        data, self.pending = self.pending[:count], self.pending[count:]
        return data

    def chunk(self):
        """The next chunk of a chunked body; empty at its end."""
        size = int(self.until(b"\r\n"), 16)
        data = self.exactly(size)
        assert self.exactly(2) == b"\r\n"
        return data

    def chunks(self):
        """Those that are left of a body."""
        while data := self.chunk():
            yield data

    def header(self):
        lines = self.until(b"\r\n\r\n").decode().split("\r\n")
        status = int(lines[0].split()[1])
        return status, dict(line.lower().split(": ", 1) for line in lines[1:])

    def answer(self):
        """Status and body, whole."""
        status, fields = self.header()
        if fields.get("transfer-encoding") != "chunked":
            return status, self.exactly(int(fields["content-length"]))
        return status, b"".join(self.chunks())

    def ask(self, path, body=None):
        self.send(request(path, body))
        return self.answer()


def request(path, body=None, more=""):
    if body is None:
        return f"GET {path} HTTP/1.1\r\nHost: x\r\n{more}\r\n".encode()
    text = json.dumps(body).encode()
    return (f"POST {path} HTTP/1.1\r\nHost: x\r\nContent-Type: application/json\r\n{more}"
            f"Content-Length: {len(text)}\r\n\r\n").encode() + text


def same_each_time(body):
    """An answer without what differs from one request to the next; within one it must not."""
    for field in (rb'"id":"([a-z0-9-]+)"', rb'"created":(\d+)'):
        assert len(set(re.findall(field, body))) <= 1, "one answer has two of " + field.decode()
    body = re.sub(rb'"created":\d+', b'"created":0', re.sub(rb'"id":"[a-z0-9-]+"', b'"id":"-"', body))
    if not body.startswith(b"data: "):
        return body
    # Whose turn it is among several choices is chance; within a choice nothing is.
    events = body.split(b"\n\n")
    choice = lambda event: int((re.findall(rb'"index":(\d+)', event) or [b"99"])[0])
    return b"\n\n".join(sorted(events, key=choice))
