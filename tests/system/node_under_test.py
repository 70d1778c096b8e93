# SPDX-License-Identifier: Apache-2.0
"""A real node for tests: berthd, keeper and engines from BERTH_BIN_DIR, in a folder of its own."""

import http.client
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import tempfile
import time
import urllib.parse

BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", "build/release/bin")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = pathlib.Path(os.environ.get("BERTH_MODEL_DIR", SOURCE / "build/models/smollm2")).resolve()
DEVICE = os.environ.get("BERTH_TEST_DEVICE", "host")


class Refused(Exception):
    """A reply with an error status; `.body` is its JSON."""

    def __init__(self, status, body):
        super().__init__(f"HTTP {status}: {body}")
        self.status, self.body = status, body


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path, timeout):
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self):
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


def call(connection, method, target, body=None, headers=None):
    try:
        payload = body if body is None or isinstance(body, str) else json.dumps(body)
        connection.request(method, target, payload, headers or {})
        reply = connection.getresponse()
        text = reply.read().decode()
    finally:
        connection.close()
    try:
        content = json.loads(text)
    except ValueError:
        content = text
    if reply.status >= 400:
        raise Refused(reply.status, content)
    return content


def wait_until(what, condition, timeout=60.0, every=0.05):
    end = time.monotonic() + timeout
    while True:
        value = condition()
        if value:
            return value
        if time.monotonic() > end:
            raise AssertionError(f"not within {timeout:.0f} s: {what}")
        time.sleep(every)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def alive(pid):
    try:
        state = pathlib.Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
        return state not in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return False


def kill(pid, number=signal.SIGKILL):
    os.kill(pid, number)


class Engine:
    """An engine's OpenAI endpoint."""

    def __init__(self, endpoint, model):
        self._url = urllib.parse.urlparse(endpoint)
        self.model = model

    def _connection(self, timeout=120):
        return http.client.HTTPConnection(self._url.hostname, self._url.port, timeout=timeout)

    def complete(self, prompt, max_tokens=16, **more):
        reply = call(self._connection(), "POST", "/v1/completions",
                     {"model": self.model, "prompt": prompt, "max_tokens": max_tokens,
                      "temperature": 0, **more}, {"Content-Type": "application/json"})
        return reply["choices"][0]["text"]

    def chat(self, content, max_tokens=24):
        reply = call(self._connection(), "POST", "/v1/chat/completions",
                     {"model": self.model, "messages": [{"role": "user", "content": content}],
                      "max_tokens": max_tokens, "temperature": 0},
                     {"Content-Type": "application/json"})
        return reply["choices"][0]["message"]["content"]


POLICY = """\
apiVersion: berth/v1
kind: Model
metadata: {{name: smollm2}}
spec: {{path: {model}}}
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: chat}}
spec:
  model: smollm2
  priorityClassName: online
  resources: {{requests: {{memory: 256Mi}}, limits: {{memory: 512Mi}}}}
  engine: {{driver: berth, command: [berth-engine, --listen, "127.0.0.1:0", --served-model-name, smollm2{extra}]}}
"""

BATCH = """\
---
apiVersion: berth/v1
kind: Instance
metadata: {{name: nightly}}
spec:
  model: smollm2
  priorityClassName: batch
  resources: {{requests: {{memory: 0}}, limits: {{memory: 512Mi}}}}
  engine: {{driver: berth, command: [berth-engine, --batch-input, {input}, --batch-output, {output}, --served-model-name, smollm2{extra}]}}
"""


