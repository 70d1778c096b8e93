# SPDX-License-Identifier: Apache-2.0
"""Who may: roles by the peer's credentials and by tokens, tenants, the audit, and what no crowd,
sleeper or flood can take from the others. Real processes; other users are children that have become
them (numbers that no database knows), so most of it takes root."""

import array
import contextlib
import http.client
import json
import os
import pathlib
import re
import resource
import signal
import socket
import ssl
import stat
import subprocess
import threading
import time
import traceback

import pytest
from node_under_test import BIN, Node, Refused, call, free_port, wait_until
from tiny_model import make_tiny_model

GROUP, MONITORING = 4242, 4343
VIEWER, OPERATOR, ADMIN, STRANGER, OUTSIDER, SEARCH = 5001, 5002, 5003, 5004, 5005, 5006

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root can become other users")
pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="nothing here depends on the device")

RULES = f"""\
  group: "{GROUP}"
  access:
    - {{role: viewer, groups: ["{MONITORING}"], users: ["{VIEWER}"]}}
    - {{role: operator, users: ["{OPERATOR}"]}}
    - {{role: admin, users: ["{ADMIN}"]}}
"""


@pytest.fixture(name="models", scope="module")
def model_folders(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    folder.chmod(0o755)
    return {name: make_tiny_model(folder / name) for name in ("tiny", "secret")}


def policy_of(models, more=""):
    return "---\n".join(
        f"apiVersion: berth/v1\nkind: Model\nmetadata: {{name: {name}}}\nspec: {{path: {path}}}\n"
        for name, path in models.items()) + more


def open_node(models, node_lines="", more="", limits=None):
    """A node whose Node document has these lines too, in a folder that others may enter."""
    def start(command, **words):
        config = pathlib.Path(command[2])
        if node_lines not in config.read_text():
            config.write_text(config.read_text() + node_lines)
        config.parent.chmod(0o755)
        limit = limits or resource.getrlimit(resource.RLIMIT_NOFILE)
        return subprocess.Popen(command, preexec_fn=lambda: resource.setrlimit(
            resource.RLIMIT_NOFILE, limit), **words)
    return Node(memory="1Gi", policy=policy_of(models, more), start=start)


def acting(uid, work, gid=GROUP, groups=()):
    """What `work` gives in a child that has become that user."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.close(reading)
            os.setgroups(list(groups))
            os.setgid(gid)
            os.setuid(uid)
            answer = {"value": work()}
        except BaseException as error:  # told to the parent: nothing of pytest may run here
            answer = {"error": f"{type(error).__name__}: {error}", "trace": traceback.format_exc()}
        os.write(writing, json.dumps(answer).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = json.loads(pipe.read())
    os.waitpid(pid, 0)
    if "error" in answer:
        raise AssertionError(answer["error"] + "\n" + answer["trace"])
    return answer["value"]


def asking(node, method, target, body=None):
    """Status and reply of one request over the Unix socket, as a value."""
    def ask():
        try:
            return 200, call(node.connection(), method, target, body,
                             {"Content-Type": "application/json"})
        except Refused as refusal:
            return refusal.status, refusal.body
        except PermissionError:
            return "closed", "the socket's file keeps it out"
    return ask


def audits(node, since=0):
    lines = call(node.connection(), "GET", f"/v1/events?since={since}")
    if isinstance(lines, dict):  # one line alone is a document of its own
        lines = json.dumps(lines)
    events = [json.loads(line) for line in lines.splitlines() if line]
    return [e for e in events if e["reason"] == "Audit"]


def log_of(node):
    return (node.root / "berthd.log").read_text(errors="replace")


# Roles by credentials

@needs_root
def test_both_sockets_are_0660_and_belong_to_the_group(models):
    with open_node(models, RULES) as node:
        for name in ("admin.sock", "berthd.sock"):
            found = (node.root / "run" / name).stat()
            assert stat.S_IMODE(found.st_mode) == 0o660, name
            assert found.st_gid == GROUP, name
        assert acting(OUTSIDER, asking(node, "GET", "/healthz"), gid=OUTSIDER)[0] == "closed"


@needs_root
def test_a_role_is_what_the_rules_give_and_a_refusal_says_who_what_and_where(models):
    with open_node(models, RULES) as node:
        load, apply = ("POST", "/v1/weights:load", {"model": "tiny"}), ("PUT", "/v1/policy", "")
        for uid, may in ((VIEWER, 1), (OPERATOR, 2), (ADMIN, 3), (STRANGER, 0)):
            got = [acting(uid, asking(node, *one))[0]
                   for one in (("GET", "/v1/node"), load, apply)]
            assert [status != 403 for status in got] == [may > n for n in range(3)], (uid, got)
        status, reply = acting(VIEWER, asking(node, *load))
        assert (status, reply["code"], reply["reason"]) == (403, "PermissionDenied", "RoleTooLow")
        for word in (f"user {VIEWER}", "role viewer", "role operator", "/v1/weights:load",
                     "spec.access", "node.yaml", "SIGHUP"):
            assert word in reply["message"], word
        status, reply = acting(STRANGER, asking(node, "GET", "/v1/node"))
        assert (status, reply["reason"]) == (403, "NoRole") and "no role here" in reply["message"]
        # The event watch is a look like others.
        assert acting(STRANGER, asking(node, "GET", "/v1/events"))[0] == 403
        assert acting(VIEWER, asking(node, "GET", "/v1/events"))[0] == 200
        # A group that the process has beside its own counts.
        assert acting(STRANGER, asking(node, "GET", "/v1/node"), groups=[MONITORING])[0] == 200
        assert node.get("/v1/node")["name"] == "test", "root is admin, whatever the rules"


@needs_root
def test_without_rules_the_group_operates_and_the_daemons_user_administers(models):
    with open_node(models, f'  group: "{GROUP}"\n') as node:
        assert acting(STRANGER, asking(node, "GET", "/v1/node"))[0] == 200
        assert acting(STRANGER, asking(node, "POST", "/v1/weights:load", {"model": "tiny"}))[0] == 200
        status, reply = acting(STRANGER, asking(node, "PUT", "/v1/policy", ""))
        assert status == 403 and "root and the daemon's user are admin" in reply["message"]
        node.put("/v1/policy", policy_of(models))


@needs_root
def test_rules_change_by_sighup(models):
    with open_node(models, RULES) as node:
        assert acting(STRANGER, asking(node, "GET", "/v1/node"))[0] == 403
        config = node.root / "node.yaml"
        config.write_text(config.read_text().replace(f'users: ["{VIEWER}"]', f'users: ["{STRANGER}"]'))
        node.daemon.send_signal(signal.SIGHUP)
        wait_until("the new rules hold",
                   lambda: acting(STRANGER, asking(node, "GET", "/v1/node"))[0] == 200, 10)
        assert acting(VIEWER, asking(node, "GET", "/v1/node"))[0] == 403


# The audit

@needs_root
def test_every_change_and_every_refusal_is_an_event_and_a_line(models):
    with open_node(models, RULES) as node:
        before = len(audits(node))
        acting(OPERATOR, asking(node, "POST", "/v1/weights:load",
                                {"model": "tiny", "requestId": "once"}))
        acting(OPERATOR, asking(node, "POST", "/v1/weights/none:evict", {"reason": 'a "word"\n'}))
        for _ in range(5):
            acting(VIEWER, asking(node, "POST", "/v1/weights:load", {"model": "tiny"}))
        node.put("/v1/policy", policy_of(models))
        node.get("/v1/node")
        told = audits(node)[before:]
        assert len(told) == 4, told
        done, failed, refused, applied = (e["message"] for e in told)
        for word in (f'who="user {OPERATOR}"', f"uid={OPERATOR}", "pid=", "from=unix",
                     "role=operator", 'request="POST /v1/weights:load"', "tiny", "outcome=202",
                     "operation="):
            assert word in done, (word, done)
        assert "outcome=404" in failed and "reason=NotResident" in failed and "\n" not in failed
        assert told[1]["object"] == "weights/none" and told[1]["kind"] == "Warning"
        assert f'who="user {VIEWER}"' in refused and "outcome=refused reason=RoleTooLow" in refused
        assert 'who="user root"' in applied and "body-sha256=" in applied
        lines = [line for line in log_of(node).splitlines() if " audit object=" in line]
        assert len(lines) == 4 and done in lines[0], lines


# Tenants

def tenants(users, may):
    return (f"---\napiVersion: berth/v1\nkind: ColocationPolicy\nmetadata: {{name: p}}\nspec:\n"
            f"  tenants: [{{name: search, users: [{users}], mayAttach: [{may}]}}]\n")


def attaching(node, **which):
    """The type of berthd's answer to an attach, and its words."""
    def attach():
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(30)
            peer.connect(str(node.root / "run/berthd.sock"))
            peer.send(encode("hello", id=1, program="test"))
            assert receive(peer)["type"] == "welcome"
            peer.send(encode("attach", id=2, **which))
            while (reply := receive(peer))["type"] == "progress":
                pass
            return reply["type"], reply.get("error", {})
    return attach


def encode(kind, **fields):
    return json.dumps({"v": 1, "type": kind, **fields}).encode()


def receive(peer):
    try:
        data, ancillary, _, _ = peer.recvmsg(1 << 17, socket.CMSG_SPACE(64 * 4))
    except ConnectionResetError:  # told before what is in the queue
        data, ancillary, _, _ = peer.recvmsg(1 << 17, socket.CMSG_SPACE(64 * 4))
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            fds = array.array("i")
            fds.frombytes(content[:len(content) - len(content) % fds.itemsize])
            for fd in fds:
                os.close(fd)
    return json.loads(data) if data else None


@needs_root
def test_a_tenants_user_attaches_to_its_models_and_to_no_other(models):
    with open_node(models, f'  group: "{GROUP}"\n', tenants(SEARCH, "tiny")) as node:
        assert acting(SEARCH, attaching(node, model="tiny"))[0] == "attached"
        kind, error = acting(SEARCH, attaching(node, model="secret"))
        assert (kind, error["code"], error["reason"]) == ("failed", "PermissionDenied", "TenantRefused")
        for word in (f"user {SEARCH}", "tenant search", "tiny", "secret", "mayAttach"):
            assert word in error["message"], word
        assert [w["path"] for w in node.weights()] == [str(models["tiny"])], "nothing was loaded"
        # Whoever is of no tenant is not restricted; what they had loaded stays out of reach by any name.
        assert acting(STRANGER, attaching(node, model="secret"))[0] == "attached"
        secret = next(w for w in node.weights() if w["path"] == str(models["secret"]))
        for which in ({"weight_set": secret["id"]}, {"path": str(models["secret"])}):
            assert acting(SEARCH, attaching(node, **which))[1]["reason"] == "TenantRefused", which
        # A change of the policy counts from the next attach on.
        node.put("/v1/policy", tenants(SEARCH, "tiny, secret")[4:])
        assert acting(SEARCH, attaching(node, model="secret"))[0] == "attached"


# TCP: tokens and TLS

def make_token(name, role):
    made = json.loads(subprocess.run([BIN / "berth", "token", name, "--role", role, "-o", "json"],
                                     capture_output=True, text=True, check=True).stdout)
    assert made["token"] not in made["line"]
    return made


def token_file(path, *made):
    path.write_text("# tokens of this test\n" + "".join(m["line"] + "\n" for m in made))
    path.chmod(0o600)
    return path


def over_tcp(port, method, target, token=None, body=None):
    headers = {"Content-Type": "application/json"}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        return 200, call(connection, method, target, body, headers)
    except Refused as refusal:
        return refusal.status, refusal.body


def test_tokens_have_roles_and_their_hashes_alone_are_on_disk(models, tmp_path):
    look, work = make_token("grafana", "viewer"), make_token("ci", "operator")
    file, port = token_file(tmp_path / "tokens", look, work), free_port()
    with open_node(models, f'  adminTcp: {{listen: "127.0.0.1:{port}", tokenFile: {file}}}\n') as node:
        assert over_tcp(port, "GET", "/v1/node", look["token"])[0] == 200
        status, reply = over_tcp(port, "POST", "/v1/weights:load", look["token"], {"model": "tiny"})
        assert status == 403 and "token grafana" in reply["message"] and str(file) in reply["message"]
        assert over_tcp(port, "POST", "/v1/weights:load", work["token"], {"model": "tiny"})[0] == 200
        assert over_tcp(port, "PUT", "/v1/policy", work["token"])[0] == 403
        for token in (None, "", "berth_" + "0" * 64, look["line"].split(":")[1]):
            status, reply = over_tcp(port, "GET", "/healthz", token)
            assert status == 401 and "Bearer" in reply["message"], token
        told = [e["message"] for e in audits(node)]
        assert any('who="token ci"' in one and "from=127.0.0.1:" in one and "outcome=202" in one
                   for one in told), told
        assert any('who="nobody"' in one and "outcome=refused" in one for one in told)
        assert look["token"] not in log_of(node) and work["token"] not in log_of(node)
        # Taken out of the file, a token ends with SIGHUP.
        token_file(file, work)
        node.daemon.send_signal(signal.SIGHUP)
        wait_until("the token is gone",
                   lambda: over_tcp(port, "GET", "/v1/node", look["token"])[0] == 401, 10)
        # A file that cannot be used changes nothing.
        file.write_text("ci operator nonsense\n")
        node.daemon.send_signal(signal.SIGHUP)
        wait_until("it is told", lambda: "sha256: and 64" in log_of(node), 10)
        assert over_tcp(port, "GET", "/v1/node", work["token"])[0] == 200


def certificate(folder, name="127.0.0.1"):
    kind = "IP" if name[0].isdigit() else "DNS"
    files = folder / f"{name}.pem", folder / f"{name}.key"
    subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256",
                    "-nodes", "-days", "2", "-subj", f"/CN={name}", "-addext",
                    f"subjectAltName={kind}:{name}", "-keyout", files[1], "-out", files[0]],
                   check=True, capture_output=True)
    files[1].chmod(0o600)
    return files


