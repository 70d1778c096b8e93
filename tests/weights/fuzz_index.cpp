// SPDX-License-Identifier: Apache-2.0
// Any bytes as an index or a configuration: refused, or plain names of files and sane sizes.
#include "cache/checkpoint/config.h"
#include "cache/checkpoint/expected_tensors.h"
#include "cache/checkpoint/index.h"

#include <cstddef>
#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    std::string_view text(reinterpret_cast<const char*>(data), size);
    auto index = berth::parse_index(text, "fuzz.index.json");
    if (index) {
        for (const std::string& file : index->files)
            if (file.empty() || file.find('/') != std::string::npos)
                std::abort();
    }
    auto config = berth::parse_config(text, "config.json");
    if (config && config->architecture != berth::Architecture::kUnknown &&
        berth::expected_tensors(*config).empty())
        std::abort();
    return 0;
}
