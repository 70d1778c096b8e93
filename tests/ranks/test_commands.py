# SPDX-License-Identifier: Apache-2.0
"""Goal: berthd's commands to an instance of several ranks are carried out by all at one boundary,
with equal grants, and no token changes by them. Method: berthd is played for each rank."""

from played_ranks import PlayedCrew
from rank_crew import MODEL, answers_of, read_answers, write_batch

RANKS = 3
MIB = 1 << 20
GRANT = 48 * MIB
SMALL = 4 * MIB  # for some of the prompts
PROMPTS = [f"Once upon a time, in village number {number}," for number in range(6)]
TOKENS = 48


def batch(folder, prompts=PROMPTS):
    write_batch(folder / "in.jsonl", prompts, TOKENS)
    return ["--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl",
            "--served-model-name", "shared"]


def assert_still(crew):
    crew.tokens()  # one that was under way
    crew.seen = crew.tokens()
    assert crew.tokens() == crew.tokens() == crew.seen


def test_all_rungs_in_lockstep_change_no_token(folder):
    expected = answers_of(folder / "alone", MODEL, 1, PROMPTS, TOKENS)
    with PlayedCrew(folder, GRANT, RANKS, batch(folder)) as crew:
        crew.await_more()
        crew.order("Pause")
        assert_still(crew)
        crew.order("Resume")
        crew.await_more()
        for answer in crew.order("Shrink", SMALL, kv="Save"):
            assert answer["grant_bytes"] == SMALL
        crew.await_more()
        for answer in crew.order("Offload", 0, kv="Save"):
            assert answer["grant_bytes"] == 0
        assert_still(crew)
        for answer in crew.order("Restore", SMALL, canary=True):
            assert answer["grant_bytes"] == SMALL
        crew.await_more()
        for answer in crew.order("Grow", GRANT):
            assert answer["grant_bytes"] == GRANT
        assert crew.ends() == [0] * RANKS, crew.logs()
    assert read_answers(folder / "out.jsonl") == expected


def test_a_pause_of_one_rank_holds_all_until_its_resume(folder):
    with PlayedCrew(folder, GRANT, RANKS, batch(folder)) as crew:
        crew.await_more()
        assert not crew.ranks[2].order("Pause").get("error")
        assert_still(crew)
        assert not crew.ranks[2].order("Resume").get("error")
        crew.await_more()


def test_a_closed_gate_of_any_rank_stops_all_and_changes_no_token(folder):
    expected = answers_of(folder / "alone", MODEL, 1, PROMPTS[:2], TOKENS)
    arguments = batch(folder, PROMPTS[:2])
    with PlayedCrew(folder, GRANT, RANKS, arguments) as crew:
        crew.await_more()
        for rank in (2, 0, 1):
            crew.ranks[rank].gate.close(True)
            assert_still(crew)
            crew.ranks[rank].gate.close(False)
        assert crew.ends() == [0] * RANKS, crew.logs()
    assert read_answers(folder / "out.jsonl") == expected


def test_stop_ends_all_ranks(folder):
    with PlayedCrew(folder, GRANT, RANKS, ["--listen", "127.0.0.1:0"]) as crew:
        for rank in crew.ranks:
            rank.command("Stop", grace_ms=2000)
        assert crew.ends() == [0] * RANKS, crew.logs()
