# SPDX-License-Identifier: Apache-2.0
"""Small random decoders of the supported families, with a real tokenizer beside them."""

import os
import pathlib
import shutil
import sys

# Before torch is imported: other tests share the cores, and spinning threads starve each other.
os.environ.setdefault("GOMP_SPINCOUNT", "0")

sys.path.append(str(pathlib.Path(__file__).resolve().parents[1] / "engine"))

from random_decoder import random_decoder
from rank_crew import MODEL

WORDS = 49152  # as the tokenizer has

BASE = dict(vocab_size=WORDS, hidden_size=64, intermediate_size=112, num_hidden_layers=3,
            num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=256,
            initializer_range=0.2, tie_word_embeddings=False, bos_token_id=1, eos_token_id=2)


def make_checkpoint(folder, family, **changes):
    model = random_decoder(family, {**BASE, **changes}, seed=11)
    model.save_pretrained(folder)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(MODEL / name, folder / name)
    return folder
