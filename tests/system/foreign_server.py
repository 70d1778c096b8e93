# SPDX-License-Identifier: Apache-2.0
"""An engine that knows nothing of Berth but the convention of inherited sockets: descriptor 3 listens.

Answers each request with its process id and how many sockets it was given. Takes some time to start.
"""

import os
import socket
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

assert int(os.environ["LISTEN_PID"]) == os.getpid(), "the sockets are another process's"
NAMES = os.environ["LISTEN_FDNAMES"].split(":")
assert len(NAMES) == int(os.environ["LISTEN_FDS"])


class Answer(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = f"{os.getpid()} {','.join(NAMES)}\n".encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


def accept_and_wait():
    """As the simplest of servers do: accept() returns when somebody comes, and not before."""
    listener = socket.socket(fileno=3)
    while True:
        connection, _ = listener.accept()
        with connection:
            connection.recv(1 << 16)
            body = f"{os.getpid()} {','.join(NAMES)}\n".encode()
            connection.sendall(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: "
                               + str(len(body)).encode() + b"\r\n\r\n" + body)


time.sleep(float(os.environ.get("SLOW_START", "0")))
if os.environ.get("BLOCKING"):
    accept_and_wait()
server = ThreadingHTTPServer(("127.0.0.1", 0), Answer, bind_and_activate=False)
server.socket.close()
server.socket = socket.socket(fileno=3)
server.serve_forever()
