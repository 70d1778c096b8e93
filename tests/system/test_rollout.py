# SPDX-License-Identifier: Apache-2.0
"""A changed document for an instance that goes on serving, and clients who notice nothing.

Method: a real node with real engines, `berth rollout` as people call it, and streaming clients who keep
their connections and compare every answer with that of an undisturbed engine. Many rollouts under many
requests: tests/failover/test_rollouts_proof.py.
"""

import json
import subprocess

import pytest
from node_under_test import BIN, PROMPTS, Refused, call, kill, wait_until
from test_standby import Crowd, Pair, Streaming

ROLLOUTS, REQUESTS = 3, 30
PATIENCE = 900 # seconds, with any machine


@pytest.fixture(scope="module")
def references():
    with Pair(alone=True) as node:
        return {prompt: node.stream(prompt, 16) for prompt in PROMPTS[:5]}


class Short(Crowd):
    """Clients with short answers on connections of their own, so that many fit into a rollout. How long
    an answer takes is no matter of theirs."""

    def ask_on(self, number):
        prompt = sorted(self.references)[number % len(self.references)]
        while not self.stop.is_set():
            with Streaming(self.node.port) as client:
                client.socket.settimeout(PATIENCE)
                self.note(prompt, client.complete(prompt, 16))

    def goes_on(self, answers=2):
        before = self.done
        wait_until("clients are answered", lambda: self.wrong or self.done >= before + answers,
                   PATIENCE)


def berth(node, *words):
    return subprocess.run([BIN / "berth", "--admin", node.root / "run/admin.sock", *words],
                          capture_output=True, stdin=subprocess.DEVNULL, text=True, timeout=PATIENCE, check=False)


def write(node, mark, **changed):
    """chat's new document, in a file."""
    text = "kind: Instance" + node.documents(mark).split("kind: Instance")[1].split("---")[0]
    for before, after in changed.get("replace", {}).items():
        assert before in text
        text = text.replace(before, after)
    path = node.root / f"{mark}.yaml"
    path.write_text(text)
    return path


def rollout(node):
    return node.get("/v1/instances/chat/rollout")


def names(node):
    return sorted(one["name"] for one in node.get("/v1/instances")["items"])


def mark_of(pid):
    with open(f"/proc/{pid}/environ", "rb") as environment:
        return environment.read().split(b"MARK=")[1].split(b"\0")[0].decode()


@pytest.mark.parametrize("alone", [True, False], ids=["surge", "standby"])
def test_rollouts_under_load_lose_no_request(references, alone):
    with Pair(alone=alone) as node, Short(node, references) as crowd:
        crowd.goes_on()
        for number in range(1, ROLLOUTS + 1):
            done = berth(node, "rollout", "chat", "-f", write(node, f"m{number}"), "--wait")
            assert done.returncode == 0, done.stderr
            assert "Complete" in done.stdout
            assert "Following" in done.stderr or "HandingOver" in done.stderr
            active = wait_until("somebody answers", node.active)
            assert mark_of(active["pid"]) == f"m{number}"
            if alone:
                assert (active["name"], names(node)) == ("chat", ["chat"])
            assert not crowd.wrong, crowd.wrong[0]
        crowd.goes_on(max(2, REQUESTS - crowd.done))
        assert rollout(node)["number"] == ROLLOUTS
    assert not crowd.wrong, crowd.wrong[0]
    print(f"{ROLLOUTS} rollouts, {crowd.done} answers")


def test_a_document_that_does_not_start_leaves_the_old_process_serving(references):
    with Pair(alone=True) as node, Short(node, references) as crowd:
        active = node.active()
        broken = write(node, "broken", replace={"--batch-invariant": "--no-such-flag"})
        done = berth(node, "rollout", "chat", "-f", broken, "--wait")
        assert done.returncode == 1
        assert "has failed" in done.stderr and "chat~next" in done.stderr
        shown = wait_until("it is over", lambda: (r := rollout(node)) and not r["underWay"] and r)
        assert (shown["phase"], shown["reason"]) == ("Failed", "StartFailed")
        assert node.active()["pid"] == active["pid"] and names(node) == ["chat"]
        assert "StartFailed" in berth(node, "explain", "chat").stdout
        assert any(one["reason"] == "RolloutFailed" for one in events(node))
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def test_a_new_process_that_computes_wrongly_is_not_given_the_socket(references):
    """Torch's activation function is replaced in it, as by a build that is wrong."""
    with Pair(alone=True) as node, Short(node, references) as crowd:
        active = node.active()
        wrong = write(node, "wrong", replace={
            '"wrong"}': f'"wrong", LD_PRELOAD: "{BIN.parent / "tests/libwrong_silu.so"}"}}'})
        done = berth(node, "rollout", "chat", "-f", wrong, "--wait")
        assert done.returncode == 1
        assert "CanaryDiffers" in done.stderr and "computes wrongly" in done.stderr, done.stderr
        wait_until("it is over", lambda: not rollout(node)["underWay"])
        assert node.active()["pid"] == active["pid"] and names(node) == ["chat"]
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def events(node):
    lines = node.get("/v1/events")
    return [json.loads(line) for line in lines.splitlines()] if isinstance(lines, str) else [lines]


