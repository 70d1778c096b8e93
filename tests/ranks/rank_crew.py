# SPDX-License-Identifier: Apache-2.0
"""An instance of several ranks, started by hand on host devices: a process of berth-engine each,
which load their parts of the weights themselves (mode off)."""

import json
import os
import pathlib
import subprocess
import time

BIN = pathlib.Path(os.environ.get("BERTH_BIN_DIR", "build/release/bin")).resolve()
SOURCE = pathlib.Path(__file__).resolve().parents[2]
MODEL = pathlib.Path(os.environ.get("BERTH_MODEL_DIR", SOURCE / "build/models/smollm2")).resolve()
RANK_LOST = 3  # the exit code of a rank whose instance has lost another


def write_batch(path, prompts, tokens, **more):
    """A batch file of greedy completions."""
    lines = [json.dumps({"custom_id": f"request-{at}", "method": "POST", "url": "/v1/completions",
                         "body": {"model": "shared", "prompt": prompt,
                                  "max_tokens": tokens, "temperature": 0, "ignore_eos": True,
                                  **more}})
             for at, prompt in enumerate(prompts)]
    path.write_text("\n".join(lines) + "\n")


def read_answers(path):
    """By request: its text, and how many tokens that was."""
    answers = {}
    for line in path.read_text().splitlines():
        record = json.loads(line)
        assert record["error"] is None and record["response"]["status_code"] == 200, record
        body = record["response"]["body"]
        answers[record["custom_id"]] = (body["choices"][0]["text"], body["usage"])
    return answers


class Crew:
    """`ranks` processes; rank 0 is given `arguments` besides."""

    def __init__(self, folder, model, ranks, arguments, shared=(), rendezvous=None):
        self.folder, self.ranks = folder, ranks
        self.logs = [folder / f"rank{rank}.log" for rank in range(ranks)]
        self.processes = []
        rendezvous = rendezvous or f"file://{folder / 'rendezvous'}"
        for rank in range(ranks):
            command = [BIN / "berth-engine", "--kv-memory", "32Mi", "--threads", "1", *shared]
            if rank == 0:
                command += ["--served-model-name", "shared", *arguments]
            environment = {**os.environ, "BERTH_MODE": "off", "BERTH_MODEL_PATH": str(model),
                           "BERTH_DEVICE": f"host-{rank}", "GOMP_SPINCOUNT": "0"}
            if ranks > 1:
                environment |= {"BERTH_RANK": str(rank), "BERTH_RANKS": str(ranks),
                                "BERTH_RENDEZVOUS": rendezvous}
            with open(self.logs[rank], "wb") as log:
                self.processes.append(subprocess.Popen([str(word) for word in command],
                                                       stdout=log, stderr=log, env=environment))

    def __enter__(self):
        return self

    def __exit__(self, *_):
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()

    def log(self, rank):
        return self.logs[rank].read_text()

    def all_logs(self):
        return "\n".join(f"--- rank {rank}\n{self.log(rank)}" for rank in range(self.ranks))

    def ends(self, timeout=120):
        """The exit codes, by rank."""
        try:
            return [process.wait(timeout) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(f"a rank hangs:\n{self.all_logs()}") from None

    def await_log(self, rank, words, timeout=120):
        end = time.monotonic() + timeout
        while words not in self.log(rank):
            assert time.monotonic() < end, f"no '{words}':\n{self.all_logs()}"
            assert self.processes[rank].poll() is None, self.all_logs()
            time.sleep(0.02)


def answers_of(folder, model, ranks, prompts, tokens, shared=()):
    """What an instance of so many ranks makes of these prompts."""
    folder.mkdir()
    write_batch(folder / "in.jsonl", prompts, tokens)
    arguments = ["--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl"]
    with Crew(folder, model, ranks, arguments, shared) as crew:
        assert crew.ends() == [0] * ranks, crew.all_logs()
        if ranks > 1:
            for phase in ("rendezvous", "connect ranks"):
                assert f"phase={phase} " in crew.log(0)
    return read_answers(folder / "out.jsonl")
