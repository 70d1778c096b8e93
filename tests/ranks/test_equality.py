# SPDX-License-Identifier: Apache-2.0
"""Goal: in float32 an instance of several ranks gives the greedy tokens of one rank, for every
family, and where there are fewer key/value heads than ranks. Method: batches of prompts of unlike
lengths, prefilled in chunks and decoded together, on host devices through Gloo."""

import pytest
from rank_crew import MODEL, Crew, answers_of, write_batch
from tiny_checkpoint import make_checkpoint

PROMPTS = ["The capital of France is", "def fibonacci(n):\n",
           "Once upon a time, in a village by the sea, there lived an old woman who", "x"]
TOKENS = 12

# Name, family, changes, ranks, further options of all.
CASES = [
    ("llama", "Llama", {}, (2, 4), ()),
    ("llama_one_key_head_tied", "Llama",
     dict(num_key_value_heads=1, tie_word_embeddings=True), (2, 4), ()),
    ("llama_biases", "Llama", dict(attention_bias=True, mlp_bias=True), (2,), ()),
    ("llama_invariant", "Llama", {}, (2,), ("--batch-invariant",)),
    ("qwen2", "Qwen2", {}, (2, 4), ("--prefill-chunk", "16")),
    ("qwen3", "Qwen3", dict(head_dim=32), (2, 4), ()),
]


@pytest.mark.parametrize("name,family,changes,ranks,shared", CASES, ids=[c[0] for c in CASES])
def test_greedy_tokens_of_several_ranks_equal_those_of_one(folder, name, family, changes, ranks,
                                                           shared):
    model = make_checkpoint(folder / name, family, **changes)
    alone = answers_of(folder / "1", model, 1, PROMPTS, TOKENS, shared)
    assert len(alone) == len({text for text, _ in alone.values()}) == len(PROMPTS)
    assert all(usage["completion_tokens"] == TOKENS for _, usage in alone.values())
    for count in ranks:
        assert answers_of(folder / str(count), model, count, PROMPTS, TOKENS, shared) == alone


def test_a_real_model_on_three_ranks_answers_as_on_one(folder):
    alone = answers_of(folder / "1", MODEL, 1, PROMPTS, 24)
    assert answers_of(folder / "3", MODEL, 3, PROMPTS, 24) == alone


def test_heads_that_the_ranks_do_not_divide_are_refused_in_words(folder):
    write_batch(folder / "in.jsonl", PROMPTS, 1)
    arguments = ["--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl"]
    with Crew(folder, MODEL, 2, arguments) as crew:
        assert 0 not in crew.ends(), crew.all_logs()
        assert "choose a tensor parallelism that divides the heads" in crew.all_logs()


def test_ranks_that_are_started_unlike_each_other_are_refused_in_words(folder):
    write_batch(folder / "in.jsonl", PROMPTS, 1)
    arguments = ["--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl",
                 "--block-tokens", "32"]
    with Crew(folder, MODEL, 3, arguments) as crew:
        assert 0 not in crew.ends(), crew.all_logs()
        assert "all ranks must be started alike" in crew.log(0)
