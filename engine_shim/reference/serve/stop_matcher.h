// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace berth::serve {

// Finds stop strings in text that arrives in pieces, also across pieces. Text is given out as soon
// as it cannot be the begin of a stop string any more. Not thread-safe.
class StopMatcher {
  public:
    explicit StopMatcher(std::vector<std::string> stops) : stops_(std::move(stops)) {}

    // The text that is certain now; nothing more after a stop string was found.
    std::string push(std::string_view text);
    // What was held back, at the end of the text.
    std::string finish();
    bool stopped() const { return stopped_; }

  private:
    std::vector<std::string> stops_;
    std::string held_;
    bool stopped_ = false;
};

} // namespace berth::serve