def berth(*words, **environment):
    return subprocess.run([BIN / "berth", *words], capture_output=True, text=True, timeout=60,
                          env={**os.environ, **environment})


def test_tls_by_files_and_the_command_line_trusts_whom_it_is_told(models, tmp_path):
    made, port = make_token("ops", "admin"), free_port()
    file, (pem, key) = token_file(tmp_path / "tokens", made), certificate(tmp_path)
    mine = tmp_path / "token"
    mine.write_text(made["token"] + "\n")
    mine.chmod(0o600)
    lines = (f'  adminTcp: {{listen: "0.0.0.0:{port}", anywhere: true, tokenFile: {file}, '
             f'certificateFile: {pem}, keyFile: {key}}}\n')
    with open_node(models, lines):
        admin = ["--admin", f"https://127.0.0.1:{port}", "--token-file", str(mine)]
        done = berth(*admin, "--ca", str(pem), "status")
        assert done.returncode == 0 and "host-0" in done.stdout, done.stderr
        done = berth("status", BERTH_ADMIN=admin[1], BERTH_ADMIN_TOKEN_FILE=str(mine),
                     BERTH_ADMIN_CA=str(pem))
        assert done.returncode == 0, done.stderr
        # What is long, and what is a stream, comes whole.
        assert "Started" in berth(*admin, "--ca", str(pem), "events").stdout
        done = berth(*admin, "status")
        assert done.returncode == 3 and "not trusted" in done.stderr and "--ca" in done.stderr
        other, _ = certificate(tmp_path, "elsewhere.example")
        assert "not trusted" in berth(*admin, "--ca", str(other), "status").stderr
        # Plain HTTP is told that it is at the wrong door, and gets no further.
        status, reply = over_tcp(port, "GET", "/healthz", made["token"])
        assert (status, reply["reason"]) == (400, "TlsExpected")
        # Another's library agrees; the old versions are off.
        context = ssl.create_default_context(cafile=pem)
        connection = http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=30)
        connection.request("GET", "/v1/node", headers={"Authorization": f"Bearer {made['token']}"})
        assert json.loads(connection.getresponse().read())["name"] == "test"
        connection.close()
        mine.chmod(0o644)
        assert "chmod 0600" in berth(*admin, "--ca", str(pem), "status").stderr


