// SPDX-License-Identifier: Apache-2.0
#include "engine_shim/reference/serve/stop_matcher.h"

#include <algorithm>

namespace berth::serve {

std::string StopMatcher::push(std::string_view text) {
    if (stopped_)
        return {};
    held_ += text;
    size_t first = std::string::npos;
    for (const std::string& stop : stops_)
        first = std::min(first, held_.find(stop));
    if (first != std::string::npos) {
        stopped_ = true;
        std::string out = held_.substr(0, first);
        held_.clear();
        return out;
    }
    size_t kept = 0;
    for (const std::string& stop : stops_) {
        size_t most = std::min(stop.size() - 1, held_.size());
        for (size_t length = most; length > kept; --length) {
            if (std::string_view(held_).ends_with(std::string_view(stop).substr(0, length)))
                kept = length;
        }
    }
    // Not within a character: what is given out is whole ones.
    size_t cut = held_.size() - kept;
    while (cut > 0 && cut < held_.size() &&
           (static_cast<unsigned char>(held_[cut]) & 0xC0U) == 0x80U)
        --cut;
    std::string out = held_.substr(0, cut);
    held_.erase(0, cut);
    return out;
}

std::string StopMatcher::finish() {
    std::string out;
    std::swap(out, held_);
    return out;
}

} // namespace berth::serve
