// SPDX-License-Identifier: Apache-2.0
#include "scheduler/act/deep_hash.h"

#include "base/hash.h"

#include <fmt/format.h>

#include <iterator>

namespace berth {

std::string deep_hash(const Manifest& manifest) {
    std::string list;
    auto out = std::back_inserter(list);
    for (size_t index = 0; index < manifest.size(); ++index) {
        TensorView tensor = manifest.at(index);
        // A name may hold anything: its length says where it ends.
        fmt::format_to(out, "{} {} {} [{}] {:016x}{:016x}\n", tensor.name.size(), tensor.name,
                       to_string(tensor.dtype), fmt::join(tensor.shape, ","), tensor.checksum.high,
                       tensor.checksum.low);
    }
    return sha256_hex(list);
}

} // namespace berth
