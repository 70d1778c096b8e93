# SPDX-License-Identifier: Apache-2.0
"""Goal: the end of any rank ends the others in time, each with words that name it and an exit code
of its own, in the middle of a step, between steps, and while weights are loaded."""

import random
import signal
import time

import pytest
from rank_crew import MODEL, RANK_LOST, Crew, write_batch

RANKS = 3
PROMPTS = ["Once upon a time", "The capital of France is"]
IN_TIME = 10.0  # seconds; it takes a few milliseconds, and a busy machine more


def batch_arguments(folder, tokens=2000):
    write_batch(folder / "in.jsonl", PROMPTS, tokens)
    return ["--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl"]


def assert_all_end(crew, killed):
    began = time.monotonic()
    ends = crew.ends()
    assert time.monotonic() - began < IN_TIME, crew.all_logs()
    for rank, end in enumerate(ends):
        if rank == killed:
            assert end == -signal.SIGKILL
        else:
            assert end == RANK_LOST, crew.all_logs()
            assert f"rank {killed} is gone" in crew.log(rank), crew.log(rank)


@pytest.mark.parametrize("killed", range(RANKS))
def test_a_rank_killed_while_tokens_are_made_ends_all(folder, killed):
    with Crew(folder, MODEL, RANKS, batch_arguments(folder)) as crew:
        crew.await_log(0, "ready model=")
        time.sleep(random.uniform(0, 0.5))
        crew.processes[killed].kill()
        assert_all_end(crew, killed)


def test_a_rank_killed_between_steps_ends_all(folder):
    with Crew(folder, MODEL, RANKS, ["--listen", "127.0.0.1:0"]) as crew:
        crew.await_log(0, "ready model=")
        crew.processes[2].kill()
        assert_all_end(crew, 2)


def test_a_rank_killed_while_weights_are_loaded_ends_all(folder):
    with Crew(folder, MODEL, RANKS, batch_arguments(folder)) as crew:
        crew.await_log(1, "phase=rendezvous")
        crew.processes[1].kill()
        assert_all_end(crew, 1)


@pytest.mark.parametrize("asked", [0, 1])
def test_a_rank_that_is_asked_to_end_ends_all_well(folder, asked):
    with Crew(folder, MODEL, RANKS, ["--listen", "127.0.0.1:0"]) as crew:
        crew.await_log(0, "ready model=")
        crew.processes[asked].terminate()
        assert crew.ends() == [0] * RANKS, crew.all_logs()
