// SPDX-License-Identifier: Apache-2.0
// Whatever the text, the reader returns a value or an error; and what it accepts, it prints so that
// it reads back equal. Without one of its instances a text says all else that it said.
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
    const Documents all = parse_fragment(text, "/f/fuzz.yaml").value();
    for (const InstanceSpec& one : all.instances) {
        Documents rest = all;
        std::erase_if(rest.instances,
                      [&](const InstanceSpec& other) { return other.name == one.name; });
        const auto left = parse_fragment(without_instance(text, one.name), "/f/fuzz.yaml");
        if (!left || !(*left == rest))
            std::abort();
    }
    return 0;
}
