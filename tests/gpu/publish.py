#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Publishing and private loads on one device, from Python by the C interface of libberth.so: what
one process fills (on a GPU: by torch, through the segment's address) is what another sees; a
half-written set goes with its writer, in the ledger and in the driver's figure; weights of a process
of its own are read right, and counted without their loader's context until they are dropped.

    publish.py [--device cuda|host] [--bin FOLDER] [--library FILE]

Needs berthd, berth-keeper and berth-loader in the folder (build/release/bin), libberth.so.1 there or
in its neighbour lib/, and for cuda torch. Exit status 0: all of it holds.
"""

import argparse
import ctypes
import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/system"))


def bytes_at(address, count, piece=1 << 30):
    """ctypes counts in 32 bits."""
    return b"".join(ctypes.string_at(address + begin, min(piece, count - begin))
                    for begin in range(0, count, piece))


class Connect(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(n, ctypes.c_char_p) for n in (
        "mode", "socket", "instance", "token", "model_path", "device", "program")] + [
        ("timeout_ms", ctypes.c_uint64), ("fallback", ctypes.c_char_p)]


class Attach(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("model", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("weight_set", ctypes.c_char_p), ("resident_only", ctypes.c_int)]


class Tensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("rank", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("address", ctypes.c_void_p), ("bytes", ctypes.c_uint64),
                ("alias_of", ctypes.c_char_p)]


class PublishTensor(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t), ("name", ctypes.c_char_p), ("dtype", ctypes.c_char_p),
                ("rank", ctypes.c_uint32), ("shape", ctypes.POINTER(ctypes.c_uint64)),
                ("strides", ctypes.POINTER(ctypes.c_uint64)), ("storage_offset", ctypes.c_uint64),
                ("alias_of", ctypes.c_char_p), ("kind", ctypes.c_int),
                ("opaque_bytes", ctypes.c_uint64)]


class PublishOptions(ctypes.Structure):
    _fields_ = [("size", ctypes.c_size_t)] + [(n, ctypes.c_char_p) for n in (
        "model", "path", "producer_name", "producer_version", "producer_recipe", "inputs_json",
        "config_json")] + [("find_only", ctypes.c_int)]


def sized(kind, **members):
    made = kind(**members)
    made.size = ctypes.sizeof(kind)
    return made


# What is published: name, dtype, elements, bytes of each. `large` is left half written by one.
LARGE_MIB = {"cuda": 2048, "host": 64}


def tensors(device):
    return [("layer.weight", b"BF16", 4 << 20, 2), ("layer.bias", b"F32", 4096, 4),
            ("large", b"U8", LARGE_MIB[device] << 20, 1)]


def pattern(name, count):
    seed = sum(name.encode()) % 251
    period = bytes((seed + 7 * i) % 251 for i in range(251))
    return (period * (count // 251 + 1))[:count]


class Memory:
    """The device's bytes at an address that libberth gave."""

    def __init__(self, device):
        self.torch = None
        if device == "cuda":
            import torch
            torch.cuda.init()
            self.torch = torch

    def _view(self, address, count):
        class Array:
            __cuda_array_interface__ = {"shape": (count,), "typestr": "|u1", "strides": None,
                                        "data": (address, False), "version": 3}
        return self.torch.as_tensor(Array(), device="cuda")

    def write(self, address, content):
        if self.torch is None:
            ctypes.memmove(address, content, len(content))
            return
        staged = self.torch.frombuffer(bytearray(content), dtype=self.torch.uint8).cuda()
        self._view(address, len(content)).copy_(staged)
        self.torch.cuda.synchronize()

    def read(self, address, count):
        if self.torch is None:
            return bytes_at(address, count)
        copy = self._view(address, count).cpu()
        return bytes_at(copy.data_ptr(), count)


class Library:
    def __init__(self, path):
        self.c = ctypes.CDLL(path)
        for name in ("berth_error_message", "berth_weights_id", "berth_publish_id",
                     "berth_weights_private"):
            getattr(self.c, name).restype = ctypes.c_char_p
        self.c.berth_tensor_count.restype = ctypes.c_size_t

    def call(self, name, *arguments):
        if getattr(self.c, name)(*arguments) != 0:
            sys.exit(f"{name}: {self.c.berth_error_message().decode()}")

    def connect(self, **options):
        client = ctypes.c_void_p()
        self.call("berth_connect", ctypes.byref(sized(Connect, program=b"publish.py", **options)),
                  ctypes.byref(client))
        return client

    def attach(self, client, **which):
        weights = ctypes.c_void_p()
        self.call("berth_attach", client, ctypes.byref(sized(Attach, **which)), None, None,
                  ctypes.byref(weights))
        return weights

    def id(self, weights):
        return self.c.berth_weights_id(weights).decode()

    def check(self, weights, memory, wanted):
        """That the set has these bytes under these names."""
        for name, content in wanted:
            tensor = sized(Tensor)
            self.call("berth_tensor_find", weights, name.encode(), ctypes.byref(tensor))
            if tensor.bytes != len(content):
                sys.exit(f"{name}: {tensor.bytes} bytes, {len(content)} are right")
            if memory.read(tensor.address, tensor.bytes) != content:
                sys.exit(f"{name}: other bytes than were written")
        say(f"right {len(wanted)}")


def say(line):
    print(line, flush=True)


def step(line):
    """Says it and goes on when told to."""
    say(line)
    sys.stdin.readline()


# The processes of the check

def publish(library, memory, device, socket, until):
    client = library.connect(mode=b"client", socket=socket.encode())
    declared = tensors(device)
    array = (PublishTensor * len(declared))()
    shapes = [(ctypes.c_uint64 * 1)(count) for _, _, count, _ in declared]
    for entry, shape, (name, dtype, _, _) in zip(array, shapes, declared):
        entry.size = ctypes.sizeof(PublishTensor)
        entry.name, entry.dtype, entry.rank, entry.shape = name.encode(), dtype, 1, shape
    options = sized(PublishOptions, model=b"check", producer_name=b"publish.py",
                    producer_version=b"1")
    publication, weights = ctypes.c_void_p(), ctypes.c_void_p()
    library.call("berth_publish_begin", client, ctypes.byref(options), array,
                 ctypes.c_size_t(len(declared)), None, None, ctypes.byref(publication),
                 ctypes.byref(weights))
    if not publication:
        sys.exit("the set is there already")
    for name, _, count, size in declared:
        content = pattern(name, count * size)
        if name == "layer.bias":  # copied by the library
            library.call("berth_publish_write", publication, name.encode(), ctypes.c_uint64(0),
                         content, ctypes.c_uint64(len(content)))
            continue
        address, there = ctypes.c_void_p(), ctypes.c_uint64()
        library.call("berth_publish_storage", publication, name.encode(), ctypes.byref(address),
                     ctypes.byref(there))
        if there.value != len(content):
            sys.exit(f"{name}: a storage of {there.value} bytes for {len(content)}")
        half = until == "half" and name == "large"
        memory.write(address.value, content[:len(content) // 2] if half else content)
        if half:
            step("half")
        library.call("berth_publish_filled", publication, name.encode())
    library.call("berth_publish_seal", publication, ctypes.byref(weights))
    library.c.berth_publish_close(publication)
    say(f"sealed {library.id(weights)}")
    library.check(weights, memory, published(device))
    step("checked")


def published(device):
    return [(name, pattern(name, count * size)) for name, _, count, size in tensors(device)]


def stored(checkpoint):
    """Each tensor's bytes, out of the file."""
    raw = (pathlib.Path(checkpoint) / "model.safetensors").read_bytes()
    (length,) = struct.unpack("<Q", raw[:8])
    data = raw[8 + length:]
    return [(name, data[slice(*entry["data_offsets"])])
            for name, entry in json.loads(raw[8:8 + length]).items() if name != "__metadata__"]


def attach(library, memory, device, socket, identity):
    client = library.connect(mode=b"client", socket=socket.encode())
    weights = library.attach(client, weight_set=identity.encode())
    library.check(weights, memory, published(device))
    step("checked")


def private(library, memory, device, socket, checkpoint):
    """By the environment: BERTH_MODE, BERTH_FALLBACK, BERTH_LOADER."""
    client = library.connect(socket=socket.encode(), model_path=checkpoint.encode(),
                             device=b"cuda" if device == "cuda" else b"host-0")
    weights = library.attach(client, path=checkpoint.encode())
    say(f"private {library.c.berth_weights_private(weights).decode()}")
    library.check(weights, memory, stored(checkpoint))
    step("checked")
    library.c.berth_weights_close(weights)
    step("dropped")
    library.c.berth_close(client)


ROLES = {"publish": publish, "attach": attach, "private": private}


class Process:
    def __init__(self, options, role, *arguments, **environment):
        self.process = subprocess.Popen(
            [sys.executable, __file__, "--device", options.device, "--library", options.library,
             "--role", role, *map(str, arguments)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
            env={**os.environ, **environment})
        options.started.append(self.process)

    def expect(self, word):
        """The rest of the next line that is no log's; it must begin with the word."""
        for line in self.process.stdout:
            if line.startswith(word):
                return line[len(word):].strip()
            if not line.startswith("["):
                print("  " + line.rstrip())
        sys.exit(f"'{word}' was expected, the process ended with {self.process.wait()}")

    def go_on(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def end(self):
        self.go_on()
        if self.process.wait(60) != 0:
            sys.exit(f"a process ended with {self.process.returncode}")


def driver_free(device):
    if device != "cuda":
        return None
    import torch
    return torch.cuda.mem_get_info()[0]


POLICY = """\
apiVersion: berth/v1
kind: ColocationPolicy
metadata: {name: p}
spec: {attach: {onChange: Refuse}}
"""
CLOSE = 64 << 20  # what the driver's figure may move by itself


def check(options, folder):
    from node_under_test import Node, wait_until
    from tiny_model import make_tiny_model
    device = options.device
    checkpoint = make_tiny_model(folder / "tiny")

    off = Process(options, "private", "/nowhere", checkpoint, BERTH_MODE="off")
    assert off.expect("private") == "ModeOff"
    off.expect("right")
    off.expect("checked")
    off.go_on()
    off.expect("dropped")
    off.end()
    print("mode off: a set of its own, read right")

    with Node(policy=POLICY, memory="1Gi") as node:
        socket = node.root / "run/berthd.sock"

        def free():
            return node.device()["freeBytes"]

        before, on_device = free(), driver_free(device)
        half = Process(options, "publish", socket, "half")
        half.expect("half")
        large = LARGE_MIB[device] << 20
        assert free() <= before - large, "what is filled is counted"
        half.process.kill()
        half.process.wait()
        wait_until("the ledger is as before", lambda: free() == before, 30)
        assert not node.weights()
        if on_device is not None:
            wait_until("the driver has the bytes back",
                       lambda: driver_free(device) >= on_device - CLOSE, 30)
        print("a half-written set has gone with its writer")

        writer = Process(options, "publish", socket, "sealed")
        identity = writer.expect("sealed")
        writer.expect("right")
        writer.expect("checked")
        reader = Process(options, "attach", socket, identity)
        reader.expect("right")
        reader.expect("checked")
        (shown,) = node.weights()
        assert shown["id"] == identity and shown["leases"] == 2, shown
        assert free() == before - shown["bytes"]
        verified = node.post(f"/v1/weights/{identity}:verify")
        assert verified["mismatchedCount"] == 0, verified
        writer.end()
        late = Process(options, "attach", socket, identity)
        late.expect("right")
        late.expect("checked")
        late.end()
        reader.end()
        wait_until("nobody holds it", lambda: node.weights()[0]["leases"] == 0, 30)
        node.finish(node.post(f"/v1/weights/{identity}:evict"))
        wait_until("the ledger is as before", lambda: free() == before, 30)
        print("a published set is the same in every process, and outlives its publisher")

        node.finish(node.post("/v1/weights:load", {"path": str(checkpoint)}), 120)
        (shared,) = node.weights()
        # Other files than it was made of, by their time; a new berthd looks.
        os.utime(checkpoint / "config.json", ns=(1, 1_000_000_007))
        node.kill_daemon()
        node.start_daemon()
        with_set = free()
        own = Process(options, "private", socket, checkpoint, BERTH_MODE="client",
                      BERTH_FALLBACK="disk")
        assert own.expect("private") == "FingerprintMismatch"
        own.expect("right")
        own.expect("checked")
        wait_until("its bytes are counted, and its loader's context no longer",
                   lambda: free() == with_set - shared["bytes"], 30)
        own.go_on()
        own.expect("dropped")
        wait_until("its bytes are free, and it lives", lambda: free() == with_set, 30)
        assert own.process.poll() is None
        own.end()
        print("a set of one's own is counted without its loader, until it is dropped")


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", choices=["cuda", "host"], default="cuda")
    parser.add_argument("--bin", default=str(ROOT / "build/release/bin"))
    parser.add_argument("--library")
    parser.add_argument("--role", choices=ROLES, help=argparse.SUPPRESS)
    parser.add_argument("words", nargs="*", help=argparse.SUPPRESS)
    return parser.parse_args()


def main():
    options = parse()
    if options.role:
        ROLES[options.role](Library(options.library), Memory(options.device), options.device,
                            *options.words)
        return
    folder = pathlib.Path(options.bin).resolve()
    near = [folder / "libberth.so.1", folder.parent / "lib/libberth.so.1"]
    if options.library is None:
        options.library = next((str(path) for path in near if path.exists()), None)
    if options.library is None:
        sys.exit(f"no libberth.so.1 at {near[0]} or {near[1]}: name it by --library")
    os.environ.update(BERTH_BIN_DIR=str(folder), BERTH_TEST_DEVICE=options.device,
                      BERTH_LOADER=str(folder / "berth-loader"))
    options.started = []
    scratch = pathlib.Path(tempfile.mkdtemp(prefix="berth-publish-"))
    try:
        check(options, scratch)
    finally:
        for process in options.started:
            if process.poll() is None:
                process.kill()
        shutil.rmtree(scratch, ignore_errors=True)
    print("all of it holds")


if __name__ == "__main__":
    main()
