// SPDX-License-Identifier: Apache-2.0
#include "cache/checkpoint/fault.h"

#include <fmt/format.h>

namespace berth {

tl::unexpected<Error> fail_fault(const Fault& fault) {
    std::string message(fault.file);
    if (!fault.tensor.empty())
        message += fmt::format(": tensor '{}'", fault.tensor);
    if (!fault.found.empty())
        message += fmt::format(": found {}", fault.found);
    if (!fault.expected.empty())
        message += fmt::format("{} expected {}", fault.found.empty() ? ":" : ",", fault.expected);
    if (!fault.remedy.empty())
        message += fmt::format("; {}", fault.remedy);
    return fail(fault.code, std::move(message), std::string(fault.reason));
}

std::string list_names(const std::vector<std::string>& names, size_t shown_max) {
    std::string listed;
    for (size_t index = 0; index < names.size() && index < shown_max; ++index) {
        if (index > 0)
            listed += ", ";
        listed += names[index];
    }
    if (names.size() > shown_max)
        listed += fmt::format(" and {} more", names.size() - shown_max);
    return listed;
}

} // namespace berth