def test_it_waits_goes_on_and_is_undone_over_deaths_of_the_daemon(references):
    with Pair(alone=True) as node, Short(node, references) as crowd:
        old = node.active()["pid"]
        begun = berth(node, "rollout", "chat", "-f", write(node, "second"), "--pause", "--wait")
        assert begun.returncode == 0, begun.stderr
        assert "Ready (paused)" in begun.stdout
        assert node.active()["pid"] == old and names(node) == ["chat", "chat~next"]
        node.kill_daemon()
        crowd.goes_on()
        node.start_daemon()
        wait_until("both are back",
                   lambda: all(node.instance(n)["connected"] for n in ("chat", "chat~next")))
        shown = json.loads(berth(node, "rollout", "status", "chat", "-o", "json").stdout)
        assert (shown["phase"], shown["paused"]) == ("Ready", True)
        assert node.active()["pid"] == old
        went = berth(node, "rollout", "resume", "chat", "--wait")
        assert went.returncode == 0, went.stderr
        assert mark_of(node.active()["pid"]) == "second" and names(node) == ["chat"]
        wait_until("the documents keep it", lambda: rollout(node)["kept"])
        node.kill_daemon()
        node.start_daemon()
        wait_until("somebody answers", node.active)
        assert mark_of(node.active()["pid"]) == "second"
        undone = berth(node, "rollout", "undo", "chat", "--wait")
        assert undone.returncode == 0, undone.stderr
        assert mark_of(node.active()["pid"]) == "first"
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def test_a_surge_that_is_killed_before_it_serves_changes_nothing(references):
    with Pair(alone=True) as node, Short(node, references) as crowd:
        old = node.active()["pid"]
        berth(node, "rollout", "chat", "-f", write(node, "second"), "--pause", "--wait")
        kill(node.instance("chat~next")["pid"])
        wait_until("it has failed", lambda: rollout(node)["phase"] == "Failed", PATIENCE)
        status = berth(node, "rollout", "status", "chat")
        assert status.returncode == 1, status.stdout
        assert node.active()["pid"] == old and names(node) == ["chat"]
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def test_in_place_says_what_it_costs_and_requests_wait_meanwhile(references):
    with Pair(alone=True) as node, Short(node, references) as crowd:
        moved = write(node, "second")
        said = berth(node, "rollout", "chat", "-f", moved, "--in-place", "--dry-run")
        assert said.returncode == 0 and "nobody would serve for about" in said.stdout
        done = berth(node, "rollout", "chat", "-f", moved, "--in-place", "--wait")
        assert done.returncode == 0, done.stderr
        assert "nobody served for" in done.stdout
        assert rollout(node)["gapMs"] > 0
        crowd.goes_on()
    assert not crowd.wrong, crowd.wrong[0]


def refusal(node, target, text):
    with pytest.raises(Refused) as refused:
        call(node.connection(), "POST", target, text, {"Content-Type": "application/yaml"})
    return refused.value.status, refused.value.body["reason"], refused.value.body["message"]


def test_what_is_no_rollout_is_refused_in_words():
    with Pair() as node:
        good = write(node, "second").read_text()
        status, reason, words = refusal(node, "/v1/instances/chat:rollout", node.documents("x"))
        assert (status, reason) == (400, "InvalidDocument") and "of kind Model" in words
        status, reason, _ = refusal(node, "/v1/instances/spare:rollout", good)
        assert (status, reason) == (400, "NameMismatch")
        status, reason, _ = refusal(node, "/v1/instances/chat:rollout?maxUnavailable=some", good)
        assert status == 400
        with pytest.raises(Refused) as refused:
            rollout(node)
        assert refused.value.body["reason"] == "RolloutNotFound"
        elsewhere = good.replace(f":{node.port}", ":1")
        done = berth(node, "rollout", "chat", "-f", "-", "--dry-run")
        assert done.returncode != 0 # an empty stdin
        path = node.root / "elsewhere.yaml"
        path.write_text(elsewhere)
        done = berth(node, "rollout", "chat", "-f", path)
        assert done.returncode == 1 and "--in-place" in done.stderr
        stands_by = "kind: Instance\nmetadata: {name: spare}\nspec: {standbyOf: chat}\n"
        path.write_text(stands_by)
        done = berth(node, "rollout", "spare", "-f", path)
        assert done.returncode == 1 and "berth rollout chat" in done.stderr
