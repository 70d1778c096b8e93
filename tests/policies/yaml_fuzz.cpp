// SPDX-License-Identifier: Apache-2.0
// Whatever the text, the reader returns a value or an error; and what it accepts, it prints so that
// it reads back equal.
#include "policies/yaml.h"

#include <cstdint>
#include <cstdlib>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
    using namespace berth::policies;
    const std::string_view text(reinterpret_cast<const char*>(data), size);
    const berth::Result<Documents> first = parse_documents(text, "/f/fuzz.yaml");
    if (!first)
        return 0;
    Documents whole = *first;
    whole.policy = first->effective_policy();
    const berth::Result<Documents> second = parse_documents(effective_yaml(whole), "/f/fuzz.yaml");
    if (!second || !(*second == whole))
        std::abort();
    return 0;
}
