# SPDX-License-Identifier: Apache-2.0
"""A real engine whose grant shrinks and grows under it: no line lost, none answered twice or
otherwise than undisturbed, and what it says that it holds is what the kernel says. The test plays
berthd, dies in between, and comes back."""

import json
import os
import random

import pytest
from node_under_test import PROMPTS
from played_daemon import PlayedDaemon, mapped_grant

MIB = 1 << 20
GRANT = 12 * MIB  # 34 blocks of this model
STEP = 128 << 10
LINES = int(os.environ.get("BERTH_SHRINK_LINES", "6"))

pytestmark = pytest.mark.skipif(os.environ.get("BERTH_TEST_DEVICE", "host") != "host",
                                reason="the kernel's figure is read")


def run(folder, disturb):
    """An engine that answers a batch file, disturbed meanwhile. custom_id -> answer."""
    folder.mkdir()
    source, target = folder / "in.jsonl", folder / "out.jsonl"
    with open(source, "w", encoding="utf-8") as file:
        for number in range(LINES):
            prompt = PROMPTS[number % len(PROMPTS)] * (1 + number % 4)
            file.write(json.dumps({
                "custom_id": f"line-{number}", "method": "POST", "url": "/v1/completions",
                "body": {"model": "smollm2", "prompt": prompt, "max_tokens": 24 + 4 * (number % 3),
                         "temperature": 0}}) + "\n")
    command = ["--batch-input", source, "--batch-output", target, "--served-model-name", "smollm2",
               "--batch-invariant", "--max-batch", "4", "--prefill-chunk", "32",
               "--max-context", "128"]
    with PlayedDaemon(folder, GRANT, command, {"BERTH_GRANT_STEP": str(STEP)}) as daemon:
        try:
            assert daemon.await_message("state", state="Ready")
            disturb(daemon)
            assert daemon.engine.wait(300) == 0
        except BaseException:
            print((folder / "engine.log").read_text(errors="replace")[-4000:])
            raise
    answers = {}
    for line in target.read_text(encoding="utf-8").splitlines():
        entry = json.loads(line)
        assert entry["custom_id"] not in answers, f"{entry['custom_id']} was answered twice"
        assert entry["error"] is None, entry
        answers[entry["custom_id"]] = entry["response"]["body"]["choices"][0]["text"]
    assert len(answers) == LINES
    return answers


def drain(daemon):
    while daemon.next() is not None:
        pass


@pytest.fixture(name="undisturbed", scope="module")
def undisturbed_answers(tmp_path_factory):
    return run(tmp_path_factory.mktemp("undisturbed") / "run", drain)


def checked(daemon, done):
    """Whether the engine lives; and if so, whether it told the truth."""
    if done is None:
        return False
    try:
        mapped = mapped_grant(daemon.engine.pid)
    except OSError:
        return False
    if mapped == 0:  # it is leaving
        return False
    assert done["grant_bytes"] == mapped, done
    return True


@pytest.mark.parametrize("seed", [1, 2])
def test_sizes_change_at_random_and_the_answers_do_not(tmp_path, undisturbed, seed):
    chance = random.Random(seed)
    done_kinds, refusals = [], []

    def deed(daemon, kind, goal, kv):
        """Whether the engine lives on."""
        now = daemon.said
        done = daemon.order(kind, goal, kv=kv)
        if not checked(daemon, done):
            return False
        if done.get("error"):
            refusals.append(done["error"]["reason"])
            assert done["grant_bytes"] == now
        else:
            done_kinds.append(kind)
            assert done["grant_bytes"] == goal
        return True

    def disturb(daemon):
        lives = deed(daemon, "Shrink", GRANT // 2, "Save") and deed(daemon, "Grow", GRANT, "Save")
        while lives:
            # Each command gives a step up: some must be let through.
            for _ in range(chance.randrange(1, 3)):
                if daemon.await_message("report") is None:
                    return
            goal = chance.randrange(GRANT // STEP + 1) * STEP
            lives = deed(daemon, "Shrink" if goal < daemon.said else "Grow", goal,
                         chance.choice(["Save", "Drop", "Auto"]))
            # What was too large for a small grant goes on in a large one.
            if lives and chance.random() < 0.4:
                lives = deed(daemon, "Grow", GRANT, "Save")
        drain(daemon)

    assert run(tmp_path / "run", disturb) == undisturbed
    assert "Shrink" in done_kinds and "Grow" in done_kinds
    assert set(refusals) <= {"GrantTooSmall"}


def test_a_berthd_that_dies_in_between_learns_the_true_grant(tmp_path, undisturbed):
    deaths = []

    def disturb(daemon):
        for goal in (GRANT // 2, GRANT, GRANT // 3, GRANT):
            daemon.command("Shrink" if goal < GRANT else "Grow", goal, kv="Save")
            daemon.hang_up()
            daemon.accept()
            # By the time that a command which asks for nothing is answered, the earlier one is
            # done or forgotten, and hello and state have told which.
            number, said = daemon.command("Grow", 0), daemon.said
            while True:
                message = daemon.next()
                if message is None or message.get("id") == number:
                    break
                said = daemon.said
            if not checked(daemon, message):
                break
            assert said == message["grant_bytes"]
            deaths.append(said)
        else:
            checked(daemon, daemon.order("Grow", GRANT))
        drain(daemon)

    assert run(tmp_path / "run", disturb) == undisturbed
    assert deaths


def test_it_shrinks_while_paused_and_stays_paused(tmp_path, undisturbed):
    def disturb(daemon):
        while daemon.await_message("report")["tokens_done"] == 0:
            pass
        assert not daemon.order("Pause").get("error")
        tokens = daemon.await_message("report")["tokens_done"]
        done = daemon.order("Shrink", 4 * MIB, kv="Save")
        assert not done.get("error"), done
        assert checked(daemon, done) and done["grant_bytes"] == 4 * MIB
        for _ in range(2):
            report = daemon.await_message("report")
            assert report["tokens_done"] == tokens and report["grant_bytes"] == 4 * MIB
        assert not daemon.order("Resume").get("error")
        assert checked(daemon, daemon.order("Grow", GRANT))
        drain(daemon)

    assert run(tmp_path / "run", disturb) == undisturbed
