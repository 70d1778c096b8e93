#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: berth-engine's greedy tokens on CUDA equal transformers' on the CPU, in
float32 by torch's operations and in bfloat16 by kernels and graphs (there up to a token that rounding
to bfloat16 may make the likeliest), and a kernel that writes through a read-only mapping ends its own
process alone.

    check_cuda.py tokens BIN_DIR [DEVICE]     (exit status: how many answers are wrong)
    check_cuda.py offender LIBBERTH.SO SOCKET MODEL     (exit status 0: the write was refused)
"""

import copy
import ctypes
import json
import pathlib
import re
import subprocess
import sys
import tempfile
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "configs"))


# Each token is a word of its own, so that a text tells its tokens; prompts are token ids.
WORD = 3


def word_of(token):
    return "".join(chr(ord("a") + token // 26 ** place % 26) for place in (2, 1, 0))


def tokens_of(text):
    words = [text[at:at + WORD] for at in range(0, len(text), WORD)]
    return [sum((ord(letter) - ord("a")) * 26 ** place
                for letter, place in zip(word, (2, 1, 0))) for word in words]


def write_word_tokenizer(folder, size):
    import make_model

    make_model.write_byte_tokenizer(folder)
    path = folder / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    tokenizer["added_tokens"] = []  # none is left out of a text
    tokenizer["model"]["vocab"] = {word_of(token): token for token in range(size)}
    path.write_text(json.dumps(tokenizer))


VOCAB = 264


def make_checkpoints(folder):
    import torch
    import transformers as t

    # Heads of 64 and 128 places, which the kernels are for.
    shape = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                 num_attention_heads=4, num_key_value_heads=2, vocab_size=VOCAB,
                 max_position_embeddings=1024, bos_token_id=0, eos_token_id=0)
    kinds = {
        "llama": (t.LlamaConfig, t.LlamaForCausalLM, {}),
        "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
        "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, {"head_dim": 128}),
    }
    for name, (config, model, more) in kinds.items():
        torch.manual_seed(3)
        made = model(config(**shape, **more)).float().eval()
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, 0.0, 0.08)
        made.save_pretrained(folder / name)
        write_word_tokenizer(folder / name, VOCAB)
        yield name, made


PROMPTS = 6
NEW_TOKENS = 48
# How much more than transformers' own bfloat16 the engine's may move a logit.
SLACK = 1.5


def engine_tokens(bin_dir, folder, name, prompts, device, compute):
    lines = [{"custom_id": str(i), "method": "POST", "url": "/v1/completions",
              "body": {"model": name, "prompt": prompt, "max_tokens": NEW_TOKENS,
                       "temperature": 0, "ignore_eos": True}}
             for i, prompt in enumerate(prompts)]
    (folder / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "out.jsonl").unlink(missing_ok=True)
    done = subprocess.run(
        [f"{bin_dir}/berth-engine", "--mode", "off", "--device", device, "--model",
         folder / name, "--kv-memory", "1Gi", "--served-model-name", name, "--compute", compute,
         "--batch-input", folder / "in.jsonl", "--batch-output", folder / "out.jsonl"],
        capture_output=True, text=True, timeout=200)
    log = done.stdout + done.stderr
    if done.returncode != 0:
        print(log[-4000:])
        return None, ""
    for line in log.splitlines():
        if "warn" in line.lower():
            print(f"  {line.strip()}")
    answers = [json.loads(line) for line in (folder / "out.jsonl").read_text().splitlines()]
    by_id = {a["custom_id"]: a["response"]["body"]["choices"][0]["text"] for a in answers}
    way = re.search(r"compute=(.*)", log)
    return ([tokens_of(by_id[str(i)]) for i in range(len(prompts))],
            way.group(1).strip() if way else "?")


def compare(exact, narrow, prompt, found):
    """'equal', where they part by rounding, or None: wrong. `exact` computes in float32; `narrow`,
    if there is one, the same numbers in bfloat16, which shows what rounding moves a logit by."""
    import torch

    with torch.inference_mode():
        out = exact.generate(torch.tensor([prompt]), max_new_tokens=NEW_TOKENS, do_sample=False,
                             eos_token_id=None, pad_token_id=0)
        wanted = out[0, len(prompt):].tolist()
        if found == wanted:
            return "equal"
        if len(found) != len(wanted):
            print(f"  {len(found)} tokens where {len(wanted)} are expected: {found}")
            return None
        at = next(i for i in range(len(wanted)) if found[i] != wanted[i])
        prefix = out[:, :len(prompt) + at]
        logits = exact(prefix).logits[0, -1].float()
        moved = 0.0 if narrow is None else \
            (narrow(prefix).logits[0, -1].float() - logits).abs().max().item()
    behind = (logits[wanted[at]] - logits[found[at]]).item()
    spread = logits.std().item()
    text = (f"token {at}, which lies {behind / spread:.4f} of the spread behind the likeliest, "
            f"where bfloat16 moves a logit by {moved / spread:.4f}")
    if behind <= 2 * SLACK * moved: # one may fall while the other rises
        return f"equal up to {text}"
    print(f"  wrong at {text}\n  {found}\n  {wanted}")
    return None


def tokens(bin_dir, device="cuda"):
    import torch

    generator = torch.manual_seed(1)
    prompts = [[int(x) for x in torch.randint(1, 256, (40 + 9 * i,), generator=generator)]
               for i in range(PROMPTS)]
    failures = 0
    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        for name, model in make_checkpoints(folder):
            for kind in ("float32", "bfloat16", "bfloat16 plain"):
                narrow = None
                if kind != "float32":
                    narrow = copy.deepcopy(model).bfloat16()
                    narrow.save_pretrained(folder / name)
                    model = copy.deepcopy(narrow).float()  # the same numbers, computed exactly
                found, way = engine_tokens(bin_dir, folder, name, prompts, device,
                                           "plain" if kind == "bfloat16 plain" else "auto")
                if found is None:
                    failures += 1
                    continue
                results = [compare(model, narrow, prompt, one)
                           for prompt, one in zip(prompts, found)]
                failures += results.count(None)
                print(f"{name}, {kind}, computed {way}: {results.count('equal')} of {PROMPTS} "
                      f"answers of {NEW_TOKENS} greedy tokens equal, {results.count(None)} wrong",
                      flush=True)
                for one in results:
                    if one not in (None, "equal"):
                        print(f"  {one}")
                if kind == "bfloat16" and device == "cuda" and not way.startswith("fast"):
                    print("  wrong: it has to be computed fast")
                    failures += 1
    return failures


class Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("rank", ctypes.c_uint32), ("shape", ctypes.c_void_p),
                ("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64),
                ("alias_of", ctypes.c_char_p)]


class Connect(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(n, ctypes.c_char_p) for n in (
        "mode", "socket", "instance", "token", "model_path", "device", "program")] + [
        ("timeout_ms", ctypes.c_uint64)]


class Attach(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("weight_set", ctypes.c_char_p), ("resident_only", ctypes.c_int)]


def offender(library, socket, model):
    import cupy

    berth = ctypes.CDLL(library)
    berth.berth_error_message.restype = ctypes.c_char_p
    cupy.zeros(1)
    client, weights = ctypes.c_void_p(), ctypes.c_void_p()
    connect = Connect(size=ctypes.sizeof(Connect), mode=b"client", socket=socket.encode())
    attach = Attach(size=ctypes.sizeof(Attach), model=model.encode())
    tensor = Tensor(size=ctypes.sizeof(Tensor))

    def must(status):
        if status != 0:
            sys.exit(f"offender: {berth.berth_error_message().decode()}")

    must(berth.berth_connect(ctypes.byref(connect), ctypes.byref(client)))
    started = time.monotonic()
    must(berth.berth_attach(client, ctypes.byref(attach), None, None, ctypes.byref(weights)))
    print(f"attached from Python in {(time.monotonic() - started) * 1e3:.1f} ms")
    must(berth.berth_tensor_at(weights, 0, ctypes.byref(tensor)))
    memory = cupy.cuda.UnownedMemory(tensor.address, tensor.bytes, None)
    view = cupy.ndarray((1024,), dtype=cupy.uint8,
                        memptr=cupy.cuda.MemoryPointer(memory, 0))
    print("first bytes read through the mapping:", view[:4].get().tolist())
    try:
        view[:] = 7
        cupy.cuda.Device().synchronize()
    except cupy.cuda.runtime.CUDARuntimeError as error:
        print(f"the write was refused: {error}")
        return 0
    except cupy.cuda.driver.CUDADriverError as error:
        print(f"the write was refused: {error}")
        return 0
    print("the write went through")
    return 1


if __name__ == "__main__":
    kind, arguments = sys.argv[1], sys.argv[2:]
    result = tokens(*arguments) if kind == "tokens" else offender(*arguments)
    sys.stdout.flush()
    # After a refused write the context is lost: interpreter shutdown would only complain.
    import os
    os._exit(result)
