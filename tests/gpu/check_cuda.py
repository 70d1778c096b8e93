#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""On a machine with a GPU: berth-engine's greedy tokens on CUDA equal transformers' on the CPU, and
a kernel that writes through a read-only mapping ends its own process alone.

    check_cuda.py tokens BIN_DIR
    check_cuda.py offender LIBBERTH.SO SOCKET MODEL     (exit status 0: the write was refused)
"""

import ctypes
import json
import pathlib
import subprocess
import sys
import tempfile
import time
import urllib.request

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "configs"))


def make_checkpoints(folder):
    import make_model
    import torch
    import transformers as t

    shape = dict(hidden_size=256, intermediate_size=512, num_hidden_layers=4,
                 num_attention_heads=8, num_key_value_heads=2, vocab_size=264,
                 max_position_embeddings=1024, bos_token_id=0, eos_token_id=0)
    kinds = {
        "llama": (t.LlamaConfig, t.LlamaForCausalLM, {}),
        "qwen2": (t.Qwen2Config, t.Qwen2ForCausalLM, {"tie_word_embeddings": True}),
        "qwen3": (t.Qwen3Config, t.Qwen3ForCausalLM, {"head_dim": 64}),
    }
    for name, (config, model, more) in kinds.items():
        torch.manual_seed(3)
        made = model(config(**shape, **more)).float().eval()
        for parameter in made.parameters():
            if parameter.dim() > 1:
                torch.nn.init.normal_(parameter, 0.0, 0.08)
        made.save_pretrained(folder / name)
        make_model.write_byte_tokenizer(folder / name)
        yield name, made


def tokens(bin_dir):
    import torch

    prompt = [int(x) for x in torch.randint(1, 256, (40,), generator=torch.manual_seed(1))]
    failures = 0
    with tempfile.TemporaryDirectory() as folder:
        for name, model in make_checkpoints(pathlib.Path(folder)):
            with torch.inference_mode():
                out = model.generate(torch.tensor([prompt]), max_new_tokens=48, do_sample=False,
                                     eos_token_id=None, pad_token_id=0)
            wanted = out[0, len(prompt):].tolist()
            line = {"custom_id": "a", "method": "POST", "url": "/v1/completions",
                    "body": {"model": name, "prompt": prompt, "max_tokens": 48,
                             "temperature": 0, "ignore_eos": True}}
            work = pathlib.Path(folder)
            (work / "in.jsonl").write_text(json.dumps(line) + "\n")
            (work / "out.jsonl").unlink(missing_ok=True)
            done = subprocess.run(
                [f"{bin_dir}/berth-engine", "--mode", "off", "--device", "cuda", "--model",
                 work / name, "--kv-memory", "1Gi", "--served-model-name", name,
                 "--batch-input", work / "in.jsonl", "--batch-output", work / "out.jsonl"],
                capture_output=True, text=True, timeout=200)
            if done.returncode != 0:
                print(done.stderr[-3000:])
                failures += 1
                continue
            text = json.loads((work / "out.jsonl").read_text())["response"]["body"]["choices"][0][
                "text"]
            import transformers
            tokenizer = transformers.PreTrainedTokenizerFast(
                tokenizer_file=str(work / name / "tokenizer.json"))
            expected = tokenizer.decode(wanted, skip_special_tokens=True)
            same = text == expected
            failures += not same
            print(f"{name}: 48 greedy tokens on CUDA {'equal' if same else 'DIFFER'}"
                  + ("" if same else f"\n  {text!r}\n  {expected!r}"))
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
