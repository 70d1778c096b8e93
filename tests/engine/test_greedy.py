# SPDX-License-Identifier: Apache-2.0
"""Goal: on a real model, 64 greedy tokens equal those of transformers (float32, CPU)."""

import torch
import transformers

PROMPTS = [
    "The capital of France is",
    "def fibonacci(n):\n",
    "Once upon a time, in a village by the sea,",
]


def test_64_greedy_tokens_equal_transformers(model_dir, berth_logits):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    model = transformers.AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)
    for prompt in PROMPTS:
        tokens = tokenizer(prompt)["input_ids"]
        with torch.no_grad():
            made = model.generate(torch.tensor([tokens]), max_new_tokens=64, min_new_tokens=64,
                                  do_sample=False, repetition_penalty=1.0, eos_token_id=-1)
        assert berth_logits.greedy(model_dir, tokens, 64) == made[0][len(tokens):].tolist()


def test_batch_invariant_greedy_tokens_equal_transformers(model_dir, berth_logits):
    tokenizer = transformers.AutoTokenizer.from_pretrained(model_dir)
    tokens = tokenizer(PROMPTS[0])["input_ids"]
    plain = berth_logits.greedy(model_dir, tokens, 32)
    assert berth_logits.greedy(model_dir, tokens, 32, "--batch-invariant", "--chunk", 64) == plain