@pytest.mark.parametrize("listen,more,words", [
    ("0.0.0.0:1", "", "only loopback addresses"),
    ("127.0.0.1.example.org:1", "", "only loopback addresses"),
    ("0.0.0.0:1", ", anywhere: true", "without TLS"),
    ("0.0.0.0:1", ", anywhere: true, certificateFile: c.pem", "keyFile"),
    ("127.0.0.1:99999", "", "HOST:PORT"),
    ("127.0.0.1:1", "open", "must not be read by others"),
    ("127.0.0.1:1", "garbage", "tokens:2: 'a' is no role"),
])
def test_a_door_that_is_not_safe_is_not_opened(tmp_path, listen, more, words):
    file = token_file(tmp_path / "tokens", make_token("a", "viewer"))
    if more == "open":
        file.chmod(0o644)
    elif more == "garbage":
        file.write_text("# a line\nnot a line\n# of tokens\nat all\n")
    more = more if more.startswith(",") else ""
    (tmp_path / "node.yaml").write_text(
        f"kind: Node\nmetadata: {{name: n}}\nspec:\n  socket: {tmp_path}/run/b.sock\n"
        f"  stateDir: {tmp_path}/state\n  devices: {{host: [{{name: host-0, memory: 64Mi}}]}}\n"
        f'  adminTcp: {{listen: "{listen}", tokenFile: {file}{more}}}\n')
    done = subprocess.run([BIN / "berthd", "--config", tmp_path / "node.yaml"],
                          capture_output=True, text=True, timeout=30)
    for child in pathlib.Path("/proc").glob("[0-9]*/cmdline"):  # a keeper that was started already
        with contextlib.suppress(OSError):
            if str(tmp_path).encode() in child.read_bytes():
                os.kill(int(child.parent.name), signal.SIGKILL)
    assert done.returncode != 0 and words in done.stdout + done.stderr, done.stderr