class Node:
    def __init__(self, memory="4Gi", batch_lines=None, extra=(), policy=None, max_tokens=24,
                 keeper="process", start=subprocess.Popen):
        """`start` is called as Popen is, to start berthd."""
        self._start = start
        self.root = pathlib.Path(tempfile.mkdtemp(prefix="berth-", dir="/tmp"))
        self.batch_input, self.batch_output = self.root / "in.jsonl", self.root / "out.jsonl"
        more = "".join(f", {word}" for word in extra)
        text = policy or POLICY.format(model=MODEL, extra=more)
        if batch_lines is not None:
            self.write_batch(batch_lines, max_tokens)
            text += BATCH.format(input=self.batch_input, output=self.batch_output, extra=more)
        (self.root / "policies.yaml").write_text(text)
        devices = f"{{host: [{{name: host-0, memory: {memory}}}]}}" if DEVICE == "host" else "auto"
        (self.root / "node.yaml").write_text(
            f"apiVersion: berth/v1\nkind: Node\nmetadata: {{name: test}}\nspec:\n"
            f"  socket: {self.root}/run/berthd.sock\n  stateDir: {self.root}/state\n"
            f"  devices: {devices}\n  keeper: {keeper}\n  policies: [policies.yaml]\n")
        self.daemon = None
        self.start_daemon()

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self.print_logs()
        self.close()

    # The daemon

    def start_daemon(self, wait=True):
        self.log = open(self.root / "berthd.log", "ab")
        started = time.monotonic()
        self.daemon = self._start(
            [BIN / "berthd", "--config", self.root / "node.yaml", "--log-level", "debug"],
            stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL)
        if wait:
            wait_until("berthd is ready", self.ready, 30, 0.01)
        return time.monotonic() - started

    def ready(self):
        if self.daemon.poll() is not None:
            self.print_logs()
            raise AssertionError(f"berthd ended with {self.daemon.returncode}")
        try:
            self.get("/readyz")
            return True
        except (OSError, Refused, http.client.HTTPException):
            return False

    def kill_daemon(self):
        self.daemon.send_signal(signal.SIGKILL)
        self.daemon.wait()

    def close(self):
        """Ends everything this node started, whatever its state."""
        if self.daemon.poll() is None:
            self.daemon.terminate()
            try:
                self.daemon.wait(10)
            except subprocess.TimeoutExpired:
                self.daemon.kill()
        def ended():
            left = self.processes() # a berthd that somebody else started may start a keeper yet
            for pid in left:
                try:
                    kill(pid)
                except ProcessLookupError:
                    pass
            return not left
        wait_until("all processes are gone", ended, 20)
        self.log.close()
        shutil.rmtree(self.root, ignore_errors=True)

    def processes(self):
        """Pids of everything that was started with this node's folder on its command line or in
        its environment."""
        found = []
        for entry in pathlib.Path("/proc").glob("[0-9]*"):
            try:
                text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            except (FileNotFoundError, ProcessLookupError, PermissionError):
                continue
            pid = int(entry.name)
            if str(self.root).encode() in text and pid != os.getpid() and alive(pid):
                found.append(pid)
        return found

    def loader(self):
        """The pid of a running berth-loader that berthd started, or None."""
        pid = self.daemon.pid
        for child in pathlib.Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            if b"berth-loader" in pathlib.Path(f"/proc/{child}/cmdline").read_bytes():
                return int(child)
        return None

    def print_logs(self):
        for path in [self.root / "berthd.log", *sorted(self.root.glob("state/**/*.log"))]:
            if path.exists():
                print(f"--- {path.name}")
                print("\n".join(path.read_text(errors="replace").splitlines()[-40:]))

    # REST

    def connection(self, timeout=60):
        return _UnixConnection(self.root / "run/admin.sock", timeout)

    def get(self, target):
        return call(self.connection(), "GET", target)

    def post(self, target, body=None):
        return call(self.connection(), "POST", target, body if body is not None else {})

    def put(self, target, text):
        return call(self.connection(), "PUT", target, text, {"Content-Type": "application/yaml"})

    def instance(self, name):
        return self.get(f"/v1/instances/{name}")

    def wait_state(self, name, *states, timeout=120):
        def reached():
            shown = self.instance(name)
            if shown["state"] == "Failed" and "Failed" not in states:
                raise AssertionError(f"{name} failed: {shown['reason']}: {shown['message']}")
            return shown if shown["state"] in states else None
        return wait_until(f"{name} is {' or '.join(states)}", reached, timeout)

    def finish(self, operation, timeout=60):
        done = self.get(f"/v1/operations/{operation['id']}?wait={timeout}s")
        if done["state"] != "Succeeded":
            raise AssertionError(f"operation failed: {done['error']}")
        return done

    def preempt(self, name, mode, **more):
        return self.finish(self.post(f"/v1/instances/{name}:preempt", {"mode": mode, **more}))

    def resume(self, name):
        return self.finish(self.post(f"/v1/instances/{name}:resume"))

    def engine(self, name="chat"):
        shown = wait_until(f"{name} listens",
                           lambda: (i := self.wait_state(name, "Running"))["endpoint"] and i)
        return Engine(shown["endpoint"], "smollm2")

    def device(self):
        return self.get("/v1/devices")["items"][0]

    def weights(self):
        return self.get("/v1/weights")["items"]

    # Batch files

    def write_batch(self, lines, max_tokens):
        with open(self.batch_input, "w", encoding="utf-8") as file:
            for number in range(lines):
                file.write(json.dumps({
                    "custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
                    "body": {"model": "smollm2", "prompt": PROMPTS[number % len(PROMPTS)],
                             "max_tokens": max_tokens, "temperature": 0}}) + "\n")

    def answers(self):
        """custom_id -> text; a custom_id that was answered twice is a failure."""
        found = {}
        if not self.batch_output.exists():
            return found
        for line in self.batch_output.read_text(encoding="utf-8").splitlines():
            try:
                entry = json.loads(line)
            except ValueError:
                continue  # the last line, half written
            assert entry["custom_id"] not in found, f"{entry['custom_id']} was answered twice"
            assert entry["error"] is None and entry["response"]["status_code"] == 200, entry
            found[entry["custom_id"]] = entry["response"]["body"]["choices"][0]["text"]
        return found


PROMPTS = [
    "The capital of France is", "Water boils at", "A short story about a cat:",
    "def fibonacci(n):", "The largest planet is", "Once upon a time", "The sea is",
    "To bake bread you need", "The first man on the moon was", "Spring comes after",
]
