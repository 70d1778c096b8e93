# SPDX-License-Identifier: Apache-2.0
"""A real node with an engine and its standby on a tiny model of random weights: starts in a moment,
and answers thousands of tokens a second."""

import json
import subprocess

from node_under_test import BIN, free_port, wait_until
from serving_pair import ServingPair

PATIENCE = 300  # seconds for a rollout, with any machine
# A service whose engines end sooner than 2 s after their start, five times in a row, is given up.
STEADY = 2.2

DOCUMENTS = """\
kind: Model
metadata: {{name: tiny}}
spec: {{path: {model}, pin: true}}
---
kind: Instance
metadata: {{name: chat}}
spec:
  model: tiny
  priorityClassName: online
  resources: {{requests: {{memory: {request}}}, limits: {{memory: {limit}}}}}
  engine:
    command: [berth-engine, --served-model-name, tiny, --batch-invariant, --threads, "1"]
    listen: "127.0.0.1:{port}"
    environment: {environment}
"""
SPARE = """\
---
kind: Instance
metadata: {name: spare}
spec: {standbyOf: chat}
"""


def completion(prompt, **more):
    return "/v1/completions", {"model": "tiny", "prompt": prompt, "max_tokens": 40,
                               "temperature": 0, "ignore_eos": True, **more}


def chat(text, **more):
    return "/v1/chat/completions", {"model": "tiny", "max_tokens": 40, "temperature": 0,
                                    "messages": [{"role": "user", "content": text}],
                                    "ignore_eos": True, **more}


class TinyPair(ServingPair):
    def __init__(self, model, alone=False, environment=None, memory="1Gi",
                 grant=("64Mi", "128Mi"), spare=SPARE, **more):
        """`grant`: requested, and the limit."""
        self.port, self.model, self.grant = free_port(), model, grant
        self.serving = ("chat",) if alone else ServingPair.serving
        super().__init__(memory=memory, **more,
                         policy=self.documents(environment or {}) + ("" if alone else spare))
        if alone:
            wait_until("it answers", self.active)
        else:
            self.wait_pair()

    def documents(self, environment):
        """The model's and chat's."""
        request, limit = self.grant
        return DOCUMENTS.format(model=self.model, port=self.port, request=request, limit=limit,
                                environment=json.dumps(environment))

    def berth(self, *words):
        return subprocess.run([BIN / "berth", "--admin", self.root / "run/admin.sock", *words],
                              capture_output=True, stdin=subprocess.DEVNULL, text=True,
                              timeout=PATIENCE, check=False)

    def roll(self, *words):
        """`berth rollout`, until it is over."""
        done = self.berth("rollout", *words, "--wait")
        assert done.returncode == 0, done.stderr
        return done

    def roll_to(self, environment, *words):
        document = self.root / "chat.yaml"
        document.write_text(self.documents(environment).split("---")[1])
        return self.roll("chat", "-f", str(document), *words)

    def wait_steady(self):
        """Both of the pair, up for a while."""
        def steady():
            found, seconds = self.both()
            return all(found) and all(value > STEADY for value in seconds.values()) and found
        return wait_until("one answers and one stands by, for a while", steady, 180)
