// SPDX-License-Identifier: Apache-2.0
// Any bytes as an index, or a well-formed index of any names: refused, or a map whose files are
// plain names, each listed once.
#include "cache/checkpoint/index.h"

#include "base/json.h"

#include <fuzzer/FuzzedDataProvider.h>

#include <algorithm>
#include <cstdlib>

namespace {

std::string any_text(FuzzedDataProvider& from) {
    if (from.ConsumeBool())
        return from.ConsumeRandomLengthString();
    berth::json::object map;
    while (from.remaining_bytes() > 0) {
        std::string file = from.ConsumeRandomLengthString(24);
        if (from.ConsumeBool())
            file += ".safetensors";
        map[from.ConsumeRandomLengthString(24)] = file;
    }
    return berth::json::serialize(
        berth::json::object{{"metadata", berth::json::object()}, {"weight_map", map}});
}

} // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    FuzzedDataProvider from(data, size);
    auto index = berth::parse_index(any_text(from), "fuzz.index.json");
    if (!index) {
        if (index.error().message.find("fuzz.index.json") == std::string::npos)
            std::abort();
        return 0;
    }
    if (!std::is_sorted(index->files.begin(), index->files.end()) ||
        std::adjacent_find(index->files.begin(), index->files.end()) != index->files.end())
        std::abort();
    for (const std::string& file : index->files)
        if (file.find('/') != std::string::npos || !file.ends_with(".safetensors"))
            std::abort();
    for (const auto& [tensor, file] : index->file_of)
        if (!std::binary_search(index->files.begin(), index->files.end(), file))
            std::abort();
    // Nothing is on disk: never accepted.
    if (berth::check_index_files(*index, {}, "fuzz.index.json"))
        std::abort();
    return 0;
}
