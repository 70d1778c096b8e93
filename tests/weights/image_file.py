# SPDX-License-Identifier: Apache-2.0
"""Reads an image of a weight set as cache/load/image_format.h and cache/weights/manifest_format.h
say that it lies, with nothing of the program under test."""

import dataclasses
import struct

IMAGE_MAGIC = 0x31474D4948545242
MANIFEST_MAGIC = 0x31464D4854524542
NOT_ALIAS = 0xFFFFFFFF
DTYPES = {2: "F32", 3: "F16", 4: "BF16", 5: "F8_E4M3"}


@dataclasses.dataclass
class Tensor:
    dtype: str
    shape: tuple
    data: bytes
    alias_of: str | None


class Manifest:
    def __init__(self, data):
        header = struct.unpack_from("<QIIQQQQQ6Q", data)
        magic, version, segments, size, count, segments_at, entries_at, weight_bytes = header[:8]
        assert (magic, version) == (MANIFEST_MAGIC, 1)
        assert size == len(data)
        self.segment_bytes = struct.unpack_from(f"<{segments}Q", data, segments_at)
        self.weight_bytes = weight_bytes
        self.document = data[header[8]:header[8] + header[9]].decode()
        self.entries = []
        for index in range(count):
            entry = struct.unpack_from("<QIIIBBHQQQQ8Q", data, entries_at + 120 * index)
            name_at, name_bytes, alias, segment, dtype, rank, _, offset, size = entry[:9]
            name = data[name_at:name_at + name_bytes].decode()
            self.entries.append((name, alias, segment, dtype, entry[11:11 + rank], offset, size))


def read_image(path):
    """{name: Tensor} of one rank, and its manifest."""
    data = path.read_bytes()
    magic, version, segments, header_bytes = struct.unpack_from("<QIIQ", data)
    assert (magic, version) == (IMAGE_MAGIC, 1)
    file_bytes, manifest_at, manifest_bytes = struct.unpack_from("<QQQ", data, 40)
    assert file_bytes == len(data) and manifest_at == header_bytes
    places = [struct.unpack_from("<QQ", data, 208 + 16 * index) for index in range(segments)]
    manifest = Manifest(data[manifest_at:manifest_at + manifest_bytes])
    assert [size for _, size in places] == list(manifest.segment_bytes)
    names = [entry[0] for entry in manifest.entries]
    tensors = {}
    for name, alias, segment, dtype, shape, offset, size in manifest.entries:
        start = places[segment][0] + offset
        tensors[name] = Tensor(DTYPES[dtype], tuple(shape), data[start:start + size],
                               None if alias == NOT_ALIAS else names[alias])
    return tensors, manifest
