# SPDX-License-Identifier: Apache-2.0
"""A foreign server on a socket that berthd holds: nobody is refused while it is away.

Method: a real node; foreign_server.py knows the LISTEN_FDS convention and nothing else of Berth.
"""

import http.client
import pathlib
import sys
import threading

from node_under_test import Node, free_port, kill, wait_until

HERE = pathlib.Path(__file__).parent


def document(port, slow=0.0, blocking=""):
    return f"""\
apiVersion: berth/v1
kind: Instance
metadata: {{name: foreign}}
spec:
  priorityClassName: online
  resources: {{requests: {{memory: 16Mi}}}}
  restart: Always
  engine:
    driver: process
    command: [{sys.executable}, {HERE / "foreign_server.py"}]
    environment: {{SLOW_START: "{slow}", BLOCKING: "{blocking}"}}
    listen: "127.0.0.1:{port}"
"""


def asked(port):
    """Who answers one request on a connection of its own: process id and names."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/")
    pid, names = connection.getresponse().read().decode().split()
    connection.close()
    return int(pid), names.split(",")


def test_connections_wait_while_a_foreign_server_dies_and_comes_back():
    port = free_port()
    with Node(memory="1Gi", policy=document(port, slow=0.3)) as node:
        first, names = asked(port)  # asked before it has started
        assert names[0] == "berth-listen"
        pid = node.wait_state("foreign", "Running")["pid"]
        assert pid == first
        for _ in range(2):
            kill(pid)
            answers = []
            clients = [threading.Thread(target=lambda: answers.append(asked(port)[0]))
                       for _ in range(40)]
            for client in clients:
                client.start()
            for client in clients:
                client.join(60)
            assert len(answers) == 40, "each is answered"
            assert set(answers) == {node.wait_state("foreign", "Running")["pid"]}
            assert pid not in answers
            pid = answers[0]


def test_a_foreign_server_answers_on_while_berthd_is_away():
    port = free_port()
    with Node(memory="1Gi", policy=document(port)) as node:
        pid, _ = asked(port)
        node.kill_daemon()
        assert asked(port)[0] == pid
        node.start_daemon()
        wait_until("it is known again", lambda: node.instance("foreign")["pid"] == pid)
        kill(pid)
        assert asked(port)[0] != pid


def test_a_server_that_waits_in_accept_is_given_a_socket_that_blocks():
    port = free_port()
    with Node(memory="1Gi", policy=document(port, blocking="yes")) as node:
        first, _ = asked(port)
        shown = node.wait_state("foreign", "Running")
        assert (shown["pid"], shown["restarts"]) == (first, 0)
        assert asked(port)[0] == first
        kill(first)
        assert asked(port)[0] != first
