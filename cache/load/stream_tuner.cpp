// SPDX-License-Identifier: Apache-2.0
#include "cache/load/stream_tuner.h"

#include <algorithm>

namespace berth {

void StreamTuner::measured(double bytes_per_second, bool wanted_more) {
    if (resting_) {
        if (++rested_ < rest_)
            return;
        resting_ = false;
        way_ = Way::kUp;
        moved_ = false;
        return;
    }
    rate_ = std::max(rate_, bytes_per_second);
    if (++tries_ == kTriesEach)
        decide(wanted_more);
}

// A round measures the best count anew, then goes one way for as long as that gains, and another
// only where nothing was gained.
void StreamTuner::decide(bool wanted_more) {
    double rate = rate_;
    rate_ = 0;
    tries_ = 0;
    bool gained = trying_ != best_ && rate > best_rate_ * kGain;
    if (trying_ == best_ || gained) {
        best_ = trying_;
        best_rate_ = rate;
        moved_ = moved_ || gained;
    } else if (!turn()) {
        return rest();
    }
    while (!can_step(wanted_more))
        if (!turn())
            return rest();
    trying_ = way_ == Way::kUp ? best_ + 1 : way_ == Way::kDown ? best_ - 1 : 0;
}

bool StreamTuner::can_step(bool wanted_more) const {
    switch (way_) {
    case Way::kUp:
        return wanted_more && best_ + 1 < kLadder.size();
    case Way::kDown:
        return best_ > 0;
    case Way::kOneStream:
        return best_ > 1;
    }
    return false;
}

bool StreamTuner::turn() {
    if (moved_ || way_ == Way::kOneStream)
        return false;
    way_ = way_ == Way::kUp ? Way::kDown : Way::kOneStream;
    return true;
}

// Longer each time that nothing was found.
void StreamTuner::rest() {
    trying_ = best_;
    resting_ = true;
    rested_ = 0;
    rest_ = moved_ ? kRestMin : std::min(2 * rest_, kRestMax);
}

} // namespace berth
