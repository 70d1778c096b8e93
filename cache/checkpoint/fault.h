// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "base/result.h"

#include <string>
#include <string_view>
#include <vector>

namespace berth {

// What is wrong with a file of a checkpoint, in the parts that every such error has.
struct Fault {
    std::string_view reason;   // CamelCase, for programs: "TruncatedFile"
    std::string_view file;     // basename, or a path
    std::string_view tensor;   // empty where the fault is the file's
    std::string_view found;    // "data offsets 0..96"
    std::string_view expected; // "0..128 for F32 [4, 8]"
    std::string_view remedy;   // "download the file again"
    ErrorCode code = ErrorCode::kCorrupt;
};

// "FILE: tensor 'NAME': found FOUND, expected EXPECTED; REMEDY", leaving out what is empty.
tl::unexpected<Error> fail_fault(const Fault& fault);

// "a, b, c and 12 more".
std::string list_names(const std::vector<std::string>& names, size_t shown_max = 8);

} // namespace berth
